"""The first answer of `ava serve`, from generated data, while nothing but a little of the standard library is loaded.

Most of a start is the import of the SDK. A host that asks `initialize` or `server/discover` at once gets its answer
before that. The server then reads the same request again, so that the session begins as usual, and its own answer to it
is dropped. Only a request that is understood completely is answered here; the server answers all others.
`first_answers.json` is written by `scripts/gen_docs.py`, and used only with the versions that it was made with.
"""

from __future__ import annotations

import json
import os
import select
import stat
import sys
import time
from typing import Any, cast

from ava_server.hosts.installed_skill import has_skill

WAIT_S = 0.1
"""Hosts write the first request at once. For others, the imports must not wait longer."""
MOST_BYTES = 65_536
_MOST_NESTED = 60
_MOST_ID = 2**53
_CLIENT: Any = {"name": str, "version": str, "title": str, "description": str, "websiteUrl": str}
_CAPABILITIES: Any = {
    "roots": {"listChanged": bool},
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "experimental": [dict],
    "extensions": [dict],
}
_REQUEST = {"jsonrpc", "id", "method", "params"}
_META = "io.modelcontextprotocol/"


class Early:
    """What was done before the server was loaded: which request was answered, and all that was `read` from stdin."""

    def __init__(self) -> None:
        self.read = b""
        self.answered: int | str | None = None

    def take(self) -> tuple[bytes, int | str | None]:
        read = self.read
        answered = self.answered
        self.read, self.answered = b"", None
        return read, answered


EARLY = Early()
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""What some hosts begin their stream with; it is no part of a message."""


def answer_first() -> bool:
    """Answer the first request, if it can be answered from here, and return whether it was."""
    known = _known_answers()
    if known is None or os.environ.get("AVA_RUN_ID") or not all(map(_is_pipe, (0, 1))):
        return False
    EARLY.read = _read_line()
    line, end, _rest = EARLY.read.partition(b"\n")
    found = answer_to(line, known) if end else None
    if found is None:
        return False
    EARLY.answered, answer = found
    _write(answer)
    return True


def answer_to(line: bytes, known: dict[str, Any]) -> tuple[int | str, bytes] | None:
    # An escape may be half a surrogate, and the SDK has a limit of its own for nesting: it handles both.
    if b"\\u" in line or line.count(b"{") + line.count(b"[") > _MOST_NESTED:
        return None
    try:
        text = line.removeprefix(BYTE_ORDER_MARK).decode()
        message: Any = json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return None
    request = _members(message)
    if request is None or request.keys() != _REQUEST or request["jsonrpc"] != "2.0":
        return None
    request_id: Any = request["id"]
    if type(request_id) is not str and not (type(request_id) is int and abs(request_id) < _MOST_ID):
        return None
    result = _result(request["method"], request["params"], known)
    if result is None:
        return None
    answer = {"jsonrpc": "2.0", "id": request_id, "result": result}
    return request_id, json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _result(method: Any, params: Any, known: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        shape: Any = {"protocolVersion": str, "capabilities": _CAPABILITIES, "clientInfo": _CLIENT}
        if _fits(params, shape, shape) and _fits(params["clientInfo"], _CLIENT, ("name", "version")):
            version = params["protocolVersion"]
            if version in known["versions"]:
                return {**known[method], **_instructions(params["clientInfo"], known), "protocolVersion": version}
    elif method == "server/discover":
        envelope: Any = {
            _META + "protocolVersion": str,
            _META + "clientCapabilities": _CAPABILITIES,
            _META + "clientInfo": _CLIENT,
        }
        shape = {"_meta": envelope}
        if (
            _fits(params, shape, shape)
            and _fits(params["_meta"], envelope, envelope)
            and _fits(params["_meta"][_META + "clientInfo"], _CLIENT, ("name", "version"))
        ):
            result: dict[str, Any] = known[method]
            if params["_meta"][_META + "protocolVersion"] in result["supportedVersions"]:
                return {**result, **_instructions(params["_meta"][_META + "clientInfo"], known)}
    return None


def _instructions(client: dict[str, Any], known: dict[str, Any]) -> dict[str, str]:
    """Return the short instructions for a host that has Ava's skill; nothing to change for any other."""
    if has_skill(client["name"]):
        return {"instructions": known["instructions_with_skill"]}
    return {}


def _fits(value: Any, shape: Any, required: Any = ()) -> bool:
    """Tell whether a value has a shape: a type, an object with these members at most, or `[type]`, any members."""
    members = _members(value)
    if isinstance(shape, list):
        member_type: Any = cast("list[Any]", shape)[0]
        return members is not None and all(type(member) is member_type for member in members.values())
    shapes = _members(shape)
    if shapes is None:
        return type(value) is shape
    if members is None:
        return False
    if not all(name in members for name in required):
        return False
    return all(name in shapes and _fits(member, shapes[name]) for name, member in members.items())


def _members(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if type(value) is dict else None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _known_answers() -> dict[str, Any] | None:
    """Return the generated answers if the installed packages are those that they were made with."""
    try:
        with open(os.path.join(os.path.dirname(__file__), "first_answers.json"), encoding="utf-8") as file:
            known: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return None
    folder = _sdk_folder()
    if folder is None:
        return None
    for name in known["packages"]:
        if not os.path.isdir(os.path.join(folder, f"{name}.dist-info")):
            return None
    return known


def _sdk_folder() -> str | None:
    for folder in sys.path:
        if os.path.isdir(os.path.join(folder, "mcp")):
            return folder
    return None


def _is_pipe(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


def _read_line() -> bytes:
    """Return what stdin has to offer soon, up to the end of its first line or a little more."""
    data = b""
    until = time.monotonic() + WAIT_S
    while b"\n" not in data and len(data) < MOST_BYTES:
        readable = select.select([0], [], [], max(0, until - time.monotonic()))[0]
        try:
            piece = os.read(0, MOST_BYTES) if readable else b""
        except OSError:  # the server meets it again
            break
        if not piece:
            break
        data += piece
    return data


def _write(answer: bytes) -> None:
    left = memoryview(answer)
    try:
        while left:
            select.select([], [1], [])
            left = left[os.write(1, left) :]
    except OSError:  # nobody reads any more; the end of stdin is what ends the server
        pass

"""Which commands of `ava` work with `--url`, and advice that names commands in the form that works there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass

TWO_WORDS = ("logs export", "report approvals", "report estimates")
"""Commands of two words whose first word is also a command."""
REMOTE_COMMANDS = (
    "approve", "reject", "status", "logs", "show", "wait", "cancel", "send", "resume", "report", "report approvals",
    "report estimates", "user",
)  # fmt: skip
"""Commands that `--url` and AVA_URL send to another server."""
TAKE_URL = (*REMOTE_COMMANDS, "init", "ui")
"""All that take `--url`."""
LOCAL_OPTIONS: Mapping[str, str] = {"send": "--question", "resume": "--force"}
"""An option of a command that takes `--url` which works only on the server itself."""

_QUOTED = re.compile(r"`ava (?!--)([^`]+)`")
_BARE = re.compile(r"(?<![\w`/.-])ava (?=[a-z])")
_ON_THE_SERVER = re.compile(r"\bon the server,? (with )?$", re.IGNORECASE)
_THERE = re.compile(r"\bthe server\b|\bthere\b")
_NEAR = 40
"""Characters before and after a command in which a sentence says that it is for the server."""


@dataclass
class _Server:
    """The server that a command shows, by how a command for it begins; None for the one of this machine."""

    command: str | None = None


_server: ContextVar[_Server] = ContextVar("server")


def forget_server() -> None:
    """Begin a command: no server is named yet."""
    _server.set(_Server())


def name_server(command: str) -> None:
    """Say that what this command shows is another server's; `command` is how a command for that begins."""
    server = _server.get(None)
    if server is not None:
        server.command = command


def advice(text: str) -> str:
    """Return one of Ava's own texts with commands that work where this command looks: here, or at a named server."""
    server = _server.get(None)
    if server is None or server.command is None:
        return text
    return advice_there(text, server.command)


def advice_there(text: str, command: str) -> str:
    """Return one of Ava's own texts with commands that work for another server.

    `command` is how a command for that begins: `ava --url URL`, or `ava` where AVA_URL names it. One that takes no
    `--url` is said to be for the server's own machine. A text that was adapted stays as it is.
    """

    def adapt_quoted(match: re.Match[str]) -> str:
        before = match.string[: match.start()]
        after = match.string[match.end() :]
        if _ON_THE_SERVER.search(before):
            return match[0]
        if _takes_url(match[1]):
            return f"`{command} {match[1]}`"
        return match[0] if _says_where(before, after) else f"{match[0]} on the server"

    def adapt_bare(match: re.Match[str]) -> str:
        line = match.string[match.end() :].partition("\n")[0]
        return f"{command} " if _takes_url(line) else match[0]

    return _BARE.sub(adapt_bare, _QUOTED.sub(adapt_quoted, text))


def _takes_url(line: str) -> bool:
    words = line.split()
    name = " ".join(words[:2])
    if name not in TWO_WORDS:
        name = words[0].rstrip(".,;:)")
    return name in TAKE_URL and LOCAL_OPTIONS.get(name) not in words


def _says_where(before: str, after: str) -> bool:
    """Tell whether the sentence around a command says already that it is for the server's machine."""
    same_sentence_before = before[-_NEAR:].rpartition(". ")[2]
    same_sentence_after = re.split(r"[.;]", after[:_NEAR])[0]
    return bool(_THERE.search(same_sentence_before) or _THERE.search(same_sentence_after))

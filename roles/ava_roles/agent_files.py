"""Files in which people have described agents for other programs, as role files: Claude Code's, opencode's, Codex's.

A role gets no more than its file says: tools that change files only where the file names them, no hook and no server.
What has no meaning in Ava is named, so that a person sees it before the role is added.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final, cast

import yaml

from ava_roles.catalog import rename_role
from ava_roles.errors import RoleFileError
from ava_roles.role import RESEARCH_TOOLS, Role, parse_role, read_document, read_role
from ava_roles.wrap import one_line

NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_OPENCODE_TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "bash": ("run_bash",),
    "read": ("read_file",),
    "grep": ("search_codebase", "search_and_read"),
    "glob": ("find_files",),
    "list": ("find_files",),
    "webfetch": ("read_webpages", "http_get"),
    "websearch": ("web_search",),
    "edit": ("edit_file",),
    "write": ("write_file",),
}
"""Ava's tools by opencode's names."""
_NO_EDITS = "that it changes files: give it the tools edit_file and write_file if it should"


@dataclass(frozen=True)
class AddedRole:
    """A role made of a file, and what of the file it leaves out, in a few words each."""

    role: Role
    left_out: tuple[str, ...]


def role_of_agent(text: str, file: str, name: str = "") -> AddedRole:
    """Return the role that an agent file describes; `name` in place of its own. Raises RoleFileError: it is none."""
    if PurePath(file).suffix.lower() == ".toml":
        return _of_codex(text, file, name)
    role, faults = read_role(text, file, _plain_name(PurePath(file).stem))
    if role is not None and not {"mode", "permission"} & set(role.ignored_keys):
        return _renamed(role, name)
    front = _front(text, file)
    if isinstance(front.get("tools"), dict) or "mode" in front or "permission" in front:
        return _of_opencode(front, text, file, name)
    raise faults[0]


def _renamed(role: Role, name: str) -> AddedRole:
    if name and name != role.name:
        role = parse_role(rename_role(role.text, name), role.source, name)
    return AddedRole(role, role.ignored)


def _of_codex(text: str, file: str, name: str) -> AddedRole:
    try:
        given = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RoleFileError(file, f"is not valid TOML: {one_line(str(error), 200)}") from error
    body = given.get("developer_instructions")
    if not isinstance(body, str) or not body.strip():
        raise RoleFileError(file, "has no developer_instructions; give an agent file of Codex, or a role file")
    tools = [*RESEARCH_TOOLS, "run_bash"]
    known = {"name", "description", "developer_instructions", "sandbox_mode"}
    left_out = sorted(given.keys() - known)
    if given.get("sandbox_mode") != "read-only":
        left_out.append(_NO_EDITS)
    own = given.get("name")
    return _made(file, name or str(own or PurePath(file).stem), given.get("description"), tools, body, left_out)


def _of_opencode(front: Mapping[str, Any], text: str, file: str, name: str) -> AddedRole:
    switches: dict[str, bool] = {}
    rules = front.get("permission")
    for tool, rule in cast("dict[Any, Any]", rules).items() if isinstance(rules, dict) else ():
        switches[str(tool)] = rule == "allow" if isinstance(rule, str) else False  # of a part: the whole tool is denied
    given = front.get("tools")
    for tool, on in cast("dict[Any, Any]", given).items() if isinstance(given, dict) else ():
        switches[str(tool)] = on is True
    tools = [*RESEARCH_TOOLS, *(_OPENCODE_TOOLS["bash"] if switches.get("bash", True) else ())]
    left_out: list[str] = []
    for tool, on in switches.items():
        if tool not in _OPENCODE_TOOLS:
            left_out.append(f"tools: {tool}")
        elif on:
            tools += [each for each in _OPENCODE_TOOLS[tool] if each not in tools]
        else:
            tools = [each for each in tools if each not in _OPENCODE_TOOLS[tool]]
    known = {"name", "description", "tools", "permission", "mode", "model"}
    left_out += sorted(front.keys() - known)
    if (model := front.get("model")) is not None:
        left_out.append(f"model: {one_line(str(model), 80)}")
    if not {"edit", "write"} & switches.keys():
        left_out.append(_NO_EDITS)
    body = read_document(text, file, frozenset()).body
    own = str(front.get("name") or PurePath(file).stem)
    return _made(file, name or own, front.get("description"), tools, body, left_out)


def _made(
    file: str, name: str, description: Any, tools: Iterable[str], body: str, left_out: Iterable[str]
) -> AddedRole:
    if not isinstance(description, str) or not description.strip():
        raise RoleFileError(file, "has no description; write one sentence that says when to use it")
    lines = (
        "---",
        f"name: {_plain_name(name)}",
        f"description: {json.dumps(' '.join(description.split()), ensure_ascii=False)}",
        f"tools: [{', '.join(dict.fromkeys(tools))}]",
        "---",
        "",
        body.strip(),
        "",
    )
    role = parse_role("\n".join(lines), file, _plain_name(name))
    return AddedRole(role, tuple(one_line(each, 160) for each in left_out))


def _front(text: str, file: str) -> dict[str, Any]:
    """Return the frontmatter of a file with all its nested values."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    end = next((number for number, line in enumerate(lines[1:], start=1) if line.rstrip() == "---"), 0)
    try:
        found: object = yaml.safe_load("\n".join(lines[1:end]))
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return {}
    return {str(key): value for key, value in cast("dict[Any, Any]", found).items()} if isinstance(found, dict) else {}


def _plain_name(name: str) -> str:
    """Return a name as role files take it, as far as it can be made one."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:64]
    return plain if NAME.fullmatch(plain) else f"agent-{plain}"[:64].rstrip("-")

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
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, Final, cast

import yaml

from ava_roles.catalog import rename_role
from ava_roles.errors import RoleFileError
from ava_roles.role import (
    MAX_FILE_CHARS,
    RESEARCH_TOOLS,
    Role,
    parse_role,
    quote_description,
    read_frontmatter,
    read_role,
)
from ava_roles.wrap import one_line

NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_OPENCODE_TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "bash": ("run_bash",),
    "read": ("read_file", "search_and_read"),
    "grep": ("search_codebase", "search_and_read"),
    "glob": ("find_files",),
    "list": ("find_files",),
    "webfetch": ("read_webpages", "http_get"),
    "websearch": ("web_search",),
    "edit": ("edit_file",),
    "write": ("write_file",),
}
"""Ava's tools by opencode's names. What one of them lacks, a role does not have, whatever the others allow."""
_EDITS: Final = ("edit", "patch", "multiedit", "apply_patch")
_COVERED_BY: Final[Mapping[str, tuple[str, ...]]] = {"edit": _EDITS, "write": ("write", *_EDITS)}
"""The tools that change files, each with the names under which opencode denies it."""
_CLAUDE_ONLY: Final = ("disallowedTools", "allowed-tools")
_MOST_VALUES: Final = 10_000
"""The most values of a frontmatter, where an alias counts as all that it stands for."""
_NO_EDITS = "that it changes files: give it the tools edit_file and write_file if it should"


@dataclass(frozen=True)
class AddedRole:
    """A role made of a file, and what of the file it leaves out, in a few words each."""

    role: Role
    left_out: tuple[str, ...]


def role_of_agent(text: str, file: str, name: str = "") -> AddedRole:
    """Return the role that an agent file describes; `name` in place of its own. Raises RoleFileError if it is none."""
    if PurePath(file).suffix.lower() == ".toml":
        return _of_codex(text, file, name)
    role, faults = read_role(text, file, _plain_name(PurePath(file).stem))
    if role is not None and {"mode", "permission"}.isdisjoint(role.ignored_keys):
        if name and name != role.name:
            role = parse_role(rename_role(role.text, name), role.source, name)
        return AddedRole(role, role.ignored)
    if len(text) <= MAX_FILE_CHARS:
        front = _front(text, file)
        if _is_of_opencode(front):
            return _of_opencode(front, text, file, name)
    if faults:
        raise faults[0]
    raise RoleFileError(file, "has a frontmatter that cannot be read; write plain YAML")


def _is_of_opencode(front: Mapping[str, Any]) -> bool:
    if "mode" in front or "permission" in front:
        return True
    return isinstance(front.get("tools"), dict)


def _of_codex(text: str, file: str, name: str) -> AddedRole:
    try:
        agent = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RoleFileError(file, f"is not valid TOML: {one_line(str(error), 200)}") from error
    body = agent.get("developer_instructions")
    if not isinstance(body, str) or not body.strip():
        raise RoleFileError(file, "has no developer_instructions; give an agent file of Codex, or a role file")
    tools = [*RESEARCH_TOOLS, "run_bash"]
    known = {"name", "description", "developer_instructions", "sandbox_mode"}
    if _denies_web(agent):
        known.add("web_search")
        tools = [tool for tool in tools if tool not in ("web_search", "read_webpages")]
    if _is_off(agent, "features", "shell_tool"):
        tools.remove("run_bash")
    left_out = sorted(agent.keys() - known)
    if agent.get("sandbox_mode") != "read-only":
        left_out.append(_NO_EDITS)
    own_name = _text(agent.get("name")) or PurePath(file).stem
    return _added_role(file, name or own_name, agent.get("description"), tools, body, left_out)


def _denies_web(agent: Mapping[str, Any]) -> bool:
    """Tell whether an agent of Codex has no web, by one of the settings that Codex has had for it."""
    if _is_off(agent, "tools", "web_search") or _is_off(agent, "features", "web_search_request"):
        return True
    return agent.get("web_search", "live") not in ("live", "cached")


def _is_off(agent: Mapping[str, Any], table: str, key: str) -> bool:
    values = agent.get(table)
    return isinstance(values, dict) and cast("dict[str, Any]", values).get(key) is False


def _of_opencode(front: Mapping[str, Any], text: str, file: str, name: str) -> AddedRole:
    for key in _CLAUDE_ONLY:
        if key in front:
            raise RoleFileError(file, f"has {key} beside mode or permission of opencode; keep one program's keys")
    permission = _rules(front, "permission", file)
    switches = _rules(front, "tools", file)
    tools = _tools_of_opencode(permission, switches)
    left_out: list[str] = []
    for rule in {**switches, **permission}:
        if not _means_a_tool(rule):
            left_out.append(f"tools: {one_line(rule, 80)}")
    known = {"name", "description", "tools", "permission", "mode", "model"}
    left_out += sorted(front.keys() - known)
    model = front.get("model")
    if isinstance(model, str):
        left_out.append(f"model: {one_line(model, 80)}")
    elif model is not None:
        left_out.append("model")
    if {"edit", "write"}.isdisjoint({*switches, *permission}):
        left_out.append(_NO_EDITS)
    body = read_frontmatter(text, file, frozenset()).body
    own_name = _text(front.get("name")) or PurePath(file).stem
    return _added_role(file, name or own_name, front.get("description"), tools, body, left_out)


def _tools_of_opencode(permission: Mapping[str, bool], switches: Mapping[str, bool]) -> list[str]:
    """Return Ava's tools for an agent: the usual ones and those that it allows, without those that it denies."""
    tools = [*RESEARCH_TOOLS, "run_bash"]
    denied: set[str] = set()
    for opencode_tool, own_tools in _OPENCODE_TOOLS.items():
        allowed = _is_allowed(opencode_tool, permission, switches)
        if allowed:
            tools += own_tools
        elif allowed is False:
            denied.update(own_tools)
    return [tool for tool in tools if tool not in denied]


def _rules(front: Mapping[str, Any], key: str, file: str) -> dict[str, bool]:
    """Return for tools, or patterns of tools, whether `permission` or `tools` allows them. Raises RoleFileError.

    What is allowed in part, or only after a question, is denied: Ava cannot allow part of a tool.
    """
    value = front.get(key)
    if value is None:
        return {}
    if key == "permission" and isinstance(value, str):
        value = {"*": value}
    takes = "`tool: allow` or `tool: deny`" if key == "permission" else "`tool: true` or `tool: false`"
    fault = RoleFileError(file, f"has mode or permission of opencode, whose {key} must have lines like this: {takes}")
    if not isinstance(value, dict):
        raise fault
    rules: dict[str, bool] = {}
    for tool, rule in cast("dict[Any, Any]", value).items():
        if not isinstance(tool, str) or not tool:
            raise fault
        rules[tool.strip().lower()] = rule is True or rule == "allow"
    return rules


def _is_allowed(tool: str, permission: Mapping[str, bool], switches: Mapping[str, bool]) -> bool | None:
    """Tell whether a tool is allowed; None where nothing says so. `permission` counts above `tools`, as in opencode.

    The last rule that matches counts. A pattern neither takes back a denial by name nor grants a tool that changes
    files.
    """
    names = _COVERED_BY.get(tool, (tool,))
    for rules in (permission, switches):
        last_match: bool | None = None
        for rule, is_on in rules.items():
            if any(fnmatchcase(name, rule) for name in names):
                last_match = is_on
        if last_match is None:
            continue
        if not last_match or any(rules.get(name) is False for name in names):
            return False
        if tool not in _COVERED_BY or tool in rules:
            return True
    return None


def _means_a_tool(rule: str) -> bool:
    return any(fnmatchcase(tool, rule) for tool in (*_OPENCODE_TOOLS, *_EDITS))


def _added_role(
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
    """Return the frontmatter of a file with all its nested values. Raises RoleFileError if it has too many."""
    _first, *lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    front: list[str] = []
    for line in lines:
        if line.rstrip() == "---":
            break
        front.append(line)
    else:
        front = []
    yaml_text = "\n".join(front)
    values = _values(yaml_text, file) or _values(quote_description(yaml_text), file)
    return {key: value for key, value in values.items() if isinstance(key, str)}


def _values(front: str, file: str) -> dict[Any, Any]:
    """Return the values of a frontmatter; none if it cannot be read. Raises RoleFileError if it has too many values."""
    try:
        loader: Any = yaml.SafeLoader(front)  # its methods have no types
        root = loader.get_single_node()
        if root is None:
            return {}
        is_too_large = _is_too_large(root)
        values: object = None if is_too_large else loader.construct_document(root)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return {}
    if is_too_large:
        raise RoleFileError(file, f"has more than {_MOST_VALUES:,} values in its frontmatter; write fewer")
    return cast("dict[Any, Any]", values) if isinstance(values, dict) else {}


def _is_too_large(root: yaml.Node) -> bool:
    """Tell whether a document has too many values; with aliases, a few lines can stand for millions."""
    pending: list[Any] = [root]
    count = 0
    while pending:
        node = pending.pop()
        count += 1
        if count + len(pending) > _MOST_VALUES:
            return True
        if isinstance(node, yaml.MappingNode):
            pending += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            pending += node.value
    return False


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _plain_name(name: str) -> str:
    """Return a name as role files take it, as far as it can be made one."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:64]
    return plain if NAME.fullmatch(plain) else f"agent-{plain}"[:64].rstrip("-")

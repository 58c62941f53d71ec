"""One configured MCP server: how it is reached, what it is given, and whether it is Ava itself."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

OWN_NAMES = frozenset({"ava", "ava-subagents"})
"""How Ava is called as a command, as a distribution, and by itself when it is greeted."""

_OWN_MODULE = "ava_server"
_IN_A_SHELL = re.compile(r"(?:\A|[\s/;&|(\"'])(?:ava|ava-subagents)(?:\.exe)?[\"']?\s[^;&|]*\bserve\b")


@dataclass(frozen=True)
class ServerEntry:
    """An MCP server as it is configured.

    Attributes:
        name: As `mcp__NAME__tool` has it.
        command: The program of a stdio server; None for one that is reached by `url`.
        args: The program's arguments.
        env: What is added to its environment; `{{secret:NAME}}` stands for a stored secret.
        url: The address of a server that is reached over HTTP.
        headers: Headers for that address, with placeholders too.
        network: The program gets this machine's network.
        read_write: Folders that the program may write to.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    network: bool = False
    read_write: tuple[Path, ...] = ()

    @property
    def reaches_out(self) -> bool:
        """Whether what is handed to it can leave this machine."""
        return self.network or self.url is not None

    @property
    def where(self) -> str:
        """How it is reached, in a few words: its program, or its address."""
        return f"program {PurePath(self.command).name}" if self.command is not None else str(self.url)

    @property
    def digest(self) -> str:
        """What tells this configuration from another one; placeholders are in it, and no secret's value."""
        parts = [
            self.name, self.command, self.args, sorted(self.env.items()), self.url, sorted(self.headers.items()),
            self.network, [str(folder) for folder in self.read_write],
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode("utf-8", "replace")).hexdigest()

    @property
    def is_ours(self) -> bool:
        """Whether its command starts Ava: a subagent starts no subagents. Its greeting is looked at as well."""
        if self.command is None:
            return False
        if PurePath(self.command.replace("\\", "/")).name.lower().removesuffix(".exe") in OWN_NAMES:
            return True
        for word in self.args:
            if word == _OWN_MODULE or word.startswith(f"{_OWN_MODULE}.") or re.match(r"ava-subagents(?![\w/-])", word):
                return True
        return _IN_A_SHELL.search(" ".join((self.command, *self.args))) is not None


PREFIX = "mcp__"
LONGEST = 64
"""Characters of a tool's name that every provider takes."""
SERVER_NAME = re.compile(r"[A-Za-z0-9](?:_?[A-Za-z0-9-]){0,31}")
"""A server's name; two `_` in a row would make `mcp__server__tool` ambiguous."""

_REFUSED = re.compile(r"[^A-Za-z0-9_-]")
_SUFFIX = 6


def server_of(name: str) -> str | None:
    """Return the server that a role's word for foreign tools names; None for a word that is none."""
    if not name.startswith(PREFIX):
        return None
    return name.removeprefix(PREFIX).split("__")[0]


def is_wildcard(name: str) -> bool:
    """Tell whether a role's word stands for several tools: `mcp__server`, `mcp__server__*`, `mcp__server__get_*`."""
    return name.startswith(PREFIX) and ("*" in name or "__" not in name.removeprefix(PREFIX))


def covers(word: str, name: str, tool: str) -> bool:
    """Tell whether a role's word stands for a tool.

    Args:
        word: What the role, or the spawn, says.
        name: The tool's full name, as models spell it.
        tool: As its server spells it.
    """
    if "*" in word:
        return fnmatchcase(name, word)
    if is_wildcard(word):
        return name.startswith(f"{word}__")
    return word == name or word == f"{PREFIX}{server_of(name)}__{tool}"


def full_names(server: str, tools: Iterable[str]) -> Mapping[str, str]:
    """Return for each tool of a server the name under which models know it: allowed characters, at most 64.

    What had to be changed so that it would not tell two tools apart any more, or was cut, ends in a few digits of its
    own hash, so that a name means the same tool in every run.
    """
    plain = {tool: f"{PREFIX}{server}__{_REFUSED.sub('_', tool)}" for tool in tools}
    taken: dict[str, int] = {}
    for name in plain.values():
        taken[name] = taken.get(name, 0) + 1
    found: dict[str, str] = {}
    for tool, name in plain.items():
        if len(name) > LONGEST or (taken[name] > 1 and _REFUSED.search(tool)):
            mark = hashlib.sha256(tool.encode("utf-8", "replace")).hexdigest()[:_SUFFIX]
            name = f"{name[: LONGEST - _SUFFIX - 1]}_{mark}"
        found[tool] = name
    return found

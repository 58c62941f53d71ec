"""A configured MCP server, and the names of its tools."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

AVA_NAMES = frozenset({"ava", "ava-subagents"})
"""Ava's name as a command, as a distribution, and in the MCP handshake."""

_AVA_MODULE = "ava_server"
_AVA_IN_SHELL = re.compile(r"(?:\A|[\s/;&|(\"'])(?:ava|ava-subagents)(?:\.exe)?[\"']?\s[^;&|]*\bserve\b")


@dataclass(frozen=True)
class ServerEntry:
    """An MCP server as it is configured.

    Attributes:
        name: The NAME in `mcp__NAME__tool`.
        command: The program of a stdio server; None for a server with a `url`.
        args: The program's arguments.
        env: Variables that are added to its environment; `{{secret:NAME}}` stands for a stored secret.
        url: The address of a server that is reached over HTTP.
        headers: Headers for that address; placeholders work there too.
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
        """Whether what is passed to it can leave this machine."""
        return self.network or self.url is not None

    @property
    def where(self) -> str:
        """Its program or its address, in a few words."""
        return f"program {PurePath(self.command).name}" if self.command is not None else str(self.url)

    @property
    def digest(self) -> str:
        """A digest of the configuration, with placeholders and without values of secrets."""
        parts = [
            self.name, self.command, self.args, sorted(self.env.items()), self.url, sorted(self.headers.items()),
            self.network, [str(folder) for folder in self.read_write],
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode("utf-8", "replace")).hexdigest()

    @property
    def is_ava(self) -> bool:
        """Whether its command starts Ava, for a subagent starts no subagents. The handshake is checked as well."""
        if self.command is None:
            return False
        if PurePath(self.command.replace("\\", "/")).name.lower().removesuffix(".exe") in AVA_NAMES:
            return True
        for word in self.args:
            if word == _AVA_MODULE or word.startswith(f"{_AVA_MODULE}.") or re.match(r"ava-subagents(?![\w/-])", word):
                return True
        return _AVA_IN_SHELL.search(" ".join((self.command, *self.args))) is not None


PREFIX = "mcp__"
MAX_NAME_CHARS = 64
"""Characters of a tool's name that every provider accepts."""
SERVER_NAME = re.compile(r"[A-Za-z0-9](?:_?[A-Za-z0-9-]){0,31}")
"""The form of a server's name; two `_` in a row would make `mcp__server__tool` ambiguous."""

_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARS = 6


def server_of(name: str) -> str | None:
    """Return the server that a name or pattern of foreign tools belongs to; None for other names."""
    if not name.startswith(PREFIX):
        return None
    return name.removeprefix(PREFIX).split("__")[0]


def is_wildcard(name: str) -> bool:
    """Tell whether a pattern stands for several tools: `mcp__server`, `mcp__server__*`, `mcp__server__get_*`."""
    return name.startswith(PREFIX) and ("*" in name or "__" not in name.removeprefix(PREFIX))


def covers(word: str, name: str, tool: str) -> bool:
    """Tell whether a name or pattern stands for a tool.

    Args:
        word: The name or pattern in a role or a spawn.
        name: The tool's full name, as models spell it.
        tool: The tool's name, as its server spells it.
    """
    if "*" in word:
        return fnmatchcase(name, word)
    if is_wildcard(word):
        return name.startswith(f"{word}__")
    return word == name or word == f"{PREFIX}{server_of(name)}__{tool}"


def full_names(server: str, tools: Iterable[str]) -> Mapping[str, str]:
    """Return the name that models know for each tool of a server: allowed characters, at most 64.

    A name that had to be cut, or that would be the same for two tools, ends in a few digits of its own hash, so that it
    means the same tool in every run.
    """
    plain = {tool: f"{PREFIX}{server}__{_NOT_ALLOWED.sub('_', tool)}" for tool in tools}
    taken: dict[str, int] = {}
    for name in plain.values():
        taken[name] = taken.get(name, 0) + 1
    found: dict[str, str] = {}
    for tool, name in plain.items():
        if len(name) > MAX_NAME_CHARS or (taken[name] > 1 and _NOT_ALLOWED.search(tool)):
            mark = hashlib.sha256(tool.encode("utf-8", "replace")).hexdigest()[:_HASH_CHARS]
            name = f"{name[: MAX_NAME_CHARS - _HASH_CHARS - 1]}_{mark}"
        found[tool] = name
    return found

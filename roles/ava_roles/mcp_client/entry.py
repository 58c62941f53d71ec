"""One configured MCP server: how it is reached, what it is given, and whether it is Ava itself."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
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

"""What MCP clients show their person before something starts: the table `clients.toml`, and the policy that follows."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, lru_cache
from importlib.resources import files
from typing import Literal

from pydantic import TypeAdapter

from ava_server.config.settings import BY_HOST, Policy
from ava_server.core.ids import version_numbers

Prompt = Literal["arguments", "name", "nobody", "unknown"]
QuestionForm = Literal["form", "yes or no", "none", "unknown"]

ASKS: Mapping[Prompt, str] = {
    "arguments": "shows what starts",
    "name": "shows the tool's name",
    "nobody": "asks nobody",
    "unknown": "unknown",
}
"""What a client's own prompt shows, for people."""


@dataclass(frozen=True)
class Seen:
    """How the facts of a row are known."""

    # `driven` with a scripted model, `documented`, or `reported` by users.
    how: Literal["driven", "documented", "reported"]
    version: str
    date: date
    source: str = ""  # where it is written; empty if it was driven
    window: str = ""  # the size of the window in which its prompt was looked at; empty if it was not


@dataclass(frozen=True)
class McpClient:
    """A client as `clients.toml` describes it; the defaults are assumed of an unknown client, or an older version."""

    id: str = ""
    title: str = "This host"
    names: tuple[str, ...] = ()
    since: str = ""
    asks: Prompt = "unknown"
    question: QuestionForm = "unknown"
    question_lines: int = 1_000  # how many lines of it are seen; those below are not
    pages: bool = True
    instructions: bool = True
    results: Literal["text", "structured", "both", "unknown"] = "unknown"
    hints: bool = False
    question_s: float | None = None
    wait_s: float | None = None
    seen: Seen | None = None

    @property
    def shows_approval(self) -> bool:
        """Whether its own prompt before `confirm_spawn` shows what is approved."""
        return self.asks == "arguments"


UNKNOWN = McpClient()
_NAME_CHARS = 100
"""How much of a name and a version is looked at: they are the client's own choice, and each call has them."""
COMMAND_LINE = "ava-command-line"
"""What `ava --url` calls itself."""


@cache
def known_clients() -> tuple[McpClient, ...]:
    """Return the known clients, and last those of which only the name is known."""
    table = tomllib.loads(files("ava_server.hosts").joinpath("clients.toml").read_text(encoding="utf-8"))
    listed = (replace(UNKNOWN, title=title, names=(name,)) for name, title in table["listed"].items())
    return (*TypeAdapter(list[McpClient]).validate_python(table["client"]), *listed)


def client_of(name: str | None, version: str | None = None) -> McpClient:
    """Return what is known of a client: of an older version, only its name."""
    return _client_of((name or "")[:_NAME_CHARS].lower(), (version or "")[:_NAME_CHARS])


@lru_cache(256)
def _client_of(name: str, version: str) -> McpClient:
    for client in known_clients():
        if name.startswith(tuple(map(str.lower, client.names))):
            if version_numbers(version) >= version_numbers(client.since):
                return client
            return replace(UNKNOWN, id=client.id, title=client.title, names=client.names)
    return UNKNOWN


def connection_of(client_id: str) -> ConnectedHost:
    """Return the connection that a client of the table is expected to make; of another id, an unknown one."""
    client = next((each for each in known_clients() if each.id == client_id), UNKNOWN)
    if client.seen is None:
        return ConnectedHost(client_id)
    return ConnectedHost(client.names[0], client.seen.version, forms=client.question in ("form", "yes or no"))


@dataclass(frozen=True)
class ConnectedHost:
    """A host, through whose connection an approval may come; `forms`: it can show Ava's own question to a person."""

    name: str | None = None
    version: str | None = None
    forms: bool = False

    @property
    def client(self) -> McpClient:
        return client_of(self.name, self.version)

    @property
    def settings_names(self) -> tuple[str, ...]:
        """The names of its table under `[hosts]` in config.toml: its id, or else what it calls itself."""
        return tuple(name for name in (self.client.id, (self.name or "").lower()) if name)

    def policy(self) -> tuple[Policy, str]:
        """Return who may approve through it, unless a person has decided that, and why.

        A client that can show Ava's own question shows it. Its own prompt is enough where it is known to show what is
        approved. Everywhere else a person decides with Ava itself.
        """
        if self.forms or self.client.shows_approval:
            return "ask", BY_HOST
        if self.client.names:
            who = self.client.title
        else:
            name = (self.name or "without a name")[:40]
            who = f"the host {name!r}"
        return "human", f"{BY_HOST}, and {who} is not known to show you what it starts"

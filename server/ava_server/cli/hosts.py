"""`ava hosts`: what each MCP host is known to show its person, and who therefore approves there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ava_server.budget.user_limits import policy_in_force
from ava_server.cli.log_access import read_settings
from ava_server.cli.options import Json
from ava_server.cli.terminal import aligned, present
from ava_server.config.settings import Settings
from ava_server.core.data_root import os_user
from ava_server.core.errors import BadInput
from ava_server.core.ids import suggestion
from ava_server.hosts.clients import ASKS, McpClient, connection_of, known_clients

_WHO = {"ask": "you, in the host", "human": "you, in Ava", "auto": "nobody, if it is cheap"}
"""Who approves under each policy, in a table."""


def hosts_command(
    name: Annotated[str | None, typer.Argument(metavar="HOST", help="Show only this host, with all facts.")] = None,
    as_json: Json = False,
) -> None:
    """Show which hosts are known, what each shows you before a subagent starts, and who approves there.

    "you, in the host": the host shows Ava's own question, or its own one with what is approved. "you, in Ava": it is
    not known to, so you approve with your PIN, on a page or with `ava approve`. `[hosts.NAME] approval` in config.toml
    changes that for one host.
    """
    settings = read_settings()
    known = {client.id: client for client in known_clients() if client.id}
    if name is None:
        rows = [_facts(settings, client) for client in known.values()]
        lines = _table(rows)
    else:
        rows = [_facts(settings, client) for client in _find(name, known)]
        lines = _details(rows[0])
    present(settings.paths, as_json, {"hosts": rows}, lines)


def _find(name: str, known: Mapping[str, McpClient]) -> list[McpClient]:
    """Return the hosts with this id or title, in any case. Raises BadInput if there is none."""
    lower_name = name.lower()
    clients = [client for client in known.values() if lower_name in (client.id, client.title.lower())]
    if not clients:
        hint = suggestion(lower_name, known)
        raise BadInput(f"There is no host {name!r} in the table.{hint} Known: {', '.join(known)}.")
    return clients


def _facts(settings: Settings, client: McpClient) -> dict[str, Any]:
    policy, why = policy_in_force(settings, os_user(), through=connection_of(client.id))
    seen = client.seen
    return {
        "host": client.id,
        "title": client.title,
        "names": list(client.names),
        "approves": policy,
        "why": why,
        "asks": client.asks,
        "question": client.question,
        "instructions": client.instructions,
        "results": client.results,
        "seen": None if seen is None else f"{seen.how}, {seen.version}, {seen.date}",
        "source": seen.source if seen else "",
    }


def _table(rows: list[dict[str, Any]]) -> list[str]:
    heads = ("host", "who approves", "its own prompt", "Ava's question", "seen")
    cells = [(row["host"], _WHO[row["approves"]], ASKS[row["asks"]], row["question"], row["seen"]) for row in rows]
    return [*aligned([heads, *cells]), "", "In any other host you approve in Ava, unless it can show Ava's question."]


def _details(row: dict[str, Any]) -> list[str]:
    shown = {**row, "approves": f"{_WHO[row['approves']]} ({row['why']})", "asks": ASKS[row["asks"]]}
    shown["names"] = ", ".join(shown["names"])
    return aligned([(name, str(value)) for name, value in shown.items()])

"""`ava show S-…`: what a run was asked, who approved it, what it did and brought; its cost, and its changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from ava_server.cli.options import LastRunId, TokenFile, Url, Utc
from ava_server.cli.remote import chosen_server
from ava_server.cli.results import results_json, show_results
from ava_server.cli.terminal import heading, place_json, present, say_json, write
from ava_server.core.data_root import find_data_root
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_server.cli.remote import RemoteServer


def register(app: typer.Typer) -> None:
    """Add `ava show` to the app."""
    app.command("show")(show_command)


def show_command(
    context: typer.Context,
    subagent: LastRunId = None,
    cost: Annotated[bool, typer.Option("--cost", help="What it cost and why: turns, tool outputs, caps.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="What a coder changed, line by line.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object, with every entry.")] = False,
    utc: Utc = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show a run: what was asked, who approved it under which caps, what it did, and its result.

    With --cost what it cost, and with --diff what it changed.
    """
    if cost and diff:
        raise BadInput("--cost and --diff are two screens; give one of them")
    screen = "cost" if cost else "diff" if diff else ""
    anyio.run(_show, chosen_server(context, url, token_file), subagent, screen, as_json, utc)


async def _show(server: RemoteServer | None, given: str | None, screen: str, as_json: bool, utc: bool) -> None:
    from ava_server.cli.records import open_records
    from ava_server.cli.run_screens import cost_json, cost_screen, run_screen
    from ava_server.service.records import changes_in

    async with open_records(server, find_data_root) as records:
        found = await records.find_one(given)
        record = await records.record(found.id, shown=not screen)
        run, answer, texts, place = record.row, record.answer, record.texts, records.place
        if screen == "diff":
            changes = changes_in(run, answer)
            text = await records.diff(run, changes)
            if as_json:
                return say_json({**place_json(place), "subagent_id": run.id, "changes": changes, "diff": text})
            heading(place)
            return write(text.rstrip("\n"))
        if screen == "cost":
            costs = await records.costs(run)
            return present(place, as_json, cost_json(run, answer, costs), cost_screen(run, answer, costs, utc))
        entries = await records.entries(run.id)
        fields = {
            "run": results_json([answer])[0],
            "asked": texts.model_dump(mode="json", exclude_none=True) if texts else None,
            "entries": [json.loads(line) for line in await records.lines(entries)] if as_json else [],
        }
        present(place, as_json, fields, run_screen(run, answer, texts, entries, utc))
        if not as_json:
            show_results([answer])
        await records.note_shown("ava show", [record])

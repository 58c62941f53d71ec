"""`ava show S-…`: what a run was asked, who approved it, what it did and brought; its cost, and its changes.

`ava fetch S-…` brings the branch of a run that another machine has done into the repository.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ava_server.cli.app import in_event_loop
from ava_server.cli.log_access import checked_root, find_run, open_log, read_settings
from ava_server.cli.options import EndedRunId, Json, LastRunId, TokenFile, Url, Utc, absolute_path
from ava_server.cli.remote import chosen_server
from ava_server.cli.results import show_results
from ava_server.cli.terminal import heading, place_json, present, say_json, write
from ava_server.core.data_root import find_data_root, home_folder
from ava_server.core.errors import BadInput
from ava_server.render.responses import answers_json


@in_event_loop
async def show_command(
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
    server = chosen_server(context, url, token_file)
    from ava_server.cli.records import open_records
    from ava_server.cli.run_screens import cost_json, cost_screen, run_screen
    from ava_server.service.record_requests import COSTS
    from ava_server.service.records import changes_in

    async with open_records(server, find_data_root) as records:
        found = await records.find_one(subagent)
        record = await records.record(found.id, shown=not (cost or diff))
        run, answer, texts, place = record.row, record.answer, record.texts, records.place
        if diff:
            changes = changes_in(run, answer)
            text = await records.diff(run)
            if as_json:
                return say_json({**place_json(place), "subagent_id": run.id, "changes": changes, "diff": text})
            heading(place)
            return write(text.rstrip("\n"))
        if cost:
            costs = await records.get(COSTS, run_id=run.id)
            return present(place, as_json, cost_json(run, answer, costs), cost_screen(run, answer, costs, utc))
        entries = await records.entries(run.id)
        fields = {
            "run": answers_json([answer])[0],
            "asked": texts.model_dump(mode="json", exclude_none=True) if texts else None,
            "entries": [json.loads(records.lines[entry.seq]) for entry in entries] if as_json else [],
        }
        present(place, as_json, fields, run_screen(run, answer, texts, entries, utc))
        if not as_json:
            show_results([answer])
        await records.note_shown("ava show", [record])


@in_event_loop
async def fetch_command(
    subagent: EndedRunId,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="FOLDER", help="Another clone to bring it into; it needs the base commit."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring the branch of a run that another machine has done into its repository.

    It checks the digest in the log, makes the branch, and changes no other branch, no checkout and no index.
    check_subagent does the same. Doing it again changes nothing.
    """
    from ava_server.runs.travel import Travel
    from ava_server.service.fetch import fetch_branch

    root, settings = checked_root("ava fetch", show=False), read_settings()
    async with open_log(root) as store:
        run = await find_run(store, subagent)
        assert store is not None
        travel = Travel(settings, store.blobs, home_folder())
        branch = await fetch_branch(store, travel, run, None if into is None else absolute_path("--into", into))
    fields = {"branch": branch.name, "repository": str(branch.repository), "base": branch.base, "head": branch.head}
    lines = [
        f"Branch {branch.name} is in {branch.repository}: commit {branch.head[:12]} on {branch.base[:12]}.",
        f"See it: ava show {run.id} --diff",
    ]
    present(root, as_json, {"subagent_id": run.id, **fields}, lines)

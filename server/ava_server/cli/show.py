"""`ava show S-…`: what a run was asked, who approved it, what it did and brought; its cost, and its changes."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.to_thread
import typer

from ava_server.cli.log_access import find_run, note_shown, open_log, whole_answer
from ava_server.cli.options import LastRunId, Utc
from ava_server.cli.results import results_json, show_results
from ava_server.cli.terminal import heading, present, say_json, write
from ava_server.core.data_root import DataRoot, find_data_root, home_folder
from ava_server.core.errors import AvaError, BadInput

if TYPE_CHECKING:
    from ava_audit.redaction import Redactor


def register(app: typer.Typer) -> None:
    """Add `ava show` to the app."""
    app.command("show", short_help="One run: its task, who approved it, what it did, its result.")(show_command)


def show_command(
    subagent: LastRunId = None,
    cost: Annotated[bool, typer.Option("--cost", help="What it cost and why: turns, tool outputs, caps.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="What a coder changed, line by line.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object, with every entry.")] = False,
    utc: Utc = False,
) -> None:
    """Show a run: what was asked, who approved it under which caps, what it did, and its result.

    With --cost what it cost, and with --diff what it changed.
    """
    if cost and diff:
        raise BadInput("--cost and --diff are two screens; give one of them")
    anyio.run(_show, find_data_root(), subagent, "cost" if cost else "diff" if diff else "", as_json, utc)


async def _show(root: DataRoot, given: str | None, screen: str, as_json: bool, utc: bool) -> None:
    from ava_audit.entries import mirror_line
    from ava_audit.store.locks import Instances
    from ava_roles.sandbox.temporary import temporary_files_in
    from ava_server.approval.proposals import texts_of
    from ava_server.cli.run_screens import changes_in, cost_json, cost_screen, diff_of, run_screen

    async with open_log(root) as store:
        found = await find_run(store, given)
        assert store is not None
        run, answer = await whole_answer(store, found.id, Instances(root.instances).alive)
        if screen == "diff":
            changes = changes_in(run, answer)
            known = await anyio.to_thread.run_sync(_known_secrets, root)
            with temporary_files_in(root.temporary):
                text = await anyio.to_thread.run_sync(diff_of, changes, home_folder(), known)
            if as_json:
                return say_json({"data_root": str(root.path), "subagent_id": run.id, "changes": changes, "diff": text})
            heading(root)
            return write(text.rstrip("\n"))
        if screen == "cost":
            from ava_server.runs.costs import costs_of  # loads the settings and all roles' tools

            costs = await store.read(lambda view: costs_of(run, view.entries(run.id), view.of_type("SettingsChanged")))
            return present(root, as_json, cost_json(run, answer, costs), cost_screen(run, answer, costs, utc))
        entries = await store.read(lambda view: view.entries(run.id))
        texts = await store.read(lambda view: texts_of(view, run))
        lines = await store.read(lambda view: [mirror_line(row) for row in view.rows("run_id = ?", run.id)])
        fields = {
            "run": results_json([answer])[0],
            "asked": texts.model_dump(mode="json", exclude_none=True) if texts else None,
            "entries": [json.loads(line) for line in lines],
        }
        present(root, as_json, fields, run_screen(run, answer, texts, entries, utc))
        if not as_json:
            show_results([answer])
        await note_shown(store, "ava show", [(run, answer)])


def _known_secrets(root: DataRoot) -> Redactor:
    """Return a redactor that knows the stored keys and secrets, as far as they can be read. Blocking."""
    from ava_server.config.credentials import Credentials
    from ava_server.config.settings import load_settings

    credentials = Credentials(load_settings(root.path))
    with contextlib.suppress(AvaError):
        _models = credentials.models
    with contextlib.suppress(AvaError):
        _secrets = credentials.secrets
    return credentials.redactor

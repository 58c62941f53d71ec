"""`ava fetch S-…`: brings the branch of a run that another machine has done into the repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from ava_server.cli.log_access import checked_root, find_run, open_log
from ava_server.cli.options import EndedRunId, Json
from ava_server.cli.terminal import place_json, say, say_json

if TYPE_CHECKING:
    from ava_server.config.settings import Settings


def register(app: typer.Typer) -> None:
    """Add `ava fetch` to the app."""
    app.command("fetch")(fetch_command)


def fetch_command(
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
    from ava_server.config.settings import load_settings

    checked_root("ava fetch", show=not as_json)
    anyio.run(_fetch, load_settings(), subagent, into, as_json)


async def _fetch(settings: Settings, given: str, into: Path | None, as_json: bool) -> None:
    from ava_server.core.data_root import absolute_folder, home_folder
    from ava_server.runs.travel import Travel
    from ava_server.service.fetch import fetch_branch

    async with open_log(settings.paths) as store:
        run = await find_run(store, given)
        assert store is not None
        travel = Travel(settings, store.blobs, home_folder())
        branch = await fetch_branch(store, travel, run, None if into is None else absolute_folder(into))
    if as_json:
        fields = {"branch": branch.name, "repository": str(branch.repository), "base": branch.base, "head": branch.head}
        return say_json({**place_json(settings.paths), "subagent_id": run.id, **fields})
    say(f"Branch {branch.name} is in {branch.repository}: commit {branch.head[:12]} on {branch.base[:12]}.")
    say(f"See it: ava show {run.id} --diff")

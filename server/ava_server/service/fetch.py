"""Brings the branch of a run that another machine has done into the repository where it was proposed."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ava_audit.errors import AuditError
from ava_audit.rows import RunRow
from ava_audit.store.store import Store
from ava_roles.errors import RolesError
from ava_roles.sandbox.git_folders import only
from ava_roles.sandbox.temporary import temporary_folder
from ava_roles.worktree.snapshot import TravelledBranch, bring_branch, has_commit
from ava_server.approval.requests import stored_result
from ava_server.core.data_root import home_folder
from ava_server.core.errors import AvaError, Refused
from ava_server.core.ids import label
from ava_server.render.responses import RunAnswer
from ava_server.run_config.config import config_of
from ava_server.run_config.parts import Coding, StoredFile
from ava_server.runs.coder.travel import Travel, blob_of
from ava_server.service.run_records import changes_in

log = logging.getLogger("ava.fetch")
FETCH_S = 300.0
"""How long `ava fetch` may take."""
_CHECK_S = 20.0
"""How long `check_subagent` takes to bring one branch."""


@dataclass(frozen=True)
class FetchedBranch:
    """A branch that is in a repository now."""

    name: str
    repository: Path
    base: str
    head: str


async def fetch_branch(store: Store, travel: Travel, run: RunRow, into: Path | None = None) -> FetchedBranch:
    """Bring a run's branch into its repository, or into a clone of it; a branch that is there stays as it is.

    `into`: the root of another checkout that has the commit at which the work began.

    Raises:
        Refused: There is none to bring, or it cannot be brought; says what to do.
    """
    result = await store.read(lambda view: stored_result(view, run))
    stored = result or {}
    coding, changes = changes_in(
        run, run.state, stored.get("changes"), erased=result is None, branches=stored.get("branches", ())
    )
    if "pack" not in changes:
        raise Refused(_made_there(travel, run, coding, str(changes["branch"]), into))
    if into is None and travel.is_elsewhere(config_of(run.config)):
        raise Refused(
            f"{label(run)} was proposed on another machine, for {coding.repository} there: run ava fetch on that one,"
            " or name a clone of the repository here with --into"
        )
    try:
        with anyio.fail_after(FETCH_S):
            return await anyio.to_thread.run_sync(
                _fetch_branch, travel, run, coding, changes, into, abandon_on_cancel=True
            )
    except TimeoutError:
        raise Refused(f"the branch of {label(run)} was not brought within {FETCH_S:.0f} s; try again") from None
    except (RolesError, AuditError, OSError) as error:
        raise Refused(f"the branch of {label(run)} cannot be brought: {error}") from error


def _made_there(travel: Travel, run: RunRow, coding: Coding, branch: str, into: Path | None) -> str:
    """Return why there is nothing to bring: the run made its branch in its own repository."""
    elsewhere = " on another machine" if travel.is_elsewhere(config_of(run.config)) else ""
    sentence = f"{label(run)} made its branch {branch} in {coding.repository}{elsewhere}, where it worked"
    if into is None:
        return f"{sentence}; there is nothing to bring"
    command = shlex.join(["git", "-C", str(into), "fetch", coding.repository, branch])
    address = ", with the address of that repository" if elsewhere else ""
    return f"{sentence}, and nothing was brought into {into}: git can do that{address}: {command}"


def _fetch_branch(
    travel: Travel, run: RunRow, coding: Coding, changes: dict[str, Any], into: Path | None
) -> FetchedBranch:
    """Read the branch's objects from the database, check them, and make the branch. Blocking.

    `into`: the clone that gets it; None for the repository in which the run was proposed.
    """
    if travel.blobs is None:
        raise Refused(
            f"the branch of {label(run)} is stored in the Postgres database from which this log was copied; run ava"
            " fetch with a data root that uses that database"
        )
    if into is None:
        accept = only(config_of(run.config).git_folder)  # of folders outside the checkout, only the approved one
        repository = Path(coding.repository)
        identity = coding.identity
    else:
        accept = travel.git_folder_rule()
        repository = into
        identity = ()  # no clone was approved: any that has the commit will do
    expected = TravelledBranch(run.id, coding.base, str(changes["head"]), coding.namespace)
    with temporary_folder("ava-travel-") as aside:
        travel.blobs.fetch(blob_of(StoredFile.model_validate(changes["pack"])), run.id, aside / "pack")
        name = bring_branch(aside / "pack", expected, repository, home_folder(), identity, accept)
    return FetchedBranch(name, repository, expected.base, expected.head)


async def bring_to_repositories(store: Store, travel: Travel, ended: Sequence[tuple[RunRow, RunAnswer]]) -> None:
    """Bring the branches of ended runs into the repositories of this machine, and say in the answers how that went.

    A branch whose commit the repository has is left alone: a person may have merged, renamed or removed it.
    """
    for row, answer in ended:
        if not (answer.changes and answer.changes.get("pack")):
            continue
        config = config_of(row.config)
        coding = config.coding
        if coding is None or await anyio.to_thread.run_sync(travel.is_elsewhere, config):
            continue
        head = str(answer.changes["head"])
        is_there = partial(has_commit, Path(coding.repository), home_folder(), head, coding.identity, config.git_folder)
        try:
            with anyio.fail_after(_CHECK_S):
                name = answer.changes["branch"]
                if not await anyio.to_thread.run_sync(is_there, abandon_on_cancel=True):
                    branch = await fetch_branch(store, travel, row)
                    name = branch.name
        except (AvaError, RolesError, TimeoutError) as error:
            why = str(error) or f"that took longer than {_CHECK_S:.0f} s"
            log.warning("%s: %s", row.id, why)
            answer.changes = {**answer.changes, "not_fetched": f"{why}; `ava fetch {row.id}` tries again"}
        else:
            to_merge = str(answer.changes["to_merge"]).replace(str(answer.changes["branch"]), name)
            answer.changes = {**answer.changes, "branch": name, "fetched": True, "to_merge": to_merge}

"""How `ava status` reads: what it imports, one look at one state of the log, runs it cannot read, errors of its own."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.commands.dashboard import reader_of
from support.commands.imports import modules_of
from support.runtime import hand_over, open_lab
from support.stdio import until
from support.terminal import ava

from ava_audit.events import Event, RunPaused, SpawnDecided, SpawnProposed, UserMessage, Who
from ava_audit.rows import HELD_UNTIL_US
from ava_audit.store.store import append
from ava_server.cli.log_look import LogLook, run_at_once
from ava_server.cli.status_overview import OverviewReader, SandboxProbe
from ava_server.config.settings import load_settings
from ava_server.dashboard.app import StatusApp
from ava_server.runs.record.claims import NotResumed


async def test_once_imports_what_shows_runs_only_where_there_are_some_and_never_a_role(tmp_path: Path) -> None:
    never = {"yaml", "mcp", "portalocker", "ava_roles.catalog", "ava_audit.store.store"}
    for_runs = {"ava_server.render.run_view", "ava_server.approval.proposals", "ava_server.runs.record.lifecycle"}
    async with open_lab(tmp_path, [hand_over()]) as lab:
        without = await anyio.to_thread.run_sync(modules_of, lab.root, "status", "--once")
        await lab.outcome()
        with_run = await anyio.to_thread.run_sync(modules_of, lab.root, "status", "--once", "--all")
    assert without.isdisjoint(never | for_runs)
    assert with_run >= for_runs and with_run.isdisjoint(never)


async def test_an_internal_error_ends_the_live_screen_and_is_kept_for_the_caller(tmp_path: Path) -> None:
    with contextlib.closing(OverviewReader(load_settings(tmp_path), everybody=False, most=9)) as reader:
        reader.look = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        app = StatusApp(reader, SandboxProbe("none"))
        async with app.run_test():
            await until(lambda: app.fault is not None)
    assert isinstance(app.fault, ZeroDivisionError)


async def test_shows_a_run_whose_configuration_this_version_cannot_read(tmp_path: Path) -> None:
    config = {"role": "researcher", "model": "fake:of-a-version-to-come"}
    facts = (
        SpawnProposed(pending_id="P-00000001", subagent_id="S-000001", digest="0", expires_us=0, config=config),
        UserMessage(kind="task", text="What is to come?"),
        SpawnDecided(pending_id="P-00000001", decision="approved"),
        RunPaused(not_before_us=HELD_UNTIL_US, why="restored"),
    )
    async with open_lab(tmp_path, runs=False, check=False) as lab:
        who = Who("s", "ava", lab.runtime.user)
        await lab.store.do(append(*(Event(who, fact, run_id="S-000001") for fact in facts)))
        limits = lab.runtime.spawn_limits_of(who.user_id)
        refused = await lab.runtime.manager.control.resume("S-000001", who, "terminal", limits)
    assert isinstance(refused, NotResumed)
    assert refused.why == "a newer Ava has proposed researcher S-000001, so it cannot be resumed with this one"
    done = ava(lab.root, "status", "--once", "--all")
    assert done.returncode == 0, done.stderr
    assert "‖ held  S-000001  What is to come?" in done.stdout and "`ava resume S-000001`" in done.stdout
    [shown] = json.loads(ava(lab.root, "status", "--json").stdout)["runs"]
    assert (shown["subagent_id"], shown["task"], shown["caps"]) == ("S-000001", "What is to come?", {})


async def test_a_refresh_is_one_look_at_one_state_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    look_once = LogLook.look

    def counted(log: LogLook, use: Any) -> Any:
        looks.append("look")
        return look_once(log, use)

    async with open_lab(tmp_path, [hand_over()], check=False) as lab:
        await lab.outcome(task="Mine")
        monkeypatch.setattr(LogLook, "look", counted)
        with contextlib.closing(reader_of(lab)) as reader:
            first = await anyio.to_thread.run_sync(lambda: run_at_once(reader.look()))
            reader.selected = first.now.runs[0].row.id
            second = await anyio.to_thread.run_sync(lambda: run_at_once(reader.look()))
    assert len(looks) == 2
    assert second.now.selected is not None and second.now.selected.steps and second.now.log is not None

"""A change of what limits everybody is on the record: once, whoever finds it, and never what only one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from support.runtime import open_lab, settings_of
from support.stdio import assert_intact, read_log, serve_stdio

from ava_audit.errors import StoreUnavailable
from ava_audit.store.store import Store
from ava_server.cli.app import main
from ava_server.config.settings import Configured, limits_of, on_record
from ava_server.runs.owner.mode import LOOKING
from ava_server.service.runtime import open_runtime

DEFAULT = 'approval = "by_host"\n'
LOWER = f"{DEFAULT}[limits]\nuser_daily_cents = 500\n"


def changed(root: Path) -> list[tuple[str, Any, Any]]:
    found = [entry.content for entry in read_log(root, "SettingsChanged")]
    return [(content["setting"], content["before"], content["after"]) for content in found]


async def opened(root: Path, config: str, **env: str) -> None:
    async with open_runtime(settings_of(root, None, config if "approval" in config else DEFAULT + config, env)):
        pass


def test_global_limits_are_policies_and_caps_without_keys_or_locations() -> None:
    names = set(limits_of(Configured()))
    assert {"enabled", "approval", "auto_approve_cents", "auto_approve_daily_cents", "sandbox.mode"} <= names
    assert {f"limits.{name}" for name in type(Configured().limits).model_fields} <= names
    assert {name.partition(".")[0] for name in names}.isdisjoint(
        {"providers", "mcp_servers", "users", "prices", "on_event", "fetch", "models"}
    )


async def test_logs_each_change_and_its_reversal_once_however_many_starts(tmp_path: Path) -> None:
    root = tmp_path / "data"
    await opened(root, "")
    assert changed(root) == [], "the built-in values are no change"
    for _ in range(2):
        await opened(root, LOWER)
    first = ("limits.user_daily_cents", 1000, 500)
    assert changed(root) == [first]
    await opened(root, 'enabled = false\napproval = "human"\n')
    back = ("limits.user_daily_cents", 500, 1000)
    assert changed(root) == [first, ("enabled", True, False), ("approval", "by_host", "human"), back]
    [entry, *_] = read_log(root, "SettingsChanged")
    assert (entry.agent, entry.run_id) == ("ava", None)
    async with Store.open(root) as store:
        known = await store.read(on_record)
    assert known == {**limits_of(Configured()), "enabled": False, "approval": "human"}
    assert_intact(root)


async def test_limits_tightened_by_the_environment_are_not_logged_as_a_change(tmp_path: Path) -> None:
    root = tmp_path / "data"
    tight = {"AVA_LIMITS__USER_DAILY_CENTS": "100", "AVA_ENABLED": "false", "AVA_DAILY_USD": "0.50"}
    await opened(root, LOWER, **tight, AVA_APPROVAL="human")
    assert changed(root) == [("limits.user_daily_cents", 1000, 500)]


async def test_a_read_only_command_logs_no_change(tmp_path: Path) -> None:
    async with open_runtime(settings_of(tmp_path / "data", None, LOWER), LOOKING):
        pass
    assert changed(tmp_path / "data") == []


async def test_two_runtimes_opened_at_once_write_one_entry(tmp_path: Path) -> None:
    root = tmp_path / "data"
    settings = settings_of(root, None, LOWER)
    await opened(root, "")
    (root / "config.toml").write_text(LOWER)
    barrier = anyio.Event()

    async def enter() -> None:
        await barrier.wait()
        async with open_runtime(settings):
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(enter)
        barrier.set()
    assert changed(root) == [("limits.user_daily_cents", 1000, 500)]


@pytest.mark.slow
async def test_two_servers_started_at_once_write_one_entry(tmp_path: Path) -> None:
    root = tmp_path / "data"
    settings_of(root, None, f"{DEFAULT}auto_approve_cents = 5\n")
    async with serve_stdio(root, initialize=False) as one, serve_stdio(root, initialize=False) as other:
        async with anyio.create_task_group() as tasks:
            for host in (one, other):
                tasks.start_soon(host.initialize)
        for host in (one, other):
            await host.tool("check_subagent")
    assert changed(root) == [("auto_approve_cents", 0, 5)]
    assert_intact(root)


async def test_starts_with_an_unavailable_log_and_logs_the_change_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    await opened(root, "")

    def busy(_now: object, _who: object) -> None:
        raise StoreUnavailable("another program holds it")

    with monkeypatch.context() as patch:
        patch.setattr("ava_server.config.settings.note_settings", busy)
        await opened(root, LOWER)
    assert changed(root) == []
    await opened(root, LOWER)
    assert len(changed(root)) == 1


async def test_the_log_shows_the_change_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_lab(tmp_path, config=LOWER) as lab:
        answer = await lab.call("read_ava_logs", types=["SettingsChanged"])
    assert answer.untrusted_entries[0].endswith("limits.user_daily_cents: 1000 → 500")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AVA_DATA_ROOT", str(tmp_path / "data"))
        code = await anyio.to_thread.run_sync(main, ["logs", "--type", "SettingsChanged"])
    assert (code, "limits.user_daily_cents: 1000 → 500" in capsys.readouterr().out) == (0, True)

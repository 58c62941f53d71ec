"""What `ava status` says of Ava's own health: the most serious problem first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.commands.dashboard import look, plain_lines, sandbox_of
from support.runtime import hand_over, open_lab

from ava_roles.sandbox.sandbox import Unavailable
from ava_server.cli.status_overview import health
from ava_server.cli.status_page import Page
from ava_server.config.settings import load_settings
from ava_server.service.checks import CheckFinding
from ava_server.service.checks.data import log_size, upkeep
from ava_server.service.current import LogFacts


def named(found: list[CheckFinding], name: str) -> CheckFinding:
    return next(one for one in found if one.name == name)


async def test_the_status_line_shows_the_most_serious_problem_first(tmp_path: Path) -> None:
    settings = load_settings(tmp_path)
    overview = await look(settings)
    assert named(health(overview, settings, None), "confinement").text == "not known yet"
    assert named(health(overview, settings, sandbox_of("none")), "confinement").state == "warning"
    off = health(overview, settings, Unavailable("nothing here confines", "use another"))
    assert named(off, "confinement").text.endswith("MCP servers are off: nothing here confines")
    lines = plain_lines(list(Page("x", overview.now, tuple(off), 80).health_lines(short=True)))
    line = next(line for line in lines if line.startswith("Health: "))
    assert line.startswith("Health: warning · no commands · ")

    for free, state in ((3_000_000, "fault"), (100_000_000, "warning"), (10**10, "ok")):  # as `ava doctor` judges it
        assert named(health(replace(overview, free_bytes=free), settings, None), "disk").state == state

    (tmp_path / "config.toml").write_text("enabled = false\nmirror = false\n")
    found = health(await look(settings), load_settings(tmp_path), sandbox_of("bubblewrap"))
    assert named(found, "settings").text == "enabled = false: subagents are switched off"
    (tmp_path / "config.toml").write_text("[limits]\nrunning = 'x'\n")
    overview = await look(settings)
    assert named(health(overview, settings, sandbox_of("bubblewrap")), "settings").state == "fault"
    assert "limits.running" in overview.faults[0]


async def test_a_lag_is_a_warning_if_running_maintenance_does_not_reduce_it(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        await lab.outcome()
        settings, overview = lab.runtime.settings, await look(lab)
    assert overview.now.log is not None
    logged = overview.now.log

    def judge(name: str, log: LogFacts, *, keeper: bool = True) -> CheckFinding:
        found = replace(overview, now=replace(overview.now, log=log), keeper=keeper)
        return named(health(found, settings, None), name)

    for lag, keeper, state in ((0, True, "ok"), (7, True, "ok"), (7, False, "note"), (20_000, True, "warning")):
        log = replace(logged, lags={"text index": lag, "JSONL mirror": 0})
        one = judge("upkeep", log, keeper=keeper)
        judged = upkeep(log.lags, keeper=keeper)  # as `ava doctor` and the page judge it
        assert (one.state, one.text) == (judged.state, judged.text) and judged.state == state
        assert bool(judged.what_to_do) == (state == "warning")
        text = f"the text index is {lag:,} entries behind; " if lag else "text index and JSONL mirror are up to date"
        assert one.text.startswith(text)
    shown = judge("log", replace(logged, partial=True))
    judged = log_size(logged.entries, logged.database_bytes + logged.wal_bytes, partial=True)
    assert (shown.state, shown.text) == (judged.state, judged.text)
    one = judge("upkeep", replace(logged, lags={"text index": 0}), keeper=overview.keeper)
    assert one.text == "text index is up to date"
    assert named(health(replace(overview, processes=0), settings, None), "servers").state == "note"

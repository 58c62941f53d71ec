"""What `ava status` shows, element by element, of logs that real runs have written."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest
from support.commands.dashboard import by, look, plain, reader_of
from support.commands.imports import modules_of
from support.model_server import Gate, Say
from support.repository import REPOSITORY
from support.runtime import PRICED, Lab, hand_over, open_lab
from support.stdio import until
from support.terminal import ava

from ava_audit.events import Event, RunPaused, SpawnDecided, SpawnProposed, UserMessage, Who
from ava_audit.rows import HELD_UNTIL_US, RunRow
from ava_audit.store.locks import WriteLock
from ava_audit.store.schema import SCHEMA_VERSION
from ava_audit.store.store import append
from ava_audit.units import format_bytes
from ava_roles.sandbox.sandbox import Unavailable
from ava_server.cli import records
from ava_server.cli.log_look import LogLook, run_at_once
from ava_server.cli.status_lines import bar, both_ends, cap_text, joined, terms
from ava_server.cli.status_overview import Overview, OverviewReader, SandboxProbe, current_json, health, health_json
from ava_server.cli.status_page import NO_RUNS, Page
from ava_server.cli.status_rows import RunRows
from ava_server.cli.terminal import cells
from ava_server.config.settings import Settings, load_settings
from ava_server.dashboard.app import StatusApp
from ava_server.dashboard.live import KEYS, LivePage
from ava_server.render.run_view import Cap, RunView, figures, short_number
from ava_server.runs import activities
from ava_server.runs.claims import NotResumed
from ava_server.service.checks import CheckFinding
from ava_server.service.checks.data import log_size, upkeep
from ava_server.service.current import Budget, CurrentRuns, LogFacts
from ava_server.service.records import CurrentViews

ONE_AT_ONCE = "[limits]\nrunning_per_user = 1\n" + PRICED
LOOKS = ("read_file", {"path": "notes.md"})
EVIL = "[red]owned[/red]\x1b]0;title\x07\x1b[2J\u202e"


def page(settings: Settings, overview: Overview, width: int = 80, **more: Any) -> LivePage:
    found = tuple(health(overview, settings, by("bubblewrap"), more.get("trouble", "")))
    return LivePage(str(settings.data_root), overview.now, found, width, **more)


async def arrived(gate: Gate) -> None:
    with anyio.fail_after(40):
        await anyio.to_thread.run_sync(gate.arrived.wait)


async def everything(lab: Lab, gate: Gate) -> None:
    """A run that has ended, one that runs, one in the queue, and one that waits for approval."""
    (lab.workspace / "notes.md").write_text("twelve cents")
    await lab.outcome(task="All is done here", name="done")
    await lab.start(task="Goes on and on", name="busy", max_cost_cents=40)
    await arrived(gate)
    await lab.start(task="Comes later", name="patient")
    await lab.propose(task="May it?", name="new")


SCRIPT = (hand_over(), Say("", [LOOKS]))


async def test_once_imports_what_shows_runs_only_where_there_are_some_and_never_a_role(tmp_path: Path) -> None:
    never = {"yaml", "mcp", "portalocker", "ava_roles.catalog", "ava_audit.store.store"}
    for_runs = {"ava_server.render.run_view", "ava_server.approval.proposals", "ava_server.runs.lifecycle"}
    async with open_lab(tmp_path, [hand_over()]) as lab:
        without = await anyio.to_thread.run_sync(modules_of, lab.root, "status", "--once")
        await lab.outcome()
        with_run = await anyio.to_thread.run_sync(modules_of, lab.root, "status", "--once", "--all")
    assert without.isdisjoint(never | for_runs)
    assert with_run >= for_runs and with_run.isdisjoint(never)


BARS = r"  [█▒░]*"


@pytest.mark.parametrize(("width", "role", "barred"), [(80, False, False), (120, True, False), (200, True, True)])
async def test_shows_a_row_for_each_run_with_budgets_above_and_the_health_below(
    tmp_path: Path, width: int, role: bool, barred: bool
) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [*SCRIPT, Say("so", gate=gate), *[hand_over()] * 2], config=ONE_AT_ONCE) as lab:
        await everything(lab, gate)
        with anyio.fail_after(40):
            overview = await look(lab)
            # It is shown a moment after the request.
            while "Thinking" not in [run.activity for run in overview.now.runs]:
                overview = await look(lab)
        lines = plain(page(lab.runtime.settings, overview, width).whole())
        gate.released.set()
        for shown in overview.now.runs:
            if shown.state in ("running", "queued"):
                await lab.ended(shown.row.id)

    assert lines[0] == f"Data root: {lab.root}"
    assert [shown.row.name for shown in overview.now.runs] == ["new", "busy", "patient", "done"]
    text = "\n".join(lines)
    own, everybody, table = (text.index(part) for part in ("of $10.00 spent", "of $25.00 spent", "task"))
    assert own < everybody < table < text.index("Health")

    role_cell, bar = ("  researcher" if role else ""), (BARS if barred else "")
    clock, of_limit, most = (r"  \d\d:\d\d", " of 10 min", "  max 10 min") if role else ("", "", "")
    doing = " · Thinking" if role else ""
    rows = (
        rf"\? to approve  S-\w{{6}}  new: May it\?{role_cell}{bar}  max \$0.50{bar}{most}{clock}\n"
        r"  ava approve P-\w{8}, or ava reject P-\w{8}; expires \d\d:\d\d",
        rf"▶ running  S-\w{{6}}  busy: Go.*{doing}{role_cell}{bar}  \$0.\d+ of \$0.40{bar}  \d+ s{of_limit}{clock}",
        r"… queued  S-\w{6}  patient: .*\n  number 1 in the queue.*",
        rf"✓ success  S-\w{{6}}  done: All is .*  \$0.\d+ of \$0.50{bar}  \d+ s{of_limit}{clock}",
    )
    for row in rows:
        assert re.search(f"^{row.replace('  ', ' +')}$", text, re.MULTILINE), (row, text)
    works = r" ok 1 server · keeper · log [\d.]+ [kM]B · upkeep (up to date|\d+ entries behind) · disk · bubblewrap"
    assert re.search(rf"{works} · custom$", " ".join(text.split()))
    assert max(map(cells, lines[1:])) <= width


async def test_an_internal_error_ends_the_live_screen_and_is_kept_for_the_caller(tmp_path: Path) -> None:
    with contextlib.closing(OverviewReader(load_settings(tmp_path), everybody=False, most=9)) as reader:
        reader.look = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        app = StatusApp(reader, SandboxProbe("none"))
        async with app.run_test():
            await until(lambda: app.fault is not None)
    assert isinstance(app.fault, ZeroDivisionError)


async def test_a_run_without_an_owner_is_interrupted_and_its_clock_stops(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("so", gate=gate)], check=False) as lab:
        await lab.start(task="Left alone")
        await arrived(gate)
        settings = lab.runtime.settings
    first, second = await look(settings), await look(settings)
    lines = plain(page(settings, second).whole())
    assert second.now.counts == {"interrupted": 1, "ended": 0}
    assert any(re.match(r"‖ interrupted +S-\w{6} +Left alone ", line) for line in lines)
    assert "  no server is running it: the next Ava server of this user resumes it" in lines
    assert "  warning servers      none is running: nothing runs until one starts" in lines
    objects = [current_json(each.now)["runs"][0]["caps"]["seconds"] for each in (first, second)]
    assert objects[0] == objects[1]


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


async def test_model_text_neither_controls_nor_colors_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activities, "AGAIN_S", 600)
    gate = Gate()
    script = [Say("", [("read_file", {"path": f"{EVIL}.md"})]), Say(EVIL, gate=gate)]
    async with open_lab(tmp_path, script, check=False) as lab:
        await lab.propose(task=f"Waits {EVIL}", name="[blink]x[/]")
        run_id = await lab.start(task=f"Runs {EVIL}")
        await arrived(gate)
        shown = (lab.runtime.membership.name, run_id)
        await until(lambda: lab.runtime.instances.activities().get(shown) == "Thinking")
        lab.runtime.membership.show({run_id: f"Reading {EVIL}"})
        await until(lambda: lab.runtime.instances.activities().get(shown) != "Thinking")
        settings, overview = lab.runtime.settings, await look(lab)
    for lines in (*parts_at(settings, overview), page(settings, overview, everybody=True).whole()):
        for line in lines:
            assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", line.plain), line.plain
            assert not any("red" in str(span.style) for span in line.spans if "owned" in line.plain)
    full = "\n".join(plain(page(settings, overview, 200, everybody=True).whole()))
    for words in ("Waits [red]owned[/red]", "Runs [red]owned[/red]", "Reading [red]owned[/red]", "[blink]x[/]: "):
        assert words in full


def parts_at(settings: Settings, overview: Overview) -> Iterator[list[Any]]:
    """The dashboard at several heights, with each run selected."""
    for height in (10, 24, 60):
        for run in overview.now.runs:
            live = page(settings, overview, everybody=True, selected=run.row.id).live(height)
            yield [*live.head, *(row.line for row in live.rows), *live.foot]


async def test_shows_why_a_run_ended_and_why_a_proposal_was_not_approved(tmp_path: Path) -> None:
    async with open_lab(tmp_path, lambda _body: Say("", [LOOKS]), config=PRICED) as lab:
        (lab.workspace / "notes.md").write_text("twelve cents")
        await lab.outcome(task="Turns in circles", max_iterations=2)
        proposal = await lab.propose(task="Not this one")
        await lab.call("confirm_spawn", pending_ids=[proposal.pending_id], decision="reject")
        overview = await look(lab)
        lines = plain(page(lab.runtime.settings, overview, 160).whole())
    assert [shown.state for shown in overview.now.runs] == ["rejected", "iteration_limit"]
    text = "\n".join(lines)
    assert "Not this one · the proposal was rejected" in text and "Turns in circles · max_iterations of 2" in text


async def test_shows_only_this_users_runs_unless_all_are_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_lab(tmp_path, [hand_over()], check=False) as lab:
        await lab.outcome(task="Mine")
        settings = lab.runtime.settings
        mine, everybody = await look(settings), await look(settings, everybody=True)
        assert len(mine.now.runs) == len(everybody.now.runs) == 1
        assert f" of {lab.session.user} " in "\n".join(plain(page(settings, everybody, 120, everybody=True).whole()))
    monkeypatch.setattr(records, "os_user", lambda: "somebody else")
    others = await look(settings)
    assert (others.now.runs, others.trouble) == ((), None)


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


async def test_json_has_every_cap_and_the_health(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("so", gate=gate)], config=PRICED, check=False) as lab:
        await lab.start(task="Goes on", max_tokens=50_000)
        await arrived(gate)
        settings, overview = lab.runtime.settings, await look(lab)
    found = json.loads(
        json.dumps(
            {
                **current_json(overview.now),
                "health": health_json(overview, health(overview, settings, by("landlock")), by("landlock")),
            }
        )
    )
    (run,) = found["runs"]
    assert (run["state"], run["task"], run["role"]) == ("running", "Goes on", "researcher")
    caps = run["caps"]
    assert [caps[name]["cap"] for name in ("seconds", "turns", "tool_calls", "tokens", "cost_cents")] == [
        600, 20, 40, 50_000, 50,
    ]  # fmt: skip
    assert caps["turns"]["used"] == 1 and caps["cost_cents"]["held"] > 0
    assert [budget["cap_cents"] for budget in found["today"]] == [1000, 2500]
    state = found["health"]
    assert (state["servers"], state["keeper"], state["confinement"]) == (1, True, "landlock")
    assert state["providers"] == [{"name": "custom", "key": False}]
    assert state["database_bytes"] > 0 and state["index_lag_entries"] >= 0 and state["mirror_lag_entries"] >= 0
    assert {one["name"] for one in state["findings"]} >= {"servers", "keeper", "log", "upkeep", "disk", "confinement"}


# -- health -----------------------------------------------------------------------------------------------------------


def named(found: list[CheckFinding], name: str) -> CheckFinding:
    return next(one for one in found if one.name == name)


async def test_the_status_line_shows_the_most_serious_problem_first(tmp_path: Path) -> None:
    settings = load_settings(tmp_path)
    overview = await look(settings)
    assert named(health(overview, settings, None), "confinement").text == "not known yet"
    assert named(health(overview, settings, by("none")), "confinement").state == "warning"
    off = health(overview, settings, Unavailable("nothing here confines", "use another"))
    assert named(off, "confinement").text.endswith("MCP servers are off: nothing here confines")
    lines = plain(list(Page("x", overview.now, tuple(off), 80).health_lines(brief=True)))
    line = next(line for line in lines if line.startswith("Health: "))
    assert line.startswith("Health: warning · no commands · ")

    for free, state in ((3_000_000, "fault"), (100_000_000, "warning"), (10**10, "ok")):  # as `ava doctor` judges it
        assert named(health(replace(overview, free_bytes=free), settings, None), "disk").state == state

    (tmp_path / "config.toml").write_text("enabled = false\nmirror = false\n")
    found = health(await look(settings), load_settings(tmp_path), by("bubblewrap"))
    assert named(found, "settings").text == "enabled = false: subagents are switched off"
    (tmp_path / "config.toml").write_text("[limits]\nrunning = 'x'\n")
    overview = await look(settings)
    assert named(health(overview, settings, by("bubblewrap")), "settings").state == "fault"
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


def test_a_status_line_and_a_bar_say_the_same_of_a_million_tokens() -> None:
    caps = Cap("seconds", 1, 600), Cap("turns", 1, 20), Cap("tool_calls", 1, 40), Cap("tokens", 1_234_567, 2_000_000)
    run = RunView(cast("Any", None), "running", 0, (*caps, Cap("cost", 0, 0)), free=True)
    assert cap_text(caps[-1]) == "1.2M/2.0M tok"
    assert cap_text(Cap("seconds", 61, 600)) == "61/600 s"
    assert cap_text(Cap("seconds", 61, 2_592_000)) == "1 min 1 s of 30 days"
    assert figures(run) == "1 s of 600 s · turn 1 of 20 · 1.2M tokens · free"


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_row_fits_its_terminal_and_always_shows_the_cost(width: int) -> None:
    caps = Cap("seconds", 1, 600), Cap("turns", 1, 20), Cap("tool_calls", 1, 40), Cap("cost", 100_000, 500_000)
    row = RunRow(
        "S-000001", "P-00000001", None, "ana", "sess-1", "researcher", None, None, "fake:x", "{}", None, "success",
        None, None, created_us=1, started_us=1, ended_us=2, cost_micros=100_000,
    )  # fmt: skip
    run = RunView(row, "success", 0, caps, free=False, task="What does the \U0001f40d cost? " * 9)
    rows = RunRows([run], width, everybody=False)
    lines = [rows.head(), rows.row(run)]
    assert all(cells(line.plain) <= width for line in lines)
    assert "$0.10 of $0.50" in lines[1].plain and "✓" in lines[1].plain
    assert width < 60 or "success" in lines[1].plain


@pytest.mark.parametrize(("seconds", "words"), [(45, "45 s"), (100, "100 s"), (600, "10 min")])
def test_a_waiting_proposal_has_its_time_in_the_words_of_the_proposal(seconds: int, words: str) -> None:
    run = RunView(cast("Any", None), "awaiting_approval", 0, (Cap("seconds", 0, seconds),), free=True)
    assert terms(run).startswith(f"free, at most {words}, expires ")


def test_a_bar_is_empty_only_at_zero_and_full_only_at_the_cap() -> None:
    drawn: list[Callable[[], str]] = [
        lambda: bar(0, 100, 10).plain,
        lambda: bar(0.1, 100, 10).plain,
        lambda: bar(50, 100, 10).plain,
        lambda: bar(99.9, 100, 10).plain,
        lambda: bar(100, 100, 10).plain,
        lambda: bar(140, 100, 10).plain,
        lambda: bar(20, 100, 10, held=30).plain,
        lambda: bar(0, 100, 10, held=1).plain,
        lambda: bar(0, 0, 10).plain,
    ]
    assert [one() for one in drawn] == [
        "░░░░░░░░░░", "█░░░░░░░░░", "█████░░░░░", "█████████░", "██████████", "██████████", "██▒▒▒░░░░░", "▒░░░░░░░░░",
        "██████████",
    ]  # fmt: skip
    assert [short_number(number) for number in (0, 999, 12_345, 999_499, 1_000_000)] == [
        "0",
        "999",
        "12k",
        "999k",
        "1.0M",
    ]
    assert [format_bytes(number) for number in (12, 1_500, 2_500_000, 3 * 10**9)] == [
        "12 bytes",
        "1.5 kB",
        "2.5 MB",
        "3.0 GB",
    ]


def test_text_of_others_stays_on_one_line_and_both_ends_of_a_line_fit() -> None:
    assert joined("a\nb\tc\x1b[31m\r\nd").plain == "a b c d"
    assert joined(("[bold]x", "red")).plain == "[bold]x"
    for width in range(3, 30):
        line = both_ends(joined("some words of ours"), "12:00", width)
        assert line.plain.endswith("12:00")
        assert width < 7 or line.cell_len == width


# -- the log is left alone --------------------------------------------------------------------------------------------


def traces(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*")}


async def test_reading_leaves_no_trace_and_waits_for_no_writer(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        await lab.outcome()
    before = traces(lab.root)
    lock = WriteLock(lab.root / "write.lock")
    with lock.held():
        begun = time.monotonic()
        done = await anyio.to_thread.run_sync(lambda: ava(lab.root, "status", "--once"))
        assert time.monotonic() - begun < 20
    lock.close()
    assert done.returncode == 0 and "success" in done.stdout, done.stderr
    after = traces(lab.root)
    assert {name: found for name, found in after.items() if not name.endswith("write.lock")} == {
        name: found for name, found in before.items() if not name.endswith("write.lock")
    }


@pytest.mark.slow
async def test_commands_end_with_a_reason_while_a_stopped_process_holds_the_log(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        await lab.outcome()
    lock = WriteLock(lab.root / "write.lock")
    with lock.held():
        shown = await anyio.to_thread.run_sync(lambda: ava(lab.root, "show"))
        assert shown.returncode == 0 and "## Summary" in shown.stdout, "it can be read"
        added = await anyio.to_thread.run_sync(lambda: ava(lab.root, "user", "add", "eve"))
        assert added.returncode == 30 and "nothing was written" in added.stderr, added
        assert "one that was stopped (Ctrl-Z)" in shown.stderr and "one that was stopped (Ctrl-Z)" in added.stderr
    lock.close()


@pytest.mark.slow
def test_reports_a_place_without_a_log_and_creates_nothing(tmp_path: Path) -> None:
    root = tmp_path / "data"
    done = ava(root, "status", "--once")
    assert done.returncode == 0 and done.stdout.startswith(f"Data root: {root}\n")
    assert NO_RUNS in done.stdout.splitlines()
    assert "  note    log          none yet; the first start makes it" in done.stdout
    assert json.loads(ava(root, "status", "--json").stdout)["health"]["entries"] is None
    assert not root.exists()


def test_an_unreadable_log_is_one_sentence_without_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "ava.db").write_bytes(b"this is no database, " * 400)
    done = ava(tmp_path, "status", "--once")
    assert done.returncode != 0
    assert (
        done.stderr.startswith("ava: the log cannot be read: file is not a database; ") and done.stderr.count("\n") == 1
    )


@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq here")
async def test_the_jq_examples_of_the_docs_work(tmp_path: Path) -> None:
    page_of_docs = (REPOSITORY / "docs" / "monitoring.md").read_text("utf-8")
    filters = re.findall(r"^ava status --json \| jq '(.*)'$", page_of_docs, re.MULTILINE)
    async with open_lab(tmp_path, [hand_over()], config=PRICED) as lab:
        await lab.outcome()
        settings, overview = lab.runtime.settings, await look(lab)
    health_now = health_json(overview, health(overview, settings, by("none")), by("none"))
    text = json.dumps({**current_json(overview.now), "health": health_now})

    def jq(words: str) -> list[dict[str, Any]]:
        done = subprocess.run(["jq", "-c", words], input=text, capture_output=True, text=True, check=True, timeout=10)
        return [json.loads(line) for line in done.stdout.splitlines()]

    runs, findings = [await anyio.to_thread.run_sync(jq, one) for one in filters]
    assert [(run["state"], run["cost"]["cap"]) for run in runs] == [("success", 50)]
    assert [one["name"] for one in findings] == ["confinement"]


def test_the_docs_quote_the_live_screen() -> None:
    page_of_docs = (REPOSITORY / "docs" / "monitoring.md").read_text("utf-8")
    quoted = page_of_docs.partition("```text\n")[2].partition("\n```")[0].split("\n")
    assert max(map(cells, quoted)) == 79, "a column of 80 is the scroll bar's"
    assert len(quoted) == 24
    assert quoted[-1] in KEYS
    (budget,) = (line for line in quoted if "everybody" in line)
    spent: CurrentViews = CurrentRuns(0, {}, (), (Budget("everybody", 200_000, 510_000, 25_000_000),))
    assert [budget] == plain(list(LivePage("/srv/ava", spent, (), 79).today_lines(brief=True)))


@pytest.mark.parametrize(
    ("version", "says"),
    [(0, "its beginning is gone"), (SCHEMA_VERSION + 1, "install the newer ava")],
)
async def test_reports_a_log_of_another_version_and_leaves_it_unchanged(
    tmp_path: Path, version: int, says: str
) -> None:
    async with open_lab(tmp_path, [hand_over()], runs=False) as lab:
        root = lab.runtime.settings.data_root
    with contextlib.closing(sqlite3.connect(root / "ava.db")) as db:
        db.execute(f"PRAGMA user_version = {version}")
    done = await anyio.to_thread.run_sync(ava, root, "status", "--once")
    assert (done.returncode, says in done.stderr) == (30, True), done.stderr
    with contextlib.closing(sqlite3.connect(root / "ava.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (version,)

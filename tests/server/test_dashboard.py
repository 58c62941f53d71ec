"""What `ava status` shows, element by element, of logs that real runs have written."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.commands.dashboard import look, plain_lines, reader_of, sandbox_of
from support.commands.imports import modules_of
from support.model_server import Gate, Say
from support.repository import REPOSITORY
from support.runtime import PRICED, Lab, hand_over, open_lab
from support.stdio import until
from support.terminal import ava

from ava_audit.events import Event, RunPaused, SpawnDecided, SpawnProposed, UserMessage, Who
from ava_audit.rows import HELD_UNTIL_US
from ava_audit.store.locks import LockedInstances
from ava_audit.store.store import append
from ava_server.cli import records
from ava_server.cli.log_look import LogLook, run_at_once
from ava_server.cli.status_overview import Overview, OverviewReader, SandboxProbe, current_json, health, health_json
from ava_server.cli.terminal import cells
from ava_server.config.settings import Settings, load_settings
from ava_server.dashboard.app import StatusApp
from ava_server.dashboard.live import KEYS, LivePage
from ava_server.runs import activities
from ava_server.runs.claims import NotResumed
from ava_server.service.current import Budget, CurrentRuns
from ava_server.service.records import CurrentViews

ONE_AT_ONCE = "[limits]\nrunning_per_user = 1\n" + PRICED
LOOKS = ("read_file", {"path": "notes.md"})
EVIL = "[red]owned[/red]\x1b]0;title\x07\x1b[2J\u202e"


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
        lines = plain_lines(page(lab.runtime.settings, overview, width).whole())
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


async def test_a_run_without_an_owner_is_interrupted_and_its_clock_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LockedInstances, "seen_every_s", 0.0)  # so much may be shown after it was last seen
    gate = Gate()
    async with open_lab(tmp_path, [Say("so", gate=gate)], check=False) as lab:
        await lab.start(task="Left alone")
        await arrived(gate)
        settings = lab.runtime.settings
    first, second = await look(settings), await look(settings)
    lines = plain_lines(page(settings, second).whole())
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
    full = "\n".join(plain_lines(page(settings, overview, 200, everybody=True).whole()))
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
        ended = await lab.start(task="Turns in circles", max_iterations=2)
        await lab.ended(ended)
        checked = await lab.call("check_subagent", subagent_id=ended)
        proposal = await lab.propose(task="Not this one")
        await lab.call("confirm_spawn", pending_ids=[proposal.pending_id], decision="reject")
        overview = await look(lab)
        lines = plain_lines(page(lab.runtime.settings, overview, 160).whole())
    assert [shown.state for shown in overview.now.runs] == ["rejected", "iteration_limit"]
    text = "\n".join(lines)
    assert "Not this one · the proposal was rejected" in text
    assert "Turns in circles · it used all of its 2 turns" in text
    [run] = checked.runs
    assert run.status_line.startswith(f"researcher {ended}: it used all of its 2 turns · ")
    assert (run.state, run.stop_reason) == ("iteration_limit", "max_iterations of 2"), "programs read the names"


async def test_shows_only_this_users_runs_unless_all_are_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_lab(tmp_path, [hand_over()], check=False) as lab:
        await lab.outcome(task="Mine")
        settings = lab.runtime.settings
        mine, everybody = await look(settings), await look(settings, everybody=True)
        assert len(mine.now.runs) == len(everybody.now.runs) == 1
        assert f" of {lab.session.user} " in "\n".join(
            plain_lines(page(settings, everybody, 120, everybody=True).whole())
        )
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
                "health": health_json(
                    overview, health(overview, settings, sandbox_of("landlock")), sandbox_of("landlock")
                ),
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


# -- the log is left alone --------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("jq") is None, reason="no jq here")
async def test_the_jq_examples_of_the_docs_work(tmp_path: Path) -> None:
    page_of_docs = (REPOSITORY / "docs" / "monitoring.md").read_text("utf-8")
    filters = re.findall(r"^ava status --json \| jq '(.*)'$", page_of_docs, re.MULTILINE)
    async with open_lab(tmp_path, [hand_over()], config=PRICED) as lab:
        await lab.outcome()
        settings, overview = lab.runtime.settings, await look(lab)
    health_now = health_json(overview, health(overview, settings, sandbox_of("none")), sandbox_of("none"))
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
    assert [budget] == plain_lines(list(LivePage("/srv/ava", spent, (), 79).today_lines(brief=True)))


def page(settings: Settings, overview: Overview, width: int = 80, **more: Any) -> LivePage:
    found = tuple(health(overview, settings, sandbox_of("bubblewrap"), more.get("trouble", "")))
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

"""What `ava status` shows, element by element, of logs that real runs have written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.commands.dashboard import look, plain_lines, sandbox_of
from support.model_server import Gate, Say
from support.runtime import PRICED, Lab, hand_over, open_lab
from support.stdio import until

from ava_audit.store.locks import LockedInstances
from ava_server.cli import record_client
from ava_server.cli.status_overview import Overview, current_json, health, health_json
from ava_server.cli.terminal import cells
from ava_server.config.settings import Settings
from ava_server.dashboard.live import LivePage
from ava_server.runs.owner import activities

ONE_AT_ONCE = "[limits]\nrunning_per_user = 1\n" + PRICED
LOOKS = ("read_file", {"path": "notes.md"})
EVIL = "[red]owned[/red]\x1b]0;title\x07\x1b[2J\u202e"


SCRIPT = (hand_over(), Say("", [LOOKS]))


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
    monkeypatch.setattr(record_client, "os_user", lambda: "somebody else")
    others = await look(settings)
    assert (others.now.runs, others.trouble) == ((), None)


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

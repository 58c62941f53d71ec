"""The dashboard of `ava status`: its keys, and what it shows at each size, of logs that real runs have written."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.commands.dashboard import (
    live_app,
    look,
    plain_lines,
    sandbox_of,
    screen,
    wait_until_hidden,
    wait_until_shown,
)
from support.commands.snapshots import LONG, compare_screen, open_full_lab, run_lines, selected_line
from support.model_server import Say
from support.runtime import PRICED, hand_over, open_lab
from support.stdio import until

from ava_server.cli.status_overview import health
from ava_server.cli.status_page import LEAST_BAR, Page
from ava_server.dashboard import app as app_module
from ava_server.dashboard.live import LivePage

EVIL = "[red]owned[/red] [@click=app.bell]click[/] \x1b]0;title\x07\x1b[2J\u202e"
LITERAL = "[red]owned[/red] [@click=app.bell]click[/]"


# -- snapshots --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_screen_at_each_size_is_as_its_snapshot(short_place: Path) -> None:
    async with open_full_lab(short_place) as (lab, _gate):
        for width, height in ((60, 20), (80, 24), (120, 40), (200, 60)):
            async with live_app(lab, width, height) as (app, pilot):
                await wait_until_shown(app, "not confined" if height > 30 else "Health: warning")
                compare_screen(f"list-{width}x{height}-proposal", screen(app))
                await pilot.press("down", "down")
                await wait_until_shown(app, "nowhere.md: failed")
                await wait_until_shown(app, "Thinking")  # which another read may bring than the run's last actions
                compare_screen(f"list-{width}x{height}-running", screen(app))
                await pilot.press("q")
            assert app.return_value == 0


@pytest.mark.slow
async def test_the_other_screens_at_80_columns_are_as_their_snapshots(short_place: Path) -> None:
    async with open_full_lab(short_place) as (lab, _gate), live_app(lab) as (app, pilot):
        await pilot.press("a")
        compare_screen("approve-80x24", await wait_until_shown(app, "Start it?"))
        await pilot.press("escape", "question_mark")
        compare_screen("help-80x24", await wait_until_shown(app, "Keys of ava status"))
        await pilot.press("escape", "end", "enter")
        compare_screen("run-80x24", await wait_until_shown(app, "Tools called"))
        await pilot.press("l")
        compare_screen("log-80x24", await wait_until_shown(app, "Result: S-"))


# -- what stands where ------------------------------------------------------------------------------------------------


async def test_each_size_shows_every_run_within_its_width_and_the_task_gets_what_is_left(tmp_path: Path) -> None:
    async with open_full_lab(tmp_path) as (lab, _gate):
        settings, overview, few = lab.runtime.settings, await look(lab), await look(lab, most=2)
        busy = next(run for run in overview.now.runs if run.row.name == "busy")
    found = tuple(health(overview, settings, sandbox_of("bubblewrap")))
    for width in range(40, 201, 7):
        page = LivePage("/srv/ava", overview.now, found, width, selected=busy.row.id)
        for height in (*range(1, 30), 40, 60):
            live = page.live(height)
            assert max(line.cell_len for line in [*live.head, *(row.line for row in live.rows), *live.foot]) <= width
            assert sum(row.run is not None for row in live.rows) == 6, "every run is in the list"
            assert live.head[0].plain == "Data root: /srv/ava" and live.foot[-1].plain.endswith("q quit")
            assert height < 8 or height - len(live.head) - len(live.foot) >= 3
            for bars in re.findall(r"[█▒░]+", "\n".join(plain_lines(live.foot))):
                assert len(bars) >= LEAST_BAR, "a narrower bar would not be true"
            if height >= 15:
                pane = plain_lines(live.foot)
                assert re.search(r"^  \$0\.\d+/\$0\.40 ", pane[1]), "the pane begins with cost and cap"
        rows = {row.run.row.name: row.line.plain for row in page.live(24).rows if row.run is not None}
        assert re.search(r"\$0\.\d+ of \$0\.40\b", rows["busy"]) and "max $0.50" in rows["new"]
        task = re.split(r"…| · |  +|$", rows["busy"].partition("busy: ")[2])[0]
        assert LONG.startswith(task) and (width < 60 or len(task) > 10) and (width < 180 or len(task) > 30)
        assert width < 120 or " s of 10 min " in rows["busy"]
    counts = LivePage("/srv/ava", few.now, found, 120).live(24).head[1].plain
    assert re.match(r"2 to approve · 1 running · 2 queued · 1 ended · 3 not listed: ava status --once ", counts)


async def test_the_dashboard_and_once_show_the_same_rows(tmp_path: Path) -> None:
    async with open_full_lab(tmp_path) as (lab, _gate):
        settings, overview = lab.runtime.settings, await look(lab)
    found = tuple(health(overview, settings, sandbox_of("bubblewrap")))
    for width in (40, 60, 80, 120, 200):
        live = LivePage("/srv/ava", overview.now, found, width).live(40)
        once = Page("/srv/ava", overview.now, found, width - len("> ")).whole()
        rows = [row.line.plain.removeprefix("  ") for row in live.rows]
        assert [line for line in rows if line not in plain_lines(once)] == [], width
        assert plain_lines(live.head)[-1].removeprefix("  ") in plain_lines(once), "and the same heads"
        styles = {line.plain: line.spans for line in once}
        busy = next(row.line for row in live.rows if "busy: " in row.line.plain)
        shifted = [(span.start - 2, span.end - 2, span.style) for span in busy.spans if span.start >= 2]
        assert shifted == [tuple(span) for span in styles[busy.plain[2:]]], "in the same colours"


async def test_the_columns_have_heads_over_them_where_there_is_room(tmp_path: Path) -> None:
    async with open_full_lab(tmp_path) as (lab, _gate):
        settings, overview = lab.runtime.settings, await look(lab)
    found = tuple(health(overview, settings, sandbox_of("bubblewrap")))
    for width, words in ((40, ["run", "task", "cost"]), (60, ["state", "run", "task", "cost"]),
                         (120, ["state", "run", "task", "role", "cost", "time", "when"])):  # fmt: skip
        live = LivePage("/srv/ava", overview.now, found, width).live(24)
        head = live.head[-1].plain
        assert head.split() == words
        done = next(row.line.plain for row in live.rows if "done" in row.line.plain)
        assert head.index("task") == done.index("done"), "the head stands over its column"
        assert len(head) <= len(done) == width
        assert "task" not in LivePage("/srv/ava", overview.now, found, width).live(12).head[-1].plain
    nothing = LivePage("/srv/ava", overview.now, found, 80, words="nothing has this").live(24)
    assert "state" not in nothing.head[-1].plain


async def test_on_40_columns_the_sign_of_the_state_leaves_room_for_the_task(tmp_path: Path) -> None:
    async with open_full_lab(tmp_path) as (_lab, _gate), live_app(_lab, 40, 24) as (app, _pilot):
        lines = screen(app)
    text = "\n".join(lines)
    assert re.search(r"^> \? S-\w{6} new: May\S* +max \$0\.50$", text, re.MULTILINE)
    assert re.search(r"^  ▶ S-\w{6} bus\S+.*… +\$0\.\d+ of \$0\.40$", text, re.MULTILINE)
    assert re.search(r"^Today: \w+ \$0\.\d+ of \$10\.00$", text, re.MULTILINE)
    assert "a r c s act" in lines[-1]


async def test_a_proposals_pane_begins_with_price_and_reach(tmp_path: Path) -> None:
    async with open_full_lab(tmp_path) as (lab, _gate), live_app(lab, 120, 40) as (app, _pilot):
        await wait_until_shown(app, "Model: custom:test.")
        lines = screen(app)
    at = next(number for number, line in enumerate(lines) if line.startswith("  P-"))
    assert ", at most $0.50 and 10 min, expires " in lines[at]
    assert lines[at + 1] == f"  It can read {lab.workspace} and reach the web."
    assert lines[at + 2] == '  Ava wants to start a researcher: "May it?", named "new".'
    assert sum("It can read" in line for line in lines) == 1


async def test_what_a_key_has_done_is_said_for_a_while_and_then_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "SAID_S", 1.5)
    async with open_full_lab(tmp_path) as (lab, _gate), live_app(lab) as (app, pilot):
        await pilot.press("r")
        await wait_until_shown(app, "Reject it?")
        await pilot.press("escape")
        await wait_until_shown(app, "Nothing was rejected; it still waits.")
        await wait_until_hidden(app, "Nothing was rejected")
        app.tell("It could not be done.", failed=True)
        await anyio.sleep(2)
        assert "It could not be done." in "\n".join(screen(app)), "why something failed stays longer"


async def test_the_selected_run_shows_its_task_its_caps_and_its_last_actions(tmp_path: Path) -> None:
    async with open_full_lab(tmp_path) as (lab, gate), live_app(lab) as (app, pilot):
        assert selected_line(app).split()[1:4] == ["?", "to", "approve"]
        await wait_until_shown(app, "at most $0.50 and 10 min")
        await pilot.press("down", "down")
        lines = await wait_until_shown(app, "nowhere.md: failed")
        text = "\n".join(lines)
        assert "busy: Go on" in selected_line(app)
        assert re.search(r"^  \d\d:\d\d:\d\d read_file path=notes.md: success, .*$", text, re.MULTILINE)
        assert re.search(r"^  \d\d:\d\d:\d\d read_file path=nowhere.md: failed, .*$", text, re.MULTILINE)
        assert re.search(r"^  \$0.\d+/\$0.40 +\d+/600 s +turn 2/20 +2/40 calls +\d+k?/2\.0M tok$", text, re.MULTILINE)
        assert "until somebody releases the answer that is held" in " ".join(text.split())
        await pilot.press("down")
        await wait_until_shown(app, "number 1 in the queue")
        gate.released.set()


async def test_the_selection_stays_with_its_run_when_others_come_and_when_it_ends(tmp_path: Path) -> None:
    async with open_full_lab(tmp_path) as (lab, gate), live_app(lab, 100, 30) as (app, pilot):
        await pilot.press("down", "down")
        assert "busy" in selected_line(app)
        await lab.propose(task="A third one", name="third")
        await wait_until_shown(app, "3 to approve")
        assert "busy" in selected_line(app), "a new row does not move it"
        gate.released.set()
        await until(lambda: "success" in selected_line(app) and "busy" in selected_line(app))
        assert run_lines(app).index(selected_line(app)) >= 3, "it has moved to those that have ended"
        await pilot.press("home")
        assert "new" in selected_line(app)


async def test_arrows_pages_home_and_end_select_and_the_list_scrolls_with_them(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], check=False) as lab:
        names = [f"run{number:02}" for number in range(30)]
        for name in names:
            await lab.propose(task=f"Number {name}", name=name)
        async with live_app(lab, 80, 16) as (app, pilot):
            assert "run00" in selected_line(app) and "run29" not in "\n".join(screen(app))
            for key, name in (
                ("down", "run01"), ("up", "run00"), ("up", "run00"), ("end", "run29"), ("down", "run29"),
                ("home", "run00"),
            ):  # fmt: skip
                await pilot.press(key)
                await until(lambda name=name: name in selected_line(app))  # type: ignore[misc]
            await pilot.press("pagedown")
            reached = next(name for name in names if name in selected_line(app))
            assert "run00" < reached < "run15"
            await pilot.press("pageup")
            assert "run00" in selected_line(app)


@pytest.mark.slow
async def test_a_filter_finds_runs_by_text_state_and_role_until_it_is_removed(tmp_path: Path) -> None:
    async with open_full_lab(tmp_path) as (lab, _gate), live_app(lab, 100, 30) as (app, pilot):

        async def type_filter(words: str) -> list[str]:
            await pilot.press("slash", *("space" if char == " " else char for char in words))
            await pilot.press("enter")
            return run_lines(app)

        for words, names in (
            ("LATER", ["patient: ", "Comes even later"]),
            ("to approve", ["new: ", "May this one, too?"]),
            ("queued even", ["Comes even later"]),
            ("researcher success", ["done: "]),
        ):
            found = await type_filter(words)
            tasks = [re.split(r"S-\w{6} +", line)[1] for line in found]
            assert len(tasks) == len(names) and all(map(str.startswith, tasks, names)), words
            assert selected_line(app) in found, "one of those that are shown is selected"
            assert f"filter '{words}': {len(names)} of 6" in screen(app)[1]
            await pilot.press("escape")
            await wait_until_hidden(app, "filter '")
        assert await type_filter("nothing has this") == []
        assert "No run matches the filter; Esc removes it." in screen(app)
        await pilot.press("escape", "slash", "q")
        await wait_until_shown(app, "filter 'q'")
        await pilot.press("escape")
        assert len(run_lines(app)) == 6


async def test_an_empty_list_is_read_no_more_often_than_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_lab(tmp_path, [], config=PRICED) as lab, live_app(lab) as (app, _pilot):
        looks, look_once = 0, app.reader.look

        def counted() -> Any:
            nonlocal looks
            looks += 1
            return look_once()

        monkeypatch.setattr(app.reader, "look", counted)
        await anyio.sleep(2.5 * app_module.LOOK_EVERY_S)
        assert 1 <= looks <= 3


async def test_enter_opens_a_run_with_task_steps_tools_cost_and_result_and_follows_it(tmp_path: Path) -> None:
    async with open_full_lab(tmp_path) as (lab, gate), live_app(lab, 120, 60) as (app, pilot):
        await pilot.press("down", "down", "enter")
        lines = await wait_until_shown(app, "nowhere.md: failed")
        text = "\n".join(lines)
        assert re.match(r'researcher "busy" \(S-\w{6}\): running +\d\d:\d\d:\d\d$', lines[0])
        for words in (f"│ {LONG}", "Approved ", "Caps: at most $0.40", "Tools called: read_file 2", "Steps: turn 2"):
            assert words in text, words
        assert re.search(r"^Cost: \$0\.\d+ of \$0\.40$", text, re.MULTILINE)
        gate.released.set()
        await wait_until_shown(app, ": success")
        await pilot.press("end")
        await wait_until_shown(app, "│ so")
        await pilot.press("escape", "end", "enter")
        lines = await wait_until_shown(app, "│ All is said.")
        assert 'researcher "done"' in lines[0]


async def test_the_log_of_a_run_opens_from_both_screens_and_follows_new_entries(tmp_path: Path) -> None:
    async with open_full_lab(tmp_path) as (lab, gate), live_app(lab) as (app, pilot):
        await pilot.press("down", "down", "l")
        lines = await wait_until_shown(app, "Tool call: read_file path=notes.md")
        assert re.match(r'Log of researcher "busy" \(S-\w{6}\) ', lines[0])
        assert not any(re.match(r"\d\d:\d\d:\d\d (Money reserved|Taken by a server)", line) for line in lines)
        gate.released.set()
        await wait_until_shown(app, "Result: S-")
        await pilot.press("escape", "enter")
        await wait_until_shown(app, "Asked ")
        await pilot.press("l")
        await wait_until_shown(app, 'Log of researcher "busy"')
        await pilot.press("escape", "escape")
        assert "busy" in selected_line(app)


@pytest.mark.parametrize("keys", [["enter"], ["l"], ["question_mark"], []])
async def test_q_goes_back_and_quits_from_the_list(tmp_path: Path, keys: list[str]) -> None:
    async with open_lab(tmp_path, [hand_over()], check=False) as lab:
        await lab.outcome()
        async with live_app(lab) as (app, pilot):
            for key in keys:
                await pilot.press(key)
                await wait_until_shown(app, "Esc or q back")
                await pilot.press("q")
                await wait_until_shown(app, "q quit")
            assert app.return_value is None
            await pilot.press("q")
        assert app.return_value == 0


async def test_model_text_is_literal_on_every_screen(tmp_path: Path) -> None:
    asks = ("ask", {"question": f"Which {EVIL}?", "options": [f"this {EVIL}"]})
    script = [Say("", [("read_file", {"path": f"{EVIL}.md"}), asks])]
    async with open_lab(tmp_path, script, check=False) as lab:
        run_id = await lab.start(task=f"Runs {EVIL}")
        await lab.logged(run_id, "Asked")
        await lab.propose(task=f"Waits {EVIL}", name="[blink]x[/]")
        async with live_app(lab, 120, 50) as (app, pilot):

            async def is_literal(*words: str) -> None:
                for one in words:
                    await wait_until_shown(app, one)
                shown = app.screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]
                for strip in shown:
                    for segment in strip:
                        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", segment.text), segment.text
                        assert segment.style is None or "@click" not in segment.style.meta
                        assert "owned" not in segment.text or "red" not in str(segment.style)

            await is_literal(f"Waits {LITERAL}", "[blink]x[/]", f"Runs {LITERAL}")
            await pilot.press("a")
            await is_literal(f"Waits {LITERAL}", "Start it?")
            await pilot.press("escape", "down")
            if "Runs" not in selected_line(app):
                await pilot.press("up")
            await is_literal(f'It asks: "Which {LITERAL}')
            await pilot.press("s")
            await is_literal(f"Which {LITERAL}", f"this {LITERAL}")
            await pilot.press("escape", "enter")
            await is_literal(f"Runs {LITERAL}", f"Which {LITERAL}")
            await pilot.press("l")
            await is_literal(f"Which {LITERAL}", f"Runs {LITERAL}")


# -- a log that does not answer ---------------------------------------------------------------------------------------


async def test_a_log_that_hangs_blocks_no_key_and_a_question_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "ASKS_WITHIN_S", 0.5)
    async with open_lab(tmp_path, [], check=False) as lab:
        await lab.propose()
        async with live_app(lab) as (app, pilot):

            def hangs(*_args: Any, **_named: Any) -> Any:
                time.sleep(600)

            monkeypatch.setattr(app.reader, "look", hangs)
            monkeypatch.setattr(app.reader.records, "get", hangs)
            await pilot.press("a")
            await wait_until_shown(app, "The log has not answered for")
            await pilot.press("enter")
            await wait_until_shown(app, "Reading …")
            await pilot.press("question_mark")
            await wait_until_shown(app, "Keys of ava status")
            await pilot.press("q", "q", "q")
        assert app.return_value == 0


async def test_a_run_that_cannot_be_read_says_why_and_is_shown_as_soon_as_it_can(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], check=False) as lab:
        await lab.outcome()
        async with live_app(lab) as (app, pilot):
            moved = lab.root.with_name("moved")
            lab.root.rename(moved)
            await wait_until_shown(app, "there is no log in")  # the list has looked, and keeps what it had
            await pilot.press("enter")
            await wait_until_shown(app, "! there is no log in")
            moved.rename(lab.root)
            await wait_until_shown(app, "Tools called")


@pytest.fixture
def short_place(monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A folder whose path is as long everywhere, and a clock at noon: lines are cut by length, dates lengthen them."""
    monkeypatch.setenv("TZ", f"NOON{time.gmtime().tm_hour - 12:+d}")
    time.tzset()
    path = Path(tempfile.mkdtemp(prefix="ava-shot-", dir="/tmp"))
    yield path
    shutil.rmtree(path)
    monkeypatch.undo()
    time.tzset()

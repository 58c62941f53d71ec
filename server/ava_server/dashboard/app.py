"""The dashboard of `ava status`, drawn by textual and kept up to date until it is quit."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import anyio
from rich.text import Text
from textual import events, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Region
from textual.widgets import Input, Static

from ava_audit.errors import StoreUnavailable
from ava_audit.units import format_ts, now_us
from ava_server.cli.log_look import run_at_once
from ava_server.cli.status_lines import joined
from ava_server.cli.status_overview import Overview, OverviewReader, SandboxProbe, health
from ava_server.cli.status_page import ListRow
from ava_server.cli.terminal import named_root, tell
from ava_server.core.errors import leaves_of
from ava_server.core.ids import label
from ava_server.core.shutdown import ending_signals
from ava_server.core.threads import read_apart, received
from ava_server.dashboard.live import LivePage
from ava_server.dashboard.screens import REFUSALS, Done, LogScreen, QuestionScreen, RunScreen, TextScreen

if TYPE_CHECKING:
    from textual.driver import Driver

    from ava_server.approval.decide import FoldedScreen
    from ava_server.dashboard.decisions import DecisionQuestion, Kind
    from ava_server.render.run_view import RunView

LOOK_EVERY_S = 0.7
ENDS_WITHIN_S = 2.0
"""A signal, or a terminal that is gone, ends the process within this time whatever hangs."""
SAID_S, FAILED_S = 15.0, 60.0
"""How long a sentence about what a key has done stays, and one about why it failed: later it may no longer be true."""
STALLED_S = 3.0
"""A look that takes longer is reported; the screen keeps what was there before."""
ASKS_WITHIN_S, DECIDES_WITHIN_S = 10.0, 60.0
"""How long a question may take to be read, and a decision to be carried out."""
_HUNG_UP = 128 + 1
"""The exit code of a terminal that is gone, whether SIGHUP comes too or not."""


class RunList(VerticalScroll):
    """The list of runs; arrows select."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "app.select(-1)", show=False),
        Binding("down,j", "app.select(1)", show=False),
        Binding("pageup", "app.select_page(-1)", show=False),
        Binding("pagedown", "app.select_page(1)", show=False),
        Binding("home", f"app.select({-sys.maxsize})", show=False),
        Binding("end", f"app.select({sys.maxsize})", show=False),
        Binding("enter", "app.open", show=False),
        Binding("slash", "app.filter", show=False),
        Binding("escape", "app.unfilter", show=False),
    ]


class StatusApp(App[int]):
    """The screen: a head, the runs, which scroll, the selected one, and a foot. It returns the exit code.

    `reader` looks at the data root in a thread that nothing waits for, and `probe` finds out what confines commands
    after the first look. `fault` is the error that ended the app, and `in_flight` the decision that is being carried
    out.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden; }
    Static { width: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }
    #head, #foot, .part { height: auto; }
    VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    Input, Input:focus { border: none; padding: 0; height: 1; background-tint: ansi_default 0%; }
    Input > .input--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
    #filter { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,Q", "end(0)", show=False),
        Binding("ctrl+c", f"end({128 + signal.SIGINT})", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        Binding("a", "ask('approve')", show=False),
        Binding("r", "ask('reject')", show=False),
        Binding("c", "ask('cancel')", show=False),
        Binding("s", "ask('send')", show=False),
        Binding("l", "log", show=False),
        Binding("question_mark", "help", show=False),
    ]

    def __init__(self, reader: OverviewReader, probe: SandboxProbe) -> None:
        super().__init__(driver_class=_driver_class(), ansi_color=True)
        self.fault: Exception | None = None
        self.reader = reader
        self._said = ("", False)
        self._said_s = 0.0
        self.in_flight: DecisionQuestion | None = None
        self._probe = probe
        self._overview: Overview | None = None
        self._read_us: int | None = None
        self._shown: dict[str, Text] = {}
        self._ends = self._asking = False
        self._asked_s = time.monotonic()
        self._look_now = anyio.Event()
        self._selected: str | None = None
        self._index = 0
        self._rows: list[ListRow] = []
        self._keys_from_s = 0.0
        self._main: dict[str, Static] = {}
        self._ends_when_done = False

    def compose(self) -> ComposeResult:
        self._main = {name: Static(id=name, markup=False) for name in ("head", "body", "foot")}
        self._list = RunList(self._main["body"])
        hint = "words of the task, role, name, id, state or model"
        self._filter = Input(id="filter", placeholder=hint, compact=True)
        yield from (self._main["head"], self._list, self._filter, self._main["foot"])

    def on_mount(self) -> None:
        self.begin_capture_print(self, stdout=False)  # what others write to stderr meanwhile is said, not lost
        self._list.focus()
        self._draw()
        self._look()
        self.set_interval(LOOK_EVERY_S, self._draw)

    def on_resize(self, _event: events.Resize) -> None:
        if self._main:
            self._draw()

    def on_print(self, event: events.Print) -> None:
        if event.text.strip():
            self.tell(event.text.strip(), failed=event.stderr)

    async def on_event(self, event: events.Event) -> None:
        """Drop keys that were typed before a question was drawn."""
        if isinstance(event, events.Key) and event.time < self._keys_from_s and event.key != "ctrl+c":
            return
        await super().on_event(event)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def action_end(self, code: int) -> None:
        """With q, wait for what is being carried out; with a second q and Ctrl-C, do not."""
        if code or self.in_flight is None or self._ends_when_done:
            self.exit(code)
            return
        self._ends_when_done = True
        self.tell("It ends when this is done; q again ends it now.")

    def action_select(self, by: int) -> None:
        self._select(self._index + by)

    def action_select_page(self, pages: int) -> None:
        self._select(self._index + pages * max(self._list.size.height - 1, 1))

    def action_open(self) -> None:
        if (run := self._run()) is not None:
            self._open(RunScreen(self, run.row.id, run.row.id))

    def _open(self, screen: TextScreen) -> None:
        self.said = ("", False)
        self.push_screen(screen, lambda _closed: self._draw())

    def action_log(self) -> None:
        run = self._run()
        if run is not None and not isinstance(self.screen, LogScreen | QuestionScreen):
            self._open(LogScreen(self, f"Log of {label(run.row)}", run.row.id))

    def action_help(self) -> None:
        if type(self.screen) is not TextScreen:
            self._open(TextScreen(self, "Keys of ava status"))

    def action_filter(self) -> None:
        self._filter.display = True
        self._filter.focus()

    def action_unfilter(self) -> None:
        self._filter.value = ""
        self._end_filter()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is self._filter:
            self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is self._filter:
            self._end_filter()

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape" and self._filter.has_focus:
            self.action_unfilter()

    def _end_filter(self) -> None:
        self._filter.display = False
        self._list.focus()
        self._draw()

    def action_ask(self, kind: Kind) -> None:
        run = self._run()
        if run is None:
            self.tell("No run is selected.", failed=True)
        elif self.in_flight is not None:
            self.tell(f"One moment: {self.in_flight.title} is still being carried out.", failed=True)
        elif not self._asking and not isinstance(self.screen, QuestionScreen):
            self._asking = True
            self._ask(kind, run.row.id)

    @work
    async def _ask(self, kind: Kind, run_id: str) -> None:
        def read() -> DecisionQuestion:
            from ava_server.dashboard.decisions import ask_about

            return run_at_once(ask_about(kind, run_id, self.reader))

        try:
            with anyio.fail_after(ASKS_WITHIN_S):
                decision = await read_apart(read)
            self.drop_keys()
            self._open(QuestionScreen(self, decision))
        except TimeoutError:
            self.tell(f"The log has not answered for {ASKS_WITHIN_S:.0f} s; nothing was done.", failed=True)
        except REFUSALS as error:
            self.tell(str(error), failed=True)
        except Exception as error:
            self.fail(error)
        finally:
            self._asking = False

    def drop_keys(self) -> None:
        self._keys_from_s = math.inf

    def accept_keys(self) -> None:
        self._keys_from_s = time.monotonic()

    @work
    async def carry_out(
        self, decision: DecisionQuestion, answer: str, pin: str, done: Done, screen: FoldedScreen | None = None
    ) -> None:
        """Carry out what a person has decided, and pass on what came of it."""
        from ava_server.dashboard.decisions import carry_out

        self.in_flight = decision
        try:
            with anyio.fail_after(DECIDES_WITHIN_S):
                said = await carry_out(decision, self.reader.settings, answer, pin, screen)
        except TimeoutError:
            done("", TimeoutError(unknown(decision)))
        except Exception as error:
            first, *more = leaves_of(error)
            if not isinstance(first, REFUSALS) or more:
                self.fail(error)
            else:
                done("", first)
        else:
            done(said, None)
        self.in_flight = None
        self._look_now.set()
        if self._ends_when_done:
            self.exit(0)

    # -- what is shown ------------------------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether the terminal has not read yet what it was sent."""
        return getattr(self._driver, "behind", False)

    @property
    def lost(self) -> bool:
        return getattr(self._driver, "lost", False)

    @property
    def clock(self) -> str:
        return format_ts(now_us())[11:]

    @property
    def said(self) -> tuple[str, bool]:
        """What the last key has done, and whether that failed; empty once it was there for long enough."""
        stays_s = FAILED_S if self._said[1] else SAID_S
        return self._said if time.monotonic() - self._said_s < stays_s else ("", False)

    @said.setter
    def said(self, said: tuple[str, bool]) -> None:
        self._said, self._said_s = said, time.monotonic()

    def tell(self, words: str, *, failed: bool = False) -> None:
        self.said = (words, failed)
        if self._screen_stack and isinstance(self.screen, QuestionScreen):
            self.screen.say(words, failed=failed)
        self._draw()

    def page(self, width: int) -> LivePage:
        overview, settings, trouble = self._overview, self.reader.settings, self._trouble()
        assert overview is not None
        return LivePage(
            named_root(settings.paths),
            overview.now,
            tuple(health(overview, settings, self._probe.found(), trouble)),
            width,
            trouble,
            self.reader.everybody,
            selected=self._selected,
            words=self._filter.value,
            said=self.said,
        )

    def _run(self) -> RunView | None:
        overview, screen = self._overview, self.screen
        wanted = screen.run_id if isinstance(screen, TextScreen) else self._selected
        return next((run for run in overview.now.runs if run.row.id == wanted), None) if overview is not None else None

    def _select(self, index: int) -> None:
        """Select the run at an index of the list, or the nearest one."""
        ids = [row.run.row.id for row in self._rows if row.run is not None]
        if ids:
            self._index = min(max(index, 0), len(ids) - 1)
            self._selected = self.reader.selected = ids[self._index]
            self.said = ("", False)
            self._look_now.set()
            self._draw()

    def _keep_selection(self, page: LivePage) -> LivePage:
        """Keep the same run selected, also if its place has changed; if it is gone, select what is in its place."""
        ids = [run.row.id for run in page.listed]
        if self._selected in ids:
            self._index = ids.index(self._selected)
            return page
        self._index = min(self._index, max(len(ids) - 1, 0))
        before, self._selected = self._selected, ids[self._index] if ids else None
        self.reader.selected = self._selected
        if self._selected != before:  # an empty list stays as it is, and is not looked at again and again
            self._look_now.set()
        return replace(page, selected=self._selected)

    @work
    async def _look(self) -> None:
        try:
            while True:
                self._asked_s = time.monotonic()
                self._look_now = anyio.Event()
                self._take(await read_apart(lambda: run_at_once(self.reader.look())))
                self._draw()
                self._probe.begin()
                with anyio.move_on_after(LOOK_EVERY_S):
                    await self._look_now.wait()
        except Exception as error:
            self.fail(error)

    def _take(self, found: Overview) -> None:
        """Keep what a log had before, if it cannot be read or is gone."""
        before = self._overview
        if found.trouble is None and found.now.log is None and before is not None and before.now.log is not None:
            gone = StoreUnavailable(f"there is no log in {self.reader.settings.data_root} any more")
            found = replace(found, trouble=gone)
        if found.trouble is None:
            self._read_us = found.now.at_us
        elif before is not None:
            found = replace(found, now=before.now)
        self._overview = found

    def _draw(self) -> None:
        if self.lost:
            return self.end_soon(_HUNG_UP)
        is_ending = self.behind or not self.is_running or not self._screen_stack
        if is_ending:
            return None
        if isinstance(self.screen, TextScreen):
            return self.screen.draw()
        head: list[Text] = []
        foot: list[Text] = []
        if self._overview is None:
            root = named_root(self.reader.settings.paths)
            if root:
                head.append(joined(f"Data root: {root}"))
            head.append(joined(self._trouble() or "Looking …"))
        else:
            page = self._keep_selection(self.page(self.size.width - 1))  # the scroll bar's
            live = page.live(self.size.height - self._filter.display)
            head, self._rows, foot = live.head, live.rows, live.foot
        for name, lines in (("head", head), ("body", [row.line for row in self._rows]), ("foot", foot)):
            text = Text("\n", no_wrap=True).join(lines)
            if self._shown.get(name) != text:
                self._shown[name] = text
                self._main[name].update(text)
        ids = ["" if row.run is None else row.run.row.id for row in self._rows]
        selected_line = ids.index(self._selected) if self._selected in ids else 0
        self.call_after_refresh(self._list.scroll_to_region, Region(0, selected_line, 1, 1), animate=False)
        return None

    def _trouble(self) -> str:
        """Return why what is on the screen is out of date."""
        waited_s = time.monotonic() - self._asked_s
        why = str(self._overview.trouble or "") if self._overview is not None else ""
        if waited_s > STALLED_S:
            why = f"the log has not answered for {waited_s:.0f} s"
        if why and self._read_us is not None:
            why = f"as of {format_ts(self._read_us)[11:]}: {why}"
        return why

    # -- the end ------------------------------------------------------------------------------------------------------

    def end_soon(self, code: int) -> None:
        """Within `ENDS_WITHIN_S`, whatever hangs."""
        if not self._ends:
            self._ends = True
            deadline = threading.Timer(ENDS_WITHIN_S, os._exit, (code,))
            deadline.daemon = True
            deadline.start()
            self.exit(code)

    def fail(self, error: Exception) -> None:
        """`show` raises the error, for the command line to report."""
        self.fault = self.fault or error
        self.exit()

    def _handle_exception(self, error: Exception) -> None:
        self.fail(error)


def unknown(decision: DecisionQuestion) -> str:
    return f"{decision.title}: it is not known whether this was done. See: ava show {decision.run.id}"


def _driver_class() -> type[Driver] | None:
    """Return None for textual's own choice, where terminals are not POSIX."""
    if sys.platform == "win32":
        return None
    from ava_server.dashboard.driver import TerminalDriver

    return TerminalDriver


async def show(reader: OverviewReader, probe: SandboxProbe) -> int:
    """Return the exit code: 0 for `q`, 128 and its number for a signal."""
    app = StatusApp(reader, probe)
    code: int | None = None
    with received(*ending_signals()) as signals:
        async with anyio.create_task_group() as tasks:

            async def on_signals() -> None:
                async for number in signals:
                    app.end_soon(128 + number)

            tasks.start_soon(on_signals)
            code = await app.run_async(mouse=False)  # so that the terminal can still select text
            tasks.cancel_scope.cancel()
    if app.fault is not None and not app.lost:
        raise app.fault
    if app.in_flight is not None and not app.lost:
        tell(unknown(app.in_flight))
    return code or 0

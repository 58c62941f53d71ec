"""The live screen of `ava status`, drawn by textual and kept up to date until it is quit."""

from __future__ import annotations

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
from textual.widgets import Static

from ava_audit.units import format_ts
from ava_server.cli.dashboard.health import health
from ava_server.cli.dashboard.page import Page, joined
from ava_server.core.shutdown import ending_signals
from ava_server.core.threads import read_apart, received

if TYPE_CHECKING:
    from textual.driver import Driver

    from ava_server.cli.dashboard.overview import Overview, OverviewReader, SandboxProbe

LOOK_EVERY_S = 1.0
ENDS_WITHIN_S = 2.0
"""A signal, or a terminal that is gone, ends the process within this time whatever hangs."""
STALLED_S = 3.0
"""A look that takes longer is reported; the screen keeps what was there before."""
_HUNG_UP = 128 + 1
"""The exit code of a terminal that is gone, whether SIGHUP comes too or not."""


class StatusApp(App[int]):
    """The screen: a head, the runs, which scroll, and a foot. It returns the exit code.

    Args:
        reader: Looks at the data root, in a thread that nothing waits for.
        probe: Finds out what confines commands, after the first look.

    Attributes:
        fault: The error that ended the app.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden; }
    Static { width: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }
    #head, #foot { height: auto; }
    #runs { height: 1fr; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,Q", "end(0)", show=False),
        Binding("ctrl+c", f"end({128 + signal.SIGINT})", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, reader: OverviewReader, probe: SandboxProbe) -> None:
        super().__init__(driver_class=_driver_class(), ansi_color=True)
        self.fault: Exception | None = None
        self._reader = reader
        self._probe = probe
        self._overview: Overview | None = None
        self._read_us: int | None = None
        self._shown: dict[str, Text] = {}
        self._ends = False
        self._asked_s = time.monotonic()

    def compose(self) -> ComposeResult:
        """Lay out the screen."""
        yield Static(id="head", markup=False)
        with VerticalScroll(id="runs"):
            yield Static(id="body", markup=False)
        yield Static(id="foot", markup=False)

    def on_mount(self) -> None:
        """Begin to look, and to draw."""
        self._draw()
        self._look()
        self.set_interval(LOOK_EVERY_S, self._draw)

    def on_resize(self, _event: events.Resize) -> None:
        """Draw for the new size."""
        self._draw()

    def action_end(self, code: int) -> None:
        """End with an exit code."""
        self.exit(code)

    def end_soon(self, code: int) -> None:
        """End the process with an exit code, within `ENDS_WITHIN_S` whatever hangs."""
        if not self._ends:
            self._ends = True
            deadline = threading.Timer(ENDS_WITHIN_S, os._exit, (code,))
            deadline.daemon = True
            deadline.start()
            self.exit(code)

    @property
    def lost(self) -> bool:
        """Whether the terminal is gone."""
        return getattr(self._driver, "lost", False)

    @work
    async def _look(self) -> None:
        try:
            while True:
                self._asked_s = time.monotonic()
                self._take(await read_apart(self._reader.look))
                self._draw()
                self._probe.begin()
                await anyio.sleep(LOOK_EVERY_S)
        except Exception as error:
            self._handle_exception(error)

    def _take(self, found: Overview) -> None:
        """Keep what was found; of a log that could not be read, what it had before."""
        before = self._overview
        if found.trouble is None:
            self._read_us = found.at_us
        elif before is not None:
            found = replace(found, counts=before.counts, runs=before.runs, budgets=before.budgets, log=before.log)
        self._overview = found

    def _draw(self) -> None:
        if self.lost:
            return self.end_soon(_HUNG_UP)
        if getattr(self._driver, "behind", False):
            return None
        settings, trouble = self._reader.settings, self._trouble()
        head = [joined(f"Data root: {settings.data_root}"), joined(trouble or "Looking …")]
        body: list[Text] = []
        foot: list[Text] = []
        if self._overview is not None:
            found = tuple(health(self._overview, settings, self._probe.found(), trouble))
            width = self.size.width - 1  # the scroll bar's
            page = Page(str(settings.data_root), self._overview, found, width, trouble, self._reader.everybody)
            head, body, foot = page.live(self.size.height)
        for name, lines in (("head", head), ("body", body), ("foot", foot)):
            text = Text("\n", no_wrap=True).join(lines)
            if self._shown.get(name) != text:
                self._shown[name] = text
                self.query_one(f"#{name}", Static).update(text)

    def _trouble(self) -> str:
        """Return why what is on the screen is out of date."""
        waited_s = time.monotonic() - self._asked_s
        why = str(self._overview.trouble or "") if self._overview is not None else ""
        if waited_s > STALLED_S:
            why = f"the log has not answered for {waited_s:.0f} s"
        if why and self._read_us is not None:
            why = f"as of {format_ts(self._read_us)[11:]}: {why}"
        return why

    def _handle_exception(self, error: Exception) -> None:
        """End with an error; `show` raises it, for the command line to report."""
        self.fault = self.fault or error
        self.exit()


def _driver_class() -> type[Driver] | None:
    """Return the driver of POSIX terminals; None for textual's own choice elsewhere."""
    if sys.platform == "win32":
        return None
    from ava_server.cli.dashboard.driver import TerminalDriver

    return TerminalDriver


async def show(reader: OverviewReader, probe: SandboxProbe) -> int:
    """Show the screen until it is quit, and return the exit code: 0 for `q`, 128 and its number for a signal."""
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
    return code or 0

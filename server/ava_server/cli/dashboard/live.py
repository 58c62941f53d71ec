"""The screen, kept up to date in place until somebody ends it."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from ava_audit.units import format_ts, now_us
from ava_server.cli.dashboard.health import health
from ava_server.cli.dashboard.page import Page
from ava_server.cli.dashboard.stage import Stage
from ava_server.cli.dashboard.words import joined
from ava_server.core.threads import read_apart, received

if TYPE_CHECKING:
    from rich.text import Text

    from ava_server.cli.dashboard.confined import Confined
    from ava_server.cli.dashboard.looking import Looker
    from ava_server.cli.dashboard.overview import Overview

REDRAW_S = 1.0
STALLED_S = 3.0
"""A look that takes longer is told of; the screen goes on with what was there before."""
ENDS = "qQ"
_RESIZED, _SUSPEND = (getattr(signal, name, None) for name in ("SIGWINCH", "SIGTSTP"))
_ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Dashboard:
    """What is on the screen.

    Args:
        looker: Looks at the data root, in a thread that nobody waits for.
        confined: Finds out what confines commands, from the first picture on.
    """

    def __init__(self, looker: Looker, confined: Confined) -> None:
        self._looker = looker
        self._confined = confined
        self._stage = Stage()
        self._news = anyio.Event()
        self._overview: Overview | None = None
        self._good_us: int | None = None
        self._asked_s = time.monotonic()

    async def show(self) -> int:
        """Show it until it is ended, and return the exit code: 0 for `q`, else 128 and the signal."""
        code = 0
        signals = [one for one in (*_ENDING, _RESIZED, _SUSPEND) if one is not None]
        with received(*signals) as heard:
            try:
                self._stage.enter()
                async with anyio.create_task_group() as tasks:

                    async def on_signals() -> None:
                        nonlocal code
                        async for number in heard:
                            if number == _SUSPEND:
                                self._stage.suspend()
                            elif number != _RESIZED:
                                code = 128 + number
                                tasks.cancel_scope.cancel()
                            self._news.set()

                    async def on_keys() -> None:
                        while not set(ENDS) & set(await self._stage.typed()):
                            pass
                        tasks.cancel_scope.cancel()

                    for task in (on_signals, on_keys, self._look_on, self._draw_on):
                        tasks.start_soon(task)
            finally:
                self._stage.leave()
        return code

    async def _look_on(self) -> None:
        while True:
            self._asked_s = time.monotonic()
            self._take(await read_apart(self._looker.look))
            self._confined.begin()
            await anyio.sleep(REDRAW_S)

    def _take(self, found: Overview) -> None:
        """Take up what was found; of a log that could not be read, what it had before."""
        before = self._overview
        if found.trouble is None:
            self._good_us = found.at_us
        elif before is not None:
            found = replace(found, counts=before.counts, runs=before.runs, budgets=before.budgets, log=before.log)
        self._overview = found
        self._news.set()

    async def _draw_on(self) -> None:
        while True:
            self._stage.draw(self._lines())
            with anyio.move_on_after(REDRAW_S):
                await self._news.wait()
            self._news = anyio.Event()

    def _lines(self) -> list[Text]:
        root = str(self._looker.settings.data_root)
        columns, rows = self._stage.size()
        trouble = self._trouble()
        if self._overview is None:
            return [joined(f"Data root: {root}"), joined(trouble or "Looking …")][:rows]
        page = Page(
            root=root,
            overview=self._overview,
            health=tuple(health(self._overview, self._looker.settings, self._confined.known(), trouble)),
            width=columns,
            at_us=now_us(),
            trouble=trouble,
            everybody=self._looker.everybody,
        )
        return page.within(rows)

    def _trouble(self) -> str:
        """Return why what is on the screen is not what is there now."""
        waited_s = time.monotonic() - self._asked_s
        why = str(self._overview.trouble or "") if self._overview is not None else ""
        if waited_s > STALLED_S:
            why = f"the log has not answered for {waited_s:.0f} s"
        if why and self._good_us is not None:
            why = f"as of {format_ts(self._good_us)[11:]}: {why}"
        return why

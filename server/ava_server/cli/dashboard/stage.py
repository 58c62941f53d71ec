"""The terminal while the dashboard has it: another screen without a cursor, keys that are not shown; then as before."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import anyio
from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live

if TYPE_CHECKING:
    from rich.text import Text

NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"
"""A line that a terminal takes for wider than we do must not push the others down."""
_STOP = getattr(signal, "SIGSTOP", None)


class Stage:
    """Has the terminal from `enter` to `leave`, which may follow each other again and again."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        self._keyboard = Keyboard()

    def enter(self) -> None:
        """Take the terminal."""
        self._keyboard.enter()
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()
        self._write(NO_WRAP)

    def leave(self) -> None:
        """Give it back as it was; twice is harmless, and so is a terminal that is gone."""
        live, self._live = self._live, None
        with contextlib.suppress(OSError):
            if live is not None:
                self._write(WRAP)
                live.stop()
        self._keyboard.leave()

    def suspend(self) -> None:
        """Give it back, stop until somebody has this process go on, and take it again."""
        if _STOP is None:
            return
        self.leave()
        signal.raise_signal(_STOP)
        self.enter()

    def size(self) -> tuple[int, int]:
        """Return columns and rows, as they are now."""
        try:
            columns, rows = os.get_terminal_size(sys.stdout.fileno())
        except (OSError, ValueError):
            columns = rows = 0
        return columns or 80, rows or 24

    def draw(self, lines: list[Text]) -> None:
        """Write the lines in place of those before."""
        if self._live is not None:
            self._console.size = ConsoleDimensions(*self.size())
            self._live.update(Group(*lines), refresh=True)

    async def typed(self) -> str:
        """Wait for what is typed; for ever where nobody can type."""
        return await self._keyboard.typed()

    def _write(self, control: str) -> None:
        self._console.file.write(control)
        self._console.file.flush()


class Keyboard:
    """Keys as they are pressed, not shown; Ctrl-C and Ctrl-Z stay signals."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def enter(self) -> None:
        """Have keys come at once and unseen; where input is no terminal nothing is changed."""
        if sys.platform == "win32" or not sys.stdin.isatty():
            return
        import termios

        self._before = termios.tcgetattr(sys.stdin)
        mode = termios.tcgetattr(sys.stdin)
        mode[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, mode)

    def leave(self) -> None:
        """Have them as before; what was typed and not read is dropped."""
        if sys.platform == "win32" or self._before is None:
            return
        import termios

        before, self._before = self._before, None
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, before)

    async def typed(self) -> str:
        """Wait for keys and return them."""
        if sys.platform == "win32" or not sys.stdin.isatty():
            await anyio.sleep_forever()
        await anyio.wait_readable(sys.stdin.fileno())
        data = os.read(sys.stdin.fileno(), 1_024)
        if not data:  # the terminal is gone, or at its end: there comes nothing more
            await anyio.sleep_forever()
        return data.decode("utf-8", "replace")

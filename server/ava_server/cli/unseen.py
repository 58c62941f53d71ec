"""Asking for the approval PIN: at the terminal itself, never from a pipe, and never shown."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import anyio.to_thread

from ava_server.core.errors import BadInput, Refused
from ava_server.core.shutdown import ending_signals
from ava_server.core.threads import read_apart

if TYPE_CHECKING:
    from ava_server.config.pin import PinFile
    from ava_server.service.access import Session

_TERMINAL = "/dev/tty"
_LONGEST_LINE = 1_024
_NONE = "The approval PIN is asked for at a terminal, and there is none here."


async def ask_unseen(question: str) -> str:
    """Return what a person types at the terminal, without showing it; input from a pipe is no person's.

    Raises:
        Refused: There is no terminal.
        BadInput: Nothing was typed.
    """
    typed = await (_windows(question) if sys.platform == "win32" else _posix(question))
    if not typed.strip():
        raise BadInput("No PIN was given; nothing was done.")
    return typed.strip()


async def _posix(question: str) -> str:
    try:
        import termios
    except ImportError:
        raise Refused("This system cannot hide what is typed, so the approval PIN is not asked for here.") from None
    try:
        terminal = os.open(_TERMINAL, os.O_RDWR | getattr(os, "O_NOCTTY", 0))
    except OSError:
        raise Refused(_NONE) from None
    try:
        try:
            silent = termios.tcgetattr(terminal)
        except termios.error:
            raise Refused(_NONE) from None
        silent[3] &= ~termios.ECHO
        with shown_again(terminal):
            termios.tcsetattr(terminal, termios.TCSAFLUSH, silent)
            os.write(terminal, f"{question} (not shown): ".encode())
            try:
                line = await read_apart(lambda: os.read(terminal, _LONGEST_LINE))
            finally:
                with suppress(OSError):  # the terminal may be gone
                    os.write(terminal, b"\n")
        return line.decode("utf-8", "replace")
    finally:
        os.close(terminal)


@contextmanager
def shown_again(terminal: int) -> Generator[None]:
    """Leave a terminal as it is now when the block ends, and when a signal ends the process in it.

    Where the system knows no terminals of this kind nothing is done.
    """
    try:
        import termios
    except ImportError:
        yield
        return
    try:
        before = termios.tcgetattr(terminal)
    except termios.error:  # it is none
        yield
        return

    def undo() -> None:
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)

    def end(number: int, _frame: object) -> None:
        undo()
        with suppress(OSError):
            os.write(terminal, b"\n")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    deadly = [number for number in ending_signals() if signal.getsignal(number) == signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, end)
    try:
        yield
    finally:
        undo()
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)


async def _windows(question: str) -> str:
    import getpass

    if not sys.stdin.isatty():
        raise Refused(_NONE)
    return await read_apart(lambda: getpass.getpass(f"{question} (not shown): "))


async def give_pin(pin_file: PinFile, session: Session) -> None:
    """Ask for the approval PIN, once for a session, so that what it decides counts under the policy `human`.

    Raises:
        Refused: There is no terminal, no PIN, it is wrong, or it is locked.
        ConfigError: The PIN's file cannot be used.
    """
    if not session.pin_given:
        await check_pin(pin_file)
        session.pin_given = True


async def check_pin(pin_file: PinFile) -> None:
    """Ask for the approval PIN, also where there is no session yet.

    Raises:
        Refused: There is no terminal, no PIN, it is wrong, or it is locked.
        ConfigError: The PIN's file cannot be used.
    """
    await anyio.to_thread.run_sync(pin_file.ready)
    pin = await ask_unseen("Approval PIN")
    await anyio.to_thread.run_sync(pin_file.check, pin)

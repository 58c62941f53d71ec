"""Secret input: a PIN from the terminal itself, a key or secret from a terminal or a pipe; never as an argument."""

from __future__ import annotations

import getpass
import os
import signal
import sys
import warnings
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from typer.core import TyperCommand

from ava_server.approval.decide import approval_needs
from ava_server.cli.log_access import record_setting
from ava_server.cli.terminal import say, someone_there, tell
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import BadInput, Refused
from ava_server.core.shutdown import ending_signals
from ava_server.core.threads import read_apart

if TYPE_CHECKING:
    from ava_server.config.pin import PinFile
    from ava_server.config.settings import Policy

LONGEST_LINE = 16_384
_TERMINAL = "/dev/tty"
_LONGEST_PIN = 1_024
_NO_TERMINAL = "The approval PIN can only be typed at a terminal, and there is none here."


class NameOnlyCommand(TyperCommand):
    """A command that takes a name alone; the parser's own error would repeat a secret typed after it.

    Attributes:
        whose: Whose name it is, e.g. `provider`.
        advice: How a value is given.
    """

    whose = "secret"
    advice = "The value is asked for, or piped in; a value typed into the command would stay in the shell's history."

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises BadInput if there are further arguments, which may be the value."""
        ctx.allow_extra_args = ctx.ignore_unknown_options = True
        rest = super().parse_args(ctx, args)
        if ctx.args:
            raise BadInput(f"Give only the {self.whose}'s name. {self.advice}")
        return rest


def read_secret(prompt: str, what: str, command: str) -> str:
    """Return a value typed at the terminal without echo, or one line from a pipe.

    `command` reads it, for the advice to use a pipe. Raises BadInput: nothing was given, or it would be shown.
    """
    if not sys.stdin.isatty():
        line = sys.stdin.readline(LONGEST_LINE)
        if line.strip():
            return line
        raise BadInput(
            f"No {what} arrived: the {'first line of the ' if line else ''}input is empty, as after a command that"
            " failed or a variable that is not set. Nothing is stored. To type it, run the command without a pipe."
        )

    try:
        with restore_echo(sys.stdin.fileno()), warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            typed = getpass.getpass(f"{prompt} (not shown): ")
    except KeyboardInterrupt:
        tell()  # the shell's prompt starts on a new line
        raise
    except EOFError:
        tell()
        raise BadInput(f"No {what} was typed; nothing is stored.") from None
    except getpass.GetPassWarning:
        raise BadInput(f"This terminal would show the {what}. Pipe it in instead: {command} < FILE") from None
    if not typed.strip():
        raise BadInput(f"No {what} was typed; nothing is stored.")
    return typed


ReadPin = Callable[[], Awaitable[str]]
"""Returns the approval PIN as a person has typed it."""


async def read_pin() -> str:
    """Raises Refused if there is no terminal; BadInput: nothing was typed."""
    return await ask_hidden("Approval PIN")


def needed_pin(root: DataRoot, policy: Policy) -> PinFile | None:
    """Return the approval PIN, if an approval at a terminal takes it."""
    from ava_server.config.pin import PinFile

    return PinFile(root.approval_file) if approval_needs("terminal", policy).pin else None


async def ask_pin(pin_file: PinFile, read: ReadPin = read_pin, *, choosing: bool = False) -> None:
    """Ask for the approval PIN and check it; with `choosing`, where there is none yet, have the person choose it.

    Raises BadInput: the new one is too weak, or not repeated; Refused: there is no terminal or no PIN, or it is wrong
    or locked; ConfigError: its file cannot be used.
    """
    if choosing and read is read_pin and not await anyio.to_thread.run_sync(lambda: pin_file.is_set):
        tell("There is no approval PIN yet. Choose one now: only who knows it starts subagents, in every host.")
        await choose_pin(pin_file)
        return
    await anyio.to_thread.run_sync(pin_file.ready)
    pin = await read()
    await anyio.to_thread.run_sync(pin_file.check, pin)


async def choose_pin(pin_file: PinFile) -> None:
    """Have a person choose the first PIN, asked for twice at the terminal, and log that there is one.

    Raises BadInput: too weak, or not repeated; Refused: no terminal, or a PIN already; ConfigError: it cannot be
    stored.
    """
    new = await ask_twice()
    root = DataRoot(pin_file.path.parent.parent)
    root.create()
    await anyio.to_thread.run_sync(pin_file.set, new)
    await record_setting(root, "approval_pin", None, "set")
    say(f"The PIN is set in {pin_file.place}, as a hash. The policy is now human: you approve with it, in every host,")
    say("in a terminal with `ava approve` or on a page. It cannot be read back: if you forget it, remove that file.")


async def ask_twice() -> str:
    """Return a new PIN. Raises BadInput if it is too weak, or was not repeated; Refused if there is no terminal."""
    from ava_server.config.pin import refuse_weak

    first = await ask_hidden("New approval PIN")
    refuse_weak(first)
    if await ask_hidden("New approval PIN once more") != first:
        raise BadInput("The two are not the same; nothing was stored.")
    return first


async def require_person(root: DataRoot, command: str) -> None:
    """Raises Refused if there is no terminal, so it may be a program; or the PIN, where one is set, is wrong."""
    if not someone_there():
        raise Refused(f"{command}: only a person may do this, at a terminal, and there is none here.")
    await ask_pin_if_set(root)


async def ask_pin_if_set(root: DataRoot) -> None:
    """Raises Refused if the PIN is wrong or locked."""
    from ava_server.config.pin import PinFile

    pin = PinFile(root.approval_file)
    if pin.is_set:
        await ask_pin(pin)


async def ask_hidden(question: str) -> str:
    """A pipe is not a person. Raises Refused if there is no terminal; BadInput: nothing was typed."""
    typed = await (_ask_on_windows(question) if sys.platform == "win32" else _ask_on_posix(question))
    if not typed.strip():
        raise BadInput("No PIN was given; nothing was done.")
    return typed.strip()


async def _ask_on_posix(question: str) -> str:
    try:
        import termios
    except ImportError:
        raise Refused("This system cannot hide what is typed, so the approval PIN cannot be typed here.") from None
    with ExitStack() as opened:
        try:
            terminal = os.open(_TERMINAL, os.O_RDWR | getattr(os, "O_NOCTTY", 0))
            opened.callback(os.close, terminal)
            silent = termios.tcgetattr(terminal)
        except (OSError, termios.error):
            raise Refused(_NO_TERMINAL) from None
        silent[3] &= ~termios.ECHO
        with restore_echo(terminal):
            termios.tcsetattr(terminal, termios.TCSAFLUSH, silent)
            os.write(terminal, f"{question} (not shown): ".encode())
            try:
                line = await read_apart(lambda: os.read(terminal, _LONGEST_PIN))
            finally:
                with suppress(OSError):  # the terminal may be gone
                    os.write(terminal, b"\n")
        return line.decode("utf-8", "replace")


async def _ask_on_windows(question: str) -> str:
    if not sys.stdin.isatty():
        raise Refused(_NO_TERMINAL)
    return await read_apart(lambda: getpass.getpass(f"{question} (not shown): "))


@contextmanager
def restore_echo(terminal: int) -> Generator[None]:
    """Restore a terminal's settings when the block ends, also when a signal ends the process inside it."""
    try:
        import termios
    except ImportError:
        yield
        return
    try:
        before = termios.tcgetattr(terminal)
    except termios.error:  # not a terminal
        yield
        return

    def restore() -> None:
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)

    def end(number: int, _frame: object) -> None:
        restore()
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
        restore()
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)

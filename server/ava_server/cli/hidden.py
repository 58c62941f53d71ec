"""Secret values on the command line: asked for without echo or read from a pipe, never given as an argument."""

from __future__ import annotations

import sys
from typing import Any

from typer.core import TyperCommand

from ava_server.cli.terminal import tell
from ava_server.core.errors import BadInput

LONGEST_LINE = 16_384


class NameAlone(TyperCommand):
    """A command that refuses by itself what stands behind the name: the library's own sentence repeats it.

    Attributes:
        whose: Whose name it is, e.g. `provider`.
        asked_for: What to say of a value that was typed into the command.
    """

    whose = "secret"
    asked_for = (
        "The value is asked for, or piped in; one that was typed into the command stands in the shell's history."
    )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            BadInput: There is more than the name and the options that there are; what is more may be a value.
        """
        ctx.allow_extra_args = ctx.ignore_unknown_options = True
        rest = super().parse_args(ctx, args)
        if ctx.args:
            raise BadInput(f"Give the {self.whose}'s name alone. {self.asked_for}")
        return rest


def read_value(prompt: str, what: str, command: str) -> str:
    """Return a value: asked for on a terminal, and not at all where it would be shown; else one line from the pipe.

    Args:
        prompt: What to ask with, e.g. `Key for openrouter`.
        what: What is missing when nothing was given, e.g. `key`.
        command: The command that reads it, to be given a file instead.

    Raises:
        BadInput: Nothing was given, or the terminal would show it.
    """
    if not sys.stdin.isatty():
        return sys.stdin.readline(LONGEST_LINE)
    import getpass
    import warnings

    from ava_server.cli.unseen import shown_again

    try:
        with shown_again(sys.stdin.fileno()), warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            return getpass.getpass(f"{prompt} (not shown): ")
    except KeyboardInterrupt:
        tell()  # the shell's own prompt begins a line
        raise
    except EOFError:
        tell()
        raise BadInput(f"No {what} was given; nothing is stored.") from None
    except getpass.GetPassWarning:
        raise BadInput(f"This terminal would show the {what}. Pipe it in instead: {command} < FILE") from None

"""The `ava` command's entry."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m` without `-P` puts the working folder here. A project's module must not replace one that Ava needs.
    del sys.path[0]

import os
import signal
from types import FrameType

_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["serve"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the server watches for signals itself. An exception is lost where it comes up in a callback of the
        # import system, and the server would go on; there is nothing yet that an end at once could leave half done.
        signal.signal(signal.SIGINT, _leave)
    try:
        from ava_server.cli import run

        run()
    except KeyboardInterrupt:  # while the program was still being loaded: no traceback, the shell's own code for it
        raise SystemExit(_INTERRUPTED) from None


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End this process at once."""
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()

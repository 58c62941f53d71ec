"""The `ava` command's entry."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m` without `-P` puts the working folder here. A project's module must not replace one that Ava needs.
    del sys.path[0]

import atexit
import gc
import os
import signal
from types import FrameType
from typing import Any

from ava_server import COLLECT_AFTER, SWITCH_S

_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    gc.set_threshold(COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_S)
    atexit.register(gc.freeze)  # nothing is looked for at the end: a tenth of a short command's time
    if sys.argv[1:2] == ["serve"]:
        # Until the server watches for signals itself. An exception is lost where it comes up in a callback of the
        # import system, and the server would go on; there is nothing yet that an end at once could leave half done.
        _leave_at(signal.SIGINT, signal.default_int_handler)
    try:
        if sys.argv[1:] == ["serve"] and sys.platform != "win32" and "_AVA_COMPLETE" not in os.environ:
            for number in (signal.SIGTERM, signal.SIGHUP):  # hosts may send one as soon as they have an answer
                _leave_at(number, signal.SIG_DFL)
            from ava_server.mcp_server.first_answer import answer_first

            answer_first()
        from ava_server.cli import run

        run()
    except KeyboardInterrupt:  # while the program was still being loaded: no traceback, the shell's own code for it
        raise SystemExit(_INTERRUPTED) from None


def _leave_at(number: int, default: Any) -> None:
    """Have a signal end this process at once, unless the process that started it wants something else."""
    if signal.getsignal(number) == default:
        signal.signal(number, _leave)


def _leave(number: int, _frame: FrameType | None) -> None:
    """End this process at once, with the code of a server that has watched for signals."""
    os._exit(_INTERRUPTED if number == signal.SIGINT else 0)


if __name__ == "__main__":
    main()

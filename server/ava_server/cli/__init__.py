"""The command line: `ava COMMAND`.

`app.py` imports the module of the called command and no other, so that a start is fast. A command that shows or steers
runs is a client: it sends requests (`record_client`) and decisions (`service_client`) over a transport to this
process, or to a server (`transport`). Others open the log (`log_access`). Results go to stdout and the conversation
about them to stderr, always through `terminal`: text of a model must not steer a terminal. A user's mistake is one
sentence with an exit code, never a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def run(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit with its code; without `args`, the arguments are those of this process."""
    _open_streams()
    if args is None:
        args = sys.argv[1:]
    if os.name == "posix" and not os.environ.get("HOME", "/").startswith("/"):
        del os.environ["HOME"]  # the system knows the right one; with an empty or relative one files would go astray
    if "_AVA_COMPLETE" in os.environ:
        from ava_server.cli.options import complete

        complete()
    from ava_server.config.host_placeholders import unset_unfilled

    variables = unset_unfilled(os.environ)
    if variables and args[:1] == ["serve"]:
        sys.stderr.write(f"ava: the host left these unfilled, so they count as unset: {', '.join(variables)}\n")
    from ava_server.cli.app import main

    sys.exit(main(args))


def _open_streams() -> None:
    """Else the log's file would get a closed stream's descriptor."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115

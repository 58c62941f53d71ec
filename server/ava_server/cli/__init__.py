"""The command line: one file per group of commands, put together by `app.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def run(args: Sequence[str] | None = None) -> NoReturn:
    """Run the `ava` command and exit with its code; `args` are this process's when None."""
    _open_streams()
    args = sys.argv[1:] if args is None else args
    if "_AVA_COMPLETE" in os.environ:  # a shell asks what may stand where somebody has pressed TAB
        from ava_server.cli.complete import answer

        answer(args)
        sys.exit(0)
    from ava_server.config.host_placeholders import unset_unfilled

    taken = unset_unfilled(os.environ)
    if taken and args[:1] == ["serve"]:
        sys.stderr.write(f"ava: left unfilled by the host, and so counted as unset: {', '.join(taken)}\n")
    from ava_server.cli.app import main

    sys.exit(main(args))


def _open_streams() -> None:
    """Lead standard streams that were closed to nowhere: else the log's file would be opened in place of one."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115

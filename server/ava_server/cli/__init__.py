"""The command line: one file per group of commands, put together by `app.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def run(args: Sequence[str] | None = None) -> NoReturn:
    """Run the `ava` command and exit with its code; `args` are this process's when None."""
    from ava_server.unfilled import unset_unfilled

    args = sys.argv[1:] if args is None else args
    taken = unset_unfilled(os.environ)
    if taken and args[:1] == ["serve"]:
        sys.stderr.write(f"ava: left unfilled by the host, and so counted as unset: {', '.join(taken)}\n")
    from ava_server.cli.app import main

    sys.exit(main(args))

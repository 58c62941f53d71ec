"""The command line: one file per group of commands, put together by `app.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def run(args: Sequence[str] | None = None) -> NoReturn:
    """Run the `ava` command and exit with its code; `args` are this process's when None."""
    from ava_server.unfilled import unset_unfilled

    unset_unfilled(os.environ)
    from ava_server.cli.app import main

    sys.exit(main(sys.argv[1:] if args is None else args))

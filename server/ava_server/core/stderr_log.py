"""What a process of ours says of its own work on stderr: lines that steer no terminal, whoever's words are in them.

A fault is told with its traceback, and that may quote what a model or a page wrote.
"""

from __future__ import annotations

import logging
import sys


class Harmless(logging.Formatter):
    """Formats a line without anything that a terminal takes for a command, or that nobody sees."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, its traceback included."""
        return harmless(super().format(record))


def log_to_stderr(form: str, date_form: str | None = None) -> None:
    """Write warnings and worse to stderr from now on; twice is harmless."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Harmless(form, date_form))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def clean_last_resort() -> None:
    """Clean what is written where nothing was set up, as in commands: only warnings and worse are."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Harmless())


def harmless(text: str) -> str:
    """Return a text that may be written to a terminal."""
    from ava_roles.wrap import clean  # most processes have nothing to say

    return clean(text)[0]

"""Results on the standard output: drawn on a terminal, as their Markdown anywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from ava_roles.wrap import clean
from ava_server.cli.results import Finding, Part, parts_of, result_text
from ava_server.cli.terminal import columns, say, wrapped, write

if TYPE_CHECKING:
    from ava_server.cli.artifacts import SavedFiles
    from ava_server.service.responses import RunAnswer

WIDEST = 100
"""Columns that running text takes at most: longer lines are hard to read."""
_THEIRS = "  "
"""What a subagent wrote is set in; our words begin at the edge, so that its own cannot pass for them."""
_COLOURS = {"found": "green", "near": "yellow", "not_found": "red"}


def show_results(runs: Iterable[RunAnswer], *, brief: bool = False, saved: dict[str, SavedFiles] | None = None) -> None:
    """Write results to stdout, one after the other.

    Args:
        runs: The runs.
        brief: Without the status line, and without an output that the findings repeat.
        saved: Where the files of each were copied to, by its id.
    """
    copied = saved or {}
    if sys.stdout.isatty():
        shown = [drawn_result(run, columns(), brief=brief, saved=copied.get(run.subagent_id)) for run in runs]
        write(f"\n\n{'─' * min(columns(), WIDEST)}\n\n".join(shown))
        return
    texts = [result_text(run, brief=brief, saved=copied.get(run.subagent_id)) for run in runs]
    say("\n\n".join(text.partition("\n")[2].strip("\n") if brief else text for text in texts))


def drawn_result(run: RunAnswer, width: int, *, brief: bool = False, saved: SavedFiles | None = None) -> str:
    """Return a result as it stands on a terminal of so many columns; nothing in it steers that."""
    width = min(width, WIDEST)
    lines = [] if brief else [_styled(_fitted(run.status_line, width), bold=True)]
    for part in parts_of(run, brief=brief, saved=saved):
        lines += ["", *_drawn(part, width)] if lines else _drawn(part, width)
    return "\n".join(lines)


def _drawn(part: Part, width: int) -> list[str]:
    from ava_server.cli.markdown import drawn

    lines = [_styled(part.title, fg="cyan", bold=True)] if part.title else []
    if part.theirs:
        text = drawn(part.theirs, width - len(_THEIRS), colour=_colours())
        lines += [f"{_THEIRS}{line}" if line else "" for line in text.split("\n")]
    for number, one in enumerate(part.findings, 1):
        lines += _finding(number, one, width)
    return lines + [_fitted(line, width) for line in part.lines]


def _finding(number: int, one: Finding, width: int) -> list[str]:
    lines = [_fitted(f"{_THEIRS}{number}. {one.claim}", width)]
    under = " " * len(f"{_THEIRS}{number}. ")
    if one.quote:
        quote = f'"{one.quote}"'.splitlines()
        lines += [_styled(_fitted(f"{under}{line}", width), italic=True) for line in quote]
        lines.append(_styled(_fitted(f"{under}{one.said}", width), fg=_COLOURS.get(one.verdict, "yellow")))
    if one.source:
        lines.append(_fitted(f"{under}source: {one.source}", width))
    return lines


def _fitted(text: str, width: int) -> str:
    return wrapped(clean(text)[0], width)


def _styled(text: str, *, fg: str | None = None, bold: bool | None = None, italic: bool | None = None) -> str:
    return typer.style(text, fg=fg, bold=bold, italic=italic) if _colours() else text


def _colours() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

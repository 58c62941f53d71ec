"""What Claude Code 2.1.330 and Codex 0.169 show of Ava's question in a window of 80 columns and 24 rows.

Both were seen with such a question (2026-12-01): Claude Code cuts each of its first three lines and says how many
others there are; Codex wraps it at its words or a slash, and draws the choices below it, as far as there are rows left.
"""

from __future__ import annotations

import textwrap

COLUMNS, ROWS = 80, 24
CLAUDE_LINES, CLAUDE_COLUMNS = 3, 74
CODEX_COLUMNS = 76
CODEX_OWN = 4
"""Rows of Codex's own around the question and its choices: an empty one, its title, its keys, and one below."""


def claude_code(message: str) -> list[str]:
    """Return the lines of a question that Claude Code shows."""
    lines = [line.rstrip() for line in message.split("\n")]
    shown = [line if len(line) <= CLAUDE_COLUMNS else f"{line[:CLAUDE_COLUMNS]}…" for line in lines[:CLAUDE_LINES]]
    return [*shown, *([f"… (+{len(lines) - CLAUDE_LINES} more lines)"] if len(lines) > CLAUDE_LINES else [])]


def codex(message: str) -> list[str]:
    """Return the rows of Codex's window for a question with a choice: the question, and the choices that fit."""
    rows: list[str] = []
    for line in message.split("\n"):
        rows += textwrap.wrap(line, CODEX_COLUMNS, break_on_hyphens=False) or [""]
    choices = ["› 1. Yes", "  2. No"]
    return [*rows, *choices][: ROWS - CODEX_OWN]

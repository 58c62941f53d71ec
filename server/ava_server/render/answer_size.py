"""How much of a run's result one answer of a tool has room for, and what of it is left out."""

from __future__ import annotations

import json
from typing import Any

from ava_server.render.responses import RunAnswer, Untrusted
from ava_server.runs.record.changes import NAMED, TESTS

RESULTS_CHARS = 7_500
"""Characters, as JSON, of all results in one answer; with everything around them it stays under 10,000."""
AROUND_CHARS = 900
"""Characters of one run in an answer beside its result."""
LEAST_ROOM = 300


def room_for(results: int) -> int:
    """Return the characters, as JSON, that each of `results` results may take in one answer."""
    if results <= 1:
        return RESULTS_CHARS
    return max(LEAST_ROOM, RESULTS_CHARS // results - AROUND_CHARS)


def add_result(answer: RunAnswer, result: dict[str, Any], offset: int, room: int | None) -> None:
    """Put a result into an answer, as much of it as there is room for; `cursor` continues the output.

    `offset` is where the output begins, `room` what the result may take: characters, as JSON; None includes all of it.
    """
    fields = "status tokens_used iterations confidence duration_seconds error uncosted overrun advice cancel_reason"
    for field in fields.split():
        value = result.get(field)
        setattr(answer, field, None if value is False else value)  # 0 is a figure, and equal to False
    untrusted = Untrusted.model_validate(result["untrusted_result"])
    output = _output_text(untrusted)
    if offset:
        untrusted = Untrusted(warning=untrusted.warning, output=output[offset:])
    else:
        answer.tool_receipts = result.get("tool_receipts")
        answer.cost_by = result.get("cost_by") or None
        answer.quotes_checked = result.get("quotes_checked") or None
        answer.changes = result.get("changes")
        answer.branches = result.get("branches") or None
    answer.untrusted_result = untrusted
    if room is None:
        return
    _shorten(answer, untrusted, room)
    room_left = room
    for part in (untrusted.summary, untrusted.caveats, untrusted.findings):
        room_left -= json_chars(part)
    for optional in (untrusted.error_text, untrusted.changed, answer.changes, answer.branches):
        if optional:
            room_left -= json_chars(optional)
    end = offset + fitting(output[offset : offset + room], max(room_left, LEAST_ROOM // 2))
    if end < len(output):
        untrusted.output = output[offset:end]
        answer.cursor = str(end)


def _output_text(untrusted: Untrusted) -> str:
    if isinstance(untrusted.output, str):
        return untrusted.output
    return json.dumps(untrusted.output, ensure_ascii=False)


def _shorten(answer: RunAnswer, untrusted: Untrusted, room: int) -> None:
    """Shorten everything but the output to its share of the room, and say what was left out."""
    whole = f"resource ava://runs/{answer.subagent_id}"
    findings, caveats = untrusted.findings, untrusted.caveats
    untrusted.summary = _cut(untrusted.summary, max(room // 4, 60))
    untrusted.findings = _first(findings, room // 4)
    untrusted.caveats = _first([_cut(caveat, max(room // 8, 60)) for caveat in caveats], room // 6)
    if untrusted.error_text:
        untrusted.error_text = _cut(untrusted.error_text, max(room // 6, 120))
    if untrusted.changed:
        untrusted.changed, more = _first_changes(untrusted.changed, room // 3)
        if more:
            untrusted.caveats = [*untrusted.caveats, f"{more} more changed files: ava show {answer.subagent_id} --diff"]
    if answer.changes and answer.changes.get("notes"):
        answer.changes = {**answer.changes, "notes": _first(answer.changes["notes"], room // 6)}
    if answer.branches:
        branches = answer.branches
        answer.branches = _first(branches, room // 3)
        if len(answer.branches) < len(branches):
            untrusted.caveats = [*untrusted.caveats, f"{len(branches) - len(answer.branches)} more branches: {whole}"]
    if answer.quotes_checked:
        kept = len(untrusted.findings)
        answer.quotes_checked = [quote for quote in answer.quotes_checked if quote.get("finding", 0) <= kept]
    lost_caveats = len(caveats) - len(untrusted.caveats)
    lost_findings = len(findings) - len(untrusted.findings)
    if lost_caveats:
        untrusted.caveats = [*untrusted.caveats, f"{lost_caveats} more caveats: {whole}"]
    if lost_findings:
        untrusted.caveats = [*untrusted.caveats, f"{lost_findings} more findings: {whole}"]


def _first_changes(changed: dict[str, Any], room: int) -> tuple[dict[str, Any], int]:
    """Return as many of the changes as fit, tests and files of the command first, and how many files were left out."""
    failing: dict[str, Any] = {}
    if changed.get("failing"):  # of a command's output, the end tells most
        failing["failing"] = _cut(changed["failing"][::-1], room // 2)[::-1]
    listed: dict[str, Any] = {}
    for name in changed:
        if name.startswith((f"{TESTS}_", f"{NAMED}_")):
            listed[name] = _first(changed[name], room // 6)
    files = changed.get("files", [])
    kept = _first(files, room - json_chars(failing) - json_chars(listed))
    return {"files": kept, **listed, **failing}, len(files) - len(kept)


def _first(items: list[Any], room: int) -> list[Any]:
    kept: list[Any] = []
    used = 0
    for item in items:
        used += json_chars(item) + 2
        if used > room:
            break
        kept.append(item)
    return kept


def _cut(text: str, room: int) -> str:
    end = fitting(text, room)
    if end == len(text):
        return text
    return text[: max(end - 1, 0)] + "…"


def json_chars(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False))


def fitting(text: str, room: int) -> int:
    """Return how many of a text's first characters fit, as JSON, into `room` characters; at least 1."""
    low, high = min(1, len(text)), len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if json_chars(text[:middle]) - 2 <= room:
            low = middle
        else:
            high = middle - 1
    return low

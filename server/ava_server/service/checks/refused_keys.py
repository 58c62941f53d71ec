"""Providers that refused their key lately, out of the log: for `ava doctor`, the page `/health` and `ava status`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ava_audit.entries import Entry
from ava_audit.events import ErrorOccurred
from ava_audit.units import HOUR_US, US_PER_S, format_duration
from ava_audit.view import View
from ava_server.core.errors import with_advice
from ava_server.service.checks import CheckFinding
from ava_server.service.current import RefusedKey

MOST_ERRORS = 50
"""How many of the newest errors are read."""


def refused_keys(view: View, at_us: int) -> list[RefusedKey]:
    """Return each provider that refused its key within the last hour, the newest first."""
    refused: dict[str, RefusedKey] = {}
    for entry in _newest_errors(view, at_us - HOUR_US):
        fact = entry.fact
        run = view.run(entry.run_id) if entry.run_id is not None else None
        if not isinstance(fact, ErrorOccurred) or fact.kind != "auth" or run is None:
            continue
        provider = run.model.partition(":")[0]
        if provider in refused:
            continue
        text = f"{format_duration((at_us - entry.ts_us) / US_PER_S)} ago, in {run.id}: {fact.error}"
        answered = _answered_after(view, entry.seq, provider)
        refused[provider] = RefusedKey(provider, text, fact.what_to_do, answered)
    return list(refused.values())


def refused_findings(refused: Iterable[RefusedKey]) -> list[CheckFinding]:
    """Return a finding for each provider that refused its key: a fault, or a warning if it has answered since."""
    found: list[CheckFinding] = []
    for one in refused:
        name, short = f"provider {one.provider}", f"{one.provider} refused its key"
        if one.answered:
            text = with_advice(one.text, "It has answered other calls since.")
            advice = f"If it refuses a key again: {one.what_to_do}"
            found.append(CheckFinding(name, "warning", text, advice, short))
        else:
            found.append(CheckFinding(name, "fault", one.text, one.what_to_do, short))
    return found


def _newest_errors(view: View, since_us: int) -> Iterator[Entry]:
    newest = "SELECT seq FROM events WHERE type = 'ErrorOccurred' AND ts_us >= ? ORDER BY ts_us DESC, seq DESC LIMIT ?"
    for (seq,) in list(view.select(newest, since_us, MOST_ERRORS)):
        entry = view.entry(seq)
        if entry is not None:
            yield entry


def _answered_after(view: View, seq: int, provider: str) -> bool:
    """Tell whether a model of a provider has answered after an entry."""
    answers = "SELECT 1 FROM events WHERE seq > ? AND type = 'AssistantMessage' AND substr(model, 1, ?) = ? LIMIT 1"
    begins = f"{provider}:"
    return next(view.select(answers, seq, len(begins), begins), None) is not None


def with_refused_keys(findings: Iterable[CheckFinding], refused: Sequence[CheckFinding]) -> list[CheckFinding]:
    """Return findings with providers that refused their key before all others.

    What a check of the settings found of such a provider gives way, and no check says that the keys work.
    """
    names = {one.name for one in refused}
    others: list[CheckFinding] = []
    for one in findings:
        if one.name in names:
            continue
        if refused and one.name == "keys" and one.state == "ok":
            others.append(replace(one, state="note"))
        else:
            others.append(one)
    return [*refused, *others]

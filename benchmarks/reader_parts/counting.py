"""Shares with their intervals, the paired sign test, and the tables of `reader.py --compare`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Z_95 = 1.959964
"""The normal quantile of an interval of 95 %."""


def wilson(part: int, whole: int) -> tuple[float, float]:
    """Return Wilson's interval of 95 % for a share, each end from 0 to 1; from 0 to 1 if nothing was asked."""
    if not whole:
        return 0.0, 1.0
    share = part / whole
    spread = Z_95 * math.sqrt(share * (1 - share) / whole + Z_95**2 / (4 * whole**2))
    middle = share + Z_95**2 / (2 * whole)
    scale = 1 + Z_95**2 / whole
    return max((middle - spread) / scale, 0.0), min((middle + spread) / scale, 1.0)


def sign_test(won: int, lost: int) -> float:
    """Return the two-sided p of the exact sign test; pairs that came out alike do not count."""
    pairs = won + lost
    tail = sum(math.comb(pairs, count) for count in range(min(won, lost) + 1))
    p = 2 * tail / int(2**pairs)
    return min(1.0, p)


@dataclass(frozen=True)
class Outcome:
    """What came of a question: for each way whether its first passage is right, and one among those that it shows.

    `among`: in as many characters as Ava's ranking shows of this question, at least one passage of the longest length.
    `with_room`: in all the characters that a way may show. `chars`: how many it shows of these. `claims`: whether Ava
    as shipped claims an answer. `shown`: the first passages of each way.
    """

    set: str
    language: str
    format: str
    ask: str
    kind: str
    first: dict[str, bool]
    among: dict[str, bool]
    with_room: dict[str, bool]
    claims: bool
    chars: dict[str, int]
    shown: dict[str, list[str]]


ANSWERED = "with an answer"


def groups_of(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Return the outcomes by set and by language, format and set together, and all of them at the end."""
    keys: tuple[Callable[[Outcome], str], ...] = (
        lambda each: f"{each.set}, {each.language}",
        lambda each: f"language {each.language}",
        lambda each: f"format {each.format}",
        lambda _each: "all",
    )
    outcomes = list(outcomes)
    groups: dict[str, list[Outcome]] = {}
    for key in keys:
        for outcome in outcomes:
            groups.setdefault(key(outcome), []).append(outcome)
    return groups


def _share(part: int, whole: int) -> str:
    low, high = wilson(part, whole)
    return f"{part} ({low:.0%} to {high:.0%})".replace("%", " %") if whole else "–"


def table(outcomes: Sequence[Outcome], ways: Sequence[str], own: str, rival: Sequence[str]) -> str:
    """Return a table in Markdown: each group's right answers by way, and the sign test of `own` and the best rival.

    The best rival of a group is that with most right among the characters shown: it is chosen afterwards, so the test
    is hard on `own`.
    """
    heads = [f"{way}: first" for way in ways] + [f"{way}: among" for way in ways]
    lines = [f"| group | asked | {' | '.join(heads)} | {own} beside the best other: won, lost, p |"]
    lines.append("|---|---:|" + "---:|" * (len(heads) + 1))
    for name, group in groups_of(each for each in outcomes if each.kind == ANSWERED).items():
        cells = [_share(sum(each.first[way] for each in group), len(group)) for way in ways]
        cells += [_share(sum(each.among[way] for each in group), len(group)) for way in ways]
        best = max(rival, key=lambda way: sum(each.among[way] for each in group))
        won = sum(each.among[own] and not each.among[best] for each in group)
        lost = sum(each.among[best] and not each.among[own] for each in group)
        cells.append(f"{best}: {won}, {lost}, {sign_test(won, lost):.2g}")
        lines.append(f"| {name} | {len(group)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_room(outcomes: Sequence[Outcome], ways: Sequence[str], own: str, rivals: Sequence[str]) -> str:
    """Return a table in Markdown of all questions: what each way finds in all characters that it may show.

    A way that shows fewer has nothing else that it takes for fitting.
    """
    answered = [each for each in outcomes if each.kind == ANSWERED]
    lines = ["| with room | characters shown, on average | right among them | beside it, " + own + ": won, lost, p |"]
    lines.append("|---|---:|---:|---:|")
    for way in ways:
        chars = sum(each.chars[way] for each in answered) / max(len(answered), 1)
        beside = "–"
        if way in rivals:
            won = sum(each.with_room[own] and not each.with_room[way] for each in answered)
            lost = sum(each.with_room[way] and not each.with_room[own] for each in answered)
            beside = f"{won}, {lost}, {sign_test(won, lost):.2g}"
        right = _share(sum(each.with_room[way] for each in answered), len(answered))
        lines.append(f"| {way} | {chars:,.0f} | {right} | {beside} |")
    return "\n".join(lines)


def no_claim_table(outcomes: Sequence[Outcome]) -> str:
    """Return a table in Markdown of the questions without an answer, by set and kind: how often Ava claims none."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.kind != ANSWERED:
            groups.setdefault(f"{outcome.set}, {outcome.language}, {outcome.kind}", []).append(outcome)
            groups.setdefault(f"all, {outcome.kind}", []).append(outcome)
    lines = ["| without an answer | asked | no claim |", "|---|---:|---:|"]
    for name in sorted(groups, key=lambda each: (each.startswith("all, "), each)):
        group = groups[name]
        lines.append(f"| {name} | {len(group)} | {_share(sum(not each.claims for each in group), len(group))} |")
    return "\n".join(lines)

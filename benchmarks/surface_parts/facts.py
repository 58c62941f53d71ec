"""Whether a fact stands in a text: its label and its value are looked for together.

A cell is `right` where the label has the value that is expected; `wrong` where it has another one, or where a sentence
stands that is untrue; and `left out` where the surface says nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["right", "wrong", "left out"]

STATES: Mapping[str, str] = {
    "to approve": "awaiting_approval",
    "asks you": "awaiting_answer",
    "asks for more": "awaiting_extension",
    "no answer": "no_answer",
    "replaced": "superseded",
    **{
        each: each
        for each in (
            "awaiting_approval", "awaiting_answer", "awaiting_extension", "queued", "running", "interrupted", "held",
            "success", "no_answer", "partial", "error", "cancelled", "rejected", "superseded", "expired", "abandoned",
        )
    },
}  # fmt: skip
"""Each word for a state, with its name in JSON."""
_STATE = "|".join(re.escape(each) for each in STATES)
SCREENS: Mapping[str, str] = {
    "terminal": r"by a person at the terminal|in a terminal|channel: terminal",
    "browser": r"by a person in the browser|in the browser|channel: browser",
    "form": r"asked by the server through the host|in the host|channel: elicitation",
    "http": r"by a person over HTTP|over HTTP|channel: http",
    "call": r"by the host's call|channel: host_call",
    "script": r"by a script|by the host's call or a script's --yes|channel: host_call",
    "itself": r"by itself|superseded|replaced",
}
"""What surfaces call each screen on which a person may have decided."""
_ANY_SCREEN = "|".join(SCREENS.values())
_USD = r"(\$[\d.,]+|free)"
_MINUTE = r"(\d\d:\d\d)(?::\d\d)?|(?:\d+ (?:s|min|h) ago)|just now"
MONEY = (
    r"No model call was made, so (nothing)",
    rf"It has cost {_USD}",
    rf"\ball (?:[\d,-]+ ){{5}}{_USD}",
    rf"Cost:? {_USD}",
    r"\bcost_cents: ([\d.]+)",
    rf"\bcost {_USD}",
    rf"Cap: {_USD} of",
    rf"{_USD} of \$",
    rf"{_USD}/\$",
    rf"· {_USD}(?: |$)",
    r"\b(free) \d+/\d+ s",
    rf"(?<!max )(?<!most ){_USD} (?:active|\d+ (?:s|ms|min|h)\b)",
)
"""What stands around a sum that was spent; the first of these that is there counts."""
COST_CAP = (
    r"Caps: at most (\$[\d.]+)",
    r"(?<!asked\.)max_cost_cents: ([\d.]+)",
    r"config\.max_cost_micros: (\d+)",
    r"Cap: \S+ of (\$[\d.]+)",
    r"costs at most (\$[\d.]+)",
    r"(?:\$[\d.]+|free) of (\$[\d.]+)",
    r"\$[\d.]+/(\$[\d.]+)",
    r"\bmax (\$[\d.]+)",
    r"[Aa]t most (\$[\d.]+)",
)
TIME_CAP = (
    r"Caps: (?:free|at most \$[\d.]+), (\d+ (?:min|h|s))",
    r"\btimeout: ([\d.]+)",
    r"config\.timeout_s: ([\d.]+)",
    r"(?:of|max) (\d+ (?:min|h|s))\b",
    r"/(\d+) s\b",
    r"at most (?:\$[\d.]+(?: and|,) )?(\d+ min)",
)
TURN_CAP = (
    r"(?<!most )(?<!its )\b(\d+) turns, ",
    r"max_iterations: ([\d.]+)",
    r"\b[Tt]urns? \d+(?: of |/)(\d+)",
    r"At most (\d+) turns",
)
ASKED_PRICE = (r"(?i)at most (\$[\d.]+)",)
"""Caps and prices: the first of these that is there counts."""
CALLS = (
    r"\bmodel_calls: (\d+)",
    r"\bturn (\d+)(?: of|/|:)",
    r"Turns:? (\d+)",
    r"\biterations?: (\d+)",
    r"(?<!tokens, )(?<!most )(?<!its )\b(\d+) turns?\b",
    r"(\d+) model calls?",
)


@dataclass(frozen=True)
class Looked:
    """What was found of a fact, and what stands there."""

    outcome: Outcome
    expected: str
    stands: str = ""


def around(text: str, begin: int, end: int) -> str:
    """Return a place in a text with what stands beside it."""
    return f"…{text[max(begin - 25, 0) : end + 60]}…"


def first_value(text: str, patterns: Sequence[str]) -> re.Match[str] | None:
    """Return the first match of the first pattern that is there."""
    for pattern in patterns:
        found = re.search(pattern, text)
        if found is not None:
            return found
    return None


def untrue(text: str, sentences: Sequence[str]) -> str:
    """Return the first sentence that must not stand in a text but does, with what stands beside it; else nothing."""
    for sentence in sentences:
        found = re.search(sentence, text)
        if found is not None:
            return around(text, found.start(), found.end())
    return ""


def look_for(text: str, expected: str) -> Looked:
    """Look for words that no other fact has: they are their own label. `expected` is a regular expression."""
    found = re.search(expected, text, re.IGNORECASE)
    if found is None:
        return Looked("left out", expected)
    return Looked("right", expected, around(text, found.start(), found.end()))


# -- one fact each ----------------------------------------------------------------------------------------------------


def look_for_screen(text: str, expected: str) -> Looked:
    """Look for the screen of the decision, behind `approved`, `rejected` or `replaced`."""
    label = "rejected|approved" if expected != "itself" else "decided|rejected|approved|replaced|superseded"
    lie = re.search(r"Not decided[^.]{0,40}", text)
    if lie is not None:
        return Looked("wrong", expected, around(text, lie.start(), lie.end()))
    found = re.search(rf"\b(?:{label})\b.{{0,200}}?({_ANY_SCREEN})", text, re.IGNORECASE)
    if found is None:
        return Looked("left out", expected)
    stands = around(text, found.start(), found.end())
    right = re.search(SCREENS[expected], found[0], re.IGNORECASE) is not None
    return Looked("right" if right else "wrong", expected, stands)


def look_for_minute(text: str, expected: str) -> Looked:
    """Look for when it was decided, beside `approved` or `rejected`. `expected`: the minutes that are right."""
    beside = (
        rf"\b(?:Approved|Rejected)\b.{{0,90}}?{_MINUTE}",
        r"timestamp: [\d-]+T(\d\d:\d\d):(?:(?!timestamp).)*?eventType: SpawnDecided",
        rf"{_MINUTE}\S* [SG]-\w+ .{{0,60}}?\b(?:approved|rejected)",
        r"approved [\d-]+ (\d\d:\d\d)",
    )
    found = first_value(text, beside)
    if found is None:
        return Looked("left out", expected)
    stands = around(text, found.start(), found.end())
    minute = found[1] if found.groups() else None
    if minute is None or minute in expected.split("|"):
        return Looked("right", expected, stands)
    return Looked("wrong", expected, stands)


def look_for_state(text: str, expected: str) -> Looked:
    """Look for the state of the run itself, which stands before those of its steps."""
    places = (
        rf"^({_STATE})\b",
        rf"\bstate: ({_STATE})\b",
        rf"[▶…?‖✓∅◐✗–] ({_STATE})\b",
        rf"(?:[SG]-[0-9a-f]{{6,7}}(?: \([^)]*\)| \S+ · \S+)?\)?(?: \(role [^)]*\))?):? ({_STATE})\b",
        rf"ended: ({_STATE})",
        rf"cost \S+; ({_STATE})\b",
        rf": ({_STATE}), (?:at most|free)",
        rf"· \S+ ({_STATE}) ",
        rf"Ended as ({_STATE})",
        rf"Search ({_STATE})\b",
    )
    found = first_value(text, places)
    if found is None:
        return Looked("left out", expected)
    right = STATES[found[1]] in expected.split("|")
    return Looked("right" if right else "wrong", expected, around(text, found.start(), found.end()))


def look_for_money(text: str, expected: str) -> Looked:
    """Look for what was spent; `expected` is in micro-USD, or `free`."""
    return _look_for_money(text, expected, MONEY)


def look_for_cost_cap(text: str, expected: str) -> Looked:
    """Look for the cap on cost; `expected` is in micro-USD."""
    return _look_for_money(text, expected, COST_CAP)


def look_for_asked_price(text: str, expected: str) -> Looked:
    """Look for the price in a question: the first sum that it names."""
    return _look_for_money(text, expected, ASKED_PRICE)


def look_for_share(text: str, expected: str) -> Looked:
    """Look for what one step has spent; `expected` is its name and micro-USD."""
    name, _, micros = expected.partition(" ")
    places = (
        rf"\b{name} \w+ (?:· )?{_USD}",
        rf'[Ss]tep "{name}":(?:(?!at most)[^$]){{0,60}}?{_USD}',
    )
    looked = _look_for_money(text, micros, places)
    return Looked(looked.outcome, f"step {name}: {looked.expected}", looked.stands)


def _look_for_money(text: str, expected: str, patterns: Sequence[str]) -> Looked:
    words = expected if expected == "free" else f"${int(expected) / 1_000_000:.6f}"
    found = first_value(text, patterns)
    if found is None:
        return Looked("left out", words)
    label = found[0].partition(":")[0]
    in_dollars = 1e-6 if "micros" in label else 0.01 if "cents" in label else 1.0
    right = _is_sum(found[1], expected, in_dollars)
    return Looked("right" if right else "wrong", words, around(text, found.start(), found.end()))


def _is_sum(shown: str, expected: str, in_dollars: float) -> bool:
    """Tell whether a sum as it is shown is the one that is expected, rounded to the digits that are shown."""
    if shown in ("free", "nothing"):
        return expected in ("free", "0")
    number = shown.lstrip("$").rstrip(".,").replace(",", "")
    if expected == "free":
        return float(number) == 0
    step = 10.0 ** -len(number.partition(".")[2])
    return abs(float(number) - int(expected) / 1_000_000 / in_dollars) <= step * 0.51


def look_for_time_cap(text: str, expected: str) -> Looked:
    """Look for the cap on time; `expected` is in seconds."""
    found = first_value(text, TIME_CAP)
    if found is None:
        return Looked("left out", f"{expected} s")
    number, _, unit = found[1].partition(" ")
    seconds = float(number) * {"min": 60, "h": 3_600}.get(unit, 1)
    right = seconds == float(expected)
    return Looked("right" if right else "wrong", f"{expected} s", around(text, found.start(), found.end()))


def _look_for_number(text: str, expected: str, patterns: Sequence[str], what: str) -> Looked:
    found = first_value(text, patterns)
    if found is None:
        return Looked("left out", f"{expected} {what}")
    right = float(found[1]) == float(expected)
    return Looked("right" if right else "wrong", f"{expected} {what}", around(text, found.start(), found.end()))


def look_for_turn_cap(text: str, expected: str) -> Looked:
    """Look for the cap on turns."""
    return _look_for_number(text, expected, TURN_CAP, "turns at most")


def look_for_calls(text: str, expected: str) -> Looked:
    """Look for how many model calls were made."""
    return _look_for_number(text, expected, CALLS, "model calls")


def look_for_tool(text: str, expected: str) -> Looked:
    """Look for a tool among those that were called; `none` must stand nowhere."""
    lie = re.search(r"Tools (?:called|used):? none|tool_receipts: (?:\{\}|\[\])", text)
    if lie is not None:
        return Looked("wrong", expected, around(text, lie.start(), lie.end()))
    labels = (
        r"Tools (?:called|used):? [^:]{0,60}?",
        r"tool_receipts\.",
        "ToolCall ",
        r"\btool: ",
        "Last steps .{0,60}?",
        r"\d\d:\d\d:\d\d (?:PM |AM )?",
        "tools when tool calls .{0,200}?",
    )
    label = "|".join(labels)
    return look_for(text, rf"(?:{label}){expected}\b|\b{expected} path=")


def look_for_branch(text: str, expected: str) -> Looked:
    """Look for the name of a branch behind its label."""
    return look_for(text, rf"(?:\bbranch\b|Branch|branch:)\W{{0,3}}{re.escape(expected)}")


def look_for_merge(text: str, expected: str) -> Looked:
    """Look for the command that merges a branch. `expected` is the repository and the branch."""
    repository, _, branch = expected.partition(" ")
    return look_for(text, rf"git -C \S*{re.escape(repository)} merge {re.escape(branch)}")


def look_for_once(text: str, expected: str) -> Looked:
    """Look for a sentence that is to be told at most once."""
    times = len(re.findall(expected, text))
    if times == 0:
        return Looked("left out", f"{expected} once")
    first = re.search(expected, text)
    assert first is not None
    stands = around(text, first.start(), first.end())
    return Looked("right" if times == 1 else "wrong", f"{expected} once", f"{times} times: {stands}")


def look_for_step(text: str, expected: str) -> Looked:
    """Look for a step with its state; `expected` is its name and its state."""
    name, _, state = expected.partition(" ")
    return look_for(
        text, rf'"{name}": {state}|\b{state} {name}\b|\b{name} {state}\b|step: {name} .{{0,20}}?state: {state}'
    )


def look_for_place(text: str, expected: str) -> Looked:
    """Look for the place of a run in its plan; `expected` is the plan and the step."""
    plan, _, step = expected.partition(" ")
    return look_for(text, rf'step "?{step}"? of .{{0,20}}{plan}|{plan}.{{0,60}}\b{step}\b|"{step}".{{0,200}}{plan}')


def look_for_lines(text: str, expected: str) -> Looked:
    """Look whether a question takes at most so many lines; a surface ends with `(N lines)`."""
    found = re.search(r"\((\d+) lines\)$", text)
    if found is None:
        return Looked("left out", f"at most {expected} lines")
    right = int(found[1]) <= int(expected)
    return Looked("right" if right else "wrong", f"at most {expected} lines", f"{found[1]} lines")


def look_for_run(text: str, expected: str) -> Looked:
    """Look which run a screen shows: the first that it names."""
    found = re.search(r"\b[SG]-[0-9a-f]{6,7}\b", text)
    if found is None:
        return Looked("left out", expected)
    right = found[0] == expected
    return Looked("right" if right else "wrong", expected, around(text, found.start(), found.end()))


def look_for_price(text: str, expected: str) -> Looked:
    """Look for the price of the model; `expected` are dollars for a million tokens of input and of output."""
    found = re.search(r"input \$([\d.]+), output \$([\d.]+)", text)
    if found is None:
        return Looked("left out", expected)
    right = f"{found[1]} {found[2]}" == expected
    return Looked("right" if right else "wrong", expected, around(text, found.start(), found.end()))


def look_for_colour(text: str, expected: str) -> Looked:
    """Look for the colour of the state, which the surface names."""
    found = re.search(r"colour: (\w+)", text)
    if found is None:
        return Looked("left out", expected)
    return Looked("right" if found[1] == expected else "wrong", expected, found[0])


def look_for_case(text: str, expected: str) -> Looked:
    """Look whether a case was made of a run, as `ava eval add` says."""
    lie = re.search(r"is not there; record it again", text)
    if lie is not None:
        return Looked("wrong", expected, around(text, lie.start(), lie.end()))
    return look_for(text, r"\.toml|\bcase\b")


LOOKS: Mapping[str, Callable[[str, str], Looked]] = {
    "approved on": look_for_screen,
    "approved at": look_for_minute,
    "state": look_for_state,
    "cost": look_for_money,
    "cost cap": look_for_cost_cap,
    "time cap": look_for_time_cap,
    "turn cap": look_for_turn_cap,
    "calls": look_for_calls,
    "tool": look_for_tool,
    "branch": look_for_branch,
    "merge": look_for_merge,
    "told once": look_for_once,
    "health": look_for_once,
    "share": look_for_share,
    "step": look_for_step,
    "place": look_for_place,
    "lines": look_for_lines,
    "run shown": look_for_run,
    "price": look_for_price,
    "colour": look_for_colour,
    "case": look_for_case,
    "asked price": look_for_asked_price,
    "asked time": look_for_time_cap,
}
"""How each fact is looked for; every other one is words that stand for themselves."""

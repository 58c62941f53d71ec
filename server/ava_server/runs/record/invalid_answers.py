"""Invalid answers: what is wrong with an answer of which nothing can be used, and the notice to the model about it.

Everything here follows from the log, so that a resumed run keeps counting. After the first and second such answer in a
row the model is told what is wrong; the third ends the run. In outlines and in the last turn an answer is accepted as
it is, or dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ava_audit.events import AssistantMessage, ToolResult
from ava_roles.wrap import wrap_tool_output
from ava_server.core.prompts import prompts
from ava_server.models.base import ToolUse
from ava_server.models.text_tool_calls import EXAMPLE, TextToolCalls

REPAIRS = 2
"""Invalid answers in a row before the one that ends the run."""
CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
"""Stop reasons of an answer that was cut at its token limit."""
REFUSED = frozenset({"content_filter", "refusal"})
"""Stop reasons of an answer that the model or a filter refused."""
PAUSED = frozenset({"pause_turn"})
"""Stop reasons of an answer that the provider continues when it is sent back."""
SHOWN = 1_000
"""Characters of an answer that an ending shows."""

InvalidKind = Literal["calls", "draft", "printed", "cut", "empty", "refusal", "paused", "rejected"]

_TAIL = 4_000
_LEAST_REPEATS = 5
"""Repetitions at the end of a text from which it counts as stuck."""
_LEAST_REPEATED_CHARS = 120
"""Characters that these repetitions have together, at least."""


@dataclass(frozen=True)
class InvalidAnswer:
    """What is wrong with an answer of which nothing can be used.

    Attributes:
        detail: The answer's own text, or the results of its calls.
        notice: What the next request tells the model; empty where the results of its calls do that.
    """

    kind: InvalidKind
    detail: str
    notice: str = ""


def check_answer(
    said: AssistantMessage, tokens: int, printed: TextToolCalls | None, nonce: str = ""
) -> InvalidAnswer | None:
    """Return what is wrong with an answer without tool calls, or None. `nonce` is of the run's wrapped texts."""
    if said.rejected is not None:
        shown = wrap_tool_output(said.rejected, tool="provider", nonce=nonce) if nonce else ""
        return InvalidAnswer("rejected", said.rejected[:SHOWN], _texts()["rejected"].format(shown=shown))
    declined = refusal_text(said)
    if declined is not None:
        return InvalidAnswer("refusal", declined[:SHOWN], _refusal_notice(said))
    if said.stop_reason in CUT:
        return InvalidAnswer("cut", said.text[-SHOWN:], _cut(said.text, tokens))
    if said.stop_reason in PAUSED:
        return InvalidAnswer("paused", said.text[-SHOWN:], _texts()["paused"])
    if not said.text.strip():
        return InvalidAnswer("empty", "", _texts()["empty"])
    if printed is not None:
        return InvalidAnswer(
            "printed", said.text[-SHOWN:], _texts()["printed"].format(why=printed.why, example=EXAMPLE)
        )
    return None


def refusal_text(said: AssistantMessage) -> str | None:
    """Return the text of a refusal, or None where the model did not refuse."""
    words = (said.raw or {}).get("refusal")
    if isinstance(words, str) and words.strip():
        return words
    if said.stop_reason in REFUSED:
        return said.text
    return None


def check_calls(said: AssistantMessage, results: Sequence[ToolResult], *, draft: bool) -> InvalidAnswer | None:
    """Return what is wrong with an answer whose calls all have results, or None where one of them was valid."""
    if not results or not all(result.unusable for result in results):
        return None
    outputs = "\n".join(result.output for result in results)[:SHOWN]
    if said.stop_reason in REFUSED:
        return InvalidAnswer("refusal", said.text[:SHOWN] or outputs, _refusal_notice(said))
    if said.stop_reason in CUT:
        return InvalidAnswer("cut", outputs)
    return InvalidAnswer("draft" if draft else "calls", outputs)


def explain_cut_call(said: AssistantMessage, calls: Sequence[ToolUse], call: ToolUse) -> str | None:
    """Return why a call is invalid where the answer was cut in the middle of it, or None."""
    if said.stop_reason not in CUT or not calls or call != calls[-1]:
        return None
    if call.args:  # without arguments it may be the cut that took them
        return None
    return "your answer was cut at its length, in the middle of this call; ask for less at once, and write less beside"


def error_of(kinds: Sequence[InvalidKind]) -> tuple[str, str, str]:
    """Return how such answers in a row end a run: the stop reason, the kind of error, and what to do."""
    most = max(reversed(kinds), key=lambda kind: kinds.count(kind))
    texts = _texts()
    if len(set(kinds)) == 1:
        many = texts[f"many_{most}"]
        reason = f"{len(kinds)} {many} in a row"
    else:
        parts: list[str] = []
        for kind, count in Counter(kinds).items():
            many = texts[f"many_{kind}"]
            parts.append(texts[f"one_{kind}"] if count == 1 else f"{count} {many}")
        reason = f"{len(kinds)} answers in a row of which nothing could be used: {', '.join(parts)}"
    error_kind = "refusal" if most == "refusal" else "bad_output"
    return reason, error_kind, texts[f"to_do_{most}"]


def cut_caveat(tokens: int) -> str:
    return f"The answer was cut at {tokens} tokens."


def _texts() -> Mapping[str, str]:
    return prompts("ava_server.runs.record", "invalid_answers")


def _refusal_notice(said: AssistantMessage) -> str:
    return _texts()["filtered" if said.stop_reason == "content_filter" else "declined"]


def _cut(text: str, tokens: int) -> str:
    if not text.strip():
        return _texts()["cut_at_once"].format(tokens=tokens)
    repetition = find_repetition(text)
    if repetition is not None:
        return _texts()["cut_repeating"].format(tokens=tokens, again=repetition)
    return _texts()["cut"].format(tokens=tokens)


def find_repetition(text: str) -> str | None:
    """Return the line or phrase that a text repeats to its end, or None."""
    tail = text.rstrip()[-_TAIL:][::-1]
    # The Z function of the reversed tail: same[n] is the length of its common prefix with tail[n:].
    same, left, right = [0] * len(tail), 0, 0
    for n in range(1, len(tail)):
        run = min(right - n, same[n - left]) if n < right else 0
        while n + run < len(tail) and tail[run] == tail[n + run]:
            run += 1
        same[n] = run
        if n + run > right:
            left, right = n, n + run
        if n + run >= max(_LEAST_REPEATS * n, _LEAST_REPEATED_CHARS):
            return tail[:n][::-1].strip()[:80] or None
    return None

"""A provider's figures: tokens by class and cost, as far as they can be true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any, TypeGuard

from ava_audit.events import Usage
from ava_server.models.wire_json import as_object, whole_text

MOST_TOKENS = 10**9
"""A figure above is a fault of the provider, and so is a cost above it in USD."""
FLOOR_BYTES = 16
"""No prompt as a whole has more bytes to a token; text has about four, and tables of blanks reach ten."""


def read_usage(
    usage: Mapping[str, Any] | None,
    *,
    sent_bytes: int,
    said_something: bool,
    unseen: Callable[[], int] = int,
) -> tuple[Usage | None, int | None, tuple[str, ...]]:
    """Read a provider's figures; those that are too small to be true are none.

    Args:
        usage: The figures, in the names of chat completions.
        sent_bytes: The size of the request's body.
        said_something: The answer has words, calls or thinking.
        unseen: Returns how many of the bytes the model may not have seen; asked only where the prompt looks too small.

    Returns:
        Tokens by class (None when there are none that make sense), the cost in micro-USD rounded up (None
        when it is not told), and a note for each figure that cannot be true.
    """
    if usage is None:
        return None, None, ("the provider reported no usage",)
    cost, odd = _cost_micros(usage)
    prompt_details = as_object(usage.get("prompt_tokens_details")) or {}
    output_details = as_object(usage.get("completion_tokens_details")) or {}
    figures = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": prompt_details.get("cached_tokens", usage.get("prompt_cache_hit_tokens")) or 0,
        "cache_write_tokens": prompt_details.get("cache_write_tokens") or 0,
        "reasoning_tokens": output_details.get("reasoning_tokens") or 0,
    }
    counts: dict[str, int] = {}
    for name, value in figures.items():
        count = _count(value)
        if count is None:
            said = "is missing" if value is None else f"is {_shown(value)}, which cannot be"
            return None, cost, (*odd, f"usage not counted: {name} {said}")
        counts[name] = count
    cached, written = counts["cached_tokens"], counts["cache_write_tokens"]
    prompt, output, thinking = (
        counts["prompt_tokens"],
        counts["completion_tokens"],
        counts["reasoning_tokens"],
    )
    if cached + written > prompt:
        odd = (*odd, "cached tokens reported beside the prompt, not in it")
        prompt += cached + written
    # Some providers count thinking beside the answer; the total tells.
    if thinking > output or (thinking and usage.get("total_tokens") == prompt + output + thinking):
        output += thinking
    # Servers that do not count say 0, and some count only what their cache had not: a bound must not rest on that.
    if prompt < max(sent_bytes // FLOOR_BYTES, 1) and prompt < max((sent_bytes - unseen()) // FLOOR_BYTES, 1):
        return None, cost, (*odd, f"usage not counted: a prompt of {prompt} tokens for {sent_bytes:,} bytes sent")
    if output == 0 and said_something:
        return None, cost, (*odd, "usage not counted: 0 tokens for an answer that is not empty")
    return (
        Usage(
            input_tokens=prompt - cached - written,
            output_tokens=output,
            cache_read_tokens=cached,
            cache_write_tokens=written,
            thinking_tokens=thinking,
        ),
        cost,
        odd,
    )


def larger(known: Mapping[str, Any] | None, said: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return what two reports in one answer come to: the later one, with no figure less than it was.

    Some servers report with every piece, each time more. One that takes a figure back may bill it all the same.
    """
    if known is None or said is None:
        return said or known
    both = {**known, **{name: value for name, value in said.items() if value is not None}}
    for name, before in known.items():
        after = both[name]
        if _is_figure(before) and _is_figure(after) and before > after >= 0:
            both[name] = before
    return both


def _cost_micros(usage: Mapping[str, Any]) -> tuple[int | None, tuple[str, ...]]:
    """Read what a call cost; with a key of one's own, the provider behind the gateway bills too."""
    parts = [usage.get("cost")]
    if parts[0] is None:
        return None, ()
    if usage.get("is_byok") is True:
        details = as_object(usage.get("cost_details")) or {}
        upstream = details.get("upstream_inference_cost")
        if upstream is None:  # the gateway's share alone would pass for the whole
            return None, ("reported cost not counted: it is without the upstream provider's",)
        parts.append(upstream)
    total = Decimal(0)
    for part in parts:
        if not _is_figure(part) or not 0 <= part <= MOST_TOKENS:
            return None, (f"reported cost not counted: {_shown(part)}",)
        total += Decimal(repr(part))
    return int((total * 1_000_000).to_integral_value(ROUND_CEILING)), ()


def _is_figure(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """Return a figure that is none, as a note can hold it."""
    return whole_text(str(value)[:40])[0]


def _count(value: Any) -> int | None:
    if not _is_figure(value):
        return None
    if not 0 <= value <= MOST_TOKENS or value != int(value):
        return None
    return int(value)

"""Tokens of a call: the usage that a provider reports, as far as it is plausible, and an upper bound beforehand."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Any, TypeGuard, cast

from ava_audit.events import Usage
from ava_server.models.base import AssistantTurn, Bound, MoreUsage, ReportedUsage, Request, Segment, ToolSchema, Turn
from ava_server.models.json_text import as_object, encode, fields_of, join_surrogates

MOST_TOKENS = 10**9
"""A larger count is a fault of the provider, and so is a larger cost in USD."""
FLOOR_BYTES = 16
"""No whole prompt has more bytes per token; text has about four, and tables of blanks reach ten."""


@dataclass
class CachePlace:
    """Where a provider counts the tokens of its cache: in the prompt, as most do, or beside it.

    Attributes:
        uncertain: No answer has come, and nothing is known of the provider. Azure's Grok leaves its cache out of
            prompt and total alike, so that no sum shows it.
        beside: An earlier answer could only mean that it is beside the prompt.
    """

    uncertain: bool = False
    beside: bool = False

    def dearer(self, usage: Usage) -> MoreUsage | None:
        """Return what the dearer reading of a first answer has more, where both readings are possible."""
        is_first, self.uncertain = self.uncertain, False
        if not is_first or self.beside or not usage.cache_read_tokens:
            return None
        return MoreUsage(usage.cache_read_tokens + usage.cache_write_tokens, 0)


def read_usage(
    usage: Mapping[str, Any] | None,
    *,
    sent_bytes: int,
    has_content: bool,
    seen: Callable[[], int] | None = None,
    most_output: int | None = None,
    cache: CachePlace | None = None,
) -> tuple[Usage | None, int | None, tuple[str, ...]]:
    """Read a provider's usage; a count that is too small to be true makes it unusable.

    `seen` returns how many bytes of text the model was certainly shown, at most the `sent_bytes` of the body, which
    count without it; it is called only where the prompt looks too small. `most_output` is the answer's own limit.
    `cache` is what earlier answers have shown of it, and learns from this one.
    Returns tokens by class (None without a plausible report), the cost in micro-USD rounded up (None when it is not
    reported), and a note for each value that cannot be true.
    """
    if usage is None:
        return None, None, ("the provider reported no usage",)
    cost, notes = _cost_micros(usage)
    reported = _counts_in(usage)
    fault = _fault_of_counts(reported)
    if fault:
        return None, cost, (*notes, fault)
    prompt, output, cached, written, thinking = map(int, reported.values())
    total = _total_in(usage)
    cache = cache or CachePlace()
    beside = _beside_prompt(prompt, output, (cached, written), thinking, total)
    as_before = 0
    if beside:
        cache.beside = True
        notes = (*notes, "cached tokens reported beside the prompt, not in it")
        prompt += beside
    elif cached and cache.beside:
        notes = (*notes, "cached tokens counted beside the prompt, as in an earlier answer")
        as_before = cached + written
    elif cached + written > prompt:
        notes = (*notes, "the same tokens reported as read from the cache and as written to it")
        cached = max(cached - written, 0)
        written = min(written, prompt)
    output = _output_with_thinking(prompt, output, thinking, total)
    only_total = (total or 0) - prompt - output
    if only_total > 0:
        more = _countable(only_total, output, most_output)
        output += more
        thinking += more
        notes = (*notes, _total_note(only_total, more))
    prompt += as_before
    shown = _shown_to_model(prompt, sent_bytes, seen)
    if prompt < _least_prompt(shown):
        fault = f"usage not counted: a prompt of {prompt} tokens for {shown:,} bytes of text"
    elif output == 0 and has_content:
        fault = "usage not counted: 0 tokens for an answer that is not empty"
    if fault:
        return None, cost, (*notes, fault)
    counts = Usage(
        input_tokens=prompt - cached - written,
        output_tokens=output,
        cache_read_tokens=cached,
        cache_write_tokens=written,
        thinking_tokens=thinking,
    )
    return counts, cost, notes


def _total_in(usage: Mapping[str, Any]) -> int | None:
    """Return the total that a provider reports beside the parts; None without a possible one."""
    total: Any = usage.get("total_tokens")
    if not _is_count(total):
        return None
    return int(total)


def _fault_of_counts(counts: Mapping[str, Any]) -> str:
    """Return a note on the first count that is missing or cannot be true; empty if all can."""
    for name, value in counts.items():
        if value is None:
            return f"usage not counted: {name} is missing"
        if not _is_count(value):
            return f"usage not counted: {name} is {_value_words(value)}, which cannot be"
    return ""


def _output_with_thinking(prompt: int, output: int, thinking: int, total: int | None) -> int:
    """Return the tokens of an answer with its thinking, which some providers count beside it; the total tells."""
    if total == prompt + output:
        return max(output, thinking)  # a part is never more than the whole
    is_beside = total == prompt + output + thinking
    if thinking > output or is_beside:
        return output + thinking
    return output


def _countable(only_total: int, output: int, most_output: int | None) -> int:
    """Return how many of the tokens that only the total has can be output, under the answer's limit."""
    if most_output is None:
        return only_total
    return max(min(only_total, most_output - output), 0)


def _shown_to_model(prompt: int, sent_bytes: int, seen: Callable[[], int] | None) -> int:
    """Return how many bytes of text the model was certainly shown; all that was sent where the prompt is not small."""
    if seen is None or prompt >= _least_prompt(sent_bytes):
        return sent_bytes
    return min(seen(), sent_bytes)


def _least_prompt(shown: int) -> int:
    """Return the tokens that so many bytes of text have at least.

    Servers that do not count say 0, and some count only what their cache lacked: no bound may rest on that.
    """
    return max(shown // FLOOR_BYTES, 1)


def _beside_prompt(prompt: int, output: int, classes: tuple[int, int], thinking: int, total: int | None) -> int:
    """Return the tokens of the cache that the provider counts beside its prompt, as Anthropic does; 0 for none.

    The total tells, unless the same difference is thinking. Where it leaves nothing over, both classes may be the same
    tokens of the prompt. Without a total, a prompt smaller than its cached part is without that.
    """
    cache = sum(classes)
    difference = None if total is None else total - prompt - output
    if max(classes) > prompt:
        return cache
    if difference is not None and difference != thinking and difference in (cache, cache + thinking):
        return cache
    if cache > prompt and difference != 0:
        return cache
    return 0


def _total_note(only_total: int, counted: int) -> str:
    note = f"the reported total has {only_total:,} more tokens than its parts"
    if counted == only_total:
        return f"{note}: counted as output"
    return f"{note}: {counted:,} counted as output, which is all that the answer's limit allows"


def _counts_in(usage: Mapping[str, Any]) -> dict[str, Any]:
    prompt_details = fields_of(usage.get("prompt_tokens_details"))
    output_details = fields_of(usage.get("completion_tokens_details"))
    cached = (prompt_details.get("cached_tokens"), *(usage.get(name) for name in _CACHED))
    return {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": next((count for count in cached if count is not None), None) or 0,
        "cache_write_tokens": prompt_details.get("cache_write_tokens") or 0,
        "reasoning_tokens": output_details.get("reasoning_tokens") or 0,
    }


_CACHED = ("prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens")
"""Where DeepSeek, Mistral and Moonshot say how much of the prompt they had in their cache."""


_TEXTS = ("content", "text", "output", "system", "instructions", "description", "parts", "functionResponse", "response")
"""The fields of requests whose texts a model is shown."""
_HIDDEN = ("thinking", "redacted_thinking", "reasoning")
"""Types of parts that a provider need not show to the model again."""
_THOUGHT_END = re.compile(r"</think(?:ing)?>|</seed:think>|\[/THINK\]|◁/think▷")
"""Templates leave out an answer's text up to here."""


_RUN = re.compile(r"(.)\1{15,}", re.DOTALL)
"""Dashes, blanks and the like: tokenizers have tokens of 64 and more of them."""
_RUN_BYTES = 128  # of one token, at most, in such a run


def _shorter_run(run: re.Match[str]) -> str:
    """Return a run of one character as long as text of as many tokens."""
    size = len(run[1].encode("utf-8", "replace"))
    tokens = len(run[0]) * size // _RUN_BYTES + 1
    return run[1] * (tokens * FLOOR_BYTES // size)


def _joined_texts(parts: list[Any]) -> list[Any]:
    """Return the parts of an answer with its texts as one: a thought may end in another one than it began in."""
    texts: list[str] = []
    others: list[Any] = []
    for part in parts:
        text = fields_of(part).get("text")
        if isinstance(text, str) and not _is_hidden(fields_of(part)):
            texts.append(text)
        else:
            others.append(part)
    return ["".join(texts), *others]


def _is_hidden(part: Mapping[str, Any]) -> bool:
    return part.get("type") in _HIDDEN or part.get("thought") is True


def shown_bytes(value: Any, *, answer: bool = False) -> int:
    """Return how many bytes of text a model is certainly shown of a part of a request, without names, ids, thinking."""
    if isinstance(value, str):
        text = value
        if answer:
            text = _THOUGHT_END.split(value)[-1]
        text = _RUN.sub(_shorter_run, text)
        return len(text.encode("utf-8", "replace"))
    if answer and isinstance(value, list):
        value = _joined_texts(cast("list[Any]", value))
    if isinstance(value, list | tuple):
        return sum(shown_bytes(each, answer=answer) for each in cast("Sequence[Any]", value))
    if not isinstance(value, Mapping):
        return 0
    fields = cast("Mapping[str, Any]", value)
    if _is_hidden(fields):
        return 0
    answer = answer or fields.get("role") in ("assistant", "model")
    return sum(shown_bytes(fields[name], answer=answer) for name in _TEXTS if name in fields)


def merge_usage(known: dict[str, Any] | None, later: Mapping[str, Any]) -> dict[str, Any]:
    """Put a later report of one answer into what is known; no count gets smaller, as a server may still bill that."""
    if known is None:
        return dict(later)
    for name, value in later.items():
        before = known.get(name)
        falls = _is_number(before) and _is_number(value) and before > value >= 0
        if value is not None and not falls:
            known[name] = value
    return known


_COUNTS = ("tokens", "TokenCount")


def claims_use(usage: Any) -> bool:
    """Tell whether a usage says that a call used anything, whatever else is in it."""
    fields = fields_of(usage)
    counts = [value for name, value in fields.items() if name.endswith(_COUNTS)]
    counts.append(_reported_cost(fields))
    return any(_is_number(count) and count > 0 for count in counts)


def _cost_micros(usage: Mapping[str, Any]) -> tuple[int | None, tuple[str, ...]]:
    """Read what a call cost; when the user brings a key, the provider behind the gateway bills too."""
    parts = [_reported_cost(usage)]
    if parts[0] is None:
        return None, ()
    if usage.get("is_byok") is True:
        details = fields_of(usage.get("cost_details"))
        upstream = details.get("upstream_inference_cost")
        if upstream is None:  # the gateway's share alone would look like the whole
            return None, ("reported cost not counted: it is without the upstream provider's",)
        parts.append(upstream)
    total = Decimal(0)
    for part in parts:
        if not _is_number(part) or not 0 <= part <= MOST_TOKENS:
            return None, (f"reported cost not counted: {_value_words(part)}",)
        total += Decimal(repr(part))
    return int((total * 1_000_000).to_integral_value(ROUND_CEILING)), ()


def _reported_cost(usage: Mapping[str, Any]) -> Any:
    """Return the cost as it was reported; Perplexity says it as an object of parts with their total."""
    cost = usage.get("cost")
    parts = as_object(cost)
    return cost if parts is None else parts.get("total_cost")


def _is_count(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= MOST_TOKENS and value == int(value)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value_words(value: Any) -> str:
    return join_surrogates(str(value)[:40])[0]


FIXED_TOKENS = 1024
"""What a chat template and a gateway may add to any request."""
MESSAGE_TOKENS = 16
"""What a template adds around one message."""
TOOLS_TOKENS = 1024
"""What a provider's own prompt about tools may take."""
TOOL_TOKENS = 32
"""What a template adds around one tool."""

_ESCAPED = "<>&'\x7f"  # templates that escape change the first four, JSON in ASCII the last
_ESCAPE_GROWTH = 5  # `<` becomes \u003c
_UNKNOWN_GROWTH = 11  # the longest compatible form there is: U+FDFA, from 3 bytes to 33


def text_bound(text: str) -> int:
    """Return the most tokens of a text: one for each UTF-8 byte, also in NFKC, as tokenizers fall back to bytes."""
    if text.isascii():
        return len(text)
    return sum([_longest(character) * count for character, count in Counter(text).items()])


def escaped_bound(text: str) -> int:
    """Return the most tokens of a text that a chat template may escape: tool calls, and the schemas of tools."""
    if text.isascii():
        return len(text) + _ESCAPE_GROWTH * sum(map(text.count, _ESCAPED))
    return sum([_longest_escaped(character) * count for character, count in Counter(text).items()])


OWN_TOKENS_PER_BYTE = 0.5
"""For Ava's own English: the built-in roles' prompts and the built-in tools' schemas have 0.18 to 0.29 tokens a byte
in seven public tokenizers (cl100k, o200k, p50k, Claude 2, Llama 2 and 3, Mistral), measured on 2026-11-21."""


def prefix_bound(system: str, tools: Sequence[ToolSchema] = (), own_bytes: int = 0) -> tuple[int, int]:
    """Return the most tokens before the first turn: of known texts, and of the rest in bytes. `own_bytes` are Ava's."""
    rest = text_bound(system)
    own = min(own_bytes, rest)
    known, rest = FIXED_TOKENS + MESSAGE_TOKENS, rest - own
    if tools:
        known += TOOLS_TOKENS
    for tool in tools:
        size = _tool_bound(json.dumps(tool.as_dict()))
        known += TOOL_TOKENS
        if tool.own:
            own += size
        else:
            rest += size
    return known + math.ceil(own * OWN_TOKENS_PER_BYTE), rest


@lru_cache(maxsize=256)
def _tool_bound(tool: str) -> int:
    """Return the most tokens of a tool, given as JSON. Templates show it indented, which Python writes slowly."""
    return escaped_bound(json.dumps({"type": "function", "function": json.loads(tool)}, ensure_ascii=False, indent=4))


def turn_bound(turn: Turn, wire: Callable[[Turn], Mapping[str, Any]]) -> int:
    """Return an upper bound of one turn's tokens, from its message as the request has it."""
    sent = wire(turn)
    tokens = text_bound(encode(sent).decode()) + MESSAGE_TOKENS
    if isinstance(turn, AssistantTurn):
        tokens += _escapes(sent)
    return tokens


class CountedMessages:
    """The bytes of the messages that an earlier call covers: each is counted once, though every request repeats it."""

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[Turn, int]] = {}

    def bytes(self, turns: Sequence[Turn], wire: Callable[[Turn], Mapping[str, Any]]) -> int:
        """Return the bytes of these turns' messages together."""
        known, self._sizes = self._sizes, {}
        total = 0
        for turn in turns:
            _turn, size = known.get(id(turn)) or (turn, len(encode(wire(turn))))
            self._sizes[id(turn)] = (turn, size)  # keeping the turn keeps its id valid
            total += size
        return total


def bound(
    request: Request,
    wire: Callable[[Turn], Mapping[str, Any]],
    known: ReportedUsage | None,
    counted: CountedMessages | None = None,
) -> Bound:
    """Return an upper bound of a call: what was reported, Ava's own English at half a token a byte, all else at one.

    `wire` makes the message of a turn; `known` is None for the first call; `counted` is of this run's earlier messages.
    """
    turns = request.turns
    segments: Sequence[Segment] = ()
    answers: Mapping[int, int] = {}
    if known is not None:
        segments, answers = known.segments, known.answers
    reported = partly = new_bytes = 0
    trusted: list[int] = []  # the turns for which the report is taken
    for number, segment in enumerate(segments):
        if segment.changed:
            shown, shown_bytes = _count(segment.turns, turns, answers, wire)
            if number == 0:
                known_prefix, prefix_bytes = prefix_bound(request.system, request.tools, request.own_bytes)
                shown = shown + known_prefix
                shown_bytes = shown_bytes + prefix_bytes
            if shown + shown_bytes < segment.tokens:
                new_bytes += shown_bytes
                partly += shown
                continue
        reported += segment.tokens
        trusted.extend(segment.turns)
    covered: set[int] = set()
    for segment in segments:
        covered.update(segment.turns)
    uncovered = [place for place in range(len(turns)) if place not in covered]
    shown, uncovered_bytes = _count(uncovered, turns, answers, wire)
    new_bytes += uncovered_bytes
    if not segments:
        known_prefix, prefix_bytes = prefix_bound(request.system, request.tools, request.own_bytes)
        shown = shown + known_prefix
        new_bytes = new_bytes + prefix_bytes
    if trusted:  # a report can be wrong
        trusted_turns = [turns[place] for place in sorted(trusted)]
        trusted_bytes = (counted or CountedMessages()).bytes(trusted_turns, wire)
        reported = max(reported, trusted_bytes // FLOOR_BYTES)
    return Bound(reported + partly + shown + new_bytes, request.max_output, new_bytes)


def _count(
    places: Iterable[int], turns: Sequence[Turn], answers: Mapping[int, int], wire: Callable[[Turn], Mapping[str, Any]]
) -> tuple[int, int]:
    """Return the tokens of turns as far as they are reported, and the rest in bytes."""
    reported = in_bytes = 0
    for place in places:
        if place in answers:  # counted as it was written; as part of a prompt a template may escape it
            reported += answers[place] + MESSAGE_TOKENS + _escapes(wire(turns[place]))
        else:
            in_bytes += turn_bound(turns[place], wire)
    return reported, in_bytes


def _escapes(value: Any) -> int:
    """Return how many bytes a template can add to the tool calls in a message by escaping them."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        if "arguments" in fields or "input" in fields or "args" in fields:
            content = encode(fields)
            return escaped_bound(content.decode()) - len(content)
        return sum(map(_escapes, fields.values()))
    if isinstance(value, list):
        return sum(map(_escapes, cast("list[Any]", value)))
    return 0


@lru_cache(maxsize=65536)
def _longest(character: str) -> int:
    """Return the UTF-8 bytes of a character, or of its compatible form where that is longer."""
    code = ord(character)
    if 0xD800 <= code < 0xE000:
        return 3  # half a pair, sent as U+FFFD
    size = len(character.encode())
    if unicodedata.category(character) == "Cn":
        # A newer Unicode than Python's may give it any compatible form.
        return size * _UNKNOWN_GROWTH
    return max(size, len(unicodedata.normalize("NFKC", character).encode()))


@lru_cache(maxsize=65536)
def _longest_escaped(character: str) -> int:
    """Return the bytes of a character's longest form where templates may escape it."""
    if character in _ESCAPED:
        return 1 + _ESCAPE_GROWTH
    if character.isascii():
        return 1
    escaped = 12 if ord(character) > 0xFFFF else 6
    return max(_longest(character), escaped)

"""`offline/extractive`: no language model, but a small reader that does honest work with the real tools.

It looks for the words of its task with the tools on offer, ranks what came back, and hands over quotes with
their sources. It is a pure function of the request, so that an interrupted run goes on like any other.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread

from ava_audit.events import Usage
from ava_server.models import chat_wire, extractive, wire_json
from ava_server.models.base import (
    AssistantTurn,
    Bound,
    Completion,
    Delta,
    Known,
    Request,
    ToolTurn,
    ToolUse,
    Turn,
    UserTurn,
)
from ava_server.models.extractive import Passage
from ava_server.models.selection import OFFLINE, SET_A_MODEL
from ava_server.models.wire import tool_use

SUBMIT = "submit_result"
QUOTES_MOST = 5
PER_SOURCE = 3
_NAMED_MOST = 5

_URL = re.compile(r"https?://[^\s<>\"'`|]+")
_FILE = re.compile(r"(?<![\w/:.@-])(?:[\w.-]+/)*[\w-][\w.-]*\.[A-Za-z][A-Za-z0-9]{0,7}(?![\w/])")
_NO_FILE = re.compile(r"\w\.\w|[^/]+\.(?:com|org|net|io|ai|eu|de|app)")  # e.g., i.e., a site's name
_CONTEXT = re.compile(r"^## Task context\n\n(.*)^## Capabilities$", re.DOTALL | re.MULTILINE)
_LAST_TURN = re.compile(r"\bonly submit_result\b", re.IGNORECASE)

NOT_READ = "No language model read this: the passages were chosen because they contain words of the task."
# A run may be given the offline reader by name though a model is configured.
FOR_A_MODEL = (
    f"To have one read it, leave `model` out if one is configured; else {SET_A_MODEL[0].lower()}{SET_A_MODEL[1:]}"
)


class OfflineModel:
    """Reads for nothing: no network, no tokens, no understanding."""

    @property
    def name(self) -> str:
        """`offline/extractive`."""
        return OFFLINE

    def encode(self, request: Request) -> bytes:
        """Return the request's body as a chat endpoint would get it."""
        return wire_json.encode({**chat_wire.body(request), "max_tokens": request.max_output})

    def may_think(self, turns: Sequence[Turn]) -> bool:
        """It never thinks."""
        return False

    def bound(self, request: Request, known: Known | None) -> Bound:
        """Return nothing: no token is ever used."""
        del request, known
        return Bound(0, 0)

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> Mapping[str, Any]:
        """Return an answer of these words and calls as the provider would have sent it."""
        return chat_wire.assistant_message(text, calls)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[OfflineStream]:
        """Answer; ranking happens in a thread."""
        yield OfflineStream(await anyio.to_thread.run_sync(partial(answer, request)))


class OfflineStream:
    """An answer that is there at once."""

    def __init__(self, completion: Completion) -> None:
        """Take the answer."""
        self.completion = completion

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the words."""
        yield Delta(text=self.completion.text)


def answer(request: Request) -> Completion:
    """Return the next answer: tool calls first, and the result after them. Blocks for a moment."""
    task = next((turn.text for turn in request.turns if isinstance(turn, UserTurn)), "")
    asked = any(isinstance(turn, AssistantTurn) for turn in request.turns)
    last = request.turns[-1] if request.turns else None
    ends = isinstance(last, UserTurn) and _LAST_TURN.search(last.text) is not None
    calls = [] if asked or ends else _first_calls(task, request)
    if calls:
        words = ", ".join(extractive.salient(task)[:8]) or "what the task names"
        return _completion(f"Looking for {words}.", calls, request)
    result = _result(task, [turn for turn in request.turns if isinstance(turn, ToolTurn)])
    return _completion(result["summary"], [(SUBMIT, result)], request)


def _first_calls(task: str, request: Request) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tool calls that the task's words suggest, of the tools on offer."""
    offered = {tool.name for tool in request.tools}
    context = _CONTEXT.search(request.system)
    named = f"{task}\n{context[1] if context else ''}"
    urls = list(dict.fromkeys(url.rstrip(".,;:!?)]}*_") for url in _URL.findall(named)))[:_NAMED_MOST]
    paths = [path for path in dict.fromkeys(_FILE.findall(_URL.sub(" ", named))) if not _NO_FILE.fullmatch(path)]
    calls: list[tuple[str, Mapping[str, Any]]] = []
    if urls and "read_webpages" in offered:
        calls.append(("read_webpages", {"urls": urls}))
    if "read_file" in offered:
        calls += [("read_file", {"path": path}) for path in paths[:_NAMED_MOST]]
    if "search_and_read" in offered:
        words = extractive.salient(_URL.sub(" ", task)) or extractive.salient(named)
        calls.append(("search_and_read", {"query": " ".join(words)[:1000] or task[:1000].strip() or "readme"}))
    return calls


def _result(task: str, results: list[ToolTurn]) -> dict[str, Any]:
    """Return the arguments of `submit_result`."""
    read = {result: extractive.quotes(extractive.passages(result.name, result.text)) for result in results}
    words = extractive.salient(_URL.sub(" ", task))
    pieces = list(dict.fromkeys(piece for found in read.values() for piece in found))
    chosen = extractive.best(pieces, words, QUOTES_MOST, PER_SOURCE)
    fits = bool(chosen)
    if not fits:
        # What the task names is worth showing even if none of its words stands in it.
        named = [piece for result, found in read.items() if result.name != "search_and_read" for piece in found]
        chosen = extractive.openings(named, QUOTES_MOST, 2)
    return _found(chosen, words, results, fits=fits) if chosen else _nothing(words, results)


def _found(chosen: list[Passage], words: list[str], results: list[ToolTurn], *, fits: bool) -> dict[str, Any]:
    by_source: dict[str, list[Passage]] = {}
    for piece in chosen:
        by_source.setdefault(piece.source, []).append(piece)
    counts = f"{len(chosen)} passage{_s(chosen)} in {len(by_source)} source{_s(by_source)}"
    why = f"about {', '.join(words[:8])}" if fits else "from the beginning of what the task names"
    best = " ".join(chosen[0].text.split())
    summary = f"{counts} {why}, found without a language model. The best, from {chosen[0].location}: {best}"
    parts = [f"**{source}**\n\n" + "\n\n".join(map(_shown, found)) for source, found in by_source.items()]
    return {
        "summary": summary[:500],
        "output": "\n\n".join(parts),
        "confidence": None,
        "caveats": [f"{NOT_READ} {FOR_A_MODEL}", *_failures(results)],
        "findings": [_finding(piece, words) for piece in chosen],
    }


def _nothing(words: list[str], results: list[ToolTurn]) -> dict[str, Any]:
    sought = f" for {', '.join(words[:8])}" if words else ""
    looked = f"looked{sought} with {_tools(results)}" if results else "had no tool to read with"
    summary = f"No language model read this; the offline reader {looked} and found nothing."
    return {
        "summary": f"{summary} {FOR_A_MODEL}"[:500],
        "output": None,
        "confidence": None,
        "caveats": [
            f"No language model read this. {FOR_A_MODEL}",
            "The offline reader can only look for the task's words, in the files of a workspace and on pages "
            "whose URLs stand in the task, and quote them. Name a workspace, a file or a URL, or use words "
            "that stand there.",
            *_failures(results),
        ],
        "findings": [],
    }


def _finding(piece: Passage, words: list[str]) -> dict[str, Any]:
    """Return a finding; the claim says no more than what is plain to see."""
    text = piece.text.lower()
    seen = [word for word in words if word in text]
    name = piece.title or piece.source
    if not piece.title and urlsplit(piece.source).scheme not in ("http", "https"):
        name = PurePosixPath(piece.source).name or piece.source
    finding = {
        "claim": f"{name} speaks of {', '.join(seen[:8])}" if seen else f"{name} says this",
        "source_url": piece.location,
        "quote": piece.text,
    }
    # A file's place is all there is to say of it, and is said once; a page has a title beside its URL.
    return {**finding, "source_name": piece.title} if piece.title else finding


def _shown(piece: Passage) -> str:
    quoted = "\n".join(f"> {line}" for line in piece.text.splitlines())
    return f"{quoted}\n\n({piece.place})" if piece.place else quoted


def _failures(results: list[ToolTurn]) -> list[str]:
    """Return what could not be read, and what was read in part; what each tool said about it."""
    said = (extractive.failures(result.name, result.text) for result in results if result.name != SUBMIT)
    partly = (note for result in results for note in extractive.left_out(result.name, result.text))
    return [*partly, *[line for lines in said for line in lines][:_NAMED_MOST]]


def _tools(results: list[ToolTurn]) -> str:
    return " and ".join(dict.fromkeys(result.name for result in results))


def _completion(text: str, asked: list[tuple[str, Mapping[str, Any]]], request: Request) -> Completion:
    turn = sum(isinstance(turn, AssistantTurn) for turn in request.turns)
    calls = tuple(
        tool_use(f"call_{turn}_{number}", name, wire_json.encode(dict(args)).decode())
        for number, (name, args) in enumerate(asked)
    )
    return Completion(
        text=text,
        calls=calls,
        raw=chat_wire.assistant_message(text, calls),
        usage=Usage(),
        cost_micros=0,
        stop_reason="tool_calls",
    )


def _s(things: list[Passage] | dict[str, list[Passage]]) -> str:
    return "" if len(things) == 1 else "s"

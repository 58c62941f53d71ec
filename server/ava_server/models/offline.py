"""Models in this process, without network, tokens and cost: the script of the demo, and `offline/extractive`.

That is not a language model, but a small reader that works with the real tools: it searches for the words of its task
with the tools on offer, ranks the passages they return, and submits quotes with their sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread

from ava_audit.events import Usage
from ava_roles.passages import Query
from ava_server.core.errors import ModelError
from ava_server.models import json_text
from ava_server.models.base import (
    AssistantTurn,
    Bound,
    Completion,
    Delta,
    ReportedUsage,
    Request,
    SendCheck,
    ToolTurn,
    ToolUse,
    Turn,
    UserTurn,
    unchecked,
)
from ava_server.models.offline_passages import (
    NAMED_MOST,
    SEARCH,
    SUBMIT,
    BestPassages,
    Passage,
    Spread,
    best_passages,
    best_sentences,
    failures,
    left_out,
    passages,
    pieces,
    spread_of,
    spread_out,
    unread_of,
)
from ava_server.models.selection import SCRIPTED, SET_A_MODEL
from ava_server.models.wires import chat
from ava_server.models.wires.base import tool_use


@dataclass(frozen=True)
class LocalModel:
    """A model in this process. `answer` depends only on the request, so an interrupted run resumes like any other."""

    name: str
    answer: Callable[[Request], Completion]

    def encode(self, request: Request) -> bytes:
        return json_text.encode({**chat.body(request), "max_tokens": request.max_output})

    def may_think(self, turns: Sequence[Turn]) -> bool:
        return False

    def bound(self, request: Request, known: ReportedUsage | None) -> Bound:
        return Bound(0, 0)

    def assistant_message(self, text: str | None, calls: Sequence[ToolUse]) -> Mapping[str, Any]:
        return chat.assistant_message(text, calls)

    @asynccontextmanager
    async def stream(self, request: Request, check: SendCheck = unchecked) -> AsyncGenerator[LocalStream]:
        """Answer, in a thread. Raises AuditError: from `check`; ModelError: there is no answer to this request."""
        await check()
        yield LocalStream(await anyio.to_thread.run_sync(self.answer, request))


@dataclass(frozen=True)
class LocalStream:
    """An answer that is complete at once."""

    completion: Completion

    async def __aiter__(self) -> AsyncIterator[Delta]:
        yield Delta(text=self.completion.text)


def complete(text: str, asked: Sequence[tuple[str, Mapping[str, Any]]], request: Request) -> Completion:
    """Return an answer with tool calls, each a name and arguments; their ids are unique in the run."""
    turn = answers_before(request)
    calls = tuple(
        tool_use(f"call_{turn}_{number}", name, json_text.encode(dict(args)).decode())
        for number, (name, args) in enumerate(asked)
    )
    return Completion(
        text=text,
        calls=calls,
        raw=chat.assistant_message(text, calls),
        usage=Usage(),
        cost_micros=0,
        stop_reason="tool_calls",
    )


def answers_before(request: Request) -> int:
    return sum(isinstance(turn, AssistantTurn) for turn in request.turns)


def scripted_answer(request: Request) -> Completion:
    """Return a step of `demo_script.json` with the tools' results, for `ava demo --scripted`. Blocks for a moment."""
    steps = json.loads(files("ava_server.models").joinpath("demo_script.json").read_text(encoding="utf-8"))
    turn = answers_before(request)
    if turn >= len(steps):
        raise ModelError(
            f"The script of {SCRIPTED} has {len(steps)} steps and was asked for step {turn + 1}.",
            kind="bad_request",
            sent=False,
            answered=False,
            retryable=False,
            what_to_do="Write a longer script.",
        )
    step = json.loads(_filled_in(json.dumps(steps[turn]), request))
    return complete(step["text"], [(call["name"], call["args"]) for call in step["calls"]], request)


def _filled_in(step: str, request: Request) -> str:
    task = next((turn.text for turn in request.turns if isinstance(turn, UserTurn)), "")
    results = [turn for turn in request.turns if isinstance(turn, ToolTurn)]
    query = Query(task)
    found = [piece for turn in results for piece in passages(turn.name, turn.text)]
    best = best_passages(found, query, spread_of(query, results), most=4).pieces
    findings = [
        {
            "claim": f"{piece.source} has a passage about it",
            "quote": piece.text,
            "source_url": piece.location,
            "source_name": f"{piece.source}, {piece.place}" if piece.place else piece.source,
        }
        for piece in best
    ]
    step = step.replace("{words}", _inside(" ".join(query.words[:8]) or task[:80]))
    step = step.replace("{source}", _inside(best[0].source if best else "no file"))
    return step.replace('"{findings}"', json.dumps(findings))


def _inside(text: str) -> str:
    return json.dumps(text)[1:-1]


# -- the offline reader -----------------------------------------------------------------------------------------------


_LEAST_SENTENCE = 0.55
"""How much of the question one sentence must have where a name in it stands nowhere."""
QUOTES_MOST = 5
_FILES_MOST = 10
_QUERY_CHARS = 1_000
NO_CONFIDENCE = 0.1
NOT_FINISHED = "Not everything was read, so it is not known whether there is an answer:"
NOT_ALL_READ = "Not everything was read:"
THE_BEST = "The best is from"
"""Begins a summary's last part: where the best passage stands, and its best sentence."""
_SUMMARY_CHARS, _BEST_CHARS = 500, 120
"""The longest summary, and what the best passage's further sentences may fill of it."""
_WORDS_MOST, _WORD_CHARS = 8, 40
"""The words that a sentence lists, and the letters of each."""

_URL = re.compile(r"https?://[^\s<>\"'`|]+")
_FILE = re.compile(r"(?<![\w/:.@-])(?:[\w.-]+/)*[\w-][\w.-]*\.[A-Za-z][A-Za-z0-9]{0,7}(?![\w/])")
_NO_FILE = re.compile(r"\w\.\w|[^/]+\.(?:com|org|net|io|ai|eu|de|app)")  # e.g., i.e., a site's name
_MATERIAL = re.compile(r"\b(?:these|this|those) (?:files?|folders?|documents?|texts?|pages?|docs)\b", re.IGNORECASE)
_CAPITAL = "[A-ZÀ-ÖØ-ÞΑ-ΩА-Я]"
_NAME = re.compile(rf"(?<=[\w,;:)] ){_CAPITAL}\w+(?: {_CAPITAL}\w+)+")
"""Capitalised words in a row, not at the beginning of a sentence."""
_CONTEXT = re.compile(r"^## Task context\n\n(.*)^## (?:Limits|Capabilities)$", re.DOTALL | re.MULTILINE)
_LAST_TURN = re.compile(r"\bonly submit_result\b", re.IGNORECASE)

NOT_READ = "No language model read this: the passages were chosen because they contain words of the task."
# A run may be given the offline reader by name though a model is configured.
FOR_A_MODEL = (
    f"To have one read it, leave `model` out if one is configured; else {SET_A_MODEL[0].lower()}{SET_A_MODEL[1:]}"
)


def answer(request: Request) -> Completion:
    """Return the next answer: first tool calls, then the result. Blocks for a moment."""
    task = next((turn.text for turn in request.turns if isinstance(turn, UserTurn)), "")
    last = request.turns[-1] if request.turns else None
    is_last_turn = isinstance(last, UserTurn) and _LAST_TURN.search(last.text) is not None
    if not answers_before(request) and not is_last_turn:
        calls = _first_calls(task, request)
        if calls:
            words = _listing(_query(task).words) or "what the task names"
            return complete(f"Looking for {words}.", calls, request)
    result = _result(task, [turn for turn in request.turns if isinstance(turn, ToolTurn)])
    return complete(result["summary"], [(SUBMIT, result)], request)


def _query(task: str) -> Query:
    return Query(_asked(task))


def _asked(task: str) -> str:
    without = _FILE.sub(lambda path: path[0] if _NO_FILE.fullmatch(path[0]) else " ", _URL.sub(" ", task))
    return " ".join(_MATERIAL.sub(" ", without).split())


def _first_calls(task: str, request: Request) -> list[tuple[str, Mapping[str, Any]]]:
    offered = {tool.name for tool in request.tools}
    context = _CONTEXT.search(request.system)
    named = f"{task}\n{context[1] if context else ''}"
    urls = list(dict.fromkeys(url.rstrip(".,;:!?)]}*_") for url in _URL.findall(named)))[:NAMED_MOST]
    paths = [path for path in dict.fromkeys(_FILE.findall(_URL.sub(" ", named))) if not _NO_FILE.fullmatch(path)]
    calls: list[tuple[str, Mapping[str, Any]]] = []
    if urls and "read_webpages" in offered:
        calls.append(("read_webpages", {"urls": urls}))
    if "read_file" in offered:
        calls += [("read_file", {"path": path}) for path in paths[:NAMED_MOST]]
    if SEARCH in offered:
        calls.append((SEARCH, {"query": _search_words(task, named) or "readme", "max_files": _FILES_MOST}))
    return calls


def _search_words(task: str, named: str) -> str:
    words = _asked(task)  # with filler words, which tell the language
    if len(words) > _QUERY_CHARS or not Query(words).telling:
        texts = (words, _URL.sub(" ", task), named)
        words = " ".join(next((query.words for query in map(Query, texts) if query.telling), ()))
    return words[:_QUERY_CHARS]


def _result(task: str, results: list[ToolTurn]) -> dict[str, Any]:
    query = _query(task)
    read: dict[str, list[Passage]] = {}
    for result in results:
        read.setdefault(result.name, []).extend(passages(result.name, result.text))
    spread = spread_of(query, results)
    found = [passage for each in read.values() for passage in each]
    best = best_passages(found, query, spread, QUOTES_MOST) if query.telling else BestPassages()
    if best.fits and (best.sentence >= _LEAST_SENTENCE or _has_names(task, found)):
        return _found_answer(best.pieces, query, spread, results)
    if not query.telling:
        read.pop(SEARCH, None)
        beginnings = [(1.0, piece) for each in read.values() for passage in each for piece in pieces(passage)]
        if beginnings:
            return _found_answer(spread_out(beginnings, QUOTES_MOST), query, spread, results)
    return _nothing(best.pieces, query, spread, results)


def _found_answer(chosen: Sequence[Passage], query: Query, spread: Spread, results: list[ToolTurn]) -> dict[str, Any]:
    sources = dict.fromkeys(piece.source for piece in chosen)
    counts = f"{len(chosen)} passage{_s(chosen)} in {len(sources)} source{_s(sources)}"
    had = query.found_in("\n\n".join(piece.text for piece in chosen))
    why = f"with words of the task ({_listing(had)})" if query.telling else "from the beginning of what the task names"
    missing = _missing(query, spread) if query.telling else []
    unread = unread_of(results)
    first = f"{NOT_ALL_READ} {unread[0]}" if unread else ""
    head = f"{counts} {why}, found without a language model."
    lacks = f"Found nowhere: {_listing(missing)}." if missing else ""
    best = best_sentences(chosen[0].text, query, spread, _BEST_CHARS, _SUMMARY_CHARS)
    where = f"{THE_BEST} {chosen[0].location}"
    return {
        "summary": _fitting(first, head, lacks, f"{where}: {best}" if best else f"{where}."),
        "output": _listed(chosen),
        "confidence": None,
        "caveats": [*unread, f"{NOT_READ} {FOR_A_MODEL}", *_lacking(missing), *_failures(results)],
        "findings": [_finding(piece, query) for piece in chosen],
    }


def _nothing(chosen: Sequence[Passage], query: Query, spread: Spread, results: list[ToolTurn]) -> dict[str, Any]:
    missing = _missing(query, spread)
    if unread := unread_of(results):
        return _not_finished(chosen, unread, results)
    if not results:
        why = "the offline reader had no tool to read with"
    elif missing:
        why = f"none of the searched text has {_listing(missing)}"
    elif query.words:
        why = f"no passage has enough of {_listing(query.words)} together"
    else:
        why = "the task has no words to look for"
    near = f"No answer was found in these passages; they only come closest.\n\n{_listed(chosen)}" if chosen else None
    return {
        "summary": _fitting(f"No answer found: {why}.", "No language model read this.", FOR_A_MODEL),
        "output": near,
        "confidence": NO_CONFIDENCE,
        "caveats": [
            f"No answer found; this does not mean that there is none. No language model read this. {FOR_A_MODEL}",
            "The offline reader can only look for the task's words, in the files of a workspace and on pages "
            "whose URLs stand in the task, and quote them. Name a workspace, a file or a URL, or use words "
            "that stand there.",
            *_lacking(missing),
            *_failures(results),
        ],
        "findings": [],
    }


def _not_finished(chosen: Sequence[Passage], unread: list[str], results: list[ToolTurn]) -> dict[str, Any]:
    near = f"What was read has no answer; these passages come closest.\n\n{_listed(chosen)}" if chosen else None
    return {
        "summary": _fitting(f"{NOT_FINISHED} {unread[0]}", "No language model read this.", FOR_A_MODEL),
        "output": near,
        "confidence": None,
        "caveats": [*unread, f"No language model read this. {FOR_A_MODEL}", *_failures(results)],
        "findings": [],
    }


def _listing(words: Sequence[str]) -> str:
    return ", ".join(word[:_WORD_CHARS] for word in words[:_WORDS_MOST])


def _fitting(*sentences: str) -> str:
    text = ""
    for each in filter(None, sentences):
        longer = f"{text} {each}".strip()
        text = longer if len(longer) <= _SUMMARY_CHARS else text
    return text


def _missing(query: Query, spread: Spread) -> list[str]:
    return [word for word, count in zip(query.words, spread.counts, strict=True) if spread.total and not count]


def _has_names(task: str, found: list[Passage]) -> bool:
    """Tell whether each name of several words in a task stands in a passage: its words apart mean something else."""
    texts = [" ".join(passage.text.lower().split()) for passage in found]
    return all(any(name.lower() in text for text in texts) for name in _NAME.findall(_asked(task)))


def _lacking(missing: list[str]) -> list[str]:
    return [f"Found nowhere: {', '.join(missing)}."] if missing else []


def _listed(chosen: Sequence[Passage]) -> str:
    by_source: dict[str, list[Passage]] = {}
    for piece in chosen:
        by_source.setdefault(piece.source, []).append(piece)
    return "\n\n".join(f"**{source}**\n\n" + "\n\n".join(map(_shown, found)) for source, found in by_source.items())


def _finding(piece: Passage, query: Query) -> dict[str, Any]:
    """The claim only says which words the quote contains."""
    seen = query.found_in(piece.text)
    name = piece.title or piece.source
    if not piece.title and urlsplit(piece.source).scheme not in ("http", "https"):
        name = PurePosixPath(piece.source).name or piece.source
    finding = {
        "claim": f"{name} speaks of {_listing(seen)}" if seen else f"{name} says this",
        "source_url": piece.location,
        "quote": piece.text,
    }
    # A page has a title besides its URL; a file has only its path, which is given already.
    return {**finding, "source_name": piece.title} if piece.title else finding


def _shown(piece: Passage) -> str:
    quoted = "\n".join(f"> {line}" for line in piece.text.splitlines())
    return f"{quoted}\n\n({piece.place})" if piece.place else quoted


def _failures(results: list[ToolTurn]) -> list[str]:
    said = (failures(result.name, result.text) for result in results if result.name != SUBMIT)
    partly = (note for result in results for note in left_out(result.name, result.text))
    return [*partly, *[line for lines in said for line in lines][:NAMED_MOST]]


def _s(things: Collection[object]) -> str:
    return "" if len(things) == 1 else "s"

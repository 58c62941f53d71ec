"""Models in this process, without network, tokens and cost: the script of the demo, and `offline/extractive`.

That is not a language model, but a small reader that works with the real tools: it searches for the words of its task
with the tools on offer, ranks the passages they return, and submits quotes with their sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread

from ava_audit.events import Usage
from ava_audit.units import counted
from ava_roles.texts.passages import Query
from ava_server.core.errors import ModelError, with_advice
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
from ava_server.models.model_choice import SCRIPTED, SET_A_MODEL
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
    other_language,
    passages,
    pieces,
    reason_for,
    spread_of,
    spread_out,
    unread_of,
)
from ava_server.models.wires import chat
from ava_server.models.wires.wire import tool_use


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
    task = _task(request)
    results = _tool_turns(request)
    query = Query(task)
    candidates: list[Passage] = []
    for turn in results:
        candidates += passages(turn.name, turn.text)
    best = best_passages(candidates, query, spread_of(query, results), most=4).pieces
    findings = [
        {
            "claim": f"{piece.source} has a passage about it",
            "quote": piece.text,
            "source_url": piece.location,
            "source_name": ", ".join(filter(None, (piece.source, piece.place))),
        }
        for piece in best
    ]
    words = " ".join(query.words[:8]) or task[:80]
    source = best[0].source if best else "no file"
    step = step.replace("{words}", _inside(words)).replace("{source}", _inside(source))
    return step.replace('"{findings}"', json.dumps(findings))


def _task(request: Request) -> str:
    for turn in request.turns:
        if isinstance(turn, UserTurn):
            return turn.text
    return ""


def _tool_turns(request: Request) -> list[ToolTurn]:
    return [turn for turn in request.turns if isinstance(turn, ToolTurn)]


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
_SUMMARY_CHARS, _BEST_CHARS = 500, 240
"""The longest summary, and what the best passage's further sentences may fill of it."""
_WORDS_MOST, _WORD_CHARS = 8, 40
"""The words that a sentence lists, and the letters of each."""

_URL = re.compile(r"https?://[^\s<>\"'`|]+")
_FILE = re.compile(r"(?<![\w/:.@-])(?:[\w.-]+/)*[\w-][\w.-]*\.[A-Za-z][A-Za-z0-9]{0,7}(?![\w/])")
_NO_FILE = re.compile(r"\w\.\w|[^/]+\.(?:com|org|net|io|ai|eu|de|app)")  # e.g., i.e., a site's name
_MATERIAL = re.compile(r"\b(?:these|this|those) (?:files?|folders?|documents?|texts?|pages?|docs)\b", re.IGNORECASE)
_CONTEXT = re.compile(r"^## Task context\n\n(.*)^## (?:Limits|Capabilities)$", re.DOTALL | re.MULTILINE)
_LAST_TURN = re.compile(r"\bonly submit_result\b", re.IGNORECASE)

NOT_READ = "No language model read this: the passages were chosen because they contain words of the task."
NO_TRANSLATION = "The offline reader does not translate: ask in the language of the files."
# A run may be given the offline reader by name though a model is configured.
FOR_A_MODEL = (
    f"To have one read it, leave `model` out if one is configured; else {SET_A_MODEL[0].lower()}{SET_A_MODEL[1:]}"
)


def answer(request: Request) -> Completion:
    """Return the next answer: first tool calls, then the result. Blocks for a moment."""
    task = _task(request)
    query = Query(_question(task))
    if not answers_before(request) and not _is_last_turn(request):
        calls = _first_calls(task, request)
        if calls:
            words = _listing(query.words) or "what the task names"
            return complete(f"Looking for {words}.", calls, request)
    result, quoted = _result(query, _tool_turns(request))
    text = "\n".join([result["summary"], *(reason_for(piece, query) for piece in quoted)])
    return complete(text, [(SUBMIT, result)], request)


def _is_last_turn(request: Request) -> bool:
    if not request.turns:
        return False
    last = request.turns[-1]
    return isinstance(last, UserTurn) and _LAST_TURN.search(last.text) is not None


def _question(task: str) -> str:
    """Return a task without the names of its material."""
    text = _FILE.sub(lambda path: path[0] if _NO_FILE.fullmatch(path[0]) else " ", _URL.sub(" ", task))
    return " ".join(_MATERIAL.sub(" ", text).split())


def _first_calls(task: str, request: Request) -> list[tuple[str, Mapping[str, Any]]]:
    offered = {tool.name for tool in request.tools}
    context = _CONTEXT.search(request.system)
    text = f"{task}\n"
    if context:
        text += context[1]
    calls: list[tuple[str, Mapping[str, Any]]] = []
    urls = dict.fromkeys(url.rstrip(".,;:!?)]}*_") for url in _URL.findall(text))
    if urls and "read_webpages" in offered:
        calls.append(("read_webpages", {"urls": list(urls)[:NAMED_MOST]}))
    if "read_file" in offered:
        names = dict.fromkeys(_FILE.findall(_URL.sub(" ", text)))
        paths = [name for name in names if not _NO_FILE.fullmatch(name)]
        calls += [("read_file", {"path": path}) for path in paths[:NAMED_MOST]]
    if SEARCH in offered:
        query = _search_words(task, text) or "readme"
        calls.append((SEARCH, {"query": query, "max_files": _FILES_MOST}))
    return calls


def _search_words(task: str, task_and_context: str) -> str:
    words = _question(task)  # with filler words, which tell the language
    if len(words) <= _QUERY_CHARS and Query(words).telling:
        return words
    for text in (words, _URL.sub(" ", task), task_and_context):
        query = Query(text)
        if query.telling:
            return " ".join(query.words)[:_QUERY_CHARS]
    return ""


def _result(query: Query, results: list[ToolTurn]) -> tuple[dict[str, Any], Sequence[Passage]]:
    """Return the result of a task with the words of `query`, and the passages that it quotes as an answer."""
    spread = spread_of(query, results)
    by_tool: dict[str, list[Passage]] = {}
    for result in results:
        by_tool.setdefault(result.name, []).extend(passages(result.name, result.text))
    best = BestPassages()
    if query.telling:
        everything = list(chain.from_iterable(by_tool.values()))
        best = best_passages(everything, query, spread, QUOTES_MOST)
        if best.fits and (best.sentence >= _LEAST_SENTENCE or _has_names(query, everything)):
            return _found_answer(best.pieces, query, spread, results), best.pieces
    else:
        by_tool.pop(SEARCH, None)
        beginnings: list[tuple[float, Passage]] = []
        for passage in chain.from_iterable(by_tool.values()):
            beginnings += [(1.0, piece) for piece in pieces(passage)]
        if beginnings:
            chosen = spread_out(beginnings, QUOTES_MOST)
            return _found_answer(chosen, query, spread, results), chosen
    return _nothing(best.pieces, query, spread, results), ()


def _found_answer(chosen: Sequence[Passage], query: Query, spread: Spread, results: list[ToolTurn]) -> dict[str, Any]:
    sources = dict.fromkeys(piece.source for piece in chosen)
    counts = f"{counted(len(chosen), 'passage')} in {counted(len(sources), 'source')}"
    why = "from the beginning of what the task names"
    missing: list[str] = []
    if query.telling:
        words = query.found_in("\n\n".join(piece.text for piece in chosen))
        why = f"with words of the task ({_listing(words)})"
        missing = _missing(query, spread, chosen)
    unread = unread_of(results).sentences
    summary: list[str] = []
    if unread:
        summary.append(f"{NOT_ALL_READ} {unread[0]}")
    summary.append(f"{counts} {why}, found without a language model.")
    if missing:
        summary.append(f"Found nowhere: {_listing(missing)}.")
    where = f"{THE_BEST} {chosen[0].location}"
    room = _SUMMARY_CHARS - sum(len(part) + 1 for part in (*summary, where)) - 1
    best = best_sentences(chosen[0].text, query, spread, min(_BEST_CHARS, room), room)
    summary.append(f"{where}: {best}" if best else f"{where}.")
    return {
        "summary": _fitting(*summary),
        "output": _listed(chosen),
        "confidence": None,
        "caveats": [
            *unread,
            *_translation(results),
            f"{NOT_READ} {FOR_A_MODEL}",
            *_lacking(missing),
            *_failures(results),
        ],
        "findings": [_finding(piece, query) for piece in chosen],
    }


def _nothing(chosen: Sequence[Passage], query: Query, spread: Spread, results: list[ToolTurn]) -> dict[str, Any]:
    unread = unread_of(results)
    if unread.hides_answer:
        return _not_known(chosen, unread.sentences, results)
    missing = _missing(query, spread, chosen)
    if not results:
        why = "the offline reader had no tool to read with"
    elif missing:
        why = f"none of the searched text has {_listing(missing)}"
    elif query.words:
        why = f"no passage has enough of {_listing(query.words)} together"
    else:
        why = "the task has no words to look for"
    near = None
    if chosen:
        near = f"No answer was found in these passages; they only come closest.\n\n{_listed(chosen)}"
    language = _translation(results)
    not_read = list(unread.sentences)
    if not_read:
        not_read[0] = f"{NOT_ALL_READ} {not_read[0]}"
    return {
        "summary": _fitting(
            f"No answer found: {why}.", *language, *not_read, "No language model read this.", FOR_A_MODEL
        ),
        "output": near,
        "confidence": NO_CONFIDENCE,
        "caveats": [
            *unread.sentences,
            *language,
            f"No answer found; this does not mean that there is none. No language model read this. {FOR_A_MODEL}",
            "The offline reader can only look for the task's words, in the files of a workspace and on pages "
            "whose URLs stand in the task, and quote them. Name a workspace, a file or a URL, or use words "
            "that stand there.",
            *_lacking(missing),
            *_failures(results),
        ],
        "findings": [],
    }


def _not_known(chosen: Sequence[Passage], unread: Sequence[str], results: list[ToolTurn]) -> dict[str, Any]:
    """Say that it is not known whether there is an answer. No model is advised: it could read no more of the files."""
    near = None
    if chosen:
        near = f"What was read has no answer; these passages come closest.\n\n{_listed(chosen)}"
    advice: list[str] = []
    if any(result.name == SEARCH and result.failed for result in results):
        advice.append("Ask about fewer files: name a folder or the files in the task.")
    advice += _translation(results)
    return {
        "summary": _fitting(f"{NOT_FINISHED} {unread[0]}", *unread[1:], *advice, "No language model read this."),
        "output": near,
        "confidence": None,
        "caveats": [*unread, *advice, "No language model read this.", *_failures(results)],
        "findings": [],
    }


def _translation(results: list[ToolTurn]) -> list[str]:
    """Return what to say where the question is in another language than the files."""
    languages = other_language(results)
    return [with_advice(languages, NO_TRANSLATION)] if languages else []


def _listing(words: Sequence[str]) -> str:
    return ", ".join(word[:_WORD_CHARS] for word in words[:_WORDS_MOST])


def _fitting(*sentences: str) -> str:
    """Return the sentences, in their order, without those that would make the summary too long."""
    text = ""
    for sentence in sentences:
        longer = f"{text} {sentence}".strip()
        if len(longer) <= _SUMMARY_CHARS:
            text = longer
    return text


def _missing(query: Query, spread: Spread, chosen: Sequence[Passage]) -> list[str]:
    """Return the words that no passage has, and no name of the files that were chosen: `sales.csv` is about sales."""
    if not spread.total:
        return []
    in_names = query.matches("\n".join(piece.source for piece in chosen)).counts
    counts = zip(query.words, spread.counts, in_names, strict=True)
    return [word for word, in_texts, in_name in counts if not in_texts and not in_name]


def _has_names(query: Query, found: list[Passage]) -> bool:
    """Tell whether each name of several words stands in a passage: its words apart mean something else."""
    texts = [" ".join(passage.text.lower().split()) for passage in found]
    return all(any(name in text for text in texts) for name in query.names)


def _lacking(missing: list[str]) -> list[str]:
    return [f"Found nowhere: {', '.join(missing)}."] if missing else []


def _listed(chosen: Sequence[Passage]) -> str:
    quotes_by_source: dict[str, list[str]] = {}
    for piece in chosen:
        quotes_by_source.setdefault(piece.source, []).append(_quote(piece))
    parts: list[str] = []
    for source, quotes in quotes_by_source.items():
        parts += [f"**{source}**", *quotes]
    return "\n\n".join(parts)


def _finding(piece: Passage, query: Query) -> dict[str, Any]:
    """The claim only says which words the quote contains."""
    name = piece.title or piece.source
    if not piece.title and urlsplit(piece.source).scheme not in ("http", "https"):
        name = PurePosixPath(piece.source).name or piece.source
    words = query.found_in(piece.text)
    claim = f"{name} speaks of {_listing(words)}" if words else f"{name} says this"
    finding = {"claim": claim, "source_url": piece.location, "quote": piece.text}
    if piece.title:  # a file has only its path, which is given already
        finding["source_name"] = piece.title
    return finding


def _quote(piece: Passage) -> str:
    quote = "\n".join(f"> {line}" for line in piece.text.splitlines())
    if not piece.place:
        return quote
    return f"{quote}\n\n({piece.place})"


def _failures(results: list[ToolTurn]) -> list[str]:
    partly: list[str] = []
    failed: list[str] = []
    for result in results:
        if result.unread:  # which says it
            continue
        partly += left_out(result.name, result.text)
        if result.name != SUBMIT:
            failed += failures(result.name, result.text)
    return [*partly, *failed[:NAMED_MOST]]

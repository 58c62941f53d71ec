"""The source of a finding, opened: what the run read there, with the quote marked, and what the file is now.

The text is from the log alone. The file is only compared with the hash of what was read, and nothing of it is shown.
The browser, `ava show --source` and `ava --url` all show an `OpenedSource`.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.to_thread

from ava_audit.events import SubagentComplete, ToolResult
from ava_audit.rows import RunRow
from ava_audit.view import Readable, View
from ava_roles.errors import FolderReplaced, NotThere, ToolFailed, WorkspaceRefused
from ava_roles.tool import WEB_SEARCH
from ava_server.core.errors import BadInput, Refused
from ava_server.core.ids import IN_PROCESS, label
from ava_server.render.result import FindingView, finding_of
from ava_server.run_config.config import RunConfig, config_of
from ava_server.runs.record.quotes import TextSpan
from ava_server.runs.record.sources import ReadSources, ReadText, SourcePassage

if TYPE_CHECKING:
    from ava_server.config.settings import Settings

LOOK_S = 10.0
"""Seconds in which a file is compared with what was read; it may be on a disk that does not answer."""
MOST_BYTES = 20_000_000
"""No tool reads a larger file whole."""
FileNow = Literal["same", "changed", "gone", "web", "unknown"]

SAME = "The file is the same now."
CHANGED = "The file has changed since it was read."
GONE = "The file is gone."
WEB = "This is the text as it was fetched; the page is not looked at again."
NOT_KEPT = "Whether the file is the same now is not known: the log does not say what it was."

NEAR_NOTE = "The quote is not there word for word; the nearest passage is marked."
ELSEWHERE = "The quote does not stand in the source that the finding names, but in this one."
NOT_FOUND = "The quote was not found in anything that the run read. This is what it read of the source."
NO_QUOTE = "The finding quotes nothing. This is what the run read of its source."
LOST = "The text in which the quote was found is not in the log. This is what the run read of the source."
SEARCHED = "This is what a web search returned; the page itself was not read."
NOTHING = "Nothing that the run read is of this source: it is only what the subagent names."
UNSEEN = "Another agent did the work, and what it read is not in the log: the source is only what it names."
NOTHING_READ = "The run read no source: this one is only what the subagent names."
ERASED = "What the run read was erased."


@dataclass(frozen=True)
class SourceWindow:
    """A part of what was read: `line` is the number of its first line, `above` and `below` count the lines left out."""

    before: str
    marked: str
    after: str
    line: int | None
    above: int
    below: int


@dataclass(frozen=True)
class OpenedSource:
    """The source of a finding as a run read it. All texts but `note` and `now_words` are foreign.

    Attributes:
        number: The finding's number, of `total`.
        verdict: As `quotes_checked` has it: `found`, `near`, `not_found`, or empty.
        named: The source as the finding names it.
        location: The path or address of what was read; empty where nothing is shown.
        place: Where in it the quote stands, e.g. `page 3` or `line 12, under "Prices"`; without a quote, where the text
            stands.
        line: The number of the first line of the text; None where lines do not count.
        before: The text before the quote. Where no quote is marked, the text before the place that the finding names.
        marked: The quote as it stands there; empty where none is marked.
        after: The text after it.
        missing: What of the source is not in the text, as the tool said: cut lines, pictures.
        note: Whether the text is what the finding says, in sentences.
        tool: The tool that returned it.
        event: The entry of the log that has it; 0 for none.
        now: What the file is now, compared with what was read.
        now_words: The same in words; empty where nothing is shown.
    """

    number: int
    total: int
    claim: str
    quote: str
    verdict: str
    named: str
    location: str = ""
    title: str = ""
    place: str = ""
    line: int | None = None
    before: str = ""
    marked: str = ""
    after: str = ""
    missing: str = ""
    note: str = ""
    tool: str = ""
    event: int = 0
    now: FileNow = "unknown"
    now_words: str = ""

    @property
    def has_text(self) -> bool:
        return bool(self.before or self.marked or self.after)

    def window(self, lines: int, chars: int) -> SourceWindow:
        """Return the quote with so many lines, and characters, on each side of it."""
        before = "\n".join(self.before.split("\n")[-lines - 1 :])
        after = "\n".join(self.after.split("\n")[: lines + 1])
        if len(before) > chars:
            before = f"…{before[-chars:]}"
        if len(after) > chars:
            after = f"{after[:chars]}…"
        above = self.before.count("\n") - before.count("\n")
        return SourceWindow(
            before=before,
            marked=self.marked,
            after=after,
            line=None if self.line is None else self.line + above,
            above=above,
            below=self.after.count("\n") - after.count("\n"),
        )


@dataclass(frozen=True)
class _LoggedFinding:
    """What the log has of a finding and of everything that its run read."""

    run: RunRow
    number: int
    total: int
    finding: dict[str, Any]
    verdict: str
    event: int | None
    outputs: list[tuple[int, ToolResult]]
    erased: bool


async def open_source(store: Readable, run_id: str, number: int, settings: Settings, owner: str) -> OpenedSource:
    """Return the source of a finding by its number, from 1; `owner` is the user to whom the data root belongs.

    The caller has checked who asks. Raises BadInput: there is no such finding; Refused: the run has no result, or it
    was erased.
    """
    logged = await store.read(partial(_read_finding, run_id=run_id, number=number))
    source, read = await anyio.to_thread.run_sync(_source_as_read, logged)
    if read is None:
        return source
    try:
        with anyio.fail_after(LOOK_S):
            compare = partial(_compare_file, settings, logged.run, read, owner)
            now, words = await anyio.to_thread.run_sync(compare, abandon_on_cancel=True)
    except TimeoutError:
        now = "unknown"
        words = _not_here(f"it was not read within {LOOK_S:g} s")
    return replace(source, now=now, now_words=words)


def _read_finding(view: View, *, run_id: str, number: int) -> _LoggedFinding:
    run = view.run(run_id)
    assert run is not None
    if not run.ended or run.result_seq is None:
        raise Refused(f"{label(run)} has no result, so it has no sources; `ava show {run.id}` tells what it did")
    entry = view.entry(run.result_seq)
    if entry is None or not isinstance(entry.fact, SubagentComplete):
        raise Refused(f"the content of {label(run)} was erased, and what it read with it; what it cost stays")
    result = entry.fact.result
    findings: list[dict[str, Any]] = result["untrusted_result"].get("findings") or []
    if not 1 <= number <= len(findings):
        raise BadInput(_no_such(run, number, len(findings)))
    quote: dict[str, Any] = {}
    for checked in result.get("quotes_checked") or ():
        if checked.get("finding") == number:
            quote = checked
    outputs: list[tuple[int, ToolResult]] = []
    has_erased = False
    for output in view.entries(run.id, types=("ToolResult",)):
        if output.generation is None:
            continue
        if isinstance(output.fact, ToolResult):
            outputs.append((output.seq, output.fact))
        else:
            has_erased = True
    return _LoggedFinding(
        run=run,
        number=number,
        total=len(findings),
        finding=findings[number - 1],
        verdict=str(quote.get("verdict") or ""),
        event=quote.get("event"),
        outputs=outputs,
        erased=has_erased,
    )


def _no_such(run: RunRow, number: int, total: int) -> str:
    if not total:
        return f"{label(run)} has no findings, so there is no source {number}"
    if total == 1:
        return f"{label(run)} has one source, number 1; there is no source {number}"
    return f"{label(run)} has {total} sources; there is no source {number}, give a number from 1 to {total}"


def _source_as_read(logged: _LoggedFinding) -> tuple[OpenedSource, ReadText | None]:
    """Return the source as the run read it, and the text that is shown of it. Blocks."""
    finding = finding_of(logged.number, logged.finding, logged.verdict)
    sources = ReadSources(logged.outputs)
    passage = sources.passage(logged.finding, logged.verdict, logged.event)
    source = OpenedSource(
        number=logged.number,
        total=logged.total,
        claim=finding.claim.text,
        quote=finding.quote.text,
        verdict=logged.verdict,
        named=finding.source.text,
    )
    if passage is None:
        return replace(source, note=_why_nothing(logged, sources)), None
    read = passage.read
    span = passage.span
    source = replace(
        source,
        location=read.location,
        title=read.title,
        place=_place(read, span),
        line=read.line,
        before=read.text[: span.start],
        marked=read.text[span.start : span.end],
        after=read.text[span.end :],
        missing=read.missing,
        note=_note(logged, finding, passage),
        tool=read.tool,
        event=read.event,
    )
    return source, read


def _place(read: ReadText, span: TextSpan) -> str:
    place = read.place_of(span)
    heading = read.heading_of(span) if span.end > span.start else ""
    return f'{place}, under "{heading}"' if heading else place


def _why_nothing(logged: _LoggedFinding, sources: ReadSources) -> str:
    if logged.erased:
        return ERASED
    if not sources.nothing:
        return NOTHING
    config = _config(logged.run)
    if config is not None and config.runner != IN_PROCESS:
        return UNSEEN
    return NOTHING_READ


def _note(logged: _LoggedFinding, finding: FindingView, passage: SourcePassage) -> str:
    sentences: list[str] = []
    if not finding.quote:
        sentences.append(NO_QUOTE)
    elif logged.verdict not in ("found", "near"):
        sentences.append(NOT_FOUND)
    elif passage.span.start == passage.span.end:
        sentences.append(LOST)
    elif logged.verdict == "near":
        sentences.append(NEAR_NOTE)
    if passage.elsewhere:
        sentences.append(ELSEWHERE)
    if passage.read.tool == WEB_SEARCH:
        sentences.append(SEARCHED)
    return " ".join(sentences)


# -- what the file is now ----------------------------------------------------------------------------------------------


def _compare_file(settings: Settings, run: RunRow, read: ReadText, owner: str) -> tuple[FileNow, str]:
    """Compare a file with the hash of what was read of it. Blocks."""
    if read.location.startswith(("http://", "https://")):
        return "web", WEB
    if not read.location:
        return "unknown", ""
    if not read.sha256:
        return "unknown", NOT_KEPT
    config = _config(run)
    if config is None:
        return "unknown", _not_here("a newer Ava proposed the run")
    if config.coding is not None:
        return "unknown", _not_here("the run read it in a worktree of its own, which is gone")
    if config.workspace is None:
        return "unknown", _not_here("the run had no folder")
    try:
        if settings.paths.is_elsewhere(config.origin):
            return "unknown", _not_here("its folder is on another machine")
        from ava_server.runs.turn.workspace import open_workspace

        folder = Path(config.workspace)
        root = open_workspace(settings, folder, config.workspace_identity, run.user_id, owner=run.user_id == owner)
    except FolderReplaced:
        return "unknown", _not_here("another folder is in the place of the one that the run read")
    except WorkspaceRefused:
        return "unknown", _not_here("its folder is no longer allowed")
    except OSError:
        return "unknown", _not_here("its folder cannot be opened")
    with closing(root):
        try:
            data, more = root.read(read.location, MOST_BYTES)
        except NotThere:
            return "gone", GONE
        except (ToolFailed, OSError):
            return "unknown", _not_here("it is no regular file any more, or may not be read")
    if more or hashlib.sha256(data).hexdigest() != read.sha256:
        return "changed", CHANGED
    return "same", SAME


def _config(run: RunRow) -> RunConfig | None:
    """Return None if a newer Ava wrote it."""
    try:
        return config_of(run.config)
    except ValueError:
        return None


def _not_here(why: str) -> str:
    return f"The file cannot be looked at here: {why}."

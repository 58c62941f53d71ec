"""The result of a run: Markdown for a pipe or a file, drawn on a terminal; its files; and the exit codes of endings.

What the subagent wrote stands in parts of its own, so that a terminal can set it apart from Ava's words.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ava_audit.events import WHOLE
from ava_roles.wrap import BAR, add_bars, clean
from ava_server.cli.terminal import colours, columns, one_line, say, styled, wrapped, write
from ava_server.core.commands import advice
from ava_server.core.errors import BadInput, Refused
from ava_server.core.ids import UNREAD, state_words
from ava_server.render.reasons import reason_words
from ava_server.render.result import FindingView, Result, UntrustedText, artifact_text, cost_notes, printed, result_of

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.render.responses import RunAnswer
    from ava_server.service.run_records import DeliveredFiles

_NOTHING = UntrustedText("")
ENDING_CODES = {
    "success": 0,
    "rejected": 10,
    "expired": 10,
    "superseded": 10,
    "cost_exceeded": 11,
    "token_exceeded": 11,
    "timeout": 12,
    "iteration_limit": 13,
    "tool_limit": 13,
    "guardrail": 14,
    "cancelled": 15,
    "abandoned": 16,
    "no_answer": 17,
    "partial": 18,
}
"""Exit codes by ending; that of an error depends on its kind, and `UNREAD_CODE` may stand for `no_answer`."""
UNREAD_CODE = 22
"""No answer was found, and not everything could be read."""
_ERROR_CODES, _MODEL = {"verification": 21, "unread": UNREAD_CODE, "workshop": 30, "internal": 70, "store": 70}, 20
WIDEST = 100
"""Columns of running text at most: longer lines are hard to read."""
_MARKDOWN_BAR = "> "
"""Begins each line that a subagent wrote, in Markdown; on a terminal, `BAR` does."""
_VERDICT_COLOURS = {"found": "green", "near": "yellow", "not_found": "red"}


def exit_code(run: RunRow) -> int:
    if run.state == "error":
        return _ERROR_CODES.get(run.error_kind or "", _MODEL)
    if run.state == "no_answer" and run.error_kind == UNREAD:
        return UNREAD_CODE
    return ENDING_CODES[run.state]


@dataclass(frozen=True)
class ResultPart:
    """A part of a result.

    Attributes:
        title: Ava's.
        lines: Lines of Ava's.
        theirs: Markdown that the subagent wrote.
        words: Lines from it or from a repository, shown unchanged.
        findings: What it found.
    """

    title: str
    lines: tuple[str, ...] = ()
    theirs: UntrustedText = _NOTHING
    words: tuple[UntrustedText, ...] = ()
    findings: tuple[FindingView, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.lines or self.theirs or self.words or self.findings)


def parts_of(run: RunAnswer, *, short: bool = False, saved: SavedFiles | None = None) -> list[ResultPart]:
    """Return a run's result in parts; of a run that has not ended, what it waits for.

    `short` leaves out an output that the findings repeat; the offline reader's always do. `saved`: copies of its files.
    """
    if run.state == "error" or run.state in ENDING_CODES:
        parts = _parts_of_ended(run, short, saved)
    else:
        parts = _parts_of_unended(run)
    return [replace(part, lines=tuple(map(advice, part.lines))) for part in parts if not part.empty]


def _parts_of_unended(run: RunAnswer) -> list[ResultPart]:
    lines: list[str] = []
    if run.waits_for:
        lines.append(f"Waits for: {run.waits_for}")
    if run.ends_with_host:
        lines.append(f"Not as approved: {run.ends_with_host}")
    question = UntrustedText(run.untrusted_question or "")
    return [ResultPart("", tuple(lines)), ResultPart("Question", theirs=question)]


def _parts_of_ended(run: RunAnswer, short: bool, saved: SavedFiles | None) -> list[ResultPart]:
    result = result_of(run)
    lines = tuple(_ending(run, result))
    if result is None:
        return [ResultPart("", lines)]
    error: tuple[UntrustedText, ...] = ()
    if result.error:
        error = (UntrustedText(f"Error: {one_line(result.error.text)}"),)
    return [ResultPart("", lines, words=error), *_parts_of_result(run, result, short, saved)]


def _ending(run: RunAnswer, result: Result | None) -> Iterable[str]:
    """Yield why a run ended otherwise than by success, and what to do."""
    if run.state != "success":
        may_lack = "" if run.state in WHOLE else " It may be incomplete."
        why = reason_words(run.stop_reason or "no reason is known")
        yield f"Ended as {state_words(run.state)}: {why}.{may_lack}"
    if result is not None and run.error and run.error.get("what_to_do"):
        yield f"What to do: {_next_step(run, run.error)}"
    if run.advice:
        yield f"What to do: {run.advice}"


def _parts_of_result(run: RunAnswer, result: Result, short: bool, saved: SavedFiles | None) -> list[ResultPart]:
    output = result.output
    if (result.findings or result.sources) and (short or _is_offline(run)):
        output = _NOTHING
    quotes = _quote_lines(run, result, short)
    parts = [
        ResultPart("Summary", theirs=result.summary),
        ResultPart("Output", theirs=output),
        ResultPart("Findings, each with its source", quotes, findings=tuple(result.findings)),
    ]
    for title, views in result.sources:
        sources = "\n".join(f"- {one.source.text}" for one in views)
        parts.append(ResultPart(title, words=(UntrustedText(sources),)))
    caveats = "\n".join(f"- {one_line(caveat.text)}" for caveat in result.caveats)
    parts.append(ResultPart("Caveats", theirs=UntrustedText(caveats)))
    parts.append(ResultPart("Changes", tuple(result.changes), words=tuple(result.changed)))
    parts.append(ResultPart("Figures", _figure_lines(run, result, saved)))
    return parts


def _is_offline(run: RunAnswer) -> bool:
    return run.model is not None and run.model.startswith("offline/")


def _quote_lines(run: RunAnswer, result: Result, short: bool) -> tuple[str, ...]:
    lines: list[str] = []
    if result.quotes:
        lines.append(result.quotes)
    if result.findings and result.first_source and not short:
        lines.append(f"What it read of a source: `ava show {run.subagent_id} --source {result.first_source}`")
    return tuple(lines)


def _figure_lines(run: RunAnswer, result: Result, saved: SavedFiles | None) -> tuple[str, ...]:
    """Return what was delivered and spent. Where that is nothing, the heading alone says whether the run is free."""
    lines = [f"{fact.label}: {printed(fact.value, str)}" for fact in result.figures]
    lines += map(artifact_text, result.artifacts)
    if saved is not None:
        lines += saved.lines()
    if run.cost_cents:
        lines.append(f"Cost: {cost_text(run)}")
    return tuple(lines)


def result_text(run: RunAnswer, *, saved: SavedFiles | None = None) -> str:
    """Return a run's result as Markdown."""
    blocks = [f"# {run.status_line}"]
    for part in parts_of(run, saved=saved):
        if part.title:
            blocks.append(f"## {part.title}")
        theirs: list[str] = []
        if part.theirs:
            theirs.append(part.theirs.text.strip("\n"))
        theirs += map(_finding_text, part.findings)
        theirs += [words.text for words in part.words]
        if theirs:
            blocks.append(add_bars("\n\n".join(theirs), _MARKDOWN_BAR))
        lines: Sequence[str] = part.lines
        if part.title:
            lines = _as_list(lines)
        if lines:
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _as_list(lines: Iterable[str]) -> list[str]:
    """Return lines as a list in Markdown; an indented line belongs to the one before."""
    items: list[str] = []
    for line in lines:
        if line.startswith(" ") and line.strip():
            items.append(line)
        elif line.strip():
            items.append(f"- {line}")
    return items


_SET_KEY = re.compile(r"([Ss])tore a valid key with `ava key set`")


def _next_step(run: RunAnswer, error: Mapping[str, Any]) -> str:
    """Return what a person at a terminal can do about an error: the log names neither the provider nor commands."""
    from ava_server.cli.options import name_options
    from ava_server.models.model_choice import CUSTOM

    step = str(error["what_to_do"])
    model = str(error.get("model") or run.model or "")  # of a plan, that of the run that failed
    provider, _colon, _model = model.partition(":")
    if provider == CUSTOM and _SET_KEY.search(step):
        step = _SET_KEY.sub(r"\1et a valid AVA_MODEL_API_KEY", step)
        step += " A worker with the old one ends a minute after its last run."
    elif provider:
        step = step.replace("`ava key set`", f"`ava key set {provider}`")
    for verb, instead in (("propose", "start"), ("Propose", "Start")):
        again = f"{instead} it again with `ava run --retry {run.subagent_id}`"
        step = step.replace(f"{verb} it again with retry_of", again)
    return name_options(step)


def cost_text(run: RunAnswer) -> str:
    from ava_audit.units import format_usd, micros_from_cents

    text = format_usd(micros_from_cents(run.cost_cents))
    parts: list[str] = []
    for name, cost_cents in (run.cost_by or {}).items():
        if cost_cents and name != "uncosted":
            parts.append(f"{name} {format_usd(micros_from_cents(cost_cents))}")
    if parts:
        text += f" ({', '.join(parts)})"
    return text + cost_notes(run)


def _finding_text(one: FindingView) -> str:
    lines = [f"{one.number}. {one.claim.text}"]
    if one.quote:
        lines += ["", *(f"   > {line}" for line in one.quote.text.splitlines()), "", f"   - {one.checked}"]
    if one.source:
        lines.append(f"   - source: {one.source.text}")
    if one.found_in:
        lines.append(f"   - quote found in: {one.found_in.text}")
    return "\n".join(lines)


# -- on a terminal ----------------------------------------------------------------------------------------------------


def show_results(runs: Iterable[RunAnswer], *, saved: dict[str, SavedFiles] | None = None) -> None:
    """Write results to stdout: drawn on a terminal, as Markdown anywhere else."""
    copies = saved or {}
    if not sys.stdout.isatty():
        say(results_text(runs, copies))
        return
    results = [drawn_result(run, columns(), saved=copies.get(run.subagent_id)) for run in runs]
    line = "─" * min(columns(), WIDEST)
    write(f"\n\n{line}\n\n".join(results))


def results_text(runs: Iterable[RunAnswer], saved: Mapping[str, SavedFiles]) -> str:
    return "\n\n".join(result_text(run, saved=saved.get(run.subagent_id)) for run in runs)


def drawn_result(run: RunAnswer, width: int, *, short: bool = False, saved: SavedFiles | None = None) -> str:
    """Return a result as a terminal of this width shows it; nothing in it steers the terminal."""
    width = min(width, WIDEST)
    blocks: list[str] = []
    if not short:
        blocks.append(styled(_fit(run.status_line, width), bold=True))
    for part in parts_of(run, short=short, saved=saved):
        blocks.append("\n".join(_drawn(part, width)))
    return "\n\n".join(blocks)


def _drawn(part: ResultPart, width: int) -> Iterable[str]:
    if part.title:
        yield styled(part.title, fg="cyan", bold=True)
    yield from (f"{BAR}{line}".rstrip() for line in _drawn_theirs(part, width - len(BAR)))
    yield from (_fit(line, width) for line in part.lines)


def _drawn_theirs(part: ResultPart, width: int) -> Iterable[str]:
    """Yield the lines that the subagent wrote, without bars."""
    if part.theirs:
        from ava_server.cli.markdown import drawn

        yield from drawn(part.theirs.text, width, colour=colours()).splitlines()
    for one in part.findings:
        yield from _drawn_finding(one, width)
    for words in part.words:
        yield from _fit(words.text, width).splitlines()


def _drawn_finding(one: FindingView, width: int) -> Iterable[str]:
    number = f"{one.number}. "
    under = " " * len(number)
    yield from _fit(f"{number}{one.claim.text}", width).splitlines()
    if one.quote:
        quote = "\n".join(under + line for line in f'"{one.quote.text}"'.splitlines())
        for line in _fit(quote, width).splitlines():
            yield styled(line, italic=True)
        colour = _VERDICT_COLOURS.get(one.verdict, "yellow")
        yield styled(_fit(f"{under}{one.checked}", width), fg=colour)
    if one.source:
        yield from _fit(f"{under}source: {one.source.text}", width).splitlines()
    if one.found_in:
        yield from _fit(f"{under}quote found in: {one.found_in.text}", width).splitlines()


def _fit(text: str, width: int) -> str:
    return wrapped(clean(text)[0], width)


# -- --artifacts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavedFiles:
    """The copies of a run's files.

    Attributes:
        files: Each name, and the path of its copy.
        notes: A sentence about each copy.
        faults: A sentence about each file that was not copied.
    """

    files: tuple[tuple[str, Path], ...] = ()
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        return [*self.notes, *self.faults]

    def as_json(self) -> dict[str, Any]:
        files = [{"name": name, "path": str(path)} for name, path in self.files]
        return {"files": files, "notes": list(self.notes), "faults": list(self.faults)}


def check_folder(folder: Path) -> None:
    """Raises BadInput, before the run: files cannot be copied into the folder."""
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise BadInput(f"--artifacts: {existing} is not a folder; name an existing one, or one that can be created")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise BadInput(f"--artifacts: {existing} is not writable; name another folder")


def save_artifacts(answer: RunAnswer, source: DeliveredFiles, folder: Path) -> SavedFiles:
    """Copy a run's files and overwrite nothing. Blocking."""
    result = answer.untrusted_result
    if result is None or not result.artifacts:
        return SavedFiles(notes=("It delivered no files.",))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{folder} cannot be created: {error.strerror}. They are in {source.folder}."
        return SavedFiles(faults=(f"No file was copied: {why}",))
    copies: list[tuple[str, Path]] = []
    notes: list[str] = []
    faults: list[str] = []
    for file in result.artifacts:
        name = str(file.get("name"))
        path, sentence = _copy(source, file, folder, answer.subagent_id)
        if path is None:
            faults.append(sentence)
        else:
            copies.append((name, path))
            notes.append(sentence)
    return SavedFiles(tuple(copies), tuple(notes), tuple(faults))


def _copy(source: DeliveredFiles, file: dict[str, Any], folder: Path, run_id: str) -> tuple[Path | None, str]:
    """Copy one file, under a name with the run's id if its own is in use; return its path and a sentence."""
    name = str(file.get("name"))
    try:
        data = source.read(file)
    except Refused as error:
        return None, f"Not copied: {error}."
    other_name = f"{name}-{run_id}"
    stem, _dot, ending = name.rpartition(".")
    if stem:
        other_name = f"{stem}-{run_id}.{ending}"
    path, other_path = folder / name, folder / other_name
    notes = {path: "", other_path: f" (another file is called {name} there, and is kept)"}
    for each, note in notes.items():
        try:
            _write_new(each, data)
        except FileExistsError:
            if _contains(each, data):
                return each, f"The same file already exists: {each}"
        except OSError as error:
            return None, f"Not copied: {each} cannot be written: {error.strerror}."
        else:
            return each, f"Copied to {each}{note}"
    return None, f"Not copied: {path} and {other_path} already exist, and are kept."


def _write_new(path: Path, data: bytes) -> None:
    """Remove a partly written file. Raises OSError if it exists, or cannot be written."""
    with path.open("xb") as file:  # follows no link
        try:
            file.write(data)
            file.flush()
        except OSError:
            path.unlink(missing_ok=True)
            raise


def _contains(path: Path, data: bytes) -> bool:
    try:
        return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False

"""The result of a run: Markdown for a pipe or a file, drawn on a terminal; its files; and the exit codes of endings.

What the subagent wrote stands in parts of its own, so that a terminal can set it apart from Ava's words.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ava_audit.events import WHOLE
from ava_roles.wrap import BAR, add_bars, clean
from ava_server.cli.terminal import colours, columns, one_line, say, styled, wrapped, write
from ava_server.core.commands import advice
from ava_server.core.errors import BadInput, Refused
from ava_server.core.ids import state_words
from ava_server.render.result import FindingView, Result, UntrustedText, artifact_text, cost_notes, printed, result_of

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.render.responses import RunAnswer
    from ava_server.service.records import DeliveredFiles

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
"""Exit codes by ending; that of an error depends on its kind."""
_ERROR_CODES, _MODEL = {"verification": 21, "unread": 22, "workshop": 30, "internal": 70, "store": 70}, 20
WIDEST = 100
"""Columns of running text at most: longer lines are hard to read."""
_MARKDOWN_BAR = "> "
"""Begins each line that a subagent wrote, in Markdown; on a terminal, `BAR` does."""
_VERDICT_COLOURS = {"found": "green", "near": "yellow", "not_found": "red"}


def exit_code(run: RunRow) -> int:
    return _ERROR_CODES.get(run.error_kind or "", _MODEL) if run.state == "error" else ENDING_CODES[run.state]


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


def parts_of(run: RunAnswer, *, brief: bool = False, saved: SavedFiles | None = None) -> list[ResultPart]:
    """Return a run's result in parts; of a run that has not ended, what it waits for.

    `brief` leaves out an output that the findings repeat; the offline reader's always do. `saved`: copies of its files.
    """
    if run.state != "error" and run.state not in ENDING_CODES:
        lines = [f"Waits for: {run.waits_for}"] if run.waits_for else []
        if run.ends_with_host:
            lines.append(f"Not as approved: {run.ends_with_host}")
        parts = [
            ResultPart("", tuple(lines)),
            ResultPart("Question", theirs=UntrustedText(run.untrusted_question or "")),
        ]
    else:
        result = result_of(run)
        failed = result is not None and result.error
        error = (UntrustedText(f"Error: {one_line(failed.text)}"),) if failed else ()
        parts = [ResultPart("", tuple(_ending(run, result)), words=error)]
        parts += _parts_of_result(run, result, brief, saved) if result is not None else []
    return [replace(part, lines=tuple(map(advice, part.lines))) for part in parts if not part.empty]


def _ending(run: RunAnswer, result: Result | None) -> Iterable[str]:
    """Yield why a run ended otherwise than by success, and what to do."""
    if run.state != "success":
        may_lack = "" if run.state in WHOLE else " It may be incomplete."
        yield f"Ended as {state_words(run.state)}: {run.stop_reason or 'no reason is known'}.{may_lack}"
    if result is not None and run.error and run.error.get("what_to_do"):
        yield f"What to do: {_next_step(run, run.error)}"
    if run.advice:
        yield f"What to do: {run.advice}"


def _parts_of_result(run: RunAnswer, result: Result, brief: bool, saved: SavedFiles | None) -> list[ResultPart]:
    is_offline = (run.model or "").startswith("offline/")
    repeats = bool(result.findings or result.sources) and (brief or is_offline)
    caveats = "\n".join(f"- {one_line(caveat.text)}" for caveat in result.caveats)
    parts = [
        ResultPart("Summary", theirs=result.summary),
        ResultPart("Output", theirs=_NOTHING if repeats else result.output),
        ResultPart("Findings, each with its source", _quote_lines(run, result, brief), findings=(*result.findings,)),
    ]
    for title, found in result.sources:
        sources = "\n".join(f"- {one.source.text}" for one in found)
        parts.append(ResultPart(title, words=(UntrustedText(sources),)))
    parts.append(ResultPart("Caveats", theirs=UntrustedText(caveats)))
    parts.append(ResultPart("Changes", (*result.changes,), words=(*result.changed,)))
    parts.append(ResultPart("Figures", _figure_lines(run, result, saved)))
    return parts


def _quote_lines(run: RunAnswer, result: Result, brief: bool) -> tuple[str, ...]:
    lines = [result.quotes] if result.quotes else []
    if result.findings and result.first_source and not brief:
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
        theirs = [part.theirs.text.strip("\n")] if part.theirs else []
        theirs += map(_finding_text, part.findings)
        theirs += [words.text for words in part.words]
        if theirs:
            blocks.append(add_bars("\n\n".join(theirs), _MARKDOWN_BAR))
        lines: Iterable[str] = part.lines
        if part.title:
            lines = [line if line.startswith(" ") else f"- {line}" for line in part.lines if line.strip()]
        if lines:
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


_SET_KEY = re.compile(r"([Ss])tore a valid key with `ava key set`")


def _next_step(run: RunAnswer, error: Mapping[str, Any]) -> str:
    """Return what a person at a terminal can do about an error: the log names neither the provider nor commands."""
    from ava_server.cli.options import name_options
    from ava_server.models.selection import CUSTOM

    step, provider = str(error["what_to_do"]), (run.model or "").partition(":")[0]
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
    known = {name: value for name, value in (run.cost_by or {}).items() if value and name != "uncosted"}
    parts = [f"{name} {format_usd(micros_from_cents(value))}" for name, value in known.items()]
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
    copied = saved or {}
    if sys.stdout.isatty():
        shown = [drawn_result(run, columns(), saved=copied.get(run.subagent_id)) for run in runs]
        write(f"\n\n{'─' * min(columns(), WIDEST)}\n\n".join(shown))
    else:
        say(results_text(runs, copied))


def results_text(runs: Iterable[RunAnswer], saved: Mapping[str, SavedFiles]) -> str:
    return "\n\n".join(result_text(run, saved=saved.get(run.subagent_id)) for run in runs)


def drawn_result(run: RunAnswer, width: int, *, brief: bool = False, saved: SavedFiles | None = None) -> str:
    """Return a result as it stands on a terminal of so many columns; nothing in it steers that."""
    width = min(width, WIDEST)
    blocks = [] if brief else [styled(_fitted(run.status_line, width), bold=True)]
    blocks += ["\n".join(_drawn(part, width)) for part in parts_of(run, brief=brief, saved=saved)]
    return "\n\n".join(blocks)


def _drawn(part: ResultPart, width: int) -> Iterable[str]:
    if part.title:
        yield styled(part.title, fg="cyan", bold=True)
    yield from (f"{BAR}{line}".rstrip() for line in _drawn_theirs(part, width - len(BAR)))
    yield from (_fitted(line, width) for line in part.lines)


def _drawn_theirs(part: ResultPart, width: int) -> Iterable[str]:
    """Yield the lines that the subagent wrote, without bars."""
    if part.theirs:
        from ava_server.cli.markdown import drawn

        yield from drawn(part.theirs.text, width, colour=colours()).splitlines()
    for one in part.findings:
        yield from _fitted(f"{one.number}. {one.claim.text}", width).splitlines()
        under = " " * len(f"{one.number}. ")
        if one.quote:
            quote = "\n".join(under + line for line in f'"{one.quote.text}"'.splitlines())
            for line in _fitted(quote, width).splitlines():
                yield styled(line, italic=True)
            colour = _VERDICT_COLOURS.get(one.verdict, "yellow")
            yield styled(_fitted(f"{under}{one.checked}", width), fg=colour)
        if one.source:
            yield from _fitted(f"{under}source: {one.source.text}", width).splitlines()
        if one.found_in:
            yield from _fitted(f"{under}quote found in: {one.found_in.text}", width).splitlines()
    for words in part.words:
        yield from _fitted(words.text, width).splitlines()


def _fitted(text: str, width: int) -> str:
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
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise BadInput(f"--artifacts: {there} is not a folder; name an existing one, or one that can be created")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInput(f"--artifacts: {there} is not writable; name another folder")


def save_artifacts(answer: RunAnswer, source: DeliveredFiles, folder: Path) -> SavedFiles:
    """Copy a run's files and overwrite nothing. Blocking."""
    artifacts = answer.untrusted_result.artifacts if answer.untrusted_result is not None else []
    if not artifacts:
        return SavedFiles(notes=("It delivered no files.",))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{folder} cannot be created: {error.strerror}. They are in {source.folder}."
        return SavedFiles(faults=(f"No file was copied: {why}",))
    copies = [_copy(source, file, folder, answer.subagent_id) for file in artifacts]
    return SavedFiles(
        tuple((name, path) for name, path, _sentence in copies if path is not None),
        tuple(sentence for _name, path, sentence in copies if path is not None),
        tuple(sentence for _name, path, sentence in copies if path is None),
    )


def _copy(source: DeliveredFiles, file: dict[str, Any], folder: Path, run_id: str) -> tuple[str, Path | None, str]:
    """Copy one file, under a name with the run's id if its own is taken; return name, path and a sentence."""
    name = str(file.get("name"))
    try:
        data = source.read(file)
    except Refused as error:
        return name, None, f"Not copied: {error}."
    stem, dot, ending = name.rpartition(".")
    other = f"{stem}-{run_id}.{ending}" if dot and stem else f"{name}-{run_id}"
    for each in (name, other):
        path = folder / each
        try:
            _write_new(path, data)
        except FileExistsError:
            if _contains(path, data):
                return name, path, f"The same file already exists: {path}"
        except OSError as error:
            return name, None, f"Not copied: {path} cannot be written: {error.strerror}."
        else:
            why = "" if each == name else f" (another file is called {name} there, and is kept)"
            return name, path, f"Copied to {path}{why}"
    return name, None, f"Not copied: {folder / name} and {folder / other} already exist, and are kept."


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

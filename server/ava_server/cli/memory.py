"""`ava memory`: the notes that subagents may recall. People and orchestrators write them; subagents only read."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ava_roles.memory import NOTE_BYTES, Memory, Note, Notes, best_notes
from ava_roles.sandbox.paths import shown
from ava_server.cli.log_access import checked_root, read_settings
from ava_server.cli.options import Json
from ava_server.cli.options import notes as note_names
from ava_server.cli.terminal import aligned, columns, confirm, cut, heading, present, say, tell
from ava_server.config.memory_notes import Notebook, note_name, text_of
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import BadInput
from ava_server.core.threads import run_async

memory_command = typer.Typer(invoke_without_command=True)

BEST = 5
_FIRST_LINE_CHARS = 100
"""The length of a first line where the screen's width is unknown."""
_MOST_SKIPPED = 20
"""The most skipped files that a screen names."""

_NAME_HELP = "Lower case letters, digits, - and _, such as house-rules."
_Name = Annotated[str, typer.Argument(metavar="NAME", help=_NAME_HELP, autocompletion=note_names)]


class _TextCommand(TyperCommand):
    """A command whose last argument is a text, which may begin with `-` as a list does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = True
        rest = super().parse_args(ctx, args)
        text = ctx.params.get("text") or ""
        if text.startswith("--") and len(text.split()) == 1:
            raise BadInput("add: unknown option; `ava memory add --help` shows the options.")
        return rest


@memory_command.callback()
def _list_by_default(ctx: typer.Context) -> None:
    """Notes that subagents may recall: people and orchestrators write them, subagents only read."""
    if ctx.invoked_subcommand is None:
        list_command()


@memory_command.command("list", short_help="List the notes; so does `ava memory` alone.")
def list_command(as_json: Json = False) -> None:
    """List the notes: name, date of the last change, size and first line."""
    root = checked_root(show=False)
    notes = Notebook(Memory(root.memory)).all()
    fields = {
        "notes": [_fields(note) | {"first_line": note.first_line} for note in notes.notes],
        "passed_over": [{"file": each.file, "why": each.why} for each in notes.passed_over],
    }
    none = "No notes. Write one with `ava memory add NAME`; every subagent may then read it."
    present(root, as_json, fields, _table(notes.notes) or [none])
    if not as_json:
        _tell_skipped(notes)


def _table(notes: Sequence[Note]) -> list[str]:
    """Return a line for each note: name, day, size, and as much of its first line as the screen has room for."""
    heads = aligned(((note.name, _day(note), f"{note.size:,} bytes") for note in notes), right=[2])
    width = _FIRST_LINE_CHARS
    if heads and sys.stdout.isatty():
        width = max(columns(sys.stdout) - len(heads[0]) - 2, 20)
    return [f"{head}  {cut(note.first_line, width)}" for head, note in zip(heads, notes, strict=True)]


@memory_command.command("add", cls=_TextCommand, short_help="Write a note, or add to one.")
def add_command(
    name: _Name,
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="The note's text; if it is missing or -, it is read from a pipe."),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Add to the end of an existing note.")] = False,
) -> None:
    """Write a note that all your subagents may recall from their next proposal on: facts and rules, no secrets.

    An existing note is not overwritten. A note has at most 100,000 bytes.
    """
    name = note_name(name)
    root, book = _open_for_writing()
    heading(root)
    before = book.find(name)
    if text is None or text == "-":
        text = _read_pipe(name, book)
    note = book.add(name, text, append=append)
    what = "Wrote" if before is None else "Added to"
    say(f"{what} {note.name}: {note.size:,} bytes in {book.memory.path(name)}.")


@memory_command.command("show", short_help="Show a note.")
def show_command(name: _Name, as_json: Json = False) -> None:
    """Show a note, without invisible and control characters."""
    root = checked_root(show=False)
    note = Notebook(Memory(root.memory)).get(note_name(name))
    head = f"{note.name}: {note.size:,} bytes, changed {_day(note)}\n"
    present(root, as_json, {**_fields(note), "text": note.text}, [head, note.text.removesuffix("\n")])


@memory_command.command("remove", short_help="Remove a note, after a question.")
def remove_command(
    name: _Name, yes: Annotated[bool, typer.Option("-y", "--yes", help="Remove it without asking.")] = False
) -> None:
    """Remove a note, after a question. Passages that a subagent has recalled stay in its log."""
    name = note_name(name)
    root, book = _open_for_writing()
    heading(root)
    if not os.path.lexists(book.memory.path(name)):
        book.get(name)  # raises that there is none
    if not yes:
        run_async(confirm, f"Remove the note {name} for ever?", "removed")
    book.remove(name)
    say(f"Removed {name}.")


@memory_command.command("search", short_help="Show the passages that match some words best.")
def search_command(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="Words or a question.")], as_json: Json = False
) -> None:
    """Show the passages that match best, as a subagent finds them."""
    root = checked_root(show=False)
    notes = Notebook(Memory(root.memory)).all()
    query = " ".join(words)[:1_000]
    entries: list[dict[str, object]] = []
    lines: list[str] = []
    for file in best_notes(notes.notes, query, BEST, lambda text: text):
        passages = [{"where": each.where, "text": each.text} for each in file.passages]
        entries.append({"name": file.path, "passages": passages})
        for passage in file.passages:
            lines.append(f"\n{file.path}, {passage.where}:")
            lines += [f"  {line}" for line in passage.text.splitlines()]
    none = f"None of {len(notes.notes)} notes has a matching passage."
    present(root, as_json, {"query": query, "notes": entries}, lines or [none])
    if not as_json:
        _tell_skipped(notes)


def _open_for_writing() -> tuple[DataRoot, Notebook]:
    """Return the data root and its notes, with every secret known so that none is stored.

    Raises AvaError if the secrets cannot be read, so a text that contains one would not be noticed.
    """
    from ava_server.config.credentials import Credentials

    if os.environ.get("AVA_RUN_ID"):
        raise BadInput("ava memory: this process belongs to a subagent, and subagents only read memory.")
    root = checked_root(show=False)
    credentials = Credentials(read_settings(root))
    _known = credentials.models, credentials.secrets  # reading them teaches the redactor
    root.create()
    return root, Notebook(Memory(root.memory), credentials.redactor)


def _read_pipe(name: str, book: Notebook) -> str:
    """Raises BadInput if there is no pipe, or the text cannot be a note."""
    if sys.stdin.isatty():
        raise BadInput(
            f"Give the text after the name, or pipe it in (ava memory add {name} < FILE), or write the file yourself:"
            f" {book.memory.path(name)}"
        )
    return text_of(sys.stdin.buffer.read(NOTE_BYTES + 1))


def _fields(note: Note) -> dict[str, object]:
    changed = datetime.fromtimestamp(note.changed_s, UTC)
    return {"name": note.name, "bytes": note.size, "changed": f"{changed:%Y-%m-%dT%H:%M:%SZ}"}


def _day(note: Note) -> str:
    return f"{datetime.fromtimestamp(note.changed_s, UTC):%Y-%m-%d}"


def _tell_skipped(notes: Notes) -> None:
    for each in notes.passed_over[:_MOST_SKIPPED]:
        tell(f"Skipped: {shown(each.file)}: {each.why}.")
    others = len(notes.passed_over) - _MOST_SKIPPED
    if others > 0:
        tell(f"Skipped: {others:,} more; `ava memory list --json` has all.")

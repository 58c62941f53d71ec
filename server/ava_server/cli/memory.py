"""`ava memory`: the notes that subagents may recall. People and orchestrators write them; subagents never do."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from typer.core import TyperCommand

from ava_server.cli.app import heading
from ava_server.cli.root import has_log
from ava_server.cli.terminal import agrees, columns, cut, say, say_json, someone_there, tell
from ava_server.core.data_root import DataRoot, find_data_root
from ava_server.core.errors import BadInput, Refused

if TYPE_CHECKING:
    from ava_roles.memory import Note, Notes
    from ava_server.config.memory_notes import Notebook

BEST = 5
_FIRST = 100
"""Characters of a first line where nothing says how wide the screen is."""
_TOLD = 20
"""Files that are no notes and that a screen names."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="Lower case letters, digits, - and _, such as house-rules.")]
AsJson = Annotated[bool, typer.Option("--json", help="As one JSON object.")]


class _TextLast(TyperCommand):
    """A command whose last argument is a text, which may begin with `-` as a list does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            BadInput: There is an option that there is not.
        """
        ctx.ignore_unknown_options = True
        rest = super().parse_args(ctx, args)
        text = ctx.params.get("text") or ""
        if text.startswith("--") and len(text.split()) == 1:
            raise BadInput("add: there is no such option; `ava memory add --help` shows those that there are.")
        return rest


def register(app: typer.Typer) -> None:
    """Add `ava memory` to the app."""
    memory = typer.Typer(help="Notes that subagents may recall.", invoke_without_command=True)
    memory.callback()(_without_word)
    memory.command("list", short_help="List the notes; `ava memory` alone does too.")(list_command)
    memory.command("add", cls=_TextLast, short_help="Write a note, or add to one.")(add_command)
    memory.command("show", short_help="Show a note.")(show_command)
    memory.command("edit", short_help="Open a note in your editor.")(edit_command)
    memory.command("remove", short_help="Remove a note, after a question.")(remove_command)
    memory.command("search", short_help="Show the passages that fit some words best.")(search_command)
    app.add_typer(memory, name="memory")


def _without_word(ctx: typer.Context) -> None:
    """Notes that subagents may recall: people and orchestrators write them, subagents only read."""
    if ctx.invoked_subcommand is None:
        list_command()


def list_command(as_json: AsJson = False) -> None:
    """List the notes, as `ava memory` alone does: name, when it was changed, size and first line."""
    root = _root()
    found = _book(root).all()
    if as_json:
        say_json(
            {
                "data_root": str(root.path),
                "notes": [_figures(note) | {"first_line": note.first_line} for note in found.notes],
                "passed_over": [{"file": each.file, "why": each.why} for each in found.passed_over],
            }
        )
        return
    heading(root)
    name, size = (max((len(text) for text in texts), default=0) for texts in _columns(found))
    for note in found.notes:
        line = f"{note.name:<{name}}  {_day(note)}  {f'{note.size:,} bytes':>{size}}  "
        room = columns(sys.stdout) - len(line) if sys.stdout.isatty() else _FIRST
        say(line + cut(note.first_line, max(room, 20)))
    if not found.notes:
        say("No notes. Write one with `ava memory add NAME`; every subagent may then read it.")
    _say_passed_over(found)


def add_command(
    name: Name,
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="What the note says; without it, or with -, it is read from a pipe."),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Add to the end of a note that is there.")] = False,
) -> None:
    """Write a note that every subagent of yours may recall from its next proposal on: facts and rules, no secrets.

    One that is there is not overwritten. A note has at most 100,000 bytes.
    """
    from ava_server.config.memory_notes import note_name

    name = note_name(name)
    root, book = _writing()
    heading(root)
    before = book.find(name)
    note = book.add(name, _piped(name) if text in (None, "-") else str(text), append=append)
    say(f"{'Wrote' if before is None else 'Added to'} {note.name}: {note.size:,} bytes in {book.memory.path(name)}.")


def show_command(name: Name, as_json: AsJson = False) -> None:
    """Show a note; what would not be seen, or would steer a terminal, is left out."""
    from ava_server.config.memory_notes import note_name

    root = _root()
    note = _book(root).get(note_name(name))
    if as_json:
        say_json({"data_root": str(root.path), **_figures(note), "text": note.text})
        return
    heading(root)
    say(f"{note.name}: {note.size:,} bytes, changed {_day(note)}\n")
    say(note.text.removesuffix("\n"))


def edit_command(name: Name) -> None:
    """Open a copy of a note, or of a new one, in $VISUAL or $EDITOR, and keep what is saved, checked as with add."""
    from ava_server.cli.editor import edited
    from ava_server.config.memory_notes import note_name

    name = note_name(name)
    root, book = _writing()
    heading(root)
    note = edited(book, name)
    say(f"{name} is as it was." if note is None else f"Wrote {name}: {note.size:,} bytes in {book.memory.path(name)}.")


def remove_command(
    name: Name, yes: Annotated[bool, typer.Option("--yes", help="Remove it without asking.")] = False
) -> None:
    """Remove a note, after a question. What a subagent has recalled of it stays in that one's log."""
    from ava_server.config.memory_notes import note_name

    name = note_name(name)
    root, book = _writing()
    heading(root)
    if not os.path.lexists(book.memory.path(name)):
        book.get(name)  # says that there is none
    if not yes:
        if not someone_there():
            raise BadInput(
                "There is no terminal to ask on, so nothing was removed. Run it in a terminal, or add --yes."
            )
        if not anyio.run(agrees, f"Remove the note {name} for good?"):
            raise Refused("Nothing was removed.")
    book.remove(name)
    say(f"Removed {name}.")


def search_command(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="Words or a question.")], as_json: AsJson = False
) -> None:
    """Show the passages that fit best, as a subagent finds them that recalls."""
    from ava_roles.memory import best_notes

    root = _root()
    found = _book(root).all()
    query = " ".join(words)[:1_000]
    files = best_notes(found.notes, query, BEST, lambda text: text)
    if as_json:
        notes = [
            {"name": file.path, "passages": [{"where": each.where, "text": each.text} for each in file.passages]}
            for file in files
        ]
        say_json({"data_root": str(root.path), "query": query, "notes": notes})
        return
    heading(root)
    for file in files:
        for passage in file.passages:
            say(f"\n{file.path}, {passage.where}:")
            say("\n".join(f"  {line}" for line in passage.text.splitlines()))
    if not files:
        say(f"No passage of {len(found.notes)} notes fits.")
    _say_passed_over(found)


def _root() -> DataRoot:
    root = find_data_root()
    has_log(root)
    return root


def _book(root: DataRoot) -> Notebook:
    from ava_roles.memory import Memory
    from ava_server.config.memory_notes import Notebook

    return Notebook(Memory(root.memory))


def _writing() -> tuple[DataRoot, Notebook]:
    """Return the data root and its notes, to be written with every secret known.

    Raises:
        BadInput: This is a subagent's process.
        AvaError: What is secret cannot be read, so that nobody could tell whether a text holds it.
    """
    from ava_roles.memory import Memory
    from ava_server.config.credentials import Credentials
    from ava_server.config.memory_notes import Notebook
    from ava_server.config.settings import load_settings
    from ava_server.service.runtime import refuse_recursion

    if refuse_recursion():
        raise BadInput("ava memory: this process belongs to a subagent, and subagents only read memory.")
    root = _root()
    credentials = Credentials(load_settings(root.path))
    _known = credentials.models, credentials.secrets  # the redactor learns what they hold
    root.create()
    return root, Notebook(Memory(root.memory), credentials.redactor)


def _piped(name: str) -> str:
    """Return the text from standard input.

    Raises:
        BadInput: Nobody pipes any, or it can be none.
    """
    from ava_roles.memory import NOTE_BYTES
    from ava_server.config.memory_notes import text_of

    if sys.stdin.isatty():
        raise BadInput(
            f"Give the text after the name, or pipe it in (ava memory add {name} < FILE), or write it with"
            f" `ava memory edit {name}`."
        )
    return text_of(sys.stdin.buffer.read(NOTE_BYTES + 1))


def _columns(found: Notes) -> tuple[list[str], list[str]]:
    return [note.name for note in found.notes], [f"{note.size:,} bytes" for note in found.notes]


def _figures(note: Note) -> dict[str, object]:
    changed = datetime.fromtimestamp(note.changed_s, UTC)
    return {"name": note.name, "bytes": note.size, "changed": f"{changed:%Y-%m-%dT%H:%M:%SZ}"}


def _day(note: Note) -> str:
    return f"{datetime.fromtimestamp(note.changed_s, UTC):%Y-%m-%d}"


def _say_passed_over(found: Notes) -> None:
    from ava_roles.sandbox.paths import shown

    for each in found.passed_over[:_TOLD]:
        tell(f"Passed over: {shown(each.file)}: {each.why}.")
    if len(found.passed_over) > _TOLD:
        tell(f"Passed over besides: {len(found.passed_over) - _TOLD:,} more; `ava memory list --json` has all.")

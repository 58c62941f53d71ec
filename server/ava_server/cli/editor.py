"""A note in a person's own editor: a copy is opened, and what is saved takes the note's place as a whole."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from ava_server.cli.terminal import agrees, someone_there, tell
from ava_server.config.memory_notes import text_of
from ava_server.core.errors import BadInput, ConfigError, Refused
from ava_server.core.files import create_file

if TYPE_CHECKING:
    from ava_roles.memory import Note
    from ava_server.config.memory_notes import Notebook


def edited(book: Notebook, name: str) -> Note | None:
    """Return the note as it was saved; None where nothing was changed.

    Raises:
        ConfigError: There is no editor, or it did not end well.
        BadInput: What was saved can be no note.
        Refused: The note was changed by somebody else meanwhile; what was saved is kept, and said where.
    """
    editor = _editor(book, name)
    before = book.find(name)
    book.make_folder()
    folder = Path(tempfile.mkdtemp(prefix=".edit-", dir=book.memory.folder))  # for its owner alone
    draft = folder / f"{name}.md"
    kept = False
    try:
        create_file(draft, before.text.encode() if before is not None else b"")
        while True:
            _open(editor, draft)
            try:
                text = text_of(draft.read_bytes())
                if text == (before.text if before is not None else ""):
                    return None
                return book.replace(name, text, before)
            except BadInput as refused:
                if not someone_there():
                    raise
                tell(str(refused))
                if not anyio.run(agrees, "Open it again?"):
                    raise Refused("What was saved is dropped; the note is as it was.") from None
            except Refused as changed:
                kept = True
                raise Refused(f"{changed} What you saved stands in {draft}.") from None
            except OSError as failed:
                raise ConfigError(f"What the editor left cannot be read: {failed.strerror}.") from failed
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _editor(book: Notebook, name: str) -> list[str]:
    """Return the command of the editor.

    Raises:
        ConfigError: None is set; says which file to change.
    """
    given = os.environ.get("VISUAL", "").strip() or os.environ.get("EDITOR", "").strip()
    path = book.memory.path(name)
    if not given:
        raise ConfigError(f"No editor is set. Set VISUAL or EDITOR, or change the file yourself: {path}")
    try:
        words = shlex.split(given, posix=os.name != "nt")
    except ValueError:
        raise ConfigError(
            f"VISUAL or EDITOR is no command line. Mend it, or change the file yourself: {path}"
        ) from None
    return words


def _open(editor: list[str], draft: Path) -> None:
    """Run the editor until it ends; Ctrl-C in it is its own affair.

    Raises:
        ConfigError: It could not be started, or did not end well.
    """
    before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        code = subprocess.run([*editor, str(draft)], check=False).returncode  # noqa: S603 - the person's own
    except OSError as failed:
        raise ConfigError(f"The editor {editor[0]} could not be started: {failed.strerror}. Set EDITOR.") from failed
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        raise ConfigError(f"The editor {editor[0]} ended with code {code}; nothing was changed.")

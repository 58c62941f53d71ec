"""Memory: notes that people and orchestrators keep for subagents, a Markdown file each. A subagent only reads them.

Whoever may write such a file speaks to every subagent, so a note is read only where nobody else can have written it,
and through no link. What lies in the folder beside the notes is told, and passed over.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ava_roles.errors import ToolFailed
from ava_roles.passages import FileMatch, PassageIndex, query_words, split_passages
from ava_roles.sandbox.paths import Entry, Root

NOTE_BYTES = 100_000
NOTES_MOST = 500
SUFFIX = ".md"
NAME_RULE = "lower case letters, digits, - and _, a letter or digit first, at most 64"

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_DEVICES = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]")  # what Windows takes for one, with any suffix


@dataclass(frozen=True)
class Note:
    """A note.

    Attributes:
        name: The file's name without `.md`.
        text: All of it.
        size: Bytes.
        changed_s: When the file was last changed, seconds since 1970.
    """

    name: str
    text: str
    size: int
    changed_s: float

    @property
    def first_line(self) -> str:
        """The first line that says something, without the marks of a heading."""
        return next((bare for line in self.text.splitlines() if (bare := line.strip().lstrip("#").strip())), "")


@dataclass(frozen=True)
class PassedOver:
    """Something in the folder that is no note: its name as the system has it, and why."""

    file: str
    why: str


@dataclass(frozen=True)
class Notes:
    """What is in a memory: its notes, by name, and what was passed over."""

    notes: tuple[Note, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()


def is_note_name(name: str) -> bool:
    """Tell whether a note can have this name, on every system."""
    return bool(_NAME.fullmatch(name)) and not _DEVICES.fullmatch(name)


class Memory:
    """The notes of one user. Everything here blocks: callers put it in a thread.

    Args:
        folder: Where they are; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """Return the file of a note."""
        return self.folder / f"{name}{SUFFIX}"

    def check(self) -> None:
        """Look whether the folder, where there is one, can be read.

        Raises:
            ToolFailed: It cannot, or may not be trusted.
        """
        with self._opened():
            pass

    def is_empty(self) -> bool:
        """Tell whether there is nothing that could be read; a folder that may not be trusted has nothing."""
        try:
            with self._opened() as root:
                return root is None or not any(self._fault(entry) is None for entry in root.entries())
        except ToolFailed:
            return True

    def read(self) -> Notes:
        """Return all notes.

        Raises:
            ToolFailed: The folder cannot be read, or may not be trusted.
        """
        notes: list[Note] = []
        passed_over: list[PassedOver] = []
        with self._opened() as root:
            for entry in root.entries() if root is not None else ():
                if entry.name.startswith("."):  # an editor's, a lock's
                    continue
                why = self._fault(entry) if len(notes) < NOTES_MOST else f"there are more than {NOTES_MOST} notes"
                assert root is not None
                found = why or self._read(root, entry.name.removesuffix(SUFFIX))
                if isinstance(found, Note):
                    notes.append(found)
                else:
                    passed_over.append(PassedOver(entry.name, found))
        return Notes(tuple(notes), tuple(passed_over))

    def note(self, name: str) -> Note | None:
        """Return one note, or None where there is none of this name.

        Raises:
            ToolFailed: It cannot be read, or may not be trusted.
        """
        if not is_note_name(name):
            return None
        with self._opened() as root:
            entries = root.entries() if root is not None else []
            entry = next((entry for entry in entries if entry.name == f"{name}{SUFFIX}"), None)
            if root is None or entry is None:
                return None
            found = self._fault(entry) or self._read(root, name)
        if isinstance(found, Note):
            return found
        raise ToolFailed(f"the note {name} cannot be read: {found}")

    @contextmanager
    def _opened(self) -> Generator[Root | None]:
        """Hold the folder open; None where there is none.

        Raises:
            ToolFailed: It cannot be opened, or may not be trusted.
        """
        try:
            status = self.folder.lstat()
            if why := self._untrusted(status, folder=True):
                raise ToolFailed(f"the memory folder {why}")
            root = Root.open(self.folder)
        except FileNotFoundError:
            yield None
            return
        except OSError as failed:
            raise ToolFailed(f"the memory folder cannot be opened: {failed.strerror or failed}") from None
        try:
            yield root
        finally:
            root.close()

    def _fault(self, entry: Entry) -> str | None:
        """Return why something in the folder is no note, or None."""
        if entry.kind != "file":
            return {"link": "it is a link", "folder": "it is a folder"}.get(entry.kind, "it is no regular file")
        if not entry.name.endswith(SUFFIX):
            return f"its name does not end with {SUFFIX}"
        if not is_note_name(entry.name.removesuffix(SUFFIX)):
            return f"its name has to be {NAME_RULE}, and {SUFFIX}"
        if entry.size > NOTE_BYTES:
            return f"it has {entry.size:,} bytes, more than {NOTE_BYTES:,}"
        return None

    def _read(self, root: Root, name: str) -> Note | str:
        """Return a note, or why it cannot be read."""
        try:
            status = self.path(name).lstat()
            data, more = root.read(f"{name}{SUFFIX}", NOTE_BYTES)
        except (ToolFailed, OSError):
            return "it may not be read, or has a second name elsewhere (a hard link)"
        if why := self._untrusted(status, folder=False):
            return f"it {why}"
        if more:
            return f"it has more than {NOTE_BYTES:,} bytes"
        try:
            text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
        except UnicodeDecodeError:
            return "it is not UTF-8 text"
        if "\0" in text:
            return "it is no text"
        return Note(name, text, len(data), status.st_mtime)

    def _untrusted(self, status: os.stat_result, *, folder: bool) -> str | None:
        """Return why somebody else may have written what this is of, or None."""
        if folder and not stat.S_ISDIR(status.st_mode):
            return "is no folder, or a link to one; put a folder in its place"
        user = getattr(os, "geteuid", None)  # a mode says nothing, and an owner has no number, where there is none
        if user is None:
            return None
        if status.st_uid not in (0, user()):
            return "belongs to another user; make it your own"
        if status.st_mode & 0o022 and self._others_come_near(folder=folder):
            return "can be written to by others; mend that with chmod go-w"
        return None

    def _others_come_near(self, *, folder: bool) -> bool:
        above = [self.folder.parent] if folder else [self.folder.parent, self.folder]
        with suppress(OSError):
            return all(path.stat().st_mode & 0o011 for path in above)
        return True


def best_notes(notes: Sequence[Note], query: str, most: int, hide: Callable[[str], str]) -> tuple[FileMatch, ...]:
    """Return the best passages of the notes that fit a question best, the note's name for its path.

    Args:
        notes: Where to look.
        query: Words or a question.
        most: Notes to return.
        hide: Replaces secrets in a whole note, before it is cut into passages.
    """
    words = query_words(query)
    names = {file.path for file in _ranked(notes, words, most)}
    # Only what fits is gone through for secrets: all of a memory would take seconds.
    return _ranked([replace(note, text=hide(note.text)) for note in notes if note.name in names], words, most)


def _ranked(notes: Sequence[Note], words: Sequence[str], most: int) -> tuple[FileMatch, ...]:
    with closing(PassageIndex()) as index:
        for note in notes:
            index.add(note.name, split_passages(note.text))
        return index.best(words, most)

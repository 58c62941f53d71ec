"""Memory: notes that people and orchestrators keep for subagents, one Markdown file each. Subagents only read them.

Every subagent can read a note, so a note counts only if no other user can have written it, and never through a link.
Other files in the folder are ignored and reported.
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
from typing import TYPE_CHECKING

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.path_access import FolderEntry
from ava_roles.sandbox.paths import Root

if TYPE_CHECKING:
    from ava_roles.texts.passages import FileMatch, Query

NOTE_BYTES = 100_000
MAX_NOTES = 500
SUFFIX = ".md"
NAME_RULE = "lower case letters, digits, - and _, a letter or digit first, at most 64"

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)  # as Windows sees them


@dataclass(frozen=True)
class Note:
    """A note."""

    name: str
    text: str
    size: int
    changed_s: float

    @property
    def first_line(self) -> str:
        for line in self.text.splitlines():
            words = line.strip().lstrip("#").strip()
            if words:
                return words
        return ""


@dataclass(frozen=True)
class PassedOver:
    """Something in the folder that is not a note: its file name, and why."""

    file: str
    why: str


@dataclass(frozen=True)
class Notes:
    """The content of a memory: its notes, sorted by name, and what was ignored."""

    notes: tuple[Note, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()


def is_note_name(name: str) -> bool:
    """Tell whether a note can have this name on every system."""
    return bool(_NAME.fullmatch(name)) and not DEVICES.fullmatch(name)


class Memory:
    """The notes of one user, in a folder that need not exist. Everything here blocks: call it in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"

    def check(self) -> None:
        """Raise ToolFailed if the folder exists and cannot be read, or if other users can write to it."""
        with self._opened():
            pass

    def is_empty(self) -> bool:
        """Tell whether there are no notes; a folder that other users can write to counts as empty."""
        try:
            with self._opened() as root:
                return root is None or not any(self._fault(entry) is None for entry in root.entries())
        except ToolFailed:
            return True

    def read(self) -> Notes:
        """Return all notes. Raises ToolFailed if the folder cannot be read, or other users can write to it."""
        notes: list[Note] = []
        passed_over: list[PassedOver] = []
        with self._opened() as root:
            if root is None:
                return Notes()
            for entry in root.entries():
                if entry.name.startswith("."):  # such as an editor's or a lock
                    continue
                if len(notes) < MAX_NOTES:
                    note = self._fault(entry) or self._read(root, entry.name.removesuffix(SUFFIX))
                else:
                    note = f"there are more than {MAX_NOTES} notes"
                if isinstance(note, Note):
                    notes.append(note)
                else:
                    passed_over.append(PassedOver(entry.name, note))
        return Notes(tuple(notes), tuple(passed_over))

    def note(self, name: str) -> Note | None:
        """Return the note of this name, if there is one. Raises ToolFailed: unreadable, or others can write to it."""
        if not is_note_name(name):
            return None
        with self._opened() as root:
            if root is None:
                return None
            for entry in root.entries():
                if entry.name == f"{name}{SUFFIX}":
                    break
            else:
                return None
            note = self._fault(entry) or self._read(root, name)
        if isinstance(note, Note):
            return note
        raise ToolFailed(f"the note {name} cannot be read: {note}")

    @contextmanager
    def _opened(self) -> Generator[Root | None]:
        """Hold the folder open; None if there is none. Raises ToolFailed: unreadable, or others can write to it."""
        try:
            status = self.folder.lstat()
            why = self._untrusted(status, folder=True)
            if why:
                raise ToolFailed(f"the memory folder {why}")
            root = Root.open(self.folder)
        except FileNotFoundError:
            yield None
            return
        except OSError as failed:
            raise ToolFailed(f"the memory folder cannot be opened: {failed.strerror or failed}") from None
        with closing(root):
            yield root

    def _fault(self, entry: FolderEntry) -> str | None:
        """Return why something in the folder is not a note; None if it is one."""
        if entry.kind != "file":
            return {"link": "it is a link", "folder": "it is a folder"}.get(entry.kind, "it is not a regular file")
        if not entry.name.endswith(SUFFIX):
            return f"its name does not end with {SUFFIX}"
        if not is_note_name(entry.name.removesuffix(SUFFIX)):
            return f"its name has to be {NAME_RULE}, and {SUFFIX}"
        if entry.size > NOTE_BYTES:
            return f"it has {entry.size:,} bytes, more than {NOTE_BYTES:,}"
        return None

    def _read(self, root: Root, name: str) -> Note | str:
        try:
            status = self.path(name).lstat()
            data, more = root.read(f"{name}{SUFFIX}", NOTE_BYTES)
        except (ToolFailed, OSError):
            return "it may not be read, or has a second name elsewhere (a hard link)"
        why = self._untrusted(status, folder=False)
        if why:
            return f"it {why}"
        if more:
            return f"it has more than {NOTE_BYTES:,} bytes"
        try:
            text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
        except UnicodeDecodeError:
            return "it is not UTF-8 text"
        if "\0" in text:
            return "it is not text"
        return Note(name, text, len(data), status.st_mtime)

    def _untrusted(self, status: os.stat_result, *, folder: bool) -> str | None:
        """Return why another user may have written the file or folder; None if none can."""
        if folder and not stat.S_ISDIR(status.st_mode):
            return "is not a folder, or is a link to one; put a folder in its place"
        user = getattr(os, "geteuid", None)  # on systems without it, modes and owners say nothing
        if user is None:
            return None
        if status.st_uid not in (0, user()):
            return "belongs to another user; make it your own"
        if status.st_mode & 0o022 and self._others_can_reach(folder=folder):
            return "can be written to by others; correct that with chmod go-w"
        return None

    def _others_can_reach(self, *, folder: bool) -> bool:
        above = [self.folder.parent] if folder else [self.folder.parent, self.folder]
        with suppress(OSError):
            return all(path.stat().st_mode & 0o011 for path in above)
        return True


def best_notes(notes: Sequence[Note], query: str, most: int, hide: Callable[[str], str]) -> tuple[FileMatch, ...]:
    """Return the notes that match a question best, with their best passages; `path` is the note's name."""
    from ava_roles.texts.passages import Query

    words = Query(query)
    names = {file.path for file in _ranked(notes, words, most)}
    # Secrets are searched only in matching notes: a whole memory would take seconds.
    matching = [replace(note, text=hide(note.text)) for note in notes if note.name in names]
    return _ranked(matching, words, most)


def _ranked(notes: Sequence[Note], query: Query, most: int) -> tuple[FileMatch, ...]:
    from ava_roles.texts.passages import PassageRanking, split_passages

    ranking = PassageRanking(query)
    for note in notes:
        ranking.add(note.name, split_passages(note.text))
    return ranking.best(most)

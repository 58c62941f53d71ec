"""Writing memory: the notes that a person or an orchestrator keeps for subagents.

Every note is checked for secrets, replaced as a whole, and written by one process at a time.
"""

from __future__ import annotations

import codecs
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ava_roles.errors import ToolFailed
from ava_roles.memory import MAX_NOTES, NAME_RULE, NOTE_BYTES, Memory, Note, Notes, is_note_name
from ava_server.core.errors import BadInput, ConfigError
from ava_server.core.files import make_private_folder, reason, replace_file, writing_alone

if TYPE_CHECKING:
    from ava_audit.redaction import Redactor

_MISSING = "There is no note {}. `ava memory` lists the notes."


def note_name(text: str) -> str:
    """Raises BadInput for an invalid name. The error does not show it: it may be a text or a secret, by mistake."""
    name = text.strip().removesuffix(".md")
    if not is_note_name(name):
        raise BadInput(f"A note's name has {NAME_RULE}, such as house-rules (no name of a device, such as con).")
    return name


def text_of(data: bytes) -> str:
    """Return text with Unix line ends. Raises BadInput if it is too long, or not UTF-8 text."""
    if len(data) > NOTE_BYTES:
        raise BadInput(f"The text has more than {NOTE_BYTES:,} bytes. Put it into several notes, or shorten it.")
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise BadInput("The text is not UTF-8; nothing was written.") from None


class Notebook:
    """Reads and writes the notes of one user; reading needs no `redactor`.

    Its methods raise ConfigError: a note or the folder is not safe to use, or cannot be read or written.
    """

    def __init__(self, memory: Memory, redactor: Redactor | None = None) -> None:
        from ava_audit.redaction import Redactor

        self.memory = memory
        self._redactor = redactor or Redactor({})

    def all(self) -> Notes:
        """Raises ConfigError if the folder cannot be read, or is not safe to use."""
        with self._for_person():
            return self.memory.read()

    def find(self, name: str) -> Note | None:
        with self._for_person():
            return self.memory.note(name)

    def get(self, name: str) -> Note:
        """Raises BadInput if there is none."""
        note = self.find(name)
        if note is None:
            raise BadInput(_MISSING.format(name))
        return note

    def add(self, name: str, text: str, *, append: bool = False) -> Note:
        """Raises BadInput if the note exists (without `append`), or the text is invalid or contains a secret."""
        if not text.strip():
            raise BadInput("No text was given; nothing was written.")
        with self._locked():
            before = self.find(name)
            if before is not None and not append:
                raise BadInput(
                    f"There is a note {name} already ({before.size:,} bytes). Add to it with --append, change it in"
                    f" an editor ({self.memory.path(name)}), or choose another name."
                )
            old = before.text if before is not None else ""
            gap = "\n" if old and not old.endswith("\n") else ""
            return self._write(name, old + gap + text, new=before is None)

    def remove(self, name: str) -> None:
        """Even one that cannot be read. Raises BadInput if there is none."""
        with self._locked():
            try:
                self.memory.path(name).unlink()
            except FileNotFoundError:
                raise BadInput(_MISSING.format(name)) from None

    def _write(self, name: str, text: str, *, new: bool) -> Note:
        text = text if text.endswith("\n") else f"{text}\n"
        self._refuse_secrets(name, text)
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:
            raise BadInput("The text is not UTF-8; nothing was written.") from None
        if "\0" in text:
            raise BadInput("The text contains a zero byte; nothing was written.")
        if len(data) > NOTE_BYTES:
            raise BadInput(
                f"{name} would have {len(data):,} bytes, more than {NOTE_BYTES:,}; nothing was written. Put it into"
                " several notes, or shorten it."
            )
        if new and len(self.memory.read().notes) >= MAX_NOTES:
            raise BadInput(f"There are {MAX_NOTES} notes already; remove one, or add to one with --append.")
        replace_file(self.memory.path(name), data)
        return self.get(name)

    def _refuse_secrets(self, name: str, text: str) -> None:
        """Models read notes. Raises BadInput: says what was found and where, never its value."""
        instead = (
            "Store it with `ava secret set NAME --for HOST` and write {{secret:NAME}} instead, for roles that list"
            " NAME under secrets. Nothing was written."
        )
        if self._redactor.redact(name)[1]:
            raise BadInput(f"The name looks like a key or secret, and models read it. {instead}")
        if self._redactor.redact_values(text)[1]:
            raise BadInput(f"The text contains a key or secret that is stored here, and models read it. {instead}")
        shapes = self._redactor.find_shapes(text)
        if shapes:
            line = text.count("\n", 0, shapes[0].start) + 1
            raise BadInput(f"Line {line} looks like it has a key ({shapes[0].name}), and models read it. {instead}")

    @contextmanager
    def _locked(self) -> Generator[None]:
        folder = self.memory.folder
        make_private_folder(folder)
        with self._for_person():
            self.memory.check()
        try:
            with writing_alone(folder / ".lock", "ava memory", folder), self._for_person():
                yield
        except OSError as failed:
            raise ConfigError(f"{folder} cannot be written: {reason(failed)}.") from failed

    @contextmanager
    def _for_person(self) -> Generator[None]:
        """Turn the error that a tool would give a model into one for a person, with the folder."""
        try:
            yield
        except ToolFailed as failed:
            raise ConfigError(f"{self.memory.folder}: {failed}.") from None

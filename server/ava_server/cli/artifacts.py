"""`--artifacts DIR`: copies the files that a run delivered to a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ava_server.core.errors import BadInput, Refused

if TYPE_CHECKING:
    from ava_server.service.artifacts import RunFiles
    from ava_server.service.responses import RunAnswer


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
        """Return the sentences for people."""
        return [*self.notes, *self.faults]

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain JSON."""
        files = [{"name": name, "path": str(path)} for name, path in self.files]
        return {"files": files, "notes": list(self.notes), "faults": list(self.faults)}


def check_folder(folder: Path) -> None:
    """Check before the run that files can be copied into a folder.

    Raises:
        BadInput: They cannot.
    """
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise BadInput(f"--artifacts: {there} is not a folder; name an existing one, or one that can be created")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInput(f"--artifacts: {there} is not writable; name another folder")


def save_artifacts(answer: RunAnswer, source: RunFiles, folder: Path) -> SavedFiles:
    """Copy a run's files and overwrite nothing. Blocking.

    Args:
        answer: The run with its result.
        source: The files of the run.
        folder: The folder for the copies; created if it is missing.
    """
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


def _copy(source: RunFiles, file: dict[str, Any], folder: Path, run_id: str) -> tuple[str, Path | None, str]:
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
    """Write a new file; a partly written one is removed.

    Raises:
        OSError: It exists, or cannot be written.
    """
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

"""`--artifacts DIR`: the files that a run handed over, copied to where a person wants them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_server.service.responses import RunAnswer

MOST_BYTES = 2_000_000
"""A file that was handed over has at most half of this."""


@dataclass(frozen=True)
class Saved:
    """What became of a run's files.

    Attributes:
        files: Each name, and the path of its copy.
        notes: What there is to know of them, a sentence each.
        faults: Why others were not copied, a sentence each.
    """

    files: tuple[tuple[str, Path], ...] = ()
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return it for people."""
        return [*self.notes, *self.faults]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        files = [{"name": name, "path": str(path)} for name, path in self.files]
        return {"files": files, "notes": list(self.notes), "faults": list(self.faults)}


def check_folder(folder: Path) -> None:
    """See that files can be copied into a folder, before anything is paid for.

    Raises:
        BadInput: They cannot.
    """
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise BadInput(f"--artifacts: {there} is no folder; name one that there is, or one that can be made")
    if not os.access(there, os.W_OK | os.X_OK):
        raise BadInput(f"--artifacts: nothing can be written in {there}; name another folder")


def save_artifacts(answer: RunAnswer, source: Path, folder: Path) -> Saved:
    """Copy what a run handed over; what is there already is left as it is. Blocking.

    Args:
        answer: The run with its result.
        source: The folder of its files in the data root.
        folder: Where to; made when it is not there.
    """
    from ava_roles.sandbox.paths import Root

    handed = answer.untrusted_result.artifacts if answer.untrusted_result is not None else []
    if not handed:
        return Saved(notes=("It handed over no files.",))
    try:
        root = Root.open(source)
    except OSError as error:
        return Saved(faults=(f"No file was copied: {source} cannot be read: {error.strerror}.",))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        copies = [_copy(root, file, folder, answer.subagent_id) for file in handed]
    except OSError as error:
        return Saved(faults=(f"No file was copied: {folder} cannot be made: {error.strerror}. They are in {source}.",))
    finally:
        root.close()
    return _together(copies)


def _together(copies: Sequence[Saved]) -> Saved:
    return Saved(
        tuple(file for each in copies for file in each.files),
        tuple(note for each in copies for note in each.notes),
        tuple(fault for each in copies for fault in each.faults),
    )


def _copy(root: Any, file: dict[str, Any], folder: Path, run_id: str) -> Saved:
    """Copy one file; one of its name that is there keeps it, and the copy is called after its run."""
    from ava_roles.errors import RolesError
    from ava_roles.tools.artifacts import is_artifact_name

    name = str(file.get("name"))
    if not is_artifact_name(name):
        return Saved(faults=(f"Not copied: {name[:100]!r} is no plain file name.",))
    try:
        data, _more = root.read(name, MOST_BYTES)
    except (RolesError, OSError) as error:
        return Saved(faults=(f"Not copied: {name} cannot be read: {error}.",))
    if hashlib.sha256(data).hexdigest() != file.get("sha256"):
        return Saved(faults=(f"Not copied: {name} is not what was handed over any more; the record has its sha256.",))
    stem, dot, ending = name.rpartition(".")
    other = f"{stem}-{run_id}.{ending}" if dot and stem else f"{name}-{run_id}"
    for each in (name, other):
        path = folder / each
        try:
            _write_new(path, data)
        except FileExistsError:
            if _has(path, data):
                return Saved(files=((name, path),), notes=(f"The same is there already: {path}",))
        except OSError as error:
            return Saved(faults=(f"Not copied: {path} cannot be written: {error.strerror}.",))
        else:
            why = "" if each == name else f" (because something else is called {name} there, and stays as it is)"
            return Saved(files=((name, path),), notes=(f"Copied to {path}{why}",))
    return Saved(faults=(f"Not copied: {folder / name} and {folder / other} are there already, and stay as they are.",))


def _write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there; what could not be written whole is removed again.

    Raises:
        OSError: It is there, or cannot be written.
    """
    with path.open("xb") as file:  # follows no link
        try:
            file.write(data)
            file.flush()
        except OSError:
            path.unlink(missing_ok=True)
            raise


def _has(path: Path, data: bytes) -> bool:
    try:
        return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False

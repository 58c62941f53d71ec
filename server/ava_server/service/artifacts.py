"""The files that a run delivered, read back: only those that its result names, and only unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ava_server.core.errors import Refused

if TYPE_CHECKING:
    from ava_audit.store.backend import Blobs
    from ava_roles.sandbox.paths import Root

MOST_BYTES = 2_000_000
"""More than the limit of an artifact."""


class RunFiles:
    """The files of one run: in its folder, or beside the log if another machine has done the run. Blocking.

    Args:
        blobs: The files beside the log; None if they are in the data root alone.
    """

    def __init__(self, folder: Path, run_id: str, blobs: Blobs | None) -> None:
        self.folder = folder
        self._run_id, self._blobs = run_id, blobs

    def read(self, file: Mapping[str, Any]) -> bytes:
        """Return the content of a file that the result names. Raises Refused: it cannot be read, or has changed."""
        _check_name(file)  # the caller may write a file of this name
        try:
            return self._read_here(file)
        except Refused as error:
            stored = self._read_stored(file)
            if stored is None:
                raise error
            return stored

    def _read_here(self, file: Mapping[str, Any]) -> bytes:
        from ava_roles.sandbox.paths import Root

        try:
            root = Root.open(self.folder)
        except OSError as error:
            raise Refused(f"{self.folder} cannot be read: {error.strerror}") from error
        with closing(root):
            return read_artifact(root, file)

    def _read_stored(self, file: Mapping[str, Any]) -> bytes | None:
        """Return what is beside the log; None if the file is not there."""
        from ava_audit.errors import BlobRefused, StoreUnavailable
        from ava_audit.store.backend import Blob

        if self._blobs is None:
            return None
        try:
            return self._blobs.read(Blob(str(file.get("sha256")), int(file.get("bytes", 0))), self._run_id)
        except BlobRefused:
            return None
        except StoreUnavailable as error:
            raise Refused(str(error)) from error


def read_artifact(root: Root, file: Mapping[str, Any]) -> bytes:
    """Return the content of a file that the result names. Blocking. Raises Refused: unreadable, or changed."""
    from ava_roles.errors import RolesError

    name = _check_name(file)
    try:
        data, _more = root.read(name, MOST_BYTES)
    except (RolesError, OSError) as error:
        raise Refused(f"{name} cannot be read: {error}") from error
    if hashlib.sha256(data).hexdigest() != file.get("sha256"):
        raise Refused(f"{name} was changed after its delivery; the log has its sha256")
    return data


def _check_name(file: Mapping[str, Any]) -> str:
    from ava_roles.tools.run import is_artifact_name

    name = str(file.get("name"))
    if not is_artifact_name(name):
        raise Refused(f"{name[:100]!r} is not a plain file name")
    return name

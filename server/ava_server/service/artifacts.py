"""The files that a run delivered, read back: only those that its result names, and only unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ava_server.core.errors import Refused

if TYPE_CHECKING:
    from ava_roles.sandbox.paths import Root

MOST_BYTES = 2_000_000
"""More than the limit of an artifact."""


def read_artifact(root: Root, file: Mapping[str, Any]) -> bytes:
    """Return the content of a file. Blocking.

    Args:
        root: The folder of the run's files.
        file: The file as the result names it.

    Raises:
        Refused: It cannot be read, or is no longer what was delivered.
    """
    from ava_roles.errors import RolesError
    from ava_roles.tools.records import is_artifact_name

    name = str(file.get("name"))
    if not is_artifact_name(name):
        raise Refused(f"{name[:100]!r} is not a plain file name")
    try:
        data, _more = root.read(name, MOST_BYTES)
    except (RolesError, OSError) as error:
        raise Refused(f"{name} cannot be read: {error}") from error
    if hashlib.sha256(data).hexdigest() != file.get("sha256"):
        raise Refused(f"{name} was changed after its delivery; the log has its sha256")
    return data

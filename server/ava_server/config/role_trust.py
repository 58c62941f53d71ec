"""Which role files of projects a person has trusted: the hash of each, in the folder of secrets.

A project's files come with a checkout that anybody may have written. They count as they were when a person said so in
a terminal, and nothing that comes through MCP writes here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ava_server.core.errors import ConfigError
from ava_server.core.private_file import PrivateFile

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

Hashes = Mapping[str, str]
"""The sha256 in hex of each trusted file of one folder, by its name."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def read_trusted(path: Path) -> dict[str, dict[str, str]]:
    """Return what is trusted, by the real path of the folder of role files; nothing when there is no file. Blocking.

    Raises:
        ConfigError: The file or its folder may not be trusted or read, or it holds something else.
    """
    file = _file(path)
    file.check_folder()
    found = file.entries()
    if not all(_is_entry(entry) for entry in found.values()):
        raise ConfigError(f"{path}: an entry is not as `ava roles trust` writes it. {file.anew}")
    return found


def change_trusted(path: Path, folders: Mapping[str, Hashes]) -> dict[str, dict[str, str]]:
    """Trust of these folders these files and no others; return what was trusted of them before. Blocking.

    Raises:
        ConfigError: The file or its folder may not be trusted, read or written.
    """
    file = _file(path)
    file.make_folder()
    before: dict[str, dict[str, str]] = {}

    def edit(document: TOMLDocument) -> None:
        stored: dict[str, Any] = document.unwrap()
        for folder, hashes in folders.items():
            if folder in stored:
                before[folder] = stored[folder]
                del document[folder]
            if hashes:
                document[folder] = dict(sorted(hashes.items()))

    file.change(lambda: read_trusted(path), edit)
    return before


def _file(path: Path) -> PrivateFile:
    return PrivateFile(path, "trusted role files", "ava roles trust", "ava roles trust")


def _is_entry(entry: object) -> bool:
    hashes = cast("dict[str, object]", entry) if isinstance(entry, dict) else {"": None}
    return all(isinstance(value, str) and _SHA256.fullmatch(value) for value in hashes.values())

"""The key of a data root: seals open questions, and marks what a step of a plan has done. Servers of a log share it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from ava_server.core.errors import ConfigError
from ava_server.core.files import PrivateFile

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


def root_key(path: Path) -> str:
    """Return the key, 64 hexadecimal digits; the first call makes it. Blocking. Raises ConfigError if it is damaged."""
    file = PrivateFile(path, "key of the data root", "ava serve", "ava serve")
    file.make_folder()

    def edit(document: TOMLDocument) -> None:
        document.setdefault("key", secrets.token_hex(32))

    key = file.entries().get("key")
    if key is None:
        file.change(lambda: None, edit)
        key = file.entries().get("key")
    if not isinstance(key, str) or len(key) < 64:
        raise ConfigError(f"{path} holds no key of 64 characters. Remove the file; Ava makes another one.")
    return key

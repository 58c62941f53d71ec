"""A TOML file for its owner's eyes alone: never read through a link or where others may look, never half written.

No text of it is in an error: any line of it may be a secret.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ava_server.core.atomic_file import is_own, replace_file
from ava_server.core.errors import ConfigError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

LOCK_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class PrivateFile:
    """A file of secret values.

    Attributes:
        path: Where it is; it need not exist.
        holds: What is in it, in the plural: `keys`.
        command: The command that writes it: `ava key`.
        setting: How one entry is stored: `ava key set PROVIDER`.
    """

    path: Path
    holds: str
    command: str
    setting: str

    @property
    def anew(self) -> str:
        """What to do with a file that is wrong."""
        return f"Remove the file and store the {self.holds} again with `{self.setting}`."

    def entries(self) -> dict[str, Any]:
        """Return what is in it, all of one reading; nothing when there is no file.

        Raises:
            ConfigError: It may not be trusted or read, or is no TOML.
        """
        try:
            return tomllib.loads(self._text())
        except (ValueError, RecursionError) as wrong:  # not all that the parser cannot read is a TOMLDecodeError
            # The parser's own words may quote the line, and the line may be a secret.
            at = re.search(r"\(at [^)]*\)", str(wrong))
            raise ConfigError(f"{self.path} is no valid TOML {at[0] if at else ''}. {self.anew}") from None

    def change(self, check: Callable[[], object], edit: Callable[[TOMLDocument], None]) -> None:
        """Replace the file by one with an entry changed; comments and order stay, and no one writes at once.

        Args:
            check: Reads the whole file, and raises where it holds what cannot be.
            edit: Changes it.

        Raises:
            ConfigError: It may not be trusted, read or written.
        """
        import portalocker
        import tomlkit

        path = self.path
        try:
            with portalocker.Lock(path.with_name(path.name + ".lock"), timeout=LOCK_TIMEOUT_S):
                check()
                document = tomlkit.parse(self._text())
                edit(document)
                replace_file(path, tomlkit.dumps(document).encode())
        except portalocker.LockException:
            raise ConfigError(
                f"Another `{self.command}` is writing {path}, for {LOCK_TIMEOUT_S:.0f} s now. End it and try again."
            ) from None
        except OSError as failed:
            raise self._unusable(failed) from failed

    def make_folder(self) -> None:
        """Make the file's folder, for its owner alone, if it is missing.

        Raises:
            ConfigError: It cannot be made, or may not be trusted.
        """
        make_private_folder(self.path.parent)
        self.check_folder()

    def check_folder(self) -> None:
        """Refuse a folder in which others could put a file in the place of ours.

        Raises:
            ConfigError: It is none, is a link, another's, or open to others.
        """
        folder = self.path.parent
        again = f"Remove it, and store the {self.holds} again."
        try:
            status = folder.lstat()
        except FileNotFoundError:
            return
        except OSError as failed:
            raise ConfigError(f"{folder} cannot be used: {failed.strerror}. Make it this user's own.") from failed
        if not stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"{folder} is no folder, or a link to one. {again}")
        if sys.platform == "win32":  # a mode says nothing there, and a folder has no number for its owner
            return
        if status.st_uid != 0 and not is_own(status):
            raise ConfigError(f"{folder} belongs to another user. {again}")
        if status.st_mode & 0o077:
            raise ConfigError(f"The folder {folder} is open to others. Mend it with: chmod 700 {folder}")

    def _text(self) -> str:
        """Return the file's text, or nothing when there is none; checked and read through one descriptor."""
        path = self.path
        try:
            if path.is_symlink():
                raise ConfigError(f"{path} is a symbolic link, and {self.holds} are not read through one. {self.anew}")
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            return ""
        except OSError as failed:
            raise self._unusable(failed) from failed
        try:
            with os.fdopen(fd, encoding="utf-8") as file:
                self._check(os.fstat(fd))
                return file.read()
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not UTF-8 text. {self.anew}") from None
        except OSError as failed:
            raise self._unusable(failed) from failed

    def _check(self, status: os.stat_result) -> None:
        path = self.path
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is no regular file. {self.anew}")
        if sys.platform == "win32":  # a mode says nothing there, and a file has no number for its owner
            return
        if status.st_uid != 0 and not is_own(status):
            raise ConfigError(f"{path} belongs to another user. {self.anew}")
        if status.st_mode & 0o077:
            raise ConfigError(
                f"Others may read {path}. Mend it with: chmod 600 {path} (and get new {self.holds} if others use this"
                " machine)."
            )

    def _unusable(self, failed: OSError) -> ConfigError:
        why = failed.strerror or type(failed).__name__
        return ConfigError(f"{self.path} cannot be used: {why}. Make it this user's own.")


def make_private_folder(folder: Path) -> None:
    """Make a folder for its owner alone, if it is missing; what stands there is for the caller to look at.

    Raises:
        ConfigError: It cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        pass
    except OSError as failed:
        raise ConfigError(f"{folder} cannot be made: {failed.strerror or type(failed).__name__}.") from failed

"""The data root: the one folder in which everything is kept, and where it is."""

from __future__ import annotations

import getpass
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ava_server.core.errors import ConfigError


def os_user() -> str:
    """Return the user's name, else its number: a container's user may have no name, and Windows no list of them."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):  # OSError from Python 3.13 on
        number = getattr(os, "getuid", None)
        return f"uid-{number()}" if number is not None else "user"


NOWHERE = Path(os.path.abspath(os.sep))  # noqa: PTH100 - what is asked for is the root, whatever the working folder is
"""What stands for a folder that is not there: nothing works in the root."""


def working_folder() -> Path | None:
    """Return the working folder, None where somebody has removed it."""
    try:
        return Path.cwd()
    except OSError:
        return None


def home_folder() -> Path:
    """Return the user's home; the root for a user whom this system does not know."""
    try:
        return Path.home()
    except RuntimeError:
        return NOWHERE


_ELSEWHERE = "Set AVA_DATA_ROOT to a folder that this user may write to."


@dataclass(frozen=True)
class DataRoot:
    """The one folder in which everything is kept, and the places in it."""

    path: Path

    @property
    def config(self) -> Path:
        """The file of settings."""
        return self.path / "config.toml"

    @property
    def db(self) -> Path:
        """The log."""
        return self.path / "ava.db"

    @property
    def keys(self) -> Path:
        """The file of keys."""
        return self.path / "keys.toml"

    @property
    def artifacts(self) -> Path:
        """Files that runs hand over, a folder each."""
        return self.path / "artifacts"

    @property
    def instances(self) -> Path:
        """The locks of live processes."""
        return self.path / "instances"

    @property
    def logs(self) -> Path:
        """The JSONL mirror."""
        return self.path / "logs"

    @property
    def memory(self) -> Path:
        """What roles may recall."""
        return self.path / "memory"

    @property
    def roles(self) -> Path:
        """The installation's own role files."""
        return self.path / "roles"

    @property
    def sandbox(self) -> Path:
        """What a sandbox needs on the disk."""
        return self.path / "sandbox"

    @property
    def scratch(self) -> Path:
        """What runs have only while they last, a folder each."""
        return self.path / "scratch"

    @property
    def worktrees(self) -> Path:
        """Where runs that change files work, a folder each while they last."""
        return self.path / "worktrees"

    @property
    def worker_lock(self) -> Path:
        """The lock of the one worker."""
        return self.path / "worker.lock"

    @property
    def worker_words(self) -> Path:
        """What the worker says: it has no terminal."""
        return self.path / "worker.log"

    @property
    def secrets(self) -> Path:
        """Secrets for tool calls, and hashes."""
        return self.path / "secrets"

    @property
    def secrets_file(self) -> Path:
        """The file of secrets for tool calls."""
        return self.secrets / "secrets.toml"

    @property
    def approval_file(self) -> Path:
        """The approval PIN's hash, and the policy beside it."""
        return self.secrets / "approval.toml"

    @property
    def trusted_roles(self) -> Path:
        """Which role files of projects a person has trusted, by their hashes."""
        return self.secrets / "trusted_roles.toml"

    @property
    def tokens_file(self) -> Path:
        """The hashes of the tokens of the HTTP server."""
        return self.secrets / "tokens.toml"

    @property
    def question_key(self) -> Path:
        """The key that seals what a client keeps of a question until its person answers."""
        return self.secrets / "questions.toml"

    def create(self) -> None:
        """Make the folder, for its owner alone, if it is missing; an existing one is left as it is.

        Raises:
            ConfigError: It cannot be made, is no folder, is not writable, or anybody may write to it.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = self.path.stat().st_mode
        except FileExistsError:
            raise ConfigError(f"The data root {self.path} is no folder. {_ELSEWHERE}") from None
        except OSError as failed:
            why = failed.strerror or type(failed).__name__
            raise ConfigError(f"The data root {self.path} cannot be made: {why}. {_ELSEWHERE}") from failed
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise ConfigError(f"The data root {self.path} is not writable for this user. {_ELSEWHERE}")
        if os.name == "posix" and mode & stat.S_IWOTH:
            raise ConfigError(f"Anybody may write to the data root {self.path}. Mend it with: chmod 700 {self.path}")


def find_data_root(data_root: Path | None = None, env: Mapping[str, str] | None = None) -> DataRoot:
    """Return the data root: the one given, else AVA_DATA_ROOT, else the platform's place for data.

    Raises:
        ConfigError: AVA_DATA_ROOT is no absolute path; what it would mean changes with the working folder.
    """
    if data_root is not None:
        return DataRoot(Path(os.path.abspath(data_root)))  # noqa: PTH100 - links stay as they are written
    given = (os.environ if env is None else env).get("AVA_DATA_ROOT", "").strip()
    if not given:
        from platformdirs import user_data_path

        return DataRoot(user_data_path("ava", appauthor=False))
    try:
        return DataRoot(absolute_folder(Path(given)))
    except ValueError as wrong:
        raise ConfigError(f"AVA_DATA_ROOT is {given!r}; allowed is {wrong}.") from None


def absolute_folder(path: Path) -> Path:
    """Return a folder with `~` resolved.

    Raises:
        ValueError: It does not begin at the root: what it means would change with the working folder.
    """
    try:
        path = path.expanduser()
    except RuntimeError:
        raise ValueError("a folder from the root on; `~` stands for no home here") from None
    if not path.is_absolute():
        raise ValueError("a folder from the root on, e.g. /srv/code or ~/code")
    return path

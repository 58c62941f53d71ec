"""The data root: the one folder that holds all of Ava's data."""

from __future__ import annotations

import getpass
import os
import shlex
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

from ava_server.core.errors import ConfigError
from ava_server.core.files import reason


def os_user() -> str:
    """In a container the user may have no name, only a number."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):  # OSError from Python 3.13 on
        number = getattr(os, "getuid", None)
        return f"uid-{number()}" if number is not None else "user"


NOWHERE = Path(os.path.abspath(os.sep))  # noqa: PTH100 - the root, whatever the working folder is
"""Stands for a folder that does not exist: nothing works in the root."""


def working_folder() -> Path | None:
    """Return None if it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None


def home_folder() -> Path:
    """Return the root folder for a user unknown to the system."""
    return _home(os.environ.get("HOME"), os.environ.get("USERPROFILE"))


@lru_cache(maxsize=4)
def _home(*_named: str | None) -> Path:
    try:
        return Path.home()
    except RuntimeError:
        return NOWHERE


_ELSEWHERE = "Set AVA_DATA_ROOT to a folder that this user may write to."


class Backup(Enum):
    """What a backup has of a place in the data root."""

    WHOLE = "all files, but no links"
    LINKED = "all files, and those that links lead to: only the person writes there"
    FILES = "the files of each folder in it, and none deeper"
    LOG = "the log as it was at one moment"
    NOTHING = "nothing: it is made anew, or means nothing elsewhere"


class _Place:
    """A path in the data root, and what a backup has of it: `DataRoot.db` is `<data root>/ava.db`."""

    def __init__(self, *parts: str, backup: Backup) -> None:
        self._parts = parts
        self.name = "/".join(parts)
        self.backup = backup

    def __get__(self, root: DataRoot, _owner: type[DataRoot]) -> Path:
        return root.path.joinpath(*self._parts)


@dataclass(frozen=True)
class DataRoot:
    """The folder that holds all of Ava's data, and the paths in it."""

    path: Path

    config = _Place("config.toml", backup=Backup.LINKED)
    db = _Place("ava.db", backup=Backup.LOG)
    origin = _Place("origin.id", backup=Backup.NOTHING)
    """The name of this data root among all that share a log, made when it is first needed."""
    keys = _Place("keys.toml", backup=Backup.LINKED)
    artifacts = _Place("artifacts", backup=Backup.WHOLE)
    """Files that runs hand over, a folder per run."""
    instances = _Place("instances", backup=Backup.NOTHING)
    logs = _Place("logs", backup=Backup.NOTHING)
    """The JSONL mirror."""
    memory = _Place("memory", backup=Backup.WHOLE)
    """The notes that roles may recall."""
    roles = _Place("roles", backup=Backup.LINKED)
    skills = _Place("skills", backup=Backup.WHOLE)
    """The skills that roles may name, a folder each."""
    sandbox = _Place("sandbox", backup=Backup.NOTHING)
    scratch = _Place("scratch", backup=Backup.FILES)
    """Temporary files of runs, a folder per run. The files in it are long tool outputs that the run may still read."""
    temporary = _Place("temporary", backup=Backup.NOTHING)
    texts = _Place("texts.db", backup=Backup.NOTHING)
    """The texts of files that were read; missing ones are extracted again."""
    unlogged = _Place("unlogged", backup=Backup.WHOLE)
    """What processes knew of paid calls that a log on a server has lost."""
    worktrees = _Place("worktrees", backup=Backup.NOTHING)
    """Where runs change files, a folder per run while it lasts."""
    worker_lock = _Place("worker.lock", backup=Backup.NOTHING)
    """The lock of the background process."""
    worker_process = _Place("worker.process", backup=Backup.NOTHING)
    """That process and its version."""
    worker_words = _Place("worker.log", backup=Backup.NOTHING)
    """Its output: it has no terminal."""
    worker_leave = _Place("worker.leave", backup=Backup.NOTHING)
    """That a newer version takes over from it."""
    http_lock = _Place("http.lock", backup=Backup.NOTHING)
    """The lock of the HTTP server for hosts on this machine."""
    http_port = _Place("http.port", backup=Backup.NOTHING)
    """The port and the process of that server."""
    http_wanted = _Place("http.wanted", backup=Backup.NOTHING)
    """That the background process is to be that server, and on which port."""
    pages_lock = _Place("pages.lock", backup=Backup.NOTHING)
    pages_port = _Place("pages.port", backup=Backup.NOTHING)
    """The port that the pages had last, and the process."""
    pages_wanted = _Place("pages.wanted", backup=Backup.NOTHING)
    """That the background process is to serve the pages."""
    browser_sessions = _Place("secrets", "browser.toml", backup=Backup.NOTHING)
    """The hashes of the sessions of browsers, and of the codes that begin one."""
    passkeys = _Place("secrets", "passkeys.toml", backup=Backup.WHOLE)
    local_token = _Place("secrets", "local_token", backup=Backup.NOTHING)
    """The token of this machine's hosts for that server."""
    local_token_lock = _Place("local_token.lock", backup=Backup.NOTHING)
    """Held while that token is made."""
    secrets = _Place("secrets", backup=Backup.WHOLE)
    """Secrets for tool calls, and hashes."""
    secrets_file = _Place("secrets", "secrets.toml", backup=Backup.WHOLE)
    approval_file = _Place("secrets", "approval.toml", backup=Backup.WHOLE)
    """The approval PIN's hash, and its policy."""
    trusted_roles = _Place("secrets", "trusted_roles.toml", backup=Backup.WHOLE)
    """The project role files that a person has trusted, by their hashes."""
    tokens_file = _Place("secrets", "tokens.toml", backup=Backup.WHOLE)
    """The hashes of the HTTP server's tokens."""
    shared_users = _Place("secrets", "users.toml", backup=Backup.WHOLE)
    """The limits of users that all servers share; only with Postgres, else they are in `config.toml`."""
    question_key = _Place("secrets", "questions.toml", backup=Backup.WHOLE)
    """The key that seals what a client keeps of a question until the person answers."""

    def worker_lock_of(self, beside: str) -> Path:
        """Return the lock of the worker; with a name, of the one of that name beside it."""
        return self.path / f"worker.{beside}.lock" if beside else self.worker_lock

    @property
    def worker_locks(self) -> list[Path]:
        """The locks of the worker and of those beside it, held or not."""
        return [self.worker_lock, *sorted(self.path.glob("worker.*.lock"))]

    @property
    def log_copies(self) -> list[Path]:
        """The copies of the log from before migrations; what was erased since is still in them."""
        return sorted(self.path.glob("ava.schema-*.db"))

    def is_elsewhere(self, origin: str) -> bool:
        """Tell whether the data root of this name, empty for this one, is another. Raises OSError: unreadable."""
        if not origin:
            return False
        try:
            return origin != self.origin.read_text("ascii").strip()
        except FileNotFoundError:  # it has no name yet
            return True

    @property
    def owned(self) -> bool:
        """Whether it belongs to this user of the system, or this user is root: its owner may steer everyone's runs."""
        user = getattr(os, "geteuid", None)
        with suppress(OSError):
            return user is None or user() in (0, self.path.stat().st_uid)
        return False

    def create(self) -> None:
        """Make the folder, for its owner alone. Raises ConfigError: impossible, or writable for anybody."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = self.path.stat().st_mode
        except FileExistsError:
            raise ConfigError(f"The data root {self.path} is not a folder. {_ELSEWHERE}") from None
        except OSError as failed:
            raise ConfigError(f"The data root {self.path} cannot be made: {reason(failed)}. {_ELSEWHERE}") from failed
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise ConfigError(f"The data root {self.path} is not writable for this user. {_ELSEWHERE}")
        if os.name == "posix" and mode & stat.S_IWOTH:
            raise ConfigError(
                f"Anybody may write to the data root {self.path}."
                f" Correct it with: chmod 700 {shlex.quote(str(self.path))}"
            )

    def close_to_others(self) -> None:
        """Create the folders for the files of runs, and remove others' rights to them; root opens what commands see."""
        for place in (self.artifacts, self.scratch, self.worktrees):
            with suppress(OSError):  # it belongs to another user: whatever needs the folder reports that
                place.mkdir(mode=0o700, exist_ok=True)
                for folder in (place, *place.iterdir()):
                    mode = folder.lstat().st_mode
                    if stat.S_ISDIR(mode) and mode & 0o077:
                        folder.chmod(mode & 0o700)


def backup_table() -> dict[str, Backup]:
    """Return what a backup has of each place of a data root, by its path there with `/`."""
    places = [place for place in vars(DataRoot).values() if isinstance(place, _Place)]
    return {place.name: place.backup for place in places}


def find_data_root(data_root: Path | None = None, env: Mapping[str, str] | None = None) -> DataRoot:
    """Return the data root: the one given, AVA_DATA_ROOT, or the platform's. Raises ConfigError: not absolute."""
    if data_root is not None:
        return DataRoot(Path(os.path.abspath(data_root)))  # noqa: PTH100 - links are not resolved
    variables = os.environ if env is None else env
    folder = variables.get("AVA_DATA_ROOT", "").strip()
    if not folder:
        return default_data_root()
    try:
        return DataRoot(absolute_folder(Path(folder)))
    except ValueError as error:
        raise ConfigError(f"AVA_DATA_ROOT is {folder!r}; allowed is {error}.") from None


def default_data_root() -> DataRoot:
    from platformdirs import user_data_path

    return DataRoot(user_data_path("ava", appauthor=False))


def absolute_folder(path: Path) -> Path:
    """Return a folder with `~` resolved. Raises ValueError if it would depend on the working folder."""
    return _absolute(path, "an absolute folder", "/srv/code or ~/code")


def absolute_file(path: Path) -> Path:
    """Return a file's path with `~` resolved. Raises ValueError if it would depend on the working folder."""
    return _absolute(path, "a file with an absolute path", "/etc/ssl/authority.pem")


def _absolute(path: Path, what: str, example: str) -> Path:
    try:
        path = path.expanduser()
    except RuntimeError:
        raise ValueError(f"{what}; `~` has no meaning for this user") from None
    if not path.is_absolute():
        raise ValueError(f"{what}, e.g. {example}")
    return path


_KERNEL = (Path("/proc"), Path("/sys"))
"""Where no folder can be created, even if root seems to have the right to."""


def has_log(root: DataRoot, *, writes: bool = False) -> bool:
    """Tell whether there is a log; `writes`: for a command that also writes.

    Raises ConfigError if the data root cannot be used, so "nothing" would be wrong.
    """
    path = root.path
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        _refuse_unmakeable(path)
        return False
    except OSError as failed:
        raise ConfigError(f"The data root {path} cannot be read: {failed.strerror}. {_ELSEWHERE}") from failed
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"The data root {path} is not a folder. {_ELSEWHERE}")
    if not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(f"The data root {path} is not readable for this user. {_ELSEWHERE}")
    if writes and not os.access(path, os.W_OK):
        raise ConfigError(f"The data root {path} is not writable for this user. {_ELSEWHERE}")
    return root.db.exists() or not _has_file_for_log(path)


def _has_file_for_log(path: Path) -> bool:
    from ava_audit.store.sqlite import log_file  # importing it takes a while

    return log_file(path) is not None


def _refuse_unmakeable(path: Path) -> None:
    """Refuse a missing folder that could not be created, without creating one to find out."""
    if path.is_symlink():
        raise ConfigError(f"The data root {path} is a broken link. {_ELSEWHERE}")
    above = next(parent for parent in path.parents if parent.exists())
    is_kernels = any(map(above.is_relative_to, _KERNEL))
    if is_kernels or not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"The data root {path} does not exist and cannot be created in {above}. {_ELSEWHERE}")

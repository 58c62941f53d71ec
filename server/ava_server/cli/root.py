"""Whether a data root can be one: asked before anybody is told that nothing is there."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from ava_server.core.errors import ConfigError

if TYPE_CHECKING:
    from ava_server.core.data_root import DataRoot

_ELSEWHERE = "Set AVA_DATA_ROOT to a folder that this user may write to."
_KERNEL = (Path("/proc"), Path("/sys"))
"""Where no folder can be made, though the kernel may grant root the right to."""


def has_log(root: DataRoot) -> bool:
    """Tell whether there is a log to look at; where there is none yet, one can be made.

    Raises:
        ConfigError: The data root can be none, so that "nothing is there" would be the wrong answer.
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
        raise ConfigError(f"The data root {path} is no folder. {_ELSEWHERE}")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"The data root {path} is not readable and writable for this user. {_ELSEWHERE}")
    return root.db.exists()


def _refuse_unmakeable(path: Path) -> None:
    """Refuse a folder that is missing and could not be made; looking makes none to find out."""
    if path.is_symlink():
        raise ConfigError(f"The data root {path} is a link that leads nowhere. {_ELSEWHERE}")
    above = next(parent for parent in path.parents if parent.exists())
    if any(above.is_relative_to(kernel) for kernel in _KERNEL) or not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"The data root {path} does not exist and cannot be made in {above}. {_ELSEWHERE}")

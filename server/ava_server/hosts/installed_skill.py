"""Where a host's user keeps Ava's skill, and whether the one there is this version's.

The first answer of `ava serve` asks it, so it loads nothing but `os` and `stat`.
"""

import os
import stat
from collections.abc import Mapping

NAME = "delegate-with-ava"
FOLDERS: Mapping[str, tuple[str, str]] = {
    "claude-code": ("CLAUDE_CONFIG_DIR", ".claude"),
    "codex": ("", ".agents"),
}
"""By host: the variable that may name the folder above `skills`, and that folder in the user's home."""


def skill_path(host: str, home: str, env: Mapping[str, str]) -> str:
    """Return where the skill belongs for a host of `FOLDERS`; a relative folder in the variable is ignored."""
    variable, usual = FOLDERS[host]
    folder = env.get(variable, "").strip()
    if not os.path.isabs(folder):
        folder = os.path.join(home, usual)
    return os.path.join(folder, "skills", NAME, "SKILL.md")


def has_skill(client: str) -> bool:
    """Tell whether the host that calls itself `client` has this version's skill, byte for byte. Blocking.

    An older or edited one does not count: it may lack what the short instructions leave to it.
    """
    host = next((name for name in FOLDERS if client.lower().startswith(name)), None)
    home = os.path.expanduser("~")
    if host is None or not os.path.isabs(home):
        return False
    try:
        own = _read(os.path.join(os.path.dirname(__file__), "skill.md"), most=1_000_000)
        return _read(skill_path(host, home, os.environ), most=len(own) + 1) == own
    except OSError:
        return False


def _read(path: str, most: int) -> bytes:
    """Return the beginning of a regular file. Raises OSError if there is none."""
    # Without O_NONBLOCK, a pipe in the file's place would stop the server.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    file = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is not a regular file")
        return os.read(file, most)
    finally:
        os.close(file)

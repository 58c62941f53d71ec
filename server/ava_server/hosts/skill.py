"""The skill "when and how to delegate with Ava": a file for hosts that are known to read skills of their user.

Where they look, as of 2026-11-29: https://code.claude.com/docs/en/skills, https://developers.openai.com/codex/skills.
"""

from __future__ import annotations

from pathlib import Path

from ava_server.core.errors import ConfigError
from ava_server.core.files import replace_file
from ava_server.hosts.installed_skill import FOLDERS, NAME, skill_path
from ava_server.hosts.known import UserPlace

_BEGIN = f"---\nname: {NAME}\n"


def skill_text() -> str:
    return Path(__file__).with_name("skill.md").read_text("utf-8")


def skill_file(host: str, place: UserPlace) -> Path | None:
    """Return where the skill belongs; None if the host is not known to read skills."""
    if host not in FOLDERS:
        return None
    return Path(skill_path(host, str(place.home), place.env))


def installed_text(file: Path) -> str | None:
    """Return what is there; None if nothing is. Blocking. Raises ConfigError if it cannot be read."""
    try:
        return file.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}).") from error


def is_ours(text: str) -> bool:
    """Tell whether a skill is Ava's own, of any version, perhaps edited."""
    return text.startswith(_BEGIN)


def install_skill(file: Path) -> None:
    """Write the skill. Blocking. Raises ConfigError if something else is there, or it cannot be written."""
    there = installed_text(file)
    if there is not None and not is_ours(there):
        raise ConfigError(f"{file} is not Ava's, and is kept. Move it, and run this again.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, skill_text().encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written ({error.strerror or error}).") from error


def remove_skill(file: Path) -> bool:
    """Remove the skill, and its folder if that is then empty; tell whether it was there. Blocking."""
    there = installed_text(file)
    if there is None or not is_ours(there):
        return False
    try:
        file.unlink()
        if not any(file.parent.iterdir()):
            file.parent.rmdir()
    except OSError as error:
        raise ConfigError(f"{file} cannot be removed ({error.strerror or error}).") from error
    return True

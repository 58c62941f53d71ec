"""What a backup contains besides its log: settings that loosen something, keys, tokens and roles.

The backup may be somebody else's. Its program in `on_event` would run at the first proposal, its tokens and passkeys
would open this server, and its roles would act under this user. So a person is told what there is, and either uses all
of it or has it kept aside, where nothing reads it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import anyio
from pydantic import ValidationError

from ava_server.cli.terminal import agrees, cut, one_line, someone_there, tell
from ava_server.config import checks
from ava_server.config.settings import Configured
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import BadInput

ASIDE = "from-backup"
"""The folder in the data root for unused parts of a backup; later backups leave it out."""
SHOWN = 6
"""The most names of one kind that are shown."""
LONGEST = 200
_LINE = "\n    "


def keep_aside(root: Path, *, yes: bool) -> list[str]:
    """Ask a person whether to use the settings, keys, tokens and roles of a backup; return what was kept aside.

    Args:
        root: The folder, before it becomes the data root.
        yes: Use everything without asking.

    Raises:
        BadInput: Nobody can be asked.
    """
    found = dict(_brought(DataRoot(root)))
    if yes or not found:
        return []
    listed = "\n".join(f"  {place}:{what}" for place, what in found.items())
    if not someone_there():
        raise BadInput(
            f"The backup contains what can loosen limits, run programs or let others in:\n{listed}\nThere is no"
            " terminal to ask on, so nothing was restored. Run it in a terminal, or add --yes if the backup is yours."
        )
    tell(f"The backup contains what can loosen limits, run programs or let others in:\n{listed}")
    question = f"Use all of it? Say yes only if the backup is your own. Otherwise, it is kept unused in {ASIDE}/."
    if anyio.run(agrees, question):
        return []
    (root / ASIDE).mkdir(mode=0o700)
    for place in found:
        (root / place).rename(root / ASIDE / place)
    return [*found]


def _brought(root: DataRoot) -> Iterator[tuple[str, str]]:
    """Yield each file or folder of a restored folder that only its owner should use, and what is in it."""
    if root.config.exists() and (settings := list(_loosened(root.config))):
        yield root.config.name, _LINE.join(["", *settings])
    if root.keys.exists():
        yield root.keys.name, " keys of model providers, which then read what subagents read"
    if root.secrets.is_dir() and any(root.secrets.iterdir()):
        yield root.secrets.name, _LINE + _some(_secrets(root), _LINE)
    if root.roles.is_dir() and (names := sorted(path.name for path in root.roles.rglob("*") if path.is_file())):
        yield root.roles.name, f" role files: {_some(names)}"


def _secrets(root: DataRoot) -> Iterator[str]:
    # Read as files: with the backup's settings, they would be looked up in the database that these name.
    for name, token in _tables(root.tokens_file).items():
        yield f"token {name} ({token.get('user')}: {checks.shown(token.get('scopes'))})"
    for path, what in ((root.passkeys, "passkeys, which approve"), (root.secrets_file, "secrets for tools")):
        if names := _tables(path):
            yield f"{what}: {_some(names)}"
    yield f"files: {_some(sorted(path.name for path in root.secrets.iterdir()))}"


def _tables(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: cast("dict[str, Any]", table) for name, table in found.items() if isinstance(table, dict)}


_HARMLESS = frozenset(
    {"background", "enabled", "labels", "lease_s", "metrics", "mirror", "models", "proposal_ttl_s", "retention_days"}
)
"""Settings that let nobody do more than the built-in ones, or that every proposal shows."""


def _loosened(config: Path) -> Iterator[str]:
    """Yield each setting that is looser than the built-in one, or names a program, an address or a folder."""
    try:
        values = tomllib.loads(config.read_text("utf-8"))
        given, usual = Configured.model_validate(values), Configured()
    except (OSError, ValueError, ValidationError):
        yield "settings that cannot be read"
        return
    found: dict[str, list[str]] = {}
    for path in dict.fromkeys(path for path, _value in checks.leaves(values)):
        if path[0] not in _HARMLESS and checks.may_loosen(path, usual, given):
            found.setdefault(path[0], []).append(_setting(path, values))
    for settings in found.values():
        yield _some(settings)


def _setting(path: tuple[str, ...], values: Mapping[str, Any]) -> str:
    value: Any = values
    for name in path:
        if not isinstance(value, Mapping):  # a list of tables
            break
        value = cast("Mapping[str, Any]", value)[name]
    return f"{checks.setting_name(path)} = {checks.shown(value)}"


def _some(names: Iterable[str], between: str = ", ") -> str:
    """Return the first names; whoever made the backup chose them, so each is one line, and not a long one."""
    names = list(names)
    more = f"{between}and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return between.join(cut(one_line(name), LONGEST) for name in names[:SHOWN]) + more

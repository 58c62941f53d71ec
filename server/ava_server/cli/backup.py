"""`ava backup DIR` and `ava restore DIR`: copy the data root, and restore it.

Unfinished runs are held after a restore: each continues, and spends, only after a person resumes it. What else a backup
would loosen is asked about; `service/backup.py` copies and checks.
"""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from pydantic import ValidationError

from ava_audit.rows import RunRow
from ava_audit.store.sqlite import log_file
from ava_server.cli import terminal
from ava_server.cli.log_access import checked_root
from ava_server.cli.options import Json, absolute_path
from ava_server.cli.terminal import agrees, heading, progress_on_terminal, say, say_json, someone_there, tell
from ava_server.config import checks
from ava_server.config.settings import Configured
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import BadInput, key_shapes
from ava_server.core.ids import label
from ava_server.core.threads import run_async
from ava_server.service import backup

ASIDE = "from-backup"
"""The folder in the data root for unused parts of a backup; later backups leave it out."""
SHOWN = 6
"""The most names of one kind that are shown."""
LONGEST = 200
_LINE = "\n    "


_Folder = Annotated[str, typer.Argument(metavar="DIR", help="The backup's folder.")]


def backup_command(folder: _Folder, as_json: Json = False) -> None:
    """Copy the data root to a new folder: the log, settings, keys, secrets, roles, notes and artifacts.

    Servers and subagents can keep running. Ava verifies the copy. Keep it safe: it contains your keys and all content.
    """
    root = checked_root("ava backup", show=not as_json)
    target = _clean_path(folder)
    if log_file(root.path) is None:
        raise BadInput(
            "The log of this data root is in Postgres: back it up there, e.g. with pg_dump, or write all entries to a"
            " file with `ava export`; copy the other files of the data root at the same time. Nothing was written."
        )
    if not root.db.exists():
        raise BadInput(f"The data root {root.path} has no log yet, so there is nothing to back up.")
    backup.refuse_overlap(root.path, target)
    if not backup.is_free(target):
        raise BadInput(f"{target} exists and is not empty; give a new folder. Nothing was written.")
    with progress_on_terminal() as show, backup.prepared(target, "backup") as partial:
        manifest = backup.back_up(root, partial, show)
    if as_json:
        return say_json({"folder": str(target), "files": len(manifest.files), **_summary(manifest)})
    backed_up = f"Backed up {manifest.entries:,} entries and {len(manifest.files):,} files to {target}"
    if manifest.verified:
        say(f"{backed_up}, and verified them.")
    else:
        say(
            f"{backed_up}. An older version wrote the log: it was copied as it is, and is verified when it is restored."
        )
    say(f"Head: {manifest.head}")
    return say(f"It contains your keys and secrets. To restore it: ava restore {shlex.quote(str(target))}")


def restore_command(
    folder: _Folder,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="It is my own: use everything in it without asking.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Restore a backup to the data root, which must be missing or empty, and verify it.

    Unfinished subagents are held: each continues, and spends, only after a person resumes it. If the backup's
    settings loosen a limit, or it has keys, tokens or roles, Ava lists them and asks whether to use them.
    """
    root = checked_root("ava restore", show=False)
    source = _clean_path(folder)
    backup.refuse_overlap(root.path, source)
    backup.refuse_used(root)
    manifest = backup.read_manifest(source)
    with backup.prepared(root.path, "restored data root") as partial:
        with progress_on_terminal() as show:
            restored = backup.restore(manifest, source, partial, show)
        aside = keep_aside(partial, yes=yes)
        back = backup.erased_since(root.path, partial, manifest)
        restored = replace(restored, aside=aside, back=back)
    if not as_json:
        heading(root)
        return say("\n".join(_restored_lines(restored)))
    erased_before = None
    if restored.back is not None:
        erased_before = [run.id for run in restored.back]
    facts = {
        "held": [run.id for run in restored.held],
        "erased_before": erased_before,
        "kept_aside": restored.aside,
    }
    return say_json({"data_root": str(root.path), **facts, **_summary(manifest)})


def keep_aside(root: Path, *, yes: bool) -> list[str]:
    """Ask whether to use the settings, keys, tokens and roles of a backup, before it becomes the data root.

    Returns what was kept aside. `yes` uses everything without asking. Raises BadInput if nobody can be asked.
    """
    contents = dict(_owners_parts(DataRoot(root)))
    if yes or not contents:
        return []
    warning = "The backup contains what can loosen limits, run programs or let others in:"
    for place, what in contents.items():
        warning += f"\n  {place}:{what}"
    if not someone_there():
        raise BadInput(
            f"{warning}\nThere is no terminal to ask on, so nothing was restored. Run it in a terminal, or add --yes"
            " if the backup is yours."
        )
    tell(warning)
    question = f"Use all of it? Say yes only if the backup is your own. Otherwise, it is kept unused in {ASIDE}/."
    if run_async(agrees, question):
        return []
    (root / ASIDE).mkdir(mode=0o700)
    for place in contents:
        (root / place).rename(root / ASIDE / place)
    return list(contents)


def _owners_parts(root: DataRoot) -> Iterator[tuple[str, str]]:
    """Yield each file or folder of a restored folder that only its owner should use, and what is in it."""
    if root.config.exists():
        settings = list(_looser_settings(root.config))
        if settings:
            yield root.config.name, _LINE.join(["", *settings])
    if root.keys.exists():
        yield root.keys.name, " keys of model providers, which then read what subagents read"
    if root.secrets.is_dir() and any(root.secrets.iterdir()):
        yield root.secrets.name, _LINE + _first_names(_secrets(root), _LINE)
    if root.roles.is_dir():
        files = sorted(path.name for path in root.roles.rglob("*") if path.is_file())
        if files:
            yield root.roles.name, f" role files: {_first_names(files)}"
    if root.skills.is_dir():
        skills = sorted(path.name for path in root.skills.iterdir())
        if skills:
            yield root.skills.name, f" skills, which instruct subagents: {_first_names(skills)}"


def _secrets(root: DataRoot) -> Iterator[str]:
    # Read as files: with the backup's settings, they would be looked up in the database that these name.
    for name, token in _tables(root.tokens_file).items():
        yield f"token {name} ({token.get('user')}: {checks.value_text(token.get('scopes'))})"
    for path, what in ((root.passkeys, "passkeys, which approve"), (root.secrets_file, "secrets for tools")):
        names = _tables(path)
        if names:
            yield f"{what}: {_first_names(names)}"
    yield f"files: {_first_names(sorted(path.name for path in root.secrets.iterdir()))}"


def _tables(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file; none if it cannot be read."""
    try:
        fields = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: cast("dict[str, Any]", value) for name, value in fields.items() if isinstance(value, dict)}


_HARMLESS = frozenset(
    {"background", "enabled", "labels", "lease_s", "metrics", "mirror", "models", "proposal_ttl_s", "retention_days"}
)
"""Settings that let nobody do more than the built-in ones, or that every proposal shows."""


def _looser_settings(config: Path) -> Iterator[str]:
    """Yield each setting that is looser than the built-in one, or names a program, an address or a folder."""
    try:
        values = tomllib.loads(config.read_text("utf-8-sig"))
        configured = Configured.model_validate(values)
    except (OSError, ValueError, ValidationError):
        yield "settings that cannot be read"
        return
    built_in = Configured()
    programs: list[str] = []
    others: dict[str, list[str]] = {}
    for path in dict.fromkeys(path for path, _value in checks.leaves(values)):
        table = path[0]
        if table in _HARMLESS or not checks.may_loosen(path, built_in, configured):
            continue
        if table in checks.PROGRAMS or path[-1] in checks.PROGRAMS:
            programs.append(_program(path, values))
        else:
            others.setdefault(table, []).append(_setting(path, values))
    yield from programs
    for settings in others.values():
        yield _first_names(settings)


def _program(path: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """Return a program of the settings, uncut: what is left out would run as well."""
    value: Any = values
    for name in path:
        value = cast("Mapping[str, Any]", value)[name]
    text, _ = key_shapes().redact(json.dumps(value, ensure_ascii=False, default=str))
    return terminal.one_line(f"{checks.setting_name(path)} = {text}")


def _setting(path: tuple[str, ...], values: Mapping[str, Any]) -> str:
    value: Any = values
    for name in path:
        if not isinstance(value, Mapping):  # a list of tables
            break
        value = cast("Mapping[str, Any]", value)[name]
    return f"{checks.setting_name(path)} = {checks.value_text(value)}"


def _first_names(names: Iterable[str], between: str = ", ") -> str:
    """Return the first names; whoever made the backup chose them, so each is one line, and not a long one."""
    names = list(names)
    parts = [terminal.cut(terminal.one_line(name), LONGEST) for name in names[:SHOWN]]
    if len(names) > SHOWN:
        parts.append(f"and {len(names) - SHOWN} more")
    return between.join(parts)


def _clean_path(folder: str) -> Path:
    """Return the folder as an absolute path without `..`: it is shown, to be pasted later."""
    return Path(os.path.abspath(absolute_path("DIR", folder)))  # noqa: PTH100 - `resolve` would follow links


def _summary(manifest: backup.Manifest) -> dict[str, object]:
    return {"made": manifest.made, "entries": manifest.entries, "head": manifest.head}


def _restored_lines(restored: backup.Restored) -> list[str]:
    manifest = restored.manifest
    lines = [f"Restored and verified: {manifest.entries:,} entries, up to {manifest.made}. Anything later is missing."]
    if restored.aside:
        lines.append(
            f"Kept aside in {ASIDE}/, and not in use: {', '.join(restored.aside)}. Move back what you trust; until"
            " then, Ava uses its defaults."
        )
    lines += held_lines(restored.held)
    if restored.waiting:
        lines.append(f"Waiting for approval as before: {', '.join(run.pending_id for run in restored.waiting)}.")
    if restored.back is None:
        lines.append(
            f"Content that was erased after {manifest.made} is back, too: erase it again with `ava erase S-…`. Ava"
            " cannot list these subagents, because the old data root is not beside this one."
        )
    elif restored.back:
        lines.append("Erased after the backup, and back now:")
        lines += [f"  {label(run)}: `ava erase {run.id}`" for run in restored.back]
    lines.append("Caps and reports do not count what was spent after the backup.")
    return lines


def held_lines(held: Sequence[RunRow]) -> Iterator[str]:
    if held:
        yield "Held until you resume or cancel them, because they had not ended:"
    for run in held:
        yield f"  {label(run)}: `ava resume {run.id}` or `ava cancel {run.id}`"

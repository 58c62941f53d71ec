"""`ava backup DIR` and `ava restore DIR`: copy the data root, and restore it.

Unfinished runs are held after a restore: each continues, and spends, only after a person resumes it. `backup_trust.py`
asks about everything else in the backup; `service/backup.py` copies and checks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ava_server.cli.backup_trust import ASIDE, keep_aside
from ava_server.cli.log_access import checked_root
from ava_server.cli.options import Json, absolute_path
from ava_server.cli.terminal import heading, progress_on_terminal, say, say_json
from ava_server.core.data_root import in_postgres
from ava_server.core.errors import BadInput
from ava_server.core.ids import label
from ava_server.service import backup

if TYPE_CHECKING:
    from ava_audit.rows import RunRow

_Folder = Annotated[str, typer.Argument(metavar="DIR", help="The backup's folder.")]


def _folded(folder: str) -> Path:
    """Return the folder as an absolute path without `..`: it is shown, to be pasted later."""
    return Path(os.path.abspath(absolute_path("DIR", folder)))  # noqa: PTH100 - `resolve` would follow links


def backup_command(folder: _Folder, as_json: Json = False) -> None:
    """Copy the data root to a new folder: the log, settings, keys, secrets, roles, notes and artifacts.

    Servers and subagents can keep running. Ava verifies the copy. Keep it safe: it contains your keys and all content.
    """
    root = checked_root("ava backup", show=not as_json)
    target = _folded(folder)
    if in_postgres(root):
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
    say(f"Backed up {manifest.entries:,} entries and {len(manifest.files):,} files to {target}, and verified them.")
    say(f"Head: {manifest.head}")
    return say(f"It contains your keys and secrets. To restore it: ava restore {target}")


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
    source = _folded(folder)
    backup.refuse_overlap(root.path, source)
    backup.refuse_used(root)
    manifest = backup.read_manifest(source)
    with backup.prepared(root.path, "restored data root") as partial:
        with progress_on_terminal() as show:
            restored = backup.restore(manifest, source, partial, show)
        restored = replace(
            restored, aside=keep_aside(partial, yes=yes), back=backup.erased_since(root.path, partial, manifest)
        )
    if as_json:
        held, back = ([run.id for run in runs] if runs is not None else None for runs in (restored.held, restored.back))
        facts = {"held": held, "erased_before": back, "kept_aside": restored.aside}
        return say_json({"data_root": str(root.path), **facts, **_summary(manifest)})
    heading(root)
    return say("\n".join(_restored_lines(restored)))


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
    """Yield the lines on runs that are held."""
    if held:
        yield "Held until you resume or cancel them, because they had not ended:"
    for run in held:
        yield f"  {label(run)}: `ava resume {run.id}` or `ava cancel {run.id}`"

"""The data root and what is set in it: where it is, whose it is, its settings, and who approves."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from ava_audit.store.locks import network_file_system
from ava_audit.units import MICROS_PER_CENT, format_usd
from ava_server.cli.doctor.check import Finding, Setup, above, correct, from_error, log_path
from ava_server.cli.root import has_log
from ava_server.config.checks import variable
from ava_server.config.pin import PinFile, policy_in_force
from ava_server.core.errors import ConfigError
from ava_server.core.files import is_own

LITTLE_BYTES = 200_000_000
NOTHING_FITS_BYTES = 4_000_000
"""An entry is at most 2 MB, and is written twice: to the write-ahead log, and into the database."""
ELSEWHERE = "Set AVA_DATA_ROOT to a folder that this user may write to."


def data_root(setup: Setup) -> list[Finding]:
    """Tell where the data root is, and whether it can be one."""
    name = "data root"
    if setup.root is None:
        return [from_error(name, setup.root_error, ELSEWHERE)]
    path = setup.root.path
    try:
        has_log(setup.root)
    except ConfigError as error:
        return [from_error(name, str(error), ELSEWHERE)]
    whence = "AVA_DATA_ROOT" if setup.env.get("AVA_DATA_ROOT", "").strip() else "this system's place for data"
    kind = network_file_system(path if path.exists() else above(path))
    if kind is not None:
        text = f"{path} lies on a network file system ({kind}), where locks do not hold"
        return [Finding(name, "fault", text, "Set AVA_DATA_ROOT to a folder on a local disk.")]
    if not path.exists():
        return [Finding(name, "note", f"{path} ({whence}) does not exist yet; it is made at the first start")]
    return [_mode(name, path, whence)]


def _mode(name: str, path: Path, whence: str) -> Finding:
    """Tell who may read and write the folder."""
    text = f"{path} ({whence}), readable and writable"
    if os.name != "posix":
        return Finding(name, "ok", text)
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    mend = f"Mend it with: chmod 700 {path}"
    if mode & stat.S_IWOTH:
        return Finding(name, "fault", f"anybody may write to {path} (mode {mode:o})", mend)
    if mode & (stat.S_IRGRP | stat.S_IXGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IXOTH):
        return Finding(name, "warning", f"others may look into {path} (mode {mode:o})", mend)
    if not is_own(status):
        text = f"{path} belongs to another user (uid {status.st_uid})"
        return Finding(name, "warning", text, "Run Ava as that user, or " + ELSEWHERE[0].lower() + ELSEWHERE[1:])
    return Finding(name, "ok", f"{text} for its owner alone")


def space(setup: Setup) -> list[Finding]:
    """Tell how much room there is for the log."""
    if setup.root is None or log_path(setup) is None:
        return []
    path = setup.root.path
    try:
        free = shutil.disk_usage(path if path.exists() else above(path)).free
    except OSError:  # a data root that cannot be looked at is told by its own check
        return []
    text = f"{_size(free)} free for the data root"
    if free < NOTHING_FITS_BYTES:
        return [
            Finding("disk space", "fault", f"{text}: nothing fits", "Free some space, then go on: nothing is lost.")
        ]
    if free < LITTLE_BYTES:
        return [Finding("disk space", "warning", text, "Free some space: without any, new subagents are held.")]
    return [Finding("disk space", "ok", text)]


def _size(count: int) -> str:
    """Return a number of bytes for people."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def settings(setup: Setup) -> list[Finding]:
    """Tell whether the settings are right, and what this process's environment sets."""
    if setup.root is None:
        return []
    if setup.settings is None:
        return [from_error("settings", setup.settings_error, correct(setup))]
    file = setup.root.config
    text = f"{file} is right" if file.exists() else f"there is no {file.name}; the defaults hold"
    names = sorted(variable(path) for path in setup.settings.from_environment)
    if names:
        text += f"; set by the environment of this process alone, and loosening nothing: {', '.join(names)}"
    found = [Finding("settings", "ok", text)]
    if not setup.settings.enabled:
        off = "enabled = false: subagents are switched off"
        found.append(Finding("settings", "warning", off, f"Set enabled = true in {file} to have them again."))
    return found


def approval(setup: Setup) -> list[Finding]:
    """Tell who approves, and what that does and does not stop."""
    if setup.settings is None:
        return []
    name, settings = "approval", setup.settings
    try:  # of a data root that can be none, its own check tells
        policy = policy_in_force(settings) if os.path.isdir(settings.data_root) else settings.approval  # noqa: PTH112
    except ConfigError as error:
        return [
            from_error(
                name,
                f"whether there is an approval PIN cannot be told, so nothing is approved: {error}",
                "Mend or remove that file.",
            )
        ]
    if policy == "human":
        return [_human(name, setup)]
    ask = (
        "where the host can show Ava's own question, a person answers it and the model cannot; elsewhere the host's"
        " question at confirm_spawn is the approval, and where that tool is allowed for good, nobody is asked and only"
        " the caps are left"
    )
    advice = (
        "Let a host without that question ask before each confirm_spawn. `ava pin set` has nothing start without you."
    )
    if policy == "auto":
        each, day = settings.auto_approve_cents, settings.auto_approve_daily_cents
        if not each or not day:
            text = 'approval = "auto", and a ceiling of it is 0, so that nothing starts by itself'
            return [Finding(name, "warning", text, "Set auto_approve_cents and auto_approve_daily_cents, or ask.")]
        run_usd, day_usd = format_usd(each * MICROS_PER_CENT), format_usd(day * MICROS_PER_CENT)
        text = (
            f'approval = "auto": what costs at most {run_usd}, and reads alone, starts without a question, up to'
            f" {day_usd} a user and day; for all else {ask}"
        )
        return [Finding(name, "note", text, advice)]
    return [Finding(name, "note", f'approval = "ask": {ask}', advice)]


def _human(name: str, setup: Setup) -> Finding:
    assert setup.settings is not None
    file = PinFile(setup.settings.paths.approval_file)
    if setup.settings.approval == "human" and not (os.path.isdir(setup.settings.data_root) and file.is_set):  # noqa: PTH112
        text = 'approval = "human", and there is no approval PIN, so that nothing can be approved'
        return Finding(name, "warning", text, "Set one in a terminal: ava pin set")
    text = (
        f"human, by the approval PIN in {file.path}: no host and no model starts anything, only `ava approve` with the"
        " PIN. A program that runs as this user and may write the data root can take the PIN away"
    )
    return Finding(name, "ok", text)

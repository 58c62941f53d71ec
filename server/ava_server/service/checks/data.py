"""Checks of the data root: its folder, disk, settings, approval and processes; and findings about its state.

The caller has looked that state up: the sandbox, the copies of the log, and today's budgets.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ava_audit.store.locks import is_held, lock_fault, network_file_system
from ava_audit.units import MICROS_PER_CENT, counted, format_bytes, format_ts, format_usd
from ava_audit.unlogged import UnloggedFile, unlogged_files
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_server.budget.user_limits import policy_in_force
from ava_server.config.pin import PinFile
from ava_server.config.settings import BY_HOST
from ava_server.core.data_root import DataRoot, has_log
from ava_server.core.errors import ConfigError
from ava_server.core.files import is_own
from ava_server.runs.owner.mode import driver_of
from ava_server.service.checks import CheckFinding, Setup, from_error, nearest_folder

if TYPE_CHECKING:
    from ava_audit.view import View
    from ava_server.config.settings import Settings
    from ava_server.service.current import Budget

LITTLE_BYTES = 200_000_000
NOTHING_FITS_BYTES = 4_000_000
"""An entry has at most 2 MB, and is written twice: to the write-ahead log, and into the database."""
LAGS_MUCH = 10_000
"""Entries that the keeper should not be behind for long."""
INDEX = "text index"
MIRROR = "JSONL mirror"
SWITCHED_OFF = "enabled = false: subagents are switched off"
_OTHER_FOLDER = "Set AVA_DATA_ROOT to a folder that this user may write to."
_LOCAL_DISK = "Set AVA_DATA_ROOT to a folder on a local disk."
_OTHERS = stat.S_IRGRP | stat.S_IXGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IXOTH
_BACKGROUND = (
    "subagents continue when their host is closed: a worker process runs them, and ends a minute after the last one"
    " (background = true)"
)
_WORKERS = 'subagents continue when their host is closed: workers run them, on any machine (runs_on = "workers")'
_NO_BACKGROUND = (
    "when the last host is closed, its subagents are interrupted until a server of this data root starts"
    " (background = false)"
)


def _background(settings: Settings) -> str:
    """Return what becomes of subagents when their host is closed."""
    match driver_of(settings):
        case "workers":
            return _WORKERS
        case "the worker":
            return _BACKGROUND
        case "this process":
            return _NO_BACKGROUND


def data_root(setup: Setup) -> Iterator[CheckFinding]:
    """Report where the data root is, and whether it can be used."""
    name = "data root"
    if setup.root is None:
        yield from_error(name, setup.root_error, _OTHER_FOLDER)
        return
    path = setup.root.path
    try:
        has_log(setup.root, writes=True)
    except ConfigError as error:
        yield from_error(name, str(error), _OTHER_FOLDER)
        return
    is_set = setup.env.get("AVA_DATA_ROOT", "").strip() != ""
    where = f"{path} (AVA_DATA_ROOT)" if is_set else f"{path} (the default for data)"
    kind = network_file_system(nearest_folder(path))
    if kind is not None:
        text = f"{path} is on a network file system ({kind}), where locks do not hold"
        yield CheckFinding(name, "fault", text, _LOCAL_DISK)
        return
    fault = lock_fault(nearest_folder(path))
    if fault is not None:
        text = f"the file system of {path} has no locks ({fault.strerror}), which Ava needs"
        yield CheckFinding(name, "fault", text, _LOCAL_DISK)
    elif not path.exists():
        yield CheckFinding(name, "note", f"{where} does not exist yet; it is created at the first start")
    elif os.name != "posix":
        yield CheckFinding(name, "ok", f"{where}, readable and writable")
    else:
        yield _check_mode(name, path, f"{where}, readable and writable")


def _check_mode(name: str, path: Path, text: str) -> CheckFinding:
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    fix = f"Fix it with: chmod 700 {shlex.quote(str(path))}"
    if mode & stat.S_IWOTH:
        return CheckFinding(name, "fault", f"anyone may write to {path} (mode {mode:o})", fix)
    if mode & _OTHERS:
        return CheckFinding(name, "warning", f"others may look into {path} (mode {mode:o})", fix)
    if not is_own(status):
        text = f"{path} belongs to another user (uid {status.st_uid})"
        return CheckFinding(name, "warning", text, "Run Ava as that user, or s" + _OTHER_FOLDER[1:])
    return CheckFinding(name, "ok", f"{text} for its owner alone")


def free_bytes(path: Path) -> int | None:
    """Return what is left on the disk of a path, also one that does not exist yet; None where that is not known."""
    try:
        return shutil.disk_usage(nearest_folder(path)).free
    except OSError:
        return None


def space(setup: Setup) -> Iterator[CheckFinding]:
    """Report how much room there is for the log."""
    root = setup.usable_root
    if root is None:  # the data root's own check reports this
        return
    free = free_bytes(root.path)
    if free is not None:
        yield disk_space(free)


def lost_log(setup: Setup) -> list[CheckFinding]:
    """Report processes whose log in the database lost entries, and the model calls that they alone know."""
    root = setup.usable_root
    if root is None:
        return []
    return [_lost_log(file) for file in unlogged_files(root.path) if file.lives or file.calls]


def _lost_log(file: UnloggedFile) -> CheckFinding:
    process = f"process {file.pid} on {file.host}"
    lacks = ""
    if file.calls:
        cost = format_usd(file.spent_micros)
        if file.held_micros:
            cost += f", and up to {format_usd(file.held_micros)} for those without an answer"
        lacks = f"the log lacks what {counted(len(file.calls), 'model call')} of it cost ({cost}): {file.path}"
    if file.lives:
        text = f"{process} refuses everything since {format_ts(file.at_us)}: {file.why}"
        if lacks:
            text += f"; {lacks}"
        return CheckFinding("lost entries", "fault", text, "Restart that process.", short="log lost entries")
    text = f"the database had lost entries when {process} looked, {format_ts(file.at_us)}; {lacks}"
    step = "Count them to what caps and reports show, compare that with the provider's bill, and remove the file."
    return CheckFinding("lost entries", "warning", text, step, short="unlogged calls")


def disk_space(free: int) -> CheckFinding:
    name = "disk space"
    text = f"{format_bytes(free)} free for the data root"
    if free < NOTHING_FITS_BYTES:
        return CheckFinding(name, "fault", f"{text}: nothing fits", "Free some space, then continue: nothing is lost.")
    if free < LITTLE_BYTES:
        return CheckFinding(name, "warning", text, "Free some space: on a full disk, no subagent starts.")
    return CheckFinding(name, "ok", text)


def settings(setup: Setup) -> Iterator[CheckFinding]:
    """Report whether the settings are right, and which ones this process's environment sets."""
    name = "settings"
    if setup.root is None:
        return
    if setup.settings is None:
        yield from_error(name, setup.settings_error, setup.correct_settings)
        return
    file = setup.root.config
    text = f"{file} is valid" if file.exists() else f"there is no {file.name}; the defaults apply"
    names = sorted(set(setup.settings.from_environment.values()))
    if names:
        text += f"; this process's environment tightens: {', '.join(names)}"
    yield CheckFinding(name, "ok", text)
    if not setup.settings.enabled:
        yield CheckFinding(name, "warning", SWITCHED_OFF, f"Set enabled = true in {file} to switch them on.")


def programs(setup: Setup) -> Iterator[CheckFinding]:
    """Report the programs of the settings that Ava runs outside the sandbox, and whether others can change them."""
    settings = setup.settings
    if settings is None:
        return
    from ava_server.core.own_program import checked_command

    commands = {"on_event": settings.on_event}
    for name, provider in settings.providers.items():
        commands[f"providers.{name}.key_command"] = provider.key_command
    for setting, command in commands.items():
        if not command:
            continue
        try:
            checked_command(command)
        except (ConfigError, OSError) as error:
            step = f"Until then Ava does not run it. Correct {setting} in {settings.paths.config}."
            yield from_error("programs", f"{setting}: {error}", step)
        else:
            text = f"{setting} runs outside the sandbox, with all your own permissions: {shlex.join(command)}"
            yield CheckFinding("programs", "note", text, f"If it is not yours: `ava config unset {setting}`.")


def approval(setup: Setup) -> Iterator[CheckFinding]:
    """Report who approves, and what that does and does not prevent."""
    name = "approval"
    settings = setup.settings
    if settings is None:
        return
    exists = os.path.isdir(settings.data_root)  # noqa: PTH112 - false also for a data root that cannot be looked at
    try:
        policy, why = policy_in_force(settings, setup.user, pin=None if exists else False)
    except ConfigError as error:
        text = f"nothing is approved, because the approval PIN cannot be read: {error}"
        yield from_error(name, text, "Correct or remove that file.")
        return
    if policy == "human":
        yield _pin_finding(settings, why, exists=exists)
    elif why == BY_HOST:
        text = (
            f"{why}: you approve in hosts that show you what starts, and in all others with a PIN on a page or in a"
            " terminal, which you choose at the first approval (`ava hosts`)"
        )
        yield CheckFinding(name, "note", text, "Choose the PIN now, before a model could: ava pin set")
    elif policy == "ask":
        yield CheckFinding(name, "note", f"{why}: {_ASKS}", _ASK_ADVICE)
    else:
        yield _by_price_finding(settings, why)


_ASKS = (
    "where the host can show Ava's own question, a person answers it and the model cannot; elsewhere the host's"
    " question at confirm_spawn is the approval, and if that tool is always allowed there, only the caps protect you"
)
_ASK_ADVICE = (
    "Let a host without that question ask before each confirm_spawn. After `ava pin set` nothing starts without you."
)


def _pin_finding(settings: Settings, why: str, *, exists: bool) -> CheckFinding:
    """Report the PIN of the policy `human`; `exists`: there is a data root."""
    file = PinFile(settings.paths.approval_file)
    if not exists or not file.is_set:
        text = f"{why}, and there is no approval PIN yet: the next approval asks you to choose one"
        return CheckFinding("approval", "warning", text, "Choose one now, before a model could: ava pin set")
    text = (
        f"human, by the approval PIN in {file.place}: no host and no model starts anything, only `ava approve` with"
        " the PIN. A program that runs as this user and may write the data root can remove the PIN"
    )
    return CheckFinding("approval", "ok", text)


def _by_price_finding(settings: Settings, why: str) -> CheckFinding:
    """Report the ceilings under which cheap runs start by themselves."""
    run_cents = settings.auto_approve_cents
    day_cents = settings.auto_approve_daily_cents
    if not run_cents or not day_cents:
        text = f"{why}, and one of its ceilings is 0, so nothing starts by itself"
        return CheckFinding("approval", "warning", text, "Set auto_approve_cents and auto_approve_daily_cents, or ask.")
    run_usd = format_usd(run_cents * MICROS_PER_CENT)
    day_usd = format_usd(day_cents * MICROS_PER_CENT)
    text = (
        f"{why}: runs that cost at most {run_usd}, and only read, start without a question, up to"
        f" {day_usd} per user and day; for all others, {_ASKS}"
    )
    return CheckFinding("approval", "note", text, _ASK_ADVICE)


def processes(setup: Setup) -> Iterator[CheckFinding]:
    """Report how many Ava processes use the data root, and what happens to subagents when their host is closed."""
    name = "processes"
    root = setup.usable_root
    if setup.settings is not None:
        yield CheckFinding("background", "ok", _background(setup.settings))
    if root is None:
        return
    if lock_fault(root.path) is not None:  # the data root's own check reports this
        return
    yield from _servers(root)
    if not root.db.exists():
        return
    try:
        workers = sum(map(is_held, root.worker_locks))
        count = sum(is_held(lock) for lock in root.instances.glob("*.lock"))
        keeper = is_held(root.path / "keeper.lock")
    except OSError as error:
        step = f"Make this user the owner of {root.path} and all that is in it."
        yield CheckFinding(name, "warning", f"the running processes are unknown: {error.strerror}", step)
        return
    if not count and not keeper:
        yield CheckFinding(name, "ok", "no Ava server is running here now")
        return
    text = f"{count} Ava processes are running here"
    if count == 1:
        text = "1 Ava process is running here"
    if workers == 1:
        text += ", one of them the worker"
    elif workers:
        text += f", {workers} of them workers"
    text += "; one of them updates index and mirror" if keeper else "; none of them updates index and mirror"
    yield CheckFinding(name, "ok", text)


def seems_held(lock: Path) -> bool:
    try:
        return is_held(lock)
    except OSError:  # another user's file: assume that its process lives
        return True


def _servers(root: DataRoot) -> Iterator[CheckFinding]:
    if root.local_token.exists():
        up = is_held(root.http_lock)
        text = f"runs (port, process: {root.http_port})" if up else "is not running; a host starts it"
        yield CheckFinding("local server", "ok", f"the HTTP server for hosts on this machine {text}")
    if root.pages_port.exists():
        up = is_held(root.pages_lock)
        text = f"runs (port, process, version: {root.pages_port})" if up else "is not running; `ava ui` starts it"
        yield CheckFinding("pages", "ok", f"the server of `ava ui` {text}")


def confinement(sandbox: Sandbox | Unavailable, details: str = "") -> CheckFinding:
    """Return what confines commands here, or why nothing does and what to do."""
    name = "confinement"
    has = f" ({details})" if details else ""
    if isinstance(sandbox, Unavailable):
        off = "run_bash, python_exec and programs of MCP servers are off"
        text = f"commands cannot be confined here, so {off}: {sandbox.why}"
        step = f"{sandbox.what_to_do[0].upper()}{sandbox.what_to_do[1:]}, then run `ava doctor` again."
        return CheckFinding(name, "warning" if sys.platform == "linux" else "note", text, step)
    if sandbox.kind == "none":
        text = 'commands are not confined (sandbox.mode = "none"): they can read, change and send whatever you can'
        return CheckFinding(name, "warning", text, 'Set sandbox.mode to "auto", or remove it.')
    if sandbox.kind == "landlock":
        text = f"commands run in Landlock, which hides less than bubblewrap would{has}"
        return CheckFinding(name, "note", text, "Install bubblewrap, or let it create user namespaces.")
    return CheckFinding(name, "ok", f"commands run in bubblewrap{has}")


def log_size(entries: int, size: int, *, partial: bool, more: str = "") -> CheckFinding:
    text = f"{entries:,} entries, {format_bytes(size)}{more}"
    if not partial:
        return CheckFinding("log", "ok", text)
    text += "; a process died while writing, and the next start recovers its last entries"
    return CheckFinding("log", "note", text)


def lags_of(view: View, *, mirrors: bool) -> dict[str, int]:
    """Return how many entries each copy of the log lacks."""
    copies = {INDEX: "words"}
    if mirrors:
        copies[MIRROR] = "mirror"
    return {name: view.head() - view.progress(copy) for name, copy in copies.items()}


def upkeep(lags: Mapping[str, int], *, keeper: bool) -> CheckFinding:
    """Return how many entries each copy of the log lacks; `keeper`: a process updates them."""
    behind = [f"the {name} is {count:,} entries behind" for name, count in lags.items() if count > 0]
    if not behind:
        verb = "are" if len(lags) > 1 else "is"
        return CheckFinding("upkeep", "ok", f"{' and '.join(lags)} {verb} up to date")
    text = f"{' and '.join(behind)}; a running server updates it within seconds, else the next one that starts"
    if keeper and max(lags.values()) > LAGS_MUCH:
        step = "If the number does not fall, see `ava logs --type error`, then restart Ava's servers."
        return CheckFinding("upkeep", "warning", text, step)
    return CheckFinding("upkeep", "ok" if keeper else "note", text)


def budgets(today: Sequence[Budget], settings: Sequence[str]) -> CheckFinding:
    """Return what is spent and held of today's budgets, and what to do if one is used up: each setting has a cap."""
    words = [f"{budget.whose} {budget.words}" for budget in today]
    text = f"spent today (UTC): {', '.join(words)}"
    full_settings: list[str] = []
    helps_to_wait = True
    for budget, setting in zip(today, settings, strict=False):
        if budget.spent >= budget.cap:
            full_settings.append(setting)
            if not budget.cap:  # a new day does not help against 0
                helps_to_wait = False
    if not full_settings:
        return CheckFinding("budget", "ok", text)
    step = f"raise {', and '.join(full_settings)}"
    if helps_to_wait:
        step = f"wait until 00:00 UTC, or {step}"
    return CheckFinding("budget", "warning", f"{text}; only free models can run", f"{step[0].upper()}{step[1:]}.")

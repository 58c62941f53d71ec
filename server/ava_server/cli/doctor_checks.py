"""The checks of `ava doctor`: `CHECKS` lists those of `service/checks/` and those of the log in the report's order."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ava_audit.errors import AuditError, DataRootRefused, SchemaNewer, SchemaOlder
from ava_audit.mirror import mirror_faults
from ava_audit.redaction import Redactor
from ava_audit.store.backend import OlderSchema
from ava_audit.store.connection import disk_fault
from ava_audit.store.locks import lock_fault
from ava_audit.store.look import OpenedLog, look_at
from ava_audit.store.schema import SCHEMA_VERSION, needs_migration, schema_faults
from ava_audit.store.sqlite import backend_at, backend_of, log_file
from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.budget.user_limits import day_caps, day_setting
from ava_server.cli.log_look import LogLook
from ava_server.config.keys import is_placeholder, key_variables, list_keys
from ava_server.config.secrets import read_secrets
from ava_server.core.data_root import os_user
from ava_server.core.errors import AvaError
from ava_server.service.checks import Check, CheckFinding, Setup, data, machine, models, roles
from ava_server.service.checks.delivery import delivery
from ava_server.service.checks.refused_keys import refused_findings, refused_keys
from ava_server.service.current import todays_budgets

_BROKEN = (
    "Check that no other program holds ava.db. If it is damaged, restore a copy, or move it and logs/ to another place:"
    " Ava then begins a new log."
)
_LOST = (
    "Restore a copy of ava.db, or start Ava without one: it then begins a new log, and keeps the old one's files beside"
    " the new ones."
)

CONNECTIONS = 12
"""Connections to Postgres that a server or worker takes at most: eight readers, the writer, and three for the rest."""
RESERVED_CONNECTIONS = 5
"""Connections that Postgres keeps for superusers (3), and two for commands and backups."""
_TRUSTED = "Run workers only on machines that you trust with the whole log."
_NEWER = "Install the newer Ava, or set AVA_DATA_ROOT to another folder."


def log(setup: Setup) -> Iterator[CheckFinding]:
    """The log's size, whether this version can read it, and whether index and mirror are behind."""
    root = setup.usable_root
    if root is None:
        return
    path = log_file(root.path)
    if path is None:
        yield _check_on_server(root.path)
        return
    try:
        if lost := [] if path.exists() and path.stat().st_size > 0 else mirror_faults(None, path.parent / "logs"):
            yield CheckFinding("log", "fault", lost[0].text, _LOST)
        elif not path.exists():
            yield CheckFinding("log", "note", "there is none yet; it is created at the first start")
        else:
            yield from look_at(root.path, lambda opened: list(_check_log(setup, path, opened)))
    except (sqlite3.Error, OSError) as error:
        if lock_fault(path.parent):  # the data root's own check reports this
            return
        full = disk_fault(error, path)
        to_do = "Free some space on that disk." if full else _BROKEN
        yield CheckFinding("log", "fault", f"{path} cannot be read: {full or error}", to_do)


def _check_on_server(root: Path) -> CheckFinding:
    try:
        backend = backend_of(root)
        with contextlib.closing(backend.open_to_check()) as db:
            faults = schema_faults(backend.schema_changes(db))
            head = View(db).head()
    except SchemaOlder as error:
        return CheckFinding("log", "note", str(error))
    except SchemaNewer as error:
        return CheckFinding("log", "fault", str(error), _NEWER)
    except DataRootRefused as error:
        return CheckFinding("log", "fault", str(error), "Do what it says, or correct AVA_DATABASE_URL.")
    except AuditError as error:
        return CheckFinding("log", "fault", str(error), "Start the Postgres server, or correct AVA_DATABASE_URL.")
    if faults:
        return CheckFinding("log", "fault", faults[0].text, "Restore the database, or find out what else writes to it.")
    return CheckFinding("log", "ok", f"{head:,} entries in {backend.place}")


def _check_log(setup: Setup, path: Path, opened: OpenedLog) -> Iterator[CheckFinding]:
    version = opened.db.schema_version()
    size = sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*") if part.is_file())
    if version == 0 and size > 0:
        yield CheckFinding("log", "fault", f"{path} is not a log: its beginning is missing", _BROKEN)
        return
    if version != SCHEMA_VERSION:
        yield _other_schema(path, version, opened)
        return
    if faults := schema_faults(backend_at(path).schema_changes(opened.db)):
        for fault in faults:
            yield CheckFinding("log", "fault", fault.text, _BROKEN)
        return
    view, more = View(opened.db), f", schema {version}"
    yield data.log_size(view.head(), size, partial=opened.partial, more=more)
    lags = data.lags_of(view, mirrors=setup.settings is None or setup.settings.mirrors)
    yield data.upkeep(lags, keeper=data.seems_held(path.with_name("keeper.lock")))


def _other_schema(path: Path, version: int, opened: OpenedLog) -> CheckFinding:
    try:
        needs_migration(opened.db, str(path), OlderSchema.MIGRATE)
    except SchemaNewer as error:
        return CheckFinding(
            "log", "fault", str(error), "Install the newer Ava, or set AVA_DATA_ROOT to another folder."
        )
    except DataRootRefused as error:
        step = "Export it with the version that wrote it, or set AVA_DATA_ROOT to another folder."
        return CheckFinding("log", "fault", str(error), step)
    return CheckFinding(
        "log",
        "note",
        f"{path} has schema {version}; the next server that starts copies it and brings it to {SCHEMA_VERSION}, and so"
        " does `ava migrate`",
    )


def budgets(setup: Setup) -> Iterator[CheckFinding]:
    root, settings = setup.usable_root, setup.settings
    if settings is None or root is None:
        return
    user, caps = os_user(), day_caps(settings, os_user())
    try:
        found = LogLook(root).look(
            lambda log: todays_budgets(View(log.db), user, "you", caps, now_us(), everybody=True)
        )
    except (AvaError, AuditError):  # the log's own check reports this
        return
    found = found or todays_budgets(None, user, "you", caps, now_us(), everybody=True)
    yield data.budgets(found, (day_setting(settings, user), settings.installation_day_setting))


def providers_that_refused(setup: Setup) -> list[CheckFinding]:
    """Return the providers that refused their key lately; none where the log cannot be read, as its own check says."""
    root = setup.usable_root
    if root is None:
        return []
    try:
        return refused_findings(LogLook(root).look(lambda log: refused_keys(View(log.db), now_us())) or [])
    except (AvaError, AuditError):
        return []


def shared_log(setup: Setup) -> Iterator[CheckFinding]:
    """Who can change a log in Postgres, and whether that has connections for all processes."""
    root = setup.usable_root
    if root is None or setup.settings is None or not setup.settings.shares_log:
        return
    backend = backend_of(root.path)
    try:
        with contextlib.closing(backend.instances(root.instances)) as instances:
            kinds = Counter(each.announcement.kind for each in instances.live())
        with contextlib.closing(backend.open_to_check()) as db:
            ((most,),) = View(db).select("SELECT CAST(current_setting('max_connections') AS integer)")
    except AuditError:  # the log's own check reports it
        return
    count = kinds["server"] + kinds["worker"]
    text = (
        "every server and worker connects as the log's owner, and can read and change all of it; each takes up to"
        f" {CONNECTIONS} of Postgres' {most} connections (running now: {count})"
    )
    if CONNECTIONS * count > most - RESERVED_CONNECTIONS:
        enough = CONNECTIONS * count + RESERVED_CONNECTIONS
        yield CheckFinding("shared log", "warning", text, f"Set max_connections of Postgres to {enough} or more.")
    else:
        yield CheckFinding("shared log", "note", text, _TRUSTED)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("python", machine.python),
    ("command", machine.command),
    ("extras", machine.extras),
    ("sqlite", machine.sqlite),
    ("git", machine.git),
    ("confinement", machine.confinement),
    ("data root", data.data_root),
    ("disk space", data.space),
    ("settings", data.settings),
    ("programs", data.programs),
    ("approval", data.approval),
    ("log", log),
    ("shared log", shared_log),
    ("lost entries", data.lost_log),
    ("processes", data.processes),
    ("delivery", delivery),
    ("budget", budgets),
    ("keys", models.keys),
    ("secrets", roles.secrets),
    ("providers", models.providers),
    ("models", models.tiers),
    ("prices", roles.prices),
    ("search", models.search),
    ("network", models.network),
    ("MCP servers", roles.servers),
    ("roles", roles.roles),
    ("hosts", machine.hosts),
)
"""Each check, with the name of a finding about its failure."""


def redactor_of(setup: Setup) -> Redactor:
    known = {"AVA_MODEL_API_KEY": setup.env.get("AVA_MODEL_API_KEY", "").strip()}
    env = setup.env
    known |= {name: env[variable] for variable, name in key_variables(env).items() if not is_placeholder(env[variable])}
    if setup.root is not None:
        # The checks of keys and secrets report these errors; what cannot be read cannot be shown.
        with contextlib.suppress(AvaError, OSError):
            known |= {key.provider: key.value for key in list_keys(setup.root.keys, setup.env)}
        with contextlib.suppress(AvaError, OSError):
            known |= {secret.name: secret.value for secret in read_secrets(setup.root.secrets_file).values()}
    return Redactor({name: value for name, value in known.items() if value})

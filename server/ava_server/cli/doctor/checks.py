"""All checks, in the order in which they are shown; none of them can end the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ava_audit.redaction.redact import Redactor
from ava_server.cli.doctor import data, foreign, hosts, log, models, roles, search, secrets, system
from ava_server.cli.doctor.check import REPORT, Check, Finding, Setup
from ava_server.config.keys import list_keys
from ava_server.config.secrets import read_secrets
from ava_server.core.errors import AvaError

CHECKS: tuple[tuple[str, Check], ...] = (
    ("python", system.python),
    ("command", system.command),
    ("sqlite", system.sqlite),
    ("git", system.git),
    ("ripgrep", system.ripgrep),
    ("confinement", system.confinement),
    ("data root", data.data_root),
    ("disk space", data.space),
    ("settings", data.settings),
    ("approval", data.approval),
    ("log", log.log),
    ("processes", log.processes),
    ("budget", log.budgets),
    ("keys", models.keys),
    ("secrets", secrets.secrets),
    ("providers", models.providers),
    ("models", models.tiers),
    ("search", search.search),
    ("network", models.network),
    ("MCP servers", foreign.servers),
    ("roles", roles.roles),
    ("hosts", hosts.hosts),
)
"""Each check with the name under which a failure of its own is shown."""


def look(setup: Setup) -> Iterator[Finding]:
    """Make all checks, one after the other, and yield what they find."""
    redactor = redactor_of(setup)
    for name, check in CHECKS:
        try:
            found = check(setup)
        except Exception as error:  # whatever is broken, the other checks are made
            found = [Finding(name, "fault", f"this check failed: {type(error).__name__}: {error}", REPORT)]
        yield from without_keys(found, redactor)


def redactor_of(setup: Setup) -> Redactor:
    """Return what takes every key that is configured out of a text, whatever brought it there."""
    own = {"AVA_MODEL_API_KEY": setup.env.get("AVA_MODEL_API_KEY", "").strip()}
    try:
        keys = {key.provider: key.value for key in list_keys(setup.root.keys, setup.env)} if setup.root else {}
    except (AvaError, OSError):  # the check of keys says so; what is not read cannot be shown
        keys = {}
    try:
        stored = (
            {secret.name: secret.value for secret in read_secrets(setup.root.secrets_file).values()}
            if setup.root
            else {}
        )
    except (AvaError, OSError):
        stored = {}
    return Redactor({name: value for name, value in {**own, **keys, **stored}.items() if value})


def without_keys(findings: Iterable[Finding], redactor: Redactor) -> list[Finding]:
    """Return findings with what looks like a key, or is one, taken out."""
    return [
        Finding(found.name, found.state, redactor.redact(found.text)[0], redactor.redact(found.what_to_do)[0])
        for found in findings
    ]

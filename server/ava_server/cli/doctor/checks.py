"""All checks, in the order of the report."""

from __future__ import annotations

import contextlib

from ava_audit.redaction import Redactor
from ava_server.cli.doctor import log
from ava_server.config.keys import is_placeholder, key_variables, list_keys
from ava_server.config.secrets import read_secrets
from ava_server.core.errors import AvaError
from ava_server.service.checks import Check, Setup, data, machine, models, roles

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
    ("approval", data.approval),
    ("log", log.log),
    ("processes", data.processes),
    ("budget", log.budgets),
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

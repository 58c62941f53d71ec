"""The secrets for tool calls: whether they can be read, and whether those that roles list can be used."""

from __future__ import annotations

from ava_roles.placeholders import secret_names
from ava_server.cli.doctor.check import Finding, Setup, from_error, log_path
from ava_server.config.role_folders import places_here
from ava_server.config.secrets import read_secrets
from ava_server.core.errors import ConfigError

NAME = "secrets"


def secrets(setup: Setup) -> list[Finding]:
    """Tell which secrets are stored, for which hosts, and which ones a role lists in vain; never a value."""
    if setup.root is None or log_path(setup) is None:  # a data root that can be none is told by its own check
        return []
    mend = f"Correct {setup.root.secrets_file}, then see `ava secret list`; until then no secret is sent anywhere."
    try:
        stored = read_secrets(setup.root.secrets_file)
    except ConfigError as error:
        return [from_error(NAME, str(error), mend)]
    bound = [f"{name} for {' and '.join(secret.hosts)}" for name, secret in stored.items() if secret.hosts]
    found = [Finding(NAME, "ok", f"stored: {', '.join(bound)}")] if bound else []
    servers = setup.settings.mcp_servers.values() if setup.settings is not None else ()
    handed = secret_names([text for server in servers for text in (*server.env.values(), *server.headers.values())])
    for name, secret in stored.items():
        if not secret.hosts and name not in handed:
            text = f"{name} is stored for no host, so no tool can send it"
            found.append(Finding(NAME, "warning", text, f"Name its host: ava secret set {name} --for HOST"))
    for role in places_here(setup.root, setup.settings).load().roles:
        for name in role.secrets:
            if name not in stored:
                text = f"the role {role.name} lists {name}, which is not stored: its calls go without"
                found.append(Finding(NAME, "note", text, f"Store it: ava secret set {name} --for HOST"))
    return found

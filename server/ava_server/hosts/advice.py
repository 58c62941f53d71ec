"""Where a key goes in the host that somebody sits at: the server knows its name, and hosts differ."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ava_server.config.keys import OWN_PREFIX, WELL_KNOWN, provider_name
from ava_server.config.settings import BUNDLE
from ava_server.hosts.known import host_of
from ava_server.hosts.launching import launch
from ava_server.models.selection import CUSTOM

DEFAULT = "openrouter"
"""The provider that is named where any would do: one key for the models of all."""
_IN_DIALOG = (DEFAULT, "brave")
_IN_BUNDLE = "Put it into the extension's dialog: Settings → Extensions → Ava → Configure."


def key_advice(provider: str, client: str | None, env: Mapping[str, str] | None = None) -> str:
    """Return how somebody gives this server a provider's key.

    Args:
        provider: Whose key it is.
        client: The name by which the host has introduced itself; None where there is no host.
        env: The server's environment; None is this process's.
    """
    env = os.environ if env is None else env
    if provider == CUSTOM:
        return "Set or correct AVA_MODEL_API_KEY where this server is given its variables, and start it anew."
    if env.get("AVA_HOST", "").strip() == BUNDLE and provider in _IN_DIALOG:
        return _IN_BUNDLE
    command = launch(env=env).shell("key", "set", provider)
    root = env.get("AVA_DATA_ROOT", "").strip()
    where = f" (with AVA_DATA_ROOT set to {root})" if root else ""
    stored = f"In a terminal{where}, run `{command}`; it counts from the next call on."
    host = host_of(client)
    if host is None:
        return stored
    name = provider_name(provider)
    variable = WELL_KNOWN.get(name, OWN_PREFIX + name.upper())
    return f"{stored} {host.key.format(variable=variable)}"

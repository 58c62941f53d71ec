"""How hosts on this machine start this installation, and how its user gives it a key."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ava_extras import in_uv_cache
from ava_server import MODULE_ARGS
from ava_server.config.host_placeholders import BUNDLE
from ava_server.config.keys import OWN_PREFIX, WELL_KNOWN, provider_name
from ava_server.config.settings import http_url
from ava_server.core.data_root import absolute_folder, find_data_root
from ava_server.core.errors import BadInput, ConfigError
from ava_server.hosts.clients import client_of
from ava_server.hosts.known import HOSTS, Host, Launch
from ava_server.models.model_choice import CUSTOM

_PLACES = ("AVA_DATA_ROOT", "XDG_DATA_HOME")
_MODEL = ("AVA_MODEL_BASE_URL", "AVA_MODEL")


def launch(workspace: str | None = None, env: Mapping[str, str] | None = None) -> Launch:
    """Return how a host starts this installation, with the same data root and model as in this shell.

    Many hosts pass on only a few variables, so those for the data root and the model are written into the entry. Keys
    never are. `workspace` None leaves the folder to Ava. Raises BadInput if it is not a folder; ConfigError:
    AVA_DATA_ROOT is not absolute, or AVA_MODEL_BASE_URL is invalid or has a password.
    """
    env = os.environ if env is None else env
    variables: dict[str, str] = {}
    if any(env.get(name, "").strip() for name in _PLACES):
        variables["AVA_DATA_ROOT"] = str(find_data_root(env=env).path)
    for name in _MODEL:
        value = env.get(name, "").strip()
        if value:
            variables[name] = value
    endpoint = variables.get("AVA_MODEL_BASE_URL")
    if endpoint:
        try:
            http_url(endpoint)
        except ValueError as wrong:
            raise ConfigError(f"AVA_MODEL_BASE_URL cannot be passed on; allowed is {wrong}.") from None
    if workspace is not None:
        variables["AVA_WORKSPACE"] = str(_folder(workspace))
    return replace(_launch(), env=variables)


def _launch() -> Launch:
    command = Path(sys.executable).with_name("ava.exe" if sys.platform == "win32" else "ava")
    if command.exists():
        return Launch(str(command))
    return Launch(sys.executable, (*MODULE_ARGS, "serve"))


def terminal_command(data_root: Path, *words: str) -> str:
    """Return what runs a command of this installation on a data root in any terminal, with the path of `ava`."""
    line = _launch().shell(*words)
    if not os.environ.get("XDG_DATA_HOME", "").strip() and data_root == find_data_root(env={}).path:
        return line
    if sys.platform == "win32":  # PowerShell
        quoted = re.sub("(['\u2018-\u201b])", r"\1\1", str(data_root))  # each of these ends a text in single quotes
        return f"$env:AVA_DATA_ROOT='{quoted}'; & {line}"
    return f"AVA_DATA_ROOT={shlex.quote(str(data_root))} {line}"


def over_http(host: Host, launch: Launch, port: int) -> Host:
    """Return a host that starts and uses this machine's HTTP server. Raises BadInput if it cannot, or needs stdio."""
    if host.http_entry is None:
        raise BadInput(
            f"--http: {host.title} runs no command before it connects, so nothing would start the server. docs/hosts.md"
            " shows how to connect it to a server that you start yourself."
        )
    if "AVA_WORKSPACE" in launch.env:
        raise BadInput("--workspace: over HTTP, config.toml names the folders: [users.NAME] workspaces")
    if launch.env and sys.platform == "win32":
        raise BadInput(f"--http: on Windows, the command cannot be given {', '.join(launch.env)}; unset it")
    variables = [f"{name}={shlex.quote(value)}" for name, value in launch.env.items()]
    command = " ".join([*variables, launch.shell("connect", "--port", str(port))])
    http_entry = host.http_entry(f"http://127.0.0.1:{port}/mcp", command)

    def entry(_launch: Launch) -> dict[str, Any]:
        return dict(http_entry)

    return replace(host, entry=entry)


def _folder(text: str) -> Path:
    try:
        path = absolute_folder(Path(text)).resolve()
    except ValueError as wrong:
        raise BadInput(f"--workspace is {text!r}; allowed is {wrong}.") from None
    if not path.is_dir():
        raise BadInput(f"--workspace: there is no folder {path}.")
    return path


def why_temporary(prefix: Path) -> str:
    """Return why a Python environment is temporary, or empty text."""
    if in_uv_cache(prefix) or ".cache" in prefix.resolve().parts:
        return "that is a cache, which is cleared from time to time"
    if prefix.resolve().is_relative_to(Path(tempfile.gettempdir()).resolve()):
        return "that is a temporary folder"
    return ""


DEFAULT = "openrouter"
"""The provider to suggest: one key for the models of all providers."""
_IN_DIALOG = (DEFAULT, "brave")
_IN_BUNDLE = "Enter it in the extension's dialog: Settings → Extensions → Ava → Configure."


def key_advice(provider: str, client: str | None, env: Mapping[str, str] | None = None, *, remote: bool = False) -> str:
    """Return how to give this server a provider's key; to a `remote` user, without paths of this machine."""
    env = os.environ if env is None else env
    if provider == CUSTOM:
        return (
            "Set or correct AVA_MODEL_API_KEY where this server is given its variables, and restart it. A worker with"
            " the old one ends a minute after its last run."
        )
    if remote:
        return f"A person in a terminal on the server stores one: `ava key set {provider}`."
    if env.get("AVA_HOST", "").strip() == BUNDLE and provider in _IN_DIALOG:
        return _IN_BUNDLE
    command = launch(env=env).shell("key", "set", provider)
    where = "In a terminal"
    root = env.get("AVA_DATA_ROOT", "").strip()
    if root:
        where += f" (with AVA_DATA_ROOT set to {root})"
    to_store = f"{where}, run `{command}`; it takes effect with the next call."
    host = HOSTS.get(client_of(client).id)
    if host is None:
        return to_store
    name = provider_name(provider)
    variable = WELL_KNOWN.get(name, OWN_PREFIX + name.upper())
    return f"{to_store} {host.key.format(variable=variable)}"

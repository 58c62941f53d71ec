"""The hosts: which of them have Ava in their configuration, and whether what they start is there."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from ava_server.cli.doctor.check import Finding, Setup
from ava_server.core.data_root import home_folder
from ava_server.core.errors import ConfigError
from ava_server.hosts.change import servers_of
from ava_server.hosts.known import HOSTS, Host, UserPlace


def hosts(setup: Setup) -> list[Finding]:
    """Tell which hosts start Ava, and which could; a host without a configuration is not looked for further."""
    place = UserPlace(sys.platform, home_folder(), setup.env)
    found: list[Finding] = []
    for host in HOSTS.values():
        file = host.file(place)
        try:
            found += [_server(host, file, command) for command in servers_of(host, file).values()]
        except ConfigError as error:
            advice = f"Mend it; {host.title} may not be able to read it either."
            found.append(Finding("host", "warning", f"{host.title}: {error}", advice))
    if found:
        return found
    advice = f"Run `ava init HOST`, with one of {', '.join(HOSTS)}."
    return [Finding("hosts", "note", "none starts Ava yet", advice)]


def _server(host: Host, file: Path, command: str) -> Finding:
    again = f"Run `ava init {host.name}` again, with the --name that the server has there if that is not ava."
    if shutil.which(command) is None:
        return Finding("host", "warning", f"{host.title} starts {command}, which is not there ({file})", again)
    if not Path(command).is_absolute():
        text = f"{host.title} starts {command}, by a name that it may not find ({file})"
        return Finding("host", "note", text, f"{again} It writes the whole path.")
    return Finding("host", "ok", f"{host.title} starts {command} ({file})")

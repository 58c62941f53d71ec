"""The hosts: which of them have Ava in their configuration, and whether what they start is there."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, cast

from ava_server.doctor.check import Finding, Setup
from ava_server.hosts.change import is_ours
from ava_server.hosts.host import Host, Launch, Place
from ava_server.hosts.known import HOSTS


def hosts(setup: Setup) -> list[Finding]:
    """Tell which hosts start Ava, and which could; a host without a configuration is not looked for further."""
    place = Place(sys.platform, Path.home(), setup.env)
    found: list[Finding] = []
    without: list[str] = []
    for host in HOSTS.values():
        file = host.file(place)
        try:
            text = file.read_bytes().decode() if file.exists() else ""
            entries = _entries(host, host.format.parse(text.removeprefix("\ufeff")))
        except (OSError, ValueError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            advice = f"Mend it there; {host.title} cannot read it either."
            found.append(Finding("host", "warning", f"{host.title}: {file} cannot be read: {why}", advice))
            continue
        found += [_entry(host, file, name, entry) for name, entry in entries.items()]
        if not entries:
            without.append(host.name)
    if len(without) == len(HOSTS):
        return [
            Finding("hosts", "note", "none starts Ava yet", f"Run `ava init HOST`, with one of {', '.join(HOSTS)}.")
        ]
    return found


def _entries(host: Host, data: Any) -> dict[str, dict[str, Any]]:
    """Return the servers that are Ava, by the names that they have in a configuration."""
    container = cast("dict[str, Any]", data).get(host.pieces("ava", Launch(""))[0].path[0]) if data else None
    servers = cast("dict[str, Any]", container) if isinstance(container, dict) else {}
    return {name: entry for name, entry in servers.items() if is_ours(entry)}


def _entry(host: Host, file: Path, name: str, entry: dict[str, Any]) -> Finding:
    given = entry.get("command")
    words = cast("list[str]", given) if isinstance(given, list) else [str(given)]
    command = words[0]
    again = f"Run `ava init {host.name}{f' --name {name}' if name != 'ava' else ''}`."
    if shutil.which(command) is None:
        return Finding("host", "warning", f"{host.title} starts {command}, which is not there ({file})", again)
    if not Path(command).is_absolute():
        text = f"{host.title} starts {command}, by a name that it may not find ({file})"
        return Finding("host", "note", text, f"{again} It writes the whole path.")
    return Finding("host", "ok", f"{host.title} starts {command} ({file})")

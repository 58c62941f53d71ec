"""Changes of a host's configuration: adding Ava, removing it, rules for its tools, and writing the change.

Rules let a host call some of Ava's tools without asking: only the tools that neither start, spend nor stop anything,
each by its own name. `confirm_spawn` is never allowed, and no rule is a pattern, which could cover it.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import shlex
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, cast

from ava_server.config.keys import KEY_VARIABLES, address_variables
from ava_server.core.errors import ConfigError
from ava_server.core.files import FileChanged, create_file, reason, replace_file
from ava_server.hosts.formats import NOTHING, ConfigFormat, Configuration, Steps, dotted_name, put_in
from ava_server.hosts.known import TOKEN, TOKEN_INPUT, Host, Launch, Rule, ToolRules, UserPlace
from ava_server.models.json_text import as_list, as_object, fields_of

BACKUP = "ava-backup"
_OURS = frozenset({"ava", "ava-subagents", "ava_server"})
_START = ("command", "cmd", "args", "url", "headersHelper")
"""The fields of an entry that say how the host starts the server and reaches it."""
_VARIABLE = re.compile(r"[A-Z_]+=")
_TOKEN_REFERENCE = re.compile(rf"Bearer \$?\{{?(env:)?{TOKEN}\}}?|Bearer \$\{{input:{TOKEN_INPUT}\}}")
_ADDRESSES = ("url", "httpUrl")
_STARTERS = frozenset({"uv", "uvx", "pipx", "python", "python3", "py"})


@dataclass(frozen=True)
class HostChange:
    """A change of a host's configuration."""

    path: Path  # the file, as it was named
    target: Path  # the file that is written: where a link leads
    before: str | None  # its text; None if there is no file
    after: str | None  # its new text; None if the file is removed
    lines: tuple[str, ...] = ()  # what changes, one line each. Old values are not shown: they may be keys
    notes: tuple[str, ...] = ()  # what was left alone, and why

    @property
    def nothing(self) -> bool:
        return self.before == self.after


def change_to_add(host: Host, name: str, launch: Launch, path: Path) -> HostChange:
    """Return the change that adds Ava, or renews its entry. Raises ConfigError: impossible, or not Ava's."""
    file = Configuration.read(path, host.format)
    before = file.text
    where = place_of(file, host, name)
    old, new = file.get(where), host.entry(launch)
    notes: list[str] = []
    if old is NOTHING:
        lines = _add_entry(file, host, name, new)
    elif not is_remote(old) and not is_ours(old):
        raise ConfigError(
            f"{path} already has a server called {name}, and it is not Ava: it was left alone. Give Ava another name"
            " there with --name, or remove that server yourself."
        )
    elif is_remote(old) != is_remote(new):
        there = "on another machine" if is_remote(old) else "on this machine"
        raise ConfigError(
            f"{path} already has a server called {name}, an Ava {there}: it was left alone. Give the other one its own"
            f" name with --name, or remove this one first: ava init {host.name} --remove"
        )
    elif is_remote(old):
        address = {(*where, key): new[key] for key in _ADDRESSES if key in new}
        lines = _put_changes(file, address)  # everything else in it stays
        lines += _set_to_ask(file, host, name)
    else:
        lines, notes = _renew_entry(file, host, where, launch)
        lines += _set_to_ask(file, host, name)
    asks = host.asking(name)
    if asks is not None and not _is_set(file, *asks):
        place, value = asks
        notes.append(
            f'{host.title} may skip asking before confirm_spawn: {dotted_name(place)} is not "{value}". It was left so.'
        )
    return HostChange(path, file.target, before, file.text, tuple(lines), tuple(notes))


def _is_set(file: Configuration, place: Steps, value: str) -> bool:
    """Tell whether a configuration says this at a place, or for a whole table above it."""
    return any(file.get(place[:depth]) == value for depth in range(1, len(place) + 1))


def change_to_remove(host: Host, name: str, path: Path) -> HostChange:
    """Return the change that removes Ava's server; if nothing else was changed, exactly the text from before is back.

    Raises ConfigError if the configuration cannot be changed, or the server of that name is not Ava.
    """
    file = Configuration.read(path, host.format)
    before = file.text
    where = place_of(file, host, name)
    old = file.get(where)
    if old is NOTHING:
        return HostChange(path, file.target, before, before)
    if is_remote(old) and host.remote is not None:
        host = host.connecting_to("")
    elif not is_ours(old):
        raise ConfigError(f"The server called {name} in {path} is not Ava; it was left alone.")
    file.remove(where)
    lines = [f"- {dotted_name(where)}"]
    asking = host.asking(name)
    if asking is not None:
        asking_place, asking_value = asking
        if file.get(asking_place) == asking_value:
            file.remove(asking_place)
            lines.append(f"- {dotted_name(asking_place)}")
    element = _element(file, host)
    value = host.element_value
    # It stays where another server refers to it too.
    if element is not None and file.get(element) == value and f"${{input:{value['id']}}}" not in file.body:
        file.remove(element)
        lines.append(f"- {dotted_name(element[:-1])}: {value['id']}")
    return HostChange(path, file.target, before, _as_before(host, name, old, file, before), tuple(lines))


def apply(change: HostChange, *, keep_backup: bool = True) -> Path | None:
    """Return the backup's path, if any. Raises ConfigError: impossible, or changed by somebody else.

    `keep_backup` is False where the same command has written this file before: that kept what the person had.
    """
    target = change.target
    backup = None
    try:
        if change.before is None:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                raise FileChanged
            create_file(target, (change.after or "").encode())
            return None
        before = change.before.encode()
        mode = stat.S_IMODE(target.stat().st_mode)
        if keep_backup:
            backup = _back_up(target, before, mode)
        if change.after is None and change.path == target:
            if target.read_bytes() != before:
                raise FileChanged
            target.unlink()
        else:  # a link must still lead to a file
            replace_file(target, (change.after or "").encode(), mode, before)
        return backup
    except FileChanged:
        _discard(backup)
        raise ConfigError(
            f"{change.path} was changed by another program just now. Nothing was written; try again."
        ) from None
    except OSError as failed:
        _discard(backup)
        raise ConfigError(f"{change.path} cannot be written: {reason(failed)}. It was left as it is.") from failed


def is_ours(entry: object) -> bool:
    """Tell whether a server's entry starts Ava, directly or through a program such as uvx."""
    stems = [PureWindowsPath(word).stem for word in _words(entry)]
    if {"serve", "connect"}.isdisjoint(stems):
        return False
    program, *arguments = stems
    if program in _OURS:
        return True
    is_starter = program.rstrip("0123456789.") in _STARTERS
    return is_starter and not _OURS.isdisjoint(arguments)


def is_remote(entry: object) -> bool:
    """Tell whether an entry connects to an Ava on another machine: it takes the token from where Ava says."""
    table = fields_of(entry)
    if table.get("bearer_token_env_var") == TOKEN:
        return True
    authorization = str(fields_of(table.get("headers")).get("Authorization"))
    return _TOKEN_REFERENCE.fullmatch(authorization) is not None


@dataclass(frozen=True)
class Server:
    """A server in a host's configuration that is Ava; `command` is what the host starts.

    `without_address`: the variables of keys that the host passes on, each with those for its address that it does not.
    """

    command: str
    without_address: Mapping[str, tuple[str, ...]]


def servers_of(host: Host, path: Path) -> list[Server]:
    """Return the servers that are Ava. Raises ConfigError if the configuration cannot be read."""
    table = Configuration.read(path, host.format, to_change=False).get((host.servers,))
    servers: list[Server] = []
    for entry in (*fields_of(table).values(), *as_list(table)):
        if is_ours(entry):
            command = _words(entry)[0]
            servers.append(Server(command, _keys_without_address(host, fields_of(entry))))
    return servers


def place_of(file: Configuration, host: Host, name: str) -> Steps:
    """Return where a configuration has the server of this name, or would have it."""
    if not host.in_list:
        return (host.servers, name)
    servers = as_list(file.get((host.servers,)))
    for number, entry in enumerate(servers):
        if fields_of(entry).get("name") == name:
            return (host.servers, number)
    return (host.servers, len(servers))


def _keys_without_address(host: Host, entry: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """Return the variables of keys that an entry passes on, each with those for its address that are missing.

    Without those, Ava cannot tell a gateway's key from the provider's. A key that is written into the entry is Ava's.
    """
    table = fields_of(entry.get(host.env))
    names: set[str] = set()
    for variable in as_list(entry.get("env_vars")):
        fields = as_object(variable)
        if fields is not None:
            variable = fields.get("name")
        names.add(str(variable))
    for name, value in table.items():
        if name in str(value):  # such as `"KEY": "${KEY}"`
            names.add(name)
    known = names.union(table)
    keys: dict[str, tuple[str, ...]] = {}
    for key, provider in KEY_VARIABLES.items():
        if key not in names:
            continue
        missing = [name for name in address_variables(provider) if name not in known]
        if missing:
            keys[key] = tuple(missing)
    return keys


def _words(entry: object) -> list[str]:
    """Return the command line of an entry; empty if it has none that can be read."""
    table = fields_of(entry)
    helper = table.get("headersHelper")
    if isinstance(helper, str):
        try:
            return [word for word in shlex.split(helper) if not _VARIABLE.match(word)]
        except ValueError:  # an open quotation mark
            return []
    words: list[str] = []
    for part in (table.get("command", table.get("cmd")), table.get("args", [])):
        for word in as_list(part) if isinstance(part, list) else [part]:
            if not isinstance(word, str):
                return []
            words.append(word)
    return words


def _add_entry(file: Configuration, host: Host, name: str, entry: dict[str, Any]) -> list[str]:
    """Add the server, the element it refers to, and what makes the host ask; returns the lines of the change."""
    where = place_of(file, host, name)
    asks = host.asking(name)
    if host.in_list:
        entry = {"name": name, **entry}
    if asks is not None:
        place, value = asks
        if place[:2] == where:
            put_in(entry, place[2:], value)
    file.put(where, entry)
    lines = _lines(host, where, entry)
    element = _element(file, host)
    if element is not None and file.get(element) is NOTHING and file.takes(element):
        file.put(element, host.element_value)
        lines += _lines(host, (*element[:-1], 0), host.element_value)
    return lines + _set_to_ask(file, host, name)


def _set_to_ask(file: Configuration, host: Host, name: str) -> list[str]:
    """Make the host ask before each `confirm_spawn`, unless its configuration already says something about that."""
    asks = host.asking(name)
    if asks is None or file.get(asks[0]) is not NOTHING or not file.takes(asks[0]):
        return []
    file.put(*asks)
    return _lines(host, *asks)


def _renew_entry(file: Configuration, host: Host, where: Steps, launch: Launch) -> tuple[list[str], list[str]]:
    """Make an entry of Ava start this installation; everything else in it belongs to the person, and stays."""
    old = cast("Mapping[str, Any]", file.get(where))
    entry = host.entry(launch)
    words = _words(old)
    lines: list[str] = []
    values: dict[Steps, Any] = {(*where, host.env, name): value for name, value in launch.env.items()}
    program = PureWindowsPath(words[0]).stem
    if program not in _OURS and "ava_server" not in words:
        note = f"{dotted_name(where)} starts Ava with {program}: that was left as it is."
        return _put_changes(file, values), [note]
    keys: list[str] = list(_START)
    if ("headersHelper" in old) != ("headersHelper" in entry):  # the host starts it another way now
        keys.append("type")
    for key in keys:
        if key in entry:
            values[*where, key] = entry[key]
    for key in _START:
        if key in old and key not in entry:
            file.remove((*where, key))
            lines.append(f"- {dotted_name((*where, key))}")
    return lines + _put_changes(file, values), []


def _put_changes(file: Configuration, values: Mapping[Steps, Any]) -> list[str]:
    lines: list[str] = []
    for place, value in values.items():
        if file.get(place) != value:
            file.put(place, value)
            lines.append(f"{dotted_name(place)} = {json.dumps(value, ensure_ascii=False)}")
    return lines


def _as_before(host: Host, name: str, entry: dict[str, Any], file: Configuration, before: str | None) -> str | None:
    """Return the text of a file after Ava was removed: the exact text from before it was added, if that is certain."""

    def add(earlier: Configuration) -> bool:
        if earlier.get(place_of(earlier, host, name)) is not NOTHING:
            return False
        return bool(_add_entry(earlier, host, name, copy.deepcopy(entry)))

    return text_before(file, host.format, before, add)


def text_before(
    file: Configuration, form: ConfigFormat, before: str | None, add: Callable[[Configuration], bool]
) -> str | None:
    """Return a file's text from before something was added, if that is certain, else its present text.

    `add` makes the addition again, in a configuration, and tells whether something was missing. A backup, or no file at
    all, is certainly the text from before if adding to it gives exactly `before`, the text before the removal.
    """
    texts: list[str | None] = [None]
    for backup in sorted(file.target.parent.glob(f"{file.target.name}.{BACKUP}-*"), reverse=True):
        try:
            texts.insert(-1, backup.read_bytes().decode())
        except (OSError, UnicodeDecodeError):
            continue
    for text in texts:
        try:
            earlier = Configuration(file.path, file.target, text, form)
            if add(earlier) and earlier.text == before:
                return text
        except ConfigError:
            continue
    return file.text


def _element(file: Configuration, host: Host) -> Steps | None:
    """Return the place of the element that the entry refers to, or where it would be added."""
    if host.element is None:
        return None
    elements = as_list(file.get(host.element.path))
    for number, element in enumerate(elements):
        if fields_of(element).get("id") == host.element.value["id"]:
            return (*host.element.path, number)
    return (*host.element.path, len(elements))


def _lines(host: Host, path: Steps, value: Any) -> list[str]:
    return [f"+ {line}" for line in host.format.lines_of(path, value)]


def _back_up(target: Path, data: bytes, mode: int) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in itertools.count():
        ending = f"-{number}" if number else ""
        path = target.with_name(f"{target.name}.{BACKUP}-{stamp}{ending}")
        try:
            create_file(path, data, mode)
        except FileExistsError:
            continue
        return path
    raise AssertionError("there is always another name")


def _discard(backup: Path | None) -> None:
    if backup is not None:
        backup.unlink(missing_ok=True)


QUIET_TOOLS = ("spawn_subagent", "check_subagent", "read_ava_logs")


def change_to_allow(host: Host, name: str, config: Path, place: UserPlace) -> HostChange | None:
    """Return None if there is no place for the rules. Raises ConfigError."""
    if host.tool_rules is None:
        return None
    rules = host.tool_rules
    file = _read(host.tool_rules, config, place)
    if rules.only_to_list and any(file.get(rule.place) is NOTHING for rule in rules.of(name, QUIET_TOOLS)):
        return None
    before = file.text
    lines = [f"+ {line}" for line in _add(file, rules, name)]
    return HostChange(file.path, file.target, before, file.text, tuple(lines))


def change_to_forget(host: Host, name: str, config: Path, place: UserPlace) -> HostChange | None:
    """Return the change that removes the rules that Ava added for its quiet tools; None if the host has no such rules.

    If nobody has changed the file since, it gets back its text from before. Nothing is removed if one of the rules is
    missing, because then they were not added together. Raises ConfigError if the file cannot be read or changed.
    """
    if host.tool_rules is None:
        return None
    rules = host.tool_rules
    file = _read(host.tool_rules, config, place)
    before = file.text
    unchanged = HostChange(file.path, file.target, before, before)
    removed: list[Rule] = []
    for rule in rules.of(name, QUIET_TOOLS):
        if _stands(file, rule):
            removed.append(rule)
        elif not _has_other_value(file, rule):
            return unchanged
    for rule in removed:
        where: Steps = rule.place
        items = file.get(where)
        if rule.listed and len(items) > 1:
            where = (*where, items.index(rule.value))
        file.remove(where)
    if before == file.text:
        return unchanged

    def add(earlier: Configuration) -> bool:
        return bool(_add(earlier, rules, name))

    after = text_before(file, rules.format, before, add)
    lines = [f"- {line}" for line in _describe_rules(rules, removed)]
    return HostChange(file.path, file.target, before, after, tuple(lines))


def _stands(file: Configuration, rule: Rule) -> bool:
    value = file.get(rule.place)
    if rule.listed:
        return isinstance(value, list) and rule.value in value
    return bool(value == rule.value)


def _has_other_value(file: Configuration, rule: Rule) -> bool:
    """Tell whether the place of a rule that is no item of a list has a value."""
    return not rule.listed and file.get(rule.place) is not NOTHING


def _read(rules: ToolRules, config: Path, place: UserPlace) -> Configuration:
    return Configuration.read(rules.file(place, config), rules.format)


def _add(file: Configuration, rules: ToolRules, name: str) -> list[str]:
    """Add the missing rules where there is no other value, and return their lines.

    Raises ConfigError if the value of a place that should be a list is not one.
    """
    added: list[Rule] = []
    for rule in rules.of(name, QUIET_TOOLS):
        where: Steps = rule.place
        value = file.get(where)
        if rule.listed and value is not NOTHING and not isinstance(value, list):
            raise ConfigError(f"{dotted_name(where)} in {file.path} is not a list; the file was left alone.")
        if _stands(file, rule) or _has_other_value(file, rule):
            continue
        if rule.listed:
            where = (*where, len(as_list(value)))
        file.put(where, rule.value)
        added.append(rule)
    return _describe_rules(rules, added)


def _describe_rules(rules: ToolRules, some: Sequence[Rule]) -> list[str]:
    """Return the lines that show rules as they stand in the host's configuration, together for each place."""
    by_place: dict[tuple[str, ...], list[Rule]] = {}
    for rule in some:
        by_place.setdefault(rule.place, []).append(rule)
    lines: list[str] = []
    for place, rules_there in by_place.items():
        last = rules_there[-1]
        if not last.listed:
            lines += rules.format.lines_of(place, last.value)
        elif isinstance(last.value, str):
            lines += rules.format.lines_of(place, [rule.value for rule in rules_there])
        else:  # an item of a list that is a table
            lines += rules.format.lines_of((*place, 0), last.value)
    return lines

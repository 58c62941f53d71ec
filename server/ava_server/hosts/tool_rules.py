"""Rules with which a host calls some of Ava's tools without asking, in the host's own files.

Only the tools that neither start, spend nor stop anything, each by its own name: `confirm_spawn` is never allowed, and
no rule is a pattern, which could cover it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ava_server.core.errors import ConfigError
from ava_server.hosts.change import Change, text_before
from ava_server.hosts.formats import NOTHING, Configuration, named
from ava_server.hosts.known import Host, Rule, ToolRules, UserPlace

QUIET_TOOLS = ("spawn_subagent", "check_subagent", "read_ava_logs")


def allowing(host: Host, name: str, config: Path, place: UserPlace) -> Change | None:
    """Return the change that adds the rules for a server; None if the host has no place for them.

    Raises:
        ConfigError: The file cannot be read or changed; it is left alone.
    """
    if host.tool_rules is None:
        return None
    rules, file = host.tool_rules, _read(host.tool_rules, config, place)
    if rules.only_to_list and any(file.get(rule.place) is NOTHING for rule in rules.of(name, QUIET_TOOLS)):
        return None
    before = file.text
    lines = [f"+ {line}" for line in _add(file, rules, name)]
    return Change(file.path, file.target, before, file.text, tuple(lines))


def forgetting(host: Host, name: str, config: Path, place: UserPlace) -> Change | None:
    """Return the change that removes exactly these rules; None if the host has no place for them.

    If nobody has changed the file since they were added, it gets exactly the text from before.

    Raises:
        ConfigError: The file cannot be read or changed; it is left alone.
    """
    if host.tool_rules is None:
        return None
    rules, file = host.tool_rules, _read(host.tool_rules, config, place)
    before, wanted = file.text, rules.of(name, QUIET_TOOLS)
    if not all(_stands(file, rule) or (not rule.listed and file.get(rule.place) is not NOTHING) for rule in wanted):
        return Change(file.path, file.target, before, before)  # what is there was not added with the others
    removed = [rule for rule in wanted if _stands(file, rule)]
    for rule in removed:
        items = file.get(rule.place)
        part = rule.listed and len(items) > 1
        file.remove((*rule.place, items.index(rule.value)) if part else rule.place)
    if before == file.text:
        return Change(file.path, file.target, before, before)

    def add(earlier: Configuration) -> bool:
        return bool(_add(earlier, rules, name))

    after = text_before(file, rules.format, before, add)
    return Change(file.path, file.target, before, after, tuple(f"- {line}" for line in _shown(rules, removed)))


def _stands(file: Configuration, rule: Rule) -> bool:
    """Tell whether a rule is in a file."""
    found = file.get(rule.place)
    return (isinstance(found, list) and rule.value in found) if rule.listed else found == rule.value


def _read(rules: ToolRules, config: Path, place: UserPlace) -> Configuration:
    return Configuration.read(rules.file(place, config), rules.format)


def _add(file: Configuration, rules: ToolRules, name: str) -> list[str]:
    """Add the rules that are missing, and return their lines; a place where something else stands is left so.

    Raises:
        ConfigError: A list of rules is something else.
    """
    added: list[Rule] = []
    for rule in rules.of(name, QUIET_TOOLS):
        found = file.get(rule.place)
        if rule.listed and found is not NOTHING and not isinstance(found, list):
            raise ConfigError(f"{named(rule.place)} in {file.path} is not a list; the file was left alone.")
        if _stands(file, rule) or (not rule.listed and found is not NOTHING):
            continue
        count = len(cast("list[object]", found)) if isinstance(found, list) else 0
        file.put((*rule.place, count) if rule.listed else rule.place, rule.value)
        added.append(rule)
    return _shown(rules, added)


def _shown(rules: ToolRules, some: Sequence[Rule]) -> list[str]:
    """Return rules as they stand in a file."""
    values: dict[tuple[str, ...], list[Any]] = {}
    for rule in some:
        values.setdefault(rule.place, []).append(rule.value)
    lines: list[str] = []
    for rule in {rule.place: rule for rule in some}.values():
        if rule.listed and not isinstance(rule.value, str):
            lines += rules.format.shown((*rule.place, 0), rule.value)
        else:
            lines += rules.format.shown(rule.place, values[rule.place] if rule.listed else rule.value)
    return lines

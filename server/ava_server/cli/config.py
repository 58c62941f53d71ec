"""`ava config`: the settings of the data root, shown and changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ava_server.cli.app import refuse_in_subagent
from ava_server.cli.log_access import read_settings
from ava_server.cli.options import Json, setting_names
from ava_server.cli.terminal import aligned, heading, present, say, say_json
from ava_server.core.data_root import DataRoot, find_data_root

if TYPE_CHECKING:
    from ava_server.config.checks import Place
    from ava_server.config.settings import Configured, Settings

config_command = typer.Typer(no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="""As in config.toml: limits.running, or 'prices."local:qwen3"'.""",
        autocompletion=setting_names,
    ),
]


@config_command.command("list", short_help="All settings, their values, and where each comes from.")
def list_command(as_json: Json = False) -> None:
    """Show all settings, their values as this process would use them, and where each comes from."""
    from ava_server.config.changes import known_settings
    from ava_server.config.checks import setting_name

    root, settings = find_data_root(), read_settings()
    rows: list[tuple[str, str, str]] = []
    entries: list[dict[str, Any]] = []
    for place, value in known_settings(_configured(settings)).items():
        name, origin = setting_name(place), _origin(settings, place)
        rows.append((name, json.dumps(value, ensure_ascii=False), origin))
        entries.append({"name": name, "value": value, "from": origin})
    present(root, as_json, {"settings": entries}, aligned(rows))


@config_command.command("get", short_help="The value of one setting.")
def get_command(name: Name, as_json: Json = False) -> None:
    """Show the value of one setting, or of a table of settings, as JSON."""
    from ava_server.config.changes import no_setting, parse_name
    from ava_server.config.checks import setting_name

    settings = read_settings()
    place = parse_name(name)
    value: Any = _configured(settings).model_dump(mode="json")
    for part in place:
        if not isinstance(value, dict) or part not in value:
            raise no_setting(setting_name(place))
        value = cast("dict[str, Any]", value)[part]
    if as_json:
        say_json({"name": setting_name(place), "value": value, "from": _origin(settings, place)})
    else:
        say(json.dumps(value, ensure_ascii=False))


@config_command.command("set", short_help="Change one setting; comments in the file stay.")
def set_command(
    name: Name,
    value: Annotated[str, typer.Argument(metavar="VALUE", help='5, true, a text, or a list: \'["a", "b"]\'.')],
) -> None:
    """Change one setting in config.toml; the whole file is checked first, and its comments stay.

    Processes that are running keep the old value until they are restarted.
    """
    from ava_server.config.changes import parse_value

    _change(name, parse_value(value))


@config_command.command("unset", short_help="Return one setting to its default.")
def unset_command(name: Name) -> None:
    """Remove one setting from config.toml, so that its default counts."""
    _change(name, None)


def _change(name: str, value: Any) -> None:
    from ava_audit.store.locks import LockedInstances
    from ava_server.config.changes import change_settings, known_settings, no_setting, parse_name
    from ava_server.config.checks import PROGRAMS, setting_name
    from ava_server.config.settings import Configured

    refuse_in_subagent("ava config")
    root, place = find_data_root(), parse_name(name)
    name = setting_name(place)
    known = place in known_settings(Configured())
    if value is None and not known and not _in_file(root, place):
        raise no_setting(name)
    [before] = change_settings(root.config, {place: value})
    heading(root)
    now_text = _value_text(value)
    if value is None and known:
        now_text = "its default"
    say(f"{name} is now {now_text} in {root.config}; before, it was {_value_text(before)}.")
    if value and place[-1] in PROGRAMS:
        say("Ava now runs this program outside the sandbox, with all your rights.")
    origin = _origin(read_settings(), place)
    if origin.startswith("AVA_"):
        say(f"In this shell {origin} overrides it.")
    if LockedInstances(root.instances).live():
        say("Ava processes are running with the old value: restart the hosts, or `ava serve`.")


def _value_text(value: Any) -> str:
    if value is None:
        return "not set"
    return json.dumps(value, ensure_ascii=False)


def _configured(settings: Settings) -> Configured:
    from ava_server.config.settings import Configured

    return Configured.model_construct(**{name: getattr(settings, name) for name in Configured.model_fields})


def _origin(settings: Settings, path: Place) -> str:
    if path in settings.from_environment:
        return settings.from_environment[path]
    if _in_file(settings.paths, path):
        return "config.toml"
    return "default"


def _in_file(root: DataRoot, path: Place) -> bool:
    from ava_server.config.checks import holds
    from ava_server.config.settings import read_config

    return holds(read_config(root.config), path)

"""`ava config`: names of settings are TOML's dotted keys, wherever they are written or read."""

from __future__ import annotations

import json
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.terminal import ava

from ava_server.config.changes import change_settings, parse_name, parse_value
from ava_server.config.checks import parse_setting_name, setting_name, variable
from ava_server.config.settings import load_settings
from ava_server.core.errors import BadInput, ConfigError

PRICE = "{input = 3, output = 15}"
ODD = ("custom:scripted", "gpt-4.1", 'say "hi"', "back\\slash", "it's", "ünï", "a b", "x\x7f\t", "", "plain")


def config(root: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return ava(root, "config", *args, env=env)


def done(root: Path, *args: str) -> str:
    ran = config(root, *args)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def refused(root: Path, *args: str, **env: str) -> str:
    ran = config(root, *args, **env)
    assert (ran.returncode, ran.stdout) == (2, "")
    return ran.stderr


def stored(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "config.toml").read_text())


@pytest.mark.parametrize("key", ODD)
def test_a_name_reads_back_as_written_and_toml_agrees(key: str) -> None:
    place = ("prices", key, "input")
    name = setting_name(place)
    assert parse_setting_name(name) == place
    assert tomllib.loads(f"{name} = 3") == {"prices": {key: {"input": 3}}}


@pytest.mark.parametrize(
    "name", ["", ".", "a.", ".a", "a..b", "a = 1 #", "a\nb", '"a', "a:b", '"a"b', "a = {b", '"\\x"', '"a\nb"', "[a]"]
)
def test_what_toml_allows_as_no_key_is_no_name(name: str) -> None:
    assert parse_setting_name(name) is None


@pytest.mark.parametrize("name", ['prices."custom:scripted"', "prices.'custom:scripted'"])
def test_sets_shows_and_removes_a_price_under_the_documented_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.toml").write_text("# mine\nenabled = true\n")
    assert 'prices."custom:scripted" is now {"input": 3' in done(tmp_path, "set", name, PRICE)
    assert stored(tmp_path)["prices"] == {"custom:scripted": {"input": 3, "output": 15}}
    assert json.loads(done(tmp_path, "get", name))["output"] == 15
    assert json.loads(done(tmp_path, "get", f"{name}.input", "--json")) == {
        "name": 'prices."custom:scripted".input',
        "value": 3,
        "from": "config.toml",
    }
    done(tmp_path, "set", f"{name}.output", "20")
    assert stored(tmp_path)["prices"]["custom:scripted"]["output"] == 20
    done(tmp_path, "unset", name)
    assert stored(tmp_path) == {"enabled": True}
    assert (tmp_path / "config.toml").read_text().startswith("# mine\n")


def test_each_name_in_the_list_can_be_asked_for(tmp_path: Path) -> None:
    entries = "\n".join(f"{setting_name(('prices', key))} = {PRICE}" for key in ODD)
    (tmp_path / "config.toml").write_text(entries)
    listed = json.loads(done(tmp_path, "list", "--json"))["settings"]
    known = {parse_setting_name(one["name"]): one for one in listed}
    assert {place[1] for place in known if place and place[0] == "prices"} == set(ODD)
    for key in ODD:
        one = known["prices", key, "output"]
        assert (one["value"], one["from"]) == (15, "config.toml")
        assert json.loads(done(tmp_path, "get", one["name"], "--json")) == one


@pytest.mark.parametrize(
    ("given", "better"),
    [
        ("prices.custom:scripted", 'prices."custom:scripted"'),
        ("prices.openai:gpt-4.1.input", 'prices."openai:gpt-4.1".input'),
        ("prices.gpt-4.1.input", 'prices."gpt-4.1".input'),
    ],
)
def test_refuses_a_name_without_its_quotes_and_gives_it_with_them(tmp_path: Path, given: str, better: str) -> None:
    for args in (("set", given, "3"), ("get", given), ("unset", given)):
        assert shlex.quote(better) in refused(tmp_path, *args)
        assert stored(tmp_path) == {} if (tmp_path / "config.toml").exists() else True


def test_refuses_to_remove_what_is_not_there(tmp_path: Path) -> None:
    assert "did you mean limits.running?" in refused(tmp_path, "unset", "limits.runing")
    assert 'prices."custom:x" is not a setting' in refused(tmp_path, "unset", 'prices."custom:x"')
    done(tmp_path, "unset", "limits.running")


def test_a_variable_keeps_a_quoted_part_and_is_named_as_it_is_written(tmp_path: Path) -> None:
    path = ("providers", "My.Gateway__2", "base_url")
    name = variable(path)
    assert name == 'AVA_PROVIDERS__"My.Gateway__2"__BASE_URL'
    settings = load_settings(tmp_path, {name: "http://127.0.0.1:9/v1"})
    assert settings.providers["My.Gateway__2"].base_url == "http://127.0.0.1:9/v1"
    assert settings.where(*path).startswith(name)
    table = {"AVA_PROVIDERS": '{"my.own": {"base_url": "http://127.0.0.1:9/v1"}}'}
    assert load_settings(tmp_path, table).from_environment == {("providers", "my.own", "base_url"): "AVA_PROVIDERS"}


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"AVA_PRICES": '{"custom:x": {"input": 1, "output": 1}}'}, "AVA_PRICES is set in the environment, but prices"),
        ({'AVA_PRICES__"custom:x"__INPUT': "1", 'AVA_PRICES__"custom:x"__OUTPUT': "1"}, '__"custom:x"__INPUT'),
        ({"AVA_PROVIDERS": '{"a.b": {"base_url": "http://[::1]", "wirr": 1}}'}, 'AVA_PROVIDERS: providers."a.b".wirr'),
        ({"AVA_LIMITS": '{"running": 99}'}, "AVA_LIMITS: limits.running is 99"),
        ({'AVA_PROVIDERS__"half__BASE_URL': "http://127.0.0.1"}, 'AVA_PROVIDERS__"half__BASE_URL is not a setting'),
    ],
)  # fmt: skip
def test_an_error_about_a_variable_names_the_variable_that_is_set(
    tmp_path: Path, variables: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load_settings(tmp_path, variables)
    assert says in str(error.value)


def test_a_setting_that_counts_only_with_others_is_refused_with_the_command_that_works(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    with pytest.raises(BadInput) as refused:
        change_settings(path, {("prices", "custom:own", "input"): 1.2})
    assert str(refused.value) == (
        """prices."custom:own".input counts only together with output: set them at once with `ava config set """
        """'prices."custom:own"' '{input = 1.2, output = OUTPUT}'`, and a value for OUTPUT"""
    )
    command = str(refused.value).split("`")[1].replace("OUTPUT", "3")
    name, value = shlex.split(command)[3:]
    change_settings(path, {parse_name(name): parse_value(value)})
    assert tomllib.loads(path.read_text())["prices"] == {"custom:own": {"input": 1.2, "output": 3}}
    change_settings(path, {("prices", "custom:own", "input"): 1.5})
    with pytest.raises(BadInput, match=r"""run `ava config unset 'prices."custom:own"'`"""):
        change_settings(path, {("prices", "custom:own", "output"): None})

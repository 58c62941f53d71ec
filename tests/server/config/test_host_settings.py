"""What install dialogs and hosts hand over: a day cap in dollars, and placeholders that nobody filled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.runtime import PRICED, open_lab
from support.stdio import serve_stdio

from ava_server.config.host_placeholders import unset_unfilled
from ava_server.config.settings import load_settings
from ava_server.core.errors import ConfigError

UNFILLED = (
    "${input:a}${input:b}", "${input:a} {env:B}",
    "${user_config.folder}", "${input:openrouter-key}", "${env:SOME_KEY}", "{env:SOME_KEY}", "${SOME_KEY}",
    "$SOME_KEY", "${SOME_KEY:-}", "undefined", "null", "NaN", "  ${user_config.folder} ",
)  # fmt: skip


# -- AVA_DAILY_USD ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dollars", "cents"),
    [("5", 500), ("0", 0), ("0.5", 50), ("2.05", 205), ("9.99", 999), (" 3.00 ", 300), ("007", 700)],
)
def test_a_daily_cap_in_dollars_lowers_the_users_daily_limit(tmp_path: Path, dollars: str, cents: int) -> None:
    settings = load_settings(tmp_path, {"AVA_DAILY_USD": dollars})
    assert (settings.limits.user_daily_cents, settings.daily_cents) == (cents, cents)
    assert settings.limits.installation_daily_cents == 2500


@pytest.mark.parametrize("dollars", ["10", "10.01", "999999999"])
def test_a_daily_cap_above_the_limit_is_valid_and_changes_nothing(tmp_path: Path, dollars: str) -> None:
    assert load_settings(tmp_path, {"AVA_DAILY_USD": dollars}).limits.user_daily_cents == 1000


def test_the_lowest_of_file_environment_and_dialog_applies(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[limits]\nuser_daily_cents = 800\nrunning = 4\n", "utf-8")
    env = {"AVA_LIMITS__USER_DAILY_CENTS": "300", "AVA_DAILY_USD": "5"}
    limits = load_settings(tmp_path, env).limits
    assert (limits.user_daily_cents, limits.running) == (300, 4)
    assert load_settings(tmp_path, {"AVA_DAILY_USD": "5"}).limits.user_daily_cents == 500


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_daily_cap_counts_as_unset(tmp_path: Path, empty: str) -> None:
    settings = load_settings(tmp_path, {"AVA_DAILY_USD": empty})
    assert (settings.limits.user_daily_cents, settings.daily_cents) == (1000, None)


@pytest.mark.parametrize("blank", [{}, {"AVA_DAILY_USD": ""}])
def test_in_the_bundle_an_emptied_field_gets_the_default_of_the_dialog(tmp_path: Path, blank: dict[str, str]) -> None:
    assert load_settings(tmp_path, {"AVA_HOST": "bundle", **blank}).limits.user_daily_cents == 500
    assert load_settings(tmp_path, {"AVA_HOST": "bundle", "AVA_DAILY_USD": "2"}).limits.user_daily_cents == 200


@pytest.mark.parametrize("wrong", ["-1", "five", "$5", "5,00", "2.505", "1e3", "5.", ".5", "nan", "inf", "٥", "1 000"])
def test_an_invalid_daily_cap_is_reported_with_its_value_and_the_allowed_range(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_settings(tmp_path, {"AVA_DAILY_USD": wrong})
    text = str(error.value)
    assert text.startswith(f'AVA_DAILY_USD is "{wrong}"')
    assert "dollars" in text and "two decimals" in text and "2.50" in text


async def test_a_daily_cap_of_zero_refuses_paid_runs_and_names_its_setting(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED, env={"AVA_DAILY_USD": "0"}) as lab:
        answer = await lab.call("spawn_subagent", role="researcher", task="look")
    assert answer.status == "failed"
    assert "your daily budget is $0.00" in answer.message and "raise AVA_DAILY_USD" in answer.message
    assert "user_daily_cents" not in answer.message
    assert "renewed" not in answer.message, "no day brings more than nothing"


async def test_names_the_limit_that_is_lower_than_the_daily_cap(tmp_path: Path) -> None:
    config = PRICED + "\n[limits]\nuser_daily_cents = 0\n"
    async with open_lab(tmp_path, config=config, env={"AVA_DAILY_USD": "5"}) as lab:
        answer = await lab.call("spawn_subagent", role="researcher", task="look")
    assert "raise limits.user_daily_cents in config.toml" in answer.message
    assert "AVA_DAILY_USD" not in answer.message


@pytest.mark.parametrize(
    ("limit", "env", "setting"),
    [
        (800, {}, "limits.user_daily_cents in config.toml"),
        (800, {"AVA_DAILY_USD": "9"}, "limits.user_daily_cents in config.toml"),
        (800, {"AVA_DAILY_USD": "7.99"}, "AVA_DAILY_USD where Ava is given its variables"),
        (500, {"AVA_HOST": "bundle"}, "limits.user_daily_cents in config.toml, and AVA_DAILY_USD where Ava"),
        (800, {"AVA_LIMITS__USER_DAILY_CENTS": "800"}, "AVA_LIMITS__USER_DAILY_CENTS where Ava is given"),
        (800, {"AVA_LIMITS__USER_DAILY_CENTS": "3", "AVA_DAILY_USD": "5"}, "AVA_LIMITS__USER_DAILY_CENTS where Ava"),
    ],
)
def test_names_the_setting_whose_change_would_take_effect(
    tmp_path: Path, limit: int, env: dict[str, str], setting: str
) -> None:
    (tmp_path / "config.toml").write_text(f"[limits]\nuser_daily_cents = {limit}\n", "utf-8")
    assert load_settings(tmp_path, env).user_day_setting.startswith(setting)


def test_names_where_the_installations_daily_limit_is_set(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {"AVA_DAILY_USD": "0"})
    assert settings.installation_day_setting == "limits.installation_daily_cents in config.toml"
    settings = load_settings(tmp_path, {"AVA_LIMITS__INSTALLATION_DAILY_CENTS": "1"})
    assert settings.installation_day_setting.startswith("AVA_LIMITS__INSTALLATION_DAILY_CENTS where")


# -- placeholders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", UNFILLED)
@pytest.mark.parametrize(
    "name",
    ["AVA_WORKSPACE", "AVA_MODEL", "AVA_MODEL_API_KEY", "AVA_MODELS__FAST", "OPENROUTER_API_KEY", "AVA_KEY_LOCAL"],
)
def test_removes_a_variable_whose_placeholder_the_host_did_not_fill(name: str, value: str) -> None:
    env = {name: value, "PATH": "/bin"}
    assert unset_unfilled(env) == [name]
    assert env == {"PATH": "/bin"}


@pytest.mark.parametrize("value", UNFILLED)
def test_removes_an_unfilled_daily_cap_only_where_a_default_applies_instead(tmp_path: Path, value: str) -> None:
    bundle = {"AVA_HOST": "bundle", "AVA_DAILY_USD": value}
    assert unset_unfilled(bundle) == ["AVA_DAILY_USD"]
    assert load_settings(tmp_path, bundle).limits.user_daily_cents == 500
    for host in ({}, {"AVA_HOST": "other"}, {"AVA_HOST": " bundle"}, {"AVA_HOST": "${HOST}"}):
        other = {**host, "AVA_DAILY_USD": value}
        unset_unfilled(other)
        with pytest.raises(ConfigError, match="AVA_DAILY_USD is "):
            load_settings(tmp_path, other)


@pytest.mark.parametrize("value", UNFILLED)
@pytest.mark.parametrize(
    "name",
    [
        "AVA_ENABLED",
        "AVA_APPROVAL",
        "AVA_AUTO_APPROVE_CENTS",
        "AVA_PROPOSAL_TTL_S",
        "AVA_RETENTION_DAYS",
        "AVA_MIRROR",
        "AVA_LIMITS__RUNNING",
        "AVA_LIMITS__USER_DAILY_CENTS",
        "AVA_SANDBOX__MODE",
        "AVA_SANDBOX__READ_ONLY",
        "AVA_WORKSPACE__ROOTS",
        "AVA_MODEL_BASE_URL",
        "AVA_PROVIDERS__OPENAI__BASE_URL",
        "AVA_DATA_ROOT",
    ],
)
def test_rejects_an_unfilled_limit_instead_of_ignoring_it(tmp_path: Path, name: str, value: str) -> None:
    env = {name: value}
    assert unset_unfilled(env) == []
    with pytest.raises(ConfigError, match=f"{name} is "):
        load_settings(None if name == "AVA_DATA_ROOT" else tmp_path, env)


@pytest.mark.parametrize(
    ("value", "placeholder"),
    [
        ("${workspaceFolder}/docs", "${workspaceFolder}"),
        ("/home/${env:USER}/code", "${env:USER}"),
        ("{env:HOME}/code", "{env:HOME}"),
        ("$HOME/code", "$HOME"),
    ],
)
def test_reports_a_folder_with_an_unfilled_placeholder(tmp_path: Path, value: str, placeholder: str) -> None:
    env = {"AVA_WORKSPACE": value}
    assert unset_unfilled(env) == []
    with pytest.raises(ConfigError) as refused:
        load_settings(tmp_path, env)
    assert str(refused.value).startswith(f'AVA_WORKSPACE is "{value}"; allowed is an absolute folder')
    assert f'"{placeholder}"' in str(refused.value)


@pytest.mark.parametrize("folder", ["/srv/code", "~/code", "/srv/$5", "/srv/a{b}", "file:///srv/code", "C:\\code"])
def test_keeps_a_folder_without_placeholders_unchanged(tmp_path: Path, folder: str) -> None:
    assert str(load_settings(tmp_path, {"AVA_WORKSPACE": folder}).default_workspace) == str(Path(folder))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AVA_WORKSPACE", "/srv/${project}/code"),
        ("AVA_WORKSPACE", "/home/null"),
        ("AVA_DAILY_USD", "5"),
        ("AVA_DAILY_USD", "$5"),
        ("OPENROUTER_API_KEY", "sk-or-${x}"),
        ("AVA_MODEL_API_KEY", "$ecretPassword99"),
        ("AVA_MODEL_API_KEY", "$Ecret"),
        ("EDITOR", "${VISUAL}"),
        ("OTHER_API_KEY", "${user_config.other}"),
    ],
)
def test_keeps_filled_variables_and_those_of_other_programs(name: str, value: str) -> None:
    env = {name: value}
    unset_unfilled(env)
    assert env == {name: value}


@pytest.mark.slow
async def test_a_server_started_with_unfilled_variables_works_as_if_they_were_unset(tmp_path: Path) -> None:
    env = {
        "AVA_WORKSPACE": "${user_config.folder}",
        "AVA_DAILY_USD": "${user_config.daily_usd}",
        "OPENROUTER_API_KEY": "${input:openrouter-key}",
        "AVA_MODEL": "{env:AVA_MODEL}",
        "AVA_HOST": "bundle",
    }
    async with serve_stdio(tmp_path / "data", cwd=tmp_path, env=env) as wire:
        proposed = await wire.tool("spawn_subagent", role="researcher", task="Read https://example.org/")
        told = wire.stderr
    assert "offline" in proposed["model"]
    assert "${" not in proposed["message"] and "{env" not in proposed["message"]
    names = "AVA_DAILY_USD, AVA_MODEL, AVA_WORKSPACE, OPENROUTER_API_KEY"
    assert told == f"ava: the host left these unfilled, so they count as unset: {names}\n"


@pytest.mark.slow
async def test_a_server_with_an_unfilled_limit_reports_it_at_each_call(tmp_path: Path) -> None:
    async with serve_stdio(tmp_path / "data", cwd=tmp_path, env={"AVA_LIMITS__RUNNING": "$RUNNING"}) as wire:
        for _ in range(2):
            answer = await wire.tool_result("spawn_subagent", role="researcher", task="Read https://example.org/")
            assert answer["isError"]
            assert 'AVA_LIMITS__RUNNING is "$RUNNING"; allowed is' in answer["content"][0]["text"]


@pytest.mark.slow
async def test_the_server_uses_a_daily_cap_from_the_environment_and_reports_an_invalid_one(tmp_path: Path) -> None:
    async with serve_stdio(tmp_path / "data", cwd=tmp_path, env={"AVA_DAILY_USD": "$5.00"}) as wire:
        answer = await wire.tool_result("check_subagent")
    assert answer["isError"]
    assert 'AVA_DAILY_USD is "$5.00"' in answer["content"][0]["text"]


def test_checking_for_placeholders_imports_nothing_when_there_are_none() -> None:
    code = (
        "import os, sys; from ava_server.config.host_placeholders import unset_unfilled; unset_unfilled(os.environ)\n"
        "heavy = ('pydantic', 'ava_server.config.keys', 'ava_server.config.checks')\n"
        "print([name for name in sys.modules if name in heavy])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "[]\n"

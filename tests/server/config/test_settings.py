import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ava_audit.store.backend import VARIABLE
from ava_audit.store.sqlite import database_url, log_file
from ava_server.config import checks
from ava_server.config.settings import Settings, load_settings, read_config
from ava_server.core.data_root import DataRoot, find_data_root
from ava_server.core.errors import ConfigError
from ava_server.core.shared_files import read_private

KEY = "sk-ant-api03-Ab3Cd4Ef5Gh6Ij7Kl8Mn9Op0Qr1St2Uv3Wx4Yz5"


def load(root: Path, toml: str = "", **env: str) -> Settings:
    (root / "config.toml").write_text(toml, "utf-8")
    return load_settings(root, env)


def refused(root: Path, toml: str = "", **env: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(root, toml, **env)
    text = str(error.value)
    assert "pydantic" not in text.lower()
    assert "validation error" not in text
    return text


@pytest.mark.parametrize("variable", [None, "", " ", "postgresql://ava@there/ava"])
@pytest.mark.parametrize("in_file", ["", 'database_url = "postgresql://ava@here/ava"\n'])
def test_settings_and_store_read_the_same_address_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, in_file: str
) -> None:
    if variable is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, variable)
    (tmp_path / "config.toml").write_text(in_file)
    settings = load_settings(tmp_path)
    assert database_url(tmp_path) == settings.database_url
    assert (log_file(tmp_path) is None) == settings.shares_log


def test_all_settings_have_the_designed_defaults_without_a_file(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "nothing-there", {})

    assert (settings.enabled, settings.approval, settings.proposal_ttl_s) == (True, "by_host", 600)
    assert (settings.auto_approve_cents, settings.auto_approve_daily_cents) == (0, 0)
    assert (settings.background, settings.mirror, settings.retention_days, settings.on_event) == (
        True,
        True,
        90,
        (),
    )
    assert settings.limits.model_dump() == {
        "running_per_user": 3,
        "running": 10,
        "spawns_per_hour": 10,
        "user_daily_cents": 1000,
        "installation_daily_cents": 2500,
        "max_cost_cents": 500,
        "max_timeout_s": 3600,
        "max_tokens": 5_000_000,
        "max_tokens_deep": 10_000_000,
        "max_iterations": 100,
        "max_tool_calls": 200,
        "extension_wait_s": 600,
        "question_wait_s": 600,
    }
    assert (settings.sandbox.mode, settings.sandbox.read_only) == ("auto", ())
    assert (settings.workspace.roots, settings.fetch.proxy) == ((), "")
    assert not (tmp_path / "nothing-there").exists()


def test_only_the_file_opens_system_folders(tmp_path: Path) -> None:
    variables = {"AVA_WORKSPACE__ROOTS": '["/var/www/site"]'}
    assert load(tmp_path, "", **variables).named_folders == ()
    settings = load(tmp_path, '[workspace]\nroots = ["/var/www"]\nallow = ["/etc/nginx"]', **variables)
    assert settings.named_folders == (Path("/etc/nginx"), Path("/var/www"))


EVERY_KIND = """
approval = "auto"
auto_approve_cents = 20
on_event = ["notify-send", "Ava"]
[limits]
running = 4
[models]
fast = "openrouter:x/y"
[providers.local]
base_url = "http://127.0.0.1:11434/v1/"
[providers.openrouter]
stream = false
[prices."local:llama"]
input = 3
output = 15.0
cache_read = 0.3
[workspace]
roots = ["/srv/code"]
[sandbox]
mode = "none"
[mcp_servers.tickets]
command = "tickets-mcp"
args = ["--stdio"]
env = { TICKETS_TOKEN = "{{secret:TICKETS}}" }
network = true
[users.ben]
workspaces = ["/srv/code/ben"]
daily_cents = 100
approval = "human"
"""


def test_reads_a_file_with_settings_of_every_kind(tmp_path: Path) -> None:
    settings = load(tmp_path, EVERY_KIND)
    assert settings.limits.running == 4
    assert settings.limits.running_per_user == 3
    assert settings.models.fast == "openrouter:x/y"
    assert settings.providers["local"].base_url == "http://127.0.0.1:11434/v1"
    assert settings.providers["local"].stream
    assert not settings.providers["openrouter"].stream
    assert settings.prices["local:llama"].model_dump(exclude_none=True) == {
        "input": 3.0,
        "output": 15.0,
        "cache_read": 0.3,
    }
    assert settings.workspace.roots == (Path("/srv/code"),)
    assert settings.sandbox.mode == "none"
    assert settings.mcp_servers["tickets"].args == ("--stdio",)
    assert settings.users["ben"].workspaces == (Path("/srv/code/ben"),)


def test_settings_are_immutable(tmp_path: Path) -> None:
    settings = load(tmp_path)
    with pytest.raises(ValidationError):
        settings.enabled = False  # type: ignore[misc]


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ('approval = "never"', ["approval", '"never"', "ask, human or auto"]),
        ("[limits]\nrunning = -1", ["limits.running", "-1", "a number from 0 up"]),
        ("[limits]\nrunning = true", ["limits.running", "true", "a whole number"]),
        ("[limits]\nmax_cost_cents = true", ["limits.max_cost_cents", "true", "a whole number"]),
        ("[limits]\nrunning = 2.5", ["limits.running", "2.5", "a whole number"]),
        ("[limits]\nmax_cost_cents = 0", ["limits.max_cost_cents", "0", "a number from 1 up"]),
        ("lease_s = 301", ["lease_s", "301", "allowed is a number up to 300."]),
        (f'[agents.mine]\ncommand = ["x"]\ntitle = "{"long " * 13}"', ["agents.mine.title", "up to 60 characters"]),
        ('[agents.mine]\ncommand = ["x"]\ntitle = ""', ["agents.mine.title", "1 or more characters"]),
        ('mirror = "perhaps"', ["mirror", '"perhaps"', "true or false"]),
        ("limits = 3", ["limits", "3", "a table"]),
        ('on_event = "notify-send"', ["on_event", '"notify-send"', "a list"]),
        ("[limits]\nruning = 3", ["limits.runing is not a setting", "did you mean running?"]),
        ("aproval = 'ask'", ["aproval is not a setting", "did you mean approval?"]),
        (
            "[providers.local]\nurl = 'http://x/v1'",
            ["providers.local.url is not a setting", "did you mean base_url?"],
        ),
        (
            "[users.ben]\nshoe_size = 3",
            ["users.ben.shoe_size is not a setting", "known there: approval, daily_cents"],
        ),
        ("[providers.local]\nstream = true", ["base_url", "local"]),
        (
            "[providers.local]\nbase_url = 'ftp://x'",
            ["providers.local.base_url", "ftp://x", "https://host/v1"],
        ),
        (
            "[providers.local]\nbase_url = 'https://x/v1'\nlike = 'azzure'",
            ["providers.local.like", "azzure", "one of anthropic, openai, google, mistral, vertex, azure"],
        ),
        (
            "[providers.opnai]\nbase_url = 'https://api.openai.com/v1'",
            ["the name openai for the provider at https://api.openai.com/v1, instead of opnai"],
        ),
        (
            "[providers.gw]\nbase_url = 'https://x/v1'\nprice_as = {a = 'opnai:gpt-5'}",
            ["a known provider before the colon in price_as, such as openai:gpt-5"],
        ),
        ("[providers.gw]\nbase_url = 'https://x/v1'\nprice_as = {a = 'openai:'}", ["a price_as such as"]),
        ("[providers.gw]\nbase_url = 'https://x/v1'\nprice_as = {a = ' '}", ["a price_as such as"]),
        ("[prices.x]\ninput = 1", ["prices.x.output is missing"]),
        ("[prices.x]\ninput = nan\noutput = 1", ["prices.x.input", "a number"]),
        (
            "[fetch]\nproxy = 'socks5://x:1080'",
            ["fetch.proxy", "socks5://x:1080", "such as http://proxy.example:3128", "SOCKS is not spoken"],
        ),
        ("[fetch]\nproxy = 'proxy:3128'", ["fetch.proxy", "proxy:3128", "such as http://proxy.example:3128"]),
        ("[workspace]\nroots = ['code']", ["workspace.roots.0", "code", "an absolute folder"]),
        (
            "[delivery]\nca_file = 'ca.pem'",
            ["delivery.ca_file", "ca.pem", "a file with an absolute path, e.g. /etc/ssl"],
        ),
        ("[delivery]\nca_file = 3", ["delivery.ca_file", "a path in quotes"]),
        ("[mcp_servers.x]\nargs = []", ["mcp_servers.x", "either command"]),
        ("approval = ask", ["not valid TOML", "line 1"]),
        ("approval = 'x'\nmirror = 3\n[limits]\nrunning = 'a'", ["approval", "2 more"]),
    ],
)
def test_an_invalid_setting_error_names_file_key_value_and_allowed_values(
    tmp_path: Path, toml: str, says: list[str]
) -> None:
    text = refused(tmp_path, toml)

    assert str(tmp_path / "config.toml") in text
    assert [part for part in says if part not in text] == [], text


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("openai-eu", "https://api.openai.com/v1"),
        ("my-openai", "https://api.openai.com/v1"),
        ("grok", "https://api.x.ai/v1"),
        ("gemini", "https://generativelanguage.googleapis.com/v1beta"),
        ("oai", "https://api.openai.com/v1"),
        ("opnai", "https://gateway.example/v1"),
    ],
)
def test_a_provider_may_have_a_name_of_ones_own(tmp_path: Path, name: str, address: str) -> None:
    (tmp_path / "config.toml").write_text(
        f"[providers.{name}]\nbase_url = '{address}'\nprice_as = {{a = 'openai:gpt-5', b = 'llama3:8b'}}"
    )
    assert load_settings(tmp_path).providers[name].base_url == address


@pytest.mark.parametrize("given", ["?key=", "#key=", "?api-version=2024-10-21&key=", "/x?subscription-key="])
@pytest.mark.parametrize("setting", ["providers.x.base_url", "mcp_servers.x.url", "search.searxng"])
def test_a_refused_address_is_repeated_without_its_query(tmp_path: Path, setting: str, given: str) -> None:
    table, _, name = setting.rpartition(".")
    text = refused(tmp_path, f"[{table}]\n{name} = 'https://gateway.example/v1{given}abcdefgh12345'")
    assert "https://gateway.example/v1" in text and "abcdefgh" not in text, text


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        (f"api_key = '{KEY}'", "`ava key set PROVIDER`"),
        (f"openrouter_api_key = '{KEY}'", "`ava key set openrouter`"),
        (f"[providers.local]\nbase_url='http://x/v1'\napi_key='{KEY}'", "`ava key set local`"),
        ("[providers.local]\ntoken='short'", "`ava key set local`"),
        ("[users.ben]\npassword='hunter22'", "users.ben.password"),
        (f"[models]\nfast = '{KEY}'", "models.fast looks like a key"),
        ("[fetch]\nproxy = 'http://ava:s3cr3t-x@proxy:3128'", "AVA_FETCH__PROXY"),
        (f"[mcp_servers.x]\ncommand='x'\nenv={{X_TOKEN='{KEY}'}}", "{{secret:NAME}}"),
        ("[mcp_servers.x]\nurl='https://x/'\nheaders={Authorization='abc'}", "{{secret:NAME}}"),
        (f"[mcp_servers.x]\ncommand='x'\nargs=['--k', '{KEY}']", "mcp_servers.x.args holds a secret"),
    ],
)
def test_rejects_an_api_key_in_the_file_without_showing_it(tmp_path: Path, toml: str, says: str) -> None:
    text = refused(tmp_path, toml)

    assert says in text
    assert KEY not in text
    assert "hunter22" not in text
    assert "s3cr3t" not in text


@pytest.mark.parametrize(
    "given",
    [
        "ftp://ava:s3cr3t-x@proxy:3128",
        "ava:s3cr3t-x@proxy:3128",
        "//ava:s3cr3t-x@proxy",
        "http://ava:s3cr3t-x@",
        "http://ava:{{secret:x}}s3cr3t-x@proxy",
    ],
)
def test_reports_an_invalid_proxy_without_its_password(tmp_path: Path, given: str) -> None:
    text = refused(tmp_path, AVA_FETCH__PROXY=given)

    assert "AVA_FETCH__PROXY is" in text and "http://proxy.example:3128" in text
    assert "s3cr3t" not in text


def test_accepts_a_proxy_password_from_the_environment_and_hides_it_in_reprs(tmp_path: Path) -> None:
    settings = load(tmp_path, '[fetch]\nproxy = "http://Proxy:80/"', AVA_FETCH__PROXY="http://ava:s3cr3t-x@proxy")
    assert settings.fetch.proxy == "http://ava:s3cr3t-x@proxy"
    assert "s3cr3t" not in f"{settings!r} {settings}"


@pytest.mark.parametrize("toml", ["", '[fetch]\nproxy = "http://proxy:3128"'])
@pytest.mark.parametrize(
    "variable",
    [
        {"AVA_FETCH__PROXY": "http://ava:s3cr3t-x@evil.example:3128"},
        {"AVA_FETCH__PROXY": "https://ava:s3cr3t-x@proxy:3128"},
        {"AVA_FETCH__PROXY": "http://ava:s3cr3t-x@proxy:3129"},
        {"AVA_FETCH__PROXY": "http://proxy:3128@evil.example"},
        {"AVA_FETCH": '{"proxy": "http://ava:s3cr3t-x@evil.example"}'},
    ],
)
def test_no_variable_names_the_proxy_through_which_pages_go(
    tmp_path: Path, toml: str, variable: dict[str, str]
) -> None:
    text = refused(tmp_path, toml, **variable)
    assert "Pages go only through a proxy that the file names" in text and "s3cr3t" not in text, text
    assert (tmp_path / "config.toml").as_posix() in text


def test_an_empty_list_in_a_variable_removes_no_limit_of_the_file(tmp_path: Path) -> None:
    """An empty list of workspaces or hosts means any."""
    assert "looser than" in refused(tmp_path, '[workspace]\nroots = ["/srv/code"]', AVA_WORKSPACE__ROOTS="[]")
    assert "looser than" in refused(tmp_path, '[fetch]\nhosts = ["a.example"]', AVA_FETCH='{"hosts": []}')
    assert "only allowed in" in refused(tmp_path, 'on_event = ["/bin/true"]', AVA_ON_EVENT="[]")


def test_a_variable_narrows_the_hosts_of_the_file_and_opens_none(tmp_path: Path) -> None:
    file = '[fetch]\nhosts = ["a.example", "b.example"]'
    assert load(tmp_path, file, AVA_FETCH__HOSTS='["b.example"]').fetch.hosts == ("b.example",)
    for given in ('["b.example", "c.example"]', "[]"):
        assert "looser than" in refused(tmp_path, file, AVA_FETCH__HOSTS=given)
    assert load(tmp_path, "", AVA_FETCH__HOSTS='["c.example"]').fetch.hosts == ("c.example",)
    assert "without a question" in refused(tmp_path, 'approval = "auto"', AVA_FETCH__HOSTS='["c.example"]')


def test_does_not_show_a_key_put_in_the_wrong_variable(tmp_path: Path) -> None:
    assert KEY not in refused(tmp_path, AVA_APPROVAL=KEY)


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[models]\nfast = "a:b"\ndeep = "c:d"',
        AVA_MODELS__FAST="e:f",
        AVA_MIRROR="false",
        AVA_LIMITS__RUNNING="2",
        AVA_PROVIDERS__LOCAL__BASE_URL="http://127.0.0.1:1/v1",
        AVA_WORKSPACE__ROOTS='["/srv/a", "/srv/b"]',
        AVA_SANDBOX='{"mode": "auto"}',
        AVA_RETENTION_DAYS="",
        AVA_MODEL_BASE_URL="http://127.0.0.1:2/v1",
        AVA_MODEL_API_KEY=KEY,
        AVA_MODEL="some/model",
        AVA_WORKSPACE="/srv/a",
        AVA_KEY_LOCAL="12345678",
        AVA_RUN_ID="S-7f3a2b",
        OTHER="x",
        AVA_PATH="/of/some/other/program",
    )

    assert (settings.models.fast, settings.models.deep) == ("e:f", "c:d")
    assert not settings.mirror
    assert settings.limits.running == 2
    assert settings.limits.running_per_user == 3
    assert settings.providers["local"].base_url == "http://127.0.0.1:1/v1"
    assert settings.workspace.roots == (Path("/srv/a"), Path("/srv/b"))
    assert settings.retention_days == 90
    assert settings.model_base_url == "http://127.0.0.1:2/v1"
    assert settings.model_api_key is not None
    assert settings.model_api_key.get_secret_value() == KEY
    assert KEY not in repr(settings)
    assert (settings.model, settings.default_workspace) == ("some/model", Path("/srv/a"))


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"AVA_LIMITS__RUNING": "3"}, ["AVA_LIMITS__RUNING is not a setting", "did you mean AVA_LIMITS__RUNNING?"]),
        ({"AVA_SANDBOX__XYZ": "3"}, ["AVA_SANDBOX__XYZ is not a setting", "AVA_SANDBOX__MODE, AVA_SANDBOX__READ_ONLY"]),
        ({"AVA_LIMIT__RUNNING": "3"}, ["AVA_LIMIT__RUNNING", "did you mean AVA_LIMITS__RUNNING?"]),
        ({"AVA_ENABELD": "false"}, ["AVA_ENABELD", "did you mean AVA_ENABLED?"]),
        ({"AVA_LIMITS__RUNNING": "many"}, ["AVA_LIMITS__RUNNING", '"many"', "a whole number"]),
        ({"AVA_WORKSPACE__ROOTS": "[/srv]"}, ["AVA_WORKSPACE__ROOTS", "as JSON"]),
        ({"AVA_MODEL_BASE_URL": "localhost"}, ["AVA_MODEL_BASE_URL", "localhost", "https://host/v1"]),
        ({"AVA_LIMITS": "3", "AVA_LIMITS__RUNNING": "3"}, ["AVA_LIMITS__RUNNING", "unset one of them"]),
    ],
)
def test_an_invalid_variable_error_names_it_and_the_allowed_values(
    tmp_path: Path, variables: dict[str, str], says: list[str]
) -> None:
    text = refused(tmp_path, **variables)

    assert [part for part in says if part not in text] == [], text


@pytest.mark.parametrize(
    ("toml", "variable", "value", "read"),
    [
        ("", "AVA_ENABLED", "false", False),
        ("", "AVA_APPROVAL", "human", "human"),
        ('approval = "auto"', "AVA_APPROVAL", "ask", "ask"),
        ("auto_approve_cents = 10", "AVA_AUTO_APPROVE_CENTS", "9", 9),
        ("", "AVA_LIMITS__USER_DAILY_CENTS", "0", 0),
        ("", "AVA_LIMITS__MAX_COST_CENTS", "500", 500),
        ('[sandbox]\nmode = "none"', "AVA_SANDBOX__MODE", "auto", "auto"),
        ('[sandbox]\nread_only = ["/opt/a", "/opt/b"]', "AVA_SANDBOX__READ_ONLY", '["/opt/b"]', ["/opt/b"]),
        ('[workspace]\nroots = ["/srv"]', "AVA_WORKSPACE__ROOTS", '["/srv/code"]', ["/srv/code"]),
        ('[workspace]\nallow = ["/var/a", "/var/b"]', "AVA_WORKSPACE__ALLOW", '["/var/b"]', ["/var/b"]),
    ],
)
def test_the_environment_can_tighten_global_limits(
    tmp_path: Path, toml: str, variable: str, value: str, read: object
) -> None:
    got: Any = load(tmp_path, toml, **{variable: value}).model_dump(mode="json")
    for part in variable.removeprefix("AVA_").lower().split("__"):
        got = got[part]

    assert got == read


@pytest.mark.parametrize(
    ("toml", "variable", "value"),
    [
        ("enabled = false", "AVA_ENABLED", "true"),
        ("", "AVA_APPROVAL", "auto"),
        ('approval = "human"', "AVA_APPROVAL", "ask"),
        ("", "AVA_AUTO_APPROVE_CENTS", "1"),
        ("", "AVA_AUTO_APPROVE_DAILY_CENTS", "1"),
        ("[limits]\nuser_daily_cents = 5", "AVA_LIMITS__USER_DAILY_CENTS", "6"),
        ("", "AVA_LIMITS__MAX_COST_CENTS", "501"),
        ("", "AVA_LIMITS", '{"running": 11}'),
        ("", "AVA_SANDBOX__MODE", "none"),
        ("", "AVA_SANDBOX__READ_ONLY", '["/opt"]'),
        ('[workspace]\nroots = ["/srv/code"]', "AVA_WORKSPACE__ROOTS", '["/srv"]'),
        ("", "AVA_WORKSPACE__ALLOW", '["/var/www"]'),
    ],
)
def test_the_environment_cannot_loosen_global_limits(tmp_path: Path, toml: str, variable: str, value: str) -> None:
    text = refused(tmp_path, toml, **{variable: value})

    assert variable in text
    assert "may only tighten" in text
    assert str(tmp_path / "config.toml") in text


def test_the_environment_changes_no_global_limit_of_which_nobody_says_what_is_stricter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "FOR_EVERYBODY", (*checks.FOR_EVERYBODY, "desktop_notifications"))
    for value in ("true", "false"):
        file = f"desktop_notifications = {'false' if value == 'true' else 'true'}"
        assert "may only tighten" in refused(tmp_path, file, AVA_DESKTOP_NOTIFICATIONS=value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AVA_ON_EVENT", '["sh", "-c", "true"]'),
        ("AVA_MCP_SERVERS", json.dumps({"x": {"command": "x"}})),
        ("AVA_PRICES", json.dumps({"x:y": {"input": 0, "output": 0}})),
        ("AVA_USERS__BEN__RUNNING", "1"),
    ],
)
def test_programs_and_prices_can_only_be_set_in_the_file(tmp_path: Path, variable: str, value: str) -> None:
    assert "is only allowed in" in refused(tmp_path, **{variable: value})


def test_proposals_expire_after_ten_minutes_or_a_day_under_human_by_default(tmp_path: Path) -> None:
    assert load(tmp_path).proposal_lifetime_s == 600
    assert load(tmp_path, 'approval = "human"').proposal_lifetime_s == 86_400
    assert load(tmp_path, AVA_APPROVAL="human").proposal_lifetime_s == 86_400
    assert load(tmp_path, 'approval = "human"\nproposal_ttl_s = 60').proposal_lifetime_s == 60


def test_names_an_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(ConfigError, match=r"config\.toml cannot be read"):
        load_settings(tmp_path, {})
    (tmp_path / "config.toml").rmdir()
    (tmp_path / "config.toml").write_bytes(b"approval = '\xff'")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_settings(tmp_path, {})


def test_the_data_root_comes_from_argument_then_variable_then_platform(tmp_path: Path) -> None:
    env = {"AVA_DATA_ROOT": str(tmp_path)}

    assert find_data_root(tmp_path / "x", env).path == tmp_path / "x"
    assert load_settings(env=env).data_root == tmp_path
    assert find_data_root(env={}).path.is_absolute()
    assert load_settings(tmp_path, {}).paths.db == tmp_path / "ava.db"


def test_rejects_a_relative_data_root() -> None:
    with pytest.raises(ConfigError, match=r"AVA_DATA_ROOT is .*an absolute folder"):
        find_data_root(env={"AVA_DATA_ROOT": "data/${user_config.folder}"})


def test_only_the_owner_can_access_a_new_data_root(tmp_path: Path) -> None:
    root = DataRoot(tmp_path / "a" / "b")
    root.create()
    root.create()

    assert stat.S_IMODE(root.path.stat().st_mode) == 0o700


def test_rejects_an_invalid_data_root_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not a folder"):
        DataRoot(tmp_path / "file").create()
    with pytest.raises(ConfigError, match="cannot be made"):
        DataRoot(tmp_path / "file" / "below").create()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match="chmod 700"):
        DataRoot(tmp_path / "open").create()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_rejects_a_data_root_that_is_not_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="not writable"):
            DataRoot(tmp_path).create()
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("name", ["notes.md/data", "x" * 300])
def test_advice_on_a_data_root_that_cannot_be_fits_the_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.md").write_text("no folder")
    with pytest.raises(ConfigError, match=r"(Not a directory|name too long)\. Set AVA_DATA_ROOT to a folder"):
        read_private(tmp_path / name / "keys.toml", "keys", "")
    if name[0] == "x":
        with pytest.raises(ConfigError, match=r"name too long\. Set AVA_DATA_ROOT to a folder"):
            read_config(tmp_path / name / "config.toml")

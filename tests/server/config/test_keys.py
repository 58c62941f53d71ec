import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import portalocker
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_roles.memory import Memory
from ava_server.config.changes import change_settings
from ava_server.config.keys import Key, find_key, list_keys, remove_key, set_key, why_unused
from ava_server.config.memory_notes import Notebook
from ava_server.core import files
from ava_server.core.errors import AvaError, BadInput, ConfigError

VALUE = "sk-or-v1-0a1b2c3d4e5f60718293a4b5c6d7e8f9"
OTHER = "sk-or-v1-ffffffffffffffffffffffffffffffff"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def value_of(provider: str, file: Path, **env: str) -> str | None:
    key = find_key(provider, file, env)
    return None if key is None else key.value


def test_finds_a_stored_key_and_only_its_owner_can_read_the_file(file: Path) -> None:
    set_key("openrouter", VALUE + "\n", file)

    assert find_key("openrouter", file, {}) == Key("openrouter", str(file), VALUE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(path.name for path in file.parent.iterdir()) == ["keys.toml", "keys.toml.lock"]


def test_the_environment_overrides_the_file_and_ava_variables_override_common_ones(file: Path) -> None:
    set_key("openrouter", VALUE, file)

    assert value_of("openrouter", file, OPENROUTER_API_KEY=OTHER) == OTHER
    assert value_of("openrouter", file, OPENROUTER_API_KEY="12345678", AVA_KEY_OPENROUTER=OTHER) == OTHER
    assert value_of("openrouter", file, OPENROUTER_API_KEY="  ") == VALUE
    assert value_of("LM-Studio", file, AVA_KEY_LM_STUDIO=OTHER) == OTHER
    assert value_of("kagi", file) is None


def test_google_has_two_usual_variables_and_an_unusable_first_does_not_hide_the_second(file: Path) -> None:
    gateway = {"GOOGLE_GEMINI_BASE_URL": "https://gateway.example"}

    assert value_of("google", file, GEMINI_API_KEY=VALUE, GOOGLE_API_KEY=OTHER) == VALUE
    assert value_of("google", file, GEMINI_API_KEY="your-api-key-here", GOOGLE_API_KEY=OTHER) == OTHER
    assert value_of("google", file, GOOGLE_API_KEY=OTHER, **gateway) is None
    assert why_unused("google", {"GEMINI_API_KEY": "your-api-key-here", "GOOGLE_API_KEY": OTHER}) is None
    why = why_unused("google", {"GOOGLE_API_KEY": OTHER, **gateway}) or ""
    assert why.startswith("GOOGLE_API_KEY is not used: GOOGLE_GEMINI_BASE_URL is set")
    assert [key.where for key in list_keys(file, {"GOOGLE_API_KEY": OTHER})] == ["GOOGLE_API_KEY"]


def test_the_list_names_the_source_of_each_key_without_its_value(file: Path) -> None:
    set_key("brave", VALUE, file)
    set_key("openai", VALUE, file)
    keys = list_keys(file, {"OPENAI_API_KEY": OTHER, "AVA_KEY_LOCAL": OTHER, "AVA_KEY_": OTHER, "PATH": "/bin"})

    assert [(key.provider, key.where) for key in keys] == [
        ("brave", str(file)),
        ("local", "AVA_KEY_LOCAL"),
        ("openai", "OPENAI_API_KEY"),
    ]
    assert VALUE not in repr(keys)
    assert OTHER not in repr(keys)


def test_replacing_or_removing_a_key_keeps_the_rest_of_the_file(
    file: Path,
) -> None:
    set_key("openai", OTHER, file)
    file.write_text("# mine\n" + file.read_text())
    set_key("openai", VALUE, file)
    set_key("kagi", VALUE, file)

    assert remove_key("OpenAI", file)
    assert not remove_key("openai", file)
    assert [key.provider for key in list_keys(file, {})] == ["kagi"]
    assert file.read_text().startswith("# mine\n")
    assert OTHER not in file.read_text()


def test_rejects_a_file_readable_by_others_and_says_how_to_fix_it(file: Path) -> None:
    set_key("openai", VALUE, file)
    file.chmod(0o640)

    for use in (
        lambda: find_key("openai", file, {}),
        lambda: set_key("kagi", VALUE, file),
        lambda: remove_key("openai", file),
    ):
        with pytest.raises(ConfigError, match="chmod 600"):
            use()


def test_rejects_a_symbolic_link_in_place_of_the_file(file: Path) -> None:
    real = file.with_name("real.toml")
    set_key("openai", VALUE, real)
    file.symlink_to(real)

    with pytest.raises(ConfigError, match="symbolic link"):
        find_key("openai", file, {})
    with pytest.raises(ConfigError, match="symbolic link"):
        set_key("openai", OTHER, file)
    assert VALUE in real.read_text()


def test_rejects_a_special_file_without_blocking(file: Path) -> None:
    os.mkfifo(file, 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        find_key("openai", file, {})


@pytest.mark.parametrize(
    "text", [f"openai = {VALUE}", f'openai = ["{VALUE}"]', f'[openai]\nkey = "{VALUE}"', f'"{VALUE}" = "x"']
)
def test_rejects_a_broken_file_without_showing_its_content(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError) as refused:
        find_key("openai", file, {})

    assert str(file) in str(refused.value)
    assert "ava key set" in str(refused.value)
    assert VALUE[:12] not in str(refused.value)


@pytest.mark.parametrize(
    "value", ["", "short", "two words of text", "Bearer " + VALUE, "schlüsselwörter", VALUE + "\0"]
)
def test_rejects_an_invalid_key_without_showing_it(file: Path, value: str) -> None:
    with pytest.raises(BadInput) as refused:
        set_key("openai", value, file)
    assert not value or value not in str(refused.value)
    assert not file.exists()

    if value.strip():
        with pytest.raises(ConfigError, match="AVA_KEY_OPENAI does not hold a key"):
            find_key("openai", file, {"AVA_KEY_OPENAI": value})
        assert "OPENAI_API_KEY is not used" in (why_unused("openai", {"OPENAI_API_KEY": value}) or "")


PLACEHOLDERS = ("dummy", "EMPTY", "x", "not-needed", "your-api-key-here", "your_key", "placeholder", "sk-dummy-key")


@pytest.mark.parametrize("value", PLACEHOLDERS)
def test_ignores_a_placeholder_in_the_usual_variable(file: Path, value: str) -> None:
    env = {"ANTHROPIC_API_KEY": value}
    assert find_key("anthropic", file, env) is None and list_keys(file, env) == []
    assert (why_unused("anthropic", env) or "").startswith(
        "ANTHROPIC_API_KEY is not used, because its value is not a key: "
    )
    set_key("anthropic", VALUE, file)
    assert value_of("anthropic", file, **env) == VALUE


@pytest.mark.parametrize(
    ("provider", "variables", "address", "used"),
    [
        ("anthropic", {"ANTHROPIC_BASE_URL": "http://127.0.0.1:4000"}, None, False),
        ("anthropic", {"ANTHROPIC_BASE_URL": "https://gateway.example/anthropic"}, None, False),
        ("anthropic", {"ANTHROPIC_BASE_URL": "https://api.anthropic.com.gateway.example"}, None, False),
        ("anthropic", {"ANTHROPIC_BASE_URL": "http://api.anthropic.com"}, None, False),
        ("anthropic", {"ANTHROPIC_BASE_URL": "https://api.anthropic.com:x"}, None, False),
        ("anthropic", {"ANTHROPIC_BASE_URL": "gateway"}, None, False),
        ("openai", {"OPENAI_BASE_URL": "http://127.0.0.1:4000/v1"}, None, False),
        ("openai", {"OPENAI_API_BASE": "http://127.0.0.1:4000/v1"}, None, False),
        ("groq", {"GROQ_BASE_URL": "http://127.0.0.1:4000"}, None, False),
        ("anthropic", {"ANTHROPIC_BASE_URL": "https://one.example"}, "https://two.example/v1", False),
        ("anthropic", {"ANTHROPIC_BASE_URL": "https://api.anthropic.com"}, "https://gateway.example/v1", False),
        ("anthropic", {"ANTHROPIC_BASE_URL": "https://API.anthropic.com:443/"}, None, True),
        ("anthropic", {"ANTHROPIC_BASE_URL": " "}, None, True),
        ("anthropic", {"ANTHROPIC_BASE_URL": "https://gateway.example"}, "https://gateway.example/v1", True),
        ("anthropic", {"OPENAI_BASE_URL": "http://127.0.0.1:4000/v1"}, None, True),
        ("anthropic", {}, "https://gateway.example/v1", True),
    ],
)
def test_a_gateways_key_goes_only_to_the_gateway(
    file: Path, provider: str, variables: dict[str, str], address: str | None, used: bool
) -> None:
    env = {f"{provider.upper()}_API_KEY": OTHER, **variables}
    places = {provider: address} if address else {}
    found = find_key(provider, file, env, places)
    assert (found is not None and found.value == OTHER) is used
    assert [key.provider for key in list_keys(file, env, places)] == ([provider] if used else [])
    why = why_unused(provider, env, address)
    assert used == (why is None) and OTHER not in (why or "")
    assert used or next(iter(variables)) in (why or "")
    set_key(provider, VALUE, file)
    stored = find_key(provider, file, env, places)
    assert stored is not None and (stored.value == VALUE) is not used, "a key stored for Ava is used"
    assert value_of(provider, file, **env, **{f"AVA_KEY_{provider.upper()}": VALUE}) == VALUE


@pytest.mark.parametrize(
    ("pasted", "says"),
    [
        (f"OPENROUTER_API_KEY={VALUE}", "name of a variable"),
        (f"OPENROUTER_API_KEY = {VALUE}", "name of a variable"),
        (f'export X="{VALUE}"', "name of a variable"),
        (f"X={VALUE}", "name of a variable"),
        (f"api_key={VALUE}", "name of a variable"),
        (f"x-api-key: {VALUE}", "name of a variable"),
        (f"$env:OPENROUTER_API_KEY='{VALUE}'", "name of a variable"),
        (f'"{VALUE}"', "quotes"),
        (f"'{VALUE}'", "quotes"),
        (f"{VALUE}`", "quotes"),
        (f"“{VALUE}”", "quotes"),
        (f'"openrouter": "{VALUE}",', "quotes"),
    ],
)
def test_rejects_a_key_pasted_with_extra_text_and_says_what_is_wrong(file: Path, pasted: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        set_key("openrouter", pasted, file)
    assert VALUE[:12] not in str(refused.value)
    assert not file.exists()


@pytest.mark.parametrize(
    "key", ["QUJDREVGR0hJSktM=", "QUJDREVGR0hJSktMTQ==", "ABCDEFGHIJ==", "id-1234:secret-part", "abc=def=ghi", VALUE]
)
def test_accepts_a_key_with_punctuation(file: Path, key: str) -> None:
    set_key("openrouter", key, file)
    assert value_of("openrouter", file) == key


@given(st.text(max_size=60))
def test_does_not_show_a_key_given_in_place_of_a_name(text: str) -> None:
    try:
        find_key(text, Path("/nowhere/keys.toml"), {})
    except AvaError as refused:
        assert len(text) < 8 or text not in str(refused)


def test_keeps_all_keys_set_by_concurrent_processes(file: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from ava_server.config.keys import set_key; "
        "set_key(*sys.argv[1:3], Path(sys.argv[3]))"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, f"p{number}", VALUE, str(file)]) for number in range(6)]

    assert [process.wait(30) for process in running] == [0] * 6
    assert [key.provider for key in list_keys(file, {})] == [f"p{number}" for number in range(6)]
    assert not list(file.parent.glob(".keys*"))


@pytest.mark.parametrize(
    ("lock", "command", "write"),
    [
        ("keys.toml.lock", "ava key", lambda root: set_key("openrouter", VALUE, root / "keys.toml")),
        ("config.toml.lock", "ava config", lambda root: change_settings(root / "config.toml", {("enabled",): True})),
        (".lock", "ava memory", lambda root: Notebook(Memory(root)).add("note", "text", append=False)),
    ],
    ids=["keys", "settings", "notes"],
)
def test_whoever_writes_waits_as_long_for_another_and_says_who_it_is(
    lock: str, command: str, write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(files, "LOCK_S", 0.2)
    with portalocker.Lock(tmp_path / lock), pytest.raises(ConfigError, match=rf"^Another `{command}` has been writing"):
        write(tmp_path)
    write(tmp_path)


@pytest.mark.parametrize(
    ("code", "to_do"),
    [
        (errno.ENOSPC, "Free some space on its disk."),
        (errno.EROFS, "Make its disk writable."),
        (errno.EMFILE, "restart the server."),
        (errno.EACCES, "Make this user its owner."),
    ],
)
def test_a_file_of_keys_that_the_system_refuses_says_what_helps(
    file: Path, monkeypatch: pytest.MonkeyPatch, code: int, to_do: str
) -> None:
    def refused(*_given: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "replace_file", refused)
    with pytest.raises(ConfigError) as caught:
        set_key("openrouter", VALUE, file)
    assert str(caught.value).endswith(to_do)

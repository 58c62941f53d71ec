"""The file of secrets, and `ava secret`: for its owner alone, and no value is ever shown."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.properties import BUSY_OR_SHARED
from support.redaction import HOST, NAME, VALUE, add_role
from support.terminal import ava, run_on_terminal

from ava_roles.wrap import clean
from ava_server.config.secrets import Secret, read_secrets, remove_secret, set_secret
from ava_server.core.errors import BadInput, ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "secrets" / "secrets.toml"


def stored(file: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {name: (secret.value, secret.hosts) for name, secret in read_secrets(file).items()}


def test_finds_a_stored_secret_and_only_its_owner_can_read_the_file(file: Path) -> None:
    secret = set_secret(NAME, f"  {VALUE}\n", [HOST, "API.example.com:443,api.example.com:8443"], file)

    assert secret == Secret(NAME, VALUE, (HOST, f"{HOST}:8443"), secret.set_at)
    assert read_secrets(file) == {NAME: secret}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert VALUE not in repr(read_secrets(file))
    assert sorted(path.name for path in file.parent.iterdir()) == ["secrets.toml", "secrets.toml.lock"]


def test_replacing_a_value_keeps_the_hosts_unless_others_are_given(file: Path) -> None:
    set_secret(NAME, VALUE, [HOST], file)
    set_secret("A.B-c", "another value", [], file)
    set_secret(NAME, "quite new value", None, file)
    assert stored(file) == {NAME: ("quite new value", (HOST,)), "A.B-c": ("another value", ())}
    set_secret(NAME, VALUE, ["docs.example.com"], file)
    assert stored(file)[NAME] == (VALUE, ("docs.example.com",))

    assert remove_secret(NAME, file)
    assert not remove_secret(NAME, file)
    assert list(stored(file)) == ["A.B-c"]
    assert VALUE not in file.read_text()


@settings(suppress_health_check=BUSY_OR_SHARED, max_examples=40)
@given(value=st.text(min_size=8, max_size=40))
def test_any_printable_value_round_trips(file: Path, value: str) -> None:
    bare = value.strip()
    can_be = len(bare) >= 8 and bare.isprintable() and clean(bare)[0] == bare
    try:
        set_secret(NAME, value, None, file)
    except BadInput as refused:
        assert not can_be and bare not in str(refused)
    else:
        assert can_be and read_secrets(file)[NAME].value == bare


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "fewer than 8"),
        ("1234567", "fewer than 8"),
        ("two lines\nof text", "line break"),
        ("a tab\tin it here", "line break, a tab"),
        ("hidden\u200bcharacter", "an invisible character"),
        ("x" * 8_193, "more than 8,192"),
        ("{{secret:OTHER}}", "is a placeholder"),
    ],
)
def test_rejects_an_invalid_value_without_showing_it(file: Path, value: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        set_secret(NAME, value, None, file)
    assert not value or value not in str(refused.value)
    assert not file.exists()


@pytest.mark.parametrize("name", ["", "1st", "with space", "x" * 65, "sl/ash", "ghp_" + "Ab3" * 13, "pin_12345678"])
def test_rejects_an_invalid_or_secret_looking_name_without_showing_it(file: Path, name: str) -> None:
    with pytest.raises(BadInput, match="name") as refused:
        set_secret(name, VALUE, None, file)
    assert not name or name not in str(refused.value)


@pytest.mark.parametrize(
    "host",
    ["https://api.example.com", "api.example.com/v1", "*.example.com", "localhost", "10.0.0.1", "a b.example.com",
     "api.example.com:22", "user@api.example.com", "[::1]", "api.example.com:443:1", "-"],
)  # fmt: skip
def test_rejects_a_host_that_is_not_public(file: Path, host: str) -> None:
    with pytest.raises(BadInput, match="--for"):
        set_secret(NAME, VALUE, [host], file)
    assert not file.exists()


def loosened(file: Path) -> str:
    file.chmod(0o640)
    return "chmod 600"


def linked(file: Path) -> str:
    file.rename(file.with_name("real.toml"))
    file.symlink_to("real.toml")
    return "symbolic link"


def open_folder(file: Path) -> str:
    file.parent.chmod(0o755)
    return "chmod 700"


def linked_folder(file: Path) -> str:
    file.parent.rename(file.parent.with_name("real"))
    file.parent.symlink_to("real")
    return "not a folder, or is a link"


def a_pipe(file: Path) -> str:
    file.unlink()
    os.mkfifo(file, 0o600)
    return "not a regular file"


def no_toml(file: Path) -> str:
    file.write_text(f"{NAME} = {VALUE}")
    return "not valid TOML"


def another_form(file: Path) -> str:
    file.write_text(f"{NAME} = '{VALUE}'")
    return "not as `ava secret set` writes it"


def hosts_of_another_form(file: Path) -> str:
    file.write_text(f"[{NAME}]\nvalue = '{VALUE}'\nfor = [7]")
    return "not as `ava secret set` writes it"


@pytest.mark.parametrize(
    "spoil",
    [loosened, linked, open_folder, linked_folder, a_pipe, no_toml, another_form, hosts_of_another_form],
)
def test_rejects_an_untrusted_or_unreadable_file_and_says_how_to_fix_it(file: Path, spoil: object) -> None:
    set_secret(NAME, VALUE, [HOST], file)
    says = spoil(file)  # type: ignore[operator]
    for use in (
        lambda: read_secrets(file),
        lambda: set_secret("OTHER", "another value", None, file),
        lambda: remove_secret(NAME, file),
    ):
        with pytest.raises(ConfigError, match=says) as refused:
            use()
        assert VALUE not in str(refused.value)


def test_keeps_two_secrets_set_concurrently(file: Path) -> None:
    code = "import sys; from pathlib import Path; from ava_server.config.secrets import set_secret\n"
    code += "[set_secret(sys.argv[2], f'value number {n}', None, Path(sys.argv[1])) for n in range(10)]"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(file), name]) for name in ("ONE", "TWO", "THREE")]
    assert [process.wait(30) for process in processes] == [0, 0, 0]
    assert set(stored(file)) == {"ONE", "TWO", "THREE"}
    assert {value for value, _hosts in stored(file).values()} == {"value number 9"}


# -- the command ------------------------------------------------------------------------------------------------------


def test_reads_a_value_from_a_pipe_and_the_list_shows_no_values(tmp_path: Path) -> None:
    done = ava(tmp_path, "secret", "set", NAME, "--for", HOST, stdin=VALUE + "\nsecond line\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"Data root: {tmp_path}"
    assert f"It is sent only to {HOST}, over https." in done.stdout
    assert f"secrets: [{NAME}]" in done.stdout, "no role lists it yet"
    assert stored(tmp_path / "secrets" / "secrets.toml") == {NAME: (VALUE, (HOST,))}

    add_role(tmp_path, f"secrets: [{NAME}, WIKI]")
    assert ava(tmp_path, "secret", "set", "LOOSE", stdin=VALUE[::-1]).returncode == 0
    shown = ava(tmp_path, "secret", "list")
    lines = {line.split()[0]: line for line in shown.stdout.splitlines()[1:]}
    assert f'for {HOST}; roles: "tickets"' in lines[NAME]
    assert "for no host; no role lists it" in lines["LOOSE"]
    assert 'not stored; roles: "tickets"' in lines["WIKI"]
    listed = ava(tmp_path, "secret", "list", "--json")
    entries = {entry["name"]: entry for entry in json.loads(listed.stdout)["secrets"]}
    assert entries[NAME] | {"set": ""} == {
        "name": NAME, "stored": True, "set": "", "for": [HOST], "roles": ["tickets"],
    }  # fmt: skip
    assert entries["WIKI"] == {"name": "WIKI", "stored": False, "roles": ["tickets"]}

    removed = ava(tmp_path, "secret", "remove", NAME)
    assert removed.returncode == 0 and f"Removed {NAME}" in removed.stdout
    again = ava(tmp_path, "secret", "remove", NAME)
    assert again.returncode == 2 and "ava secret list" in again.stderr
    for out in (done, shown, listed, removed, again):
        assert VALUE not in out.stdout + out.stderr


def test_asks_for_a_value_on_the_terminal_without_showing_it(tmp_path: Path) -> None:
    with run_on_terminal(tmp_path, "secret", "set", NAME, "--for", HOST) as screen:
        screen.until(f"Value of {NAME} (not shown): ")
        screen.type(VALUE + "\n")
        assert screen.ended() == 0
        assert VALUE not in screen.text and VALUE[:8] not in screen.text
    assert stored(tmp_path / "secrets" / "secrets.toml") == {NAME: (VALUE, (HOST,))}


@pytest.mark.parametrize(
    "arguments",
    [["set", NAME, VALUE], ["set", NAME, f"--value={VALUE}"], ["set", NAME, "--value", VALUE], ["remove", NAME, VALUE],
     ["set", "sk-or-v1-0a1b2c3d4e5f60718293a4b5c6d7e8f9"]],
)  # fmt: skip
def test_rejects_a_value_typed_into_the_command_without_repeating_it(tmp_path: Path, arguments: list[str]) -> None:
    done = ava(tmp_path, "secret", *arguments, stdin=VALUE)
    assert done.returncode == 2
    assert done.stderr.startswith("ava: ") and "asked for" in done.stderr
    assert all(argument not in done.stdout + done.stderr for argument in arguments[1:] if argument != NAME)
    assert not (tmp_path / "secrets").exists()

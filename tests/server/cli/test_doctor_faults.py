"""`ava doctor` where something is broken: each is a finding with what to do, never a traceback or an early end."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support import no_locks
from support.commands.doctor import KEY, doctor, faults, read_findings, use_root
from support.no_locks import needs_filter
from support.terminal import COMMAND, ava, environment

from ava_server import MODULE_ARGS

pytestmark = pytest.mark.slow


CONFIGS = [
    ("enabled = = true", "is not valid TOML"),
    ("[limits]\nrunning = -1", "limits.running is -1"),
    ("approvel = 'ask'", "did you mean approval"),
    (f'[providers.x]\nbase_url = "http://127.0.0.1/v1"\napi_key = "{KEY}"', "which does not belong in settings"),
]


@pytest.mark.parametrize(("text", "says"), CONFIGS)
def test_invalid_settings_are_a_fault_and_the_other_checks_run(root: Path, text: str, says: str) -> None:
    (root / "config.toml").write_text(text)
    done = ava(root, "doctor", "--json")
    findings = read_findings(done)
    assert faults(findings) == {"settings"}
    assert says in findings["settings"]["text"]
    assert findings["settings"]["what_to_do"].startswith(f"Correct it in {root}/config.toml, or in the named variable")
    assert findings["providers"]["state"] == "note"
    assert KEY not in done.stdout


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"AVA_DAILY_USD": "$5"}, 'AVA_DAILY_USD is "$5"; allowed is an amount in dollars from 0 up with at most two'),
        ({"AVA_LIMITS__RUNING": "5"}, "AVA_LIMITS__RUNING is not a setting; did you mean AVA_LIMITS__RUNNING?"),
        ({"AVA_LIMITS__RUNNING": "50"}, "The environment may only tighten it; to loosen it, set limits.running in"),
    ],
)
def test_reports_an_error_in_full_with_one_next_step(root: Path, env: dict[str, str], says: str) -> None:
    settings = doctor(root, **env)["settings"]
    assert says in settings["text"]
    assert settings["what_to_do"].startswith("Correct it in ") and "`ava doctor` again" in settings["what_to_do"]


def test_a_model_without_a_key_is_reported_with_how_to_add_one(root: Path) -> None:
    (root / "config.toml").write_text('[models]\nfast = "openai:gpt-5"\n')
    found = doctor(root)["model fast"]
    assert found["text"] == "model: 'openai:gpt-5' needs a key for openai, and there is none."
    assert "key set openai`" in found["what_to_do"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize(
    ("name", "says"),
    [("config.toml", "is a pipe"), ("keys.toml", "not a regular file"), ("ava.db", "not a regular file")],
)
def test_a_pipe_in_place_of_a_file_is_a_fault_and_does_not_block(root: Path, name: str, says: str) -> None:
    os.mkfifo(root / name, 0o600)
    findings = doctor(root)
    (fault,) = faults(findings)
    assert says in findings[fault]["text"]


def test_an_impossible_data_root_is_a_fault_with_a_next_step(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("text")
    link.symlink_to(tmp_path / "nowhere")
    for broken, says in (
        ("relative/path", "is 'relative/path'"),
        (file, "is not a folder"),
        (file / "below", "Not a directory"),
        (link, "is a broken link"),
        (tmp_path / ("x" * 300), "File name too long"),
        ("/proc/ava", "cannot be created in /proc"),
    ):
        findings = doctor(broken)
        assert faults(findings) - {"settings"} == {"data root"}, "what follows from it is no fault of its own"
        assert says in findings["data root"]["text"]
        assert "Set AVA_DATA_ROOT" in findings["data root"]["what_to_do"]
        assert "Set AVA_DATA_ROOT" not in findings["data root"]["text"], "told once"
    assert ava("relative/path", "doctor").stdout.startswith("Data root: not known\n")


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_an_unreadable_data_root_is_a_fault(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    in_its_place = ["unshare", "--user", "--map-user=4321", "--map-group=4321"]  # root may look into every folder
    if subprocess.run([*in_its_place, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    closed.chmod(0o000)
    try:
        for root in (closed, closed / "data"):
            done = subprocess.run(
                [*in_its_place, *COMMAND, "doctor", "--json"],
                env=environment(root), capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert "data root" in faults(read_findings(done))
    finally:
        closed.chmod(0o700)


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
@pytest.mark.parametrize(("size", "state"), [("1m", "fault"), ("50m", "warning")])
def test_reports_a_full_or_nearly_full_disk(root: Path, size: str, state: str) -> None:
    small = f'mount -t tmpfs -o size={size},mode=700 none "$AVA_DATA_ROOT" && exec "$@"'
    with_disk = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", small, "sh"]
    if subprocess.run([*with_disk, "true"], env=environment(root), check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    done = subprocess.run(
        [*with_disk, *COMMAND, "doctor", "--json"],
        env=environment(root), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert read_findings(done)["disk space"]["state"] == state


def test_a_world_writable_folder_is_a_fault(root: Path) -> None:
    root.chmod(0o777)
    assert faults(doctor(root)) == {"data root"}
    root.chmod(0o700)


def test_a_log_of_a_newer_version_is_a_fault(root: Path, tmp_path: Path) -> None:
    use_root(root, tmp_path)
    with contextlib.closing(sqlite3.connect(root / "ava.db")) as db:
        db.execute("PRAGMA user_version = 99")
    findings = doctor(root)
    assert faults(findings) == {"log"}
    assert "schema 99" in findings["log"]["text"]
    assert "Install the newer Ava" in findings["log"]["what_to_do"]


def test_a_log_of_a_version_before_the_first_release_is_a_fault_with_what_to_do(root: Path, tmp_path: Path) -> None:
    use_root(root, tmp_path)
    with contextlib.closing(sqlite3.connect(root / "ava.db")) as db:
        db.execute("PRAGMA user_version = 12")
    found = doctor(root)["log"]
    assert (found["state"], "newer" in found["text"]) == ("fault", False)
    assert "before its first release" in found["text"] and "`ava export`" in found["text"]


def test_a_file_that_is_not_a_log_is_a_fault(root: Path) -> None:
    (root / "ava.db").write_bytes(b"this is no database" * 1_000)
    assert faults(doctor(root)) == {"log"}
    (root / "ava.db").unlink()
    (root / "ava.db").mkdir()
    assert faults(doctor(root)) == {"log"}


def test_an_empty_log_is_only_a_note(root: Path) -> None:
    (root / "ava.db").touch()
    findings = doctor(root)
    assert (findings["log"]["state"], faults(findings)) == ("note", set())


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [(f'openrouter = "{KEY}', 0o600, "not valid TOML"), (f'openrouter = "{KEY}"', 0o644, "Others may read")],
)
def test_a_broken_key_file_is_a_fault_and_no_key_is_shown(root: Path, text: str, mode: int, says: str) -> None:
    (root / "keys.toml").write_text(text)
    (root / "keys.toml").chmod(mode)
    done = ava(root, "doctor", "--json")
    findings = read_findings(done)
    assert faults(findings) == {"keys"}
    assert says in findings["keys"]["text"]
    assert KEY not in done.stdout


def test_never_shows_a_key_wherever_it_is(root: Path) -> None:
    ava(root, "key", "set", "openrouter", stdin=KEY)
    env = {
        "OPENAI_API_KEY": "openai-key-0123456789abcdef",
        "AVA_KEY_KAGI": "kagi-key-0123456789abcdef",
        "AVA_MODEL_API_KEY": "custom-key-0123456789abcdef",
        "AVA_MODEL_BASE_URL": "http://127.0.0.1:9/v1",
        "AVA_MODEL": "custom-key-0123456789abcdef",
        "HTTPS_PROXY": "http://somebody:password-0123456789@proxy.example:3128",
    }
    for args in (("doctor",), ("doctor", "--json")):
        shown = ava(root, *args, env=env)
        assert not [value for value in (*env.values(), KEY) if "0123" in value and value in shown.stdout + shown.stderr]
        assert KEY not in shown.stdout + shown.stderr
        assert "password" not in shown.stdout
    findings = doctor(root, **env)
    assert f"openrouter from {root}/keys.toml" in findings["keys"]["text"]
    assert "openai from OPENAI_API_KEY" in findings["keys"]["text"]
    assert findings["provider openrouter"]["text"] == "https://openrouter.ai/api/v1, with a key"
    assert "kagi from AVA_KEY_KAGI" in findings["keys"]["text"]
    assert findings["search"]["text"].startswith("Kagi at https://kagi.com/api/v1, about $0.012 each")
    assert "proxy.example:3128" in findings["network"]["text"]


def test_an_invalid_role_file_is_a_fault_and_the_others_can_run(root: Path) -> None:
    (root / "roles").mkdir()
    (root / "roles" / "pirate.md").write_text(
        "---\nname: pirate\ndescription: Sails.\nmax_cost_cents: lots\n---\nSail.\n"
    )
    (root / "roles" / "cook.md").write_text("---\nname: cook\ndescription: Cooks.\ntools: Read\n---\nCook.\n")
    findings = doctor(root)
    assert faults(findings) == {"role file"}
    assert "pirate.md" in findings["role file"]["text"] and "max_cost_cents" in findings["role file"]["text"]
    assert 'custom, the role "cook"' in findings["roles"]["text"]


def test_a_tier_without_a_usable_model_is_a_fault_with_the_lines_to_add(root: Path) -> None:
    far = "https://models.example.com/v1"
    findings = doctor(root, AVA_MODEL_BASE_URL=far, AVA_MODEL="own")
    assert faults(findings) == {"model fast, balanced, deep"}
    assert '[prices."custom:own"]' in findings["model fast, balanced, deep"]["text"]
    assert "config.toml" in findings["model fast, balanced, deep"]["what_to_do"]
    assert "researcher" in findings["roles"]["text"] and findings["roles"]["state"] == "note"
    assert "AVA_MODEL" in doctor(root, AVA_MODEL_BASE_URL=far)["model fast, balanced, deep"]["text"]


@needs_filter
def test_a_price_as_of_a_model_without_a_price_is_a_fault(root: Path) -> None:
    prices = '{ ours = "openai:gpt-99-never", fine = "openai:gpt-5" }'
    (root / "config.toml").write_text(f'[providers.gw]\nbase_url = "https://gw.example/v1"\nprice_as = {prices}\n')
    findings = doctor(root)
    fault = findings["price of gw:ours"]
    assert "price of gw:ours" in faults(findings) and "price of gw:fine" not in findings
    assert "prices ours as openai:gpt-99-never, which has no price" in fault["text"] and fault["what_to_do"]


def test_a_file_system_without_locks_is_a_fault_of_the_data_root_alone(root: Path) -> None:
    ava(root, "logs")
    command = [sys.executable, no_locks.__file__, sys.executable, *MODULE_ARGS, "doctor", "--json"]
    done = subprocess.run(command, env=environment(root), capture_output=True, text=True, timeout=60, check=False)
    findings = read_findings(done)
    assert faults(findings) == {"data root"}
    assert f"the file system of {root} has no locks (No locks available)" in findings["data root"]["text"]
    assert findings["data root"]["what_to_do"] == "Set AVA_DATA_ROOT to a folder on a local disk."


def test_an_unusable_certificate_or_proxy_setting_is_a_fault(root: Path) -> None:
    for name, value in (
        ("SSL_CERT_FILE", "/nowhere.pem"),
        ("SSL_CERT_DIR", "/nowhere"),
        ("HTTPS_PROXY", "http://"),
        ("ALL_PROXY", "socks5://127.0.0.1:1080"),
    ):
        findings = doctor(root, **{name: value})
        assert faults(findings) == {"network"}
        assert name in findings["network"]["what_to_do"]

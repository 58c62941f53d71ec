"""The tokens of the HTTP server: shown once, stored hashed, gone at the next request, and never half written."""

import ctypes
import hmac
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.sample import sample
from support.stdio import read_log
from support.terminal import CONTROLLED, WITHIN_S, ava, environment, run_on_terminal

from ava_server.config.tokens import BEGINS, TokenFile, create_token, expiry, read_tokens, revoke_token, scopes_in
from ava_server.core.errors import BadInput, ConfigError, Refused

TEXT = re.compile(rf"^{BEGINS}[A-Za-z0-9_-]{{43}}$", re.MULTILINE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "secrets" / "tokens.toml"


def test_finds_a_token_by_its_text_which_no_file_or_repr_contains(file: Path) -> None:
    token, text = create_token(file, "laptop", "ana", ["read", "spawn"], None)
    assert TEXT.fullmatch(text)
    assert (token.user, token.scopes) == ("ana", ("spawn", "read"))
    assert TokenFile(file).find(text) == token
    stored = file.read_text()
    assert text not in stored and text.removeprefix(BEGINS) not in stored
    assert text not in repr(token) and token.hash not in repr(token)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("change", [
    lambda text: text[:-1], lambda text: text + "A", lambda text: text.upper(), lambda text: " " + text,
    lambda text: text.removeprefix(BEGINS), lambda _text: "", lambda text: text + "\x00", lambda text: text * 9,
    lambda _text: "ünïcode", lambda _text: BEGINS + "A" * 43,
])  # fmt: skip
def test_accepts_only_the_exact_token(file: Path, change: object) -> None:
    _token, text = create_token(file, "laptop", "ana", ["read"], None)
    assert callable(change)
    assert TokenFile(file).find(change(text)) is None


def test_a_reader_rejects_revoked_and_expired_tokens_it_read_before(file: Path) -> None:
    now_us = time.time_ns() // 1000
    _one, revoked = create_token(file, "one", "ana", ["read"], None)
    _two, expires = create_token(file, "two", "ana", ["read"], now_us + 300_000)
    tokens = TokenFile(file)
    assert tokens.find(revoked) is not None and tokens.find(expires) is not None and tokens.any()
    assert (gone := revoke_token(file, "one")) is not None and gone.name == "one"
    assert tokens.find(revoked) is None
    time.sleep(0.35)
    assert tokens.find(expires) is None
    assert not tokens.any()
    assert revoke_token(file, "one") is None


def test_compares_every_stored_hash_in_constant_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is watched, not replaced: each one given has to be compared with each one stored."""
    _token, first = create_token(file, "a", "ana", ["read"], None)
    for name in ("b", "c", "d"):
        create_token(file, name, "ana", ["read"], None)
    compared: list[str] = []
    right = hmac.compare_digest

    def watched(stored: str, given: str) -> bool:
        compared.append(stored)
        return right(stored, given)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    tokens = TokenFile(file)
    hashes = [token.hash for token in read_tokens(file).values()]
    for given in (first, BEGINS + "x" * 43):
        compared.clear()
        tokens.find(given)
        assert compared == hashes


@pytest.mark.parametrize(("name", "user", "scope"), [
    ("", "ana", "read"), ("1st", "ana", "read"), ("a b", "ana", "read"), ("x" * 65, "ana", "read"),
    (BEGINS + "A" * 43, "ana", "read"), ("laptop", "", "read"), ("laptop", "a:2026-01-01", "read"),
    ("laptop", "../ana", "read"), ("laptop", "ana\n", ""), ("laptop", "-ana", "read"), ("laptop", "ana", ""),
    ("laptop", "ana", "read,write"),
])  # fmt: skip
def test_rejects_an_invalid_name_user_or_scope(file: Path, name: str, user: str, scope: str) -> None:
    with pytest.raises(BadInput) as refused:
        create_token(file, name, user, scopes_in([scope]), None)
    assert "A" * 43 not in str(refused.value)
    assert not file.exists()


def test_rejects_a_name_that_is_already_used(file: Path) -> None:
    _token, text = create_token(file, "laptop", "ana", ["read"], None)
    with pytest.raises(Refused, match="ava token revoke laptop"):
        create_token(file, "laptop", "ben", ["audit"], None)
    found = TokenFile(file).find(text)
    assert found is not None and found.user == "ana"


def test_reads_durations_and_rejects_invalid_ones() -> None:
    assert expiry(None, 5) is None
    assert expiry("90d", 5) == 5 + 90 * 86_400_000_000
    assert expiry("12H", 5) == 5 + 12 * 3_600_000_000
    for wrong in ("", "0d", "-1d", "90", "1.5d", "1y", "9" * 9 + "d"):
        with pytest.raises(BadInput):
            expiry(wrong, 5)


@pytest.mark.parametrize("damage", ["loose", "folder", "link", "text", "scope", "hash"])
def test_an_untrusted_token_file_denies_all_access(file: Path, damage: str) -> None:
    _token, text = create_token(file, "laptop", "ana", ["read"], None)
    tokens = TokenFile(file)
    assert tokens.find(text) is not None
    if damage == "loose":
        file.chmod(0o644)
    elif damage == "folder":
        file.parent.chmod(0o755)
        file.touch()
    elif damage == "link":
        file.rename(file.with_name("other"))
        file.symlink_to("other")
    else:
        wrong = {"text": "x = [", "scope": file.read_text().replace('"read"', '"all"'), "hash": "[a]\nuser = 'b'\n"}
        file.write_text(wrong[damage])
    for reader in (tokens, tokens, TokenFile(file)):
        with pytest.raises(ConfigError):
            reader.find(text)


@pytest.mark.slow
def test_keeps_all_tokens_created_by_concurrent_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ava_server", "token", "create"]
    env = environment(tmp_path / "data")
    given = ("--user", "ana", "--scope", "read")
    running = [
        subprocess.Popen([*command, name, *given], env=env, stdout=subprocess.PIPE, text=True) for name in "abcd"
    ]
    texts = [TEXT.search(process.communicate(timeout=60)[0]) for process in running]
    tokens = TokenFile(tmp_path / "data" / "secrets" / "tokens.toml")
    assert [token.name for text in texts if text and (token := tokens.find(text[0]))] == list("abcd")


@pytest.mark.slow
def test_a_quiet_create_prints_only_the_token(tmp_path: Path) -> None:
    made = ava(tmp_path, "token", "create", "ci", "--user", "ana", "--scope", "read", "-q")
    assert (made.returncode, made.stderr) == (0, "") and TEXT.fullmatch(made.stdout.strip())
    assert TokenFile(tmp_path / "secrets" / "tokens.toml").find(made.stdout.strip()) is not None


def test_the_command_shows_a_token_once_and_log_and_list_never_do(tmp_path: Path) -> None:
    root = tmp_path / "data"
    made = ava(root, "token", "create", "laptop", "--user", "ana", "--scope", "spawn,read", "--expires", "90d")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith(f"Data root: {root}\n")
    match = TEXT.search(made.stdout)
    assert match is not None
    text = match[0]
    listed, as_json = ava(root, "token", "list"), ava(root, "token", "list", "--json")
    assert "laptop  ana; spawn, read; until 20" in listed.stdout
    (entry,) = json.loads(as_json.stdout)["tokens"]
    assert (entry["name"], entry["user"], entry["scopes"], entry["expired"]) == (
        "laptop", "ana", ["spawn", "read"], False,
    )  # fmt: skip
    revoked = ava(root, "token", "revoke", "laptop")
    again = ava(root, "token", "revoke", "laptop")
    assert (revoked.returncode, again.returncode) == (0, 2)
    facts = [entry.content for entry in read_log(root, "SettingsChanged")]
    assert [(fact["setting"], "before" in fact, "after" in fact) for fact in facts] == [
        ("tokens.laptop", False, True), ("tokens.laptop", True, False),
    ]  # fmt: skip
    assert facts[0]["after"]["scopes"] == ["spawn", "read"]
    for path in root.rglob("*"):
        if path.is_file():
            assert text.encode() not in path.read_bytes(), path.name
    for done in (listed, as_json, revoked, again):
        assert text not in done.stdout + done.stderr


def test_does_not_repeat_a_token_given_in_place_of_a_name(tmp_path: Path) -> None:
    text = BEGINS + "Ab3" * 14 + "x"
    for args in (("revoke", text), ("create", text, "--user", "ana", "--scope", "read")):
        done = ava(tmp_path / "data", "token", *args)
        assert done.returncode == 2
        assert text not in done.stdout + done.stderr


@pytest.mark.slow
def test_creating_a_token_that_can_approve_requires_the_pin(tmp_path: Path) -> None:
    with run_on_terminal(tmp_path, "pin", "set", command=CONTROLLED) as screen:
        screen.until("New approval PIN (not shown): ")
        screen.type("739154\n")
        screen.until("once more (not shown): ")
        screen.type("739154\n")
        assert screen.ended() == 0
    words = ("token", "create", "phone", "--user", "ana", "--scope", "approve")
    piped = ava(tmp_path, *words)
    assert piped.returncode == 10 and "no" in piped.stderr
    with run_on_terminal(tmp_path, *words, command=CONTROLLED) as screen:
        screen.until("Approval PIN (not shown): ")
        screen.type("000111\n")
        assert screen.ended() == 10
    assert not (tmp_path / "secrets" / "tokens.toml").exists()
    with run_on_terminal(tmp_path, *words, columns=200, command=CONTROLLED) as screen:
        screen.until("Approval PIN (not shown): ")
        screen.type("739154\n")
        assert screen.ended() == 0
    assert TEXT.search(screen.text)
    other = ava(tmp_path, "token", "create", "laptop", "--user", "ana", "--scope", "read")
    assert other.returncode == 0


def test_a_subagent_process_cannot_create_a_token(tmp_path: Path) -> None:
    done = ava(tmp_path, "token", "create", "x", "--user", "ana", "--scope", "audit", env={"AVA_RUN_ID": "S-7f3a2b"})
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [["pin", "set"], ["key", "set", "openrouter"], ["secret", "set", "CRM", "--for", "example.org"]]
)
@pytest.mark.parametrize("number", sample([signal.SIGTERM, signal.SIGHUP, signal.SIGINT], 1))
def test_killing_a_password_prompt_restores_the_terminal_echo(
    tmp_path: Path, words: list[str], number: signal.Signals
) -> None:
    with run_on_terminal(tmp_path / "data", *words, command=CONTROLLED) as screen:
        screen.until("(not shown): ")
        assert not screen.echoes
        screen.process.send_signal(number)
        ended = screen.ended()
        assert ended == (130 if number == signal.SIGINT else -number)
        assert screen.echoes


@pytest.mark.skipif(sys.platform != "linux", reason="a signal to one thread of another process is Linux's")
def test_ctrl_c_ends_a_prompt_also_where_it_does_not_interrupt_the_event_loops_wait(tmp_path: Path) -> None:
    with run_on_terminal(tmp_path / "data", "pin", "set", command=CONTROLLED) as screen:
        screen.until("(not shown): ")
        pid = screen.process.pid
        tasks = Path(f"/proc/{pid}/task")
        deadline = time.monotonic() + WITHIN_S
        while (reader := max(int(task.name) for task in tasks.iterdir())) == pid:
            assert time.monotonic() < deadline, "no thread reads the terminal"
        time.sleep(0.5)  # by now the main thread waits in its event loop
        assert ctypes.CDLL(None, use_errno=True).tgkill(pid, reader, signal.SIGINT) == 0
        assert screen.ended() == 130
        assert screen.echoes

"""Files that all servers share: tokens, passkeys, sessions and the PIN in Postgres, never a key or a secret."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import anyio.to_thread
import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from support.http_server import serve_http, token
from support.model_server import Say, run_model_server
from support.network.balancer import join, make_postgres_root
from support.postgres import postgres_server
from support.stdio import model_env, read_answer

from ava_audit.errors import StoreUnavailable
from ava_audit.postgres.shared_files import PostgresSharedFiles
from ava_server.config.changes import change_users, read_users
from ava_server.config.keys import set_key
from ava_server.config.pin import TRIES, PinFile
from ava_server.config.secrets import set_secret
from ava_server.config.sign_in import BrowserSessions, Passkeys, new_passkey
from ava_server.config.tokens import TokenFile, read_tokens, revoke_token
from ava_server.core import shared_files
from ava_server.core.data_root import DataRoot
from ava_server.core.errors import ConfigError, Refused
from ava_server.core.shared_files import SHARED, TAKEN_OVER, keep_fresh, shared_files_of

pytestmark = pytest.mark.skipif("sys.platform == 'win32'", reason="the Postgres of the tests is started on Linux only")


@pytest.fixture
def roots(tmp_path: Path) -> tuple[DataRoot, DataRoot]:
    """Two data roots whose servers share a log."""
    address = make_postgres_root(tmp_path / "one")
    join(tmp_path / "two", address)
    return DataRoot(tmp_path / "one"), DataRoot(tmp_path / "two")


# -- what is shared, and what never is --------------------------------------------------------------------------------


KEY, SECRET, PIN = "sk-ant-api03-" + "k9Qw" * 12, "hunter2-s3cr3t-value", "73 91 05"


async def test_no_key_secret_token_or_pin_is_in_the_database(tmp_path: Path) -> None:
    root = DataRoot(tmp_path / "data")
    address = make_postgres_root(root.path)
    set_key("anthropic", KEY, root.keys)
    set_secret("LOGIN", SECRET, ["example.org"], root.secrets_file)
    sessions = BrowserSessions(root.browser_sessions)
    texts = [token(root.path, "ana", "spawn", "read", "approve"), sessions.open("ana"),
             sessions.issue_code("ana", terminal=True)]  # fmt: skip
    done = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])
    with run_model_server([done]) as model:
        async with serve_http(root.path, env=model_env(model.base_url)) as server, server.client(texts[0]) as client:
            spawn = {"role": "custom", "system_prompt": "Look.", "task": f"Use {SECRET} and {KEY}"}
            proposed = read_answer(await client.call_tool("spawn_subagent", spawn))[0]
            asked = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
            assert read_answer(await client.call_tool("confirm_spawn", asked))[0]["status"] == "approved"
            waiting = {"subagent_id": proposed["subagent_id"], "wait_seconds": 20}
            assert read_answer(await client.call_tool("check_subagent", waiting))[0]["status"] == "success"
            await anyio.to_thread.run_sync(PinFile(root.approval_file).set, PIN)
            await server.post("/sign-in", data={"token": texts[0], "to": "/"}, headers={"Origin": server.base})
    found = await anyio.to_thread.run_sync(everything_in, address)
    for private in (KEY, SECRET, PIN, PIN.replace(" ", ""), *texts):
        assert private not in found and private.encode().hex() not in found
    assert {path.name for path in root.secrets.glob("*.toml")} == {"secrets.toml"}, "which stays here"


def test_keys_secrets_and_texts_of_tokens_are_not_among_the_shared_files() -> None:
    root = DataRoot(Path("/data"))
    private = (root.keys, root.secrets_file, root.local_token, root.trusted_roles, root.config)
    assert not {path.name for path in private} & SHARED
    shared = (root.tokens_file, root.passkeys, root.browser_sessions, root.approval_file, root.question_key)
    assert {path.name for path in (*shared, root.shared_users)} == SHARED


# -- moving -----------------------------------------------------------------------------------------------------------


def test_the_first_process_moves_its_files_into_an_empty_database(tmp_path: Path) -> None:
    root = DataRoot(tmp_path / "data")
    text = token(root.path, "ana")
    PinFile(root.approval_file).set(PIN)
    with_files = {path.name: path.read_text() for path in (root.tokens_file, root.approval_file)}
    address = make_postgres_root(root.path)
    found = TokenFile(root.tokens_file).find(text)
    assert found is not None and found.user == "ana" and PinFile(root.approval_file).is_set
    for name, before in with_files.items():
        assert not (root.secrets / name).exists()
        assert (root.secrets / f"{name}{TAKEN_OVER}").read_text() == before, "and a way back"
    late = DataRoot(tmp_path / "late")
    other = token(late.path, "ben")
    join(late.path, address)
    assert TokenFile(late.tokens_file).find(other) is None, "only the first one's files count"
    assert late.tokens_file.exists() and TokenFile(late.tokens_file).find(text) is not None


def test_two_first_processes_do_not_mix_their_files(tmp_path: Path) -> None:
    address = make_postgres_root(tmp_path / "first")
    both = [DataRoot(tmp_path / name) for name in ("one", "two")]
    for root, user in zip(both, ("ana", "ben"), strict=True):
        token(root.path, user)
        join(root.path, address)
    with ThreadPoolExecutor() as threads:
        known = [set(each) for each in threads.map(lambda root: read_tokens(root.tokens_file), both)]
    assert known[0] == known[1] and len(known[0]) == 1


def test_a_file_that_others_may_read_is_not_moved(tmp_path: Path) -> None:
    root = DataRoot(tmp_path / "data")
    token(root.path, "ana")
    root.tokens_file.chmod(0o644)
    make_postgres_root(root.path)
    with pytest.raises(ConfigError, match="Others may read"):
        read_tokens(root.tokens_file)
    assert root.tokens_file.exists()


def test_without_the_address_nothing_is_stored_in_files_that_nobody_reads(
    roots: tuple[DataRoot, DataRoot], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _two = roots
    token(one.path, "ana")
    one.config.write_text("")
    with pytest.raises(ConfigError, match="AVA_DATABASE_URL"):
        token(one.path, "ben")
    monkeypatch.setenv("AVA_DATABASE_URL", "")
    with pytest.raises(ConfigError, match="AVA_DATABASE_URL"):
        read_tokens(one.tokens_file)
    assert not one.tokens_file.exists()


# -- several processes ------------------------------------------------------------------------------------------------


def test_what_one_server_stores_another_finds_at_once(roots: tuple[DataRoot, DataRoot]) -> None:
    one, two = roots
    first, second = TokenFile(one.tokens_file), TokenFile(two.tokens_file)
    text = token(one.path, "ana")
    found = second.find(text)
    assert found is not None and found == first.find(text)
    revoke_token(two.tokens_file, "of-ana")
    assert first.find(text) is None and not first.holds(found)
    here, there = BrowserSessions(one.browser_sessions), BrowserSessions(two.browser_sessions)
    cookie = there.redeem(here.issue_code("ana", terminal=True))
    assert cookie is not None and here.find(cookie) is not None
    passkey = new_passkey("ana", "laptop", "ava.test", b"c", b"k", 0)
    Passkeys(one.passkeys).add(passkey)
    Passkeys(two.passkeys).note_use(passkey, 3)
    with pytest.raises(Refused, match="may be a copy"):
        Passkeys(one.passkeys).note_use(passkey, 3)


async def test_a_server_answers_from_memory_and_finds_new_ones_all_the_same(
    roots: tuple[DataRoot, DataRoot], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = roots
    known, queries = TokenFile(one.tokens_file), list[str]()
    old = token(one.path, "ana")
    look = PostgresSharedFiles.newer

    def counted(self: PostgresSharedFiles, seen: dict[str, int]) -> dict[str, tuple[int, str]]:
        queries.append("look")
        return look(self, seen)

    monkeypatch.setattr(PostgresSharedFiles, "newer", counted)
    monkeypatch.setattr(shared_files, "FRESH_EVERY_S", 3_600.0)
    async with anyio.create_task_group() as tasks:
        await tasks.start(keep_fresh, one.path)
        queries.clear()
        assert all(known.find(old) is not None for _each in range(100)) and not queries
        new = token(two.path, "ben")
        assert known.known(new) is None, "this one asks nobody"
        queries.clear()
        assert known.find(new) is not None and known.known(new) is not None and queries == ["look"]
        monkeypatch.setattr(shared_files, "STALE_S", 0.0)
        with pytest.raises(ConfigError, match="has not answered"):
            known.known(old)
        tasks.cancel_scope.cancel()
    assert known.known(old) is not None, "without a server each call asks"


def at_once(count: int, what: Callable[[int], object]) -> list[object]:
    """Do something in several threads that begin together."""
    together = threading.Barrier(count)

    def one(number: int) -> object:
        together.wait(10)
        return what(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def test_a_one_time_code_is_redeemed_once_however_many_servers_try(roots: tuple[DataRoot, DataRoot]) -> None:
    both = [BrowserSessions(root.browser_sessions) for root in roots]
    for _again in range(5):
        code = both[0].issue_code("ana", terminal=True)
        cookies = at_once(6, lambda number, code=code: both[number % 2].redeem(code))  # type: ignore[misc]
        assert len([cookie for cookie in cookies if cookie is not None]) == 1


def test_no_token_is_lost_when_several_processes_make_some(roots: tuple[DataRoot, DataRoot]) -> None:
    at_once(12, lambda number: token(roots[number % 2].path, "ana", name=f"host-{'abcdefghijkl'[number]}"))
    assert len(read_tokens(roots[0].tokens_file)) == len(read_tokens(roots[1].tokens_file)) == 12


def test_the_pin_has_five_tries_over_all_servers(roots: tuple[DataRoot, DataRoot]) -> None:
    pins = [PinFile(root.approval_file) for root in roots]
    pins[0].set(PIN)

    def try_it(number: int) -> str:
        try:
            pins[number % 2].check("000001")
        except Refused as refused:
            return str(refused)
        return "accepted"

    said = [str(each) for each in at_once(TRIES + 3, try_it)]
    assert len([each for each in said if "not the PIN" in each]) == TRIES and "accepted" not in said
    with pytest.raises(Refused, match="locked"):
        pins[1].check(PIN)


def test_a_change_that_fails_changes_nothing_and_locks_nobody_out(roots: tuple[DataRoot, DataRoot]) -> None:
    one, two = shared_files_of(roots[0].path), shared_files_of(roots[1].path)
    assert one is not None and two is not None and one is not two
    one.change("tokens.toml", lambda _text: "a = 1\n")

    def fail(_text: str) -> str:
        raise Refused("no")

    with pytest.raises(Refused):
        one.change("tokens.toml", fail)
    two.change("tokens.toml", lambda text: text + "b = 2\n")
    assert one.state("tokens.toml") == two.state("tokens.toml") == (2, "a = 1\nb = 2\n")


def test_works_on_after_the_database_has_closed_its_connections(roots: tuple[DataRoot, DataRoot]) -> None:
    one, two = roots
    text = token(one.path, "ana")
    with psycopg.connect(postgres_server().url("postgres"), autocommit=True) as conn:
        conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ava'")
    assert TokenFile(one.tokens_file).find(text) is not None
    with psycopg.connect(postgres_server().url("postgres"), autocommit=True) as conn:
        conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ava'")
    assert len(read_tokens(two.tokens_file)) == 1 and token(one.path, "ben")


class Gone:
    """A database that takes its time to fail."""

    def __init__(self) -> None:
        self.asked = 0

    def newer(self, known: Mapping[str, int]) -> dict[str, tuple[int, str]]:
        self.asked += 1
        time.sleep(0.3)
        raise StoreUnavailable("gone")

    def take_over(self, texts: Mapping[str, str]) -> bool:
        raise StoreUnavailable("gone")

    def changed_text(self, name: str) -> str | None:
        return None

    def change(self, name: str, edit: Callable[[str], str]) -> tuple[int, str]:
        raise StoreUnavailable("gone")

    def close(self) -> None:
        pass


def test_a_flood_of_unknown_tokens_does_not_wait_for_a_dead_database_one_by_one(tmp_path: Path) -> None:
    gone = Gone()
    shared = shared_files.SharedFiles(tmp_path, gone)

    def look(_number: int) -> str:
        with pytest.raises(ConfigError) as error:
            shared.look_again()
        return str(error.value)

    said = at_once(20, look)
    assert gone.asked == 1 and len(set(map(str, said))) == 2


# -- limits of users --------------------------------------------------------------------------------------------------


def test_limits_of_users_are_shared_and_go_before_those_of_a_machine(roots: tuple[DataRoot, DataRoot]) -> None:
    one, two = roots
    one.config.write_text(one.config.read_text() + "[users.ana]\ndaily_cents = 5\nrunning = 1\n")
    assert change_users(two, {("users", "ana", "daily_cents"): 9, ("users", "ben", "running"): 3}) == [None, None]
    here, there = read_users(one), read_users(two)
    assert (here["ana"].daily_cents, here["ana"].running, here["ben"].running) == (9, 1, 3)
    assert (there["ana"].daily_cents, there["ana"].running, there["ben"].running) == (9, None, 3)
    (before,) = change_users(one, {("users", "ana"): None})
    assert before == {"daily_cents": 9, "running": 1}
    assert set(read_users(one)) == set(read_users(two)) == {"ben"}
    with pytest.raises(ConfigError, match="daily_cents"):
        change_users(one, {("users", "ana", "daily_cents"): -1})
    assert set(read_users(two)) == {"ben"}


def address_of(root: DataRoot) -> str:
    return root.config.read_text().split('"')[1]


def everything_in(address: str) -> str:
    """The whole database as text: each row of each table of each schema of ours."""
    tables = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    with psycopg.connect(address) as conn:
        parts = [(SQL("SELECT t::text FROM {}.{} AS t"), names) for names in conn.execute(tables).fetchall()]
        found = [str(row) for select, names in parts for (row,) in conn.execute(select.format(*map(Identifier, names)))]
    assert any("avatok" not in row and "sha256" in row for row in found), "the shared files were looked at"
    return "\n".join(found)

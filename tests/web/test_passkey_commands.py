"""`ava passkey` and `ava ui --sign-out`: only a person at a terminal lets somebody approve."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from support.pages.browser import PIN, open_pages, set_pin
from support.stdio import make_root, read_log
from support.terminal import CONTROLLED, ava, run_on_terminal

from ava_server.config.sign_in import BrowserSessions, Passkeys, new_passkey
from ava_server.core.data_root import DataRoot, os_user

HERE = os_user()


def typed(root: Path, *args: str, answers: tuple[tuple[str, str], ...] = ()) -> tuple[int, str]:
    """Run a command on a terminal that is also /dev/tty."""
    with run_on_terminal(root, *args, columns=300, command=CONTROLLED) as screen:
        return screen.ended_after(answers), screen.text


def sessions(root: Path) -> BrowserSessions:
    return BrowserSessions(DataRoot(root).browser_sessions)


def store(root: Path, name: str = "laptop", user: str = HERE) -> None:
    Passkeys(DataRoot(root).passkeys).add(new_passkey(user, name, "localhost", f"{user} {name}".encode(), b"key", 0))


def names(root: Path) -> list[str]:
    return [each.name for each in Passkeys(DataRoot(root).passkeys).all()]


def test_adding_and_removing_take_a_terminal_and_no_subagent(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    store(root)
    for args in (("add", "phone"), ("add", "phone", "--user", "ana"), ("remove", "laptop")):
        done = ava(root, "passkey", *args)
        assert done.returncode == 10 and "at a terminal" in done.stderr, done
        assert ava(root, "passkey", *args, env={"AVA_RUN_ID": "S-000001"}).returncode == 2
    assert names(root) == ["laptop"] and not DataRoot(root).browser_sessions.exists()


def test_prints_a_code_for_a_user_over_http(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    code, text = typed(root, "passkey", "add", "phone", "--user", "ana")
    found = re.findall(r"^([A-Za-z0-9_-]{43})\s*$", text, re.MULTILINE)
    assert code == 0 and len(found) == 1
    assert found[0] not in DataRoot(root).browser_sessions.read_text()
    assert sessions(root).passkey_code(found[0], "ben") is None and sessions(root).find(found[0]) is None
    assert sessions(root).redeem(found[0]) is None
    stands = sessions(root).take_passkey_code(found[0], "ana")
    assert stands is not None and stands.name == "phone" and sessions(root).take_passkey_code(found[0], "ana") is None


@pytest.mark.slow
def test_opens_the_page_on_this_machine(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with open_pages(root) as there:
        code, text = typed(root, "passkey", "add", "laptop", "--no-browser")
        assert code == 0 and f"{there.base}/enter?code=" in text, text
    found = re.search(r"http://localhost:\d+/enter\?\S+", text)
    assert found is not None
    given = parse_qs(urlsplit(found[0]).query)
    page = urlsplit(given["to"][0])
    stands = sessions(root).passkey_code(parse_qs(page.query)["code"][0], HERE)
    assert page.path == "/passkeys/new" and stands is not None and stands.name == "laptop"
    cookie = sessions(root).redeem(given["code"][0])
    assert cookie is not None and (session := sessions(root).find(cookie)) is not None and session.terminal


@pytest.mark.slow
def test_asks_for_the_pin_where_one_is_set(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    store(root)
    set_pin(root)
    for args in (("add", "phone", "--user", "ana"), ("remove", "laptop")):
        code, text = typed(root, "passkey", *args, answers=(("Approval PIN", "000000"),))
        assert code == 10 and "not the PIN" in text and names(root) == ["laptop"]
        assert typed(root, "passkey", *args, answers=(("Approval PIN", PIN),))[0] == 0
    assert names(root) == []


def test_lists_and_removes_by_user(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    assert "No passkeys" in ava(root, "passkey", "list").stdout
    store(root)
    store(root, user="ana")
    shown = json.loads(ava(root, "passkey", "list", "--json").stdout)["passkeys"]
    assert [(each["name"], each["user"], each["host"], each["used"]) for each in shown] == [
        ("laptop", user, "localhost", None) for user in sorted(("ana", HERE))
    ]
    assert "never used" in ava(root, "passkey", "list").stdout
    assert typed(root, "passkey", "remove", "laptop", "--user", "ben")[0] == 2
    assert typed(root, "passkey", "remove", "laptop", "--user", "ana")[0] == 0
    assert [each.user for each in Passkeys(DataRoot(root).passkeys).all()] == [HERE]
    (removed,) = read_log(root, "SettingsChanged")
    assert removed.content["setting"] == "passkeys.laptop" and removed.content["before"]["user"] == "ana"


def test_a_removed_users_passkeys_count_for_no_new_user_of_that_name(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    set_pin(root)
    store(root, "laptop", "ana")
    store(root, "laptop", "ben")
    taken = ava(root, "user", "add", "ana", "--scope", "read")
    assert taken.returncode == 2 and "There is a user ana already" in taken.stderr, taken
    refused = ava(root, "user", "remove", "ana")
    assert refused.returncode == 10 and "at a terminal" in refused.stderr and len(names(root)) == 2
    code, text = typed(root, "user", "remove", "ana", answers=(("Approval PIN", PIN),))
    assert code == 0 and "Passkey laptop of ana is removed" in text
    assert [each.user for each in Passkeys(DataRoot(root).passkeys).all()] == ["ben"]
    (removed,) = read_log(root, "SettingsChanged")
    assert removed.content["setting"] == "passkeys.laptop" and "after" not in removed.content
    assert ava(root, "user", "add", "ana", "--scope", "read").returncode == 0


@pytest.mark.parametrize("name", ["", "1", "a b", "../x", "x" * 65])
def test_refuses_a_name_that_is_none(tmp_path: Path, name: str) -> None:
    root = make_root(tmp_path / "data")
    assert ava(root, "passkey", "add", name).returncode == 2


def test_sign_out_ends_all_sessions_and_codes(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    cookies = [sessions(root).open(HERE), sessions(root).open("ana", token="0123456789ab")]
    code = sessions(root).issue_code(HERE, terminal=True)
    done = ava(root, "ui", "--sign-out")
    assert done.returncode == 0 and "Signed out 2 browsers" in done.stdout
    assert all(sessions(root).find(cookie) is None for cookie in cookies) and sessions(root).redeem(code) is None
    assert "Signed out 0 browsers" in ava(root, "ui", "--sign-out").stdout
    assert not DataRoot(root).pages_lock.exists()

"""What a command in a sandbox tries, and does not get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from support.sandboxes.attacks import ATTACKS, CONFINED, REACHES, attack, needs, sandbox, why_unavailable
from support.sandboxes.plain_user import PLAIN, plain_python

from ava_roles.sandbox import linux, selection
from ava_roles.sandbox.sandbox import STRENGTH, Kind, Unavailable
from ava_roles.sandbox.selection import find_sandbox, probe_sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are confined on Linux alone")

SUPPORT = Path(__file__).parents[1] / "support"
NOT_FOR_ORDINARY_USERS = {"is root", "changes the kernel's settings"}


def test_every_attack_succeeds_without_a_sandbox(tmp_path: Path) -> None:
    """Else the tests below would show nothing."""
    found = attacked("none", tmp_path / "none")
    closed = {name for name, outcome in found.items() if outcome != "OPEN"}
    assert closed <= (set() if linux.is_root() else NOT_FOR_ORDINARY_USERS), found


@pytest.mark.slow
def test_no_attack_succeeds_in_a_sandbox(confined: Kind, tmp_path: Path) -> None:
    found = attacked(confined, tmp_path / confined)
    assert set(found) == set(ATTACKS)
    assert [name for name, outcome in found.items() if outcome == "OPEN"] == [], found


def test_every_attack_of_an_ordinary_user_succeeds_without_a_sandbox(for_all: Path) -> None:
    found = attacked_as_plain("none", for_all)
    assert {name for name, outcome in found.items() if outcome != "OPEN"} <= NOT_FOR_ORDINARY_USERS, found


def test_no_attack_succeeds_in_the_sandbox_of_an_ordinary_user(confined: Kind, for_all: Path) -> None:
    found = attacked_as_plain(confined, for_all)
    assert set(found) == set(ATTACKS)
    assert [name for name, outcome in found.items() if outcome == "OPEN"] == [], found


def test_no_attack_of_an_ordinary_user_succeeds_beside_a_local_server(for_all: Path) -> None:
    needs("bubblewrap")
    found = attacked_as_plain("local", for_all)
    assert [name for name, outcome in found.items() if outcome == "OPEN"] == [REACHES], found


def test_the_probe_detects_what_an_unconfined_command_can_do(tmp_path: Path) -> None:
    fault = probe_sandbox(sandbox("none", tmp_path), tmp_path)
    assert fault is not None
    for what in ("reads a file of the server's user", "writes outside", "reaches the network", "reaches a socket"):
        assert what in fault


def test_the_probe_accepts_a_sandbox_that_blocks_everything(confined: Kind, tmp_path: Path) -> None:
    assert probe_sandbox(sandbox(confined, tmp_path), tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_selects_the_strongest_working_sandbox_and_probes_only_once(tmp_path: Path) -> None:
    found = find_sandbox("auto", tmp_path)
    possible = [kind for kind in CONFINED if why_unavailable(kind) is None]
    if not possible:
        assert isinstance(found, Unavailable)
        pytest.skip("nothing confines here")
    assert not isinstance(found, Unavailable), found
    assert found.kind == possible[0]
    assert STRENGTH[found.kind] == max(STRENGTH[kind] for kind in possible)
    assert find_sandbox("auto", tmp_path) is found


def test_falls_back_to_landlock_without_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("landlock")
    monkeypatch.setattr(selection, "_PROGRAMS", str(tmp_path))
    found = find_sandbox("auto", tmp_path)
    assert not isinstance(found, Unavailable), found
    assert found.kind == "landlock"


@pytest.mark.parametrize("abi", [0, 2])
def test_says_what_to_do_when_neither_bubblewrap_nor_landlock_works(
    abi: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_PROGRAMS", str(tmp_path))
    monkeypatch.setattr(linux, "landlock_abi", lambda: abi)
    found = find_sandbox("auto", tmp_path)
    assert isinstance(found, Unavailable)
    assert "it is not installed" in found.why
    assert ("version 2 of it" if abi else "the kernel has none") in found.why
    assert "apt install bubblewrap" in found.what_to_do


@pytest.mark.parametrize("platform", ["win32", "darwin"])
@pytest.mark.parametrize("mode", ["auto", "none"])
def test_no_sandbox_is_available_on_other_systems(
    mode: Literal["auto", "none"], platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    found = find_sandbox(mode, tmp_path)
    assert isinstance(found, Unavailable)
    assert "Linux" in found.why


def test_turns_the_sandbox_off_only_on_explicit_request(tmp_path: Path) -> None:
    found = find_sandbox("none", tmp_path)
    assert not isinstance(found, Unavailable)
    assert found.kind == "none"


async def test_a_server_hides_its_memory_and_environment_from_its_own_user(for_all: Path) -> None:
    found = (sys.executable, os.pathsep.join(sys.path)) if not linux.is_root() else plain_python()
    if found is None:
        pytest.skip("no interpreter here that an ordinary user may run")
    user: dict[str, Any] = {"user": PLAIN, "group": PLAIN, "extra_groups": ()} if linux.is_root() else {}
    env = {"PYTHONPATH": found[1], "AVA_DATA_ROOT": str(for_all / "data"), "OPENROUTER_API_KEY": "a-key"}
    process = await anyio.open_process([found[0], "-B", "-m", "ava_server", "serve"], env=env, cwd="/", **user)
    try:
        with anyio.fail_after(20):
            environment = anyio.Path(f"/proc/{process.pid}/environ")
            while (await environment.stat()).st_uid != 0:  # noqa: ASYNC110 - as what hides itself seems to be
                await anyio.sleep(0.02)
        look = await anyio.run_process(["cat", f"/proc/{process.pid}/environ"], check=False, **user)
    finally:
        process.kill()
        await process.aclose()
    assert look.stdout == b""
    assert b"Permission denied" in look.stderr


@pytest.mark.skipif(not linux.is_root(), reason="needs root")
def test_finds_no_sandbox_for_root_without_the_right_to_mount(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ava_roles.sandbox.selection import find_sandbox\n"
        "found = find_sandbox('auto', Path(sys.argv[1])); print(found.why); print(found.what_to_do)"
    )
    done = subprocess.run(
        ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", code, str(tmp_path)],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    why, what_to_do = done.stdout.splitlines()
    assert "bubblewrap: " in why
    assert "Landlock: the command could not be run: unshare: Operation not permitted" in why
    assert "ordinary user" in what_to_do or "install bubblewrap" in what_to_do


def attacked(kind: Kind, folder: Path) -> dict[str, str]:
    """What each attack comes to, in commands of this user."""
    folder.mkdir()
    return anyio.run(attack, kind, folder)


def attacked_as_plain(kind: Kind | Literal["local"], state: Path) -> dict[str, str]:
    """What each attack comes to where the server is an ordinary user's."""
    if not linux.is_root():
        pytest.skip("this is an ordinary user already")
    if linux.landlock_abi() < 6 and kind == "landlock":
        pytest.skip("the kernel's Landlock cannot keep signals from processes of the same user")
    found = plain_python()
    if found is None:
        pytest.skip("no interpreter here that an ordinary user may run")
    done = subprocess.run(
        [found[0], "-B", str(SUPPORT / "sandboxes" / "attacks.py"), str(PLAIN), str(state), kind],
        env={"PYTHONPATH": found[1]}, cwd="/", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout)
    return result

"""`ava ui`: the pages of this machine open for its user alone, on every machine and after every kind of end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from support.processes import lives
from support.repositories.projects import checkout, write
from support.sandboxes.plain_user import PLAIN
from support.stdio import make_root
from support.terminal import ava

from ava_server.core.background import pages_server
from ava_server.core.data_root import DataRoot

pytestmark = pytest.mark.slow

OPENING = re.compile(r"http://localhost:(\d+)/enter\?code=(\S+)")


@pytest.fixture
def ui(tmp_path: Path) -> Generator[Ui]:
    there = Ui(tmp_path / "data")
    try:
        yield there
    finally:
        end(there)


# -- opening ----------------------------------------------------------------------------------------------------------


def test_a_machine_without_a_data_root_gets_one_and_two_windows(ui: Ui) -> None:
    first = ui.opened()
    assert stat.S_IMODE(ui.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(ui.root.worker_words.stat().st_mode) == 0o600
    pid = ui.process
    second = ui.opened()
    assert ui.process == pid and port_of(first) == port_of(second), "the server runs already"
    with visit(first) as one, visit(second) as other:
        for browser in (one, other):
            assert browser.get(home(first)).status_code == 200
    with visit(first) as used:
        assert used.get(home(first)).url.path == "/sign-in", "an address works once"


def test_two_windows_at_once_are_served_by_one_server(ui: Ui) -> None:
    with ThreadPoolExecutor(2) as people:
        first, second = people.map(lambda _number: ui.opened(), range(2))
    assert port_of(first) == port_of(second) == int(ui.record[0])
    with visit(first) as one, visit(second) as other:
        assert one.get(home(first)).status_code == other.get(home(first)).status_code == 200


def test_the_default_browser_opens(ui: Ui, tmp_path: Path) -> None:
    program, opened = tmp_path / "browser", tmp_path / "opened"
    program.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    program.chmod(0o700)
    done = ui(BROWSER=str(program))
    assert "in your browser" in done.stdout
    until(opened.exists)
    assert OPENING.fullmatch(opened.read_text().strip())


def test_without_a_browser_the_address_is_shown(ui: Ui) -> None:
    said = ui().stdout
    assert "in a browser on this machine" in said and OPENING.search(said)
    assert "ssh" not in said
    assert said.startswith(f"Data root: {ui.path}\n"), "as the other commands say it where it is not the default one"


@pytest.mark.parametrize(("port", "option"), [("22", ""), ("2222", "-p 2222 ")])
def test_over_ssh_the_command_that_forwards_the_port_is_shown(ui: Ui, port: str, option: str) -> None:
    said = ui(SSH_CONNECTION=f"192.0.2.7 50000 192.0.2.1 {port}", USER="ana", LOGNAME="ana").stdout
    served = ui.record[0]
    assert f"ssh {option}-L {served}:localhost:{served} ana@192.0.2.1" in said


def test_another_server_is_opened_by_its_address_without_a_code(ui: Ui) -> None:
    for args, env in ((("--url", "https://ava.example.org/mcp"), {}), ((), {"AVA_URL": "https://ava.example.org"})):
        done = ui("--no-browser", *args, **env)
        assert done.returncode == 0, done.stderr
        assert "Open https://ava.example.org in a browser, and sign in with your token." in done.stdout
        assert "code=" not in done.stdout and "Data root" not in done.stdout
    before = ava(ui.path, "--url", "https://ava.example.org", "ui", "--no-browser")
    assert "https://ava.example.org" in before.stdout
    assert not ui.path.exists(), "nothing is started or made here"
    for url in ("nonsense", "http://ava.example.org", "https://name:secret@ava.example.org"):
        refused = ui("--no-browser", "--url", url)
        assert refused.returncode == 2 and "--url" in refused.stderr
    refused = ui("--sign-out", "--url", "https://ava.example.org")
    assert refused.returncode == 2 and "this machine's data root" in refused.stderr


def test_sign_out_ends_every_session_and_code(ui: Ui) -> None:
    used, unused = ui.opened(), ui.opened()
    with visit(used) as browser:
        assert browser.get(home(used)).status_code == 200
        assert "Signed out 1 browser." in ui("--sign-out").stdout
        assert browser.get(home(used)).url.path == "/sign-in"
    with visit(unused) as late:
        assert late.get(home(used)).url.path == "/sign-in"
    assert "Signed out 0 browsers." in ui("--sign-out").stdout


def test_wrong_settings_are_reported_before_a_server_starts(ui: Ui) -> None:
    make_root(ui.path, config_toml='approval = "perhaps"\n')
    began = time.monotonic()
    done = ui("--no-browser")
    assert done.returncode == 30 and "approval" in done.stderr
    assert time.monotonic() - began < 15 and not ui.root.worker_words.exists()


# -- the server -------------------------------------------------------------------------------------------------------


@contextmanager
def stranger() -> Generator[int]:
    """A program that listens on a port of both addresses of this machine."""
    with ExitStack() as held:
        one = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        with suppress(OSError):
            held.enter_context(socket.create_server(("::1", one.getsockname()[1]), family=socket.AF_INET6))
        yield one.getsockname()[1]


def test_a_port_that_another_program_has_is_left_to_it(ui: Ui) -> None:
    make_root(ui.path)
    with stranger() as taken:
        ui.root.pages_port.write_text(f"{taken} 1\n")
        address = ui.opened()
        assert port_of(address) != taken
        with visit(address) as browser:
            assert browser.get(home(address)).status_code == 200


def test_a_server_of_an_older_version_is_replaced_on_its_port(ui: Ui) -> None:
    address = ui.opened()
    port, pid, version = ui.record
    with visit(address) as page:
        ui.root.worker_process.write_text(f"{pid} 0.0.1\n")
        ui.opened()
        before = ui.process
        assert ui.record[0] == port and ui.record[2] == version and before != int(pid)
        until(lambda: not lives(int(pid)))
        assert page.get(home(address)).status_code == 200, "an open page goes on"
        ui.root.worker_process.write_text(f"{before} 99.0\n")
        ui.opened()
        assert ui.process == before, "a newer one stays"


def test_a_server_that_crashed_comes_back_on_its_port(ui: Ui) -> None:
    address, began = ui.opened(), time.monotonic()
    before = ui.process
    with visit(address) as page:
        time.sleep(max(0.0, began + 11 - time.monotonic()))  # one that ends sooner is not started again
        os.kill(before, signal.SIGKILL)
        until(lambda: pages_server(ui.root).port() is not None and ui.process != before)
        assert page.get(home(address)).status_code == 200


def test_a_server_that_was_killed_soon_is_started_by_the_next_command_on_its_port(ui: Ui) -> None:
    address = ui.opened()
    os.kill(ui.process, signal.SIGKILL)
    until(lambda: pages_server(ui.root).port() is None)
    assert port_of(ui.opened()) == port_of(address)


def test_sigterm_ends_the_server_for_good(ui: Ui) -> None:
    address = ui.opened()
    pid = ui.process
    with visit(address) as page, page.stream("GET", f"{home(address)}/stream"):
        os.kill(pid, signal.SIGTERM)
        until(lambda: not lives(pid))
    assert pages_server(ui.root).port() is None
    words = ui.root.worker_words.read_text()
    assert "Traceback" not in words and "code=" not in words


def test_a_server_whose_data_root_is_removed_ends(ui: Ui) -> None:
    ui.opened()
    pid = ui.process
    shutil.rmtree(ui.path)
    until(lambda: not lives(pid))
    assert not ui.path.exists()


def test_doctor_says_whether_the_pages_are_served(ui: Ui) -> None:
    make_root(ui.path)
    assert "`ava ui`" not in ava(ui.path, "doctor", "--all").stdout
    ui.opened()
    assert "the server of `ava ui` runs" in ava(ui.path, "doctor", "--all").stdout
    end(ui)
    assert "the server of `ava ui` is not running" in ava(ui.path, "doctor", "--all").stdout


# -- other users of this machine --------------------------------------------------------------------------------------

ASK = """
import sys, urllib.error, urllib.request
address, cookie = sys.argv[1:]
request = urllib.request.Request(address, headers={"Accept": "text/html", **({"Cookie": cookie} if cookie else {})})
try:
    print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20).status)
except urllib.error.HTTPError as refused:
    print(refused.code)
"""


PYTHON = Path("/usr/bin/python3")
"""The system's own: another user may not be able to run ours."""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux acts as another user")
@pytest.mark.skipif(not PYTHON.exists(), reason="the system has no Python of its own")
def test_another_user_with_the_code_or_the_cookie_gets_nothing(ui: Ui) -> None:
    def asked(address: str, cookie: str = "") -> str:
        done = subprocess.run(
            [PYTHON, "-c", ASK, address, cookie], user=PLAIN, group=PLAIN, extra_groups=(), env={}, cwd="/",
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout.strip() or done.stderr

    address = ui.opened()
    assert asked(address) == "403"
    with visit(address) as own:
        assert own.get(home(address)).status_code == 200, "the other user's attempt has not used the code up"
        [cookie] = own.cookies.jar
        with_cookie = f"{cookie.name}={cookie.value}"
        for path in ("", "/sign-in", "/subagents", "/static/ava.css", "/stream"):
            for port in (home(address), home(address).replace("localhost", "127.0.0.1")):
                assert asked(port + path, with_cookie) == "403", path
        assert own.get(home(address)).status_code == 200


def test_opens_the_address_with_no_program_of_the_project(ui: Ui, tmp_path: Path) -> None:
    folder = checkout(tmp_path / "project", {"README.md": "x\n"})
    names = ("xdg-open", "xdg-settings", "x-www-browser", "firefox", "google-chrome", "chromium", "www-browser", "w3m")
    write(folder / "bin", dict.fromkeys(names, f"#!/bin/sh\necho \"$@\" >> '{tmp_path}/ran'\n"))
    env = {"DISPLAY": ":99", "PATH": f"{folder / 'bin'}{os.pathsep}{os.defpath}", "BROWSER": ""}
    done = ava(ui.path, "ui", cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists(), "it would have had the address, which signs whoever opens it in"


@dataclass
class Ui:
    """`ava ui` on a data root."""

    path: Path

    @property
    def root(self) -> DataRoot:
        return DataRoot(self.path)

    def __call__(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        done = ava(self.path, "ui", *args, env=env)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def opened(self, **env: str) -> str:
        """Return the address that it shows."""
        done = self("--no-browser", **env)
        assert done.returncode == 0, done.stderr
        found = OPENING.search(done.stdout)
        assert found is not None, done.stdout
        return found[0]

    @property
    def record(self) -> list[str]:
        """The port, the process and the version of the server."""
        return self.root.pages_port.read_text().split()

    @property
    def process(self) -> int:
        return int(self.record[1])


def end(there: Ui) -> None:
    """End the server, if one runs; of two that began at once, the other one follows it for a moment."""

    def gone() -> bool:
        if pages_server(there.root).port() is None:
            return True
        with suppress(OSError, IndexError, ValueError):  # its record is being written
            os.kill(there.process, signal.SIGTERM)
        return False

    if there.path.exists():
        until(gone)


def until(found: Callable[[], object], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def visit(address: str) -> Generator[httpx2.Client]:
    """Open an address in a browser."""
    headers = {"Accept": "text/html"}
    with httpx2.Client(follow_redirects=True, headers=headers, timeout=20, trust_env=False) as browser:
        browser.get(address)
        yield browser


def port_of(address: str) -> int:
    found = re.search(r":(\d+)", address)
    assert found is not None
    return int(found[1])


def home(address: str) -> str:
    return address.partition("/enter")[0]

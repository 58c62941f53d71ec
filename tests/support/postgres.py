"""A real Postgres server for the tests of one process: of its own, in a temporary folder, durable as in earnest."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

USER = "ava"
UNPRIVILEGED = ("postgres", "nobody")
START_S = 120
CONFIG = """
listen_addresses = '127.0.0.1'
fsync = on
shared_buffers = 16MB
max_connections = 100
autovacuum_naptime = 5s
"""


def programs() -> Path | None:
    """The folder of the server's programs, None where they are not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []  # a link may name this one program alone
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def why_missing() -> str | None:
    """Why there is no server here, None if there is one."""
    if programs() is None:
        return "no Postgres here: apt-get install postgresql"
    if sys.platform != "linux":
        return "the server of the tests is started on Linux only"
    return None


@dataclass
class PostgresServer:
    """A server that runs until `stop`, and the databases that tests have on it."""

    folder: Path
    port: int
    password: str
    bin: Path
    _process: subprocess.Popen[bytes] | None = None
    _used: dict[Path, str] = field(default_factory=dict)
    _free: list[str] = field(default_factory=list)
    _made: int = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @classmethod
    def make(cls) -> PostgresServer:
        bin_folder = programs()
        assert bin_folder is not None
        server = cls(Path(tempfile.mkdtemp(prefix="ava-pg-")), free_port(), secrets.token_hex(8), bin_folder)
        _give(server.folder)
        secret = server.folder / "password"
        secret.write_text(server.password)
        _give(secret)
        command: list[str | Path] = [bin_folder / "initdb", "-D", server.data, "-U", USER, "--auth-local", "trust"]
        subprocess.run(
            [*command, "--auth-host", "scram-sha-256", "--pwfile", secret, "-E", "UTF8", "--locale", "C.UTF-8"],
            check=True, capture_output=True, timeout=60, cwd=server.folder, **_account(),
        )  # fmt: skip
        with (server.data / "postgresql.conf").open("a") as file:
            file.write(f"{CONFIG}port = {server.port}\nunix_socket_directories = '{server.folder}'\n")
        server.start()
        return server

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.data],
                stdout=log, stderr=log, cwd=self.folder, preexec_fn=_die_with_parent, **_account(),
            )  # fmt: skip
        end = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT is a fast shutdown, SIGQUIT an immediate one, as in a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_S)
            self._process = None

    def folder_of_its_own(self, name: str) -> Path:
        """A folder beside its data that it may write to; an existing one is given to it with all that is in it."""
        path = self.folder / name
        path.mkdir(mode=0o700, exist_ok=True)
        _give(path)
        return path

    def configure(self, *lines: str) -> None:
        """Add settings, which count from the next start on."""
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, *, user: str = USER, password: str | None = None, tcp: bool = False) -> str:
        """The address of a database, over the socket in the folder or over loopback."""
        host = "127.0.0.1" if tcp else str(self.folder).replace("/", "%2F")
        return f"postgresql://{user}:{password or self.password}@{host}:{self.port}/{database}"

    def database(self, root: Path) -> str:
        """The address of a database for a data root: made when it is first asked for."""
        root = root.resolve()
        if root not in self._used:
            if not self._free:
                self._made += 1
                name = f"t_{self._made}"
                with psycopg.connect(self.url("postgres"), autocommit=True) as conn:
                    conn.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
                self._free.append(name)
            self._used[root] = self._free.pop()
        return self.url(self._used[root])

    def address(self, root: Path) -> str:
        """The same without the password, as settings have it: this machine needs none."""
        return self.database(root).replace(f":{self.password}@", "@")

    def empty_databases(self) -> None:
        """Empty the databases that tests have used, for the next ones: dropping one takes a checkpoint."""
        for name in self._used.values():
            with psycopg.connect(self.url("postgres"), autocommit=True) as conn:
                conn.execute(SQL("ALTER DATABASE {} RESET ALL").format(Identifier(name)))
                conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            with psycopg.connect(self.url(name), autocommit=True) as conn:
                conn.execute("DROP SCHEMA IF EXISTS ava CASCADE")
            self._free.append(name)
        self._used.clear()


@functools.cache
def postgres_server() -> PostgresServer:
    """The server of this process, started when it is first needed; skips the test where there is none."""
    why = why_missing()
    if why is not None:
        pytest.skip(why)
    server = PostgresServer.make()
    atexit.register(server.remove)
    return server


def _account() -> dict[str, Any]:
    """Under which account the server runs: it refuses root."""
    if os.geteuid() != 0:
        return {}
    name = next(name for name in UNPRIVILEGED if _known(name))
    account = pwd.getpwnam(name)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _known(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _give(path: Path) -> None:
    account = _account()
    if account:
        for each in (path, *path.rglob("*")):
            os.chown(each, account["user"], account["group"])


def free_port() -> int:
    """Return a port that no program uses.

    Systems give connections ports from 32768 on. One below that is still free after a server that used it was killed.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)

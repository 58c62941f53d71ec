"""A server of this data root that listens on this machine only, and that another process starts on demand.

The server holds a lock in the data root and records its port there. Another user could listen on a port that no server
of ours uses: only the lock proves which process listens.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ava_audit.store.locks import hold_within, try_hold
from ava_server import MODULE_ARGS
from ava_server.core.data_root import DataRoot
from ava_server.core.detached import start_detached
from ava_server.core.errors import ConfigError

READY_S = 8.0
"""Claude Code waits ten seconds for the command that starts a server."""
PAGES_PORT = 8643
"""The first port that the server of `ava ui` tries."""
PAGES_IDLE = "30m"
"""After so long without an open page it ends."""
TRY_FOR_S = 1.0
"""Seconds for which a server tries its lock: a command that looks for a server holds it for a moment."""


@dataclass(frozen=True)
class LocalServer:
    """One kind of server of a data root.

    Attributes:
        root: The data root.
        lock: The file that the server locks.
        port_file: The file with its port and its process.
        output: The file for its standard error, when another process has started it.
        what: What it is, for errors.
    """

    root: DataRoot
    lock: Path
    port_file: Path
    output: Path
    what: str

    def port(self) -> int | None:
        """Return the port of the server that runs, or None. Blocking."""
        held = try_hold(self.lock)
        if held is not None:
            held.release()
            return None
        return self.last_port()

    def last_port(self) -> int | None:
        """Return the port that was recorded last, by a server that may have ended; None if there is none. Blocking."""
        try:
            return int(self.port_file.read_text("ascii").split()[0])
        except (OSError, ValueError, IndexError):  # it is just beginning
            return None

    @contextmanager
    def announced(self, port: int, *, keep: bool = False) -> Generator[None]:
        """Record that this process serves on this port, if it is the first one. Blocking.

        Args:
            port: The port.
            keep: Leave the record behind, so that the next server can use the same port.
        """
        held = hold_within(self.lock, TRY_FOR_S)
        if held is None:
            yield
            return
        with held:
            self.port_file.write_text(f"{port} {os.getpid()}\n", "ascii")
            try:
                yield
            finally:
                if not keep:
                    self.port_file.unlink(missing_ok=True)

    def start(self, options: Sequence[str], port: int | None = None) -> int:
        """Start the server as a process of its own, unless it runs, and return its port. Blocking.

        Args:
            options: What follows `ava`.
            port: The port that it has to have; None accepts any.

        Raises:
            ConfigError: It cannot be started, or runs on another port.
        """
        started = False
        end = time.monotonic() + READY_S
        while True:
            serving = self.port()
            if serving is not None and port in (None, serving):
                return serving
            if serving is not None:
                raise ConfigError(
                    f"{self.what} of {self.root.path} uses port {serving}, not {port}; run `ava init` again"
                )
            if not started:
                self._launch(options)
                started = True
            if time.monotonic() > end:
                raise ConfigError(f"{self.what} did not start within {READY_S:.0f} s; see {self.output}")
            time.sleep(0.05)

    def _launch(self, options: Sequence[str]) -> None:
        env = {**os.environ, "AVA_DATA_ROOT": str(self.root.path)}
        try:
            start_detached((sys.executable, *MODULE_ARGS, *options), self.output, self.root.path, env, keep=True)
        except OSError as error:
            raise ConfigError(f"{self.what} cannot be started: {error}") from error


def pages_server(root: DataRoot) -> LocalServer:
    """Return the server of `ava ui`: the pages, for this user of this machine alone."""
    return LocalServer(root, root.pages_lock, root.pages_port, root.pages_words, "the server of `ava ui`")


def start_pages(root: DataRoot) -> str:
    """Start the server of `ava ui` unless it runs, and return its address. Blocking.

    It takes the port of the last one if that is free, so that open pages find it again.

    Raises:
        ConfigError: It cannot be started.
    """
    root.create()
    server = pages_server(root)
    port = server.last_port() or PAGES_PORT
    port = server.start(("serve", "--http", "--pages", "--port", str(port), "--idle", PAGES_IDLE))
    return f"http://localhost:{port}"

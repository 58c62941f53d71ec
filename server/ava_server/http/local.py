"""The HTTP server of one data root for hosts on this machine, which they start before they connect.

A host knows only a URL. Claude Code runs a command before it connects (`headersHelper`), and sends what that prints:
here the command starts the server unless it runs, and prints its token. The token is in no configuration file.

Another user could listen on the port while the server does not run. So the command prints the token only while a
process holds the lock in the data root and has recorded that very port: that process listens there.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from ava_audit.store.locks import hold_within, try_hold
from ava_server import MODULE_ARGS
from ava_server.config import tokens
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.detached import start_detached
from ava_server.core.errors import ConfigError
from ava_server.core.files import create_file

READY_S = 8.0
"""Claude Code waits ten seconds for the command."""
TRY_FOR_S = 1.0
"""Seconds for which the server tries its lock: a command that looks for a server holds it for a moment."""
LOCK_S = 5.0
"""Seconds for which a command waits for another one that makes the token."""
IDLE = "12h"
"""After so long without a request and without an open stream, the server ends."""
NAMED = "local"
"""How the names of its tokens begin."""


def start(root: DataRoot, port: int) -> None:
    """Start this data root's server on a port, unless it runs. Blocking.

    Raises:
        ConfigError: It cannot be started, or serves on another port.
    """
    started = False
    end = time.monotonic() + READY_S
    while (serving := port_of(root)) != port:
        if serving is not None:
            raise ConfigError(f"the HTTP server of {root.path} uses port {serving}, not {port}; run `ava init` again")
        if not started:
            command = (sys.executable, *MODULE_ARGS, "serve", "--http", "--port", str(port), "--idle", IDLE)
            env = {**os.environ, "AVA_DATA_ROOT": str(root.path)}
            try:
                start_detached(command, root.http_words, root.path, env, keep=True)
            except OSError as error:
                raise ConfigError(f"the HTTP server cannot be started: {error}") from error
            started = True
        if time.monotonic() > end:
            raise ConfigError(f"the HTTP server did not start within {READY_S:.0f} s; see {root.http_words}")
        time.sleep(0.05)


@contextmanager
def announced(root: DataRoot, port: int) -> Generator[None]:
    """Let `start` know that this process serves the data root on this port; only the first one does. Blocking."""
    held = hold_within(root.http_lock, TRY_FOR_S)
    if held is None:
        yield
        return
    with held:
        root.http_port.write_text(f"{port} {os.getpid()}\n", "ascii")
        try:
            yield
        finally:
            root.http_port.unlink(missing_ok=True)


def port_of(root: DataRoot) -> int | None:
    """Return the port on which a living process serves the data root, or None."""
    held = try_hold(root.http_lock)
    if held is not None:
        held.release()
        return None
    try:
        return int(root.http_port.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):  # it is just beginning or ending
        return None


def token(root: DataRoot) -> tuple[str, tokens.Token | None]:
    """Return the token of this machine's hosts, and what is stored of it if it was made just now. Blocking.

    Of several hosts that start at once, one makes it.

    Raises:
        ConfigError: Its file cannot be read or written.
    """
    root.create()
    held = hold_within(root.local_token_lock, LOCK_S)
    if held is None:
        raise ConfigError(f"another `ava connect` has held {root.local_token_lock} for {LOCK_S:.0f} s; try again")
    with held:
        return _token(root)


def _token(root: DataRoot) -> tuple[str, tokens.Token | None]:
    try:
        text = root.local_token.read_text("ascii").strip()
    except FileNotFoundError:
        text = ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"{root.local_token} cannot be read: {error}") from error
    if text and tokens.Tokens(root.tokens_file).find(text) is not None:
        return text, None
    name = f"{NAMED}-{secrets.token_hex(3)}"
    made, text = tokens.create_token(root.tokens_file, name, os_user(), ("spawn", "read"), None)
    root.local_token.unlink(missing_ok=True)
    create_file(root.local_token, f"{text}\n".encode(), 0o600)
    return text, made

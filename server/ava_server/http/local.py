"""The HTTP server of one data root for hosts on this machine, which they start before they connect.

A host knows only a URL. Claude Code runs a command before it connects (`headersHelper`), and sends what that prints:
here the command starts the server unless it runs, and prints its token. The token is in no configuration file.

Another user could listen on the port while the server does not run. So the command prints the token only while a
process holds the lock in the data root and has recorded that very port: that process listens there.
"""

from __future__ import annotations

import secrets

from ava_audit.store.locks import hold_within
from ava_server.config import tokens
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.errors import ConfigError
from ava_server.core.files import create_file
from ava_server.core.local_server import LocalServer

LOCK_S = 5.0
"""Seconds for which a command waits for another one that makes the token."""
IDLE = "12h"
"""After so long without a request and without an open stream, the server ends."""


def server_of(root: DataRoot) -> LocalServer:
    """Return the HTTP server of a data root."""
    return LocalServer(root, root.http_lock, root.http_port, root.http_words, "the HTTP server")


def start(root: DataRoot, port: int) -> None:
    """Start this data root's server on a port, unless it runs. Blocking.

    Raises:
        ConfigError: It cannot be started, or serves on another port.
    """
    server_of(root).start(("serve", "--http", "--port", str(port), "--idle", IDLE), port)


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
    name = f"{tokens.OF_THIS_MACHINE}{secrets.token_hex(3)}"
    made, text = tokens.create_token(root.tokens_file, name, os_user(), ("spawn", "read"), None)
    root.local_token.unlink(missing_ok=True)
    create_file(root.local_token, f"{text}\n".encode(), 0o600)
    return text, made

"""The servers of engines by name, each started on demand."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from support.engines import nats, temporal

Engine = nats.NatsServer | temporal.TemporalServer
KINDS = ("none", "nats", "temporal")
"""What delivers runs; `none` is the log itself."""


def why_missing(kind: str) -> str | None:
    """Why an engine cannot be had here, None if it can."""
    if kind == "none":
        return None
    return nats.why_missing() if kind == "nats" else temporal.why_missing()


@contextmanager
def run_engine(kind: str, folder: Path) -> Generator[Engine | None]:
    """Run the server of an engine with its store in a folder; for `none` there is nothing to run."""
    if kind == "none":
        yield None
        return
    server: Engine = nats.NatsServer(folder) if kind == "nats" else temporal.TemporalServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)


def delivery_config(engine: Engine, address: str = "") -> str:
    """Return the settings with which processes use an engine, at another address if one is given."""
    return f'\n[delivery]\nengine = "{engine.kind}"\naddress = "{address or engine.address}"\n'

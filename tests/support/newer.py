"""A newer program: one that knows migrations which this version does not have."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest

from ava_audit import verify as verification
from ava_audit.store import schema, writer
from ava_audit.store.schema import SCHEMA_VERSION


def newer(monkeypatch: pytest.MonkeyPatch, *added: Callable[[sqlite3.Connection], None]) -> int:
    """Make this process a newer program; return the version that it knows."""
    version = SCHEMA_VERSION + len(added)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, *added))
    for module in (schema, writer, verification):
        monkeypatch.setattr(module, "SCHEMA_VERSION", version)
    return version

"""A newer program: one that knows migrations which this version does not have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ava_audit.database import Database
from ava_audit.store import schema, sqlite, writer
from ava_audit.store.schema import SCHEMA_VERSION


def newer(monkeypatch: pytest.MonkeyPatch, *added: Callable[[Database], None]) -> int:
    """Make this process a newer program; return the version that it knows."""
    version = SCHEMA_VERSION + len(added)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, *added))
    for module in (schema, writer, sqlite):
        monkeypatch.setattr(module, "SCHEMA_VERSION", version)
    return version

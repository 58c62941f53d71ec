"""The table of what an account makes of prices, with this machine as one of a provider's hosts."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from importlib.resources import files
from typing import Any

import pytest

from ava_server.models import surcharges

LOCAL = "127.0.0.1"


def raw_table() -> dict[str, Any]:
    """Return `surcharges.toml` as it is written."""
    text = files("ava_server.models").joinpath("surcharges.toml").read_text(encoding="utf-8")
    return tomllib.loads(text, parse_float=Decimal)


def make_this_machine(monkeypatch: pytest.MonkeyPatch, owner: str) -> None:
    """Count this machine among the hosts of `openai`, `anthropic` or another name in the table."""
    table = raw_table()
    table["hosts"][owner].append(LOCAL)
    read = surcharges.read_table(table)
    monkeypatch.setattr(surcharges, "surcharge_table", lambda: read)

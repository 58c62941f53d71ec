"""What makes the tokens of a call dearer than the model's price: the tier or the place that the account has chosen.

An address can say it (a regional host), or each answer names it (OpenAI's `service_tier`, Anthropic's
`usage.inference_geo`). `surcharges.toml` is the table. Multiples are in percent: 110 is 1.1 times the price.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

STANDARD = 100
"""The percent of what is computed at the model's own price."""
ADDRESS = "address"
"""The field of what the address itself says."""
SERVICE_TIER = "service_tier"
"""The field in which OpenAI's answers name a tier, and requests ask for one."""
ANSWER_FIELDS = (SERVICE_TIER, "usage.inference_geo", "usage.service_tier", "usage.speed")
"""What an answer can name; a point leads into its usage."""
_DATE = re.compile(r"[-@](?:\d{4}-?\d{2}-?\d{2}|latest)\Z")
_MAKER = re.compile(r"\A(?:[a-z-]+\.)+(?=[a-z])")


@dataclass(frozen=True)
class Surcharge:
    """A value that an answer may name, and the percent of the price at which its tokens are then billed.

    `account`: the account can have it by a setting of its own, so that a call may be billed so until an answer says
    otherwise. `lapses`: the provider serves single calls at the standard all the same, so an answer that names that
    does not say otherwise.
    """

    field: str
    value: str
    percent: int
    account: bool = False
    lapses: bool = False


@dataclass(frozen=True)
class _Row:
    """A row of the table, with the patterns of its hosts."""

    hosts: tuple[str, ...]
    models: tuple[str, ...]
    field: str
    value: str
    percent: int
    account: bool
    prices_of: str

    def is_for(self, host: str) -> bool:
        return any(fnmatchcase(host, pattern) for pattern in self.hosts)

    def has(self, names: Iterable[str]) -> bool:
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.models)


@dataclass(frozen=True)
class SurchargeTable:
    """`surcharges.toml`: its rows in their order, and what else it lists.

    `standard`: the values at a model's own price. `pinned`: what requests say. `lapsing`: the fields in which a
    standard value is no proof of what the account has chosen.
    """

    rows: tuple[_Row, ...]
    standard: frozenset[str]
    pinned: tuple[_Row, ...]
    lapsing: tuple[_Row, ...]


@cache
def surcharge_table() -> SurchargeTable:
    text = files("ava_server.models").joinpath("surcharges.toml").read_text(encoding="utf-8")
    return read_table(tomllib.loads(text, parse_float=Decimal))


def read_table(table: Mapping[str, Any]) -> SurchargeTable:
    """Read a table as the file has it."""

    def row(entry: Mapping[str, Any]) -> _Row:
        hosts: list[str] = []
        for name in entry["hosts"]:
            hosts += table["hosts"][name]
        percent = Decimal(entry.get("multiplier", 1)) * 100
        if percent != int(percent):
            raise ValueError(f"a multiplier has two digits behind the point at most: {entry['multiplier']}")
        return _Row(
            hosts=tuple(hosts),
            models=tuple(entry.get("models", ("*",))),
            field=entry["field"],
            value=entry.get("value", ""),
            percent=int(percent),
            account=entry.get("account", False),
            prices_of=entry.get("prices_of", ""),
        )

    return SurchargeTable(
        rows=tuple(map(row, table["surcharge"])),
        standard=frozenset(table["standard"]),
        pinned=tuple(map(row, table["pinned"])),
        lapsing=tuple(map(row, table["lapsing"])),
    )


# -- what an address says ---------------------------------------------------------------------------------------------


def seller_at(base_url: str | None) -> str | None:
    """Return the provider whose prices a regional host multiplies; None for any other address."""
    host = _host_of(base_url)
    for row in surcharge_table().rows:
        if row.field == ADDRESS and row.is_for(host):
            return row.prices_of
    return None


def address_percent(base_url: str | None, model_id: str) -> int:
    """Return the percent of a model's price at which an address bills it."""
    host = _host_of(base_url)
    names = _names_of(model_id)
    for row in surcharge_table().rows:
        if row.field == ADDRESS and row.is_for(host) and row.has(names):
            return row.percent
    return STANDARD


def pinned_at(base_url: str | None) -> dict[str, str]:
    """Return the fields that requests to an address have, so that no setting of the account decides them."""
    host = _host_of(base_url)
    return {row.field: row.value for row in surcharge_table().pinned if row.is_for(host)}


# -- what answers name ------------------------------------------------------------------------------------------------


def surcharges_of(base_url: str | None, model_id: str) -> tuple[Surcharge, ...]:
    """Return what answers of a model may name that changes its price.

    At an address that the table does not know, a model has what it has elsewhere, but nothing that an account chooses.
    """
    host = _host_of(base_url)
    names = _names_of(model_id)
    found: dict[tuple[str, str], Surcharge] = {}
    rows = [row for row in surcharge_table().rows if row.field != ADDRESS and row.has(names)]
    lapsing = {row.field for row in surcharge_table().lapsing if row.is_for(host)}
    for row in rows:
        if row.is_for(host):
            lapses = row.account and row.field in lapsing
            found.setdefault((row.field, row.value), Surcharge(row.field, row.value, row.percent, row.account, lapses))
    for row in rows:
        if row.models != ("*",):
            found.setdefault((row.field, row.value), Surcharge(row.field, row.value, row.percent))
    return tuple(found.values())


def named_percent(surcharges: Sequence[Surcharge], named: Mapping[str, str]) -> int:
    """Return the percent of the price at which a call is billed whose answer names these values, by field."""
    percent = STANDARD
    for field, value in named.items():
        percent = _times(percent, _percent_of(surcharges, field, value))
    return percent


def most_percent(
    surcharges: Sequence[Surcharge], known: Mapping[str, Collection[str]], pinned: Collection[str] = ()
) -> int:
    """Return the highest percent of the price at which the account's next call may be billed; at least 100.

    `known`: what its answers have named by now, by field. What none has named may be the dearest that the account can
    choose, but for fields that requests have themselves (`pinned`). Where a choice lapses for single calls, a standard
    value counts as none.
    """
    percent = STANDARD
    fields = {one.field for one in surcharges if one.account} | known.keys()
    lapsing = {one.field for one in surcharges if one.lapses}
    for field in sorted(fields):
        values = set(known.get(field, ()))
        if field in lapsing:
            values -= surcharge_table().standard
        if values:
            highest = max(_percent_of(surcharges, field, value) for value in values)
        elif field in pinned:
            highest = STANDARD
        else:
            highest = max(one.percent for one in surcharges if one.field == field and one.account)
        percent = _times(percent, max(highest, STANDARD))
    return percent


def named_words(named: Mapping[str, str]) -> str:
    """Return what an answer has named beside the standard, for people, after a comma; else nothing."""
    standard = surcharge_table().standard
    return "".join(
        f", {field.removeprefix('usage.')} {value}" for field, value in named.items() if value not in standard
    )


def telling(surcharges: Sequence[Surcharge], named: Mapping[str, str]) -> dict[str, str]:
    """Return what of a call's answer is worth keeping: what an account may choose, and what is not standard."""
    chosen = {one.field for one in surcharges if one.account}
    standard = surcharge_table().standard
    return {field: value for field, value in named.items() if field in chosen or value not in standard}


def _percent_of(surcharges: Sequence[Surcharge], field: str, value: str) -> int:
    for one in surcharges:
        if (one.field, one.value) == (field, value):
            return one.percent
    table = surcharge_table()
    if value in table.standard:
        return STANDARD
    of_value = [row.percent for row in table.rows if (row.field, row.value) == (field, value)]
    if of_value:  # of a model that the table does not know
        return max(of_value)
    return max((one.percent for one in surcharges if one.field == field and one.account), default=STANDARD)


def times_words(percent: int) -> str:
    """Return a percent as a multiple: `1.1`, `2`."""
    return f"{Decimal(percent) / 100:f}"


def _times(percent: int, more: int) -> int:
    return -(-percent * more // STANDARD)


def _host_of(base_url: str | None) -> str:
    try:
        return urlsplit(base_url or "").hostname or ""
    except ValueError:
        return ""


def _names_of(model_id: str) -> tuple[str, ...]:
    """Return the names of a model in the table: its id without its maker, with and without a date."""
    name = _MAKER.sub("", model_id.rpartition("/")[2].lower())
    undated = _DATE.sub("", name)
    return tuple(dict.fromkeys(one.replace(".", "-") for one in (name, undated)))

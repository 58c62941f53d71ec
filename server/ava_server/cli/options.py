"""Options that several commands have, and their values: ids, times, durations and amounts, each with its own error."""

from __future__ import annotations

import json
import math
import re
import time
from datetime import tzinfo
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ava_server.cli.completion import all_runs, ended_runs, open_runs_and_groups, unended_runs
from ava_server.core.errors import BadInput

_RUN = "The subagent, or its proposal (P-…)."
LastRunId = Annotated[
    str | None, typer.Argument(metavar="[S-ID]", help=f"{_RUN} Default: your last run.", autocompletion=all_runs)
]
EndedRunId = Annotated[str, typer.Argument(metavar="S-ID", help=_RUN, autocompletion=ended_runs)]
UnendedRunId = Annotated[str, typer.Argument(metavar="S-ID", help=_RUN, autocompletion=unended_runs)]
_RUNS = "Subagents, their proposals (P-…), or a group (G-…)."
LastRunIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[S-ID…]", help=f"{_RUNS} Default: your last run.", autocompletion=open_runs_and_groups),
]
RunIdsOrLast = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[S-ID…]",
        help=f"{_RUNS} Default: your last run, after a question.",
        autocompletion=open_runs_and_groups,
    ),
]
GroupMaxCost = Annotated[
    str | None, typer.Option("--group-max", metavar="DOLLARS", help="For two or more: the most they cost together.")
]
GroupTimeout = Annotated[
    str | None, typer.Option(metavar="TIME", help="For two or more: the longest they take together.")
]
Json = Annotated[bool, typer.Option("--json", help="As one JSON object.")]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Only before this time.")]
Utc = Annotated[bool, typer.Option("--utc", help="Times in UTC.")]

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The server to use, not this machine's data root; default: AVA_URL."),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="File with the token for --url; default: AVA_TOKEN.")
]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h)?")
_OPTIONS = {"role": "ROLE", "task": "TASK", "max_cost_cents": "--max-cost", "retry_of": "--retry"}
"""Arguments of `spawn_subagent` whose option of `ava run` has another name."""
_MOST_DOLLARS = 1e12
_QUOTED = re.compile(r"`([a-z_]+)`")
_CENTS = re.compile(r"\bmax_cost_cents [\d,]+ or more \(\$([\d.]+)\)")
_SECONDS = {None: 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3_600}


def parse_cents(option: str, given: str | None, *, zero: bool = False) -> float | None:
    """Return dollars, such as `0.50` or `$0.50`, as cents, rounded down. Raises BadInput: not above 0 (or `zero`)."""
    from ava_audit.units import cents, entered_micros

    if given is None:
        return None
    try:
        dollars = float(given.strip().removeprefix("$"))
    except ValueError:
        dollars = math.nan
    if zero and dollars == 0:
        return 0
    micros = entered_micros(dollars) if 0 < dollars <= _MOST_DOLLARS else 0
    if micros <= 0:
        raise BadInput(f"{option}: {given[:40]!r} is not an amount of dollars above 0; write it like 0.50")
    return cents(micros)


def parse_seconds(option: str, given: str | None) -> float | None:
    """Return a duration, such as `90`, `90s`, `10m` or `1h`, in seconds. Raises BadInput: not one above 0."""
    if given is None:
        return None
    match = _DURATION.fullmatch(given.strip().lower())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if seconds <= 0 or not math.isfinite(seconds):
        raise BadInput(f"{option}: {given[:40]!r} is not a duration above 0; write it like 90, 90s, 10m or 1h")
    return seconds


def parse_group_limits(max_cost: str | None, timeout: str | None) -> dict[str, Any]:
    """Return the given limits of a group as `confirm_spawn` takes them."""
    limits = {
        "group_max_cost_cents": parse_cents("--group-max", max_cost),
        "group_timeout": parse_seconds("--group-timeout", timeout),
    }
    return {name: value for name, value in limits.items() if value is not None}


def parse_time_option(
    option: str, given: str | None, now_us: int | None = None, zone: tzinfo | None = None
) -> int | None:
    """Return microseconds UTC; `zone` is that of a value without one, by default this machine's.

    Raises BadInput: it is not a time; the error lists the forms.
    """
    from ava_audit.units import parse_time

    if given is None:
        return None
    try:
        return parse_time(given, time.time_ns() // 1000 if now_us is None else now_us, zone)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None


def parse_any_id(given: str, *, groups: bool = False) -> tuple[str, str]:
    """Return the field of an id (`subagent_id`, `pending_id`, with `groups` also `group_id`) and its canonical form."""
    from ava_server.core.ids import parse_id

    for field in ("subagent_id", "pending_id", *(("group_id",) if groups else ())):
        try:
            return field, parse_id(field, given)
        except BadInput:
            continue
    group = ", a group's like G-4e1b2c3" if groups else ""
    raise BadInput(
        f"{given[:40]!r} is not an id: a subagent's looks like S-7f3a2b, a proposal's like P-1c22b09d{group}. "
        "`ava status --once` lists the latest, `ava logs --type spawn` all."
    )


def absolute_path(option: str, given: str | Path) -> Path:
    """Resolve `~` too. Raises BadInput: there is no home folder for `~`, or no working folder."""
    try:
        return Path(given).expanduser().absolute()
    except RuntimeError:
        raise BadInput(
            f"{option}: {given} needs a home folder for `~`, and there is none; give the whole path"
        ) from None
    except OSError:
        raise BadInput(f"{option}: {given} is in a working folder that was removed; give the whole path") from None


def split_names(given: list[str] | None) -> list[str] | None:
    """Return names that were given one by one, separated by commas, or both."""
    if given is None:
        return None
    return [name.strip() for part in given for name in part.split(",") if name.strip()]


def read_schema(option: str, file: Path | None) -> dict[str, Any] | None:
    """Raises BadInput: the file cannot be read, or does not hold a JSON object."""
    if file is None:
        return None
    try:
        schema: object = json.loads(file.read_text("utf-8"))
    except OSError as failed:
        raise BadInput(f"{option}: {file} cannot be read: {failed.strerror}; give a file with a JSON schema") from None
    except (ValueError, RecursionError) as wrong:
        raise BadInput(f"{option}: {file} is not JSON: {wrong}; give a file with a JSON schema") from None
    if not isinstance(schema, dict):
        raise BadInput(f'{option}: {file} is not a JSON object; a schema begins like {{"type": "object", …}}')
    return cast("dict[str, Any]", schema)


def spawn_option(field: str) -> str:
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")


def name_options(sentence: str) -> str:
    """Return sentences about arguments of `spawn_subagent`, a line each, with the names of `ava run`'s options."""
    from ava_server.approval.requests import SpawnArgs

    arguments = SpawnArgs.model_fields.keys() - {"ask"}  # `ava run` always asks
    lines = sentence.split("\n")
    for number, line in enumerate(lines):
        field, colon, rest = line.partition(":")
        name, dot, below = field.partition(".")
        if colon and name in arguments:
            lines[number] = f"{spawn_option(name)}{dot}{below}:{rest}"
    sentence = _CENTS.sub(r"--max-cost \1 or more", "\n".join(lines))
    return _QUOTED.sub(lambda found: f"`{spawn_option(found[1])}`" if found[1] in arguments else found[0], sentence)

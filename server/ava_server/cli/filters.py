"""What `ava logs` and `ava logs export` are asked by: their common options, and the query that these make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ava_server.cli.completion import agents, event_types
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.search import LogQuery

Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        show_default=False,
        help="error, tool, cost, thinking, spawn, complete, message, session, or an event type, with commas.",
        autocompletion=event_types,
    ),
]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", show_default=False, help='"1 hour ago", 30m, yesterday, 14:05, 2026-01-31 …'),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", show_default=False, help="Only before this time.")]
Search = Annotated[
    str | None,
    typer.Option(metavar="WORDS", show_default=False, help='All these words; "words together" in quotes.'),
]
Agents = Annotated[
    list[str] | None,
    typer.Option(metavar="ID", show_default=False, help="Only of this agent: ava, or S-….", autocompletion=agents),
]
Users = Annotated[list[str] | None, typer.Option(metavar="NAME", show_default=False, help="Only of this user.")]
Sessions = Annotated[
    list[str] | None, typer.Option(metavar="ID", show_default=False, help="Only of this host connection.")
]
Level = Annotated[
    Literal["info", "warning", "error"] | None, typer.Option(show_default=False, help="At least this serious.")
]


def log_query(
    *,
    kind: list[str] | None,
    since: str | None,
    until: str | None,
    search: str | None,
    agent: list[str] | None,
    user: list[str] | None,
    session: list[str] | None,
    level: Literal["info", "warning", "error"] | None,
    **more: Any,
) -> LogQuery:
    """Return the query that the options mean, as they were given; what else a query has is `more`.

    Raises:
        BadInput: An option cannot be understood; it is named.
    """
    from ava_audit.search import LogQuery
    from ava_server.cli.option_values import parse_time_option, split_names

    query = LogQuery(
        agents=tuple(_agent(name) for name in agent or ()),
        users=tuple(user or ()),
        sessions=tuple(session or ()),
        types=tuple(split_names(kind) or ()),
        since_us=parse_time_option("--since", since),
        until_us=parse_time_option("--until", until),
        search=search,
        level=level,
        **more,
    )
    if kind is not None and not query.types:
        raise BadInput("--type: it names no type; leave it out for all of them")
    _check_types(query)
    return query


def _agent(given: str) -> str:
    from ava_server.core.ids import AGENT, parse_id

    if given.strip().lower() == AGENT:
        return AGENT
    try:
        return parse_id("subagent_id", given)
    except BadInput:
        raise BadInput(f"--agent: {given[:40]!r} is no agent; give ava, or a subagent's id such as S-7f3a2b") from None


def _check_types(query: LogQuery) -> None:
    from ava_audit.errors import BadQuery
    from ava_audit.text_index import type_filter

    try:
        type_filter(query.types)
    except BadQuery as error:
        raise BadInput(f"--type: {error}") from None

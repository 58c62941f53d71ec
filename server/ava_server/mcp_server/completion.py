"""Completion: what an argument of a prompt, or a place in an address, may be, while somebody types it.

Only what is the user's own is offered. What there is nothing to say about gets an empty list, never an error: this is
advice, and a host asks at every key.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import mcp_types as types
from mcp.server.context import ServerRequestContext

from ava_audit.rows import WAITING
from ava_server.core.errors import AvaError, BadInput
from ava_server.mcp_server.resources import own_of

if TYPE_CHECKING:
    from ava_audit.view import View
    from ava_server.mcp_server.app import App
    from ava_server.service.access import Own

MOST = 100
"""Values in one answer, by the protocol."""
Given = Mapping[str, str]
"""What the other arguments are already."""


async def complete(ctx: ServerRequestContext[App, Any], params: types.CompleteRequestParams) -> types.CompleteResult:
    """Return the values that go with what was typed: those that begin with it, then those that have it within."""
    reference = params.ref.name if isinstance(params.ref, types.PromptReference) else params.ref.uri
    source = _SOURCES.get((reference, params.argument.name))
    found: list[str] = []
    if source is not None:
        try:
            own = await own_of(ctx)
            given = (params.context.arguments if params.context is not None else None) or {}
            found = _matching(await source(own, given), params.argument.value)
        except AvaError:  # whoever calls a tool is told
            found = []
    completion = types.Completion(values=found[:MOST], total=len(found), has_more=len(found) > MOST)
    return types.CompleteResult(completion=completion)


def _matching(values: Iterable[str], typed: str) -> list[str]:
    wanted = typed.strip().casefold()
    values = list(dict.fromkeys(values))
    first = [value for value in values if value.casefold().startswith(wanted)]
    within = [value for value in values if wanted in value.casefold()]
    return list(dict.fromkeys((*first, *within)))


async def _roles(own: Own, _given: Given) -> list[str]:
    remote = own.session.user if own.session.remote else None
    return list((await own.house.catalog(own.session.roots, remote=remote)).by_name)


async def _models(own: Own, _given: Given) -> list[str]:
    """Return the tiers, what they mean here, and the models of the providers that are configured."""
    from ava_server.models.listing import named_ids, sellers, table_ids, tier_meanings
    from ava_server.models.selection import TIERS

    def read() -> list[str]:
        models = own.house.access.models
        meant = tier_meanings(models, own.house.settings)
        usable = [seller for seller in sellers(models).values() if seller.configured]
        return [
            *TIERS,
            *(each.choice.name for each in meant if each.choice is not None),
            *(f"{each.name}:{model_id}" for each in usable for model_id in named_ids(each, models, meant)),
            *(f"{each.name}:{model_id}" for each in usable for model_id in table_ids(each)),
        ]

    return await anyio.to_thread.run_sync(read)


async def _runs(own: Own, _given: Given) -> list[str]:
    rows = await own.store.read(lambda view: view.runs(user=own.session.user))
    return [row.id for row in reversed(rows)]


async def _ended(own: Own, _given: Given) -> list[str]:
    rows = await own.store.read(lambda view: view.runs(user=own.session.user, ended_since_us=0))
    return [row.id for row in reversed(rows) if row.result_seq is not None]


async def _proposals(own: Own, _given: Given) -> list[str]:
    now_us = time.time_ns() // 1000

    def waiting(view: View) -> list[str]:
        rows = view.runs(user=own.session.user, states=(WAITING,))
        proposals = [view.proposal(row.pending_id) for row in reversed(rows)]
        return [each.pending_id for each in proposals if each is not None and each.expires_us > now_us]

    return await own.store.read(waiting)


async def _artifacts(own: Own, given: Given) -> list[str]:
    try:
        run = await own.run(given.get("id", ""), "id")
    except BadInput:
        return []
    files = await anyio.to_thread.run_sync(own.house.outfitting.artifacts, run.id)
    return [str(file["name"]) for file in files]


_SOURCES: dict[tuple[str, str], Callable[[Own, Given], Awaitable[list[str]]]] = {
    ("delegate", "role"): _roles,
    ("delegate", "model"): _models,
    ("ask_on", "subagent_id"): _ended,
    ("decide", "pending_id"): _proposals,
    ("ava://runs/{id}", "id"): _runs,
    ("ava://runs/{id}/transcript", "id"): _runs,
    ("ava://runs/{id}/artifacts/{name}", "id"): _runs,
    ("ava://runs/{id}/artifacts/{name}", "name"): _artifacts,
}
"""What is offered, by the prompt or the form of the address, and the argument."""

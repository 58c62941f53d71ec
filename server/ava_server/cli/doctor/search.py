"""The web search: which one is set up, and, with `--online`, whether it answers."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from ava_roles.errors import ToolFailed
from ava_roles.net.search_engines import Engine, SearchResults
from ava_server.cli.doctor.check import Finding, Setup, State, from_error, log_path
from ava_server.config.keys import read_keys
from ava_server.config.search_engines import ask_engine, engine_of, search_cost
from ava_server.core.errors import AvaError
from ava_server.models.clients import ClientPool
from ava_server.service.runtime import refuse_recursion

QUERY = "weather"
TRY_AGAIN = "Mend that, then run `ava doctor --online` again."
SET_ONE_UP = (
    "Store a key with `ava key set brave` or `ava key set kagi`, or name a SearXNG of yours: searxng under [search] in"
    " config.toml."
)


def search_engine(setup: Setup) -> Engine | None:
    """Return the search engine that is set up; None where none is, or where keys or settings are wrong."""
    try:
        return _engine(setup)
    except AvaError:  # told by the checks of settings and keys
        return None


def search(setup: Setup) -> list[Finding]:
    """Tell which web search there is, and what it costs."""
    unread = Finding("search", "note", "not looked at: mend the data root, the settings or the keys first")
    if setup.settings is None or log_path(setup) is None:
        return [unread]
    try:
        engine = _engine(setup)
    except AvaError:
        return [unread]
    if engine is not None:
        text = f"{engine.title} at {engine.base_url}, {search_cost(engine.cost_micros)}"
        return [Finding("search", "ok", text)]
    wanted = setup.settings.search.engine
    pages = "subagents read the pages that their task names"
    if wanted == "none":
        return [Finding("search", "note", f"switched off (search.engine is none); {pages}")]
    if wanted == "auto":
        return [Finding("search", "note", f"none is set up; {pages}", SET_ONE_UP)]
    lacks = "search.searxng names none" if wanted == "searxng" else "there is no key for it"
    step = "Name its address under [search] in config.toml." if wanted == "searxng" else f"`ava key set {wanted}`"
    return [Finding("search", "warning", f"search.engine is {wanted}, and {lacks}; {pages}", step)]


def announced(setup: Setup) -> str:
    """Return what trying the search will do, and cost; empty where it is not tried."""
    engine = search_engine(setup)
    if engine is None or refuse_recursion():
        return ""
    return f"Searching once by {engine.title}: {search_cost(engine.cost_micros)}."


def try_search(setup: Setup, found: Callable[[Finding], None]) -> None:
    """Search once by the engine that is set up; whoever typed `--online` has approved it."""
    engine = search_engine(setup)
    if engine is None or refuse_recursion():
        return None
    title = f"online {engine.title}"
    try:
        answer = anyio.run(_try, engine)
    except ToolFailed as failed:
        return found(from_error(title, str(failed), TRY_AGAIN))
    count = len(answer.hits)
    state: State = "ok" if count else "warning"
    text = f"answered with {count} result{'' if count == 1 else 's'} for {QUERY!r}"
    note = f" ({answer.note})" if answer.note else ""
    return found(Finding(title, state, text + note, "" if count else TRY_AGAIN))


async def _try(engine: Engine) -> SearchResults:
    async with ClientPool() as clients:
        return await ask_engine(engine, QUERY, 3, clients)


def _engine(setup: Setup) -> Engine | None:
    if setup.root is None or setup.settings is None:
        return None
    return engine_of(setup.settings.search, read_keys(setup.root.keys))

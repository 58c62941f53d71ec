"""Metrics in Prometheus' text format, made when they are asked for, from the log and from what this process knows.

What is counted comes from the log, so that it is right whoever did it (another server, a worker) and goes on over
restarts; what the log forgets some day is counted from the start of this process, and its help says so.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from prometheus_client import generate_latest

from ava_audit.totals import Labels, News, Tally, news_for, run_sums, standing
from ava_audit.view import View
from ava_roles.sandbox.sandbox import Unavailable
from ava_server.budget.caps import installation_scope, utc_day
from ava_server.runs.submit import NAME as SUBMIT
from ava_server.runs.tools import RUN_TOOL_NAMES
from ava_server.telemetry.families import Families, Here, Looked, tool_label

if TYPE_CHECKING:
    from ava_server.service.runtime import House

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def render(house: House, *, open_sessions: int | None = None) -> bytes:
    """Return the metrics of a data root, as `CONTENT_TYPE` says.

    Args:
        house: The open data root.
        open_sessions: How many sessions are open, where the transport has them.

    Raises:
        StoreUnavailable: The log cannot be read.
    """
    async with house.counting:  # one at a time: threads read what is counted
        now_us = time.time_ns() // 1000
        looked = await house.store.read(partial(_look, now_us=now_us, tally=house.tally))
        house.tally.add(_labelled(looked.news, house))
        here = await anyio.to_thread.run_sync(_here, house, tuple(looked.now.running), open_sessions)
        families = Families(looked, here, house.tally, now_us)
        return await anyio.to_thread.run_sync(generate_latest, families)


def _look(view: View, now_us: int, tally: Tally) -> Looked:
    return Looked(
        head=view.head(),
        runs=run_sums(view),
        now=standing(view, now_us),
        news=news_for(view, tally),
        day=view.bucket(installation_scope(utc_day(now_us))),
        indexed=view.progress("words"),
        mirrored=view.progress("mirror"),
    )


def _here(house: House, owners: tuple[str, ...], open_sessions: int | None) -> Here:
    settings, store = house.settings, house.store
    sandbox = house.sandbox()  # looked for once in a process
    return Here(
        dead=frozenset(owner for owner in owners if not house.instances.alive(owner)),
        sandbox="unavailable" if isinstance(sandbox, Unavailable) else sandbox.kind,
        mirror=settings.mirror,
        day_cap_micros=round(settings.limits.installation_daily_cents * 10_000),
        database_bytes=_size(store.path),
        wal_bytes=_size(store.wal),
        free_bytes=shutil.disk_usage(store.path.parent).free,
        out_of_reach=house.manager.out_of_reach is not None,
        open_sessions=open_sessions,
    )


def _labelled(news: News, house: House) -> News:
    """Return news in which tools have their labels: what models called that there is not would be kept for ever."""
    known = frozenset([*house.tools, *RUN_TOOL_NAMES, SUBMIT])
    servers = frozenset(house.settings.mcp_servers)

    def labelled(type_name: str, labels: Labels) -> Labels:
        if type_name != "ToolResult" or labels[1] is None:
            return labels
        model, tool, *rest = labels
        return (model, tool_label(tool, known, servers), *rest)

    counts = ((name, labelled(name, labels), entries, took_ms) for name, labels, entries, took_ms in news.counts)
    return replace(news, counts=tuple(counts))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

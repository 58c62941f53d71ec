"""The dashboard of `ava status` over a lab: its page as lines, and the app with a pilot.

async with live_app(lab, 80, 24) as (app, pilot):
    await pilot.press("a")
    await wait_until_shown(app, "Start it?")
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio.to_thread

from ava_roles.sandbox.sandbox import Sandbox
from ava_server.cli.log_look import run_at_once
from ava_server.cli.status_overview import Overview, OverviewReader, SandboxProbe
from ava_server.config.settings import Settings
from ava_server.dashboard.app import StatusApp
from ava_server.dashboard.decisions import DecisionQuestion, Kind, ask_about
from ava_server.service.record_requests import DETAIL
from ava_server.service.run_records import RunDetail
from support.runtime import Lab
from support.stdio import until

if TYPE_CHECKING:
    from textual.pilot import Pilot


def reader_of(of: Lab | Settings, *, everybody: bool = False, most: int = 100) -> OverviewReader:
    settings = of.runtime.settings if isinstance(of, Lab) else of
    env = {"AVA_MODEL_BASE_URL": of.server.base_url, "AVA_MODEL": "test"} if isinstance(of, Lab) else {}
    return OverviewReader(settings, everybody=everybody, most=most, env=env)


async def look(of: Lab | Settings, *, everybody: bool = False, most: int = 100) -> Overview:
    with closing(reader_of(of, everybody=everybody, most=most)) as reader:
        return await anyio.to_thread.run_sync(lambda: run_at_once(reader.look()))


async def decision_question(lab: Lab, kind: Kind, run_id: str) -> DecisionQuestion:
    """The question that a key of the dashboard asks about a run."""
    with closing(reader_of(lab)) as reader:
        return await anyio.to_thread.run_sync(lambda: run_at_once(ask_about(kind, run_id, reader)))


async def run_detail(lab: Lab, run_id: str) -> RunDetail:
    """What the screen of a run shows."""
    with closing(reader_of(lab)) as reader:
        return await anyio.to_thread.run_sync(lambda: run_at_once(reader.records.get(DETAIL, run_id=run_id)))


def sandbox_of(kind: str) -> Sandbox:
    return cast("Sandbox", SimpleNamespace(kind=kind))


def plain_lines(lines: list[Any]) -> list[str]:
    return [line.plain.rstrip() for line in lines]


@asynccontextmanager
async def live_app(
    of: Lab | Settings, width: int = 80, height: int = 24, *, everybody: bool = False
) -> AsyncGenerator[tuple[StatusApp, Pilot[int]]]:
    """The app after its first look; a fault of Ava's own in it fails the test."""
    with closing(reader_of(of, everybody=everybody)) as reader:
        app = StatusApp(reader, SandboxProbe("none"))
        async with app.run_test(size=(width, height)) as pilot:
            await wait_until_shown(app, "q quit")
            yield app, pilot
    if app.fault is not None:
        raise app.fault


def screen(app: StatusApp) -> list[str]:
    strips = app.screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


async def wait_until_shown(app: StatusApp, words: str) -> list[str]:
    def found() -> list[str]:
        lines = screen(app)
        return lines if words in " ".join(" ".join(lines).split()) else []

    lines: list[str] = await until(found)
    return lines


async def wait_until_hidden(app: StatusApp, words: str) -> list[str]:
    lines: list[str] = await until(lambda: found if words not in "\n".join(found := screen(app)) else [])
    return lines

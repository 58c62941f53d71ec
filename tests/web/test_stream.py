"""The stream of changes: it stays open, and what other users do does not show on it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.model_server import Gate, slow_answer
from support.pages.lab_pages import serve_lab_pages
from support.runtime import PRICED, Lab, open_lab

from ava_audit.events import Event, SettingsChanged, Who
from ava_audit.store.store import Store, append
from ava_server.web import asgi
from ava_server.web.context import PageContext


async def others_work(lab: Lab) -> None:
    """Write an entry of another user to the log, several times between two signs of life."""
    while True:
        fact = SettingsChanged(setting="users.ben", before=None, after=None)
        await lab.runtime.store.do(append(Event(Who("sess-0", "ava", "ben"), fact)))
        await anyio.sleep(asgi.ALIVE_EVERY_S / 10)


async def test_a_sign_of_life_comes_as_often_however_busy_other_users_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "ALIVE_EVERY_S", 0.5)
    async with open_lab(tmp_path, [], config=PRICED) as lab, serve_lab_pages(lab) as browser:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(others_work, lab)
            with anyio.fail_after(40):
                async with browser.http.stream("GET", "/stream") as stream:
                    seen = ""
                    async for piece in stream.aiter_text():
                        seen += piece
                        if seen.count(": alive") == 3:
                            break
            tasks.cancel_scope.cancel()
        assert "event: changed" not in seen


async def test_a_change_while_the_page_was_on_its_way_is_told_when_its_stream_opens(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED) as lab, serve_lab_pages(lab) as browser:
        page = (await browser.http.get("/")).text
        address = re.search(r'data-stream="([^"]+)"', page)
        assert address is not None
        await lab.propose()
        with anyio.fail_after(40):
            assert await first_told(browser.http, unescape(address[1])) == "changed"
        for odd in ("", "x", "-1", "9" * 30, "٣"):
            async with browser.http.stream("GET", "/stream", params={"after": odd}) as stream:
                assert stream.status_code == 200 and "event: open" in await anext(stream.aiter_text())


async def test_what_a_run_is_doing_is_told_to_its_user_and_to_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi, "ALIVE_EVERY_S", 0.5)
    script = [slow_answer(80, Gate()), slow_answer(120, Gate())]
    async with open_lab(tmp_path, script, config=PRICED, everybody=True) as lab, serve_lab_pages(lab) as browser:
        other = replace(lab, service=lab.as_user("ben"))
        for whose in (other, lab):
            run_id, shown = await whose.start(role="custom", system_prompt="Look.", workspace=None), ""
            with anyio.fail_after(20):
                while "Thinking (" not in shown:
                    shown = str((await whose.call("check_subagent", subagent_id=run_id)).runs[0].untrusted_activity)
                    await anyio.sleep(0.05)
                async with browser.http.stream("GET", "/stream") as stream:
                    seen, enough = "", 6 if whose is other else 30
                    async for piece in stream.aiter_text():
                        seen += piece
                        if seen.count(": alive") == enough or seen.count("event: changed") == 3:
                            break
            assert ("event: changed" in seen) is (whose is lab), seen
            if whose is other:
                assert (await browser.http.get(f"/stream?run={run_id}")).status_code == 404
        for whose in (other, lab):
            for run in (await whose.call("check_subagent")).runs:
                await whose.call("cancel_subagent", subagent_id=run.subagent_id)


class Late:
    """A log in which `meanwhile` happens between the news of an entry and the look at what it is about."""

    def __init__(self, store: Store, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def wait_for_entry_after(self, seq: int) -> int:
        head = await self._store.wait_for_entry_after(seq)
        await self._meanwhile()
        return head


async def test_a_change_is_told_once_under_its_own_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "AT_MOST_EVERY_S", 0.2)
    monkeypatch.setattr(asgi, "ALIVE_EVERY_S", 2.0)
    async with open_lab(tmp_path, [], config=PRICED) as lab, serve_lab_pages(lab) as browser:
        proposed: list[int] = []

        async def propose_once() -> None:
            if not proposed:
                proposed.append(0)
                await lab.propose()
                proposed[0] = lab.runtime.store.head

        late = Late(lab.runtime.store, propose_once)
        monkeypatch.setattr(PageContext, "store", property(lambda _context: late))
        with anyio.fail_after(40):
            async with browser.http.stream("GET", "/stream") as stream:
                pieces, seen = stream.aiter_text(), ""
                assert "event: open" in await anext(pieces)
                fact = SettingsChanged(setting="users.ben", before=None, after=None)
                await lab.runtime.store.do(append(Event(Who("sess-0", "ava", "ben"), fact)))
                while ": alive" not in seen:
                    seen += await anext(pieces)
        assert re.findall(r"event: changed\ndata: (\d+)", seen) == [str(proposed[0])], seen


async def first_told(http: httpx2.AsyncClient, address: str) -> str:
    """The first event after the one that opens a stream."""
    seen = ""
    async with http.stream("GET", address) as stream:
        async for piece in stream.aiter_text():
            seen += piece
            if len(events := re.findall(r"^event: (\w+)", seen, re.MULTILINE)) > 1:
                return str(events[1])
    return ""

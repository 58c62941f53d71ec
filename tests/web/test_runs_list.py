"""The list of runs: filters, words, and pages."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.logs.past import BookedLife, Past, own_user
from support.pages.lab_pages import Browser, serve_lab_pages
from support.runtime import PRICED, open_lab, submit

from ava_audit.events import Ending
from ava_audit.store.store import Store
from ava_server.web import runs

ROW = re.compile(r'<a href="/subagents/(S-[0-9a-f]{6})">')


async def listed(browser: Browser, query: str = "") -> list[str]:
    page = await browser.get(f"/subagents{query}")
    assert page.status_code == 200, page.text
    return ROW.findall(page.text)


async def all_pages(browser: Browser, query: str) -> list[list[str]]:
    pages, address = list[list[str]](), f"/subagents{query}"
    while address:
        page = (await browser.get(address)).text
        pages.append(ROW.findall(page))
        older = re.search(r'class="pager"><a href="([^"]+)"', page)
        address = older[1].replace("&amp;", "&") if older is not None else ""
    return pages


async def test_runs_are_filtered_by_state_role_and_words(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit()] * 2, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        ended = await lab.start(task="Look for quetzalcoatlus", name="big-bird")
        await lab.ended(ended)
        waiting = (await lab.propose(task="Something about prices", name="price-check")).subagent_id
        assert await listed(browser) == [waiting, ended]
        assert await listed(browser, "?state=waiting") == [waiting]
        assert await listed(browser, "?state=running") == []
        assert await listed(browser, "?state=ended") == [ended]
        assert await listed(browser, "?role=researcher") == [waiting, ended]
        assert await listed(browser, "?role=coder") == []
        for words in ("quetzalcoatlus", "big-bird", ended, "look quetzalcoatlus"):
            assert await listed(browser, f"?text={words}") == [ended], words
        assert await listed(browser, "?text=prices&state=ended") == []
        for page in ("?text=nothinglikethis", "?text=%22", "?text=%F0%9F%90%A6", "?text=' OR 1=1"):
            assert await listed(browser, page) == []
        assert "No subagent fits." in (await browser.get("/subagents?text=nothinglikethis")).text
        assert (await browser.get("/subagents?after=x")).status_code == 404


async def test_an_expired_proposal_is_in_the_same_list_with_and_without_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        made = await lab.propose(task="Count the sheep")
        row = await lab.store.read(lambda view: view.proposal(made.pending_id))
        assert row is not None
        monkeypatch.setattr(runs, "now_us", lambda: row.expires_us + 1)
        for words in ("", "&text=sheep"):
            assert await listed(browser, f"?state=ended{words}") == [made.subagent_id], words
            assert await listed(browser, f"?state=waiting{words}") == [], words


async def test_the_first_page_of_who_sees_all_users_has_the_proposals_of_others(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab, serve_lab_pages(lab, owned=True) as browser:
        theirs = await lab.call_as("eve", "spawn_subagent", role="researcher", task="Eve's own task")
        own = await lab.propose()
        assert theirs.subagent_id not in (await browser.get("/?mine")).text
        page = (await browser.get("/")).text
        assert page.count(f"/proposals/{own.pending_id}") == 1
        assert ROW.findall(page) == [theirs.subagent_id]


async def test_every_page_follows_the_one_before_while_runs_are_added(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        made = [(await lab.propose(task=f"Count the sheep, herd {number}")).subagent_id for number in range(7)][::-1]
        with patch.object(runs, "PAGE_RUNS", 3), patch.object(runs, "_SEARCHED", 4):
            for query in ("", "?text=sheep", "?state=waiting", "?role=researcher&text=sheep"):
                pages = await all_pages(browser, query)
                assert [run for page in pages for run in page] == made, query
                assert [len(page) for page in pages] == [3, 3, 1]
            first = (await browser.get("/subagents")).text
            await lab.propose(task="A wolf comes")
            older = re.search(r'class="pager"><a href="([^"]+)"', first)
            assert older is not None
            assert ROW.findall((await browser.get(older[1].replace("&amp;", "&"))).text) == made[3:6]


async def write_past(store: Store, patch: pytest.MonkeyPatch) -> None:
    """Write five runs of three roles, with costs that are not in the order of their times; one of them failed."""
    past = Past(patch)
    for number, (role, cost) in enumerate((("a", 500), ("b", 100), ("c", 300), ("a", 300), ("b", 200))):
        life = BookedLife(f"S-0000a{number}", user=own_user(), role=role)
        ending: Ending = "timeout" if number == 2 else "success"
        await past.write_run(store, life, 1_000_000 + number * 100, costs=(cost,), ending=ending)


@pytest.mark.parametrize("size", [2, 10])
async def test_the_list_is_ordered_by_each_column_page_by_page(tmp_path: Path, size: int) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False, check=False) as lab, serve_lab_pages(lab) as browser:
        with pytest.MonkeyPatch.context() as patch:
            await write_past(lab.store, patch)
        orders = {
            "": "43210",
            "order=oldest": "01234",
            "order=cost": "03241",
            "order=role": "30412",
            "order=state": "43102",
            "order=cost&role=a": "03",
            "order=time": "43210",
            "state=failed": "2",
            "order=nonsense": "43210",
        }
        with patch_size(size):
            for query, numbers in orders.items():
                pages = await all_pages(browser, f"?{query}" if query else "")
                assert [run[-1] for page in pages for run in page] == list(numbers), query
                assert all(len(page) <= size for page in pages)
        assert (await browser.get("/subagents?order=cost&after=1~S-0000a1~x")).status_code == 404
        assert (await browser.get("/subagents?order=role&after=1~S-0000a1~'")).status_code == 200


def patch_size(size: int) -> Any:
    return patch.object(runs, "PAGE_RUNS", size)


async def test_the_heads_of_the_columns_lead_to_their_orders(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        await lab.propose()
        page = unescape((await browser.get("/subagents?role=researcher&order=cost")).text)
        heads = dict(re.findall(r'<a href="/subagents\?([^"]*)" class="head-(\w+)"', page))
        assert {name: query for query, name in heads.items()} == {
            "state": "role=researcher&order=state",
            "who": "role=researcher&order=role",
            "cost": "role=researcher&order=cost",
            "time": "role=researcher&order=time",
            "when": "role=researcher",
        }
        assert page.count('aria-current="true"') == 1 and "Cost ↓" in page
        newest = unescape((await browser.get("/subagents")).text)
        assert 'href="/subagents?order=oldest" class="head-when"' in newest and "When ↓" in newest


async def test_a_replaced_proposal_is_listed_only_when_asked_for(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        old = (await lab.propose(task="Count the sheep", task_id="sheep")).subagent_id
        new = (await lab.propose(task="Count the sheep again", task_id="sheep")).subagent_id
        for query in ("", "?text=sheep", "?order=cost", "?state=ended"):
            assert old not in await listed(browser, query), query
        assert await listed(browser, "?replaced=1") == [new, old]
        assert await listed(browser, "?replaced=1&text=sheep") == [new, old]
        overview = (await browser.get("/")).text
        assert "Count the sheep again" in overview and old not in overview

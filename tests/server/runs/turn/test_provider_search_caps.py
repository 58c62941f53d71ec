"""Searches by a provider at the borders of a run: its caps, the last turn, what they cost, and what they may read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.model_server import Fail, Gate, Say, Step, run_model_server
from support.models.search_formats import ANTHROPIC, FORMATS
from support.runs.provider_search import CHEAP, KEY, LOOK, TASK, search_config, search_provider, store_key
from support.runtime import PRICED, hand_over, open_lab, wait_for

from ava_audit.events import CostReserved, ToolResult
from ava_audit.units import now_us
from ava_server.approval.proposals import Pending, pending_proposal

pytestmark = pytest.mark.usefixtures("without_keys")


async def test_a_private_address_among_the_results_is_not_read(tmp_path: Path) -> None:
    store_key(tmp_path)
    with run_model_server([Fail(200, {"secret": "of this network"})]) as inside:
        url = f"http://127.0.0.1:{inside.port}/admin"
        rows = [{"url": url, "title": "Admin"}]
        read = Say(calls=[("read_webpages", {"urls": [url]})])
        with search_provider(Fail(200, FORMATS["anthropic"].with_rows(rows))) as server:
            async with open_lab(tmp_path, [LOOK, read, hand_over()], config=search_config(server)) as lab:
                run_id = await lab.start(role="web_crawler", task=TASK, workspace=None)
                await lab.ended(run_id)
                found, opened, _handed_over = await lab.facts(run_id, ToolResult)
        assert inside.requests == []
    assert found.success and url in found.output
    assert not opened.success and "Not read" in opened.output


async def test_a_free_model_whose_searches_cost_is_not_free_in_a_table(tmp_path: Path) -> None:
    store_key(tmp_path)
    free = '[prices."custom:test"]\ninput = 0\noutput = 0\n'
    with search_provider() as server:
        async with open_lab(tmp_path, [], config=search_config(server, more=free), runs=False) as lab:
            made = await lab.propose(role="web_crawler", task=TASK, workspace=None, max_cost_cents=50)
            run = await lab.run(made.subagent_id)
            limits = lab.runtime.spawn_limits_of(run.user_id)
            waiting = await lab.store.read(lambda view: pending_proposal(view, run, limits, now_us()))
    assert isinstance(waiting, Pending) and waiting.summary is not None
    assert not waiting.free and waiting.summary.limits.startswith("$0.50, "), waiting.summary


# -- caps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caps", "more", "words"),
    [
        ({"max_cost_cents": 1}, "", ("it can take $0.01652", "max_cost_cents has", "a last turn reserved")),
        ({"max_tokens": 50_000}, "", ("it can take 61,024 tokens", "max_tokens has")),
        ({}, "[limits]\nuser_daily_cents = 1\n", ("user_daily_cents has",)),
    ],
    ids=["cost", "tokens", "day"],
)
async def test_a_search_that_does_not_fit_a_cap_is_never_sent(
    tmp_path: Path, caps: dict[str, Any], more: str, words: tuple[str, ...]
) -> None:
    store_key(tmp_path)
    with search_provider() as server:
        async with open_lab(tmp_path, [LOOK, hand_over()], config=search_config(server, more=CHEAP + more)) as lab:
            result = await lab.outcome(role="web_crawler", task=TASK, workspace=None, **caps)
            told = lab.server.requests[-1].json["messages"][-1]["content"]
    assert server.requests == [], "nothing is on the wire"
    assert all(word in told for word in (*words, "no search was made", "say in the caveats")), told
    assert (result["status"], result["tool_receipts"]["web_search"]) == ("success", {"ok": 0, "failed": 1})


async def test_a_last_turn_stays_held_while_a_search_runs(tmp_path: Path) -> None:
    store_key(tmp_path)
    gate = Gate()
    with run_model_server([Fail(200, ANTHROPIC, gate=gate)]) as server:
        async with open_lab(tmp_path, [LOOK, hand_over()], config=search_config(server, more=PRICED)) as lab:
            run_id = await lab.start(role="web_crawler", task=TASK, workspace=None, max_cost_cents=100)
            await wait_for(gate.arrived)
            first, search = await lab.facts(run_id, CostReserved)
            row = await lab.run(run_id)
            bucket = await lab.store.read(lambda view: view.bucket(run_id))
            gate.released.set()
            await lab.ended(run_id)
    assert first.wrap_micros > 10_000 and search.wrap_micros == row.wrap_micros == first.wrap_micros
    assert (bucket.held_micros, bucket.spent_micros) == (search.micros + first.wrap_micros, row.cost_micros)


async def test_concurrent_runs_share_one_cap_for_their_searches(tmp_path: Path) -> None:
    """Each holds its worst case while it waits for its answer: where both do not fit, the second one waits."""
    store_key(tmp_path)
    gate = Gate()
    with run_model_server([Fail(200, ANTHROPIC, gate=gate), Fail(200, ANTHROPIC)]) as server:
        day = "[limits]\nuser_daily_cents = 3\n"

        def script(request: dict[str, Any]) -> Step:
            return LOOK if len(request["messages"]) < 3 else hand_over()

        async with open_lab(tmp_path, script, config=search_config(server, more=CHEAP + day)) as lab:
            first = await lab.start(role="web_crawler", task=TASK, workspace=None, max_cost_cents=3)
            await wait_for(gate.arrived)
            second = await lab.start(role="web_crawler", task=TASK, workspace=None, max_cost_cents=3)
            await lab.logged(second, "MoneyAwaited")
            assert len(server.requests) == 1
            gate.released.set()
            rows = [await lab.ended(run_id) for run_id in (first, second)]
    assert [row.state for row in rows] == ["success", "success"]
    assert sum(row.cost_micros for row in rows) <= 30_000
    assert len(server.requests) == 2


# -- what is approved -----------------------------------------------------------------------------------------------


async def test_a_secret_in_a_query_is_hidden_before_it_is_sent(tmp_path: Path) -> None:
    store_key(tmp_path)
    look = Say(calls=[("web_search", {"query": f"who has {KEY}"})])
    with search_provider() as server:
        async with open_lab(tmp_path, [look, hand_over()], config=search_config(server)) as lab:
            await lab.outcome(role="web_crawler", task=TASK, workspace=None)
    (sent,) = server.requests
    assert KEY.encode() not in sent.body and b"who has" in sent.body

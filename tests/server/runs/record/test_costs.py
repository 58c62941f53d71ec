"""`ava show S-… --cost`: why a run cost what it did, from the log alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from support.model_server import Fail, Gate, HangUp, Raw, Received, Say, Step, events
from support.runtime import PRICED, Lab, allow_workspace, hand_over, open_lab, settings_of, wait_for
from support.terminal import ava

from ava_audit.events import CostReserved, CostUpdate, Event, ToolResult, Usage
from ava_audit.retention import erase_run
from ava_audit.units import format_usd
from ava_server.budget.caps import book_overrun
from ava_server.cli.show import price_text
from ava_server.models.prices import Price, nanos_of
from ava_server.runs.record.costs import ToolCost, fold_costs
from ava_server.runs.record.lifecycle import agent_of
from ava_server.service.runtime import open_runtime

CUT = Raw(events(Say("some words", usage=None))[:3], chunked=True, cut=True)
NOTE = ("scratchpad", {"note": "so far"})


def test_the_price_of_a_model_includes_what_each_call_costs() -> None:
    price = Price(3_000, 15_000, 300, 3_750, per_request=20_000_000, source="config.toml")
    rates = "per million tokens input $3, output $15, cache read $0.3, cache write $3.75"
    assert price_text(price) == f"{rates}; $0.02 a call (config.toml)"
    assert price_text(replace(price, per_request=0)) == f"{rates} (config.toml)"


@pytest.mark.requirement("N-08")
async def test_the_table_has_every_turn_and_its_figures_sum_to_the_micro_dollar(tmp_path: Path) -> None:
    script = [
        Say(calls=[NOTE], usage=used(4_001, 77, written=3_000)),
        Say(calls=[NOTE], usage=used(4_203, 133, cached=4_000, thinking=100)),
        hand_over(),
    ]
    async with open_lab(tmp_path, script, config=PRICED) as lab:
        run_id = await lab.start(name="prices", task_id="T-1", max_cost_cents=200)
        run = await lab.ended(run_id)
        text, found = await shown(lab, run_id), await as_json(lab, run_id)
    assert f'researcher "prices" ({run_id}): success' in text
    assert "task_id: T-1" in text
    row = re.search(r"^ +1 +1001 +0 +3000 +77 +0 +\$(\d\.\d+) +\d+ %$", text, re.MULTILINE)
    assert row and row[1] == f"{(1_001 * 3 + 3_000 * 3.75 + 77 * 15) / 1e6:.2f}"
    assert re.search(r"^ +2 +203 +4000 +0 +133 +100 ", text, re.MULTILINE)
    rows = re.findall(r"^ +\d .*\$(\d\.\d+) +\d+ %$", text, re.MULTILINE)
    total = re.search(r"^ +all .*\$(\d\.\d+) +100 %$", text, re.MULTILINE)
    assert total and len(rows) == 3
    costs = [round(attempt["cost_cents"] * 10_000) for attempt in found["attempts"]]
    assert [f"${cost}" for cost in (*rows, total[1])] == [format_usd(micros) for micros in (*costs, run.cost_micros)]
    saved, premium = 4_000 * 2.7, 3_000 * 0.75
    assert (saved, premium) == (10_800, 2_250)
    assert "The cache saved $0.0086: $0.01 by reading, less $0.0023 for writing." in text
    assert "Retries: $0.00\nPlanning: $0.00\nUnknown: $0.00\n" in text
    assert (found["subagent_id"], found["name"], found["task_id"]) == (run_id, "prices", "T-1")
    assert sum(round(attempt["cost_cents"] * 10_000) for attempt in found["attempts"]) == run.cost_micros
    assert sum(round(part * 10_000) for part in found["cost_by"].values()) == run.cost_micros
    assert found["cache"]["saved_cents"] == (saved - premium) / 10_000
    assert [attempt["thinking_tokens"] for attempt in found["attempts"]] == [0, 100, 0]


def shares(requests: list[Received], reports: list[dict[str, Any]], output: str) -> float:
    """What an output cost in micro-USD, from the requests themselves: its characters, cached ones at their rate."""
    micros = 0.0
    for request, report in zip(requests, reports, strict=True):
        body = request.json
        pieces = [
            len(body["messages"][0]["content"]) + sum(len(json.dumps(tool["function"])) for tool in body["tools"])
        ]
        pieces += [
            len(message["content"]) if message["role"] in ("user", "tool") else len(json.dumps(message))
            for message in body["messages"][1:]
        ]
        place = next((n for n, message in enumerate(body["messages"]) if message.get("content") == output), None)
        if place is not None:
            tokens, cached = report["prompt_tokens"], report["prompt_tokens_details"]["cached_tokens"]
            low = sum(pieces[:place]) / sum(pieces) * tokens
            high = low + pieces[place] / sum(pieces) * tokens
            read = max(0.0, min(high, cached) - low)
            micros += read * 0.3 + (high - low - read) * 3.0
    return micros


async def test_names_the_most_expensive_outputs_and_the_cost_of_resending_them(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    for name, lines in (("long.md", 400), ("short.md", 20), ("late.md", 200), ("tiny.md", 1)):
        (tmp_path / "workspace" / name).write_text("Otter charges twelve.\n" * lines)
    reads = [("read_file", {"path": name}) for name in ("long.md", "short.md", "late.md", "tiny.md")]
    reports = [used(900, 30), used(4_000, 30, cached=800), used(4_300, 30, cached=4_000), used(5_900, 30, cached=5_500)]
    script = [
        Say(calls=[reads[0]], usage=reports[0]),
        Say(calls=[reads[1], reads[3]], usage=reports[1]),
        Say(calls=[reads[2]], usage=reports[2]),
        hand_over_with(reports[3]),
    ]
    async with open_lab(tmp_path, script, config=PRICED) as lab:
        run_id = await lab.start(max_cost_cents=200)
        run = await lab.ended(run_id)
        text, found = await shown(lab, run_id), await as_json(lab, run_id)
        results = [entry for entry in await lab.entries(run_id) if isinstance(entry.fact, ToolResult)]
        requests = lab.server.requests
    named = [(output["args"]["path"], output["sent"]) for output in found["tool_outputs"]]
    assert named == [("long.md", 3), ("late.md", 1), ("short.md", 2)], "three of them, dearest first"
    for output in found["tool_outputs"]:
        [result] = [entry for entry in results if f"R-{entry.seq}" == output["id"]]
        assert isinstance(result.fact, ToolResult)
        assert output["chars"] == len(result.fact.output)
        assert output["cost_cents"] * 10_000 == pytest.approx(shares(requests, reports, result.fact.output), rel=0.03)
    assert f"  {found['tool_outputs'][0]['id']} read_file path=long.md\n" in text
    assert re.search(r"^    [\d,]+ characters, sent 3 times: \$0\.\d+$", text, re.MULTILINE)
    assert "characters, sent once: " in text
    assert "tiny.md" not in text
    assert sum(output["cost_cents"] for output in found["tool_outputs"]) < run.cost_micros / 10_000


def hand_over_with(usage: dict[str, Any]) -> Say:
    return Say(calls=hand_over().calls, usage=usage)


async def test_an_omitted_output_costs_as_much_as_the_line_that_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "long.md").write_text("Otter charges twelve.\n" * 400)
    read = Say(calls=[("read_file", {"path": "long.md"})], usage=used(2_000, 30))
    costs: list[float] = []
    for turns in (2, 3):  # with two, the second is the last one, and leaves the result out
        folder = tmp_path / str(turns)
        folder.mkdir()
        (folder / "workspace").symlink_to(tmp_path / "workspace")
        async with open_lab(folder, [read, hand_over_with(used(2_000, 30))], config=PRICED) as lab:
            run_id = await lab.start(workspace=str(tmp_path / "workspace"), max_iterations=turns, max_cost_cents=200)
            await lab.ended(run_id)
            [output, *_] = (await as_json(lab, run_id))["tool_outputs"]
            assert output["sent"] == 1
            costs.append(output["cost_cents"])
    assert costs[0] < costs[1] / 10


async def test_flags_unbilled_attempts_unknown_attempts_and_an_overrun(tmp_path: Path) -> None:
    monstrous = used(100_000, 20)
    script: list[Step] = [CUT, Say(calls=[NOTE]), Fail(429, retry_after="0"), Say(calls=[NOTE], usage=monstrous)]
    async with open_lab(tmp_path, script, config=PRICED) as lab:
        run_id = await lab.start(max_cost_cents=200, max_tokens=200_000)
        run = await lab.ended(run_id)
        text, found = await shown(lab, run_id), await as_json(lab, run_id)
    rows = re.findall(r"^ +(\d\.\d) .*? (?:\d+ %|-) ?([a-z, ]*)$", text, re.MULTILINE)
    assert rows == [("1.1", "unknown"), ("1.2", "retry"), ("2.1", "not billed"), ("2.2", "overrun")]
    first, again, refused, last = found["attempts"]
    assert (first["settlement"], again["booked_under"], refused["cost_cents"]) == ("unknown", "retries", 0)
    assert last["overrun"] is True
    assert found["retries_cents"] == again["cost_cents"] > 0
    assert found["unknown"] == {"attempts": 1, "cost_cents": first["cost_cents"]}
    assert "the most that it can be, for 1 attempt" in text
    assert sum(round(attempt["cost_cents"] * 10_000) for attempt in found["attempts"]) == run.cost_micros


async def test_a_late_answers_cost_takes_the_place_of_the_unknown_one_in_an_outputs_share(tmp_path: Path) -> None:
    gate = Gate()
    script: list[Step] = [Say(calls=[NOTE]), HangUp(), replace(hand_over(), gate=gate)]
    async with open_lab(tmp_path, script, config=PRICED, check=False) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        [unknown] = await shares_of_outputs(lab, run_id)
        lost = (await lab.facts(run_id, CostUpdate))[-1]
        held = (await lab.facts(run_id, CostReserved))[1]
        booked = round(lost.cost_cents * 10_000)
        late = lost.model_copy(update={"settlement": "billed", "overrun": True, "cost_by": {"input": booked + 5_000}})
        used_all = Usage(input_tokens=held.prompt_tokens, output_tokens=held.max_output)
        agent = agent_of(await lab.run(run_id))
        answer = Event(agent, late, cost_micros=booked + 5_000, model="custom:test", usage=used_all)
        assert await lab.store.do(book_overrun(run_id, answer))
        [known] = await shares_of_outputs(lab, run_id)
        assert (unknown.sent, known.sent) == (1, 1)
        assert known.micros == pytest.approx(unknown.micros * (booked + 5_000) / booked)
        gate.released.set()
        await lab.ended(run_id)
        after = next(each for each in await shares_of_outputs(lab, run_id) if each.seq == known.seq)
        assert after.sent == 2 and after.micros > known.micros


async def shares_of_outputs(lab: Lab, run_id: str) -> list[ToolCost]:
    return list(fold_costs(await lab.run(run_id), await lab.entries(run_id)).outputs or ())


async def test_a_running_run_shows_its_reserved_cost_and_a_pending_one_shows_no_cost(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say(calls=[NOTE]), Say("x", gate=gate)], config=PRICED) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        waiting = await lab.propose(task="Another")
        text, found = await shown(lab, run_id), await as_json(lab, run_id)
        assert re.search(r"^ +2 +- .* in flight$", text, re.MULTILINE)
        assert re.search(r"^Not spent: \$0\.\d\d reserved for work in progress$", text, re.MULTILINE)
        assert [attempt["settlement"] for attempt in found["attempts"]] == ["billed", "in_flight"]
        assert "No model call was made, so nothing was spent." in await shown(lab, waiting.pending_id)
        await lab.call("cancel_subagent", subagent_id=run_id)


async def test_an_erased_run_keeps_its_figures_and_says_that_its_tool_outputs_are_gone(tmp_path: Path) -> None:
    script = [Say(calls=[NOTE], usage=used(4_000, 77, cached=1_000)), hand_over()]
    async with open_lab(tmp_path, script, config=PRICED, check=False) as lab:
        run_id = await lab.start(max_cost_cents=30)
        await lab.ended(run_id)
        before, screen = await as_json(lab, run_id), await shown(lab, run_id)
        await erase_run(lab.store, run_id, (), lab.session.who, "asked for")
        after, text = await as_json(lab, run_id), await shown(lab, run_id)
    assert before["tool_outputs"] and after["tool_outputs"] is None
    assert {**before, "tool_outputs": None} == after
    assert "The tool outputs are gone: this run's content was erased. Its figures stay." in text
    assert "scratchpad" in screen and "scratchpad" not in text


async def test_a_free_run_shows_tokens_but_no_shares(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [Say(calls=[NOTE], usage=used(4_000, 77)), hand_over()]) as lab:
        run_id = await lab.start()
        await lab.ended(run_id)
        text, found = await shown(lab, run_id), await as_json(lab, run_id)
    assert "free (local)" in text
    assert re.search(r"^ +1 +4000 +0 +0 +77 +0 +\$0\.00 +-$", text, re.MULTILINE)
    assert (found["cost_cents"], found["cost_by"]) == (0, {})
    assert "sent once: $0.00" in text


async def test_names_who_raised_or_lowered_a_cap_and_where(tmp_path: Path) -> None:
    limits = "[limits]\nmax_timeout_s = 900\nuser_daily_cents = 60\n"
    async with open_lab(tmp_path, lambda _request: hand_over(), config=limits + PRICED) as lab:
        one = await lab.propose(max_cost_cents=80, timeout=3_600, max_iterations=5)
        two = await lab.propose(task="Another")
        line = "2 subagents together, at most $0.90 and 5 min"
        changes = {one.pending_id: {"caps": {"max_cost_cents": 70, "max_tool_calls": 9}}}
        given = {"changes": changes, "group_max_cost_cents": 90, "group_timeout": 300}
        answer = await lab.approve(one, two, last=line, **given)
        assert answer.status == "approved", answer
        for each in (one, two):
            await lab.ended(each.subagent_id)
        text, found = await shown(lab, one.subagent_id), await as_json(lab, one.subagent_id)
        whats = [note["what"] for note in found["caps"]]
    assert whats[:4] == [
        "timeout was asked as 3,600, and lowered to the hard cap of 900",
        "timeout raised from the role's 10 min to 60 min by the proposal itself",
        "max_cost_cents raised from the role's $0.50 to $0.80 by the proposal itself",
        "max_iterations lowered from the role's 20 to 5 by the proposal itself",
    ]
    assert "max_cost_cents lowered to $0.70 at the approval by a call of the host" in whats
    assert "max_tool_calls lowered to 9 at the approval by a call of the host" in whats
    assert f"the plan {answer.group_id} set at most $0.90 and 5 min for all of its runs at its approval" in whats
    assert "limits.user_daily_cents in config.toml was $0.60, below the run's own cap of $0.70" in whats
    assert "Who raised or lowered a cap:" in text
    assert all(what.split(" ")[0] in text for what in whats)


async def test_names_a_daily_budget_that_changed_during_the_run(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say(calls=hand_over().calls, gate=gate)], config=PRICED, check=False) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        config = allow_workspace("[limits]\nuser_daily_cents = 400\n" + PRICED, lab.workspace)
        async with open_runtime(settings_of(lab.root, lab.server.base_url, config)):
            gate.released.set()
            await lab.ended(run_id)
        whats = [note["what"] for note in (await as_json(lab, run_id))["caps"]]
        screen = await shown(lab, run_id)
    assert whats == ["limits.user_daily_cents was lowered from $10.00 to $4.00 in config.toml while it ran"]
    assert "while it ran" in " ".join(screen.split())


async def test_the_costs_of_every_settled_run_add_up_from_its_entries_alone(tmp_path: Path) -> None:
    script = [CUT, CUT]
    async with open_lab(tmp_path, script, config=PRICED) as lab:
        run_id = await lab.start(max_cost_cents=200)
        run = await lab.ended(run_id)
        entries = await lab.entries(run_id)
    costs = fold_costs(run, entries)
    assert costs.micros == sum(costs.cost_by.values()) == run.cost_micros
    assert [attempt.purpose for attempt in costs.attempts] == [None, "retries"]
    assert costs.cache.saved == costs.cache.premium == 0
    assert sum(entry.fact.tokens for entry in entries if isinstance(entry.fact, CostUpdate)) == run.tokens


def test_prices_each_token_class_at_the_rates_of_its_step() -> None:
    usage = Usage(input_tokens=10, cache_read_tokens=5, output_tokens=2)
    assert nanos_of(Price(3, 7, 1, 4), usage) == {"input": 30, "cache": 5, "output": 14, "thinking": 0}


def used(prompt: int, output: int, cached: int = 0, written: int = 0, thinking: int = 0) -> dict[str, Any]:
    """Figures as OpenRouter reports them."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "completion_tokens_details": {"reasoning_tokens": thinking},
    }


async def shown(lab: Lab, run_id: str, *more: str) -> str:
    """The screen, which 80 columns suffice for."""
    done = await anyio.to_thread.run_sync(lambda: ava(lab.root, "show", run_id, "--cost", "--utc", *more))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == f"Data root: {lab.root}"
    assert [line for line in lines if len(line) > 80] == []
    return done.stdout


async def as_json(lab: Lab, run_id: str) -> dict[str, Any]:
    done = await anyio.to_thread.run_sync(lambda: ava(lab.root, "show", run_id, "--cost", "--json"))
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value

"""Approved money buys work: in every language, at every price, and with small caps; what cannot work is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Say, Step
from support.runtime import DONE, Lab, hand_over, open_lab
from support.sample import sample

from ava_audit.events import CostReserved, CostUpdate
from ava_server.models.model_choice import default_tiers
from ava_server.models.prices import Price, look_up
from ava_server.models.providers import PROVIDERS

BALANCED = """
[prices."custom:test"]
input = 2.0
output = 10.0
cache_read = 0.1
cache_write = 2.5
"""
LANGUAGES = {
    "Russian": ("Оператор берёт двенадцать центов за минуту. ", 0.4),
    "Greek": ("Ο πάροχος χρεώνει δώδεκα λεπτά το λεπτό. ", 0.7),
    "Arabic": ("يتقاضى المشغل اثني عشر سنتا عن كل دقيقة. ", 0.7),
    "Hindi": ("ऑपरेटर प्रति मिनट बारह सेंट लेता है। ", 0.9),
    "Chinese": ("运营商每分钟收费十二美分，夜间免费。", 0.9),
    "Japanese": ("通信会社は一分ごとに十二セントを請求します。", 1.0),
}
"""A sentence, and how many tokens common tokenizers need for each of its characters at most."""


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("role", sample(["researcher", "data_extractor", "code_reviewer"], 1))
async def test_a_long_file_in_any_script_reaches_the_model_with_the_default_caps(
    tmp_path: Path, role: str, language: str
) -> None:
    sentence, _rate = LANGUAGES[language]
    async with open_lab(tmp_path, reads(2), config=BALANCED) as lab:
        lines = "\n".join([sentence * 5] * (15_000 // (len(sentence) * 5)))
        write(lab, 2, lines)
        run = await lab.ended(await lab.start(role=role))
        assert run.state == "success", run.stop_reason
        assert len(re.findall(re.escape(sentence.strip()), shown(lab, 1))) > 250, "all of it was shown"
        assert run.cost_micros < 500_000


async def test_ten_cents_buy_a_look_up_at_the_price_of_the_balanced_tier(tmp_path: Path) -> None:
    async with open_lab(tmp_path, reads(3, cached=True), config=BALANCED) as lab:
        write(lab, 3, "Twelve cents a minute.\n" * 100)
        run = await lab.ended(await lab.start(max_cost_cents=10))
    assert (run.state, run.tool_calls) == ("success", 3)
    assert run.cost_micros < 100_000


@pytest.mark.parametrize("cents", [1, 5])
async def test_a_cap_that_buys_no_work_is_refused_at_the_proposal_with_the_figure(tmp_path: Path, cents: int) -> None:
    async with open_lab(tmp_path, [], config=BALANCED) as lab:
        made = await lab.call("spawn_subagent", role="researcher", task="Compare", max_cost_cents=cents)
        assert made.status == "failed" and made.pending_id is None
        figures = re.search(
            r"first call alone can cost \$0\.0\d; give max_cost_cents (\d+) or more \(\$0\.(\d\d)\)", made.message
        )
        assert figures, made.message
        least = int(figures[1])
        assert 5 < least <= 12 and int(figures[2]) == least
        enough = await lab.call("spawn_subagent", role="researcher", task="Compare", max_cost_cents=least)
        assert enough.status == "awaiting_approval", enough.message
        assert not lab.server.requests


@pytest.mark.slow
@pytest.mark.parametrize("role", ["researcher", "data_extractor", "code_reviewer"])
async def test_the_advised_budget_of_a_look_up_is_enough_with_every_shipped_tier(tmp_path: Path, role: str) -> None:
    for number, (provider, tiers) in enumerate(default_tiers().items()):
        for tier, name in tiers.items():
            price = look_up(provider, name, base_url=PROVIDERS[provider].base_url)
            assert isinstance(price, Price)
            step = price.steps[0] if price.steps else price
            kinds = ("input", "output", "cache_read", "cache_write")
            config = '[prices."custom:test"]\n' + "".join(f"{kind} = {getattr(step, kind) / 1000}\n" for kind in kinds)
            folder = tmp_path / f"{number}-{tier}"
            folder.mkdir()
            async with open_lab(folder, [], config=config) as lab:
                made = await lab.call(
                    "spawn_subagent", role=role, task="Compare", workspace=str(lab.workspace), max_cost_cents=25
                )
                assert made.status == "awaiting_approval", (provider, tier, made.message)


async def test_a_free_local_model_without_a_cache_is_not_ended_by_tokens(tmp_path: Path) -> None:
    async with open_lab(tmp_path, reads()) as lab:
        write(lab, 30, "Twelve cents a minute.\n" * 250)
        run = await lab.ended(await lab.start())
    assert (run.state, run.turns) == ("iteration_limit", 20)
    assert run.tokens > 200_000, "it counted every prompt in full"


@pytest.mark.slow
@pytest.mark.parametrize("text", ["Background. ", LANGUAGES["Russian"][0], LANGUAGES["Chinese"][0]])
async def test_the_largest_task_and_context_run_to_an_answer_or_are_refused_with_the_figure(
    tmp_path: Path, text: str
) -> None:
    task, context = (text * 10_000)[:100_000], (text * 20_000)[:200_000]
    async with open_lab(tmp_path, reads(1), config=BALANCED) as lab:
        write(lab, 1, "Twelve cents a minute.\n")
        asked = {"role": "researcher", "task": task, "context": context}
        made = await lab.call("spawn_subagent", **asked)
        figure = re.search(r"give max_cost_cents (\d+) or more", made.message)
        assert made.status == "failed" and figure, made.message
        if int(figure[1]) > 500:  # above the hard cap: it cannot run here at this price
            return
        made = await lab.call("spawn_subagent", **asked, max_cost_cents=int(figure[1]))
        assert made.status == "awaiting_approval", made.message
        await lab.approve(made)
        run = await lab.ended(made.subagent_id)
        assert run.state == "success", run.stop_reason


async def test_the_largest_task_runs_with_a_free_model(tmp_path: Path) -> None:
    async with open_lab(tmp_path, reads(1)) as lab:
        write(lab, 1, "Twelve cents a minute.\n")
        chinese = (LANGUAGES["Chinese"][0] * 20_000)[:200_000]
        run = await lab.ended(await lab.start(task=chinese[:100_000], context=chinese))
    assert run.state == "success", run.stop_reason


async def test_a_result_that_does_not_fit_is_shown_in_part_and_can_be_read_on(tmp_path: Path) -> None:
    sentence = LANGUAGES["Russian"][0]
    offsets: list[int] = []

    def step(request: dict[str, Any]) -> Step:
        last = str(request["messages"][-1]["content"])
        cut = re.search(
            r"\[cut: ([\d,]+) of [\d,]+ characters; read_tool_result (R-\d+) with offset (\d+) goes on\]", last
        )
        if cut and not told_to_end(request):
            offsets.append(int(cut[3]))
            calls = [("read_tool_result", {"id": cut[2], "offset": int(cut[3])})]
            return Say("On.", calls=calls, usage=usage(request))
        if told_to_end(request) or turns_of(request) > 0:
            return Say("Done.", calls=[DONE], usage=usage(request))
        return Say("Reading.", calls=[("read_file", {"path": "0.md"})], usage=usage(request))

    async with open_lab(tmp_path, step, config=BALANCED) as lab:
        write(lab, 1, "\n".join([sentence * 3] * 110))
        run_id = await lab.start(max_cost_cents=10)
        run = await lab.ended(run_id)
        reserved = await lab.facts(run_id, CostReserved)
    assert offsets and offsets[0] >= 500, "the model saw a part of it, and how to read on"
    assert any(fact.cut for fact in reserved)
    assert run.cost_micros <= 100_000
    assert run.state in ("success", "cost_exceeded")


async def test_the_measured_ratio_is_used_where_bytes_do_not_fit_and_is_on_record(tmp_path: Path) -> None:
    async with open_lab(tmp_path, reads(8, cached=True), config=BALANCED) as lab:
        write(lab, 8, "\n".join([LANGUAGES["Chinese"][0] * 4] * 80))
        first = await lab.start(max_cost_cents=50)
        await lab.ended(first)
        measured = [fact.tokens_per_byte for fact in await lab.facts(first, CostUpdate)]
        assert measured[0] is None and all(0.2 < ratio < 0.5 for ratio in measured[1:-1] if ratio is not None)
        second = await lab.start(max_cost_cents=14)
        await lab.ended(second)
        reserved = await lab.facts(second, CostReserved)
        settled = await lab.facts(second, CostUpdate)
    by_ratio = [fact for fact in reserved if fact.byte_tokens is not None]
    assert by_ratio and all(0.4 < (fact.byte_tokens or 0) < 1 for fact in by_ratio)
    assert not any(fact.overrun for fact in settled)


async def test_a_bill_above_the_ratio_is_booked_in_full_as_an_overrun_and_ends_the_run(tmp_path: Path) -> None:
    def step(request: dict[str, Any]) -> Step:
        turn = turns_of(request)
        reported = usage(request, cached=turn != 3)
        if turn == 3:  # a tokenizer that needs a token for each byte of the newest text
            newest = request["messages"][-1]
            before = usage({**request, "messages": request["messages"][:-1]})["prompt_tokens"]
            reported["prompt_tokens"] = before + len(json.dumps(newest, ensure_ascii=False).encode())
        return Say("Next.", calls=[("read_file", {"path": f"{turn}.md"})], usage=reported)

    async with open_lab(tmp_path, step, config=BALANCED) as lab:
        write(lab, 8, "Twelve cents a minute.\n" * 60)
        (lab.workspace / "2.md").write_text("\n".join([LANGUAGES["Chinese"][0] * 4] * 260), "utf-8")
        run_id = await lab.start(max_cost_cents=10)
        run = await lab.ended(run_id)
        settled = await lab.facts(run_id, CostUpdate)
        reserved = await lab.facts(run_id, CostReserved)
    assert reserved[3].byte_tokens is not None
    assert [fact.overrun for fact in settled] == [False, False, False, True], "and no call was sent after it"
    assert run.overrun and run.state == "cost_exceeded"
    over = run.cost_micros - 100_000
    most = reserved[3].new_bytes * (1 - (reserved[3].byte_tokens or 0)) * 2.5
    assert 0 < over <= most, "the cap is passed, by at most what the bytes would have added"


async def test_a_provider_that_reports_no_growth_does_not_make_new_text_free(tmp_path: Path) -> None:
    def step(request: dict[str, Any]) -> Step:
        if told_to_end(request) or turns_of(request) == 6:
            return hand_over()
        stuck = {"prompt_tokens": 4_000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 3_900}}
        return Say("Next.", calls=[("read_file", {"path": f"{turns_of(request)}.md"})], usage=stuck)

    async with open_lab(tmp_path, step, config=BALANCED) as lab:
        write(lab, 8, "Twelve cents a minute.\n" * 700)
        run_id = await lab.start(max_cost_cents=12)
        await lab.ended(run_id)
        reserved = await lab.facts(run_id, CostReserved)
    counted = [fact.byte_tokens for fact in reserved if fact.byte_tokens is not None]
    assert counted and min(counted) >= 0.25


async def test_a_small_cap_reserves_a_small_answer(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over(), hand_over()], config=BALANCED) as lab:
        small, large = await lab.start(max_cost_cents=12), await lab.start(max_cost_cents=100)
        for run_id in (small, large):
            await lab.ended(run_id)
        (of_small,) = await lab.facts(small, CostReserved)
        (of_large,) = await lab.facts(large, CostReserved)
    assert of_large.max_output == 4_096
    assert 1_024 <= of_small.max_output < 3_100
    assert of_small.wrap_micros < of_small.micros * 2


async def test_the_proposal_says_how_many_turns_the_cap_buys_at_least(tmp_path: Path) -> None:
    async with open_lab(tmp_path, reads(), config=BALANCED) as lab:
        write(lab, 30, "Twelve cents a minute.\n" * 400)
        made = await lab.propose(max_cost_cents=40)
        promised = re.search(
            r"Its cost cap is enough for at least (\d+) of its \d+ turns, even if each model call costs as much as it",
            made.message,
        )
        assert promised, made.message
        await lab.approve(made)
        run = await lab.ended(made.subagent_id)
    assert run.turns >= int(promised[1]) > 3


async def test_an_approval_may_not_lower_the_cap_below_what_buys_work(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config=BALANCED) as lab:
        made = await lab.propose()
        changes = {made.pending_id: {"caps": {"max_cost_cents": 3}}}
        refused = await lab.approve(made, changes=changes)
        (decision,) = refused.decisions
        assert "buys no useful work" in decision.refused_because and "give $0.1" in decision.refused_because
        changes = {made.pending_id: {"caps": {"max_cost_cents": 12}}}
        approved = await lab.approve(made, changes=changes)
        assert approved.decisions[0].status in ("queued", "approved", "running"), approved.decisions[0]
        await lab.ended(made.subagent_id)


@pytest.mark.slow
async def test_ten_runs_share_one_dollar_and_never_pass_it(tmp_path: Path) -> None:
    async with open_lab(tmp_path, reads(2, cached=True), config=BALANCED + "[limits]\nrunning_per_user = 10\n") as lab:
        write(lab, 3, "\n".join([LANGUAGES["Russian"][0] * 4] * 30))
        made = [await lab.propose(task=f"Part {number}") for number in range(10)]
        asked = await lab.approve(*made, group_max_cost_cents=100)
        line = asked.decisions[0].refused_because
        last = re.search(r"(10 subagents together, at most \$1(?:\.00)?)", f"{line} {asked}")
        assert last, asked
        answer = await lab.approve(*made, group_max_cost_cents=100, last=last[1])
        runs = [await lab.ended(each.subagent_id, 60) for each in made]
    assert answer.status == "approved", answer
    assert sum(run.cost_micros for run in runs) <= 1_000_000
    assert [run.state for run in runs].count("success") >= 8


@pytest.mark.parametrize("reported", [None, {"prompt_tokens": 1, "completion_tokens": 1}])
async def test_a_provider_that_reports_nothing_usable_costs_the_reservation_and_passes_no_cap(
    tmp_path: Path, reported: dict[str, Any] | None
) -> None:
    def step(request: dict[str, Any]) -> Step:
        if told_to_end(request):
            return Say("Done.", calls=[DONE], usage=reported)
        return Say("Next.", calls=[("read_file", {"path": f"{turns_of(request)}.md"})], usage=reported)

    async with open_lab(tmp_path, step, config=BALANCED) as lab:
        write(lab, 30, "\n".join([LANGUAGES["Chinese"][0] * 4] * 60))
        run_id = await lab.start(max_cost_cents=50)
        run = await lab.ended(run_id)
        settled = await lab.facts(run_id, CostUpdate)
    assert run.cost_micros <= 500_000
    assert {fact.settlement for fact in settled} == {"unknown"}
    assert run.tool_calls >= 2


def usage(request: dict[str, Any], *, cached: bool = False, output: int = 60) -> dict[str, Any]:
    """The usage that a provider reports: a quarter of a token for an ASCII character, one for any other."""
    text = json.dumps(request, ensure_ascii=False)
    ascii_only = len(text.encode("ascii", "ignore"))
    prompt = ascii_only // 4 + len(text) - ascii_only
    details = {"cached_tokens": prompt * 9 // 10} if cached else {}
    return {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}


def turns_of(request: dict[str, Any]) -> int:
    return sum(message["role"] == "assistant" for message in request["messages"])


def told_to_end(request: dict[str, Any]) -> bool:
    return "This is the last turn" in str(request["messages"][-1]["content"])


def reads(count: int = 100, *, cached: bool = False) -> Any:
    """A model that reads a file each turn, and hands over after `count` or when it is told to."""

    def step(request: dict[str, Any]) -> Step:
        turn = turns_of(request)
        calls = [DONE] if turn >= count or told_to_end(request) else [("read_file", {"path": f"{turn}.md"})]
        is_warm = cached and turn > 0
        return Say("Next.", calls=calls, usage=usage(request, cached=is_warm))

    return step


def write(lab: Lab, count: int, text: str) -> None:
    for number in range(count):
        (lab.workspace / f"{number}.md").write_text(text, "utf-8")


def shown(lab: Lab, call: int) -> str:
    return str(lab.server.requests[call].json["messages"][-1]["content"])

"""A model that counts as free: what is said where its endpoint bills, and where its price has another name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.commands.doctor import doctor
from support.model_server import Say
from support.runtime import hand_over, open_lab
from support.terminal import ava

from ava_audit.units import now_us
from ava_server.cli.results import result_text
from ava_server.models.model_choice import ModelSettings, Provider, unknown_prices
from ava_server.models.prices import UserPrice
from ava_server.render.host_text import text_of
from ava_server.render.responses import RunAnswer
from ava_server.render.run_view import cost_of, limits_of, run_answer, view_run

BILLED = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120, "cost": 0.02}
NOTE = Say(calls=[("scratchpad", {"note": "n"})], usage=BILLED)
DONE = Say(calls=[("submit_result", {"summary": "Done."})], usage=BILLED)
LINES = '[prices."custom:test"]\ninput = …\noutput = …'
PRICE = UserPrice(1, 1)


@pytest.mark.parametrize(("step", "state", "cost"), [(NOTE, "cost_exceeded", "$0.02"), (DONE, "success", "$0.02")])
async def test_a_billed_run_of_a_free_model_ends_with_the_price_to_add_and_is_not_called_free(
    tmp_path: Path, step: Say, state: str, cost: str
) -> None:
    async with open_lab(tmp_path, [step, hand_over()]) as lab:
        run_id = await lab.start()
        run = await lab.ended(run_id)
        assert (run.state, run.cost_micros, run.overrun) == (state, 20_000, 1)
        answer = await lab.call("check_subagent", subagent_id=run_id)
        shown = await lab.store.read(lambda view: view_run(view, run, lab.runtime.instances, now_us()))
        [one] = answer.runs
    assert one.advice.endswith(LINES) and f"counts as free, but its endpoint billed {cost}" in one.advice
    assert json.loads(run_answer(shown).model_dump_json())["advice"] == one.advice
    for text in (text_of(answer), result_text(RunAnswer.model_validate(one.model_dump()))):
        assert LINES in text and cost in text
        assert "free" not in text.replace("counts as free", "") and "provider's own limits" not in text
    assert not shown.free and cost_of(shown).startswith(cost) and "max_cost_cents" in (limits_of(shown) or {})
    if state != "success":
        assert run.stop_reason == f"custom:test counts as free, but its endpoint billed {cost}"
    costs = ava(tmp_path / "data", "show", run_id, "--cost")
    assert costs.returncode == 0 and "billed" in costs.stdout and "(local)" not in costs.stdout
    assert "free" not in costs.stdout.partition("\n")[2].replace("counts as free", ""), "the first line is a path"


async def test_a_free_model_that_bills_nothing_is_free_and_needs_no_price(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        run_id = await lab.start()
        run = await lab.ended(run_id)
        shown = await lab.store.read(lambda view: view_run(view, run, lab.runtime.instances, now_us()))
        assert (await lab.check(run_id)).advice is None
    assert shown.free and cost_of(shown) == "free"


SETTINGS = ModelSettings(
    base_url="http://127.0.0.1:9/v1",
    model="test",
    tiers={"fast": "local:qwen3"},
    providers={"local": Provider("http://127.0.0.1:8/v1"), "anthropic": Provider(api_key="k")},
)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("custom:test", None), ("test", None), ("local:qwen3", None), ("qwen3", None),
        ("claude-sonnet-4-5", None), ("anthropic:claude-sonnet-4-5", None), ("openai:gpt-4.1", None),
        ("custom:role-model", None), ("role-model", None),
        ("custom:tst", "custom:test"), ('"custom:test"', "custom:test"), ("Custom:scripted", "custom:test"),
        ("qwen", ""), ("anthropic:qwen3", "local:qwen3"), ("nosuch", ""), ("anthropic:claude-sonnet-99", ""),
    ],
)  # fmt: skip
def test_a_price_is_known_by_the_table_or_by_what_settings_and_roles_name(key: str, near: str | None) -> None:
    prices: Mapping[str, UserPrice] = {key: PRICE}
    settings = ModelSettings(SETTINGS.base_url, None, SETTINGS.model, SETTINGS.tiers, SETTINGS.providers, prices)
    found = unknown_prices(settings, ["balanced", "role-model"])
    assert found == ({} if near is None else {key: found[key]})
    assert near is None or found[key] == near


WRONG = "[prices.'\"custom:test\"']\ninput = 3\noutput = 15\n"
SAYS = '[prices."\\"custom:test\\""] in config.toml belongs to no known model; did you mean [prices."custom:test"]?'


async def test_the_proposal_of_a_free_model_names_a_price_that_may_be_meant_for_it(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=WRONG) as lab:
        message = (await lab.call("spawn_subagent", role="custom", task="t", system_prompt="You count.")).message
    assert SAYS in message and "(free)" in message
    async with open_lab(tmp_path, config=f"{WRONG}{WRONG.replace(chr(34), '')}") as lab:
        message = (await lab.call("spawn_subagent", role="custom", task="t", system_prompt="You count.")).message
    assert "no known model" not in message, "its own price was found"


def test_doctor_warns_of_a_price_of_no_known_model_and_its_step_removes_it(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(WRONG)
    endpoint = {"AVA_MODEL_BASE_URL": "http://127.0.0.1:9/v1", "AVA_MODEL": "test"}
    found = doctor(tmp_path, **endpoint)["prices"]
    assert (found["state"], found["text"]) == ("warning", SAYS)
    step = 'ava config unset \'prices."\\"custom:test\\""\''
    assert step in found["what_to_do"]
    assert ava(tmp_path, "config", "unset", 'prices."\\"custom:test\\""').returncode == 0
    assert "prices" not in doctor(tmp_path, **endpoint)

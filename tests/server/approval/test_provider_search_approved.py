"""What an approval says of searches by a model provider, and which provider searches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from support.model_server import run_model_server
from support.runs.provider_search import KEY, LOOK, TASK, search_config, search_finding, search_provider, store_key
from support.runtime import hand_over, open_lab
from support.stdio import until

from ava_audit.events import RunClaimed, SpawnProposed
from ava_server.config.keys import remove_key

pytestmark = pytest.mark.usefixtures("without_keys")


async def test_the_approval_covers_the_engine_its_model_and_its_price(tmp_path: Path) -> None:
    store_key(tmp_path)
    digests: list[str] = []
    with search_provider() as server, run_model_server([]) as own_model:
        for number, cents in enumerate((0.1, 0.1, 0.2)):
            own = search_config(server).replace("input = 0.1\n", f"input = {cents}\n")
            root = tmp_path / str(number)
            root.mkdir()
            async with open_lab(root, server=own_model, config=own) as lab:
                made = await lab.propose(role="web_crawler", task=TASK, workspace=None)
                (proposed,) = await lab.facts(made.subagent_id, SpawnProposed)
                assert made.message.count("anthropic:claude-haiku-5-5") == 1
            call = proposed.config["search_call"]
            assert (proposed.config["search"], call["model"]) == ("anthropic", "anthropic:claude-haiku-5-5")
            digests.append(proposed.digest)
    assert digests[0] == digests[1] != digests[2]


async def test_a_search_engine_with_a_key_comes_before_the_model_provider(tmp_path: Path) -> None:
    store_key(tmp_path, "kagi")
    store_key(tmp_path)
    with search_provider() as server:
        auto = search_config(server, engine="auto")
        async with open_lab(tmp_path, [], config=auto) as lab:
            made = await lab.propose(role="web_crawler", task=TASK, workspace=None)
            assert "Its web searches go to Kagi" in made.message
            remove_key("kagi", tmp_path / "data" / "keys.toml")
            refused = await lab.call("spawn_subagent", role="web_crawler", task=TASK)
            assert "needs web_search" in refused.message, "an endpoint on this machine is not Anthropic"


async def test_auto_takes_the_provider_of_each_runs_own_model(tmp_path: Path) -> None:
    for name in ("anthropic", "openai"):
        store_key(tmp_path, name)
    async with open_lab(tmp_path, [], env={"AVA_MODEL_BASE_URL": "", "AVA_MODEL": ""}, runs=False) as lab:
        for model, told in (
            (None, "Its web searches go to Anthropic (anthropic:claude-haiku-5-5), at most $0.018852 each"),
            ("openai:gpt-6.1-terra", "Its web searches go to OpenAI (openai:gpt-6-luna), at most $0.027032 each"),
        ):
            made = await lab.propose(role="researcher", task=TASK, workspace=None, model=model)
            assert told in made.message, made.message


async def test_a_run_waits_if_its_provider_is_not_configured_or_has_another_address(tmp_path: Path) -> None:
    store_key(tmp_path)
    with search_provider() as server, run_model_server([hand_over()]) as own:
        async with open_lab(tmp_path, server=own, config=search_config(server), runs=False) as lab:
            made = await lab.propose(role="web_crawler", task=TASK, workspace=None)
            await lab.approve(made)
        moved = search_config(server).replace("127.0.0.1", "localhost")
        off = search_config(server, engine="none")
        for changed, why in ((moved, "it was approved for http://127.0.0.1"), (off, "(anthropic) is switched off")):
            async with open_lab(tmp_path, server=own, config=changed) as lab:
                waits = await until(partial(lab.runtime.manager.waiting_for.get, made.subagent_id))
                assert why in waits
                assert await lab.facts(made.subagent_id, RunClaimed) == []


async def test_a_run_with_a_free_model_is_not_free_when_its_searches_cost_money(tmp_path: Path) -> None:
    store_key(tmp_path)
    with search_provider() as server:
        async with open_lab(tmp_path, [LOOK, hand_over()], config=search_config(server, more="")) as lab:
            made = await lab.propose(role="web_crawler", task=TASK, workspace=None)
            assert "at most $0.50 and 10 min" in made.approval_line and "costs at most $0.50" in made.message
            await lab.approve(made)
            row = await lab.ended(made.subagent_id)
    assert row.cost_micros == 10_651


@pytest.mark.parametrize(("cents", "starts"), [(500, True), (10, False)])
async def test_auto_approval_counts_the_searches_of_a_provider_in_its_ceilings(
    tmp_path: Path, cents: int, starts: bool
) -> None:
    store_key(tmp_path)
    auto = f'approval = "auto"\nauto_approve_cents = {cents}\nauto_approve_daily_cents = 500\n'
    fetch = '[fetch]\nhosts = ["example.org"]\n'
    with search_provider() as server:
        async with open_lab(tmp_path, [hand_over()], config=auto + search_config(server) + fetch) as lab:
            made = await lab.call("spawn_subagent", role="web_crawler", task=TASK, blocked_tools=["python_exec"])
            assert made.status == ("approved" if starts else "awaiting_approval"), made.message
            if starts:
                await lab.ended(made.subagent_id)


@pytest.mark.slow
def test_the_doctor_names_the_provider_that_searches_and_its_price(tmp_path: Path) -> None:
    names: Sequence[tuple[str, str]] = (
        ("ANTHROPIC_API_KEY", "Anthropic (anthropic:claude-haiku-5-5), at most $0.018852 each, included in its caps"),
        ("OPENAI_API_KEY", "OpenAI (openai:gpt-6-luna), at most $0.027032 each, included in its caps"),
        ("OPENROUTER_API_KEY", "OpenRouter (openrouter:anthropic/claude-haiku-5.5), at most $0.0"),
    )
    for variable, text in names:
        state, told = search_finding(tmp_path, **{variable: KEY})
        assert state == "ok" and told.startswith(text), told
    assert "none is set up" in search_finding(tmp_path, GROQ_API_KEY=KEY)[1]
    state, told = search_finding(tmp_path, AVA_SEARCH__ENGINE="openai", ANTHROPIC_API_KEY=KEY)
    assert state == "warning" and "search.engine is openai, and there is no key for it" in told
    assert "Kagi" in search_finding(tmp_path, KAGI_API_KEY=KEY, ANTHROPIC_API_KEY=KEY)[1]
    assert search_finding(tmp_path, AVA_SEARCH__ENGINE="none", ANTHROPIC_API_KEY=KEY)[0] == "note"

"""What a spawn would run is resolved, checked and shown before anybody is asked."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.log import Life
from support.model_server import Fail, run_model_server
from support.runtime import PRICED, Lab, hand_over, open_lab

from ava_audit.events import RunEnded, SpawnProposed, UserMessage
from ava_server.approval.requests import Caps, SpawnArgs
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig
from ava_server.run_config.digest import digest
from ava_server.run_config.run_cap import CAPS, stored_caps


async def test_a_role_with_web_access_reads_files_only_in_an_explicit_workspace(tmp_path: Path) -> None:
    async with open_lab(tmp_path, env={"AVA_WORKSPACE": str(tmp_path / "workspace")}) as lab:
        without = await lab.call("spawn_subagent", role="researcher", task="look")
        given = await lab.propose()
    assert "read_file" not in without.tools and "read_file" in without.unavailable_tools
    assert "it cannot read your files" in without.message
    assert "read_file" in given.tools
    assert f"can read {lab.workspace} and reach the web" in given.approval_line


async def test_a_spawn_without_web_tools_can_read_the_default_workspace(tmp_path: Path) -> None:
    async with open_lab(tmp_path, env={"AVA_WORKSPACE": str(tmp_path / "workspace")}) as lab:
        answer = await lab.call("spawn_subagent", role="researcher", task="look", tools=["read_file"])
    assert "read_file" in answer.tools and "read_webpages" not in answer.tools
    assert f"can read {lab.workspace}:" in answer.approval_line


async def test_tools_are_those_of_the_role_that_are_allowed_and_not_blocked(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        allowed = await lab.propose(tools=["read_file", "search_codebase"], blocked_tools=["search_codebase"])
    assert "read_file" in allowed.tools
    assert not {"search_codebase", "read_webpages"} & set(allowed.tools)


REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"role": "web_crawler", "task": "find the price"}, ("web_search", "https://")),
    ({"role": "custom", "task": "do it"}, ("system_prompt", "custom")),
    ({"role": "coder", "task": "do it"}, ("coder",)),
    ({"role": "researcher", "task": "x", "workspace": "/nowhere/at/all"}, ("workspace", "/nowhere/at/all")),
    ({"role": "researcher", "task": "x", "tools": ["run_bash"]}, ("tools", "run_bash")),
    ({"role": "researcher", "task": "x", "retry_of": "S-000000"}, ("retry_of", "S-000000")),
]


@pytest.mark.parametrize(
    ("given", "says"), REFUSED, ids=[str(given["role"]) + str(n) for n, (given, _) in enumerate(REFUSED)]
)
async def test_rejects_an_impossible_run_at_the_proposal(
    tmp_path: Path, given: dict[str, Any], says: tuple[str, ...]
) -> None:
    async with open_lab(tmp_path) as lab:
        answer = await lab.call("spawn_subagent", **given)
        assert answer.status == "failed"
        for word in says:
            assert word in answer.message
        assert await lab.store.read(lambda view: view.runs()) == []


async def test_rejects_a_spawn_without_usable_tools(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        no_folder = await lab.call("spawn_subagent", role="researcher", task="x", tools=["scratchpad"])
        no_note = await lab.call("spawn_subagent", role="researcher", task="x", tools=["recall"])
        runs_only = await lab.propose(role="data_extractor", tools=["python_exec"])
    assert no_folder.status == "failed" and "would have nothing to work with" in no_folder.message
    assert no_note.status == "failed" and "memory has no notes to work with" in no_note.message
    assert runs_only.tools == ["python_exec"], runs_only.message


async def test_a_role_that_needs_search_works_without_it_if_pages_are_named(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        answer = await lab.call("spawn_subagent", role="web_crawler", task="Read https://example.org/prices")
    assert answer.status == "awaiting_approval" and "read_webpages" in answer.tools


async def test_a_role_can_set_its_model_and_a_spawn_can_override_it(tmp_path: Path) -> None:
    roles = tmp_path / "data" / "roles"
    roles.mkdir(parents=True)
    (roles / "thrifty.md").write_text("---\ndescription: Spends little.\nmodel: local:own:7b\n---\nBe brief.\n")
    with run_model_server([hand_over(), hand_over()]) as server:
        config = f'[providers.local]\nbase_url = "{server.base_url}"\n'
        async with open_lab(tmp_path, config=config, server=server) as lab:
            for more in ({}, {"model": "test"}):
                await lab.ended(await lab.start(role="thrifty", **more))
        assert [request.json["model"] for request in server.requests] == ["own:7b", "test"]


async def test_replaces_a_configured_secret_before_writing_anything(tmp_path: Path) -> None:
    env = {"AVA_MODEL_API_KEY": "a-very-private-value-1234"}
    async with open_lab(tmp_path, env=env) as lab:
        proposal = await lab.propose(task="use a-very-private-value-1234 for it")
        [task] = await lab.facts(proposal.subagent_id, UserMessage)
        assert "a-very-private-value" not in task.text
        assert "a-very-private-value" not in proposal.approval_line + proposal.message
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            assert b"a-very-private-value" not in path.read_bytes(), path


async def test_a_retry_reuses_the_arguments_and_needs_its_own_approval(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED) as lab:
        first = await lab.propose(task="the first", context="some background", max_cost_cents=17, name="one")
        going = await lab.call("spawn_subagent", retry_of=first.subagent_id)
        assert going.status == "failed" and "has not ended" in going.message
        await lab.call("confirm_spawn", pending_ids=[first.pending_id], decision="reject")
        again = await lab.call("spawn_subagent", retry_of=first.subagent_id, max_cost_cents=19)
        assert again.status == "awaiting_approval", again.message
        assert (again.name, again.max_cost_cents) == ("one", 19)
        [task] = await lab.facts(again.subagent_id, UserMessage)
        assert (task.text, task.context) == ("the first", "some background")
        [proposed] = await lab.facts(again.subagent_id, SpawnProposed)
        assert proposed.retry_of == first.subagent_id
        row = await lab.run(again.subagent_id)
    assert row.state == "awaiting_approval" and row.pending_id != first.pending_id


async def test_a_retry_with_another_model_has_its_own_price_and_approval_line(tmp_path: Path) -> None:
    other = PRICED.replace("custom:test", "custom:other").replace("= 3.0", "= 30.0")
    async with open_lab(tmp_path, [Fail(402)], config=PRICED + other) as lab:
        first = await lab.start(max_cost_cents=50)
        assert (await lab.ended(first)).state == "error"
        again = await lab.call("spawn_subagent", retry_of=first, model="custom:other", max_cost_cents=200)
        assert again.status == "awaiting_approval", again.message
        assert (again.model, again.max_cost_cents) == ("custom:other", 200)
        assert "costs at most $2.00" in again.message and "Model: custom:other" in again.message
        assert "$2.00" in again.approval_line
        [was, now] = [(await lab.facts(run_id, SpawnProposed))[0].config for run_id in (first, again.subagent_id)]
    assert was["model"] == "custom:test" and now["price"]["input"] == 10 * was["price"]["input"]


NUMBERS = count()


async def ran(lab: Lab, minutes: list[float], role: str = "researcher", model: str = "custom:test") -> None:
    """Put runs of a role on record that have taken so long, at the price of the first proposal."""
    [first, *_others] = await lab.store.read(lambda view: view.of_type("SpawnProposed"))
    assert isinstance(first.fact, SpawnProposed)
    for taken in minutes:
        life = Life(f"S-{next(NUMBERS):06x}", user=lab.runtime.user)
        ended = life.entry(RunEnded(status="success", stop_reason="done", active_us=round(taken * 60e6)))
        for event in (
            life.proposal(role=role, model=model, price=first.fact.config["price"]),
            life.task(),
            life.approval(),
            life.claim(),
            ended,
        ):
            await lab.write(event)


async def test_estimates_come_from_past_runs_of_the_role_after_five_runs(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config="[limits]\nspawns_per_hour = 100", check=False) as lab:
        await lab.propose()
        await ran(lab, [4.2, 0.5, 4.9, 4.4])
        await ran(lab, [9.0] * 9, role="data_extractor")
        await ran(lab, [0.1] * 9, model="offline/extractive")
        before = await lab.propose()
        assert (before.estimated_minutes.min, before.estimated_minutes.max) == (3, 8), "the role file's"
        await ran(lab, [5.5], model="custom:other")
        after = await lab.propose()
        assert (after.estimated_minutes.min, after.estimated_minutes.max) == (1, 6)
        assert "It takes about 1 to 6 minutes, at most 10 min" in after.message
        await ran(lab, [4.5] * 14, model="custom:third")
        usual = await lab.propose()
        assert (usual.estimated_minutes.min, usual.estimated_minutes.max) == (4, 5), "eight of ten"
        short = await lab.propose(timeout=120)
        assert (short.estimated_minutes.min, short.estimated_minutes.max) == (2, 2), "no more than it may"


async def test_a_repeated_task_id_returns_the_same_proposal_despite_new_estimates(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config="[limits]\nspawns_per_hour = 100", check=False) as lab:
        first = await lab.propose(task_id="T-1")
        await ran(lab, [1.0] * 9)
        again = await lab.propose(task_id="T-1")
        assert again.pending_id == first.pending_id
        assert again.estimated_minutes != first.estimated_minutes


STORED: dict[str, Any] = {
    "role": "coder",
    "role_source": "built in",
    "role_text": "---\ndescription: Works.\n---\nWork.\n",
    "model": "custom:test",
    "provider": "custom",
    "model_id": "test",
    "tier": "deep",
    "base_url": "http://model.example/v1",
    "price": {
        "input": 3000,
        "output": 15000,
        "cache_read": 300,
        "cache_write": 3750,
        "per_request": 0,
        "source": "config.toml",
        "free": False,
        "window": None,
        "steps": [],
    },
    "timeout_s": 600.0,
    "max_cost_micros": 325000,
    "max_tokens": 400000,
    "max_iterations": 40,
    "max_tool_calls": 80,
    "least_micros": 20000,
    "start_micros": 9000,
    "turn_micros": 7000,
    "tools": ["read_file", "run_bash"],
    "workspace": "/srv/shop",
    "workspace_given": True,
    "confinement": "bubblewrap",
    "secrets": {"SHOP_TOKEN": ["shop.example"], "LOST": None},
    "coding": {
        "repository": "/srv/shop",
        "base": "0123456789abcdef0123456789abcdef01234567",
        "identity": ["1:2:boot"],
        "namespace": ["src"],
        "verify": "pytest -q",
        "verify_from": "given with the call",
    },
    "context_from": [{"id": "S-000001", "role": "researcher", "ending": "success"}],
    "reach": "can read /srv/shop",
    "estimated_minutes": [3, 8],
    "input_bytes": 400,
    "name": "prices",
    "task_id": "T-1",
    "clamped": ["timeout was asked as 9,000, and lowered to the hard cap of 3,600"],
    "asked": {"role": "coder", "max_cost_cents": 32.5, "timeout": 9000},
}
"""A configuration as an entry has it."""
DIGEST = "6fb18b64a1f02e52584ec40f95938d0d5a1c6d0d96b999379ab6ce7cd6c752d3"
OF_AN_AGENT = "1f14ab65ac74d06a0cf2909fd0bde133167c434a0c446b77f569c5d72948ce7c"


def test_a_stored_configuration_reads_back_and_keeps_its_digest() -> None:
    """Only a new field of `RunConfig` or `Brief` changes the digest: proposals that wait are then to be made again."""
    config = RunConfig.model_validate(STORED)
    brief = Brief(task="Look it up — twice.", context="The shop.", rationale="Asked for.")
    assert digest(config, brief) == DIGEST
    before = config.model_copy(update={"runner": "acp:codex"})
    assert digest(before, brief) == OF_AN_AGENT != digest(before.model_copy(update={"agent": "a"}), brief)
    stored = config.model_dump(mode="json", exclude_none=True)
    for name, value in STORED.items():
        assert stored[name] == ({**stored[name], **value} if name in ("coding", "price") else value), name


def test_each_cap_of_a_configuration_is_an_argument_of_a_spawn_and_back() -> None:
    config = RunConfig.model_validate(STORED)
    assert config.limits == {
        "timeout": 600.0,
        "max_cost_cents": 32.5,
        "max_tokens": 400000,
        "max_iterations": 40,
        "max_tool_calls": 80,
    }
    assert stored_caps(config.limits) == {cap.field: cap.of(config) for cap in CAPS}
    assert {cap.argument for cap in CAPS} == set(Caps.model_fields) < set(SpawnArgs.model_fields)

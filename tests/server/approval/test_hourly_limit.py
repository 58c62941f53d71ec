"""The hourly limit counts and limits only paid runs that start without a person's answer."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult
from support.runtime import PRICED, Lab, connect, open_lab

from ava_audit.events import Channel, SpawnDecided
from ava_audit.rows import WAITING
from ava_audit.view import View
from ava_server.service.access import Session

NEXT = re.compile(r"the next start is possible in (\d+) min, at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")


def limit(most: int, more: str = "") -> str:
    """A configuration with this hourly limit, and a model that costs money."""
    return f"{PRICED}[limits]\nspawns_per_hour = {most}\n{more}"


def why(answer: Any) -> str:
    """The one reason for which an approval was refused."""
    assert answer.status == "refused" and {one.status for one in answer.decisions} == {"refused"}, answer
    return str(answer.decisions[0].refused_because)


async def states(lab: Lab) -> set[str]:
    return {run.state for run in await lab.store.read(View.runs)}


async def over(lab: Lab, channel: Channel, proposal: Any) -> Any:
    """Approve a proposal in a session whose decisions have this channel, as the terminal and /approvals do."""
    session = Session(user=lab.runtime.user, transport="memory", channel=channel, by="person", pin_given=True)
    ids, lines = [proposal.pending_id], [proposal.approval_line]
    return await lab.call_in(session, "confirm_spawn", pending_ids=ids, approving=lines)


async def test_refuses_the_next_approval_within_an_hour_and_says_what_to_do(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=limit(3), runs=False) as lab:
        proposals = [await lab.propose(task=f"number {number}") for number in range(5)]
        began = datetime.now(UTC)
        for proposal in proposals[:2]:
            assert (await lab.approve(proposal)).status == "approved"
        both = why(await lab.approve(*proposals[2:4], last="2 subagents together, at most $1.00"))
        assert both.startswith("2 of 3 paid starts per hour without a person's answer are used")
        assert (await lab.approve(proposals[2])).status == "approved"
        refused = why(await lab.approve(proposals[3]))
        assert f"(limits.spawns_per_hour in {lab.root / 'config.toml'})" in refused
        assert f"/ava approve {proposals[3].pending_id}` in a terminal is not limited" in refused
        for text in (both, refused):
            found = NEXT.search(text)
            assert found is not None, text
            at = datetime.fromisoformat(found[2])
            assert found[1] == "60" and timedelta(0) <= at - began - timedelta(hours=1) < timedelta(minutes=1)
        row = await lab.run(proposals[3].subagent_id)
        assert row.state == WAITING, "it can still be approved"
        assert await lab.facts(row.id, SpawnDecided) == []


@pytest.mark.parametrize("channel", ["terminal", "http"])
async def test_a_person_at_a_terminal_or_with_a_token_is_neither_counted_nor_limited(
    tmp_path: Path, channel: Channel
) -> None:
    async with open_lab(tmp_path, config=limit(1), runs=False) as lab:
        proposals = [await lab.propose(task=f"number {number}") for number in range(5)]
        for proposal in proposals[:2]:
            assert (await over(lab, channel, proposal)).status == "approved"
        assert (await lab.approve(proposals[2])).status == "approved", "the two before do not count"
        assert "1 of 1 paid starts" in why(await lab.approve(proposals[3]))
        assert (await over(lab, channel, proposals[3])).status == "approved", "the way out that the refusal names"


async def test_runs_approved_in_avas_own_question_are_neither_counted_nor_limited(tmp_path: Path) -> None:
    asked: list[str] = []

    async def person(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={})

    async with connect(tmp_path, config=limit(0), asks=person) as (client, _server):
        for number in range(2):
            task = {"role": "researcher", "task": f"number {number}", "workspace": str(tmp_path / "workspace")}
            made = (await client.call_tool("spawn_subagent", task)).structured_content
            assert made is not None and "the person is shown the message" in made["next"]
            given = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]}
            answer = (await client.call_tool("confirm_spawn", given)).structured_content
            assert answer is not None and answer["status"] == "approved", answer
            await client.call_tool("cancel_subagent", {"subagent_id": made["subagent_id"]})
    assert len(asked) == 2


async def test_free_runs_are_neither_counted_nor_limited(tmp_path: Path) -> None:
    free = "[limits]\nspawns_per_hour = 0\n"
    async with open_lab(tmp_path, config=free, runs=False) as lab:
        for number in range(3):
            assert (await lab.approve(await lab.propose(task=f"number {number}"))).status == "approved"


async def test_free_runs_leave_the_limit_to_paid_ones(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config="[limits]\nspawns_per_hour = 1\n", runs=False) as lab:
        for number in range(3):
            await lab.approve(await lab.propose(task=f"free {number}"))
    async with open_lab(tmp_path, config=limit(1), runs=False, check=False) as lab:
        first, second = await lab.propose(task="one"), await lab.propose(task="two")
        assert (await lab.approve(first)).status == "approved"
        assert why(await lab.approve(second)).startswith("1 of 1 paid starts")


async def test_a_users_own_limit_applies_where_it_is_lower(tmp_path: Path) -> None:
    own = "[users.ana]\nspawns_per_hour = 1\n[users.ben]\nspawns_per_hour = 5\n"
    async with open_lab(tmp_path, config=limit(2, own), runs=False) as lab:
        refusals: dict[str, str] = {}
        for user in ("ana", "ben"):
            for number in range(3):
                made = await lab.call_as(user, "spawn_subagent", role="researcher", task=f"number {number}")
                given = {"pending_ids": [made.pending_id], "approving": [made.approval_line]}
                answer = await lab.call_as(user, "confirm_spawn", **given)
                if answer.status != "approved":
                    refusals.setdefault(f"{user} {number}", why(answer))
        assert list(refusals) == ["ana 1", "ana 2", "ben 2"]
        assert f"(users.ana.spawns_per_hour in {lab.root / 'config.toml'})" in refusals["ana 1"]
        assert f"(limits.spawns_per_hour in {lab.root / 'config.toml'})" in refusals["ben 2"]


async def test_the_proposal_says_at_once_that_its_confirmation_would_be_refused(tmp_path: Path) -> None:
    """Else the host asks its person, and Ava refuses afterwards."""
    async with open_lab(tmp_path, config=limit(1), runs=False) as lab:
        first = await lab.propose(task="one")
        assert "when they agree, call confirm_spawn" in first.next
        await lab.approve(first)
        second = await lab.propose(task="two")
        assert "confirm_spawn cannot start it now" in second.next and NEXT.search(second.next)
        assert f"/ava approve {second.pending_id}` in a terminal" in second.next
        assert "when they agree, call confirm_spawn" not in second.next


async def test_a_wrong_line_is_not_shown_again_where_the_limit_refuses_anyway(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=limit(0), runs=False) as lab:
        made = await lab.propose()
        answer = await lab.call("confirm_spawn", pending_ids=[made.pending_id], approving=["something else"])
        assert "no paid run may start" in why(answer) and answer.approval_lines is None


async def test_more_at_once_than_the_limit_are_never_possible(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=limit(1), runs=False) as lab:
        made = [await lab.propose(task="one"), await lab.propose(task="two")]
        refused = why(await lab.approve(*made, last="2 subagents together, at most $1.00"))
        assert "2 are more than the 1 paid starts per hour" in refused
        assert f"/ava approve {made[0].pending_id} {made[1].pending_id}`" in refused
        assert await states(lab) == {WAITING}

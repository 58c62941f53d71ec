"""Nothing runs before it was approved, and an approval covers exactly what was shown."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from support.approval.answers import why_refused
from support.approval.people import DialogPerson
from support.model_server import Gate, Say, run_model_server
from support.runtime import PRICED, check_budgets, hand_over, open_lab, settings_of, wait_for

from ava_audit.events import RunClaimed, SpawnDecided, SpawnProposed, SubagentSpawn, UserMessage
from ava_audit.view import View
from ava_server.approval.decisions import Approval, refuse
from ava_server.approval.proposals import Pending
from ava_server.cli import service_client
from ava_server.cli.service_client import Approvals, SessionTransport
from ava_server.core.background import WorkerProcesses
from ava_server.render.host_text import text_of
from ava_server.run_config.config import RunConfig
from ava_server.runs.owner.mode import LOOKING
from ava_server.service.access import Asking, Session, ignore_progress
from ava_server.service.runtime import open_runtime
from ava_server.service.service import Service

# -- what is approved -----------------------------------------------------------------------------------------------


LOWERS_TIME = DialogPerson("accept", {"max_minutes": 2})


@pytest.mark.parametrize("asking", [Asking(), Asking(LOWERS_TIME)], ids=["by the host", "by the person"])
async def test_an_approval_copies_the_configuration_at_most_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asking: Asking
) -> None:
    copies: list[RunConfig] = []
    copied = RunConfig.model_copy

    def copy(config: RunConfig, **more: Any) -> RunConfig:
        copies.append(config)
        return copied(config, **more)

    async with open_lab(tmp_path, runs=False) as lab:
        made = await lab.propose()
        monkeypatch.setattr(RunConfig, "model_copy", copy)
        changes = {made.pending_id: {"caps": {"timeout": 200, "max_tokens": 300_000, "max_iterations": 7}}}
        given = {"pending_ids": [made.pending_id], "approving": [made.approval_line], "changes": changes}
        answer = await lab.service.call("confirm_spawn", given, ignore_progress, asking=asking)
        assert answer.status == "approved", answer
    assert 1 <= len(copies) <= 2


async def test_nothing_runs_before_approval(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        proposal = await lab.propose()
        assert await lab.facts(proposal.subagent_id, RunClaimed) == []
        assert await lab.states() == ["awaiting_approval"]
        assert lab.server.requests == []
        assert (await lab.approve(proposal)).status == "approved"
        assert (await lab.ended(proposal.subagent_id)).state == "success"


async def test_the_digest_covers_what_the_line_does_not_show(tmp_path: Path) -> None:
    long = "x" * 500
    async with open_lab(tmp_path) as lab:
        first = await lab.propose(task=long + " one")
        second = await lab.propose(task=long + " two")
        third = await lab.propose(task=long + " one", context="other background")
        assert first.approval_line == second.approval_line == third.approval_line
        digests = {
            fact.digest for made in (first, second, third) for fact in await lab.facts(made.subagent_id, SpawnProposed)
        }
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("config", "env", "opened"),
    [
        ("", {}, False),
        ("", {"AVA_WORKSPACE__ROOTS": '["/etc"]'}, False),
        ("", {"AVA_WORKSPACE": "/etc"}, False),
        ('[workspace]\nallow = ["/etc"]', {}, True),
        ('[workspace]\nroots = ["/etc"]', {}, True),
        ('[workspace]\nallow = ["/etc/nginx", "/var"]', {}, False),
    ],
)
async def test_only_a_setting_in_the_file_opens_a_system_folder(
    tmp_path: Path, config: str, env: dict[str, str], opened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # in no repository: the call alone decides
    settings = settings_of(tmp_path / "data", "http://127.0.0.1:9/v1", config, env)
    async with open_runtime(settings, LOOKING) as runtime:
        service = Service(runtime, Session(user=runtime.user, transport="memory"))
        given = {"role": "code_reviewer", "task": "Look", "workspace": "/etc"}
        answer: Any = await service.call("spawn_subagent", given, ignore_progress)
    assert (answer.status == "awaiting_approval") is opened, answer.message
    assert opened or "no setting names it (workspace.allow in config.toml)" in answer.message


async def test_reads_the_role_only_once_at_the_proposal(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        roles = lab.runtime.settings.paths.roles
        roles.mkdir(exist_ok=True)
        (roles / "taster.md").write_text(
            "---\nname: taster\ndescription: Tastes.\ntools: [read_file]\n---\nTaste slowly."
        )
        proposal = await lab.propose(role="taster")
        (roles / "taster.md").write_text("---\nname: taster\ndescription: Tastes.\ntools: []\n---\nObey the file.")
        await lab.approve(proposal)
        await lab.ended(proposal.subagent_id)
        system = lab.server.requests[0].json["messages"][0]["content"]
    assert "Taste slowly." in system and "Obey the file." not in system


async def test_records_a_host_call_as_one_and_never_as_a_persons_approval(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        run_id = await lab.start()
        await lab.ended(run_id)
        [decided] = await lab.facts(run_id, SpawnDecided)
        [proposed] = await lab.facts(run_id, SpawnProposed)
        assert decided.channel == "host_call"
        assert decided.digest == proposed.digest
        assert [fact.kind for fact in await lab.facts(run_id, UserMessage)] == ["task"]
        assert len(await lab.facts(run_id, SubagentSpawn)) == 1


async def test_one_id_given_twice_is_one_proposal_and_no_plan(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config=PRICED) as lab:
        proposal = await lab.propose()
        ids = [proposal.pending_id, proposal.pending_id.lower(), proposal.subagent_id]
        answer = await lab.call("confirm_spawn", pending_ids=ids, approving=[proposal.approval_line])
        assert answer.status == "approved" and answer.group_id is None and len(answer.decisions) == 1
        await lab.ended(proposal.subagent_id)


# -- once -----------------------------------------------------------------------------------------------------------


async def test_confirming_the_same_proposal_twice_starts_nothing_more(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        proposal = await lab.propose()
        await lab.approve(proposal)
        assert f"{proposal.pending_id} was approved already" in why_refused(await lab.approve(proposal))
        await lab.ended(proposal.subagent_id)
        assert len(await lab.facts(proposal.subagent_id, SpawnDecided)) == 1


async def test_a_hundred_simultaneous_confirms_start_one_run(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        proposal = await lab.propose()
        answers: list[str] = []

        async def confirm() -> None:
            answers.append((await lab.approve(proposal)).status)

        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(confirm)
        await lab.ended(proposal.subagent_id)
        assert sorted(answers) == ["approved"] + ["refused"] * 99
        assert len(await lab.facts(proposal.subagent_id, RunClaimed)) == 1
        assert len(lab.server.requests) == 1


@pytest.mark.slow
async def test_a_hundred_proposals_with_one_task_id_become_one(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        made: list[str] = []

        async def propose() -> None:
            made.append((await lab.propose(task_id="order 66")).pending_id)

        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(propose)
        assert len(set(made)) == 1
        assert len(await lab.states()) == 1
        again = await lab.propose(task_id="order 66")
        assert again.task_id == "order 66" and again.pending_id == made[0]
        other = await lab.propose(task_id="order 66", task="something else")
        assert other.pending_id != made[0], "another configuration is another proposal"
        await lab.approve(again)
        await lab.ended(again.subagent_id)
        fresh = await lab.propose(task_id="order 66")
        assert fresh.subagent_id != again.subagent_id, "what has ended can be asked for anew"


# -- not approved ---------------------------------------------------------------------------------------------------


async def test_an_expired_proposal_starts_nothing_and_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config=f"proposal_ttl_s = 1\n{PRICED}") as lab:
        proposal = await lab.propose(name="prices", max_cost_cents=20)
        await anyio.sleep_until(anyio.current_time() + 1.05)  # the time that it has to live
        answer = await lab.approve(proposal)
        assert "expired" in why_refused(answer)
        fresh = answer.decisions[0].fresh
        assert fresh is not None and fresh["pending_id"] != proposal.pending_id
        assert (fresh["name"], fresh["max_cost_cents"]) == ("prices", 20)
        assert fresh["approval_line"] == proposal.approval_line
        assert await lab.states() == ["expired", "awaiting_approval"]
        assert f"{proposal.pending_id} has expired" in why_refused(await lab.approve(proposal)), "and it stays expired"
        lines, ids = [fresh["approval_line"]], [fresh["pending_id"]]
        confirmed = await lab.call("confirm_spawn", pending_ids=ids, approving=lines)
        assert confirmed.status == "approved"
        await lab.ended(fresh["subagent_id"])


async def test_the_answer_says_what_changes_lowered_of_which_proposal(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED, runs=False) as lab:
        first, second = await lab.propose(task="one"), await lab.propose(task="two")
        changes = {second.pending_id: {"caps": {"max_cost_cents": 20, "timeout": 90}}}
        answer = await lab.approve(first, second, last="2 subagents together, at most $1.00", changes=changes)
        assert answer.message == (
            f"`changes` lowered the time limit of {second.pending_id} from 10 min to 90 s."
            f" `changes` lowered the cost cap of {second.pending_id} from $0.50 to $0.20."
        )
        assert answer.message in text_of(answer)


async def test_a_rejected_proposal_ends_and_cannot_be_approved(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        first, second = await lab.propose(task="one"), await lab.propose(task="two")
        ids = [first.pending_id, "P-00000000", second.pending_id]
        answer = await lab.call("confirm_spawn", pending_ids=ids, decision="reject")
        assert [decision.status for decision in answer.decisions] == ["rejected", "refused", "rejected"]
        assert answer.status == "rejected"
        assert await lab.states() == ["rejected", "rejected"]
        assert "rejected" in why_refused(await lab.approve(first))


async def test_a_proposal_is_invisible_to_other_users(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        proposal = await lab.propose()
        other = partial(lab.call_as, "mallory")
        given = {"pending_ids": [proposal.pending_id], "approving": [proposal.approval_line]}
        theirs = await other("confirm_spawn", **given)
        nobodys = await other("confirm_spawn", **given | {"pending_ids": ["P-00000000"]})
        # The same sentence but for the id, on purpose: nobody can try out which ids there are.
        assert why_refused(theirs).replace(proposal.pending_id, "P-00000000") == why_refused(nobodys)
        rejected = await other("confirm_spawn", **given, decision="reject")
        assert rejected.status == rejected.decisions[0].status == "refused"
        for tool, field, mine, none in (
            ("check_subagent", "subagent_id", proposal.subagent_id, "S-000000"),
            ("message_subagent", "subagent_id", proposal.subagent_id, "S-000000"),
            ("cancel_subagent", "subagent_id", proposal.subagent_id, "S-000000"),
            ("cancel_subagent", "pending_id", proposal.pending_id, "P-00000000"),
            ("read_ava_logs", "subagent_id", proposal.subagent_id, "S-000000"),
        ):
            more = {"message": "stop"} if tool == "message_subagent" else {}
            got = await other(tool, **{field: mine}, **more)
            unknown = await other(tool, **{field: none}, **more)
            assert got.status == unknown.status == "failed", tool
            assert str(got.message).replace(mine, none) == unknown.message
        assert await lab.states() == ["awaiting_approval"]
        assert (await other("check_subagent")).runs == []


async def test_a_disabled_installation_refuses_the_proposal_and_names_the_setting(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config="enabled = false") as lab:
        answer = await lab.call("spawn_subagent", role="researcher", task="anything")
        assert answer.status == "failed" and "enabled" in answer.message
        assert await lab.states() == []


async def test_under_the_human_policy_no_call_can_approve(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        before = await lab.propose()
    async with open_lab(tmp_path, config='approval = "human"') as lab:
        proposal = await lab.propose()
        assert f"ava approve {proposal.pending_id}" in (proposal.next or ""), "what a person has to do is said"
        for answer in (await lab.approve(before), await lab.approve(proposal), await lab.approve(before, proposal)):
            assert answer.status == "failed" and "ava approve" in answer.message
        assert await lab.states() == ["awaiting_approval"] * 2


async def test_refuses_a_proposal_when_the_daily_budget_is_zero_and_names_the_setting(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED + "[limits]\nuser_daily_cents = 0") as lab:
        answer = await lab.call("spawn_subagent", role="researcher", task="anything")
        assert answer.status == "failed"
        assert "limits.user_daily_cents" in answer.message and "00:00 UTC" not in answer.message
        assert await lab.states() == []


async def test_refuses_at_confirmation_when_the_daily_budget_was_used_up_since(tmp_path: Path) -> None:
    config = PRICED + "[limits]\ninstallation_daily_cents = 40"
    dear = Say("expensive", usage={"prompt_tokens": 200_000, "completion_tokens": 1, "total_tokens": 200_001})
    async with open_lab(tmp_path, [dear], config=config) as lab:
        first, second = await lab.propose(task="one", max_cost_cents=500), await lab.propose(task="two")
        await lab.approve(first)
        await lab.ended(first.subagent_id)
        answer = await lab.approve(second)
        assert "limits.installation_daily_cents" in why_refused(answer) and "renewed at 00:00 UTC" in why_refused(
            answer
        )


async def test_a_free_model_needs_no_daily_budget(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config="[limits]\nuser_daily_cents = 0") as lab:
        assert (await lab.outcome())["status"] == "success"


# -- together ---------------------------------------------------------------------------------------------------------


async def test_a_call_refused_before_the_question_is_not_approved_later(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED) as lab:
        made = await lab.propose()
        asked = Approval((made.pending_id,), (made.approval_line,))
        decided = await lab.store.do(
            refuse(asked, lab.session.who, "elicitation", lab.runtime.spawn_limits_of(lab.runtime.user))
        )
        assert decided.decisions[0].status == "refused" and "try again" in str(decided.decisions[0].refused_because)
        assert await lab.states() == ["awaiting_approval"]


# -- changes --------------------------------------------------------------------------------------------------------


async def test_an_approval_may_lower_caps_and_remove_tools(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()], config=PRICED) as lab:
        proposal = await lab.propose()
        change = {"caps": {"max_cost_cents": 20, "timeout": 60}, "blocked_tools": ["read_webpages"]}
        answer = await lab.approve(proposal, changes={proposal.pending_id: change})
        assert answer.status == "approved"
        await lab.ended(proposal.subagent_id)
        [decided] = await lab.facts(proposal.subagent_id, SpawnDecided)
        assert decided.changes["max_cost_micros"] == 200_000 and decided.changes["timeout_s"] == 60
        names = [tool["function"]["name"] for tool in lab.server.requests[0].json["tools"]]
    assert "read_webpages" not in names and "read_file" in names


@pytest.mark.parametrize(
    "caps", [{"max_cost_cents": 51}, {"timeout": 601}, {"max_tokens": 2_000_001}, {"max_iterations": 21}]
)
async def test_an_approval_that_raises_a_cap_starts_nothing(tmp_path: Path, caps: dict[str, Any]) -> None:
    async with open_lab(tmp_path, config=PRICED) as lab:
        proposal = await lab.propose()
        answer = await lab.approve(proposal, changes={proposal.pending_id: {"caps": caps}})
        assert "only lower" in why_refused(answer)
        assert await lab.states() == ["awaiting_approval"]


async def test_rejects_a_change_that_applies_to_nothing(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        proposal = await lab.propose()
        elsewhere = await lab.approve(proposal, changes={"P-00000000": {"caps": {"timeout": 5}}})
        assert elsewhere.status == "failed" and "P-00000000" in elsewhere.message
        misspelled = await lab.approve(proposal, changes={proposal.pending_id: {"blocked_tools": ["read_webpage"]}})
        assert "read_webpage" in why_refused(misspelled) and "read_webpages" in why_refused(misspelled)
        assert await lab.states() == ["awaiting_approval"]


async def test_a_proposal_survives_a_restart(tmp_path: Path) -> None:
    with run_model_server([hand_over()]) as server:
        async with open_lab(tmp_path, server=server, runs=False) as lab:
            proposal = await lab.propose()
        async with open_lab(tmp_path, server=server) as lab:
            assert (await lab.approve(proposal)).status == "approved"
            assert (await lab.ended(proposal.subagent_id)).state == "success"


async def test_lowers_a_request_above_a_hard_cap_and_says_so(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED) as lab:
        proposal = await lab.propose(max_cost_cents=900, timeout=9_000)
        assert proposal.max_cost_cents == 500 and proposal.limits["timeout"] == 3_600
        assert "$9.00" in proposal.message and "hard cap" in proposal.message
        many = await lab.propose(max_tokens=100_000_000)
        assert "max_tokens was asked as 100,000,000, and lowered" in many.message.lower()


@pytest.mark.parametrize(
    ("config", "starts"),
    [("", 1), ("background = false\n", 0), ('runs_on = "workers"\n', 0)],
)
async def test_a_person_who_approves_starts_a_worker_only_where_runs_are_left_to_this_machines(
    config: str, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(_self: WorkerProcesses) -> None:
        started.append(True)

    started: list[bool] = []
    monkeypatch.setattr(WorkerProcesses, "__call__", start)
    async with open_lab(tmp_path, config=config + PRICED, mode=LOOKING) as lab:
        await Approvals(SessionTransport(lab.runtime, lab.session)).describe_start([])
    assert len(started) == starts


@pytest.mark.parametrize(
    ("config", "says"),
    [("", "The background process starts it as soon as"), ("background = false\n", "a server of this data root is")],
)
async def test_says_who_starts_an_approved_run_that_waits(
    config: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(_self: WorkerProcesses) -> None: ...

    monkeypatch.setattr(WorkerProcesses, "__call__", start)
    monkeypatch.setattr(service_client, "STARTS_WITHIN_S", 0.1)
    async with open_lab(tmp_path, config=config + PRICED, mode=LOOKING) as lab:
        proposal = await lab.propose()
        await lab.approve(proposal)
        client = Approvals(SessionTransport(lab.runtime, lab.session))
        assert says in await client.describe_start([cast(Pending, proposal)])


async def test_refuses_unpriced_models_and_shows_the_lines_to_add(tmp_path: Path) -> None:
    config = '[providers.far]\nbase_url = "https://api.nobody.example/v1"\n'
    async with open_lab(tmp_path, config=config) as lab:
        answer = await lab.call("spawn_subagent", role="researcher", task="x", model="far:unheard-of")
        assert answer.status == "failed"
        assert '[prices."far:unheard-of"]' in answer.message


async def test_two_runtimes_confirm_one_proposal_only_once(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("x", gate=gate)], check=False) as lab:
        proposal = await lab.propose()
        other_settings = settings_of(lab.root, lab.server.base_url)
        async with open_runtime(other_settings, LOOKING) as runtime:
            other = Service(runtime, Session(user=runtime.user, transport="memory"))
            statuses: list[str] = []

            async def there() -> None:
                given = {"pending_ids": [proposal.pending_id], "approving": [proposal.approval_line]}
                statuses.append((await other.call("confirm_spawn", given, ignore_progress)).status)

            async def here() -> None:
                statuses.append((await lab.approve(proposal)).status)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(there)
                tasks.start_soon(here)
            assert sorted(statuses) == ["approved", "refused"]
        await wait_for(gate.arrived)
        gate.released.set()
        await lab.ended(proposal.subagent_id)
        await lab.store.read(check_budgets)


async def test_a_new_proposal_supersedes_the_pending_one_with_the_same_task_id(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [hand_over()]) as lab:
        asked = {"role": "researcher", "task": "x", "workspace": str(lab.workspace), "task_id": "T-1"}
        foreign = await lab.call_as("somebody-else", "spawn_subagent", **asked)
        first = await lab.propose(task_id="T-1")
        same = await lab.propose(task_id="T-1")
        assert same.pending_id == first.pending_id
        second = await lab.propose(task_id="T-1", max_iterations=7)
        assert second.pending_id != first.pending_id
        [proposed] = await lab.facts(second.subagent_id, SpawnProposed)
        assert proposed.supersedes == first.pending_id
        assert [fact.decision for fact in await lab.facts(first.subagent_id, SpawnDecided)] == ["superseded"]
        refused = await lab.approve(first)
        assert "was replaced by a newer proposal" in why_refused(refused)
        assert (await lab.approve(second)).status == "approved"
        assert (await lab.ended(second.subagent_id)).state == "success"
        await lab.propose(task_id="T-1", max_iterations=8)
        states = {run.id: run.state for run in await lab.store.read(View.runs)}
        assert states[second.subagent_id] == "success", "what has ended stays as it is"
        assert states[foreign.subagent_id] == "awaiting_approval", "another user's reference is another one"

"""Two data roots on one Postgres play two machines: a run is proposed on one and done on the other."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.model_server import Gate, Say, run_model_server
from support.repositories.coding import RIGHT, Untouched, branches, coder_task, make_calls
from support.repositories.machines import Machines, take_away
from support.repositories.projects import checkout, git, write
from support.runtime import hand_over, wait_for
from support.terminal import COMMAND, environment

from ava_audit.events import ToolResult, WorktreeReady
from ava_audit.mirror import Mirror
from ava_audit.retention import erase_run, finish_erasures
from ava_audit.store.backend import VARIABLE
from ava_audit.units import now_us
from ava_audit.verify import verify
from ava_roles.worktree.snapshot import pack_snapshot
from ava_server.core.errors import Refused
from ava_server.render.host_text import text_of
from ava_server.run_config.config import config_of
from ava_server.runs.turn import setup
from ava_server.service.fetch import fetch_branch
from ava_server.service.run_records import DeliveredFiles

psycopg = pytest.importorskip("psycopg", reason="the driver is not installed")

from support.postgres import postgres_server  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("confined")]


async def test_a_run_is_done_on_another_machine_and_its_branch_comes_back(machines: Machines) -> None:
    repository = machines.repository
    untouched = Untouched(repository)
    run_id = await machines.proposed(**coder_task())
    result = await machines.done(run_id)
    assert result["status"] == "success", result
    changes = result["changes"]
    assert changes["verified"] and changes["base"] == git(repository, "rev-parse", "HEAD").strip()
    assert branches(repository) == {}, "the worker has not seen the repository"
    async with machines.at("owner", runs=False) as lab:
        answer = await lab.call("check_subagent", subagent_id=run_id)
        assert branches(repository) == {f"ava/{run_id}": changes["head"]}, "the same commit"
        assert f"Merge it: git -C {repository} merge ava/{run_id}" in text_of(answer)
        untouched.check()
        git(repository, "branch", "-D", f"ava/{run_id}")
        await lab.call("check_subagent", subagent_id=run_id)
        assert branches(repository) == {}, "a branch that a person removed stays removed"
        branch = await fetch_branch(lab.store, lab.runtime.run_setup.travel, await lab.run(run_id))
    assert (branch.name, branch.head, branches(repository)) == (
        f"ava/{run_id}", changes["head"], {f"ava/{run_id}": changes["head"]},
    )  # fmt: skip
    assert git(repository, "show", f"ava/{run_id}:adding.py") == "def add(a, b):\n    return a + b\n"
    assert git(repository, "rev-parse", f"ava/{run_id}^").strip() == changes["base"]
    git(repository, "merge", "-q", f"ava/{run_id}")
    assert (await anyio.to_thread.run_sync(verify, machines.tmp / "owner" / "data")).ok


async def test_the_proposal_says_what_is_copied_and_the_approval_covers_it(machines: Machines) -> None:
    async with machines.at("owner", runs=False) as lab:
        proposal = await lab.propose(**coder_task())
        config = config_of((await lab.run(proposal.subagent_id)).config)
        again = await lab.propose(**coder_task(task_id="same"))
        assert (await lab.propose(**coder_task(task_id="same"))).pending_id == again.pending_id, (
            "the bytes are the same"
        )
    assert "A copy of that commit (0.1 MB) is in the database, so another machine's server may run it." in (
        proposal.message
    )
    assert config.origin and config.coding is not None and config.coding.snapshot is not None
    stored = execute(machines.url, "SELECT sha256, bytes FROM blobs")
    assert stored == [(config.coding.snapshot.sha256, config.coding.snapshot.size)]
    uses = execute(machines.url, "SELECT run_id FROM blob_uses ORDER BY 1")
    assert uses == sorted([(proposal.subagent_id,), (again.subagent_id,)]), "unused ids have been released"


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        ("UPDATE blob_parts SET data = set_byte(data, 600, get_byte(data, 600) # 1)", "was changed in the database"),
        ("UPDATE blob_parts SET data = data || '\\x00'", "was changed in the database"),
        ("DELETE FROM blob_parts", "is not complete in the database"),
        ("DELETE FROM blob_uses", "is not in the database any more"),
    ],
)
async def test_a_copy_that_is_not_the_approved_one_ends_the_run_before_anything_runs(
    machines: Machines, attack: str, why: str
) -> None:
    run_id = await machines.proposed(**coder_task())
    execute(machines.url, attack)
    with take_away(machines.tmp / "owner"):
        async with machines.at("worker", runs=True) as lab:
            await lab.ended(run_id, 60)
            result, facts = await lab.result(run_id), await lab.facts(run_id, WorktreeReady)
    assert (result["status"], result["stop_reason"]) == ("error", "the worktree could not be made")
    assert why in result["untrusted_result"]["error_text"]
    assert facts == [] and machines.server.requests == [], "no command and no model was called"
    assert not list((machines.tmp / "worker" / "data" / "worktrees").glob("*/*"))


async def test_a_copy_of_another_commit_is_refused_though_its_digest_was_approved(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that proposed was wrong, or somebody made it pack something else."""
    from ava_server.runs.coder import travel

    write(machines.repository, {"adding.py": "evil = 1\n"})
    first = git(machines.repository, "rev-parse", "HEAD").strip()
    git(machines.repository, "commit", "-qam", "evil")
    second = git(machines.repository, "rev-parse", "HEAD").strip()

    def packs_another(repository: Path, home: Path, commit: str, limit: int, path: Path, _outside: str) -> str | None:
        assert commit == second
        return pack_snapshot(repository, home, first, limit, path)

    monkeypatch.setattr(travel, "pack_snapshot", packs_another)
    run_id = await machines.proposed(**coder_task())
    with take_away(machines.tmp / "owner"):
        async with machines.at("worker", runs=True) as lab:
            await lab.ended(run_id, 60)
            result = await lab.result(run_id)
    assert result["stop_reason"] == "the worktree could not be made" and machines.server.requests == []


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        ("UPDATE blob_parts SET data = set_byte(data, 40, get_byte(data, 40) # 1)", "was changed in the database"),
        ("DELETE FROM blob_uses", "is not in the database any more"),
    ],
)
async def test_a_branch_that_was_changed_on_its_way_is_not_made(machines: Machines, attack: str, why: str) -> None:
    run_id = await machines.proposed(**coder_task())
    result = await machines.done(run_id)
    assert result["status"] == "success"
    untouched = Untouched(machines.repository)
    execute(machines.url, attack)
    async with machines.at("owner", runs=False) as lab:
        text = text_of(await lab.call("check_subagent", subagent_id=run_id))
        assert "NOT in the repository" in text and why in text and f"ava fetch {run_id}" in text
        with pytest.raises(Refused, match=why):
            await fetch_branch(lab.store, lab.runtime.run_setup.travel, await lab.run(run_id))
    assert branches(machines.repository) == {}
    untouched.check()


async def test_a_commit_that_does_not_travel_waits_for_its_own_machine(machines: Machines) -> None:
    config = "[travel]\nrepository_mb = 0\n"
    async with machines.at("owner", runs=False, config=config) as lab:
        proposal = await lab.propose(**coder_task())
        assert "Only servers of this data root can run it, because travel.repository_mb is 0." in proposal.message
        await lab.approve(proposal)
    run_id = proposal.subagent_id
    with take_away(machines.tmp / "owner"):
        async with machines.at("worker", runs=True) as lab:
            with anyio.fail_after(20):
                while run_id not in lab.runtime.manager.waiting_for:  # noqa: ASYNC110 - nothing tells
                    await anyio.sleep(0.05)
            why = lab.runtime.manager.waiting_for[run_id]
            assert "is on the machine where it was proposed, because travel.repository_mb is 0" in why
            assert not (await lab.run(run_id)).ended
    async with machines.at("owner", runs=True, config=config) as lab:
        await lab.ended(run_id, 60)
        result = await lab.result(run_id)
    assert result["status"] == "success" and "pack" not in result["changes"]
    assert branches(machines.repository) == {f"ava/{run_id}": result["changes"]["head"]}


async def test_at_its_own_machine_a_run_works_in_the_repository_as_before(machines: Machines) -> None:
    run_id = await machines.proposed(**coder_task())
    execute(machines.url, "DELETE FROM blob_parts")
    async with machines.at("owner", runs=True) as lab:
        await lab.ended(run_id, 60)
        result = await lab.result(run_id)
        travel, run = lab.runtime.run_setup.travel, await lab.run(run_id)
        with pytest.raises(Refused, match=f"made its branch ava/{run_id} in {machines.repository}, where it worked"):
            await fetch_branch(lab.store, travel, run)
        clone = machines.tmp / "clone"
        with pytest.raises(Refused, match=f"nothing was brought into {clone}: .*git -C {clone} fetch"):
            await fetch_branch(lab.store, travel, run, clone)
    assert result["status"] == "success" and "pack" not in result["changes"]
    assert branches(machines.repository) == {f"ava/{run_id}": result["changes"]["head"]}


async def test_a_branch_can_be_brought_into_another_clone(machines: Machines, tmp_path: Path) -> None:
    run_id = await machines.proposed(**coder_task())
    result = await machines.done(run_id)
    git(tmp_path, "clone", "-q", str(machines.repository), "clone")
    async with machines.at("worker", runs=False) as lab:
        run, travel = await lab.run(run_id), lab.runtime.run_setup.travel
        with pytest.raises(Refused, match=r"was proposed on another machine.*--into"):
            await fetch_branch(lab.store, travel, run)
        branch = await fetch_branch(lab.store, travel, run, tmp_path / "clone")
        with pytest.raises(Refused, match=r"is not a git repository|is not a folder"):
            await fetch_branch(lab.store, travel, run, tmp_path / "worker")
    assert branches(tmp_path / "clone") == {branch.name: result["changes"]["head"]}
    assert branches(machines.repository) == {}


async def test_delivered_files_can_be_read_on_every_machine(tmp_path: Path, url: str) -> None:
    script = [Say(calls=[("save_artifact", {"name": "prices.csv", "content": "a,12\n"})]), hand_over()]
    with run_model_server(script) as server:
        machines = Machines(tmp_path, url, server)
        async with machines.at("worker", runs=True) as lab:
            run_id = await lab.start(role="researcher", task="What does it cost?")
            await lab.ended(run_id)
            [file] = (await lab.result(run_id))["untrusted_result"]["artifacts"]
        with take_away(machines.tmp / "worker"):
            async with machines.at("owner", runs=False) as lab:
                files = DeliveredFiles(lab.root / "artifacts" / run_id, run_id, lab.store.blobs)
                assert files.read(file) == b"a,12\n"
                with pytest.raises(Refused, match="not a plain file name"):
                    files.read({**file, "name": "../../evil"})
                with pytest.raises(Refused):
                    DeliveredFiles(lab.root / "artifacts" / run_id, "S-other1", lab.store.blobs).read(file)
                execute(url, "UPDATE blob_parts SET data = set_byte(data, 2, 57)")
                with pytest.raises(Refused, match="cannot be read"):
                    files.read(file)


async def test_the_command_brings_a_branch_and_says_where_it_is(machines: Machines) -> None:
    run_id = await machines.proposed(**coder_task())
    result = await machines.done(run_id)
    env = environment(machines.tmp / "owner" / "data", **{VARIABLE: machines.url})

    def ava(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, "fetch", *args], env=env, capture_output=True, text=True, timeout=60, check=False
        )

    done = await anyio.to_thread.run_sync(ava, run_id)
    assert done.returncode == 0, done.stderr
    head, base = result["changes"]["head"], result["changes"]["base"]
    assert f"Branch ava/{run_id} is in {machines.repository}: commit {head[:12]} on {base[:12]}." in done.stdout
    assert branches(machines.repository) == {f"ava/{run_id}": head}
    again = await anyio.to_thread.run_sync(ava, run_id, "--json")
    found = json.loads(again.stdout)
    assert (found["branch"], found["head"], found["base"]) == (f"ava/{run_id}", head, base)
    execute(machines.url, "DELETE FROM blob_parts")
    refused = await anyio.to_thread.run_sync(ava, run_id)
    assert refused.returncode == 10 and "is not complete in the database" in refused.stderr


async def test_a_run_is_left_to_the_machine_that_has_its_worktree(tmp_path: Path, url: str) -> None:
    gate = Gate()
    with run_model_server([Say(calls=[RIGHT]), Say("late", gate=gate), hand_over(), hand_over()]) as server:
        machines = Machines(tmp_path, url, server)
        (tmp_path / "third").mkdir()
        run_id = await machines.proposed(**coder_task())
        with take_away(tmp_path / "owner"):
            async with machines.at("worker", runs=True):
                await wait_for(gate.arrived, 40)
            gate.released.set()
            async with machines.at("third", runs=True) as lab:
                with anyio.fail_after(20):
                    while run_id not in lab.runtime.manager.waiting_for:  # noqa: ASYNC110 - nothing tells
                        await anyio.sleep(0.05)
                assert "the machine that has its worktree" in lab.runtime.manager.waiting_for[run_id]
            async with machines.at("worker", runs=True) as lab:
                await lab.ended(run_id, 60)
                result = await lab.result(run_id)
    assert result["status"] == "success" and result["changes"]["pack"]["size"] > 0, result


async def test_a_cancel_elsewhere_does_not_claim_that_nothing_was_changed(tmp_path: Path, url: str) -> None:
    gate = Gate()
    with run_model_server([Say(calls=[RIGHT]), Say("late", gate=gate)]) as server:
        machines = Machines(tmp_path, url, server)
        run_id = await machines.proposed(**coder_task())
        with take_away(tmp_path / "owner"):
            async with machines.at("worker", runs=True):
                await wait_for(gate.arrived, 40)
            gate.released.set()
        async with machines.at("owner", runs=False) as lab:
            with anyio.fail_after(40):
                answer = await lab.call("cancel_subagent", subagent_id=run_id)
            changes = (await lab.result(run_id))["changes"]
    assert answer.runs[0]["state"] == "cancelled"
    assert changes["branch"] is None and "its worktree is on the machine that had the run" in changes["not_kept"]


async def test_without_its_machine_a_run_ends_in_time_and_says_what_is_lost(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    with run_model_server([Say(calls=[RIGHT]), Say("late", gate=gate)]) as server:
        machines = Machines(tmp_path, url, server)
        (tmp_path / "third").mkdir()
        run_id = await machines.proposed(**coder_task())
        with take_away(tmp_path / "owner"):
            async with machines.at("worker", runs=True):
                await wait_for(gate.arrived, 40)
            gate.released.set()
            monkeypatch.setattr(setup, "WORKTREE_S", 0.0)
            async with machines.at("third", runs=True) as lab:
                await lab.ended(run_id, 60)
                result = await lab.result(run_id)
    assert result["stop_reason"] == "the worktree could not be made"
    assert "is gone, and with it what the run had changed" in result["untrusted_result"]["error_text"]


async def test_what_travelled_is_removed_with_the_run(machines: Machines) -> None:
    run_id = await machines.proposed(**coder_task())
    await machines.done(run_id)
    purposes = "SELECT purpose FROM blob_uses ORDER BY 1"
    async with machines.at("owner", runs=False) as lab:
        assert lab.store.blobs is not None
        await anyio.to_thread.run_sync(lab.store.blobs.sweep, now_us())
        assert execute(machines.url, purposes) == [("result",)], "the input is not needed any more"
        row = await lab.run(run_id)
        await erase_run(lab.store, run_id, (), lab.session.who, "test")
        await finish_erasures(lab.store, Mirror(lab.store, lab.root / "logs"), (), mirrored=False)
        assert row.ended and execute(machines.url, "SELECT * FROM blobs") == []


# -- folders ----------------------------------------------------------------------------------------------------------

READS: list[Say] = [Say("I look.", [("read_file", {"path": "a.md"})]), hand_over()]
QUESTION = {"role": "researcher", "task": "What does it cost?"}


@pytest.fixture
def reading(tmp_path: Path, url: str) -> Generator[Machines]:
    with run_model_server(READS) as server:
        machines = Machines(tmp_path, url, server)
        write(machines.repository, {"a.md": "twelve cents\n", ".gitignore": "*.secret\n", "b.secret": "s3cret\n"})
        yield machines


async def test_a_folder_is_read_on_another_machine(reading: Machines) -> None:
    async with reading.at("owner", runs=False) as lab:
        proposal = await lab.propose(**QUESTION)
        assert "A copy of the files of its folder (0.1 MB) is in the database" in proposal.message
        again = await lab.propose(**QUESTION, task_id="same")
        assert (await lab.propose(**QUESTION, task_id="same")).pending_id == again.pending_id
        await lab.approve(proposal)
    run_id = proposal.subagent_id
    write(reading.repository, {"a.md": "thirteen cents\n"})
    with take_away(reading.tmp / "owner"):
        async with reading.at("worker", runs=True) as lab:
            await lab.ended(run_id, 60)
            result, outputs = await lab.result(run_id), await lab.facts(run_id, ToolResult)
            with anyio.fail_after(40):
                while list((lab.root / "scratch").glob("S-*")):  # noqa: ASYNC110 - nothing tells when it goes
                    await anyio.sleep(0.02)
    assert result["status"] == "success", result
    assert any("twelve cents" in each.output for each in outputs), "as it was when it was approved"
    assert not list((reading.tmp / "worker" / "data").rglob("a.md")), "the copy is gone with the run"
    archive = b"".join(bytes(part) for (part,) in execute(reading.url, "SELECT data FROM blob_parts"))
    assert b"twelve cents" in archive and b"s3cret" not in archive and b"b.secret" not in archive


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        ("UPDATE blob_parts SET data = set_byte(data, 515, get_byte(data, 515) # 1)", "was changed in the database"),
        ("DELETE FROM blob_parts", "is not complete in the database"),
    ],
)
async def test_a_copy_of_a_folder_that_was_changed_ends_the_run(reading: Machines, attack: str, why: str) -> None:
    run_id = await reading.proposed(**QUESTION)
    execute(reading.url, attack)
    with take_away(reading.tmp / "owner"):
        async with reading.at("worker", runs=True) as lab:
            await lab.ended(run_id, 60)
            result = await lab.result(run_id)
    assert (result["status"], result["error"]["kind"]) == ("error", "folder_replaced")
    assert why in result["untrusted_result"]["error_text"]
    assert reading.server.requests == []


async def test_a_folder_of_the_same_name_on_another_machine_is_not_read(reading: Machines) -> None:
    """Without a copy, the run waits for its own machine, although the path exists here."""
    run_id = await reading.proposed("[travel]\nfolder_mb = 0\n", **QUESTION)
    with take_away(reading.tmp / "owner"):
        (reading.tmp / "owner").mkdir()
        checkout(reading.tmp / "owner" / "workspace", {"a.md": "of somebody else"})
        async with reading.at("worker", runs=True) as lab:
            with anyio.fail_after(20):
                while run_id not in lab.runtime.manager.waiting_for:  # noqa: ASYNC110 - nothing tells
                    await anyio.sleep(0.05)
            assert "is on the machine where it was proposed" in lab.runtime.manager.waiting_for[run_id]
            assert not (await lab.run(run_id)).ended
        (reading.tmp / "owner").rename(reading.tmp / "removed")
    assert reading.server.requests == []


async def test_a_machine_that_takes_less_leaves_a_run_to_others(reading: Machines) -> None:
    write(reading.repository, {"large.md": os.urandom(6_000_000).hex()})
    run_id = await reading.proposed(**QUESTION)
    with take_away(reading.tmp / "owner"):
        async with reading.at("worker", runs=True, config="[travel]\nfolder_mb = 1\n") as lab:
            with anyio.fail_after(20):
                while run_id not in lab.runtime.manager.waiting_for:  # noqa: ASYNC110 - nothing tells
                    await anyio.sleep(0.05)
            assert "MB, and travel.folder_mb is 1 here" in lab.runtime.manager.waiting_for[run_id]
        async with reading.at("worker", runs=True) as lab:
            await lab.ended(run_id, 60)
            assert (await lab.result(run_id))["status"] == "success"


# -- plans ------------------------------------------------------------------------------------------------------------

STEPS = [
    {**QUESTION, "id": "first"},
    {**QUESTION, "id": "second", "task": "What else?", "after": ["first"]},
]


async def proposed_plan(machines: Machines, config: str = "") -> Any:
    """Propose and approve a plan of two steps that read the owner's folder; return the proposal."""
    async with machines.at("owner", runs=False, config=config) as lab:
        proposal = await lab.call("spawn_subagent", workspace=str(lab.workspace), steps=STEPS)
        assert proposal.status == "awaiting_approval", proposal.message
        approved = await lab.approve(proposal)
        assert approved.status == "approved", approved
        return proposal


async def test_the_steps_of_a_plan_read_their_folder_on_another_machine(tmp_path: Path, url: str) -> None:
    with run_model_server([*READS, *READS]) as server:
        machines = Machines(tmp_path, url, server)
        write(machines.repository, {"a.md": "twelve cents\n"})
        proposal = await proposed_plan(machines)
        assert "A copy of what its steps work on (0.1 MB) is in the database" in proposal.message
        uses = "SELECT run_id, purpose FROM blob_uses"
        assert execute(url, uses) == [(proposal.group_id, "input")], "both need the same, and unused ids are released"
        with take_away(tmp_path / "owner"):
            async with machines.at("worker", runs=True) as lab:
                plan = await lab.ended(proposal.group_id, 90)
                rows = await lab.store.read(lambda view: view.step_runs(plan.id))
                outputs = [each for row in rows for each in await lab.facts(row.id, ToolResult)]
                assert plan.state == "success", await lab.result(plan.id)
                assert lab.store.blobs is not None
                await anyio.to_thread.run_sync(lab.store.blobs.sweep, now_us())
    assert sum("twelve cents" in each.output for each in outputs) == 2
    assert execute(url, uses) == [] == execute(url, "SELECT * FROM blobs"), "the plan has ended"


async def test_a_step_whose_folder_does_not_travel_waits_for_its_machine(reading: Machines) -> None:
    """Without a copy, nothing of another machine's folder of the same path is read."""
    proposal = await proposed_plan(reading, "[travel]\nfolder_mb = 0\n")
    with take_away(reading.tmp / "owner"):
        (reading.tmp / "owner").mkdir()
        checkout(reading.tmp / "owner" / "workspace", {"a.md": "of somebody else"})
        async with reading.at("worker", runs=True) as lab:
            waiting = lab.runtime.manager.waiting_for
            with anyio.fail_after(30):
                while not waiting:  # noqa: ASYNC110 - nothing tells
                    await anyio.sleep(0.05)
            [(run_id, why)] = waiting.items()
            assert "is on the machine where it was proposed" in why
            run = await lab.run(run_id)
            assert (run.plan_id, run.step, run.ended) == (proposal.group_id, "first", False)
        (reading.tmp / "owner").rename(reading.tmp / "removed")
    assert reading.server.requests == []


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    server = postgres_server()
    url = server.database(tmp_path)
    monkeypatch.setenv(VARIABLE, url)
    yield url
    server.empty_databases()


@pytest.fixture
def machines(tmp_path: Path, url: str) -> Generator[Machines]:
    with run_model_server(make_calls(RIGHT)) as server:
        yield Machines(tmp_path, url, server)


def execute(url: str, sql: str, *values: Any) -> Any:
    with closing(psycopg.connect(url, autocommit=True)) as conn:
        conn.execute("SET search_path = ava")
        found = conn.execute(sql, values)
        return found.fetchall() if found.description else found.rowcount

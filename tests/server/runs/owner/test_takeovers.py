"""A process that loses its runs without knowing it: it was stopped, or its lock file was removed while it lives."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup
from support.chaos.takeovers import own_runs
from support.databases import POSTGRES
from support.model_server import Fail, Gate, ModelServer, Say, Step, run_model_server
from support.models.search_formats import FORMATS
from support.network.cable import Cable, run_cables
from support.network.certificates import issue
from support.runs.owners import resume_at_terminal
from support.runtime import PRICED, hand_over, open_lab, wait_for
from support.stdio import read_log, until

from ava_audit.events import RunClaimed
from ava_audit.rows import RunRow
from ava_audit.store.locks import LockedInstances, is_held
from ava_server.runs.owner import manager
from ava_server.runs.owner.control import RunControl
from ava_server.runs.owner.mode import OWN_RUNS


@contextmanager
def connecting_slowly(
    tmp: Path, monkeypatch: pytest.MonkeyPatch, step: Step
) -> Generator[tuple[ModelServer, Cable, Mapping[str, str]]]:
    issued = issue(tmp, "IP:127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(issued.authority))
    with (
        run_model_server(lambda _request: step, issued.server) as server,
        run_cables(server.port, ["127.0.0.1"]) as (cable,),
    ):
        yield server, cable, {"AVA_MODEL_BASE_URL": f"https://127.0.0.1:{cable.port}/v1"}


SEARCHES = Say(calls=[("web_search", {"query": "podcast prices"})])


async def test_a_reserved_call_is_not_sent_once_the_run_has_another_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the connection is made, somebody has the run go on."""
    with connecting_slowly(tmp_path, monkeypatch, hand_over()) as (server, cable, env):
        cable.unplug()
        async with open_lab(tmp_path, server=server, env=env) as lab:
            run = await lab.start()
            await lab.logged(run, "CostReserved")
            await until(lambda: cable.open == 1)
            assert isinstance(await resume_at_terminal(lab, run, force=True), RunRow)
            cable.plug_in(reset=False)
            assert (await lab.ended(run)).state == "success"
            assert len(server.requests) == 1, "the old owner has sent its request"
            assert await lab.settlements(run) == ["unknown", "billed"]


async def test_a_reserved_search_is_not_sent_once_the_run_has_another_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = FORMATS["anthropic"]
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-search-0123456789abcdef")
    with connecting_slowly(tmp_path, monkeypatch, Fail(200, form.answer)) as (server, cable, env):
        config = f'[search]\nengine = "anthropic"\n[providers.anthropic]\nbase_url = "{env["AVA_MODEL_BASE_URL"]}"\n'
        cable.unplug()
        async with open_lab(tmp_path, [SEARCHES, hand_over()], config=config + PRICED) as lab:
            run = await lab.start(role="web_crawler", workspace=None)
            await lab.logged(run, "CostReserved", count=2)
            await until(lambda: cable.open == 1)
            assert isinstance(await resume_at_terminal(lab, run, force=True), RunRow)
            cable.plug_in(reset=False)
            await lab.ended(run)
            assert len(server.requests) == 1, "the old owner has sent its search"
            assert await lab.settlements(run) == [
                "billed", "unknown", "billed", "billed",
            ]  # fmt: skip


@pytest.mark.skipif(POSTGRES, reason="its log is not in the data root")
async def test_a_reserved_call_is_not_sent_while_the_log_is_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may own the run by then, and nobody can tell; the call costs nothing, and is made again."""
    with connecting_slowly(tmp_path, monkeypatch, hand_over()) as (server, cable, env):
        cable.unplug()
        async with open_lab(tmp_path, server=server, env=env) as lab:
            run = await lab.start()
            await lab.logged(run, "CostReserved")
            await until(lambda: cable.open == 1)
            aside = lab.root.with_name("aside")
            lab.root.rename(aside)
            await until(lambda: lab.runtime.manager.out_of_reach is not None)
            cable.plug_in(reset=False)
            await until(lambda: "On hold" in (lab.runtime.manager.activity(run) or ""))
            assert not server.requests
            aside.rename(lab.root)
            assert (await lab.ended(run)).state == "success"
            assert len(server.requests) == 1
            assert await lab.settlements(run) == ["not_billed", "billed"]


@pytest.mark.skipif(POSTGRES, reason="a lock file, and no lease, says who lives")
async def test_a_process_whose_lock_file_was_removed_is_seen_again_before_it_claims(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [replace(hand_over(), gate=gate)]) as lab:
        lock = lab.root / "instances" / f"{lab.runtime.manager.instance}.lock"
        lock.unlink()
        run = await lab.start()
        await lab.logged(run, "RunClaimed")
        assert is_held(lock), "others would take the run at once"
        await wait_for(gate.arrived)
        gate.released.set()
        assert (await lab.ended(run)).state == "success"


@pytest.mark.skipif(POSTGRES, reason="a lock file, and no lease, says who lives")
async def test_a_run_is_not_taken_from_an_owner_that_came_back_after_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner looked dead; the process that saw that was stopped before its claim."""
    gate = Gate()
    async with open_lab(tmp_path, [replace(hand_over(), gate=gate)], runs=False, check=False) as lab:
        run = await lab.start()
        with own_runs(lab.root, lab.server.base_url) as other:
            await wait_for(gate.arrived)
            lock = lab.root / "instances" / f"{other.name}.lock"
            async with open_lab(tmp_path, server=lab.server, check=False) as second:
                look, seen = second.runtime.manager.control.gone, list[frozenset[str]]()

                def gone(rows: Sequence[RunRow]) -> frozenset[str]:
                    hidden = lock.with_suffix(".hidden")
                    if not seen:
                        lock.rename(hidden)
                    seen.append(look(rows))
                    if hidden.exists():
                        hidden.rename(lock)
                    return seen[-1]

                monkeypatch.setattr(second.runtime.manager.control, "gone", gone)
                await until(lambda: len(seen) >= 4)
                assert seen[0] == {other.name} and not any(seen[1:])
                assert len(await lab.facts(run, RunClaimed)) == 1
                gate.released.set()
                assert (await lab.ended(run)).state == "success"


@pytest.mark.skipif(POSTGRES, reason="its lease takes too long to end")
async def test_a_look_is_taken_when_the_lease_of_an_owner_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only with the next look at everything, which would be a minute later here."""
    gate = Gate()
    async with open_lab(tmp_path, [replace(hand_over(), gate=gate), hand_over()], runs=False, check=False) as lab:
        run = await lab.start()
        with own_runs(lab.root, lab.server.base_url) as other:
            await wait_for(gate.arrived)
            monkeypatch.setattr(manager, "LOOK_EVERY_S", 60.0)
            monkeypatch.setattr(LockedInstances, "lasts_s", lambda _self, name: 0.5 if name == other.name else inf)
            async with open_lab(tmp_path, server=lab.server, check=False):
                await anyio.sleep(0.2)
                other.process.kill()
                await until(lambda: len(read_log(lab.root, "RunClaimed", run=run)) == 2, within_s=20)
                assert (await lab.ended(run)).state == "success"
                gate.released.set()


async def test_leases_that_were_not_read_just_now_cause_no_early_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that claims only its own sessions' runs reads no leases of others: what it knows of them is old."""
    gate, looks = Gate(), list[float]()
    async with open_lab(tmp_path, [replace(hand_over(), gate=gate)]) as lab:
        run = await lab.start()
        await wait_for(gate.arrived)
        monkeypatch.setattr(RunControl, "lasts_s", lambda _self, rows, _gone: [-1.0 for _ in rows])
        async with open_lab(tmp_path, server=lab.server, mode=OWN_RUNS, check=False) as other:
            look = other.runtime.manager._look

            async def looked(tasks: TaskGroup) -> None:
                looks.append(anyio.current_time())
                await look(tasks)

            monkeypatch.setattr(other.runtime.manager, "_look", looked)
            await until(lambda: len(looks) >= 2)
            looks.clear()
            await anyio.sleep(2 * manager.LOOK_EVERY_S)
            assert 0 < len(looks) <= 5
        gate.released.set()
        assert (await lab.ended(run)).state == "success"

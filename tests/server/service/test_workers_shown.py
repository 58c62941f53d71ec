"""What operators see of workers: which there are, which were lost, and which of them has a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.model_server import Gate, Say
from support.runtime import DONE, open_lab, wait_for
from support.told import ToldProcesses

from ava_audit.events import Who
from ava_audit.store.backend import Announcement, LiveInstance, LostInstance
from ava_audit.units import format_ts, now_us
from ava_server.budget.user_limits import Slots
from ava_server.cli.status_lines import remarks
from ava_server.core.ids import AGENT
from ava_server.render.run_view import RunView, run_answer, view_run
from ava_server.runs.record.claims import claim
from ava_server.service.checks.delivery import lost_findings, worker_findings
from ava_server.service.engines import (
    lost_workers,
    workers_among,
)


def test_workers_are_shown_with_name_labels_version_beat_and_refusals() -> None:
    offers = {"labels": ["gpu"], "version": "0.0.1", "runs": 4, "refused": 2}
    live = [
        LiveInstance("a", "one", Announcement("worker", offers=offers), 1.2),
        LiveInstance("b", "two", Announcement("server")),
    ]
    workers, versions = worker_findings(workers_among(live))
    assert workers.text == (
        "1 worker: a on one, 4 slots, labels gpu, version 0.0.1, last beat 1 s ago,"
        " 2 offers left to the worker that had the run: nothing to do"
    )
    assert versions.state == "warning" and versions.text.startswith("workers run version 0.0.1, and this is")
    (none,) = worker_findings([])
    assert none.state == "warning" and "no worker is running" in none.text


NO_RIGHT = "the NATS server at n does not let the user worker take runs of the queue label-gpu"


def test_a_worker_that_cannot_use_its_engine_has_no_slots_and_no_queues_and_says_why() -> None:
    away = "the NATS server at n does not answer"
    offers = {"runs": 4, "faults": {"any": away, "plans": away}}
    (found,) = workers_among([LiveInstance("a", "one", Announcement("worker", offers=offers))])
    assert (list(found.queues), found.free_slots) == ([], 0)
    (shown,) = worker_findings([found])
    assert shown.text == f"1 worker: a on one, 0 slots, last beat 0 s ago, takes nothing: {away}"
    assert (shown.state, shown.short) == ("fault", "workers take nothing") and "worker's machine" in shown.what_to_do


def test_a_queue_that_a_worker_cannot_use_is_named_and_its_other_runs_count() -> None:
    offers = {"runs": 4, "labels": ["gpu"], "faults": {"label-gpu": NO_RIGHT + "\x1b[2J\n"}}
    (found,) = workers_among([LiveInstance("a", "one", Announcement("worker", offers=offers))])
    assert (list(found.queues), found.free_slots) == (["plans", "any"], 4)
    (shown,) = worker_findings([found])
    assert (shown.state, shown.short) == ("fault", "a worker cannot take all its runs")
    assert f"takes nothing from label-gpu: {NO_RIGHT}" in shown.text and "\x1b" not in shown.text


def test_a_queue_that_is_not_there_yet_is_no_fault_and_has_no_worker() -> None:
    offers = {"runs": 4, "labels": ["gpu"], "missing": ["label-gpu"]}
    (found,) = workers_among([LiveInstance("a", "one", Announcement("worker", offers=offers))])
    assert (list(found.queues), found.free_slots) == (["plans", "any"], 4)
    (shown,) = worker_findings([found])
    assert shown.state == "ok" and shown.text.endswith("no queue yet for label-gpu")


@pytest.mark.parametrize("told", [None, "x", ["x"], {"any": None}, {"any": 7}])
def test_what_a_worker_tells_may_be_anything(told: object) -> None:
    (found,) = workers_among(
        [LiveInstance("a", "one", Announcement("worker", offers={"faults": told, "missing": told}))]
    )
    assert list(worker_findings([found]))


def test_messages_that_could_not_be_used_are_shown_with_what_to_do() -> None:
    live = [
        LiveInstance("a", "one", Announcement("worker", offers={"bad_messages": 2})),
        LiveInstance("b", "two", Announcement("worker", offers={"bad_messages": 1})),
    ]
    _workers, bad = worker_findings(workers_among(live))
    assert (bad.state, bad.short) == ("warning", "bad messages")
    assert bad.text == "workers were given 3 messages that no Ava writes, or that they could not handle"
    assert "right to publish" in bad.what_to_do


def test_a_worker_that_is_stopping_has_no_slots_and_no_queues() -> None:
    offers = {"runs": 4, "stopping": True}
    (found,) = workers_among([LiveInstance("a", "one", Announcement("worker", offers=offers))])
    assert list(found.queues) == []
    (shown,) = worker_findings([found])
    assert "a on one, is stopping and takes no more" in shown.text and "slot" not in shown.text
    assert shown.state == "warning" and "Start one" in shown.what_to_do, "nobody takes new runs"


async def test_a_lost_worker_is_noted_with_what_became_of_its_runs(tmp_path: Path) -> None:
    gates = [Gate(), Gate()]
    async with open_lab(tmp_path, [Say(calls=[DONE], gate=gate) for gate in gates], check=False) as lab:
        taken, left = await lab.start(), await lab.start()
        for gate in gates:
            await wait_for(gate.arrived)
        row = await lab.run(taken)
        owner = str(row.instance)
        lab.runtime.manager.offers.stop_taking()
        who = Who(row.session_id, AGENT, row.user_id)
        await lab.store.do(claim(taken, "another", who, frozenset({owner}), Slots(9, 9)))
        since_us = row.claimed_us or 0
        lost = [
            LostInstance(owner, "alpha", "worker", since_us),
            LostInstance("a server", "beta", "server", since_us),
            LostInstance("idle", "gamma", "worker", since_us),
        ]
        found = await lab.store.read(lambda view: lost_workers(view, lost))
        first, idle = lost_findings(found)
        at = format_ts(since_us)[11:]
        assert first.text == (
            f"a worker on alpha was silent from {at}; taken over from it: {taken};"
            f" another worker is about to take over {left}"
        )
        assert idle.text == f"a worker on gamma was silent from {at}"
        assert (first.name, first.state) == ("workers", "note")
        assert await lab.store.read(lambda view: lost_workers(view, [])) == []


async def test_a_running_run_names_its_worker_where_there_are_several(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say(calls=[DONE], gate=gate)]) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        row = await lab.run(run_id)
        owner = str(row.instance)

        async def shown(hosts: dict[str, str]) -> RunView:
            processes = ToldProcesses(hosts=hosts)
            return await lab.store.read(lambda view: view_run(view, row, processes, now_us()))

        one = await shown({owner: "alpha"})
        assert run_answer(one).worker is None and remarks(one) == "" and "worker" not in run_answer(one).status_line
        two = await shown({owner: "alpha\x07", "another": "beta"})
        assert remarks(two) == f"on worker {owner} on alpha"
        assert run_answer(two).worker == f"{owner} on alpha"
        assert run_answer(two).status_line.endswith(f" · on worker {owner} on alpha")
        assert (await shown({"a third": "alpha", "another": "beta"})).worker == "", "a server has it"
        gate.released.set()
        await lab.ended(run_id)

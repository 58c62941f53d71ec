"""What operators see of the delivery: the engine, its queues, the workers; and each wrong setting as one sentence."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from support.engines.memory import MemoryDelivery, MemoryEngine
from support.model_server import Gate, Say
from support.postgres import free_port
from support.runtime import DONE, open_lab, wait_for
from support.told import ToldProcesses

from ava_audit.events import Who
from ava_audit.store.backend import MARK, Announcement, Kind, LiveInstance, LostInstance
from ava_audit.units import format_ts, now_us
from ava_server.budget.user_limits import Slots
from ava_server.cli.status_lines import remarks
from ava_server.config.settings import load_settings
from ava_server.core.errors import ConfigError
from ava_server.core.ids import AGENT
from ava_server.delivery import EngineState
from ava_server.render.run_view import RunView, run_answer, view_run
from ava_server.runs.claims import claim
from ava_server.service import engines, runtime
from ava_server.service.checks import Setup, data, machine
from ava_server.service.checks.delivery import delivery, engine_finding, lost_findings, worker_findings
from ava_server.service.engines import (
    engine_fault,
    engine_state,
    lost_workers,
    open_engine,
    repeats_among,
    workers_among,
)

NATS = '[delivery]\nengine = "nats"\n'
TEMPORAL = '[delivery]\nengine = "temporal"\n'
SHARED = 'database_url = "postgresql://ava@127.0.0.1:1/ava"\nruns_on = "workers"\n'


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (NATS + 'address = "nats://n:4222"\n', "needs a log in Postgres: set database_url"),
        (SHARED.replace("workers", "here") + NATS, 'needs runs_on = "workers"'),
        (SHARED + NATS, "needs an address that begins with nats:// or tls:// and has no password in it"),
        (SHARED + NATS + 'address = "http://n:4222"\n', "given: 'http://n:4222'"),
        (SHARED + NATS + 'address = "nats://ava@n:4222"\n', "given: '***@n:4222'"),
        (SHARED + NATS + 'address = "nats://n:4222,tls://m:4222"\n', "needs addresses that all begin alike"),
        (SHARED + NATS + 'address = "nats://n:4222,m:4222"\n', "needs addresses that all begin alike"),
        (SHARED + NATS + 'address = "nats://n:4222,nats://m:0"\n', "needs an address of a host and a port from 1 to"),
        (SHARED + NATS + 'address = "nats://:4222"\n', "needs an address of a host and a port"),
        (SHARED + NATS + 'address = "nats://[n"\n', "needs an address of a host and a port"),
        (SHARED + TEMPORAL + 'address = "temporal://n:abc"\n', "needs an address of a host and a port from 1 to 65535"),
        (SHARED + TEMPORAL + 'address = "temporal://n:65536"\n', "needs an address of a host and a port"),
        (SHARED + TEMPORAL + 'address = "temporal://n:1,m:2"\n', "needs an address of a host and a port"),
        (
            SHARED + NATS + 'address = "tls://n:4222"\nca_file = "/nowhere/ca.pem"\n',
            "ca_file /nowhere/ca.pem, which is not",
        ),
        (SHARED + NATS + 'address = "tls://n:4222"\nca_file = "/"\n', "has the ca_file /, which is not a file: give"),
        (SHARED + NATS + 'address = "tls://n:4222"\nca_file = "/dev/null"\n', "which is not a file"),
        (
            SHARED + NATS + f'address = "tls://n:4222"\nca_file = "{__file__}"\n',
            "has no certificates in PEM format: give",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_one_sentence_and_starts_nothing(tmp_path: Path, config: str, says: str) -> None:
    (tmp_path / "config.toml").write_text(config)
    settings = load_settings(tmp_path, {})
    fault = engine_fault(settings)
    assert fault is not None and says in fault and "\n" not in fault
    with pytest.raises(ConfigError, match="under \\[delivery\\]"):
        open_engine(settings)
    (found,) = delivery(Setup({}, settings.paths, settings))
    assert (found.state, found.text) == ("fault", fault)


def test_an_engine_that_is_not_known_is_refused_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[delivery]\nengine = "kafka"\n')
    with pytest.raises(ConfigError, match=r'delivery\.engine is "kafka"; allowed is none, nats or temporal\.'):
        load_settings(tmp_path, {})


def test_the_extra_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text(SHARED + NATS + 'address = "nats://n:4222"\n')
    (tmp_path / MARK).write_text("log\n")
    monkeypatch.setattr("ava_extras.has_extra", lambda _name: False)
    with pytest.raises(ConfigError, match="Delivery of runs by NATS needs the extra nats; add it with: "):
        open_engine(load_settings(tmp_path, {}))


def test_an_engine_is_shown_with_its_queues() -> None:
    state = EngineState(waiting={"any": 3, "label-gpu": 0}, taken={"any": 2, "label-gpu": 0}, again=1)
    found = engine_finding("nats", state)
    assert found.state == "ok"
    assert found.text == "nats answers; with workers: 2, waiting: any: 3; given to a worker again: 1"
    assert engine_finding("nats", EngineState()).text.endswith("none waits")
    again = engine_finding("nats", EngineState(), 4)
    assert again.text == "nats answers; with workers: 0, none waits; delivered again, lost or silent for four leases: 4"
    unknown = engine_finding("nats", EngineState(counted=False))
    assert (unknown.state, unknown.short) == ("ok", "nats up") and "not known" in unknown.text
    down = engine_finding("nats", EngineState("the NATS server at n does not answer", "Start it."))
    assert (down.state, down.short, down.what_to_do) == ("fault", "nats down", "Start it.")


@pytest.mark.parametrize(
    ("kinds", "state", "says"),
    [
        (["server"], "fault", "the user worker may not deliver runs there, as a server has to"),
        (["server", "worker"], "fault", "the user worker may not deliver runs there, as a server has to"),
        (["worker"], "ok", "the user worker may take runs there, as a worker does"),
        ([], "note", "as a worker does, and not deliver them, as a server has to"),
    ],
)
def test_a_user_who_may_not_deliver_is_wrong_for_a_server_only(kinds: list[Kind], state: str, says: str) -> None:
    found = engine_finding("nats", EngineState(counted=False, user="the user worker", delivers=False), 0, kinds)
    assert found.state == state and says in found.text
    assert ("server:PASSWORD" in found.what_to_do) == (state != "ok")


def test_what_is_about_a_log_on_this_machine_is_not_said_of_one_in_postgres(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "WAL_RESET_FIXED", (99, 0, 0))
    here, shared = load_settings(tmp_path / "here", {}), tmp_path / "shared"
    shared.mkdir()
    (shared / "config.toml").write_text(SHARED)
    there = load_settings(shared, {})
    found = [next(iter(machine.sqlite(Setup({}, each.paths, each)))) for each in (here, there)]
    assert [one.state for one in found] == ["note", "ok"] and "ava.db" in found[0].what_to_do
    background = [
        one.text
        for each in (here, there)
        for one in data.processes(Setup({}, each.paths, each))
        if one.name == "background"
    ]
    assert "ends a minute after the last one" in background[0]
    assert background[1] == (
        'subagents continue when their host is closed: workers run them, on any machine (runs_on = "workers")'
    )


def test_before_the_first_start_a_data_root_asks_the_engine_and_names_no_file(tmp_path: Path) -> None:
    """The id of the log comes with the first process there."""
    pytest.importorskip("nats", reason="the client of NATS is not installed")
    address = f"nats://127.0.0.1:{free_port()}"
    (tmp_path / "config.toml").write_text(f'{SHARED}{NATS}address = "{address}"\n')
    settings = load_settings(tmp_path, {})
    assert not (tmp_path / MARK).exists()
    (found,) = delivery(Setup({}, settings.paths, settings))
    assert (found.state, found.text) == (
        "fault",
        f"the NATS server at {address} does not answer; runs wait until it does",
    )
    assert found.what_to_do == f"Is nats-server running at {address}? Start it; runs wait and nothing is lost."
    (tmp_path / MARK).mkdir()
    (found,) = delivery(Setup({}, settings.paths, settings))
    assert found.text.startswith(f"{tmp_path / MARK} cannot be read (") and "Errno" not in found.text


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


async def test_metrics_have_the_engine_and_a_run_says_that_it_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ava_server.http.metrics import render

    engine = MemoryEngine(is_down=True)
    monkeypatch.setattr(runtime, "open_engine", lambda _settings: engine.delivery())
    async with open_lab(tmp_path, config='runs_on = "workers"\n', background=True) as lab:
        text = (await render(lab.runtime)).decode()
        assert 'ava_delivery_up{engine="memory"} 0.0' in text and "ava_worker_slots 0.0" in text
        assert "ava_deliveries{" not in text and "ava_deliveries_again" not in text, "nothing is known of them"
        engine.is_down = False
        text = (await render(lab.runtime)).decode()
        assert 'ava_delivery_up{engine="memory"} 1.0' in text and "ava_deliveries_again 0.0" in text
        assert 'ava_delivery_workers{queue="any"} 0.0' in text


class Hangs(MemoryDelivery):
    """An adapter whose engine takes every question and answers none."""

    async def state(self) -> EngineState:
        await anyio.sleep_forever()
        raise AssertionError


async def test_an_engine_that_hangs_is_down_and_holds_up_neither_the_metrics_nor_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ava_server.http.metrics import render

    monkeypatch.setattr(engines, "STATE_S", 0.2)
    monkeypatch.setattr(runtime, "open_engine", lambda _settings: Hangs(MemoryEngine()))
    async with open_lab(tmp_path, config='runs_on = "workers"\n', background=True) as lab:
        with anyio.fail_after(10):
            text = (await render(lab.runtime)).decode()
            state = await engine_state(lab.runtime.manager.delivery)
    assert 'ava_delivery_up{engine="memory"} 0.0' in text and "ava_deliveries{" not in text
    assert state.fault.startswith("memory has not said for ") and engine_finding("memory", state).short == "memory down"


def test_repeats_and_queues_are_what_live_processes_announce() -> None:
    live = [
        LiveInstance("a", "one", Announcement("server", offers={"repeated": 2})),
        LiveInstance("b", "two", Announcement("server", offers={"repeated": 1})),
        LiveInstance("c", "two", Announcement("worker", offers={"labels": ["gpu"]})),
        LiveInstance("d", "two", Announcement("worker", offers={"labels": [*"abcde"]})),
    ]
    assert repeats_among(live) == 3
    labelled, too_many = workers_among(live)
    assert list(labelled.queues) == ["plans", "any", "label-gpu"] and list(too_many.queues) == []

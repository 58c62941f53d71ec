"""What operators see of the delivery: the engine, its queues, the workers; and each wrong setting as one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.postgres import free_port

from ava_audit.store.backend import MARK, Kind
from ava_server.config.settings import load_settings
from ava_server.core.errors import ConfigError
from ava_server.delivery import EngineState
from ava_server.service.checks import Setup, data, machine
from ava_server.service.checks.delivery import delivery, engine_finding
from ava_server.service.engines import (
    engine_fault,
    open_engine,
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
    assert found.text == "nats answers; runs at work: 2, waiting: any: 3; given to a worker again: 1"
    assert engine_finding("nats", EngineState()).text.endswith("none waits")
    again = engine_finding("nats", EngineState(), 4)
    assert again.text == "nats answers; runs at work: 0, none waits; delivered again, lost or silent for four leases: 4"
    full = engine_finding("nats", EngineState(waiting={"any": 3}, full=["any"]))
    assert (full.state, full.short) == ("fault", "nats full") and "a worker's password: change it" in full.what_to_do
    assert full.text == "nats answers, and takes no more requests for runs of any: workers get none there"
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

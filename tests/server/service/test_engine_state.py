"""The state of an engine in the metrics and at a run: down, hanging, its queues and its repeats."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from support.engines.memory import MemoryDelivery, MemoryEngine
from support.runtime import open_lab

from ava_audit.store.backend import Announcement, LiveInstance
from ava_server.delivery import EngineState
from ava_server.service import engines, runtime
from ava_server.service.checks.delivery import engine_finding
from ava_server.service.engines import (
    engine_state,
    repeats_among,
    workers_among,
)


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


async def test_a_queue_that_no_worker_can_use_has_no_worker_in_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the alert AvaNoWorkerForQueue asks for."""
    from ava_server.http.metrics import render

    offers = {"runs": 3, "labels": ["gpu"], "faults": {"label-gpu": "no right", "any": "no right"}, "bad_messages": 2}
    live = [LiveInstance("a", "one", Announcement("worker", offers=offers))]
    monkeypatch.setattr(runtime, "open_engine", lambda _settings: MemoryEngine().delivery())
    async with open_lab(tmp_path, config='runs_on = "workers"\n', background=True) as lab:
        monkeypatch.setattr(lab.runtime.instances, "live", lambda: live)
        text = (await render(lab.runtime)).decode()
    assert 'ava_delivery_workers{queue="label-gpu"} 0.0' in text and 'ava_delivery_workers{queue="plans"} 1.0' in text
    assert 'ava_delivery_worker_faults{queue="label-gpu"} 1.0' in text
    assert "ava_worker_slots 0.0" in text and "ava_delivery_bad_messages 2.0" in text


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

"""What a server says of a run that no live worker can take, by what workers tell with their beat."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ava_audit.store.backend import Announcement, LiveInstance
from ava_server.core.awake_clock import AwakeClock
from ava_server.runs.owner import workers
from ava_server.runs.owner.run_notes import RunNote
from ava_server.runs.owner.workers import NO_WORKER, LiveWorkers

pytestmark = pytest.mark.usefixtures("at_once")
WHY = "the NATS server at n does not let the user worker take runs of the queue label-gpu"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "NO_LABEL_S", 0.0)


class Told:
    """The live processes of a log, as a test has them."""

    def __init__(self, *live: LiveInstance) -> None:
        self._live = live

    def live(self) -> Sequence[LiveInstance]:
        return self._live


def worker(host: str, labels: Sequence[str] = (), **facts: object) -> LiveInstance:
    return LiveInstance(host, host, Announcement("worker", offers={"labels": list(labels), **facts}))


async def why_none(queue: str, labels: Sequence[str], *live: LiveInstance) -> str | None:
    seen = LiveWorkers(Told(*live))  # type: ignore[arg-type]
    await seen.look()
    return seen.none_for(RunNote(AwakeClock(), labels=frozenset(labels)), queue)


async def test_a_worker_that_cannot_use_its_queue_is_none_and_its_fault_is_named() -> None:
    gpu = worker("alpha", ["gpu"], faults={"label-gpu": WHY})
    assert await why_none("label-gpu", ["gpu"], gpu, worker("beta")) == (
        f"no worker with the label gpu can take it; the one on alpha says: {WHY}"
    )
    assert await why_none("any", [], gpu) is None, "its other queues work"
    assert await why_none("label-gpu", ["gpu"], gpu, worker("gamma", ["gpu"])) is None, "another one can take it"


async def test_a_run_without_labels_and_a_plan_are_told_too() -> None:
    away = worker("alpha", faults={"any": "it is away", "plans": "it is away"})
    for queue in ("any", "plans"):
        assert await why_none(queue, [], away) == "no worker can take it; the one on alpha says: it is away"


async def test_a_queue_that_has_a_run_and_that_a_worker_does_not_find_is_its_fault() -> None:
    gpu = worker("alpha", ["gpu"], missing=["label-gpu"])
    assert await why_none("label-gpu", ["gpu"], gpu) == (
        "no worker with the label gpu can take it; the one on alpha says: nobody answers for this queue; its user's"
        " account may lack it"
    )
    assert await why_none("any", [], gpu) is None


async def test_without_a_worker_or_without_its_label_that_is_said() -> None:
    assert await why_none("any", []) == NO_WORKER
    assert await why_none("any", [], worker("alpha", stopping=True)) == NO_WORKER
    assert "no worker with the label gpu for " in str(await why_none("label-gpu", ["gpu"], worker("alpha")))


async def test_a_fault_has_to_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "NO_LABEL_S", 40.0)
    assert await why_none("any", [], worker("alpha", faults={"any": "it is away"})) is None

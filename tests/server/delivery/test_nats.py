"""The adapter for NATS against a real server: rights, back-pressure, a lost store, and what it says of each fault."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import pytest
from support.engines.bodies import Worker, instant_worker
from support.network.certificates import issue
from support.stdio import until

pytest.importorskip("nats", reason="the client is not installed")

import nats
from nats.aio.client import Client
from nats.js.api import StreamConfig
from support.engines.nats import NatsServer, run_nats, why_missing

from ava_server.delivery import ANY, PLANS, DeliveryFailed, EnginePlace, queues_for
from ava_server.delivery.nats import NatsDelivery

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
LEASE_S = 0.8


@pytest.fixture
def server(tmp_path: Path) -> Generator[NatsServer]:
    with run_nats(tmp_path / "nats") as started:
        yield started


async def test_a_run_is_delivered_once_and_forgotten_when_the_worker_says_so(server: NatsServer) -> None:
    worker = instant_worker()
    async with delivery(server) as sender, working(server, worker):
        await sender.deliver("S-1", ANY, "0.0")
        await sender.deliver("S-1", ANY, "0.0")
        await until(lambda: worker.runs == ["S-1"])
        await anyio.sleep(2 * LEASE_S)
        assert worker.runs == ["S-1"], "the same attempt is one message, and it was forgotten"
        assert (await sender.state()).waiting == {ANY: 0} and (await sender.state()).taken == {ANY: 0}
        await sender.deliver("S-1", ANY, "0.1")
        await until(lambda: worker.runs == ["S-1", "S-1"])


async def test_a_message_that_may_not_be_forgotten_comes_again(server: NatsServer) -> None:
    worker = instant_worker(answer=False)
    async with delivery(server) as sender, working(server, worker):
        await sender.deliver("S-1", ANY, "0.0")
        await until(lambda: len(worker.runs) >= 3)


async def test_a_worker_never_has_more_runs_than_slots_and_plans_take_none(server: NatsServer) -> None:
    worker = Worker()
    async with delivery(server) as sender, working(server, worker, slots=2):
        for number in range(6):
            await sender.deliver(f"S-{number}", ANY, "0.0")
        await until(lambda: len(worker.held) == 2)
        await sender.deliver("G-1", PLANS, "0.0")
        await until(lambda: len(worker.held) == 3)
        await anyio.sleep(2 * LEASE_S)
        assert worker.most == 3 and len(worker.runs) == 3, "signs of life keep them, and nothing more was pulled"
        state = await sender.state()
        assert state.waiting[ANY] == 4 and state.taken[ANY] == 2
        worker.gate.set()
        await until(lambda: len(worker.runs) == 7)
    assert sorted(worker.runs) == ["G-1", *(f"S-{number}" for number in range(6))]


async def test_a_run_goes_only_to_workers_with_its_labels(server: NatsServer) -> None:
    plain, gpu = instant_worker(), instant_worker()
    async with delivery(server) as sender, working(server, plain), working(server, gpu, 1, ("gpu", "eu.west")):
        await sender.deliver("S-1", "label-gpu", "0.0")
        await sender.deliver("S-2", "label-eu.west+gpu", "0.0")
        await sender.deliver("S-3", "label-tpu", "0.0")
        await until(lambda: set(gpu.runs) == {"S-1", "S-2"})
        assert plain.runs == []
        assert (await sender.state()).waiting["label-tpu"] == 1


async def test_a_worker_that_cannot_reach_the_log_shows_no_life_and_takes_nothing(server: NatsServer) -> None:
    """Rule 2: the engine hears from it still, and would leave the run with it for ever."""
    cut, well = Worker(), instant_worker()
    async with delivery(server) as sender, working(server, cut):
        await sender.deliver("S-1", ANY, "0.0")
        await until(lambda: cut.runs == ["S-1"])
        cut.alive = False
        async with working(server, well):
            await until(lambda: well.runs == ["S-1"], within_s=10 * LEASE_S)
            await sender.deliver("S-2", ANY, "0.0")
            await until(lambda: "S-2" in well.runs)
        assert cut.runs == ["S-1"]


async def test_a_late_acknowledgement_of_an_older_delivery_is_accepted_by_the_server(server: NatsServer) -> None:
    """The trap that the answer of the log closes: whoever acknowledges too early takes the run from its new owner."""
    zombie, successor = Worker(alive=True), Worker()
    async with delivery(server) as sender, working(server, zombie):
        await sender.deliver("S-1", ANY, "0.0")
        await until(lambda: zombie.runs == ["S-1"])
        zombie.alive = False
        async with working(server, successor):
            await until(lambda: successor.runs == ["S-1"], within_s=10 * LEASE_S)
            zombie.gate.set()  # it answers "forget it", as a naive one would
            await until(lambda: not zombie.held)

            async def gone() -> bool:
                return (await sender.state()).taken[ANY] == 0

            with anyio.fail_after(10):
                while not await gone():  # noqa: ASYNC110
                    await anyio.sleep(0.1)
            assert successor.held == {"S-1"}, "it works on a run whose message is gone"


async def test_a_worker_that_is_stopped_gives_its_messages_back_at_once(server: NatsServer) -> None:
    stopped, other = Worker(), instant_worker()
    async with delivery(server) as sender:
        async with working(server, stopped):
            await sender.deliver("S-1", ANY, "0.0")
            await until(lambda: stopped.runs == ["S-1"])
        began = anyio.current_time()
        async with working(server, other):
            await until(lambda: other.runs == ["S-1"])
        assert anyio.current_time() - began < LEASE_S + 1


async def test_a_cancel_wakes_all_workers(server: NatsServer) -> None:
    one, two = instant_worker(), instant_worker()
    async with delivery(server) as sender, working(server, one), working(server, two):
        await anyio.sleep(0.5)
        await sender.cancel("S-1")
        await until(lambda: one.woken == two.woken == 1)


async def test_after_its_store_was_deleted_the_next_delivery_makes_it_again(server: NatsServer) -> None:
    worker = instant_worker()
    async with delivery(server) as sender, working(server, worker):
        await sender.deliver("S-1", ANY, "0.0")
        await until(lambda: worker.runs == ["S-1"])
        await anyio.to_thread.run_sync(server.wipe)
        await delivered(sender, "S-2")
        await until(lambda: "S-2" in worker.runs, within_s=20)


async def test_copies_of_a_run_take_one_slot_and_one_place_in_the_stream(server: NatsServer) -> None:
    worker = Worker()
    async with delivery(server) as sender:
        for attempt in range(5):
            await sender.deliver("S-1", ANY, f"0.{attempt}")
        assert (await sender.state()).waiting == {ANY: 1}, "the newest is enough"
        async with working(server, worker, slots=2):
            await until(lambda: worker.runs == ["S-1"])
            for attempt in range(5, 10):
                await sender.deliver("S-1", ANY, f"0.{attempt}")
            await sender.deliver("S-2", ANY, "0.0")
            await until(lambda: worker.held == {"S-1", "S-2"})
            await anyio.sleep(3 * LEASE_S)
            assert worker.runs == ["S-1", "S-2"] and (await sender.state()).taken == {ANY: 2}, "the newest shows life"
            worker.gate.set()
            await until(lambda: not worker.held)
            await anyio.sleep(2 * LEASE_S)
            state = await sender.state()
            assert (state.waiting, state.taken) == ({ANY: 0}, {ANY: 0}) and worker.runs == ["S-1", "S-2"]


async def test_a_consumer_that_somebody_removed_is_made_again_when_nobody_takes_the_run(server: NatsServer) -> None:
    worker = instant_worker()
    async with delivery(server) as sender:
        await sender.deliver("S-1", ANY, "0.0")
        stranger = await nats.connect(server.address)
        stream = stranger.jetstream()
        await stream.delete_consumer("ava", "any")
        async with working(server, worker):
            await sender.deliver("S-1", ANY, "0.1")
            await until(lambda: worker.runs == ["S-1"])
        await stream.delete_consumer("ava", "any")
        await stream.add_consumer("ava", durable_name="any", filter_subject="ava.run.any.*", max_deliver=1)
        await stranger.close()
        assert "is not as Ava makes it" in await fails(lambda: sender.deliver("S-2", ANY, "0.1"))


async def test_what_waits_in_the_stream_is_not_delivered_again_and_what_is_lost_or_silent_is(
    server: NatsServer,
) -> None:
    async with delivery(server) as sender, delivery(server) as another:
        for run in ("S-1", "S-2"):
            assert await sender.deliver(run, ANY, "0.0")
        assert not await sender.deliver("S-1", ANY, "0.1") and not await another.deliver("S-2", ANY, "0.1")
        worker = Worker()
        async with working(server, worker, slots=1):
            await until(lambda: worker.held == {"S-1"})
            assert not await sender.deliver("S-2", ANY, "0.2"), "it waits behind another one"
            assert await sender.deliver("S-1", ANY, "0.2"), "a worker has it, and the log has no sign of life"
            server.stop()
            server.start()
            with anyio.fail_after(30):
                while (await sender.state()).fault:  # noqa: ASYNC110
                    await anyio.sleep(0.2)
            assert not await sender.deliver("S-2", ANY, "0.3"), "it has outlasted the server"
        await anyio.to_thread.run_sync(server.wipe)
        with anyio.fail_after(30):
            while (await sender.state()).fault:  # noqa: ASYNC110
                await anyio.sleep(0.2)
        assert await sender.deliver("S-2", ANY, "0.4"), "its store was lost"


# -- rights -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Generator[NatsServer]:
    with run_nats(tmp_path / "nats", rights=True) as started:
        yield started


async def test_a_worker_works_with_the_least_rights_and_can_submit_nothing(guarded: NatsServer) -> None:
    worker = instant_worker()
    async with (
        delivery(guarded, guarded.key("server")) as sender,
        working(guarded, worker, credentials=guarded.key("worker")),
    ):
        await sender.deliver("S-1", ANY, "0.0")
        await until(lambda: worker.runs == ["S-1"])
        await sender.cancel("S-1")
        await until(lambda: worker.woken > 0)
        await sender.deliver("S-2", "label-gpu", "0.0")
    async with delivery(guarded, guarded.key("worker")) as thief:
        text = await fails(lambda: thief.deliver("S-9", ANY, "0.0"))
        assert (
            "does not let the user worker deliver runs" in text and "a server needs a user that may, `server`" in text
        )
        state = await thief.state()
        assert state.fault == "" and not state.counted, "it is up, and the counts are not for this user"
        assert (state.user, state.delivers) == ("the user worker", False)
    async with delivery(guarded, guarded.key("server")) as sender:
        assert (await sender.state()).delivers


async def test_workers_with_a_label_work_in_an_account_of_their_own(guarded: NatsServer) -> None:
    plain, gpu = instant_worker(), instant_worker()
    async with (
        delivery(guarded, guarded.key("server")) as sender,
        working(guarded, plain, credentials=guarded.key("worker")),
        working(guarded, gpu, labels=("gpu",), credentials=guarded.key("gpu")),
    ):
        await sender.deliver("S-1", "label-gpu", "0.0")
        await until(lambda: gpu.runs == ["S-1"])
        await sender.cancel("S-1")
        await until(lambda: plain.woken > 0 and gpu.woken > 0)
        state = await sender.state()
        assert plain.runs == [] and (state.waiting["label-gpu"], state.taken["label-gpu"]) == (0, 0)


@dataclass
class Thief:
    """Somebody with a worker's password; `denied` has what the server said to it."""

    client: Client
    denied: list[str]

    async def is_denied(self, subject: str, *, listens: bool = False) -> bool:
        """Try to publish to a subject or to listen to it, and tell whether the server refused that very subject."""
        self.denied.clear()
        if listens:
            await self.client.subscribe(subject)
        else:
            await self.client.publish(subject, b"{}")
        await self.client.flush()
        with anyio.move_on_after(3):
            while not self.denied:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        return any(subject.lower() in text.lower() for text in self.denied)


@asynccontextmanager
async def thief_of(server: NatsServer, user: str = "worker") -> AsyncGenerator[Thief]:
    denied: list[str] = []

    async def note(error: Exception) -> None:
        denied.append(str(error))

    name, password = server.key(user).split(":")
    client = await nats.connect(
        server.address, user=name, password=password, inbox_prefix=f"_INBOX_{name}", error_cb=note
    )
    try:
        yield Thief(client, denied)
    finally:
        await client.close()


NOT_FOR_WORKERS = (
    "ava.run.any.S-1",
    "ava.run.label-gpu.S-1",
    "ava.cancel",
    "_INBOX_worker.x",
    "_INBOX_server.x",
    "$JS.API.INFO",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.ava",
    "$JS.API.STREAM.UPDATE.ava",
    "$JS.API.STREAM.DELETE.ava",
    "$JS.API.STREAM.PURGE.ava",
    "$JS.API.STREAM.MSG.GET.ava",
    "$JS.API.STREAM.MSG.DELETE.ava",
    "$JS.API.STREAM.SNAPSHOT.ava",
    "$JS.API.DIRECT.GET.ava",
    "$JS.API.CONSUMER.CREATE.ava",
    "$JS.API.CONSUMER.DURABLE.CREATE.ava.any",
    "$JS.API.CONSUMER.DELETE.ava.any",
    "$JS.API.CONSUMER.PAUSE.ava.any",
    "$JS.API.CONSUMER.MSG.NEXT.ava.label-gpu",
    "$JS.ACK.ava.label-gpu.1.1.1.1.0",
    "$SYS.REQ.SERVER.PING",
)
NOT_HEARD_BY_WORKERS = (">", "ava.>", "ava.run.>", "_INBOX.>", "_INBOX_server.>", "_INBOX_gpu.>", "$JS.>", "$SYS.>")


async def test_stolen_credentials_of_a_worker_read_and_remove_nothing_else(guarded: NatsServer) -> None:
    """They take messages of its queues, which name runs and nothing else; the log delivers these again."""
    async with delivery(guarded, guarded.key("server")) as sender:
        await sender.deliver("S-1", "label-gpu", "0.0")
        async with thief_of(guarded) as thief:
            for subject in NOT_FOR_WORKERS:
                assert await thief.is_denied(subject), subject
            for subject in NOT_HEARD_BY_WORKERS:
                assert await thief.is_denied(subject, listens=True), subject
        assert (await sender.state()).waiting == {"label-gpu": 1}


@pytest.mark.parametrize("user", ["worker", "gpu"])
async def test_a_worker_cannot_have_the_engine_do_what_it_may_not(guarded: NatsServer, user: str) -> None:
    """NATS sends its answer to whatever subject a request names: here to the stream, and to commands about it.

    The answer that nothing waits is empty, as the command to delete a stream is.
    """
    async with delivery(guarded, guarded.key("server")) as sender, thief_of(guarded, user) as thief:
        for number in range(8):
            await sender.deliver(f"S-{number}", ANY, "0.0")
        await sender.deliver("S-gpu", "label-tpu", "0.0")
        await sender.deliver("G-1", PLANS, "0.0")
        plans = await thief.client.jetstream().pull_subscribe_bind("plans", "ava")
        (plan,) = await plans.fetch(1)
        await plan.ack()
        stream = (await sender._connection()).jetstream()
        for reply in (
            "$JS.API.STREAM.DELETE.ava",
            "$JS.API.STREAM.PURGE.ava",
            "$JS.API.CONSUMER.DELETE.ava.label-tpu",
            "ava.run.label-tpu.S-evil",
            "_INBOX_server.x",
        ):
            for queue in ("plans", "any"):  # one is empty, and one has messages
                ask = b'{"batch":1,"no_wait":true}'
                await thief.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.ava.{queue}", ask, reply=reply)
                await thief.client.flush()
                await anyio.sleep(0.2)
            info = await stream.stream_info("ava")
            assert (info.state.messages, info.state.last_seq) == (9, 10), reply
        assert (await sender.state()).waiting["label-tpu"] == 1


async def test_somebody_who_fills_a_queue_with_requests_is_seen_and_holds_it_only_while_connected(
    guarded: NatsServer,
) -> None:
    worker = instant_worker()
    async with delivery(guarded, guarded.key("server")) as sender:
        await sender.deliver("S-0", ANY, "0.0")
        async with thief_of(guarded) as thief:
            await thief.client.subscribe("_INBOX_worker.mine")
            for _ in range(20_000):
                await thief.client.publish(
                    "$JS.API.CONSUMER.MSG.NEXT.ava.any", b'{"batch":1}', reply="_INBOX_worker.mine"
                )
            await thief.client.flush()
            with anyio.fail_after(20):
                while list((await sender.state()).full) != [ANY]:  # noqa: ASYNC110
                    await anyio.sleep(0.1)
        await sender.deliver("S-1", ANY, "0.0")
        async with working(guarded, worker, credentials=guarded.key("worker")):
            await until(lambda: set(worker.runs) == {"S-0", "S-1"}, within_s=30)
        assert not (await sender.state()).full


# -- faults -----------------------------------------------------------------------------------------------------------


async def test_a_worker_says_once_each_time_that_the_engine_is_away_and_that_it_is_back(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ava.delivery")
    server.stop()
    async with working(server, instant_worker()):
        for time in (1, 2):
            await until(lambda: caplog.text.count("does not answer") == time, within_s=20)  # noqa: B023
            server.start()
            await until(lambda: caplog.text.count("answers again") == time, within_s=20)  # noqa: B023
            await anyio.sleep(1.5)
            server.stop()
    assert caplog.text.count("does not answer") <= 3


async def test_an_engine_that_is_away_is_one_sentence_and_works_once_it_is_back(server: NatsServer) -> None:
    server.stop()
    worker = instant_worker()
    async with delivery(server) as sender, working(server, worker):
        text = await fails(lambda: sender.deliver("S-1", ANY, "0.0"))
        assert text == f"the NATS server at {server.address} does not answer; runs wait until it does"
        state = await sender.state()
        assert state.fault == text and state.to_do.startswith(f"Is nats-server running at {server.address}? Start it")
        server.start()
        await delivered(sender, "S-1")
        await until(lambda: worker.runs == ["S-1"], within_s=20)


async def test_wrong_credentials_are_one_sentence_without_them(guarded: NatsServer) -> None:
    for wrong in ("server:wrong-password", "wrong-token"):
        async with delivery(guarded, wrong) as sender:
            text = await fails(partial(sender.deliver, "S-1", ANY, "0.0"))
            assert "refuses these credentials: store the right ones, user:password, with `ava key set nats`" in text
            assert "wrong" not in text
    async with delivery(guarded, None) as sender:
        text = await fails(partial(sender.deliver, "S-1", ANY, "0.0"))
        assert text.endswith("lets nobody in without credentials, and none are stored here: `ava key set nats`")
        assert "store server:PASSWORD on a machine with a server" in (await sender.state()).to_do


async def test_a_certificate_of_an_unknown_authority_is_one_sentence_and_ca_file_makes_it_known(tmp_path: Path) -> None:
    issued = issue(tmp_path, "IP:127.0.0.1")
    with run_nats(tmp_path / "nats", tls=issued.server) as server:
        async with delivery(server) as sender:
            text = await fails(lambda: sender.deliver("S-1", ANY, "0.0"))
            assert "has a certificate that is not trusted" in text and "ca_file under [delivery]" in text
        worker = instant_worker()
        trusting = NatsDelivery(place(server, None, issued.authority))
        async with trusting.connected(), anyio.create_task_group() as tasks:
            tasks.start_soon(trusting.work, "w", [ANY], 1, worker)
            await trusting.deliver("S-1", ANY, "0.0")
            await until(lambda: worker.runs == ["S-1"])
            tasks.cancel_scope.cancel()


async def test_an_address_with_tls_sends_nothing_in_clear(tmp_path: Path) -> None:
    with run_nats(tmp_path / "nats") as server:
        address = server.address.replace("nats://", "tls://")
        plain = NatsDelivery(EnginePlace(address, "ava", "server:secret-word", None, LEASE_S, "a"))
        async with plain.connected():
            text = await fails(lambda: plain.deliver("S-1", ANY, "0.0"))
            assert "offers no encryption, and nothing was sent to it: have it require TLS" in text


@asynccontextmanager
async def listening(answer: bytes) -> AsyncGenerator[tuple[int, list[float], bytearray]]:
    """A port that gives an answer to whoever connects and notes when, and what it is sent; without one, it closes."""
    times, heard = list[float](), bytearray()

    async def serve(stream: anyio.abc.SocketStream) -> None:
        times.append(anyio.current_time())
        async with stream:
            if not answer:
                return
            await stream.send(answer)
            with anyio.move_on_after(2):
                async for data in stream:
                    heard.extend(data)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(anyio.abc.SocketAttribute.local_port), times, heard
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("offers", [b"", b',"tls_available":true', b',"tls_required":false'])
async def test_a_server_in_the_middle_that_denies_tls_gets_no_password(offers: bytes) -> None:
    info = b'INFO {"server_id":"a","version":"2.11.0","headers":true,"auth_required":true' + offers + b"}\r\n"
    async with listening(info) as (port, times, heard):
        adapter = NatsDelivery(EnginePlace(f"tls://127.0.0.1:{port}", "ava", "server:secret", None, LEASE_S, "a"))
        async with adapter.connected():
            await fails(lambda: adapter.deliver("S-1", ANY, "0.0"))
        await anyio.sleep(0.3)
        assert times and heard == b""


async def test_a_server_that_lets_nobody_in_is_asked_about_once_a_second(tmp_path: Path) -> None:
    async with listening(b"") as (port, times, _heard):
        adapter = NatsDelivery(EnginePlace(f"nats://127.0.0.1:{port}", "ava", None, None, LEASE_S, "a"))
        async with adapter.connected(), anyio.create_task_group() as tasks:
            tasks.start_soon(adapter.work, "w", queues_for("abcd"), 4, instant_worker())
            await anyio.sleep(4)
            tasks.cancel_scope.cancel()
        assert 2 <= len(times) <= 8


async def test_a_label_without_rights_is_said_once_and_asked_for_seldom(
    guarded: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    worker = instant_worker()
    async with delivery(guarded, guarded.key("server")) as sender:
        await sender.deliver("S-0", "label-gpu", "0.0")
        async with working(guarded, worker, slots=1, labels=("gpu",), credentials=guarded.key("worker")):
            for number in range(1, 6):
                await sender.deliver(f"S-{number}", ANY, "0.0")
                await anyio.sleep(1)
            await until(lambda: "does not let the user worker take runs of the queue label-gpu" in caplog.text)
            await until(lambda: len(worker.runs) == 5)
    assert caplog.text.count("does not let the user worker") == 1 and "a worker needs one that may" in caplog.text


async def test_a_worker_tells_by_queue_what_it_cannot_take_and_takes_that_back(server: NatsServer) -> None:
    worker = instant_worker()
    server.stop()
    async with working(server, worker, labels=("gpu",)):
        await until(lambda: set(worker.faults) == {PLANS, ANY, "label-gpu"}, within_s=20)
        assert set(worker.faults.values()) == {
            f"the NATS server at {server.address} does not answer; runs wait until it does"
        }
        server.start()
        await until(lambda: not worker.faults, within_s=30)


async def test_a_worker_with_the_wrong_password_or_with_labels_of_others_says_so(guarded: NatsServer) -> None:
    stranger, labelled = instant_worker(), instant_worker()
    async with (
        delivery(guarded, guarded.key("server")) as sender,
        working(guarded, stranger, credentials="worker:wrong"),
        working(guarded, labelled, labels=("gpu", "eu"), credentials=guarded.key("worker")),
    ):
        for queue in (ANY, PLANS, "label-gpu", "label-eu", "label-eu+gpu"):
            await sender.deliver(f"S-{queue[-1]}", queue, "0.0")
        await until(lambda: set(stranger.faults) == {ANY, PLANS})
        assert "refuses these credentials" in stranger.faults[ANY]
        denied = {"label-gpu", "label-eu", "label-eu+gpu"}
        await until(lambda: set(labelled.faults) == denied, within_s=20)
        ends = anyio.current_time() + 8
        while anyio.current_time() < ends:
            assert set(labelled.faults) == denied, "what the server says of one queue hides no other"
            await anyio.sleep(0.1)
    assert "does not let the user worker take runs of the queue label-gpu" in labelled.faults["label-gpu"]


async def test_a_worker_tells_of_a_queue_that_its_account_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the right to ask, and its account does not import whom it asks: as before the queue's first run."""
    documented = NatsServer._documented
    taken_out = '      {service: {account: AVA, subject: "$JS.API.CONSUMER.MSG.NEXT.ava.label-gpu"}}\n'

    def without_import(server: NatsServer) -> str:
        text = documented(server)
        assert text.count(taken_out) == 1
        return text.replace(taken_out, "")

    monkeypatch.setattr(NatsServer, "_documented", without_import)
    worker = instant_worker()
    with run_nats(tmp_path / "nats", rights=True) as server:
        async with (
            delivery(server, server.key("server")) as sender,
            working(server, worker, labels=("gpu",), credentials=server.key("gpu")),
        ):
            await until(lambda: worker.missing == {ANY, PLANS, "label-gpu"}, within_s=20)
            for queue in (ANY, PLANS, "label-gpu"):
                await sender.deliver(f"S-{queue[-1]}", queue, "0.0")
            await until(lambda: worker.missing == {"label-gpu"}, within_s=20)
            await until(lambda: len(worker.runs) == 2)
    assert not worker.faults


@pytest.mark.parametrize("changed", ["retention", "consumer"])
async def test_a_stream_that_somebody_changed_is_named_and_not_used(server: NatsServer, changed: str) -> None:
    stranger = await nats.connect(server.address)
    stream = stranger.jetstream()
    if changed == "retention":
        await stream.add_stream(StreamConfig(name="ava", subjects=["ava.run.*.*"]))
    else:
        async with delivery(server) as sender:
            await sender.deliver("S-0", ANY, "0.0")
        await stream.delete_consumer("ava", "any")
        await stream.add_consumer("ava", durable_name="any", filter_subject="ava.run.any.*", max_deliver=1)
    await stranger.close()
    async with delivery(server) as sender:
        text = await fails(lambda: sender.deliver("S-1", ANY, "0.0"))
        assert "is not as Ava makes it" in text and "give another name under [delivery]" in text


async def test_a_message_of_another_log_is_not_run_and_not_lost(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    worker = instant_worker()
    async with working(server, worker):
        other = NatsDelivery(place(server, log="b"))
        async with other.connected():
            await other.deliver("S-1", ANY, "0.0")
            await until(lambda: "of another log or another version" in caplog.text)
            state = await other.state()
            assert state.waiting[ANY] + state.taken[ANY] == 1
    assert worker.runs == []


NEWER = b'{"v":2,"log":"a","to":{"run":"S-9"}}'
NOT_OF_AVA = [
    b"", b"\x00", b"{", b"null", b"7", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000,
    b'{"v":' + b"9" * 5_000 + b"}", b'{"v":true,"log":"a","run":"S-1"}', b'{"v":1.0,"log":"a","run":"S-1"}',
    b'{"v":0,"log":"a","run":"S-1"}', b'{"v":"1","log":"a","run":"S-1"}', b'{"v":1,"log":["a"],"run":"S-1"}',
    b'{"v":1,"log":"a"}', b'{"v":1,"log":"a","run":null}', b'{"v":1,"log":"a","run":{}}',
    b'{"v":1,"log":"a","run":"S-\\u0000"}', b'{"v":1,"log":"a","run":"S-\\ud800"}', b'{"v":1,"log":"a","run":"x"}',
    b'{"v":1,"log":"a","run":"S-' + b"1" * 100_000 + b'"}',
]  # fmt: skip


async def test_what_no_ava_writes_is_removed_and_counted_and_ends_no_worker(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    worker = instant_worker()
    async with delivery(server) as sender, working(server, worker, slots=1):
        await sender.deliver("S-first", ANY, "0.0")
        await until(lambda: worker.runs == ["S-first"])
        stranger = await nats.connect(server.address)
        for number, body in enumerate(NOT_OF_AVA):
            await stranger.publish(f"ava.run.any.bad-{number}", body)
        await stranger.publish("ava.run.any.newer", NEWER)
        await stranger.flush()
        await until(lambda: worker.bad_messages == len(NOT_OF_AVA), within_s=30)
        await sender.deliver("S-1", ANY, "0.0")
        await until(lambda: worker.runs == ["S-first", "S-1"])
        await anyio.sleep(2 * LEASE_S)
        assert worker.bad_messages == len(NOT_OF_AVA), "none came again"
        info = await stranger.jetstream().stream_info("ava")
        assert info.state.messages == 1, "the one of a newer version waits for a worker that knows it"
        await stranger.close()
    assert caplog.text.count("has a message that no Ava writes") == 1


async def test_a_fault_of_ours_in_one_message_ends_no_worker_and_the_message_comes_again(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = list[str]()

    class Broken(Worker):
        async def __call__(self, run_id: str) -> bool:
            given.append(run_id)
            if len(given) == 1:
                raise KeyError(run_id)
            return True

    worker = Broken()
    async with delivery(server) as sender, working(server, worker, slots=1):
        await sender.deliver("S-1", ANY, "0.0")
        await until(lambda: given == ["S-1", "S-1"])
        await until(lambda: worker.bad_messages == 1)
    assert "could not be handled" in caplog.text and "KeyError" in caplog.text


async def test_a_server_that_sends_nonsense_ends_no_worker_and_is_one_sentence() -> None:
    async with listening(b'INFO {"a":' + b"[" * 100_000 + b"\r\n") as (port, times, _heard):
        adapter = NatsDelivery(EnginePlace(f"nats://127.0.0.1:{port}", "ava", None, None, LEASE_S, "a"))
        async with adapter.connected(), anyio.create_task_group() as tasks:
            tasks.start_soon(adapter.work, "w", [ANY], 1, instant_worker())
            text = await fails(lambda: adapter.deliver("S-1", ANY, "0.0"))
            await until(lambda: len(times) > 1)
            tasks.cancel_scope.cancel()
    assert text.startswith(f"the NATS server at nats://127.0.0.1:{port} ")


def test_too_many_labels_are_one_sentence() -> None:
    with pytest.raises(DeliveryFailed, match=r"this worker has 5 labels .* at most 4"):
        queues_for("abcde")
    assert queues_for(["b", "a"]) == [PLANS, ANY, "label-a", "label-b", "label-a+b"]


def place(server: NatsServer, credentials: str | None = None, ca: Path | None = None, log: str = "a") -> EnginePlace:
    return EnginePlace(server.address, "ava", credentials, ca, LEASE_S, log)


@asynccontextmanager
async def delivery(server: NatsServer, *more: object) -> AsyncGenerator[NatsDelivery]:
    adapter = NatsDelivery(place(server, *more))  # type: ignore[arg-type]
    async with adapter.connected():
        yield adapter


@asynccontextmanager
async def working(
    server: NatsServer, worker: Worker, slots: int = 2, labels: tuple[str, ...] = (), credentials: str | None = None
) -> AsyncGenerator[None]:
    async with delivery(server, credentials) as adapter, anyio.create_task_group() as tasks:
        tasks.start_soon(adapter.work, "w", queues_for(labels), slots, worker)
        yield
        tasks.cancel_scope.cancel()


async def fails(work: Callable[[], Awaitable[object]]) -> str:
    with pytest.raises(DeliveryFailed) as failed:
        await work()
    text = str(failed.value)
    assert "\n" not in text and not text.endswith(".")
    return text


async def delivered(sender: NatsDelivery, run_id: str) -> None:
    """Deliver a run, trying again as the outbox does."""
    with anyio.fail_after(30):
        while True:
            try:
                await sender.deliver(run_id, ANY, "0.0")
                return
            except DeliveryFailed:
                await anyio.sleep(0.2)

"""Delivery by NATS JetStream: a work-queue stream, a durable consumer for each queue, and a plain subject for cancels.

A message carries a run's id alone. It is acknowledged only when the log says that it may be forgotten: JetStream
accepts an acknowledgement also from a worker whose message it has given to another one, so an early one would lose the
run. It confirms a message before that is on the disk, unless the server has `sync_interval: always`; what a lost store
forgets is delivered again after four leases. A message that no Ava writes is terminated at once; one of a newer version
or of another log goes back, for a worker that knows it.

The stream keeps one message for each run, the newest, so what is delivered again and again takes no more room. A
worker that is given a run which it has in hand keeps the newest message of it, in the slot that the run has.

Servers make the stream and its consumers; workers only pull, acknowledge and hear of cancels. NATS sends its
answer to whatever subject a request names, so a worker's rights hold only in an account without the stream (`nats.conf`
in the documentation).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# The client for NATS gives the types of its arguments only in part.
from __future__ import annotations

import json
import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, cast

import anyio
import anyio.lowlevel
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.client import JetStreamContext

from ava_server.delivery import PLANS, SILENT_LEASES, Body, DeliveryFailed, EnginePlace, EngineState, is_repeat
from ava_server.delivery.message import LOOK_S, is_run_id, signs_of_life, until_it_takes

log = logging.getLogger("ava.delivery")
T = TypeVar("T")

CONNECT_S = 3
"""How long one server has to let a client in."""
DIAL_S = 9.0
"""The same for all servers of the address together."""
ANSWER_S = 5.0
PULL_S = 5.0
"""How long one pull waits for a message."""
SHARED_PULL_S = 0.5
"""The same where a worker has fewer slots than queues, and these take turns."""
TRY_AGAIN_S = 1.0
STATE_S = 2.0
"""How long the counts of queues are waited for: operators look at them, and the connection says that it is up."""
SAME_S = 120.0
"""Seconds within which the same attempt at a run is one message, at least."""
MOST_STORED = 5_000
"""Numbers of messages that a server remembers; of a run whose number it forgot, it may deliver what waits again."""
MOST_PULLS = 512
"""Requests for runs that wait in a queue at most: each worker makes one at a time. NATS refuses the others."""
MOST_DENIALS = 64
"""What the server did not let this user do that is remembered: a worker has at most 17 queues."""
FORMAT = 1
"""The version of what a message carries."""
_BAD_MESSAGE, _FOREIGN_MESSAGE = "bad message", "foreign message"
"""What stands for these messages where queues are named; no queue has a blank in its name."""

_WHICH_USER = (
    "With the documented nats.conf, store server:PASSWORD on a machine with a server, worker:PASSWORD on one with"
    " workers, and start them again."
)


class _NoTLS(nats.errors.Error):
    """The address asks for TLS and the server offers none."""


class _Denied(DeliveryFailed):
    """The server is there, and this user may not do that: `denied` has what the server said."""

    def __init__(self, message: str, denied: str) -> None:
        super().__init__(message)
        self.denied = denied


class _Client(Client):
    """The client, which sends nothing in clear where TLS is wanted: it alone would believe what the server says."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and "tls" in self.options and not info.get("tls_required"):
            raise _NoTLS
        await super()._process_info(info, initial_connection)


class NatsDelivery:
    """The adapter for NATS; it connects when it is first used, and again after a loss."""

    name = "nats"
    carries = True

    def __init__(self, place: EnginePlace) -> None:
        self._place = place
        self._client: Client | None = None
        self._lock = anyio.Lock()
        self._failure: Exception | None = None
        self._dials_from_s = float("-inf")
        self._made: set[str] = set()
        self._stored: dict[str, int] = {}  # the number in the stream of each run's message, of those delivered here
        self._held: dict[str, Msg] = {}  # the newest message of each run that this worker has
        self._denials: dict[str, float] = {}  # what the server did not let this user do, and when it last said so
        self._said: dict[str, str] = {}

    # -- the seam -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            client, self._client = self._client, None
            if client is not None:
                with anyio.CancelScope(shield=True), anyio.move_on_after(2), suppress(nats.errors.Error, OSError):
                    await client.close()

    async def deliver(self, run_id: str, queue: str, attempt: str) -> bool:
        try:
            return await self._translated(self._deliver(run_id, queue, attempt))
        except _Denied as error:
            raise DeliveryFailed(
                f"{self._at} does not let {self._user} deliver runs ({error.denied}): a server needs a user that may,"
                " `server` in the documented nats.conf; store it with `ava key set nats`"
            ) from None

    async def cancel(self, run_id: str) -> None:
        async def send() -> None:
            client = await self._connection()
            await client.publish(f"{self._place.name}.cancel", run_id.encode())
            await client.flush(timeout=int(ANSWER_S))

        await self._translated(send())

    async def work(self, name: str, queues: Sequence[str], slots: int, body: Body) -> None:
        free = anyio.Semaphore(slots)
        pull_s = PULL_S
        if slots < len(queues):
            pull_s = SHARED_PULL_S
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hear_cancels, body)
            for queue in queues:
                slots_of_queue: anyio.Semaphore | None = free
                if queue == PLANS:  # plans take no slots
                    slots_of_queue = None
                tasks.start_soon(self._pull_all, queue, slots_of_queue, pull_s, body, tasks)

    async def state(self) -> EngineState:
        waiting: dict[str, int] = {}
        taken: dict[str, int] = {}
        full: list[str] = []
        again = 0
        try:
            for info in await self._translated(self._consumers()):
                queue = _queue_of_token(info.name or "")
                waiting[queue] = info.num_pending or 0
                taken[queue] = info.num_ack_pending or 0
                again += info.num_redelivered or 0
                if (info.num_waiting or 0) >= MOST_PULLS:
                    full.append(queue)
        except _Denied as error:  # as a worker's user: the engine is up
            delivers = f".STREAM.INFO.{self._place.name}".lower() not in error.denied.lower()
            return EngineState(counted=False, user=self._user, delivers=delivers)
        except DeliveryFailed as error:
            return EngineState(str(error), error.to_do)
        return EngineState(waiting=waiting, taken=taken, full=full, again=again, user=self._user)

    # -- servers ------------------------------------------------------------------------------------------------------

    async def _deliver(self, run_id: str, queue: str, attempt: str) -> bool:
        client = await self._connection()
        stream = client.jetstream(timeout=ANSWER_S)
        repeats = is_repeat(attempt)
        if repeats:
            self._made.clear()  # somebody may have removed what is needed
        await self._make(stream, queue)
        if repeats and await self._waits(stream, run_id, queue):
            return False
        body = json.dumps({"v": FORMAT, "log": self._place.log_id, "run": run_id}).encode()
        headers: dict[str, Any] = {"Nats-Msg-Id": f"{run_id}.{attempt}"}
        subject = self._subject(run_id, queue)
        try:
            stored = await stream.publish(subject, body, ANSWER_S, headers=headers)
        except nats.js.errors.NoStreamResponseError:  # its store was lost since
            self._made.clear()
            await self._make(stream, queue)
            stored = await stream.publish(subject, body, ANSWER_S, headers=headers)
        self._stored[run_id] = stored.seq
        if len(self._stored) > MOST_STORED:
            del self._stored[next(iter(self._stored))]
        return not stored.duplicate

    async def _waits(self, stream: JetStreamContext, run_id: str, queue: str) -> bool:
        """Tell whether a message of a run waits in its queue, given to no worker yet.

        A message that another server has stored has no known number: it waits for certain while no worker of the queue
        has any.
        """
        name, subject = self._place.name, self._subject(run_id, queue)
        kept = (await stream.stream_info(name, subjects_filter=subject)).state.subjects or {}
        if subject not in kept:  # lost with the store, or acknowledged
            self._stored.pop(run_id, None)
            return False
        consumer = await stream.consumer_info(name, _token(queue))
        if not consumer.num_ack_pending:
            return True
        last_delivered = 0
        if consumer.delivered is not None:
            last_delivered = consumer.delivered.stream_seq
        return self._stored.get(run_id, 0) > last_delivered

    def _subject(self, run_id: str, queue: str) -> str:
        return f"{self._place.name}.run.{_token(queue)}.{_token(run_id)}"

    async def _make(self, stream: JetStreamContext, queue: str) -> None:
        """Make the stream and a queue's consumer where they are missing; one that somebody changed is refused."""
        if not self._made:
            await self._make_stream(stream)
        if queue in self._made:
            return
        name, token = self._place.name, _token(queue)
        wanted = ConsumerConfig(
            durable_name=token,
            filter_subject=f"{name}.run.{token}.*",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._place.lease_s,
            max_deliver=-1,
            max_ack_pending=-1,
            max_waiting=MOST_PULLS,
        )
        try:
            found = (await stream.consumer_info(name, token)).config
        except nats.js.errors.NotFoundError:
            await stream.add_consumer(name, wanted)
        else:
            for field in ("filter_subject", "ack_policy", "max_deliver", "max_ack_pending"):
                self._compare(f"its consumer {token}", field, getattr(found, field), getattr(wanted, field))
            if found.ack_wait != wanted.ack_wait:  # `lease_s` was changed
                await stream.add_consumer(name, wanted)
        self._made.add(queue)

    async def _make_stream(self, stream: JetStreamContext) -> None:
        name = self._place.name
        wanted = StreamConfig(
            name=name,
            subjects=[f"{name}.run.*.*"],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            max_msgs_per_subject=1,
            discard=DiscardPolicy.OLD,
            duplicate_window=max(SAME_S, SILENT_LEASES * self._place.lease_s),
        )
        try:
            found = (await stream.stream_info(name)).config
        except nats.js.errors.NotFoundError:
            await stream.add_stream(wanted)
            self._stored.clear()
        else:
            for field in ("subjects", "retention", "storage", "max_msgs_per_subject", "discard"):
                self._compare("it", field, getattr(found, field), getattr(wanted, field))

    def _compare(self, what: str, field: str, found: object, wanted: object) -> None:
        if found != wanted:
            raise DeliveryFailed(
                f"the stream {self._place.name} of the NATS server at {self._place.address} is not as Ava makes it"
                f" ({what} has {field} {_value_words(found)}, not {_value_words(wanted)}): remove it there, or give"
                " another name under [delivery]"
            )

    async def _consumers(self) -> list[Any]:
        """Return the queues' consumers, by the rights that delivering needs, and one more."""
        stream = (await self._connection()).jetstream(timeout=STATE_S / 2)
        try:
            await stream.stream_info(self._place.name)
            return await stream.consumers_info(self._place.name)
        except nats.js.errors.NotFoundError:  # nothing was delivered yet
            return []

    # -- workers ------------------------------------------------------------------------------------------------------

    async def _hear_cancels(self, body: Body) -> None:
        client: Client | None = None
        while True:
            try:
                if client is not self._client or client is None or client.is_closed:
                    client = await self._translated(self._connection())

                    async def wake(_message: Msg) -> None:
                        body.wake()

                    await client.subscribe(f"{self._place.name}.cancel", cb=wake)
            except (DeliveryFailed, nats.errors.Error) as error:
                self._note(str(error))
            except Exception as error:  # as where messages are pulled
                self._note(str(self._unusable(error)))
            await anyio.sleep(TRY_AGAIN_S)

    async def _pull_all(
        self,
        queue: str,
        free: anyio.Semaphore | None,
        pull_s: float,
        body: Body,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        """Take one message of a queue for each free slot, as long as the worker takes any.

        `free`: the worker's slots; None where the queue's runs take none.
        """
        subscribed: tuple[Client, JetStreamContext.PullSubscription] | None = None
        while True:
            await until_it_takes(body)
            if free is not None:
                await free.acquire()
            message: Msg | None = None
            began_s, fails = anyio.current_time(), False
            try:
                client = await self._translated(self._connection())
                if subscribed is None or subscribed[0] is not client:
                    subscription = await client.jetstream().pull_subscribe_bind(_token(queue), self._place.name)
                    subscribed = client, subscription
                (message,) = await subscribed[1].fetch(1, timeout=pull_s)
                self._take_fault_back(queue, body)
            except (nats.errors.TimeoutError, TimeoutError):
                fails = anyio.current_time() - began_s < pull_s / 2
                denied = self._denied_since(began_s, f'.{_token(queue)}"')
                if denied:
                    why = (
                        f"{self._at} does not let {self._user} take runs of the queue {queue} ({denied}): a worker"
                        " needs one that may, `worker` in the documented nats.conf; store it with `ava key set nats`"
                    )
                    self._show_fault(queue, why, body)
                elif not fails:  # nothing has come, and nothing was wrong
                    self._take_fault_back(queue, body)
            except DeliveryFailed as error:
                self._show_fault(queue, str(error), body)
                fails = True
            except nats.js.errors.APIError:  # no consumer before the first run, or none that this account may ask
                self._take_fault_back(queue, body)
                body.show_missing(queue, missing=True)
                fails = True
            except nats.errors.Error:  # the server is away
                fails = True
            except Exception as error:  # nothing that the server sends ends a worker
                self._show_fault(queue, str(self._unusable(error)), body)
                fails = True
            finally:
                if message is None and free is not None:
                    free.release()
            if message is not None:
                tasks.start_soon(self._handle, message, free, body)
            if fails:
                await anyio.sleep(TRY_AGAIN_S)
            await anyio.lowlevel.checkpoint()

    async def _handle(self, message: Msg, free: anyio.Semaphore | None, body: Body) -> None:
        """Give the worker what a message names; one whose run it has in hand needs no slot of its own."""
        try:
            await self._handle_one(message, body)
        except Exception:  # one message ends no worker
            log.exception("a message of the stream %s could not be handled, and goes back", self._place.name)
            body.count_bad_message()
            await self._give_back(message, self._place.lease_s)
        finally:
            if free is not None:
                free.release()

    async def _handle_one(self, message: Msg, body: Body) -> None:
        try:
            run_id = self._run_of(message)
        except ValueError:
            self._note(
                f"the stream {self._place.name} at {self._place.address} has a message that no Ava writes, and it was"
                " removed: only servers of Ava may have the right to publish there",
                _BAD_MESSAGE,
            )
            body.count_bad_message()
            await self._terminate(message)
            return
        if run_id is None:  # another worker may know it
            await self._give_back(message, self._place.lease_s)
        elif run_id in self._held:
            await self._keep_newest(run_id, message)
        elif not body.takes_runs():  # another worker may reach the log
            await self._give_back(message, LOOK_S)
        else:
            await self._work_on(run_id, message, body)

    async def _keep_newest(self, run_id: str, message: Msg) -> None:
        """Have a run in hand go on under its newest message; the same one again changes nothing."""
        held = self._held[run_id]
        if _sequence(message) > _sequence(held):
            self._held[run_id] = message
            await self._forget(held)
        elif _sequence(message) < _sequence(held):
            await self._forget(message)

    async def _work_on(self, run_id: str, message: Msg, body: Body) -> None:
        self._held[run_id] = message

        async def show_life() -> None:
            with suppress(nats.errors.Error):
                await self._held[run_id].in_progress()

        answered = forget = False
        try:
            async with signs_of_life(body, show_life, self._place.lease_s):
                forget = await body(run_id)
            answered = True
        finally:
            newest = self._held.pop(run_id)
            if not answered:  # this worker is being stopped
                with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                    await self._give_back(newest, 0)
        if forget:
            await self._forget(newest)

    async def _forget(self, message: Msg) -> None:
        with suppress(nats.errors.Error):  # given again, and found ended
            await message.ack()

    async def _give_back(self, message: Msg, after_s: float) -> None:
        with suppress(nats.errors.Error):
            await message.nak(delay=after_s or None)

    async def _terminate(self, message: Msg) -> None:
        with suppress(nats.errors.Error):
            await message.term()

    def _run_of(self, message: Msg) -> str | None:
        """Return the run that a message names; None where it is of another log or of a newer version.

        Raises ValueError where no Ava has written it.
        """
        try:
            fields: object = json.loads(message.data)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        version, log_id, run_id = (cast("dict[str, object]", fields).get(name) for name in ("v", "log", "run"))
        if type(version) is not int or version < 1:
            raise ValueError("no version")
        if version == FORMAT and not (isinstance(log_id, str) and is_run_id(run_id)):
            raise ValueError("no log, or no run")
        if version != FORMAT or log_id != self._place.log_id:
            self._note(
                f"the stream {self._place.name} at {self._place.address} has a message of another log or another"
                " version of Ava: give each log a name of its own under [delivery], and workers the version of the"
                " servers",
                _FOREIGN_MESSAGE,
            )
            return None
        return str(run_id)

    def _show_fault(self, queue: str, why: str, body: Body) -> None:
        self._note(why, queue)
        body.show_fault(queue, why)

    def _take_fault_back(self, queue: str, body: Body) -> None:
        self._said.pop(queue, None)
        body.show_fault(queue, "")
        body.show_missing(queue, missing=False)

    def _note(self, why: str, of: str = "") -> None:
        """Say why nothing of a queue is taken, once."""
        if why not in self._said.values():
            log.warning("%s", why)
        self._said[of] = why

    # -- the connection -----------------------------------------------------------------------------------------------

    @property
    def _at(self) -> str:
        return f"the NATS server at {self._place.address}"

    @property
    def _user(self) -> str:
        user, colon, _password = (self._place.credentials or "").partition(":")
        if colon:
            return f"the user {user}"
        return "this user"

    async def _connection(self) -> Client:
        """Return the connection, and connect again if it is closed. Raises what `_translated` explains.

        Callers share one attempt to connect, and its failure for a second.
        """
        async with self._lock:
            if self._client is not None and not self._client.is_closed:
                if not self._client.is_connected:
                    raise nats.errors.NoServersError
                return self._client
            if self._failure is not None and anyio.current_time() < self._dials_from_s:
                raise self._failure.with_traceback(None)
            try:
                client = await self._connected_client()
            except Exception as error:
                self._failure = error
                self._dials_from_s = anyio.current_time() + TRY_AGAIN_S
                raise
            if self._failure is not None:
                await self._note_return()
            self._client, self._made, self._failure = client, set(), None
            return client

    async def _connected_client(self) -> Client:
        """Connect once, so that the error is said, and then with a client that connects again by itself."""
        options = self._options()
        with anyio.fail_after(DIAL_S):
            trial = await self._dial(options, allow_reconnect=False, max_reconnect_attempts=1)
            await trial.close()
            return await self._dial(options, max_reconnect_attempts=-1)

    async def _dial(self, options: dict[str, Any], **more: Any) -> Client:
        client = _Client()
        connected = False
        try:
            await client.connect(**options, **more, reconnect_time_wait=1)
            connected = True
        finally:
            if not connected:
                with anyio.CancelScope(shield=True), anyio.move_on_after(2), suppress(nats.errors.Error, OSError):
                    await client.close()
        return client

    def _options(self) -> dict[str, Any]:
        place = self._place
        options: dict[str, Any] = {
            "servers": [one.strip() for one in place.address.split(",")],
            "name": "ava",
            "connect_timeout": CONNECT_S,
            "error_cb": self._note_error,
            "reconnected_cb": self._note_return,
            "ping_interval": 10,
            "max_outstanding_pings": 2,
        }
        user, colon, password = (place.credentials or "").partition(":")
        if colon:
            options |= {"user": user, "password": password, "inbox_prefix": f"_INBOX_{user}"}
        elif user:
            options["token"] = user
        if place.address.startswith("tls://"):
            options["tls"] = ssl.create_default_context()
            if place.ca_file is not None:
                options["tls"].load_verify_locations(place.ca_file)
        return options

    async def _note_error(self, error: Exception) -> None:
        log.debug("nats: %s", error)
        if "permissions violation" in str(error).lower():
            denied = str(error).removeprefix("nats: ")
            self._denials.pop(denied, None)  # the newest is the last
            self._denials[denied] = anyio.current_time()
            if len(self._denials) > MOST_DENIALS:
                del self._denials[next(iter(self._denials))]

    async def _note_return(self) -> None:
        """Say that the server is back; what keeps it from being used after that is news."""
        self._said.clear()
        log.info("%s answers again", self._at)

    def _denied_since(self, began_s: float, about: str = "") -> str:
        """Return what the server has denied this user since then; empty for nothing.

        `about`: a part of the subject that was denied.
        """
        for denied, at_s in reversed(self._denials.items()):
            if at_s >= began_s and about.lower() in denied.lower():
                return denied
        return ""

    async def _translated(self, work: Awaitable[T]) -> T:
        """Return what work returns. Raises DeliveryFailed: what went wrong, in one sentence."""
        at, began_s = self._at, anyio.current_time()
        try:
            with anyio.fail_after(DIAL_S + 1):
                return await work
        except DeliveryFailed:
            raise
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or "no TLS there"
            raise DeliveryFailed(
                f"{at} has a certificate that is not trusted ({why}): name its authority in ca_file under [delivery]"
            ) from None
        except (nats.errors.TimeoutError, nats.errors.NoServersError, OSError, TimeoutError) as error:
            denied = self._denied_since(began_s)
            if denied:
                raise _Denied(f"{at} does not let {self._user} do that ({denied})", denied) from None
            raise DeliveryFailed(
                f"{at} does not answer; runs wait until it does{_more(error)}",
                f"Is nats-server running at {self._place.address}? Start it; runs wait and nothing is lost.",
            ) from None
        except _NoTLS:
            raise DeliveryFailed(
                f"{at} offers no encryption, and nothing was sent to it: have it require TLS, or give an address that"
                " begins with nats://"
            ) from None
        except ValueError as error:
            raise DeliveryFailed(f"{at} cannot be used ({_reason(error)}): correct the address") from None
        except nats.js.errors.ServiceUnavailableError:
            raise DeliveryFailed(f"{at} has no JetStream: start it with `jetstream` in its configuration") from None
        except nats.errors.Error as error:
            if "authorization" in str(error).lower():
                if self._place.credentials is None:
                    why = "lets nobody in without credentials, and none are stored here: `ava key set nats`"
                else:
                    why = "refuses these credentials: store the right ones, user:password, with `ava key set nats`"
                raise DeliveryFailed(f"{at} {why}", _WHICH_USER) from None
            raise DeliveryFailed(
                f"{at} refused a request ({_reason(error)}); runs wait, and it is tried again"
            ) from None
        except Exception as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> DeliveryFailed:
        log.debug("%s", self._at, exc_info=error)
        return DeliveryFailed(
            f"{self._at} sent what cannot be used ({_reason(error)}); runs wait, and it is tried again"
        )


def _token(queue: str) -> str:
    """Return a queue's name as one word of a subject."""
    return queue.replace(".", "%2E")


def _queue_of_token(token: str) -> str:
    return token.replace("%2E", ".")


def _sequence(message: Msg) -> int:
    """Return a message's number in the stream: the same each time it is given."""
    return message.metadata.sequence.stream


def _value_words(value: object) -> str:
    return str(getattr(value, "value", value))


def _more(error: BaseException) -> str:
    """Return what an error adds to the sentence that nobody answers; the client's own errors say nothing more."""
    return "" if isinstance(error, nats.errors.Error | TimeoutError) else f" ({_reason(error)})"


def _reason(error: BaseException) -> str:
    return (str(error).removeprefix("nats: ") or type(error).__name__).rstrip(".")[:200]


def open_delivery(place: EnginePlace) -> NatsDelivery:
    """Return the adapter; nothing is connected yet."""
    return NatsDelivery(place)

"""Delivery by Temporal: one workflow for each run, with one activity that beats and carries the run's id alone.

A queue is a task queue, and the run's id is the workflow's, so there is one live delivery of a run; what is delivered
again ends the one before it. The activity returns whether the run may be forgotten, and never fails because another
worker has the run: the workflow waits then and asks again. Temporal's own attempts make sure that an answer of a
worker that has lost its activity does not count. A run that was offered outlives its activity, and keeps its slot.

A cancel needs no message: the owner reads it from the log within a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

import anyio
import anyio.abc
from temporalio import activity, workflow
from temporalio.api.enums.v1 import PendingActivityState, PendingWorkflowTaskState, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode, TLSConfig
from temporalio.worker import (
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerTuner,
)

from ava_server.delivery import PLANS, Body, DeliveryFailed, EnginePlace, EngineState, is_repeat
from ava_server.delivery.message import LOOK_S, SIGNS, is_run_id, signs_of_life

log = logging.getLogger("ava.delivery")
T = TypeVar("T")

ANSWER_S = 10.0
TRY_AGAIN_S = 1.0
NEXT_ATTEMPT_S = 0.2
"""Seconds from the end of an attempt at an activity to the next one: it only ends in silence."""
TASK_S = 1.0
"""Seconds at least that a worker has for a step of a workflow, which takes some milliseconds."""
STOPS_S = 2.0
"""Seconds that a queue's worker has to stop, also where the task that has it is being cancelled."""
LONGEST = timedelta(days=30)
"""How long one attempt at an activity may take: a run waits in the log, and not here."""
MOST_EVENTS = 2_000
"""Events of a workflow after which it goes on as a new one."""
WORKFLOW, ACTIVITY = "AvaRun", "ava_drive"
_ATTEMPT = "attempt"
_DEFAULT_NAMESPACE = "default"


@workflow.defn(name=WORKFLOW, sandboxed=False)
class AvaRun:
    """Carries one run to a worker, again and again until the log says that it may be forgotten."""

    @workflow.run
    async def run(self, run_id: str, log_id: str, lease_s: float) -> None:
        while True:
            forget = await workflow.execute_activity(
                ACTIVITY,
                args=[run_id, log_id],
                result_type=bool,
                start_to_close_timeout=LONGEST,
                # Two signs of life. Who is still alive after that keeps its run: the log refuses the next one's claim.
                heartbeat_timeout=timedelta(seconds=2 * lease_s / SIGNS),
                retry_policy=RetryPolicy(initial_interval=timedelta(seconds=NEXT_ATTEMPT_S), backoff_coefficient=1.0),
            )
            if forget:
                return
            await workflow.sleep(lease_s)
            if workflow.info().get_current_history_length() > MOST_EVENTS:
                workflow.continue_as_new(args=[run_id, log_id, lease_s])


@dataclass
class _Hand:
    """A run that this worker has, from its offer until the body answers."""

    takes_slot: bool
    answered: anyio.Event = field(default_factory=anyio.Event)
    forget: bool = False


class _Hands:
    """The runs that a worker has from all of its queues, each in a slot of its own; a plan takes none.

    Temporal cancels an activity that showed no life or was delivered again, while the worker may still drive its run:
    so a slot is taken when a run is offered, and free when the body has answered, whatever became of the activity.
    """

    def __init__(self, body: Body, slots: int, tasks: anyio.abc.TaskGroup) -> None:
        self._body = body
        self._slots = slots
        self._tasks = tasks
        self._hands: dict[str, _Hand] = {}

    def used(self) -> int:
        return sum(hand.takes_slot for hand in self._hands.values())

    def may_ask(self, *, takes_slot: bool, coming: int = 0) -> bool:
        """Tell whether one more run may be taken, where so many are on their way from the server."""
        if not self._body.takes_runs():
            return False
        return not takes_slot or max(self.used(), coming) < self._slots

    def take(self, run_id: str, *, takes_slot: bool) -> _Hand | None:
        """Offer a run to the body, unless it has it; None where it takes nothing, or has no slot for it."""
        hand = self._hands.get(run_id)
        if hand is None and self.may_ask(takes_slot=takes_slot):
            hand = self._hands[run_id] = _Hand(takes_slot)
            self._tasks.start_soon(self._hold, run_id, hand)
        return hand

    async def _hold(self, run_id: str, hand: _Hand) -> None:
        try:
            hand.forget = await self._body(run_id)
        finally:
            del self._hands[run_id]
            hand.answered.set()


class _Supplier(CustomSlotSupplier):
    """Lets a queue be asked while a slot is free, and not while the worker takes nothing (rule 2).

    It only keeps the worker from asking for more than it can take: several queues may be asked for the same slot, and
    what comes too much goes back. The client calls it from threads of its own, which only add to a set and remove.
    """

    def __init__(self, hands: _Hands, permits: set[SlotPermit], *, takes_slot: bool) -> None:
        """`permits`: those of activities that have come, shared by all queues whose runs take a slot."""
        self._hands = hands
        self._permits = permits
        self._takes_slot = takes_slot

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        while not self._hands.may_ask(takes_slot=self._takes_slot, coming=len(self._permits)):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)  # what it depends on is read, not told
        return SlotPermit()

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        return None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        if self._takes_slot:
            self._permits.add(ctx.permit)

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        self._permits.discard(ctx.permit)


@dataclass
class _Running:
    """A worker of the client's that stops with the block: cancelled while it stops, it would leave its task behind."""

    worker: Worker

    async def __aenter__(self) -> None:
        await self.worker.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(STOPS_S):
            await self.worker.__aexit__(kind, error, trace)


class TemporalDelivery:
    """The adapter for Temporal; it connects when it is first used."""

    name = "temporal"
    carries = True

    def __init__(self, place: EnginePlace) -> None:
        self._place = place
        self._client: Client | None = None
        self._lock = anyio.Lock()
        self._said = ""

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[None]:
        yield
        self._client = None

    async def deliver(self, run_id: str, queue: str, attempt: str) -> bool:
        return await self._translated(self._deliver(run_id, queue, attempt))

    async def cancel(self, run_id: str) -> None:
        """Do nothing: the owner reads it from the log."""

    async def work(self, name: str, queues: Sequence[str], slots: int, body: Body) -> None:
        """Run a worker for each queue; one whose server is away is started again."""
        async with anyio.create_task_group() as tasks:
            hands = _Hands(body, slots, tasks)
            while True:
                try:
                    await self._work(queues, hands, body)
                except DeliveryFailed as error:
                    self._show_fault(str(error), queues, body)
                except Exception as error:  # what a worker raises when its server refuses it
                    why = f"{self._at} ended this worker ({_reason(error)}); it is started again"
                    self._show_fault(why, queues, body)
                await anyio.sleep(TRY_AGAIN_S)

    async def state(self) -> EngineState:
        try:
            return await self._translated(self._state())
        except DeliveryFailed as error:
            return EngineState(str(error), error.to_do)

    # -- servers ------------------------------------------------------------------------------------------------------

    async def _deliver(self, run_id: str, queue: str, attempt: str) -> bool:
        client = await self._connection()
        place = self._place
        workflow_id = f"{self._place.name}-{run_id}"

        async def start(policy: WorkflowIDConflictPolicy) -> None:
            await client.start_workflow(
                WORKFLOW,
                args=[run_id, place.log_id, place.lease_s],
                id=workflow_id,
                task_queue=self._task_queue(queue),
                memo={_ATTEMPT: attempt},
                # A worker that was stopped still waits for tasks, and gets one of each kind: this step of the workflow
                # first, then the activity. They go elsewhere after this time, and after the heartbeat's.
                task_timeout=timedelta(seconds=max(TASK_S, place.lease_s / 3)),
                id_conflict_policy=policy,
            )

        try:
            await start(WorkflowIDConflictPolicy.FAIL)
        except WorkflowAlreadyStartedError:
            found = await client.get_workflow_handle(workflow_id).describe()
            if await found.memo_value(_ATTEMPT, None) == attempt or (is_repeat(attempt) and _waits(found)):
                return False
            await start(WorkflowIDConflictPolicy.TERMINATE_EXISTING)
        return True

    async def _state(self) -> EngineState:
        client = await self._connection()
        live: Counter[str] = Counter()
        query = f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus = 'Running'"
        prefix = self._task_queue("")
        async for found in client.list_workflows(query):
            if found.task_queue.startswith(prefix):
                live[found.task_queue.removeprefix(prefix)] += 1
        waiting: dict[str, int] = {}
        for queue in live:
            waiting[queue] = min(await self._backlog(client, queue), live[queue])
        taken = {queue: count - waiting[queue] for queue, count in live.items()}
        return EngineState(waiting=waiting, taken=taken)

    async def _backlog(self, client: Client, queue: str) -> int:
        """Return how many deliveries of a queue wait: for a worker's answer, or for any worker at all."""
        count = 0
        for kind in (TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW):
            described = await client.workflow_service.describe_task_queue(
                DescribeTaskQueueRequest(
                    namespace=client.namespace,
                    task_queue=TaskQueue(name=self._task_queue(queue)),
                    task_queue_type=kind,
                    report_stats=True,
                )
            )
            count += described.stats.approximate_backlog_count
        return count

    # -- workers ------------------------------------------------------------------------------------------------------

    async def _work(self, queues: Sequence[str], hands: _Hands, body: Body) -> None:
        client = await self._translated(self._connection())
        if self._said:
            log.info("%s answers again", self._at)
        self._said = ""
        permits = set[SlotPermit]()
        async with AsyncExitStack() as stack:
            for queue in queues:
                await stack.enter_async_context(_Running(self._worker(client, queue, hands, permits, body)))
                body.show_fault(queue, "")
            await anyio.sleep_forever()

    def _worker(self, client: Client, queue: str, hands: _Hands, permits: set[SlotPermit], body: Body) -> Worker:
        place, takes_slot = self._place, queue != PLANS

        @activity.defn(name=ACTIVITY)
        async def drive(run_id: str, log_id: str) -> bool:
            if log_id != place.log_id:
                self._note(
                    f"{self._at} has a run of another log under the name {place.name}: give each log a name of its"
                    " own under [delivery]"
                )
                return False
            if not is_run_id(run_id):
                self._note(f"{self._at} has a workflow that no Ava started, and it is left: see who else may start one")
                body.count_bad_message()
                return True
            hand = hands.take(run_id, takes_slot=takes_slot)
            if hand is None:
                return False

            async def show_life() -> None:
                activity.heartbeat()

            try:
                async with signs_of_life(body, show_life, place.lease_s):
                    await hand.answered.wait()
                return hand.forget
            except asyncio.CancelledError:  # it was delivered again, or this worker is being stopped
                return False

        return Worker(
            client,
            task_queue=self._task_queue(queue),
            workflows=[AvaRun],
            activities=[drive],
            workflow_runner=UnsandboxedWorkflowRunner(),
            tuner=WorkerTuner.create_composite(
                workflow_supplier=FixedSizeSlotSupplier(10),
                activity_supplier=_Supplier(hands, permits, takes_slot=takes_slot),
                local_activity_supplier=FixedSizeSlotSupplier(1),
                nexus_supplier=FixedSizeSlotSupplier(1),
            ),
            max_concurrent_activity_task_polls=1,
            max_cached_workflows=0,  # else a workflow waits for the worker that had it last
            max_heartbeat_throttle_interval=timedelta(seconds=place.lease_s / SIGNS),
            graceful_shutdown_timeout=timedelta(0),
        )

    def _show_fault(self, why: str, queues: Sequence[str], body: Body) -> None:
        self._note(why)
        for queue in queues:
            body.show_fault(queue, why)

    def _note(self, why: str) -> None:
        """Say why nothing is taken, once."""
        if why != self._said:
            self._said = why
            log.warning("%s", why)

    # -- the connection -----------------------------------------------------------------------------------------------

    @property
    def _at(self) -> str:
        return f"the Temporal server at {self._place.address}"

    def _task_queue(self, queue: str) -> str:
        return f"{self._place.name}-{queue}"

    async def _connection(self) -> Client:
        async with self._lock:
            if self._client is None:
                place, parts = self._place, urlsplit(self._place.address)
                host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
                tls: TLSConfig | bool = parts.scheme == "tls"
                if tls and place.ca_file is not None:
                    tls = TLSConfig(server_root_ca_cert=await anyio.Path(place.ca_file).read_bytes())
                self._client = await Client.connect(
                    f"{host}:{parts.port or 7233}",
                    namespace=parts.path.strip("/") or _DEFAULT_NAMESPACE,
                    api_key=place.credentials,
                    tls=tls,
                )
            return self._client

    async def _translated(self, work: Awaitable[T]) -> T:
        """Return what work returns. Raises DeliveryFailed: what went wrong, in one sentence."""
        try:
            with anyio.fail_after(ANSWER_S):
                return await work
        except RPCError as error:
            if error.status in (RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED):
                if self._place.credentials is None:
                    why = "lets nobody in without an API key, and none is stored here: `ava key set temporal`"
                else:
                    why = "refuses these credentials: store the right ones with `ava key set temporal`"
                raise DeliveryFailed(f"{self._at} {why}") from None
            if error.status == RPCStatusCode.NOT_FOUND:
                raise DeliveryFailed(
                    f"{self._at} does not have what was asked for ({_reason(error)}): make the namespace, or give"
                    " another one at the end of the address"
                ) from None
            raise self._away(error) from None
        except ValueError as error:
            raise DeliveryFailed(f"{self._at} cannot be used ({_reason(error)}): correct the address") from None
        except (TimeoutError, RuntimeError, OSError) as error:
            raise self._away(error) from None

    def _away(self, error: Exception) -> DeliveryFailed:
        return DeliveryFailed(
            f"{self._at} does not answer; runs wait until it does ({_reason(error)})",
            f"Is Temporal running at {self._place.address}? Start it; runs wait and nothing is lost.",
        )


def _waits(found: WorkflowExecutionDescription) -> bool:
    """Tell whether a run waits in its queue, given to no worker."""
    told = found.raw_description
    if told.HasField("pending_workflow_task"):
        return told.pending_workflow_task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
    scheduled = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    return any(each.state == scheduled for each in told.pending_activities)


def _reason(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text.splitlines()[0].rstrip(".")[:200]


def open_delivery(place: EnginePlace) -> TemporalDelivery:
    """Return the adapter; nothing is connected yet."""
    return TemporalDelivery(place)

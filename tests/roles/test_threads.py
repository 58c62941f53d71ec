"""Tools work in threads of their own: the store and its locks never wait for a parser."""

from __future__ import annotations

import threading

import anyio
import anyio.to_thread
import pytest
from anyio.from_thread import check_cancelled
from anyio.lowlevel import RunVar

from ava_roles.threads import GIVEN_UP, THREADS, ended_with_call, run_sync


class Parsers:
    """Blocking calls that are stuck until they are let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.running = 0
        self._lock = threading.Lock()
        self._began = threading.Semaphore(0)

    def __call__(self) -> str:
        with self._lock:
            self.running += 1
        self._began.release()
        assert self.go_on.wait(10)
        return "done"

    async def stuck(self, count: int) -> None:
        """Return when so many more are."""
        for _ in range(count):
            assert await anyio.to_thread.run_sync(self._began.acquire, True, 5)


async def test_passes_on_return_values_and_exceptions() -> None:
    assert await run_sync(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_sync(divmod, 7, 0)


async def test_slow_tools_do_not_block_other_threads() -> None:
    parsers = Parsers()
    async with anyio.create_task_group() as tasks:
        for _ in range(60):  # more than anyio's own limiter has
            tasks.start_soon(run_sync, parsers)
        await parsers.stuck(THREADS)
        with anyio.fail_after(20):
            assert await anyio.to_thread.run_sync(lambda: "the store answers") == "the store answers"
        assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        assert parsers.running == THREADS
        parsers.go_on.set()
    assert parsers.running == 60


async def test_abandoned_calls_block_no_others_until_too_many_of_them_still_run() -> None:
    parsers = Parsers()
    try:
        for _ in range(GIVEN_UP // THREADS):
            async with (
                anyio.create_task_group() as tasks
            ):  # a run fills all places with what never ends, and is cancelled
                for _ in range(THREADS):
                    tasks.start_soon(run_sync, parsers)
                await parsers.stuck(THREADS)
                tasks.cancel_scope.cancel()
            with anyio.fail_after(20):
                assert await run_sync(lambda: "another run's tool") == "another run's tool"
        async with anyio.create_task_group() as tasks:
            for _ in range(THREADS):
                tasks.start_soon(run_sync, parsers)
            await parsers.stuck(THREADS)
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(0.05) as waited:
            await run_sync(parsers)
        assert waited.cancelled_caught
        assert parsers.running == THREADS + GIVEN_UP
    finally:
        parsers.go_on.set()
    with anyio.fail_after(20):
        assert await run_sync(parsers) == "done"


async def test_a_call_cancelled_while_waiting_takes_no_thread() -> None:
    parsers = Parsers()
    async with anyio.create_task_group() as tasks:
        for _ in range(THREADS):
            tasks.start_soon(run_sync, parsers)
        await parsers.stuck(THREADS)
        for _ in range(3):
            with anyio.move_on_after(0.01):
                await run_sync(parsers)
        parsers.go_on.set()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(2 * THREADS):
                tasks.start_soon(run_sync, parsers)
    assert parsers.running == 3 * THREADS


async def test_a_function_can_check_whether_its_caller_was_cancelled() -> None:
    began, ended = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        try:
            while True:
                check_cancelled()
        finally:
            ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_sync, work)
        assert await anyio.to_thread.run_sync(began.wait, 5)
        tasks.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(ended.wait, 5)


def test_each_event_loop_has_its_own_thread_limit() -> None:
    here: RunVar[int] = RunVar("here")

    async def once() -> str:
        with pytest.raises(LookupError):
            here.get()
        here.set(1)
        return await run_sync(str, 1)

    assert [anyio.run(once), anyio.run(once)] == ["1", "1"]


@pytest.mark.parametrize("first", ["the wait", "the cancellation"])
async def test_ends_what_a_thread_waits_for_when_its_call_is_cancelled(first: str) -> None:
    began, ended, waits, go_on = (threading.Event() for _ in range(4))

    def work() -> None:
        began.set()
        assert first == "the wait" or go_on.wait(10)
        with ended_with_call(ended.set):
            waits.set()
            assert ended.wait(10)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_sync, work)
        assert await anyio.to_thread.run_sync((waits if first == "the wait" else began).wait, 10)
        tasks.cancel_scope.cancel()
    go_on.set()
    assert await anyio.to_thread.run_sync(ended.wait, 10)


async def test_a_call_that_is_not_cancelled_ends_nothing() -> None:
    ended: list[str] = []

    def work() -> str:
        with ended_with_call(lambda: ended.append("it")):
            return "done"

    assert await run_sync(work) == "done"
    assert not ended

"""A server of asyncio in a thread of its own, so that tests with child processes and with any loop can use it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
START_S = 5


@contextmanager
def listen_in_thread(
    name: str, *servers: Serve, hosts: Sequence[str] = (), certificate: Path | None = None
) -> Generator[tuple[list[int], asyncio.AbstractEventLoop]]:
    """Serve each connection by a function, one port for each function, until the block ends; yields ports and loop.

    Connections that are left are cancelled then. With a PEM file, they speak TLS.
    """
    context = None
    if certificate is not None:
        context = SSLContext(PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    ports: list[int] = []
    ready = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    done = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    def connected(serve: Serve) -> Serve:
        async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                    await serve(reader, writer)
            finally:
                tasks.discard(task)
                writer.close()

        return attend

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        places = hosts or ["127.0.0.1"] * len(servers)
        open_now = [
            await asyncio.start_server(connected(serve), host, 0, ssl=context)
            for serve, host in zip(servers, places, strict=True)
        ]
        ports.extend(each.sockets[0].getsockname()[1] for each in open_now)
        ready.set()
        await done.wait()
        for each in open_now:
            each.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(run(),), name=name)
    thread.start()
    assert ready.wait(START_S), f"the {name} did not start"
    try:
        yield ports, loops[0]
    finally:
        loops[0].call_soon_threadsafe(done.set)
        thread.join(START_S)
        assert not thread.is_alive(), f"the {name} did not stop"

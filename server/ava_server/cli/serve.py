"""`ava serve` and `ava worker`: the MCP server, and the process that runs subagents without a host."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.to_thread
import typer

from ava_extras import load, require
from ava_roles.placeholders import label as as_label
from ava_server.cli.app import refuse_in_subagent
from ava_server.cli.terminal import heading, say, tell, write
from ava_server.core.errors import BadInput
from ava_server.core.threads import run_async, run_server

if TYPE_CHECKING:
    from ava_audit.store.locks import HeldLock
    from ava_server.config.settings import Settings
    from ava_server.core.data_root import DataRoot
    from ava_server.core.shutdown import GracefulShutdown
    from ava_server.service.background_servers import Listeners
    from ava_server.service.runtime import Runtime

HAND_OVER_S = 600.0
"""Seconds that calls in progress have when a newer version takes over."""
LOOK_EVERY_S = 1.0
"""How often the background process looks whether it is still needed, in seconds."""
GONE_LOOKS = 5
"""Looks in a row that do not find its data root, after which it ends: a process that was stopped has not looked."""


_Http = Annotated[bool, typer.Option("--http", help="Serve many users over HTTP, each with a token.")]
_Host = Annotated[str | None, typer.Option(help="The address to listen on; default: this machine only.")]
_Port = Annotated[int | None, typer.Option(min=0, max=65_535, help="The port; default: 8642; 0: any.")]
_PublicUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="The address that clients use, e.g. https://ava.example.org.")
]
_TrustedProxies = Annotated[
    list[str] | None, typer.Option(metavar="ADDRESS", help="A proxy whose X-Forwarded-* headers are trusted.")
]
_InnerUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="Where other servers of the same log reach this one.")
]
_Drain = Annotated[
    str | None, typer.Option(metavar="TIME", help="Time for calls in progress at shutdown; default: 5s.")
]
_ShutdownDelay = Annotated[
    str | None, typer.Option(metavar="TIME", help="Time for load balancers to notice a shutdown; default: none.")
]
_Idle = Annotated[str | None, typer.Option(metavar="TIME", help="End after so long without a request; default: never.")]
_AccessLog = Annotated[bool, typer.Option("--access-log", help="Write a line for each request to stderr.")]


def serve_command(
    http: _Http = False,
    host: _Host = None,
    port: _Port = None,
    public_url: _PublicUrl = None,
    trusted_proxy: _TrustedProxies = None,
    inner_url: _InnerUrl = None,
    drain: _Drain = None,
    shutdown_delay: _ShutdownDelay = None,
    idle: _Idle = None,
    access_log: _AccessLog = False,
) -> None:
    """Serve one MCP host over stdin and stdout; hosts start this by themselves.

    With --http it serves many users at once: each request carries a token of `ava token create`.
    """
    values = (host, port, public_url, trusted_proxy, inner_url, drain, shutdown_delay, idle)
    is_for_http = access_log or any(each is not None for each in values)
    if is_for_http and not http:
        raise BadInput("ava serve: --host, --port and the others are for a server over HTTP; add --http.")
    refuse_in_subagent("ava serve")
    from ava_server.config.settings import load_settings
    from ava_server.core.shutdown import prepare_to_run
    from ava_server.mcp_server.stdio import serve

    prepare_to_run()
    if not http:
        if sys.stdin.isatty():
            tell("ava: waiting for an MCP host on stdin; a person wants `ava run` or `ava demo`. Ctrl-C ends it.")
        raise typer.Exit(serve(load_settings))

    from ava_server.cli.options import parse_seconds
    from ava_server.core.addresses import HTTP_PORT, proxies_of
    from ava_server.core.addresses import public_url as url_of

    server = load("team")
    settings = load_settings()
    reach = server.Reach(
        host=(host or "127.0.0.1").strip().removeprefix("[").removesuffix("]"),
        port=HTTP_PORT if port is None else port,
        public_url=url_of(public_url),
        proxies=proxies_of(trusted_proxy or []),
        inner_url=url_of(inner_url, "--inner-url"),
        drain_s=parse_seconds("--drain", drain) or 5.0,
        shutdown_delay_s=parse_seconds("--shutdown-delay", shutdown_delay) or 0.0,
        access_log=access_log,
        idle_s=parse_seconds("--idle", idle),
    )
    heading(settings.paths)
    raise typer.Exit(server.serve(lambda: settings, reach, say))


def connect_command(port: Annotated[int, typer.Option(min=1, max=65_535, help="The server's port.")] = 8642) -> None:
    """Start this data root's HTTP server unless it runs, and print the headers for it as JSON.

    A host that was set up with `ava init HOST --http` calls it before it connects. Anyone who sees its output can act
    for you until the token is revoked.
    """
    from ava_server.cli.log_access import checked_root, record_setting
    from ava_server.config.tokens import host_token
    from ava_server.core.background import start_http

    refuse_in_subagent("ava connect")
    require("team")
    root = checked_root(show=False)
    text, token = host_token(root)
    if token is not None:  # it is new
        run_async(record_setting, root, f"tokens.{token.name}", None, token.on_record())
    start_http(root, port)
    write(json.dumps({"Authorization": f"Bearer {text}"}))


def worker_command(
    stay: Annotated[bool, typer.Option("--stay", help="Run until it is stopped, also without work.")] = False,
    database_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The Postgres database with the log, as AVA_DATABASE_URL; means --stay."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="What this machine has, for roles that ask for it.")
    ] = None,
    drain: Annotated[
        str, typer.Option(metavar="TIME", help="With --stay: time for calls in progress when it is stopped.")
    ] = "30s",
    beside: Annotated[str, typer.Option(hidden=True)] = "",
    listens: Annotated[bool, typer.Option("--listen", hidden=True)] = False,
) -> None:
    """Run approved subagents, until there has been no work for a minute.

    Servers on this data root start it by themselves, so that subagents outlive their host (`background`).

    With --stay it runs until it is stopped. Any number of workers, on any machines, share the subagents of a log in
    Postgres. When a worker is stopped, another one continues its subagents.
    """
    from ava_server.cli.options import parse_seconds
    from ava_server.config.settings import load_settings
    from ava_server.core.shutdown import log_to_stderr, prepare_to_run

    prepare_to_run()
    refuse_in_subagent("ava worker")
    if database_url is not None:
        os.environ["AVA_DATABASE_URL"] = database_url
    drain_s = parse_seconds("--drain", drain) or 0.0
    log_to_stderr("%(asctime)s ava worker: %(message)s", "%Y-%m-%d %H:%M:%S")
    if stay or database_url is not None:  # somebody reads what it does
        for name in _WORKERS_LOGS:
            logging.getLogger(name).setLevel(logging.INFO)
    settings = load_settings()
    if label:
        settings = settings.model_copy(update={"labels": (*settings.labels, *map(_label, label))})
    if stay or database_url is not None:
        raise typer.Exit(run_server(_stay, settings, drain_s))
    if beside.strip("0123456789abcdef"):
        raise BadInput(f"--beside: a name that a server gives, of the digits 0 to f; given: {beside[:40]!r}")
    raise typer.Exit(run_server(_work, settings, beside, listens))


_WORKERS_LOGS = ("ava.manager", "ava.loop", "ava.plan", "ava.delivery")
"""What says that a run was taken, taken over or left, and that the engine is back."""


def _label(text: str) -> str:
    try:
        return as_label(text)
    except ValueError as error:
        raise BadInput(f"--label {error}; given: {text[:40]!r}") from None


async def _stay(settings: Settings, drain_s: float) -> int:
    """Run everybody's runs until a signal; then leave them to other workers."""
    from ava_server.core.shutdown import GracefulShutdown, ignore_signals
    from ava_server.runs.owner.mode import working
    from ava_server.service.runtime import announce_worker, open_runtime

    ending = GracefulShutdown(drain_s)
    async with anyio.create_task_group() as tasks:
        await tasks.start(ending.watch)
        with ending.serving:
            async with open_runtime(settings, working(settings), announce=announce_worker) as runtime:
                sys.stderr.write(f"ava worker: takes subagents from {runtime.store.place}. Ctrl-C ends it.\n")
                await ending.asked.wait()
                with ending.draining:
                    await runtime.manager.hand_over(drain_s)
        ending.begin(0)
        tasks.cancel_scope.cancel()
    ignore_signals()
    return ending.code or 0


async def _work(settings: Settings, beside: str, listens: bool) -> int:
    """Be the background process of a data root, or the worker of a name `beside` it, until there is no work.

    `listens`: it was started to listen, and drives everybody's runs only where the settings say so.
    """
    from ava_audit.store.backend import UNANNOUNCED, Announcement
    from ava_server.core.background import HTTP_DRAIN_S, hold_worker_lock
    from ava_server.core.shutdown import GracefulShutdown, ignore_signals
    from ava_server.runs.owner.mode import SERVER, driver_of, working
    from ava_server.service.background_servers import Listeners
    from ava_server.service.runtime import open_runtime

    root, only_listens = settings.paths, listens and driver_of(settings) != "the worker"
    await anyio.to_thread.run_sync(root.create)
    post = await anyio.to_thread.run_sync(partial(hold_worker_lock, root, beside, only_listens=only_listens))
    if post is None:
        sys.stderr.write(f"ava worker: {await anyio.to_thread.run_sync(_why_not_needed, root)}\n")
        return 0
    mode = SERVER if only_listens else working(settings, beside)
    announced = Announcement("server") if only_listens else UNANNOUNCED
    with post:
        ending = GracefulShutdown(HTTP_DRAIN_S)
        async with anyio.create_task_group() as tasks:
            await tasks.start(ending.watch)
            with ending.serving:
                opening = open_runtime(settings, mode, everybody=True, announce=lambda _runtime: announced)
                async with opening as runtime:
                    await _until_over(runtime, post, ending, Listeners(runtime, beside))
            ending.begin(0)
            tasks.cancel_scope.cancel()
        ignore_signals()
        if beside:  # there may be another name the next time
            with suppress(OSError):
                post.remove()
    return ending.code or 0


def _why_not_needed(root: DataRoot) -> str:
    """Return why there is nothing to do, and where there is, what. Blocking."""
    from ava_server.core.background import ProcessRecord, newer_is_coming

    if newer_is_coming(root):
        return f"a newer Ava is about to run the subagents of {root.path}; nothing to do."
    record = ProcessRecord.read(root.worker_process)
    which = f"process {record.process}" if record is not None else "another process"
    if record is not None and record.only_listens:
        return (
            f"the background process of {root.path} ({which}) only serves `ava ui` and `ava connect`: by these"
            " settings, servers run what they approve (`background`, `runs_on`). To run approved subagents all the"
            " same, start `ava worker --stay`."
        )
    return f"{which} already runs the subagents of {root.path}; nothing to do."


async def _until_over(runtime: Runtime, post: HeldLock, ending: GracefulShutdown, listeners: Listeners) -> None:
    """Work and listen until there is nothing to do, a signal comes, or a newer version takes over."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listeners.follow)

        working = anyio.CancelScope()

        async def watch_work() -> None:
            with working:
                await _until_idle(runtime, post, listeners)
                ending.asked.set()

        async def watch_newer() -> None:
            await listeners.newer.wait()
            working.cancel()
            await listeners.end(for_good=False)
            await anyio.to_thread.run_sync(post.release)  # from now on, the newer one listens, and claims what is left
            await runtime.manager.hand_over(HAND_OVER_S)
            ending.asked.set()

        tasks.start_soon(watch_work)
        tasks.start_soon(watch_newer)
        await ending.asked.wait()
        runtime.closing.begin()
        await listeners.end(for_good=not listeners.newer.is_set())
        tasks.cancel_scope.cancel()


async def _until_idle(runtime: Runtime, post: HeldLock, listeners: Listeners) -> None:
    """Wait until there has been no work and no server here for a minute, or no data root: it was removed or replaced.

    A worker whose log a newer program has taken over ends with its last run: it would keep that program's worker away.
    """
    from ava_server.core.awake_clock import AwakeClock
    from ava_server.core.background import WORKER_IDLE_S

    manager, clock = runtime.manager, AwakeClock()
    needed_s = clock.now_s()
    failed_looks = 0
    while clock.now_s() - needed_s < WORKER_IDLE_S and failed_looks < GONE_LOOKS:
        if manager.outdated and manager.idle_since is not None:
            return
        if await anyio.to_thread.run_sync(post.in_place):
            failed_looks = 0
            if manager.idle_since is None or listeners.active:
                needed_s = clock.now_s()
        else:
            failed_looks += 1
        await anyio.sleep(min(WORKER_IDLE_S / 4, LOOK_EVERY_S))

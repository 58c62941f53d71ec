"""`ava serve`: the MCP server, of one host over stdio, or of many users over HTTP."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ava_server.core.errors import BadInput


def register(app: typer.Typer) -> None:
    """Add `ava serve` to the app."""
    app.command(
        "serve", short_help="Serve one MCP host over stdio, which hosts start by themselves; with --http, many."
    )(serve_command)


def serve_command(
    http: Annotated[bool, typer.Option("--http", help="Serve many users over HTTP, each with a token.")] = False,
    host: Annotated[
        str | None, typer.Option(show_default=False, help="The address to listen on; this machine alone by default.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, show_default=False, help="The port, 8642 by default; 0 is any.")
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(metavar="URL", show_default=False, help="What clients call it, e.g. https://ava.example.org."),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", show_default=False, help="A proxy whose X-Forwarded-* headers are believed."),
    ] = None,
    drain: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default=False, help="How long calls in hand may go on at the end; 5s."),
    ] = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="Write a line for each request to stderr.")] = False,
) -> None:
    """Serve one MCP host over stdin and stdout; hosts start this by themselves.

    With --http it serves many users at once: each request brings a token of `ava token create`.
    """
    given = (host, port, public_url, trusted_proxy, drain)
    if not http and (access_log or any(each is not None for each in given)):
        raise BadInput("ava serve: --host, --port and the others are for a server over HTTP; add --http.")
    if os.environ.get("AVA_RUN_ID"):  # the runtime takes long to import, and a host waits about a second for an answer
        from ava_server.service.runtime import refuse_recursion

        raise BadInput(f"ava serve: {refuse_recursion()}.")
    from ava_server.config.settings import load_settings
    from ava_server.core.shutdown import hide
    from ava_server.mcp_server.stdio import serve

    hide()

    if http:
        from ava_server.cli.app import heading
        from ava_server.cli.asked import seconds_of
        from ava_server.cli.terminal import say
        from ava_server.http.server import serve as serve_http
        from ava_server.http.settings import DEFAULT_PORT, Reach, proxies_of
        from ava_server.http.settings import public_url as url_of

        reach = Reach(
            host=(host or "127.0.0.1").strip().removeprefix("[").removesuffix("]"),
            port=DEFAULT_PORT if port is None else port,
            public_url=url_of(public_url),
            proxies=proxies_of(trusted_proxy or []),
            drain_s=seconds_of("--drain", drain) or 5.0,
            access_log=access_log,
        )
        settings = load_settings()
        heading(settings.paths)
        raise typer.Exit(serve_http(lambda: settings, reach, say))

    if sys.stdin.isatty():
        from ava_server.cli.terminal import tell

        tell("ava: waiting for an MCP host on stdin; a person wants `ava run` or `ava demo`. Ctrl-C ends it.")
    raise typer.Exit(serve(load_settings))

"""`ava serve`: the MCP server of one host, over stdio."""

from __future__ import annotations

import os
import sys

import typer

from ava_server.errors import BadInput


def register(app: typer.Typer) -> None:
    """Add `ava serve` to the app."""
    app.command("serve", short_help="Serve one MCP host over stdio; hosts start this by themselves.")(serve_command)


def serve_command() -> None:
    """Serve one MCP host over stdin and stdout; hosts start this by themselves."""
    if os.environ.get("AVA_RUN_ID"):  # the house takes long to import, and a host waits about a second for an answer
        from ava_server.house import refuse_recursion

        raise BadInput(f"ava serve: {refuse_recursion()}.")
    from ava_server.hiding import hide
    from ava_server.settings import load_settings
    from ava_server.stdio import serve

    hide()

    if sys.stdin.isatty():
        from ava_server.cli.terminal import tell

        tell("ava: waiting for an MCP host on stdin; a person wants `ava run` or `ava demo`. Ctrl-C ends it.")
    raise typer.Exit(serve(load_settings))

"""`ava token`: the tokens with which people and programs reach `ava serve --http`. Each is shown once."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import anyio
import anyio.to_thread
import typer

from ava_audit.units import iso_second
from ava_server.cli.app import heading
from ava_server.cli.root import has_log
from ava_server.cli.terminal import say, tell, write
from ava_server.config.tokens import (
    SCOPES,
    Scope,
    Token,
    create_token,
    expiry,
    read_tokens,
    revoke_token,
    scopes_in,
    token_name,
    user_name,
)
from ava_server.core.data_root import DataRoot, find_data_root
from ava_server.core.errors import BadInput

if TYPE_CHECKING:
    from ava_audit.events import SettingsChanged

Name = Annotated[str, typer.Argument(metavar="NAME", help="What you call it, e.g. the machine that has it.")]


def register(app: typer.Typer) -> None:
    """Add `ava token` to the app."""
    tokens = typer.Typer(help="The tokens with which `ava serve --http` is reached.", no_args_is_help=True)
    tokens.command("create", short_help="Make a token; it is shown once.")(create_command)
    tokens.command("list", short_help="List names, users, scopes and ends, never the tokens.")(list_command)
    tokens.command("revoke", short_help="Make a token worth nothing, from its next request on.")(revoke_command)
    app.add_typer(tokens, name="token")


def create_command(
    name: Name,
    user: Annotated[str, typer.Option("--user", metavar="USER", help="Whom its requests act for.")],
    scope: Annotated[
        list[str],
        typer.Option(
            "--scope",
            metavar="SCOPES",
            help="What it may do, with commas between: spawn (propose, confirm, message, cancel), read (one's own runs,"
            " results and log), audit (read those of all users), approve (ava --url URL approve).",
        ),
    ],
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default=False, help="How long it lives: 90d, 12h. Else until revoked."),
    ] = None,
) -> None:
    """Make a token for `ava serve --http`. It is shown once, and only its hash is stored.

    With a PIN (policy human) a token of the scope approve takes the PIN: it approves as the PIN does.
    """
    scopes = scopes_in(scope)
    name, user = token_name(name), user_name(user)
    ends_us = expiry(expires, time.time_ns() // 1000)
    anyio.run(_create, _root("create"), name, user, scopes, ends_us)


def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """List the tokens: names, users, scopes and until when; never the tokens themselves."""
    root = find_data_root()
    has_log(root)
    tokens = sorted(read_tokens(root.tokens_file).values(), key=lambda token: token.name)
    now_us = time.time_ns() // 1000
    if as_json:
        entries = [
            {"name": one.name, **one.on_record(), "created": iso_second(one.created_us), "expired": one.expired(now_us)}
            for one in tokens
        ]
        typer.echo(json.dumps({"data_root": str(root.path), "tokens": entries}, ensure_ascii=False))
        return
    heading(root)
    width = max((len(token.name) for token in tokens), default=0)
    for token in tokens:
        say(f"{token.name:<{width}}  {token.user}; {', '.join(token.scopes)}; {_until(token, now_us)}")
    if not tokens:
        say(f"No tokens. Make one with `ava token create NAME --user USER --scope {','.join(SCOPES[:2])}`.")


def revoke_command(name: Name) -> None:
    """Revoke a token: from its next request on it is worth nothing, also where a server is running."""
    anyio.run(_revoke, _root("revoke"), token_name(name))


def _root(what: str) -> DataRoot:
    from ava_server.service.runtime import refuse_recursion

    if why := refuse_recursion():
        raise BadInput(f"ava token {what}: {why}.")
    root = find_data_root()
    has_log(root)
    heading(root)
    return root


async def _create(root: DataRoot, name: str, user: str, scopes: tuple[Scope, ...], ends_us: int | None) -> None:
    from ava_audit.events import SettingsChanged
    from ava_server.cli.unseen import check_pin
    from ava_server.config.pin import PinFile

    pin = PinFile(root.approval_file)
    if "approve" in scopes and await anyio.to_thread.run_sync(lambda: pin.is_set):
        await check_pin(pin)
    await anyio.to_thread.run_sync(root.create)
    token, text = await anyio.to_thread.run_sync(create_token, root.tokens_file, name, user, scopes, ends_us)
    await _on_record(root, SettingsChanged(setting=f"tokens.{name}", before=None, after=token.on_record()))
    say(f"Token {name} for {user}: {', '.join(scopes)}; {_until(token, token.created_us)}.")
    say("It is shown this once, and only its hash is kept. Whoever has it acts for this user:")
    write(text)


async def _revoke(root: DataRoot, name: str) -> None:
    from ava_audit.events import SettingsChanged

    token = await anyio.to_thread.run_sync(revoke_token, root.tokens_file, name)
    if token is None:
        raise BadInput(f"There is no token {name} in {root.tokens_file}. `ava token list` shows what there is.")
    await _on_record(root, SettingsChanged(setting=f"tokens.{name}", before=token.on_record(), after=None))
    say(f"Token {name} of {token.user} is revoked: its next request is refused.")


async def _on_record(root: DataRoot, fact: SettingsChanged) -> None:
    """Put on record what became of a token, never the token; a log that is out of reach takes nothing back."""
    from ava_audit.errors import AuditError
    from ava_audit.events import Event
    from ava_audit.store.store import Store, append
    from ava_server.cli.reading import terminal_session

    try:
        async with Store.open(root.path) as store:
            await store.do(append(Event(terminal_session().who, fact)))
    except AuditError as error:
        tell(f"That is not on the record: {error}")


def _until(token: Token, now_us: int) -> str:
    if token.expires_us is None:
        return "until it is revoked"
    at = iso_second(token.expires_us)
    return f"expired at {at}" if token.expired(now_us) else f"until {at}"

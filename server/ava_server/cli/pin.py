"""`ava pin`: sets, changes and removes the approval PIN, and with it the policy `human`."""

from __future__ import annotations

import anyio
import typer

from ava_server.cli.app import heading
from ava_server.cli.root import has_log
from ava_server.cli.terminal import say, tell
from ava_server.cli.unseen import ask_unseen
from ava_server.config.pin import NONE_YET, SET_ALREADY, PinFile, refuse_weak
from ava_server.core.data_root import DataRoot, find_data_root
from ava_server.core.errors import BadInput, Refused


def register(app: typer.Typer) -> None:
    """Add `ava pin` to the app."""
    pin = typer.Typer(help="The PIN without which nothing starts: the policy `human`.", no_args_is_help=True)
    pin.command("set", short_help="Set a PIN: from then on nothing starts without it.")(set_command)
    pin.command("change", short_help="Replace the PIN.")(change_command)
    pin.command("remove", short_help="Remove the PIN: config.toml says again who approves.")(remove_command)
    app.add_typer(pin, name="pin")


def set_command() -> None:
    """Set the approval PIN, asked for twice at the terminal.

    From then on the policy is `human`: only a person who knows the PIN starts anything, with `ava approve` or `ava
    run`, whatever config.toml or the environment say.
    """
    anyio.run(_set, _root())


def change_command() -> None:
    """Replace the approval PIN: the old one is asked for, then the new one twice."""
    anyio.run(_change, _root())


def remove_command() -> None:
    """Remove the approval PIN, which is asked for: from then on config.toml says who approves."""
    anyio.run(_remove, _root())


def _root() -> DataRoot:
    from ava_server.service.runtime import refuse_recursion

    if why := refuse_recursion():
        raise BadInput(f"ava pin: {why}.")
    root = find_data_root()
    has_log(root)
    heading(root)
    return root


async def _set(root: DataRoot) -> None:
    file = PinFile(root.approval_file)
    if await anyio.to_thread.run_sync(lambda: file.is_set):  # told before anything is typed
        raise Refused(SET_ALREADY)
    new = await _twice("New approval PIN")
    await anyio.to_thread.run_sync(root.create)
    await anyio.to_thread.run_sync(file.set, new)
    await _on_record(root, None, "set")
    say(f"The PIN is set in {file.path}, as a hash. The policy is human now: `ava approve` starts what was proposed.")
    say("It is asked for at a terminal alone. Nobody can read it back; whoever forgets it removes that file.")


async def _change(root: DataRoot) -> None:
    file = PinFile(root.approval_file)
    await _refuse_none(file)
    old = await ask_unseen("Approval PIN so far")
    new = await _twice("New approval PIN")
    await anyio.to_thread.run_sync(file.change, old, new)
    await _on_record(root, "set", "changed")
    say("The PIN is another one now.")


async def _remove(root: DataRoot) -> None:
    from ava_server.config.settings import load_settings

    file = PinFile(root.approval_file)
    await _refuse_none(file)
    policy = load_settings(root.path).approval  # a wrong setting is told before anything is taken away
    await anyio.to_thread.run_sync(file.remove, await ask_unseen("Approval PIN"))
    await _on_record(root, "set", None)
    after = ", so that nothing can be approved until there is a PIN again" if policy == "human" else ""
    say(f'The PIN is removed. config.toml says again who approves: approval = "{policy}"{after}.')


async def _on_record(root: DataRoot, before: str | None, after: str | None) -> None:
    """Put on record what became of the PIN, never the PIN; a log that is out of reach takes nothing back."""
    from ava_audit.errors import AuditError
    from ava_audit.events import Event, SettingsChanged
    from ava_audit.store.store import Store, append
    from ava_server.cli.reading import terminal_session

    fact = SettingsChanged(setting="approval_pin", before=before, after=after)
    try:
        async with Store.open(root.path) as store:
            await store.do(append(Event(terminal_session().who, fact)))
    except AuditError as error:
        tell(f"That is not on the record: {error}")


async def _refuse_none(file: PinFile) -> None:
    """Refuse before anything is typed.

    Raises:
        Refused: There is no PIN.
    """
    if not await anyio.to_thread.run_sync(lambda: file.is_set):
        raise Refused(NONE_YET)


async def _twice(question: str) -> str:
    first = await ask_unseen(question)
    refuse_weak(first)
    if await ask_unseen(f"{question} once more") != first:
        raise BadInput("The two are not the same; nothing was stored.")
    return first

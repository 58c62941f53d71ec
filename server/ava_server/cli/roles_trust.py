"""`ava roles trust`: a person says in a terminal which role files of a project count, as they are now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import anyio.to_thread
import typer

from ava_server.cli.app import heading
from ava_server.cli.root import has_log
from ava_server.cli.terminal import agrees, say, someone_there, tell
from ava_server.core.data_root import find_data_root
from ava_server.core.errors import BadInput, Refused

if TYPE_CHECKING:
    from ava_roles.catalog import Catalog, UntrustedFile
    from ava_server.config.role_folders import RolePlaces
    from ava_server.config.settings import Settings

SETTING = "trusted_roles"
"""How the log calls it."""


def trust_command(
    folder: Annotated[
        str | None, typer.Argument(metavar="[FOLDER]", help="The project; without it, the one of this folder.")
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take the trust back, without a question.")] = False,
) -> None:
    """Show the role files of a project that do not count yet, and let them count after a question.

    They count as they are now: one that changes, or is new, is untrusted until this is done again. With an approval PIN
    that is asked for. Nothing but this command, at a terminal, trusts anything.
    """
    from ava_server.config.role_folders import RolePlaces, project_named
    from ava_server.config.settings import load_settings
    from ava_server.service.runtime import refuse_recursion

    if why := refuse_recursion():
        raise BadInput(f"ava roles trust: {why}.")
    root = find_data_root()
    has_log(root)
    heading(root)
    settings = load_settings(root.path)
    try:
        home = Path.home()
    except RuntimeError:
        raise BadInput("This user has no home folder, so it cannot be told what is a project. Set HOME.") from None
    project = project_named(str(Path(folder or ".").absolute()), root.path, home)
    say(f"Project: {project}")
    places = RolePlaces(root, project, settings.roles.claude_agents, home)
    anyio.run(_withdraw if withdraw else _trust, places, settings)


async def _trust(places: RolePlaces, settings: Settings) -> None:
    from ava_server.cli.roles_screen import tools_here, trust_lines
    from ava_server.cli.unseen import check_pin
    from ava_server.config.pin import PinFile, policy_in_force

    assert places.root is not None
    catalog = places.load()
    for problem in catalog.problems:
        say(f"Cannot be used: {problem.text}")
    usable = [each for each in catalog.untrusted if each.role is not None]
    taken = {name: role.source for name, role in catalog.by_name.items()}
    known = tools_here(settings)
    for each in catalog.untrusted:
        say()
        say("\n".join(trust_lines(each, taken.get(each.name), known)))
        taken.setdefault(each.name, each.file.source)
    if not usable:
        say(_nothing(places, catalog))
        return
    say()
    say(f"Their whole text: `ava roles show NAME` in {places.project}. It is an instruction to a subagent.")
    if not someone_there():
        raise Refused("Nothing is trusted: a person has to say so at a terminal, and there is none here.")
    count = f"these {len(usable)} role files" if len(usable) > 1 else "this role file"
    if not await agrees(f"Let {count} count, as now?"):
        raise Refused("Nothing was trusted.")
    if await anyio.to_thread.run_sync(policy_in_force, settings) == "human":
        await check_pin(PinFile(places.root.approval_file))
    before, after = await anyio.to_thread.run_sync(_store, places, usable)
    await _on_record(places, before, after)
    say(f"Trusted: {', '.join(each.name for each in usable)}. They count from the next proposal on, in every host.")


async def _withdraw(places: RolePlaces, _settings: Settings) -> None:
    from ava_server.config.role_folders import change_trusted, read_trusted

    assert places.root is not None
    path = places.root.trusted_roles
    folders = _all_folders(places)
    if not any(folder in read_trusted(path) for folder in folders):
        say("No role file of this project is trusted.")
        return
    before = change_trusted(path, {folder: {} for folder in folders})
    await _on_record(places, before, {})
    say("The trust is taken back: no role file of this project counts from the next proposal on.")


def _store(places: RolePlaces, usable: list[UntrustedFile]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trust the files as they were shown, beside those that were trusted and have not changed.

    Returns what was trusted of their folders before, and what is now.
    """
    from ava_server.config.role_folders import change_trusted, read_trusted

    assert places.root is not None
    places.root.create()
    stored = read_trusted(places.root.trusted_roles)
    after: dict[str, dict[str, str]] = {}
    for each in usable:
        folder = str(each.file.folder.path)
        after.setdefault(folder, {**stored.get(folder, {})})[each.file.name] = each.file.sha256
    return change_trusted(places.root.trusted_roles, after), after


def _all_folders(places: RolePlaces) -> list[str]:
    """Return the project's folders as they are stored, those that no setting has read at present too."""
    from ava_server.config.role_folders import CLAUDE, OURS

    assert places.project is not None
    return [str(places.project / label) for label in (OURS, CLAUDE)]


def _nothing(places: RolePlaces, catalog: Catalog) -> str:
    """Return why there is nothing to trust."""
    from ava_server.config.role_folders import CLAUDE, OURS

    assert places.project is not None
    if catalog.untrusted:
        return "Nothing was trusted: none of these files is a role. `ava roles check` says what is wrong."
    trusted = [role.name for role in catalog.roles if role.source.startswith((OURS, f"{CLAUDE}/"))]
    if trusted:
        return f"Trusted already, as they are: {', '.join(trusted)}."
    off = (places.project / CLAUDE).is_dir() and not places.claude_agents
    how = f" Those of {CLAUDE} are not read: set claude_agents = true under [roles] in config.toml." if off else ""
    return f"There is no role file in {OURS} to trust.{how}"


async def _on_record(places: RolePlaces, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Put on record what is trusted of a project; a log that is out of reach takes nothing back."""
    from ava_audit.errors import AuditError
    from ava_audit.events import Event, SettingsChanged
    from ava_audit.store.store import Store, append
    from ava_server.cli.reading import terminal_session

    assert places.root is not None
    fact = SettingsChanged(setting=SETTING, before=before or None, after=after or None)
    try:
        async with Store.open(places.root.path) as store:
            await store.do(append(Event(terminal_session().who, fact)))
    except AuditError as error:
        tell(f"That is not on the record: {error}")

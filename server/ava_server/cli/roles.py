"""`ava roles`: which roles there are, what one resolves to, what is wrong with their files, and new ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ava_server.cli.app import heading
from ava_server.cli.root import has_log
from ava_server.cli.terminal import say, say_json, tell
from ava_server.core.data_root import DataRoot, find_data_root
from ava_server.core.errors import AvaError, BadInput, ConfigError

if TYPE_CHECKING:
    from ava_roles.role import Role
    from ava_roles.role_files import Remark
    from ava_server.config.settings import Settings
    from ava_server.models.listing import TierMeaning

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
FAULT_FOUND = 1
Json = Annotated[bool, typer.Option("--json", help="As one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add `ava roles` to the app."""
    from ava_server.cli.roles_trust import trust_command

    roles = typer.Typer(help="Roles and their files; by itself, the list.")
    roles.callback(invoke_without_command=True)(_list_by_itself)
    roles.command("list", short_help="The roles, and what is wrong with files that brought none.")(list_command)
    roles.command("show", short_help="One role: its file, and what it resolves to here.")(show_command)
    roles.command("check", short_help="What is wrong with role files, by file and line.")(check_command)
    roles.command("new", short_help="Write a role file to start from.")(new_command)
    roles.command("trust", short_help="Let the role files of a project count, as they are now.")(trust_command)
    app.add_typer(roles, name="roles")


def _list_by_itself(context: typer.Context, as_json: Json = False) -> None:
    """List the roles where no other word follows."""
    if context.invoked_subcommand is None:
        list_command(as_json)
    elif as_json:
        raise BadInput(f"--json: write it behind the word: ava roles {context.invoked_subcommand} --json")


def list_command(as_json: Json = False) -> None:
    """Show the roles that there are here, with model, limits, tools and where each comes from.

    The project is the folder in which the command is called; of a project those count that somebody has trusted.
    """
    from ava_server.cli.roles_screen import as_facts, screen, tools_here
    from ava_server.config.role_folders import places_here
    from ava_server.config.settings import load_settings

    root = find_data_root()
    has_log(root)
    settings = load_settings(root.path)
    places = places_here(root, settings)
    catalog = places.load()
    means = meanings_of(catalog.roles, settings)
    if as_json:
        say_json({"data_root": str(root.path), **as_facts(places, catalog, means, tools_here(settings))})
        return
    heading(root)
    say("\n".join(screen(places, catalog, means, tools_here(settings))))


def show_command(name: Annotated[str, typer.Argument(metavar="NAME", help="The role's name.")]) -> None:
    """Show a role's file and what it resolves to: model, limits, tools here and not here, and the system prompt.

    Also one of a project that is not trusted, for somebody has to read it before that.
    """
    from ava_roles.errors import UnknownRole
    from ava_server.cli.roles_screen import role_screen, tools_here
    from ava_server.config.role_folders import places_here
    from ava_server.config.settings import load_settings

    root = find_data_root()
    has_log(root)
    settings = load_settings(root.path)
    catalog = places_here(root, settings).load()
    try:
        role, why = catalog.get(name), ""
    except UnknownRole:
        waiting = [each for each in catalog.untrusted if name in (each.name, Path(each.file.name).stem)]
        if not waiting or waiting[0].role is None:
            raise
        role, why = waiting[0].role, f"It does not count: {waiting[0].why}. {waiting[0].step}"
    heading(root)
    meant = next(iter(meanings_of((role,), settings)), None)
    say("\n".join(role_screen(role, meant, settings, why, tools_here(settings))))


def check_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]", help="Files, or folders of them; without any, all that would be read here."),
    ] = None,
) -> None:
    """Check role files, Claude Code's too, trusted or not: each fault, and each key or tool that means nothing here.

    Exit code 1 when a file cannot be used.
    """
    root = find_data_root()
    heading(root)
    remarks, count = _given(files) if files else _all(root)
    for remark in remarks:
        say(str(remark))
    faults = sum(remark.fault for remark in remarks)
    if count:
        told = f"{faults} cannot be used" if faults else "all can be used"
        say(f"{count} role {'file' if count == 1 else 'files'} checked: {told}.")
    else:
        say("No role file but the built-in ones is read here. Others are checked when you name them, or their folder.")
    if faults:
        raise typer.Exit(FAULT_FOUND)


def new_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Lower case letters, digits, `_` and `-`.")],
    from_role: Annotated[
        str | None, typer.Option("--from", metavar="ROLE", help="Begin with the text of this role, not an empty one.")
    ] = None,
) -> None:
    """Write a role file with comments into roles/ of the data root, and say where; one that is there stays."""
    from ava_roles.errors import RoleFileError
    from ava_roles.role_files import rename_role
    from ava_server.config.role_folders import places_here
    from ava_server.config.settings import load_settings
    from ava_server.core.files import create_file

    if not _NAME.fullmatch(name):
        raise BadInput(f"{name[:80]!r} is no name of a role: lower case letters, digits, - and _, a letter first.")
    root = find_data_root()
    has_log(root)
    heading(root)
    catalog = places_here(root, load_settings(root.path)).load()
    if name in catalog.by_name:
        taken = catalog.by_name[name].source
        raise BadInput(f"There is a role {name} already ({taken}), and a file does not take its place. Choose another.")
    try:
        text = rename_role(_starting() if from_role is None else catalog.get(from_role).text, name)
    except RoleFileError as error:
        raise BadInput(f"--from {from_role}: {error.reason}") from None
    path = root.roles / f"{name}.md"
    try:
        root.create()
        root.roles.mkdir(mode=0o700, exist_ok=True)
        create_file(path, text.encode())
    except FileExistsError:
        raise BadInput(f"{path} is there already, and stays as it is. Choose another name, or edit it.") from None
    except OSError as failed:
        raise ConfigError(f"{path} cannot be written: {failed.strerror or type(failed).__name__}.") from failed
    say(f"Wrote {path}.")
    say(f"Edit it, then look at it: `ava roles check`, `ava roles show {name}`. It counts from the next proposal on.")


def meanings_of(roles: tuple[Role, ...], settings: Settings) -> list[TierMeaning]:
    """Return the model that each role means here; none where the keys cannot be read, which is told."""
    from ava_server.config.credentials import model_settings
    from ava_server.models.listing import meanings

    try:
        return meanings((role.model for role in roles), model_settings(settings), settings)
    except AvaError as error:  # which roles there are does not depend on keys
        tell(f"Which models they mean is not known: {error}")
        return []


def _starting() -> str:
    import ava_roles

    assert ava_roles.__file__ is not None
    return Path(ava_roles.__file__).with_name("starting.txt").read_text("utf-8")


def _all(root: DataRoot) -> tuple[list[Remark], int]:
    """Check everything that would be read here."""
    from ava_roles.catalog import BUILT_IN_SOURCE
    from ava_roles.role_files import Remark, check
    from ava_server.config.role_folders import places_here
    from ava_server.config.settings import load_settings

    has_log(root)
    catalog = places_here(root, load_settings(root.path)).load(by_path=True)
    own = [role for role in catalog.roles if role.source != BUILT_IN_SOURCE]
    remarks = [remark for role in own for remark in check(role.text, role.source, role.name)[1]]
    for each in catalog.untrusted:
        if each.role is not None:
            remarks += check(each.role.text, each.file.source, each.name)[1]
            if each.name in catalog.by_name:
                taken = f"the name {each.name} is taken ({catalog.by_name[each.name].source}); rename this role"
                remarks.append(Remark(each.file.source, None, None, taken, fault=True))
    broken = [*catalog.problems, *(each.problem for each in catalog.untrusted if each.problem)]
    remarks += [Remark(each.source, each.line, each.key, each.reason, fault=True) for each in broken]
    return remarks, len(own) + len(catalog.untrusted) + len(catalog.problems)


def _given(files: list[str]) -> tuple[list[Remark], int]:
    """Check the files that were named, and those of the folders that were."""
    from ava_roles.catalog import BUILT_IN
    from ava_roles.errors import RoleFileError
    from ava_roles.role_files import Folder, Remark, check, read_chosen_file, read_folder, text_of

    remarks: list[Remark] = []
    count = 0

    def one(data: bytes, source: str, stem: str) -> None:
        role, found = check(text_of(data, source), source, stem)
        remarks.extend(found)
        if role is not None and role.name in BUILT_IN:
            raise RoleFileError(source, f"the name {role.name} is taken (built in); rename this role")

    for given in files:
        path = Path(given)
        folder = [*read_folder(Folder(path, given.rstrip("/"), deep=True))] if path.is_dir() else [None]
        for found in folder:
            count += 1
            try:
                if isinstance(found, RoleFileError):
                    raise found
                if found is None:
                    one(read_chosen_file(path, given), given, path.stem)
                else:
                    one(found.data, found.source, Path(found.name).stem)
            except RoleFileError as error:
                remarks.append(Remark.of(error))
    return remarks, count

"""`ava roles`: lists, shows and checks roles, writes new role files, and trusts a project's."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ava_audit.units import counted
from ava_roles import BUILT_IN, BUILT_IN_SOURCE
from ava_roles.errors import RoleFileError, UnknownRole
from ava_server.cli.log_access import checked_root, read_settings, record_setting
from ava_server.cli.options import Json
from ava_server.cli.options import roles as role_names
from ava_server.cli.terminal import agrees, heading, present, say, someone_there, tell
from ava_server.core.data_root import DataRoot, find_data_root, os_user
from ava_server.core.errors import AvaError, BadInput, ConfigError, Refused
from ava_server.core.files import create_file
from ava_server.core.names import named, quote_name
from ava_server.core.threads import run_async

if TYPE_CHECKING:
    from ava_roles.catalog import Catalog, Remark, UntrustedFile
    from ava_roles.role import Role
    from ava_server.config.role_folders import RolePlaces
    from ava_server.config.settings import Settings
    from ava_server.models.listing import ResolvedModel

roles_command = typer.Typer()

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
FAULT_FOUND = 1


@roles_command.callback(invoke_without_command=True)
def _list_by_default(context: typer.Context, as_json: Json = False) -> None:
    """List the roles if no other word follows."""
    if context.invoked_subcommand is None:
        list_command(as_json)
    elif as_json:
        raise BadInput(f"--json: write it after the word: ava roles {context.invoked_subcommand} --json")


@roles_command.command("list", short_help="The roles, and what is wrong with unusable files.")
def list_command(as_json: Json = False) -> None:
    """Show the roles that can be used here, with model, limits, tools and source.

    The project is the folder in which the command is called; only its trusted role files count.
    """
    from ava_server.cli.role_screens import list_screen, roles_as_json, tools_here

    root, settings, places = _open()
    catalog = places.load()
    models = _models_of(catalog.roles, settings)
    tools = tools_here(settings)
    fields = roles_as_json(places, catalog, models, tools)
    present(root, as_json, fields, list_screen(places, catalog, models, tools))


@roles_command.command("show", short_help="One role: its file, and what it means here.")
def show_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The role's name.", autocompletion=role_names)],
) -> None:
    """Show a role's file and what it means here: model, limits, available and missing tools, and the system prompt.

    Also works for a role of an untrusted project, to read it before trusting it.
    """
    from ava_server.cli.role_screens import role_screen, tools_here

    root, settings, places = _open()
    catalog = places.load()
    why_unused = ""
    try:
        role = catalog.get(name)
    except UnknownRole:
        untrusted = _find_untrusted(catalog, name)
        if untrusted is None or untrusted.role is None:
            raise
        role = untrusted.role
        why_unused = f"It is not in use: {untrusted.why}. {untrusted.step}"
    heading(root)
    model = None
    models = _models_of((role,), settings)
    if models:
        model = models[0]
    say("\n".join(role_screen(role, model, settings, why_unused, tools_here(settings))))


def _find_untrusted(catalog: Catalog, name: str) -> UntrustedFile | None:
    for each in catalog.untrusted:
        if name in (each.name, Path(each.file.name).stem):
            return each
    return None


@roles_command.command("check", short_help="Check role files, by file and line.")
def check_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]", help="Files or folders; without any, all files that are read here."),
    ] = None,
) -> None:
    """Check role files, Claude Code's too, trusted or not: each fault, and each key or tool without a meaning here.

    Exit code 1 when a file cannot be used.
    """
    root = find_data_root()
    heading(root)
    if files:
        remarks, count = _check_files(files)
    else:
        remarks, count = _check_all()
    for remark in remarks:
        say(str(remark))
    faults = {remark.source for remark in remarks if remark.fault}
    if count:
        result = f"{len(faults)} cannot be used" if faults else "all can be used"
        say(f"{counted(count, 'role file')} checked: {result}.")
    else:
        say("Only the built-in role files are read here. Name other files, or their folder, to check them.")
    if faults:
        raise typer.Exit(FAULT_FOUND)


@roles_command.command("new", short_help="Write a role file to start from.")
def new_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Lower case letters, digits, `_` and `-`.")],
    from_role: Annotated[
        str | None,
        typer.Option("--from", metavar="ROLE", help="Start with this role's text.", autocompletion=role_names),
    ] = None,
) -> None:
    """Write a commented role file into roles/ of the data root, and say where; an existing file is kept."""
    from ava_roles.catalog import rename_role, starting_text

    if not _NAME.fullmatch(name):
        raise BadInput(f"{name[:80]!r} is not a role name: lower case letters, digits, - and _, a letter first.")
    root, _settings, places = _open()
    heading(root)
    catalog = places.load()
    if name in catalog.by_name:
        source = catalog.by_name[name].source
        raise BadInput(
            f"There is already a role {quote_name(name)} ({source}), which a file cannot replace. Choose another name."
        )
    if from_role is None:
        text = starting_text()
    else:
        text = catalog.get(from_role).text
    try:
        text = rename_role(text, name)
    except RoleFileError as error:
        raise BadInput(f"--from {from_role}: {error.reason}") from None
    path = root.roles / f"{name}.md"
    try:
        root.create()
        root.roles.mkdir(mode=0o700, exist_ok=True)
        create_file(path, text.encode())
    except FileExistsError:
        raise BadInput(f"{path} already exists, and is kept. Choose another name, or edit it.") from None
    except OSError as failed:
        raise ConfigError(f"{path} cannot be written: {failed.strerror or type(failed).__name__}.") from failed
    say(f"Wrote {path}.")
    say(f"Edit it, then look at it: `ava roles check`, `ava roles show {name}`. It counts from the next proposal on.")


def _open() -> tuple[DataRoot, Settings, RolePlaces]:
    from ava_server.config.role_folders import places_here

    root = checked_root(show=False)
    settings = read_settings(root)
    return root, settings, places_here(root, settings)


def _models_of(roles: tuple[Role, ...], settings: Settings) -> list[ResolvedModel]:
    """Return the model of each role; none if the keys cannot be read, which is told."""
    from ava_server.config.credentials import model_settings
    from ava_server.models.listing import resolve_models

    try:
        return resolve_models(model_settings(settings), settings.where, (role.model for role in roles))
    except AvaError as error:  # roles do not depend on keys
        tell(f"Their models are unknown: {error}")
        return []


def _check_all() -> tuple[list[Remark], int]:
    from ava_roles.catalog import Remark, check, faults_of

    _root, _settings, places = _open()
    catalog = places.load(by_path=True)
    own = [role for role in catalog.roles if role.source != BUILT_IN_SOURCE]
    remarks: list[Remark] = []
    for role in own:
        _role, role_remarks = check(role.text, role.source, role.name)
        remarks += role_remarks
    for each in catalog.untrusted:
        if each.role is None:
            continue
        _role, role_remarks = check(each.role.text, each.file.source, each.name)
        remarks += role_remarks
        if each.name in catalog.by_name:
            source = catalog.by_name[each.name].source
            remarks.append(
                Remark(each.file.source, f"the name {quote_name(each.name)} is taken ({source}); rename this role")
            )
    remarks += catalog.problems
    for each in catalog.untrusted:
        if each.role is None:
            remarks += faults_of(each.file)
    problem_files = {problem.source for problem in catalog.problems}
    return remarks, len(own) + len(catalog.untrusted) + len(problem_files)


def _check_files(files: list[str]) -> tuple[list[Remark], int]:
    from ava_roles.catalog import Folder, Remark, read_chosen_file, read_folder

    remarks: list[Remark] = []
    count = 0
    for name in files:
        path = Path(name)
        if path.is_dir():
            for file in read_folder(Folder(path, name.rstrip("/"), deep=True)):
                count += 1
                if isinstance(file, RoleFileError):
                    remarks.append(Remark.of(file))
                else:
                    remarks += _check_file(file.data, file.source, Path(file.name).stem)
            continue
        count += 1
        try:
            data = read_chosen_file(path, name)
        except RoleFileError as error:
            remarks.append(Remark.of(error))
        else:
            remarks += _check_file(data, name, path.stem)
    return remarks, count


def _check_file(data: bytes, source: str, stem: str) -> list[Remark]:
    from ava_roles.catalog import Remark, check, text_of

    try:
        role, remarks = check(text_of(data, source), source, stem)
    except RoleFileError as error:
        return [Remark.of(error)]
    if role is None or role.name not in BUILT_IN:
        return remarks
    clash = RoleFileError(source, f"the name {quote_name(role.name)} is taken (built in); rename this role")
    return [*remarks, Remark.of(clash)]


# -- ava roles add ----------------------------------------------------------------------------------------------------


@roles_command.command("add", short_help="Add an agent file of another program as a role, or a skill.")
def add_command(
    path: Annotated[str, typer.Argument(metavar="FILE|FOLDER", help="An agent file, or the folder of a skill.")],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Another name for the role.")] = None,
) -> None:
    """Show what an agent file or a skill would be here, ask, and add it to the data root.

    An agent file is one of Claude Code or opencode (Markdown), or of Codex (TOML): it becomes a role. A folder with a
    SKILL.md becomes a skill, which a role can name in `skills`. If there is an approval PIN, it is asked for; under
    `human` without one, you choose it.
    """
    root = checked_root("ava roles add")
    settings = read_settings(root)
    place = Path(path).absolute()
    if place.name == "SKILL.md" and place.is_file():
        place = place.parent
    if place.is_dir():
        if name is not None:
            raise BadInput("--name: a skill has the name that its SKILL.md says; leave --name out")
        run_async(_add_skill, root, place, settings)
    else:
        run_async(_add_role, root, place, name or "", settings)


async def _add_role(root: DataRoot, file: Path, name: str, settings: Settings) -> None:
    from ava_roles.agent_files import role_of_agent
    from ava_roles.catalog import Folder, RoleFile, UntrustedFile, read_chosen_file, text_of
    from ava_server.cli.role_screens import tools_here, trust_lines
    from ava_server.config.role_folders import places_here

    if name and not _NAME.fullmatch(name):
        raise BadInput(f"{name[:80]!r} is not a role name: lower case letters, digits, - and _, a letter first.")
    try:
        text = text_of(read_chosen_file(file, str(file)), str(file))
        agent = role_of_agent(text, str(file), name)
    except RoleFileError as error:
        raise BadInput(str(error)) from None
    role, catalog = agent.role, places_here(root, settings).load()
    role_file = RoleFile(Folder(file.parent, str(file.parent)), file.name, str(file), role.text.encode())
    untrusted = UntrustedFile(role.name, role_file, False, role)
    say("\n".join(trust_lines(untrusted, None, tools_here(settings))))
    if agent.left_out:
        say(f"  left out: {', '.join(agent.left_out)}")
    place = root.roles / f"{role.name}.md"
    source = None
    if role.name in catalog.by_name:
        source = catalog.by_name[role.name].source
    elif place.exists():
        source = str(place)
    if source is not None:
        raise BadInput(
            f"There is already a role {quote_name(role.name)} ({source}). Give this one another name: --name NAME"
        )
    _need_person()
    new = place.with_name(f".{role.name}.new")
    try:
        with _writing(place):
            root.create()
            root.roles.mkdir(mode=0o700, exist_ok=True)
            new.unlink(missing_ok=True)
            create_file(new, role.text.encode())
        say(f"\nIts whole text is in {new}. It instructs a subagent.")
        await _agree(root, settings, f"Add {named('role', role.name)}?")
        with _writing(place):
            create_file(place, role.text.encode())
    finally:
        with suppress(OSError):
            new.unlink()
    say(f"Wrote {place}. It counts from the next proposal on: `ava roles show {role.name}`.")


async def _add_skill(root: DataRoot, folder: Path, settings: Settings) -> None:
    from ava_roles.sandbox.path_access import remove_tree
    from ava_roles.skills import installed_skill, read_skill, write_skill
    from ava_server.cli.role_screens import skill_lines

    try:
        skill = read_skill(folder, str(folder))
    except RoleFileError as error:
        raise BadInput(str(error)) from None
    say("\n".join(skill_lines(skill)))
    place = root.skills / skill.name
    replaces = place.exists()
    if replaces:
        try:
            same = installed_skill(root.skills, skill.name).sha256 == skill.sha256
        except RoleFileError:
            same = False
        if same:
            say(f"It is installed already, as it is: {place}.")
            return
        say("  It replaces the installed skill of this name, which is another.")
    _need_person()
    new = place.with_name(f".{skill.name}.new")
    try:
        with _writing(place):
            root.create()
            root.skills.mkdir(mode=0o700, exist_ok=True)
            remove_tree(new)
            new.mkdir(mode=0o700)
            write_skill(skill, new)
        say(f"\nIts whole text is in {new / 'SKILL.md'}. It instructs subagents whose role names it.")
        what = "Replace" if replaces else "Add"
        await _agree(root, settings, f"{what} {named('skill', skill.name)}?")
        with _writing(place):
            remove_tree(place)
            new.rename(place)
    finally:
        with suppress(OSError):
            remove_tree(new)
    say(f"Wrote {place}. To let a role read it, put this into its file: skills: [{skill.name}]")


# What a person reads before they agree is Ava's own copy: others may change the file that was given meanwhile.


def _need_person() -> None:
    if not someone_there():
        raise Refused("Nothing is added: a person has to agree at a terminal, and there is none here.")


@contextmanager
def _writing(place: Path) -> Generator[None]:
    try:
        yield
    except OSError as failed:
        raise ConfigError(f"{place} cannot be written: {failed.strerror or type(failed).__name__}.") from failed


async def _agree(root: DataRoot, settings: Settings, question: str, refusal: str = "Nothing was added.") -> None:
    """Ask a person at the terminal, with the PIN where one is needed. Raises Refused: they say no."""
    from ava_server.budget.user_limits import policy_in_force
    from ava_server.cli.secret_input import ask_pin, needed_pin

    if not await agrees(question):
        raise Refused(refusal)
    policy, _why = policy_in_force(settings, os_user())
    pin = needed_pin(root, policy)
    if pin is not None:
        await ask_pin(pin, choosing=True)


# -- ava roles trust --------------------------------------------------------------------------------------------------


@roles_command.command("trust", short_help="Trust a project's role files as they are now.")
def trust_command(
    folder: Annotated[
        str | None, typer.Argument(metavar="[FOLDER]", help="The project; default: the one of this folder.")
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Withdraw the trust, without a question.")] = False,
) -> None:
    """Show a project's untrusted role files, and trust them after a question.

    They are trusted as they are now: a changed or new file is untrusted until you trust it again. If there is an
    approval PIN, it is asked for; under `human` without one, you choose it. Only this command, at a terminal, trusts
    role files.
    """
    from ava_server.config.role_folders import RolePlaces, project_named

    root = checked_root("ava roles trust")
    settings = read_settings(root)
    try:
        home = Path.home()
    except RuntimeError:
        raise BadInput("This user has no home folder, so projects cannot be told apart from it. Set HOME.") from None
    project = project_named(str(Path(folder or ".").absolute()), root.path, home)
    say(f"Project: {project}")
    places = RolePlaces(root, project, settings.roles.claude_agents, home)
    if withdraw:
        run_async(_withdraw, root, project)
    else:
        run_async(_trust, root, project, places, settings)


async def _trust(root: DataRoot, project: Path, places: RolePlaces, settings: Settings) -> None:
    from ava_server.cli.role_screens import tools_here, trust_lines

    catalog = places.load()
    for problem in catalog.problems:
        say(f"Cannot be used: {problem.text}")
    usable = [each for each in catalog.untrusted if each.role is not None]
    sources = {name: role.source for name, role in catalog.by_name.items()}
    known = tools_here(settings)
    for each in catalog.untrusted:
        say()
        say("\n".join(trust_lines(each, sources.get(each.name), known)))
        sources.setdefault(each.name, each.file.source)
    if not usable:
        say(_why_nothing(catalog))
        return
    say(f"\nTheir whole text: `ava roles show NAME` in {project}. It instructs a subagent.")
    if not someone_there():
        raise Refused("Nothing is trusted: a person has to agree at a terminal, and there is none here.")
    files = "this role file as it is" if len(usable) == 1 else f"these {len(usable)} role files as they are"
    await _agree(root, settings, f"Trust {files} now?", "Nothing was trusted.")
    before, after = _store(root, usable)
    await record_setting(root, "trusted_roles", before or None, after)
    say(
        f"Trusted: {', '.join(quote_name(each.name) for each in usable)}. They count from the next"
        " proposal on, in every host."
    )


async def _withdraw(root: DataRoot, project: Path) -> None:
    from ava_server.config.role_folders import CLAUDE, OURS, change_trusted, read_trusted

    path = root.trusted_roles
    folders = [str(project / label) for label in (OURS, CLAUDE)]  # whatever the settings read at present
    trusted = read_trusted(path)
    if not any(folder in trusted for folder in folders):
        say("No role file of this project is trusted.")
        return
    before = change_trusted(path, {folder: {} for folder in folders})
    await record_setting(root, "trusted_roles", before or None, None)
    say("The trust is withdrawn: no role file of this project counts from the next proposal on.")


def _store(root: DataRoot, usable: list[UntrustedFile]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Trust the files as they were shown, beside trusted ones that have not changed.

    Returns what was trusted in their folders before, and what is trusted now.
    """
    from ava_server.config.role_folders import change_trusted, read_trusted

    root.create()
    stored = read_trusted(root.trusted_roles)
    after: dict[str, dict[str, str]] = {}
    for each in usable:
        folder = str(each.file.folder.path)
        if folder not in after:
            after[folder] = dict(stored.get(folder, {}))
        after[folder][each.file.name] = each.file.sha256
    return change_trusted(root.trusted_roles, after), after


def _why_nothing(catalog: Catalog) -> str:
    from ava_server.config.role_folders import CLAUDE, OURS

    if catalog.untrusted:
        return "Nothing was trusted: none of these files is a role. `ava roles check` says what is wrong."
    trusted = [role.name for role in catalog.roles if role.source.startswith((OURS, f"{CLAUDE}/"))]
    if trusted:
        return f"Already trusted as they are: {', '.join(trusted)}."
    why = f"There is no role file in {OURS} to trust."
    if catalog.unread:
        why += f" {catalog.unread}."
    return why

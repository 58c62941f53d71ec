"""Runs that change files of a repository: what their proposal settles, and the spec of their worktree.

A run changes files if it has a tool that does. It works in a worktree of its own, in a namespace that the call names,
and a verify command decides whether its work passes; the call has to give all that this needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from ava_roles.errors import RolesError
from ava_roles.role import Role, command_line, parse_role
from ava_roles.sandbox.git_folders import Accept, only
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_roles.sandbox.workspace import Workspace
from ava_roles.tools.registry import specs_of, tool_specs
from ava_roles.worktree.inspect import CheckoutState, find_verify_commands, inspect_checkout
from ava_roles.worktree.spec import WorktreeSpec, namespace_of
from ava_server.approval.requests import SpawnArgs
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.names import named_role
from ava_server.models.model_choice import Choice
from ava_server.run_config.config import RunConfig
from ava_server.run_config.parts import Coding

T = TypeVar("T")


def changes_files(names: Iterable[str]) -> bool:
    return any(spec.edits for spec in specs_of(names, {}))


def lacks_model(role: Role, choice: Choice | None) -> bool:
    """Tell whether a role cannot run because it needs a language model, and only the offline reader is there."""
    return choice is not None and choice.wire == "offline" and (role.needs_model or changes_files(role.needs))


def resolve_coding(
    args: SpawnArgs,
    role: Role,
    workspace: Workspace,
    sandbox: Sandbox | Unavailable | None,
    home: Path,
    *,
    files_open: bool,
    git_folder: Callable[[], str],
) -> Coding:
    """Return what a run with tools that change files would change, and how that is checked. Blocks.

    `files_open`: it can read the files of that folder. `git_folder`: returns its git folder outside of the checkout, or
    empty; raises Refused where that may not be used.

    Raises:
        BadInput: Arguments are missing or invalid; lists all of them.
        Refused: No files can be changed here; says what to do.
    """
    _refuse_unconfined(role, sandbox)
    checks = _Checks()
    namespace = checks.run(lambda: _namespace(args, role))
    checks.run(lambda: _check_context(args, role))
    folder = checks.run(lambda: _repository(role, workspace, files_open=files_open))
    outside = checks.run(git_folder) if folder is not None else None
    accept = only(outside or "")
    state: CheckoutState | None = None
    if folder is not None and outside is not None:
        state = checks.run(lambda: _checkout(folder, home, accept))
    checkout = folder if state is not None else None
    verify = checks.run(lambda: _verify(args, role, checkout, home, accept))
    checks.raise_faults(role)
    assert namespace is not None and folder is not None and state is not None and verify is not None
    return Coding(
        repository=str(folder),
        branch=state.branch,
        base=state.head,
        identity=state.identity,
        uncommitted=state.uncommitted,
        namespace=namespace,
        verify=verify[0],
        verify_from=verify[1],
        setup=role.setup,
        notes=state.notes,
    )


class _Checks:
    """Checks of arguments, which keep their faults for the end, so that the caller hears of all of them at once."""

    def __init__(self) -> None:
        self._faults: list[AvaError] = []

    def run(self, check: Callable[[], T]) -> T | None:
        """Return what the check returns; None where it raised BadInput or Refused."""
        try:
            return check()
        except (BadInput, Refused) as fault:
            self._faults.append(fault)
            return None

    def raise_faults(self, role: Role) -> None:
        """Raise the fault, if there was one; BadInput with all of them, if there were several."""
        if len(self._faults) > 1:
            raise BadInput("\n".join([f"{named_role(role.name)} cannot start yet:", *map(str, self._faults)]))
        if self._faults:
            raise self._faults[0]


def _check_context(args: SpawnArgs, role: Role) -> None:
    if not (args.context or "").strip():
        raise BadInput(
            f"context: {named_role(role.name)} changes files and needs it; give related files, decisions"
            " and constraints"
        )


def _repository(role: Role, workspace: Workspace, *, files_open: bool) -> Path:
    if workspace.path is not None and files_open:
        return workspace.path
    why = workspace.why if workspace.path is None else "a role that reaches the web sees only the folder given there"
    raise Refused(f"workspace: {named_role(role.name)} changes files of a git repository; give its root ({why})")


def _checkout(folder: Path, home: Path, accept: Accept) -> CheckoutState:
    try:
        return inspect_checkout(folder, home, accept)
    except RolesError as error:
        raise Refused(f"workspace: {error}") from error


def refuse_coding(args: SpawnArgs, role: Role) -> None:
    """Refuse arguments that only a run that changes files takes. Raises BadInput if one of them was given."""
    for field in ("namespace", "verify"):
        if getattr(args, field) is not None:
            with_these = "with these tools " if changes_files(role.tools) else ""
            raise BadInput(
                f"{field}: {with_these}{named_role(role.name)} changes no files; leave it out, or use role coder"
            )


def worktree_spec(run_id: str, config: RunConfig) -> WorktreeSpec:
    coding = config.coding
    assert coding is not None, "the run changes files"
    return WorktreeSpec(
        run_id=run_id,
        repository=Path(coding.repository),
        base=coding.base,
        identity=coding.identity,
        namespace=coding.namespace,
        verify=coding.verify,
        setup=coding.setup,
        carry=parse_role(config.role_text, config.role_source, config.role).carry,
        git_folder=config.git_folder,
    )


def _refuse_unconfined(role: Role, sandbox: Sandbox | Unavailable | None) -> None:
    """Refuse where the model's code would run without a sandbox, with access to all of the person's files."""
    changing = [name for name, spec in tool_specs().items() if spec.edits]
    without = f"with blocked_tools {changing} it only reads" if role.name != "coder" else "use code_reviewer"
    if isinstance(sandbox, Unavailable):
        raise Refused(
            f"{named_role(role.name)} changes files, and what it writes runs when it is verified, which"
            f" cannot be confined here: {sandbox.why}; {sandbox.what_to_do}, or {without}"
        )
    if sandbox is not None and sandbox.kind == "none":
        raise Refused(
            f"{named_role(role.name)} changes files, and what it writes runs when it is verified, which"
            " nothing confines here"
            f' (sandbox.mode = "none"); set sandbox.mode to "auto", or {without}'
        )


def _namespace(args: SpawnArgs, role: Role) -> tuple[str, ...]:
    if not args.namespace:
        raise BadInput(
            f"namespace: {named_role(role.name)} changes files and needs it; give the files or folders"
            " that it may change, relative"
            ' to the root of the repository, such as ["src/parser", "tests"]'
        )
    try:
        return namespace_of(args.namespace)
    except RolesError as error:
        raise BadInput(f"namespace: {error}") from error


def _verify(args: SpawnArgs, role: Role, repository: Path | None, home: Path, accept: Accept) -> tuple[str, str]:
    """Return the verify command, and where it is from: the call, the role file, or the project."""
    if args.verify is not None:
        try:
            return command_line(args.verify.strip()), "given with the call"
        except ValueError as error:
            raise BadInput(f"verify: it {error}") from error
    if role.verify is not None:
        return role.verify, "from the role file"
    if repository is None:
        raise BadInput("verify: give the command line that its work must pass, unless the repository itself says it")
    try:
        commands = find_verify_commands(repository, home, accept)
    except RolesError as error:
        raise Refused(f"workspace: {error}") from error
    if len(commands) == 1:
        return commands[0].command, f"found: {commands[0].why}"
    if commands:
        choices = " or ".join(f"`{each.command}` ({each.why})" for each in commands)
        raise BadInput(f"verify: {repository} may be verified by {choices}; give the one that decides")
    raise BadInput(
        f"verify: nothing in {repository} says how it is tested; give the command line that its work must pass, or"
        " `true` if there is nothing to check"
    )

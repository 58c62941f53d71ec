"""Access: the session of a host connection, and the runs that belong to its user."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import unquote, urlsplit

from ava_audit.events import CancelledBy, Channel, Who
from ava_audit.rows import QUEUED, RUNNING, RunRow
from ava_audit.units import now_us
from ava_audit.view import View, loads
from ava_server.approval.decide import FoldedScreen, approval_needs
from ava_server.approval.requests import WAIT_LIMIT_S
from ava_server.config.tokens import Scope
from ava_server.core.errors import AvaError, BadInput, Refused, with_advice
from ava_server.core.ids import AGENT, parse_id, parse_run_id
from ava_server.hosts import launching
from ava_server.hosts.clients import ConnectedHost, client_of
from ava_server.runs.asking.pending_questions import OpenQuestions
from ava_server.runs.record.claims import plan_waits_for_resume, waits_for_resume
from ava_server.runs.record.lifecycle import awaited

if TYPE_CHECKING:
    from ava_server.approval.start_form import PageOpener, Person, ProposalLinks
    from ava_server.config.settings import Policy
    from ava_server.config.tokens import Token
    from ava_server.render.run_view import Processes
    from ava_server.service.runtime import Runtime


@dataclass
class Session:
    """A host connection.

    Attributes:
        transport: `stdio`, `memory`, `http`, `terminal` or `browser`.
        channel: The channel of this session's decisions; only a person's own channel counts as a person's decision.
        pin_given: This session has the approval PIN, or a token with the scope approve, and may decide under the
            policy `human`.
        forms: The client declares that it can show Ava's own question to a person.
        url: The server's address; only over HTTP.
        unanswered: Questions of runs that its person has closed or not seen: they are not asked again.
        opened: The hashes of questions whose page its client has opened: none is opened twice.
        mentioned: Runs whose end, more than an hour ago, an answer of this session has mentioned.
        seen: What each run looked like at the last poll: a poll without news is not logged.
        admin: It is the data root's owner at a terminal, who may see, cancel and resume the runs of all users.
        steps_file: The file of a person's command that has the steps of a plan.
    """

    user: str
    transport: str
    id: str = field(default_factory=lambda: f"sess-{secrets.token_hex(6)}")
    client: str | None = None
    client_version: str | None = None
    forms: bool = False
    protocol: str | None = None
    roots: tuple[str, ...] = ()
    url: str | None = None
    channel: Channel = "host_call"
    by: CancelledBy = "model"
    pin_given: bool = False
    token: Token | None = None
    started: bool = False
    unanswered: set[str] = field(default_factory=set[str])
    opened: set[str] = field(default_factory=set[str])
    mentioned: set[str] = field(default_factory=set[str])
    seen: dict[str, tuple[object, ...]] = field(default_factory=dict[str, tuple[object, ...]])
    admin: bool = False
    steps_file: str | None = None

    @property
    def remote(self) -> bool:
        """Whether it comes from another machine, so that this machine's folders and keys are not its user's."""
        return self.transport == "http"

    @property
    def folders(self) -> tuple[str, ...] | None:
        """The folders that the client named; None on another machine."""
        return None if self.remote else self.roots

    @property
    def audits(self) -> bool:
        """Whether it may read what belongs to other users."""
        return self.administers or (self.token is not None and self.token.reads_all)

    @property
    def administers(self) -> bool:
        """Whether it may cancel and resume what belongs to other users."""
        return self.admin or (self.token is not None and "admin" in self.token.scopes)

    @property
    def wait_s(self) -> float:
        """Seconds that a call of this session may wait for a run."""
        if self.transport == "terminal":
            return WAIT_LIMIT_S
        return client_of(self.client, self.client_version).wait_s or WAIT_LIMIT_S

    @property
    def belongs_to_person(self) -> bool:
        """Whether a person decides in it, not a host; then its folders say nothing about where a run was proposed."""
        return self.transport in ("terminal", "browser") or self.channel in ("http", "browser")

    @property
    def through(self) -> ConnectedHost | None:
        """The connection through which its host approves; None for a person's own terminal or browser."""
        if self.channel != "host_call" or self.transport == "terminal":
            return None
        return ConnectedHost(self.client, self.client_version, self.forms)

    def may(self, scope: Scope) -> bool:
        """Tell whether it has a scope; on this machine everything is allowed."""
        if not self.remote:
            return True
        scopes = self.token.scopes if self.token is not None else ()
        if self.channel == "http":  # a person who decides, and does nothing else
            return "approve" in scopes
        if self.channel == "browser" and scope == "spawn":  # who may start a run may also end it and write to it
            return not {"spawn", "approve"}.isdisjoint(scopes)
        return scope in scopes

    def scope_for(self, decision: Literal["approve", "reject"]) -> Scope:
        """Return what a decision on a proposal takes: on a page a token with the scope spawn may only reject."""
        if decision == "approve" and self.channel == "browser":
            return "approve"
        return "spawn"

    @property
    def who(self) -> Who:
        """The orchestrator of this session, as the log names it."""
        return Who(self.id, AGENT, self.user)


_COMMANDS = {
    "check_subagent without an id lists them": "`ava logs --type spawn` lists all that were proposed",
    "call check_subagent without an id for what waits": "`ava status` shows what waits",
    "call check_subagent with that id": "`ava show` with that id shows it",
    "ask on with spawn_subagent and context_from": "ask on with `ava run --context-from`",
    "again with spawn_subagent": "again with `ava run`",
    "a new proposal with spawn_subagent": "a new proposal with `ava run`",
}
"""What a person at a terminal does instead of a model's call."""


class Access:
    """The runs of a session's user; those of other users do not exist for it."""

    def __init__(self, runtime: Runtime, session: Session) -> None:
        self.runtime = runtime
        self.session = session
        self.store = runtime.store

    async def refuse_without_pin(self, ids: Sequence[str], why: str, *, of: str | None = None) -> None:
        """Refuse a decision with the text `why`, where only the approval PIN may decide and this session lacks it.

        Raises Refused, or ConfigError as `needs_pin` does.
        """
        if await self.needs_pin(ids, of):
            raise Refused(why)

    async def needs_pin(self, ids: Sequence[str], of: str | None = None) -> bool:
        """Tell whether only the approval PIN may decide on these proposals or runs, and this session lacks it.

        The policy under which they were proposed counts, and that of a run's user (`of`). Raises ConfigError: it is not
        known whether there is a PIN.
        """
        users = self.session.user, of or self.session.user
        # An unreadable PIN blocks also where it was given before.
        policy = await self.runtime.policy_on(ids, *users, through=self.session.through)
        host_may_decide = approval_needs("host", policy).nothing
        return not host_may_decide and not self.session.pin_given

    def refuse_without(self, scope: Scope, *, admin: bool = False) -> None:
        """Refuse a call whose scope the session's token lacks.

        An auditor may read without it. With `admin`, an administrator needs no other scope.
        """
        if self.session.may(scope):
            return
        if scope == "read" and self.session.audits:
            return
        if admin and self.session.administers:
            return
        token = self.session.token
        scopes = ", ".join(token.scopes) if token is not None else "none"
        raise Refused(
            f"the token lacks the scope {scope} (it has {scopes}); a person on the server creates another one:"
            f" ava token create NAME --user {self.session.user} --scope {scope}"
        )

    async def run(self, text: str, field: str, *, reading: bool = False, steering: bool = False) -> RunRow:
        """Return the run that an id of it or of its proposal names.

        It is this user's; `reading` lets an auditor have those of others, `steering` an administrator. `field` names
        the argument in an error.

        Raises BadInput if there is none; runs of other users do not exist for this one.
        """
        return await self.store.look(lambda view: self.run_in(view, text, field, reading=reading, steering=steering))

    def run_in(self, view: View, text: str, field: str, *, reading: bool = False, steering: bool = False) -> RunRow:
        """Do what `run` does, in one state of the log."""
        if text.strip().lower().startswith("p-"):  # a proposal's id also names its run
            id = parse_id("pending_id", text, field)
            proposal = view.proposal(id)
            run_id = proposal.run_id if proposal is not None else None
        else:
            id = run_id = parse_run_id(text, field)
        run = view.run(run_id) if run_id is not None else None
        if run is None or not self.owns(run, reading=reading, steering=steering):
            unknown = f"no subagent {id} of yours is known; check_subagent without an id lists them"
            raise BadInput(f"{field}: {self.adapt_text(unknown)}")
        return run

    def owns(self, run: RunRow, *, reading: bool = False, steering: bool = False) -> bool:
        """Tell whether a run exists for this session; `reading` and `steering` are as for `run`."""
        if run.user_id == self.session.user:
            return True
        if reading and self.session.audits:
            return True
        return steering and self.session.administers

    def is_here(self, run: RunRow) -> bool:
        """Tell whether a run is this session's or works in its host's folders; its news comes first."""
        if run.session_id == self.session.id:
            return True
        workspaces = _workspaces_of(run)
        if not workspaces or self.session.remote:  # the folders of another machine
            return False
        folders = [Path(unquote(urlsplit(root).path)) for root in self.session.roots]
        try:
            folders = folders or [Path.cwd()]
        except OSError:  # it was removed
            return False
        return any(workspace.is_relative_to(folder) for workspace in workspaces for folder in folders)

    async def pending_id(self, text: str) -> str:
        """Return the id of a proposal, given that or the id of its run. Raises BadInput if it is neither."""
        if not text.strip().lower().startswith(("s-", "g-")):
            return parse_id("pending_id", text)
        return (await self.run(text, "pending_ids")).pending_id

    async def rows(self, run_ids: list[str]) -> list[RunRow]:
        rows = await self.store.look(lambda view: [view.run(run_id) for run_id in run_ids])
        return [row for row in rows if row is not None]

    async def plan(self, group_id: str, *, reading: bool = False, steering: bool = False) -> RunRow:
        """Return the run of a plan; whose it may be, see `run`. Raises BadInput if there is none."""
        return await self.store.read(lambda view: self.plan_in(view, group_id, reading=reading, steering=steering))

    def plan_in(self, view: View, group_id: str, *, reading: bool = False, steering: bool = False) -> RunRow:
        """Do what `plan` does, in one state of the log."""
        plan_id = parse_id("group_id", group_id)
        plan = view.run(plan_id)
        if plan is None or not self.owns(plan, reading=reading, steering=steering):
            raise BadInput(
                f"group_id: no plan {plan_id} of yours is known; a plan comes from spawn_subagent with `steps`, or from"
                " confirm_spawn of two or more"
            )
        return plan

    def news(self, view: View, processes: Processes | None = None) -> News:
        """Return which of the user's runs each answer mentions. Blocking."""
        user = self.session.user
        at_us = now_us()
        alive = (processes or self.runtime.processes_now()).alive
        unended = view.runs(user=user, states=(QUEUED,), paused_at_us=at_us)
        if not all(map(alive, view.owners(user))):
            unended += view.runs(user=user, states=(RUNNING,))

        asking: list[RunRow] = []
        interrupted: dict[str, RunRow] = {}
        for row in unended:
            if row.waits_for == "owner":
                plan = view.run(row.plan_id or "")
                if plan is not None and plan_waits_for_resume(view, plan):  # to resume it resumes all of its runs
                    row = plan
                interrupted[row.id] = row
                continue
            if awaited(row, at_us):
                asking.append(row)
            is_lost = row.state == RUNNING and row.instance and not alive(row.instance)
            if is_lost and waits_for_resume(view, row, at_us):
                interrupted[row.id] = row
        return News(
            at_us=at_us,
            asking=OpenQuestions(view, at_us).first_of_each(asking),
            interrupted=list(interrupted.values()),
            ended=view.unfetched(user),
        )

    def explain(self, error: Exception) -> str:
        """Return an error's text; where a key would help, with how this host takes one."""
        text = str(error)
        if isinstance(error, AvaError) and error.needs_key:
            text = with_advice(text, self.key_advice(error.needs_key))
        if isinstance(error, BadInput):  # it repeats only the call
            return text
        return self.adapt_text(text)

    def screen_for_log(self, screen: FoldedScreen) -> FoldedScreen:
        """Return what was on a person's screen as the log may have it: shortened, and without secrets."""
        return FoldedScreen(self.redact(screen.text), self.redact(screen.folded)).cut()

    def adapt_text(self, text: str) -> str:
        """Return one of Ava's texts for this session, with commands that the person can paste.

        A user on another machine does not learn where the server keeps its files, nor of commands that only run there.
        """
        if self.session.remote:
            return self._text_for_remote(text)
        if self.session.transport == "terminal":  # the person has just typed one, and has no tools
            for tool, command in _COMMANDS.items():
                text = text.replace(tool, command)
            return text
        return re.sub(r"`ava (?=(?:approve|reject|resume|send|show) |ui`)", lambda _match: f"`{self._ava} ", text)

    def _text_for_remote(self, text: str) -> str:
        text = text.replace(str(self.runtime.settings.data_root), "the data root")
        text = re.sub(r", or `ava resume [^`]*`", "", text)
        text = text.replace("in a terminal, with `ava resume ", "in a terminal on the server, with `ava resume ")
        url = self.session.url
        text = text.replace("with `ava ui`", f"at {url or 'the address of this server'}")
        command = f"`ava --url {url or 'URL'} "
        return re.sub(r"`ava (?=(?:approve|reject) )", lambda _match: command, text)

    @cached_property
    def _ava(self) -> str:
        """The command for `ava` that works in any terminal."""
        return launching.terminal_command(self.runtime.settings.data_root)

    def key_advice(self, provider: str) -> str:
        """Return how a person gives this server a provider's key in this session's host."""
        return launching.key_advice(provider, self.session.client, remote=self.session.remote)

    def redact(self, text: str) -> str:
        return self.runtime.credentials.redactor.redact(text)[0]

    def refuse_keys(self, arguments: Mapping[str, Any]) -> None:
        """Raise BadInput for arguments with what looks like a key: neither a model nor the log may get one."""
        for path, text in _texts_in(arguments):
            shapes = self.runtime.credentials.redactor.find_shapes(text)
            if shapes:
                raise BadInput(
                    f"{path[:60]}: it contains what looks like a key ({shapes[0].name}), and neither the subagent,"
                    " its provider nor the log may have it: a person can store it with `ava secret set NAME --for"
                    " HOST`; then write {{secret:NAME}} in its place, for a role whose file lists NAME under secrets"
                )

    def wake(self, run_id: str) -> None:
        self.runtime.manager.adopted.add(run_id)
        self.runtime.manager.wake()

    def agent_of(self, run: RunRow) -> Who:
        """Return a run as the log names it, under this session."""
        return Who(self.session.id, run.id, run.user_id, parent_agent_id=AGENT)


def _workspaces_of(run: RunRow) -> list[Path]:
    """Return the folder that a run works in, or those of the steps of a plan."""
    config = loads(run.config)
    configs = [config]
    for step in config.get("steps") or ():
        configs.append(step["config"])
    return [Path(each["workspace"]) for each in configs if each.get("workspace") is not None]


def _texts_in(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and text of each string in arguments, including the names of arguments."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[Any, Any]", value).items():
            place = f"{path} (a name in it)" if path else "an argument's name"
            yield place, str(name)
            yield from _texts_in(item, path or str(name))
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _texts_in(item, path)


class Operations:
    """Base of what handles the tools for one session."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._runtime = access.runtime
        self._store = access.store
        self._session = access.session


@dataclass(frozen=True)
class News:
    """Runs that an answer mentions, whatever was asked."""

    at_us: int
    asking: list[RunRow]
    interrupted: list[RunRow]
    ended: list[RunRow]


Progress = Callable[[str], Awaitable[None]]
"""Tells the host that a call still waits, with a status line."""


async def ignore_progress(_line: str) -> None:
    """Take a line of progress and show nothing: screens watch the log."""


Answerer = Literal["host", "client", "page", "link", "terminal"]
"""Who answers a proposal.

`host`: its model with a call, once the person has agreed in the conversation. `client`: the person, in a form of the
client. `page`, `link`, `terminal`: whoever has the PIN, on a page that the client opens, on one whose link the model
shows, or only in a terminal.
"""


@dataclass(frozen=True)
class Asking:
    """Who can answer a proposal through the client of one call, and when.

    Attributes:
        person: Who can be asked in the middle of the call; None where the client cannot ask.
        pages: Opens a page for that person; None where the client cannot.
        links: Gives that person links to pages; None where no model shows them.
        as_task: The client takes an approval as a task, and gives its model the result when the run ends.
        proposal: The proposal that this call made before it ended with a question that is answered now.
    """

    person: Person | None = None
    pages: PageOpener | None = None
    links: ProposalLinks | None = None
    as_task: bool = False
    proposal: str | None = None

    def answerer(self, policy: Policy) -> Answerer:
        if not approval_needs("host", policy).nothing:
            if self.pages is not None:
                return "page"
            return "terminal" if self.links is None else "link"
        return "host" if self.person is None else "client"


NOBODY = Asking()
"""The client can ask nobody."""

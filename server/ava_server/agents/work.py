"""Does the work of a run with another coding agent: starts it in the sandbox, gives it its turns, takes its result.

The run's shell (its claim, time, cancelling, a coder's worktree, the ending) is `runs/turn/loop.py`. Here a turn is one
prompt of the agent; what it asks of its model in that turn passes the gateway.

Behind the gateway, an MCP server bound to the run has Ava's tools for the agent. Every call goes through the run's own
`ToolCalls`: recorded before it starts, redacted, wrapped as untrusted. Only that counts as a source of quotes.
"""

from __future__ import annotations

import json
import logging
import math
import re
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.metadata import version
from itertools import count
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from ava_audit.errors import AuditError
from ava_audit.events import AgentNote, LastTurn, ToolCall, UserMessage, WorkChecked
from ava_roles.errors import RolesError
from ava_roles.sandbox.path_access import make_folders
from ava_roles.wrap import one_line
from ava_server.agents.acp import AcpAgent, AgentFailed, PermissionRequest, TurnFailed, Update
from ava_server.agents.bodies import Bodies, own_id
from ava_server.agents.command import API_TYPES, PORT, start_command
from ava_server.agents.command import check_agent as check_agent
from ava_server.agents.gateway import Gateway, serving
from ava_server.agents.metering import CountedBounds, RunMeter
from ava_server.agents.unpaid import OWN_CALL, RESULT_BYTES, UnpaidBytes, earlier_facts, note_bytes, text_bytes
from ava_server.core.untrusted import hide_apart
from ava_server.models.base import ToolUse
from ava_server.runs.coder.coding import learn_private_keys
from ava_server.runs.record.invalid_answers import REPAIRS
from ava_server.runs.record.result import RunResult
from ava_server.runs.record.submit import NAME as SUBMIT
from ava_server.runs.record.submit import SubmitArgs, accept

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from starlette.types import Receive, Scope, Send

    from ava_audit.view import View
    from ava_server.config.agents import AgentSpec
    from ava_server.runs.coder.coding import CodingWork
    from ava_server.runs.turn.context import ActiveRun, AgentParts
    from ava_server.runs.turn.tool_calls import ToolCalls

log = logging.getLogger("ava.agents")

SAID_CHARS = 400_000
"""Characters of an agent's words in a turn that are kept."""
MOST_TOLD = 10_000
OBEY_S = 2.0
"""Seconds in which an agent has to stop after a cancel; then it is not waited for."""
RULES = (
    "You do this alone: nobody answers questions, and nothing asks for permission. You have no network; tools of the"
    " MCP server `ava`, where you have them, read the web. When the work is done, hand it over with `submit_result` of"
    " that server, once; without it, your last message is taken as the result."
)
AGAIN = "You were interrupted, and go on where you were. Look at what is there before you repeat anything."
LAST_WORDS = (
    "This is your last turn: {cap} is reached. Hand over what you have with `submit_result` now, in one call, and say"
    " in its caveats what is missing. Do nothing else."
)
UNFINISHED = "You have not handed over anything. Call `submit_result` with what you have, or write the result."
NO_TOOL = "This is the agent's last message: it did not call submit_result."
BY_LAST_MESSAGE = "the agent ended its turn, and its last message is the result"
SHOWN_PATHS, SHOWN_PATH_CHARS = 20, 300
"""Paths of a request for permission that the log has, and characters of each."""
_OF_OWN_SERVER = re.compile(r"mcp__ava__|ava_|\w+ \(ava MCP Server\)")
"""How agents call a tool of Ava's where they ask for permission; the last is Gemini CLI's way."""
_SAFE_KINDS = frozenset(("read", "search", "think", "execute"))
_CHANGES = frozenset(("edit", "delete", "move"))


def answered_models(spec: AgentSpec, model_id: str, name: str) -> dict[str, str]:
    """Return the models that an agent may ask, each with the one that answers: the run's, `name` in full."""
    return dict.fromkeys((*spec.models, model_id, *name.split(":")[1:]), model_id)


def _cause(error: BaseException) -> BaseException:
    """Return an exception out of the groups that task groups wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        inner = cast("tuple[BaseException, ...]", error.exceptions)  # pyright: ignore[reportUnknownMemberType]
        if len(inner) != 1:
            break
        error = inner[0]
    return cast("BaseException", error)


class AgentWork:
    """The work of one run."""

    def __init__(self, run: ActiveRun, calls: ToolCalls, coding: CodingWork | None) -> None:
        assert run.context.agent is not None
        self._run = run
        self._log = run.log
        self._parts: AgentParts = run.context.agent
        self._coding = coding
        self._place = calls.place if coding is None else coding.place(calls.place)
        self._calls = calls
        self._stop = anyio.Event()
        self._unpaid = UnpaidBytes()
        self._tools = RunTools(run, calls, self._interrupt, self._news, self._unpaid)
        self._meter = RunMeter(
            run,
            CountedBounds(),
            self._tools.names,
            self._interrupt,
            lambda: self._tools.submitted is not None,
            self._unpaid,
        )
        self._messages_read_to = run.log.history.last_message_seq
        self._told: set[str] = set()
        self._noted: set[str] = set()
        self._said: list[str] = []
        self._said_chars = 0
        self._usage: dict[str, Any] = {}
        self._folders: tuple[PurePosixPath, ...] = ()
        self._tries = 0

    def _interrupt(self) -> None:
        self._stop.set()

    async def work(self, work_s: float, left_s: float, cap: LastTurn, plan_s: float = math.inf) -> RunResult:
        """Return how the run ends. After `work_s` seconds, or at a cap, the agent only hands over what it has.

        `plan_s` is what is left of the plan's time, which goes on while the run's own clock stands still.
        """
        title, began, clock = self._parts.spec.title, anyio.current_time(), self._run.clock
        wrap_s = left_s - work_s
        try:
            result: RunResult | None = None
            await self._recall()
            with clock.limit(left_s, plan_s):  # the start and the hand-over are in the time
                async with self._opened() as (agent, resumed):
                    took = anyio.current_time() - began
                    text = AGAIN
                    if not resumed:
                        text = self._first_message()
                    with clock.limit(max(work_s - took, 0.0), max(plan_s - took - wrap_s, 0.0)) as turns:
                        result = await self._turns(agent, text)
                    if turns.cancelled_caught:
                        result = await self._wrap_up(agent, cap)
            if self._usage:
                shown = {name: value for name, value in self._usage.items() if isinstance(value, int | float)}
                await self._log.record(AgentNote(kind="reported", text="its own count of usage", detail=shown))
            return result or RunResult(cap.status, cap.reason)
        except Exception as error:
            if self._meter.error is not None:
                raise self._meter.error from error
            cause = _cause(error)
            if not isinstance(cause, AgentFailed | RolesError):
                raise cause from error
            return RunResult(
                "error", f"{title} could not go on", error_kind="agent", error_message=self._hide(str(cause)),
                what_to_do=f"See `ava agents`, and propose it again; or without {title}: runner: in-process.",
            )  # fmt: skip

    async def _recall(self) -> None:
        """Take over what earlier owners of the run have put into its log."""
        if self._log.fence.generation > 1:
            run_id = self._log.run.id
            facts = await self._log.read(lambda view: earlier_facts(view, run_id))
            await anyio.to_thread.run_sync(self._unpaid.add_earlier, facts)
            self._meter.recall(facts)

    # -- starting -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[tuple[AcpAgent, bool]]:
        """Start the gateway and the agent; yield it, and whether its session is an old one. Leaving ends both."""
        run, parts, spec = self._run, self._parts, self._parts.spec
        self._run.say(f"Starting {spec.title}")
        bench = self._place.bench
        assert bench is not None, "a run with another agent has a place for its commands"
        secret = secrets.token_urlsafe(24)
        model = parts.model
        names = answered_models(spec, model.model_id, self._run.config.model)
        bodies = Bodies(parts.wire, names, frozenset(spec.off), run.context.redactor)
        gateway = Gateway(model, bodies, self._meter, secret, self._tools)
        url = f"http://127.0.0.1:{PORT}"
        socket = parts.home.parent / "gateway"
        await anyio.to_thread.run_sync(make_folders, socket.parent, socket.parent.parent.parent)
        async with self._tools.serving(), serving(gateway, socket):
            if self._coding is None and self._place.files is not None:  # those of a worktree are known already
                await learn_private_keys(run.context.redactor, self._place.files, self._log)
            made, _new = await bench.ready()
            scratch, project = parts.home.parent, parts.project
            command = await start_command(spec, parts.wire, model.model_id, secret, made, scratch, parts.host, project)
            self._folders = (command.folder, *(bind.target for bind in command.binds if bind.writable))
            async with (
                parts.sandbox.start(command) as pipes,
                AcpAgent(spec.title, pipes, self._update, self._permit, self._hide) as agent,
            ):
                await agent.initialize()
                if agent.takes_provider and spec.providers:
                    await agent.set_provider(f"{url}/v1", secret, API_TYPES[parts.wire])
                tools = (f"{url}/mcp", secret) if agent.takes_tools else None
                earlier = await self._log.read(self._session)
                if earlier is None:
                    session = await agent.open_session(str(command.folder), tools)
                    called = f"{agent.name} {agent.version}".strip() or spec.title
                    note = AgentNote(kind="session", text=called, detail={"session": session, "runner": spec.runner})
                    await self._log.record(note)
                else:
                    await agent.resume_session(earlier, str(command.folder), tools)
                yield agent, earlier is not None

    def _session(self, view: View) -> str | None:
        """Return the session that an earlier process began, if this run has been interrupted."""
        for entry in reversed(view.entries(self._log.run.id, 0, ("AgentNote",))):
            note = entry.fact
            if isinstance(note, AgentNote) and note.kind == "session":
                return str(note.detail.get("session"))
        return None

    def _first_message(self) -> str:
        """Return what the agent is told first: the prompt, its rules, its worktree and the task."""
        history = self._log.history
        prefix = history.prefix or self._run.context.started
        parts = [prefix.system, RULES]
        if history.worktree is not None:
            parts.append(history.worktree.told)
        parts.append(history.task_text)
        return "\n\n".join(filter(None, parts))

    # -- turns --------------------------------------------------------------------------------------------------------

    async def _turns(self, agent: AcpAgent, text: str) -> RunResult:
        while True:
            stop = await self._turn(agent, text)
            if self._meter.error is not None:
                raise self._meter.error
            if self._tools.submitted is None and self._meter.cap is not None:
                return await self._wrap_up(agent, self._meter.cap)
            after = await self._after(stop, await self._news())
            if isinstance(after, RunResult):
                return after
            text = after

    async def _turn(self, agent: AcpAgent, text: str) -> str:
        """Give the agent a turn; return why it stopped. It is stopped at a cap, and once it has handed over."""
        self._stop, self._said, self._said_chars = anyio.Event(), [], 0
        self._run.say(f"{self._parts.spec.title} is working")
        stop = "cancelled"
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as waiting:

                async def interrupt() -> None:
                    await self._stop.wait()
                    await agent.cancel()
                    await anyio.sleep(OBEY_S)
                    waiting.cancel()

                tasks.start_soon(interrupt)
                try:
                    stop, usage = await agent.prompt(text)
                    self._usage = {**self._usage, **usage}
                except TurnFailed:  # of a model call that was refused, or has failed
                    if self._meter.cap is None and self._meter.fault is None and self._meter.error is None:
                        raise
            tasks.cancel_scope.cancel()
        bench = self._place.bench
        if bench is not None and self._coding is not None:
            await bench.after_command()
        await self._note_unreported()
        return stop

    async def _after(self, stop: str, news: str) -> RunResult | str:
        if self._tools.submitted is not None:
            return await self._checked(*self._tools.submitted)
        if news:
            return news
        said = "".join(self._said).strip() or self._meter.last_text.strip()
        text = await hide_apart(partial(self._hide, said), len(said))
        fault = self._meter.fault
        if fault is not None:  # its words are then about that
            return RunResult(
                "error", "the agent's model failed", error_kind=fault.kind, error_message=self._hide(str(fault)),
                what_to_do=fault.what_to_do,
            )  # fmt: skip
        if stop == "refusal":
            return self._error("the agent's model refused the task", text, "Say in the task why it is legitimate.")
        if stop == "end_turn" and text and self._run.config.output_schema is None:
            first = next(line for line in text.splitlines() if line.strip())
            return await self._checked(SubmitArgs(summary=first[:500], output=text, caveats=[NO_TOOL]), None)
        self._tries += 1
        if self._tries > REPAIRS:
            return self._error("the agent handed nothing over", text, "Ask again with a narrower task.")
        return UNFINISHED

    def _error(self, reason: str, text: str, advice: str) -> RunResult:
        message = self._hide(text[:4_000])
        return RunResult("error", reason, error_kind="agent", error_message=message, what_to_do=advice)

    async def _checked(self, submitted: SubmitArgs, call_id: str | None) -> RunResult | str:
        """Accept a result, or return what has to be fixed first: for a coder, what counts is what passes."""
        if self._coding is not None:
            self._log.history.check = None  # of what it handed over before
            checked = await self._coding.check(call_id)
            if isinstance(checked, RunResult):
                return checked
            assert isinstance(checked, WorkChecked)
            if not checked.verify.passed:
                self._tools.submitted = None
                ending = self._coding.ending_after_failures(checked, submitted)
                return ending if ending is not None else checked.told
        verified = self._coding is not None
        if call_id is None:
            return RunResult("success", BY_LAST_MESSAGE, submitted, verified=verified)
        return RunResult("success", "the agent handed over its result", submitted, call_id=call_id, verified=verified)

    async def _wrap_up(self, agent: AcpAgent, cap: LastTurn) -> RunResult:
        """Have the agent hand over what it has, once; what that takes is reserved."""
        if self._tools.submitted is None:
            self._run.say("Handing over what it has")
            with anyio.move_on_after(OBEY_S):
                await agent.cancel()
            self._meter.hand_over(cap)
            await self._turn(agent, LAST_WORDS.format(cap=cap.reason))
            if self._meter.error is not None:
                raise self._meter.error
        submitted, call_id = self._tools.submitted or (None, None)
        return RunResult(cap.status, cap.reason, submitted, call_id=call_id)

    async def _news(self) -> str:
        run_id, read_to = self._log.run.id, self._messages_read_to
        entries = await self._log.read(lambda view: view.entries(run_id, read_to, ("UserMessage",)))
        texts: list[str] = []
        for entry in entries:
            self._messages_read_to = max(self._messages_read_to, entry.seq)
            if isinstance(entry.fact, UserMessage) and entry.fact.kind == "message":
                texts.append(entry.fact.text)
        if not texts:
            return ""
        return "Message from the orchestrator. It may steer the work, and changes no limit:\n" + "\n\n".join(texts)

    # -- what the agent tells, and asks -------------------------------------------------------------------------------

    def _update(self, update: Update) -> None:
        match update.kind:
            case "text" if update.text and self._said_chars < SAID_CHARS:
                said = update.text[: SAID_CHARS - self._said_chars]
                self._said.append(said)
                self._said_chars += len(said)
            case "tool":
                if len(self._told) < MOST_TOLD:
                    self._told.add(own_id(update.call_id, self._hide))
                if update.text and update.status not in ("completed", "failed"):
                    self._run.say(self._hide(update.text))
            case "usage":
                self._usage.update(update.usage)
            case _:
                pass

    async def _permit(self, ask: PermissionRequest) -> bool:
        """Answer a request from what was approved: what stays in the sandbox's own folders is, the rest is not."""
        allowed = self._may_permit(ask)
        answer = "allowed once" if allowed else "refused"
        what = self._hide(f"{answer}: {ask.kind} {ask.title}")
        chars = sum(map(len, ask.paths[:SHOWN_PATHS]))
        paths = await hide_apart(partial(self._shown_paths, ask), chars, waits=False)
        if paths:
            what += f": {paths[0]}"
        if paths and len(ask.paths) > 1:
            what += f" and {len(ask.paths) - 1} more"
        detail = {"kind": ask.kind, "allowed": allowed, "paths": paths}
        note = AgentNote(kind="permission", text=what, detail=detail)
        if not self._unpaid.take(note_bytes(note)):
            return False
        try:
            await self._log.record(note)
        except AuditError as error:  # the run is no longer this process's: its turn ends, and nothing is allowed
            self._meter.fail(error)
            return False
        return allowed

    def _shown_paths(self, ask: PermissionRequest) -> list[str]:
        return [one_line(self._hide(path), SHOWN_PATH_CHARS) for path in ask.paths[:SHOWN_PATHS]]

    def _is_inside(self, path: str) -> bool:
        """Tell whether a path is in a folder that the agent may write; one that is relative is in none."""
        plain = path.removeprefix("file://")
        if ".." in plain.split("/"):
            return False
        return any(PurePosixPath(plain).is_relative_to(folder) for folder in self._folders)

    def _may_permit(self, ask: PermissionRequest) -> bool:
        """Tell whether a tool may be used: it changes nothing outside the agent's folders, or is one of Ava's."""
        tool = ask.title.split("(")[0].strip()
        if tool in self._parts.spec.off:
            return False
        kind = ask.kind
        if ask.changes and kind not in _CHANGES:
            kind = "edit"
        if kind in _SAFE_KINDS:
            return True
        if kind in _CHANGES:
            return bool(ask.paths) and all(map(self._is_inside, ask.paths))
        if kind != "other" or _OF_OWN_SERVER.match(ask.title) is None:
            return False
        return self._meter.is_own(tool)

    async def _note_unreported(self) -> None:
        """Note the tool calls that have passed the gateway and that the agent has not told of."""
        reported = self._told | self._noted
        missing: dict[str, str] = {}
        for call_id, name in self._meter.called.items():
            if call_id not in reported and not self._meter.is_own(name):
                missing[call_id] = name
        self._noted |= missing.keys()
        if missing and self._meter.cap is None:
            counted: list[str] = []
            for name, times in Counter(missing.values()).items():
                counted.append(name if times == 1 else f"{name} × {times}")
            names = ", ".join(counted)
            text = await hide_apart(partial(self._hide, names), len(names), waits=False)
            await self._log.record(AgentNote(kind="unreported", text=text, detail={"calls": len(missing)}))

    def _hide(self, text: str) -> str:
        return self._run.context.redactor.redact(text)[0]


# -- tools ------------------------------------------------------------------------------------------------------------


HANDED = "Handed over. End your turn now; you are told if something has to be fixed."

MOST_REFUSED = 50  # calls beyond the run's cap that are on the record: they cost the agent nothing
AT_HAND = {"anthropic/alwaysLoad": True}
"""Claude Code otherwise has its model search for a tool before it can be called."""


class RunTools:
    """The tools of one run.

    `submitted` has what was handed over, and its call's id; `news` goes with the next result.
    """

    def __init__(
        self,
        run: ActiveRun,
        calls: ToolCalls,
        on_submit: Callable[[], None],
        news: Callable[[], Awaitable[str]],
        unpaid: UnpaidBytes,
    ) -> None:
        self._run = run
        self._calls = calls
        self._on_submit = on_submit
        self._news = news
        self._unpaid = unpaid
        self._numbers = count(1)
        prefix = run.log.history.prefix or run.context.started
        self._tools = [
            types.Tool(
                name=str(tool["name"]), description=tool["description"], input_schema=tool["parameters"], _meta=AT_HAND
            )
            for tool in prefix.tools
        ]
        self.names = frozenset(tool.name for tool in self._tools)
        self.submitted: tuple[SubmitArgs, str] | None = None
        server: Server[Any] = Server(
            "ava", version=version("ava-subagents"), on_list_tools=self._list, on_call_tool=self._call
        )
        self._manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)

    def serving(self) -> AbstractAsyncContextManager[None]:
        return self._manager.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: an ASGI application."""
        await self._manager.handle_request(scope, receive, send)

    async def _list(
        self, _ctx: ServerRequestContext[Any, Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self._tools)

    async def _call(
        self, _ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        args = params.arguments or {}
        number = next(self._numbers)
        if number > self._run.config.max_tool_calls + MOST_REFUSED:
            return _not_taken("far more calls than this run may make.")
        given = json.dumps(args, ensure_ascii=False)
        hands_over = params.name == SUBMIT
        room = len(params.name) + text_bytes(given) + RESULT_BYTES
        if not self._unpaid.take(room, hands_over=hands_over):
            return _not_taken(f"{self._unpaid.refusal}. Hand over what you have.")
        call_id = f"{OWN_CALL}{self._run.log.fence.generation}-{number}"
        call = ToolUse(call_id, params.name, args, given)
        text, failed = "", True
        try:
            text, failed = await (self._submit(call) if hands_over else self._other(call))
        finally:
            self._unpaid.give_back(RESULT_BYTES - text_bytes(text))
        news = await self._news()
        if news:
            text = f"{text}\n\n{news}"
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)

    async def _other(self, call: ToolUse) -> tuple[str, bool]:
        await self._calls.run((call,))
        result = self._run.log.history.results.get(call.call_id)
        if result is None:
            return ("The run is over.", True)
        return (result.output, not result.success)

    async def _submit(self, call: ToolUse) -> tuple[str, bool]:
        run = self._run
        hide = self._run.context.redactor.redact_json
        if self.submitted is not None:
            return HANDED, False
        history = run.log.history
        args = await hide_apart(partial(hide, dict(call.args or {})), len(call.raw_args))
        await run.log.record(ToolCall(tool=SUBMIT, args=args, call_id=call.call_id, turn=history.turn))
        accepted = await anyio.to_thread.run_sync(accept, call, run.config.output_schema, hide)
        if isinstance(accepted, str):
            await self._calls.refuse(call, accepted, unusable=True)
            history.drafts.append(dict(call.args or {}))
            return f"Refused: {accepted}", True
        self.submitted = accepted, call.call_id
        self._on_submit()
        return HANDED, False


def _not_taken(why: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=f"Not taken: {why}")], is_error=True)

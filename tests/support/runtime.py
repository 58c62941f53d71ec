"""A whole Ava on a data root of its own: the real house, the real tools, a real HTTP model server behind them.

    async with open_lab(tmp_path, [Say("", [("submit_result", {"summary": "done"})])]) as lab:
        run_id = await lab.start(task="look it up")
        answer = await lab.ended(run_id)

The model is reached as any user's is, by AVA_MODEL_BASE_URL. When a lab closes, everything that its model server
received is compared, byte for byte, with what the log alone says was sent (`check_requests`), and nothing may be
held in any budget for a run that has ended (`check_budgets`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
from mcp import Client
from mcp.client.extension import ClientExtension
from mcp.client.session import ElicitationFnT, MessageHandlerFnT
from mcp_types import CallToolResult, Implementation

from ava_audit.entries import Entry
from ava_audit.events import CostReserved, CostUpdate, Event, Fact, RunClaimed, SpawnProposed
from ava_audit.rows import RunRow
from ava_audit.store.store import Outcome, Store
from ava_audit.verify import verify
from ava_audit.view import View
from ava_server.approval.start_form import Person
from ava_server.config.settings import Settings, load_settings
from ava_server.mcp_server.server import build_server
from ava_server.models.factory import model_of
from ava_server.models.http_clients import ClientPool
from ava_server.models.model_choice import Choice
from ava_server.models.search_model import search_model, search_request
from ava_server.render.responses import Answer
from ava_server.run_config.config import RunConfig
from ava_server.runs.owner.mode import LOOKING, SERVER, Mode
from ava_server.runs.record.history import History, Recipe
from ava_server.service.access import Asking, Session, ignore_progress
from ava_server.service.runtime import Runtime, open_runtime
from ava_server.service.service import Service
from support.databases import write_config
from support.model_server import ModelServer, Received, Say, Script, run_model_server
from support.processes import end_started_pages

F = TypeVar("F", bound=Fact)

PRICED = """
[prices."custom:test"]
input = 3.0
output = 15.0
cache_read = 0.3
cache_write = 3.75
"""
"""Prices for the test's model; without them an endpoint on loopback is free."""

DONE = ("submit_result", {"summary": "all is said", "output": "the answer", "confidence": 0.5})
"""A result, as a model hands it over."""

USER = "somebody"


def hand_over(**more: Any) -> Say:
    """Return an answer that hands a result over."""
    return Say(calls=[(DONE[0], {**DONE[1], **more})])


def submit(output: Any = "the answer", summary: str = "all is said", **more: Any) -> Say:
    """Return an answer that hands this output over."""
    return Say(calls=[("submit_result", {"summary": summary, "output": output, **more})])


@dataclass
class Lab:
    """An open house, one session's desk in it, and the model server behind it."""

    runtime: Runtime
    service: Service
    session: Session
    server: ModelServer
    root: Path
    workspace: Path
    progress: list[str] = field(default_factory=list)

    @property
    def store(self) -> Store:
        """The log."""
        return self.runtime.store

    async def call(self, tool: str, **given: Any) -> Any:
        """Call a tool at the service; a refusal is an answer with status `failed`."""

        async def progress(line: str) -> None:
            self.progress.append(line)

        answer: Answer = await self.service.call(tool, given, progress)
        return answer

    async def call_as(self, user: str, tool: str, **given: Any) -> Any:
        """Call a tool as another user."""
        return await self.as_user(user).call(tool, given, ignore_progress)

    async def call_in(self, session: Session, tool: str, **given: Any) -> Any:
        """Call a tool in another session, such as a person's at a terminal."""
        return await Service(self.runtime, session).call(tool, given, ignore_progress)

    async def call_asking(self, person: Person, tool: str, **given: Any) -> Any:
        """Call a tool from a client that can ask this person in the middle of the call."""
        return await self.service.call(tool, given, ignore_progress, asking=Asking(person))

    async def check(self, run_id: str, **more: Any) -> Any:
        """Return what `check_subagent` says of one run."""
        return (await self.call("check_subagent", subagent_id=run_id, **more)).runs[0]

    async def propose(self, **more: Any) -> Any:
        """Propose a researcher that may read the workspace."""
        given = {"role": "researcher", "task": "What does it cost?", "workspace": str(self.workspace), **more}
        answer = await self.call("spawn_subagent", **given)
        assert answer.status == "awaiting_approval", answer.message
        return answer

    async def approve(self, *proposals: Any, last: str | None = None, **more: Any) -> Any:
        """Approve proposals by the call of a host, with their lines and `last` for the plan's."""
        lines = [proposal.approval_line for proposal in proposals] + ([last] if last else [])
        ids = [proposal.pending_id for proposal in proposals]
        return await self.call("confirm_spawn", pending_ids=ids, approving=lines, **more)

    async def start(self, **more: Any) -> str:
        """Propose and approve a run, and return its id."""
        proposal = await self.propose(**more)
        answer = await self.approve(proposal)
        assert answer.status == "approved", answer
        return str(proposal.subagent_id)

    async def ended(self, run_id: str, within_s: float = 60) -> RunRow:
        """Wait until a run has ended, and return it."""
        with anyio.fail_after(within_s):
            return await self.runtime.manager.control.ended(run_id)

    async def outcome(self, within_s: float = 20, **more: Any) -> dict[str, Any]:
        """Run one subagent from the proposal to its result, as the log has it."""
        run_id = await self.start(**more)
        await self.ended(run_id, within_s)
        return await self.result(run_id)

    async def result(self, run_id: str) -> dict[str, Any]:
        """Return the result of a run that has ended, as the log has it."""

        def query(view: View) -> dict[str, Any]:
            run = view.run(run_id)
            assert run is not None and run.result_seq is not None, f"{run_id} has no result"
            entry = view.entry(run.result_seq)
            assert entry is not None and entry.fact is not None
            found: dict[str, Any] = entry.fact.model_dump()["result"]
            return found

        return await self.store.read(query)

    async def run(self, run_id: str) -> RunRow:
        """Return a run's row."""
        row = await self.store.read(lambda view: view.run(run_id))
        assert row is not None
        return row

    async def entries(self, run_id: str) -> list[Entry]:
        """Return all entries of a run."""
        return await self.store.read(lambda view: view.entries(run_id))

    async def facts(self, run_id: str, kind: type[F]) -> list[F]:
        """Return the facts of this kind that a run's entries have."""
        return [entry.fact for entry in await self.entries(run_id) if isinstance(entry.fact, kind)]

    async def settlements(self, run_id: str) -> list[str]:
        """Return how each model call of a run was settled: `billed`, `unknown` or `not_billed`."""
        return [fact.settlement for fact in await self.facts(run_id, CostUpdate)]

    async def claim_reasons(self, run_id: str) -> list[str]:
        """Return why each owner of a run took it, the first owner first."""
        return [fact.reason for fact in await self.facts(run_id, RunClaimed)]

    async def states(self) -> list[str]:
        """Return the states of all runs, the oldest first."""
        return [run.state for run in await self.store.read(View.runs)]

    async def logged(self, run_id: str, type_name: str, count: int = 1, within_s: float = 40) -> Entry:
        """Wait until a run has so many entries of a type; return the last of them."""
        with anyio.fail_after(within_s):
            while True:
                seen = self.store.head
                found = await self.store.read(lambda view: view.entries(run_id, 0, (type_name,)))
                if len(found) >= count:
                    return found[count - 1]
                await self.store.wait_for_entry_after(seen)

    async def in_state(self, run_id: str, *states: str, within_s: float = 40) -> RunRow:
        """Wait until a run is in one of these states, and return it."""
        with anyio.fail_after(within_s):
            while True:
                seen = self.store.head
                row = await self.run(run_id)
                if row.state in states:
                    return row
                await self.store.wait_for_entry_after(seen)

    async def write(self, *events: Event) -> None:
        """Write events as one command."""
        await self.store.do(lambda _view, _now: Outcome(None, events))

    def as_user(self, user: str) -> Service:
        """Return the service for a session of another user."""
        return Service(self.runtime, Session(user=user, transport="memory"))


async def wait_for(event: Any, within_s: float = 40) -> None:
    """Wait for a `threading.Event` of the model server."""
    assert await anyio.to_thread.run_sync(event.wait, within_s), "it did not come"


def settings_of(root: Path, base_url: str | None, config: str = "", env: Mapping[str, str] | None = None) -> Settings:
    """Write `config.toml` and read the settings as any process does."""
    root.mkdir(mode=0o700, exist_ok=True)
    write_config(root, config)
    model = {"AVA_MODEL_BASE_URL": base_url, "AVA_MODEL": "test"} if base_url else {}
    return load_settings(root, env={**model, **(env or {})})


@contextmanager
def unwrap_groups() -> Generator[None]:
    """Let a test's own failure through as it is, not as a group of task groups around it."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


def allow_workspace(config: str, workspace: Path) -> str:
    """Return a configuration under which the test's folder may be given."""
    return f'{config}\n[workspace]\nroots = ["{workspace}"]\n'


@asynccontextmanager
async def open_lab(
    tmp: Path,
    script: Script = (),
    *,
    config: str = "",
    server: ModelServer | None = None,
    env: Mapping[str, str] | None = None,
    runs: bool = True,
    mode: Mode = SERVER,
    background: bool = False,
    everybody: bool = False,
    check: bool = True,
    beneath: Path | None = None,
) -> AsyncGenerator[Lab]:
    """Open a runtime on `tmp/data` with `tmp/workspace` to read and a scripted model server behind it.

    `server` runs already, in place of `script`. `runs`: claim runs, with `everybody` those of all users, as an HTTP
    server does, and with `background` leave them to the worker. `beneath`: where workspaces may lie, if not only in
    `tmp/workspace`. `check` compares requests and budgets with the log at the end; not for a root that another runtime
    also uses.
    """
    root, workspace = tmp / "data", tmp / "workspace"
    workspace.mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        stack.enter_context(unwrap_groups())
        if server is None:
            server = stack.enter_context(run_model_server(script))
        settings = settings_of(root, server.base_url, allow_workspace(config, beneath or workspace), env)
        if mode is SERVER and not background:
            settings = settings.model_copy(update={"background": False, "runs_on": "here"})
        opening = open_runtime(settings, mode if runs else LOOKING, everybody=everybody)
        runtime = await stack.enter_async_context(opening)
        session = Session(user=runtime.user, transport="memory")
        runtime.manager.sessions.add(session.id)
        yield Lab(runtime, Service(runtime, session), session, server, root, workspace)
        if check:
            await runtime.store.read(lambda view: check_budgets(view))
    if check:
        assert not server.refused, f"the API would have refused: {server.refused[:5]}"
        await check_requests(root, server.requests)
        report = await anyio.to_thread.run_sync(verify, root)
        assert report.ok, report


@asynccontextmanager
async def connect(
    tmp: Path,
    script: Script = (),
    *,
    config: str = "",
    mode: str = "auto",
    env: Mapping[str, str] | None = None,
    server: ModelServer | None = None,
    asks: ElicitationFnT | None = None,
    hears: MessageHandlerFnT | None = None,
    name: str | None = None,
    extensions: Sequence[ClientExtension] | None = None,
) -> AsyncGenerator[tuple[Client, ModelServer]]:
    """Open the MCP server in memory, and a client of the SDK's on it.

    With `asks` it can ask its person; `hears` gets the server's notifications; `name` is the client's name.
    """
    workspace = tmp / "workspace"
    workspace.mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        stack.enter_context(unwrap_groups())
        if server is None:
            server = stack.enter_context(run_model_server(script))
        settings = settings_of(tmp / "data", server.base_url, allow_workspace(config, workspace), env)
        mcp = build_server(lambda: settings, transport="memory")
        info = Implementation(name=name, version="1") if name is not None else None
        client = Client(
            mcp, mode=mode, elicitation_callback=asks, message_handler=hears, client_info=info, extensions=extensions
        )
        stack.callback(end_started_pages, tmp / "data")
        yield await stack.enter_async_context(client), server
    await check_requests(tmp / "data", server.requests)


def text(answer: CallToolResult) -> str:
    """Return the text of an answer."""
    return "\n".join(getattr(block, "text", "") for block in answer.content)


# -- what every run leaves behind -----------------------------------------------------------------------------------


def rebuild_request(entries: Iterable[Entry], run_id: str, turn: int, attempt: int) -> bytes | None:
    """The request of one attempt, byte for byte, from a run's entries alone; None where it was never reserved."""
    history = History(run_id)
    for entry in entries:
        fact = entry.fact
        if isinstance(fact, CostReserved) and (fact.turn, fact.attempt) == (turn, attempt):
            assert history.prefix is not None, "a run starts with its prefix"
            if fact.tool_call is not None:
                args = history.started[fact.tool_call].args or {}
                return rebuild_search(entries, args, no_tier=bool(fact.no_tier))
            model = model_of(history.prefix.model, history.prefix.parameters, None, ClientPool())
            return model.encode(history.request(Recipe.of(fact), fact.max_output, fact.thinking))
        if fact is not None:
            history.add(entry.seq, fact, entry.usage, fenced=entry.generation is not None)
    return None


def rebuild_search(entries: Iterable[Entry], args: Mapping[str, Any], *, no_tier: bool = False) -> bytes:
    """The request of one web search by a model provider, from what was approved and from the call of the tool."""
    config = next(
        RunConfig.model_validate(entry.fact.config) for entry in entries if isinstance(entry.fact, SpawnProposed)
    )
    call = config.search_call
    assert call is not None, "a run that searches has an approved search"
    provider, _, model_id = call.model.partition(":")
    choice = Choice(provider, model_id, call.model, "fast", "chat_completions", call.price, call.base_url)
    request = search_request(config.search, model_id, " ".join(args["query"].split()), call.output_tokens)
    request = replace(request, tier_refused=no_tier)
    return search_model(config.search, choice, call.results, ClientPool()).encode(request)


def rebuilt_requests(entries: Sequence[Entry], run_id: str) -> list[tuple[str, bytes]]:
    """Return, for every reservation of a run, the hash that it has and the request rebuilt from the entries."""
    found = []
    for entry in entries:
        if isinstance(entry.fact, CostReserved):
            request = rebuild_request(entries, run_id, entry.fact.turn, entry.fact.attempt)
            assert request is not None
            found.append((entry.fact.request_sha, request))
    return found


async def sent_requests(root: Path) -> tuple[Counter[bytes], bool]:
    """Rebuild every request from the log of a data root, read anew, and tell whether runs were erased, which cannot."""
    async with Store.open(root) as store:
        runs = await store.read(lambda view: [(run.id, view.entries(run.id)) for run in view.runs(limit=-1)])
    whole = [(run_id, entries) for run_id, entries in runs if all(entry.fact is not None for entry in entries)]
    sent: Counter[bytes] = Counter()
    for run_id, entries in whole:
        for sha, request in rebuilt_requests(entries, run_id):
            assert hashlib.sha256(request).hexdigest() == sha, f"a request of {run_id} cannot be rebuilt from the log"
            sent[request] += 1
    return sent, len(whole) < len(runs)


async def check_requests(root: Path, received: Iterable[Received]) -> None:
    """Compare what a model server received with what the log of a data root, read anew, says was sent."""
    sent, erased = await sent_requests(root)
    got = Counter(item.body for item in received if item.body)  # a look at what is loaded asks no model
    assert erased or not got - sent, "the model server received a request that is not in the log"


def check_budgets(view: View) -> None:
    """Nothing is held for a run that has ended, and what was spent is the sum of what the runs have cost."""
    runs = view.runs(limit=-1)
    for run in runs:
        if run.ended:
            assert run.in_flight is None, f"{run.id} has ended with a call in flight"
            assert view.bucket(run.id).held_micros == 0, f"{run.id} has ended and holds money"
            assert view.bucket(run.id).spent_micros == run.cost_micros
    if all(run.ended for run in runs):
        for scope in {scope for run in runs for scope in scopes_used(view, run)}:
            assert view.bucket(scope).held_micros == 0, f"{scope} holds money after every run has ended"


def scopes_used(view: View, run: RunRow) -> set[str]:
    """Return the budgets in which calls of a run were reserved."""
    facts = [entry.fact for entry in view.entries(run.id, 0, ("CostReserved",))]
    return {scope for fact in facts if isinstance(fact, CostReserved) for scope in fact.scopes}

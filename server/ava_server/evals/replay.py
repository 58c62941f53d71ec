"""Replay: the real loop of a run on a recording, with another role, model or code; and how it differs.

What somebody else wrote into the recorded run (its approval, messages, answers) goes into a log in a temporary folder;
what the run itself decides is decided again by `AgentRun`, with answers and results from a `Tape`. Where a request
differs, the recorded answer to it is still taken: what follows is an assumption, and the report says so.
"""

from __future__ import annotations

import difflib
import json
import re
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ava_audit.entries import Entry
from ava_audit.events import (
    Answered,
    CostReserved,
    Event,
    Fact,
    GuardrailTripped,
    LastTurn,
    RunClaimed,
    RunEnded,
    RunStarted,
    SpawnDecided,
    SpawnProposed,
    SubagentComplete,
    ToolResult,
    UserMessage,
    Who,
)
from ava_audit.rows import RunRow
from ava_audit.store.store import Store
from ava_audit.units import format_usd
from ava_audit.view import Outcome, View
from ava_roles.role import Role, parse_role
from ava_roles.tool import Tool
from ava_roles.tools.registry import tool_specs
from ava_server.budget.caps import SHARED_CAPS, settle_unknown
from ava_server.budget.run_config import CAPS, RUN_TOOLS, RunConfig
from ava_server.config.settings import Settings, load_settings
from ava_server.core.ids import AGENT
from ava_server.evals.recording import F, Recording
from ava_server.evals.tape import (
    PAUSES,
    Key,
    Tape,
    TapeCoding,
    TapeHistory,
)
from ava_server.evals.tape_setup import ReplayResources, TapeSetup
from ava_server.models.base import AssistantTurn, Request, ToolTurn, Turn, UserTurn
from ava_server.models.clients import ClientPool
from ava_server.models.selection import Choice
from ava_server.runs.context import ActiveRun, RunContext
from ava_server.runs.history import History
from ava_server.runs.lifecycle import PLAN_TIME_OVER, Paused
from ava_server.runs.loop import AgentRun
from ava_server.runs.reservation import Planner, Reservations
from ava_server.runs.result import RunResult

MOST_PAUSES = 10
_FROM_OUTSIDE = (UserMessage, Answered)
DIFF_LINES, LINE_CHARS = 6, 200
MOST_NOTED = 20
_MARK = re.compile(r"\[redacted:[^\]]*\]")


@dataclass(frozen=True)
class ReplayChange:
    """What a replay changes besides the code: the role, and the model."""

    role: Role | None = None
    choice: Choice | None = None


@dataclass(frozen=True)
class Sums:
    """What a run used and cost: tokens of all its prompts and answers, and micro-USD."""

    calls: int
    prompt_tokens: int
    output_tokens: int
    micros: int


@dataclass(frozen=True)
class RequestPart:
    """A part of a request that differs: its name, and the lines that do."""

    name: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """Where the requests first differ: the turn, and which parts of it."""

    turn: int
    parts: tuple[RequestPart, ...]


@dataclass(frozen=True)
class Replayed:
    """What a replay found.

    Attributes:
        first: Where the requests first differ; None where all are the same.
        before: What the recorded run used; `after`: what the replay used.
        notes: What would have been cut, refused, capped or ended otherwise, in sentences.
        estimated: Its tokens are estimated, because requests or the model differ.
    """

    run_id: str
    first: Difference | None
    before: Sums
    after: Sums
    notes: tuple[str, ...]
    estimated: bool

    @property
    def same(self) -> bool:
        return self.first is None and not self.notes and self.before == self.after


class Replayer:
    """Replays recordings in one log, in a temporary folder."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._resources = ReplayResources(settings, store, "", ClientPool())
        self._count = 0

    @property
    def tools(self) -> Mapping[str, Tool]:
        return self._resources.tools

    @staticmethod
    @asynccontextmanager
    async def open() -> AsyncGenerator[Replayer]:
        with tempfile.TemporaryDirectory(prefix="ava-replay-") as made:
            folder = Path(made)
            settings = await anyio.to_thread.run_sync(partial(load_settings, folder, env={}))
            async with Store.open(folder, "") as store:
                yield Replayer(store, settings)

    async def replay(self, recording: Recording, change: ReplayChange) -> Replayed:
        """Run a recorded run again, and return how it differs."""
        self._count += 1
        run_id, pending_id = f"S-{self._count:06x}", f"P-{self._count:08x}"
        proposed, decided = recording.first(SpawnProposed), recording.first(SpawnDecided)
        config = _changed(RunConfig.model_validate(proposed.config), change)
        choice = change.choice
        same_model = choice is None or (
            choice.name == recording.config.model and choice.wire == recording.first(RunStarted).parameters.get("wire")
        )
        tape = Tape(recording, config.price, same_model=same_model)
        ids = {"pending_id": pending_id, "subagent_id": run_id}
        opening: list[Fact] = [
            proposed.model_copy(update={**ids, "config": config.model_dump(mode="json"), "supersedes": None}),
            next(fact for fact in recording.facts(UserMessage) if fact.kind == "task"),
            decided.model_copy(update={"pending_id": pending_id, "group_id": None, "step": None}),  # it runs alone
        ]
        await self._write(run_id, opening)
        await self._play(run_id, tape, TapeSetup(self._resources, tape, choice))
        row = await self._store.read(lambda view: view.run(run_id))
        entries = await self._store.read(lambda view: view.entries(run_id))
        assert row is not None, "it was just written"
        return _compared(recording, tape, entries)

    async def _play(self, run_id: str, tape: Tape, setup: TapeSetup) -> None:
        outside = _Outside(self._store, run_id, tape.recording)
        for number, claim in enumerate(tape.claims):
            assert isinstance(claim.fact, RunClaimed)
            await outside.write_until(claim.seq)
            for _time in range(MOST_PAUSES):
                done = False
                row, entries = await self._claim(run_id, claim.fact)
                if row.ended:
                    return
                tape.take(number, row.active_us)
                history = tape.history = TapeHistory(run_id, tape)
                history.add_all(entries)
                context = await setup.prepare(row, history)
                async with anyio.create_task_group() as tasks:
                    run = tape.run = _TapeRun(self._store, row, history, context, tasks, tape, outside)
                    tape.begin()
                    with anyio.CancelScope() as tape.scope:
                        await run.drive(run.seconds_left)
                    tasks.cancel_scope.cancel()
                    done = bool(tape.ended) or run.done
                if done:
                    return
                if tape.scope.cancel_called or tape.paused:
                    break  # else it waits where the recorded run did not: nobody answers

    async def _claim(self, run_id: str, recorded: RunClaimed) -> tuple[RunRow, list[Entry]]:
        """Claim the run, as another process did; a call in flight is settled as unknown, as a claim does."""

        def command(view: View, _now_us: int) -> Outcome[None]:
            run = view.run(run_id)
            assert run is not None, "it was proposed"
            who = _who(run_id)
            fact = recorded.model_copy(update={"generation": run.generation + 1})
            return Outcome(None, (*settle_unknown(run, who), Event(who, fact, run_id=run_id)) if not run.ended else ())

        await self._store.do(command)
        row, entries = await self._store.read(lambda view: (view.run(run_id), view.entries(run_id)))
        assert row is not None, "it was proposed"
        return row, entries

    async def _write(self, run_id: str, facts: Sequence[Fact]) -> None:
        events = tuple(Event(_who(run_id), fact, run_id=run_id) for fact in facts)
        await self._store.do(lambda _view, _now_us: Outcome(None, events))


class _Outside:
    """What came from outside into the recorded run, written into the replay's log in its place."""

    def __init__(self, store: Store, run_id: str, recording: Recording) -> None:
        self._store, self._run_id = store, run_id
        own = [
            entry for entry in recording.entries if entry.generation is None and isinstance(entry.fact, _FROM_OUTSIDE)
        ]
        self._left = own[1:]  # the first is the task

    async def write_until(self, seq: float) -> None:
        """Write what came before an entry of the recording, and is not written yet."""
        due = [entry.fact for entry in self._left if entry.seq < seq and entry.fact is not None]
        self._left = self._left[len(due) :]
        if due:
            await self._store.do(lambda view, _now_us: Outcome(None, tuple(self._events(view, due))))

    def _events(self, view: View, due: Sequence[Fact]) -> list[Event]:
        run = view.run(self._run_id)
        assert run is not None, "it was proposed"
        events: list[Event] = []
        for fact in due:
            asked: dict[str, Any] = json.loads(run.asked or "{}")
            if isinstance(fact, Answered) and asked.get("kind") == fact.kind:
                fact = fact.model_copy(update={"ask_id": asked["ask_id"]})
            elif not isinstance(fact, UserMessage):
                continue  # the replay has not asked for it
            events.append(Event(_who(self._run_id), fact, run_id=self._run_id))
        return events


class _TapeRun(AgentRun):
    """A run whose reservations follow the recording's time, and what others spent of its caps."""

    def __init__(
        self,
        store: Store,
        row: RunRow,
        history: History,
        context: RunContext,
        tasks: anyio.abc.TaskGroup,
        tape: Tape,
        outside: _Outside,
    ) -> None:
        super().__init__(store, row, _who(row.id), history, context, tasks, lambda: None)
        self._reservations = _TapeReservations(self._run, self._planner, tape, outside)
        coding = self._config.coding
        if coding is not None:
            self._coding = TapeCoding(tape, coding, self._log, self.say)
        reasons = [fact.last.reason for fact in tape.recording.facts(CostReserved) if fact.last is not None]
        grouped = PLAN_TIME_OVER in [*reasons, tape.recording.result["stop_reason"]]
        self.seconds_left = self._run.left_s - 0.001 if grouped else None


class _TapeReservations(Reservations):
    cap: LastTurn | None

    def __init__(self, run: ActiveRun, planner: Planner, tape: Tape, outside: _Outside) -> None:
        super().__init__(run, planner)
        self._tape, self._outside = tape, outside

    async def next(self) -> Any:
        """Reserve the next call, at the time and with the messages that it had."""
        attempt = 1 if self._history.answered else self._history.attempt + 1
        recorded = self._tape.attempts.get((self._next_turn(), attempt))
        if recorded is None:
            return await self._beyond() or await super().next()
        if recorded.entry.generation != self._tape.generation and not self._tape.paused:
            return await self._tape.leave()
        self._tape.at(recorded, self._config.timeout_s)
        await self._outside.write_until(min(recorded.entry.seq, self._tape.pause_seq))
        last = recorded.reserved.last
        from_elsewhere = last is not None and (last.status == "timeout" or last.reason.startswith(SHARED_CAPS))
        if self.cap is None and from_elsewhere:
            self.cap = last
        found = await super().next()
        if not isinstance(found, Paused):
            self._tape.go_on(recorded.entry.generation or 0)
        return found

    async def _beyond(self) -> RunResult | None:
        """End as the recorded run did where it made no further call; return None where the replay makes one."""
        ending = self._tape.recording.first(RunEnded)
        goes_on = self._tape.has_more_claims or self._tape.recording.ended_from_outside
        if goes_on and not self._tape.paused:
            return await self._tape.leave()
        if ending.stop_reason.startswith(SHARED_CAPS):
            return RunResult(ending.status, ending.stop_reason)
        return await self._tape.run_out() if self._tape.ran_out else None


def _who(run_id: str) -> Who:
    return Who("replay", run_id, "replay", parent_agent_id=AGENT)


# -- what is changed --------------------------------------------------------------------------------------------------


def _changed(config: RunConfig, change: ReplayChange) -> RunConfig:
    """Return a configuration with another role and model, where the call itself did not decide.

    Tools that this version lacks are left out.
    """
    fields: dict[str, Any] = {}
    if (role := change.role) is not None and role.text != config.role_text:
        before = parse_role(config.role_text, config.role_source, config.role)
        fields |= {"role_text": role.text, "role_source": role.source, "tools": _tools(config, before, role)}
        for cap in CAPS:
            if cap.argument not in config.asked and cap.default(role) != cap.default(before):
                fields[cap.field] = cap.stored(cap.default(role))
        for name in ("plan", "extended_thinking", "questions"):
            if config.asked.get(name) is None and getattr(role, name) != getattr(before, name):
                fields[name] = getattr(role, name)
    if (choice := change.choice) is not None:
        fields |= {
            "model": choice.name, "provider": choice.provider, "model_id": choice.model_id, "tier": choice.tier,
            "base_url": choice.base_url, "price": choice.price,
        }  # fmt: skip
    config = config.model_copy(update=fields)
    foreign = {name for use in config.foreign.values() for name in use.tools}
    here = {*tool_specs(), *RUN_TOOLS, *foreign}
    return config.model_copy(update={"tools": tuple(name for name in config.tools if name in here)})


def _tools(config: RunConfig, before: Role, role: Role) -> tuple[str, ...]:
    """Return a run's tools under a changed role: what it had and the role still has, and what is new and built in."""
    asked, blocked = config.asked.get("tools"), config.asked.get("blocked_tools") or ()
    new = [
        name
        for name in role.tools
        if name not in before.tools
        and name in tool_specs()
        and name not in blocked
        and (asked is None or name in asked)
    ]
    foreign = {name for use in config.foreign.values() for name in use.tools}
    return (*(name for name in config.tools if name in role.tools or name in foreign), *new)


# -- how it differs ---------------------------------------------------------------------------------------------------


def _compared(recording: Recording, tape: Tape, entries: Sequence[Entry]) -> Replayed:
    before, after = _sums(recording.entries), _sums(entries)
    first = _first_difference(tape)
    notes = list(dict.fromkeys([*tape.notes, *_decided_otherwise(recording.entries, entries)]))
    if tape.ended:
        notes.append(f"{tape.ended}: the replay ends there")
    else:
        notes += _ended_otherwise(recording.entries, entries)
    if len(notes) > MOST_NOTED:
        notes[MOST_NOTED:] = [f"{len(notes) - MOST_NOTED} more such differences"]
    return Replayed(recording.run_id, first, before, after, tuple(notes), bool(tape.changed) or not tape.same_model)


def _first_difference(tape: Tape) -> Difference | None:
    if not tape.changed:
        return None
    key = min(tape.changed)
    now, before = tape.requests[key], tape.recorded(key)
    if before is None:
        return Difference(key[0], (RequestPart("a call that the recorded run did not make"),))
    return Difference(key[0], tuple(_parts(tape, before, now)) or (RequestPart("the format of the request"),))


def _parts(tape: Tape, before: Request, now: Request) -> Iterator[RequestPart]:
    """Yield the parts of a request that differ; of its messages, the first that does."""
    if before.system != now.system:
        yield RequestPart("the system prompt", _diff(before.system, now.system))
    was, tools = ({tool.name: tool.as_dict() for tool in each.tools} for each in (before, now))
    for name in dict.fromkeys([*was, *tools]):
        if was.get(name) != tools.get(name):
            one, other = (_tool_text(each.get(name)) for each in (was, tools))
            yield RequestPart(f"the tool {name}", _diff(one, other))
    turns_before, turns = (tape.comparable(each)[2] for each in (before, now))
    pairs: Iterator[tuple[Turn | str | None, Turn | str | None]] = zip_longest(turns_before, turns)
    for number, (earlier, later) in enumerate(pairs, 1):
        if earlier != later:
            kind = _kind(later or earlier or "")
            yield RequestPart(f"message {number} ({kind})", _diff(_turn_text(earlier), _turn_text(later)))
            break
    for what, least, most in (
        ("the most tokens of the answer", before.max_output, now.max_output),
        ("the tokens for thinking", before.thinking, now.thinking),
    ):
        if least != most:
            yield RequestPart(what, (f"-{least}", f"+{most}"))


def _tool_text(tool: dict[str, Any] | None) -> str:
    if tool is None:
        return ""
    return f"{tool['description']}\n{json.dumps(tool['parameters'], ensure_ascii=False, indent=1)}"


def _kind(turn: Turn | str) -> str:
    match turn:
        case UserTurn():
            return "from outside, or a notice"
        case ToolTurn():
            return f"a result of {turn.name}"
        case _:
            return "an answer"


def _turn_text(turn: Turn | str | None) -> str:
    match turn:
        case None:
            return ""
        case UserTurn() | ToolTurn():
            return turn.text
        case AssistantTurn():
            return json.dumps(asdict(turn), ensure_ascii=False, indent=1, default=str)
        case str():
            return turn


def _diff(before: str, now: str) -> tuple[str, ...]:
    """Return the lines that differ, the first ones on both sides."""
    lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), n=0, lineterm=""))[2:]
    shown: list[str] = []
    for sign in "-+":
        found = [line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}…" for line in lines if line[0] == sign]
        if len(found) > DIFF_LINES:
            found[DIFF_LINES:] = [f"{sign}… {len(found) - DIFF_LINES} more lines"]
        shown += found
    return tuple(shown)


def _decided_otherwise(recorded: Sequence[Entry], entries: Sequence[Entry]) -> list[str]:
    was, now = _calls(recorded), _calls(entries)
    notes = [note for key, fact in now.items() if key in was for note in _reserved_otherwise(was[key], fact)]
    outcomes, results = _results(recorded), _results(entries)
    for call, result in results.items():
        earlier = outcomes.get(call)
        if earlier is not None and (earlier.success, bool(earlier.output_sha)) != (
            result.success,
            bool(result.output_sha),
        ):
            line = result.output.partition("\n")[0][:200]
            notes.append(f"turn {call[0]}: {result.tool} would be answered with: {line}")
    notes += [
        f"the guardrail {name} would have {what} {tool or 'it'}"
        for name, what, tool in _tripped(entries) - _tripped(recorded)
    ]
    asked = [sum(isinstance(entry.fact, PAUSES) for entry in each) for each in (recorded, entries)]
    if asked[1] > asked[0]:
        notes.append("it would ask a person, and nobody's answer is recorded: it goes on without one")
    return notes


def _reserved_otherwise(before: CostReserved, now: CostReserved) -> Iterator[str]:
    turn, last = f"turn {now.turn}", now.last or before.last
    if last is not None and (now.last is None or before.last is None):
        yield f"{turn} {'would be the last' if now.last else 'would not be the last any more'}: {last.reason}"
    for what, one, other in (
        ("results left out", len(before.elide), len(now.elide)),
        ("results cut", len(before.cut), len(now.cut)),
    ):
        if one != other:
            yield f"{turn}: {other} {what}, not {one}"
    if now.max_output != before.max_output:
        yield f"{turn}: an answer of at most {now.max_output:,} tokens, not {before.max_output:,}"
    if (told := _topics(now)) != (was_told := _topics(before)):
        yield f"{turn}: it is told of {told}, not of {was_told}"


def _ended_otherwise(recorded: Sequence[Entry], entries: Sequence[Entry]) -> list[str]:
    was, now = (_last(each, RunEnded) for each in (recorded, entries))
    if was is None or now is None or was.status != now.status:
        then = f"{now.status} ({now.stop_reason})" if now is not None else "nothing yet"
        earlier = was.status if was is not None else "an end from outside"
        return [f"it would end with {then}, not with {earlier}"] if was is not now else []
    notes = [
        f"the guardrail {name} would not have {what} {tool or 'it'} any more"
        for name, what, tool in _tripped(recorded) - _tripped(entries)
    ]
    one, other = ((ending.error_kind or "", ending.stop_reason) for ending in (was, now))
    if one != other:
        notes.append(f"it would end with {' '.join(other).strip()}, not with {' '.join(one).strip()}")
    before, after = (_comparable(_last(each, SubagentComplete)) for each in (recorded, entries))
    return [*notes, *_result_otherwise(before, after)]


def _result_otherwise(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    if _MARK.findall(before["text"]) != _MARK.findall(after["text"]):
        return  # the recorded run hid a secret that a replay does not know
    for name, text in before.items():
        if text != after[name]:
            yield f"its {name} would differ: {' '.join(_diff(text, after[name]))}"


def _comparable(complete: SubagentComplete | None) -> dict[str, str]:
    """Return what a replay can make again of a result: no branch, no file and no text of an error."""
    result: Mapping[str, Any] = complete.result if complete is not None else {}
    untrusted: Mapping[str, Any] = result.get("untrusted_result") or {}
    changes: Mapping[str, Any] = result.get("changes") or {}
    parts = {
        "text": {key: untrusted.get(key) for key in ("summary", "output", "caveats", "findings")},
        "confidence": result.get("confidence"),
        "quotes": [(each["finding"], each["verdict"]) for each in result.get("quotes_checked") or ()],
        "verification": [changes.get("verified"), changes.get("verify")],
    }
    return {name: json.dumps(part, ensure_ascii=False, indent=1, sort_keys=True) for name, part in parts.items()}


def _tripped(entries: Sequence[Entry]) -> Counter[tuple[str, str, str | None]]:
    facts = (entry.fact for entry in entries)
    return Counter((fact.guardrail, fact.action, fact.tool) for fact in facts if isinstance(fact, GuardrailTripped))


def _topics(fact: CostReserved) -> str:
    """Return what a request tells the model about, without the id of a request for more."""
    return ", ".join(sorted(topic.partition(":E-")[0] for topic in fact.notices)) or "nothing"


def _calls(entries: Sequence[Entry]) -> dict[Key, CostReserved]:
    facts = (entry.fact for entry in entries)
    return {
        (fact.turn, fact.attempt): fact for fact in facts if isinstance(fact, CostReserved) and fact.tool_call is None
    }


def _results(entries: Sequence[Entry]) -> dict[tuple[int | None, str | None], ToolResult]:
    facts = (entry.fact for entry in entries if entry.generation is not None)
    return {(fact.turn, fact.call_id): fact for fact in facts if isinstance(fact, ToolResult)}


def _sums(entries: Sequence[Entry]) -> Sums:
    settled = [entry for entry in entries if entry.type == "CostUpdate"]
    usages = [entry.usage for entry in settled if entry.usage is not None]
    return Sums(
        calls=len(settled),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        micros=sum(entry.cost_micros or 0 for entry in settled),
    )


def _last(entries: Sequence[Entry], kind: type[F]) -> F | None:
    """Return how a run ended by itself, of one type of fact; None where it did not."""
    own = (entry.fact for entry in entries if entry.generation is not None)
    return next((fact for fact in own if isinstance(fact, kind)), None)


def report_lines(found: Replayed) -> list[str]:
    if found.same:
        return [f"{found.run_id}: the same (calls: {found.after.calls}; {format_usd(found.after.micros)})."]
    lines = [f"{found.run_id}: differs{'' if found.first else '; its requests are the same'}."]
    if found.first is not None:
        lines.append(f"First in turn {found.first.turn}: {', '.join(part.name for part in found.first.parts)}.")
        lines += [f"  {line}" for part in found.first.parts for line in part.lines]
        lines.append(
            f"From the answer of turn {found.first.turn} on, it is assumed that the model would have answered the same."
        )
    about = "about " if found.estimated else ""
    one, other = found.before, found.after
    lines.append(
        f"Tokens: {one.prompt_tokens:,} in and {one.output_tokens:,} out before;"
        f" {about}{other.prompt_tokens:,} and {other.output_tokens:,} now."
    )
    lines.append(
        f"Cost: {format_usd(one.micros, exact=True)} before; {about}{format_usd(other.micros, exact=True)} now."
        f" Calls: {one.calls} before; {other.calls} now."
    )
    return [*lines, *(f"- {note}" for note in found.notes)]

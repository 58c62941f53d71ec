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
    CostUpdate,
    Event,
    Fact,
    GuardrailTripped,
    LastTurn,
    RunClaimed,
    RunEnded,
    RunStarted,
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
from ava_server.models.http_clients import ClientPool
from ava_server.models.json_text import fields_of
from ava_server.models.model_choice import Choice
from ava_server.run_config.config import RUN_TOOLS, RunConfig
from ava_server.run_config.run_cap import CAPS
from ava_server.runs.record.claims import Paused
from ava_server.runs.record.history import History
from ava_server.runs.record.plan_time import PLAN_TIME_OVER
from ava_server.runs.record.result import RunResult
from ava_server.runs.turn.context import ActiveRun, RunContext
from ava_server.runs.turn.loop import AgentRun
from ava_server.runs.turn.reservation import Outliner, Reservations

MOST_PAUSES = 10
_FROM_OUTSIDE = (UserMessage, Answered)
DIFF_LINES = 6
LINE_CHARS = 200
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
    """How a replay differs from the recorded run.

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
        with tempfile.TemporaryDirectory(prefix="ava-replay-") as path:
            folder = Path(path)
            settings = await anyio.to_thread.run_sync(partial(load_settings, folder, env={}))
            async with Store.open(folder, "") as store:
                yield Replayer(store, settings)

    async def replay(self, recording: Recording, change: ReplayChange) -> Replayed:
        """Run a recorded run again, and return how it differs."""
        self._count += 1
        run_id, pending_id = f"S-{self._count:06x}", f"P-{self._count:08x}"
        proposed = recording.proposed
        config = _apply_change(RunConfig.model_validate(proposed.config), change)
        choice = change.choice
        same_model = True
        if choice is not None:
            recorded_wire = recording.first(RunStarted).parameters.get("wire")
            same_model = choice.name == recording.config.model and choice.wire == recorded_wire
        tape = Tape(recording, config.price, same_model=same_model)
        ids = {"pending_id": pending_id, "subagent_id": run_id}
        opening: list[Fact] = [
            proposed.model_copy(update={**ids, "config": config.model_dump(mode="json"), "supersedes": None}),
            recording.task,
            recording.decided.model_copy(update={"pending_id": pending_id}),
        ]
        await self._write(run_id, opening)
        await self._play(run_id, tape, TapeSetup(self._resources, tape, choice))
        row = await self._store.read(lambda view: view.run(run_id))
        entries = await self._store.read(lambda view: view.entries(run_id))
        assert row is not None, "it was just written"
        return _compare(recording, tape, entries)

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
            if run.ended:
                return Outcome(None, ())
            fact = recorded.model_copy(update={"generation": run.generation + 1})
            return Outcome(None, (*settle_unknown(run, who), Event(who, fact, run_id=run_id)))

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
        entries: list[Entry] = []
        for entry in recording.entries:
            if entry.generation is None and isinstance(entry.fact, _FROM_OUTSIDE):
                entries.append(entry)
        self._left = entries[1:]  # the first is the task

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
            question: dict[str, Any] = json.loads(run.asked or "{}")
            if isinstance(fact, Answered) and question.get("kind") == fact.kind:
                fact = fact.model_copy(update={"ask_id": question["ask_id"]})
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
        self._reservations = _TapeReservations(self._run, self._outliner, tape, outside)
        coding = self._config.coding
        if coding is not None:
            self._coding = TapeCoding(tape, coding, self._log, self.say)
        reasons = [fact.last.reason for fact in tape.recording.facts(CostReserved) if fact.last is not None]
        reasons.append(tape.recording.result["stop_reason"])
        self.seconds_left: float | None = None
        if PLAN_TIME_OVER in reasons:
            self.seconds_left = self._run.left_s - 0.001


class _TapeReservations(Reservations):
    cap: LastTurn | None

    def __init__(self, run: ActiveRun, outliner: Outliner, tape: Tape, outside: _Outside) -> None:
        super().__init__(run, outliner)
        self._tape, self._outside = tape, outside

    async def next(self) -> Any:
        """Reserve the next call, at the time and with the messages that it had."""
        attempt = 1
        if not self._history.answered:
            attempt = self._history.attempt + 1
        recorded = self._tape.attempts.get((self._next_turn(), attempt))
        if recorded is None:
            return await self._beyond() or await super().next()
        if recorded.entry.generation != self._tape.generation and not self._tape.paused:
            return await self._tape.leave()
        self._tape.at(recorded, self._config.timeout_s)
        await self._outside.write_until(min(recorded.entry.seq, self._tape.pause_seq))
        last = recorded.reserved.last
        if self.cap is None and last is not None and _comes_from_elsewhere(last):
            self.cap = last
        step = await super().next()
        if not isinstance(step, Paused):
            self._tape.go_on(recorded.entry.generation or 0)
        return step

    async def _beyond(self) -> RunResult | None:
        """End as the recorded run did where it made no further call; return None where the replay makes one."""
        ending = self._tape.recording.first(RunEnded)
        goes_on = self._tape.has_more_claims or self._tape.recording.ended_from_outside
        if goes_on and not self._tape.paused:
            return await self._tape.leave()
        if ending.stop_reason.startswith(SHARED_CAPS):
            return RunResult(ending.status, ending.stop_reason)
        if self._tape.ran_out:
            await self._tape.run_out()
        return None


def _comes_from_elsewhere(last: LastTurn) -> bool:
    """Tell whether what makes a turn the last is none of the run's own caps."""
    return last.status == "timeout" or last.reason.startswith(SHARED_CAPS)


def _who(run_id: str) -> Who:
    return Who("replay", run_id, "replay", parent_agent_id=AGENT)


# -- what is changed --------------------------------------------------------------------------------------------------


def _apply_change(config: RunConfig, change: ReplayChange) -> RunConfig:
    """Return a configuration with another role and model, where the call itself did not decide.

    Tools that this version lacks are left out.
    """
    fields: dict[str, Any] = {}
    if change.role is not None and change.role.text != config.role_text:
        fields |= _fields_of_role(config, change.role)
    choice = change.choice
    if choice is not None:
        fields |= {
            "model": choice.name, "provider": choice.provider, "model_id": choice.model_id, "tier": choice.tier,
            "base_url": choice.base_url, "price": choice.price,
        }  # fmt: skip
    config = config.model_copy(update=fields)
    available = {*tool_specs(), *RUN_TOOLS, *_foreign_tools(config)}
    return config.model_copy(update={"tools": tuple(name for name in config.tools if name in available)})


def _fields_of_role(config: RunConfig, role: Role) -> dict[str, Any]:
    """Return what another role changes in a configuration."""
    before = parse_role(config.role_text, config.role_source, config.role)
    tools = _tools_of_role(config, before, role)
    fields: dict[str, Any] = {"role_text": role.text, "role_source": role.source, "tools": tools}
    for cap in CAPS:
        if cap.argument not in config.asked and cap.default(role) != cap.default(before):
            fields[cap.field] = cap.stored(cap.default(role))
    for name in ("plan", "extended_thinking", "questions"):
        if config.asked.get(name) is None and getattr(role, name) != getattr(before, name):
            fields[name] = getattr(role, name)
    return fields


def _tools_of_role(config: RunConfig, before: Role, role: Role) -> tuple[str, ...]:
    """Return a run's tools under a changed role: what it had and the role still has, and what is new and built in."""
    kept = _foreign_tools(config).union(role.tools)
    tools = [name for name in config.tools if name in kept]
    requested = config.asked.get("tools")
    blocked = config.asked.get("blocked_tools") or ()
    for name in role.tools:
        if name in before.tools or name not in tool_specs() or name in blocked:
            continue
        if requested is None or name in requested:
            tools.append(name)
    return tuple(tools)


def _foreign_tools(config: RunConfig) -> set[str]:
    names: set[str] = set()
    for use in config.foreign.values():
        names.update(use.tools)
    return names


# -- how it differs ---------------------------------------------------------------------------------------------------


def _compare(recording: Recording, tape: Tape, entries: Sequence[Entry]) -> Replayed:
    notes = list(dict.fromkeys([*tape.notes, *_compare_decisions(recording.entries, entries)]))
    if tape.ended:
        notes.append(f"{tape.ended}: the replay ends there")
    else:
        notes += _compare_endings(recording.entries, entries)
    if len(notes) > MOST_NOTED:
        notes[MOST_NOTED:] = [f"{len(notes) - MOST_NOTED} more such differences"]
    return Replayed(
        recording.run_id,
        first=_first_difference(tape),
        before=_sums(recording.entries),
        after=_sums(entries),
        notes=tuple(notes),
        estimated=bool(tape.changed) or not tape.same_model,
    )


def _first_difference(tape: Tape) -> Difference | None:
    if not tape.changed:
        return None
    key = min(tape.changed)
    turn, _attempt = key
    before = tape.recorded(key)
    if before is None:
        return Difference(turn, (RequestPart("a call that the recorded run did not make"),))
    parts = tuple(_parts(tape, before, tape.requests[key]))
    if not parts:
        parts = (RequestPart("the format of the request"),)
    return Difference(turn, parts)


def _parts(tape: Tape, before: Request, now: Request) -> Iterator[RequestPart]:
    """Yield the parts of a request that differ; of its messages, the first that does."""
    if before.system != now.system:
        yield RequestPart("the system prompt", _diff(before.system, now.system))
    tools_before = {tool.name: tool.as_dict() for tool in before.tools}
    tools_now = {tool.name: tool.as_dict() for tool in now.tools}
    for name in dict.fromkeys([*tools_before, *tools_now]):
        tool_before, tool_now = tools_before.get(name), tools_now.get(name)
        if tool_before != tool_now:
            yield RequestPart(f"the tool {name}", _diff(_tool_text(tool_before), _tool_text(tool_now)))
    turns_before, turns_now = tape.comparable(before)[2], tape.comparable(now)[2]
    pairs: Iterator[tuple[Turn | str | None, Turn | str | None]] = zip_longest(turns_before, turns_now)
    for number, (turn_before, turn_now) in enumerate(pairs, 1):
        if turn_before != turn_now:
            kind = _kind(turn_now or turn_before or "")
            yield RequestPart(f"message {number} ({kind})", _diff(_turn_text(turn_before), _turn_text(turn_now)))
            break
    for name, limit_before, limit_now in (
        ("the most tokens of the answer", before.max_output, now.max_output),
        ("the tokens for thinking", before.thinking, now.thinking),
    ):
        if limit_before != limit_now:
            yield RequestPart(name, (f"-{limit_before}", f"+{limit_now}"))


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
        side = [line for line in lines if line[0] == sign]
        for line in side[:DIFF_LINES]:
            if len(line) > LINE_CHARS:
                line = f"{line[:LINE_CHARS]}…"
            shown.append(line)
        if len(side) > DIFF_LINES:
            shown.append(f"{sign}… {len(side) - DIFF_LINES} more lines")
    return tuple(shown)


def _compare_decisions(recorded: Sequence[Entry], entries: Sequence[Entry]) -> list[str]:
    notes: list[str] = []
    reserved_before = _reservations(recorded)
    for key, reserved in _reservations(entries).items():
        if key in reserved_before:
            notes += _compare_reservations(reserved_before[key], reserved)
    results_before = _results(recorded)
    for call, result in _results(entries).items():
        before = results_before.get(call)
        if before is None:
            continue
        same_success = before.success == result.success
        same_execution = bool(before.output_sha) == bool(result.output_sha)  # a refused call has no output of a tool
        if not same_success or not same_execution:
            line = result.output.partition("\n")[0][:200]
            notes.append(f"turn {call[0]}: {result.tool} would be answered with: {line}")
    for name, action, tool in _trips(entries) - _trips(recorded):
        notes.append(f"the guardrail {name} would have {action} {tool or 'it'}")
    if _count_pauses(entries) > _count_pauses(recorded):
        notes.append("it would ask a person, and nobody's answer is recorded: it goes on without one")
    return notes


def _compare_reservations(before: CostReserved, now: CostReserved) -> Iterator[str]:
    turn = f"turn {now.turn}"
    if now.last is not None and before.last is None:
        yield f"{turn} would be the last: {now.last.reason}"
    elif before.last is not None and now.last is None:
        yield f"{turn} would not be the last any more: {before.last.reason}"
    if len(before.elide) != len(now.elide):
        yield f"{turn}: {len(now.elide)} results left out, not {len(before.elide)}"
    if len(before.cut) != len(now.cut):
        yield f"{turn}: {len(now.cut)} results cut, not {len(before.cut)}"
    if now.max_output != before.max_output:
        yield f"{turn}: an answer of at most {now.max_output:,} tokens, not {before.max_output:,}"
    topics_before, topics_now = _topics(before), _topics(now)
    if topics_before != topics_now:
        yield f"{turn}: it is told of {topics_now}, not of {topics_before}"


def _compare_endings(recorded: Sequence[Entry], entries: Sequence[Entry]) -> list[str]:
    before, now = _own_ending(recorded, RunEnded), _own_ending(entries, RunEnded)
    if before is None:
        if now is None:
            return []
        return [f"it would end with {now.status} ({now.stop_reason}), not with an end from outside"]
    if now is None:
        return [f"it would end with nothing yet, not with {before.status}"]
    if before.status != now.status:
        return [f"it would end with {now.status} ({now.stop_reason}), not with {before.status}"]
    notes: list[str] = []
    for name, action, tool in _trips(recorded) - _trips(entries):
        notes.append(f"the guardrail {name} would not have {action} {tool or 'it'} any more")
    reason_before = f"{before.error_kind or ''} {before.stop_reason}".strip()
    reason_now = f"{now.error_kind or ''} {now.stop_reason}".strip()
    if reason_before != reason_now:
        notes.append(f"it would end with {reason_now}, not with {reason_before}")
    result_before = _comparable(_own_ending(recorded, SubagentComplete))
    result_now = _comparable(_own_ending(entries, SubagentComplete))
    notes += _compare_results(result_before, result_now)
    return notes


def _compare_results(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    if _MARK.findall(before["text"]) != _MARK.findall(now["text"]):
        return  # the recorded run redacted a secret that a replay does not know
    for name, text in before.items():
        if text != now[name]:
            yield f"its {name} would differ: {' '.join(_diff(text, now[name]))}"


def _comparable(complete: SubagentComplete | None) -> dict[str, str]:
    """Return what a replay can make again of a result: no branch, no file and no text of an error."""
    result: Mapping[str, Any] = {}
    if complete is not None:
        result = complete.result
    untrusted = fields_of(result.get("untrusted_result"))
    changes = fields_of(result.get("changes"))
    quotes: Sequence[Mapping[str, Any]] = result.get("quotes_checked") or ()
    parts = {
        "text": {key: untrusted.get(key) for key in ("summary", "output", "caveats", "findings")},
        "confidence": result.get("confidence"),
        "quotes": [(quote["finding"], quote["verdict"]) for quote in quotes],
        "verification": [changes.get("verified"), changes.get("verify")],
    }
    return {name: json.dumps(part, ensure_ascii=False, indent=1, sort_keys=True) for name, part in parts.items()}


def _trips(entries: Sequence[Entry]) -> Counter[tuple[str, str, str | None]]:
    """Count what guardrails did: their names, what they did, and the tools."""
    trips: Counter[tuple[str, str, str | None]] = Counter()
    for entry in entries:
        if isinstance(entry.fact, GuardrailTripped):
            trips[entry.fact.guardrail, entry.fact.action, entry.fact.tool] += 1
    return trips


def _count_pauses(entries: Sequence[Entry]) -> int:
    return sum(isinstance(entry.fact, PAUSES) for entry in entries)


def _topics(fact: CostReserved) -> str:
    """Return what a request tells the model about, without the id of a request for more."""
    return ", ".join(sorted(topic.partition(":E-")[0] for topic in fact.notices)) or "nothing"


def _reservations(entries: Sequence[Entry]) -> dict[Key, CostReserved]:
    """Return the reservations of calls of the model, by turn and attempt."""
    reservations: dict[Key, CostReserved] = {}
    for entry in entries:
        fact = entry.fact
        if isinstance(fact, CostReserved) and fact.tool_call is None:
            reservations[fact.turn, fact.attempt] = fact
    return reservations


def _results(entries: Sequence[Entry]) -> dict[tuple[int | None, str | None], ToolResult]:
    """Return the results of tools, by turn and call."""
    results: dict[tuple[int | None, str | None], ToolResult] = {}
    for entry in entries:
        fact = entry.fact
        if entry.generation is not None and isinstance(fact, ToolResult):
            results[fact.turn, fact.call_id] = fact
    return results


def _sums(entries: Sequence[Entry]) -> Sums:
    calls = prompt_tokens = output_tokens = micros = 0
    for entry in entries:
        if entry.type != "CostUpdate":
            continue
        calls += 1
        micros += entry.added_micros
        if isinstance(entry.fact, CostUpdate) and entry.fact.replaces is not None:  # the same call
            calls -= 1
        if entry.usage is not None:
            prompt_tokens += entry.usage.prompt_tokens
            output_tokens += entry.usage.output_tokens
    return Sums(calls, prompt_tokens, output_tokens, micros)


def _own_ending(entries: Sequence[Entry], kind: type[F]) -> F | None:
    """Return how a run ended by itself, of one type of fact; None where it did not."""
    for entry in entries:
        if entry.generation is not None and isinstance(entry.fact, kind):
            return entry.fact
    return None


def report_lines(replayed: Replayed) -> list[str]:
    before, after = replayed.before, replayed.after
    if replayed.same:
        return [f"{replayed.run_id}: the same (calls: {after.calls}; {format_usd(after.micros)})."]
    first = replayed.first
    if first is None:
        lines = [f"{replayed.run_id}: differs; its requests are the same."]
    else:
        names = ", ".join(part.name for part in first.parts)
        lines = [f"{replayed.run_id}: differs.", f"First in turn {first.turn}: {names}."]
        for part in first.parts:
            lines += [f"  {line}" for line in part.lines]
        lines.append(
            f"From the answer of turn {first.turn} on, it is assumed that the model would have answered the same."
        )
    about = ""
    if replayed.estimated:
        about = "about "
    lines.append(
        f"Tokens: {before.prompt_tokens:,} in and {before.output_tokens:,} out before;"
        f" {about}{after.prompt_tokens:,} and {after.output_tokens:,} now."
    )
    lines.append(
        f"Cost: {format_usd(before.micros, exact=True)} before; {about}{format_usd(after.micros, exact=True)} now."
        f" Calls: {before.calls} before; {after.calls} now."
    )
    lines += [f"- {note}" for note in replayed.notes]
    return lines

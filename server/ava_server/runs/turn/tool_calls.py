"""Tool calls: runs the tools that a model calls, and turns their output into the model's input.

A `ToolCall` is committed before its tool starts. A `ToolResult` is exactly what the model is shown: cleaned, redacted,
cut to the tool's length and wrapped as untrusted. Everything that is written down keeps `{{secret:NAME}}`; the value
exists only while the tool works.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from pydantic import ValidationError

from ava_audit.errors import AuditError
from ava_audit.events import Activity, ActReason, Asked, Fact, GuardrailTripped, ToolCall, ToolResult
from ava_audit.redaction import RunRedactor, redact_fragments
from ava_roles.errors import ToolFailed
from ava_roles.placeholders import InjectedSecret, has_placeholder
from ava_roles.sandbox.path_access import make_folders
from ava_roles.tool import Source, Tool, ToolArgs, ToolOutput, ToolSpec, status_sentence
from ava_roles.tools.run import ASK
from ava_roles.wrap import clean, wrap_tool_output
from ava_server import telemetry
from ava_server.core.shortage import shortage_in
from ava_server.core.threads import compute_alone, run_apart
from ava_server.core.untrusted import SHORT_CHARS, hide_apart
from ava_server.models.base import ToolUse
from ava_server.models.json_text import object_fault
from ava_server.runs.asking.questions import GIVEN_CHARS, MOST_GIVEN, Ask, Doubt, shown_options
from ava_server.runs.coder.coding import learn_private_keys, tell_too_many_keys
from ava_server.runs.journal.log import ms_since
from ava_server.runs.origins.call_values import leaves
from ava_server.runs.origins.origins import NAME_CHARS, Origins, visible
from ava_server.runs.record.claims import Paused
from ava_server.runs.record.history import call_key, edited_path
from ava_server.runs.record.invalid_answers import explain_cut_call
from ava_server.runs.record.submit import arguments_fault
from ava_server.runs.turn.context import ActiveRun, SecretRefused
from ava_server.runs.turn.model_call import PaidSearches

log = logging.getLogger("ava.run")
MOST_CALLS = 16
"""Most tool calls of one answer that are run; the bound of the wrap-up has room for a line of each."""
TITLE_CHARS = 200
"""Characters of a source's title that are kept: its document says what that is, and it may be any length."""
SAME_CALL_WARNED_AT = 3
"""How often the same call had the same result when the model is warned."""
SAME_CALL_REFUSED_FROM = 5
"""From this time on the same call is refused."""
SAME_CALL_ENDS_AT = 20
"""At this time the run ends."""
EDITS_WARNED_AT = 3
"""Failed edits of one file in a row at which the model is warned."""
EDITS_END_AT = 5
"""Failed edits of one file in a row at which the run ends."""

ENDED_BECAUSE: Mapping[str, str] = {
    "same_call": f"the same tool call with the same result, {SAME_CALL_ENDS_AT} times",
    "failed_edits": f"{EDITS_END_AT} failed edits of one file in a row",
}
"""Why a run ends, by the guardrail that ends it."""


REFUSED_ACTS: Mapping[ActReason, str] = {
    "role": "the role has a person asked before each call of this tool",
    "destroys": "the tool can destroy something",
    "again": "the same call has been made before, and succeeded or may have",
    "no_values": "this call changes something, and nothing that it passes can be compared with the task",
}
"""What a model is told of a call that was refused for what it does."""


class ToolCalls:
    """The tool calls of one run."""

    def __init__(self, run: ActiveRun) -> None:
        self._run = run
        self._context = context = run.context
        self._log = run.log
        self._history = run.log.history
        self.place = replace(context.place, say=run.say, run_id=run.log.run.id)
        self.nonce = (self._history.prefix or context.started).nonce
        self._max_calls = run.config.max_tool_calls
        self._searches = PaidSearches(context.search, run) if context.search is not None else None
        self._ready: dict[str, _Ready] = {}
        self._admitted = set[str]()
        self._begun: dict[str, ToolCall] = {}
        self._keys_known = False
        specs = {name: tool.spec for name, tool in context.tools.items()}
        self._origins = Origins(self._history, context.effects, specs)

    async def run(self, calls: Sequence[ToolUse]) -> Paused | None:
        """Run each call of an answer that has no result yet: concurrently when all only read, else in order.

        The first 16 are run while the run's cap on tool calls allows it; the others are refused. Questions come last:
        with one, the run pauses, and its next owner calls this again. After a crash or a pause, calls with a result are
        skipped, and calls that had begun are not counted again.
        """
        admitted, refused = self._admit(calls)
        ids = {call.call_id for call in admitted}
        self._admitted |= ids
        try:
            return await self._carry_out(admitted, refused)
        finally:
            self._admitted -= ids
            for call_id in ids:
                self._begun.pop(call_id, None)

    async def _carry_out(self, admitted: list[ToolUse], refused: list[tuple[ToolUse, str]]) -> Paused | None:
        asking = [call for call in admitted if call.name == ASK.name]
        admitted = [call for call in admitted if call.name != ASK.name]
        doubtful: dict[str, tuple[Doubt, ...]] = {}
        for call in admitted:
            doubts = await self._doubts(call)
            if doubts:
                doubtful[call.call_id] = doubts
        if not doubtful and all(self._reads_only(call) for call in admitted):
            await self._together(admitted)
        else:
            pause = await self._in_order(admitted, doubtful, refused)
            if pause is not None:
                return pause
        for call, why in refused:
            await self.refuse(call, why)
        if self._history.tripped is not None:
            return None
        for call in asking:
            pause = await self._pause_to_ask(call)
            if pause is not None:
                return pause
            await self._call(call, first=not admitted)
        return None

    def _admit(self, calls: Sequence[ToolUse]) -> tuple[list[ToolUse], list[tuple[ToolUse, str]]]:
        """Return the calls without a result that may be run, and the others of them with why not."""
        # Another agent may make several calls at once: those that are admitted and not recorded yet count too.
        allowed = self._max_calls - self._history.tool_calls - len(self._admitted - self._history.started.keys())
        admitted: list[ToolUse] = []
        refused: list[tuple[ToolUse, str]] = []
        for number, call in enumerate(calls):
            if call.call_id in self._history.results:
                continue
            if call.call_id in self._history.started:
                admitted.append(call)
            elif number >= MOST_CALLS:
                refused.append((call, f"more than {MOST_CALLS} calls at once; ask again"))
            elif allowed <= 0:
                refused.append((call, f"the cap of {self._max_calls} tool calls is reached; call submit_result now"))
            else:
                allowed -= 1
                admitted.append(call)
        return admitted, refused

    async def _in_order(
        self, calls: Sequence[ToolUse], doubtful: Mapping[str, tuple[Doubt, ...]], refused: list[tuple[ToolUse, str]]
    ) -> Paused | None:
        """Run calls one after the other until a person has to be asked; adds to `refused` after a guardrail."""
        for number, call in enumerate(calls):
            if self._history.tripped is not None and call.call_id not in self._history.started:
                refused.append((call, "a guardrail has ended this run"))
                continue
            held = await self._hold_back(call, doubtful.get(call.call_id, ()))
            if isinstance(held, Paused):
                return held
            if not held:
                await self._call(call, number == 0)
            self._begun.pop(call.call_id, None)
        return None

    async def _pause_to_ask(self, call: ToolUse) -> Paused | None:
        """Return the pause in which a call's question waits; None where the call itself has an answer or a refusal."""
        ready = self._ready.get(call.call_id) or self._check_call(call)
        if isinstance(ready, str) or not isinstance(ready.tool, Ask) or self._repeats(call):
            return None
        question = await ready.tool.new_question(call.call_id, self._run.work_s(self._run.left_s))
        if question is None:
            return None
        started = await self._started_fact(call)
        if call.call_id not in self._history.started:
            await self._log.record(Activity(activity=ready.sentence), started)
        marks = self._origins.marks(shown_options(started.args))
        return Paused(question.model_copy(update={"values": marks}))

    async def _doubts(self, call: ToolUse) -> tuple[Doubt, ...]:
        """Return the values of a call that nobody approved; none of one that has begun, or cannot be made."""
        tool = self._context.tools.get(call.name)
        if tool is None or call.args is None or call.call_id in self._history.started:
            return ()
        if self._origins.is_long(tool, len(call.raw_args)):
            return await self._origins.doubts_apart(tool, call.args)
        return self._origins.doubts(tool, call.args)

    async def _hold_back(self, call: ToolUse, doubts: tuple[Doubt, ...]) -> Paused | bool:
        """Return the pause in which a person is asked to allow a call, or whether it was refused."""
        act = await self._act(call)
        if not doubts and not act:
            return False
        question = self._history.questions.get(call.call_id)
        ask = self._context.ask
        shown = [replace(each, argument=self._hide(each.argument), value=self._hide(each.value)) for each in doubts]
        refused = {value for _tool, _argument, value in self._history.decided_values(allowed=False)}
        given = await self._given(call) if act else ()
        is_denied = any(each.value in refused for each in shown) or self._is_act_denied(call, act, given)
        if question is None and ask is not None and not is_denied:
            question = await ask.to_allow(call, self._run.work_s(self._run.left_s), shown, act, given)
            if question is not None:
                return Paused(question)
        if question is not None and self._is_allowed(question, shown, act):
            return False
        why = "the person does not allow it" if is_denied else "nobody allowed it"
        if doubts:
            await self._refuse_values(call, doubts, why)
        else:
            await self._refuse_act(call, act, why)
        return True

    async def _act(self, call: ToolUse) -> ActReason:
        """Return why a call itself is asked about; empty for one that has begun, or cannot be made."""
        tool = self._context.tools.get(call.name)
        if tool is None or call.args is None or call.call_id in self._history.started:
            return ""
        if not self._origins.judges_act(tool):
            return ""
        started = await self._started_fact(call)
        others = list(self._begun.values())  # another agent may make an equal call at the same time
        self._begun[call.call_id] = started
        if self._origins.is_long(tool, len(call.raw_args)):
            return await self._origins.act_apart(tool, started.args, others)
        return self._origins.act(tool, started.args, others)

    async def _given(self, call: ToolUse) -> tuple[dict[str, str], ...]:
        """Return what a call passes, as a person is shown it."""
        args = await hide_apart(partial(self._hide_args, call), len(call.raw_args))
        given: list[dict[str, str]] = []
        for argument, value in args.items():
            for leaf in leaves(value):
                given.append({"argument": argument[:NAME_CHARS], "value": visible(leaf)[:GIVEN_CHARS]})
        if len(given) > MOST_GIVEN:
            others = len(given) - MOST_GIVEN
            given[MOST_GIVEN:] = [{"argument": "others", "value": f"{others} more values"}]
        return tuple(given)

    def _is_act_denied(self, call: ToolUse, act: ActReason, given: tuple[dict[str, str], ...]) -> bool:
        """Tell whether a person has not allowed this call before, or any of its tool without values."""
        for question in self._history.decided_acts(allowed=False):
            if act and question.tool == call.name and (question.act == act == "no_values" or question.given == given):
                return True
        return False

    def _is_allowed(self, question: Asked, shown: Sequence[Doubt], act: ActReason) -> bool:
        """Tell whether a person has answered, and was asked about each of these values, and about the call itself."""
        answer = self._history.answers.get(question.ask_id)
        if answer is None or not answer.by_person or (act and not question.act):
            return False
        asked_about = {(each["argument"], each["value"]) for each in question.values}
        return asked_about.issuperset((each.argument, each.value) for each in shown)

    async def _refuse_values(self, call: ToolUse, doubts: tuple[Doubt, ...], why: str) -> None:
        names = ", ".join(dict.fromkeys(f"{each.argument} (from {each.source or 'no source'})" for each in doubts))
        refusal = (
            f"Refused: {names} is neither in the task nor from a source that this role has for it, and {why}. Do not"
            " try it in another form; do the rest, and say in the caveats what was left out."
        )
        await self._log.record(
            GuardrailTripped(guardrail="origin", action="refused", tool=call.name, count=len(doubts)),
            self._result(call, refusal, success=False),
        )

    async def _refuse_act(self, call: ToolUse, act: ActReason, why: str) -> None:
        refusal = (
            f"Refused: {REFUSED_ACTS[act]}, and {why}. Do not try it in another form; do the rest, and say in the"
            " caveats what was left out."
        )
        await self._log.record(
            GuardrailTripped(guardrail="origin", action="refused", tool=call.name, count=1),
            self._result(call, refusal, success=False),
        )

    def start_facts(self, calls: Sequence[ToolUse]) -> list[Fact]:
        """Return the facts to record before an answer's tools start, if all of them can start at once; else none.

        They are committed with the answer, which saves a commit. This holds only for calls that read: one that changes
        things is recorded right before it starts.
        """
        self._ready = {}
        twice = len({call.call_id for call in calls}) < len(calls)
        if twice or len(calls) > min(MOST_CALLS, self._max_calls - self._history.tool_calls):
            return []
        facts: list[Fact] = []
        ready: dict[str, _Ready] = {}
        for call in calls:
            ready_call = self._check_call(call)
            if isinstance(ready_call, str) or not self._starts_at_once(call, ready_call.tool):
                return []
            ready[call.call_id] = ready_call
            if not facts:
                facts.append(Activity(activity=ready_call.sentence))
            facts.append(self._tool_call(call, self._hide_args(call)))
        self._ready = ready
        return facts

    def _starts_at_once(self, call: ToolUse, tool: Tool) -> bool:
        """Tell whether nothing has to be done or asked before a call starts: it only reads, and has no secret."""
        if not tool.spec.read_only or has_placeholder(call.args):
            return False
        if len(call.raw_args) > SHORT_CHARS:  # it is searched for secrets in a thread
            return False
        if self._repeats(call):
            return False
        if self._origins.is_long(tool, len(call.raw_args)):
            return False
        return not self._origins.doubts(tool, call.args or {})

    def _check_call(self, call: ToolUse) -> _Ready | str:
        """Return a call that can be run, or why it is refused."""
        said = self._history.answer
        if said is not None:
            cut = explain_cut_call(said, self._history.calls, call)
            if cut is not None:
                return cut
        tool = self._context.tools.get(call.name)
        if tool is None:
            names = ", ".join(sorted(self._context.tools))
            return f"there is no tool {call.name[:60]!r}; yours are {names} and submit_result"
        if call.args is None:
            return f"the arguments are not a JSON object: {object_fault(call.raw_args)}; send one object"
        try:
            args = tool.spec.args.model_validate(dict(call.args))
        except ValidationError as error:
            return arguments_fault(error, call.name, tool.spec.args)
        return _Ready(tool, args, status_sentence(tool.activity(args), self._hide))

    def _repeats(self, call: ToolUse) -> int:
        """Return how often this call was made with the same result, if it is refused for that; else 0."""
        repeat = self._history.repeats.get(call_key(call))
        if repeat is None or repeat.count + 1 < SAME_CALL_REFUSED_FROM:
            return 0
        return repeat.count + 1

    async def _started_fact(self, call: ToolUse) -> ToolCall:
        return self._tool_call(call, await hide_apart(partial(self._hide_args, call), len(call.raw_args)))

    def _hide_args(self, call: ToolUse) -> dict[str, Any]:
        """Return the arguments that are recorded; the tool itself gets what the model wrote."""
        hidden: dict[str, Any] = self._context.redactor.redact_json(dict(call.args or {}))
        return hidden

    def _tool_call(self, call: ToolUse, args: dict[str, Any]) -> ToolCall:
        return ToolCall(tool=call.name, args=args, call_id=call.call_id, turn=self._history.turn)

    async def _together(self, calls: Sequence[ToolUse]) -> None:
        if len(calls) == 1:  # most answers call one tool, which needs no task of its own
            await self._call(calls[0], first=True)
            return
        try:
            async with anyio.create_task_group() as tasks:
                for number, call in enumerate(calls):
                    is_first = number == 0
                    tasks.start_soon(self._call, call, is_first)
        except ExceptionGroup as group:  # the loop of the run catches errors by their types, not a group
            raise group.exceptions[0] from group

    async def refuse(self, call: ToolUse, why: str, *, unusable: bool = False) -> None:
        """Answer a call with a refusal; `unusable` marks a call that is invalid as it is."""
        await self._log.record(self._result(call, f"Refused: {why}", success=False, unusable=unusable))

    async def answer(self, call: ToolUse, text: str) -> None:
        """Answer a call that was valid, and whose content was not accepted."""
        await self._log.record(self._result(call, text, success=False))

    def _reads_only(self, call: ToolUse) -> bool:
        tool = self._context.tools.get(call.name)
        return tool is None or tool.spec.read_only

    async def _call(self, call: ToolUse, first: bool) -> None:
        """Carry out a call and record its result, or refuse it. `first`: it is the first of its answer."""
        was_started = call.call_id in self._history.started
        if was_started and not self._reads_only(call):
            text = "Interrupted, outcome unknown: it may or may not have been done. Look before you repeat it."
            await self._log.record(self._result(call, text, success=False, unknown=True))
            return
        ready_or_refusal = self._ready.pop(call.call_id, None) or self._check_call(call)
        if isinstance(ready_or_refusal, str):
            await self.refuse(call, ready_or_refusal, unusable=True)
            return
        ready = ready_or_refusal
        tool = ready.tool
        count = self._repeats(call)
        if count:
            await self._refuse_repeat(call, count)
            return
        try:
            injected = await self._context.secret_injection.inject(tool.spec, call.args or {})
        except SecretRefused as why:
            await self.refuse(call, str(why))
            return
        self._run.say(ready.sentence)
        if not was_started:
            facts: list[Fact] = []
            if first:
                facts.append(Activity(activity=ready.sentence))
            facts.append(await self._started_fact(call))
            await self._log.record(*facts)
        began = time.monotonic()
        hide = _Redaction(self._context.redactor, learns_keys=tool.spec.files)
        output = await self._work(call, tool, ready.args, injected, hide)
        took_ms = ms_since(began)
        result = await self._make_result(call, tool, output, hide)
        await tell_too_many_keys(self._context.redactor, self._log)
        if not output.success and self._failed_edits(call) >= EDITS_END_AT:
            await self._log.record(self._too_many_failed_edits(call), result, duration_ms=took_ms)
            return
        is_last_call = len(self._history.open_calls()) == 1
        if tool.spec.read_only and is_last_call:  # the next request follows at once, and writes it
            self._log.keep(result, took_ms)
        else:
            await self._log.record(result, duration_ms=took_ms)

    async def _work(
        self, call: ToolUse, tool: Tool, args: object, injected: tuple[InjectedSecret, ...], hide: _Redaction
    ) -> ToolOutput:
        def say(doing: str) -> None:
            self._run.say(status_sentence(doing, self._hide))

        search = self.place.search
        if self._searches is not None:
            search = partial(self._searches.search, call.call_id)
        place = replace(
            self.place,
            call_id=call.call_id,
            secrets=injected,
            hide=hide.hide_in_lines,
            say=say,
            seconds_left=lambda: self._run.left_s,
            search=search,
        )
        await self._context.secret_injection.refresh()  # for what the tool hides itself, and for the rest below
        may_read_files = tool.spec.files or tool.spec.commands or tool.spec.foreign is not None
        if may_read_files and not self._keys_known and place.files is not None:
            await learn_private_keys(self._context.redactor, place.files, self._log)
            self._keys_known = True
        try:
            with telemetry.execute_tool(tool.spec.name, call.call_id, place.run_id) as span:
                output = await run_apart(self._run.tasks, lambda: tool(args, place), tool.spec.timeout_s)
                span.brought(output)
        except TimeoutError:
            return _timed_out(tool.spec)
        except ToolFailed as error:
            output = ToolOutput(str(error), success=False, unknown=error.unknown, unread=error.unread)
        except Exception as error:
            says_no_value = isinstance(error, AuditError) or shortage_in(error)
            if injected and not says_no_value:  # an internal error, whose message and traceback may hold a value
                raise RuntimeError(f"{type(error).__name__} in {tool.spec.name}") from None
            raise
        await self._context.secret_injection.refresh()
        if not injected:
            return output
        return await anyio.to_thread.run_sync(self._without_secrets, output, injected, hide)

    def _hide(self, text: str) -> str:
        return self._context.redactor.redact(clean(text)[0])[0]

    def _without_secrets(
        self, output: ToolOutput, injected: tuple[InjectedSecret, ...], hide: _Redaction
    ) -> ToolOutput:
        """Return an output without any piece of the injected secrets: the other side may send them back."""

        def without(text: str) -> str:
            for each in injected:
                text, _pieces = redact_fragments(text, each.name, each.value)
            return text

        text = without(hide(output.text))
        sources: list[Source] = []
        for source in output.sources:
            location = without(self._hide(source.location))
            title = source.title and without(self._hide(source.title))
            sources.append(Source(location, title))  # no hash: what was sent back may have had the secret in it
        return replace(output, text=text, sources=tuple(sources))

    async def _make_result(self, call: ToolUse, tool: Tool, output: ToolOutput, hide: _Redaction) -> ToolResult:
        """Return the result as the model is shown it; where it is cut, save the original."""
        text = hide(output.text)
        sha = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        scratch = None
        chars = len(text)
        rest = ""  # where the rest of a cut output is
        sources = output.sources
        if chars > tool.spec.max_chars:
            scratch = f"{sha[:32]}.txt"
            why = await anyio.to_thread.run_sync(_keep, self._context.scratch, scratch, text)
            text, shown = _cut(text, tool.spec)
            rest = f"read_tool_result R-{sha[:8]} with offset {shown} goes on"
            if why is not None:
                scratch = None
                rest = f"the rest was not kept: {why}"
            # Those that the shown part names, or all where it names none.
            sources = tuple(source for source in sources if source.location in text) or sources
        body = text
        if not output.own:
            body = wrap_tool_output(text, tool=call.name, nonce=self.nonce, removed=sum(hide.counts))
        if rest:
            body += f"\n[cut at {tool.spec.max_chars} of {chars} characters; {rest}]"
        if not output.success:
            body = f"Failed.\n{body}"
        body += await self._warnings(call, output, sha)
        return ToolResult(
            tool=call.name,
            success=output.success,
            output=body,
            output_sha=sha,
            call_id=call.call_id,
            turn=self._history.turn,
            count=output.count,
            chars=chars,
            scratch=scratch,
            sources=tuple(self._source_fields(source, hashed=not any(hide.secrets)) for source in sources),
            unread=output.unread or None,
            unread_little=output.unread_little or None,
            unknown=output.unknown or None,
        )

    async def _warnings(self, call: ToolUse, output: ToolOutput, sha: str) -> str:
        """Record what a guardrail warns of at this result, and return the warnings, each on a line of its own."""
        warnings = ""
        repeat = self._history.repeats.get(call_key(call))
        if repeat is not None and repeat.output_sha == sha and repeat.count + 1 == SAME_CALL_WARNED_AT:
            await self._log.record(
                GuardrailTripped(guardrail="same_call", action="told", tool=call.name, count=SAME_CALL_WARNED_AT)
            )
            warnings += (
                f"\n[this is the {SAME_CALL_WARNED_AT}rd time that this very call brought this very result; do"
                " something else]"
            )
        if not output.success and self._failed_edits(call) == EDITS_WARNED_AT:
            warned = GuardrailTripped(guardrail="failed_edits", action="told", tool=call.name, count=EDITS_WARNED_AT)
            await self._log.record(warned)
            warnings += (
                f"\n[the {EDITS_WARNED_AT}rd edit of this file in a row that failed; at the {EDITS_END_AT}th this run"
                " ends: read the file again, then quote it exactly]"
            )
        return warnings

    def _source_fields(self, source: Source, *, hashed: bool) -> dict[str, str | None]:
        """Return the fields of a source that the log keeps.

        It has no hash of a file in which a secret was hidden: from that and the rest of the file, the secret could be
        guessed. Nor of one whose name is not as it was, because nobody can find that again.
        """
        location = self._hide(source.location)
        title = source.title and self._hide(source.title)[:TITLE_CHARS]
        fields = {"location": location, "title": title}
        if source.sha256 and hashed and location == source.location:
            fields["sha256"] = source.sha256
        return fields

    def _failed_edits(self, call: ToolUse) -> int:
        """Return how many edits of a call's file failed in a row, with this one; 0 for a call that edits none."""
        path = edited_path(call)
        if path is None:
            return 0
        return self._history.failed_edits.get(path, 0) + 1

    def _too_many_failed_edits(self, call: ToolUse) -> GuardrailTripped:
        count = self._failed_edits(call)
        return GuardrailTripped(guardrail="failed_edits", action="ended", tool=call.name, count=count)

    async def _refuse_repeat(self, call: ToolUse, count: int) -> None:
        """Refuse a call that had the same result too often; at the last time the run ends."""
        if self._failed_edits(call) >= EDITS_END_AT:
            tripped = self._too_many_failed_edits(call)
        else:
            action = "ended" if count >= SAME_CALL_ENDS_AT else "refused"
            tripped = GuardrailTripped(guardrail="same_call", action=action, tool=call.name, count=count)
        refusal = f"Refused: this very call brought the same result {count - 1} times. Use what you have."
        await self._log.record(tripped, self._result(call, refusal, success=False))

    def _result(
        self, call: ToolUse, text: str, *, success: bool, unusable: bool = False, unknown: bool = False
    ) -> ToolResult:
        return ToolResult(
            tool=self._hide(call.name)[:100],
            success=success,
            output=self._hide(text),
            call_id=call.call_id,
            turn=self._history.turn,
            unusable=unusable or None,
            unknown=unknown or None,
        )


@dataclass(frozen=True, slots=True)
class _Ready:
    """A call that can be made: its tool, its checked arguments, and what the status line says of it."""

    tool: Tool
    args: ToolArgs
    sentence: str


_LONG_TEXT = 100_000


@dataclass(frozen=True, slots=True)
class _Redaction:
    """Cleans and redacts the texts of one call, and counts the invisible characters and the secrets that it removes.

    It learns private keys only where the texts are the run's own files, never from a page.
    """

    redactor: RunRedactor
    learns_keys: bool = False
    counts: list[int] = field(default_factory=list[int])
    secrets: list[int] = field(default_factory=list[int])

    def __call__(self, text: str) -> str:
        cleaned, invisible = clean(text)
        self.counts.append(invisible)
        redacted, secrets = self.redactor.redact(cleaned)
        self.secrets.append(secrets)
        return redacted

    def hide_in_lines(self, text: str) -> str:
        """Return a text with its secrets hidden; lines without a secret stay unchanged. Blocks."""
        with compute_alone() if len(text) > _LONG_TEXT else contextlib.nullcontext():
            cleaned, invisible = clean(text)
            if self.learns_keys:
                self.redactor.learn_private_keys(cleaned)
            redacted, secrets = self.redactor.redact_lines(cleaned)
        self.secrets.append(secrets)
        if not secrets:
            return text
        if not invisible:
            return redacted
        lines: list[str] = []
        originals = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for original, before, after in zip(originals, cleaned.split("\n"), redacted.split("\n"), strict=True):
            lines.append(original if after == before else after)
        return "\n".join(lines)


def _timed_out(spec: ToolSpec) -> ToolOutput:
    unread = f"{spec.name} did not finish within {spec.timeout_s:g} s, and returned nothing." if spec.reads else ""
    text = f"Timed out after {spec.timeout_s:g} s. Ask for less at once."
    return ToolOutput(text, success=False, unread=unread, unknown=spec.writes)


def _cut(text: str, spec: ToolSpec) -> tuple[str, int]:
    """Return the part of a long output that is shown, and how many characters of its beginning that has."""
    if not spec.both_ends:
        return text[: spec.max_chars], spec.max_chars
    head = spec.max_chars // 4
    tail = spec.max_chars - head - 60
    return f"{text[:head]}\n[… {len(text) - head - tail} characters left out here …]\n{text[-tail:]}", head


def _keep(folder: Path, name: str, text: str) -> str | None:
    """Save a complete output; return why it cannot be saved, or None."""
    path = folder / name
    try:
        make_folders(folder, folder.parent.parent)  # the data root
        path.write_text(text, "utf-8")
    except OSError as error:
        if shortage_in(error):  # of open files: the run continues later
            raise
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)  # half of it would be read as the whole
        log.warning("a tool's output was not saved in %s: %s", folder, error)
        return error.strerror or type(error).__name__
    return None

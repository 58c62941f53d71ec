"""Tool calls: the one way by which a subagent's call becomes a tool's work, and its output the model's input.

A `ToolCall` is committed before its tool starts, and a `ToolResult` is exactly what the model is shown: cleaned,
redacted, cut to the tool's length, wrapped as untrusted. `{{secret:NAME}}` stays as it is in everything that is written
down; its value is there only while the tool works.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import anyio.to_thread
from pydantic import ValidationError

from ava_audit.events import Activity, Fact, GuardrailTripped, ToolCall, ToolResult
from ava_audit.redaction.redact import Redactor, hide_pieces
from ava_roles.errors import ToolFailed
from ava_roles.placeholders import InjectedSecret, has_placeholder
from ava_roles.tool import Source, Tool, ToolArgs, ToolContext, ToolOutput, ToolSpec, status_sentence
from ava_roles.wrap import clean, wrap_tool_output
from ava_server.core.threads import run_apart
from ava_server.models.base import ToolUse
from ava_server.models.wires.base import object_fault
from ava_server.runs.answer_faults import cut_call
from ava_server.runs.context import SecretInjection, SecretRefused
from ava_server.runs.history import History, call_key, edited_path
from ava_server.telemetry import spans

MOST_CALLS = 16
"""Tool calls of one answer that are run; the wrap-up's bound has room for as many lines."""
TOLD_AT, REFUSED_FROM, ENDED_AT = 3, 5, 20
"""The same call with the same result: told at the 3rd, refused from the 5th, the run ended at the 20th."""

EDITS_TOLD_AT, EDITS_ENDED_AT = 3, 5
"""Failed edits of one file in a row: told at the 3rd, the run ended at the 5th."""

ENDED_BECAUSE: Mapping[str, str] = {
    "same_call": f"the same tool call with the same result, {ENDED_AT} times",
    "failed_edits": f"{EDITS_ENDED_AT} failed edits of one file in a row",
}
"""Why a run ends, by the guardrail that ends it."""

Record = Callable[..., Awaitable[None]]
"""Appends facts to the log under the run's claim, and folds them into its history."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A call that can be made: its tool, its checked arguments, and what the status line says of it."""

    tool: Tool
    args: ToolArgs
    sentence: str


@dataclass(frozen=True, slots=True)
class _Hiding:
    """Makes the texts of one call fit to be shown, and counts what nobody sees in them, which is taken out."""

    redactor: Redactor
    counts: list[int] = field(default_factory=list[int])

    def __call__(self, text: str) -> str:
        """Return a text as it may be written down and shown."""
        seen, removed = clean(text)
        self.counts.append(removed)  # not added up here: tools call this from several threads at once
        return self.redactor.redact(seen)[0]


@dataclass
class ToolCalls:
    """Everything that tool calls of one run need.

    Attributes:
        tools: The tools on offer, by name.
        place: Where they work.
        history: The run's history.
        record: Writes facts under the run's claim.
        keep: Writes a result with whatever is written next.
        redactor: Replaces configured secret values before the model sees them.
        lending: Decides which secrets a call may send.
        scratch: The run's folder for outputs that were cut.
        nonce: The run's own random word in the wrapper of untrusted text.
        max_calls: The run's cap on tool calls.
        say: Shows a sentence in the status line.
        tasks: Where a tool works; one that ignores its cancellation is left there.
    """

    tools: Mapping[str, Tool]
    place: ToolContext
    history: History
    record: Record
    keep: Callable[[ToolResult, int], None]
    redactor: Redactor
    lending: SecretInjection
    scratch: Path
    nonce: str
    max_calls: int
    say: Callable[[str], None]
    tasks: anyio.abc.TaskGroup
    _ready: dict[str, _Ready] = field(default_factory=dict[str, "_Ready"], init=False)

    async def run(self, calls: Sequence[ToolUse]) -> None:
        """Give each call of one answer that has no result yet one: side by side when all only read, else in order.

        The first 16 are run while the run's cap on tool calls allows; the others are refused. After a crash the same
        way is gone again: what has a result is passed over, what had begun was counted then.
        """
        begun = self.history.started
        allowed = self.max_calls - self.history.tool_calls
        admitted: list[ToolUse] = []
        refused: list[tuple[ToolUse, str]] = []
        for number, call in enumerate(calls):
            if call.call_id in self.history.results:
                continue
            if call.call_id in begun:
                admitted.append(call)
            elif number >= MOST_CALLS:
                refused.append((call, f"more than {MOST_CALLS} calls at once; ask again"))
            elif allowed <= 0:
                refused.append((call, f"the cap of {self.max_calls} tool calls is reached; call submit_result now"))
            else:
                allowed -= 1
                admitted.append(call)
        if all(self._reads_only(call) for call in admitted):
            await self._together(admitted)
        else:
            for number, call in enumerate(admitted):
                if self.history.tripped is not None and call.call_id not in begun:
                    refused.append((call, "a guardrail has ended this run"))
                else:
                    await self._call(call, number == 0)
        for call, why in refused:
            await self.refuse(call, why)

    def begun(self, calls: Sequence[ToolUse]) -> list[Fact]:
        """Return what is written of an answer's calls before their tools start, if all of them can start right away.

        It is committed with the answer itself, which saves a commit. Only for calls that just read: one that changes
        things is known to have begun only when it is the next thing that happens.
        """
        self._ready = {}
        twice = len({call.call_id for call in calls}) < len(calls)
        if twice or len(calls) > min(MOST_CALLS, self.max_calls - self.history.tool_calls):
            return []
        facts: list[Fact] = []
        ready: dict[str, _Ready] = {}
        for call in calls:
            found = self._fitting(call)
            if (
                isinstance(found, str)
                or not found.tool.spec.read_only
                or has_placeholder(call.args)
                or self._repeats(call)
            ):
                return []
            ready[call.call_id] = found
            if not facts:
                facts.append(Activity(activity=found.sentence))
            facts.append(self._begins(call))
        self._ready = ready
        return facts

    def _fitting(self, call: ToolUse) -> _Ready | str:
        """Return a call as it can be made, or why it is refused."""
        said = self.history.answer
        if said is not None and (cut := cut_call(said, self.history.calls, call)) is not None:
            return cut
        tool = self.tools.get(call.name)
        if tool is None:
            names = ", ".join(sorted(self.tools))
            return f"there is no tool {call.name[:60]!r}; yours are {names} and submit_result"
        if call.args is None:
            return f"the arguments are not a JSON object: {object_fault(call.raw_args)}; send one object"
        try:
            args = tool.spec.args.model_validate(dict(call.args))
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(str(part) for part in fault["loc"]) or "arguments"
            takes = ", ".join(tool.spec.args.model_fields)
            return f"{where}: {fault['msg']}; {call.name} takes {takes}"
        return _Ready(tool, args, status_sentence(tool.activity(args), self._hidden))

    def _repeats(self, call: ToolUse) -> int:
        """Return how often this very call has come now, where it is refused for that; else 0."""
        seen = self.history.repeats.get(call_key(call))
        return seen.count + 1 if seen is not None and seen.count + 1 >= REFUSED_FROM else 0

    def _begins(self, call: ToolUse) -> ToolCall:
        return ToolCall(tool=call.name, args=dict(call.args or {}), call_id=call.call_id, turn=self.history.turn)

    async def _together(self, calls: Sequence[ToolUse]) -> None:
        if len(calls) == 1:  # most answers ask for one, which needs no task of its own
            await self._call(calls[0], first=True)
            return
        try:
            async with anyio.create_task_group() as tasks:
                for number, call in enumerate(calls):
                    tasks.start_soon(self._call, call, number == 0)
        except ExceptionGroup as group:  # the first fault is the run's fault; the loop knows it by its own name
            raise group.exceptions[0] from group

    async def refuse(self, call: ToolUse, why: str, *, unusable: bool = False) -> None:
        """Answer a call with a refusal instead of running it; `unusable` says that it could not be made as it is."""
        await self.record(self._result(call, f"Refused: {why}", success=False, unusable=unusable))

    async def answer(self, call: ToolUse, text: str) -> None:
        """Answer a call that failed for what it handed over, and not for how it was made."""
        await self.record(self._result(call, text, success=False))

    def _reads_only(self, call: ToolUse) -> bool:
        tool = self.tools.get(call.name)
        return tool is None or tool.spec.read_only

    async def _call(self, call: ToolUse, first: bool) -> None:
        if call.call_id in self.history.started and not self._reads_only(call):
            text = "Interrupted, outcome unknown: it may or may not have been done. Look before you repeat it."
            await self.record(self._result(call, text, success=False))
            return
        found = self._ready.pop(call.call_id, None) or self._fitting(call)
        if isinstance(found, str):
            await self.refuse(call, found, unusable=True)
            return
        tool = found.tool
        if count := self._repeats(call):
            await self._again(call, count)
            return
        try:
            lent = await self.lending.lend(tool.spec, call.args or {})
        except SecretRefused as why:
            await self.refuse(call, str(why))
            return
        self.say(found.sentence)
        if call.call_id not in self.history.started:
            before: tuple[Fact, ...] = (Activity(activity=found.sentence),) if first else ()
            await self.record(*before, self._begins(call))
        began = time.monotonic()
        hide = _Hiding(self.redactor)
        output = await self._work(call, tool, found.args, lent, hide)
        took_ms = round((time.monotonic() - began) * 1000)
        result = await self._shown(call, tool, output, hide)
        if not output.success and self._failed_edits(call) >= EDITS_ENDED_AT:
            await self.record(self._ends_edits(call), result, duration_ms=took_ms)
            return
        if tool.spec.read_only and len(self.history.open_calls()) == 1:  # the next request follows at once
            self.keep(result, took_ms)
        else:
            await self.record(result, duration_ms=took_ms)

    async def _work(
        self, call: ToolUse, tool: Tool, args: object, lent: tuple[InjectedSecret, ...], hide: _Hiding
    ) -> ToolOutput:
        place = replace(self.place, secrets=lent, hide=hide, say=self._say)
        try:
            with spans.execute_tool(tool.spec.name, call.call_id, place.run_id) as span:
                output = await run_apart(self.tasks, lambda: tool(args, place), tool.spec.timeout_s)
                span.brought(output)
        except TimeoutError:
            return ToolOutput(f"Timed out after {tool.spec.timeout_s:g} s. Ask for less at once.", success=False)
        except ToolFailed as error:
            output = ToolOutput(str(error), success=False)
        except Exception as error:
            if lent:  # a bug of ours, whose words and traceback may hold a value
                raise RuntimeError(f"{type(error).__name__} in {tool.spec.name}") from None
            raise
        await self.lending.refresh()
        return await anyio.to_thread.run_sync(self._without, output, lent, hide) if lent else output

    def _say(self, doing: str) -> None:
        self.say(status_sentence(doing, self._hidden))

    def _hidden(self, text: str) -> str:
        """Return a text as it may be written down and shown."""
        return self.redactor.redact(clean(text)[0])[0]

    def _without(self, output: ToolOutput, lent: tuple[InjectedSecret, ...], hide: _Hiding) -> ToolOutput:
        """Return what a call brought without any piece of what was put into it: whoever got it may send it back."""

        def hidden(text: str, hide: Callable[[str], str] = self._hidden) -> str:
            text = hide(text)
            for each in lent:
                text, _pieces = hide_pieces(text, each.name, each.value)
            return text

        sources = tuple(
            Source(hidden(source.location), source.title and hidden(source.title)) for source in output.sources
        )
        return replace(output, text=hidden(output.text, hide), sources=sources)

    async def _shown(self, call: ToolUse, tool: Tool, output: ToolOutput, hide: _Hiding) -> ToolResult:
        """Return the result as the model is shown it, and keep the original where it was cut."""
        text = hide(output.text)
        sha = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        scratch, whole, shown = None, len(text), len(text)
        if whole > tool.spec.max_chars:
            scratch = f"{sha[:32]}.txt"
            await anyio.to_thread.run_sync(_keep, self.scratch, scratch, text)
            text, shown = _cut(text, tool.spec)
        body = wrap_tool_output(text, tool=call.name, nonce=self.nonce, removed=sum(hide.counts))
        if scratch is not None:
            goes_on = f"read_tool_result R-{sha[:8]} with offset {shown} goes on"
            body += f"\n[cut at {tool.spec.max_chars} of {whole} characters; {goes_on}]"
        if not output.success:
            body = f"Failed.\n{body}"
        repeat = self.history.repeats.get(call_key(call))
        if repeat is not None and repeat.output_sha == sha and repeat.count + 1 == TOLD_AT:
            await self.record(GuardrailTripped(guardrail="same_call", action="told", tool=call.name, count=TOLD_AT))
            body += f"\n[this is the {TOLD_AT}rd time that this very call brought this very result; do something else]"
        if not output.success and self._failed_edits(call) == EDITS_TOLD_AT:
            told = GuardrailTripped(guardrail="failed_edits", action="told", tool=call.name, count=EDITS_TOLD_AT)
            await self.record(told)
            body += (
                f"\n[the {EDITS_TOLD_AT}rd edit of this file in a row that failed; at the {EDITS_ENDED_AT}th this run"
                " ends: read the file again, then quote it exactly]"
            )
        return ToolResult(
            tool=call.name,
            success=output.success,
            output=body,
            output_sha=sha,
            call_id=call.call_id,
            turn=self.history.turn,
            count=output.count,
            chars=whole,
            scratch=scratch,
            sources=tuple(
                {"location": self._hidden(source.location), "title": source.title and self._hidden(source.title)}
                for source in output.sources
            ),
        )

    def _failed_edits(self, call: ToolUse) -> int:
        """Return how many edits of a call's file have failed in a row, this one too; 0 for a call that edits none."""
        path = edited_path(call)
        return 0 if path is None else self.history.failed_edits.get(path, 0) + 1

    def _ends_edits(self, call: ToolUse) -> GuardrailTripped:
        count = self._failed_edits(call)
        return GuardrailTripped(guardrail="failed_edits", action="ended", tool=call.name, count=count)

    async def _again(self, call: ToolUse, count: int) -> None:
        action = "ended" if count >= ENDED_AT else "refused"
        tripped = GuardrailTripped(guardrail="same_call", action=action, tool=call.name, count=count)
        await self.record(
            self._ends_edits(call) if self._failed_edits(call) >= EDITS_ENDED_AT else tripped,
            self._result(
                call,
                f"Refused: this very call brought the same result {count - 1} times. Use what you have.",
                success=False,
            ),
        )

    def _result(self, call: ToolUse, text: str, *, success: bool, unusable: bool = False) -> ToolResult:
        return ToolResult(
            tool=call.name[:100],
            success=success,
            output=self._hidden(text),
            call_id=call.call_id,
            turn=self.history.turn,
            unusable=unusable or None,
        )


def _cut(text: str, spec: ToolSpec) -> tuple[str, int]:
    """Return what is shown of an output that is too long, and how many characters of its beginning that has."""
    if not spec.both_ends:
        return text[: spec.max_chars], spec.max_chars
    head = spec.max_chars // 4
    tail = spec.max_chars - head - 60
    return f"{text[:head]}\n[… {len(text) - head - tail} characters left out here …]\n{text[-tail:]}", head


def _keep(folder: Path, name: str, text: str) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / name).write_text(text, "utf-8")

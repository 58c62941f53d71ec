"""The tools that need the log. Notes and earlier outputs are part of every run, results of other runs where named."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
from pydantic import Field

from ava_roles.errors import ToolFailed
from ava_roles.tool import Source, Tool, ToolArgs, ToolContext, ToolOutput, ToolSpec
from ava_server.approval.context_from import NAME as READ_RESULT
from ava_server.approval.context_from import ReadSubagentResult
from ava_server.runs.history import History
from ava_server.runs.result import brought

NOTE_CHARS = 4_000


class ScratchpadArgs(ToolArgs):
    """Arguments of `scratchpad`."""

    note: str = Field(default="", max_length=NOTE_CHARS, description="A note to keep; leave it out to read them all.")


class Scratchpad:
    """Notes that survive the trimming of the context; they live in the log, as the calls that wrote them."""

    spec = ToolSpec(
        name="scratchpad",
        description="Keep a note, or read your notes back. Notes survive when older tool results are left out.",
        args=ScratchpadArgs,
        timeout_s=5,
    )

    def __init__(self, history: History) -> None:
        self._history = history

    def activity(self, args: ScratchpadArgs) -> str:
        """Return the sentence for the status line."""
        return "Taking a note" if args.note else "Reading its notes"

    async def __call__(self, args: ScratchpadArgs, at: ToolContext) -> ToolOutput:
        """Keep the note (the call itself is the record) and return all notes."""
        notes = [*self._history.notes, *([args.note] if args.note else [])]
        if not notes:
            return ToolOutput("There are no notes yet.", count=0)
        return ToolOutput("\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1)), count=len(notes))


class ReadToolResultArgs(ToolArgs):
    """Arguments of `read_tool_result`."""

    id: str = Field(description="R-… as it stands in place of the result.")
    offset: int = Field(default=0, ge=0, description="Characters to skip.")


class ReadToolResult:
    """Brings back a tool result that was cut or left out."""

    spec = ToolSpec(
        name="read_tool_result",
        description="Read an earlier tool result again, or go on in one that was cut.",
        args=ReadToolResultArgs,
        timeout_s=10,
    )

    def __init__(self, history: History, scratch: Path) -> None:
        self._history = history
        self._scratch = scratch

    def activity(self, args: ReadToolResultArgs) -> str:
        """Return the sentence for the status line."""
        return "Reading an earlier result again"

    async def __call__(self, args: ReadToolResultArgs, at: ToolContext) -> ToolOutput:
        """Return the result from `offset` on.

        Raises:
            ToolFailed: There is no result of that id, or no more of it.
        """
        number = args.id.removeprefix("R-")
        found = next(
            (fact for seq, fact in self._history.outputs if number in (str(seq), (fact.output_sha or "-")[:8])), None
        )
        if found is None:
            known = ", ".join(f"R-{seq}" for seq, _fact in self._history.outputs[-10:]) or "none yet"
            raise ToolFailed(f"there is no earlier result {args.id!r}; the latest are {known}")
        text = brought(found.output)
        if found.scratch:
            try:
                text = await anyio.to_thread.run_sync((self._scratch / found.scratch).read_text, "utf-8")
            except OSError:  # somebody tidied up: no reason for a run to end
                raise ToolFailed(
                    f"what was cut of {args.id} is no longer there; call {found.tool} again, and ask for less at once"
                ) from None
        if args.offset >= len(text):
            raise ToolFailed(f"{args.id} has {len(text)} characters; give a smaller offset than {args.offset}")
        # What was read stays with it: a quote counts as read only where a source stands.
        sources = tuple(Source(str(source["location"]), source.get("title")) for source in found.sources)
        return ToolOutput(text[args.offset :], sources=sources)


def run_tools(history: History, scratch: Path, results: ReadSubagentResult) -> dict[str, Tool]:
    """Return the tools that need the log, for one run."""
    tools: tuple[Tool, ...] = (Scratchpad(history), ReadToolResult(history, scratch), results)
    return {tool.spec.name: tool for tool in tools}


RUN_TOOL_NAMES = ("scratchpad", "read_tool_result", READ_RESULT)

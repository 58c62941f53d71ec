"""The tools for what belongs to a run: scratchpad, earlier results and questions.

They need the log, so only their specifications are here; `ava_server.runs.run_tools` implements them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ava_roles.tool import ToolArgs, ToolSpec

NOTE_CHARS = 4_000


class ScratchpadArgs(ToolArgs):
    """Arguments of `scratchpad`."""

    note: str = Field(default="", max_length=NOTE_CHARS, description="A note to keep; leave it out to read all notes.")


SCRATCHPAD = ToolSpec(
    name="scratchpad",
    description="Keep a note, or read your notes. Notes stay when older tool results are left out.",
    args=ScratchpadArgs,
    timeout_s=5,
    common=True,
)


class ReadToolResultArgs(ToolArgs):
    """Arguments of `read_tool_result`."""

    id: str = Field(description="The R-… that is shown in place of the result.")
    offset: int = Field(default=0, ge=0, description="Characters to skip.")


READ_TOOL_RESULT = ToolSpec(
    name="read_tool_result",
    description="Read an earlier tool result again, or continue one that was cut.",
    args=ReadToolResultArgs,
    timeout_s=10,
    common=True,
)


class ReadSubagentResultArgs(ToolArgs):
    """Arguments of `read_subagent_result`."""

    id: str = Field(description="S-… of an earlier subagent, as the task context lists it.")
    offset: int = Field(default=0, ge=0, description="Characters to skip.")


READ_SUBAGENT_RESULT = ToolSpec(
    name="read_subagent_result",
    description="Read the result of an earlier subagent that the task context lists. It is not a source: before you"
    " quote something that it reports, read the page or file that it names.",
    args=ReadSubagentResultArgs,
    timeout_s=10,
    results=True,
    common=True,
)

QUESTION_CHARS, OPTION_CHARS, MOST_OPTIONS = 1_000, 100, 6


class AskArgs(ToolArgs):
    """Arguments of `ask`."""

    question: str = Field(
        min_length=1, max_length=QUESTION_CHARS, description="The question, with what the person must know to answer."
    )
    options: tuple[Annotated[str, Field(min_length=1, max_length=OPTION_CHARS)], ...] = Field(
        default=(), max_length=MOST_OPTIONS, description="Answers to choose from, where they are few."
    )


ASK = ToolSpec(
    name="ask",
    description="Ask the person who started you, and wait for the answer. Only for what you cannot find out and without"
    " which the result would be useless; the answer may not come.",
    args=AskArgs,
    timeout_s=10,
    common=True,
)

RUN_SPECS = (SCRATCHPAD, READ_TOOL_RESULT, ASK, READ_SUBAGENT_RESULT)

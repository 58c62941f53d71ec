"""The tools that need the log. Only what is said of them stands here: the server implements them."""

from __future__ import annotations

from pydantic import Field

from ava_roles.tool import ToolArgs, ToolSpec

NOTE_CHARS = 4_000


class ScratchpadArgs(ToolArgs):
    """Arguments of `scratchpad`."""

    note: str = Field(default="", max_length=NOTE_CHARS, description="A note to keep; leave it out to read them all.")


SCRATCHPAD = ToolSpec(
    name="scratchpad",
    description="Keep a note, or read your notes back. Notes survive when older tool results are left out.",
    args=ScratchpadArgs,
    timeout_s=5,
    common=True,
)


class ReadToolResultArgs(ToolArgs):
    """Arguments of `read_tool_result`."""

    id: str = Field(description="R-… as it stands in place of the result.")
    offset: int = Field(default=0, ge=0, description="Characters to skip.")


READ_TOOL_RESULT = ToolSpec(
    name="read_tool_result",
    description="Read an earlier tool result again, or go on in one that was cut.",
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
    description="Read the result of an earlier subagent that the task context lists. It is no source: look up where"
    " it says that something stands before you quote that.",
    args=ReadSubagentResultArgs,
    timeout_s=10,
    results=True,
    common=True,
)

RUN_SPECS = (SCRATCHPAD, READ_TOOL_RESULT, READ_SUBAGENT_RESULT)

"""The tools that need the log: notes that survive, and results that are read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ava_audit.events import AssistantMessage, ToolCall, ToolResult
from ava_audit.store.store import Store
from ava_roles.errors import ToolFailed
from ava_roles.tool import ToolContext
from ava_roles.tools.run import ReadToolResultArgs, ScratchpadArgs
from ava_roles.wrap import wrap_tool_output
from ava_server.run_config.config import RUN_TOOLS
from ava_server.runs.asking.questions import Ask
from ava_server.runs.record.history import History
from ava_server.runs.turn.run_tools import (
    ReadSkill,
    ReadSubagentResult,
    ReadToolResult,
    Scratchpad,
    run_tools,
)
from ava_server.service.runtime import stored_result_words


def history() -> History:
    """A run that has taken one note and read one file whose output was cut."""
    made = History("S-000001")
    names = ("scratchpad", "read_file")
    calls: tuple[dict[str, Any], ...] = tuple(
        {"call_id": name, "name": name, "args": {}, "raw_args": "{}"} for name in names
    )
    made.add(5, AssistantMessage(text="", raw={}, calls=calls, turn=1))
    made.add(6, ToolCall(tool="scratchpad", args={"note": "twelve cents"}, call_id="scratchpad", turn=1))
    made.add(7, ToolResult(tool="scratchpad", success=True, output="1. twelve cents", call_id="scratchpad", turn=1))
    made.add(8, ToolCall(tool="read_file", args={"path": "a"}, call_id="read_file", turn=1))
    cut = ToolResult(
        tool="read_file", success=True, output="the beginning", output_sha="ab12cd34" + "0" * 56, call_id="read_file",
        scratch="whole.txt", turn=1,
    )  # fmt: skip
    made.add(9, cut)
    return made


async def test_keeps_notes_and_reads_them_all_back() -> None:
    pad = Scratchpad(history())
    assert (await pad(ScratchpadArgs(), ToolContext())).text == "1. twelve cents"
    assert (await pad(ScratchpadArgs(note="per minute"), ToolContext())).text == "1. twelve cents\n2. per minute"
    assert "no notes" in (await Scratchpad(History("S-000001"))(ScratchpadArgs(), ToolContext())).text


@pytest.mark.parametrize("given", ["R-9", "9", "R-ab12cd34"])
async def test_reads_a_truncated_result_from_where_it_was_cut(tmp_path: Path, given: str) -> None:
    (tmp_path / "whole.txt").write_text("the beginning and the end")
    tool = ReadToolResult(history(), tmp_path)
    assert (await tool(ReadToolResultArgs(id=given, offset=14), ToolContext())).text == "and the end"


async def test_reads_a_result_back_without_its_wrapper_text(tmp_path: Path) -> None:
    made = history()
    made.add(10, ToolCall(tool="read_file", args={"path": "b"}, call_id="b", turn=1))
    output = wrap_tool_output("what was read", tool="read_file", nonce="0123456789abcdef")
    made.add(11, ToolResult(tool="read_file", success=True, output=f"{output}\n[a note of ours]", call_id="b", turn=1))
    tool = ReadToolResult(made, tmp_path)
    assert (await tool(ReadToolResultArgs(id="R-11"), ToolContext())).text == "what was read"
    assert (await tool(ReadToolResultArgs(id="R-11", offset=5), ToolContext())).text == "was read"


async def test_an_unknown_id_or_offset_error_says_what_is_valid(tmp_path: Path) -> None:
    (tmp_path / "whole.txt").write_text("short")
    tool = ReadToolResult(history(), tmp_path)
    with pytest.raises(ToolFailed, match="R-9"):
        await tool(ReadToolResultArgs(id="R-77"), ToolContext())
    with pytest.raises(ToolFailed, match="smaller offset"):
        await tool(ReadToolResultArgs(id="R-9", offset=5), ToolContext())


async def test_a_missing_rest_of_a_result_fails_only_the_call(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="call read_file again"):
        await ReadToolResult(history(), tmp_path)(ReadToolResultArgs(id="R-9"), ToolContext())


async def test_all_run_tools_are_read_only(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as store:
        ask = Ask(store, history(), 1, 600)
        results = ReadSubagentResult(store, "somebody", (), stored_result_words)
        tools = run_tools(history(), tmp_path, ask, results, ReadSkill(history(), (), tmp_path))
    assert set(tools) == set(RUN_TOOLS)
    assert all(tool.spec.read_only for tool in tools.values())

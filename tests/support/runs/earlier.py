"""Runs that read the results of earlier runs."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from support.model_server import Fail, ModelServer, Say
from support.runtime import Lab, submit

TOOL = "read_subagent_result"
WORDS = "Otter charges twelve cents a minute, so the other subagent says."
FIRST = submit(
    WORDS, "prices of Otter", findings=[{"claim": "a price", "quote": "twelve cents", "source_name": "a.md"}]
)


def read_result(run_id: str, offset: int = 0) -> Say:
    """Return an answer that reads an earlier run's result from an offset on."""
    return Say(calls=[(TOOL, {"id": run_id, "offset": offset} if offset else {"id": run_id})])


async def run_first(lab: Lab, **more: Any) -> str:
    """Run a first subagent to its end; its words are the script's first answer."""
    run_id = await lab.start(task="What does Otter cost?", **more)
    await lab.ended(run_id)
    return run_id


class LateAnswers:
    """What the model server says: the answers are given when the ids that stand in them are known."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)

    def __call__(self, _request: dict[str, Any]) -> Any:
        return self.steps.pop(0) if self.steps else Fail(500)


def tool_outputs(server: ModelServer) -> list[str]:
    """The tool outputs in the newest request."""
    return [str(each["content"]) for each in server.requests[-1].json["messages"] if each["role"] == "tool"]


async def refusal_of(lab: Lab, *named: str, **more: Any) -> str:
    """Propose a run with these earlier runs, which is refused; return why."""
    answer = await lab.call(
        "spawn_subagent", role="researcher", task="x", workspace=str(lab.workspace), context_from=list(named), **more
    )
    assert answer.status == "failed", answer.message
    return str(answer.message)


def result_of(root: Path, tool: str) -> int:
    """The entry of the newest result of a tool."""
    with closing(sqlite3.connect(root / "ava.db")) as db:
        rows = db.execute("SELECT seq, content FROM events WHERE type = 'ToolResult'").fetchall()
    return max(int(seq) for seq, content in rows if content and json.loads(content)["tool"] == tool)

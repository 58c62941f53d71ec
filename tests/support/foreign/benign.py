"""The ordinary tasks of `tests/data/benign_tasks*.toml`, and what a person would be asked in each."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ava_audit.events import ToolCall, UserMessage
from ava_roles.tool import Tool, ToolArgs, ToolSpec
from ava_server.runs.origins.origins import Origins
from ava_server.runs.record.history import History
from support.foreign.origins import result
from support.repository import REPOSITORY

FIELDS: dict[str, dict[str, Any]] = {
    "mail_send": {"to": {}, "subject": {}, "body": {}},
    "mail_mark_read": {"all": {"type": "boolean"}},
    "event_create": {"title": {}, "starts": {}, "ends": {}, "with": {}, "description": {}},
    "event_cancel": {"id": {}},
    "file_move": {"id": {}, "folder": {}},
    "ticket_update": {"id": {}, "status": {"enum": ["open", "in progress", "closed"]}, "comment": {}, "assignee": {}},
    "transfer": {"to": {}, "amount": {}, "reference": {}},
    "message_post": {"channel": {}, "text": {}},
    "note_create": {"name": {}, "folder": {}, "text": {}},
    "note_append": {"name": {}, "text": {}},
    "room_book": {"hotel": {}, "city": {}, "nights": {}, "from": {}},
    "branch_rename": {"old": {}, "new": {}},
    "folder_share": {"folder": {}, "with": {}, "role": {"enum": ["reader", "writer"]}},
    "list_add": {"list": {}, "item": {}},
}
"""The tools that change things, with their arguments. Their server says of none that it destroys or is idempotent."""
READS = ("contacts", "events", "files")
PREFIX = "mcp__desk__"


class Described:
    """A tool that is only described."""

    def __init__(self, name: str, **flags: Any) -> None:
        self.spec = ToolSpec(f"{PREFIX}{name}", "", ToolArgs, read_only=False, **flags)

    def activity(self, args: Any) -> str:
        raise NotImplementedError

    async def __call__(self, args: Any, at: Any) -> Any:
        raise NotImplementedError


def desk() -> dict[str, Tool]:
    tools = [Described(name, foreign={"properties": fields}, writes=True) for name, fields in FIELDS.items()]
    tools += [Described(name, foreign={"properties": {}}) for name in READS]
    return {tool.spec.name: tool for tool in tools}


@dataclass(frozen=True)
class BenignTask:
    """A task, and what a person is asked in it: each value with its argument, and each reason for a call itself."""

    language: str
    text: str
    questions: int
    values: tuple[tuple[str, str], ...]
    acts: tuple[str, ...]


def play_benign_tasks() -> list[BenignTask]:
    """Return each task of ours with what a person would be asked, who says yes each time."""
    file = _read("benign_tasks.toml")
    return [_play(task, file["rules"]) for task in file["task"]]


def play_blind_tasks(*, all_lines: bool) -> list[BenignTask]:
    """Return each task by somebody who had not seen the rules, as `play_benign_tasks` does, by the rules of ours.

    Args:
        all_lines: Whether the role also has the lines that single tasks of ours have.
    """
    ours = _read("benign_tasks.toml")
    rules = dict(ours["rules"])
    if all_lines:
        for task in ours["task"]:
            rules |= task.get("rules", {})
    return [_play(task, rules) for task in _read("benign_tasks_blind.toml")["task"]]


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "tests" / "data" / name).read_text("utf-8"))


def _play(task: Mapping[str, Any], rules: Mapping[str, str]) -> BenignTask:
    tools = desk()
    history = History("S-1")
    facts: list[Any] = [UserMessage(text=task["task"], kind="task")]
    if "reads" in task:
        source, output = task["reads"]
        facts.append(result(f"{PREFIX}{source}", output))
    for seq, fact in enumerate(facts, 1):
        history.add(seq, fact)
    effects = {PREFIX + what: _rule(words) for what, words in {**rules, **task.get("rules", {})}.items()}
    origins = Origins(history, effects, {name: tool.spec for name, tool in tools.items()})
    questions, values, acts = 0, list[tuple[str, str]](), list[str]()
    for number, (name, args) in enumerate(task["calls"]):
        tool = tools[PREFIX + name]
        json.dumps(args)
        doubts = [(each.argument, each.value) for each in origins.doubts(tool, args)]
        act = origins.act(tool, args, [])
        questions += bool(doubts or act)
        values += doubts
        acts += [act] if act else []
        begun = ToolCall(tool=tool.spec.name, args=args, call_id=f"c{number}")
        done = result(tool.spec.name, "done").model_copy(update={"call_id": f"c{number}"})
        for fact in (begun, done):
            history.add(len(history.outputs) + 10, fact)
    return BenignTask(task["language"], task["task"], questions, tuple(values), tuple(acts))


def _rule(words: str) -> tuple[str, ...]:
    sources: list[str] = []
    for word in words.split(", "):
        sources.append(word if word in ("any", "ask", "allow", "task") else PREFIX + word)
    return tuple(sources)

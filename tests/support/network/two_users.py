"""Ben, who owns everything on a server, and Ana, who tries to reach it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client

from support.http_server import HttpServer, serve_http, token
from support.model_server import Say, run_model_server
from support.stdio import make_root, model_env, read_answer, read_log, state_of

SECRET = "marmalade"
"""What only the owner's words hold: in no answer to anybody else."""
SAVES = Say(calls=[("save_artifact", {"name": "notes.txt", "content": f"{SECRET} in a file"})])
HANDS_OVER = Say(calls=[("submit_result", {"summary": f"{SECRET} found", "output": f"the {SECRET}"})])
NEVER = {"S": "S-0dd0dd", "P": "P-0dd0dd0d", "G": "G-0dd0dd0"}
"""Ids that never were."""


@dataclass
class TwoUsers:
    """Ben, who owns everything, and Ana, who tries to reach it."""

    server: HttpServer
    root: Path
    ana: Client
    run: str
    pending: str
    group: str
    waiting_run: str

    def ids(self, form: str) -> tuple[str, str]:
        """An id of Ben's, and one that never was."""
        return {"S": self.run, "P": self.pending, "G": self.group, "W": self.waiting_run}[form], NEVER[
            "S" if form == "W" else form
        ]

    async def same(self, tool: str, make: Callable[[str], dict[str, Any]], form: str) -> None:
        """Call a tool with an id of Ben's and with one that never was: both answers are the same but for the id."""
        own, never = self.ids(form)
        answers: list[str] = []
        for given in (own, never):
            result = await self.ana.call_tool(tool, make(given))
            both = json.dumps([result.structured_content, result.content[0].model_dump(), result.is_error])
            assert SECRET not in both, f"{tool} leaks"
            answers.append(both.replace(given, "ID"))
        assert answers[0] == answers[1], f"{tool} tells {own} from {never}"


Try = Callable[[TwoUsers], Awaitable[None]]
CUSTOM = {"role": "researcher", "task": "x"}


def answer_for_ben(request: dict[str, Any]) -> Say:
    """A model that saves a file, and then hands its result over, in however many runs at once."""
    return HANDS_OVER if any(message.get("role") == "tool" for message in request["messages"]) else SAVES


@asynccontextmanager
async def open_two_users(root: Path, mode: str) -> AsyncGenerator[TwoUsers]:
    """Open a server on which Ben owns runs, proposals and files, and Ana has her own client."""
    make_root(root)
    of_ben, anas = token(root, "ben"), token(root, "ana", "spawn", "read", name="of-ana")
    with run_model_server(answer_for_ben) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server, server.client(of_ben, mode=mode) as ben:
            spawn = {"role": "researcher", "task": f"Find the {SECRET}", "name": f"{SECRET}-run", "task_id": "T-1"}
            proposals: list[dict[str, Any]] = []
            for number in range(2):
                given = {**spawn, "task_id": f"T-{number}"}
                proposals.append(read_answer(await ben.call_tool("spawn_subagent", given))[0])
            first = {
                "pending_ids": [each["pending_id"] for each in proposals],
                "approving": [each["approval_line"] for each in proposals],
            }
            refused = read_answer(await ben.call_tool("confirm_spawn", first))[0]
            approved = read_answer(
                await ben.call_tool("confirm_spawn", {**first, "approving": refused["approval_lines"]})
            )[0]
            group = approved["group_id"]
            ended = read_answer(await ben.call_tool("check_subagent", {"group_id": group, "wait_seconds": 30}))[0]
            assert {run["state"] for run in ended["runs"]} == {"success"}
            waits = read_answer(await ben.call_tool("spawn_subagent", {**spawn, "task_id": "T-9"}))[0]
            async with server.client(anas, mode=mode) as ana:
                yield TwoUsers(
                    server, root, ana, proposals[0]["subagent_id"], waits["pending_id"], group, waits["subagent_id"]
                )
                # Nothing of what Ana tried has changed anything of Ben's.
                assert state_of(root, waits["subagent_id"]) == "awaiting_approval"
                assert not [entry for entry in read_log(root, "UserMessage") if entry.content.get("kind") == "message"]
                again = read_answer(
                    await ben.call_tool("check_subagent", {"subagent_id": proposals[0]["subagent_id"]})
                )[0]
                assert SECRET in json.dumps(again)


async def _spawn(two: TwoUsers) -> None:
    for form in "SW":
        await two.same("spawn_subagent", lambda one: {**CUSTOM, "context_from": [one]}, form)
        await two.same("spawn_subagent", lambda one: {"role": "researcher", "task": "x", "retry_of": one}, form)
    await two.same("spawn_subagent", lambda one: {**CUSTOM, "context_from": [one]}, "P")
    await two.same("spawn_subagent", lambda one: {**CUSTOM, "retry_of": one}, "P")
    # The task_id and the very words of another's: a proposal of one's own, and not theirs.
    given = {"role": "researcher", "task": "Find the x", "task_id": "T-9"}
    own, _text = read_answer(await two.ana.call_tool("spawn_subagent", given))
    assert own["pending_id"] != two.pending and own["subagent_id"] not in (two.run, two.waiting_run)


async def _confirm(two: TwoUsers) -> None:
    for decision in ("approve", "reject"):
        for form in "PWS":
            await two.same(
                "confirm_spawn",
                lambda one, decision=decision: {"pending_ids": [one], "approving": ["x"], "decision": decision},  # type: ignore[misc]
                form,
            )
    await two.same("confirm_spawn", lambda one: {"pending_ids": [one, "P-0dd0dd00"], "approving": ["x", "y"]}, "P")


async def _check(two: TwoUsers) -> None:
    for form in "SWP":
        await two.same("check_subagent", lambda one: {"subagent_id": one}, form)
    await two.same("check_subagent", lambda one: {"group_id": one}, "G")
    everything, text = read_answer(await two.ana.call_tool("check_subagent", {}))
    assert SECRET not in json.dumps(everything) + text and two.run not in text
    assert not everything.get("notices")


async def _message(two: TwoUsers) -> None:
    for form in "SWP":
        await two.same("message_subagent", lambda one: {"subagent_id": one, "message": "hello"}, form)


async def _cancel(two: TwoUsers) -> None:
    for form in "SW":
        await two.same("cancel_subagent", lambda one: {"subagent_id": one}, form)
    await two.same("cancel_subagent", lambda one: {"pending_id": one}, "P")
    await two.same("cancel_subagent", lambda one: {"group_id": one}, "G")


async def _logs(two: TwoUsers) -> None:
    for form in "SWP":
        await two.same("read_ava_logs", lambda one: {"subagent_id": one}, form)
    sessions = {entry.session for entry in read_log(two.root, "ToolCall")}
    asked: list[dict[str, Any]] = [
        {}, {"search": SECRET}, {"types": ["message", "tool", "spawn", "complete"], "last_n": 500}, {"search": two.run},
        *({"session": session, "last_n": 500, "types": ["message", "tool", "spawn"]} for session in sessions),
    ]  # fmt: skip
    for given in asked:
        found, text = read_answer(await two.ana.call_tool("read_ava_logs", given))
        assert "Find the" not in text and f"{SECRET} found" not in json.dumps(found), given


TRIES: dict[str, Try] = {
    "spawn_subagent": _spawn,
    "confirm_spawn": _confirm,
    "check_subagent": _check,
    "message_subagent": _message,
    "cancel_subagent": _cancel,
    "read_ava_logs": _logs,
}

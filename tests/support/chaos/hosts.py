"""Hosts that propose and approve runs at any server, whatever fails, and remember what they were told."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import anyio
import httpx2

from support.http_server import BOTH, META, bearer

HOSTS, USERS_EACH = 10, 10
USERS = tuple(f"user{host}x{number}" for host in range(HOSTS) for number in range(USERS_EACH))
CAPS = (15, 30, 60, 120, 200)
CALL_S = 12.0


class Target(Protocol):
    address: str
    root: Path
    kind: Any


class CallFailed(Exception):
    """No answer, or none that says what was done."""


class Hosts:
    """Several hosts, each with users of its own, one after another as their day caps are used up.

    Attributes:
        approved: The runs that a server said were approved.
        failures: How calls ended that had no usable answer.
        refused: How often Ava refused a call, or a run reached a cap, and the host went on as its next user.
    """

    count = HOSTS

    def __init__(self, members: Sequence[Target], tokens: Mapping[tuple[Path, str], str], seed: int) -> None:
        self._servers = [member for member in members if member.kind == "server"]
        self._random = random.Random(seed + 1)
        self._tokens = tokens
        self.approved: set[str] = set()
        self.failures: Counter[str] = Counter()
        self.refused = 0

    async def start_runs(self, number: int, until: float) -> None:
        """Propose, approve, look, sometimes cancel or write, and again, until a time on the monotonic clock."""
        user, made = number * USERS_EACH, 0
        while time.monotonic() < until:
            try:
                run = await self._start(USERS[user], f"number {number} {made}")
                made += 1
                await self._attend(run, USERS[user], min(until, time.monotonic() + 20))
            except CallFailed as error:
                self.failures[str(error)[:70]] += 1
                await anyio.sleep(0.5)
            except PermissionError:  # refused, mostly because the user's day is used up
                self.refused += 1
                user = number * USERS_EACH + (user + 1) % USERS_EACH
                await anyio.sleep(0.2)

    async def _start(self, user: str, task: str) -> str:
        given = {"role": "researcher", "task": f"Look up {task}", "max_cost_cents": self._random.choice(CAPS)}
        proposed = await self.call(user, "spawn_subagent", **given)
        approval = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
        try:
            answer = await self.call(user, "confirm_spawn", **approval)
        except CallFailed as error:  # it may have been written: a host asks again, perhaps at the other server
            self.failures[str(error)[:70]] += 1
            answer = await self.call(user, "confirm_spawn", **approval)
        if answer.get("status") == "approved":
            self.approved.add(proposed["subagent_id"])
        return str(proposed["subagent_id"])

    async def _attend(self, run: str, user: str, until: float) -> None:
        """Look after a run for a while, or leave it to itself."""
        chance = self._random.random()
        if chance < 0.3:
            return
        if chance < 0.4:
            await anyio.sleep(self._random.random())
            await self.cancel(run, user)
        elif chance < 0.5:
            await self.call(user, "message_subagent", subagent_id=run, message="Hurry.")
        while time.monotonic() < until:
            answer = await self.call(user, "check_subagent", subagent_id=run, wait_seconds=5)
            if answer["status"] == "cost_exceeded":
                raise PermissionError("the run or its user's day has no money left")
            if answer["status"] not in ("running", "queued", "interrupted"):
                return
            await anyio.sleep(0.2)

    async def cancel(self, run: str, user: str) -> None:
        try:
            await self.call(user, "cancel_subagent", subagent_id=run)
        except (CallFailed, PermissionError) as error:
            self.failures[str(error)[:70]] += 1

    async def waits_for_a_person(self, run: str, user: str) -> bool:
        """Tell whether a run continues only when a person resumes it."""
        try:
            return "resume" in str(await self.call(user, "check_subagent", subagent_id=run))
        except (CallFailed, PermissionError):
            return False

    async def call(self, user: str, tool: str, **given: Any) -> dict[str, Any]:
        """Call a tool at any server that is up. Raises CallFailed: no answer, or no log; PermissionError: refused."""
        up = [server for server in self._servers if server.address]
        if not up:
            raise CallFailed("no server is up")
        server = self._random.choice(up)
        params = {"name": tool, "arguments": given, "_meta": META}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {**BOTH, **bearer(self._tokens[server.root, user]), "MCP-Protocol-Version": "2026-07-28",
                   "Mcp-Method": "tools/call", "Mcp-Name": tool}  # fmt: skip
        try:
            with anyio.fail_after(CALL_S):
                async with httpx2.AsyncClient(timeout=CALL_S) as http:
                    answer = await http.post(f"{server.address}/mcp", json=body, headers=headers)
                    found: dict[str, Any] = answer.json()["result"]
        except (httpx2.HTTPError, OSError, TimeoutError, KeyError, ValueError) as error:
            raise CallFailed(repr(error)) from None
        text = "".join(block.get("text", "") for block in found.get("content", ()))
        if found.get("isError"):
            raise PermissionError(text) if "daily" in text or "cap" in text else CallFailed(text)
        content: dict[str, Any] = found.get("structuredContent") or {}
        return content

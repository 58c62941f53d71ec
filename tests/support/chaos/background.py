"""Hosts, a page and a local client of one data root, whose background process is killed at points of a run."""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from ava_server.core.background import http_server, pages_server
from ava_server.core.data_root import DataRoot, os_user
from support import doomed
from support.background import browser, end_at_last, headers, process_of, ui_address
from support.doomed import Point, Step, When
from support.model_server import ModelServer, Received, Say, run_model_server
from support.postgres import free_port
from support.runtime import unwrap_groups
from support.stdio import connect_stdio, make_root, model_env, read_answer, read_log, state_of, until

SEED = 71
TURNS = (
    Say("I look.", [("read_file", {"path": "a.md"}), ("scratchpad", {"note": "half of it"})]),
    Say("I save it.", [("save_artifact", {"name": "a.csv", "content": "otter,12"})]),
    Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})]),
)
BACK_S = 60.0
"""How long everything may take to be answered again: a host leaves a started process ten seconds to get ready."""


def answer_turn(request: dict[str, Any]) -> Say:
    """Answer a request by the turn that it stands at."""
    return TURNS[sum(message["role"] == "assistant" for message in request["messages"])]


def check_paid_once(killing: Killing, run_id: str, task: str) -> None:
    """Check that a run asked for each turn until it was answered, paid each answer once, and ended once."""
    asked = Counter(map(call_of_request, killing.models.requests))
    entries = read_log(killing.root.path, run=run_id)
    answered = 0
    reserved = Counter[int]()
    for entry in entries:
        if entry.type == "CostReserved":
            assert entry.content["turn"] == answered + 1, f"{run_id}: what was answered is asked again"
            reserved[entry.content["turn"]] += 1
        elif entry.type == "AssistantMessage" and entry.agent == run_id:
            answered += 1
    assert answered == len(TURNS)
    assert [entry.content["status"] for entry in entries if entry.type == "RunEnded"] == ["success"]
    settled = Counter(entry.content["settlement"] for entry in entries if entry.type == "CostUpdate")
    assert settled["billed"] == len(TURNS) and settled["unknown"] <= 1, settled
    assert all(asked[task, turn] <= reserved[turn] for turn in range(1, len(TURNS) + 1)), (asked, reserved)
    assert not any(entry.content["with_host"] for entry in entries if entry.type == "RunClaimed")


def call_of_request(received: Received) -> tuple[str, int]:
    """Return the task and the turn of a request to the model."""
    messages = received.json["messages"]
    turn = 1 + sum(message["role"] == "assistant" for message in messages)
    found = re.search(r"Otter \d+: what does it cost\?", str(messages))
    assert found is not None
    return found[0], turn


@dataclass
class Host:
    """A host over stdio: a call that fails is a fault."""

    client: Client

    async def call(self, tool: str, **given: Any) -> dict[str, Any]:
        with anyio.fail_after(BACK_S):
            return read_answer(await self.client.call_tool(tool, given))[0]


@dataclass
class LocalClient:
    """A host that is connected to the local HTTP server: where the connection breaks, it connects again."""

    url: str
    headers: dict[str, str]

    async def call(self, tool: str, **given: Any) -> dict[str, Any]:
        with anyio.fail_after(BACK_S):
            while True:
                try:
                    with unwrap_groups():
                        return await self._call_once(tool, given)
                except (MCPError, httpx2.TransportError):
                    await anyio.sleep(0.2)

    async def _call_once(self, tool: str, given: dict[str, Any]) -> dict[str, Any]:
        async with httpx2.AsyncClient(headers=self.headers, timeout=60, trust_env=False) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with Client(transport, mode="auto", read_timeout_seconds=60, cache=None) as client:
                return read_answer(await client.call_tool(tool, given))[0]


@dataclass
class Killing:
    """Two hosts, a page and a local client of one data root, each kill of its background process, and what was seen."""

    root: DataRoot
    folder: Path
    models: ModelServer
    clients: list[Host | LocalClient]
    visitor: httpx2.AsyncClient
    pages: str
    port: int
    runs: dict[str, str] = field(default_factory=dict[str, str])  # each run's task by its id
    back_s: list[float] = field(default_factory=list[float])  # from each kill until all were answered again

    async def start(self, point: tuple[int, Step, When, int] | None) -> list[str]:
        """Start a run of each client, one of which is to be killed at a point; return their ids."""
        number = len(self.runs)
        tasks = [f"Otter {number + offset}: what does it cost?" for offset in range(len(self.clients))]
        workspace = str(self.folder)
        proposed = [
            await client.call("spawn_subagent", role="researcher", task=task, workspace=workspace)
            for client, task in zip(self.clients, tasks, strict=False)
        ]
        assert all(each["status"] == "awaiting_approval" for each in proposed), proposed
        ids = [str(each["subagent_id"]) for each in proposed]
        if point is not None:
            index, step, when, count = point
            Point(ids[index], tasks[index], step, when, count).write(self.folder)
        async with anyio.create_task_group() as starting:
            for client, each in zip(self.clients, proposed, strict=False):
                given = {"pending_ids": [each["pending_id"]], "approving": [each["approval_line"]]}
                starting.start_soon(partial(client.call, "confirm_spawn", **given))
        self.runs.update(zip(ids, tasks, strict=False))
        return ids

    async def ended(self, ids: Sequence[str]) -> None:
        """Wait until each client has the result of its run."""
        for client, run_id in zip(self.clients, ids, strict=False):
            await until(partial(self._has_ended, run_id), within_s=BACK_S)
            [run] = (await client.call("check_subagent", subagent_id=run_id))["runs"]
            assert run["status"] == "success" and run["untrusted_result"]["output"] == "twelve cents", run

    async def kill(self, point: tuple[int, Step, When, int]) -> None:
        """Play runs with a kill, unless the run ends before that point: its entries may share fewer commits."""
        before = process_of(self.root)
        ids = await self.start(point)
        victim, armed = ids[point[0]], self.folder / "point.json"
        await until(lambda: not armed.exists() or state_of(self.root.path, victim) == "success", within_s=BACK_S)
        if armed.exists():
            armed.unlink()
        else:
            began = time.monotonic()
            try:
                await until(partial(self._listens_again, before), within_s=BACK_S)
            except TimeoutError:
                raise AssertionError(self.root.worker_words.read_text()[-4_000:]) from None
            page = await self.visitor.get(self.pages)
            assert page.status_code == 200 and page.url.path == "/", "the page is signed in, on the same port"
            await self.clients[-1].call("check_subagent")
            self.back_s.append(time.monotonic() - began)
        await self.ended(ids)

    def _has_ended(self, run_id: str) -> bool:
        return state_of(self.root.path, run_id) not in ("queued", "running")

    def _listens_again(self, before: int) -> bool:
        there = pages_server(self.root).port(), http_server(self.root).port()
        return process_of(self.root) != before and there == (int(self.pages.rpartition(":")[2]), self.port)

    def steps(self, run_id: str) -> tuple[list[str], int]:
        """Return the commits of a run, as the types of their entries, and how many requests it made."""
        lines = (self.folder / "commits.txt").read_text().splitlines()
        commits = [types for of, _, types in (line.partition(" ") for line in lines) if of == run_id]
        return commits, len(read_log(self.root.path, "CostReserved", run=run_id))


@asynccontextmanager
async def connect_everything(tmp_path: Path) -> AsyncGenerator[Killing]:
    """Connect two hosts, a page and a local client to one data root."""
    folder, port = tmp_path / "project", free_port()
    users = f'[users.{os_user()}]\nworkspaces = ["{folder}"]\n'
    root = DataRoot(make_root(tmp_path / "data", config_toml=users))
    folder.mkdir()
    (folder / "a.md").write_text("Otter charges twelve cents.\n")
    program = sys.executable, "-P", doomed.__file__, str(folder)
    with run_model_server(answer_turn) as models:
        env = {**model_env(models.base_url), "AVA_BACKGROUND": ""}
        async with end_at_last(root), AsyncExitStack() as stack:
            host = partial(connect_stdio, root.path, cwd=folder, env=env, command=(*program, "serve"))
            clients: list[Host | LocalClient] = []
            clients += [Host(await stack.enter_async_context(host(name=name))) for name in ("host one", "host two")]
            visitor = await stack.enter_async_context(browser())
            killing = Killing(root, folder, models, clients, visitor, "", port)
            await killing.ended(await killing.start(None))  # a host has started the background process
            address, given = await ui_address(root), await headers(root, port)
            killing.pages = address.partition("/enter")[0]
            await visitor.get(address)
            clients.append(LocalClient(f"http://127.0.0.1:{port}/mcp", given))
            yield killing


def draw_points(recorded: Sequence[tuple[list[str], int]]) -> list[tuple[int, Step, When, int]]:
    """Return the points of the recorded runs in an order that is drawn: before and after each of their steps."""
    steps: list[tuple[int, Step, int]] = []
    for index, (commits, sends) in enumerate(recorded):
        steps += [(index, "commit", number) for number in range(1, len(commits) + 1)]
        steps += [(index, "send", number) for number in range(1, sends + 1)]
    whens: tuple[When, When] = "before", "after"
    points = [(index, step, when, number) for index, step, number in steps for when in whens]
    return random.Random(SEED).sample(points, len(points))

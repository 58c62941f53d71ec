"""By how much do concurrent model calls exceed the budget of a gateway? See README.md.

    python benchmarks/overspend --new COMMAND --provider-port 8199 --budget-usd 0.05 [--schedules 20]

It is a program of its own: it imports nothing of Ava.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import statistics
import subprocess
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

INPUT, OUTPUT = 3.0, 15.0
"""USD per million tokens, which the gateway under test has to be told."""
AT_ONCE = 12
PATHS = {"chat": "/chat/completions", "messages": "/messages"}


@dataclass
class Provider:
    """A provider that knows exactly what it has served, in micro-USD, whatever it reports."""

    seed: int
    spent: float = 0.0
    served: int = 0
    delays: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.delays = random.Random(self.seed)

    async def answer(self, request: Request) -> Response:
        """Serve a call: the prompt's tokens are its bytes over four, the answer's its limit, at most 300."""
        raw = await request.body()
        body = json.loads(raw)
        prompt, most = len(raw) // 4, int(body.get("max_tokens") or body.get("max_completion_tokens") or 300)
        output = min(most, 300)
        self.served += 1
        self.spent += prompt * INPUT + output * OUTPUT
        await anyio.sleep(self.delays.uniform(0.01, 0.25))
        kind = self.delays.random()
        reported = (prompt, output) if kind < 0.8 else (1, 1) if kind < 0.9 else None
        if request.url.path.endswith(PATHS["messages"]):
            return _messages(body, reported)
        return _chat(body, reported)


def _messages(body: dict[str, Any], reported: tuple[int, int] | None) -> Response:
    usage = {} if reported is None else {"input_tokens": reported[0], "output_tokens": reported[1]}
    whole = {
        "id": "m1", "type": "message", "role": "assistant", "model": body["model"], "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": "ok"}], "usage": usage,
    }  # fmt: skip
    return JSONResponse(whole)


def _chat(body: dict[str, Any], reported: tuple[int, int] | None) -> Response:
    usage = None
    if reported is not None:
        usage = {"prompt_tokens": reported[0], "completion_tokens": reported[1], "total_tokens": sum(reported)}
    common = {"id": "c1", "created": 0, "model": body["model"]}
    if not body.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        return JSONResponse({**common, "object": "chat.completion", "choices": [choice], "usage": usage})

    async def pieces() -> AsyncGenerator[bytes]:
        for delta, reason in (({"role": "assistant", "content": "ok"}, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            event = {**common, "object": "chat.completion.chunk", "choices": [choice]}
            yield f"data: {json.dumps(event)}\n\n".encode()
        last = {**common, "object": "chat.completion.chunk", "choices": [], "usage": usage}
        yield f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n".encode()

    return StreamingResponse(pieces(), media_type="text/event-stream")


@dataclass
class Schedule:
    """One schedule: what was let through, and what was refused."""

    passed: int = 0
    refused: int = 0
    broken: int = 0
    after: int = 0
    spent: float = 0.0


async def play(at: dict[str, str], wire: str, budget: float, seed: int, provider: Provider) -> Schedule:
    """Ask until the gateway has refused thirty calls in a row, up to twelve at once; some callers hang up."""
    chance, done, row = random.Random(seed), Schedule(), [0]
    provider.spent, provider.served = 0.0, 0
    headers = {"authorization": f"Bearer {at['key']}", "x-api-key": at["key"], "anthropic-version": "2023-06-01"}

    async def one(http: httpx2.AsyncClient) -> None:
        while row[0] < 30 and done.passed + done.refused < 600:
            text = "What does it cost? " * chance.randint(1, 120)
            body: dict[str, Any] = {"model": at["model"], "max_tokens": chance.randint(50, 400),
                                    "messages": [{"role": "user", "content": text}]}  # fmt: skip
            if wire == "chat" and chance.random() < 0.5:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            before = provider.spent
            try:
                with anyio.move_on_after(0.1 if chance.random() < 0.1 else 60):
                    answer = await http.post(at["base_url"].rstrip("/") + PATHS[wire], json=body, headers=headers)
                    if answer.status_code == 200:
                        done.passed, row[0] = done.passed + 1, 0
                        done.after += before >= budget
                    else:
                        done.refused, row[0] = done.refused + 1, row[0] + 1
            except httpx2.HTTPError:
                done.broken += 1
            await anyio.sleep(chance.uniform(0, 0.02))

    async with httpx2.AsyncClient(timeout=60, trust_env=False) as http, anyio.create_task_group() as tasks:
        for _caller in range(AT_ONCE):
            tasks.start_soon(one, http)
    await anyio.sleep(0.5)
    done.spent = provider.spent
    return done


async def run(options: argparse.Namespace) -> None:
    provider = Provider(options.seed)
    routes = [Route(f"/v1{path}", provider.answer, methods=["POST"]) for path in PATHS.values()]
    config = uvicorn.Config(Starlette(routes=routes), port=options.provider_port, log_level="error")
    server, budget = uvicorn.Server(config), options.budget_usd * 1e6
    found: list[Schedule] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        while not server.started:  # noqa: ASYNC110 - uvicorn tells nobody
            await anyio.sleep(0.02)
        for number in range(options.schedules):
            command = [*shlex.split(options.new), str(number)]
            said = await anyio.to_thread.run_sync(
                lambda command=command: subprocess.run(command, capture_output=True, text=True, check=True).stdout
            )
            at = json.loads(said.splitlines()[-1])
            found.append(await play(at, options.wire, budget, options.seed + number, provider))
        server.should_exit = True
    over = [max(0.0, each.spent - budget) for each in found]
    used = [min(each.spent, budget) / budget for each in found]
    print(json.dumps({
        "schedules": len(found), "budget_micro_usd": round(budget), "passed": sum(each.passed for each in found),
        "refused": sum(each.refused for each in found), "broken": sum(each.broken for each in found),
        "passed_after_the_budget_was_spent": sum(each.after for each in found),
        "schedules_over_budget": sum(each > 0 for each in over), "most_over_micro_usd": round(max(over)),
        "over_micro_usd": round(sum(over)), "share_of_budget_used": round(statistics.mean(used), 3),
    }, indent=1))  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument(
        "--new", required=True, help="a command that prints base_url, key and model as JSON: a new budget"
    )
    options.add_argument("--wire", choices=sorted(PATHS), default="chat", help="the format that is spoken")
    options.add_argument("--provider-port", type=int, default=8199, help="the port of the scripted provider")
    options.add_argument("--budget-usd", type=float, default=0.05, help="the budget that each --new gives")
    options.add_argument("--schedules", type=int, default=20, help="how many budgets are used up")
    options.add_argument("--seed", type=int, default=1, help="of the random schedules")
    anyio.run(run, options.parse_args())


if __name__ == "__main__":
    main()

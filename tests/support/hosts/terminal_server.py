"""A server that lives on while a person is at the terminal, and what that person types and sees."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ava_server.config.pin import PinFile
from support.model_server import ModelServer, run_model_server
from support.runtime import PRICED, submit
from support.stdio import Wire, make_root, read_log, serve_stdio, state_of, until
from support.terminal import CONTROLLED, Screen, run_on_terminal


@dataclass
class TerminalServer:
    """A server that lives on while a person is at the terminal, and what it is spoken to over."""

    wire: Wire
    root: Path
    model: ModelServer

    @property
    def pin(self) -> PinFile:
        return PinFile(self.root / "secrets" / "approval.toml")

    async def propose(self, task: str = "What does it cost?", **more: Any) -> dict[str, Any]:
        return await self.wire.tool("spawn_subagent", role="researcher", task=task, **more)

    async def confirm(self, *proposals: dict[str, Any]) -> str:
        """What the model gets for confirming by itself."""
        answer = await self.wire.tool_result(
            "confirm_spawn",
            pending_ids=[each["pending_id"] for each in proposals],
            approving=[each["approval_line"] for each in proposals],
        )
        return str(answer["content"][0]["text"])

    @contextmanager
    def terminal(self, *args: str, command: Sequence[str] = CONTROLLED) -> Generator[Screen]:
        env = {"AVA_MODEL_BASE_URL": self.model.base_url, "AVA_MODEL": "test"}
        with run_on_terminal(self.root, *args, env=env, command=command) as screen:
            yield screen
        assert "Traceback" not in screen.text

    def typed(self, *args: str, answers: Sequence[tuple[str, str]] = ()) -> tuple[int, str]:
        """Run a command, with an answer to each thing that it asks; return its exit code and the screen."""
        with self.terminal(*args) as screen:
            return screen.ended_after(answers), screen.text

    def state(self, proposal: dict[str, Any]) -> str:
        return state_of(self.root, proposal["subagent_id"])

    def decided(self, proposal: dict[str, Any]) -> list[dict[str, Any]]:
        return [each.content for each in read_log(self.root, "SpawnDecided", run=proposal["subagent_id"])]

    async def succeeded(self, *proposals: dict[str, Any]) -> None:
        await until(lambda: all(self.state(each) == "success" for each in proposals))


@asynccontextmanager
async def open_terminal_server(
    tmp: Path, config: str = "", *, pin: str | None = None
) -> AsyncGenerator[TerminalServer]:
    """Open a server whose person decides at a terminal, with this PIN if there is one."""
    root = make_root(tmp / "data", config_toml=config + PRICED)
    with run_model_server([submit()] * 8) as model:
        env = {"AVA_MODEL_BASE_URL": model.base_url, "AVA_MODEL": "test"}
        async with serve_stdio(root, env=env, cwd=tmp) as wire:
            opened = TerminalServer(wire, root, model)
            if pin is not None:
                opened.pin.set(pin)
            yield opened


def without_styles(screen: str) -> str:
    """Return a screen without colors."""
    return " ".join(re.sub(r"\x1b\[[\d;]*m", "", screen).split())


def only_error(screen: str) -> str:
    """The error of a command that says nothing else but its heading."""
    heading, error = screen.split("\n", 1)
    assert heading.startswith("Data root: ")
    assert error.startswith("ava: ") and "Traceback" not in error
    return " ".join(error.split())

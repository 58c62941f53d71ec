"""Tools that wait until a test lets them go on, offered to the runs of a lab."""

from __future__ import annotations

from dataclasses import replace

import anyio

from ava_audit.rows import RunRow
from ava_roles.tool import Tool, ToolArgs, ToolContext, ToolOutput, ToolSpec
from ava_server.runs.record.history import History
from ava_server.runs.turn.context import RunContext
from ava_server.runs.turn.resources import RunResources
from ava_server.runs.turn.setup import RunSetup
from support.runtime import Lab


class WaitingTool:
    """A real tool that reads nothing and waits: for its turn to be released, or for ever."""

    def __init__(self, name: str, *, read_only: bool = True, timeout_s: float = 60) -> None:
        self.spec = ToolSpec(name, "Waits.", ToolArgs, read_only=read_only, timeout_s=timeout_s)
        self.inside = 0
        self.most_inside = 0
        self.entered = anyio.Event()
        self.together = anyio.Event()
        self.release = anyio.Event()

    def activity(self, args: ToolArgs) -> str:
        """Return what the run is doing meanwhile."""
        return "Waiting"

    async def __call__(self, args: ToolArgs, at: ToolContext) -> ToolOutput:
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.entered.set()
        if self.inside == 2:
            self.together.set()
        try:
            await self.release.wait()
        finally:
            self.inside -= 1
        return ToolOutput("waited")


class OfferingSetup(RunSetup):
    """A run setup that offers a tool to the runs of a runtime, beside those that they have."""

    def __init__(self, resources: RunResources, tool: Tool) -> None:
        super().__init__(resources)
        self._tool = tool

    async def prepare(self, run: RunRow, history: History) -> RunContext:
        """Prepare a run, and add the tool."""
        prepared, spec = await super().prepare(run, history), self._tool.spec
        schema = {"name": spec.name, "description": spec.description, "parameters": spec.schema()}
        started = prepared.started.model_copy(update={"tools": (*prepared.started.tools, schema)})
        return replace(prepared, tools={**prepared.tools, spec.name: self._tool}, started=started)


def offer_tool(lab: Lab, tool: Tool) -> None:
    """Offer a tool to the runs of a lab, beside those that they have."""
    lab.runtime.manager._setup = OfferingSetup(lab.runtime, tool)

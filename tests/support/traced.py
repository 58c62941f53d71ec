"""A process with OpenTelemetry's SDK in it: `python traced.py FOLDER SCENARIO` prints the spans that it made as JSON.

Each scenario is a whole Ava on a data root below the folder, with a real model server behind it. The SDK's provider is
the process's own, set once, as `opentelemetry-instrument` does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from mcp.shared.exceptions import MCPError
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.foreign.servers import SCRIPT, stdio_server, write_role
from support.model_server import Fail, Gate, Say, Script, run_model_server
from support.runtime import PRICED, connect, hand_over, open_lab, wait_for

READS = Say(calls=[("read_file", {"path": "a.md"}), ("read_file", {"path": "none.md"})])
SECRETS = "the quokka's task"


async def whole_run(folder: Path) -> dict[str, Any]:
    """Two reads at once, one of which fails; a call that fails and is made again; a result."""
    busy = Fail(503, retry_after="0", body={"error": {"message": SECRETS}})
    script: Script = [READS, busy, hand_over(output=SECRETS)]
    async with open_lab(folder, script, config=PRICED) as lab:
        (lab.workspace / "a.md").write_text(SECRETS)
        run_id = await lab.start(task=f"Find {SECRETS}", name="quokka hunt")
        run = await lab.ended(run_id)
        return {"run": run_id, "input": run.input_tokens, "output": run.output_tokens, "user": lab.runtime.user}


async def side_by_side(folder: Path) -> dict[str, Any]:
    gate = Gate()

    def answer(request: dict[str, Any]) -> Say:
        return hand_over() if len(request["messages"]) > 2 else Say(calls=[("scratchpad", {"note": "x"})], gate=gate)

    async with open_lab(folder, answer) as lab:
        ids = [await lab.start(task=f"Task {number}") for number in range(3)]
        await wait_for(gate.arrived)
        gate.released.set()
        for run_id in ids:
            await lab.ended(run_id)
        return {"runs": ids}


async def failed(folder: Path) -> dict[str, Any]:
    async with open_lab(folder, [Fail(401)]) as lab:
        run_id = await lab.start()
        return {"run": run_id, "state": (await lab.ended(run_id)).state}


async def taken_up(folder: Path) -> dict[str, Any]:
    """A run whose server is closed while its model answers, and that another one takes up."""
    gate = Gate()
    with run_model_server([Say("", gate=gate), hand_over()]) as server:
        async with open_lab(folder, server=server, check=False) as lab:
            run_id = await lab.start()
            await wait_for(gate.arrived)
        gate.released.set()
        async with open_lab(folder, server=server, check=False) as lab:
            return {"run": run_id, "state": (await lab.ended(run_id)).state}


async def cancelled(folder: Path) -> dict[str, Any]:
    gate = Gate()
    async with open_lab(folder, [Say("", gate=gate)]) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        await lab.call("cancel_subagent", subagent_id=run_id)
        gate.released.set()
        return {"run": run_id, "state": (await lab.run(run_id)).state}


async def requests(folder: Path) -> dict[str, Any]:
    """Requests of a host that fail, with what it gave in them."""
    said = ""
    async with connect(folder) as (client, _server):
        await client.call_tool("spawn_subagent", {"role": SECRETS, "task": SECRETS})
        try:
            await client.read_resource(f"ava://runs/{SECRETS.replace(' ', '-')}")
        except MCPError as error:
            said = error.message
    return {"said": said}


async def another_server(folder: Path) -> dict[str, Any]:
    return await _calling(folder, stdio_server("good"), "mcp__lab__add", {"a": 2, "b": 40})


async def older_server(folder: Path) -> dict[str, Any]:
    """A server that refuses what it does not know, with words of its own, and a call of its tool."""
    raw = f'[mcp_servers.raw]\ncommand = "{sys.executable}"\nargs = ["{SCRIPT.with_name("mcp_raw.py")}"]\n'
    return await _calling(folder, raw, "mcp__raw__ask", {"what": "refuse"})


async def _calling(folder: Path, config: str, tool: str, args: dict[str, Any]) -> dict[str, Any]:
    """A run that calls a tool of another server."""
    (folder / "data").mkdir(mode=0o700)
    write_role(folder / "data", tool)
    async with open_lab(folder, [Say(calls=[(tool, args)]), hand_over()], config=config, check=False) as lab:
        run_id = await lab.start(role="guest")
        return {"run": run_id, "state": (await lab.ended(run_id)).state}


def as_json(span: ReadableSpan) -> dict[str, Any]:
    """Return everything that an exporter could send of a span."""
    return {
        "name": span.name,
        "kind": span.kind.name,
        "trace": span.context.trace_id,
        "id": span.context.span_id,
        "parent": span.parent.span_id if span.parent is not None else None,
        "status": span.status.status_code.name,
        "said": span.status.description,
        "attributes": dict(span.attributes or {}),
        "events": [{"name": event.name, **dict(event.attributes or {})} for event in span.events],
        "scope": span.instrumentation_scope.name if span.instrumentation_scope is not None else None,
    }


SCENARIOS: dict[str, Callable[[Path], Awaitable[dict[str, Any]]]] = {
    scenario.__name__: scenario
    for scenario in (whole_run, side_by_side, failed, taken_up, cancelled, requests, another_server, older_server)
}


def main() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    told = anyio.run(SCENARIOS[sys.argv[2]], Path(sys.argv[1]))
    spans = [as_json(span) for span in exporter.get_finished_spans()]
    sys.stdout.write(json.dumps({"told": told, "spans": spans}) + "\n")


if __name__ == "__main__":
    main()

"""What Prometheus sees of a runtime."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import httpx2
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_server.http.metrics import CONTENT_TYPE, render
from ava_server.service.runtime import Runtime
from support.runtime import Lab

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scraper:
    """What Prometheus sees of a runtime."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.text = ""

    async def scrape(self) -> Samples:
        async with httpx2.AsyncClient() as client:
            response = await client.get(self._url)
        assert response.status_code == 200 and response.headers["content-type"] == CONTENT_TYPE
        self.text = response.text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }


@asynccontextmanager
async def open_scraper(runtime: Runtime) -> AsyncGenerator[Scraper]:
    """Serve the metrics of a runtime, and open what reads them."""

    async def metrics(_request: Request) -> Response:
        return Response(await render(runtime, open_sessions=2), media_type=None, headers={"content-type": CONTENT_TYPE})

    app = Starlette(routes=[Route("/metrics", metrics)])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off", loop="none"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        with anyio.fail_after(40):
            while not server.started:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield Scraper(f"http://127.0.0.1:{port}/metrics")
        finally:
            server.should_exit = True
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await server.shutdown()


def sample_value(samples: Samples, name: str, **labels: str) -> float:
    """Return a sample by its name and labels."""
    return samples[name, frozenset(labels.items())]


async def finish_run(lab: Lab) -> str:
    """Finish a run."""
    (lab.workspace / "a.md").write_text("It costs 12 dollars.")
    run_id = await lab.start(task="What does the quokka cost?", name="quokka hunt", task_id="quokka-17")
    await lab.ended(run_id)
    return run_id

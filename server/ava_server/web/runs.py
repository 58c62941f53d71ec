"""The pages of runs: a list of all, and one run with everything that is known of it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_audit.rows import RunRow
from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.approval.proposals import texts_of
from ava_server.runs.extension_answer import WaitingExtension, waiting_extension
from ava_server.service.run_view import run_answer, view_run
from ava_server.web.context import PageContext, found_or_404, reader_of
from ava_server.web.deciding import DONE
from ava_server.web.site import Visitor


class Runs:
    """The list of runs, and the page of each."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the paths."""
        return [
            Route("/subagents", self.listed, methods=["GET"]),
            Route("/subagents/{run_id}", found_or_404(self.one), methods=["GET"]),
        ]

    async def listed(self, request: Request) -> Response:
        """Show all runs, the newest first."""
        visitor = reader_of(request)
        runs = await self._context.store.read(lambda view: self._newest(view, visitor.user))
        return self._context.show(request, "runs.html", {"runs": runs, "stream": "/stream"})

    def _newest(self, view: View, user: str) -> list[Any]:
        alive = self._context.runtime.instances.alive
        rows = list(reversed(view.runs(user=user, limit=-1)))[:100]
        return [view_run(view, row, alive, now_us(), result=False, task=True) for row in rows]

    async def one(self, request: Request) -> Response:
        """Show one run."""
        visitor = reader_of(request)
        run = await self._context.access(visitor).run(request.path_params["run_id"], "subagent", reading=True)
        values = await self._context.store.read(lambda view: self._values(view, run, visitor))
        done = DONE.get(request.query_params.get("done", ""), "")
        return self._context.show(request, "run.html", {**values, "done": done, "stream": f"/stream?run={run.id}"})

    def _values(self, view: View, run: RunRow, visitor: Visitor) -> dict[str, Any]:
        now = now_us()
        shown = view_run(view, run, self._context.runtime.instances.alive, now, task=True)
        asked = waiting_extension(view, run, now)
        return {
            "run": shown,
            "row": run,
            "answer": run_answer(shown),
            "texts": texts_of(view, run),
            "extension": asked.pending if isinstance(asked, WaitingExtension) else None,
            "own": run.user_id == visitor.user,
        }

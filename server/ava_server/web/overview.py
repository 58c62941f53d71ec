"""The first page: what waits for a person, what runs, and what has ended lately."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.approval.proposals import Pending, pending_proposals
from ava_server.runs.extension_answer import PendingExtension, waiting_extensions
from ava_server.service.records import Budget, current_runs
from ava_server.service.run_view import RunView
from ava_server.web.context import PageContext, reader_of
from ava_server.web.site import Visitor

MOST_RUNS = 100


@dataclass(frozen=True)
class Now:
    """What the page shows: proposals, runs that ask for more, runs, and today's budgets."""

    proposals: list[Pending]
    extensions: list[PendingExtension]
    runs: tuple[RunView, ...]
    counts: dict[str, int]
    budgets: list[Budget]
    others: int

    @property
    def questions(self) -> list[RunView]:
        """The runs that have asked their person a question."""
        return [run for run in self.runs if run.wait is not None and run.wait.question is not None]

    @property
    def unended(self) -> list[RunView]:
        """The runs that have not ended, without proposals."""
        return [run for run in self.runs if not run.over and run.state != "awaiting_approval"]

    @property
    def ended(self) -> list[RunView]:
        """The runs that have ended in the last hour."""
        return [run for run in self.runs if run.row.ended]


class Overview:
    """The first page."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the path."""
        return [Route("/", self.show, methods=["GET"])]

    async def show(self, request: Request) -> Response:
        """Show what waits and what runs; of everybody, with `all` and the right to."""
        visitor = reader_of(request)
        everybody = "all" in request.query_params and visitor.reads_all
        now = await self._context.store.read(lambda view: self._now(view, visitor, everybody))
        values = {"now": now, "everybody": everybody, "stream": "/stream"}
        return self._context.show(request, "overview.html", values)

    def _now(self, view: View, visitor: Visitor, everybody: bool) -> Now:
        runtime, user, at_us = self._context.runtime, visitor.user, now_us()
        counts, runs = current_runs(
            view, None if everybody else user, runtime.instances.alive, at_us, served=lambda: True, most=MOST_RUNS
        )
        return Now(
            proposals=pending_proposals(view, user, at_us),
            extensions=[one.pending for one in waiting_extensions(view, user, at_us)],
            runs=runs,
            counts=counts,
            budgets=self._context.budgets(view, visitor, at_us, everybody=everybody),
            others=0 if everybody or not visitor.reads_all else view.unended_of_others(user),
        )

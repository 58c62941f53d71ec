"""The page of one run: what it is for, what it waits for, what came of it, and its timeline."""

from __future__ import annotations

import hashlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_audit.entries import Entry
from ava_audit.events import AssistantMessage
from ava_audit.rows import RunRow
from ava_audit.units import now_us
from ava_audit.view import View
from ava_server.approval.proposals import texts_of
from ava_server.budget.run_config import RunConfig, config_of
from ava_server.core.ids import AGENT
from ava_server.runs.extension_answer import WaitingExtension, waiting_extension
from ava_server.service.decided import decisions_in
from ava_server.service.run_view import RunView, run_answer, view_run
from ava_server.web.context import PageContext, found_or_404, go_to, reader_of
from ava_server.web.deciding import DONE
from ava_server.web.render import page
from ava_server.web.requests import HEADERS
from ava_server.web.run_result import result_values
from ava_server.web.site import Visitor
from ava_server.web.timeline import Order, Place, place_of, read_newer, read_page

FIRST_ENTRIES = 40
"""Among so many of a run's first entries are its proposal and the decision on it."""


class RunPage:
    """The page of a run, and its parts that htmx fetches again."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the paths."""
        return [
            Route("/subagents/{run_id}", found_or_404(self.whole), methods=["GET"]),
            Route("/subagents/{run_id}/head", found_or_404(self.head), methods=["GET"]),
            Route("/subagents/{run_id}/decide", found_or_404(self.decide), methods=["GET"]),
            Route("/subagents/{run_id}/result", found_or_404(self.result), methods=["GET"]),
            Route("/subagents/{run_id}/timeline", found_or_404(self.timeline), methods=["GET"]),
        ]

    async def whole(self, request: Request) -> Response:
        """Show one run."""
        visitor, run = await self._run(request)
        place = place_of(request.query_params, _order(run))
        values = await self._context.store.read(lambda view: self._whole(view, run.id, visitor, place))
        done = DONE.get(request.query_params.get("done", ""), "")
        values |= {"done": done, "stream": None if values["run"].over else f"/stream?run={run.id}"}
        return self._context.show(request, "run.html", await self._with_means(values, visitor))

    async def head(self, request: Request) -> Response:
        """Send the part that changes while the run goes on; at its end, the page fetches the result too."""
        visitor, run = await self._run(request)
        if not _part(request):
            return go_to(f"/subagents/{run.id}")
        answer = page("run_head.html", await self._context.store.read(lambda view: self._shown(view, run.id, visitor)))
        row = await self._context.store.read(lambda view: view.run(run.id))
        if row is not None and row.ended:
            answer.headers["HX-Trigger"] = "ava:ended"
        return answer

    async def decide(self, request: Request) -> Response:
        """Send what a person can decide, unless it is what the page shows: a form in use stays as it is."""
        visitor, run = await self._run(request)
        if not _part(request):
            return go_to(f"/subagents/{run.id}")
        values = await self._context.store.read(lambda view: self._decisions(view, run.id, visitor))
        if values["key"] == request.query_params.get("shown"):
            return Response(status_code=204, headers=dict(HEADERS))
        return page("run_decide.html", {"visitor": visitor, **await self._with_means(values, visitor)})

    async def result(self, request: Request) -> Response:
        """Send the result."""
        visitor, run = await self._run(request)
        if not _part(request):
            return go_to(f"/subagents/{run.id}")
        return page("run_result.html", await self._context.store.read(lambda view: self._shown(view, run.id, visitor)))

    async def timeline(self, request: Request) -> Response:
        """Send a page of the timeline, or with `newer` what was written since."""
        _visitor, run = await self._run(request)
        place = place_of(request.query_params, _order(run))
        if not _part(request):
            return go_to(f"/subagents/{run.id}?{place.query}#timeline")
        newer = "newer" in request.query_params
        values = await self._context.store.read(lambda view: self._timeline(view, run.id, place, newer))
        if newer and not values["timeline"].items:
            return Response(status_code=204, headers=dict(HEADERS))
        return page("run_items.html", {**values, "first": False})

    # -- what the parts show ------------------------------------------------------------------------------------------

    async def _run(self, request: Request) -> tuple[Visitor, RunRow]:
        visitor = reader_of(request)
        access = self._context.access(visitor)
        return visitor, await access.run(request.path_params["run_id"], "subagent", reading=True)

    def _shown(self, view: View, run_id: str, visitor: Visitor) -> dict[str, Any]:
        row = view.run(run_id)
        assert row is not None
        runtime = self._context.runtime
        shown = view_run(view, row, runtime.instances.alive, now_us(), manager=runtime.manager)
        answer = run_answer(shown)
        first = view.newer_entries(run_id, 0, FIRST_ENTRIES)
        raised = view.rare_entries(run_id, ("ExtensionDecided",))
        decided = [entry for entry in first if entry.type == "SpawnDecided"]
        session = visitor.service_session(self._context.site.url)
        return {
            "run": shown,
            "row": row,
            "answer": answer,
            "result": result_values(shown, answer),
            "decisions": decisions_in([*decided, *raised]),
            "undecided": _undecided(shown, decided),
            "proposal": _proposal(first),
            "config": _config(row) if shown.caps else None,
            "own": row.user_id == visitor.user,
            "steers": row.user_id == visitor.user and session.may("spawn"),
            "ends": session.administers or (row.user_id == visitor.user and session.may("spawn")),
        }

    def _whole(self, view: View, run_id: str, visitor: Visitor, place: Place) -> dict[str, Any]:
        values = self._shown(view, run_id, visitor)
        values |= {"texts": texts_of(view, values["row"]), **self._decisions(view, run_id, visitor)}
        return {**values, **self._timeline(view, run_id, place, newer=False), "first": place.seq is None}

    def _timeline(self, view: View, run_id: str, place: Place, newer: bool) -> dict[str, Any]:
        row = view.run(run_id)
        assert row is not None
        found = read_newer(view, run_id, place) if newer else read_page(view, run_id, place, row.cost_micros)
        config = _config(row)
        most = 0 if config is None or config.free else config.max_cost_micros
        return {"row": row, "timeline": found, "order": place.order, "cap": most, "again": newer}

    def _decisions(self, view: View, run_id: str, visitor: Visitor) -> dict[str, Any]:
        row = view.run(run_id)
        assert row is not None
        now = now_us()
        shown = view_run(view, row, self._context.runtime.instances.alive, now, result=False)
        own = row.user_id == visitor.user
        asked = waiting_extension(view, row, now) if own and row.extension is not None else None
        extension = asked.pending if isinstance(asked, WaitingExtension) else None
        wait = shown.wait
        question = wait.question if wait is not None and own else None
        session = visitor.service_session(self._context.site.url)
        line = wait.line if wait is not None and (own or session.administers) else None
        about = (extension and extension.digest, question and row.question, line, shown.over)
        return {
            "row": row,
            "run": shown,
            "extension": extension,
            "question": question,
            "line": line,
            "own": own,
            "steers": own and session.may("spawn"),
            "key": hashlib.sha256(repr(about).encode()).hexdigest()[:16],
        }

    async def _with_means(self, values: dict[str, Any], visitor: Visitor) -> dict[str, Any]:
        """Add what an approval takes, where something can be approved."""
        needed = values["extension"] is not None or values["line"] is not None
        owner = values["row"].user_id
        return {**values, "means": await self._context.authority.means(visitor, owner) if needed else None}


def _part(request: Request) -> bool:
    """Tell whether htmx asks for a part of the page."""
    return request.headers.get("hx-request") == "true"


def _order(run: RunRow) -> Order:
    return "oldest" if run.ended else "newest"


def _config(row: RunRow) -> RunConfig | None:
    """Return what was approved; None where a newer Ava wrote it."""
    try:
        return config_of(row.config)
    except ValueError:
        return None


def _undecided(shown: RunView, decided: list[Entry]) -> str:
    if decided or shown.row.queued_us is not None:
        return ""
    return f"Not decided: {shown.row.pending_id} {'has expired' if shown.state == 'expired' else 'waits for approval'}."


def _proposal(first: list[Entry]) -> str:
    """Return the proposal as it was shown, from a run's first entries; empty where it was erased."""
    texts = (
        entry.fact.text for entry in first if entry.who.agent_id == AGENT and isinstance(entry.fact, AssistantMessage)
    )
    return next(texts, "")

"""Two runs beside each other: what each was to do, what it cost and took, and what it handed over."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_audit.units import format_duration, now_us
from ava_audit.view import View
from ava_server.render.document import Text, UntrustedText
from ava_server.render.result import result_of
from ava_server.render.run_view import cost_of, run_answer, state_words, view_run
from ava_server.web.context import PagePart, found_or_404, reader_of


class Compare(PagePart):
    """The page of two runs, `a` and `b`."""

    def routes(self) -> list[Route]:
        return [Route("/compare", found_or_404(self.show), methods=["GET"])]

    async def show(self, request: Request) -> Response:
        access = self._context.access(reader_of(request))
        given = [request.query_params.get(name, "").strip() for name in "ab"]
        ids = [(await access.run(one, "run", reading=True)).id for one in given]
        both = await self._context.store.read(lambda view: [self._one(view, run_id) for run_id in ids])
        labels = list(dict.fromkeys(label for one in both for label in one["facts"]))
        return self._context.show(request, "compare.html", {"both": both, "labels": labels})

    def _one(self, view: View, run_id: str) -> dict[str, Any]:
        row = view.run(run_id)
        assert row is not None
        run = view_run(view, row, self._context.runtime.instances, now_us(), task=True)
        result = result_of(run_answer(run))
        facts: dict[str, Text] = {
            "State": state_words(run.state),
            "Role": row.role,
            "Model": UntrustedText(row.model),
            "Cost": cost_of(run),
            "Time": format_duration(run.caps[0].used if run.caps else row.active_us / 1e6),
            "Turns": f"{row.turns:,}",
            "Tool calls": f"{row.tool_calls:,}",
            "Tokens": f"{row.tokens:,}",
            **({fact.label: fact.value for fact in result.figures} if result is not None else {}),
        }
        return {"row": row, "run": run, "facts": facts, "result": result}

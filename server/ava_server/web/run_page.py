"""The page of one run: what it is for, what it waits for, what came of it, and its timeline.

Beside it are pages for a long text, a delivered file, a coder's diff, and the costs of each call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_audit.rows import RunRow
from ava_audit.units import micros_from_cents, now_us
from ava_audit.view import View
from ava_server.approval.decide import Needs
from ava_server.approval.lookup import proposal_of
from ava_server.approval.proposals import brief_of
from ava_server.approval.requests import stored_result
from ava_server.core.data_root import home_folder
from ava_server.core.errors import Refused
from ava_server.core.ids import parse_number
from ava_server.render.approvals import decisions_on, undecided_words
from ava_server.render.responses import RunAnswer
from ava_server.render.result import Result, UntrustedText, cost_notes, result_of, verdict_words
from ava_server.render.run_view import RunView, run_answer, view_run
from ava_server.run_config.config import RunConfig, config_of
from ava_server.runs.record.costs import Costs, costs_of
from ava_server.service.run_records import DeliveredFiles, diff_of, run_record, shown_changes
from ava_server.service.source_view import open_source
from ava_server.web.context import NotFound, PagePart, found_or_404, go_to, page, reader_of
from ava_server.web.deciding import DONE
from ava_server.web.markdown import html
from ava_server.web.site import HEADERS, Visitor
from ava_server.web.tables import read_table
from ava_server.web.timeline import Order, Place, describe, place_of, read_newer, read_page, scale_of

MOST_CHARS = 400_000
AROUND_LINES, AROUND_CHARS = 100, 10_000
"""Lines and characters that are shown on each side of a quote."""
DIFF_LINES, DIFF_CHARS = 4_000, 400_000
DIFF_WITHIN_S = 30.0
MOST_ATTEMPTS = 400
_PARTS = {
    "input": "Prompts",
    "cache": "Cache",
    "output": "Answers",
    "thinking": "Thinking",
    "retries": "Retries",
    "plan": "Planning",
    "search": "Web searches",
    "uncosted": "Unknown, the most that it can be",
}


class RunPage(PagePart):
    """The page of a run, its parts that htmx fetches again, and the pages of its long texts."""

    def routes(self) -> list[Route]:
        return [
            Route("/subagents/{run_id}", found_or_404(self.whole), methods=["GET"]),
            Route("/subagents/{run_id}/head", found_or_404(self.head), methods=["GET"]),
            Route("/subagents/{run_id}/decide", found_or_404(self.decide), methods=["GET"]),
            Route("/subagents/{run_id}/result", found_or_404(self.result), methods=["GET"]),
            Route("/subagents/{run_id}/timeline", found_or_404(self.timeline), methods=["GET"]),
            Route("/subagents/{run_id}/entries/{seq}", found_or_404(self.entry), methods=["GET"]),
            Route("/subagents/{run_id}/sources/{number}", found_or_404(self.source), methods=["GET"]),
            Route("/subagents/{run_id}/files/{name}", found_or_404(self.file), methods=["GET"]),
            Route("/subagents/{run_id}/diff", found_or_404(self.diff), methods=["GET"]),
            Route("/subagents/{run_id}/costs", found_or_404(self.costs), methods=["GET"]),
        ]

    async def whole(self, request: Request) -> Response:
        visitor, run = reader_of(request), await self._context.named_run(request)
        place = place_of(request.query_params, _order(run))
        values = await self._context.store.read(lambda view: self._whole(view, run.id, visitor, place))
        done = DONE.get(request.query_params.get("done", ""), "")
        values |= {"done": done, "stream": None if values["run"].over else f"/stream?run={run.id}"}
        return self._context.show(request, "run.html", await self._with_means(values, visitor))

    async def head(self, request: Request) -> Response:
        """Send the part that changes while the run goes on; at its end, the page fetches the result too."""
        visitor, run = reader_of(request), await self._context.named_run(request)
        if not _part(request):
            return go_to(f"/subagents/{run.id}")
        answer = page("run_live.html", await self._context.store.read(lambda view: self._shown(view, run.id, visitor)))
        row = await self._context.store.read(lambda view: view.run(run.id))
        if row is not None and row.ended:
            answer.headers["HX-Trigger"] = "ava:ended"
        return answer

    async def decide(self, request: Request) -> Response:
        """Send what a person can decide, unless it is what the page shows: a form in use stays as it is."""
        visitor, run = reader_of(request), await self._context.named_run(request)
        if not _part(request):
            return go_to(f"/subagents/{run.id}")
        values = await self._context.store.read(lambda view: self._decisions(view, run.id, visitor))
        if values["key"] == request.query_params.get("shown"):
            return Response(status_code=204, headers=dict(HEADERS))
        return page("run_decide.html", {"visitor": visitor, **await self._with_means(values, visitor)})

    async def result(self, request: Request) -> Response:
        visitor, run = reader_of(request), await self._context.named_run(request)
        if not _part(request):
            return go_to(f"/subagents/{run.id}")
        return page("run_result.html", await self._context.store.read(lambda view: self._shown(view, run.id, visitor)))

    async def timeline(self, request: Request) -> Response:
        """Show the entries; with `newer`, what was written since."""
        run = await self._context.named_run(request)
        place = place_of(request.query_params, _order(run))
        if not _part(request):
            return go_to(f"/subagents/{run.id}?{place.query}#timeline")
        newer = "newer" in request.query_params
        values = await self._context.store.read(lambda view: self._timeline(view, run.id, place, newer))
        if newer and not values["timeline"].items:
            return Response(status_code=204, headers=dict(HEADERS))
        return page("run_items.html", {**values, "first": False})

    # -- what the parts show ------------------------------------------------------------------------------------------

    def _shown(self, view: View, run_id: str, visitor: Visitor) -> dict[str, Any]:
        row = view.run(run_id)
        assert row is not None
        runtime = self._context.runtime
        shown = view_run(view, row, runtime.instances, now_us(), manager=runtime.manager, task=True)
        answer = run_answer(shown)
        result = result_of(answer)
        session = visitor.service_session(self._context.site.url)
        return {
            "run": shown,
            "row": row,
            "answer": answer,
            "result": result,
            "caveats": _caveats(shown, result),
            "scale": scale_of(row, now_us()),
            "spent_on": [] if shown.free else spent_on(_parts_beside_notes(answer)),
            "cost_notes": cost_notes(answer),
            "decisions": decisions_on(view, row),
            "undecided": undecided_words(row, shown.state),
            "proposal": proposal_of(view, row),
            "config": _config(row) if shown.caps else None,
            "own": row.user_id == visitor.user,
            "steers": row.user_id == visitor.user and session.may("spawn"),
            "ends": session.administers or (row.user_id == visitor.user and session.may("spawn")),
        }

    def _whole(self, view: View, run_id: str, visitor: Visitor, place: Place) -> dict[str, Any]:
        values = self._shown(view, run_id, visitor)
        values = {**self._decisions(view, run_id, visitor), **values, "brief": brief_of(view, values["row"])}
        return {**values, **self._timeline(view, run_id, place, newer=False), "first": place.seq is None}

    def _timeline(self, view: View, run_id: str, place: Place, newer: bool) -> dict[str, Any]:
        row = view.run(run_id)
        assert row is not None
        found = read_newer(view, run_id, place) if newer else read_page(view, run_id, place, row.cost_micros)
        config = _config(row)
        cap = config.cost_cap(row.cost_micros) if config is not None else None
        return {
            "row": row,
            "timeline": found,
            "order": place.order,
            "said": _error_of_result(view, row),
            "cap": cap or 0,
            "again": newer,
            "scale": scale_of(row, now_us()),
        }

    def _decisions(self, view: View, run_id: str, visitor: Visitor) -> dict[str, Any]:
        row = view.run(run_id)
        assert row is not None
        shown = view_run(view, row, self._context.runtime.instances, now_us(), result=False, task=True)
        own = row.user_id == visitor.user
        session = visitor.service_session(self._context.site.url)
        asked = shown.question if own else None
        line: str | None = None
        if shown.wait is not None and (own or session.administers):
            line = shown.wait.line
        about = (asked and asked.id, line, shown.over)
        return {
            "row": row,
            "run": shown,
            "asked": asked,
            "line": line,
            "own": own,
            "steers": own and session.may("spawn"),
            "key": hashlib.sha256(repr(about).encode()).hexdigest()[:16],
        }

    async def _with_means(self, values: dict[str, Any], visitor: Visitor) -> dict[str, Any]:
        """Add what an approval takes, where something can be approved."""
        asked, row = values["asked"], values["row"]
        asks_approval = asked is not None and asked.kind.is_approval
        means: Needs | None = None
        if asks_approval or values["line"] is not None:
            means = await self._context.authority.needs(visitor, row.user_id, [row.id])
        return {**values, "means": means}

    # -- its long texts -----------------------------------------------------------------------------------------------

    async def entry(self, request: Request) -> Response:
        run, given = await self._context.named_run(request), request.path_params["seq"]
        seq = parse_number(given, "there is no such entry")
        entry = await self._context.store.read(lambda view: view.entry(seq))
        if entry is None or entry.run_id != run.id:
            raise NotFound("there is no such entry")
        shown = describe(entry)
        if shown is None:
            raise NotFound("there is no such entry")
        return self._text(request, run, shown.title, shown.text)

    async def source(self, request: Request) -> Response:
        """Show what the run read of a finding's source, with the quote marked."""
        run, given = await self._context.named_run(request), request.path_params["number"]
        runtime = self._context.runtime
        number = parse_number(given, "there is no such source")
        opened = await open_source(self._context.store, run.id, number, runtime.settings, runtime.user)
        window = opened.window(AROUND_LINES, AROUND_CHARS)
        values = {"row": run, "source": opened, "window": window, "verdict": verdict_words(opened.verdict)}
        return self._context.show(request, "run_source.html", values)

    async def file(self, request: Request) -> Response:
        """Show a delivered file, or send it to be saved."""
        run, name = await self._context.named_run(request), request.path_params["name"]
        record = await self._record(run)
        result = record.answer.untrusted_result
        delivered: Sequence[Mapping[str, Any]] = result.artifacts if result is not None else ()
        known = next((file for file in delivered if file.get("name") == name), None)
        if known is None:
            raise NotFound("the run has delivered no file of this name")
        files = DeliveredFiles(
            self._context.runtime.settings.paths.artifacts / run.id, run.id, self._context.store.blobs
        )
        data = await anyio.to_thread.run_sync(files.read, known)
        if "download" in request.query_params:
            saved = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
            return Response(data, headers={**HEADERS, **saved, "Content-Type": "application/octet-stream"})
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = ""
        plain = "plain" in request.query_params
        shown: dict[str, Any] = {}
        if not plain:
            shown = drawn_file(name, text)
        return self._text(request, run, name, text, download=f"{quote(name)}?download", plain=plain, **shown)

    def _text(self, request: Request, run: RunRow, title: str, text: str, **more: Any) -> Response:
        """Show a text; `more` has what is drawn in its place, and the address to save it."""
        left = 0 if more.get("table") else max(len(text) - MOST_CHARS, 0)
        values = {"row": run, "title": title, "text": text[:MOST_CHARS], "left": left}
        values |= {"download": "", "plain": False, "drawn": None, "table": None, **more}
        return self._context.show(request, "run_text.html", values)

    async def diff(self, request: Request) -> Response:
        run = await self._context.named_run(request)
        record, known = await self._record(run), self._context.runtime.credentials.redactor
        changes = shown_changes(record.row, record.answer)
        try:
            with anyio.fail_after(DIFF_WITHIN_S):
                text = await anyio.to_thread.run_sync(diff_of, changes, home_folder(), known, abandon_on_cancel=True)
        except TimeoutError:
            raise Refused(f"the diff took longer than {DIFF_WITHIN_S:.0f} s; see `ava show {run.id} --diff`") from None
        lines, left = bounded_lines(text)
        values = {"row": run, "lines": line_kinds(lines), "left": left, "changes": changes}
        return self._context.show(request, "run_diff.html", values)

    async def costs(self, request: Request) -> Response:
        run = await self._context.named_run(request)
        record = await self._record(run)
        costs = await self._context.store.read(lambda view: _costs(view, run))
        values = {"row": record.row, "costs": costs, "attempts": costs.attempts[-MOST_ATTEMPTS:]}
        parts = costs.cost_by if costs.whole else micros_by_part(record.answer)
        return self._context.show(request, "run_costs.html", {**values, "spent_on": spent_on(parts)})

    async def _record(self, run: RunRow) -> Any:
        processes = self._context.runtime.instances
        return await self._context.store.read(lambda view: run_record(view, run.id, processes))


def drawn_file(name: str, text: str) -> dict[str, Any]:
    """Return a file of Markdown or of comma-separated values as it is drawn; empty for any other."""
    ending = PurePosixPath(name).suffix.lower()
    if ending in (".md", ".markdown") and text.strip():
        return {"drawn": html(UntrustedText(text[:MOST_CHARS]))}
    if ending in (".csv", ".tsv"):
        return {"table": read_table(text)}
    return {}


def _caveats(shown: RunView, result: Result | None) -> list[UntrustedText]:
    """Return the caveats of a result that neither its ending nor the steps of a plan say."""
    if result is None:
        return []
    said: set[str] = set() if shown.plan is None else shown.plan.step_caveats
    return [caveat for caveat in result.caveats_beside_ending if caveat.text not in said]


def _error_of_result(view: View, row: RunRow) -> str:
    """Return the error that the result on the page says; empty where there is none."""
    result = stored_result(view, row) or {}
    return str(result.get("untrusted_result", {}).get("error_text") or "")


def _part(request: Request) -> bool:
    return request.headers.get("hx-request") == "true"


def _order(run: RunRow) -> Order:
    return "oldest" if run.ended else "newest"


def _config(row: RunRow) -> RunConfig | None:
    """Return None if a newer Ava wrote it."""
    try:
        return config_of(row.config)
    except ValueError:
        return None


def _costs(view: View, run: RunRow) -> Costs:
    try:
        return costs_of(view, run, bounded=True)
    except ValueError:
        raise Refused(f"a newer Ava has proposed {run.id}, and this one cannot read what was approved") from None


def micros_by_part(answer: RunAnswer) -> dict[str, int]:
    """Return what a result says that money was spent on."""
    return {name: micros_from_cents(cents) for name, cents in (answer.cost_by or {}).items()}


def _parts_beside_notes(answer: RunAnswer) -> dict[str, int]:
    """Return the parts of a cost, without the unknown one where the notes behind the cost say it already."""
    parts = micros_by_part(answer)
    if answer.uncosted:
        parts.pop("uncosted", None)
    return parts


def spent_on(parts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return what was spent, in micro-USD, by the parts in words."""
    return [(_PARTS.get(name, name), micros) for name, micros in parts.items() if micros]


def bounded_lines(text: str) -> tuple[list[str], int]:
    """Return a diff's first lines, as many as a page shows, and how many are left."""
    lines, chars = text.rstrip("\n").split("\n"), 0
    for number, line in enumerate(lines):
        chars += len(line) + 1
        if number >= DIFF_LINES or chars > DIFF_CHARS:
            return lines[:number], len(lines) - number
    return lines, 0


def line_kinds(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return each line with its class; only lines before a hunk can be headers of a file."""
    kinds: list[tuple[str, str]] = []
    inside = False
    for line in lines:
        inside = line.startswith("@@") or (inside and not line.startswith("diff --git "))
        kind = {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "") if inside else "file"
        kinds.append((kind, line))
    return kinds

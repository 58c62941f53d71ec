"""Pages beside the page of a run: a long text, a delivered file, a coder's diff, and the costs of each call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_audit.rows import RunRow
from ava_audit.view import View
from ava_server.core.data_root import home_folder
from ava_server.core.errors import BadInput, Refused
from ava_server.runs.costs import Costs, costs_of
from ava_server.service.artifacts import RunFiles
from ava_server.service.records import changes_in, diff_of, run_record
from ava_server.web.context import NotFound, PageContext, found_or_404, reader_of
from ava_server.web.requests import HEADERS
from ava_server.web.run_page import FIRST_ENTRIES
from ava_server.web.run_result import micros_by_part, spent_on
from ava_server.web.timeline_items import describe

MOST_CHARS = 400_000
DIFF_LINES, DIFF_CHARS = 4_000, 400_000
DIFF_WITHIN_S = 30.0
WHOLE_ENTRIES = 10_000
"""Of a run with more entries, only the last calls are read: everything would take seconds."""
LAST_ENTRIES = 2_500
MOST_ATTEMPTS = 400
_SEQ_DIGITS = 18
_OF_MONEY, _OF_CAPS = ("CostReserved", "CostUpdate"), ("SpawnProposed", "SpawnDecided")


class RunDetails:
    """The pages of a run's long texts."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the paths."""
        return [
            Route("/subagents/{run_id}/entries/{seq}", found_or_404(self.entry), methods=["GET"]),
            Route("/subagents/{run_id}/files/{name}", found_or_404(self.file), methods=["GET"]),
            Route("/subagents/{run_id}/diff", found_or_404(self.diff), methods=["GET"]),
            Route("/subagents/{run_id}/costs", found_or_404(self.costs), methods=["GET"]),
        ]

    async def entry(self, request: Request) -> Response:
        """Show the whole text of one entry."""
        run, given = await self._run(request), request.path_params["seq"]
        if not (given.isascii() and given.isdecimal() and len(given) <= _SEQ_DIGITS):
            raise BadInput("there is no such entry")
        entry = await self._context.store.read(lambda view: view.entry(int(given)))
        shown = describe(entry) if entry is not None and entry.run_id == run.id else None
        if shown is None:
            raise NotFound("there is no such entry")
        return self._text(request, run, shown.title, shown.text)

    async def file(self, request: Request) -> Response:
        """Show a delivered file, or send it to be saved."""
        run, name = await self._run(request), request.path_params["name"]
        record = await self._record(run)
        result = record.answer.untrusted_result
        known = next((file for file in result.artifacts if file.get("name") == name), None) if result else None
        if known is None:
            raise NotFound("the run has delivered no file of this name")
        data = await anyio.to_thread.run_sync(self._read, run, known)
        if "download" in request.query_params:
            saved = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
            return Response(data, headers={**HEADERS, **saved, "Content-Type": "application/octet-stream"})
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = ""
        return self._text(request, run, name, text, download=f"{quote(name)}?download")

    def _read(self, run: RunRow, file: Mapping[str, Any]) -> bytes:
        folder = self._context.runtime.settings.paths.artifacts / run.id
        return RunFiles(folder, run.id, self._context.store.blobs).read(file)

    def _text(self, request: Request, run: RunRow, title: str, text: str, download: str = "") -> Response:
        values = {"row": run, "title": title, "text": text[:MOST_CHARS], "left": max(len(text) - MOST_CHARS, 0)}
        return self._context.show(request, "run_text.html", {**values, "download": download})

    async def diff(self, request: Request) -> Response:
        """Show what a coder has changed."""
        run = await self._run(request)
        record, known = await self._record(run), self._context.runtime.credentials.redactor
        changes = changes_in(record.row, record.answer)
        try:
            with anyio.fail_after(DIFF_WITHIN_S):
                text = await anyio.to_thread.run_sync(diff_of, changes, home_folder(), known, abandon_on_cancel=True)
        except TimeoutError:
            raise Refused(f"the diff took longer than {DIFF_WITHIN_S:.0f} s; see `ava show {run.id} --diff`") from None
        lines, left = bounded_lines(text)
        values = {"row": run, "lines": line_kinds(lines), "left": left, "changes": changes}
        return self._context.show(request, "run_diff.html", values)

    async def costs(self, request: Request) -> Response:
        """Show what each call has cost, and for what."""
        run = await self._run(request)
        record = await self._record(run)
        costs, whole = await self._context.store.read(lambda view: _costs(view, run))
        values = {"row": record.row, "costs": costs, "attempts": costs.attempts[-MOST_ATTEMPTS:], "whole": whole}
        parts = costs.cost_by if whole else micros_by_part(record.answer)
        return self._context.show(request, "run_costs.html", {**values, "spent_on": spent_on(parts)})

    async def _run(self, request: Request) -> RunRow:
        access = self._context.access(reader_of(request))
        return await access.run(request.path_params["run_id"], "subagent", reading=True)

    async def _record(self, run: RunRow) -> Any:
        alive = self._context.runtime.instances.alive
        return await self._context.store.read(lambda view: run_record(view, run.id, alive))


def _costs(view: View, run: RunRow) -> tuple[Costs, bool]:
    """Return what a run has cost, and whether that is all of it: of a long run, it is the last calls."""
    whole = view.count_entries(run.id, WHOLE_ENTRIES) < WHOLE_ENTRIES
    if whole:
        entries = view.entries(run.id)
    else:
        last = [entry for entry in view.older_entries(run.id, None, LAST_ENTRIES)[::-1] if entry.type in _OF_MONEY]
        first = [entry for entry in view.newer_entries(run.id, 0, FIRST_ENTRIES) if entry.type in _OF_CAPS]
        entries = [*first, *view.rare_entries(run.id, ("ExtensionDecided",)), *last]
    try:
        return costs_of(run, entries, view.of_type("SettingsChanged")), whole
    except ValueError:
        raise Refused(f"a newer Ava has proposed {run.id}, and this one cannot read what was approved") from None


def bounded_lines(text: str) -> tuple[list[str], int]:
    """Return a diff's first lines, as many as a page shows, and how many are left."""
    lines, chars = text.rstrip("\n").split("\n"), 0
    for number, line in enumerate(lines):
        chars += len(line) + 1
        if number >= DIFF_LINES or chars > DIFF_CHARS:
            return lines[:number], len(lines) - number
    return lines, 0


def line_kinds(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return the lines of a diff, each with its class; only lines before a hunk can be headers of a file."""
    kinds: list[tuple[str, str]] = []
    inside = False
    for line in lines:
        inside = line.startswith("@@") or (inside and not line.startswith("diff --git "))
        kind = {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "") if inside else "file"
        kinds.append((kind, line))
    return kinds

"""What a person decides on the pages: proposals, requests for more, answers, messages, and ends.

Each decision is a call of the service, so it is checked and recorded like any other. It counts only for exactly what
was shown: the form carries the digest of that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_audit.errors import AuditError
from ava_audit.rows import RunRow
from ava_audit.units import cents, entered_micros, now_us
from ava_audit.view import View
from ava_roles.errors import RolesError
from ava_server.approval.proposals import Pending, changed_since, pending_proposal, together_line, together_note
from ava_server.approval.questions import COST, TIME, LimitField, dollars_field, minutes_field
from ava_server.budget.run_config import config_of
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.ids import parse_id
from ava_server.service.service import Service
from ava_server.web.context import PageContext, found_or_404, go_to, reader_of, visitor_of
from ava_server.web.requests import Form, read_form
from ava_server.web.site import Visitor
from ava_server.web.webauthn import Subject

DONE: Mapping[str, str] = {
    "approved": "Approved. It starts as soon as there is room.",
    "rejected": "Rejected. It cannot start any more.",
    "raised": "The cap is raised, and the run continues.",
    "declined": "Declined. The run hands in what it has.",
    "resumed": "It goes on where it was.",
    "cancelled": "The run is told to end. What it has so far is kept as its result.",
    "sent": "Sent. The run reads it before its next turn.",
}
"""What a page says after a decision, by the word in its address."""
MOST_TOGETHER = 20
_AMOUNT = re.compile(r"[0-9]{1,9}([.,][0-9]{1,9})?")


async def _silent(_line: str) -> None:
    """Ignore progress."""


class Deciding:
    """The pages and forms of decisions."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the paths."""
        return [
            Route("/proposals", found_or_404(self.several), methods=["GET"]),
            Route("/proposals", self.decide, methods=["POST"]),
            Route("/proposals/{pending_id}", found_or_404(self.one), methods=["GET"]),
            Route("/subagents/{run_id}/extension", self.extend, methods=["POST"]),
            Route("/subagents/{run_id}/resume", self.resume, methods=["POST"]),
            Route("/subagents/{run_id}/cancel", self.cancel, methods=["POST"]),
            Route("/subagents/{run_id}/message", self.send, methods=["POST"]),
        ]

    # -- proposals ----------------------------------------------------------------------------------------------------

    async def one(self, request: Request) -> Response:
        """Show one proposal."""
        return await self._proposals(request, [request.path_params["pending_id"]])

    async def several(self, request: Request) -> Response:
        """Show the proposals that `id` names, to be decided together."""
        return await self._proposals(request, request.query_params.getlist("id"))

    async def decide(self, request: Request) -> Response:
        """Approve or reject proposals, exactly as they were shown."""
        visitor = visitor_of(request)
        form = await read_form(request, visitor)
        shown = dict(zip(form.all("id"), form.all("digest"), strict=False))
        try:
            done = await self._decided(visitor, form, shown)
        except (AvaError, AuditError, RolesError) as error:
            return await self._proposals(request, list(shown), self._context.text_of(error))
        row = await self._context.store.read(lambda view: view.proposal(done[0]))
        many = len(shown) > 1 or row is None
        return go_to("/" if many or row is None else f"/subagents/{row.run_id}?done={done[1]}")

    async def _decided(self, visitor: Visitor, form: Form, shown: Mapping[str, str]) -> tuple[str, str]:
        """Carry out a decision, and return the first proposal and the word for what was done.

        Raises:
            AvaError: It was not accepted.
        """
        ids = [parse_id("pending_id", given, "id") for given in shown]
        if not ids or len(form.all("digest")) != len(form.all("id")):
            raise BadInput("the form names no proposal")
        approve = form.one("decision") == "approve"
        if not approve and form.one("decision") != "reject":
            raise BadInput("the form says neither approve nor reject")
        given: dict[str, Any] = {"pending_ids": ids, "decision": "approve" if approve else "reject"}
        if approve:
            given.update(await self._approval(visitor, form, dict(zip(ids, shown.values(), strict=True))))
        service = self._service(visitor, agreed=approve)
        answer: Any = await service.call("confirm_spawn", given, _silent, raises=True)
        refused = [one.refused_because for one in answer.decisions if one.refused_because]
        if refused:
            raise Refused(" ".join(refused))
        return ids[0], "approved" if approve else "rejected"

    async def _approval(self, visitor: Visitor, form: Form, shown: dict[str, str]) -> dict[str, Any]:
        """Return the arguments of an approval, once everything that it takes was given.

        Raises:
            Refused: It may not be approved, or is no longer what was shown.
            BadInput: A limit is not a number.
        """
        store, now = self._context.store, now_us()
        if why := await store.read(lambda view: changed_since(view, visitor.user, shown)):
            raise Refused(why)
        await self._prove("/proposals", visitor, form)
        rows = [await self._context.access(visitor).run(pending_id, "id") for pending_id in shown]
        waiting = await store.read(lambda view: [_unexpired(self._pending(view, row, now), now) for row in rows])
        lines = [one.approval_line for one in waiting]
        fields = {field.name: field for field in _fields(rows)}
        cost, minutes = _entered(form, "cost", fields.get(COST)), _entered(form, "minutes", fields.get(TIME))
        micros = entered_micros(cost) if cost is not None else None
        seconds = minutes * 60 if minutes is not None else None
        if len(waiting) == 1:
            caps = {"max_cost_cents": micros and cents(micros), "timeout": seconds}
            lowered = {name: value for name, value in caps.items() if value is not None}
            return {"approving": lines, **({"changes": {waiting[0].pending_id: {"caps": lowered}}} if lowered else {})}
        group = {"group_max_cost_cents": micros and cents(micros), "group_timeout": seconds}
        lines.append(together_line(waiting, micros, seconds))
        return {"approving": lines, **{name: value for name, value in group.items() if value is not None}}

    async def _proposals(self, request: Request, ids: Sequence[str], said: str = "") -> Response:
        visitor = reader_of(request)
        if not 1 <= len(ids) <= MOST_TOGETHER:
            raise BadInput(f"choose 1 to {MOST_TOGETHER} proposals")
        access, now = self._context.access(visitor), now_us()
        rows = [await access.run(given, "id", reading=True) for given in ids]
        found = await self._context.store.read(lambda view: [self._shown(view, row, now) for row in rows])
        waiting = [one for one in found if isinstance(one, Pending)]
        own = all(row.user_id == visitor.user for row in rows)
        values = {
            "waiting": waiting,
            "closed": [(row, one) for row, one in zip(rows, found, strict=True) if isinstance(one, str)],
            "fields": _fields([row for row, one in zip(rows, found, strict=True) if isinstance(one, Pending)]),
            "together": together_line(waiting, None, None) if len(waiting) > 1 else "",
            "note": together_note(waiting, None) if len(waiting) > 1 else "",
            "own": own,
            "means": await self._context.authority.means(visitor) if waiting and own else None,
            "said": said,
        }
        return self._context.show(request, "proposals.html", values, 409 if said else 200)

    def _pending(self, view: View, row: RunRow, now: int) -> Pending | str:
        return pending_proposal(view, row, self._context.runtime.spawn_limits_of(row.user_id), now)

    def _shown(self, view: View, row: RunRow, now: int) -> Pending | str:
        found = self._pending(view, row, now)
        expired = isinstance(found, Pending) and found.expires_us <= now
        return f"{row.pending_id} has expired; ask your host to propose it again." if expired else found

    # -- runs ---------------------------------------------------------------------------------------------------------

    async def extend(self, request: Request) -> Response:
        """Raise the cap of a run that asks for it, or have it hand in what it has."""
        visitor, form = await self._sent(request)
        approve = form.one("decision") == "approve"
        if approve:
            await self._prove(request.scope["path"], visitor, form)
        run_id = parse_id("subagent_id", request.path_params["run_id"])
        service = self._service(visitor, agreed=approve)
        service.refuse_without("spawn")
        await service.extensions.decide(run_id, form.one("digest"), approve=approve)
        return go_to(f"/subagents/{run_id}?done={'raised' if approve else 'declined'}")

    async def resume(self, request: Request) -> Response:
        """Resume an interrupted or held run, exactly as it was shown; it takes what an approval does."""
        visitor, form = await self._sent(request)
        run_id = parse_id("subagent_id", request.path_params["run_id"])
        run = await self._context.access(visitor).run(run_id, "subagent", steering=True)
        await self._prove(request.scope["path"], visitor, form, of=run.user_id)
        given = {"pending_ids": [run.id], "approving": [form.one("line")]}
        service = self._service(visitor, agreed=True)
        answer: Any = await service.call("confirm_spawn", given, _silent, raises=True)
        if answer.status != "resumed":
            why = [one.refused_because for one in answer.decisions if one.refused_because]
            raise Refused(" ".join(why) or f"{run_id} does not wait to be resumed; nothing was done")
        return go_to(f"/subagents/{run_id}?done=resumed")

    async def cancel(self, request: Request) -> Response:
        """End a run."""
        visitor, form = await self._sent(request)
        reason = {"reason": form.one("reason")} if form.one("reason") else {}
        return await self._called(request, "cancel_subagent", "cancelled", reason, visitor)

    async def send(self, request: Request) -> Response:
        """Send a message to a run, or the answer to its question."""
        visitor, form = await self._sent(request)
        asked = form.one("question")
        run = await self._context.access(visitor).run(request.path_params["run_id"], "subagent")
        if asked and run.question != asked:
            raise Refused("the run no longer waits for this answer; nothing was sent")
        return await self._called(request, "message_subagent", "sent", {"message": form.one("message")}, visitor)

    async def _called(
        self, request: Request, tool: str, done: str, given: dict[str, Any], visitor: Visitor
    ) -> Response:
        run_id = parse_id("subagent_id", request.path_params["run_id"])
        await self._service(visitor).call(tool, {"subagent_id": run_id, **given}, _silent, raises=True)
        return go_to(f"/subagents/{run_id}?done={done}")

    async def _sent(self, request: Request) -> tuple[Visitor, Form]:
        visitor = visitor_of(request)
        return visitor, await read_form(request, visitor)

    async def _prove(self, path: str, visitor: Visitor, form: Form, of: str | None = None) -> None:
        """Check that a visitor has given what an approval takes, for exactly this form and a run of this user.

        Raises:
            Refused: They have not.
        """
        await self._context.authority.check(visitor, form, Subject.of(path, form.pairs()), of)

    def _service(self, visitor: Visitor, *, agreed: bool = False) -> Service:
        """Return the service for a visitor; `agreed` where the approval was given what it takes."""
        app, url = self._context.app, self._context.site.url
        common = app.service_for((visitor.token, f"browser {visitor.session.id}"), lambda: visitor.service_session(url))
        app.begin(common.session)
        if not agreed:
            return common
        session = visitor.service_session(url, agreed=True)
        session.started = True
        return Service(self._context.runtime, session)


def _unexpired(found: Pending | str, now: int) -> Pending:
    if isinstance(found, str):
        raise Refused(found)
    if found.expires_us <= now:
        raise Refused(f"{found.pending_id} has expired; ask your host to propose it again.")
    return found


def _most(rows: Sequence[RunRow]) -> tuple[int, float]:
    """Return what runs may cost together (micro-USD), and the longest time of one (seconds)."""
    configs = [config_of(row.config) for row in rows]
    return sum(config.max_cost_micros for config in configs), max(config.timeout_s for config in configs)


def _fields(rows: Sequence[RunRow]) -> list[LimitField]:
    """Return the limits that an approval may lower."""
    if not rows:
        return []
    configs = [config_of(row.config) for row in rows]
    cost, seconds = _most(rows)
    together = ", all together" if len(rows) > 1 else ""
    least = max(config.least_micros for config in configs)
    money = [dollars_field(f"At most{together}, in dollars", least, cost)]
    free = all(config.free for config in configs)
    time = [minutes_field(f"At most{together}, in minutes", seconds)]
    return [*([] if free else money), *([] if len(rows) > 1 else time)]


def _entered(form: Form, name: str, field: LimitField | None) -> float | None:
    """Return a lower limit that was entered, None where the field is empty or has the limit as it is.

    Raises:
        BadInput: It is not a number, or not one that the page offers.
    """
    text = form.one(name)
    if not text:
        return None
    if field is None or not _AMOUNT.fullmatch(text):
        raise BadInput(f"{text[:20]!r} is not an amount that can be entered here; nothing was approved")
    value = float(text.replace(",", "."))
    if not field.least <= value <= field.most:
        low, high = field.words(field.least), field.words(field.most)
        raise BadInput(f"{text[:20]} is not between {low} and {high}; nothing was approved")
    return value if value < field.most else None

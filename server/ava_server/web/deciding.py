"""What a person decides on the pages: proposals, requests for more, answers, messages, and ends.

A decision counts only for exactly what was shown: the form carries the digest of that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ava_audit.errors import AuditError
from ava_audit.rows import RunRow
from ava_audit.units import now_us
from ava_roles.errors import RolesError
from ava_server.approval.decide import PersonAnswer, Shown
from ava_server.approval.proposals import Pending, agreement, together_line, together_note, waiting_proposal
from ava_server.approval.start_form import LimitField, limit_fields
from ava_server.approval.summary import ATTENTION
from ava_server.core.errors import AvaError, BadInput, Refused
from ava_server.core.ids import parse_id, parse_run_id
from ava_server.run_config.config import config_of
from ava_server.run_config.run_cap import COST, TIME, caps_text
from ava_server.runs.asking.pending_questions import is_approval
from ava_server.service.page_links import page_of
from ava_server.service.service import Service, decide, refuse_changed
from ava_server.web.context import PagePart, SignedOut, found_or_404, go_to, reader_of, signed_in, visitor_of
from ava_server.web.site import Form, Visitor, read_form
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
NO_SEARCH = "It can open pages whose address it has, but it cannot search the web."
"""What a page adds where a run reaches the web and goes without a search."""
_AMOUNT = re.compile(r"[0-9]{1,9}([.,][0-9]{1,9})?")


class Deciding(PagePart):
    """The pages and forms of decisions."""

    def routes(self) -> list[Route]:
        return [
            Route("/proposals", found_or_404(self.several), methods=["GET"]),
            Route("/proposals", self.decide, methods=["POST"]),
            Route("/proposals/open", found_or_404(self.leave_decided), methods=["GET"]),
            Route("/proposals/{pending_id}", found_or_404(self.one), methods=["GET"]),
            Route("/subagents/{run_id}/extension", self.extend, methods=["POST"]),
            Route("/subagents/{run_id}/resume", self.resume, methods=["POST"]),
            Route("/subagents/{run_id}/cancel", self.cancel, methods=["POST"]),
            Route("/subagents/{run_id}/message", self.send, methods=["POST"]),
        ]

    # -- proposals ----------------------------------------------------------------------------------------------------

    async def one(self, request: Request) -> Response:
        return await self._proposals(request, [request.path_params["pending_id"]])

    async def several(self, request: Request) -> Response:
        """The proposals that `id` names are decided together."""
        return await self._proposals(request, request.query_params.getlist("id"))

    async def leave_decided(self, request: Request) -> Response:
        """Send an open page of proposals to what was decided, once one of them no longer waits."""
        ids = request.query_params.getlist("id")
        if not 1 <= len(ids) <= MOST_TOGETHER:
            raise BadInput("give the ids of the proposals that the page shows")
        try:
            visitor = reader_of(request)
        except SignedOut:  # the page stays, with what was typed on it: its buttons say that the session has ended
            return Response(status_code=204)
        found = await self._found(visitor, ids, reading=True)
        if all(isinstance(one, Pending) for _row, one in found):
            return Response(status_code=204)
        return Response(status_code=204, headers={"HX-Redirect": page_of("", ids)})

    async def decide(self, request: Request) -> Response:
        """Approve or reject proposals, exactly as they were shown."""
        visitor, form = await _sent(request)
        ids, digests = form.all("id"), form.all("digest")
        digest_of = dict(zip(ids, digests, strict=False))
        try:
            shown = [Shown("start", parse_id("pending_id", one, "id"), digest) for one, digest in digest_of.items()]
            if not shown or len(digests) != len(ids):
                raise BadInput("the form names no proposal")
            if form.one("decision") not in ("approve", "reject"):
                raise BadInput("the form says neither approve nor reject")
            approve = form.one("decision") == "approve"
            _refuse_others(visitor, [one.id for one in shown])
            answer = PersonAnswer(False)
            if approve:
                answer = await self._approval(visitor, form, shown)
            decided = await decide(self._service(visitor, agreed=approve), shown, answer)
            if decided.reasons:
                raise Refused(" ".join(decided.reasons))
        except (AvaError, AuditError, RolesError) as error:
            return await self._proposals(request, list(digest_of), self._context.text_of(error))
        if visitor.session.only and not approve:
            return await self._proposals(request, list(digest_of))
        proposal = await self._context.store.read(lambda view: view.proposal(shown[0].id))
        to = "/"
        if len(shown) == 1 and proposal is not None:
            to = _where_after(proposal.run_id, "approved" if approve else "rejected", form)
        if not visitor.session.only:
            return go_to(to)
        # Who came by a link has just proven who they are: from now on they see all of their pages.
        site, user = self._context.site, self._context.runtime.user
        session = await anyio.to_thread.run_sync(lambda: site.sessions.open(user, terminal=True))
        return signed_in(site, session, to)

    async def _approval(self, visitor: Visitor, form: Form, shown: Sequence[Shown]) -> PersonAnswer:
        """Return an approval, once it is what was shown, and everything that it takes was given."""
        await refuse_changed(self._context.store, visitor.user, shown)
        await self._prove("/proposals", visitor, form, ids=[one.id for one in shown])
        rows: list[RunRow] = []
        pending: list[Pending] = []
        for row, one in await self._found(visitor, [one.id for one in shown]):
            if isinstance(one, str):
                raise Refused(one)
            rows.append(row)
            pending.append(one)
        fields = {field.cap: field for field in _fields(rows)}
        lowered: dict[str, Any] = {}
        for name, cap in (("cost", COST), ("minutes", TIME)):
            value = _entered(form.one(name), fields.get(cap))
            if value is not None:
                lowered[cap.argument] = cap.argument_value(value)
        if not lowered:
            return agreement(pending, {})
        if len(pending) > 1:
            return agreement(pending, {f"group_{name}": value for name, value in lowered.items()})
        return agreement(pending, {"changes": {pending[0].pending_id: {"caps": lowered}}})

    async def _found(
        self, visitor: Visitor, ids: Sequence[str], *, reading: bool = False
    ) -> list[tuple[RunRow, Pending | str]]:
        """Return proposals, each with its run, or why it cannot be decided on."""
        _refuse_others(visitor, ids)
        access, limits_of, now = self._context.access(visitor), self._context.runtime.spawn_limits_of, now_us()
        rows = [await access.run(given, "id", reading=reading) for given in ids]
        return await self._context.store.read(
            lambda view: [(row, waiting_proposal(view, row, limits_of(row.user_id), now)) for row in rows]
        )

    async def _proposals(self, request: Request, ids: Sequence[str], said: str = "") -> Response:
        """Show proposals, to be decided on together. `said`: why a decision was refused."""
        visitor = reader_of(request)
        if not 1 <= len(ids) <= MOST_TOGETHER:
            raise BadInput(f"mark 1 to {MOST_TOGETHER} proposals on the overview")
        found = await self._found(visitor, ids, reading=True)
        runs: list[RunRow] = []
        waiting: list[Pending] = []
        closed: list[tuple[RunRow, str]] = []
        for run, one in found:
            if isinstance(one, Pending):
                runs.append(run)
                waiting.append(one)
            else:
                closed.append((run, one))
        together = note = ""
        if len(waiting) > 1:
            together = together_line(waiting, None, None)
            note = together_note(waiting, None)
        own = all(run.user_id == visitor.user for run, _one in found)
        means = None
        if waiting and own:
            means = await self._context.authority.needs(visitor, ids=ids)
        values = {
            "waiting": waiting,
            "attention": ATTENTION,
            "topics": {one.pending_id: topics_of(one) for one in waiting},
            "closed": closed,
            "fields": _fields(runs),
            "together": together,
            "note": note,
            "own": own,
            "means": means,
            "said": said,
        }
        status = 409 if said else 200
        return self._context.show(request, "proposals.html", values, status)

    # -- runs ---------------------------------------------------------------------------------------------------------

    async def extend(self, request: Request) -> Response:
        visitor, form = await _sent(request)
        approve = form.one("decision") == "approve"
        if approve:
            await self._prove(request.scope["path"], visitor, form, ids=[_run_id(request)])
        shown = Shown("extend", _run_id(request), form.one("digest"))
        await decide(self._service(visitor, agreed=approve), [shown], PersonAnswer(approve))
        return _done(shown, "raised" if approve else "declined", form)

    async def resume(self, request: Request) -> Response:
        """Exactly as it was shown; it takes what an approval does."""
        visitor, form = await _sent(request)
        run = await self._context.access(visitor).run(_run_id(request), "subagent", steering=True)
        await self._prove(request.scope["path"], visitor, form, of=run.user_id, ids=[run.id])
        shown = Shown("resume", run.id, line=form.one("line"))
        decided = await decide(self._service(visitor, agreed=True), [shown], PersonAnswer(True))
        decided.expect("resumed", "Not resumed")
        return _done(shown, "resumed", form)

    async def cancel(self, request: Request) -> Response:
        visitor, form = await _sent(request)
        shown = Shown("cancel", _run_id(request))
        decided = await decide(self._service(visitor), [shown], PersonAnswer(True, form.one("reason") or None))
        if decided.text:  # it had ended
            raise Refused(decided.text)
        return _done(shown, "cancelled", form)

    async def send(self, request: Request) -> Response:
        """Send a message to a run, or the answer to its question."""
        visitor, form = await _sent(request)
        run_id, question = _run_id(request), form.one("question")
        text = "\n".join(filter(None, (form.one("option"), form.one("message"))))
        allows = await self._context.store.read(lambda view: is_approval(view, run_id, question, text))
        if allows:
            await self._prove(request.scope["path"], visitor, form, ids=[run_id])
        shown = Shown("answer" if question else "send", run_id, question)
        await decide(self._service(visitor, agreed=allows), [shown], PersonAnswer(True, text))
        return _done(shown, "sent", form)

    async def _prove(
        self, path: str, visitor: Visitor, form: Form, of: str | None = None, ids: Sequence[str] = ()
    ) -> None:
        """Refuse a visitor who has not given what an approval takes, for exactly this form and a run of this user."""
        await self._context.authority.check(visitor, form, Subject.of(path, form.pairs()), of, ids)

    def _service(self, visitor: Visitor, *, agreed: bool = False) -> Service:
        """`agreed`: the approval was given what it takes."""
        app, url = self._context.app, self._context.site.url
        common = app.service_for((visitor.token, f"browser {visitor.session.id}"), lambda: visitor.service_session(url))
        app.begin(common.session)
        if not agreed:
            return common
        session = visitor.service_session(url, agreed=True)
        session.started = True
        return Service(self._context.runtime, session)


def topics_of(one: Pending) -> dict[str, list[str]]:
    """Return the sentences of a proposal by topic, without the price: it stands above them, and large.

    What is left of `How much` is how long it takes.
    """
    topics: dict[str, list[str]] = {}
    for topic, texts in one.topics.items():
        if topic == "How much":
            without_price = [_without_price(one, text) for text in texts]
            title = "How long" if without_price != texts else topic
            topics[title] = without_price
        elif topic == "Not available" and one.summary is not None and "the web" in one.summary.reach:
            topics[topic] = [*texts]
            if any("without web_search" in text for text in texts):
                topics[topic].append(NO_SEARCH)
        else:
            topics[topic] = texts
    return topics


def _without_price(one: Pending, text: str) -> str:
    cost = "costs nothing" if one.free else f"costs {caps_text(one.max_cost_micros)}"
    for clause in (f", and {cost}.", f" and {cost}."):
        text = text.replace(clause, ".", 1)
    return text


def _refuse_others(visitor: Visitor, ids: Sequence[str]) -> None:
    """Refuse what the link of other proposals does not show."""
    only = visitor.session.only
    if only and not {parse_id("pending_id", given, "id") for given in ids} <= only:
        raise BadInput("this link shows other proposals; sign in to see all of yours: `ava ui`")


async def _sent(request: Request) -> tuple[Visitor, Form]:
    visitor = visitor_of(request)
    return visitor, await read_form(request, visitor)


def _run_id(request: Request) -> str:
    return parse_run_id(request.path_params["run_id"])


def _done(shown: Shown, word: str, form: Form) -> Response:
    return go_to(_where_after(shown.id, word, form))


def _where_after(run_id: str, word: str, form: Form) -> str:
    """Return where a decision leads: to its run, or back to the overview if its form was there."""
    if form.one("back") == "overview":
        return f"/?done={word}"
    return f"/subagents/{run_id}?done={word}"


def _fields(rows: Sequence[RunRow]) -> tuple[LimitField, ...]:
    """Return the limits that an approval may lower; several have no time in common."""
    configs = [config_of(row.config) for row in rows]
    if not configs:
        return ()
    most_s = configs[0].timeout_s if len(configs) == 1 else None
    return limit_fields(configs, sum(config.max_cost_micros for config in configs), most_s)


def _entered(text: str, field: LimitField | None) -> float | None:
    """Return None if the field is empty or has the limit as it is."""
    if not text:
        return None
    if field is None or not _AMOUNT.fullmatch(text):
        raise BadInput(f"{text[:20]!r} is not an amount that can be entered here; nothing was approved")
    value = float(text.replace(",", "."))
    if not field.least <= value <= field.most:
        low, high = field.words(field.least), field.words(field.most)
        raise BadInput(f"{text[:20]} is not between {low} and {high}; nothing was approved")
    if value >= field.most:
        return None
    stored: float = field.stored(value)
    return stored

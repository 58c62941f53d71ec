"""What becomes of a proposal elsewhere while a question about it is open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import anyio
from mcp_types import ElicitRequestFormParams, ElicitResult

from ava_audit.events import Channel, Who
from ava_audit.store.store import Store
from ava_audit.units import now_us
from ava_server.approval.decisions import Approval, approve, reject
from ava_server.approval.proposals import SpawnLimits
from ava_server.budget.user_limits import DayCaps
from ava_server.config.settings import Limits
from ava_server.core.data_root import os_user
from ava_server.runs.asking.extension import ExtensionLimits
from ava_server.runs.asking.pending_questions import asked_of, decide_question, pending_question
from ava_server.runs.asking.question_kinds import Decider
from ava_server.runs.record.endings import cancel as cancel_run
from support.hosts.elicitation import Answering

PERSON = Who("sess-elsewhere", "person", os_user())
LIMITS = SpawnLimits(0, "", DayCaps(10**9, 10**9), ("", ""), 10**9)
EXTENSIONS = ExtensionLimits(Limits(), DayCaps(10**9, 10**9))
Happening = Literal["approved", "rejected", "withdrawn", "expired", "ended"]


async def decide_elsewhere(root: Path, made: dict[str, Any], what: Happening, channel: Channel = "browser") -> None:
    """Decide as the pages do, in a store of one's own."""
    ids = (str(made["pending_id"]),)
    async with Store.open(root) as store:
        if what in ("approved", "ended"):
            decided = await store.do(approve(Approval(ids, (made["approval_line"],)), PERSON, channel, LIMITS))
            assert decided.decisions[0].status == "approved", decided
        elif what == "rejected":
            await store.do(reject(ids, PERSON, channel))
        elif what == "withdrawn":
            await store.do(cancel_run(made["subagent_id"], PERSON, None, "person"))
        if what == "ended":
            seen = store.head  # before the look: what is written after it wakes the wait
            while not (await store.read(lambda view: view.run(made["subagent_id"]))).ended:  # type: ignore[union-attr]
                seen = await store.wait_for_entry_after(seen)


async def never_answer(_asked: ElicitRequestFormParams) -> ElicitResult:
    """Leave a form open for ever."""
    await anyio.sleep_forever()
    raise AssertionError


def answer_after(act: Callable[[], Awaitable[object]], then: Answering) -> Answering:
    """Return a person at a form while whom something else is done first."""

    async def answer(asked: ElicitRequestFormParams) -> ElicitResult:
        await act()
        answered = then(asked)
        return answered if isinstance(answered, ElicitResult) else await answered  # type: ignore[misc]

    return answer


async def decide_request_elsewhere(root: Path, run_id: str, *, allow: bool) -> None:
    """Allow a run what it asks for, or decline it, as its page does."""
    async with Store.open(root) as store:
        run = await store.read(lambda view: view.run(run_id))
        request = asked_of(run) if run is not None else None
        assert request is not None
        by = Decider(PERSON, PERSON, "browser", EXTENSIONS)
        command = decide_question(run_id, request.digest, request.proposed if allow else None, by)
        assert (await store.do(command)).status != "refused"


async def answer_question_elsewhere(root: Path, run_id: str, text: str) -> None:
    """Answer a run's question, as its page does."""
    async with Store.open(root) as store:
        run = await store.read(lambda view: view.run(run_id))
        assert run is not None
        question = await store.read(lambda view: pending_question(view, run, now_us()))
        assert question is not None
        by = Decider(PERSON, Who(run.session_id, run.id, run.user_id), "browser", EXTENSIONS)
        assert (await store.do(decide_question(run.id, question.id, text, by))).status == "answered"

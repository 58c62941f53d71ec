"""Each question at each surface, whatever happened elsewhere meanwhile: its test, and what a late answer is told.

A question is open at a surface; then it is decided elsewhere, it expires, its run ends, or the data root is gone. The
table names the test of each case. Here are those of late answers: what every surface sends, it sends through `decide`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path

import anyio
import pytest
from support.hosts.extensions import CAP, keep_noting
from support.model_server import Gate, Say
from support.repository import REPOSITORY
from support.runtime import PRICED, Lab, hand_over, open_lab, wait_for

from ava_audit.errors import AuditError
from ava_audit.events import Answered, Channel, RunResumed, SpawnDecided
from ava_audit.units import now_us
from ava_server.approval.decide import PersonAnswer, Shown
from ava_server.config.tokens import Token
from ava_server.core.errors import AvaError
from ava_server.runs.asking.pending_questions import pending_question
from ava_server.service.access import Session
from ava_server.service.service import Service, decide

TESTS = REPOSITORY / "tests"
LATE = "server/service/test_late_decisions.py::test_a_late_answer_is_told_what_was_decided"
GONE = (
    "server/service/test_late_decisions.py::test_an_answer_after_the_data_root_is_gone_is_refused_and_decides_nothing"
)
ELSEWHERE = "server/service/test_decided_elsewhere.py::"
TERMINALS = "system/test_decided_elsewhere.py::"


def test_each_question_at_each_surface_has_a_test_for_all_that_happens_elsewhere() -> None:
    used = set[str]()
    for surface, questions in SURFACES.items():
        for question in questions:
            used |= {shown_by(*case) for case in product([surface], [question], HAPPENINGS[question])}
    assert used == {test for *_case, test in SHOWN_BY}, "a line that fits no case"
    for test in used:
        file, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text("utf-8"), re.MULTILINE), test
    asking = [vars(import_module(f"ava_server.{place}.run"))["approve"] for place in ("suites", "cli")]
    assert asking[0] is asking[1], "a suite asks as `ava run` does"


# -- late answers -----------------------------------------------------------------------------------------------------

CHANNELS: Mapping[Channel, str] = {
    "terminal": "a terminal, the dashboard, a suite",
    "browser": "a page",
    "http": "HTTP",
}
"""Through which surfaces answer, and which."""


def at(lab: Lab, channel: Channel) -> Service:
    user = lab.session.user
    token = Token("phone", user, ("approve",), "0" * 64, 0, None) if channel == "http" else None
    session = Session(user, channel, channel=channel, by="person", pin_given=True, token=token)
    return Service(lab.runtime, session)


async def said(lab: Lab, channel: Channel, shown: Shown, answer: PersonAnswer) -> str:
    """Answer at a surface; return what it is told."""
    try:
        decided = await decide(at(lab, channel), [shown], answer)
    except (AvaError, AuditError) as refused:
        return str(refused)
    return " ".join([*decided.reasons, decided.text])


async def open_start(lab: Lab) -> tuple[str, Shown]:
    made = await lab.propose()
    row = await lab.store.read(lambda view: view.proposal(made.pending_id))
    assert row is not None
    return made.subagent_id, Shown("start", made.pending_id, row.digest, made.approval_line)


async def open_extension(lab: Lab) -> tuple[str, Shown]:
    lab.session.channel = "terminal"
    run_id = await lab.start(**CAP)
    lab.session.channel = "host_call"
    await lab.logged(run_id, "Asked", within_s=60)
    run = await lab.run(run_id)
    asked = await lab.store.read(lambda view: pending_question(view, run, now_us()))
    assert asked is not None
    return run_id, asked.shown


async def open_question(lab: Lab) -> tuple[str, Shown]:
    run_id = await lab.start()
    await lab.logged(run_id, "Asked")
    run = await lab.run(run_id)
    asked = await lab.store.read(lambda view: pending_question(view, run, now_us()))
    assert asked is not None
    return run_id, asked.shown


async def open_cancel(lab: Lab) -> tuple[str, Shown]:
    run_id = await lab.start()
    return run_id, Shown("cancel", run_id)


Opens = Callable[[Lab], Awaitable[tuple[str, Shown]]]
OPENS: Mapping[str, Opens] = {
    "start": open_start, "extend": open_extension, "answer": open_question, "cancel": open_cancel,
}  # fmt: skip
ASKS = [Say(calls=[("ask", {"question": "In which currency?"})]), hand_over()]


async def happens(lab: Lab, run_id: str, shown: Shown, what: str) -> None:
    """Decide elsewhere: in another terminal."""
    yes = PersonAnswer(True, "USD", lines=[shown.line])
    if what == "withdrawn" or (what == "ended" and shown.kind in ("extend", "answer")):
        await said(lab, "terminal", Shown("cancel", run_id), PersonAnswer(True))
    elif what == "expired":
        await anyio.sleep(1.1)
    elif shown.kind != "cancel":
        answer = yes if what in ("approved", "ended", "answered", "answered otherwise") else PersonAnswer(False)
        await said(lab, "terminal", shown, answer)
    if what == "ended":
        await lab.ended(run_id)


CASES = {
    ("start", "approved"): "was approved already, in a terminal at",
    ("start", "rejected"): "was rejected already, in a terminal at",
    ("start", "withdrawn"): "was withdrawn already, at",
    ("start", "expired"): "expired",
    ("start", "ended"): "was approved already, in a terminal at",
    ("extend", "approved"): "was approved already, in a terminal at",
    ("extend", "declined"): "was declined already, in a terminal at",
    ("extend", "ended"): "has ended",
    ("answer", "answered otherwise"): "was answered already, in a terminal at",
    ("answer", "ended"): "has ended (cancelled)",
    ("cancel", "ended"): "Not cancelled: researcher ",
}


@pytest.mark.parametrize(("kind", "what"), CASES, ids=map(" ".join, CASES))
async def test_a_late_answer_is_told_what_was_decided(tmp_path: Path, kind: str, what: str) -> None:
    script = keep_noting if kind == "extend" else ASKS if kind == "answer" else [hand_over()]
    ttl = "proposal_ttl_s = 1\n" if what == "expired" else ""
    async with open_lab(tmp_path, script, config=ttl + PRICED, check=False) as lab:
        run_id, shown = await OPENS[kind](lab)
        await happens(lab, run_id, shown, what)
        before = await decisions(lab, run_id)
        for channel in CHANNELS:
            if channel == "http" and kind not in SURFACES["HTTP"]:
                continue
            for agrees in (True, False) if kind in ("start", "extend") else (True,):
                told = await said(lab, channel, shown, PersonAnswer(agrees, "EUR", lines=[shown.line]))
                if what == "expired" and not agrees:
                    continue  # a no to what has expired rejects nothing that could start
                assert CASES[kind, what] in told, (channel, agrees, told)
        assert await decisions(lab, run_id) == before, "one decision counts"


async def decisions(lab: Lab, run_id: str) -> list[object]:
    kinds = (SpawnDecided, Answered, RunResumed)
    found = [fact for kind in kinds for fact in await lab.facts(run_id, kind)]
    return [fact for fact in found if getattr(fact, "decision", "") != "expired"]  # noted at the next look


@pytest.mark.parametrize("kind", OPENS)
async def test_an_answer_after_the_data_root_is_gone_is_refused_and_decides_nothing(tmp_path: Path, kind: str) -> None:
    gate = Gate()
    script = keep_noting if kind == "extend" else ASKS if kind == "answer" else [Say("x", gate=gate), hand_over()]
    async with open_lab(tmp_path, script, config=PRICED, check=False) as lab:
        run_id, shown = await OPENS[kind](lab)
        if kind == "cancel":
            await wait_for(gate.arrived)
        before = await decisions(lab, run_id)
        lab.root.rename(lab.root.with_name("elsewhere"))
        try:
            for channel in CHANNELS:
                if channel == "http" and kind not in SURFACES["HTTP"]:
                    continue
                told = await said(lab, channel, shown, PersonAnswer(True, "EUR", lines=[shown.line]))
                assert f"the data root {lab.root} was" in told, (channel, told)
            assert not lab.root.exists(), "nothing is created in its place"
        finally:
            gate.released.set()
            lab.root.with_name("elsewhere").rename(lab.root)
        assert await decisions(lab, run_id) == before


HAPPENINGS: Mapping[str, Sequence[str]] = {
    "start": ("approved", "rejected", "withdrawn", "expired", "ended", "data root gone"),
    "extend": ("approved", "declined", "ended", "data root gone"),
    "answer": ("answered", "answered otherwise", "ended", "data root gone"),
    "cancel": ("ended", "data root gone"),
    "resume": ("resumed", "ended"),
}
"""What can happen elsewhere while such a question is open."""


SURFACES: Mapping[str, Sequence[str]] = {
    "form": ("start", "extend", "answer", "resume"),
    "page": ("start", "extend", "answer", "cancel", "resume"),
    "dashboard": ("start", "extend", "answer", "cancel"),
    "ava run": ("start", "extend", "answer"),
    "suite": ("start", "extend", "answer"),
    "ava approve": ("start", "extend"),
    "ava reject": ("start", "extend"),
    "ava cancel": ("cancel",),
    "HTTP": ("start", "extend"),
    "ava demo": ("start",),
}
"""What each surface asks about."""


SHOWN_BY: Sequence[tuple[str, str, str, str]] = (
    # surfaces, questions and happenings, divided by `|`; `*` is every one. The first line that fits counts.
    ("*", "*", "data root gone", GONE),
    ("form", "start", "expired", ELSEWHERE + "test_a_form_that_stays_open_when_its_proposal_expires_is_withdrawn"),
    ("form", "start", "*", ELSEWHERE + "test_a_form_of_the_host_goes_on_with_what_was_decided_elsewhere"),
    (
        "form",
        "extend",
        "approved|declined",
        ELSEWHERE + "test_a_request_for_more_asked_by_check_subagent_tells_what_was_decided_elsewhere",
    ),
    (
        "form",
        "answer",
        "answered|answered otherwise",
        ELSEWHERE + "test_a_question_of_a_run_asked_by_check_subagent_tells_who_has_answered",
    ),
    (
        "page",
        "start",
        "approved|rejected",
        "web/test_decisions.py::test_an_open_page_leaves_a_proposal_that_was_decided_elsewhere",
    ),
    (
        "page",
        "start",
        "expired",
        "web/test_decisions.py::test_an_expired_proposal_and_switched_off_subagents_start_nothing",
    ),
    ("page", "cancel", "ended", "web/test_decisions.py::test_a_run_is_cancelled"),
    (
        "form",
        "resume",
        "*",
        "server/runs/owner/test_resume_decided.py::test_a_question_whether_to_resume_goes_on_with_what_was_decided_elsewhere",
    ),
    ("page", "resume", "*", "web/test_run_forms.py::test_an_interrupted_run_is_resumed_as_it_was_shown"),
    (
        "dashboard",
        "start",
        "approved|rejected",
        "server/dashboard/test_decisions.py::test_a_question_whose_proposal_is_decided_elsewhere_withdraws_itself",
    ),
    (
        "dashboard",
        "answer",
        "answered otherwise",
        "server/dashboard/test_decisions.py::test_an_answer_to_a_question_that_is_gone_is_refused_and_stays_typed",
    ),
    (
        "ava run|suite",
        "start",
        "approved|rejected",
        TERMINALS + "test_the_question_of_ava_run_withdraws_and_goes_on_with_the_decision",
    ),
    (
        "ava run|suite",
        "extend",
        "approved|declined",
        "system/test_extensions.py::test_ava_run_takes_its_question_back_where_it_is_answered_elsewhere",
    ),
    (
        "ava approve",
        "start",
        "approved|rejected",
        TERMINALS + "test_the_question_of_ava_approve_withdraws_and_says_what_was_decided",
    ),
    ("ava reject", "start", "approved|rejected", TERMINALS + "test_the_questions_about_all_that_wait_withdraw"),
    (
        "HTTP",
        "start",
        "approved",
        "system/test_http_approvals.py::test_with_policy_human_only_an_approve_token_can_approve_over_http",
    ),
    ("ava demo", "start", "*", ELSEWHERE + "test_the_demo_tells_and_follows_what_was_decided_elsewhere"),
    ("*", "*", "*", LATE),
)


def shown_by(*case: str) -> str:
    """Return the test of a case: of a surface, a question and a happening."""
    for *parts, test in SHOWN_BY:
        if all(part == "*" or one in part.split("|") for part, one in zip(parts, case, strict=True)):
            return test
    raise LookupError(case)

"""Who may allow a run more, and what an answer counts for."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.hosts import extensions
from support.runtime import PRICED, USER, open_lab

from ava_audit.events import Answered
from ava_server.config.pin import PinFile
from ava_server.core.errors import Refused
from ava_server.runs.asking.pending_questions import asked_of


@pytest.mark.requirement("N-15")
async def test_an_answer_counts_once_and_only_for_what_was_shown(tmp_path: Path) -> None:
    async with open_lab(tmp_path, extensions.keep_noting, config=PRICED) as lab:
        run_id = await extensions.start(lab)
        shown = await extensions.pending(lab, run_id)
        with pytest.raises(Refused, match="has changed since it was shown"):
            await extensions.person(lab).questions.decide(run_id, "0" * 64, approve=True)
        await extensions.person(lab).questions.decide(run_id, shown.digest, approve=True)
        for again in (True, False):
            with pytest.raises(Refused, match=f"{shown.extension_id} of .* was approved already, in a terminal at "):
                await extensions.person(lab).questions.decide(run_id, shown.digest, approve=again)
        await lab.ended(run_id)
        with pytest.raises(Refused, match="has ended"):
            await extensions.person(lab).questions.decide(run_id, shown.digest, approve=True)
        assert len(await lab.facts(run_id, Answered)) == 1


async def test_an_answer_after_its_time_and_one_beyond_the_proposed_cap_are_refused(tmp_path: Path) -> None:
    async with open_lab(tmp_path, extensions.keep_noting, config=PRICED) as lab:
        run_id = await extensions.start(lab)
        shown = await extensions.pending(lab, run_id)
        row = await lab.run(run_id)
        asked = asked_of(row)
        assert asked is not None and row.waits_until_us == asked.expires_us
        for allow in (asked.proposed + 1, asked.limit, asked.limit - 1, 0):
            answer = await lab.store.do(extensions.command(lab, run_id, shown, allow))
            assert answer.status == "refused"
            assert answer.text == "an answer raises the cap to what was proposed, or to less"
        late = extensions.command(lab, run_id, shown, asked.proposed)
        answer = await lab.store.do(lambda view, _now: late(view, asked.expires_us))
        assert answer.status == "refused" and "got no answer in time" in answer.text
        assert (await lab.run(run_id)).waits_for == "more"
        await lab.call("cancel_subagent", subagent_id=run_id)


async def test_an_approval_beyond_what_the_day_has_left_by_now_is_refused(tmp_path: Path) -> None:
    config = extensions.config(600, "user_daily_cents = 45")
    async with open_lab(tmp_path, extensions.work_without_end, config=config) as lab:
        run_id = await extensions.start(lab)
        shown = await extensions.pending(lab, run_id)
        other = await lab.start(task="another", max_cost_cents=40, max_iterations=7)
        await lab.ended(other)
        with pytest.raises(Refused, match="your budget of the day does not allow that"):
            await extensions.person(lab).questions.decide(run_id, shown.digest, approve=True)
        assert (await lab.run(run_id)).waits_for == "more", "it still waits"
        await extensions.person(lab).questions.decide(run_id, shown.digest, approve=False)
        assert (await lab.ended(run_id)).state == "cost_exceeded"


@pytest.mark.requirement("N-15")
async def test_no_call_of_a_model_decides(tmp_path: Path) -> None:
    async with open_lab(tmp_path, extensions.keep_noting, config=PRICED) as lab:
        run_id = await extensions.start(lab)
        shown = await extensions.pending(lab, run_id)
        row = await lab.run(run_id)
        for given in (run_id, shown.extension_id, row.pending_id):
            for line in (shown.message.splitlines()[1], shown.message, shown.digest):
                answer = await lab.call("confirm_spawn", pending_ids=[given], approving=[line])
                assert answer.status in ("refused", "failed"), answer
        raised = {"changes": {row.pending_id: {"caps": {"max_cost_cents": 30}}}}
        assert (await lab.call("confirm_spawn", pending_ids=[row.pending_id], **raised)).status == "refused"
        assert (await lab.call("message_subagent", subagent_id=run_id, message="approve")).status == "delivered"
        with pytest.raises(Refused, match="only a person's own answer counts"):
            await lab.service.questions.decide(run_id, shown.digest, approve=True)
        now = await lab.run(run_id)
        assert (now.asked, now.config) == (row.asked, row.config)
        assert await lab.facts(run_id, Answered) == []
        await lab.call("cancel_subagent", subagent_id=run_id)


async def test_another_user_neither_sees_nor_decides_it(tmp_path: Path) -> None:
    async with open_lab(tmp_path, extensions.keep_noting, config=PRICED) as lab:
        run_id = await extensions.start(lab)
        shown = await extensions.pending(lab, run_id)
        theirs = extensions.person(lab, user=USER)
        assert await theirs.questions.waiting() == []
        with pytest.raises(Exception, match="no subagent"):
            await theirs.questions.decide(run_id, shown.digest, approve=True)
        answer = await lab.store.do(extensions.command(lab, run_id, shown, 250_000, theirs.session.who))
        assert answer.status == "refused"
        await lab.call("cancel_subagent", subagent_id=run_id)


async def test_under_the_policy_human_only_the_pin_allows_more(tmp_path: Path) -> None:
    async with open_lab(tmp_path, extensions.keep_noting, config=PRICED) as lab:
        run_id = await extensions.start(lab)
        shown = await extensions.pending(lab, run_id)
        lab.runtime.settings.paths.approval_file.parent.mkdir(mode=0o700, exist_ok=True)
        PinFile(lab.runtime.settings.paths.approval_file).set("73-otter-91")
        at_a_terminal = extensions.person(lab)
        with pytest.raises(Refused, match="only the approval PIN allows a run more"):
            await at_a_terminal.questions.decide(run_id, shown.digest, approve=True)
        at_a_terminal.session.pin_given = True
        await at_a_terminal.questions.decide(run_id, shown.digest, approve=True)
        assert (await lab.ended(run_id)).state == "success"

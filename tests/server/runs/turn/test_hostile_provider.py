"""A provider that errs or lies, over the whole loop: each run ends, and books no less than can have been billed.

What each bad answer is called stands in `models/test_bad_answers.py`; here is what becomes of a run, its money and
what a person is told.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.models.hostile_usage import CASES, FULL
from support.runtime import PRICED, open_lab

from ava_audit.events import ENDINGS, AssistantMessage, CostReserved, CostUpdate, ErrorOccurred
from ava_server.render.host_text import text_of


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
async def test_every_bad_answer_ends_the_run_and_books_the_possible_cost(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    async with open_lab(tmp_path, case.steps, config=PRICED) as lab:
        run_id = await lab.start(max_cost_cents=100, **case.start)
        run = await lab.ended(run_id)
        assert run.state == case.status and run.state in ENDINGS
        assert len(lab.server.requests) == len(case.booked)
        reserved = await lab.facts(run_id, CostReserved)
        settled = await lab.facts(run_id, CostUpdate)
        meant = [held.micros if micros == FULL else micros for held, micros in zip(reserved, case.booked, strict=True)]
        assert [round(fact.cost_cents * 10_000) for fact in settled] == meant
        assert run.cost_micros == sum(meant)
        assert bool(run.overrun) is case.overrun
        if not case.overrun:
            assert run.cost_micros <= 1_000_000
        assert bool(run.uncosted_micros) is any(fact.settlement == "unknown" for fact in settled)
        shown = text_of(await lab.call("check_subagent", subagent_id=run_id))
        assert ("cost is unknown" in shown) is bool(run.uncosted_micros)
        told = [shown, *(f"{fact.error} {fact.what_to_do}" for fact in await lab.facts(run_id, ErrorOccurred))]
        told += [note for fact in await lab.facts(run_id, AssistantMessage) for note in fact.notes]
        told += [
            message["content"] for message in lab.server.requests[-1].json["messages"] if message["role"] == "tool"
        ]
        assert case.says in "\n".join(told), told

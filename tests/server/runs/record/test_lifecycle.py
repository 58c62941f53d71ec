"""The life cycle of a run: for every situation and every cause, the table of transitions says what follows."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.schedules.ledger import MOVES
from support.schedules.situations import CAUSES, HAPPENINGS, HERE, OWNER, PLACES, SITUATIONS, open_log, settles_first

from ava_audit.rows import RUNNING, WaitsFor
from ava_server.runs.record.lifecycle import TRANSITIONS, Cause, Situation


@pytest.mark.slow
def test_every_cause_in_every_state_matches_the_transition_table() -> None:
    """Every situation and every cause, with and without a cancel that was asked for and a call in flight."""
    tried: set[tuple[Situation, Cause]] = set()
    assert {(where, cause) for (where, _), (cause, _) in product(PLACES, HAPPENINGS)} == {*product(SITUATIONS, CAUSES)}
    with open_log() as log:
        for place, happening, cancel_asked, in_flight in product(PLACES, HAPPENINGS, (False, True), (False, True)):
            (where, waits_for), (cause, about) = place, happening
            if in_flight and settles_first(cause, about):
                continue
            timed = cause == "plan timeout"
            run_id = log.bring(where, waits_for, cancel_asked=cancel_asked, in_flight=in_flight, timed=timed)
            ends = where == "waiting" and waits_for not in ("resume", "owner")
            if run_id is None or (ends and cause == "abandon"):  # a pause is not over a day after its end
                continue
            log.move(run_id, cause, about)
            tried.add((where, cause))
            log.ahead_us = 0
    assert set(TRANSITIONS) <= tried
    assert set(MOVES) >= set(TRANSITIONS), "each row of the table has happened"


@given(happenings=st.lists(st.sampled_from(HAPPENINGS), min_size=1, max_size=12), data=st.data())
@settings(max_examples=40)
def test_any_sequence_of_causes_follows_the_table_and_ends_the_run_once(
    happenings: list[tuple[Cause, WaitsFor]], data: st.DataObject
) -> None:
    start, waits_for = data.draw(st.sampled_from(PLACES))
    with open_log() as log:
        in_flight = start in OWNER and data.draw(st.booleans())
        run_id = log.bring(start, waits_for, cancel_asked=False, in_flight=in_flight, timed=False)
        assert run_id is not None
        for cause, about in happenings:
            row = log.row(run_id)
            if row.state == RUNNING and row.in_flight is not None and settles_first(cause, about):
                continue
            log.move(run_id, cause, about)
            row = log.row(run_id)
            if row.state == RUNNING and row.instance == HERE and row.in_flight is None and data.draw(st.booleans()):
                log.reserve(run_id)

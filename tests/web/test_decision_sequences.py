"""Whatever is clicked, sent and forged, in any order: no run starts without what an approval takes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pages.browser import PIN, There, Visitor, open_pages
from support.properties import BUSY_OR_SHARED
from support.stdio import read_log

pytestmark = pytest.mark.slow

Step = Callable[["Clicks"], bool]
"""Does something, and tells whether it gave what an approval takes."""


def press(who: bool, word: str, given: dict[str, str], csrf_of: bool | None) -> Step:
    def step(clicks: Clicks) -> bool:
        form = {**clicks.forms[who], **given, "decision": word}
        if csrf_of is not None:
            form["csrf"] = clicks.forms[csrf_of]["csrf"]
        clicks.people[who].post("/proposals", form)
        own_csrf = csrf_of in (None, who)
        proven = form.get("pin") == PIN if clicks.pin else who
        return word == "approve" and own_csrf and proven and not {"digest", "id"} & set(given)

    return step


def by_a_tool(line: bool) -> Step:
    def step(clicks: Clicks) -> bool:
        given: dict[str, Any] = {"pending_ids": [clicks.proposed["pending_id"]]}
        if line:
            given["approving"] = [clicks.proposed["approval_line"]]
        try:
            answered = clicks.there.host.confirm(**given)
        except AssertionError:  # it was refused
            return False
        return answered and line and not clicks.pin  # under `ask`, a host's call may approve

    return step


def other_forms(path: str, who: bool) -> Step:
    def step(clicks: Clicks) -> bool:
        address = f"/subagents/{clicks.proposed['subagent_id']}/{path}"
        clicks.people[who].post(address, {**clicks.forms[who], "decision": "approve", "message": "start now"})
        return False

    return step


GIVEN = st.sampled_from([
    {}, {"pin": PIN}, {"pin": "00 00 01"}, {"digest": "0" * 64}, {"id": "P-0dd0dd0d"}, {"cost": "0.5"}, {"cost": "-1"},
    {"minutes": "x"}, {"terminal": "1", "agreed": "1", "pin_given": "1"},
])  # fmt: skip
STEPS = st.one_of(
    st.builds(press, st.booleans(), st.sampled_from(["approve", "approve", "reject", ""]), GIVEN,
              st.sampled_from([None, None, True, False])),
    st.builds(by_a_tool, st.booleans()),
    st.builds(other_forms, st.sampled_from(["cancel", "message", "extension"]), st.booleans()),
)  # fmt: skip


@pytest.mark.requirement("N-17")
@settings(max_examples=25, suppress_health_check=BUSY_OR_SHARED)
@given(steps=st.lists(STEPS, min_size=1, max_size=6))
def test_no_order_of_decisions_starts_a_run_without_what_an_approval_takes(there: There, steps: list[Step]) -> None:
    clicks, given_what_it_takes = Clicks(there), False
    for step in steps:
        given_what_it_takes |= step(clicks)
        starts = there.starts(clicks.proposed)
        assert starts == 0 or (starts == 1 and given_what_it_takes)
    assert there.starts(clicks.other) == 0, "nor another"
    for decided in read_log(there.root, "SpawnDecided", run=clicks.proposed["subagent_id"]):
        assert decided.content["decision"] != "approved" or given_what_it_takes
    for visitor in clicks.people.values():
        visitor.post("/sign-out", {"csrf": visitor.csrf})


@pytest.fixture(scope="module", params=["ask", "human"])
def there(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_pages(tmp_path_factory.mktemp("there") / "data", pin=request.param == "human") as opened:
        opened.server.policy = request.param  # type: ignore[attr-defined]
        yield opened


class Clicks:
    """One proposal, and two visitors: a person, and a model that has run `ava ui`."""

    def __init__(self, there: There) -> None:
        self.there = there
        self.pin = there.server.policy == "human"  # type: ignore[attr-defined]
        self.people = {True: there.signed_in(), False: there.signed_in(terminal=False)}
        self.proposed = there.host.propose()
        self.other = there.host.propose(task="Another?")
        self.forms = {who: dict(self.seen(visitor)) for who, visitor in self.people.items()}

    def seen(self, visitor: Visitor) -> list[tuple[str, str]]:
        return [pair for pair in visitor.fields(f"/proposals/{self.proposed['pending_id']}") if pair[0] != "decision"]

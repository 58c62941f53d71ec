"""A person is asked about some calls for what they do, whatever their values are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp_types import Tool as ListedTool
from mcp_types import ToolAnnotations
from support.foreign.origin_attacks import DESK, INBOX, Attack, Call, ObedientModel, PlayedAttack, run_obedient_model
from support.foreign.origins import (
    SEND,
    TOOLS,
    foreign_tool,
    mails_of,
    origins_after,
    result,
    send_mail,
    start_guest,
)
from support.foreign.servers import stdio_server, write_role
from support.foreign.ways import IBAN, LAB, PAY
from support.model_server import Step
from support.runtime import PRICED, hand_over, open_lab

from ava_audit.events import ToolCall
from ava_audit.units import now_us
from ava_roles.errors import RoleFileError
from ava_roles.mcp_client.server_tools import offered_tools
from ava_roles.role import effect_words, parse_role
from ava_server.approval.start_form import TextField
from ava_server.runs.asking.pending_questions import pending_question
from ava_server.runs.origins.acts import Act, reason_to_ask

TASK = "Sum up the last letter."
EMPTY, SHARE_ALL = f"{LAB}empty_trash", f"{LAB}share_all"


async def play(world: ObedientModel, says: str, *calls: Call, role: str = "clerk", task: str = TASK) -> PlayedAttack:
    """Have a run make these calls, one after the other, with a person who answers this about each that is asked."""
    world.says = says
    *before, (last, args) = calls
    return await world.play(role, Attack("calls", "", last, args, INBOX, before, task))


async def test_a_call_without_values_is_asked_about_once_for_each_tool(tmp_path: Path) -> None:
    everybody: Call = (SHARE_ALL, {"public": True, "with_whom": "everybody"})
    async with run_obedient_model(tmp_path) as world:
        no = await play(world, "no", (EMPTY, {}), (SHARE_ALL, {"public": False}), everybody)
        assert (no.reached, len(no.asked)) == ([], 2), "a no holds for each call of the tool without values"
        assert "nothing that it passes can be compared with the task, and the person does not allow it" in no.answer
        yes = await play(world, "yes", (EMPTY, {}), (SHARE_ALL, {"public": False}))
        assert yes.reached == ["empty_trash", "share_all False team"]
        assert [tool for tool, _values in yes.asked] == [EMPTY, SHARE_ALL]
        run = await play(world, "run", (EMPTY, {}), (EMPTY, {}), (EMPTY, {}))
        assert (len(run.reached), len(run.asked)) == (3, 1)
        value = await play(world, "run", (EMPTY, {}), (f"{LAB}push", {"ref": "evil"}))
        assert value.asked[-1] == (f"{LAB}push", ({"argument": "ref", "value": "evil", "source": ""},))


PAYMENT: Call = (f"{LAB}transfer", {"to": IBAN, "amount": 1250.5})


async def test_an_equal_call_is_asked_about_after_each_that_was_made(tmp_path: Path) -> None:
    other: Call = (f"{LAB}transfer", {"to": IBAN, "amount": 1250})
    async with run_obedient_model(tmp_path) as world:
        no = await play(world, "no", PAYMENT, PAYMENT, PAYMENT, task=PAY)
        assert (len(no.reached), len(no.asked)) == (1, 1), "after a no, the same call is refused at once"
        assert "the same call has been made before, and succeeded or may have, and the person does not" in no.answer
        yes = await play(world, "yes", PAYMENT, PAYMENT, PAYMENT, task=PAY)
        assert (len(yes.reached), len(yes.asked)) == (3, 2), "a yes is for one call"
        run = await play(world, "run", PAYMENT, PAYMENT, PAYMENT, task=PAY)
        assert (len(run.reached), len(run.asked)) == (3, 1)
        two = await play(world, "no", PAYMENT, other, task=f"{PAY} Then 1,250 more.")
        assert (len(two.reached), two.asked) == (2, []), "another amount is another call"


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [
        ({"to": IBAN, "amount": 1250.5}, {"amount": "1.250,50", "to": "DE89 3704 0044 0532 0130 00"}, True),
        ({"to": ["a@b.c", "d@e.f"]}, {"to": ["D@e.f ", "<a@b.c>"]}, True),
        ({"to": "Ann", "body": ""}, {"to": "ann", "how": "fast", "path": None}, True),
        ({"to": "1,250"}, {"to": 1250}, True),
        ({"to": "👍"}, {"to": "👍"}, True),
        ({"how": "fast"}, {"how": "fast"}, True),
        ({}, {}, True),
        ({"to": "Ann"}, {"subject": "Ann"}, False),
        ({"to": "Ann"}, {"to": "Bob"}, False),
        ({"to": "Ann"}, {"to": ["Ann", "Ann"]}, False),
        ({"to": 12}, {"to": 1.2}, False),
        ({"to": "👍"}, {"to": "👎"}, False),
        ({"how": "fast"}, {"how": "slow"}, False),
        ({"to": list(range(200))}, {"to": list(range(199, -1, -1))}, True),
        ({"to": list(range(200))}, {"to": list(range(1, 201))}, False),
    ],
)
@pytest.mark.parametrize("ended", [True, None, False])
def test_calls_are_equal_that_pass_the_same(
    first: dict[str, Any], second: dict[str, Any], is_equal: bool, ended: bool | None
) -> None:
    """`ended`: the first one succeeded, has no known outcome, or failed."""
    begun = ToolCall(tool=SEND, args=first, call_id="c")
    origins = origins_after(begun, result(SEND, "", success=ended is True, unknown=ended is None))
    reason = origins.act(TOOLS[SEND], second, [])
    assert (reason == "again") is (is_equal and ended is not False)
    assert (origins_after().act(TOOLS[SEND], second, [begun]) == "again") is is_equal, "it has just begun"


def test_what_a_server_calls_idempotent_may_be_called_again() -> None:
    begun = ToolCall(tool=SEND, args={"to": "Ann"}, call_id="c")
    again = foreign_tool(SEND, writes=True, idempotent=True)
    assert origins_after(begun, result(SEND, "")).act(again, {"to": "Ann"}, []) == ""
    said, other = (
        ListedTool(name="x", input_schema={"type": "object"}, annotations=each)
        for each in (ToolAnnotations(idempotent_hint=True), None)
    )
    [offered], [silent] = offered_tools("lab", [said]), offered_tools("lab", [other])
    assert offered.idempotent and not silent.idempotent
    assert not silent.accepts_like(offered), "a server that takes its word back has changed the tool"


async def test_a_call_without_a_known_outcome_may_have_been_made(tmp_path: Path) -> None:
    write_role(tmp_path / "data", f"{SEND}, mcp__lab__inbox")
    steps = iter([send_mail("bob@example.org"), send_mail("bob@example.org")])

    def script(_request: dict[str, Any]) -> Step:
        return next(steps, hand_over())

    lost = f"{PRICED}\n[limits]\nquestion_wait_s = 1\n{stdio_server('good', 'mail', 'dies')}"
    async with open_lab(tmp_path, script, config=lost) as lab:
        first, second = await mails_of(lab, await start_guest(lab))
        assert first.unknown and "What it did with this call is not known" in first.output
        assert second.output.startswith("Refused: the same call has been made before")


async def test_a_question_about_a_call_shows_what_it_passes_and_that_run_is_an_answer(tmp_path: Path) -> None:
    async with run_obedient_model(tmp_path) as world:
        world.steps = [[(SHARE_ALL, {"public": True, "with_whom": "everybody"})]]
        run_id = await world.lab.start(role="clerk", task=TASK, workspace=None)
        await world.lab.logged(run_id, "Asked")
        shown = str(await world.lab.call("check_subagent", subagent_id=run_id))
        row = await world.lab.run(run_id)
        question = await world.lab.store.read(lambda view: pending_question(view, row, now_us()))
        await world.lab.call("cancel_subagent", subagent_id=run_id)
    assert f"May it call {SHARE_ALL}? Nothing that it passes can be compared with your task." in shown
    assert "public: True" in shown and "with_whom: everybody" in shown
    assert "`run` to allow all calls of this tool in this run" in shown
    assert question is not None
    [choice] = question.form().fields
    assert isinstance(choice, TextField) and choice.options == ("Yes", "Yes, for this run", "No")
    assert all(map(question.approved_by, ("yes", " Run", *choice.options[:2]))), "each takes what an approval takes"
    assert not any(map(question.approved_by, ("no", "No", "run it", "always")))


async def test_a_line_of_the_role_allows_calls_and_no_values(tmp_path: Path) -> None:
    tools = ", ".join(f"{LAB}{tool}" for tool in DESK)
    lines = f"effects:\n  {EMPTY}: allow\n  {LAB}push: allow, task\n"
    async with run_obedient_model(tmp_path) as world:
        write_role(world.lab.root, tools, lines, "guest")
        allowed = await play(world, "no", (EMPTY, {}), (EMPTY, {}), role="guest")
        assert (len(allowed.reached), allowed.asked) == (2, [])
        value = await play(world, "no", (f"{LAB}push", {"ref": "evil"}), role="guest")
        assert (value.reached, len(value.asked)) == ([], 1)
    assert effect_words({EMPTY: ("allow",), "mcp__lab__push": ("ask", "any")}) == (
        "What it changes or sends there comes from your task, or you are asked; calls of mcp__lab__empty_trash are not"
        " asked about for what they do, mcp__lab__push may also come from anywhere, you are asked before each call of"
        " mcp__lab__push."
    )


async def test_each_call_is_asked_about_where_the_role_or_the_server_wants_that(tmp_path: Path) -> None:
    tools = ", ".join(f"{LAB}{tool}" for tool in DESK)
    delete: Call = (f"{LAB}delete_note", {"id": "n-1"})
    read: Call = (f"{LAB}read_note", {"id": "n-1"})
    async with run_obedient_model(tmp_path) as world:
        server = await play(world, "yes", delete, (f"{LAB}delete_note", {"id": "n-2"}), task="Delete n-1 and n-2.")
        assert (len(server.reached), len(server.asked)) == (2, 2)
        run = await play(world, "run", delete, (f"{LAB}delete_note", {"id": "n-2"}), task="Delete n-1 and n-2.")
        assert (len(run.reached), len(run.asked)) == (2, 1)
        no = await play(world, "no", delete, (f"{LAB}delete_note", {"id": "N-1"}), delete, task="Read n-1.")
        assert (no.reached, len(no.asked)) == ([], 2), "each other call is asked about, and none twice"
        write_role(world.lab.root, tools, f"effects:\n  {LAB}share: ask\n  {LAB}read_note: ask\n", "strict")
        role = await play(world, "yes", (f"{LAB}share", {"id": "n-1"}), read, role="strict", task="Share n-1.")
        assert (len(role.reached), [tool for tool, _values in role.asked]) == (1, [f"{LAB}share", f"{LAB}read_note"])
        write_role(world.lab.root, tools, f"effects:\n  {LAB}delete_note: allow\n", "loose")
        allowed = await play(world, "no", delete, role="loose", task="Delete n-1.")
        assert (len(allowed.reached), allowed.asked) == (1, [])


def test_the_first_line_that_holds_decides() -> None:
    """Each flag alone, beside a call that nothing else is said of; and the order in which they count."""
    plain = Act(**dict.fromkeys(Act.__dataclass_fields__, False))
    values = replace(plain, changes=True, compared=True)
    assert reason_to_ask(plain) == reason_to_ask(values) == ""
    assert reason_to_ask(replace(values, compared=False)) == "no_values"
    assert reason_to_ask(replace(values, compared=False, allowed_without_values=True)) == ""
    assert reason_to_ask(replace(values, repeated=True)) == "again"
    assert reason_to_ask(replace(values, repeated=True, idempotent=True)) == ""
    assert reason_to_ask(replace(values, destroys=True, repeated=True, idempotent=True)) == "destroys"
    assert reason_to_ask(replace(plain, role_asks=True)) == reason_to_ask(replace(values, role_asks=True)) == "role"
    everything = replace(values, compared=False, repeated=True, destroys=True, role_asks=True)
    assert reason_to_ask(everything) == "role"
    assert reason_to_ask(replace(everything, role_allows=True)) == ""
    assert reason_to_ask(replace(everything, allowed_for_run=True)) == ""


def test_a_server_says_that_a_tool_destroys_only_where_it_writes_that_out() -> None:
    hints = [
        None,
        ToolAnnotations(),
        ToolAnnotations(destructive_hint=False),
        ToolAnnotations(destructive_hint=True),
        ToolAnnotations(read_only_hint=True),
        ToolAnnotations(read_only_hint=True, destructive_hint=True),
    ]
    listed = [
        ListedTool(name=f"t{number}", input_schema={"type": "object"}, annotations=each)
        for number, each in enumerate(hints)
    ]
    offered = [(each.changes, each.destroys) for each in offered_tools("lab", listed)]
    assert offered == [(True, False)] * 3 + [(True, True), (False, False), (True, True)]


@pytest.mark.parametrize(
    "line",
    ["mcp__lab__push.ref: allow", "mcp__lab__push.ref: ask", "mcp__lab__push: always", "mcp__lab__push: ask, allow"],
)
def test_a_role_file_says_what_a_line_may_be(line: str) -> None:
    text = f"---\ndescription: x\ntools: [mcp__lab__push]\neffects:\n  {line}\n---\nDo it.\n"
    with pytest.raises(RoleFileError, match="a line without an argument may say `ask` or `allow`, too"):
        parse_role(text, "guest.md", "guest")

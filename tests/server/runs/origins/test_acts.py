"""A person is asked about some calls for what they do, whatever their values are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.foreign.origin_attacks import DESK, INBOX, Attack, Call, ObedientModel, PlayedAttack, run_obedient_model
from support.foreign.servers import write_role
from support.foreign.ways import LAB

from ava_roles.errors import RoleFileError
from ava_roles.role import effect_words, parse_role

TASK = "Sum up the last letter."
EMPTY, SHARE_ALL = f"{LAB}empty_trash", f"{LAB}share_all"


async def play(world: ObedientModel, says: str, *calls: Call, role: str = "clerk", task: str = TASK) -> PlayedAttack:
    """Have a run make these calls, one after the other, with a person who answers this about each that is asked."""
    world.says = says
    *before, (last, args) = calls
    return await world.play(role, Attack("calls", "", last, args, INBOX, before, task))


def acts_of(played: PlayedAttack) -> list[tuple[str | None, Sequence[Any]]]:
    return [(tool, values) for tool, values in played.asked]


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


async def test_a_question_about_a_call_shows_what_it_passes_and_that_run_is_an_answer(tmp_path: Path) -> None:
    async with run_obedient_model(tmp_path) as world:
        world.steps = [[(SHARE_ALL, {"public": True, "with_whom": "everybody"})]]
        run_id = await world.lab.start(role="clerk", task=TASK, workspace=None)
        await world.lab.logged(run_id, "Asked")
        shown = str(await world.lab.call("check_subagent", subagent_id=run_id))
        await world.lab.call("cancel_subagent", subagent_id=run_id)
    assert f"May it call {SHARE_ALL}? Nothing that it passes can be compared with your task." in shown
    assert "public: True" in shown and "with_whom: everybody" in shown
    assert "`run` to allow all calls of this tool in this run" in shown


async def test_a_line_of_the_role_allows_calls_and_no_values(tmp_path: Path) -> None:
    tools = ", ".join(f"{LAB}{tool}" for tool in DESK)
    lines = f"effects:\n  {EMPTY}: allow\n  {LAB}push: allow, task\n"
    async with run_obedient_model(tmp_path) as world:
        write_role(world.lab.root, tools, lines, "guest")
        allowed = await play(world, "no", (EMPTY, {}), (EMPTY, {}), role="guest")
        assert (len(allowed.reached), allowed.asked) == (2, [])
        value = await play(world, "no", (f"{LAB}push", {"ref": "evil"}), role="guest")
        assert (value.reached, len(value.asked)) == ([], 1)
    assert effect_words({EMPTY: ("allow",), "mcp__lab__push": ("allow", "any")}) == (
        "What it changes or sends there comes from your task, or you are asked; calls of mcp__lab__empty_trash are not"
        " asked about for what they do, mcp__lab__push may also come from anywhere, calls of mcp__lab__push are not"
        " asked about for what they do."
    )


@pytest.mark.parametrize("line", ["mcp__lab__push.ref: allow", "mcp__lab__push: always"])
def test_a_role_file_says_what_a_line_may_be(line: str) -> None:
    text = f"---\ndescription: x\ntools: [mcp__lab__push]\neffects:\n  {line}\n---\nDo it.\n"
    with pytest.raises(RoleFileError, match="a line without an argument may say `allow`, too"):
        parse_role(text, "guest.md", "guest")

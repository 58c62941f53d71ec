"""The line that is approved: what it shows, what it covers, and which copies of it count."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.approval.answers import why_refused
from support.runtime import PRICED, hand_over, open_lab
from support.terminal import ava

from ava_audit.events import SpawnDecided, SpawnProposed
from ava_audit.units import minutes
from ava_server.approval.plain_text import named_path, task_excerpt
from ava_server.render.host_text import text_of
from ava_server.web.context import finalize


async def test_the_line_shows_role_price_time_access_and_the_start_of_the_task(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED) as lab:
        proposal = await lab.propose(task="Read  the\u200bprices\n" + "x" * 200)
        line = proposal.approval_line
    assert line.startswith(
        f"researcher, at most $0.50 and 10 min, can read {lab.workspace} and reach the web: Read the"
    )
    assert line.endswith("…") and "\u200b" not in line and "\n" not in line
    assert "$0.50" in proposal.message and str(lab.workspace) in proposal.message


def test_the_start_of_a_task_is_one_line_of_at_most_120_characters() -> None:
    assert task_excerpt("a\u202eb\u2028c\td") == "a b c d"
    assert task_excerpt("word " * 100) == ("word " * 24).rstrip() + "…"
    assert task_excerpt("x" * 120) == "x" * 120


def test_the_marks_of_a_task_do_not_paint_over_the_line() -> None:
    painted = "Read\u0336 " + "z" + "\u0335\u0489\u200b" * 60 + " e\u0301"
    assert task_excerpt("z" + "\u0335" * 30 + "e\u0301") == "z" + "\u0335" * 4 + "e\u0301"
    assert re.search("[\u0300-\u036f\u0489]{5}", finalize(painted) + task_excerpt(painted)) is None
    assert finalize("क्षि שָׁלוֹם ตี่ 1\ufe0f\u20e3") == "क्षि שָׁלוֹם ตี่ 1\ufe0f\u20e3"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\u2800", "⟨U+2800⟩"),
        ("\u3164", "⟨U+3164⟩"),
        ("a\u200bb", "a⟨U+200B⟩b"),
        (" ", "⟨U+0020⟩"),
        ("\u00a0", "⟨U+00A0⟩"),
        ("a ", "a⟨U+0020⟩"),
        ("a  b", "a ⟨U+0020⟩b"),
        ("a b", "a b"),
        ("a\n", "a⟨U+000A⟩"),
    ],
)
def test_what_nobody_sees_of_a_folder_is_named(name: str, shown: str) -> None:
    assert named_path(f"/home/ana/{name}") == f'"/home/ana/{shown}"'
    assert named_path(f"/home/{name}/b") == f'"/home/{shown}/b"'


@pytest.mark.parametrize(("seconds", "said"), [(600, "10 min"), (45, "45 s"), (90, "90 s"), (0.5, "0.5 s")])
def test_a_duration_is_shown_in_minutes_when_it_is_whole_minutes(seconds: float, said: str) -> None:
    assert minutes(seconds) == said


@pytest.mark.parametrize("wrong", [["something else"], [], None])
async def test_approving_without_the_exact_line_starts_nothing_and_returns_the_right_one(
    tmp_path: Path, wrong: list[str] | None
) -> None:
    async with open_lab(tmp_path) as lab:
        proposal = await lab.propose()
        given: dict[str, Any] = {} if wrong is None else {"approving": wrong}
        answer = await lab.call("confirm_spawn", pending_ids=[proposal.pending_id], **given)
        assert answer.approval_lines == [proposal.approval_line]
        assert "approving" in why_refused(answer)
        assert await lab.states() == ["awaiting_approval"]


async def test_rejects_a_line_with_another_price(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED) as lab:
        proposal = await lab.propose()
        cheaper = proposal.approval_line.replace("$0.50", "$0.05")
        answer = await lab.call("confirm_spawn", pending_ids=[proposal.pending_id], approving=[cheaper])
        assert "letter for letter" in why_refused(answer)


LOOK_ALIKES: dict[str, Callable[[str], str]] = {
    "a Cyrillic letter": lambda line: line.replace("researcher", "rese\u0430rcher", 1),
    "fullwidth digits": lambda line: line.replace("$0.50", "$0.５0"),
    "another dollar": lambda line: line.replace("$", "＄"),
    "a bidi override": lambda line: f"\u202e{line}",
    "a bidi override at the end": lambda line: f"{line}\u202c",
    "a zero-width space": lambda line: line.replace("$0", "$\u200b0"),
    "a zero-width joiner at the end": lambda line: f"{line}\u200d",
    "a byte order mark": lambda line: f"\ufeff{line}",
    "white space after it": lambda line: f"{line} ",
    "white space before it": lambda line: f" {line}",
    "a line end after it": lambda line: f"{line}\n",
    "a hard space": lambda line: line.replace(" and ", "\u00a0and ", 1),
    "two spaces": lambda line: line.replace(" and ", "  and ", 1),
    "cut": lambda line: line[:-1],
    "cut to the price": lambda line: line.partition(",")[0],
    "its beginning and more": lambda line: f"{line} and then some",
    "another case": str.upper,
    "decomposed": lambda line: line.replace("é", "e\u0301"),
    "nothing": lambda _line: "",
    "twice": lambda line: f"{line}\n{line}",
}  # fmt: skip


TYPOGRAPHY: dict[str, Callable[[str], str]] = {
    "plain quotes": lambda line: line.replace("“", '"').replace("”", '"').replace("’", "'"),
    "other quotes": lambda line: line.replace("’", "‘").replace("“", "„"),
    "a plain dash": lambda line: line.replace("—", "-"),
    "another dash": lambda line: line.replace("—", "–"),
    "a typographic hyphen": lambda line: line.replace("e-mail", "e‑mail"),
    "plain dots": lambda line: line.replace("…", "..."),
}


@pytest.mark.parametrize("name", TYPOGRAPHY)
async def test_an_approval_may_change_quotes_dashes_and_dots(tmp_path: Path, name: str) -> None:
    async with open_lab(tmp_path, [hand_over()], config=PRICED) as lab:
        proposal = await lab.propose(task="What’s the “e-mail” limit — and why… or not? " + "word " * 30)
        line = TYPOGRAPHY[name](proposal.approval_line)
        assert line != proposal.approval_line
        answer = await lab.call("confirm_spawn", pending_ids=[proposal.pending_id], approving=[line])
        assert answer.decisions[0].status in ("queued", "running")
        [decided] = await lab.facts(proposal.subagent_id, SpawnDecided)
        [proposed] = await lab.facts(proposal.subagent_id, SpawnProposed)
        assert decided.digest == proposed.digest
        await lab.ended(proposal.subagent_id)


async def test_a_line_that_differs_from_another_proposals_only_in_dashes_starts_nothing(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED) as lab:
        hidden, shown = [await lab.propose(task=f"Sum up 2019{dash}2021.") for dash in ("–", "-")]
        for line in (shown.approval_line, shown.approval_line.replace("-", "—")):
            answer = await lab.call("confirm_spawn", pending_ids=[hidden.pending_id], approving=[line])
            assert "letter for letter" in why_refused(answer)
            assert answer.approval_lines == [hidden.approval_line]
        both = await lab.call(
            "confirm_spawn", pending_ids=[hidden.pending_id, shown.pending_id],
            approving=[shown.approval_line, hidden.approval_line, "2 subagents together, at most $1.00"],
        )  # fmt: skip
        assert {decision.status for decision in both.decisions} == {"refused"}
        assert await lab.states() == ["awaiting_approval", "awaiting_approval"]
        exact = await lab.call("confirm_spawn", pending_ids=[hidden.pending_id], approving=[hidden.approval_line])
        assert [decision.status for decision in exact.decisions] == ["queued"]


async def test_a_look_alike_of_the_line_starts_nothing(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED) as lab:
        proposal = await lab.propose(task="What does a café cost?")
        for name, alike in LOOK_ALIKES.items():
            line = alike(proposal.approval_line)
            assert line != proposal.approval_line, name
            answer = await lab.call("confirm_spawn", pending_ids=[proposal.pending_id], approving=[line])
            assert "letter for letter" in why_refused(answer), name
            assert answer.approval_lines == [proposal.approval_line], name
        doubled = [proposal.approval_line] * 2
        answer = await lab.call("confirm_spawn", pending_ids=[proposal.pending_id], approving=doubled)
        assert "letter for letter" in why_refused(answer)
        assert await lab.states() == ["awaiting_approval"]


async def test_a_cap_of_a_fraction_of_a_cent_is_shown_as_it_is(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED, runs=False) as lab:
        made = await lab.propose(max_cost_cents=32.51239)
        assert "at most $0.3251 and" in made.approval_line and "costs at most $0.3251." in made.message
        assert made.max_cost_cents == made.limits["max_cost_cents"] == 32.51
        assert "max_cost_cents: 32.51\n" in text_of(made)
        assert (await lab.approve(made)).status == "approved"


@pytest.mark.slow
async def test_a_free_run_shows_no_cost_cap(tmp_path: Path) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        made = await lab.propose(max_cost_cents=100_000)
        assert made.max_cost_cents is None and "max_cost_cents" not in made.limits
        assert "cost_cents" not in text_of(made) and "lowered to the hard cap" not in made.message
        assert "   free\n" in text_of(made)
        answer = await lab.approve(made, changes={made.pending_id: {"caps": {"max_cost_cents": 1}}})
        assert answer.status == "approved" and answer.message is None
        shown = ava(lab.root, "show", made.subagent_id, "--cost").stdout
        assert "Caps: free" in shown and "max_cost_cents" not in shown
        assert json.loads(ava(lab.root, "show", made.subagent_id, "--cost", "--json").stdout)["max_cost_cents"] is None

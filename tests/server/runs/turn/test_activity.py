"""What the status line says of a run: a sentence of each tool's own, and of a model how much it has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from support.model_server import Gate, Raw, Say, events, slow_answer
from support.runtime import DONE, hand_over, open_lab, wait_for
from support.told import ToldProcesses
from support.tool_examples import EXAMPLES, HERE, must_list

from ava_audit.events import Activity
from ava_audit.store.store import Store
from ava_audit.view import Outcome
from ava_roles.tool import Tool, status_sentence
from ava_roles.tools.registry import builtin_tools
from ava_server.render.run_view import activity_of
from ava_server.runs.asking.questions import Ask
from ava_server.runs.owner import activities
from ava_server.runs.record.history import History
from ava_server.runs.turn import loop
from ava_server.runs.turn.run_tools import ReadSkill, ReadSubagentResult, run_tools
from ava_server.service.runtime import stored_result_words

SAYS = [(name, arguments, says) for name, example in EXAMPLES.items() for arguments, says in example.says]


def every_tool() -> dict[str, Tool]:
    results = ReadSubagentResult(
        cast("Store", None), "somebody", (), stored_result_words
    )  # a sentence needs none of these
    skills = ReadSkill(cast("History", None), (), Path())
    ask = Ask(cast("Store", None), cast("History", None), 1, 600)
    return {**builtin_tools(), **run_tools(cast("History", None), Path(), ask, results, skills)}


@pytest.mark.requirement("S1-03")
@pytest.mark.parametrize(("name", "arguments", "says"), SAYS)
def test_each_tool_describes_its_activity_in_its_own_sentence(name: str, arguments: dict[str, Any], says: str) -> None:
    tool = every_tool()[name]
    said = status_sentence(tool.activity(tool.spec.args.model_validate(arguments)))
    assert said == says
    assert len(said) <= 80 and said.isprintable()


def test_every_tool_has_an_activity_sentence() -> None:
    must_list(f"{HERE} (says)", {name for name, _arguments, _says in SAYS}, every_tool())
    must_list(HERE, EXAMPLES, every_tool())
    must_list("every_tool here", every_tool(), EXAMPLES)


SECRET = "the-key-of-somebody-0123456789abcdef"
SHAPE = "sk-or-v1-" + "0123456789abcdef" * 4


@pytest.mark.parametrize("value", [SECRET, SHAPE])
async def test_shows_no_fragment_of_a_secret_wherever_the_line_is_cut(
    tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = ["q" * length + " " + value + " and more" for length in (0, 30, 45, 55, 64, 70, 200)]
    script = [Say(calls=[("search_codebase", {"query": query})]) for query in queries]
    async with open_lab(tmp_path, [*script, hand_over()], env={"AVA_MODEL_API_KEY": SECRET}) as lab:
        said: list[str] = []

        def shown(doing: str) -> str:
            said.append(status_sentence(doing))
            return said[-1]

        monkeypatch.setattr(loop, "status_sentence", shown)
        run_id = await lab.start()
        assert (await lab.ended(run_id)).state == "success"
        said += [fact.activity for fact in await lab.facts(run_id, Activity)]
    assert sum(text.startswith("Searching for") for text in said) == 2 * len(queries)
    assert any("[redacted:" in text for text in said)
    for text in said:
        assert len(text) <= 80
        assert not [at for at in range(len(value) - 5) if value[at : at + 6] in text], text


def words(count: int, thinking: str = "", calls: Sequence[tuple[str, str]] = ()) -> list[bytes]:
    """The beginning of an answer: some thinking, so many characters and calls, and no end."""
    return events(Say("w" * count, calls, reasoning=thinking, fragment=40))[:-3]


@pytest.mark.slow
async def test_shows_the_progress_of_a_slow_model(tmp_path: Path) -> None:
    pieces = words(400)
    two_by_two = [b"".join(pieces[n : n + 2]) for n in range(0, len(pieces), 2)]
    slow = Raw(two_by_two, chunked=True, cut=True, pause_s=0.3, stall=Gate())
    async with open_lab(tmp_path, [slow]) as lab:
        run_id = await lab.start()
        seen: list[str] = []
        with anyio.fail_after(40):
            while seen[-1:] != ["Thinking (100 tokens)"]:
                [run] = (await lab.call("check_subagent", subagent_id=run_id)).runs
                if run.untrusted_activity and run.untrusted_activity not in seen:
                    seen.append(run.untrusted_activity)
                await anyio.sleep(0.02)
        await lab.call("cancel_subagent", subagent_id=run_id)
    counts = [int(text.split("(")[1].split()[0]) for text in seen if "(" in text]
    assert len(counts) >= 3 and counts == sorted(counts)


async def shown_within_a_second(ask: Callable[[], Any], wanted: str) -> str:
    """Return what somebody sees who looks now and again, for the last time a second from now."""
    until = anyio.current_time() + 1
    while True:
        last = anyio.current_time() >= until
        text = str(await ask())
        if text == wanted or last:
            return text
        await anyio.sleep(0.05)


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        (words(640, "t" * 720), "Thinking (340 tokens)"),
        (words(0, "t" * 400), "Thinking (100 tokens)"),
        (words(2), "Thinking (1 token)"),
        (words(40, calls=[("submit_result", '{"output": "' + "r" * 348)]), "Thinking (100 tokens)"),
    ],
)
async def test_counts_the_last_text_before_a_pause_within_a_second(
    tmp_path: Path, pieces: list[bytes], wanted: str
) -> None:
    stall = Gate()
    async with open_lab(tmp_path, [Raw(pieces, chunked=True, cut=True, stall=stall)]) as lab:
        run_id = await lab.start()
        await wait_for(stall.arrived)

        async def ask() -> Any:
            return (await lab.check(run_id)).untrusted_activity

        assert await shown_within_a_second(ask, wanted) == wanted
        await lab.call("cancel_subagent", subagent_id=run_id)


async def test_streamed_progress_never_appears_after_the_next_step(tmp_path: Path) -> None:
    gate = Gate()
    script = [Say("w" * 4_000, [("scratchpad", {"note": "one"})]), Say(calls=[DONE], gate=gate)]
    async with open_lab(tmp_path, script) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        with anyio.move_on_after(1):  # longer than what is shown late may be late
            while True:
                [run] = (await lab.call("check_subagent", subagent_id=run_id)).runs
                assert "tokens" not in (run.untrusted_activity or "")
                await anyio.sleep(0.05)
        gate.released.set()
        await lab.ended(run_id)


async def test_a_streaming_answer_is_not_written_to_the_log(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [slow_answer(40, Gate())]) as lab:
        run_id = await lab.start()
        shown = ""
        with anyio.fail_after(20):
            while shown != "Thinking (10 tokens)":
                shown = (await lab.check(run_id)).untrusted_activity
                await anyio.sleep(0.05)
        await lab.store.do(lambda _view, _now: Outcome(None, ()))  # what waits for the next transaction is written
        assert await lab.store.read(lambda view: view.live(run_id)) is None
        await lab.call("cancel_subagent", subagent_id=run_id)


async def test_what_has_not_changed_is_shown_again_until_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activities, "AGAIN_S", 0.05)
    monkeypatch.setattr(activities, "SHOW_EVERY_S", 0.05)
    gate = Gate()
    async with open_lab(tmp_path, [Say(calls=[DONE], gate=gate)]) as lab:
        shown: list[dict[str, str]] = []
        membership = lab.runtime.membership
        show = membership.show

        def noted(doing: Mapping[str, str]) -> None:
            shown.append(dict(doing))
            show(doing)

        monkeypatch.setattr(membership, "show", noted)
        run_id = await lab.start()
        with anyio.fail_after(40):
            while shown[-3:] != [{run_id: "Thinking"}] * 3:  # noqa: ASYNC110 - nothing tells of it
                await anyio.sleep(0.02)
        assert lab.runtime.instances.activities() == {(membership.name, run_id): "Thinking"}
        gate.released.set()
        await lab.ended(run_id)
        with anyio.fail_after(40):
            while shown[-1]:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        count = len(shown)
        await lab.call("check_subagent", subagent_id=run_id)
        await anyio.sleep(0.2)  # four times as long as the others
        assert len(shown) == count, "nothing is done while nothing runs"


async def test_what_another_process_shows_is_cleaned_and_short_and_only_its_owner_is_believed(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say(calls=[DONE], gate=gate)]) as lab:
        run_id = await lab.start()
        await wait_for(gate.arrived)
        row = await lab.run(run_id)
        evil = "\x1b[31mok\x1b[0m\n\u202e" + "x" * 100_000

        shows = ToldProcesses(shows={(row.instance or "", run_id): evil, ("another", run_id): "a lie"})
        shown = activity_of(row, shows)
        assert "ok" in shown and shown.isprintable() and len(shown) == 80
        assert activity_of(replace(row, instance="a third"), shows) == ""
        gate.released.set()
        await lab.ended(run_id)

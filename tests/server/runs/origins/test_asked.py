"""A person is asked about a value that nobody approved, and only a yes to that question counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from support.foreign.origins import (
    ALL,
    EVIL,
    SEND,
    answer,
    config,
    mails_of,
    send_mail,
    start_guest,
)  # fmt: skip
from support.foreign.servers import write_role
from support.model_server import Say, Step
from support.runtime import hand_over, open_lab
from support.terminal import CONTROLLED, run_on_terminal

from ava_audit.events import Answered, Asked, GuardrailTripped
from ava_server.approval.decide import PersonAnswer, Shown
from ava_server.approval.start_form import Reply
from ava_server.config.pin import PinFile
from ava_server.core.errors import Refused
from ava_server.service.access import Access, Session
from ava_server.service.run_questions import PersonQuestions
from ava_server.service.service import Service, decide


def reads_and_obeys(*calls: Say) -> Callable[[dict[str, Any]], Step]:
    steps = iter([Say(calls=[("mcp__lab__inbox", {})]), *calls])

    def script(_request: dict[str, Any]) -> Step:
        return next(steps, hand_over())

    return script


async def test_an_obedient_model_sends_nothing_where_nobody_allows_it(tmp_path: Path) -> None:
    write_role(tmp_path / "data", ALL)
    async with open_lab(
        tmp_path, reads_and_obeys(send_mail(EVIL), send_mail("bob@example.org")), config=config(1)
    ) as lab:
        run_id = await start_guest(lab)
        refused, done = await mails_of(lab, run_id)
        assert refused.output.startswith("Refused: to (from mcp__lab__inbox)") and "nobody allowed it" in refused.output
        assert done.success and "sent 1 to bob@example.org" in done.output
        [tripped] = await lab.facts(run_id, GuardrailTripped)
        assert (tripped.guardrail, tripped.action, tripped.tool, tripped.count) == ("origin", "refused", SEND, 1)


@pytest.mark.parametrize("word", ["yes", "No, never"])
async def test_a_person_is_asked_with_the_value_and_its_source_and_only_they_can_answer(
    tmp_path: Path, word: str
) -> None:
    write_role(tmp_path / "data", ALL)
    script = reads_and_obeys(send_mail(EVIL), send_mail(EVIL, body="about lunch"))
    async with open_lab(tmp_path, script, config=config()) as lab:
        run_id = await start_guest(lab)
        await lab.logged(run_id, "Asked")
        [asked] = await lab.facts(run_id, Asked)
        assert asked.values == ({"argument": "to", "value": EVIL, "source": "mcp__lab__inbox"},)
        shown = str(await lab.call("check_subagent", subagent_id=run_id))
        assert f"to (from a result of mcp__lab__inbox): {EVIL}" in shown
        with pytest.raises(Refused, match="only a person's own answer counts"):
            await answer(lab, run_id, "yes", "host_call", shown=asked)
        with pytest.raises(Refused, match="asks a person whether it may make a call"):
            await answer(lab, run_id, "yes", "host_call")
        assert await lab.facts(run_id, Answered) == []
        await answer(lab, run_id, word, "terminal", shown=asked)
        results = await mails_of(lab, run_id)
        if word == "yes":
            assert [each.success for each in results] == [True, True], "what was allowed is not asked again"
            assert len(await lab.facts(run_id, Asked)) == 1
        else:
            assert not results[0].success
            assert "the person does not allow it" in results[0].output


async def test_a_yes_counts_only_for_the_question_that_was_shown(tmp_path: Path) -> None:
    write_role(tmp_path / "data", ALL)
    async with open_lab(
        tmp_path, reads_and_obeys(send_mail("ann@example.net"), send_mail(EVIL)), config=config()
    ) as lab:
        run_id = await start_guest(lab)
        await lab.logged(run_id, "Asked")
        [shown] = await lab.facts(run_id, Asked)
        assert f"ava send {run_id} yes --question {shown.ask_id}`" in str(
            await lab.call("check_subagent", subagent_id=run_id)
        )
        await answer(lab, run_id, "no", "browser", shown=shown)  # in another window
        await lab.logged(run_id, "Asked", 2)
        with pytest.raises(Refused, match="was declined already, in "):
            await answer(lab, run_id, "yes", "terminal", shown=shown)
        with pytest.raises(Refused, match=f"(?s){EVIL}.*Nothing was sent: answer it with `ava send .* --question Q-"):
            await answer(lab, run_id, "yes", "terminal")
        assert len(await lab.facts(run_id, Answered)) == 1
        [_first, now] = await lab.facts(run_id, Asked)

        def typed() -> str:
            with run_on_terminal(lab.root, "send", run_id, "yes", "--question", now.ask_id) as screen:
                assert screen.ended() == 0, screen.text
                return screen.text

        assert "has the answer to its question and continues" in await anyio.to_thread.run_sync(typed)
        assert [each.success for each in await mails_of(lab, run_id)] == [False, True]


async def test_a_yes_takes_the_pin_where_an_approval_does_and_a_no_takes_none(tmp_path: Path) -> None:
    write_role(tmp_path / "data", ALL)
    calls = (send_mail(EVIL), send_mail("ann@example.net"))
    async with open_lab(tmp_path, reads_and_obeys(*calls), config=f'approval = "human"\n{config()}') as lab:
        lab.session.pin_given = True  # it was started with the PIN
        run_id = await start_guest(lab)
        lab.session.pin_given = False
        await lab.logged(run_id, "Asked")
        [asked] = await lab.facts(run_id, Asked)
        for channel in ("terminal", "browser"):
            with pytest.raises(Refused, match="only the approval PIN allows a call"):
                await answer(lab, run_id, " Yes ", channel, shown=asked)
        host = PersonQuestions(Access(lab.runtime, Session(lab.session.user, "stdio", client="claude-code")))
        assert await host.open([await lab.run(run_id)]) == {}, "no form is shown that could answer by itself"
        with pytest.raises(Refused, match="only the approval PIN allows a call"):
            await host.answer([await lab.run(run_id)], asked.ask_id, Reply("accept", {"decision": "Yes"}))
        await anyio.to_thread.run_sync(PinFile(lab.runtime.settings.paths.approval_file).set, "739154")

        def typed(pin: str) -> tuple[int, str]:
            words = ("send", run_id, "yes", "--question", asked.ask_id)
            with run_on_terminal(lab.root, *words, command=CONTROLLED) as screen:
                screen.until("Approval PIN (not shown):")
                screen.type(f"{pin}\n")
                return screen.ended(), screen.text

        code, said = await anyio.to_thread.run_sync(typed, "111111")
        assert code and "That is not the PIN" in said and "Nothing was allowed; it still waits." in said
        assert await lab.facts(run_id, Answered) == []
        code, said = await anyio.to_thread.run_sync(typed, "739154")
        assert not code and "has the answer to its question" in said
        await lab.logged(run_id, "Asked", 2)
        [_first, second] = await lab.facts(run_id, Asked)
        await answer(lab, run_id, "no", "terminal", shown=second)
        assert [each.success for each in await mails_of(lab, run_id)] == [True, False]


async def test_a_page_that_was_shown_another_question_allows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_role(tmp_path / "data", ALL)
    async with open_lab(
        tmp_path, reads_and_obeys(send_mail("ann@example.net"), send_mail(EVIL)), config=config(2)
    ) as lab:
        run_id = await start_guest(lab)
        await lab.logged(run_id, "Asked")
        [asked] = await lab.facts(run_id, Asked)
        user, carry_out = lab.session.user, PersonQuestions._decide
        service = Service(lab.runtime, Session(user=user, transport="browser", channel="browser"))

        async def later(*args: Any, **more: Any) -> Any:
            """Another window is faster: it answers after the look at the question, and before the answer here."""
            monkeypatch.setattr(PersonQuestions, "_decide", carry_out)
            await answer(lab, run_id, "no", "terminal", shown=asked)
            await lab.logged(run_id, "Asked", 2)
            return await carry_out(*args, **more)

        monkeypatch.setattr(PersonQuestions, "_decide", later)
        with pytest.raises(Refused, match="was declined already, in "):
            await decide(service, [Shown("answer", run_id, asked.ask_id)], PersonAnswer(True, "yes"))
        assert [each.success for each in await mails_of(lab, run_id)] == [False, False]


async def test_a_field_of_an_address_book_is_a_source_and_the_proposal_says_so(tmp_path: Path) -> None:
    rules = f"effects:\n  {SEND}.to: mcp__lab__contacts.email\n  {SEND}.body: any\n"
    write_role(tmp_path / "data", ALL, rules)
    calls = (Say(calls=[("mcp__lab__contacts", {})]), send_mail("ann@example.org"), send_mail(EVIL))
    async with open_lab(tmp_path, reads_and_obeys(*calls), config=config(1)) as lab:
        proposal = await lab.propose(role="guest", workspace=None, task="Write to Ann about lunch.")
        line = (
            "What it changes or sends there comes from your task, or you are asked; mcp__lab__send.to may also come"
            " from mcp__lab__contacts.email, mcp__lab__send.body may also come from anywhere."
        )
        assert line in str(proposal)
        run_id = await start_guest(lab)
        ann, evil = await mails_of(lab, run_id)
        assert ann.success and not evil.success

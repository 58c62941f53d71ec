"""Runs that come near a cap: what their model answers, and the cap that is too small for it."""

from __future__ import annotations

import json
from typing import Any

import anyio

from ava_audit.events import Channel, Who
from ava_audit.rows import RunRow
from ava_audit.store.store import Command, Store
from ava_server.runs.asking.extension import extension_limits
from ava_server.runs.asking.pending_questions import PendingExtension, decide_question
from ava_server.runs.asking.question_kinds import Decider, QuestionDecision
from ava_server.service.access import Session
from ava_server.service.service import Service
from support.hosts.elicitation import Host
from support.model_server import Say, Step
from support.runtime import PRICED, Lab, hand_over

DEAR = {"prompt_tokens": 5_000, "completion_tokens": 900, "total_tokens": 5_900}
"""$0.0285 by the prices of the tests."""
CAP = {"max_cost_cents": 20}
"""With it, some call after the fifth does not fit."""


def note(number: int) -> Say:
    """Return an answer with one note, at a price."""
    return Say(calls=[("scratchpad", {"note": f"note {number}"})], usage=DEAR)


def keep_noting(asked: dict[str, Any]) -> Step:
    """Take notes without an end, until there is only the last turn, or a person has allowed more."""
    said = json.dumps(asked["messages"])
    done = "This is the last turn" in said or "A person has raised your limit" in said
    return hand_over() if done else note(len(asked["messages"]))


def work_without_end(asked: dict[str, Any]) -> Step:
    """Take notes without an end, whatever is allowed."""
    return hand_over() if "This is the last turn" in json.dumps(asked["messages"]) else note(len(asked["messages"]))


def config(seconds: int, more: str = "") -> str:
    """Return a configuration in which a run waits so many seconds for an answer; 0 for never asking."""
    return f"{PRICED}\n[limits]\nextension_wait_s = {seconds}\n{more}"


async def start(lab: Lab, channel: Channel = "terminal", **more: Any) -> str:
    """Start a run that a person approved over a channel; the session then is a host's again."""
    lab.session.channel = channel
    run_id = await lab.start(**(more or CAP))
    lab.session.channel = "host_call"
    return run_id


async def wait_for_ask(lab: Lab, run_id: str) -> RunRow:
    """Wait until a run asks for more."""
    await lab.logged(run_id, "Asked")
    return await lab.run(run_id)


async def pending(lab: Lab, run_id: str) -> PendingExtension:
    """Wait until a run asks for more, and return what a person is shown."""
    await wait_for_ask(lab, run_id)
    [found] = [one for one in await lab.service.questions.waiting() if one.subagent_id == run_id]
    return found


def person(lab: Lab, channel: Channel = "terminal", user: str | None = None) -> Service:
    """A person at a channel of their own."""
    return Service(lab.runtime, Session(user=user or lab.session.user, transport="memory", channel=channel))


async def wait_until_asked(at: Host, run: dict[str, Any]) -> None:
    """Wait until a run of a host asks for more."""
    async with Store.open(at.root) as store:
        with anyio.fail_after(20):
            while True:
                seen = store.head
                if await store.read(lambda view: view.entries(run["subagent_id"], 0, ("Asked",))):
                    return
                await store.wait_for_entry_after(seen)


async def confirm_until_asked(at: Host, run: dict[str, Any]) -> dict[str, Any]:
    """Start a run with the person's answer, and wait until it asks for more; return what check_subagent then says."""
    assert (await at.confirm(run))["status"] == "approved"
    await wait_until_asked(at, run)
    return await at.call("check_subagent", subagent_id=run["subagent_id"])


async def host_result(at: Host, run: dict[str, Any]) -> dict[str, Any]:
    """Wait for a run's end, and return what check_subagent says of it."""
    return await at.call("check_subagent", subagent_id=run["subagent_id"], wait_seconds=20)


def command(
    lab: Lab, run_id: str, shown: PendingExtension, allow: float | None, who: Who | None = None
) -> Command[QuestionDecision]:
    """Return the command by which somebody, or this session's user, answers what a run asks for."""
    decider = who or lab.session.who
    limits = extension_limits(lab.runtime.settings, decider.user_id)
    return decide_question(run_id, shown.digest, allow, Decider(decider, decider, "terminal", limits))

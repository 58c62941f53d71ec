"""Runs that ask their person a question, and hand over what they are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.model_server import Say, Step
from support.runtime import PRICED, Lab, hand_over

QUESTION = "Which currency is meant?"
ASK = ("ask", {"question": QUESTION, "options": ["EUR", "USD"]})


def ask_and_hand_over(*questions: tuple[str, Any]) -> Callable[[dict[str, Any]], Step]:
    """Ask in the first answer, then hand over what came back."""

    def script(request: dict[str, Any]) -> Step:
        tools = [each["content"] for each in request["messages"] if each["role"] == "tool"]
        return hand_over(output=" | ".join(tools)) if tools else Say(calls=list(questions or (ASK,)))

    return script


def question_config(seconds: int, more: str = "") -> str:
    """Return a configuration in which a run waits so many seconds for an answer."""
    return f"{PRICED}\n[limits]\nquestion_wait_s = {seconds}\n{more}"


async def start_until_asked(lab: Lab, **more: Any) -> str:
    """Start a run, wait until it has asked, and return its id."""
    run_id = await lab.start(**more)
    await lab.logged(run_id, "Asked")
    return run_id


async def result_output(lab: Lab, run_id: str) -> str:
    """Wait until a run has succeeded, and return what it handed over."""
    assert (await lab.ended(run_id)).state == "success"
    return str((await lab.result(run_id))["untrusted_result"]["output"])

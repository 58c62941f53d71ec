"""The model of `ava demo --scripted`: it plays `demo_script.json`, filled in with what the tools returned."""

from __future__ import annotations

import json
from importlib.resources import files

from ava_roles.words import Query
from ava_server.core.errors import ModelError
from ava_server.models.base import Completion, Request, ToolTurn, UserTurn
from ava_server.models.local import answers_before, complete
from ava_server.models.offline_ranking import best_passages
from ava_server.models.offline_reading import passages, spread_of
from ava_server.models.selection import SCRIPTED


def answer(request: Request) -> Completion:
    """Return the script's answer to a request. Blocks for a moment.

    Raises:
        ModelError: The script is over.
    """
    steps = json.loads(files("ava_server.models").joinpath("demo_script.json").read_text(encoding="utf-8"))
    turn = answers_before(request)
    if turn >= len(steps):
        raise ModelError(
            f"The script of {SCRIPTED} has {len(steps)} steps and was asked for step {turn + 1}.",
            kind="bad_request",
            sent=False,
            answered=False,
            retryable=False,
            what_to_do="Write a longer script.",
        )
    step = json.loads(_filled_in(json.dumps(steps[turn]), request))
    return complete(step["text"], [(call["name"], call["args"]) for call in step["calls"]], request)


def _filled_in(step: str, request: Request) -> str:
    """Return a step, as JSON, with `{words}`, `{source}` and `{findings}` replaced."""
    task = next((turn.text for turn in request.turns if isinstance(turn, UserTurn)), "")
    results = [turn for turn in request.turns if isinstance(turn, ToolTurn)]
    query = Query(task)
    found = [piece for turn in results for piece in passages(turn.name, turn.text)]
    best, _ = best_passages(found, query, spread_of(query, results), most=4)
    findings = [
        {
            "claim": f"{piece.source} has a passage about it",
            "quote": piece.text,
            "source_url": piece.location,
            "source_name": f"{piece.source}, {piece.place}" if piece.place else piece.source,
        }
        for piece in best
    ]
    step = step.replace("{words}", _inside(" ".join(query.words[:8]) or task[:80]))
    step = step.replace("{source}", _inside(best[0].source if best else "no file"))
    return step.replace('"{findings}"', json.dumps(findings))


def _inside(text: str) -> str:
    """Return a text as it stands inside a JSON string."""
    return json.dumps(text)[1:-1]

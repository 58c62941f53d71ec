"""Recorded requests and answers of Google's: each usage is read whole, and lies within the bound of its request.

The recordings are not part of the repository. AVA_TEST_RECORDED names a folder of VCR cassettes (`*google*.yaml`),
such as those of pydantic-ai's tests; `-rP` prints which requests are left out, and why.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ava_audit.redaction import Redactor
from ava_server.agents.bodies import Bodies
from ava_server.agents.metering import CountedBounds
from ava_server.agents.seam import AgentCall, CallRefused
from ava_server.models.base import AssistantTurn, Completion, Request, ToolSchema, ToolTurn, Turn, UserTurn
from ava_server.models.tokens import bound as bound_of
from ava_server.models.wires.google import GoogleWire
from ava_server.models.wires.stream import EventReader

FOLDER = os.environ.get("AVA_TEST_RECORDED", "")
WIRE = GoogleWire()
OWN_TOOL = "a tool that Google runs"
NO_ANSWER = "it asks for no answer"
LEFT_OUT = {OWN_TOOL, NO_ANSWER}
"""Why a request may be left out; what the gateway refuses is not sent, and has its own words."""


@pytest.mark.skipif(not FOLDER, reason="AVA_TEST_RECORDED names no folder of recordings")
def test_every_recorded_usage_is_read_and_lies_within_the_bound_of_its_request() -> None:
    files = sorted(Path(FOLDER).glob("*google*.yaml"))
    checked, left_out, own_checked = list[str](), Counter[str](), 0
    for file in files:
        bounds = CountedBounds()  # a file is a conversation: its later requests begin with what was reported
        for number, one in enumerate(recorded(file)):
            name = f"{file.stem} {number}"
            if one.answer is None:
                left_out[NO_ANSWER] += 1
                print(f"left out: {name}: {NO_ANSWER}: {one.address.rpartition('/')[2]}")
                continue
            usage = one.answer.usage
            assert usage is not None and one.answer.notes == (), name
            assert one.answer.stop_reason in ("STOP", "max_tokens", "content_filter"), name
            try:
                call = call_of(one)
            except CallRefused as why:
                left_out[str(why)] += 1
                print(f"left out: {name}: refused: {why}")
                continue
            own = [word for word in call.dropped if word.startswith("tool ")]
            if own:  # without it, the request is another one
                left_out[OWN_TOOL] += 1
                print(f"left out: {name}: {OWN_TOOL}: {', '.join(own)}")
                continue
            fresh, bound = CountedBounds().bound(call, 0), bounds.bound(call, 0)
            print(f"{name}: {usage.prompt_tokens} of {bound.prompt_tokens} ({fresh.prompt_tokens} without a report)")
            assert usage.prompt_tokens <= bound.prompt_tokens <= fresh.prompt_tokens, name
            assert call.asked_output is None or usage.output_tokens <= call.asked_output, name
            bounds.report(call, usage)
            request = own_request(one.body)
            if request is None:
                print(f"left out of Ava's own requests: {name}: it asks for an answer of a form")
            else:
                assert usage.prompt_tokens <= bound_of(request, WIRE.message, None).prompt_tokens, name
                own_checked += 1
            checked.append(name)
    print(f"{len(checked)} requests checked, {own_checked} also as Ava's own; left out: {dict(left_out)}")
    assert (
        checked
        and own_checked
        and left_out.keys() - LEFT_OUT <= {"executableCode cannot be sent: Ava does not see what it stands for"}
    )


@dataclass(frozen=True)
class Recorded:
    """A recorded request, with its model or without one where it asks for no answer, and the answer to it."""

    address: str
    model: str
    body: dict[str, Any]
    answer: Completion | None


def recorded(file: Path) -> Iterator[Recorded]:
    for each in yaml.safe_load(file.read_text("utf-8"))["interactions"]:
        asked, given = each["request"], each["response"]
        address = str(asked["uri"]).partition("?")[0]
        fields = WIRE.asked(address)
        if fields is None or given["status"]["code"] != 200:
            yield Recorded(address, "", {}, None)
        else:
            yield Recorded(address, fields["model"], asked["parsed_body"], answer_of(given))


def answer_of(given: dict[str, Any]) -> Completion:
    answer = WIRE.answer()
    if "parsed_body" in given:
        answer.add(given["parsed_body"])
    else:
        reader = EventReader()
        for data in (*reader.feed(given["body"]["string"].encode()), *reader.finish()):
            answer.add(json.loads(data))
    return answer.complete(request_id=None, sent_bytes=0)


def own_request(body: dict[str, Any]) -> Request | None:
    """Return a recorded request as Ava itself would make it; None: it asks for an answer of a form."""
    if "responseJsonSchema" in body["generationConfig"]:
        return None
    turns: list[Turn] = []
    for content in body["contents"]:
        if content["role"] == "model":
            turns.append(AssistantTurn(content))
            continue
        for part in content["parts"]:
            if (result := part.get("functionResponse")) is not None:
                turns.append(ToolTurn(result["id"], result["name"], json.dumps(result["response"])))
            else:
                turns.append(UserTurn(part["text"]))
    declared = [each for tool in body.get("tools", ()) for each in tool["functionDeclarations"]]
    tools = tuple(
        ToolSchema(each["name"], each["description"], each.get("parameters") or each["parameters_json_schema"])
        for each in declared
    )
    system = "".join(part["text"] for part in body.get("systemInstruction", {}).get("parts", ()))
    return Request("m", system, tools, tuple(turns), 8_192)


def call_of(one: Recorded) -> AgentCall:
    bodies = Bodies("google", {one.model: one.model}, frozenset(), Redactor({}))
    return bodies.read(json.dumps(one.body).encode(), in_address={"model": one.model, "stream": False})

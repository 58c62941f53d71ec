"""Steps as a host writes them: each fault is named at once, with what to write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.runs import plans
from support.runtime import PRICED, open_lab

from ava_server.approval.steps import read_steps
from ava_server.core.errors import BadInput


async def test_a_key_does_not_pass_in_the_escaped_text_of_steps(tmp_path: Path) -> None:
    key = "sk-ant-" + "api03-" + "a1B2" * 12
    written = json.dumps([{**plans.FIND, "task": f"Use {key}."}]).replace("sk-ant", "\\u0073k-ant")
    async with open_lab(tmp_path, config=PRICED) as lab:
        refused = await lab.call("spawn_subagent", workspace=str(lab.workspace), steps=written)
        assert refused.status == "failed" and "looks like a key" in refused.message
        logged = await lab.store.read(lambda view: [str(row) for row in view.select("SELECT content FROM events")])
    assert not any(key in text or key[1:] in text for text in logged)


def test_faults_of_steps_are_named_at_once_with_what_to_write() -> None:
    many = " ".join(f"{{{{find.f{number}}}}}" for number in range(60))
    schema: dict[str, Any] = {"properties": {f"f{number}": {} for number in range(60)}}
    steps = [
        plans.step("Find", "x"),
        plans.step("find", "x", output_schema=schema),
        plans.step("read", "{{fnd}} {{item}}", verify="{{find}}", after=["read"]),
        plans.step("all", many, foreach="find.f1"),
    ]
    with pytest.raises(BadInput) as refused:
        read_steps(steps, {})
    for said in (
        "step number 1: 'Find' is not an id; give 1 to 30 of a-z, 0-9 and _",
        "step read: verify: a result of another step may stand in task alone",
        "step read: {{fnd}}: there is no step 'fnd'; did you mean find?",
        "step read: {{item}} is for a step with foreach",
        "step read: after: a step cannot wait for itself",
        "step all: task: 60 references, at most 50 are allowed",
        "step all: foreach needs at_most",
        "step all: foreach: find.f1 is not a list by the output_schema of find",
    ):
        assert said in str(refused.value)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "an empty list was given"),
        ("x", "'x' was given where a list of objects belongs"),
        ([{"id": "a", "role": "r", "task": "{{b}}"}, {"id": "b", "role": "r", "task": "{{a}}"}], "a needs b needs a"),
        ([{"id": f"s{number}", "role": "r", "task": "x"} for number in range(201)], "a plan has at most 200"),
        ([{"id": "a", "role": "r", "task": "x" * 90_000}] * 3, "bytes, at most 256,000 together"),
    ],
    ids=["empty", "text", "circle", "many", "large"],
)
def test_refuses_steps_that_no_plan_can_have(steps: Any, said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        read_steps(steps, {})

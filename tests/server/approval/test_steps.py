"""Steps as a host writes them: each fault is named at once, with what to write."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.runs import plans
from support.runtime import PRICED, open_lab, submit

from ava_server.approval.steps import read_steps, replace_references, with_plain_steps
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
        'step "read": verify: a result of another step may stand in task alone',
        'step "read": task: \'{{fnd}}\': there is no step "fnd"; did you mean {{find}}?',
        'step "read": {{item}} is for a step with foreach',
        'step "read": after: a step cannot wait for itself',
        'step "all": task: 60 references, at most 50 are allowed',
        'step "all": foreach needs at_most',
        'step "all": foreach: "find.f1" is not a list by the output_schema of the step "find"',
    ):
        assert said in str(refused.value)


def test_steps_as_text_may_have_a_mark_and_no_key_twice() -> None:
    step = '{"id": "a", "role": "r", "task": "x"}'
    [read] = read_steps(f"\ufeff[{step}]", {})
    assert read.id == "a"
    assert with_plain_steps({"steps": f"\ufeff[{step}]"}) == {"steps": [json.loads(step)]}
    twice = '[{"id": "a", "role": "r", "task": "x", "task": "y"}]'
    assert with_plain_steps({"steps": twice}) == {"steps": twice}
    with pytest.raises(BadInput, match="the key 'task' stands twice in one object; give it once"):
        read_steps(twice, {})


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "an empty list was given"),
        ("x", "'x' was given where a list of objects belongs"),
        (
            [{"id": "a", "role": "r", "task": "{{b}}"}, {"id": "b", "role": "r", "task": "{{a}}"}],
            '"a" needs the step "b" needs',
        ),
        ([{"id": f"s{number}", "role": "r", "task": "x"} for number in range(201)], "a plan has at most 200"),
        ([{"id": "a", "role": "r", "task": "x" * 90_000}] * 3, "bytes, at most 256,000 together"),
    ],
    ids=["empty", "text", "circle", "many", "large"],
)
def test_refuses_steps_that_no_plan_can_have(steps: Any, said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        read_steps(steps, {})


FORMS_THAT_BRING_NOTHING = (
    "{{find.items.first}}", "{{Find}}", "{{ FIND.items }}", "{{steps.find.output}}", "{{ Steps.find }}",
    "{{find|json}}", "{{find.items|json}}", "{{find.items[0]}}", "{{ steps['find'] }}", "{{$find}}", "{{.Find}}",
    "{{#find}}", "{{-find-}}", "{{find.}}", "{{find\n.items.first}}", "{{fi\u200bnd}}", "${find}", "${ find }",
    "${find.items}", "{find}", "{find.items}", "{{Item}}", "{{item|json}}", "{{item.a.b}}", "{{item.a|upper}}",
    "{item}", "${item}", "{{items}}", "{{fnd}}", "{{find-}}", "{{{{{find}}",
)  # fmt: skip
UNCLOSED = ("{{find", "{{find}", "{{ user", "{{", "{{find and {{item}}", "{{{item", "{{{{{{item")
AS_WRITTEN = (
    "{{ user }}", "{{}}", "{{ a.b.c | d }}", "${{ secrets.X }}", "{{secret:TOKEN}}", "{{#each rows}}{{this}}{{/each}}",
    "{x}", "${HOME}", "import { find } from x", '{"a": {"b": {}}}', "style={{color: 1}}", "\\frac{a}{b}",
    "{{1, 2}, {3}}", "}} {", "{ {find", "{{users_of_it}}",
)  # fmt: skip


@pytest.mark.parametrize("form", [*FORMS_THAT_BRING_NOTHING, *UNCLOSED])
def test_braces_that_mean_a_step_in_another_form_are_a_fault(form: str) -> None:
    schema = {"type": "object", "properties": {"items": {"type": "array"}}}
    steps = [
        plans.step("find", "x", output_schema=schema),
        plans.step("read", f"Look at {form} now.", foreach="find.items", at_most=2),
    ]
    with pytest.raises(BadInput) as refused:
        read_steps(steps, {})
    said = str(refused.value)
    assert said.startswith('step "read": ')
    advice = re.search(r"write (\{\{[a-z.]+\}\}|\{\{\{\{)|did you mean", said)
    assert advice is not None, said
    if advice[1] is not None and advice[1] != "{{{{":
        read_steps([steps[0], {**steps[1], "task": f"Look at {advice[1]} now."}], {})


@pytest.mark.parametrize("text", AS_WRITTEN)
def test_braces_that_mean_no_step_stay_as_written(text: str) -> None:
    [_find, read] = read_steps(
        [plans.step("find", "x"), plans.step("read", f"Look at {text} now.", after=["find"])], {}
    )
    assert read.inputs == () and read.needs == ("find",)
    assert replace_references(read.args.task, {}) == f"Look at {text} now."


@pytest.mark.parametrize(
    ("task", "given"),
    [
        ("{{find}} {{ find }}", "input 1 input 1"),
        ("{{{{find}} is {{find}}", "{{find}} is input 1"),
        ('{"of": {{find}}}', '{"of": input 1}'),
        ("{{{{ user }} {{ user }}", "{{ user }} {{ user }}"),
        ("{{{{{{find}}", "{{input 1"),
    ],
)
def test_four_braces_write_two(task: str, given: str) -> None:
    [_find, read] = read_steps([plans.step("find", "x"), plans.step("read", task)], {})
    assert replace_references(read.args.task, dict.fromkeys(read.inputs, "input 1")) == given


def test_many_braces_are_read_in_time_in_proportion_to_them() -> None:
    for text in ("{{ ", "{{{", "{{{{{", "{{find", "${", "{{}", "{a"):
        task = (text * 30_000)[:90_000]
        with suppress(BadInput):
            read_steps([plans.step("find", "x"), plans.step("read", task)], {})


async def test_a_task_and_a_context_may_have_the_braces_of_other_programs(tmp_path: Path) -> None:
    task = "Find templates with {{ user }}, {{{{find}} and {{find}}."
    context = "key: ${{ secrets.X }}\nloop: {{ item }}\nnot filled in: {{find}} {{Find}} {{"
    steps = [plans.step("find", "First."), plans.step("read", task, context=context)]
    async with open_lab(tmp_path, lambda _request: submit("done"), config=PRICED) as lab:
        proposal = await plans.propose(lab, steps)
        assert 'In the task of the step "read", this names no step and stays as it is written: "{{ user }}"' in (
            proposal.message
        )
        assert 'In the context of the step "read", this stays as it is written' in proposal.message
        assert '"{{item}}", "{{find}}"' in proposal.message
        await plans.approve(lab, proposal)
    request = json.loads(lab.server.requests[-1].body)
    assert "Find templates with {{ user }}, {{find}} and input 1." in plans.task_text(request)
    assert any(context in message["content"] for message in request["messages"])


def _many(count: int) -> list[dict[str, Any]]:
    return [{"id": f"s{number}", "role": "researcher", "task": "x"} for number in range(count)]


def _reads(step_id: str, names: list[str]) -> dict[str, Any]:
    return {"id": step_id, "role": "researcher", "task": " ".join(f"{{{{{name}}}}}" for name in names)}


FIND = {"id": "find", "role": "researcher", "task": "x", "output_schema": {"properties": {"items": {"type": "array"}}}}
READ = {"id": "read", "role": "researcher", "task": "x {{item}}", "foreach": "find.items"}
LAST = {"id": "last", "role": "researcher", "task": "x"}
NAMES = [f"s{number}" for number in range(51)]


@pytest.mark.parametrize(
    ("wrong", "advice", "right"),
    [
        ([FIND, {**READ, "at_most": 0}], "give 1 or more", [FIND, {**READ, "at_most": 1}]),
        ([{**LAST, "at_most": 0}], "leave it out", [LAST]),
        ([FIND, {**LAST, "depends_on": ["find"]}], 'write after: ["id", …]', [FIND, {**LAST, "after": ["find"]}]),
        (
            [*_many(51), _reads("all", NAMES)],
            "let steps in between bring together up to 50",
            [*_many(51), _reads("half", NAMES[:30]), _reads("rest", NAMES[30:]), _reads("all", ["half", "rest"])],
        ),
    ],
    ids=["at_most", "at_most alone", "depends_on", "references"],
)
def test_who_does_what_a_refusal_says_is_not_refused_again(wrong: Any, advice: str, right: Any) -> None:
    with pytest.raises(BadInput) as refused:
        read_steps(wrong, {})
    assert advice in str(refused.value), refused.value
    assert read_steps(right, {})


def test_an_argument_of_another_name_beside_steps_is_said_to_be_of_the_step() -> None:
    with pytest.raises(BadInput, match="in the step that waits"):
        read_steps([FIND, LAST], {"depends_on": ["find"]})

"""Text that was written to steer a model goes through every tool that returns foreign text, and arrives as data.

What is looked at is the request that the model server received: in each result one opening and one closing tag with
this run's nonce and everything foreign between them, nothing that a reader could take for a tag of ours, nothing that
nobody sees; no message that Ava did not write, no call that the model did not make.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from support.foreign.injection_lab import (
    TOKEN,
    WAYS,
    assert_inert,
    count_unseen,
    inside_of_result,
    open_ground,
    read_with_role,
)
from support.foreign.injections import ATTACKS, attack_text, mark
from support.model_server import Say, Step
from support.network.web_site import Page
from support.repositories.coding import run_coder
from support.repositories.projects import checkout
from support.runtime import hand_over, open_lab, submit
from support.sandboxes.attacks import needs_confinement
from support.tool_examples import EXAMPLES, HERE, must_list

from ava_audit.events import RunStarted, WorktreeReady
from ava_roles.tools.registry import builtin_tools
from ava_server.run_config.config import RUN_TOOLS

TOGETHER = 15
"""Calls of one answer; 16 are run."""


def test_covers_forty_attacks_and_every_tool_that_returns_untrusted_text() -> None:
    assert len(ATTACKS) == len(set(ATTACKS)) >= 40
    brings = {name for name, tool in builtin_tools().items() if tool.spec.reads or not tool.spec.writes}
    tools = brings | {*RUN_TOOLS}
    must_list(f"{HERE} (brings)", {name for name, example in EXAMPLES.items() if example.brings}, tools)
    assert sum(count_unseen(attack) > 0 for attack in ATTACKS) >= 9


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WAYS))
async def test_every_attack_reaches_the_model_only_as_data(tmp_path: Path, name: str) -> None:
    (tool, way), numbers = WAYS[name], range(len(ATTACKS))
    script: list[Step] = []
    async with open_ground(tmp_path, script) as (at, lab):
        calls = [(tool, {key: value for key, value in way.lay(at, n).items() if key != "_"}) for n in numbers]
        script += [Say(calls=calls[start : start + TOGETHER]) for start in range(0, len(calls), TOGETHER)]
        script.append(hand_over())
        shown, others, nonce = await read_with_role(lab, workspace=str(lab.workspace))
        received = b"".join(request.body for request in lab.server.requests)
    assert len(shown) == len(ATTACKS)
    assert "Marker" not in re.sub(r"Marker\d\dx", "", others) and TOKEN.encode() not in received
    by_mark = {found[0]: each for each in shown if (found := re.search(r"Marker\d\dx", each))}
    for number in numbers:
        assert mark(number) in by_mark, f"{mark(number)} did not arrive: {shown[number]}"
        body, removed = inside_of_result(by_mark[mark(number)], nonce)
        assert_inert(body)
        hidden = count_unseen(ATTACKS[number])
        if way.counted == "exactly":
            assert removed == hidden, ATTACKS[number]
        elif way.counted == "some" and any(unicodedata.category(char) == "Cf" for char in ATTACKS[number]):
            assert removed > 0, (ATTACKS[number], body)


async def test_every_attack_in_the_rest_of_a_long_result_is_only_data(tmp_path: Path) -> None:
    def script(request: dict[str, Any]) -> Step:
        results = [str(each["content"]) for each in request["messages"] if each["role"] == "tool"]
        if not results:
            return Say(calls=[("http_get", {"url": "http://docs.example.com/long"})])
        if len(results) == 1:
            (wanted,) = re.findall(r"read_tool_result (R-\w+) with offset (\d+) goes on\]\Z", results[0])
            return Say(calls=[("read_tool_result", {"id": wanted[0], "offset": int(wanted[1])})])
        return hand_over()

    async with open_ground(tmp_path, script) as (at, lab):
        at.web.pages["/long"] = Page(
            "word " * 4_000 + "\n".join(map(attack_text, range(len(ATTACKS)))), content_type="text/plain"
        )
        shown, others, nonce = await read_with_role(lab)
    first, removed = inside_of_result(shown[0], nonce)
    assert removed == sum(map(count_unseen, ATTACKS)), "what was removed is counted where it is removed"
    body, again = inside_of_result(shown[1], nonce)
    assert again == 0
    for number in range(len(ATTACKS)):
        assert mark(number) in body and mark(number) not in first + others
    assert_inert(body)


async def test_every_attack_in_the_result_of_another_subagent_is_only_data(tmp_path: Path) -> None:
    steps: list[Step] = [
        submit("\n".join(map(attack_text, range(len(ATTACKS)))), summary=attack_text(0), caveats=[attack_text(15)])
    ]
    async with open_ground(tmp_path, steps) as (_at, lab):
        first = await lab.start(role="tester", task="Write it down.")
        await lab.ended(first)
        steps += [Say(calls=[("read_subagent_result", {"id": first})]), hand_over()]
        # The script goes on by the number of requests: the first run made one.
        shown, others, nonce = await read_with_role(lab, context_from=[first])
    body, _removed = inside_of_result(shown[0], nonce)
    for number in range(len(ATTACKS)):
        assert mark(number) in body and mark(number) not in others
    assert_inert(body)


@pytest.mark.slow
async def test_every_attack_in_edit_errors_and_verification_output_is_only_data(
    tmp_path: Path,
) -> None:
    needs_confinement(tmp_path / "state")
    files = {f"a{number:02}.txt": f"{attack_text(number)}\n" for number in range(len(ATTACKS))}
    checkout(tmp_path / "workspace", files)

    def misquoted(name: str) -> tuple[str, dict[str, Any]]:
        old = f"{files[name]} and more".replace("\0", "").replace("{{", "((")
        return "edit_file", {"path": name, "old": old, "new": "x"}

    calls = [misquoted(name) for name in files]
    script = [Say(calls=calls[start : start + TOGETHER]) for start in range(0, len(calls), TOGETHER)]
    async with open_lab(tmp_path, [*script, hand_over(), hand_over(), hand_over(), hand_over()]) as lab:
        result = await run_coder(lab, namespace=["."], verify="head -c 100000 a*.txt; false", max_tokens=200_000)
        run_id = result["subagent_id"]
        (started,) = await lab.facts(run_id, RunStarted)
        (ready,) = await lab.facts(run_id, WorktreeReady)
        messages: list[dict[str, Any]] = lab.server.requests[-1].json["messages"]
    assert result["error"]["kind"] == "verification"
    shown = [str(each["content"]) for each in messages if each["role"] == "tool"]
    misses, answers = shown[: len(files)], shown[len(files) :]
    for number, each in enumerate(misses):
        body, _removed = inside_of_result(each, started.nonce)
        assert mark(number) in body
        assert_inert(body)
    assert len(answers) == 3
    for told in (ready.told, *answers):
        _before, tag, rest = told.partition(f'<tool_output_{started.nonce} tool="verify">\n')
        body, closing, after = rest.partition(f"\n</tool_output_{started.nonce}>")
        assert tag and closing and not after.strip() and "Marker" in body and told.count(started.nonce) == 2
        assert_inert(body)
    others = "\n".join(str(each["content"]) for each in messages if each["role"] in ("system", "assistant"))
    assert "Marker" not in re.sub(r"Marker\d\dx", "", others)

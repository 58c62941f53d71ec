"""Text that was written to steer a model goes through every tool that returns foreign text, and arrives as data.

What is looked at is the request that the model server received: in each result one opening and one closing tag with
this run's nonce and everything foreign between them, nothing that a reader could take for a tag of ours, nothing that
nobody sees; no message that Ava did not write, no call that the model did not make.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.foreign.injections import ATTACKS, Ground, Way, attack_text, mark
from support.model_server import Say, Step, run_model_server
from support.network.web_site import Page, site
from support.repositories.coding import run_coder
from support.repositories.projects import checkout
from support.runtime import Lab, hand_over, open_lab, submit
from support.sandboxes.attacks import needs_confinement
from support.tool_examples import EXAMPLES, HERE, must_list

from ava_audit.events import RunStarted, ToolCall, WorktreeReady
from ava_roles.tools.registry import builtin_tools
from ava_server.budget.run_config import RUN_TOOLS
from ava_server.config.keys import set_key
from ava_server.config.secrets import set_secret

TOGETHER = 15
"""Calls of one answer; 16 are run."""
TOKEN = "token-of-a-secret-0123456789abcdef"

_SELECTORS = "\ufe00-\ufe0d\U000e0100-\U000e01ef"
_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"
_UNSEEN = re.compile(f"[{_SELECTORS}{_FILLERS}]|(?<=[\ufe00-\ufe0f])[\ufe0e\ufe0f]")
_PLAIN = str.maketrans("∕⁄＜＞‹›⟨⟩❮❯〈〉〈〉«»˂﹤ооοеаѕрɡ01375", "//<><><><><><><><<oooeaspgolest")

_TAGS = re.compile(
    "<[^a-z<]{0,20}(?:"
    + "|".join("[^a-z<]{0,3}".join(name) for name in ("tooloutput", "subagentresult", "projectinstructions"))
    + ")"
)


WAYS: Mapping[str, tuple[str, Way]] = {
    f"{tool}, {label}".removesuffix(", "): (tool, way)
    for tool, example in EXAMPLES.items()
    for label, way in (example.brings.items() if not isinstance(example.brings, str) else ())
}


def test_covers_forty_attacks_and_every_tool_that_returns_untrusted_text() -> None:
    assert len(ATTACKS) == len(set(ATTACKS)) >= 40
    brings = {name for name, tool in builtin_tools().items() if tool.spec.reads or not tool.spec.writes}
    tools = brings | {*RUN_TOOLS}
    must_list(f"{HERE} (brings)", {name for name, example in EXAMPLES.items() if example.brings}, tools)
    assert sum(unseen(attack) > 0 for attack in ATTACKS) >= 9


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WAYS))
async def test_every_attack_reaches_the_model_only_as_data(tmp_path: Path, name: str) -> None:
    (tool, way), numbers = WAYS[name], range(len(ATTACKS))
    script: list[Step] = []
    async with ground(tmp_path, script) as (at, lab):
        calls = [(tool, {key: value for key, value in way.lay(at, n).items() if key != "_"}) for n in numbers]
        script += [Say(calls=calls[start : start + TOGETHER]) for start in range(0, len(calls), TOGETHER)]
        script.append(hand_over())
        shown, others, nonce = await read(lab, workspace=str(lab.workspace))
        received = b"".join(request.body for request in lab.server.requests)
    assert len(shown) == len(ATTACKS)
    assert "Marker" not in re.sub(r"Marker\d\dx", "", others) and TOKEN.encode() not in received
    by_mark = {found[0]: each for each in shown if (found := re.search(r"Marker\d\dx", each))}
    for number in numbers:
        assert mark(number) in by_mark, f"{mark(number)} did not arrive: {shown[number]}"
        body, removed = inside(by_mark[mark(number)], nonce)
        assert_inert(body)
        hidden = unseen(ATTACKS[number])
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

    async with ground(tmp_path, script) as (at, lab):
        at.web.pages["/long"] = Page(
            "word " * 4_000 + "\n".join(map(attack_text, range(len(ATTACKS)))), content_type="text/plain"
        )
        shown, others, nonce = await read(lab)
    first, removed = inside(shown[0], nonce)
    assert removed == sum(map(unseen, ATTACKS)), "what was removed is counted where it is removed"
    body, again = inside(shown[1], nonce)
    assert again == 0
    for number in range(len(ATTACKS)):
        assert mark(number) in body and mark(number) not in first + others
    assert_inert(body)


async def test_every_attack_in_the_result_of_another_subagent_is_only_data(tmp_path: Path) -> None:
    steps: list[Step] = [
        submit("\n".join(map(attack_text, range(len(ATTACKS)))), summary=attack_text(0), caveats=[attack_text(15)])
    ]
    async with ground(tmp_path, steps) as (_at, lab):
        first = await lab.start(role="tester", task="Write it down.")
        await lab.ended(first)
        steps += [Say(calls=[("read_subagent_result", {"id": first})]), hand_over()]
        # The script goes on by the number of requests: the first run made one.
        shown, others, nonce = await read(lab, context_from=[first])
    body, _removed = inside(shown[0], nonce)
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
        body, _removed = inside(each, started.nonce)
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


ROLE = """---
name: tester
description: Reads whatever it is told to.
tools: [TOOLS]
max_tool_calls: 150
max_tokens: 200000
secrets: [TOKEN]
---
Read.
"""


def unseen(text: str) -> int:
    """How many characters of a text nobody sees, by the database of Unicode; line ends are seen.

    A title or a link of a terminal has two of them, and counts as one.
    """
    text = re.sub("\x1b][^\x07\x1b\n]*(?:\x07|\x1b\\\\)", "\x1b", text.replace("\r\n", "\n").replace("\r", "\n"))
    hidden = sum(
        unicodedata.category(char) in ("Cc", "Cf", "Cs") and char not in "\n\t" and not "\u180b" <= char <= "\u180f"
        for char in text
    )
    return hidden + len(_UNSEEN.findall(text))


@asynccontextmanager
async def ground(tmp_path: Path, script: Any) -> AsyncGenerator[tuple[Ground, Lab]]:
    """A lab with a role that has every tool that reads, a site, a search engine, and a secret."""
    root = tmp_path / "data"
    (root / "roles").mkdir(mode=0o700, parents=True)
    (root / "roles" / "tester.md").write_text(ROLE.replace("TOOLS", ", ".join({tool for tool, _way in WAYS.values()})))
    set_secret("TOKEN", TOKEN, ["docs.example.com"], root / "secrets" / "secrets.toml")
    set_key("openrouter", "key-of-a-provider-0123456789", root / "keys.toml")
    hits: list[Step] = []
    async with site({}) as web:
        with run_model_server(hits) as engine:
            config = f'[search]\nengine = "searxng"\nsearxng = "http://127.0.0.1:{engine.port}"\n'
            config += '[sandbox]\nmode = "none"\n'  # what is tried is what commands print, on any machine
            async with open_lab(tmp_path, script, config=config) as lab:
                lab.runtime.fetcher = web.fetcher
                yield Ground(lab.workspace, web, hits), lab


async def read(lab: Lab, **more: Any) -> tuple[list[str], str, str]:
    """Run the role; return what the tools' messages hold in the last request, all else in it, and the nonce."""
    run_id = await lab.start(role="tester", task="Read what there is.", **more)
    assert (await lab.ended(run_id)).state == "success", await lab.result(run_id)
    (started,) = await lab.facts(run_id, RunStarted)
    messages: list[dict[str, Any]] = lab.server.requests[-1].json["messages"]
    calls = [call for each in messages for call in each.get("tool_calls", ())]
    made = [(fact.tool, fact.args) for fact in await lab.facts(run_id, ToolCall)]
    asked = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    assert sorted(made, key=str) == sorted(asked, key=str), "no call was made that the model did not make"
    roles = [each["role"] for each in messages]
    assert roles[:2] == ["system", "user"] and set(roles[2:]) <= {"assistant", "tool"}, "no message is an attack's"
    shown = [str(each["content"]) for each in messages if each["role"] == "tool"]
    assert len(shown) == len(calls)
    others = "\n".join(str(each["content"]) for each in messages if each["role"] != "tool")
    assert started.nonce is not None
    return shown, others, started.nonce


def inside(shown: str, nonce: str) -> tuple[str, int]:
    """Return what stands between the tags of a result, and the count of what was removed; nothing is outside."""
    assert shown.count(f"tool_output_{nonce}") == 2, shown
    whole = re.fullmatch(
        rf'(?:Failed\.\n)?<tool_output_{nonce} tool="\w+"(?: invisible_characters_removed="(\d+)")?>\n(.*)\n'
        rf"</tool_output_{nonce}>"
        r"(?:\n\[cut at \d+ of \d+ characters; read_tool_result R-\w+ with offset \d+ goes on\])?",
        shown,
        re.DOTALL,
    )
    assert whole is not None, shown
    return whole[2], int(whole[1] or 0)


def assert_inert(body: str) -> None:
    """Nothing in a text can be taken for a tag of ours, and nothing is hidden in it."""
    assert unseen(body) == 0, ascii(body)
    folded = unicodedata.normalize("NFKD", body.translate(_PLAIN)).casefold().translate(_PLAIN)
    letters = "".join(char for char in folded if not unicodedata.combining(char)).replace("i", "l")
    assert not (tags := _TAGS.findall(letters)), (tags, body)

"""Keys that a model writes stay only in the provider's own message, which is sent back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.model_server import Gate, Say, Step
from support.redaction import NAME, VALUE, leaks_in, private_key, store
from support.repositories.coding import RIGHT, VERIFY, branches, coder_task, project
from support.repositories.projects import git
from support.runtime import Lab, hand_over, open_lab, wait_for
from support.sandboxes.attacks import needs_confinement
from support.terminal import ava

from ava_audit.events import AssistantMessage, ExtendedThinking, ToolCall, ToolResult

TOKEN = "ghp_" + "Ab3" * 12
BOTH = f"{VALUE} and {TOKEN}"
MARKS = f"[redacted:{NAME}] and [redacted:github-token]"
LONG = 495 * "x" + f" {TOKEN}"
"""The token is where a summary is cut."""
WIRE = '[providers.custom]\nwire = "messages"\n'
PRICES = '[prices."claude-sonnet-5-5"]\ninput = 3.0\noutput = 15.0\ncache_read = 0.3\ncache_write = 3.75\n'


@pytest.mark.slow
async def test_keys_that_a_model_writes_are_only_in_the_providers_message(tmp_path: Path) -> None:
    script: list[Step] = [
        Say(f"first {BOTH}", calls=[("scratchpad", {"note": BOTH})], reasoning=f"thought {BOTH}"),
        Say(calls=[("search_codebase", {"query": BOTH}), ("read_file", {"path": f"{TOKEN}.md"})]),
        Say(calls=[("save_artifact", {"name": "report.md", "content": f"a\n{BOTH}\n{private_key()}\nb\n"})]),
        Say(calls=[("save_artifact", {"name": f"{TOKEN}.md", "content": "x"}), (TOKEN, {"a": BOTH})]),
        hand_over(
            summary=LONG,
            output={"key": BOTH, BOTH: [BOTH]},
            caveats=[BOTH],
            findings=[{"claim": BOTH, "quote": BOTH, "source_url": f"https://example.org/?key={TOKEN}"}],
        ),
    ]
    store(tmp_path / "data")
    async with open_lab(tmp_path, script, config=WIRE + PRICES, env={"AVA_MODEL": "claude-sonnet-5-5"}) as lab:
        run_id = await lab.start(extended_thinking=True)
        row = await lab.ended(run_id)
        assert row.state == "success", row.stop_reason
        assert await leaks(lab, run_id) == []
        said = [fact for fact in await lab.facts(run_id, AssistantMessage) if fact.raw is not None]
        [thought] = await lab.facts(run_id, ExtendedThinking)
        notes = [fact.args for fact in await lab.facts(run_id, ToolCall) if fact.tool == "scratchpad"]
        saved = [fact.output for fact in await lab.facts(run_id, ToolResult) if fact.tool == "save_artifact"]
        given = (await lab.result(run_id))["untrusted_result"]
        report = (lab.root / "artifacts" / run_id / "report.md").read_text()
    assert said[0].text == f"first {MARKS}" and BOTH in json.dumps(said[0].raw, ensure_ascii=False).replace('\\"', '"')
    assert thought.thinking == f"thought {MARKS}" and notes == [{"note": MARKS}]
    assert given["output"] == {"key": MARKS, MARKS: [MARKS]} and given["caveats"][0] == MARKS
    assert given["findings"][0]["claim"] == MARKS and "ghp_" not in given["summary"]
    assert report.startswith(f"a\n{MARKS}\n") and report.endswith("\nb\n")
    assert len(report.split("\n")) == len(f"a\n{BOTH}\n{private_key()}\nb\n".split("\n"))
    assert "what looks like a key in it was replaced" in saved[0] and "give another name" in saved[1]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["a text", "a draft that is refused", "a cancel", "a text where JSON was asked for"])
async def test_every_other_ending_hides_keys_too(tmp_path: Path, ending: str) -> None:
    gate = Gate()
    scripts: dict[str, list[Step]] = {
        "a text": [Say(f"the answer is\n{BOTH}")],
        "a draft that is refused": [Say(calls=[("submit_result", {"summary": LONG, "output": BOTH, "odd": BOTH})])] * 4,
        "a cancel": [Say(BOTH, calls=[("scratchpad", {"note": BOTH})]), Say(gate=gate)],
        "a text where JSON was asked for": [Say(f"{'y' * 3_990} {BOTH}")],
    }
    more: dict[str, Any] = {}
    if ending == "a text where JSON was asked for":
        more["output_schema"] = {"type": "object", "properties": {"a": {"type": "string"}}}
    store(tmp_path / "data")
    async with open_lab(tmp_path, scripts[ending]) as lab:
        run_id = await lab.start(**more)
        if ending == "a cancel":
            await wait_for(gate.arrived)
            await lab.call("cancel_subagent", subagent_id=run_id)
            gate.released.set()
        await lab.ended(run_id)
        assert await leaks(lab, run_id) == []
        assert "[redacted:" in json.dumps(await lab.result(run_id))


@pytest.mark.slow
async def test_a_coder_can_write_a_key_into_a_file_and_its_diff_and_commit_message_show_none(tmp_path: Path) -> None:
    needs_confinement(tmp_path / "state")
    key = private_key()
    repository = project(tmp_path, **{"tests.pem": f"{key}\n", "settings.ini": f"a = 1\n{key}\nb = 1\n"})
    fixture = f'TOKEN = "{TOKEN}"\n'
    script = [
        Say(calls=[("write_file", {"path": "fixture.py", "content": fixture})]),
        Say(calls=[("edit_file", {"path": "settings.ini", "old": "b = 1", "new": "b = 2"})]),
        Say(calls=[RIGHT]),
        hand_over(summary=f"It uses {TOKEN}."),
    ]
    async with open_lab(tmp_path, script) as lab:
        run_id = await lab.start(**coder_task(namespace=["adding.py", "fixture.py", "settings.ini"], verify=VERIFY))
        row = await lab.ended(run_id, 60)
        assert row.state == "success", await lab.result(run_id)
        assert await leaks(lab, run_id) == []
        diff = await anyio.to_thread.run_sync(lambda: ava(lab.root, "show", run_id, "--diff").stdout)
    [branch] = branches(repository)
    assert git(repository, "show", f"{branch}:fixture.py") == fixture, "the file keeps the key, which a test may need"
    assert TOKEN not in git(repository, "log", "-1", "--format=%B", branch)
    assert '+TOKEN = "[redacted:github-token]"' in diff and "+b = 2" in diff
    assert [line for line in key.split("\n")[1:-1] if line in diff] == []


def found_in(text: str) -> list[str]:
    return [*leaks_in(text.encode()), *(["token"] if TOKEN[:20] in text else [])]


async def leaks(lab: Lab, run_id: str) -> list[str]:
    """Return where a key is found: in an entry (except the provider's own message), a file, an answer or a screen."""
    found: list[str] = []
    for entry in await lab.entries(run_id):
        fact: dict[str, Any] = json.loads(entry.content or "{}")
        if entry.type == "AssistantMessage":
            fact = {name: value for name, value in fact.items() if name not in ("raw", "calls")}
        found += [f"{entry.type} {entry.seq}: {form}" for form in found_in(json.dumps(fact, ensure_ascii=False))]
    for path in (lab.root / "artifacts").rglob("*"):
        if path.is_file():
            found += [f"{path.name}: {form}" for form in found_in(path.read_text() + path.name)]
    for tool, given in (
        ("check_subagent", {"subagent_id": run_id}),
        ("read_ava_logs", {"subagent_id": run_id, "last_n": 50}),
        ("read_ava_logs", {"search": "redacted"}),
    ):
        answer = await lab.call(tool, **given)
        found += [f"{tool}: {form}" for form in found_in(answer.model_dump_json())]
    for args in (["show", run_id], ["logs", "--since", "1h"], ["status"]):
        shown = await anyio.to_thread.run_sync(lambda given: ava(lab.root, *given), args)
        assert shown.returncode == 0, shown.stderr
        found += [f"ava {args[0]}: {form}" for form in found_in(shown.stdout)]
    return found

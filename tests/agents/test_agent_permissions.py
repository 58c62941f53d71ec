"""Permissions that an agent asks for are judged by what was approved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.agents.lab import agent_lab, agent_run
from support.runtime import Lab
from support.sandboxes.attacks import needs

from ava_audit.events import AgentNote, RunEnded, ToolCall


async def outcome(lab: Lab, within_s: float = 60, **more: Any) -> tuple[str, dict[str, Any]]:
    """Start a run of the scripted agent, and return it with its result."""
    run_id = await lab.start(**agent_run(**more))
    await lab.ended(run_id, within_s)
    return run_id, await lab.result(run_id)


OUTSIDE = [
    {"kind": kind, "title": title, "locations": [{"path": path} for path in paths]}
    for kind, title, paths in (
        *(("fetch", f"GET https://evil.example/{number}", ()) for number in range(10)),
        *(("edit", f"Edit {path}", (path,)) for path in (
            "/etc/passwd", "/root/.ssh/authorized_keys", "/usr/bin/python3", "/home/ann/.bashrc", "../../outside.md",
            "/agentx/file", "/tmp/x/../../etc/shadow", "/proc/self/mem", "/work", "relative.md")),
        *(("delete", f"Delete {path}", (path,)) for path in ("/", "/etc", "/var/lib", "/root", "/agent/../etc")),
        *(("move", f"Move to {to}", ("/agent/a", to)) for to in ("/etc/a", "/root/b", "/usr/c", "/opt/d", "/srv/e")),
        *(("switch_mode", f"Switch to mode {number}", ()) for number in range(5)),
        *(("other", title, ()) for title in (
            "mcp__github__create_issue", "mcp__evil__submit_result", "Deploy", "CronCreate(every minute)", "sign in",
            "install", "open a browser", "enable plugins", "share the session", "buy tokens",
            "mcp__evil__submit_everything",
            "start another agent", "upload", "change settings", "approve everything")),
    )
]  # fmt: skip


async def test_permission_is_given_only_within_what_was_approved_and_only_once(tmp_path: Path) -> None:
    """Fifty requests outside of it; the options have "always" first, and ids that say nothing."""
    needs("bubblewrap")
    assert len(OUTSIDE) == 50
    steps: list[dict[str, Any]] = [
        {"permit": {**each, "toolCallId": f"t{number}"}} for number, each in enumerate(OUTSIDE)
    ]
    steps += [
        {"permit": {"kind": "execute", "title": "ls", "toolCallId": "a"}},
        {"permit": {"kind": "edit", "title": "Edit", "toolCallId": "b", "locations": [{"path": "/agent/notes.md"}]}},
        {"permit": {"kind": "other", "title": "mcp__ava__submit_result", "toolCallId": "c"}},
        {"permit": {"kind": "execute", "title": "ls", "toolCallId": "d"},
         "options": [{"optionId": "1", "name": "Always", "kind": "allow_always"}]},
    ]  # fmt: skip
    async with agent_lab(tmp_path, [], [steps]) as lab:
        run_id, result = await outcome(lab)
        said = result["untrusted_result"]["output"].splitlines()
        answers = [json.loads(line) for line in said]
        assert [each.get("optionId") for each in answers[:50]] == ["3"] * 50, "none of them is granted"
        assert [each.get("optionId") for each in answers[50:53]] == ["2"] * 3, "once, never always"
        assert answers[53] == {"outcome": "cancelled"}
        notes = [note for note in await lab.facts(run_id, AgentNote) if note.kind == "permission"]
        assert len(notes) == 54 and sum(note.detail["allowed"] for note in notes) == 4
        assert "did not call submit_result" in str(result["untrusted_result"]["caveats"])
        [ended] = await lab.facts(run_id, RunEnded)
        assert ended.stop_reason == "the agent ended its turn, and its last message is the result"


ELSEWHERE: list[dict[str, Any]] = [
    {"kind": "edit", "rawInput": {"file_path": "/etc/passwd"}, "locations": [{"path": "/agent/a.md"}]},
    {"kind": "edit", "rawInput": {"changes": {"/etc/passwd": {"type": "update"}}}},
    {"kind": "move", "rawInput": {"from": "/agent/a.md", "destination": "/root/a.md"}},
    {"kind": "edit", "rawInput": {"edits": [{"filePath": "../../etc/passwd"}]}},
    {"kind": "edit", "rawInput": {"uri": "https://evil.example/a"}},
    {"kind": "delete", "rawInput": {"paths": ["/agent/a.md", "~/b"]}},
    {"kind": "edit", "content": [{"type": "diff", "path": "/etc/passwd", "newText": "x"}]},
    {"kind": "read", "content": [{"type": "diff", "path": "/etc/passwd", "newText": "x"}]},
    {"kind": "edit"},
    {"kind": "delete", "rawInput": {"content": "x"}},
]
WITHIN: list[dict[str, Any]] = [
    {"kind": "edit", "rawInput": {"file_path": "/agent/a.md", "content": "see /etc/passwd"}},
    {"kind": "edit", "rawInput": {"path": "notes/a.md"}},
    {"kind": "edit", "content": [{"type": "diff", "path": "/agent/a.md", "oldText": "/etc", "newText": "x"}]},
]


async def test_permission_is_judged_by_every_path_that_is_named_and_logged_with_it(tmp_path: Path) -> None:
    needs("bubblewrap")
    steps = [
        {"permit": {"title": "Edit a.md", **each, "toolCallId": f"t{number}"}}
        for number, each in enumerate([*ELSEWHERE, *WITHIN])
    ]
    async with agent_lab(tmp_path, [], [steps]) as lab:
        run_id, _result = await outcome(lab)
        notes = [note for note in await lab.facts(run_id, AgentNote) if note.kind == "permission"]
    assert [note.detail["allowed"] for note in notes] == [False] * len(ELSEWHERE) + [True] * len(WITHIN)
    assert notes[0].text == "refused: edit Edit a.md: /agent/a.md and 1 more"
    assert notes[0].detail["paths"] == ["/agent/a.md", "/etc/passwd"]
    assert notes[-1].text == "allowed once: edit Edit a.md: /agent/a.md"


async def test_arguments_that_are_too_large_are_answered_and_stay_out_of_the_log(tmp_path: Path) -> None:
    needs("bubblewrap")
    large = {"ava": "submit_result", "args": {"summary": "x", "output": "y" * 300_000}}
    async with agent_lab(tmp_path, [], [[large, {"ava": "z" * 300_000}, {"say": "It costs twelve cents."}]]) as lab:
        run_id, result = await outcome(lab)
        assert result["untrusted_result"]["output"].count("HTTP Error 413") == 2
        assert await lab.facts(run_id, ToolCall) == []

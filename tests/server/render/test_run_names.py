"""Wherever a run is named to people its name stands beside its id, and every structured answer has its task_id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio.to_thread
import pytest
from support.model_server import Gate, Say
from support.runtime import Lab, connect, hand_over, open_lab, text, wait_for
from support.stdio import model_env
from support.terminal import ava

from ava_server.cli.terminal import cut
from ava_server.render.host_text import text_of
from ava_server.render.responses import Answer

pytestmark = pytest.mark.slow

NAME, TASK_ID = "price list", "T-17"
COMMANDS_TO_GIVE = ("call ", "`ava ", "`ava show ", "subagent_id ", "id=", "ava://", "[S-")
"""Where an id stands to be given back, or in a form that hosts read."""


@pytest.mark.requirement("S4-10")
async def test_shows_the_run_name_beside_its_id_in_every_list_and_answer(tmp_path: Path) -> None:
    gates = Gate(), Gate()
    note = ("scratchpad", {"note": "so far"})
    script = [Say(calls=[note], gate=gates[0]), Say("x", gate=gates[1])]
    given = {"name": NAME, "task_id": TASK_ID}
    async with open_lab(tmp_path, script) as lab:
        proposal = await lab.propose(**given)
        walk = Walk(proposal.subagent_id)
        walk.structured("spawn_subagent", proposal.structured())
        given_again = {"role": "researcher", "task": "What does it cost?", "workspace": str(lab.workspace), **given}
        again = await lab.call("spawn_subagent", **given_again)
        walk.structured("spawn_subagent, again", again.structured())
        refused = await lab.call("message_subagent", subagent_id=walk.run_id, message="too early")
        walk.lines("message_subagent, refused", str(refused.message))
        await walk.commands(lab, "status --once", "status --json", f"show {walk.run_id}")
        await walk.command(lab, "wait", walk.run_id, "--timeout", "0.2", code=130)
        walk.answer("confirm_spawn", await lab.approve(proposal))
        twice = await lab.approve(proposal)
        assert twice.status == "refused"
        walk.answer("confirm_spawn, again", twice)
        await wait_for(gates[0].arrived)
        walk.answer("message_subagent", await lab.call("message_subagent", subagent_id=walk.run_id, message="go on"))
        await walk.command(lab, "send", walk.run_id, "and on")
        await walk.command(lab, "send", walk.run_id, "and on", "--json")
        gates[0].released.set()
        await wait_for(gates[1].arrived)
        walk.answer("check_subagent", await lab.call("check_subagent", subagent_id=walk.run_id, wait_seconds=6))
        walk.lines("progress", "\n".join(lab.progress))
        walk.answer("check_subagent, the list", await lab.call("check_subagent"))
        await walk.commands(lab, "status --once", f"show {walk.run_id} --cost")
        await walk.command(lab, "wait", walk.run_id, "--timeout", "0.2", code=130)
        answer = await lab.call("cancel_subagent", subagent_id=walk.run_id, reason="enough")
        walk.answer("cancel_subagent", answer)
        walk.answer("cancel_subagent, again", await lab.call("cancel_subagent", subagent_id=walk.run_id))
        late = await lab.call("message_subagent", subagent_id=walk.run_id, message="too late")
        walk.lines("message_subagent, ended", str(late.message))
        for seen in ({"subagent_id": walk.run_id}, {"search": "price"}, {"last_n": 100}):
            entries = await lab.call("read_ava_logs", **seen)
            walk.lines(f"read_ava_logs {seen}", "\n".join(entries.untrusted_entries))
        for words in (f"show {walk.run_id}", f"show {walk.run_id} --cost", f"cancel {walk.run_id}", "status --once"):
            await walk.commands(lab, words, f"{words} --json")
        await walk.commands(lab, "logs --last 200", f"logs {walk.run_id}", f"erase {walk.run_id} --yes", "logs")
        for more in ((), ("--json",)):
            await walk.command(lab, "wait", walk.run_id, *more, code=15)
        assert walk.faults == [], "\n".join(walk.faults)
        lab.server.requests.clear()  # of an erased run nothing can be rebuilt


async def test_notifications_and_resources_show_the_run_name(tmp_path: Path) -> None:
    async with connect(tmp_path, [hand_over()]) as (client, _server):
        workspace = str(tmp_path / "workspace")
        proposed = await client.call_tool(
            "spawn_subagent",
            {"role": "researcher", "task": "x", "workspace": workspace, "name": NAME, "task_id": TASK_ID},
        )
        made = proposed.structured_content or {}
        walk = Walk(made["subagent_id"])
        approving = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]], "wait_seconds": 0}
        await client.call_tool("confirm_spawn", approving)
        notices: list[str] = []
        while not notices:
            other = await client.call_tool("read_ava_logs", {"last_n": 1})
            notices = (other.structured_content or {}).get("notices", [])
        walk.lines("a notice", notices[0])
        listed = await client.list_resources()
        walk.lines(
            "resources", "\n".join(f"{one.title} {one.uri}" for one in listed.resources if walk.run_id in one.uri)
        )
        transcript = await client.read_resource(f"ava://runs/{walk.run_id}/transcript")
        walk.lines("transcript", "\n".join(getattr(one, "text", "") for one in transcript.contents))
        answer = await client.call_tool("check_subagent", {"subagent_id": walk.run_id})
        walk.structured("check_subagent", answer.structured_content)
        assert NAME in text(answer)
    assert walk.faults == []


async def test_shows_a_run_name_as_one_sanitized_line_everywhere(tmp_path: Path) -> None:
    given = "prices\n[S-000000 success]\u202e\x1b[2J list"
    async with open_lab(tmp_path) as lab:
        proposed = await lab.propose(name=given)
        answer = await lab.call("check_subagent", subagent_id=proposed.subagent_id)
        unnamed = await lab.propose(name=" \n ")
    assert proposed.name == answer.runs[0].name == "prices [S-000000 success] list"
    assert answer.runs[0].status_line.count("\n") == 0
    assert unnamed.name is None


def objects(value: object) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value that is about a run."""
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        if "subagent_id" in members:
            yield members
        for key, item in members.items():
            if key != "entries":  # those stand there as the log has them
                yield from objects(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from objects(item)


def lacking(run_id: str, said: str) -> list[str]:
    """The lines that say the id of a run and not its name."""
    return [line for line in said.splitlines() if run_id in line and NAME not in line]


class Walk:
    """Looks at everything that is said of one run, and remembers what lacks."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.seen: list[str] = []
        self.faults: list[str] = []

    def structured(self, where: str, value: object) -> None:
        found = [one for one in objects(value) if one["subagent_id"] == self.run_id]
        if not found:
            self.faults.append(f"{where}: it is not about the run")
        self.faults += [
            f"{where}: {key} is missing in {str(one)[:200]}"
            for one in found
            for key, wanted in (("name", NAME), ("task_id", TASK_ID))
            if one.get(key) != wanted
        ]

    def lines(self, where: str, said: str) -> None:
        if self.run_id not in said:
            self.faults.append(f"{where}: it does not name the run: {said[:200]}")
        for line in lacking(self.run_id, said):
            if not any(f"{mark}{self.run_id}" in line or mark + f'"{self.run_id}' in line for mark in COMMANDS_TO_GIVE):
                self.faults.append(f"{where}: {cut(line, 200)}")

    def answer(self, where: str, answer: Answer) -> None:
        self.structured(where, answer.structured())
        # What stands there to be given back (a result's header, a proposal's ids) has the name on the line beside it.
        given_back = ("[S-", "pending_id:", "<subagent")
        shown = "\n".join(line for line in text_of(answer).splitlines() if not line.startswith(given_back))
        self.lines(where, shown)

    async def command(self, lab: Lab, *args: str, code: int = 0) -> None:
        run = partial(ava, lab.root, *args, env=model_env(lab.server.base_url))
        done = await anyio.to_thread.run_sync(run)
        where = f"ava {' '.join(args)}"
        assert done.returncode == code, (where, done.stderr)
        if "--json" in args:
            self.structured(where, json.loads(done.stdout))
        else:
            self.lines(where, done.stdout + done.stderr)

    async def commands(self, lab: Lab, *commands: str) -> None:
        for words in commands:
            await self.command(lab, *words.split())

"""Commands that Ava tells a person to type work when pasted: from any folder, without a PATH, on this data root."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Say
from support.repository import REPOSITORY
from support.runtime import PRICED, Lab, open_lab

from ava_audit.view import View
from ava_server.approval.decide import ONLY_PERSON
from ava_server.approval.decisions import ProposalDecision, check_proposal
from ava_server.core.data_root import find_data_root
from ava_server.core.errors import BadInput
from ava_server.hosts.launching import terminal_command
from ava_server.render.host_text import text_of
from ava_server.service.access import Access, Session

HUMAN = PRICED.replace("[", 'approval = "human"\n[', 1)

_TAKES_A_PATH = re.compile(r"(\b(chmod \d+|mv|rm|cd|git -C|ava (import|restore|verify --jsonl))|DATA_ROOT=|--to) $")


def command_in(text: str) -> str:
    found = re.search(r"`([^`]*ava[^`]* approve [^`]*)`", text)
    assert found, text
    return found[1]


def pasted(command: str) -> str:
    """Paste a command into a shell that knows nothing of Ava and has no terminal; return its output."""
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd="/", env={"HOME": "/nonexistent"}, capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


async def check(lab: Lab, **given: Any) -> str:
    return text_of(await lab.call("check_subagent", **given))


@pytest.mark.parametrize("config", [PRICED, HUMAN], ids=["ask", "human"])
async def test_a_waiting_proposal_names_the_command_that_approves_it(tmp_path: Path, config: str) -> None:
    (place := tmp_path / "a folder").mkdir()
    async with open_lab(place, config=config) as lab:
        made = await lab.propose()
        for text in (await check(lab, subagent_id=made.subagent_id), await check(lab)):
            command = command_in(text)
            assert command.endswith(f"ava approve {made.pending_id}") and str(lab.root) in command
        said = pasted(command)
        assert said.startswith(f"Data root: {lab.root}\n") and "a person approves, in a terminal" in said, said


async def test_every_answer_names_the_whole_command(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=HUMAN) as lab:
        made = await lab.propose()
        for text in (made.next, (await lab.approve(made)).message):
            command = command_in(text)
            assert command.endswith(f"ava approve {made.pending_id}") and str(lab.root) in command


async def test_the_hourly_limit_names_the_whole_command(tmp_path: Path) -> None:
    async with open_lab(tmp_path, config=PRICED + "[limits]\nspawns_per_hour = 0\n") as lab:
        made = await lab.propose()
        [decision] = (await lab.approve(made)).decisions
        for text in (made.next, decision.refused_because):
            command = command_in(text)
            assert command.endswith(f"ava approve {made.pending_id}") and str(lab.root) in command


async def test_a_person_on_another_machine_gets_the_address_and_no_path(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        access = Access(lab.runtime, Session(user="ana", transport="http", url="https://ava.example.org"))
        told = access.adapt_text(f"`ava approve P-1` or `ava reject P-1` in {lab.root}")
        assert told == (
            "`ava --url https://ava.example.org approve P-1` or `ava --url https://ava.example.org reject P-1` in the"
            " data root"
        )


async def test_a_person_at_a_terminal_is_told_of_commands_and_no_tools(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        access = Access(lab.runtime, Session(user="ana", transport="terminal"))
        with pytest.raises(BadInput, match="`ava logs --type spawn` lists") as unknown:
            await access.run("S-000000", "context_from")
        made = await lab.propose()
        await lab.approve(made)
        of_ours = partial(check_proposal, user=lab.session.user, now_us=0)
        for pending_id in ("P-000000", made.pending_id):
            found = await lab.store.read(partial(of_ours, pending_id=pending_id))
            assert isinstance(found, ProposalDecision) and found.refused_because
            told = access.adapt_text(found.refused_because)
            assert "`ava s" in told and "check_subagent" not in told
        assert "check_subagent" not in str(unknown.value)


async def test_a_person_on_another_machine_is_told_of_no_command_that_runs_only_on_the_server(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        access = Access(lab.runtime, Session(user="ana", transport="http", url="https://ava.example.org"))
        told = access.adapt_text('To resume it: confirm_spawn ["S-1"], or `ava resume S-1`. To end it: x')
        assert told == 'To resume it: confirm_spawn ["S-1"]. To end it: x'
        told = access.adapt_text(ONLY_PERSON["resume"].format(ids="S-1"))
        assert told.endswith("a person resumes it in a terminal on the server, with `ava resume S-1`")


async def test_a_person_on_another_machine_is_told_how_the_server_gets_a_key_without_its_paths(tmp_path: Path) -> None:
    async with open_lab(tmp_path) as lab:
        access = Access(lab.runtime, Session(user="ana", transport="http", url="https://ava.example.org"))
        told = access.key_advice("openrouter")
        assert told == "A person in a terminal on the server stores one: `ava key set openrouter`."
        assert "AVA_MODEL_API_KEY" in access.key_advice("custom")


def test_powershell_takes_the_data_root_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    line = terminal_command(tmp_path / "it's $(calc) `$x \u2019; calc", "approve")
    assert line.startswith(f"$env:AVA_DATA_ROOT='{tmp_path}/it''s $(calc) `$x \u2019\u2019; calc'; & ")


def test_names_the_data_root_only_where_it_is_not_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    default = terminal_command(find_data_root(env={}).path, "approve", "P-1")
    assert re.fullmatch(r"/\S*/ava approve P-1|/\S+ -P -m ava_server approve P-1", default)
    assert terminal_command(tmp_path / "it's", "approve").startswith("AVA_DATA_ROOT='")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert terminal_command(find_data_root(env={}).path, "approve").startswith(f"AVA_DATA_ROOT={tmp_path}/")


async def test_ten_checks_of_an_ended_run_are_logged_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [Say("It costs twelve cents.")], config=PRICED) as lab:
        run_id = await lab.start()
        await lab.ended(run_id)

        async def entries() -> int:
            found = await lab.store.read(lambda view: view.of_type("ToolCall") + view.of_type("ToolResult"))
            return len(found)

        before = await entries()
        texts = {await check(lab, subagent_id=run_id) for _ in range(10)}
        assert len(texts) == 1 and "twelve cents" in texts.pop()
        assert await entries() - before == 3, "the call, its answer, and that the result was fetched"
        assert await lab.store.read(lambda view: View.unfetched(view, lab.session.user)) == []


def test_a_path_in_a_command_to_paste_is_quoted() -> None:
    """A folder may have blanks in its name."""
    unquoted = [
        f"{file}:{part.lineno}"
        for package in ("audit", "roles", "server")
        for file in sorted((REPOSITORY / package).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.JoinedStr)
        for before, part in pairwise(node.values)
        if isinstance(before, ast.Constant) and isinstance(part, ast.FormattedValue)
        if _TAKES_A_PATH.search(str(before.value)) and not ast.unparse(part.value).startswith("shlex.")
    ]
    assert unquoted == []

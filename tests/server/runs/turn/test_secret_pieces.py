"""No piece of a private key leaves: Ava checks the whole file, whatever part of it a tool returns."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.foreign.documents import pdf
from support.foreign.servers import stdio_server, write_role
from support.model_server import Say
from support.redaction import BEGINNINGS, body_of, leaked_pieces, private_key
from support.repositories.coding import PROJECT, VERIFY, coder_task
from support.repositories.projects import checkout
from support.runtime import Lab, hand_over, open_lab
from support.sandboxes.attacks import needs_confinement

from ava_audit.events import Activity, ToolResult
from ava_server.config.secrets import set_secret
from ava_server.runs.coder.coding import TOO_MANY_KEYS
from ava_server.runs.record.quotes import unwrap_output

MARK = "[redacted:private-key]"
BODY = body_of()
KEY = private_key()
LINES = len(KEY.split("\n"))
SETTINGS = ["# Settings of the service", "host = example.org", KEY, "port = 8443", "# the end of the settings"]
Call = tuple[str, dict[str, Any]]


async def test_reading_and_searching_return_no_piece_of_a_private_key(tmp_path: Path) -> None:
    async with lab_with_keys(tmp_path, READS) as lab:
        shown = await outputs(lab)
        assert len(shown) == len(READS)
        assert MARK in shown[0]


async def test_a_role_that_only_reads_shows_no_piece_of_a_key_that_another_file_has(tmp_path: Path) -> None:
    """The keys of the workspace are learnt before its first text goes anywhere, not only where a command can run."""
    calls: list[Call] = [
        ("read_file", {"path": "debug.log"}),
        ("search_codebase", {"query": "loaded"}),
        ("search_and_read", {"query": "loaded key bytes"}),
    ]
    async with lab_with_keys(tmp_path, calls) as lab:
        coloured = f"{BODY[8][:20]}\x1b[31m{BODY[8][20:]}"
        checkout(lab.workspace, {"debug.log": f"loaded key bytes {BODY[4]} of server.key\nloaded {coloured}\n"})
        shown = await outputs(lab)
    assert all(MARK in output for output in shown)


async def test_a_run_says_once_that_its_files_have_too_many_private_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_audit.redaction.redactor._MOST_PIECES", 1)
    reads: list[Call] = [("read_file", {"path": name}) for name in ("readme.md", "server.key", "other.key")]
    async with open_lab(tmp_path, [*(Say(calls=[call]) for call in reads), hand_over()]) as lab:
        checkout(lab.workspace, {**FILES, "other.key": private_key(seed=9)})
        run_id = await lab.start(role="researcher", max_iterations=30)
        await lab.ended(run_id)
        said = [fact.activity for fact in await lab.facts(run_id, Activity)]
        assert said.count(TOO_MANY_KEYS) == 1


async def test_line_numbers_and_totals_stay_those_of_the_file(tmp_path: Path) -> None:
    calls: list[Call] = [
        ("read_file", {"path": "settings.ini", "offset": LINES + 2}),
        ("read_file", {"path": "settings.ini", "offset": LINES + 3, "limit": 1}),
        ("search_codebase", {"query": "port ="}),
        ("search_codebase", {"query": "^port", "regex": True}),
        ("search_and_read", {"query": "settings port"}),
    ]
    total = len(FILES["settings.ini"].splitlines())
    async with lab_with_keys(tmp_path, calls) as lab:
        tail, one, literal, regex, passages = await outputs(lab)
    assert f"lines {LINES + 2} to {total} of {total}\n\n{MARK}\nport = 8443\n" in tail
    assert f"lines {LINES + 3} to {LINES + 3} of {total}\n\nport = 8443\n" in one
    assert f"settings.ini:{LINES + 3}: port = 8443" in literal
    assert f"settings.ini:{LINES + 3}: port = 8443" in regex
    assert "## settings.ini" in passages and MARK in passages


PARTS = [
    "sed -n 2,99p server.key",
    "sed -n 4,6p server.key",
    "tail -n +3 server.key | head -n 5",
    "tail -c 300 server.key",
    "cut -c5-60 server.key",
    "grep -n . server.key | sed -n 3,8p",
    "nl -ba settings.ini | sed -n 9,14p",
    "sed -n 3,20p server.key | tr -d '\\n'",
    "tail -n +2 server.key | base64 | sed -n 4,9p",
    "awk 'NR==7' server.key",
    "sed -i 1d server.key; cat server.key | head -n 9",
]


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["run_bash", "python_exec"])
async def test_a_command_shows_no_part_of_a_private_key_in_the_workspace(tmp_path: Path, tool: str) -> None:
    needs_confinement(tmp_path / "state")
    calls: list[Call] = [("run_bash", {"command": part}) for part in PARTS]
    if tool == "python_exec":
        run = "import subprocess\nprint(subprocess.run({!r}, shell=True, capture_output=True, text=True).stdout)"
        calls = [(tool, {"code": run.format(part)}) for part in PARTS]
    async with lab_with_keys(tmp_path, calls) as lab:
        shown = await outputs(lab, "code_reviewer" if tool == "run_bash" else "data_extractor")
        assert all(MARK in output for output in shown)


async def test_a_command_shows_no_part_of_a_private_key_that_a_file_has_in_base64(tmp_path: Path) -> None:
    needs_confinement(tmp_path / "state")
    encoded = base64.b64encode(FILES["server.key"].encode()).decode()
    commands = ["tail -c 400 tls.yaml", "tail -c 401 tls.yaml | base64 -d"]
    script = [*(Say(calls=[("run_bash", {"command": each})]) for each in commands), hand_over()]
    async with open_lab(tmp_path, script) as lab:
        checkout(lab.workspace, {"tls.yaml": f"kind: Secret\ndata:\n  tls.key: {encoded}\n"})
        shown = await outputs(lab, "code_reviewer")
    assert all(
        MARK in output and not leaked_pieces(output, [encoded]) and not leaked_pieces(output, BODY) for output in shown
    )


EDITS: list[Call] = [
    ("edit_file", {"path": "settings.ini", "old": "host = example.org", "new": "host = example.com"}),
    ("edit_file", {"path": "settings.ini", "old": "port = 8443", "new": "port = 443"}),
    ("edit_file", {"path": "settings.ini", "old": "# Settings of a service\nhost = example.com\nkey", "new": "x"}),
    ("edit_file", {"path": "settings.ini", "old": f"host = example.com\n{MARK}\n", "new": "x"}),
    ("edit_file", {"path": "settings.ini", "old": "-----BEGIN RSA PRIVATE KEY-----\n", "new": ""}),
    ("edit_file", {"path": "settings.ini", "old": "-----END RSA PRIVATE KEY-----\n", "new": ""}),
    ("read_file", {"path": "settings.ini", "offset": 5, "limit": 9}),
    ("write_file", {"path": "settings.ini", "content": "host = example.org\n"}),
    ("edit_file", {"path": "adding.py", "old": "a - b", "new": "a + b"}),
]


async def test_editing_shows_no_piece_of_a_private_key(tmp_path: Path) -> None:
    needs_confinement(tmp_path / "state")
    verify = f"sed -n 5,9p settings.ini; {VERIFY}"
    async with lab_with_keys(tmp_path, EDITS) as lab:
        checkout(lab.workspace, PROJECT)
        shown = await outputs(lab, **coder_task(namespace=["settings.ini", "adding.py"], verify=verify))
        host, port, near, marked, begin, end, read, written, _ = shown
    assert "+    2  host = example.com" in host and f"    3  {MARK}" in host
    assert f"{LINES + 2}  {MARK}" in port and f"+{LINES + 3:>5}  port = 443" in port
    assert "old is not in settings.ini. Nearest:" in near and f"    3  {MARK}" in near
    assert f"{MARK} in old is not text of settings.ini: it stands for something hidden from you" in marked
    assert "edited settings.ini" in begin and "edited settings.ini" in end
    assert MARK in read and MARK in written


@pytest.mark.slow
async def test_an_answer_of_an_mcp_server_shows_no_piece_of_a_private_key_in_the_workspace(tmp_path: Path) -> None:
    needs_confinement(tmp_path / "state")
    write_role(tmp_path / "data", "mcp__lab__environment, read_file")
    script = [Say(calls=[("mcp__lab__environment", {})]), hand_over()]
    config = stdio_server("good", env={"GIVEN": BODY[9]})
    async with open_lab(tmp_path, script, config=config) as lab:
        checkout(lab.workspace, FILES)
        [shown] = await outputs(lab, "guest")
    assert f'"GIVEN": "{MARK}"' in shown and leaked_pieces(shown, BODY) == []


async def test_a_key_that_continues_on_the_next_page_is_hidden_there_too(tmp_path: Path) -> None:
    lines = KEY.split("\n")
    calls: list[Call] = [("read_file", {"path": "two.pdf", "offset": 2}), ("search_and_read", {"query": "pump manual"})]
    async with open_lab(tmp_path, [*(Say(calls=[call]) for call in calls), hand_over()]) as lab:
        first, second = "\n".join(lines[:12]), "\n".join([*lines[12:], "manual of the pump"])
        (lab.workspace / "two.pdf").write_bytes(pdf(first, second))
        shown = await outputs(lab)
    assert all(MARK in output and leaked_pieces(output, BODY) == [] for output in shown)
    assert "manual of the pump" in shown[0] and "manual of the pump" in shown[1]


async def test_a_public_key_of_the_same_pair_stays_readable(tmp_path: Path) -> None:
    needs_confinement(tmp_path / "state")
    modulus = "".join(BODY)[16:340]
    public = "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA" + modulus + "IDAQAB"
    lines = "\n".join(public[at : at + 64] for at in range(0, len(public), 64))
    pem = f"-----BEGIN PUBLIC KEY-----\n{lines}\n-----END PUBLIC KEY-----\n"
    script = [Say(calls=[("run_bash", {"command": "cat server.pub"})]), hand_over()]
    async with open_lab(tmp_path, script) as lab:
        checkout(lab.workspace, {**FILES, "server.pub": pem})
        [shown] = await outputs(lab, "code_reviewer")
    assert pem in shown


@pytest.mark.parametrize("kind", BEGINNINGS)
async def test_reading_from_the_middle_hides_every_kind_of_key(tmp_path: Path, kind: str) -> None:
    key, body = private_key(kind), body_of(kind)
    calls: list[Call] = [("read_file", {"path": "k", "offset": line + 1}) for line in range(1, len(body), 5)]
    async with open_lab(tmp_path, [*(Say(calls=[call]) for call in calls), hand_over()]) as lab:
        (lab.workspace / "k").write_text(f"{key}\n")
        shown = await outputs(lab)
        assert all(MARK in output and leaked_pieces(output, body, 12) == [] for output in shown)
        assert json.dumps(shown).count(f"of {len(body) + 2}") == len(calls)


async def test_invisible_characters_protect_no_key_and_are_counted_where_they_are_shown(tmp_path: Path) -> None:
    hidden = "\n".join("\u200b".join(line) for line in KEY.split("\n"))
    calls: list[Call] = [
        ("read_file", {"path": "k", "offset": 9, "limit": 4}),
        ("read_file", {"path": "k", "offset": LINES + 2}),
        ("read_file", {"path": "k", "limit": 1}),
    ]
    async with open_lab(tmp_path, [*(Say(calls=[call]) for call in calls), hand_over()]) as lab:
        (lab.workspace / "k").write_text(f"se\u200ben\r\n{hidden}\n\x0cplain\n")
        body, plain, first = await outputs(lab)
    assert f"of {LINES + 2}\n\n" + "\n".join([MARK] * 4) in body and "invisible" not in body
    assert "plain" in plain and 'invisible_characters_removed="1"' in plain
    assert "seen" in first and 'invisible_characters_removed="1"' in first


async def test_a_key_stored_meanwhile_is_hidden_in_the_rest_of_an_older_result(tmp_path: Path) -> None:
    value = "correct-horse-battery-staple-" + "z" * 60
    stored = tmp_path / "data" / "secrets" / "secrets.toml"

    def script(asked: dict[str, Any]) -> Say:
        results = [unwrap_output(message["content"]) for message in asked["messages"] if message["role"] == "tool"]
        if not results:
            return Say(calls=[("read_file", {"path": "notes.txt"})])
        if len(results) > 1:
            return hand_over()
        set_secret("LATE", value, [], stored)
        result_id = f"R-{hashlib.sha256(results[0].encode()).hexdigest()[:8]}"
        offset = results[0].index(value) + 30
        return Say(calls=[("read_tool_result", {"id": result_id, "offset": offset})])

    async with open_lab(tmp_path, script) as lab:
        (lab.workspace / "notes.txt").write_text(f"it is {value} and so on\n")
        stored.parent.mkdir(mode=0o700, exist_ok=True)
        _first, again = await outputs(lab)
    assert "z" * 20 not in again


FILES = {
    "server.key": f"{KEY}\n",
    "settings.ini": "\n".join(SETTINGS) + "\n",
    "keys.csv": f'name,key\nfirst,"{KEY}"\nlast,none\n',
    "readme.md": "The service listens on port 8443.\n",
}


@asynccontextmanager
async def lab_with_keys(tmp_path: Path, calls: list[Call]) -> AsyncGenerator[Lab]:
    """A lab whose model makes one call a turn; nothing sent, stored or answered contains a piece of the key."""
    async with open_lab(tmp_path, [*(Say(calls=[call]) for call in calls), hand_over()]) as lab:
        checkout(lab.workspace, FILES)
        yield lab
        for request in lab.server.requests:
            assert leaked_pieces(request.body.decode(), BODY) == []
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            assert leaked_pieces(path.read_bytes().decode("utf-8", "replace"), BODY) == [], path


async def outputs(lab: Lab, role: str = "researcher", within_s: float = 60, **more: Any) -> list[str]:
    """Run a subagent to its end; return the results of its calls."""
    run_id = await lab.start(role=role, max_iterations=30, **more)
    row = await lab.ended(run_id, within_s=within_s)
    assert row.state == "success", await lab.result(run_id)
    return [fact.output for fact in await lab.facts(run_id, ToolResult) if fact.tool != "submit_result"]


READS: list[Call] = [
    ("read_file", {"path": "server.key", "offset": 2}),
    ("read_file", {"path": "server.key", "offset": 5, "limit": 3}),
    ("read_file", {"path": "server.key", "offset": LINES - 1}),
    ("read_file", {"path": "settings.ini", "offset": 6, "limit": 10}),
    ("read_file", {"path": "settings.ini"}),
    ("read_file", {"path": "keys.csv"}),
    ("search_codebase", {"query": BODY[3][:12]}),
    ("search_codebase", {"query": "[A-Za-z0-9+/=]{20,}", "regex": True}),
    ("search_codebase", {"query": "M", "path": "server.key"}),
    ("search_codebase", {"query": "port|MII|8443", "regex": True}),
    ("search_and_read", {"query": f"settings service port {BODY[5][:12]}"}),
]

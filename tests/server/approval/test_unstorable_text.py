"""A NUL or half a surrogate in any text of a call: an answer about the text, never about the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp.shared.exceptions import MCPError
from support.http_server import bearer, serve_http, token
from support.model_server import Say
from support.network.balancer import make_postgres_root
from support.runtime import PRICED, connect, hand_over, open_lab, text

from ava_audit.verify import verify
from ava_server.approval.requests import Arguments, CancelArgs, CheckArgs, ConfirmArgs, LogArgs, MessageArgs, SpawnArgs

pytest.importorskip("psycopg", reason="the driver is not installed")
pytestmark = pytest.mark.slow

from support.postgres import postgres_server  # noqa: E402

NEEDED: dict[type[Arguments], dict[str, Any]] = {
    SpawnArgs: {"role": "researcher", "task": "What does it cost?"},
    ConfirmArgs: {"pending_ids": ["P-00000000"], "approving": ["x"]},
    CheckArgs: {},
    MessageArgs: {"subagent_id": "S-000000", "message": "x"},
    CancelArgs: {},
    LogArgs: {},
}
FAILURES = ("database", "PostgreSQL", "Postgres", "the log cannot", "of Ava itself", "codec")


@pytest.fixture(params=["sqlite", "postgres"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield PRICED
        return
    server = postgres_server()
    yield f'database_url = "{server.database(tmp_path / "data").replace(f":{server.password}@", "@")}"\n{PRICED}'
    server.empty_databases()


async def test_every_text_of_every_tool_may_have_it(tmp_path: Path, config: str) -> None:
    async with connect(tmp_path, config=config + "[limits]\nspawns_per_hour = 1000\n") as (client, _server):
        for model, needed in NEEDED.items():
            for name in model.model_fields:
                for bad in ("a\0b", "\0", "a\ud800b"):
                    for value in (bad, [bad], {"P-00000000": {"blocked_tools": [bad]}}):
                        said = text(await client.call_tool(model.tool, {**needed, name: value}))
                        assert not [word for word in FAILURES if word in said], (model.tool, name, value, said)
        for uri in ("ava://runs/S-\0", "ava://runs/\0", "ava://roles/\0", "ava://runs/S-000000/artifacts/\0"):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(uri)
            assert not [word for word in FAILURES if word in str(refused.value)], uri
        for prompt, args in (("delegate", {"task": "\0"}), ("ask_on", {"subagent_id": "S-\0", "question": "\0"})):
            with suppress(MCPError):
                await client.get_prompt(prompt, args)
    assert (await anyio.to_thread.run_sync(verify, tmp_path / "data")).ok


async def test_a_task_id_or_role_with_a_nul_is_refused_as_such(tmp_path: Path, config: str) -> None:
    async with connect(tmp_path, config=config) as (client, _server):
        for name in ("task_id", "role"):
            for bad in ("a\0b", "a\ud800b"):
                answer = await client.call_tool("spawn_subagent", {**NEEDED[SpawnArgs], name: bad})
                assert answer.is_error and f"{name}: {bad!r} was given where text belongs" in text(answer)


async def test_a_run_may_write_and_be_told_such_text(tmp_path: Path, config: str) -> None:
    said = Say("\0", calls=[("scratchpad", {"action": "write", "text": "\0", "note": "\0"}), ("\0", {"\0": "\0"}),
                            ("find_files", {"pattern": "\0"})])  # fmt: skip
    async with open_lab(tmp_path, [said, hand_over(summary="a\0b", output="\0")], config=config) as lab:
        run_id = await lab.start(task="What\0?", name="a\0b", context="\0", rationale="\0")
        await lab.call("message_subagent", subagent_id=run_id, message="now\0")
        assert (await lab.ended(run_id)).state == "success"
    assert (await anyio.to_thread.run_sync(verify, tmp_path / "data")).ok


async def test_no_address_of_a_shared_server_answers_it_as_a_failure(tmp_path: Path) -> None:
    root = tmp_path / "data"
    make_postgres_root(root)
    given = token(root, "ana", "read", "audit", "approve", "admin")
    async with serve_http(root) as server, httpx2.AsyncClient(timeout=20, headers=bearer(given)) as http:
        names = ("id", "last", "group", "user", "all", "first", "cursor")
        paths = [f"/{path}?{name}=%00" for path in ("runs", "log", "report") for name in names]
        paths += [f'/log?query={{"{name}":["a%5Cu0000"]}}' for name in ("agents", "users", "sessions", "runs")]
        paths += [f"/{path}/%00" for path in ("runs", "users", "log", "approvals", "subagents", "proposals")]
        for path in paths:
            for method in ("GET", "PATCH", "DELETE") if "/users" in path else ("GET",):
                answer = await http.request(method, f"{server.base}{path}", json={"running": 1})
                assert answer.status_code < 500, (path, answer.text)
                assert not [word for word in FAILURES if word in answer.text], (path, answer.text)
        assert "Traceback" not in server.stderr
    postgres_server().empty_databases()

"""A Postgres failover that loses commits: processes from before it refuse everything until they are restarted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from mcp_types import ElicitResult
from support.commands.doctor import doctor
from support.http_server import token
from support.log import write_texts
from support.model_server import Gate, Say, run_model_server
from support.network.balancer import make_postgres_root, serve_each
from support.stdio import model_env, read_answer, read_log, until
from support.terminal import ava

pytest.importorskip("psycopg", reason="the driver is not installed")

from support.logs.on_postgres import connect_to, cut_connections
from support.logs.store import open_store_at
from support.postgres import PostgresServer, postgres_server

from ava_audit.unlogged import unlogged_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("sys.platform == 'win32'", reason="the Postgres of the tests is started on Linux only"),
]

SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Look it up"}
NOTE = [("scratchpad", {"note": "half of it"})]
DONE = Say(calls=[("submit_result", {"summary": "done", "output": "twelve cents"})])
PRICED = '[prices."custom:scripted"]\ninput = 10\noutput = 50\n'


async def agree(_context: object, _params: object) -> ElicitResult:
    return ElicitResult(action="accept", content={})


def program(server: PostgresServer, name: str, url: str, *words: str) -> None:
    """Run a program of Postgres' on a database."""
    command = [str(server.bin / name), "--dbname", url, *words]
    subprocess.run(command, check=True, capture_output=True, timeout=60, env={**os.environ, "LC_ALL": "C"})


def restore(server: PostgresServer, url: str, dump: Path) -> None:
    """Put the database back to an earlier moment, and cut its connections: what a lagging replica has, promoted."""
    with connect_to(url) as conn:
        conn.execute("DROP SCHEMA ava CASCADE")
    program(server, "pg_restore", url, "--no-owner", str(dump))
    cut_connections(url)


async def test_a_server_refuses_a_log_that_lost_entries_although_others_have_written_past_them(tmp_path: Path) -> None:
    root, other, dump = tmp_path / "data", tmp_path / "other", tmp_path / "dump"
    other.mkdir(mode=0o700)
    server, gate = postgres_server(), Gate()
    url = make_postgres_root(root, PRICED)
    text = token(root, "ana")
    with run_model_server([Say("I look.", NOTE), Say("lost", NOTE, gate=gate), DONE]) as model:
        env = model_env(model.base_url)
        async with serve_each(root, env=env) as (old,):
            assert (await old.get("/healthz")).status_code == 200
            await anyio.to_thread.run_sync(program, server, "pg_dump", url, "-Fc", "-n", "ava", "-f", str(dump))
            async with old.client(text, mode="auto", ask=agree) as client:
                proposed = read_answer(await client.call_tool("spawn_subagent", SPAWN))[0]
                run = proposed["subagent_id"]
                lines = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
                assert read_answer(await client.call_tool("confirm_spawn", lines))[0]["status"] == "approved"
                await until(gate.arrived.is_set)
                (first,) = read_log(root, "CostUpdate", run=run)
                old_head = read_log(root)[-1].seq
                await anyio.to_thread.run_sync(restore, server, url, dump)
                async with open_store_at(other, url) as store:
                    await write_texts(store, ["after the failover"] * (old_head + 5))
                    assert store.head > old_head
                gate.released.set()
                refused = await client.call_tool("check_subagent", {})
                assert "has lost entries that this server knows" in str(refused.content)
            health = await old.get("/healthz")
            assert (health.status_code, "restart it" in health.json()["why"]) == (503, True)
            assert (await old.get("/livez")).status_code == 200
            await until(lambda: len(unlogged_files(root)[0].calls) == 2)
            found = doctor(root)["lost entries"]
            assert found["state"] == "fault" and "restart this server" in found["text"]
            assert "the log lacks what 2 model calls of it cost" in found["text"]
            status = ava(root, "status", "--once")
            assert "lost entries" in status.stdout and "refuses everything" in status.stdout
        (file,) = unlogged_files(root)
        assert not file.lives and {call.settlement for call in file.calls} == {"billed"}
        assert file.calls[0].micros == round(first.content["cost_cents"] * 10_000) < file.spent_micros
        assert doctor(root)["lost entries"]["state"] == "warning"
        assert not read_log(root, run=run), "nothing of the lost run was written into the log that does not know it"
        async with serve_each(root, env=env) as (restarted,):
            assert (await restarted.get("/healthz")).status_code == 200
    verified = ava(root, "verify")
    assert verified.returncode == 0, verified.stdout

"""Two machines, as network namespaces: a run is proposed on one, done on the other, and its branch comes back."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from support.model_server import run_model_server
from support.network.cable import run_cables
from support.network.namespaces import network_namespaces, why_missing
from support.repositories.coding import PROJECT, RIGHT, Untouched, branches, coder_task, make_calls
from support.repositories.projects import checkout, git
from support.runtime import PRICED
from support.stdio import AVA, assert_intact, make_root, model_env, read_log, serve_stdio, state_of, until

from ava_roles.sandbox.sandbox import Unavailable
from ava_roles.sandbox.selection import find_sandbox

pytest.importorskip("psycopg", reason="the driver is not installed")

from support.postgres import postgres_server

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_missing()), reason=why_missing())]

CONFIG = 'runs_on = "workers"\nlease_s = 3\n' + PRICED.replace("custom:test", "custom:scripted")


async def test_a_coder_works_on_another_machine_and_its_branch_comes_back_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_sandbox("auto", tmp_path / "sandbox")
    if isinstance(found, Unavailable):
        pytest.skip(f"{found.why}; {found.what_to_do}")
    postgres = postgres_server()
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    database = postgres.database(tmp_path).rpartition("/")[2]
    mine = tmp_path / "mine"
    repository = checkout(mine / "repository", PROJECT)
    untouched, base = Untouched(repository), git(repository, "rev-parse", "HEAD").strip()
    with (
        run_model_server(make_calls(RIGHT)) as models,
        network_namespaces(2) as (near, far),
        run_cables(postgres.port, [near.to_database, far.to_database]) as cables,
        run_cables(models.port, [far.to_all_else]) as (relay,),
    ):
        urls = [
            f"postgresql://ava@{each.to_database}:{cable.port}/{database}"
            for each, cable in zip((near, far), cables, strict=True)
        ]
        root = make_root(mine / "data", config_toml=f'database_url = "{urls[0]}"\n{CONFIG}')
        other = make_root(tmp_path / "other", config_toml=f'database_url = "{urls[1]}"\n{CONFIG}')
        password = {"PGPASSWORD": postgres.password}
        model = model_env(f"http://{far.to_all_else}:{relay.port}/v1")  # only `far` can reach it
        async with (
            serve_stdio(root, before=near.command, env={**password, **model}, cwd=repository) as host,
            serve_stdio(
                other, before=far.without(str(mine)), env={**password, **model}, cwd=Path("/"),
                command=(*AVA[:-1], "worker", "--stay"), initialize=False,
            ),
        ):  # fmt: skip
            run = await host.start_run(**coder_task(workspace=str(repository)))
            await until(lambda: state_of(root, run) == "success", within_s=60)
            assert branches(repository) == {}, "the worker has not seen the repository"
            answer = await host.tool("check_subagent", subagent_id=run)
        (head,) = branches(repository).values()
        assert answer["runs"][0]["changes"]["head"] == head
        assert git(repository, "rev-parse", f"{head}^").strip() == base
        assert git(repository, "show", f"{head}:adding.py") == "def add(a, b):\n    return a + b\n"
        git(repository, "fsck", "--strict")
        untouched.check()
        assert len(read_log(root, "RunClaimed", run=run)) == 1
        await anyio.to_thread.run_sync(assert_intact, root)
    postgres.empty_databases()

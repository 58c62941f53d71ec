"""Two machines, as network namespaces: a run is proposed on one, done on the other, and its branch comes back."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from support.model_server import running_model_server
from support.network.cable import running_cables
from support.network.namespaces import missing, network_namespaces
from support.repositories.coding import PROJECT, RIGHT, Untouched, asked, branches, says
from support.repositories.projects import checkout, git
from support.runtime import PRICED
from support.stdio import AVA, assert_intact, logged, made, serving, state_of, until, using

from ava_roles.sandbox.sandbox import Unavailable
from ava_roles.sandbox.selection import find_sandbox

pytest.importorskip("psycopg", reason="the driver is not installed")

from support.postgres import running_server

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]

CONFIG = 'runs_on = "workers"\nlease_s = 3\n' + PRICED.replace("custom:test", "custom:scripted")


async def test_a_coder_works_on_another_machine_and_its_branch_comes_back_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_sandbox("auto", tmp_path / "sandbox")
    if isinstance(found, Unavailable):
        pytest.skip(f"{found.why}; {found.what_to_do}")
    postgres = running_server()
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    database = postgres.database(tmp_path).rpartition("/")[2]
    mine = tmp_path / "mine"
    repository = checkout(mine / "repository", PROJECT)
    untouched, base = Untouched(repository), git(repository, "rev-parse", "HEAD").strip()
    with (
        running_model_server(says(RIGHT)) as models,
        network_namespaces(2) as (near, far),
        running_cables(postgres.port, [near.to_database, far.to_database]) as cables,
        running_cables(models.port, [far.to_all_else]) as (relay,),
    ):
        urls = [
            f"postgresql://ava@{each.to_database}:{cable.port}/{database}"
            for each, cable in zip((near, far), cables, strict=True)
        ]
        root = made(mine / "data", config_toml=f'database_url = "{urls[0]}"\n{CONFIG}')
        other = made(tmp_path / "other", config_toml=f'database_url = "{urls[1]}"\n{CONFIG}')
        password = {"PGPASSWORD": postgres.password}
        model = using(f"http://{far.to_all_else}:{relay.port}/v1")  # only `far` can reach it
        async with (
            serving(root, before=near.command, env={**password, **model}, cwd=repository) as host,
            serving(
                other, before=far.without(str(mine)), env={**password, **model}, cwd=Path("/"),
                command=(*AVA[:-1], "worker", "--stay"), initialize=False,
            ),
        ):  # fmt: skip
            run = await host.start_run(**asked(workspace=str(repository)))
            await until(lambda: state_of(root, run) == "success", within_s=60)
            assert branches(repository) == {}, "the worker has not seen the repository"
            answer = await host.tool("check_subagent", subagent_id=run)
        (head,) = branches(repository).values()
        assert answer["runs"][0]["changes"]["head"] == head
        assert git(repository, "rev-parse", f"{head}^").strip() == base
        assert git(repository, "show", f"{head}:adding.py") == "def add(a, b):\n    return a + b\n"
        git(repository, "fsck", "--strict")
        untouched.check()
        assert len(logged(root, "RunClaimed", run=run)) == 1
        await anyio.to_thread.run_sync(assert_intact, root)
    postgres.empty_databases()

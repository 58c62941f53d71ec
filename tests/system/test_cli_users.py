"""`ava user limit` and `remove`: what an administrator does about one user."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.http_server import serve_http, token
from support.logs.past import BookedLife, Past
from support.terminal import ava

from ava_audit.store.store import Store


def user(root: Path, *args: str, code: int = 0) -> str:
    done = ava(root, "user", *args)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def listed(root: Path, name: str) -> dict[str, Any]:
    users: list[dict[str, Any]] = json.loads(user(root, "list", "--json"))["users"]
    return next(one for one in users if one["name"] == name)


@pytest.mark.parametrize("name", ["ana", "ana@example.org"])
def test_limits_are_set_kept_and_removed_with_the_tokens(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.toml").write_text("# ours\n[limits]\nrunning = 7  # enough\n")
    said = user(tmp_path, "limit", name, "--daily", "3.00", "--running", "2", "-w", str(tmp_path), "--role", "coder")
    assert f"{name}: $0.00 of $3.00 today; 0 of 2 running; approval by_host" in said
    user(tmp_path, "limit", name, "--approval", "human")
    table = tomllib.loads((tmp_path / "config.toml").read_text())["users"][name]
    assert table == {
        "daily_cents": 300, "running": 2, "approval": "human", "workspaces": [str(tmp_path)], "roles": ["coder"],
    }  # fmt: skip
    assert "running = 7  # enough" in (tmp_path / "config.toml").read_text()
    for number in range(2):
        token(tmp_path, name, "spawn", name=f"t{number}")
    token(tmp_path, "ben", "read")
    assert listed(tmp_path, name)["tokens"] == 2
    said = user(tmp_path, "remove", name)
    assert said.count("is revoked") == 2 and f"The limits of {name} are removed" in said
    assert name not in tomllib.loads((tmp_path / "config.toml").read_text()).get("users", {})
    assert "ben" in user(tmp_path, "list") and name not in user(tmp_path, "list")


async def test_removing_a_user_says_which_runs_go_on_spending_and_how_to_end_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = Past(monkeypatch)
    async with Store.open(tmp_path) as store:
        await past.write_run(store, BookedLife("S-000001", user="ana"), 1_700_000_000, costs=(3_000,))
        await past.write_run(store, BookedLife("S-000002", user="ana"), 1_700_000_100, costs=(20_000,), ending=None)
        queued, waits = BookedLife("S-000003", user="ana", max_cost=325_000), BookedLife("S-000004", user="ana")
        await past.at(store, 1_700_000_200, *queued.beginning()[:3], waits.proposal(), waits.task())
        await past.write_run(store, BookedLife("S-000005", user="ben"), 1_700_000_300, ending=None)
    token(tmp_path, "ana", "spawn")
    said = user(tmp_path, "remove", "ana")
    assert "S-000002 running, $0.02 of at most $2.00" in said and "S-000003 queued, $0.00 of at most $0.325" in said
    assert not [run for run in ("S-000001", "S-000004", "S-000005") if run in said]
    words = shlex.split(said.partition("To cancel them: `")[2].partition("`")[0])
    assert words == ["ava", "cancel", "S-000002", "S-000003"]


@pytest.mark.slow
async def test_a_running_server_refuses_a_removed_user(tmp_path: Path) -> None:
    text = token(tmp_path / "data", "ana", "read")
    async with serve_http(tmp_path / "data") as server:
        assert "0 of 1 running" in user(tmp_path / "data", "limit", "ana", "--running", "1")
        user(tmp_path / "data", "remove", "ana")
        assert (await server.post("/mcp", text, json={})).status_code == 401


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("limit", "ana"), 2, "Give at least one limit"),
        (("limit", "ana", "--daily", "much"), 2, "--daily"),
        (("limit", "ana", "--daily", "0.001"), 2, "whole cents"),
        (("limit", "ana", "--approval", "never"), 30, "approval"),
        (("limit", "a b", "--running", "1"), 2, "A user's name"),
        (("remove", "nobody"), 2, "nobody has no token, no passkey and no limits here"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, args: tuple[str, ...], code: int, says: str) -> None:
    assert says in user(tmp_path, *args, code=code)

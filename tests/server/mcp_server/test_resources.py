"""Resources: runs, transcripts, artifacts and roles for the hosts that show them, page by page."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS
from support.model_server import Say, Step
from support.runtime import connect

from ava_server.mcp_server.resources import PAGE

LONG = "A long answer.\n" * 2_000


@pytest.fixture(params=["auto", "legacy"], ids=["stateless era", "handshake era"])
async def shelf(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncGenerator[Shelf]:
    async with connect(tmp_path, script, mode=request.param) as (client, _server):
        given = {"role": "researcher", "task": "prices", "workspace": str(tmp_path / "workspace")}
        made = (await client.call_tool("spawn_subagent", given)).structured_content
        assert made is not None
        approval = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]], "wait_seconds": 30}
        await client.call_tool("confirm_spawn", approval)
        yield Shelf(client, str(made["subagent_id"]))


async def test_reads_a_complete_run_with_its_text_under_the_untrusted_key(shelf: Shelf) -> None:
    run = json.loads(await shelf.read(f"ava://runs/{shelf.run_id}"))
    assert run["state"] == "success"
    assert run["untrusted_result"]["output"] == LONG
    assert "warning" in run["untrusted_result"]
    assert run["untrusted_result"]["artifacts"][0]["name"] == "prices.csv"


async def test_a_transcript_starts_by_saying_that_it_is_data(shelf: Shelf) -> None:
    lines = (await shelf.read(f"ava://runs/{shelf.run_id}/transcript")).splitlines()
    assert "never an instruction" in lines[0]
    assert any("ToolCall save_artifact" in line for line in lines)
    assert "RunEnded" in lines[-1] or "showed the result" in lines[-1]


async def test_reads_an_artifact_by_name_and_no_other_file(shelf: Shelf) -> None:
    assert await shelf.read(f"ava://runs/{shelf.run_id}/artifacts/prices.csv") == "otter,12\n"
    assert "nothing.txt" in await shelf.refused(f"ava://runs/{shelf.run_id}/artifacts/nothing.txt")
    assert await shelf.refused(f"ava://runs/{shelf.run_id}/artifacts/..%2F..%2Fava.db")


async def test_serves_no_artifact_that_was_changed_after_its_delivery(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "data" / "artifacts" / shelf.run_id / "prices.csv").write_text("changed")
    assert "was changed after its delivery" in await shelf.refused(f"ava://runs/{shelf.run_id}/artifacts/prices.csv")


async def test_lists_the_roles_with_their_permissions(shelf: Shelf) -> None:
    answer = json.loads(await shelf.read("ava://roles"))
    roles = {role["name"]: role for role in answer["roles"]}
    assert set(roles) >= {"web_crawler", "code_reviewer", "data_extractor", "researcher", "coder", "custom"}
    assert "read_file" in roles["researcher"]["tools"] and roles["researcher"]["max_cost_cents"] == 50


async def test_each_role_shows_its_tier_current_model_and_price(shelf: Shelf) -> None:
    answer = json.loads(await shelf.read("ava://roles"))
    roles = {role["name"]: role for role in answer["roles"]}
    now = roles["researcher"]["now"]
    assert (roles["researcher"]["tier"], roles["web_crawler"]["tier"]) == ("balanced", "fast")
    assert (now["model"], now["price"]["source"], now["price"]["output"]) == ("custom:test", "free (local)", 0)
    assert now["chosen_by"] == "AVA_MODEL_BASE_URL and AVA_MODEL"
    assert set(answer["tiers"]) == {"fast", "balanced", "deep"} and answer["tiers"]["deep"]["model"] == "custom:test"


async def test_shows_the_price_of_a_named_model_or_what_to_do_without_a_key(tmp_path: Path) -> None:
    (tmp_path / "data" / "roles").mkdir(parents=True)
    for name, model in (("thrifty", "groq:openai/gpt-oss-20b"), ("keyless", "openai:gpt-5")):
        text = f"---\ndescription: Does it.\nmodel: {model}\n---\nBe brief.\n"
        (tmp_path / "data" / "roles" / f"{name}.md").write_text(text)
    (tmp_path / "data" / "keys.toml").write_text('groq = "gsk_0123456789abcdef"\n')
    (tmp_path / "data" / "keys.toml").chmod(0o600)
    async with connect(tmp_path) as (client, _server):

        async def read() -> tuple[dict[str, Any], list[str]]:
            [content] = (await client.read_resource("ava://roles")).contents
            answer = json.loads(str(getattr(content, "text", "")))
            return {role["name"]: role for role in answer["roles"]}, answer["problems"]

        roles, problems = await read()
        assert problems == []
        thrifty, keyless = roles["thrifty"], roles["keyless"]
        assert (thrifty["model"], thrifty["tier"]) == ("groq:openai/gpt-oss-20b", None)
        assert thrifty["now"]["model"] == "groq:openai/gpt-oss-20b"
        assert 0 < thrifty["now"]["price"]["output"] < 5, "in USD per million tokens"
        assert keyless["now"]["model"] is None and "needs a key for openai" in keyless["now"]["problem"]
        assert "key set openai" in keyless["now"]["what_to_do"]

        (tmp_path / "data" / "keys.toml").write_text("groq = 3\n")
        roles, problems = await read()
        assert roles["researcher"]["now"] == {} and any("keys.toml" in problem for problem in problems)


async def test_an_unknown_resource_error_lists_the_existing_ones(shelf: Shelf) -> None:
    assert "ava://roles" in await shelf.refused("ava://nothing")
    assert "S-000000" in await shelf.refused("ava://runs/S-000000")
    assert "S-7f3a2b" in await shelf.refused("ava://runs/nonsense")


async def test_lists_the_roles_and_the_runs_of_this_user(shelf: Shelf) -> None:
    listed = [str(resource.uri) for resource in (await shelf.client.list_resources()).resources]
    assert listed[0] == "ava://roles" and f"ava://runs/{shelf.run_id}" in listed
    forms = [form.uri_template for form in (await shelf.client.list_resource_templates()).resource_templates]
    assert "ava://runs/{id}/transcript" in forms


@pytest.mark.slow
async def test_new_runs_do_not_shift_the_pages_of_a_long_list(tmp_path: Path) -> None:
    async with connect(tmp_path) as (client, _server):

        async def propose() -> str:
            given = {"role": "researcher", "task": "prices", "workspace": str(tmp_path / "workspace")}
            made = (await client.call_tool("spawn_subagent", given)).structured_content
            assert made is not None
            return f"ava://runs/{made['subagent_id']}"

        made = [await propose() for _ in range(PAGE + 5)]
        first = await client.list_resources(cache_mode="bypass")
        assert [str(one.uri) for one in first.resources] == ["ava://roles", *reversed(made[5:])]
        assert first.next_cursor is not None
        added = await propose()
        second = await client.list_resources(cursor=first.next_cursor, cache_mode="bypass")
        assert [str(one.uri) for one in second.resources] == [*reversed(made[:5])]
        assert second.next_cursor is None
        again = await client.list_resources(cache_mode="bypass")
        assert str(again.resources[1].uri) == added


async def test_every_list_rejects_an_invalid_cursor(tmp_path: Path) -> None:
    async with connect(tmp_path) as (client, _server):
        for listed in (client.list_resources, client.list_resource_templates, client.list_prompts, client.list_tools):
            for cursor in ("", "2", "nonsense", "MTIzL1MtMTIzNDU2Cg", "ü"):
                with pytest.raises(MCPError) as refused:
                    await listed(cursor=cursor, cache_mode="bypass")
                assert refused.value.error.code == INVALID_PARAMS
                assert "cursor" in str(refused.value)


def script(request: dict[str, Any]) -> Step:
    """Save a file, then answer at length."""
    if request["messages"][-1]["role"] == "tool":
        return Say(LONG)
    return Say(calls=[("save_artifact", {"name": "prices.csv", "content": "otter,12\n"})])


@dataclass
class Shelf:
    client: Client
    run_id: str

    async def read(self, uri: str) -> str:
        answer = await self.client.read_resource(uri)
        [content] = answer.contents
        return str(getattr(content, "text", ""))

    async def refused(self, uri: str) -> str:
        with pytest.raises(MCPError) as raised:
            await self.client.read_resource(uri)
        return str(raised.value)

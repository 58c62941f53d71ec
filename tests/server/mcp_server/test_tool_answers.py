"""Both forms of every answer are complete and say the same; what a subagent wrote stands in its own place."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import jsonschema
import pytest
from mcp.client.context import ClientRequestContext
from mcp.client.session import ElicitationFnT
from mcp_types import ElicitRequestParams, ElicitResult
from support.hosts.tool_answers import (
    CLOSING,
    CONFIG,
    LONG,
    PLANT,
    AnswerBench,
    answer_by_task,
    open_working_run,
    text_of_answer,
    trusted_part,
)
from support.model_server import Gate
from support.runtime import connect, text

from ava_server.hosts.clients import McpClient, known_clients
from ava_server.mcp_server.tools import all_prompts
from ava_server.render.host_text import INSTRUCTIONS
from ava_server.service.access import Session


@pytest.fixture(params=["auto", "legacy"], ids=["stateless era", "handshake era"])
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncGenerator[AnswerBench]:
    async with connect(tmp_path, answer_by_task, config=CONFIG, mode=request.param) as (client, server):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        yield AnswerBench(client, server, tmp_path / "workspace", tools)


# -- every tool, every outcome --------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_each_tool_says_the_same_as_text_and_as_data_from_proposal_to_log(bench: AnswerBench) -> None:
    made = await bench.propose("plain what does it cost?", name="prices", task_id="job-7", rationale="you asked")
    listed = await bench.call("check_subagent")
    assert made["pending_id"] in text(listed), "who sees only text can still approve"
    wrong = await bench.call("confirm_spawn", pending_ids=[made["pending_id"]], approving=["x"])
    assert text_of_answer(wrong)["status"] == "refused"
    approved = await bench.approve(made, wait_seconds=30)
    assert text_of_answer(approved)["decisions"][0]["status"] == "success"
    assert text_of_answer(approved)["runs"][0]["untrusted_result"]["output"] == "It costs twelve cents."
    assert "It costs twelve cents." in text(approved)
    assert "not woken" not in text_of_answer(approved)["next"], "what has ended is not waited for"
    checked = await bench.call("check_subagent", subagent_id=made["subagent_id"])
    assert text(checked).splitlines()[0] == f"[{made['subagent_id']} success]"
    for tool, given in (
        ("message_subagent", {"subagent_id": made["subagent_id"], "message": "more"}),
        ("cancel_subagent", {"subagent_id": made["subagent_id"]}),
        ("read_ava_logs", {"subagent_id": made["subagent_id"]}),
        ("read_ava_logs", {}),
    ):
        await bench.call(tool, **given)
    rejected = await bench.propose("plain another")
    answer = await bench.call("confirm_spawn", pending_ids=[rejected["pending_id"]], decision="reject")
    assert text_of_answer(answer)["status"] == "rejected"
    cancelled = await bench.propose("plain a third")
    answer = await bench.call("cancel_subagent", pending_id=cancelled["pending_id"])
    assert text_of_answer(answer)["status"] == "cancelled"
    await bench.call("check_subagent")


async def test_a_run_that_reached_a_cap_says_so_in_its_first_line(bench: AnswerBench) -> None:
    run, answer = await bench.run("notes on it", max_iterations=2)
    assert run["state"] == "iteration_limit"
    assert text(answer).splitlines()[0] == f"[{run['subagent_id']} iteration_limit: may be incomplete]"
    assert "half of it" in text(answer)


async def test_a_plan_gets_one_answer(bench: AnswerBench) -> None:
    made = [await bench.propose(f"plain number {number}") for number in range(3)]
    approved = text_of_answer(await bench.approve(*made))
    answer = await bench.call("check_subagent", group_id=approved["group_id"], wait_seconds=30)
    [plan] = text_of_answer(answer)["runs"]
    assert (plan["state"], plan["plan"]["steps"]) == ("success", {"done": 3})
    assert approved["group_id"] in text(answer)
    assert all(one["subagent_id"] in text(answer) for one in made)


async def test_an_unread_result_stays_in_the_notices_until_someone_reads_it(bench: AnswerBench) -> None:
    made = await bench.propose("plain one")
    await bench.approve(made)
    other = await bench.propose("plain two")
    await bench.approve(other, wait_seconds=30)
    await bench.call("cancel_subagent", subagent_id=other["subagent_id"])
    last = await bench.call("check_subagent", subagent_id=other["subagent_id"], wait_seconds=10)
    notices = text_of_answer(last).get("notices")
    assert notices is not None and made["subagent_id"] in notices[0] and "check_subagent" in notices[0]
    await bench.call("check_subagent", subagent_id=made["subagent_id"])
    after = text_of_answer(await bench.call("read_ava_logs", last_n=1))
    assert not after.get("notices")


# -- untrusted ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("task", ["planted", "refused", "form"])
async def test_subagent_text_appears_only_under_the_untrusted_keys(bench: AnswerBench, task: str) -> None:
    made = await bench.propose(f"{task} it")
    approved = await bench.approve(made, wait_seconds=30)
    run_id = made["subagent_id"]
    answers = [
        approved,
        await bench.call("check_subagent", subagent_id=run_id),
        await bench.call("check_subagent"),
        await bench.call("cancel_subagent", subagent_id=run_id),
        await bench.call("read_ava_logs", subagent_id=run_id, last_n=500),
        await bench.call("read_ava_logs", search=PLANT),
    ]
    assert PLANT in json.dumps(text_of_answer(answers[1])), "it is there, in its place"
    for answer in answers:
        assert PLANT not in json.dumps(trusted_part(text_of_answer(answer))), (
            "the subagent's words stand where ours are"
        )
    for answer in answers[:4]:
        outside = text(answer)
        while "<subagent_result " in outside:
            before, _, rest = outside.partition("<subagent_result ")
            _inside, closing, after = rest.partition(CLOSING)
            assert closing
            outside = before + after
        assert PLANT not in outside, outside


# -- long -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("task", "whole"), [("long", LONG), ("escapes", '\\"\n\t' * 8_000)])
async def test_the_pages_of_a_long_result_reassemble_to_the_whole(bench: AnswerBench, task: str, whole: str) -> None:
    run, answer = await bench.run(f"{task} one")
    pages = [run["untrusted_result"]["output"]]
    while cursor := run.get("cursor"):
        assert cursor in text(answer), "the text says how it goes on"
        answer = await bench.call("check_subagent", subagent_id=run["subagent_id"], cursor=cursor)
        run = text_of_answer(answer)["runs"][0]
        pages.append(run["untrusted_result"]["output"])
    assert len(pages) > 3
    assert "".join(pages) == whole


@pytest.mark.slow
async def test_a_result_with_every_part_large_fits_the_answer_limit(bench: AnswerBench) -> None:
    run, _answer = await bench.run("wide one")
    pages = run["untrusted_result"]["output"]
    while cursor := run.get("cursor"):
        run = text_of_answer(await bench.call("check_subagent", subagent_id=run["subagent_id"], cursor=cursor))["runs"][
            0
        ]
        pages += run["untrusted_result"]["output"]
    assert len(json.loads(pages)["rows"]) == 600


@pytest.mark.slow
async def test_a_plan_of_long_results_fits_the_answer_limit_and_each_can_be_read_further(bench: AnswerBench) -> None:
    made = [await bench.propose(f"long number {number}") for number in range(6)]
    answer = await bench.approve(*made, wait_seconds=30)
    while [run["state"] for run in text_of_answer(answer)["runs"]] != ["success"] * 6:
        answer = await bench.call("check_subagent", group_id=text_of_answer(answer)["group_id"], wait_seconds=30)
    runs = text_of_answer(answer)["runs"]
    for run in runs:
        output = run["untrusted_result"]["output"]
        while cursor := run.get("cursor"):
            run = text_of_answer(await bench.call("check_subagent", subagent_id=run["subagent_id"], cursor=cursor))[
                "runs"
            ][0]
            output += run["untrusted_result"]["output"]
        assert output == LONG


@pytest.mark.slow
async def test_a_long_list_says_how_many_more_entries_exist(bench: AnswerBench) -> None:
    for number in range(40):
        await bench.propose(f"plain number {number} with a task of some length", name=f"run number {number}")
    answer = await bench.call("check_subagent")
    assert "40" in text_of_answer(answer)["message"], text_of_answer(answer)["message"]
    assert len(text_of_answer(answer)["runs"]) < 40


@pytest.mark.slow
async def test_the_pages_of_the_log_neither_miss_nor_repeat_an_entry(bench: AnswerBench) -> None:
    run, _answer = await bench.run("many files", max_iterations=4)
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = text_of_answer(await bench.call("read_ava_logs", subagent_id=run["subagent_id"], last_n=20, **cursor))
        seen = [*page["untrusted_entries"], *seen]
        if not page.get("cursor"):
            break
        cursor = {"cursor": page["cursor"]}
    assert sum(" ToolCall read_file" in line for line in seen) == 24
    assert "RunEnded" in seen[-1]
    assert seen == sorted(seen, key=lambda line: line[:22])


# -- what is declared -----------------------------------------------------------------------------------------------


async def test_the_tool_descriptions_stay_within_host_limits(bench: AnswerBench) -> None:
    size = sum(
        len(tool.name) + len(tool.description or "") + len(json.dumps(tool.input_schema, ensure_ascii=False))
        for tool in bench.tools.values()
    )
    assert size < 6_000
    assert sum(len(json.dumps(tool.output_schema)) for tool in bench.tools.values()) <= 6_050
    assert list(bench.tools) == [
        "spawn_subagent", "confirm_spawn", "check_subagent", "message_subagent", "cancel_subagent", "read_ava_logs",
    ]  # fmt: skip


async def test_annotations_say_which_tools_read_and_which_spend(bench: AnswerBench) -> None:
    hints = {name: tool.annotations for name, tool in bench.tools.items()}
    for name in ("check_subagent", "read_ava_logs"):
        hint = hints[name]
        assert hint is not None and hint.read_only_hint
    spawn, confirm = hints["spawn_subagent"], hints["confirm_spawn"]
    assert spawn is not None and spawn.destructive_hint is False and not spawn.idempotent_hint
    assert confirm is not None and confirm.destructive_hint
    for name in ("spawn_subagent", "confirm_spawn", "check_subagent"):
        assert (bench.tools[name].meta or {}).get("anthropic/alwaysLoad") is True
    for tool in bench.tools.values():
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)


async def test_the_description_of_spawn_subagent_lists_every_role(bench: AnswerBench) -> None:
    description = bench.tools["spawn_subagent"].description or ""
    for role in ("web_crawler", "code_reviewer", "data_extractor", "researcher", "coder", "custom"):
        assert f"{role}" in description


KNOWN = [client for client in known_clients() if client.seen is not None]


@pytest.mark.parametrize("client", KNOWN, ids=lambda client: client.id)
async def test_each_hosts_model_gets_the_instructions_once(tmp_path: Path, client: McpClient) -> None:
    """Some hosts drop the server's instructions: there, the description of `spawn_subagent` has them."""
    answers: tuple[ElicitationFnT | None, ...] = (None, accept_form)
    for asks in answers:
        async with connect(tmp_path, mode="legacy", name=client.names[0], asks=asks) as (host, _models):
            told = host.instructions if client.instructions else ""
            tools = (await host.list_tools()).tools
        descriptions = "\n".join(tool.description or "" for tool in tools)
        assert f"{told}{descriptions}".count(INSTRUCTIONS) == 1
        spawn = next(tool.description or "" for tool in tools if tool.name == "spawn_subagent")
        assert spawn.startswith("Propose a subagent. Starts nothing before") and "\nRoles:\n" in spawn


async def accept_form(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={})


def test_the_instructions_fit_into_two_kilobytes_and_say_what_is_data() -> None:
    assert len(INSTRUCTIONS.encode()) <= 2_048
    for word in ("confirm_spawn", "check_subagent", "untrusted_result", "never an instruction", "requested"):
        assert word in INSTRUCTIONS
    assert "{task}" in all_prompts()[0].words


# -- waiting --------------------------------------------------------------------------------------------------------


async def test_a_wait_reports_progress_and_a_client_cancellation_ends_only_the_wait(tmp_path: Path) -> None:
    gate = Gate()
    async with open_working_run(tmp_path, gate) as (client, bench, made):
        with anyio.move_on_after(0.3) as waiting:
            await client.call_tool("check_subagent", {"subagent_id": made["subagent_id"], "wait_seconds": 30})
        assert waiting.cancelled_caught
        assert (
            text_of_answer(await bench.call("check_subagent", subagent_id=made["subagent_id"]))["status"] == "running"
        )
        gate.released.set()
        answer = await bench.call("check_subagent", subagent_id=made["subagent_id"], wait_seconds=30)
        assert text_of_answer(answer)["status"] == "success"


async def test_a_wait_reports_progress_within_a_second(tmp_path: Path) -> None:
    gate, told = Gate(), anyio.Event()

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        assert progress > 0 and total is None and "Thinking" in (message or "")
        told.set()

    async with open_working_run(tmp_path, gate) as (client, _bench, made):
        asked = {"subagent_id": made["subagent_id"], "wait_seconds": 30}
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(lambda: client.call_tool("check_subagent", asked, progress_callback=progress))
            with anyio.fail_after(2):
                await told.wait()
            gate.released.set()


@pytest.mark.parametrize(
    ("client", "seconds"), [("claude-code", 100), ("codex-mcp-client", 240), ("cursor-vscode", 45), (None, 45)]
)
def test_a_call_waits_as_long_as_its_host_lets_it(client: str | None, seconds: float) -> None:
    assert Session(user="ana", transport="stdio", client=client).wait_s == seconds

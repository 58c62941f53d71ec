"""Agents that misbehave, at each stage of the protocol: real processes, without sandbox and gateway.

Whatever one does, its run goes on or ends in time with a sentence, and nothing is allowed.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from support.sample import sample
from support.stdio import until

from ava_roles.sandbox.sandbox import Pipes
from ava_server.agents import acp
from ava_server.agents.acp import AcpAgent, AgentFailed, PermissionRequest, Update

SECRET = "AKIAIOSFODNN7EXAMPLE"
STAGES = ("initialize", "providers/list", "providers/set", "session/new", "session/resume", "session/load",
          "session/prompt")  # fmt: skip
CONTINUES = ""
CASES = {
    "answers twice": ("say(id=id, result=good); say(id=id, result=good)", CONTINUES),
    "an empty error beside its answer": ("say(id=id, result=good, error=None)", CONTINUES),
    "greets first": ("write('Hello!\\n[1]\\n'); say(id=id, result=good)", CONTINUES),
    "asks for a file and a terminal first": (
        "say(id='a', method='fs/read_text_file', params={'sessionId': 's', 'path': '/etc/shadow'});"
        "say(id='b', method='terminal/create', params={'sessionId': 's', 'command': 'id'}); say(id=id, result=good)",
        CONTINUES,
    ),
    "tells what nobody knows": ("say(method='_x/y', params=[1]); say(method='session/update'); say(id=id, result=good)",
                                CONTINUES),
    "never answers": ("pass", "did not answer"),
    "answers another question": ("say(id=9_999, result=good)", "did not answer"),
    "refuses": ("say(id=id, error={'code': -32603, 'message': 'not today'})", "not today"),
    "refuses without a form": ("say(id=id, error='no')", "in no form of the protocol"),
    "wants a sign-in": ("say(id=id, error={'code': -32000, 'message': 'sign in first'})", "sign in first"),
    "writes a page": ("write('<html>\\n' * 300)", "not a message of the Agent Client Protocol"),
    "writes a line without an end": ("write('x' * (9 << 20))", "more than"),
    "exits": ("sys.exit(3)", "ended while it was asked"),
    "closes its output": ("sys.stdout.flush(); os.close(1); time.sleep(60)", "ended while it was asked"),
    "says why and exits": (f"sys.stderr.write('no licence {SECRET}'); sys.stderr.flush(); time.sleep(0.2); sys.exit(3)",
                           "no licence"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("START_S", "ANSWER_S"):
        monkeypatch.setattr(acp, name, 1.2)


@pytest.mark.parametrize("stage", sample(STAGES, 2))
@pytest.mark.parametrize("case", CASES)
async def test_an_agent_that_misbehaves_ends_with_a_sentence_or_goes_on(case: str, stage: str) -> None:
    code, said = CASES[case]
    async with started(stage, code) as (agent, _told, asked):
        with anyio.fail_after(8):
            if said == CONTINUES:
                await conversation(agent, stage)
            else:
                with pytest.raises(AgentFailed) as failed:
                    await conversation(agent, stage)
                assert said in str(failed.value) and SECRET not in str(failed.value)
                assert str(failed.value).startswith("It ") and "\n" not in str(failed.value)
                assert len(str(failed.value)) < 800
        assert asked == []


@pytest.mark.parametrize(
    ("stage", "answer", "said"),
    [
        ("initialize", "{'protocolVersion': 2}", "speaks version 2"),
        ("initialize", "{'protocolVersion': 'one'}", "in no form of the protocol"),
        ("providers/list", "{'providers': []}", "has no provider that speaks openai"),
        ("session/new", "{'sessionId': 5}", "in no form of the protocol"),
        ("session/new", "{}", "in no form of the protocol"),
        ("session/new", "{'sessionId': 's' * 10_000_000}", "more than"),
        ("session/new", "{'sessionId': 's' * 5_000}", "too long"),
        ("session/new", f"{{'sessionId': '{SECRET}'}}", "looks like a secret"),
        ("session/prompt", "{'stopReason': 'because'}", "in no form of the protocol"),
        ("session/prompt", "None", "in no form of the protocol"),
    ],
)
async def test_an_answer_that_says_what_the_protocol_does_not_know(stage: str, answer: str, said: str) -> None:
    code = f"say(id=id, result={answer})"
    async with started(stage, code) as (agent, _told, _asked):
        with anyio.fail_after(8), pytest.raises(AgentFailed, match=said) as failed:
            await conversation(agent, stage)
        assert SECRET not in str(failed.value)


async def test_its_name_has_no_secret_and_one_line() -> None:
    info = {"name": f"x {SECRET}\n" + "y" * 5_000, "version": SECRET}
    code = f"say(id=id, result={{**good, 'agentInfo': {info!r}}})"
    async with started("initialize", code) as (agent, _told, _asked):
        await agent.initialize()
        assert SECRET not in agent.name + agent.version and "\n" not in agent.name and len(agent.name) <= 80


async def test_nothing_is_allowed_that_ava_does_not_permit_and_the_permission_is_never_for_always() -> None:
    code = "asks('p')\nwhile not told:\n told.append(json.loads(sys.stdin.readline()))\nsay(id=id, result=good)"
    code += "\nsay(method='session/update', params={'sessionId': 's', 'update': {'sessionUpdate': "
    code += "'agent_message_chunk', 'content': {'type': 'text', 'text': json.dumps(told[0])}}})"
    async with started("session/prompt", code) as (agent, told, asked):
        await conversation(agent, "session/prompt")
        await until(lambda: told)  # after the turn's end
        assert [ask.title for ask in asked] == ["rm -rf /"]
        assert '"optionId": "reject_once"' in told[0].text


async def test_only_so_many_questions_reach_whoever_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acp, "MOST_ASKS", 20)
    code = "for n in range(60):\n asks(f'p{n}')\n sys.stdin.readline()\nsay(id=id, result=good)"
    async with started("session/prompt", code) as (agent, _told, asked):
        await conversation(agent, "session/prompt")
        assert len(asked) == 20


async def test_an_agent_that_asks_and_reads_no_answer_does_not_fill_the_memory() -> None:
    code = "for n in range(100_000):\n say(id=f'p{n}', method='x/y', params={'text': 'x' * 10_000})"
    async with started("session/prompt", code) as (agent, _told, _asked):
        lines: Any = agent._transport  # pyright: ignore[reportPrivateUsage]
        with anyio.fail_after(40), pytest.raises(AgentFailed, match=r"does not take messages|did not answer"):
            await conversation(agent, "session/prompt")
        assert lines._unanswered <= acp.MOST_OPEN + 1


@pytest.mark.parametrize(("writes", "said"), [(False, ""), (True, "was interrupted while it was told something")])
async def test_a_message_cancelled_before_its_first_byte_does_not_end_the_conversation(
    writes: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent reads nothing for a while: one prompt fills the pipe, and a second one waits for its turn to write."""
    monkeypatch.setattr(acp, "ANSWER_S", 20)
    turns: list[str] = []

    async def long_turn(agent: AcpAgent, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            task_status.started()
            turns.append((await agent.prompt("x" * 1_000_000))[0])

    scopes: list[anyio.CancelScope] = []
    async with started("session/new", "say(id=id, result=good); time.sleep(1)") as (agent, _told, _asked):
        await agent.initialize()
        await agent.open_session("/", None)
        async with anyio.create_task_group() as tasks:
            await tasks.start(long_turn, agent)
            await anyio.sleep(0.1)  # it has begun to write
            with anyio.move_on_after(0.1) as waiting:
                await agent.prompt("Me too.")
            assert waiting.cancelled_caught
            if writes:
                scopes[0].cancel()
        if writes:
            with pytest.raises(AgentFailed, match=said):
                await agent.prompt("Once more.")
        else:
            turns.append((await agent.prompt("Once more."))[0])
            assert turns == ["end_turn", "end_turn"]


async def test_what_it_writes_without_end_is_read_in_time_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acp, "START_S", 15)  # 3,000 messages, on a machine that does other things too
    code = (
        "sys.stderr.write('x' * 5_000_000)\nfor n in range(3_000):\n say(method='session/update', params={'update': 5})"
    )
    code += "\nsay(id=id, result=good)"
    async with started("session/new", code) as (agent, told, _asked):
        with anyio.fail_after(40):
            await conversation(agent, "session/new")
        assert told == []


PROGRAM = """
import json, os, sys, time

def say(**message):
    write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")

def write(text):
    sys.stdout.write(text)
    sys.stdout.flush()

def asks(id, method="session/request_permission"):
    call = {"toolCallId": "t", "kind": "execute", "title": "rm -rf /", "locations": []}
    options = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_always", "allow_once", "reject_once")]
    say(id=id, method=method, params={"sessionId": "s", "toolCall": call, "options": options})

capabilities = {"loadSession": True, "providers": {}, "sessionCapabilities": CAN}
ANSWERS = {
    "initialize": {"protocolVersion": 1, "agentCapabilities": capabilities, "agentInfo": {"name": "x", "version": "1"}},
    "providers/list": {"providers": [{"providerId": "p", "supported": ["openai"], "required": False}]},
    "providers/set": {}, "session/new": {"sessionId": "s"}, "session/resume": {}, "session/load": {},
    "session/prompt": {"stopReason": "end_turn"},
}
told = []
for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method is None:
        told.append(message)
    elif method == STAGE:
        good = ANSWERS[method]
        exec(CODE)
    elif id is not None:
        say(id=id, result=ANSWERS[method])
"""


@asynccontextmanager
async def started(stage: str, code: str) -> AsyncGenerator[tuple[AcpAgent, list[Update], list[PermissionRequest]]]:
    told: list[Update] = []
    asked: list[PermissionRequest] = []
    errors = bytearray()
    can = "{}" if stage == "session/load" else '{"resume": {}}'
    program = PROGRAM.replace("CAN", can)

    async def permit(ask: PermissionRequest) -> bool:
        asked.append(ask)
        return False

    async def listen() -> None:
        assert process.stderr is not None
        async for piece in process.stderr:
            errors.extend(piece)

    def written() -> str:
        return errors[-2_000:].decode("utf-8", "replace")

    command = [sys.executable, "-c", f"STAGE = {stage!r}\nCODE = {code!r}\n{program}"]
    async with await anyio.open_process(command) as process, anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        assert process.stdin is not None and process.stdout is not None
        pipes = Pipes(process.stdin, process.stdout, written)
        try:
            async with AcpAgent("It", pipes, told.append, permit, lambda text: text.replace(SECRET, "…")) as agent:
                yield agent, told, asked
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            tasks.cancel_scope.cancel()


async def conversation(agent: AcpAgent, stage: str) -> None:
    """Everything that a run says, in order; the caller of a prompt has a deadline."""
    await agent.initialize()
    await agent.set_provider("http://127.0.0.1:1/v1", "s", "openai")
    if stage in ("session/resume", "session/load"):
        await agent.resume_session("s", "/", None)
    else:
        await agent.open_session("/", None)
    with anyio.move_on_after(1.2) as late:
        assert await agent.prompt("Do it.") == ("end_turn", {})
    if late.cancelled_caught:
        raise AgentFailed("It did not answer session/prompt in time")

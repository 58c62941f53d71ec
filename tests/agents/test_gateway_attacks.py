"""The gateway between a provider whose stream is odd, broken or hostile, and an agent that speaks to it by hand."""

from __future__ import annotations

import json
import resource
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import pytest
from support.agents.gateway import KEY, SECRET, WIRES, agent_request, open_gateway
from support.agents.odd_providers import (
    BY_HAND,
    COUNTED,
    IN_C,
    STREAMS,
    WHOLE,
    allow_open_files,
    charged_usage,
    chunk,
    connect_agent,
    good_answer,
    run_odd_provider,
    seen_answer,
)
from support.model_server import Say
from support.sample import sample
from support.stdio import until

from ava_server.web import http_connection


@pytest.mark.parametrize("wire", sample(WIRES, 1))
@pytest.mark.parametrize("case", sample(STREAMS, 17))
async def test_a_stream_is_charged_by_what_it_says_and_half_of_one_in_full(
    tmp_path: Path, case: str, wire: str
) -> None:
    """The second call goes on, whatever became of the connection; a 200 has begun before its body is known."""
    made, booked, shown = STREAMS[case]
    with run_odd_provider(made(good_answer(wire)), chunk(good_answer(wire))) as far:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async with connect_agent(far, wire, tmp_path / "gw.sock") as (client, meter):
            what, content = await seen_answer(client, wire)
            await until(lambda: meter.settled)
            assert (charged_usage(meter), what) == (booked, shown), content[-200:]
            if what == WHOLE:
                plain = content.decode().replace("\r\n", "\n").replace("\r", "\n")
                assert "🙂" in json.dumps(plain, ensure_ascii=False) and plain.endswith("\n\n")
            later = [(await seen_answer(client, wire))[0]]
            if later == [502]:  # the provider closed the connection just as it was used again; agents repeat that
                later.append((await seen_answer(client, wire))[0])
            assert later[-1] == WHOLE
    assert len(far.asked) == 2 and len(meter.settled) == 1 + len(later)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 300_000, "in KiB"


@pytest.mark.parametrize("wire", WIRES)
async def test_an_agent_has_the_end_of_its_answer_only_when_that_is_paid(tmp_path: Path, wire: str) -> None:
    """Also if all of it came in one piece: else its next request could come before this one's answer is known."""
    head, whole, end = chunk([b"".join(good_answer(wire))])
    with run_odd_provider([head, whole, 1.0, end]) as far:
        async with connect_agent(far, wire, tmp_path / "gw.sock") as (client, meter):
            async with client.stream("POST", "", json=agent_request(wire, stream=True)) as answer:
                async for _piece in answer.aiter_bytes():
                    assert meter.settled
            assert charged_usage(meter) == COUNTED


@pytest.mark.parametrize("wire", WIRES)
async def test_what_completes_no_event_is_passed_on_as_it_comes(tmp_path: Path, wire: str) -> None:
    """A provider's sign of life keeps the agent from hanging up, which would cost the call in full."""
    head, alive, *rest = chunk([b": alive\n\n", *good_answer(wire)])
    with run_odd_provider([head, alive, 20.0, *rest]) as far:
        async with connect_agent(far, wire, tmp_path / "gw.sock") as (client, _meter):
            with anyio.fail_after(20):
                async with client.stream("POST", "", json=agent_request(wire, stream=True)) as answer:
                    assert await anext(answer.aiter_bytes()) == b": alive\n\n"


POST = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {SECRET}\r\n"


@pytest.mark.parametrize("parser", sorted({http_connection.H11Connection, http_connection.Connection}, key=str))
@pytest.mark.parametrize("case", sample(BY_HAND, 10))
async def test_what_an_agent_sends_by_hand_goes_nowhere_but_to_the_runs_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, parser: type[http_connection.LimitedConnection]
) -> None:
    monkeypatch.setattr(http_connection, "Connection", parser)
    sent, most = BY_HAND[case]
    if parser is not http_connection.H11Connection:
        most = IN_C.get(case, most)
    async with open_gateway(tmp_path, lambda _request: Say("ok")) as at:
        got = bytearray()
        async with await anyio.connect_unix(tmp_path / "gw.sock") as line, anyio.create_task_group() as tasks:

            async def write() -> None:
                with suppress(anyio.BrokenResourceError):
                    await line.send(sent)

            tasks.start_soon(write)
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                with anyio.move_on_after(30):
                    while got.count(b"HTTP/1.1 ") < most:
                        got += await line.receive()
                with anyio.move_on_after(0.8):  # for an answer too many
                    while True:
                        got += await line.receive()
            tasks.cancel_scope.cancel()
        assert b"HTTP/1.1 5" not in got, got[:300]
        assert len(at.far.requests) == len(at.meter.admitted) == most, got[:300]
        for each in at.far.requests:
            assert each.path == "/v1/messages" and KEY in str(each.headers) and SECRET not in str(each.headers)
            assert not {"upgrade", "transfer-encoding", "x"} & each.headers.keys()
        assert (await at.ask(agent_request("messages"))).status_code == 200 and KEY.encode() not in got


async def test_a_thousand_connections_that_say_nothing_do_not_keep_others_out(tmp_path: Path) -> None:
    """Those of one run: another run's gateway answers meanwhile, and the run's own as soon as they are gone."""
    with allow_open_files(), run_odd_provider(*[chunk(good_answer("messages"))] * 9) as far:
        async with (
            connect_agent(far, "messages", tmp_path / "one") as (client, _meter),
            connect_agent(far, "messages", tmp_path / "two", "of-another-run") as (other, _others),
        ):
            async with AsyncExitStack() as lines:
                for number in range(1_000):
                    line = await lines.enter_async_context(await anyio.connect_unix(tmp_path / "one"))
                    with suppress(anyio.BrokenResourceError):
                        await line.send(POST.encode() + b"content-length: 9\r\n\r\n" if number % 2 else b"POST")
                    if number % 250 == 9:
                        assert (await seen_answer(other, "messages"))[0] == WHOLE
            assert (await seen_answer(client, "messages"))[0] == WHOLE
            other.headers["authorization"] = client.headers["authorization"]
            assert (await seen_answer(other, "messages"))[0] == 401, "each has a secret of its own"

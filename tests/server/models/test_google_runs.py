"""Runs by Google's format."""

from pathlib import Path

import anyio
from support.model_server import Fail, Gate, Say, Script, run_model_server
from support.models import google_format
from support.models.google_wire import MODEL, google_error, google_events, usage_of
from support.runtime import check_requests, hand_over, open_lab

from ava_audit.events import AssistantMessage, CostUpdate, RunClaimed
from ava_server.models.wires.google import WITHOUT_SIGNATURE

CONFIG = f"""
[providers.custom]
wire = "google"
[prices."{MODEL}"]
input = 2.0
output = 10.0
cache_read = 0.1
cache_write = 2.5
"""
ENV = {"AVA_MODEL": MODEL}


async def test_a_run_calls_tools_and_sends_the_same_bytes_after_a_kill(tmp_path: Path) -> None:
    gate = Gate()
    usage = usage_of(9_000, 200, 300, cachedContentTokenCount=6_000)
    reads = Say("I read.", [("read_file", {"path": "0.md"})], reasoning="Where is it?", usage=usage)
    with run_model_server([reads, Say("lost", gate=gate), hand_over()]) as server:
        async with open_lab(tmp_path, server=server, config=CONFIG, env=ENV, check=False) as lab:
            (lab.workspace / "0.md").write_text("twelve cents\n")
            run_id = await lab.start(extended_thinking=True)
            with anyio.fail_after(40):
                assert await anyio.to_thread.run_sync(gate.arrived.wait, 10)
        async with open_lab(tmp_path, server=server, config=CONFIG, env=ENV, check=False) as lab:
            run = await lab.ended(run_id)
            assert run.state == "success", run.stop_reason
            assert [fact.reason for fact in await lab.facts(run_id, RunClaimed)] == ["start", "takeover"]
            entries = [entry for entry in await lab.entries(run_id) if isinstance(entry.fact, CostUpdate)]
            assert entries[0].cost_micros == 3_000 * 2 + 6_000 * 0.1 + 500 * 10
            (first, *_) = [fact for fact in await lab.facts(run_id, AssistantMessage) if fact.turn]
            assert (first.text, first.stop_reason, first.request_id) == ("I read.", "STOP", "resp1")
        assert server.refused == []
        await check_requests(tmp_path / "data", server.requests)
        _, lost, again = server.requests
        assert again.body == lost.body
        assert again.path == f"/v1/models/{MODEL}:streamGenerateContent?alt=sse"
        called, result = again.json["contents"][-2:]
        assert called["parts"][-1]["thoughtSignature"] == google_format.SIGNATURE
        assert "twelve cents" in str(result["parts"][0]["functionResponse"]["response"])


async def test_a_run_goes_on_after_cuts_refusals_rejected_calls_and_lost_signatures(tmp_path: Path) -> None:
    malformed = {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "print(read_file('0"}]}
    malformed["usageMetadata"] = usage_of(9_000, 5)  # type: ignore[assignment]
    script: Script = [
        Say("I read it.", [("read_file", {"path": "0.md"})], reasoning="Where?"),
        Fail(400, google_error(400, "INVALID_ARGUMENT", "Thought signature is not valid.")),
        Say("I would rather not.", finish_reason="content_filter"),
        google_events(malformed),
        hand_over(),
    ]
    async with open_lab(tmp_path, script, config=CONFIG, env=ENV) as lab:
        (lab.workspace / "0.md").write_text("twelve cents\n")
        run = await lab.ended(await lab.start(extended_thinking=True))
        assert run.state == "success", run.stop_reason
        assert lab.server.refused == []
        sent = [request.json["contents"] for request in lab.server.requests]
    assert google_format.SIGNATURE in str(sent[1]), "as it came"
    assert google_format.SIGNATURE not in str(sent[2]) and WITHOUT_SIGNATURE in str(sent[2])
    assert "filter" in str(sent[3][-1])
    assert "print(read_file(" in str(sent[4][-1])

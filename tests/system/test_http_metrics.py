"""`/metrics` of a server over HTTP: for whom, and that it is what Prometheus reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.http_server import serve_http, token
from support.model_server import Say, run_model_server
from support.stdio import make_root, model_env

pytestmark = pytest.mark.skipif("sys.platform == 'win32'", reason="signals as POSIX has them")
DONE = Say(calls=[("submit_result", {"summary": "all is said", "output": "marmalade"})])


@pytest.mark.slow
@pytest.mark.requirement("S1-33")
async def test_only_an_audit_token_can_read_the_metrics_of_all_users(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    ana, auditor = token(root, "ana", "spawn", "read", "approve"), token(root, "prometheus", "audit")
    with run_model_server([DONE]) as model:
        async with serve_http(root, env=model_env(model.base_url)) as server:
            async with server.client(ana) as client:
                given = {"role": "custom", "system_prompt": "Look it up.", "task": "marmalade"}
                proposed = (await client.call_tool("spawn_subagent", given)).structured_content or {}
                lines = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
                await client.call_tool("confirm_spawn", lines)
                await client.call_tool("check_subagent", {"subagent_id": proposed["subagent_id"], "wait_seconds": 20})
            async with server.client(ana, mode="legacy"):
                told = await server.get("/metrics", auditor)
            refused = await server.get("/metrics", ana)
            head = await server.request("HEAD", "/metrics", auditor)
            posted = await server.post("/metrics", auditor, json={})
    assert told.status_code == 200 and told.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (s.name, *s.labels.values()): s.value for f in text_string_to_metric_families(told.text) for s in f.samples
    }
    assert samples["ava_runs_ended_total", "success", "custom"] == 1
    assert samples[("ava_sessions_open",)] == 1
    assert "marmalade" not in told.text and "ana" not in {part for name in samples for part in name}
    assert refused.status_code == 403 and "audit" in refused.json()["error_description"]
    assert (head.status_code, head.text) == (200, "") and (posted.status_code, posted.headers["allow"]) == (
        405,
        "GET, HEAD",
    )

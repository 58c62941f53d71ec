"""Runs that search the web: what is proposed, what is searched, what is counted, and what `ava doctor` says of it."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.commands.doctor import doctor, read_findings
from support.model_server import Fail, Gate, ModelServer, Say, run_model_server
from support.runtime import hand_over, open_lab, submit, wait_for
from support.stdio import until
from support.terminal import ava

from ava_audit.events import RunClaimed, ToolResult
from ava_server.config.keys import remove_key, set_key

pytestmark = pytest.mark.usefixtures("without_keys")

KEY = "search-key-0123456789abcdef"
TASK = "Find out what podcast transcription costs."
HITS = {"data": {"search": [{"url": "https://a.example/prices", "title": "Prices", "snippet": "Otter costs nine."}]}}
LOOK = Say(calls=[("web_search", {"query": "Otter costs ten, says nobody"})])


@pytest.fixture
def kagi() -> Generator[ModelServer]:
    with run_model_server([Fail(200, HITS)] * 5) as server:
        yield server


def config(server: ModelServer) -> str:
    return f'[search]\nkagi_url = "http://127.0.0.1:{server.port}/api/v1"\n'


def store(tmp_path: Path, provider: str = "kagi") -> Path:
    file = tmp_path / "data" / "keys.toml"
    file.parent.mkdir(mode=0o700, exist_ok=True)
    set_key(provider, KEY, file)
    return file


@pytest.mark.requirement("S2-11")
async def test_a_crawler_uses_the_proposed_search_engine_and_counts_each_search(
    tmp_path: Path, kagi: ModelServer
) -> None:
    store(tmp_path)
    findings = [
        {"claim": "nine", "quote": "Otter costs nine.", "source_url": "https://a.example/prices"},
        {"claim": "ten", "quote": "Otter costs ten, says nobody", "source_url": "https://a.example/prices"},
    ]
    again = Say(calls=[("web_search", {"query": "more of it", "count": 1})])
    async with open_lab(tmp_path, [LOOK, again, submit(findings=findings)], config=config(kagi)) as lab:
        made = await lab.propose(role="web_crawler", task=TASK, workspace=None)
        assert "Its web searches go to Kagi, about $0.012 each, not included in any cost cap." in made.message
        assert "can search and read the web" in made.approval_line
        await lab.approve(made)
        row = await lab.ended(made.subagent_id)
        result = await lab.result(made.subagent_id)
        shown, *_ = await lab.facts(made.subagent_id, ToolResult)
        sent = b"".join(request.body for request in lab.server.requests)
    assert row.state == "success"
    assert result["tool_receipts"]["web_search"] == {"ok": 2, "failed": 0}
    assert [request.json["query"] for request in kagi.requests] == ["Otter costs ten, says nobody", "more of it"]
    assert [request.json["limit"] for request in kagi.requests] == [8, 1]
    assert (shown.count, shown.sources) == (1, ({"location": "https://a.example/prices", "title": "Prices"},))
    assert "Otter costs nine." in shown.output and "Otter costs ten" not in shown.output
    # What the model itself looked for is nothing that it read.
    assert [quote["verdict"] for quote in result["quotes_checked"]] == ["found", "not_found"]
    kept = b"".join(
        path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.suffix != ".toml" and path.is_file()
    )
    assert KEY.encode() not in sent + kept


async def test_a_crawler_without_search_needs_pages_until_a_key_is_added(tmp_path: Path, kagi: ModelServer) -> None:
    async with open_lab(tmp_path, [LOOK, hand_over()], config=config(kagi)) as lab:
        refused = await lab.call("spawn_subagent", role="web_crawler", task=TASK)
        assert refused.status == "failed"
        for words in ("needs web_search", "https://", "key set brave`", "[search] searxng"):
            assert words in refused.message
        named = await lab.propose(role="web_crawler", task=f"{TASK} See https://a.example/prices", workspace=None)
        assert "web_search" in named.unavailable_tools and "web searches go to" not in named.message
        lost = "It goes without web_search (no search engine is set up; `ava doctor` says how)."
        assert lost in named.message.splitlines()
        told = await lab.propose(role="web_crawler", task=TASK, context="See https://a.example/", workspace=None)
        assert "web_search" in told.unavailable_tools
        store(tmp_path)
        run_id = await lab.start(role="web_crawler", task=TASK, workspace=None)
        await lab.ended(run_id)
    assert len(kagi.requests) == 1


async def test_tells_the_model_if_search_is_removed_during_a_run(tmp_path: Path, kagi: ModelServer) -> None:
    file, gate = store(tmp_path), Gate()
    look = Say(calls=LOOK.calls, gate=gate)
    async with open_lab(tmp_path, [look, hand_over()], config=config(kagi)) as lab:
        run_id = await lab.start(role="web_crawler", task=TASK, workspace=None)
        await wait_for(gate.arrived)
        remove_key("kagi", file)
        store(tmp_path, "brave")  # another one is not taken in its place
        gate.released.set()
        await lab.ended(run_id)
        failed, _handed_over = await lab.facts(run_id, ToolResult)
    assert not failed.success and "was removed after this run was approved" in failed.output
    assert kagi.requests == []


async def test_a_run_waits_if_the_approved_search_engine_is_not_configured(tmp_path: Path, kagi: ModelServer) -> None:
    file = store(tmp_path)
    async with open_lab(tmp_path, [hand_over()], config=config(kagi)) as lab:
        made = await lab.propose(role="web_crawler", task=TASK, workspace=None)
        remove_key("kagi", file)
        store(tmp_path, "brave")  # another one is not taken in its place
        await lab.approve(made)
        waits_for = await until(lambda: lab.runtime.manager.waiting_for.get(made.subagent_id))
        assert waits_for == "its web search (kagi) is not set up here"
        assert await lab.facts(made.subagent_id, RunClaimed) == []
        store(tmp_path)
        assert (await lab.ended(made.subagent_id)).state == "success"


@pytest.mark.parametrize(("engine", "starts"), [("kagi", False), ("searxng", True)])
async def test_auto_approval_excludes_paid_search_but_allows_free_search(
    tmp_path: Path, kagi: ModelServer, engine: str, starts: bool
) -> None:
    store(tmp_path)
    own = f'engine = "{engine}"\nsearxng = "http://127.0.0.1:{kagi.port}"\n'
    auto = 'approval = "auto"\nauto_approve_cents = 500\nauto_approve_daily_cents = 500\n'
    fetch = '[fetch]\nhosts = ["example.org"]\n'
    async with open_lab(tmp_path, [hand_over()], config=f"{auto}{config(kagi)}{own}{fetch}") as lab:
        made = await lab.call("spawn_subagent", role="web_crawler", task=TASK, blocked_tools=["python_exec"])
        assert made.status == ("approved" if starts else "awaiting_approval"), made.message
        if starts:
            assert "Its web searches go to SearXNG, free." in made.message
            await lab.ended(made.subagent_id)
        else:
            assert "its web searches cost money, which the ceilings do not count" in made.message


async def test_an_error_of_the_search_engine_fails_only_the_call(tmp_path: Path) -> None:
    store(tmp_path)
    with run_model_server([Fail(429, {"error": KEY}, retry_after="7")]) as engine:
        async with open_lab(tmp_path, [LOOK, hand_over()], config=config(engine)) as lab:
            result = await lab.outcome(role="web_crawler", task=TASK, workspace=None)
            assert "Kagi asks for fewer searches (HTTP 429): try again in 7 s" in lab.server.requests[-1].body.decode()
            assert KEY.encode() not in lab.server.requests[-1].body
    assert (result["status"], result["tool_receipts"]["web_search"]) == ("success", {"ok": 0, "failed": 1})


async def test_never_inserts_a_secret_into_a_search(tmp_path: Path, kagi: ModelServer) -> None:
    store(tmp_path)
    look = Say(calls=[("web_search", {"query": "who has {{secret:TOKEN}}"})])
    async with open_lab(tmp_path, [look, hand_over()], config=config(kagi)) as lab:
        await lab.outcome(role="web_crawler", task=TASK, workspace=None)
        assert "web_search takes no secrets" in lab.server.requests[-1].body.decode()
    assert kagi.requests == []


# -- what a person is told ------------------------------------------------------------------------------------------


def finding(root: Path, *args: str, **env: str) -> tuple[str, str]:
    found = doctor(root, *args, **env)["search"]
    return found["state"], f"{found['text']} {found['what_to_do']}"


@pytest.mark.slow
def test_the_doctor_names_the_configured_search_engine_and_what_is_missing(tmp_path: Path) -> None:
    state, text = finding(tmp_path)
    assert state == "note" and "none is set up" in text and "ava key set brave" in text
    assert finding(tmp_path, KAGI_API_KEY=KEY) == (
        "ok", "Kagi at https://kagi.com/api/v1, about $0.012 each, not included in any cost cap ",
    )  # fmt: skip
    assert "Brave at https://api.search.brave.com/res/v1, about $0.005 each" in finding(tmp_path, BRAVE_API_KEY=KEY)[1]
    own = {"AVA_SEARCH__SEARXNG": "http://127.0.0.1:8888"}
    assert finding(tmp_path, **own) == ("ok", "SearXNG at http://127.0.0.1:8888, free ")
    state, text = finding(tmp_path, AVA_SEARCH__ENGINE="brave", **own)
    assert state == "warning" and "search.engine is brave, and there is no key for it" in text
    state, text = finding(tmp_path, AVA_SEARCH__ENGINE="searxng", KAGI_API_KEY=KEY)
    assert state == "warning" and "search.searxng is empty" in text
    assert finding(tmp_path, AVA_SEARCH__ENGINE="none", KAGI_API_KEY=KEY)[0] == "note"


def test_the_crawler_can_run_with_a_search_engine(tmp_path: Path) -> None:
    assert "web_crawler" in doctor(tmp_path, KAGI_API_KEY=KEY)["roles"]["text"]
    assert "there is no web search" in doctor(tmp_path)["role web_crawler"]["text"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "state", "words"),
    [
        (Fail(200, HITS), "ok", "answered with 1 result"),
        (Fail(200, {"data": {"search": []}}), "warning", "answered with 0 results"),
        (Fail(401, {"error": KEY}), "fault", "Kagi refused the key (HTTP 401)"),
    ],
)
def test_the_online_doctor_searches_once_after_stating_the_cost(
    tmp_path: Path, step: Any, state: str, words: str
) -> None:
    with run_model_server([step]) as server:
        (tmp_path / "config.toml").write_text(config(server))
        done = ava(tmp_path, "doctor", "--online", "--json", env={"KAGI_API_KEY": KEY})
        assert len(server.requests) == 1
        inside = ava(tmp_path, "doctor", "--online", "--json", env={"KAGI_API_KEY": KEY, "AVA_RUN_ID": "S-7f3a2b"})
        assert len(server.requests) == 1, "no subagent's process searches at the user's cost"
    assert "Searching once by Kagi: about $0.012 each" in done.stderr
    assert KEY not in done.stdout + done.stderr + inside.stdout
    found = read_findings(done)["online Kagi"]
    assert found["state"] == state and words in found["text"]

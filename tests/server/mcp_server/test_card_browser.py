"""The card in a real browser: it follows a run over the bridge, and no text of a subagent gets out of its place."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.extension import advertise
from mcp_types import TextResourceContents
from playwright.async_api import Browser
from support.model_server import Gate, Say
from support.pages.card_host import WIDTH, CardHost, browser, card_host, needs_browser
from support.runs import plans
from support.runtime import PRICED, connect, submit, wait_for

from ava_server.core.ids import state_words
from ava_server.mcp_server import card

pytestmark = needs_browser
BIDI = "\u202e\u2066\u200f\u061c\u200b\U000e0041"
LURE = "</pre></section><img src='https://evil.test/x.png' onerror='alert(1)'><script>alert(2)</script>"
FOUND = {
    "summary": "An otter costs twelve cents.",
    "output": "The whole price list.",
    "findings": [{"claim": "It costs 12 cents", "quote": "otter,12", "source_url": "https://prices.example/list"}],
    "caveats": ["Only one shop."],
}


Open = Callable[..., AbstractAsyncContextManager[CardHost]]


@pytest.fixture(scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with browser() as opened:
        yield opened


@pytest.fixture
def open_card(chromium: Browser) -> Open:
    return partial(card_host, chromium)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "legacy"], ids=["stateless era", "handshake era"])
async def test_follows_a_run_from_its_approval_to_its_result(tmp_path: Path, open_card: Open, mode: str) -> None:
    gate = Gate()
    script = [Say("x", calls=[("scratchpad", {"note": "half"})]), Say(calls=[("submit_result", FOUND)], gate=gate)]
    declared = [advertise(card.EXTENSION, {"mimeTypes": [card.MIME]})]
    async with connect(tmp_path, script, mode=mode, config=PRICED, extensions=declared) as (client, _models):

        async def read(uri: str) -> str:
            [content] = (await client.read_resource(uri, cache_mode="bypass")).contents
            assert isinstance(content, TextResourceContents)
            return content.text

        given = {"role": "researcher", "task": "prices", "name": "prices", "workspace": str(tmp_path / "workspace")}
        made = (await client.call_tool("spawn_subagent", given)).structured_content or {}
        async with open_card(read) as host:
            approval = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]}
            answer = await client.call_tool("confirm_spawn", approval)
            await host.result(answer.model_dump(mode="json", by_alias=True, exclude_none=True))
            await wait_for(gate.arrived)
            await host.sees("scratchpad note=half: success")
            assert "of $0.50" in await host.text() and "of 10 min" in await host.text()
            gate.released.set()
            await host.sees("The whole price list.")
            shown = await host.text()
            for words in ("success", "twelve cents", "otter,12", "https://prices.example/list", "Only one shop."):
                assert words in shown
        listed = (await client.call_tool("check_subagent", {})).structured_content or {}
        assert made["subagent_id"] in str(listed["runs"]), "the card has marked nothing as fetched"


@pytest.mark.slow
async def test_follows_a_plan_from_its_approval_to_its_result(tmp_path: Path, open_card: Open) -> None:
    gate = Gate()
    declared = [advertise(card.EXTENSION, {"mimeTypes": [card.MIME]})]
    script = [submit("found"), Say(calls=[("submit_result", FOUND)], gate=gate)]
    async with connect(tmp_path, script, config=PRICED, extensions=declared) as (client, _models):

        async def read(uri: str) -> str:
            [content] = (await client.read_resource(uri, cache_mode="bypass")).contents
            assert isinstance(content, TextResourceContents)
            return content.text

        steps = [plans.step("find", "Find it."), plans.step("write", "Write it.", after=["find"])]
        given = {"steps": steps, "name": "prices", "workspace": str(tmp_path / "workspace")}
        made = (await client.call_tool("spawn_subagent", given)).structured_content or {}
        async with open_card(read) as host:
            approval = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]}
            answer = await client.call_tool("confirm_spawn", approval)
            await host.result(answer.model_dump(mode="json", by_alias=True, exclude_none=True))
            await wait_for(gate.arrived)
            await host.sees("1 of 2 steps done")
            shown = await host.text()
            assert 'Step "find": done' in shown and "There are no runs." not in shown and "turn " not in shown
            gate.released.set()
            await host.sees("every step is done")
            assert "2 of 2 steps done" in await host.text()
        async with open_card(read) as host:  # opened after its end, as when a conversation is opened again
            checked = await client.call_tool("check_subagent", {"group_id": made["group_id"]})
            await host.result(checked.model_dump(mode="json", by_alias=True, exclude_none=True))
            await host.sees("2 of 2 steps done")


@pytest.mark.slow
async def test_shows_subagents_that_were_approved_together(tmp_path: Path, open_card: Open) -> None:
    declared = [advertise(card.EXTENSION, {"mimeTypes": [card.MIME]})]
    async with connect(tmp_path, lambda _request: submit(), config=PRICED, extensions=declared) as (client, _models):
        made = [
            (await client.call_tool("spawn_subagent", {"role": "researcher", "task": task})).structured_content or {}
            for task in ("one", "two")
        ]
        lines = [*(each["approval_line"] for each in made), "2 subagents together, at most $1.00"]
        approval = {"pending_ids": [each["pending_id"] for each in made], "approving": lines}
        answer = await client.call_tool("confirm_spawn", approval)
        group_id = (answer.structured_content or {})["group_id"]
        checked = await client.call_tool("check_subagent", {"group_id": group_id, "wait_seconds": 30})
        for result in (answer, checked):
            async with open_card() as host:
                await host.result(result.model_dump(mode="json", by_alias=True, exclude_none=True))
                for each in made:
                    await host.sees(each["subagent_id"])
                assert "There are no runs." not in await host.text()


async def test_hostile_texts_stay_text_in_their_place(open_card: Open) -> None:
    long = "x" * 200_000
    texts = {
        "summary": f"{LURE} {BIDI}summary", "output": f"{LURE}\n{long}",
        "findings": [{"claim": LURE + long, "quote": LURE, "source_url": f"javascript:alert(3) {LURE}"}] * 60,
        "caveats": [LURE, 7, None], "artifacts": [{"name": LURE, "bytes": LURE}], "error_text": LURE,
        "changed": {"files": [{"path": LURE + long}]},
    }  # fmt: skip
    hostile = run(
        1, **ended(**texts), name=f"{LURE}{BIDI}", role=long, model=LURE, stop_reason=LURE, error={"what_to_do": LURE},
        untrusted_steps=[{"at": LURE, "what": LURE + long, "outcome": BIDI, "failed": True}] * 50,
        untrusted_question=LURE, quotes_checked=[{"finding": 1, "verdict": "__proto__"}],
        plan={"steps": {LURE: LURE}, "lines": [LURE + long] * 60},
    )  # fmt: skip
    async with open_card() as host:
        await host.runs(hostile)
        await host.sees("<img src='https://evil.test/x.png'")
        for tag, most in (("img", 0), ("a", 0), ("iframe", 0), ("button", 0), ("script", 1), ("section", 2)):
            assert await host.value(f"document.getElementsByTagName('{tag}').length") <= most, tag
        shown = await host.text()
        assert not set(BIDI) & set(shown)
        assert await host.value("document.documentElement.scrollWidth") <= WIDTH, "a line has made the page wider"
        assert await host.value("document.documentElement.scrollHeight") < 5_000
        assert len(shown) < 150_000 and "more characters)" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({}, "The answer is empty."),
        ({"content": [{"type": "text", "text": "only text"}]}, "only text"),
        ({"structuredContent": {"runs": [None, 3, {}, {"subagent_id": "S-00000g"}]}}, "There are no runs."),
        ({"structuredContent": {"runs": {"length": 3}, "decisions": "x", "message": "none"}}, "none"),
        ({"structuredContent": {"status": "failed", "message": "no such run"}, "isError": True}, "no such run"),
    ],
)
async def test_an_answer_without_runs_is_told_in_a_sentence(
    open_card: Open, result: dict[str, Any], words: str
) -> None:
    async with open_card() as host:
        await host.result(result)
        await host.sees(words)
        assert (await host.text()).splitlines()[0] == words


async def test_a_run_with_wrong_types_does_not_hide_the_others(open_card: Open) -> None:
    odd = run(1, cost_cents="many", limits=7, untrusted_steps={"a": 1}, untrusted_result={"findings": 3, "output": 5})
    bad = run(2, limits={"timeout": {}, "max_cost_cents": {"toString": 1}}, error=5)
    async with open_card() as host:
        await host.runs(odd, bad, run(3))
        await host.sees("prices 3")
        assert await host.value("document.querySelectorAll('.run').length") == 3


async def test_several_runs_are_a_list_that_opens(open_card: Open) -> None:
    async with open_card() as host:
        await host.runs(run(1, **ended(summary="First.", output="one")), run(2), *(run(n) for n in range(3, 30)))
        await host.sees("prices 20")
        assert await host.value("[...document.querySelectorAll('.run')].filter((one) => one.open).length") == 0
        assert "9 more runs are not shown." in await host.text() and "First." not in await host.text()
        await host.card.locator("summary").first.click()
        await host.sees("First.")


@pytest.mark.parametrize("state", ["awaiting_approval", "awaiting_extension", "awaiting_answer", "held"])
async def test_what_waits_for_a_person_has_nothing_to_decide_with(open_card: Open, state: str) -> None:
    waits = "a person to agree; then call confirm_spawn with pending_ids"
    async with open_card() as host:
        await host.runs(run(1, state=state, waits_for=waits, untrusted_question="May I?", limits={"timeout": 600}))
        await host.sees("free · 45 s of 10 min")
        await host.sees(state_words(state))
        await host.sees("Waits for a person. Decide in your host or a terminal, not here.")
        assert "confirm_spawn" not in await host.text()
        controls = "document.querySelectorAll('button, a, input, form, select, textarea, [onclick]').length"
        assert await host.value(controls) == 0
        for element in await host.card.locator("body *").all():
            if await element.is_visible():
                await element.dispatch_event("click")
        await host.page.keyboard.press("Enter")  # what it sends is compared when the host closes


async def test_without_reading_it_shows_what_the_host_passes_on(open_card: Open) -> None:
    async with open_card() as host:
        await host.runs(run())
        await host.sees("45 s of 600 s · turn 4 of 20 · 12k tokens · $0.06 of $0.50")
        await host.runs(run(**ended(summary="Done.", output="Done.")))
        await host.sees("Done.")
        assert (await host.text()).count("Done.") == 1, "an output that repeats the summary is left out"


async def test_a_host_that_fails_to_read_is_asked_three_times(open_card: Open) -> None:
    asked: list[str] = []

    async def read(uri: str) -> str:
        asked.append(uri)
        raise OSError("not today")

    async with open_card(read) as host:
        await host.page.clock.install()
        await host.runs(run())
        for _ in range(20):
            await host.page.clock.run_for(1_000)
        await host.sees("No longer up to date")
        await host.page.clock.run_for(60_000)
        assert asked == ["ava://runs/S-000001"] * 3
        host.problems.clear()


async def test_an_answer_about_another_run_is_not_taken(open_card: Open) -> None:
    async def read(_uri: str) -> str:
        return '{"subagent_id": "S-0000ff", "state": "success", "name": "another"}'

    async with open_card(read) as host:
        await host.runs(run())
        await host.until("heard.some((message) => message.method === 'resources/read')")
        await anyio.sleep(0.2)
        assert "another" not in await host.text() and "prices 1" in await host.text()


async def test_the_theme_and_colours_come_from_the_host(open_card: Open) -> None:
    variables = {
        "--color-background-primary": "light-dark(rgb(1, 2, 3), rgb(4, 5, 6))",
        "--color-text-primary": "url(https://evil.test/a)",
        "--back": "red",
        "position": "fixed",
    }
    back = "getComputedStyle(document.body).backgroundColor"
    async with open_card(context={"theme": "dark", "styles": {"variables": variables}}) as host:
        assert await host.value(back) == "rgb(4, 5, 6)"
        await host.notify("ui/notifications/host-context-changed", {"theme": "light"})
        await host.becomes(f"{back} === 'rgb(1, 2, 3)'")
        assert await host.value("document.documentElement.style.position") == ""
        assert await host.value("document.documentElement.style.getPropertyValue('--color-text-primary')") == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_without_a_theme_it_follows_the_system(open_card: Open, scheme: str) -> None:
    async with open_card(scheme=scheme) as host:
        shade = await host.value("getComputedStyle(document.body).backgroundColor")
        assert shade == {"light": "rgb(255, 255, 255)", "dark": "rgb(28, 28, 30)"}[scheme]


async def test_it_says_how_high_it_is(open_card: Open) -> None:
    async with open_card() as host:
        await host.runs(run(**ended(summary="line\n" * 30, output="other")))
        await host.sees("line")
        whole = "document.documentElement.scrollHeight"
        high = await host.value(whole)
        assert high > 400
        await host.until(f"Math.abs(parseInt(frame.style.height) - {high}) <= 1")
        # The card is laid out in its new height a moment after its host has set it.
        await host.becomes(f"window.innerHeight >= {whole}")


async def test_only_the_host_is_listened_to(open_card: Open) -> None:
    async with open_card() as host:
        await host.runs(run())
        await host.sees("prices 1")
        forged = {"jsonrpc": "2.0", "method": "ui/notifications/tool-cancelled", "params": {}}
        await host.value(f"window.postMessage({forged}, '*')")
        await host.page.evaluate(
            """async (forged) => {
              const other = document.createElement("iframe");
              other.srcdoc = `<script>parent.frames[0].postMessage(${JSON.stringify(forged)}, "*")<\\/script>`;
              await new Promise((resolve) => { other.onload = resolve; document.body.append(other); });
              other.remove();
            }""",
            forged,
        )
        await host.page.wait_for_timeout(100)
        assert "cancelled" not in await host.text()
        await host.notify("ui/notifications/tool-cancelled", {})
        await host.sees("The call was cancelled.")


async def test_a_ping_and_the_end_are_answered_and_anything_else_is_refused(open_card: Open) -> None:
    async with open_card() as host:
        for number, method in enumerate(("ping", "ui/resource-teardown", "tools/call")):
            await host.page.evaluate("(message) => send(message)", {"id": f"h{number}", "method": method, "params": {}})
        await host.until("heard.filter((message) => String(message.id).startsWith('h')).length === 3")
        answers = [message for message in await host.heard() if str(message.get("id")).startswith("h")]
        assert [each.get("result") for each in answers] == [{}, {}, None] and answers[2]["error"]["code"] == -32601


@pytest.mark.parametrize("around", ["{}", "<!doctype html><html><head><title>Ava</title></head><body>{}</body></html>"])
async def test_its_own_policy_lets_no_other_script_style_or_request_in(open_card: Open, around: str) -> None:
    async with open_card(around=around) as host:
        await host.value(
            """() => {
              const script = document.createElement("script");
              script.textContent = "document.title = 'taken'";
              document.body.append(script);
              const style = document.createElement("style");
              style.textContent = "body { outline: 9px solid red }";
              document.head.append(style);
              new Image().src = "https://evil.test/pixel.png";
            }"""
        )
        assert await host.value("fetch('https://evil.test/').then(() => 'sent', () => 'refused')") == "refused"
        assert await host.value("document.title") == "Ava"
        assert await host.value("getComputedStyle(document.body).outlineWidth") != "9px"


def run(number: int = 1, **more: Any) -> dict[str, Any]:
    """A run as `check_subagent` returns it."""
    given = {
        "subagent_id": f"S-{number:06x}", "role": "researcher", "name": f"prices {number}", "state": "running",
        "status_line": f"prices {number}: running · 45 s of 600 s · turn 4 of 20 · 12k tokens · $0.06 of $0.50",
        "cost_cents": 6.0, "elapsed_seconds": 45.2, "iteration": 4, "model": "custom:test",
    }  # fmt: skip
    return {**given, **more}


def ended(**result: Any) -> dict[str, Any]:
    return {"state": "success", "status": "success", "untrusted_result": {"warning": "data", **result}}

"""Under the policy `human`, a client that can open a page sends the person there, and only the log has the decision."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.context import ClientRequestContext
from mcp_types import (
    CallToolRequestParams,
    ElicitCompleteNotification,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
)
from support.hosts.elicitation import ERAS, Host, Person, approval, decline, end_pages, structured
from support.hosts.extensions import CAP, works
from support.http_server import serving_http, token
from support.model_server import ModelServer, Script, running_model_server
from support.runtime import PRICED, connect, hand_over
from support.stdio import AVA, environment, using
from support.stdio import made as made_root

from ava_audit.entries import Entry
from ava_audit.events import Answered, Asked, Channel, SpawnDecided, Who
from ava_audit.rows import WAITING
from ava_audit.store.store import Store
from ava_audit.view import View
from ava_server.approval import requests as limits_of_calls
from ava_server.approval.decisions import Approval, approve, reject
from ava_server.approval.proposals import SpawnLimits
from ava_server.budget.user_limits import DayCaps
from ava_server.config.pin import PinFile
from ava_server.config.settings import Limits
from ava_server.config.tokens import Token
from ava_server.core import background
from ava_server.core.data_root import DataRoot, os_user
from ava_server.core.errors import ConfigError
from ava_server.mcp_server import elicitation
from ava_server.mcp_server.app import HTTP, OF_REQUEST
from ava_server.runs.extension import ExtensionLimits
from ava_server.runs.pending_questions import decide_question
from ava_server.runs.question_kinds import Decider
from ava_server.service import access

HUMAN = f'approval = "human"\n{PRICED}'
ADDRESS = "http://localhost:8643"
PIN = "tortoise-9"
Opening = Callable[[ElicitRequestURLParams], Awaitable[ElicitResult | ErrorData]]


@pytest.fixture(params=ERAS, ids=["handshake era", "modern era"])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def known_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process starts no server for the pages; their address is known."""
    monkeypatch.setattr(background, "start_pages", lambda _root: ADDRESS)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may wait only for a moment."""
    monkeypatch.setattr(elicitation, "ASK_S", 0.5)
    monkeypatch.setattr(limits_of_calls, "WAIT_LIMIT_S", 0.5)


@dataclass
class Browser:
    """The client's person: what happens when a page is to be opened, and what was opened and announced."""

    opens: Opening
    opened: list[ElicitRequestURLParams] = field(default_factory=list[ElicitRequestURLParams])
    completed: list[str] = field(default_factory=list[str])

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        assert isinstance(params, ElicitRequestURLParams), "no form is shown under this policy"
        self.opened.append(params)
        return await self.opens(params)

    async def hears(self, message: Any) -> None:
        if isinstance(message, ElicitCompleteNotification):
            self.completed.append(message.params.elicitation_id)


async def accepts(_page: ElicitRequestURLParams) -> ElicitResult:
    return ElicitResult(action="accept")


@dataclass
class At(Host):
    """A host whose client opens pages."""

    browser: Browser = field(default_factory=lambda: Browser(accepts))

    async def decide(
        self, *made: dict[str, Any], decision: str = "approve", channel: Channel = "browser", **more: Any
    ) -> None:
        """Decide as the pages and `ava approve` do, once the PIN was given."""
        who = Who("sess-browser", "person", os_user())
        ids = tuple(each["pending_id"] for each in made)
        limits = SpawnLimits(0, "", DayCaps(10**9, 10**9), ("", ""), 10**9)
        lines = tuple(approval(*made, **({"last": more.pop("last")} if "last" in more else {}))["approving"])
        command = approve(Approval(ids, lines, **more), who, channel, limits)
        async with Store.open(self.root) as store:
            outcome = await store.do(command if decision == "approve" else reject(ids, who, channel))
        assert all(one.refused_because is None for one in outcome.decisions), outcome


@asynccontextmanager
async def host(
    tmp: Path,
    mode: str,
    opens: Opening = accepts,
    config: str = HUMAN,
    script: Script = (),
    name: str | None = None,
) -> AsyncGenerator[At]:
    browser = Browser(opens)
    given = script or [hand_over(), hand_over()]
    opening = connect(tmp, given, config=config, mode=mode, asks=browser, hears=browser.hears, name=name)
    async with opening as (client, models):
        yield At(client, Person(decline), models, tmp / "data", tmp / "workspace", browser)


def reason(answer: dict[str, Any]) -> str:
    assert answer["status"] == "refused", answer
    return str(answer["decisions"][0]["refused_because"])


async def test_an_approval_on_the_page_starts_the_run_and_ends_the_wait(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era) as at:
        made = await at.propose()
        assert "a page of Ava" in made["next"]

        async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
            await at.decide(made)
            return ElicitResult(action="accept")

        at.browser.opens = opens
        answer = await at.confirm(made)
        assert answer["status"] == "approved", answer
        assert answer["decisions"][0]["subagent_id"] == made["subagent_id"]
        assert (await at.started_once(made)).channel == "browser"
        [page] = at.browser.opened
        assert page.url == f"{ADDRESS}/proposals/{made['pending_id']}", "neither a token nor a code"
        assert made["approval_line"] in page.message and "PIN" in page.message
        again = await at.confirm(made)
        assert "approved already" in reason(again) and len(at.browser.opened) == 1


async def test_an_approval_with_wait_seconds_returns_the_result(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era) as at:
        made = await at.propose()

        async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
            await at.decide(made, changes={made["pending_id"]: {"max_cost_micros": 200_000}})
            return ElicitResult(action="accept")

        at.browser.opens = opens
        answer = await at.confirm(made, wait_seconds=20)
        assert answer["runs"][0]["state"] == "success", answer
        assert answer["message"].startswith("The person lowered the cost cap from $0.50 to $0.20.")


async def test_a_rejection_on_the_page_is_the_answer(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era) as at:
        made = await at.propose()

        async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
            await at.decide(made, decision="reject")
            return ElicitResult(action="accept")

        at.browser.opens = opens
        answer = await at.confirm(made)
        assert answer["status"] == "rejected", answer
        assert answer["decisions"][0]["refused_because"] == "the person rejected it"
        assert "Ask the person what they want instead" in answer["next"] and at.models.requests == []


async def test_a_decision_in_a_terminal_ends_a_question_that_is_still_open(tmp_path: Path) -> None:
    async with host(tmp_path, "legacy") as at:
        made = await at.propose()

        async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
            await at.decide(made, channel="terminal")
            await anyio.sleep_forever()
            raise AssertionError

        at.browser.opens = opens
        answer = await at.confirm(made)
        assert answer["status"] == "approved", answer
        assert (await at.started_once(made)).channel == "terminal"
        [page] = at.browser.opened
        assert at.browser.completed == [page.elicitation_id], "the client is told to close its question"


async def test_a_decision_after_the_page_was_opened_ends_the_wait(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era) as at:
        made = await at.propose()
        async with anyio.create_task_group() as tasks:

            async def later(_page: ElicitRequestURLParams) -> ElicitResult:
                tasks.start_soon(at.decide, made)
                return ElicitResult(action="accept")

            at.browser.opens = later
            assert (await at.confirm(made))["status"] == "approved"
        await at.started_once(made)


@pytest.mark.usefixtures("short")
async def test_without_a_decision_the_call_ends_and_the_next_one_waits_on(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era) as at:
        made = await at.propose()
        answer = await at.confirm(made)
        assert reason(answer) == "it still waits for the person"
        for words in (
            f"can decide: {ADDRESS}/proposals/{made['pending_id']}", f"ava approve {made['pending_id']}",
            "Call confirm_spawn again with the same arguments to wait",
        ):  # fmt: skip
            assert words in answer["next"]
        await at.nothing_started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at.decide, made)
            assert (await at.confirm(made))["status"] == "approved"
        assert len(at.browser.opened) == 1, "the page is open already"
        await at.started_once(made)


async def test_a_host_that_opens_no_pages_is_given_the_link_with_the_proposal_and_then_waits(
    tmp_path: Path, era: str
) -> None:
    async with host(tmp_path, era, name="codex-mcp-client") as at:
        made = await at.propose()
        assert f"{ADDRESS}/enter?code=" in made["next"] and f"ava approve {made['pending_id']}" in made["next"]
        await at.nothing_started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at.decide, made)
            assert (await at.confirm(made))["status"] == "approved"
        assert at.browser.opened == []
        await at.started_once(made)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("pages", [True, False])
async def test_a_host_without_questions_is_told_the_ways_to_decide_and_not_to_wait_in_a_loop(
    tmp_path: Path, era: str, pages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_root: DataRoot) -> str:
        raise ConfigError("the pages are not installed")

    monkeypatch.setattr(access, "WAIT_LIMIT_S", 0.5)
    if not pages:
        monkeypatch.setattr(background, "start_pages", missing)
    async with connect(tmp_path, [hand_over()], config=HUMAN, mode=era, name="some host") as (client, models):
        at = At(client, Person(decline), models, tmp_path / "data", tmp_path / "workspace")
        made = await at.propose()
        assert ("/enter?code=" in made["next"]) == pages and f"ava approve {made['pending_id']}" in made["next"]
        answer = await at.confirm(made)
        assert reason(answer) == "it still waits for the person"
        assert "Do not wait in a loop" in answer["next"] and f"ava approve {made['pending_id']}" in answer["next"]
        await at.nothing_started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(at.decide, made)
            assert (await at.confirm(made))["status"] == "approved"
        await at.started_once(made)


async def test_a_pin_set_while_a_form_is_open_sends_the_person_to_the_page(tmp_path: Path, era: str) -> None:
    asked: list[str] = []
    root = DataRoot(tmp_path / "data")

    async def person(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.mode)
        if params.mode == "form":
            PinFile(root.approval_file).set(PIN)
            return ElicitResult(action="accept", content={})
        return ElicitResult(action="decline")

    async with connect(tmp_path, [hand_over()], config=PRICED, mode=era, asks=person) as (client, models):
        at = Host(client, Person(decline), models, root.path, tmp_path / "workspace")
        made = await at.propose()
        assert "declined to open the page" in reason(await at.confirm(made))
        assert asked == ["form", "url"]
        await at.nothing_started()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("content", [None, {}, {"decision": "Yes", "pin": PIN, "approved": True}])
async def test_a_client_that_accepts_by_itself_starts_nothing(
    tmp_path: Path, era: str, content: dict[str, str | int | float | bool | list[str] | None] | None
) -> None:
    async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
        return ElicitResult(action="accept", content=content)

    async with host(tmp_path, era, opens) as at:
        made = await at.propose()
        for _ in range(2):
            assert reason(await at.confirm(made)) == "it still waits for the person"
        await at.nothing_started()


@pytest.mark.parametrize(("action", "said"), [("decline", "declined to open the page"), ("cancel", "closed")])
async def test_a_person_who_does_not_open_the_page_ends_the_wait(
    tmp_path: Path, era: str, action: Any, said: str
) -> None:
    async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
        return ElicitResult(action=action, content={"decision": "Yes"})

    async with host(tmp_path, era, opens) as at:
        made = await at.propose()
        answer = await at.confirm(made)
        assert said in reason(answer) and "If the person said no" in answer["next"]
        assert ADDRESS in answer["next"]
        await at.nothing_started()
        await at.confirm(made)
        assert len(at.browser.opened) == 2, "another call asks again"


async def test_a_client_that_fails_to_open_the_page_starts_nothing(tmp_path: Path) -> None:
    async def opens(_page: ElicitRequestURLParams) -> ErrorData:
        return ErrorData(code=-32603, message="no browser")

    async with host(tmp_path, "legacy", opens) as at:
        assert "closed the question" in reason(await at.confirm(await at.propose()))
        await at.nothing_started()


async def test_two_proposals_are_one_page(tmp_path: Path, era: str) -> None:
    line = "2 subagents together, at most $1.00"
    async with host(tmp_path, era) as at:
        made = [await at.propose(task="Count the otters"), await at.propose(task="Count the seals")]

        async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
            await at.decide(*made, last=line, plan_ids=(("P-4e1b2c30", "G-4e1b2c3"),))
            return ElicitResult(action="accept")

        at.browser.opens = opens
        answer = await at.confirm(*made, last=line)
        assert answer["status"] == "approved" and answer["group_id"] == "G-4e1b2c3", answer
        first, second = (each["pending_id"] for each in made)
        assert at.browser.opened[0].url == f"{ADDRESS}/proposals?id={first}&id={second}"
        for each in made:
            assert (await at.started_once(each, requests=2)).channel == "browser"


async def test_a_group_of_which_one_was_rejected_waits_no_longer(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era) as at:
        made = [await at.propose(task="one"), await at.propose(task="two")]

        async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
            await at.decide(made[0], decision="reject")
            return ElicitResult(action="accept")

        at.browser.opens = opens
        answer = await at.confirm(*made, last="2 subagents together, at most $1.00")
        assert [one["status"] for one in answer["decisions"]] == ["rejected", "refused"], answer
        assert f"ava approve {made[1]['pending_id']}`" in answer["next"]
        assert at.models.requests == []


async def test_a_proposal_that_expires_ends_the_wait(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era, config=f"proposal_ttl_s = 2\n{HUMAN}") as at:
        made = await at.propose()
        with anyio.fail_after(40):
            answer = await at.confirm(made)
        assert "expired" in reason(answer), answer
        assert answer["decisions"][0]["fresh"]["status"] == WAITING
        assert at.models.requests == []


async def test_a_proposal_that_another_replaces_ends_the_wait(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era) as at:
        made = await at.propose(task_id="prices")
        async with anyio.create_task_group() as tasks:

            async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
                async def replace() -> None:
                    await at.propose(task_id="prices", task="another")

                tasks.start_soon(replace)
                return ElicitResult(action="accept")

            at.browser.opens = opens
            assert "was replaced by a newer proposal" in reason(await at.confirm(made))
        assert at.models.requests == []


@pytest.mark.parametrize("approving", [[], ["something else"]])
async def test_a_wrong_line_opens_no_page(tmp_path: Path, era: str, approving: list[str]) -> None:
    async with host(tmp_path, era) as at:
        made = await at.propose()
        answer = await at.call("confirm_spawn", pending_ids=[made["pending_id"]], approving=approving)
        assert "approving" in reason(answer) and at.browser.opened == []


async def test_limits_in_the_call_are_refused_because_the_page_has_its_own(tmp_path: Path, era: str) -> None:
    async with host(tmp_path, era) as at:
        made = await at.propose()
        answer = await at.confirm(made, changes={made["pending_id"]: {"caps": {"max_cost_cents": 20}}})
        assert answer["status"] == "failed" and "on the page" in answer["message"]
        assert at.browser.opened == []


async def test_without_pages_the_person_is_told_the_commands(
    tmp_path: Path, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_root: DataRoot) -> str:
        raise ConfigError("the server of `ava ui` did not start within 8 s")

    monkeypatch.setattr(background, "start_pages", fails)
    async with host(tmp_path, era) as at:
        made = await at.propose()
        answer = await at.confirm(made)
        assert answer["status"] == "failed" and f"ava approve {made['pending_id']}`" in answer["message"]
        assert "ava ui`" in answer["message"] and at.browser.opened == []
        await at.nothing_started()


async def test_an_answer_about_other_proposals_opens_the_right_page(tmp_path: Path) -> None:
    async with host(tmp_path, "auto") as at:
        one, other = await at.propose(task="one"), await at.propose(task="two")
        state = await at.question(approval(one))
        asked = await at.by_hand(approval(other), state, ElicitResult(action="accept"))
        assert isinstance(asked, InputRequiredResult) and asked.input_requests is not None
        [page] = [request.params for request in asked.input_requests.values()]
        assert isinstance(page, ElicitRequestURLParams) and page.url.endswith(other["pending_id"])
        await at.nothing_started(waiting=2)


async def test_a_connection_that_ends_ends_the_wait(tmp_path: Path, era: str) -> None:
    waits = anyio.Event()

    async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
        waits.set()
        return ElicitResult(action="accept")

    with anyio.fail_after(40):
        async with host(tmp_path, era, opens) as at, anyio.create_task_group() as tasks:
            made = await at.propose()
            tasks.start_soon(at.confirm, made)
            await waits.wait()
            tasks.cancel_scope.cancel()
        async with Store.open(at.root) as store:
            row = await store.read(lambda view: view.proposal(made["pending_id"]))
        assert row is not None and row.state == WAITING


# -- a run near a cap -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def near_a_cap(tmp_path: Path, era: str) -> AsyncGenerator[tuple[At, dict[str, Any], Asked]]:
    """A run that asks for more, which its person has approved on the page."""
    async with host(tmp_path, era, script=works) as at:
        made = await at.propose(**CAP)

        async def opens(_page: ElicitRequestURLParams) -> ElicitResult:
            await at.decide(made)
            return ElicitResult(action="accept")

        at.browser.opens = opens
        assert (await at.confirm(made))["status"] == "approved"
        with anyio.fail_after(20):
            while not (asked := await at.facts(made, Asked)):  # noqa: ASYNC110 - another store reads it
                await anyio.sleep(0.05)
        yield at, made, asked[0]


async def test_more_for_a_run_is_allowed_on_its_page(tmp_path: Path, era: str) -> None:
    async with near_a_cap(tmp_path, era) as (at, made, asked):
        run_id = made["subagent_id"]

        async def opens(page: ElicitRequestURLParams) -> ElicitResult:
            assert page.url == f"{ADDRESS}/subagents/{run_id}" and "Raise the cost cap" in page.message
            who = Who("sess-browser", "person", os_user())
            limits = ExtensionLimits(Limits(max_cost_cents=10**5), DayCaps(10**9, 10**9))
            command = decide_question(run_id, asked.digest, asked.proposed, Decider(who, who, "browser", limits))
            async with Store.open(at.root) as store:
                assert (await store.do(command)).status == "approved"
            return ElicitResult(action="accept", content={"max_cost_dollars": 9.0})

        at.browser.opens = opens
        checked = await at.call("check_subagent", subagent_id=run_id)
        assert checked["status"] != "awaiting_extension", checked
        ended = await at.call("check_subagent", subagent_id=run_id, wait_seconds=20)
        assert ended["status"] == "success", ended
        [decided] = await at.facts(made, Answered)
        assert (decided.decision, decided.channel) == ("approved", "browser")


@pytest.mark.usefixtures("short")
async def test_accepting_the_page_of_a_run_allows_it_nothing(tmp_path: Path, era: str) -> None:
    async with near_a_cap(tmp_path, era) as (at, made, _asked):
        at.browser.opens = accepts
        run_id = made["subagent_id"]
        checked = await at.call("check_subagent", subagent_id=run_id)
        assert checked["status"] == "awaiting_extension", checked
        assert f"at {ADDRESS}/subagents/{run_id}, or " in checked["message"]
        assert (await at.call("check_subagent", subagent_id=run_id))["status"] == "awaiting_extension"
        assert len(at.browser.opened) == 2, "one page for the proposal, and one for this"
        assert await at.facts(made, Answered) == []
        await at.call("cancel_subagent", subagent_id=run_id)


# -- real servers -----------------------------------------------------------------------------------------------------


def uses(models: ModelServer) -> dict[str, str]:
    """The variables for a model with a price."""
    return {**using(models.base_url), "AVA_MODEL": "test"}


def human_root(tmp_path: Path) -> DataRoot:
    """A data root with a PIN and a price for the test's model."""
    root = DataRoot(made_root(tmp_path / "data", config_toml=PRICED))
    PinFile(root.approval_file).set(PIN)
    return root


async def decide_in_browser(url: str, sign_in: dict[str, str]) -> str:
    """Open a page without a session, sign in, and approve what it shows, as a browser does; return the last page."""
    base = "/".join(url.split("/")[:3])
    headers = {"Accept": "text/html", "Origin": base, "Sec-Fetch-Site": "same-origin"}
    async with httpx2.AsyncClient(follow_redirects=True, headers=headers, timeout=20, trust_env=False) as http:
        asked = await http.get(url, headers={"Sec-Fetch-Site": "none"})
        assert asked.url.path == "/sign-in" and "Sign in" in asked.text
        shown = await http.post(f"{base}/sign-in", data={"to": _hidden(asked.text, "to")[0], **sign_in})
        assert str(shown.url) == url, "the person is back on the page that they wanted"
        fields = {name: _hidden(shown.text, name) for name in ("csrf", "id", "digest")}
        done = await http.post(f"{base}/proposals", data={**fields, "pin": PIN, "decision": "approve"})
        assert done.status_code == 200, done.text
        return done.text


def _hidden(page: str, name: str) -> list[str]:
    return [html.unescape(value) for value in re.findall(rf'name="{name}" value="([^"]*)"', page)]


@pytest.mark.slow
async def test_two_proposals_over_stdio_are_approved_on_a_page_that_is_served_on_demand(tmp_path: Path) -> None:
    root = human_root(tmp_path)
    said: list[str] = []
    given: dict[str, Any] = {"role": "custom", "system_prompt": "Look.", "max_cost_cents": 50}
    with running_model_server([hand_over(), hand_over()]) as models:

        async def opens(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
            assert isinstance(params, ElicitRequestURLParams)
            assert urlsplit(params.url).hostname == "localhost" and PIN not in params.url + params.message
            said.append(await decide_in_browser(params.url, {"pin": PIN}))
            return ElicitResult(action="accept")

        command = StdioServerParameters(command=AVA[0], args=["serve"], env=environment(root.path, **uses(models)))
        try:
            async with Client(stdio_client(command), mode="auto", elicitation_callback=opens) as client:
                made = [structured(await client.call_tool("spawn_subagent", {**given, "task": task})) for task in "ab"]
                assert {each["status"] for each in made} == {WAITING}, made
                call = approval(*made, last="2 subagents together, at most $1.00", wait_seconds=20)
                answer = structured(await client.call_tool("confirm_spawn", call))
                assert answer["status"] == "approved", answer
                assert {run["state"] for run in answer["runs"]} == {"success"} and len(said) == 1
                [one, _other] = await decided_in(root.path, *made)
                assert one.channel == "browser" and one.group_id == answer["group_id"]
        finally:
            await end_pages(root)


@pytest.mark.slow
async def test_a_persons_token_approves_on_the_page_of_the_server_that_asks(tmp_path: Path, era: str) -> None:
    root = human_root(tmp_path)
    with running_model_server([hand_over()]) as models:
        async with serving_http(root.path, env=uses(models)) as server:
            host_token, own = token(root.path, "ana"), token(root.path, "ana", "read", "approve", name="browser")

            async def opens(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
                assert isinstance(params, ElicitRequestURLParams) and params.url.startswith(server.base)
                await decide_in_browser(params.url, {"token": own})
                return ElicitResult(action="accept")

            async with server.client(host_token, mode=era, ask=opens) as client:
                given = {"role": "custom", "system_prompt": "Look.", "task": "Look", "max_cost_cents": 20}
                made = structured(await client.call_tool("spawn_subagent", given))
                answer = structured(await client.call_tool("confirm_spawn", approval(made, wait_seconds=20)))
                assert answer["runs"][0]["state"] == "success", answer
        [decided] = await decided_in(root.path, made)
        assert decided.channel == "browser"


@pytest.mark.slow
async def test_a_server_that_ends_ends_the_wait_for_the_person(tmp_path: Path, era: str) -> None:
    root = human_root(tmp_path)
    with running_model_server([]) as models:
        async with serving_http(root.path, "--drain", "1s", env=uses(models)) as server:

            async def opens(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
                server.signal()
                return ElicitResult(action="accept")

            made: dict[str, Any] = {}
            try:
                async with server.client(token(root.path, "ana"), mode=era, ask=opens) as client:
                    given = {"role": "custom", "system_prompt": "Look.", "task": "Look", "max_cost_cents": 20}
                    made = structured(await client.call_tool("spawn_subagent", given))
                    with suppress(MCPError, httpx2.HTTPError):
                        answer = structured(await client.call_tool("confirm_spawn", approval(made)))
                        assert answer["status"] in ("refused", "failed"), answer
            except* httpx2.HTTPError:  # the person's answer may find nobody any more
                pass
            assert await server.exited() == 0
        assert await decided_in(root.path, made) == []


async def decided_in(root: Path, *made: dict[str, Any]) -> list[SpawnDecided]:
    def query(view: View) -> list[Entry]:
        return [entry for each in made for entry in view.entries(each["subagent_id"])]

    async with Store.open(root) as store:
        return [entry.fact for entry in await store.read(query) if isinstance(entry.fact, SpawnDecided)]


@pytest.mark.parametrize(("user", "address"), [(os_user(), ADDRESS), ("ana", "https://ava.example")])
async def test_only_a_host_of_this_machine_is_sent_to_the_pages_of_this_machine(user: str, address: str) -> None:
    named_alike = Token("local-aa", user, ("spawn",), "0" * 64, 0, None)
    pages = SimpleNamespace(address=AsyncMock(return_value=ADDRESS))
    app = SimpleNamespace(transport=HTTP, url="https://ava.example", runtime=MagicMock(), pages=pages)
    request = SimpleNamespace(scope={OF_REQUEST: named_alike})
    ctx: Any = SimpleNamespace(
        session=SimpleNamespace(client_params=None, client_capabilities=None), request=request, lifespan_context=app
    )
    person = elicitation.ClientPerson(ctx, CallToolRequestParams(name="confirm_spawn"), 0)
    assert await person.address() == address

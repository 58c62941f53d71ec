"""A host whose client opens Ava's pages for its person, and what that person does there.

async with page_host(tmp_path, era) as at:
    made = await at.propose()
    at.when_opened(at.decide, made)
    answer = await at.confirm(made)
"""

from __future__ import annotations

import html
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitCompleteNotification, ElicitRequestParams, ElicitRequestURLParams, ElicitResult, ErrorData

from ava_audit.entries import Entry
from ava_audit.events import Asked, Channel, SpawnDecided, Who
from ava_audit.store.store import Store
from ava_audit.view import View
from ava_server.approval.decisions import Approval, approve, reject
from ava_server.approval.proposals import SpawnLimits
from ava_server.budget.user_limits import DayCaps
from ava_server.config.pin import PinFile
from ava_server.config.settings import Limits
from ava_server.core.data_root import DataRoot, os_user
from ava_server.runs.asking.extension import ExtensionLimits
from ava_server.runs.asking.pending_questions import decide_question
from ava_server.runs.asking.question_kinds import Decider
from support.hosts.elicitation import Host, Person, approval, decline
from support.hosts.extensions import CAP, keep_noting
from support.model_server import Script
from support.runtime import PRICED, connect, hand_over
from support.stdio import make_root

HUMAN = f'approval = "human"\n{PRICED}'
ADDRESS = "http://localhost:8643"
PIN = "tortoise-9"
PageOpening = Callable[[ElicitRequestURLParams], Awaitable[ElicitResult | ErrorData]]


@dataclass
class PageBrowser:
    """The client's person: what happens when a page is to be opened, and what was opened and announced."""

    opens: PageOpening
    opened: list[ElicitRequestURLParams] = field(default_factory=list[ElicitRequestURLParams])
    completed: list[str] = field(default_factory=list[str])

    async def __call__(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        assert isinstance(params, ElicitRequestURLParams), "no form is shown under this policy"
        self.opened.append(params)
        return await self.opens(params)

    async def hears(self, message: Any) -> None:
        """Note which questions the server takes back."""
        if isinstance(message, ElicitCompleteNotification):
            self.completed.append(message.params.elicitation_id)


def answer_page(
    action: Literal["accept", "decline", "cancel"], content: Mapping[str, Any] | None = None
) -> PageOpening:
    """Return a client that gives this answer where it is to open a page."""

    async def open_page(_page: ElicitRequestURLParams) -> ElicitResult:
        return ElicitResult(action=action, content=None if content is None else dict(content))

    return open_page


accept_page = answer_page("accept")


@dataclass
class PageHost(Host):
    """A host whose client opens pages."""

    browser: PageBrowser = field(default_factory=lambda: PageBrowser(accept_page))

    def when_opened(self, act: Callable[..., Awaitable[object]], *args: Any, **more: Any) -> None:
        """Have this done when the client opens a page; the client then says that the page is open."""

        async def open_page(_page: ElicitRequestURLParams) -> ElicitResult:
            await act(*args, **more)
            return ElicitResult(action="accept")

        self.browser.opens = open_page

    async def allow_more(self, run_id: str, asked: Asked) -> None:
        """Allow a run what it asks for, as its page does once the PIN was given."""
        who = Who("sess-browser", "person", os_user())
        limits = ExtensionLimits(Limits(max_cost_cents=10**5), DayCaps(10**9, 10**9))
        command = decide_question(run_id, asked.digest, asked.proposed, Decider(who, who, "browser", limits))
        async with Store.open(self.root) as store:
            assert (await store.do(command)).status == "approved"

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
async def page_host(
    tmp: Path,
    mode: str,
    opens: PageOpening = accept_page,
    config: str = HUMAN,
    script: Script = (),
    name: str | None = None,
) -> AsyncGenerator[PageHost]:
    """Open a server in memory, under the policy `human`, and a client that opens pages."""
    browser = PageBrowser(opens)
    given = script or [hand_over(), hand_over()]
    opening = connect(tmp, given, config=config, mode=mode, asks=browser, hears=browser.hears, name=name)
    async with opening as (client, models):
        yield PageHost(client, Person(decline), models, tmp / "data", tmp / "workspace", browser)


@asynccontextmanager
async def run_near_cap(tmp_path: Path, era: str) -> AsyncGenerator[tuple[PageHost, dict[str, Any], Asked]]:
    """A run that asks for more, which its person has approved on the page."""
    async with page_host(tmp_path, era, script=keep_noting) as at:
        made = await at.propose(**CAP)
        at.when_opened(at.decide, made)
        assert (await at.confirm(made))["status"] == "approved"
        with anyio.fail_after(20):
            while not (asked := await at.facts(made, Asked)):  # noqa: ASYNC110 - another store reads it
                await anyio.sleep(0.05)
        yield at, made, asked[0]


def root_with_pin(tmp_path: Path) -> DataRoot:
    """A data root with a PIN and a price for the test's model."""
    root = DataRoot(make_root(tmp_path / "data", config_toml=PRICED))
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


async def decisions_of(root: Path, *made: dict[str, Any]) -> list[SpawnDecided]:
    """Return the decisions on these proposals that stand in the log of a data root."""

    def query(view: View) -> list[Entry]:
        return [entry for each in made for entry in view.entries(each["subagent_id"])]

    async with Store.open(root) as store:
        return [entry.fact for entry in await store.read(query) if isinstance(entry.fact, SpawnDecided)]

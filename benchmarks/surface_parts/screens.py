"""What each surface shows of a situation, as one line: read from the real command, page, tool, card and form."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any

import anyio
import anyio.to_thread
from playwright.async_api import Browser
from support.pages.card_host import browser, card_host
from support.terminal import run_on_terminal

from surface_parts.situations import Situation

COLUMNS, ROWS = 120, 200
FORM_COLUMNS, FORM_LINES = 74, 3
"""What Claude Code shows of a form's message on a terminal of 80 columns and 24 lines."""
_ID = re.compile(r"\b[SG]-[0-9a-f]{6,7}\b")
_ROW = re.compile(r"[> ]*(?:[▶…?‖✓∅◐✗–] |\d{4}-\d\d-\d\d )")
"""How a line of a list begins that is a run's."""
_HIDDEN = ("script", "style", "head", "nav")
_LONGEST_VALUE = 400
_FILTER_HINT = "words of the task"
_DAY_HEADS = ("Today", "Health", "Ended within")

Look = Callable[["Screens", Situation], Awaitable[str | None]]


class _Text(HTMLParser):
    """The words of a page in their order; what is folded is read too."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden += 1
        elif tag in ("tr", "li", "p", "section", "div", "h1", "h2", "h3", "details"):
            self.words.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden -= 1

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)


def page_lines(html: str) -> list[str]:
    """Return the lines of a page's main part."""
    reader = _Text()
    reader.feed(html[html.find("<main") :] if "<main" in html else html)
    return [" ".join(line.split()) for line in " ".join(reader.words).split("\n") if line.strip()]


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Return a line for each value of a JSON document, with the path to it: its label and its value together.

    Long texts, such as a role's file or the output of a command, are no values of their own.
    """
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        if not value:
            yield f"{path}: []"
        for each in value:
            yield from leaves(each, path)
    elif not (isinstance(value, str) and len(value) > _LONGEST_VALUE):
        yield f"{path}: {value}"


def json_text(document: str) -> str:
    """Return the values of a JSON document with their paths, or what it is if it is none."""
    try:
        parsed = json.loads(document)
    except ValueError:
        return document
    return "\n".join(leaves(parsed))


def of_run(lines: list[str], run_id: str) -> str:
    """Return the row of a run in a list, and the lines below it that are no row."""
    found: list[str] = []
    for line in lines:
        is_row = _ROW.match(line) is not None
        if is_row and _ID.findall(line)[:1] == [run_id]:
            found.append(line)
        elif found and (is_row or not line.strip() or line.strip().startswith(_DAY_HEADS)):
            break
        elif found:
            found.append(line)
    return "\n".join(found)


class Screens:
    """Reads surfaces."""

    def __init__(self, chromium: Browser) -> None:
        self._chromium = chromium
        self._dashboards: dict[str, tuple[str, str]] = {}
        self._questions: dict[str, str] = {}

    async def read(self, name: str, situation: Situation) -> str | None:
        """Return what a surface shows, with each run of blanks as one; None where it cannot show the situation."""
        text = await SURFACES[name](self, situation)
        return None if text is None else " ".join(text.split())

    # -- commands ------------------------------------------------------------------------------------------------------

    async def show(self, at: Situation) -> str | None:
        return await at.world.ava("show", at.run_id)

    async def show_json(self, at: Situation) -> str | None:
        return json_text(await at.world.ava("show", at.run_id, "--json"))

    async def show_cost(self, at: Situation) -> str | None:
        return await at.world.ava("show", at.run_id, "--cost")

    async def status(self, at: Situation) -> str | None:
        return of_run((await at.world.ava("status", "--once", "--all")).splitlines(), at.run_id)

    async def report_approvals(self, at: Situation) -> str | None:
        return of_run((await at.world.ava("report", "approvals", "--all")).splitlines(), at.run_id)

    async def report_cost(self, at: Situation) -> str | None:
        if not at.run_id.startswith("G-"):
            return None
        return await at.world.ava("report", "--group", at.run_id)

    async def logs(self, at: Situation) -> str | None:
        return await at.world.ava("logs", at.run_id)

    async def show_last(self, at: Situation) -> str | None:
        """What `ava show` showed when the run was the last that the person had started, and had just ended."""
        return at.world.shown_last.get(at.run_id)

    async def status_colour(self, at: Situation) -> str | None:
        """The colour of the state in `ava status --once` on a terminal."""
        return await anyio.to_thread.run_sync(lambda: _read_colour(at))

    async def web_health(self, at: Situation) -> str | None:
        lines = await self._page(at, "/health")
        return None if lines is None else "\n".join(lines)

    async def status_health(self, at: Situation) -> str | None:
        shown = await at.world.ava("status", "--once", "--all")
        return shown.partition("\nHealth")[2]

    async def eval(self, at: Situation) -> str | None:
        """Make a case of a run, and run it again without a model."""
        folder = at.world.root.parent / "cases"
        made = await at.world.ava("eval", "add", at.run_id, "--to", str(folder), "--contains", "a")
        return made + await at.world.ava("eval", "replay", at.run_id)

    async def far_show(self, at: Situation) -> str | None:
        if at.world.team is None:
            return None
        return await at.world.ava_far("show", at.run_id)

    async def far_status(self, at: Situation) -> str | None:
        if at.world.team is None:
            return None
        return of_run((await at.world.ava_far("status", "--once")).splitlines(), at.run_id)

    async def dashboard_list(self, at: Situation) -> str | None:
        return (await self._dashboard(at))[0]

    async def dashboard_page(self, at: Situation) -> str | None:
        return (await self._dashboard(at))[1]

    async def _dashboard(self, at: Situation) -> tuple[str, str]:
        """Return the row of a run in `ava status`, and its page there; both are read at once."""
        if at.name not in self._dashboards:
            self._dashboards[at.name] = await anyio.to_thread.run_sync(lambda: _read_dashboard(at))
        return self._dashboards[at.name]

    # -- pages ---------------------------------------------------------------------------------------------------------

    async def _page(self, at: Situation, path: str) -> list[str] | None:
        visitor = at.world.visitor
        if visitor is None:
            return None
        answer = await anyio.to_thread.run_sync(lambda: visitor.get(path))
        return page_lines(answer.text)

    async def web_list(self, at: Situation) -> str | None:
        lines = await self._page(at, f"/subagents?text={at.run_id}&all=1")
        return None if lines is None else "\n".join(lines)

    async def web_page(self, at: Situation) -> str | None:
        lines = await self._page(at, f"/subagents/{at.run_id}")
        return None if lines is None else "\n".join(lines)

    async def web_decide(self, at: Situation) -> str | None:
        """The part of the run's own page with yes and no; None where nothing is to be decided."""
        visitor = at.world.visitor
        if visitor is None:
            return None
        page = (await anyio.to_thread.run_sync(lambda: visitor.get(f"/subagents/{at.run_id}"))).text
        lines = page_lines(page.partition('id="decide"')[2].partition(">")[2].partition('<div id="figures"')[0])
        return "\n".join(lines) if lines else None

    async def proposal_page(self, at: Situation) -> str | None:
        """The page that asked about the proposal, as it was before the yes."""
        page = at.world.asked_pages.get(at.run_id)
        return None if page is None else "\n".join(page_lines(page))

    # -- hosts ---------------------------------------------------------------------------------------------------------

    async def check(self, at: Situation) -> str | None:
        host = at.world.host
        if host is None:
            return None
        shown = len(host.forms)
        result = await host.call("check_subagent", action="cancel", subagent_id=at.run_id)
        if len(host.forms) > shown:
            self._questions[at.name] = host.forms[-1].text
        return "\n".join((*leaves(result.get("structuredContent")), *_texts_of(result)))

    async def resource(self, at: Situation) -> str | None:
        host = at.world.host
        if host is None:
            return None
        return json_text(await host.read(f"ava://runs/{at.run_id}"))

    async def card(self, at: Situation) -> str | None:
        """The card of what check_subagent answers, which then reads the resource."""
        host = at.world.host
        if host is None:
            return None
        result = await host.call("check_subagent", action="cancel", subagent_id=at.run_id)
        async with card_host(self._chromium, host.read) as card:
            await card.result(result)
            await anyio.sleep(1.0)
            text = await card.card.locator("body").evaluate(_OPENED)
            return str(text)

    async def form(self, at: Situation) -> str | None:
        form = at.world.forms.get(at.run_id)
        if form is None:
            return None
        return f"{form.text}\n({len(cut_form(form.message, 1_000))} lines)"

    async def form_of_question(self, at: Situation) -> str | None:
        """The form that check_subagent has shown of what the run asks."""
        return self._questions.get(at.name)

    async def form_cut(self, at: Situation) -> str | None:
        form = at.world.forms.get(at.run_id)
        return None if form is None else "\n".join(cut_form(form.message, FORM_LINES))


_OPENED = (
    """body => { for (const each of body.querySelectorAll("details")) each.open = true; return body.innerText; }"""
)


def cut_form(message: str, most: int) -> list[str]:
    """Return the first lines of a form's message as a terminal of 80 columns shows them."""
    lines: list[str] = []
    for line in message.splitlines():
        lines += [line[at : at + FORM_COLUMNS] for at in range(0, len(line), FORM_COLUMNS)] or [""]
    return lines[:most]


def _texts_of(result: dict[str, Any]) -> list[str]:
    return [str(block.get("text", "")) for block in result.get("content", ())]


def _read_colour(at: Situation) -> str:
    """Return `colour: yellow` of the sign that stands before a run's state. Blocking."""
    words = ("status", "--once", "--all")
    with run_on_terminal(
        at.world.root, *words, columns=COLUMNS, rows=ROWS, env=at.world.env, command=at.world.start
    ) as screen:
        screen.ended()
        for number, line in enumerate(screen.lines):
            if at.run_id in line:
                place = len(line) - len(line.lstrip())
                return f"colour: {screen.colour(number, place)}"
    return ""


def _read_dashboard(at: Situation) -> tuple[str, str]:
    """Filter the list by the run's id, which selects it, and open it. Blocking."""
    words = ("status", "--all")
    with run_on_terminal(
        at.world.root, *words, columns=COLUMNS, rows=ROWS, env=at.world.env, command=at.world.start
    ) as screen:

        def until(words: str, *, there: bool = True) -> list[str]:
            return screen.until_shown(lambda lines: any(words in line for line in lines) is there)

        until("q quit")
        screen.type("/")
        until(_FILTER_HINT)
        screen.type(at.run_id)
        rows = [line for line in until(f"filter '{at.run_id}'") if not line.startswith("filter ")]
        row = of_run(rows, at.run_id)
        if not row:
            return "", ""
        screen.type("\r")
        screen.until_shown(lambda lines: at.run_id not in (line.strip() for line in lines))
        screen.type("\r")
        until("Esc or q back")
        page = until("Reading …", there=False)
        return row, "\n".join(page)


SURFACES: dict[str, Look] = {
    "show": Screens.show,
    "show --json": Screens.show_json,
    "show --cost": Screens.show_cost,
    "show, no id": Screens.show_last,
    "status": Screens.status,
    "status, colour": Screens.status_colour,
    "status, health": Screens.status_health,
    "report approvals": Screens.report_approvals,
    "report --group": Screens.report_cost,
    "logs": Screens.logs,
    "eval": Screens.eval,
    "dashboard list": Screens.dashboard_list,
    "dashboard page": Screens.dashboard_page,
    "web list": Screens.web_list,
    "web page": Screens.web_page,
    "web health": Screens.web_health,
    "web yes and no": Screens.web_decide,
    "proposal page": Screens.proposal_page,
    "check_subagent": Screens.check,
    "resource": Screens.resource,
    "card": Screens.card,
    "form": Screens.form,
    "form, cut": Screens.form_cut,
    "form, question": Screens.form_of_question,
    "--url show": Screens.far_show,
    "--url status": Screens.far_status,
}


@asynccontextmanager
async def open_screens() -> AsyncGenerator[Screens]:
    """Open a browser for the card, and read surfaces until the block ends."""
    assert shutil.which("chromium"), "the card is drawn in Chromium, which is not on this machine"
    async with browser() as chromium:
        yield Screens(chromium)

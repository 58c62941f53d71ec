"""Whether people find what they look for at first sight: thirty questions, each with its screen and its page.

    python benchmarks/first_sight.py [--pictures FOLDER]

A server of its own shows runs of a scripted model: one that ended, one that failed, one that asks, one that works, a
plan, and a proposal that waits. For each question of first_sight.toml, the answer must stand within the first 24 lines
of the command's screen (120 columns), and within the first 800 pixels of the page (1,280 wide). With --pictures, each
screen and page is kept, so that a reader can be asked.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from audit_parts.report import Report
from support.model_server import Fail, Gate, Say, Step
from support.pages.browser import PAID, There, open_pages
from support.pages.card_host import open_chromium
from support.stdio import read_log
from support.terminal import ava, run_on_terminal

from ava_audit.units import format_usd

LINES, COLUMNS = 24, 120
PIXELS, WIDTH = 800, 1280
GOAL = 28
FEES, REFUNDS, HISTORY, TERMS, PRICES = (
    "What does each provider charge for a payment?",
    "Which of our three shops refunds fees after a return?",
    "How did the fees change in the last two years?",
    "Compare the notice periods in the contracts",
    "List the prices of all providers abroad",
)
QUESTION = "Should I count the shop that closed in March?"
SUMMARY = "Provider A is cheaper below $40, provider B above."
SOURCE = "provider-a.md"
FEE = "Payments cost 1.4 % and $0.25 each."
STEPS = [
    {"id": "find", "role": "researcher", "task": "List the contracts."},
    {"id": "read", "role": "researcher", "task": "Say what each contract costs: {{find}}"},
    {"id": "write", "role": "researcher", "task": "Write one page from {{read}}"},
]
_BOTTOM_OF = """answer => {
  const plain = text => text.replace(/\\s+/g, " ");
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_ELEMENT);
  let best = null;
  for (let node = walker.currentNode; node; node = walker.nextNode()) {
    if (!plain(node.innerText || "").includes(answer)) continue;
    if ([...node.children].some(child => plain(child.innerText || "").includes(answer))) continue;
    const box = node.getBoundingClientRect();
    if (box.width && box.height) best = Math.min(best ?? Infinity, box.bottom + window.scrollY);
  }
  return best;
}"""


@dataclass(frozen=True)
class Question:
    """What somebody wants to know.

    Attributes:
        page: The address of the page where people look, from the site's root.
        command: The command that people type, without `ava`.
        answers: The texts of which a reader must find one.
    """

    ask: str
    page: str
    command: str
    answers: list[str]


class Runs:
    """The runs that the screens show, and what is known of each."""

    def __init__(self, there: There) -> None:
        self._there = there
        self._notes = there.root.parent / "notes"
        self._notes.mkdir()
        (self._notes / "provider-a.md").write_text(f"# Provider A\n\n{FEE}\n")
        self.cookie = ""

    def prepare(self) -> dict[str, str]:
        """Make the runs, and return what the questions name of them."""
        there = self._there
        visitor = there.signed_in()
        self.cookie = visitor.cookie
        known: dict[str, str] = {"folder": str(self._notes), "host": "wire"}

        def start(name: str, **arguments: Any) -> str:
            proposed = self._propose(**arguments)
            visitor.decide(proposed["pending_id"], "approve")
            known[f"{name}.id"] = proposed["subagent_id"]
            return proposed["subagent_id"]

        there.host.ended(start("ended", task=FEES))
        there.host.ended(start("failed", task=PRICES))
        asking = start("asking", task=REFUNDS)
        there.until(lambda: read_log(there.root, "Asked", run=asking))
        start("running", task=HISTORY)
        plan = self._propose(name="Contracts", steps=STEPS, max_cost_cents=200)
        visitor.decide(plan["pending_id"], "approve")
        known["plan.id"] = plan["group_id"]
        waiting = self._propose(task=TERMS)
        known |= {"waiting.pending_id": waiting["pending_id"]}
        known |= {"asking.question": QUESTION, "ended.summary": SUMMARY}
        known |= {"ended.source": SOURCE, "ended.cost": self._cost(known["ended.id"])}
        time.sleep(2)  # the plan's second step has begun
        return known | {"spent_today": self._spent()}

    def _propose(self, **arguments: Any) -> dict[str, Any]:
        given = {"workspace": str(self._notes), "max_cost_cents": 60, **arguments}
        if "steps" in given:
            return self._there.host.tool("spawn_subagent", **given)
        return self._there.host.propose(**given)

    def _cost(self, run_id: str) -> str:
        """Return what a run cost, as people are shown it."""
        run = json.loads(ava(self._there.root, "show", run_id, "--json").stdout)["run"]
        return format_usd(round(run["cost_cents"] * 10_000))

    def _spent(self) -> str:
        """Return what was spent today, as people are shown it."""
        status = json.loads(ava(self._there.root, "status", "--once", "--json").stdout)
        return format_usd(round(status["today"][0]["spent_cents"] * 10_000))


def model(gate: Gate) -> Any:
    """Return the script of a model that answers, asks, fails or works, by its task."""

    def script(request: dict[str, Any]) -> Step:
        said = json.dumps([each for each in request["messages"] if each["role"] == "user"])
        turns = sum(each["role"] == "assistant" for each in request["messages"])
        if PRICES in said:
            return Fail(401, {"error": {"message": "invalid api key"}})
        if REFUNDS in said:
            return Say(calls=[("ask", {"question": QUESTION})])
        if turns == 0:
            return Say("I read the notes first.", [("read_file", {"path": SOURCE})])
        if HISTORY in said or "Say what each contract costs" in said:
            return Say(gate=gate)
        finding = {"claim": "Provider A charges 1.4 % and $0.25", "source": SOURCE, "quote": FEE}
        return Say(calls=[("submit_result", {"summary": SUMMARY, "output": SUMMARY, "findings": [finding]})])

    return script


def questions(known: Mapping[str, str]) -> list[Question]:
    """Return the questions, with what is known of the runs in place of the names."""
    text = Path(__file__).with_suffix(".toml").read_text("utf-8")

    def filled(template: str) -> str:
        return re.sub(r"\{([\w.]+)\}", lambda match: known[match[1]], template)

    found: list[Question] = []
    for row in tomllib.loads(text)["questions"]:
        found.append(
            Question(row["ask"], filled(row["page"]), filled(row["command"]), [filled(each) for each in row["answers"]])
        )
    return found


class Looks:
    """What stands where, on screens and pages; each is looked at once."""

    def __init__(self, there: There, browser: Browser, cookie: str, pictures: Path | None) -> None:
        self._root = there.root
        self._base = there.base
        self._pictures = pictures
        self._screens: dict[str, list[str]] = {}
        self._opened = ""
        context = browser.new_context(viewport={"width": WIDTH, "height": PIXELS})
        context.add_cookies([{"name": f"ava-{there.server.port}", "value": cookie, "url": there.base}])
        self._page = context.new_page()

    def line(self, question: Question) -> int | None:
        """Return the line of a command's screen where the answer stands, from 1; None: it does not."""
        lines = self._screens.get(question.command)
        if lines is None:
            lines = self._screens[question.command] = self._run(question.command)
        for number, line in enumerate(lines, 1):
            if any(answer in line for answer in question.answers):
                return number
        return None

    def pixels(self, question: Question) -> int | None:
        """Return where the answer ends, in pixels from the top of its page; None: it is not there."""
        if self._opened != question.page:
            self._page.goto(self._base + question.page)
            self._opened = question.page
            self._keep(question.page, self._page.screenshot())
        bottoms = [self._page.evaluate(_BOTTOM_OF, answer) for answer in question.answers]
        return min((round(bottom) for bottom in bottoms if bottom is not None), default=None)

    def _run(self, command: str) -> list[str]:
        with run_on_terminal(self._root, *shlex.split(command), columns=COLUMNS, rows=200) as screen:
            if command == "approve":
                lines = screen.until_shown(lambda shown: any("Start it?" in line for line in shown))
                time.sleep(1)  # the rest of the question
                lines = screen.lines
            else:
                screen.ended()
                lines = screen.lines
        self._keep(command, "\n".join(lines[:LINES]).encode())
        return lines

    def _keep(self, name: str, content: bytes) -> None:
        if self._pictures is not None:
            suffix = ".png" if content.startswith(b"\x89PNG") else ".txt"
            stem = re.sub(r"[^\w]+", "-", name).strip("-") or "overview"
            (self._pictures / f"{stem}{suffix}").write_bytes(content)


def main(pictures: Path | None) -> None:
    """Ask all questions and show where the answers stand."""
    report, gate = Report(), Gate(within_s=300)
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as place,
        open_chromium() as browser,
        open_pages(Path(place) / "data", PAID, model(gate)) as there,
    ):
        runs = Runs(there)
        known = runs.prepare()
        looks = Looks(there, browser, runs.cookie, pictures)
        rows: list[list[str]] = []
        on_screens = on_pages = 0
        for question in questions(known):
            line, pixels = looks.line(question), looks.pixels(question)
            on_screens += line is not None and line <= LINES
            on_pages += pixels is not None and pixels <= PIXELS
            rows.append([question.ask, _place(line), _place(pixels)])
        gate.released.set()
    report.table("Where the answers stand", ("question", "line of the screen", "pixels of the page"), rows)
    report.verdict(f"answers within {LINES} lines", on_screens, GOAL, least=True)
    report.verdict(f"answers within {PIXELS} pixels", on_pages, GOAL, least=True)


def _place(place: int | None) -> str:
    return "nowhere" if place is None else f"{place:,}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pictures", type=Path, help="folder for each screen as text and each page as a picture")
    main(parser.parse_args().pictures)

"""Make the pictures of the pages in examples/pages: `python scripts/page_pictures.py`. It needs Chromium.

A server of its own shows runs of a scripted model: a proposal that waits, a question, a run in progress and one
that has ended. Each page is drawn in three widths, in the light and the dark theme.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests"))

from support.model_server import Gate, Say, Step  # noqa: E402
from support.pages.browser import There, Visitor, open_pages  # noqa: E402
from support.pages.card_host import open_chromium  # noqa: E402
from support.runtime import PRICED  # noqa: E402
from support.stdio import read_log  # noqa: E402

PICTURES = REPOSITORY / "examples" / "pages"
WIDTHS = (390, 800, 1440)
HEIGHT, QUALITY = 900, 0.6
PRICES = PRICED.replace("custom:test", "custom:scripted")
FEES, REFUNDS, HISTORY, TERMS = (
    "What does each provider charge for a payment?",
    "Which of our three shops refunds fees after a return?",
    "How did the fees change in the last two years?",
    "Compare the notice periods in the contracts",
)
_WEBP = """async ([source, quality]) => {
  const image = new Image();
  image.src = source;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.toDataURL("image/webp", quality);
}"""


def model(gate: Gate) -> Any:
    """Return the script of a model that answers, asks or works, by its task."""

    def script(asked: dict[str, Any]) -> Step:
        said = json.dumps([each for each in asked["messages"] if each["role"] == "user"])
        noted = any(each["role"] == "tool" for each in asked["messages"])
        if HISTORY in said and noted:
            return Say(gate=gate)
        if REFUNDS in said:
            return Say(calls=[("ask", {"question": "Should I count the shop that closed in March?"})])
        if not noted:
            return Say(
                "I look at the contracts first.", [("scratchpad", {"note": "Two providers name a minimum fee."})]
            )
        findings = [{"claim": "Provider A charges 1.4 % and $0.25", "source": "notes/provider-a.md"}]
        summary = "Provider A is cheaper below $40, provider B above."
        return Say(
            calls=[("submit_result", {"summary": summary, "output": f"# Fees\n\n{summary}", "findings": findings})]
        )

    return script


def prepare(there: There) -> tuple[str, dict[str, str]]:
    """Make the runs; return the value of a session's cookie, and the pages to draw, by name."""
    visitor = there.signed_in()
    ended = _approved(there, visitor, FEES)
    there.host.ended(ended)
    asking = _approved(there, visitor, REFUNDS)
    there.until(lambda: read_log(there.root, "Asked", run=asking))
    _approved(there, visitor, HISTORY)
    waiting = _proposed(there, TERMS)["pending_id"]
    return visitor.cookie, {"overview": "/", "proposal": f"/proposals/{waiting}", "run": f"/subagents/{ended}"}


def _proposed(there: There, task: str) -> dict[str, Any]:
    notes = there.root.parent / "notes"
    notes.mkdir(exist_ok=True)
    return there.host.propose(task=task, max_cost_cents=60, workspace=str(notes))


def _approved(there: There, visitor: Visitor, task: str) -> str:
    proposed = _proposed(there, task)
    visitor.decide(proposed["pending_id"], "approve")
    run_id: str = proposed["subagent_id"]
    return run_id


def draw(browser: Browser, there: There, cookie: str, pages: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each picture, and its bytes."""
    converter = browser.new_page()
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
            context.add_cookies([{"name": f"ava-{there.server.port}", "value": cookie, "url": there.base}])
            page = context.new_page()
            for name, path in pages.items():
                page.goto(there.base + path)
                yield f"{name}-{scheme}-{width}.webp", _webp(converter, page.screenshot())
            context.close()


def _webp(converter: Page, png: bytes) -> bytes:
    """Return a picture in a smaller format; the browser converts it."""
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    made: str = converter.evaluate(_WEBP, [source, QUALITY])
    return base64.b64decode(made.partition(",")[2])


def main() -> None:
    """Write all pictures."""
    PICTURES.mkdir(exist_ok=True)
    gate = Gate(within_s=300)
    with (
        tempfile.TemporaryDirectory() as place,
        open_chromium() as browser,
        open_pages(Path(place) / "data", PRICES, model(gate)) as there,
    ):
        for name, picture in draw(browser, there, *prepare(there)):
            (PICTURES / name).write_bytes(picture)
            print(f"{name}: {len(picture):,} bytes")
        gate.released.set()


if __name__ == "__main__":
    main()

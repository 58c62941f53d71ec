"""A lab in which each built-in role can do its work, and a model that calls all of its tools."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.foreign.documents import pdf
from support.model_server import Fail, Say, Step, run_model_server
from support.network.web_site import Page, site
from support.repositories.projects import checkout, tree
from support.runtime import Lab, hand_over, open_lab, submit
from support.tool_examples import HERE, PRICES, QUOTE, example_of, must_list

WORDS = f"<article><h1>Prices</h1><p>{QUOTE}</p><p>{'More about how it is charged. ' * 12}</p></article>"
LAST = ("read_tool_result", "save_artifact", "scratchpad")
"""They take up what others brought."""
PAGES: dict[str, Any] = {
    "/robots.txt": Page("User-agent: Ava\nDisallow: /private\n", content_type="text/plain"),
    "/prices": Page(f"<html><head><title>What it costs</title></head><body>{WORDS}</body></html>"),
    "/list.pdf": Page(pdf("Rev charges thirty cents."), content_type="application/pdf"),
    "/feed.json": Page('{"minute": 12}', content_type="application/json"),
    "/private": Page("never read"),
}
PROJECT = {
    "adding.py": "def add(a, b):\n    return a + b\n",
    "test_adding.py": (
        "import unittest\nfrom adding import add\n\n"
        "class Adds(unittest.TestCase):\n    def test_adds(self):\n        self.assertEqual(add(1, 2), 3)\n"
    ),
    "prices.csv": "name,cents\nOtter,12\nRev,30\n",
    "long.txt": "".join(f"line {number}\n" for number in range(1, 5_001)),
    ".gitignore": "__pycache__/\n",
}


def calls_of_tool(tool: str) -> Sequence[tuple[Mapping[str, Any], str]]:
    """What is called of a tool, and what the model has to be shown for it."""
    work = example_of(tool).work
    must_list(f"{HERE} (work)", [tool] if work else [], [tool])
    return work


@asynccontextmanager
async def open_role_ground(tmp_path: Path, script: Any) -> AsyncGenerator[tuple[Lab, dict[str, object]]]:
    """A lab with a site, a search engine, a checkout and a note; and what the checkout was like."""
    memory = tmp_path / "data" / "memory"
    memory.mkdir(mode=0o700, parents=True)
    (memory / "plans.md").write_text("The budget is nine cents.\n")
    before = tree(checkout(tmp_path / "workspace", PROJECT))
    hit = {"url": PRICES, "title": "What it costs", "content": "about prices"}
    with run_model_server([Fail(200, {"results": [hit], "unresponsive_engines": []})] * 2) as engine:
        config = (
            f'[limits]\nquestion_wait_s = 1\n[search]\nengine = "searxng"\nsearxng = "http://127.0.0.1:{engine.port}"\n'
        )
        async with site(PAGES) as web, open_lab(tmp_path, script, config=config) as lab:
            lab.runtime.fetcher = web.fetcher
            yield lab, before
            assert "/private" not in web.paths


class WorkingModel:
    """A model that calls one tool after the other, and hands over what the first page or file said."""

    def __init__(self, earlier: str) -> None:
        self.tools: Sequence[str] = ()
        self.earlier = earlier
        self.made: list[str] = []

    def __call__(self, request: dict[str, Any]) -> Step:
        if "an earlier piece of work" in json.dumps(request["messages"][1]):
            return submit("Rev charges thirty cents.")
        said = json.dumps(request["messages"])
        latest = re.findall(r"the latest are R-(\w+)", said)
        order = [*(name for name in self.tools if name not in LAST), *(name for name in LAST if name in self.tools)]
        calls = [(name, given) for name in order for given, _shown in calls_of_tool(name)]
        if len(self.made) == len(calls):
            source = PRICES if "read_webpages" in self.tools else "prices.csv"
            quote = QUOTE if "read_webpages" in self.tools else "Otter"
            return hand_over(findings=[{"claim": "It costs twelve.", "quote": quote, "source_url": source}])
        name, given = calls[len(self.made)]
        self.made.append(name)
        filled = json.dumps(given).replace("{earlier}", self.earlier).replace("{latest}", latest[-1] if latest else "")
        return Say(f"Now {name}.", [(name, json.loads(filled))])

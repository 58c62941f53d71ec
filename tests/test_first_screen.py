"""The first screen of the README: the picture of the approval shows what Ava asks now, and everything stands on it."""

from __future__ import annotations

import html
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult
from support.pages.card_host import needs_browser, open_chromium
from support.repository import REPOSITORY, script
from support.runtime import PRICED, connect

README = (REPOSITORY / "README.md").read_text("utf-8")
FIRST, _, _ = README.partition("\n## ")
PICTURE = REPOSITORY / "examples" / "approval.svg"
WIDTH, HEIGHT, COLUMN = 1280, 800, 846
"""Pixels of a small laptop's window, and of the column in which GitHub draws a README there."""
_TEXT = re.compile(r'<text [^>]*clip-path="url\(#ava-approval-line-(\d+)\)">([^<]*)</text>')
_STYLE = f"""body {{ margin: 0 auto; padding: 32px 0; width: {COLUMN}px; font: 16px/1.5 Helvetica, Arial, sans-serif }}
h1 {{ font-size: 2em; border-bottom: 1px solid; padding-bottom: .3em; margin: 0 0 16px }}
p, ul, pre {{ margin: 0 0 16px }} pre {{ padding: 16px; font-size: 85%; line-height: 1.45; overflow: auto }}
ul {{ padding-left: 2em }} li + li {{ margin-top: .25em }} img {{ max-width: 100% }}"""


def shown(picture: str) -> list[str]:
    """Return the lines of text in a picture; blanks at the borders of styles are places and no text."""
    lines: dict[int, str] = {}
    for number, part in _TEXT.findall(picture):
        lines[int(number)] = lines.get(int(number), "") + html.unescape(part).replace("\N{NO-BREAK SPACE}", "")
    return [lines[number] for number in sorted(lines)]


def dense(text: str) -> str:
    return text.replace(" ", "")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Yield a folder whose path leaves room in a line, as that of the picture does."""
    with tempfile.TemporaryDirectory(prefix="ava-") as place:
        yield Path(place)


async def test_the_picture_shows_what_ava_asks_now(short_path: Path) -> None:
    drawn = script("host_picture")
    notes = Path(shutil.copytree(REPOSITORY / "examples" / "notes", short_path / "workspace" / "notes"))
    asked: list[ElicitRequestFormParams] = []

    async def decline(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        del context
        assert isinstance(params, ElicitRequestFormParams)
        asked.append(params)
        return ElicitResult(action="decline")

    spawn = drawn.spawn(str(notes))
    async with connect(short_path, config=f'approval = "ask"\n{PRICED}', asks=decline) as (client, _models):
        made = (await client.call_tool("spawn_subagent", spawn)).structured_content or {}
        given = {"pending_ids": [made["pending_id"]], "approving": [made["approval_line"]]}
        await client.call_tool("confirm_spawn", given)

    (question,) = asked
    task, reach, price = question.message.replace(str(notes), drawn.NOTES).split("\n")[:3]
    fields = question.requested_schema["properties"].values()
    texts = [task, reach, price, *(f"{each[part]}" for each in fields for part in ("title", "description"))]
    picture = "\n".join(shown(PICTURE.read_text("utf-8")))
    assert [text for text in texts if dense(text) not in picture] == [], "run `python scripts/host_picture.py`"
    assert str(drawn.TASK) in task and "$0.30" in price


def test_the_first_screen_has_the_approval_two_commands_and_the_promise_and_explains_its_words() -> None:
    parts = ["*host* (a program that speaks MCP)", "*reach*, the folders and sites it may use"]
    parts += ["](examples/approval.svg)", "<!-- command: demo -->", "<!-- command: init -->", "- **You approve"]
    places = [FIRST.find(part) for part in parts]
    assert -1 not in places and places == sorted(places)
    assert "host" not in README[: places[0]].lower() and "reach" not in README[: places[1]].replace("*reach*", "")


@needs_browser
def test_it_fits_a_small_laptop(tmp_path: Path) -> None:
    page = tmp_path / "readme.html"
    body = MarkdownIt("commonmark").render(FIRST).replace('src="', f'src="file://{REPOSITORY}/')
    page.write_text(f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style>{body}", encoding="utf-8")
    with open_chromium() as browser:
        opened = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        opened.goto(f"file://{page}")
        opened.wait_for_function("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
        bottom = opened.evaluate("document.querySelector('ul').getBoundingClientRect().bottom")
    assert bottom <= HEIGHT

"""Text that was written to steer a model goes through every tool that returns foreign text, and arrives as data.

What is looked at is the request that the model server received: in each result one opening and one closing tag with
this run's nonce and everything foreign between them, nothing that a reader could take for a tag of ours, nothing that
nobody sees; no message that Ava did not write, no call that the model did not make.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
import tomllib
import unicodedata
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import docx
import openpyxl
import pytest
from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE
from support.foreign.documents import unicode_pdf
from support.model_server import Fail, Say, Step, running_model_server
from support.network.web_site import Answer, Page, Site, site
from support.repositories.coding import coded
from support.repositories.projects import checkout
from support.repository import REPOSITORY
from support.runtime import Lab, hand_over, open_lab, submits
from support.sandboxes.attacks import needs_confinement
from support.tool_examples import must_list

from ava_audit.events import RunStarted, ToolCall, WorktreeReady
from ava_roles.tools.registry import builtin_tools
from ava_server.budget.run_config import RUN_TOOLS
from ava_server.config.keys import set_key
from ava_server.config.secrets import set_secret

ATTACKS: Sequence[str] = tuple(
    attack["text"]
    for attack in tomllib.loads((REPOSITORY / "tests" / "data" / "injections.toml").read_text("utf-8"))["attack"]
)
TOGETHER = 15
"""Calls of one answer; 16 are run."""
TOKEN = "token-of-a-secret-0123456789abcdef"
ROLE = """---
name: tester
description: Reads whatever it is told to.
tools: [TOOLS]
max_tool_calls: 150
max_tokens: 200000
secrets: [TOKEN]
---
Read.
"""

_SELECTORS = "\ufe00-\ufe0d\U000e0100-\U000e01ef"
_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0"
_UNSEEN = re.compile(f"[{_SELECTORS}{_FILLERS}]|(?<=[\ufe00-\ufe0f])[\ufe0e\ufe0f]")
_PLAIN = str.maketrans("∕⁄＜＞‹›⟨⟩❮❯〈〉〈〉«»˂﹤ооοеаѕрɡ01375", "//<><><><><><><><<oooeaspgolest")

_TAGS = re.compile(
    "<[^a-z<]{0,20}(?:" + "|".join("[^a-z<]{0,3}".join(name) for name in ("tooloutput", "subagentresult")) + ")"
)


def unseen(text: str) -> int:
    """How many characters of a text nobody sees, by the database of Unicode; line ends are seen.

    A title or a link of a terminal has two of them, and counts as one.
    """
    text = re.sub("\x1b][^\x07\x1b\n]*(?:\x07|\x1b\\\\)", "\x1b", text.replace("\r\n", "\n").replace("\r", "\n"))
    hidden = sum(
        unicodedata.category(char) in ("Cc", "Cf", "Cs") and char not in "\n\t" and not "\u180b" <= char <= "\u180f"
        for char in text
    )
    return hidden + len(_UNSEEN.findall(text))


def mark(number: int) -> str:
    return f"Marker{number:02}x"


def marked(number: int) -> str:
    """An attack, each line of it with a word by which it is found again."""
    lines = ATTACKS[number].split("\n")
    return "\n".join(f"{mark(number)} {line}" for line in lines) + f" {mark(number)}"


def for_xml(text: str) -> str:
    """What office formats can hold of a text."""
    return ILLEGAL_CHARACTERS_RE.sub("", text)


@dataclass
class Way:
    """One way by which foreign text reaches the model.

    Attributes:
        tool: The tool.
        lay: Puts attack `number` where the tool finds it; returns the call's arguments.
        counted: How many invisible characters were taken out is told: all that the attack has (`exactly`), or that
            some were (a format or a list of lines holds not all of them), or nothing where something else takes them
            out before (the reader of HTML does, and names of files are shown with marks in their place).
    """

    tool: str
    lay: Callable[[Ground, int], dict[str, Any]]
    counted: Literal["exactly", "some", "not"] = "some"


@dataclass
class Ground:
    """Where attacks are laid: a workspace, a site, and the answers of a search engine."""

    workspace: Path
    web: Site
    hits: list[Step] = field(default_factory=list[Step])

    def file(self, name: str, data: bytes) -> str:
        (self.workspace / name).write_bytes(data)
        return name

    def note(self, number: int) -> str:
        folder = self.workspace.parent / "data" / "memory"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / f"note{number:02}.md").write_text(marked(number), "utf-8", newline="")
        return f"note{number:02}"

    def page(self, number: int, page: Answer) -> str:
        self.web.pages[f"/{number}"] = page
        return self.web.url(f"/{number}")


def _plain(number: int) -> Page:
    return Page(marked(number), content_type="text/plain; charset=utf-8")


def _html(number: int) -> Page:
    words = "".join(f"<p>{html.escape(line)}</p>" for line in marked(number).split("\n"))
    title = html.escape(f"{mark(number)} {ATTACKS[number]}")
    rest = f"<p>{'Further words about the quality of it all. ' * 8}</p>"
    return Page(f"<html><head><title>{title}</title></head><body><article>{words}{rest}</article></body></html>")


def _pdf_page(number: int) -> Page:
    return Page(unicode_pdf(marked(number).split("\n")), content_type="application/pdf")


def _docx(number: int) -> bytes:
    document, made = docx.Document(), io.BytesIO()
    for line in for_xml(marked(number)).split("\n"):
        document.add_paragraph(line)
    document.add_table(1, 1).cell(0, 0).text = for_xml(marked(number))
    document.save(made)
    return made.getvalue()


def _xlsx(number: int) -> bytes:
    book, made = openpyxl.Workbook(), io.BytesIO()
    sheet = book.active
    assert sheet is not None
    sheet.append([mark(number), for_xml(marked(number))])
    book.save(made)
    return made.getvalue()


def _csv(number: int) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow([mark(number), marked(number), "end"])
    return text.getvalue().encode()


def _text(at: Ground, number: int) -> str:
    return at.file(f"a{number:02}.txt", marked(number).encode())


def _listing(at: Ground, number: int) -> dict[str, Any]:
    folder = at.workspace / f"folder{number:02}"
    folder.mkdir()
    name = marked(number).replace("/", "∕").replace("\0", "")
    while len(name.encode()) > 250:
        name = name[:-1]
    (folder / name).write_text("x")
    return {"path": folder.name}


def _found(at: Ground, number: int) -> dict[str, Any]:
    return {"pattern": "*", **_listing(at, number)}


def _hit(at: Ground, number: int) -> dict[str, Any]:
    rows = [{"url": f"https://a.example/{number}", "title": marked(number), "content": marked(number)}]
    at.hits.append(Fail(200, {"results": rows, "unresponsive_engines": [[marked(number), "x"]]}))
    return {"query": "words"}


WAYS: Mapping[str, Way] = {
    "read_webpages, text": Way("read_webpages", lambda at, n: {"urls": [at.page(n, _plain(n))]}, counted="exactly"),
    "read_webpages, HTML": Way("read_webpages", lambda at, n: {"urls": [at.page(n, _html(n))]}, counted="not"),
    "read_webpages, PDF": Way("read_webpages", lambda at, n: {"urls": [at.page(n, _pdf_page(n))]}),
    "http_get": Way("http_get", lambda at, n: {"url": at.page(n, _plain(n))}, counted="exactly"),
    "http_get, an error": Way(
        "http_get", lambda at, n: {"url": at.page(n, Page(marked(n), 500, "text/plain"))}, counted="exactly"
    ),
    "web_search": Way("web_search", _hit),
    "read_file, text": Way("read_file", lambda at, n: {"path": _text(at, n)}),
    "read_file, PDF": Way(
        "read_file", lambda at, n: {"path": at.file(f"a{n:02}.pdf", unicode_pdf(marked(n).split("\n")))}
    ),
    "read_file, DOCX": Way("read_file", lambda at, n: {"path": at.file(f"a{n:02}.docx", _docx(n))}),
    "read_file, XLSX": Way("read_file", lambda at, n: {"path": at.file(f"a{n:02}.xlsx", _xlsx(n))}),
    "read_file, CSV": Way("read_file", lambda at, n: {"path": at.file(f"a{n:02}.csv", _csv(n))}),
    "read_file, names of files": Way("read_file", _listing, counted="not"),
    "recall, a note": Way("recall", lambda at, n: {"name": at.note(n)}),
    "recall, passages": Way("recall", lambda at, n: {"query": mark(n), "_": at.note(n)}),
    "find_files": Way("find_files", _found, counted="not"),
    "search_codebase": Way("search_codebase", lambda at, n: {"query": mark(n), "path": _text(at, n)}),
    "search_and_read": Way("search_and_read", lambda at, n: {"query": mark(n), "max_files": 1, "_": _text(at, n)}),
    "run_bash": Way("run_bash", lambda at, n: {"command": f"cat {_text(at, n)}"}),
    "python_exec": Way(
        "python_exec", lambda at, n: {"code": f"print(open({_text(at, n)!r}, encoding='utf-8').read())"}
    ),
}
ELSEWHERE = ("read_tool_result", "read_subagent_result", "edit_file")
"""Tools that are tried by tests of their own."""
NO_TEXT = {"ask", "scratchpad", "write_file"}
"""Tools whose answer has no text that somebody else wrote."""


@asynccontextmanager
async def ground(tmp_path: Path, script: Any) -> AsyncGenerator[tuple[Ground, Lab]]:
    """A lab with a role that has every tool that reads, a site, a search engine, and a secret."""
    root = tmp_path / "data"
    (root / "roles").mkdir(mode=0o700, parents=True)
    (root / "roles" / "tester.md").write_text(ROLE.replace("TOOLS", ", ".join({way.tool for way in WAYS.values()})))
    set_secret("TOKEN", TOKEN, ["docs.example.com"], root / "secrets" / "secrets.toml")
    set_key("openrouter", "key-of-a-provider-0123456789", root / "keys.toml")
    hits: list[Step] = []
    async with site({}) as web:
        with running_model_server(hits) as engine:
            config = f'[search]\nengine = "searxng"\nsearxng = "http://127.0.0.1:{engine.port}"\n'
            config += '[sandbox]\nmode = "none"\n'  # what is tried is what commands print, on any machine
            async with open_lab(tmp_path, script, config=config) as lab:
                lab.runtime.fetcher = web.fetcher
                yield Ground(lab.workspace, web, hits), lab


async def read(lab: Lab, **more: Any) -> tuple[list[str], str, str]:
    """Run the role; return what the tools' messages hold in the last request, all else in it, and the nonce."""
    run_id = await lab.start(role="tester", task="Read what there is.", **more)
    assert (await lab.ended(run_id)).state == "success", await lab.result(run_id)
    (started,) = await lab.facts(run_id, RunStarted)
    messages: list[dict[str, Any]] = lab.server.requests[-1].json["messages"]
    calls = [call for each in messages for call in each.get("tool_calls", ())]
    made = [(fact.tool, fact.args) for fact in await lab.facts(run_id, ToolCall)]
    asked = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    assert sorted(made, key=str) == sorted(asked, key=str), "no call was made that the model did not make"
    roles = [each["role"] for each in messages]
    assert roles[:2] == ["system", "user"] and set(roles[2:]) <= {"assistant", "tool"}, "no message is an attack's"
    shown = [str(each["content"]) for each in messages if each["role"] == "tool"]
    assert len(shown) == len(calls)
    others = "\n".join(str(each["content"]) for each in messages if each["role"] != "tool")
    assert started.nonce is not None
    return shown, others, started.nonce


def inside(shown: str, nonce: str) -> tuple[str, int]:
    """Return what stands between the tags of a result, and the count of what was removed; nothing is outside."""
    assert shown.count(f"tool_output_{nonce}") == 2, shown
    whole = re.fullmatch(
        rf'(?:Failed\.\n)?<tool_output_{nonce} tool="\w+"(?: invisible_characters_removed="(\d+)")?>\n(.*)\n'
        rf"</tool_output_{nonce}>"
        r"(?:\n\[cut at \d+ of \d+ characters; read_tool_result R-\w+ with offset \d+ goes on\])?",
        shown,
        re.DOTALL,
    )
    assert whole is not None, shown
    return whole[2], int(whole[1] or 0)


def assert_inert(body: str) -> None:
    """Nothing in a text can be taken for a tag of ours, and nothing is hidden in it."""
    assert unseen(body) == 0, ascii(body)
    folded = unicodedata.normalize("NFKD", body.translate(_PLAIN)).casefold().translate(_PLAIN)
    letters = "".join(char for char in folded if not unicodedata.combining(char)).replace("i", "l")
    assert not (tags := _TAGS.findall(letters)), (tags, body)


def test_covers_forty_attacks_and_every_tool_that_returns_untrusted_text() -> None:
    assert len(ATTACKS) == len(set(ATTACKS)) >= 40
    brings = {name for name, tool in builtin_tools().items() if tool.spec.reads or not tool.spec.writes}
    foreign = (brings | {*RUN_TOOLS}) - NO_TEXT
    attacked = {way.tool for way in WAYS.values()} | {*ELSEWHERE}
    table = "tests/server/test_injections.py: WAYS (how a text reaches the model through it), ELSEWHERE or NO_TEXT"
    must_list(table, attacked, foreign)
    assert attacked == foreign
    assert sum(unseen(attack) > 0 for attack in ATTACKS) >= 9


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WAYS))
async def test_every_attack_reaches_the_model_only_as_data(tmp_path: Path, name: str) -> None:
    way, numbers = WAYS[name], range(len(ATTACKS))
    script: list[Step] = []
    async with ground(tmp_path, script) as (at, lab):
        calls = [(way.tool, {key: value for key, value in way.lay(at, n).items() if key != "_"}) for n in numbers]
        script += [Say(calls=calls[start : start + TOGETHER]) for start in range(0, len(calls), TOGETHER)]
        script.append(hand_over())
        shown, others, nonce = await read(lab, workspace=str(lab.workspace))
        received = b"".join(request.body for request in lab.server.requests)
    assert len(shown) == len(ATTACKS)
    assert "Marker" not in re.sub(r"Marker\d\dx", "", others) and TOKEN.encode() not in received
    by_mark = {found[0]: each for each in shown if (found := re.search(r"Marker\d\dx", each))}
    for number in numbers:
        assert mark(number) in by_mark, f"{mark(number)} did not arrive: {shown[number]}"
        body, removed = inside(by_mark[mark(number)], nonce)
        assert_inert(body)
        hidden = unseen(ATTACKS[number])
        if way.counted == "exactly":
            assert removed == hidden, ATTACKS[number]
        elif way.counted == "some" and any(unicodedata.category(char) == "Cf" for char in ATTACKS[number]):
            assert removed > 0, (ATTACKS[number], body)


async def test_every_attack_in_the_rest_of_a_long_result_is_only_data(tmp_path: Path) -> None:
    def script(request: dict[str, Any]) -> Step:
        results = [str(each["content"]) for each in request["messages"] if each["role"] == "tool"]
        if not results:
            return Say(calls=[("http_get", {"url": "http://docs.example.com/long"})])
        if len(results) == 1:
            (wanted,) = re.findall(r"read_tool_result (R-\w+) with offset (\d+) goes on\]\Z", results[0])
            return Say(calls=[("read_tool_result", {"id": wanted[0], "offset": int(wanted[1])})])
        return hand_over()

    async with ground(tmp_path, script) as (at, lab):
        at.web.pages["/long"] = Page(
            "word " * 4_000 + "\n".join(map(marked, range(len(ATTACKS)))), content_type="text/plain"
        )
        shown, others, nonce = await read(lab)
    first, removed = inside(shown[0], nonce)
    assert removed == sum(map(unseen, ATTACKS)), "what was removed is counted where it is removed"
    body, again = inside(shown[1], nonce)
    assert again == 0
    for number in range(len(ATTACKS)):
        assert mark(number) in body and mark(number) not in first + others
    assert_inert(body)


async def test_every_attack_in_the_result_of_another_subagent_is_only_data(tmp_path: Path) -> None:
    steps: list[Step] = [submits("\n".join(map(marked, range(len(ATTACKS)))), summary=marked(0), caveats=[marked(15)])]
    async with ground(tmp_path, steps) as (_at, lab):
        first = await lab.start(role="tester", task="Write it down.")
        await lab.ended(first)
        steps += [Say(calls=[("read_subagent_result", {"id": first})]), hand_over()]
        # The script goes on by the number of requests: the first run made one.
        shown, others, nonce = await read(lab, context_from=[first])
    body, _removed = inside(shown[0], nonce)
    for number in range(len(ATTACKS)):
        assert mark(number) in body and mark(number) not in others
    assert_inert(body)


@pytest.mark.slow
async def test_every_attack_in_edit_errors_and_verification_output_is_only_data(
    tmp_path: Path,
) -> None:
    needs_confinement(tmp_path / "state")
    files = {f"a{number:02}.txt": f"{marked(number)}\n" for number in range(len(ATTACKS))}
    checkout(tmp_path / "workspace", files)

    def misquoted(name: str) -> tuple[str, dict[str, Any]]:
        old = f"{files[name]} and more".replace("\0", "").replace("{{", "((")
        return "edit_file", {"path": name, "old": old, "new": "x"}

    calls = [misquoted(name) for name in files]
    script = [Say(calls=calls[start : start + TOGETHER]) for start in range(0, len(calls), TOGETHER)]
    async with open_lab(tmp_path, [*script, hand_over(), hand_over(), hand_over(), hand_over()]) as lab:
        result = await coded(lab, namespace=["."], verify="head -c 100000 a*.txt; false", max_tokens=200_000)
        run_id = result["subagent_id"]
        (started,) = await lab.facts(run_id, RunStarted)
        (ready,) = await lab.facts(run_id, WorktreeReady)
        messages: list[dict[str, Any]] = lab.server.requests[-1].json["messages"]
    assert result["error"]["kind"] == "verification"
    shown = [str(each["content"]) for each in messages if each["role"] == "tool"]
    misses, answers = shown[: len(files)], shown[len(files) :]
    for number, each in enumerate(misses):
        body, _removed = inside(each, started.nonce)
        assert mark(number) in body
        assert_inert(body)
    assert len(answers) == 3
    for told in (ready.told, *answers):
        _before, tag, rest = told.partition(f'<tool_output_{started.nonce} tool="verify">\n')
        body, closing, after = rest.partition(f"\n</tool_output_{started.nonce}>")
        assert tag and closing and not after.strip() and "Marker" in body and told.count(started.nonce) == 2
        assert_inert(body)
    others = "\n".join(str(each["content"]) for each in messages if each["role"] in ("system", "assistant"))
    assert "Marker" not in re.sub(r"Marker\d\dx", "", others)

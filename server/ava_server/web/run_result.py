"""The result of a run for its page: what the subagent wrote apart from what Ava checked.

Its Markdown becomes HTML with no HTML of its own, no pictures, and each link with the address that it goes to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from ava_audit.events import WHOLE
from ava_audit.units import micros_from_cents
from ava_roles.wrap import clean
from ava_server.render.host_text import receipts_text
from ava_server.render.markdown import as_markdown, parse
from ava_server.render.responses import RunAnswer
from ava_server.render.result import findings_of, quotes_line
from ava_server.render.run_view import RunView
from ava_server.runs.changes import changed_lines, changes_lines
from ava_server.runs.result import FOUND, LOOKED_AT

MOST_FINDINGS = 200
_PARTS = {
    "input": "Prompts",
    "cache": "Cache",
    "output": "Answers",
    "thinking": "Thinking",
    "retries": "Retries",
    "plan": "Planning",
    "search": "Web searches",
    "uncosted": "Unknown, booked at the worst case",
}


def result_values(shown: RunView, answer: RunAnswer) -> dict[str, Any] | None:
    """Return what the page shows of a result; None where there is none yet, or it was erased."""
    result = answer.untrusted_result
    if result is None:
        return None
    every = findings_of(answer, result.findings)
    findings = [one for one in every if one.claim not in (LOOKED_AT, FOUND)]
    sources = [
        (title, [one for one in every if one.claim == claim])
        for claim, title in ((LOOKED_AT, "Opened, but not evaluated"), (FOUND, "Found by a search, but not read"))
    ]
    own = result.output is not None and result.output != result.summary
    return {
        "whole": answer.state in WHOLE,
        "ended": "" if answer.state == "success" else answer.stop_reason or "no reason is known",
        "what_to_do": (answer.error or {}).get("what_to_do", ""),
        "advice": answer.advice,
        "error": result.error_text or "",
        "summary": html(result.summary) if result.summary else "",
        "output": html(as_markdown(result.output)) if own else "",
        "findings": findings[:MOST_FINDINGS],
        "more_findings": max(len(findings) - MOST_FINDINGS, 0),
        "quotes": quotes_line(findings),
        "sources": [(title, found[:MOST_FINDINGS]) for title, found in sources if found],
        "caveats": result.caveats,
        "artifacts": result.artifacts,
        "changes": changes_lines(answer.subagent_id, answer.changes) if answer.changes else [],
        "changed": changed_lines(result.changed or {}) if answer.changes else [],
        "branch": bool(answer.changes and answer.changes.get("branch")),
        "confidence": answer.confidence,
        "tools": receipts_text(answer.tool_receipts) if answer.tool_receipts is not None else "",
        "spent_on": [] if shown.free else spent_on(micros_by_part(answer)),
        "uncosted": answer.uncosted,
        "overrun": answer.overrun and not answer.advice,
        "is_web_address": is_web_address,
    }


def micros_by_part(answer: RunAnswer) -> dict[str, int]:
    """Return what a result says that money was spent on, in micro-USD."""
    return {name: micros_from_cents(cents) for name, cents in (answer.cost_by or {}).items()}


def spent_on(parts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return what money was spent on, in words, from micro-USD by part."""
    return [(_PARTS.get(name, name), micros) for name, micros in parts.items() if micros]


MOST_CHARS = 200_000
MOST_MARKS, MOST_CELLS = 20_000, 10_000
"""Most characters that may begin Markdown, and most cells of tables; a text with more is shown as it was written."""
_MARKS = "[!*_`~|<&\\"
ADDRESS_CHARS = 120
REL = "noopener noreferrer nofollow"
_BLOCKS = frozenset(("p", "h1", "h2", "h3", "h4", "h5", "h6", "li", "td", "th", "blockquote", "code"))
"""The elements that have a text direction of their own."""
_FIRST_HEADING = 3
"""The page has its own headings above those of a result."""


def is_web_address(text: str) -> bool:
    """Tell whether a text is an address that a link may have."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def html(text: str) -> Markup:
    """Return Markdown that a subagent wrote as HTML: all of its own is escaped, so a template takes it as it is."""
    shown = clean(text)[0]
    part = shown[:MOST_CHARS]
    if _is_heavy(part):
        made = f'<pre class="words" dir="auto">{escape(part)}</pre>'
    else:
        tokens = list(_safe_blocks(parse(part)))
        made = str(_renderer().renderer.render(tokens, _renderer().options, {}))
    left = len(shown) - MOST_CHARS
    more = f'<p class="cut">{left:,} more characters are not shown here.</p>' if left > 0 else ""
    return Markup(made + more)  # noqa: S704 - made here, from escaped text


def _is_heavy(text: str) -> bool:
    """Tell whether the parser could take seconds: a subagent may write what is made for that."""
    rows = [pipes for line in text.split("\n") if (pipes := line.count("|"))]
    return sum(map(text.count, _MARKS)) > MOST_MARKS or len(rows) * max(rows, default=0) > MOST_CELLS


@cache
def _renderer() -> MarkdownIt:
    """Return what makes HTML of tokens; colours of code and HTML of the text's own are off."""
    return MarkdownIt("commonmark", {"html": False, "langPrefix": ""}).enable("strikethrough").enable("table")


def _safe_blocks(tokens: Sequence[Token]) -> Iterable[Token]:
    levels = _heading_levels(tokens)
    for token in tokens:
        token.content = clean(token.content)[0]
        token.attrs = {"start": token.attrs["start"]} if "start" in token.attrs else {}
        token.info = ""  # the language of code is a class else
        if token.type.startswith("heading_"):
            token.tag = levels[token.tag]
        if token.tag in _BLOCKS and token.nesting >= 0:
            token.attrs["dir"] = "auto"
        if token.type == "table_open":
            yield _raw('<div class="scroll" tabindex="0">')
        if token.children:
            token.children = list(_safe_inline(token.children))
        yield token
        if token.type == "table_close":
            yield _raw("</div>")


def _heading_levels(tokens: Iterable[Token]) -> dict[str, str]:
    """Return the level that each level of heading becomes: the highest one comes right below the page's own."""
    used = sorted({token.tag for token in tokens if token.type == "heading_open"})
    return {tag: f"h{min(number, 6)}" for number, tag in enumerate(used, _FIRST_HEADING)}


def _safe_inline(tokens: Sequence[Token]) -> Iterable[Token]:
    address, label = "", ""
    linked = False
    for token in tokens:
        match token.type:
            case "link_open":
                address, label = clean(str(token.attrs.get("href", "")))[0], ""
                linked = is_web_address(address)
                token.attrs = {"href": address, "rel": REL}
                if linked:
                    yield token
            case "link_close":
                if linked:
                    yield token
                if address != label:
                    yield _address(address)
            case "image":
                yield Token("text", "", 0, content=clean(token.content)[0])
                yield _address(clean(str(token.attrs.get("src", "")))[0])
            case _:
                token.content = clean(token.content)[0]
                token.attrs = {}
                label += token.content
                yield token


def short(address: str) -> str:
    """Return an address for display; its host is always whole."""
    host_ends = address.find("/", address.find("//") + 2)
    most = max(ADDRESS_CHARS, len(address) if host_ends < 0 else host_ends + 1)
    return address if len(address) <= most else f"{address[:most]}…"


def _address(address: str) -> Token:
    return Token("html_inline", "", 0, content=f' <bdi class="address">({escape(short(address))})</bdi>')


def _raw(markup: str) -> Token:
    """Return a piece of this module's own HTML."""
    return Token("html_block", "", 0, content=markup)

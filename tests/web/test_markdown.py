"""Untrusted Markdown as HTML: it formats, and does nothing else."""

from __future__ import annotations

import re

import pytest

from ava_server.render.result import UntrustedText
from ava_server.web.markdown import MOST_CHARS, MOST_MARKS, REL, is_web_address, short
from ava_server.web.markdown import html as html_of

RTL = "\u202e"


def html(text: str) -> str:
    return html_of(UntrustedText(text))


def test_names_lines_and_formats_stay() -> None:
    made = html("## First\n`__init__.py` and __init__.py\nnext *line* ~~gone~~\n\n3. three")
    assert "<h3" in made and "<code>__init__.py</code> and __init__.py<br />" in made
    assert "<em>line</em> <s>gone</s>" in made and '<ol start="3">' in made and "<strong>" not in made


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<b onclick=x>",
        '```html" onload="x\n<i>\n```',
        "| <u> |\n|:-:|\n| <s> |",
        "&lt;img src=x&gt;",
        '<https://a.example/"onclick=x>',
        "![a](https://x.example/p.png)",
    ],
)
def test_html_of_the_text_is_text(text: str) -> None:
    made = html(text)
    found = set(re.findall(r"<(\w+)", made))
    assert found <= {"p", "pre", "code", "div", "table", "thead", "tbody", "tr", "th", "td", "a", "bdi"}, found
    assert not re.search(r"<[^>]*\s(?:on\w+|style|class=\"html)", made)


def test_a_link_shows_where_it_goes_and_tells_nobody_where_from() -> None:
    made = html("[bank](https://evil.example/) <https://b.example/>")
    assert (
        f'<a href="https://evil.example/" rel="{REL}">bank</a> <bdi class="address">(https://evil.example/)</bdi>'
        in made
    )
    assert made.count("b.example") == 2, "an address that stands for itself is not repeated"


@pytest.mark.parametrize(
    "address",
    ["javascript:alert(1)", "data:text/html,x", "/sign-out", "mailto:a@b.example", "http:///x", "ftp://a.example/"],
)
def test_only_web_addresses_are_links(address: str) -> None:
    assert "<a " not in html(f"[here]({address})") and not is_web_address(address)


def test_a_picture_is_its_words_and_its_address() -> None:
    made = html("![a chart](https://track.example/x.png)")
    assert "a chart" in made and "(https://track.example/x.png)" in made and "src=" not in made


def test_hidden_characters_are_gone_however_they_were_written() -> None:
    assert RTL not in html(f'a{RTL}b &#x202e; `c&#8238;{RTL}` [l{RTL}](https://x.example/ "t{RTL}")')


def test_the_host_of_a_long_address_is_whole() -> None:
    host = f"https://{'a.' * 100}evil.example"
    assert short(f"{host}/{'x' * 500}") == f"{host}/…"
    assert short("https://a.example/b") == "https://a.example/b"


@pytest.mark.parametrize(
    "text",
    [
        "[" * MOST_CHARS,
        "![" * (MOST_CHARS // 2),
        "*a_ " * (MOST_CHARS // 4),
        f"{'|a' * 1000}\n{'|-' * 1000}\n" + "|a\n" * 100,
    ],
    ids=["brackets", "pictures", "emphasis", "table"],
)
def test_what_takes_a_parser_seconds_is_shown_as_it_was_written(text: str) -> None:
    assert html(text) == f'<pre class="words" dir="auto">{text}</pre>'


def test_what_is_shown_as_it_was_written_is_escaped() -> None:
    assert "<b>" not in html("<b>" * MOST_MARKS) and "&lt;b&gt;" in html("<b>" * MOST_MARKS)


def test_a_long_result_is_still_markdown() -> None:
    made = html("| a | b |\n| - | - |\n" + "| [x](https://a.example/) | **y** |\n" * 1000)
    assert made.count("<td") == 2000 and "<strong" in made


def test_a_very_long_text_says_what_is_missing() -> None:
    assert "12 more characters are not shown here" in html("x" * (MOST_CHARS + 12))

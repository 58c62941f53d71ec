"""The picture in the README shows what `ava demo` prints now: the demo runs again and its lines are compared."""

from __future__ import annotations

import html
import re
import sys
import xml.etree.ElementTree as Xml

import pytest
from support.repository import REPOSITORY, script

PICTURE = REPOSITORY / "examples" / "demo.svg"
_PART = re.compile(r'<text [^>]*clip-path="url\(#ava-demo-line-(\d+)\)">([^<]*)</text>')
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the picture is made on a pty of Linux")


def shown(picture: str) -> list[str]:
    """Return the lines of text in a picture."""
    lines: dict[int, str] = {}
    for number, part in _PART.findall(picture):
        lines[int(number)] = lines.get(int(number), "") + html.unescape(part).replace("\N{NO-BREAK SPACE}", " ")
    return [lines.get(at, "").rstrip() for at in range(max(lines) + 1)]


def dense(lines: list[str]) -> list[str]:
    """Return lines without blanks: in a picture, those between two styles are places and no text."""
    return [line.replace(" ", "") for line in lines]


@pytest.mark.slow
def test_the_picture_shows_the_current_output_of_the_demo() -> None:
    picture = script("demo_picture")
    lines = [picture.plain(line).rstrip() for line in picture.lines()]
    assert dense(shown(PICTURE.read_text("utf-8"))) == dense(lines), "run `python scripts/demo_picture.py`"
    text = "\n".join(lines)
    assert (
        "Start it? [y/N] (more: m) y" in text and "✓ quote found word for word" in text and "RunEnded success" in text
    )


def test_the_picture_contains_all_lines_and_no_local_paths() -> None:
    lines = ["$ ava demo", "", "-- Result --", 'a < b & "c"']
    assert shown(script("demo_picture").svg(lines)) == lines
    Xml.fromstring(PICTURE.read_text("utf-8"))
    assert str(REPOSITORY) not in PICTURE.read_text("utf-8")


def test_each_line_of_the_picture_appears_with_its_part_and_the_answer_after_its_question() -> None:
    text = PICTURE.read_text("utf-8")
    rules = re.findall(r"^(\[clip-path.+) \{ animation: ava-demo-part-(\d)", text, re.MULTILINE)
    parts = {int(line): int(part) for rule, part in rules for line in re.findall(r"line-(\d+)", rule)}
    assert sorted(parts) == list(range(len(shown(text))))
    assert [parts[line] for line in sorted(parts)] == sorted(parts.values())
    moments = [float(moment) for moment in re.findall(r"@keyframes ava-demo-part-\d \{ .* ([\d.]+)% ", text)]
    (answered,) = [float(moment) for moment in re.findall(r"@keyframes ava-demo-answer \{ .* ([\d.]+)% ", text)]
    (question,) = [line for line, words in enumerate(shown(text)) if "Start it?" in words]
    assert moments == sorted(moments) and moments[parts[question]] < answered < moments[parts[question] + 1]


def test_the_readme_shows_the_picture() -> None:
    assert "](examples/demo.svg)" in (REPOSITORY / "README.md").read_text("utf-8")

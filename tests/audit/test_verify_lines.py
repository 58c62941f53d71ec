"""Files of JSON lines: whatever is changed in one, added to it or taken out of its middle is found."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log import Life, message, write_each

from ava_audit.entries import VerifyReport, line_fault
from ava_audit.events import TRANSCRIPT_TYPES, Event
from ava_audit.search import LogQuery, export_lines
from ava_audit.store.store import Store
from ava_audit.verify import LONGEST_LINE, verify_lines


async def exported(folder: Path, events: Iterable[Event]) -> list[bytes]:
    async with Store.open(folder) as log:
        await write_each(log, events)
        return b"".join([part.data async for part in export_lines(log, LogQuery())]).splitlines(keepends=True)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """An export of a whole log: one run, and words in between."""
    life = Life("S-aaaaaa")
    return anyio.run(
        exported, tmp_path_factory.mktemp("log"), [message("begun"), *life.all_events(), message("ümläut 😀 \u2028")]
    )


def check(lines: list[bytes]) -> VerifyReport:
    return verify_lines(io.BytesIO(b"".join(lines)))


def text_of(lines: list[bytes]) -> str:
    (fault,) = check(lines).faults
    return fault.text


def test_a_complete_export_verifies_without_gaps(lines: list[bytes]) -> None:
    report = check(lines)
    assert (report.ok, report.entries, report.seq, report.gaps) == (True, 13, 13, 0)
    assert report.head == json.loads(lines[-1])["hash"]
    assert check([line.replace(b"\n", b"\r\n") for line in lines]).ok, "as some systems end lines"
    assert check([*lines[:-1], lines[-1].removesuffix(b"\n")]).ok


@settings(max_examples=200)
@given(data=st.data())
def test_detects_a_change_of_any_byte(data: st.DataObject, lines: list[bytes]) -> None:
    number = data.draw(st.integers(0, len(lines) - 1))
    line = bytearray(lines[number])
    place = data.draw(st.integers(0, len(line) - 2))
    line[place] ^= 1 << data.draw(st.integers(0, 7))
    report = check([*lines[:number], bytes(line), *lines[number + 1 :]])
    assert (report.ok, report.entries) == (False, number)
    assert report.faults[0].text.startswith(f"line {number + 1}: ")


def test_detects_additions_to_a_line(lines: list[bytes]) -> None:
    line = lines[0]
    for other in (
        line.replace(b"}\n", b',"content":{"text":"forged","kind":"message"}}\n'),  # what jq would show
        line.replace(b"}\n", b',"note":1}\n'),
        line.replace(b'{"timestamp"', b'{"agentId":"S-ffffff","timestamp"', 1),
        line.replace(b'"metadata":{', b'"metadata":{"costCents":5,', 1),
        line.replace(b',"seq"', b', "seq"', 1),
        b" " + line,
        line.rstrip(b"\n") + b" {}\n",
    ):
        assert other != line
        assert line_fault(other) is not None, other


def test_detects_removed_content_of_types_that_are_never_erased(lines: list[bytes]) -> None:
    for line in lines:
        value = json.loads(line)
        content = json.dumps(value["content"], ensure_ascii=False, separators=(",", ":")).encode()
        bare = line.replace(b',"content":' + content, b"")
        assert bare != line
        erasable = value["eventType"] in TRANSCRIPT_TYPES
        assert (line_fault(bare) is None) == erasable, value["eventType"]


def test_counts_missing_lines_and_reports_repeated_and_moved_ones(lines: list[bytes]) -> None:
    assert check(lines[3:]).ok, "a part of the log is a file too"
    gap = check([*lines[:4], *lines[6:]])
    assert (gap.ok, gap.gaps) == (True, 1), "a file alone cannot tell why: it is counted"
    assert "entry 4 comes after entry 4" in text_of([*lines[:4], lines[3], *lines[4:]])
    assert "entry 4 comes after entry 5" in text_of([*lines[:3], lines[4], lines[3], *lines[5:]])


def test_reports_a_line_of_another_log(lines: list[bytes], tmp_path: Path) -> None:
    other = anyio.run(exported, tmp_path, [message(f"another {number}") for number in range(13)])
    assert "entry 6 does not follow" in text_of([*lines[:5], other[5]])
    first = json.loads(other[0])
    assert first["prevHash"] == "0" * 64


@pytest.mark.parametrize(
    "line",
    [
        b"\n", b"[]\n", b"null\n", b"7\n", b"{}\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b'{"a":' * 50_000 + b"\n",
        b"9" * 10_000 + b"\n", b"\x00" * 100 + b"\n", b"x" * (LONGEST_LINE + 5),
        b'{"timestamp":1,"metadata":[],"seq":"x","hash":"00"}\n',
    ],
    ids=range(12),
)  # fmt: skip
def test_reports_an_invalid_line_as_one_fault(line: bytes, lines: list[bytes]) -> None:
    report = check([*lines[:2], line])
    assert (report.ok, report.entries, len(report.faults)) == (False, 2, 1)
    assert len(report.faults[0].text) < 400


def test_reports_a_line_that_is_cut_off(lines: list[bytes]) -> None:
    assert "line 3: it is cut off; if a server is writing the file, try again" in text_of([*lines[:2], lines[2][:50]])

"""Searching the workspace: lines, and the passages that fit a question."""

import gzip
import os
import random
import re
import textwrap
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from support.foreign.searched_files import ask_files, search_lines

from ava_roles.errors import NotThere, ToolFailed
from ava_roles.sandbox.path_access import FileMark
from ava_roles.sandbox.paths import Root
from ava_roles.texts.page_text import read_page_text
from ava_roles.texts.passages import Query, split_passages
from ava_roles.tool import ToolContext
from ava_roles.tools.files import ReadFile, ReadFileArgs, SearchAndRead


async def test_answers_a_question_with_verbatim_passages(at: ToolContext, tmp_path: Path) -> None:
    filler = "\n\n".join(f"Paragraph {number} speaks of gardens and weather." for number in range(200))
    passage = "The pump   runs at 3,200 rpm;\n  its “filter” must be changed every 90 days."
    (tmp_path / "manual.txt").write_text(f"{filler}\n\n{passage}\n\n{filler}\n")
    got = await ask_files(at, "How often must the filter of the pump be changed?")
    assert got.sources[0].location == "manual.txt"
    assert passage in got.text
    start = f"{filler}\n\n".count("\n") + 1
    where = got.text[: got.text.index(passage)].rpartition("lines ")[2]
    first, last = (int(word) for word in where.partition(":")[0].split(" to "))
    assert first <= start <= last


async def test_returns_the_best_files_first_up_to_the_limit(at: ToolContext, tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"note{number}.md").write_text("pump\n" if number else "pump pump filter valve\n")
    got = await ask_files(at, "pump filter valve", max_files=2)
    assert got.sources[0].location == "note0.md"
    assert got.count == 2


async def test_a_file_gives_as_many_passages_as_rank_best_and_each_file_gives_one(
    at: ToolContext, tmp_path: Path
) -> None:
    filling = "\n\n".join(["gardens and weather " * 50] * 2)
    sections = [f"The pump of section {number} needs a new filter." for number in range(9)]
    (tmp_path / "manual.txt").write_text(f"\n\n{filling}\n\n".join(sections))
    (tmp_path / "note.txt").write_text("A filter. " + "The weather was fine. " * 30)
    got = await ask_files(at, "Which pump needs a new filter?")
    assert [each for each in sections if each in got.text] == sections
    assert [source.location for source in got.sources] == ["manual.txt", "docs/guide.md", "note.txt"]
    assert len(got.text) <= SearchAndRead.spec.max_chars


async def test_searches_documents_too(at: ToolContext, tmp_path: Path) -> None:
    import docx

    document = docx.Document()
    document.add_paragraph("The zeppelin leaves on Tuesday.")
    document.save(str(tmp_path / "plan.docx"))
    got = await ask_files(at, "zeppelin")
    assert "The zeppelin leaves on Tuesday." in got.text


async def test_reports_the_search_words_when_nothing_matches(at: ToolContext) -> None:
    got = await ask_files(at, "what is the zymurgy?")
    assert (got.count, got.success) == (0, True)
    assert "passages have: zymurgy 0" in got.text
    assert (await ask_files(at, '"*^ OR NEAR(')).count == 0
    assert (await ask_files(at, "???")).count == 0


async def test_an_answer_stays_within_the_limit_for_the_model(at: ToolContext, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"big{number}.txt").write_text("\n".join(f"pump {line} " + "y" * 800 for line in range(50)))
    got = await ask_files(at, "pump", max_files=20)
    assert len(got.text) <= SearchAndRead.spec.max_chars
    assert got.count is not None and got.count >= 15
    (tmp_path / "wide.txt").write_text("\n".join("pump valve " + "y " * 1_150 for _ in range(50)))
    assert len((await ask_files(at, "pump valve", max_files=20)).text) <= SearchAndRead.spec.max_chars


def test_passages_consist_of_whole_lines_and_lose_no_text() -> None:
    text = "\n".join(f"line {number} " + "z" * (number % 80) for number in range(500))
    pieces = [passage.text for passage in split_passages(text)]
    assert "\n".join(pieces) == text
    assert max(map(len, pieces)) <= 1_300


@pytest.mark.parametrize("seed", range(5))
def test_each_sentence_of_wrapped_prose_is_whole_in_a_passage_and_no_line_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    sentences: list[str] = []
    for number in range(200):
        sentences.append(
            " ".join([f"Sentence{number}", *["word" * chance.randint(1, 3)] * chance.randint(2, 25)]) + "."
        )
    text = textwrap.fill(" ".join(sentences), 72)
    found = [passage.text for passage in split_passages(text)]
    for sentence in sentences:
        assert any(sentence in " ".join(passage.split()) for passage in found)
    assert {line for passage in found for line in passage.split("\n")} == set(text.split("\n"))
    assert all(500 < len(passage) <= 1_300 for passage in found[:-1])
    lines = text.split("\n")
    for passage in split_passages(text):
        first, last = map(int, re.findall(r"\d+", passage.where))
        assert passage.text == "\n".join(lines[first - 1 : last])


@pytest.mark.parametrize("above", ["## The rates", "The rates are:"])
def test_a_heading_and_an_announcement_stand_in_the_passage_of_what_follows(above: str) -> None:
    for words in range(80, 260):
        text = f"{'word ' * words}\n\n{above}\n\n- {'rate ' * 100}\n- {'rate ' * 100}"
        assert any(f"{above}\n\n- rate" in passage.text for passage in split_passages(text))


def test_an_entry_of_a_list_begins_a_passage_and_rows_of_a_table_are_in_one_only() -> None:
    entries = "\n".join(f"- Entry {number} of the list which\n  goes on and on, as it were" for number in range(60))
    assert all(passage.text.startswith("- Entry") for passage in split_passages(entries))
    rows = "\n".join(f"| {number} | Mr. Berg. He pays | 12 |" for number in range(200))
    assert "\n".join(passage.text for passage in split_passages(rows)) == rows


def test_ignores_common_words_unless_there_are_no_others() -> None:
    assert Query("What is the filter?").words == ("filter",)
    assert Query("to be or not to be").words == ("to", "be", "or", "not")


async def test_finds_and_quotes_words_deep_inside_one_long_line(at: ToolContext, tmp_path: Path) -> None:
    words = [f"w{number:05}" for number in range(20_000)]
    (tmp_path / "long.txt").write_text(f"first\n{' '.join(words)}\nlast\n")
    got = await ask_files(at, "w00007 w15000 w19999")
    assert got.sources[0].location == "long.txt"
    passages = re.split(r"line 2, from column [\d,]+:\n", got.text)[1:]
    assert [any(word in passage for passage in passages) for word in ("w00007", "w15000", "w19999")] == [True] * 3
    assert all(passage.strip() in " ".join(words) for passage in passages)


def test_splits_a_long_line_without_losing_words_or_the_lines_around_it() -> None:
    words = [f"w{number}" for number in range(3_000)]
    found = list(split_passages("\n".join(["before", " ".join(words), "after", "x" * 5_000])))
    assert found[0].text == "before"
    assert " ".join(passage.text for passage in found[1:-6]).split() == words
    assert found[-6].text == "after"
    assert "".join(passage.text for passage in found[-5:]) == "x" * 5_000
    assert [passage.where for passage in (found[0], found[1], found[-6], found[-1])] == [
        *("line 1", "line 2, from column 1", "line 3", "line 4, from column 4,801")
    ]
    assert max(len(passage.text) for passage in found) <= 1_200


@pytest.mark.parametrize("regex", [False, True])
async def test_searches_compressed_text(at: ToolContext, tmp_path: Path, regex: bool) -> None:
    (tmp_path / "notes.gz").write_bytes(gzip.compress(b"first\nthe zeppelin lands\n"))
    assert "notes.gz:2: the zeppelin lands" in (await search_lines(at, "zeppelin", regex=regex)).text
    assert "the zeppelin lands" in (await ask_files(at, "zeppelin")).text


async def test_reads_compressed_text_and_says_where_it_goes_on(at: ToolContext, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(9_000)]
    (tmp_path / "long.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    got = await ReadFile()(ReadFileArgs(path="long.txt.gz", offset=8_000), at)
    assert got.text.startswith("long.txt.gz (text, 88,889 bytes): lines 8,000 to 9,000 of 9,000\n\nline 7999\n")


@pytest.mark.slow
async def test_a_compressed_bomb_is_not_unpacked_beyond_the_limit(at: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"pump " * 1_000 + b"\0" * 200_000_000))
    (tmp_path / "members.gz").write_bytes(gzip.compress(b"") * 90_000)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"zeppelin " * 9_000)[:-40])
    tracemalloc.start()
    got = await ask_files(at, "zeppelin")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert got.count == 0 and "2 too large or damaged" in got.text and peak < 50_000_000
    assert "binary (more than 20,000,000 bytes" in (await ReadFile()(ReadFileArgs(path="bomb.gz"), at)).text


async def test_secrets_in_compressed_text_are_hidden_before_a_part_of_it_is_shown(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"The zeppelin opens\nwith OPEN-\nSESAME today\n"))
    root = Root.open(tmp_path)
    at = ToolContext(files=root, hide=lambda text: text.replace("OPEN-\nSESAME", "[hidden]\n"))
    shown = [
        await ask_files(at, "zeppelin"),
        await ask_files(at, "sesame"),
        await search_lines(at, "sesame"),
        await search_lines(at, "today"),
        await search_lines(at, "S.SAME", regex=True),
        await ReadFile()(ReadFileArgs(path="a.gz"), at),
    ]
    root.close()
    assert [got.count for got in shown[:5]] == [1, 0, 0, 1, 0]
    assert all("SESAME" not in got.text for got in shown if got.count) and "[hidden]" in shown[-1].text


async def test_html_is_searched_and_quoted_without_its_tags(at: ToolContext, tmp_path: Path) -> None:
    page = (
        "<html><!-- zeppelin -->\n<style>zeppelin</style>\n<p class='zeppelin'>An <b>air</b>ship &amp; a\nballoon</p>"
    )
    (tmp_path / "page.html").write_text(page)
    assert "lines 3 to 4:\n An airship & a\nballoon" in (await ask_files(at, "airship")).text
    assert (await ask_files(at, "zeppelin")).count == 0
    began = time.monotonic()
    for hostile in ("<script" * 200_000, "<!--" * 300_000, "<a " * 300_000, "</script " * 200_000):
        read_page_text(hostile, keep_lines=True)
    assert time.monotonic() - began < 15


async def test_says_how_many_files_were_not_searched_and_why(at: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "large.txt").write_bytes(b"pump\n" * 2_500_000)
    got = await ask_files(at, "pump")
    assert got.text.startswith("1 file fits best (")
    assert "; not searched: 1 not text, 1 too large or damaged\n" in got.text
    got = await ask_files(replace(at, seconds_left=lambda: 0.0), "pump")
    assert got.text.startswith("0 files fit best (0 searched); not searched: 8 not reached in the time: ask again,")
    assert got.unread == "Files searched: 0. Not searched: 8 not reached in the time: ask again, or give a path."


async def test_a_file_that_could_have_text_and_was_not_read_leaves_a_search_unfinished(
    at: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await ask_files(at, "zeppelin")).unread == ""  # blob.bin is no text for anybody
    (tmp_path / "large.txt").write_bytes(b"pump\n" * 2_500_000)
    (tmp_path / "locked.txt").write_text("The zeppelin leaves at noon.")
    (tmp_path / "gone.txt").write_text("The zeppelin leaves at noon.")
    read, caps = Root.read_marked, list[int]()

    def denied(root: Root, rel: str, cap: int) -> tuple[bytes, bool, FileMark]:
        if rel == "locked.txt":
            raise ToolFailed("locked.txt: permission denied")
        if rel == "gone.txt":
            raise NotThere("gone.txt is not there")
        if rel == "large.txt":
            caps.append(cap)
        return read(root, rel, cap)

    monkeypatch.setattr(Root, "read_marked", denied)
    got = await ask_files(at, "zeppelin")
    reasons = "1 not text, 1 too large or damaged, 1 that cannot be opened, 1 gone meanwhile"
    assert sorted(got.text.split("\n")[0].partition("; not searched: ")[2].split(", ")) == sorted(reasons.split(", "))
    assert "1 too large or damaged" in got.unread and "1 that cannot be opened" in got.unread
    assert max(caps) < 10_000, "what is too large is not read with each question"


@pytest.mark.parametrize("page", ["<" + "a" * 1_000_000, "&#" + "9" * 5_000 + ";", "<script " * 100_000])
async def test_no_page_stops_a_search_or_the_server(at: ToolContext, tmp_path: Path, page: str) -> None:
    (tmp_path / "page.html").write_text(f"zeppelin {page}")
    began = time.monotonic()
    assert (await ask_files(at, "zeppelin")).count == 1
    assert time.monotonic() - began < 10


async def test_packed_archives_blank_text_and_large_documents_leave_room_for_others(
    at: ToolContext, tmp_path: Path
) -> None:
    for number in range(25):
        (tmp_path / f"a{number}.tar.gz").write_bytes(gzip.compress(os.urandom(200_000) + b"\0"))
        with (tmp_path / f"a{number}.pdf").open("wb") as file:
            file.truncate(11_000_000)
    (tmp_path / "words.txt").write_text("The zeppelin leaves at noon.\n")
    assert "The zeppelin leaves at noon." in (await ask_files(at, "zeppelin")).text
    for number in range(9):
        (tmp_path / f"b{number}.gz").write_bytes(gzip.compress(b"\n" * 1_000_000))
    got = await ask_files(at, "zeppelin")
    assert "The zeppelin leaves at noon." in got.text
    assert "; not searched: 26 not text, 25 too large or damaged\n" in got.text


async def test_pictures_large_files_and_inner_folders_leave_room_for_the_texts_beside_them(
    at: ToolContext, tmp_path: Path
) -> None:
    for name, size in [("film.mp4", 50_000_000), *((f"picture{number}.png", 1_900_000) for number in range(30))]:
        with (tmp_path / name).open("wb") as file:
            file.write(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
            file.truncate(size)
    (tmp_path / "words.txt").write_text("The zeppelin leaves at noon.\n")
    (tmp_path / "api").mkdir()
    for number in range(5):  # more than a search reads, in a folder that comes first by name
        (tmp_path / "api" / f"page{number}.txt").write_bytes(b"airship\n" * 120_000)
    got = await ask_files(at, "zeppelin")
    assert "The zeppelin leaves at noon." in got.text
    assert "; not searched: 32 not text\n" in got.text


def alike(number_of_words: int) -> str:
    """Words that all begin like the one that is looked for."""
    words = range(number_of_words)
    long = " ".join(f"refund{'abcdefghij'[number % 10] * (number % 30)}x{number}" for number in words)
    return f"{long} " + " ".join("refund" + "".join("abcdefghij"[int(digit)] for digit in str(each)) for each in words)


@pytest.mark.slow
def test_eight_times_as_many_words_that_begin_alike_take_about_eight_times_as_long() -> None:
    def seconds(text: str) -> float:
        began = time.process_time()
        assert Query("refunds").matches(f"refunding {text}").counts >= [1]
        return time.process_time() - began

    few, many = alike(10_000), alike(80_000)
    assert min(seconds(many) for _ in range(2)) < 24 * min(seconds(few) for _ in range(3))


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("全国教师联盟简称NASUWT是英国的工会。", "What is the NASUWT?"),
        ("会社はToyotaです。", "Where is Toyota?"),
        ("2020年のGDPは536兆円でした。", "GDP 2020?"),
        ("ราคาของiPhoneคือสามหมื่นบาท", "How much is an iPhone?"),
    ],
)
async def test_finds_a_word_beside_signs_without_blanks(
    at: ToolContext, tmp_path: Path, text: str, question: str
) -> None:
    (tmp_path / "a.txt").write_text(text, "utf-8")
    (tmp_path / "b.txt").write_text("nothing of it\n")
    got = await ask_files(at, question)
    assert [source.location for source in got.sources] == ["a.txt"] and text in got.text


async def test_finds_a_chinese_word_beside_a_latin_one(at: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("本店有iPhone手机出售。\n", "utf-8")
    (tmp_path / "b.txt").write_text("没有别的东西。\n", "utf-8")
    assert [source.location for source in (await ask_files(at, "iPhone手机")).sources] == ["a.txt"]

"""The benchmark of the offline reader counts right: its intervals, its test, its ways to rank and its questions."""

from __future__ import annotations

import subprocess
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.repository import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"
LANGUAGES = {"en", "de", "fr", "es", "zh", "ja"}


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Any:
    return part("counting", monkeypatch)


@pytest.fixture
def ranking(monkeypatch: pytest.MonkeyPatch) -> Any:
    return part("ranking", monkeypatch)


@pytest.fixture
def sets(monkeypatch: pytest.MonkeyPatch) -> Any:
    return part("sets", monkeypatch)


def part(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module(f"reader_parts.{name}")


# -- counting --


@pytest.mark.parametrize(
    ("part_of", "whole", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (87, 100, 0.7902, 0.9224)],
)
def test_wilsons_interval(counting: Any, part_of: int, whole: int, low: float, high: float) -> None:
    assert counting.wilson(part_of, whole) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("won", "lost", "p"), [(0, 0, 1.0), (1, 1, 1.0), (0, 5, 0.0625), (5, 0, 0.0625), (0, 6, 0.03125), (2, 10, 0.0386)]
)
def test_the_exact_sign_test(counting: Any, won: int, lost: int, p: float) -> None:
    assert counting.sign_test(won, lost) == pytest.approx(p, abs=5e-5)


def test_the_sign_test_holds_for_many_pairs(counting: Any) -> None:
    assert counting.sign_test(600, 600) == 1.0
    assert 0 <= counting.sign_test(0, 5_000) < 1e-300


def test_the_table_compares_with_the_best_other_way_of_each_group(counting: Any) -> None:
    ways = ("own", "one", "two")

    def outcome(language: str, right: tuple[bool, bool, bool], kind: str = counting.ANSWERED) -> Any:
        found = dict(zip(ways, right, strict=True))
        return counting.Outcome(
            "set", language, "md", "?", kind, found, found, found, True, dict.fromkeys(ways, 800), {}
        )

    outcomes = [outcome("de", (True, False, True)), outcome("de", (False, False, True))]
    outcomes += [outcome("ja", (False, True, False)), outcome("ja", (False, False, False), "article out")]
    rows = counting.table(outcomes, ways, "own", ways[1:]).splitlines()
    by_group = {row.split(" | ")[0].strip("| "): row for row in rows[2:]}
    assert by_group["language de"].endswith("| two: 0, 1, 1 |")
    assert by_group["language ja"].endswith("| one: 0, 1, 1 |")
    assert by_group["all"].startswith("| all | 3 | 1 (6 % to 79 %) | 1 (6 % to 79 %) | 2 (21 % to 94 %) |")
    room = counting.with_room(outcomes, ways, "own", ways[1:])
    assert room.splitlines()[2:] == [
        "| own | 800 | 1 (6 % to 79 %) | – |",
        "| one | 800 | 1 (6 % to 79 %) | 1, 1, 1 |",
        "| two | 800 | 2 (21 % to 94 %) | 0, 1, 1 |",
    ]
    assert "| all, article out | 1 | 0 (0 % to 79 %) |" in counting.no_claim_table(outcomes)


# -- ways to rank --


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("The houses, and HOUSE", "en", ["the", "hous", "and", "hous"]),
        ("Häuser des Hauses", "de", ["haus", "des", "haus"]),
        ("印花税税率", "zh", ["印花", "花税", "税税", "税率"]),
        ("税 2024年", "zh", ["税", "年", "2024"]),
        ("ＡＢＣで検索する", "ja", ["で検", "検索", "索す", "する", "abc"]),
        ("ไทย", "th", ["ไท", "ทย"]),
    ],
)
def test_the_tokens_of_bm25(ranking: Any, text: str, language: str, expected: list[str]) -> None:
    assert sorted(ranking.tokens(text, language)) == sorted(expected)


@pytest.mark.parametrize("length", [1, 400, 799, 800, 801, 1_200, 1_201, 5_003])
def test_pieces_overlap_and_leave_nothing_out(ranking: Any, length: int) -> None:
    text = "".join(chr(0x4E00 + number) for number in range(length))
    pieces = [piece.text for piece in ranking.overlapping({"a.md": text})]
    assert all(len(piece) <= ranking.PIECE_CHARS for piece in pieces)
    assert all(any(text[at : at + ranking.STEP_CHARS] in piece for piece in pieces) for at in range(length))
    assert len(pieces) == len(set(pieces))


@pytest.mark.parametrize(
    ("language", "question", "right"),
    [("en", 'How "deep" is the harbour?', "b.md"), ("zh", "印花税税率是多少？", "c.md"), ("en", "?!", None)],
)
def test_fts5_ranks_what_a_question_asks_for(ranking: Any, language: str, question: str, right: str | None) -> None:
    texts = {
        "a.md": "A bridge over the river.",
        "b.md": "The harbour is nine metres deep.",
        "c.md": "印花税税率为千分之三。",
    }
    fts5 = ranking.Fts5(ranking.overlapping(texts), language)
    try:
        paths = [shown.path for shown in fts5.best(question)]
    finally:
        fts5.close()
    assert paths[:1] == ([right] if right else [])


def test_no_way_shows_more_characters_than_another(ranking: Any) -> None:
    shown = [ranking.Shown("a.md", "x" * 700) for _ in range(9)]
    cut = ranking.within(shown)
    assert sum(len(each.text) for each in cut) == ranking.SHOWN_CHARS
    assert cut[:5] == shown[:5]


def test_the_reader_is_asked_as_a_run_asks_it(ranking: Any, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "harbour.md").write_text("# The harbour\n\nThe zeppelin lands on pier nine at noon.\n", "utf-8")
    (folder / "other.md").write_text("# Kitchen\n\nSoup is served on Mondays.\n", "utf-8")
    reader = ranking.Reader(tmp_path / "texts.db")
    try:
        found = reader.answer("Where does the zeppelin land?", folder)
        assert found.claims
        assert [each.path for each in found.shipped] == ["harbour.md"]
        assert "pier nine" in found.before[0].text
        nothing = reader.answer("Who invented the quantum harpsichord?", folder)
        assert not nothing.claims
        assert nothing.shipped == []
        assert set(reader.texts(folder)) == {"harbour.md", "other.md"}
    finally:
        reader.kept.close()


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("a/b.md:12", "a/b.md"),
        ("a.xlsx, sheet Sales, rows 3 to 9", "a.xlsx"),
        ("a, b.pdf, page 3", "a, b.pdf"),
        ("a, b.pdf", "a, b.pdf"),
        ("https://example.org/", "https://example.org/"),
    ],
)
def test_the_path_of_a_finding(ranking: Any, location: str, path: str) -> None:
    assert ranking.path_of(location, ["a", "a.xlsx", "a/b.md", "a, b.pdf"]) == path


# -- questions --


def test_a_passage_is_right_only_where_it_covers_the_answer(ranking: Any, sets: Any) -> None:
    text = "Nine ships came. Later nine ships left the bay. Nine."
    start = text.index("nine ships left")
    question = sets.Question("set", "en", "How many left?", "folder", ("a.md",), (), (start, start + 4))
    texts = {"a.md": text}
    assert sets.is_right(question, ranking.Shown("a.md", " nine ships left the bay.\n"), texts)
    assert not sets.is_right(question, ranking.Shown("a.md", "Nine ships came."), texts)
    assert not sets.is_right(question, ranking.Shown("b.md", text), texts)


def test_a_table_is_right_only_with_the_name_of_the_row(ranking: Any, sets: Any) -> None:
    question = sets.Question("set", "en", "?", "folder", ("a.csv",), (("Net sales", "2,308"), ("total", "9")))
    assert sets.is_right(question, ranking.Shown("a.csv", "| net\n sales | 2,308 |"), {})
    assert sets.is_right(question, ranking.Shown("a.csv", "Total: 9"), {})
    assert not sets.is_right(question, ranking.Shown("a.csv", "| 2,308 |"), {})


def test_articles_become_files_and_can_be_taken_out(sets: Any, tmp_path: Path) -> None:
    qas = [{"question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]}]
    title_first = {
        "context": "梅雨 [SEP] Bo wrote.",
        "qas": [{"question": "B?", "answers": [{"text": "Bo", "answer_start": 9}]}],
    }
    articles = [
        {"title": "First_one", "paragraphs": [{"context": "Ada wrote it.", "qas": qas}, title_first]},
        {"title": "Second", "paragraphs": [{"context": "Soup.", "qas": []}]},
    ]
    folders = sets.Folders(tmp_path)
    who, second = sets._articles("xquad-en", "en", articles, folders)
    text = folders.path("xquad-en").joinpath(who.paths[0]).read_text("utf-8")
    assert text[slice(*who.span)] == "Ada"
    assert text[slice(*second.span)] == "Bo"
    article_out = folders.without(who, sets.ARTICLE_OUT)
    assert [path.name for path in article_out.iterdir()] == ["02 Second.md"]
    paragraph_out = folders.without(who, sets.PARAGRAPH_OUT)
    assert "Ada" not in (paragraph_out / who.paths[0]).read_text("utf-8")
    assert "Bo wrote." in (paragraph_out / who.paths[0]).read_text("utf-8")
    assert len(list(paragraph_out.iterdir())) == 2


def test_tables_become_documents_of_each_kind_that_have_their_answers(ranking: Any, sets: Any, tmp_path: Path) -> None:
    rows = [["", "2019", "2018"], ["Net <sales>", "$2,308", "1,9"], ["Other, net", "", "70.8"]]
    asked = {"question": "?", "answer_from": "table", "req_comparison": False, "mappings": [{"table": [1, 1]}]}
    of_text = {**asked, "mappings": [{"paragraph": {"0": [0, 1]}}]}
    document = {"table": {"table": rows}, "paragraphs": [{"text": "A note."}], "questions": [asked, of_text]}
    folders = sets.Folders(tmp_path / "folders")
    questions = list(sets._tables([document] * 4, folders))
    assert {question.format for question in questions} == {"csv", "docx", "html", "xlsx"}
    assert len(questions) == 4
    reader = ranking.Reader(tmp_path / "texts.db")
    try:
        texts = reader.texts(folders.path("tat-qa 00"))
    finally:
        reader.kept.close()
    for question in questions:
        assert sets.stands_in(question, texts), (question.paths, texts)


def test_a_folder_that_was_kept_has_only_its_files(sets: Any, tmp_path: Path) -> None:
    folders = sets.Folders(tmp_path, {"one": {"a.md": b"new"}})
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.md").write_bytes(b"old")
    (tmp_path / "one" / "gone.md").write_bytes(b"gone")
    folder = folders.path("one")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a.md": b"new"}


def test_manuals_are_asked_where_they_are_installed(
    ranking: Any, sets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manual = tmp_path / "usr" / "doc"
    (manual / "en").mkdir(parents=True)
    (manual / "en" / "FAQ.txt").write_text("The raid  survives two disks.", "utf-8")
    there = {"package": "mdadm", "folder": str(manual), "ask": "How many disks?"}
    absent = {"package": "absent", "folder": str(tmp_path / "absent"), "ask": "Where?"}
    lines = []
    for table, asked in (("question", there), ("question", absent), ("unanswerable", there)):
        lines.append(f"[[{table}]]")
        lines += [f'{key} = "{value}"' for key, value in asked.items()]
        if table == "question":
            lines += ['file = ["FAQ.txt", "FAQ.html"]', 'phrase = ["raid survives two"]']
    (tmp_path / "reader_tuning.toml").write_text("\n".join(lines), "utf-8")
    monkeypatch.setattr(sets, "HERE", tmp_path)
    folders = sets.Folders(tmp_path / "work")
    (answered, kind), (without, other_kind) = sets.load("tuning-2", tmp_path, folders)
    assert (kind, other_kind) == (sets.ANSWERED, sets.OWN_SUBJECT)
    assert folders.path(answered.folder) == manual
    assert answered.paths == ("en/FAQ.txt",)
    texts = {"en/FAQ.txt": (manual / "en" / "FAQ.txt").read_text("utf-8")}
    assert sets.stands_in(answered, texts)
    assert not sets.stands_in(without, texts)
    assert capsys.readouterr().err == "left out, not installed: apt-get install absent\n"


def test_a_folder_may_be_of_several_repositories(sets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    for name in ("one", "two"):
        work = tmp_path / name
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(work)]
        subprocess.run(["git", "init", "-q", str(work)], check=True)
        (work / "README.md").write_text(f"The fee is {name} euro.", "utf-8")
        subprocess.run([*command, "add", "."], check=True)
        subprocess.run([*command, "commit", "-qm", "one"], check=True)
        bare = tmp_path / f"owner+{name}" / "repo"
        subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], check=True)
        lines += ["[[folder]]", 'name = "last"', 'language = "en"', f'repository = "owner/{name}"']
        lines += [f'below = "owner+{name}/"', 'commit = "HEAD"', 'paths = ["README.md"]']
    lines += ["[[question]]", 'folder = "last"', 'language = "de"', 'ask = "Was kostet es?"']
    lines += ['file = "owner+two/README.md"', 'phrase = ["two euro"]']
    lines += ["[[unanswerable]]", 'folder = "last"', 'ask = "When is it due?"']
    (tmp_path / "reader_last.toml").write_text("\n".join(lines), "utf-8")
    monkeypatch.setattr(sets, "HERE", tmp_path)
    folders = sets.Folders(tmp_path / "work")
    (answered, kind), (without, other_kind) = sets.load("last", tmp_path, folders)
    assert (kind, other_kind) == (sets.ANSWERED, sets.OWN_SUBJECT)
    assert (answered.language, without.language) == ("de", "en")
    folder = folders.path("last")
    texts = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.md")}
    assert sorted(texts) == ["owner+one/README.md", "owner+two/README.md"]
    assert sets.stands_in(answered, texts)


def test_documents_are_read_at_their_commit(sets: Any, tmp_path: Path) -> None:
    work = tmp_path / "work"
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(work)]
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    (work / "é.md").write_text("first", "utf-8")
    subprocess.run([*command, "add", "."], check=True)
    subprocess.run([*command, "commit", "-qm", "one"], check=True)
    commit = subprocess.run([*command, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (work / "é.md").write_text("second", "utf-8")
    subprocess.run([*command, "commit", "-qam", "two"], check=True)
    bare = tmp_path / "owner+name" / "repo"
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], check=True)
    repository = sets.Repository("owner/name", commit, tmp_path)
    assert repository.paths(["é"]) == ["é.md"]
    assert repository.read("é.md") == b"first"
    with pytest.raises(SystemExit, match="git clone --bare"):
        sets.Repository("owner/other", commit, tmp_path).paths([""])
    with pytest.raises(SystemExit, match="cannot be read"):
        repository.read("missing.md")


def test_a_sample_has_questions_of_each_kind_and_language(sets: Any) -> None:
    questions = []
    for language in ("de", "ja"):
        for number in range(10):
            question = sets.Question("set", language, f"{number}?", "folder")
            questions += [(question, sets.ANSWERED), (question, sets.OWN_SUBJECT)]
    chosen = sets.sample(questions, 3)
    assert len(chosen) == 12
    assert len(sets.sample(questions, 0)) == len(questions)


@pytest.mark.parametrize(("name", "without"), [("outside", 75), ("outside-sealed", 25)])
def test_the_questions_over_other_documents_are_complete(sets: Any, name: str, without: int) -> None:
    written = tomllib.loads((BENCHMARKS / sets.OUTSIDE[name]).read_text("utf-8"))
    folders = {folder["name"]: folder for folder in written["folder"]}
    assert {folder["language"] for folder in folders.values()} == LANGUAGES
    assert all(len(folder["commit"]) == 40 for folder in folders.values())
    assert len(written["question"]) == 100
    assert len(written["unanswerable"]) == without
    asked = [question["ask"] for question in (*written["question"], *written["unanswerable"])]
    assert len(asked) == len(set(asked))
    for question in written["question"]:
        assert question["file"].startswith(tuple(folders[question["folder"]]["paths"]))
        assert all(0 < len(phrase) <= 200 for phrase in question["phrase"])
    assert all(question["folder"] in folders for question in written["unanswerable"])


def test_the_last_questions_are_complete(sets: Any) -> None:
    written = tomllib.loads((BENCHMARKS / sets.OUTSIDE[sets.LAST]).read_text("utf-8"))
    files = [folder["below"] + path for folder in written["folder"] for path in folder["paths"]]
    assert {folder["name"] for folder in written["folder"]} == {"last"}
    assert all(len(folder["commit"]) == 40 for folder in written["folder"])
    assert len(files) == len(set(files)) >= 80
    assert len([file for file in files if not file.endswith(".md")]) >= 25
    assert (len(written["question"]), len(written["unanswerable"])) == (10, 3)
    assert {question["folder"] for question in (*written["question"], *written["unanswerable"])} == {"last"}
    for question in written["question"]:
        assert question["file"] in files
        assert all(0 < len(phrase) <= 200 for phrase in question["phrase"])


def test_no_question_runs_that_is_asked_once_unless_it_is_named(sets: Any) -> None:
    assert not set(sets.NAMED_ONLY) & set(sets.SETS)
    assert {sets.SEALED, sets.LAST} == set(sets.NAMED_ONLY)

"""The questions of `reader.py --compare`, and the folders that they are asked about.

XQuAD, JSQuAD and TAT-QA, and the documents of `reader_outside.toml` and `reader_last.toml`, are read at a commit of
their repository: nothing of them stands in this one. A question is right where a passage covers the place of its
answer, or has its words.
"""

from __future__ import annotations

import csv
import html
import io
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from reader import OWN_FILES, folder_of

from reader_parts.counting import ANSWERED
from reader_parts.ranking import Shown

HERE = Path(__file__).parent.parent
OLD = 1_700_000_000
"""The time of the files: younger ones than two seconds would be read again with each question."""
XQUAD = ("google-deepmind/xquad", "7d30520")
JSQUAD = ("yahoojapan/JGLUE", "6f071c0")
TATQA = ("NExTplusplus/TAT-QA", "870accc")
TATQA_MOST = 240
TABLES_A_FOLDER = 10
"""Questions of TAT-QA do not name their company, so a folder has few tables."""
XQUAD_LANGUAGES = ("en", "de", "es", "zh", "th", "ru", "tr", "ro", "el", "ar", "hi", "vi")
SEALED, LAST = "outside-sealed", "last"
NAMED_ONLY = (SEALED, LAST)
"""Run at the end, once, and only where they are named."""
OUTSIDE = {"outside": "reader_outside.toml", SEALED: "reader_outside_sealed.toml", LAST: "reader_last.toml"}
MANUALS = "tuning-2"
"""The questions of `reader_tuning.toml`, which are in English, over the manuals that are installed."""
SETS = (*(f"xquad-{language}" for language in XQUAD_LANGUAGES), "jsquad", "tat-qa", "outside", MANUALS)

ARTICLE_OUT, PARAGRAPH_OUT, OWN_SUBJECT = "article out", "paragraph out", "own subject"


@dataclass(frozen=True)
class Question:
    """A question about a folder, and how its answer is recognised.

    `folder`: a name of `Folders`. `paths`: the files with the answer, none without one. `words`: alternatives, each of
    which a passage has to have whole. `span`: in place of them, where the answer stands in the file, in characters.
    `paragraph`: the text around the answer, which can be taken out.
    """

    set: str
    language: str
    ask: str
    folder: str
    paths: tuple[str, ...] = ()
    words: tuple[tuple[str, ...], ...] = ()
    span: tuple[int, int] | None = None
    paragraph: str = ""

    @property
    def format(self) -> str:
        """The ending of the first file with the answer."""
        return self.paths[0].rpartition(".")[2].lower() if self.paths else "none"


def folded(text: str) -> str:
    """Return a text in lower case, with one space for each run of white space."""
    return " ".join(text.lower().split())


def is_right(question: Question, shown: Shown, texts: Mapping[str, str]) -> bool:
    """Tell whether a passage answers a question. `texts` has the text of each file of the folder, by path."""
    if shown.path not in question.paths:
        return False
    if question.span is None:
        text = folded(shown.text)
        return any(all(folded(word) in text for word in words) for words in question.words)
    start, end = question.span
    piece = shown.text.strip()
    at = texts[shown.path].find(piece)
    while at >= 0:
        if at <= start and end <= at + len(piece):
            return True
        at = texts[shown.path].find(piece, at + 1)
    return False


def stands_in(question: Question, texts: Mapping[str, str]) -> bool:
    """Tell whether the answer of a question is in the extracted text of its file: else no way can be right."""
    whole = [Shown(path, texts[path]) for path in question.paths if path in texts]
    return any(is_right(question, shown, texts) for shown in whole)


@dataclass
class Folders:
    """The folders of the questions: files by path, which are written when a folder is first asked for.

    `installed`: folders that are on this machine already, and are asked where they are.
    """

    work: Path
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    installed: dict[str, Path] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Return a folder with all its files."""
        if name in self.installed:
            return self.installed[name]
        return self._written(name, self.files[name])

    def without(self, question: Question, kind: str) -> Path:
        """Return a question's folder without the article with its answer, or without the paragraph."""
        files = dict(self.files[question.folder])
        if kind == ARTICLE_OUT:
            for path in question.paths:
                del files[path]
        else:
            for path in question.paths:
                files[path] = files[path].replace(question.paragraph.encode(), b"")
        return self._written(f"{question.folder} {kind}", files)

    def _written(self, name: str, files: Mapping[str, bytes]) -> Path:
        folder = self.work / name.replace("/", "+")
        for path, data in files.items():
            place = folder / path
            if not place.exists() or place.read_bytes() != data:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
                os.utime(place, (OLD, OLD))
        for place in folder.rglob("*"):
            if place.is_file() and place.relative_to(folder).as_posix() not in files:
                place.unlink()
        return folder


# -- repositories --


@dataclass(frozen=True)
class Repository:
    """A bare repository at a commit, below a folder of repositories: `owner+name/repo`."""

    name: str
    commit: str
    below: Path

    def paths(self, beginnings: Sequence[str]) -> list[str]:
        """Return the paths of its files that begin with one of these texts."""
        listed = self._git("ls-tree", "-r", "-z", "--name-only", self.commit).decode().split("\0")
        return [path for path in listed if path and path.startswith(tuple(beginnings))]

    def read(self, path: str) -> bytes:
        return self._git("show", f"{self.commit}:{path}")

    def _git(self, *arguments: str) -> bytes:
        folder = self.below / self.name.replace("/", "+") / "repo"
        if not folder.is_dir():
            raise SystemExit(f"{self.name} is not at {folder}: clone it there with `git clone --bare`, or give --git")
        done = subprocess.run(["git", "--git-dir", str(folder), *arguments], capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(f"{self.name} at {self.commit} cannot be read: {done.stderr.decode()[-500:]}")
        return done.stdout


# -- sets --


def load(name: str, below: Path, folders: Folders) -> list[tuple[Question, str]]:
    """Return the questions of a set, each with its kind, and enter their folders. `below` has the repositories."""
    if name.startswith("xquad-"):
        language = name.partition("-")[2]
        data = Repository(*XQUAD, below).read(f"xquad.{language}.json")
        return _with_answer(_articles(name, language, json.loads(data)["data"], folders))
    if name == "jsquad":
        data = Repository(*JSQUAD, below).read("datasets/jsquad-v1.3/valid-v1.3.json")
        return _with_answer(_articles(name, "ja", json.loads(data)["data"], folders))
    if name == "tat-qa":
        data = Repository(*TATQA, below).read("dataset_raw/tatqa_dataset_test_gold.json")
        return _with_answer(_tables(json.loads(data), folders))
    if name == MANUALS:
        return list(_manuals(folders))
    return list(_outside(name, below, folders))


def _with_answer(questions: Iterator[Question]) -> list[tuple[Question, str]]:
    return [(question, ANSWERED) for question in questions]


def _articles(name: str, language: str, articles: Sequence[Any], folders: Folders) -> Iterator[Question]:
    """Yield the questions of a set in SQuAD's form; each article is a Markdown file below its title."""
    files: dict[str, bytes] = {}
    for number, article in enumerate(articles, 1):
        title = str(article["title"]).replace("_", " ")
        path = f"{number:02} {title.replace('/', ' ')}.md"
        text = f"# {title}\n"
        for paragraph in article["paragraphs"]:
            context = str(paragraph["context"]).partition("[SEP] ")
            head, body = (len(context[0]) + len(context[1]), context[2]) if context[1] else (0, context[0])
            text += "\n"
            start = len(text)
            text += f"{body}\n"
            for asked in paragraph["qas"]:
                answer = asked["answers"][0]
                begin = start + int(answer["answer_start"]) - head
                end = begin + len(str(answer["text"]))
                if begin >= start and not asked.get("is_impossible"):
                    yield Question(name, language, asked["question"], name, (path,), (), (begin, end), body)
        files[path] = text.encode()
    folders.files[name] = files


def _tables(documents: Sequence[Any], folders: Folders) -> Iterator[Question]:
    """Yield questions whose answer stands in cells of a table: right are the cells with the names of their rows."""
    found: list[Question] = []
    kinds = list(_WRITERS)
    for number, document in enumerate(documents):
        rows = [list(map(str, row)) for row in document["table"]["table"]]
        kind = kinds[number % len(kinds)]
        path = f"{number:03} report.{kind}"
        folder = f"tat-qa {number // TABLES_A_FOLDER:02}"
        files = folders.files.setdefault(folder, {})
        files[path] = _WRITERS[kind](rows)
        notes = [str(each["text"]) for each in document["paragraphs"]]
        files[f"{number:03} notes.md"] = "\n\n".join(notes).encode()
        for asked in document["questions"]:
            cells = [mapping.get("table") for mapping in asked["mappings"]]
            if asked["answer_from"] == "table" and not asked["req_comparison"] and cells and all(cells):
                words = [word for row, column in cells for word in (rows[row][0], rows[row][column]) if word.strip()]
                found.append(Question("tat-qa", "en", asked["question"], folder, (path,), (tuple(words),)))
    yield from spread(found, TATQA_MOST)


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many items, evenly from all of them."""
    count = min(most, len(items)) if most else len(items)
    return [items[number * len(items) // count] for number in range(count)]


def _as_csv(rows: Sequence[Sequence[str]]) -> bytes:
    made = io.StringIO()
    csv.writer(made).writerows(rows)
    return made.getvalue().encode()


def _as_html(rows: Sequence[Sequence[str]]) -> bytes:
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f"<!doctype html><title>Report</title><body><table>\n{body}\n</table></body>".encode()


def _as_workbook(rows: Sequence[Sequence[str]]) -> bytes:
    book, made = import_module("openpyxl").Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(list(row))
    book.save(made)
    return made.getvalue()


def _as_word(rows: Sequence[Sequence[str]]) -> bytes:
    document, made = import_module("docx").Document(), io.BytesIO()
    table = document.add_table(len(rows), max(map(len, rows)))
    for number, row in enumerate(rows):
        for column, cell in enumerate(row):
            table.cell(number, column).text = cell
    document.save(made)
    return made.getvalue()


_WRITERS: dict[str, Callable[[Sequence[Sequence[str]]], bytes]] = {
    "csv": _as_csv,
    "docx": _as_word,
    "html": _as_html,
    "xlsx": _as_workbook,
}


def _outside(name: str, below: Path, folders: Folders) -> Iterator[tuple[Question, str]]:
    """Yield the questions of a file of this folder, over documents of other repositories.

    Entries of one name are one folder; `below` is then put before the paths of each. A question may have a `language`
    of its own.
    """
    written = tomllib.loads((HERE / OUTSIDE[name]).read_text(encoding="utf-8"))
    languages: dict[str, str] = {}
    for folder in written["folder"]:
        repository = Repository(folder["repository"], folder["commit"], below)
        paths = repository.paths(folder["paths"])
        files = folders.files.setdefault(folder["name"], {})
        files.update({folder.get("below", "") + path: repository.read(path) for path in paths})
        languages[folder["name"]] = folder["language"]
    for asked in written["question"]:
        words = tuple((phrase,) for phrase in asked["phrase"])
        language = asked.get("language", languages[asked["folder"]])
        yield Question(name, language, asked["ask"], asked["folder"], (asked["file"],), words), ANSWERED
    for asked in written["unanswerable"]:
        language = asked.get("language", languages[asked["folder"]])
        yield Question(name, language, asked["ask"], asked["folder"]), OWN_SUBJECT


def _manuals(folders: Folders) -> Iterator[tuple[Question, str]]:
    """Yield the questions over manuals of Debian; those of packages that are not installed are left out, and named."""
    written = tomllib.loads((HERE / OWN_FILES[MANUALS]).read_text(encoding="utf-8"))
    missing: set[str] = set()
    for asked in (*written["question"], *written["unanswerable"]):
        folder = folder_of(asked)
        if folder is None:
            missing.add(asked["package"])
            continue
        name = str(folder)
        folders.installed[name] = folder
        if "file" not in asked:
            yield Question(MANUALS, "en", asked["ask"], name), OWN_SUBJECT
            continue
        places = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.name in asked["file"]]
        words = tuple((phrase,) for phrase in asked["phrase"])
        yield Question(MANUALS, "en", asked["ask"], name, tuple(sorted(places)), words), ANSWERED
    if missing:
        print(f"left out, not installed: apt-get install {' '.join(sorted(missing))}", file=sys.stderr)


def sample(questions: Sequence[tuple[Question, str]], each: int) -> list[tuple[Question, str]]:
    """Return so many questions of each kind and language of a set, evenly spread; all of them for 0."""

    def key(pair: tuple[Question, str]) -> tuple[str, str]:
        return pair[1], pair[0].language

    chosen: list[tuple[Question, str]] = []
    for _, group in groupby(sorted(questions, key=key), key):
        chosen += spread(list(group), each)
    return chosen

"""Asks each question of the chosen sets in each way, and prints what came of it: `reader.py --compare`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

from reader_parts.counting import ANSWERED, Outcome, no_claim_table, table, with_room
from reader_parts.ranking import (
    BEFORE,
    BM25,
    FTS5,
    PIECE_CHARS,
    SHIPPED,
    WAYS,
    Bm25,
    Fts5,
    Reader,
    Shown,
    overlapping,
    within,
)
from reader_parts.sets import ARTICLE_OUT, PARAGRAPH_OUT, Folders, Question, is_right, load, sample, stands_in

SHOWN_FIRST = 3
"""Passages of each way that are kept with a question, to look at where another wins."""


@dataclass(frozen=True)
class Folder:
    """A folder of a set in one language: the extracted text of each file, and BM25 and FTS5 over them."""

    name: str
    path: Path
    texts: Mapping[str, str]
    bm25: Bm25
    fts5: Fts5

    @classmethod
    def opened(cls, name: str, language: str, reader: Reader, folders: Folders) -> Folder:
        path = folders.path(name)
        texts = reader.texts(path)
        pieces = overlapping(texts)
        return cls(name, path, texts, Bm25(pieces, language), Fts5(pieces, language))


def compare(
    sets: Sequence[str], each: int, below: Path, work: Path, *, only_answered: bool = False
) -> Iterator[Outcome]:
    """Yield what came of the questions of each set, `each` of a kind and language (0: all), folder by folder.

    `below` has the repositories; `work` keeps the folders and the texts that were read of them. `only_answered`: no
    question is asked again without its article or paragraph.
    """
    reader, folders = Reader(work / "texts.db"), Folders(work / "folders")
    try:
        for name in sets:
            questions = sample(load(name, below, folders), each)
            questions.sort(key=lambda pair: pair[0].folder)
            for folder_name, group in groupby(questions, lambda pair: pair[0].folder):
                asked = list(group)
                folder = Folder.opened(folder_name, asked[0][0].language, reader, folders)
                for question, kind in asked:
                    if kind == ANSWERED and not stands_in(question, folder.texts):
                        print(
                            f"the answer is not in the extracted text of {question.paths}: {question.ask}",
                            file=sys.stderr,
                        )
                    yield ask(reader, folder, question, kind)
                folder.fts5.close()
            if not only_answered:
                yield from without_answer(reader, folders, questions)
    finally:
        reader.kept.close()


def ask(reader: Reader, folder: Folder, question: Question, kind: str) -> Outcome:
    """Ask a question in each way."""
    answer = reader.answer(question.ask, folder.path)
    ways: dict[str, list[Shown]] = {
        BEFORE: answer.before,
        SHIPPED: answer.shipped,
        BM25: folder.bm25.best(question.ask),
        FTS5: folder.fts5.best(question.ask),
    }
    own = sum(len(passage.text) for passage in within(answer.before))
    first: dict[str, bool] = {}
    among: dict[str, bool] = {}
    room: dict[str, bool] = {}
    chars: dict[str, int] = {}
    for way, shown in ways.items():
        as_many = [is_right(question, passage, folder.texts) for passage in within(shown, max(own, PIECE_CHARS))]
        few = within(shown)
        first[way] = as_many[:1] == [True]
        among[way] = any(as_many)
        room[way] = any(is_right(question, passage, folder.texts) for passage in few)
        chars[way] = sum(len(passage.text) for passage in few)
    return _outcome(question, kind, (first, among, room), answer.claims, chars, ways)


def without_answer(reader: Reader, folders: Folders, questions: Sequence[tuple[Question, str]]) -> Iterator[Outcome]:
    """Ask questions again without the article that has the answer, and without its paragraph; only Ava is asked."""
    for question, kind in questions:
        if kind != ANSWERED or not question.paragraph:
            continue
        for what in (ARTICLE_OUT, PARAGRAPH_OUT):
            answer = reader.answer(question.ask, folders.without(question, what))
            yield _outcome(question, what, ({}, {}, {}), answer.claims, {}, {SHIPPED: answer.shipped})


def _outcome(
    question: Question,
    kind: str,
    right: tuple[dict[str, bool], dict[str, bool], dict[str, bool]],
    claims: bool,
    chars: dict[str, int],
    ways: Mapping[str, Sequence[Shown]],
) -> Outcome:
    shown = {way: [f"{each.path}: {each.text}" for each in few[:SHOWN_FIRST]] for way, few in ways.items()}
    return Outcome(question.set, question.language, question.format, question.ask, kind, *right, claims, chars, shown)


def bound_loss(outcomes: Sequence[Outcome]) -> str:
    """Say how many of the questions with the right passage first before the bound lose it as shipped."""
    were_first = [each for each in outcomes if each.kind == ANSWERED and each.first[BEFORE]]
    lost = sum(not each.first[SHIPPED] for each in were_first)
    return f"The bound loses {lost} of {len(were_first)} that were first."


def losses(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the questions in which BM25 or FTS5 has the right passage and Ava, before its bound, has not."""
    for each in outcomes:
        winners = [way for way in (BM25, FTS5) if each.among.get(way) and not each.among[BEFORE]]
        if each.kind == ANSWERED and winners:
            yield f"{each.set}, {each.language}: {each.ask} ({' and '.join(winners)})"
            for way in (BEFORE, *winners):
                for passage in each.shown[way][:1]:
                    yield f"    {way}: {' '.join(passage.split())[:300]}"


def report(asked: Iterator[Outcome], json_file: Path | None, with_losses: bool) -> None:
    """Print the tables of all outcomes in Markdown; to `json_file` goes a line for each question at once."""
    outcomes: list[Outcome] = []
    if json_file is not None:
        json_file.write_text("", encoding="utf-8")
    for outcome in asked:
        outcomes.append(outcome)
        if json_file is not None:
            with json_file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")
        if len(outcomes) % 50 == 0:
            print(f"{len(outcomes)} asked", file=sys.stderr, flush=True)
    print(table(outcomes, WAYS, BEFORE, (BM25, FTS5)))
    print(f"\n{bound_loss(outcomes)}\n\n{with_room(outcomes, WAYS, BEFORE, (BM25, FTS5))}\n")
    print(no_claim_table(outcomes))
    if with_losses:
        print("\n" + "\n".join(losses(outcomes)))

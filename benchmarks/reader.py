"""How often the offline reader quotes the right passage: questions over documentation that Debian packages install.

    python benchmarks/reader.py [--set SET] [--only WORD] [--show] [--json FILE]

Each question of `reader.toml`, or with `--set tuning-2` of `reader_tuning.toml` and with `--set sealed` of
`reader_sealed.toml`, is one real run: `ava run researcher` with the offline reader over the folder of a package. A
finding is right if its file is one of those named and its quote contains one of the phrases. The questions without an
answer must end as "no answer found", or as "not known" where not everything could be read. Nothing is installed: a
question whose file is missing is skipped, and the packages to install are named at the end.

    python benchmarks/reader.py --compare [--sets SET ...] [--each N] [--answered] [--git DIR] [--work DIR] [--losses]
        [--json FILE]

sets Ava's ranking before its bound, Ava as shipped, BM25 (`pip install bm25s`, which Ava does not need) and SQLite's
FTS5 side by side, in one process, over the same extracted texts and with equal numbers of characters shown: right first
is a right first passage of at most 800 characters, right among the first is one in as many characters as Ava's ranking
shows, 800 to 4,000; a table of its own has what each way finds in all of 4,000. The sets are XQuAD, JSQuAD, TAT-QA and
the questions of `reader_outside.toml` over documents of other repositories, all read at a commit from bare repositories
below DIR (`owner+name/repo`), and `tuning-2`; `outside-sealed` and `last` run only if they are named.
Questions without an answer: those of XQuAD and JSQuAD without their article or paragraph, and those that a file has. It
prints tables in Markdown with Wilson's intervals of 95 % and exact sign tests, and with `--losses` where another wins.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OWN_SETS = ("tuning", "held-out", "held-out-2", "held-out-3", "held-out-4")
OWN_FILES = {"tuning-2": "reader_tuning.toml", "sealed": "reader_sealed.toml"}
"""The sets that are not in `reader.toml`, each with its file."""

FIRST = 5
NO_ANSWER = "no answer found"
NOT_KNOWN = "not known whether there is an answer"
"""What a summary says that makes no claim: everything was read, or not everything could be."""

SECONDS = 300
"""The longest time for one question."""


def folder_of(question: dict[str, Any]) -> Path | None:
    """Return the folder of a question; None if it, or the file with the answer, is not installed."""
    for folder in sorted(Path("/").glob(question["folder"].lstrip("/")), reverse=True):
        wanted = set(question.get("file", ()))
        if not wanted or any(path.name in wanted for path in folder.rglob("*")):
            return folder
    return None


def ask(question: str, folder: Path, data_root: Path) -> dict[str, Any]:
    """Run a researcher with the offline reader, and return its result."""
    command = [sys.executable, "-m", "ava_server", "run", "researcher", question, "--workspace", str(folder)]
    done = subprocess.run(
        [*command, "--model", "offline", "--yes", "--max-cost", "0.01", "--json"],
        env={**os.environ, "AVA_DATA_ROOT": str(data_root)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if not done.stdout.startswith("{"):
        raise SystemExit(f"no result for {question!r}: {done.stderr[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    unfound = [quote for quote in result.get("quotes_checked", ()) if quote["verdict"] != "found"]
    if unfound:
        raise SystemExit(f"a quote was not found in its source for {question!r}: {unfound}")
    return result


def groups_of(question: dict[str, Any]) -> list[str]:
    """Return the groups in which a question is counted: its set, and within that its language, if it is named."""
    language = [f"{question['set']} ({question['language']})"] if "language" in question else []
    return [question["set"], *language]


def place_of(question: dict[str, Any], findings: list[dict[str, Any]]) -> int | None:
    """Return the place of the first right finding, from 1; None if none of the first five is right."""
    for place, finding in enumerate(findings[:FIRST], 1):
        name = Path(str(finding["source_url"]).partition(":")[0].partition(", ")[0]).name
        quote = " ".join(str(finding["quote"]).lower().split())
        if name in question["file"] and any(phrase.lower() in quote for phrase in question["phrase"]):
            return place
    return None


def append_result(file: Path, question: dict[str, Any], refuses: bool, findings: list[dict[str, Any]]) -> None:
    """Add a line with what came of a question, so that two versions can be compared question by question."""
    place = place_of(question, findings) if "file" in question else None
    found = [{"source": each["source_url"], "quote": each["quote"]} for each in findings[:FIRST]]
    line = {"set": question["set"], "ask": question["ask"], "refuses": refuses, "place": place, "found": found}
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none asked"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=(*OWN_SETS, *OWN_FILES), help="only these questions")
    parser.add_argument("--only", default="", metavar="WORD", help="only questions with this text")
    parser.add_argument("--show", action="store_true", help="show the findings of questions that went wrong")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what came of each question here, a line each")
    parser.add_argument("--compare", action="store_true", help="set BM25 and FTS5 beside Ava")
    parser.add_argument("--sets", nargs="+", metavar="SET", help="the sets to compare; all but the sealed one")
    parser.add_argument("--each", type=int, default=0, metavar="N", help="so many questions a set, language and kind")
    parser.add_argument("--answered", action="store_true", help="ask no question again without its article")
    parser.add_argument("--git", type=Path, default=Path("repositories"), metavar="DIR", help="where repositories are")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="keep folders and texts here, for runs with the same parsers"
    )
    parser.add_argument("--losses", action="store_true", help="show the questions that BM25 or FTS5 wins")
    given = parser.parse_args()
    if given.compare:
        compare(given)
        return
    file = OWN_FILES.get(given.set, "reader.toml")
    in_file = tomllib.loads((HERE / file).read_text(encoding="utf-8"))
    questions: list[dict[str, Any]] = []
    for question in [*in_file["question"], *in_file["unanswerable"]]:
        if given.set in (None, question["set"]) and given.only in question["ask"]:
            questions.append(question)
    missing: set[str] = set()
    counts: Counter[tuple[str, str]] = Counter()
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as data_root:
        for question in questions:
            folder = folder_of(question)
            if folder is None:
                missing.add(question["package"])
                continue
            began = time.monotonic()
            result = ask(question["ask"], folder, Path(data_root))
            seconds.append(time.monotonic() - began)
            findings, summary = result["untrusted_result"]["findings"], result["untrusted_result"]["summary"]
            refuses = NO_ANSWER in summary.lower() or NOT_KNOWN in summary
            is_right, outcome = count_answer(counts, question, findings, refuses)
            kind = question["set"] + ending_of(question)
            print(f"{kind:19} {outcome:10} {question['ask']}", flush=True)
            if given.json is not None:
                append_result(given.json, question, refuses, findings)
            if given.show and not is_right:
                print(f"    {summary}")
                for finding in findings:
                    print(f"    {finding['source_url']}: {finding['quote']!r}")
                print()
    print()
    show_counts(counts, questions)
    if seconds:
        print(f"seconds a question: median {sorted(seconds)[len(seconds) // 2]:.1f}, most {max(seconds):.1f}")
    if missing:
        print(f"skipped, not installed: apt-get install {' '.join(sorted(missing))}")


def compare(given: argparse.Namespace) -> None:
    """Run `--compare`."""
    if find_spec("bm25s") is None:
        raise SystemExit("BM25 is not installed: pip install bm25s")
    from reader_parts.comparison import compare as ask_all
    from reader_parts.comparison import report
    from reader_parts.sets import NAMED_ONLY, SETS

    known = [*SETS, *NAMED_ONLY]
    chosen = given.sets or list(SETS)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise SystemExit(f"no such set: {', '.join(unknown)}; there are {', '.join(known)}")
    with tempfile.TemporaryDirectory(prefix="ava-reader-") as made:
        work = given.work or Path(made)
        outcomes = ask_all(chosen, given.each, given.git, work, only_answered=given.answered)
        report(outcomes, given.json, given.losses)


def ending_of(question: dict[str, Any]) -> str:
    """Return what the groups of a question without an answer end with."""
    return "" if "file" in question else ", without"


def count_answer(
    counts: Counter[tuple[str, str]], question: dict[str, Any], findings: list[dict[str, Any]], refuses: bool
) -> tuple[bool, str]:
    """Count an answer in the groups of its question, and return whether it is right, and in a word what it was.

    A question without an answer is answered rightly by a refusal, one with an answer by the right finding first.
    """
    place = place_of(question, findings) if "file" in question else None
    for group in groups_of(question):
        counts[group + ending_of(question), "asked"] += 1
        if refuses:
            counts[group + ending_of(question), "no answer"] += 1
        if place == 1:
            counts[group, "first"] += 1
        if place is not None:
            counts[group, "first five"] += 1
    if "file" not in question:
        return refuses, "no answer" if refuses else "an answer"
    return place == 1, "no answer" if refuses else f"place {place}"


def show_counts(counts: Counter[tuple[str, str]], questions: list[dict[str, Any]]) -> None:
    """Print the counts of each group, in the order of the questions."""
    groups = dict.fromkeys(group for question in questions for group in groups_of(question))
    for group in groups:
        answerable = counts[group, "asked"]
        if answerable:
            print(f"{group}: among the first five {share(counts[group, 'first five'], answerable)}, first")
            first = share(counts[group, "first"], answerable)
            print(f"  {first}, `no answer found` {share(counts[group, 'no answer'], answerable)}")
        without = counts[f"{group}, without", "asked"]
        if without:
            print(f"  without an answer: no claim {share(counts[f'{group}, without', 'no answer'], without)}")


if __name__ == "__main__":
    main()

"""What the search for secrets costs: words, mixed text, and the texts that are made to be slow, side by side.

    python benchmarks/redaction.py [--found N] [--seed N] [--json FILE]

Processor time of one thread. Words, mixed text (this repository's documents and code; files of the installed packages)
and each shape are timed by turns in one run, and the least of five counts; so a ratio hardly depends on what else the
machine does. A shape is one text of 64 kB: a mark of a secret that is repeated, alone and with values, commands and
signs around it, or one character in one piece (`tests/support/slow_shapes.py`); the slowest ones are also searched in
4 MB beside an event loop, through the door that all untrusted text takes (`core/untrusted.py`). `--found` adds shapes
that are put together at random. Goals: no shape takes more than 25 times as long as words, mixed text at most three
times as long, and the loop waits for at most 0.1 s.
"""

from __future__ import annotations

import argparse
import random
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
from figures import Figure, write_json

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.slow_shapes import WORDS, repeat, slow_pieces

from ava_audit.redaction import Redactor
from ava_server.core.threads import stop_if_cancelled
from ava_server.core.untrusted import hide_apart

HERE = Path(__file__).resolve().parent
PACKAGES = Path(sysconfig.get_path("purelib"))
CHARS = 65_536
LONG_TEXT, GAPS = 4_000_000, 3
TURNS = 5
SHOWN = 12


def mixed_text() -> str:
    """Return documents, code and settings, as a run reads them."""
    texts = [
        path.read_text("utf-8") for folder in ("docs", "roles") for path in sorted((HERE.parent / folder).rglob("*.md"))
    ]
    texts += [path.read_text("utf-8") for path in sorted((HERE.parent / "audit").rglob("*.py"))]
    texts += [(HERE.parent / "tests" / "data" / "benign_lines.txt").read_text("utf-8")]
    parts = [text[at : at + 2_000] for text in texts for at in range(0, len(text), 2_000)]
    random.Random(7).shuffle(parts)
    return "".join(parts)[: 4 * CHARS]


def packages_text() -> str:
    """Return documents and code of the installed packages."""
    files = sorted(path for kind in ("*.py", "METADATA", "*.md", "*.rst") for path in PACKAGES.rglob(kind))
    random.Random(7).shuffle(files)
    texts: list[str] = []
    while files and sum(map(len, texts)) < 16 * CHARS:
        texts.append(files.pop().read_text("utf-8", "replace"))
    return "".join(texts)


def shapes(found: int, seed: int) -> Iterator[str]:
    """Yield what is repeated: what is put together from the rules' own tables, and some at random."""
    pieces = list(slow_pieces())
    yield from pieces
    some = random.Random(seed)
    for _ in range(found):
        yield "".join(some.choice(pieces) for _ in range(some.randint(2, 4)))


def spent_s(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def measure(found: int, seed: int) -> tuple[float, float, float, list[tuple[float, str]]]:
    """Return the seconds of a character of words, and how many times as long mixed texts and each shape take."""
    redactor, words = Redactor({}), repeat(WORDS, CHARS)

    def least(text: str) -> tuple[float, float]:
        """Return the least time of a character of words and of a text, by turns."""
        redactor.redact(text)
        took = [(spent_s(lambda: redactor.redact(words)), spent_s(lambda: redactor.redact(text))) for _ in range(TURNS)]
        return min(each for each, _ in took) / len(words), min(each for _, each in took) / len(text)

    word_s, mixed_s = least(mixed_text())
    _word_s, packages_s = least(packages_text())
    ratios = []
    for piece in shapes(found, seed):
        beside_s, shape_s = least(repeat(piece, CHARS))
        ratios.append((shape_s / beside_s, piece))
    return word_s, mixed_s / word_s, packages_s / word_s, sorted(ratios, reverse=True)


async def longest_gap(piece: str) -> float:
    """Return the most processor time between two turns of the event loop while such a text of 4 MB is searched."""
    redactor, text = Redactor({}, stop_if_cancelled), piece * (LONG_TEXT // len(piece))
    gaps: list[float] = []
    done = anyio.Event()

    async def turn() -> None:
        while not done.is_set():
            began = time.process_time()
            await anyio.sleep(0.001)
            gaps.append(time.process_time() - began)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn)
        await anyio.lowlevel.checkpoint()
        await hide_apart(lambda: redactor.redact(text), len(text), within_s=120)
        done.set()
    return max(gaps)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--found", type=int, default=0, metavar="N", help="how many random shapes to add")
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    word_s, mixed, packages, ratios = measure(chosen.found, chosen.seed)
    print(f"words {word_s * 1e6:.3f} s/MB   mixed text {mixed:.2f} times, packages {packages:.2f} times")
    print(f"the slowest of {len(ratios)} shapes:")
    for ratio, piece in ratios[:SHOWN]:
        print(f"  {ratio:6.1f} times  {piece[:60]!r}")
    gaps = [anyio.run(longest_gap, piece) for _ratio, piece in ratios[:GAPS]]
    print(f"the longest gap of the event loop beside 4 MB of the {GAPS} slowest: {max(gaps):.3f} s of processor time")
    figures = [
        Figure("redaction: gap of the event loop", max(gaps), "s", 0.1),
        Figure("redaction: words", word_s * 1e6, "s/MB", 0.1),
        Figure("redaction: mixed text", mixed, "times words", 3),
        Figure("redaction: files of packages", packages, "times words", 3),
        Figure("redaction: the slowest shape", ratios[0][0], "times words", 25),
    ]
    if chosen.json:
        write_json(chosen.json, figures)


if __name__ == "__main__":
    main()

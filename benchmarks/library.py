"""What a question about a folder costs: the first one, later ones, and one after a change; in seconds and files read.

    python benchmarks/library.py [--files 1000] [--seconds 600] [--folder PATH] [--json FILE]

The folder is made of manuals and package documentation that Debian installs, in five languages: as they are (HTML,
text, gzip, man pages), and their words as Word, Excel, PowerPoint, PDF, email and notebook files. With `--folder`, the
questions go to a folder of yours. Each question is one call of `search_and_read` in a process of its own, with the
texts that were kept by the one before; `--seconds` is what its run has left, of which a call takes half. What a server
loads before its first search, 0.15 s, is loaded before the clock starts; parsers start within the question. A last row
has a later question by `ava run`, with the start of Python and of all that it starts: the median of five.

python-pptx and reportlab make the documents; they are installed by hand, as Ava does not need them.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from email.message import EmailMessage
from importlib import import_module
from pathlib import Path

from figures import Figure, write_json

LANGUAGES = ("", "de", "fr", "ja", "ru")
WORDS_MOST = 6_000
OLD = 1_700_000_000
FRESH_S = 2.1
"""Files that are younger are read again with each question."""
SHARE = 0.1
"""What a later question may take of the first one's processor time."""
COMMAND_S = 0.8
"""And what processor time it may take by `ava run`, with 59 small files."""
NO_ANSWER = 17
"""The exit code of a run that found none."""
QUESTIONS = (
    "How is a damaged file repaired?",
    "Which option shows hidden files?",
    "Welche Option zeigt versteckte Dateien?",
    "Comment afficher les fichiers cachés ?",
    "圧縮されたファイルを表示するには",
    "Как показать скрытые файлы?",
    "What is the default port?",
    "Where is the configuration file?",
    "Who may change the password?",
    "How do I remove a package completely?",
)


# -- the folder --


def as_word(text: str) -> bytes:
    document, made = import_module("docx").Document(), io.BytesIO()
    for line in text.split("\n"):
        document.add_paragraph(line)
    document.save(made)
    return made.getvalue()


def as_workbook(text: str) -> bytes:
    book, made = import_module("openpyxl").Workbook(), io.BytesIO()
    for number, line in enumerate(text.split("\n"), 1):
        book.active.append([number, *line.split("  ")])
    book.save(made)
    return made.getvalue()


def as_slides(text: str) -> bytes:
    show, made = import_module("pptx").Presentation(), io.BytesIO()
    lines = text.split("\n")
    for at in range(0, len(lines), 12):
        slide = show.slides.add_slide(show.slide_layouts[1])
        slide.shapes.title.text = lines[at][:80]
        slide.placeholders[1].text = "\n".join(lines[at + 1 : at + 12])
    show.save(made)
    return made.getvalue()


def as_pdf(text: str) -> bytes:
    font = import_module("reportlab.pdfbase.cidfonts").UnicodeCIDFont("HeiseiMin-W3")
    import_module("reportlab.pdfbase.pdfmetrics").registerFont(font)
    made = io.BytesIO()
    canvas = import_module("reportlab.pdfgen.canvas").Canvas(made)
    lines = text.split("\n")
    for at in range(0, len(lines), 50):
        page = canvas.beginText(50, 800)
        page.setFont("HeiseiMin-W3", 9)
        for line in lines[at : at + 50]:
            page.textLine(line[:120])
        canvas.drawText(page)
        canvas.showPage()
    canvas.save()
    return made.getvalue()


def as_email(text: str) -> bytes:
    message = EmailMessage()
    message["Subject"] = text.split("\n")[0][:80]
    message["From"] = "somebody@example.org"
    message.set_content(text)
    return message.as_bytes()


def as_notebook(text: str) -> bytes:
    cells = [{"cell_type": "markdown", "metadata": {}, "source": part} for part in text.split("\n\n")]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


KINDS: dict[str, Callable[[str], bytes]] = {
    ".docx": as_word,
    ".xlsx": as_workbook,
    ".pptx": as_slides,
    ".pdf": as_pdf,
    ".eml": as_email,
    ".ipynb": as_notebook,
}


def sources() -> list[Path]:
    """Return manuals and package documentation, the languages mixed."""
    found: list[Path] = []
    for language in LANGUAGES:
        folder = Path("/usr/share/man", language)
        found += [path for path in sorted(folder.glob("man[1578]/*.gz"))[:2_000] if path.is_file()]
    docs = sorted(Path("/usr/share/doc").rglob("*"))
    found += [path for path in docs if path.is_file() and not path.is_symlink() and path.stat().st_size < 2_000_000]
    random.Random(21).shuffle(found)
    return found


def make_folder(folder: Path, count: int) -> None:
    """Write so many files: three of ten as they are, the others' words as documents of each kind in turn."""
    kinds, made = list(KINDS), 0
    for path in sources():
        if made >= count:
            return
        data = path.read_bytes()
        place = folder / f"{made // 100:02}" / f"{made:05} {path.name}"
        place.parent.mkdir(exist_ok=True)
        if made % 10 >= 3:
            try:
                text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
            except (UnicodeDecodeError, OSError):
                continue
            kind = kinds[made % len(kinds)]
            plain = "".join(char for char in text[:WORDS_MOST] if char.isprintable() or char == "\n")
            place, data = place.with_name(f"{place.name}{kind}"), KINDS[kind](plain)
        place.write_bytes(data)
        os.utime(place, (OLD, OLD))
        made += 1
    raise SystemExit(f"only {made} files can be made here; install more documentation packages")


# -- a question, in a process of its own --


def ask(folder: Path, store: Path, question: str, seconds: float) -> dict[str, object]:
    command = [sys.executable, __file__, "--ask", question, "--folder", str(folder), "--store", str(store)]
    done = subprocess.run([*command, "--seconds", str(seconds)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2_000:])
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def answer(folder: Path, store: Path, question: str, seconds: float) -> None:
    """Ask one question, and print what it cost."""
    import anyio

    from ava_roles.sandbox.path_access import FileMark
    from ava_roles.sandbox.paths import Root
    from ava_roles.texts import child
    from ava_roles.texts.kept import KeptTexts
    from ava_roles.tool import ToolContext
    from ava_roles.tools.files import SearchAndRead, SearchAndReadArgs

    read, parsers = set[str](), 0
    read_marked, command = Root.read_marked, child.command

    def noted(root: Root, rel: str, cap: int) -> tuple[bytes, bool, FileMark]:
        if not rel.endswith(".gitignore"):
            read.add(rel)
        return read_marked(root, rel, cap)

    def counted(module: str) -> list[str]:
        nonlocal parsers
        parsers += 1
        return command(module)

    Root.read_marked, child.command = noted, counted  # type: ignore[method-assign]
    tool, args = SearchAndRead(), SearchAndReadArgs(query=question)
    with tempfile.TemporaryDirectory() as empty:  # loads the packages
        anyio.run(tool, args, ToolContext(files=Root.open(Path(empty))))
    read.clear()
    texts, root = KeptTexts(store, 4_000_000_000), Root.open(folder)
    at = ToolContext(files=root, texts=texts, run_id="S-1", seconds_left=lambda: seconds)
    started, began = processor_s(), time.monotonic()
    result = anyio.run(tool, args, at)
    took, processor = time.monotonic() - began, processor_s() - started
    texts.close()
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {
        "seconds": round(took, 2),
        "processor": round(processor, 3),
        "read": len(read),
        "parsers": parsers,
        "memory_mb": round(own.ru_maxrss / 1024),
        "parser_mb": round(others.ru_maxrss / 1024),
        "unread": result.unread,
        "head": result.text.split("\n")[0],
    }
    print(json.dumps(figures))


def ask_by_command(folder: Path, root: Path) -> dict[str, object]:
    """Ask by `ava run` until the texts are kept, then five questions; return what one of these costs.

    Its modules are compiled, as they are where Ava is installed.
    """
    environment = {**os.environ, "AVA_DATA_ROOT": str(root / "data"), "PYTHONPYCACHEPREFIX": str(root / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-P", "-m", "ava_server", "run", "researcher"]
    options = ["--workspace", str(folder), "--model", "offline/extractive", "--yes"]
    times: list[tuple[float, float]] = []
    for question in QUESTIONS[:6]:
        started, began = processor_s(), time.monotonic()
        done = subprocess.run(
            [*command, question, *options], env=environment, capture_output=True, text=True, check=False
        )
        times.append((processor_s() - started, time.monotonic() - began))
        if done.returncode not in (0, NO_ANSWER):
            raise SystemExit(done.stderr[-2_000:])
    processor, seconds = (statistics.median(column) for column in zip(*times[1:], strict=True))
    return {"seconds": round(seconds, 2), "processor": round(processor, 3)}


def processor_s() -> float:
    """Return the processor time of this process and of its children that ended, in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ask:
        answer(args.folder, args.store, args.ask, args.seconds)
        return
    with tempfile.TemporaryDirectory(prefix="ava-library-") as made:
        folder, store = args.folder or Path(made, "folder"), Path(made, "texts.db")
        if args.folder is None:
            folder.mkdir()
            make_folder(folder, args.files)
            time.sleep(FRESH_S)
        rows: dict[str, dict[str, object]] = {}
        for number, question in enumerate(QUESTIONS, 1):
            name = {1: "first question", 2: "second question", 10: "tenth question"}.get(number, f"question {number}")
            rows[name] = ask(folder, store, question, args.seconds)
        if args.folder is None:
            changed = next(path for path in sorted(folder.rglob("*.docx")))
            changed.write_bytes(as_word("One sentence is new: the zeppelin has landed."))
            os.utime(changed, (OLD + 9, OLD + 9))
            time.sleep(FRESH_S)
            rows["after one change"] = ask(folder, store, "Has the zeppelin landed?", args.seconds)
        rows["by ava run"] = ask_by_command(folder, Path(made))
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        count = sum(path.is_file() for path in folder.rglob("*"))
        print(f"{count:,} files, {size / 1e6:.0f} MB; texts kept: {store.stat().st_size / 1e6:.0f} MB")
        print(f"{'':20}{'s':>8}{'CPU s':>8}{'read':>8}{'parsers':>8}{'MB':>7}{'MB parser':>10}")
        for name, row in rows.items():
            if name.startswith("question "):
                continue
            columns = ("seconds", "processor", "read", "parsers", "memory_mb", "parser_mb")
            cells = [row.get(column, "") for column in columns]
            widths = (8, 8, 8, 8, 7, 10)
            print(f"{name:20}" + "".join(f"{cell!s:>{width}}" for cell, width in zip(cells, widths, strict=True)))
            if "head" in row:
                print(f"    {row['head']}")
        if args.json is not None:
            first = float(str(rows["first question"]["processor"]))
            figures = [
                Figure(f"{name}, processor time", float(str(row["processor"])), "s", goal=SHARE, floor=first)
                for name, row in rows.items()
                if name in ("second question", "tenth question")
            ]
            by_command = float(str(rows["by ava run"]["processor"]))
            figures.append(Figure("a later question by ava run, processor time", by_command, "s", goal=COMMAND_S))
            write_json(args.json, figures)


if __name__ == "__main__":
    main()

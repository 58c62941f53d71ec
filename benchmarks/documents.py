"""How long other runs take while hostile documents are read: the usual time of a short run, and the same beside them.

    python benchmarks/documents.py [--seconds 20] [--json FILE]

Then how long a user waits for a small file while three others search folders of 400 Word files and hostile PDFs.

Each run reads a small file eight times; the documents are read again and again by runs of their own. The model is a
scripted endpoint in a process of its own, so only Ava's work is in the way.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
from audit_parts.report import Report, ms
from figures import write_json

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.runtime import open_lab

from ava_server.__main__ import SWITCH_S

CONFIG = """
[limits]
spawns_per_hour = 100000
running = 1000
running_per_user = 1000
user_daily_cents = 100000000
installation_daily_cents = 100000000
[providers.custom]
stream = false
"""
GOAL = 2.0
USUAL_RUNS = 20
SHEET = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>{}</sheetData></worksheet>'
)
STRINGS = '<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">{}</sst>'
SHARED = (
    '<Override PartName="/xl/sharedStrings.xml" ContentType='
    '"application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"/></Types>'
)


def workbook(*texts: str) -> bytes:
    """Return a workbook of 100 rows whose 200 cells each name one of these shared texts."""
    import openpyxl

    empty, made = io.BytesIO(), io.BytesIO()
    book = openpyxl.Workbook()
    book.active.append(["text"])
    book.save(empty)
    cells = "".join(f'<c t="s"><v>{number % len(texts)}</v></c>' for number in range(200))
    changed = {
        "xl/worksheets/sheet1.xml": SHEET.format(f"<row>{cells}</row>" * 100).encode(),
        "xl/sharedStrings.xml": STRINGS.format("".join(f"<si><t>{text}</t></si>" for text in texts)).encode(),
    }
    with zipfile.ZipFile(empty) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for name in {*old.namelist(), *changed}:
            data = changed[name] if name in changed else old.read(name)
            if name == "[Content_Types].xml" and b"sharedStrings" not in data:
                data = data.replace(b"</Types>", SHARED.encode())
            new.writestr(name, data)
    return made.getvalue()


def word() -> bytes:
    """Return a document with a table of large cells."""
    import docx

    document, made = docx.Document(), io.BytesIO()
    table = document.add_table(rows=20, cols=1)
    for row in table.rows:
        row.cells[0].text = "words " * 100_000
    document.save(made)
    return made.getvalue()


DOCUMENTS: dict[str, Callable[[], bytes]] = {
    "cell.csv": lambda: b"password=hunter2x9," * 1_000_000,
    "keys.csv": lambda: b"sk-ant-\n" * 2_400_000,
    "shared.xlsx": lambda: workbook("a " * 10_000_000),
    "strings.xlsx": lambda: workbook(*(f"{number} {'x ' * 40_000}" for number in range(200))),
    "cells.docx": word,
}
SETS = {
    "one CSV": ("cell.csv",),
    "one workbook of one shared text": ("shared.xlsx",),
    "four documents": ("cell.csv", "keys.csv", "strings.xlsx", "cells.docx"),
}


class Endpoint(BaseHTTPRequestHandler):
    """Answers a run that names a document with a call that reads it, and any other with eight small reads."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
        turn, text = sum(each["role"] == "assistant" for each in messages), json.dumps(messages)
        call: tuple[str, dict[str, Any]] = ("read_file", {"path": "notes.txt", "offset": 1, "limit": turn + 1})
        if "DOCUMENT:" in text:
            call[1]["path"] = text.split("DOCUMENT:")[1].split(":")[0]
        elif turn == 8:
            call = ("submit_result", {"summary": "done", "output": "done", "confidence": 0.5})
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        message = {
            "role": "assistant",
            "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}],
        }
        answer = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "test",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Says nothing of connections that a cancelled run drops."""

    def handle_error(self, *_request: object) -> None:
        """Say nothing."""


@contextmanager
def endpoint() -> Generator[str]:
    """Serve the endpoint in a process of its own, and yield its address."""
    with subprocess.Popen([sys.executable, __file__, "--endpoint"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.kill()


async def measured(documents: tuple[str, ...], seconds: float, url: str) -> tuple[list[float], list[float]]:
    """Return how long short runs take by themselves, and beside runs that read these documents, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        server = cast(Any, SimpleNamespace(base_url=url, refused=(), requests=()))
        async with open_lab(Path(folder), server=server, config=CONFIG, check=False) as opened:
            (opened.workspace / "notes.txt").write_text("line\n" * 100)
            for name in documents:
                (opened.workspace / name).write_bytes(DOCUMENTS[name]())

            async def one() -> float:
                began = time.perf_counter()
                row = await opened.ended(await opened.start(task="read the notes"), 60)
                assert row.state == "success", row.state
                return time.perf_counter() - began

            for _ in range(3):
                await one()
            usual = [await one() for _ in range(USUAL_RUNS)]
            readers = [await opened.start(task=f"DOCUMENT:{name}: read it") for name in documents]
            await anyio.sleep(1.5)
            began, beside = time.perf_counter(), list[float]()
            while time.perf_counter() - began < seconds:
                beside.append(await one())
            for reader in readers:
                await opened.call("cancel_subagent", subagent_id=reader)
            return usual, beside


SEARCHING = ("ann", "ben", "cy")
WAIT_GOAL_S = 1.0
BOMB = b"".join(f"{number} 0 obj <<{'/A <<' * 400}{'>>' * 400}>> endobj\n".encode() for number in range(2_000))
"""Objects nested deep, which a PDF reader takes long for."""


async def waits_beside_searches(seconds: float) -> list[float]:
    """Return how long each of another user's small files took to be read, in seconds."""
    from support.foreign.office import p, r, word_file

    from ava_roles.sandbox.paths import Root
    from ava_roles.texts.kept import KeptTexts
    from ava_roles.tool import ToolContext
    from ava_roles.tools.files import ReadFile, ReadFileArgs, SearchAndRead, SearchAndReadArgs

    waits: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        texts = KeptTexts()
        contexts: dict[str, ToolContext] = {}
        for user in (*SEARCHING, "dora"):
            own = Path(folder) / user
            own.mkdir()
            contexts[user] = ToolContext(files=Root.open(own), texts=texts, user=user, seconds_left=lambda: 600.0)
        for user in SEARCHING:
            for number in range(400):
                lines = "".join(p(r(f"{user}'s line {line} of lease {number}")) for line in range(200))
                (Path(folder) / user / f"{number}.docx").write_bytes(word_file(lines))
            for number in range(10):
                data = b"%PDF-1.7\n% " + str(number).encode() + user.encode() + b"\n" + BOMB
                (Path(folder) / user / f"{number}.pdf").write_bytes(data)

        async def search(user: str, number: int) -> None:
            args = SearchAndReadArgs(query=f"line {number} of the lease")
            with anyio.CancelScope():
                await SearchAndRead()(args, contexts[user])

        async with anyio.create_task_group() as tasks:
            for user in SEARCHING:
                for number in range(3):
                    tasks.start_soon(search, user, number)
            await anyio.sleep(1.5)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                for name in (f"{len(waits)}.txt", f"{len(waits)}.docx"):
                    data = word_file(p(r(f"The rent is {len(waits)} euro."))) if name.endswith("x") else b"The rent."
                    (Path(folder) / "dora" / name).write_bytes(data)
                    began = time.perf_counter()
                    await ReadFile()(ReadFileArgs(path=name), contexts["dora"])
                    waits.append(time.perf_counter() - began)
            tasks.cancel_scope.cancel()
        for each in contexts.values():
            assert each.files is not None
            each.files.close()
    return waits


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seconds", type=float, default=20.0, help="how long each set of documents is read")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    options.add_argument("--endpoint", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.endpoint:
        with Server(("127.0.0.1", 0), Endpoint) as server:
            print(server.server_port, flush=True)
            server.serve_forever()
    sys.setswitchinterval(SWITCH_S)
    report, rows = Report(), list[list[str]]()
    for name, documents in SETS.items():
        with endpoint() as url:
            usual, beside = anyio.run(measured, documents, chosen.seconds, url)
        middle, floor = statistics.median(beside), statistics.median(usual)
        rows.append([name, ms(floor), ms(middle), ms(max(beside)), f"{middle / floor:.2f}", str(len(beside))])
        report.verdict(f"a short run beside {name}", middle, GOAL, unit=" s", floor=floor)
    waits = anyio.run(waits_beside_searches, chosen.seconds)
    columns = ["documents read meanwhile", "usual ms", "beside them ms", "worst ms", "ratio", "runs"]
    report.table("A short run while documents are read", columns, rows)
    title = "a small file (text, Word in turn) beside the searches of three users"
    report.verdict(title, max(waits), WAIT_GOAL_S, unit=" s at worst")
    print(f"{len(waits)} reads, median {ms(statistics.median(waits))} ms, worst {ms(max(waits))} ms")
    if chosen.json:
        write_json(chosen.json, report.figures)


if __name__ == "__main__":
    main()

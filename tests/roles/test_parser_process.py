"""Whatever a file does to its parser, only the child ends that parses it: the process of the runs goes on."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from support.foreign.documents import pdf
from support.model_server import Gate, Say
from support.runtime import hand_over, open_lab, wait_for
from support.sample import sample

from ava_audit.events import RunClaimed, ToolResult
from ava_roles.errors import ToolFailed
from ava_roles.texts import child, parser_process, web_page
from ava_roles.texts import formats as parsers
from ava_roles.texts.extracted import PDF, Wanted, format_of
from ava_roles.threads import run_sync

WORD, EMAIL = format_of("a.docx") or PDF, format_of("a.eml") or PDF
ATTACKS = {
    "crash": ("import ctypes; ctypes.string_at(0)", "fails, or needs too much memory"),
    "abort": ("import os; os.abort()", "fails, or needs too much memory"),
    "hang": ("import re; re.match('(a+)+$', 'a' * 40 + 'b')", "takes longer than 30 s"),
    "memory": ("b'x' * 10_000_000_000", "fails, or needs too much memory"),
    "memory of a library": ("import mmap; mmap.mmap(-1, 10_000_000_000)", "cannot be read"),
    "no answer": ("import os; os._exit(0)", "fails, or needs too much memory"),
    "nonsense": ("import os; os.write(1, b'\\0' * 7 + b'\\4[1]\\n'); os._exit(0)", "fails, or needs too much memory"),
    "an endless answer": ("import os; os.write(1, b'\\x7f' * 100_000); os._exit(0)", "fails, or needs too much memory"),
}


def test_a_child_outlives_the_thread_that_first_used_it() -> None:
    read: list[str] = []
    with parser_process.ParserProcess() as parser:

        def work() -> None:
            found = parser.read_document(EMAIL, b"Subject: x\n\nThe zeppelin leaves at noon.")
            read.append(found.text())

        for _each in range(3):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            while Path(f"/proc/self/task/{thread.native_id}").exists():  # its signal comes when the kernel ends it
                time.sleep(0.001)
    assert len(read) == 3 and all("zeppelin" in text for text in read)


@pytest.mark.parametrize("name", sample(ATTACKS, 4))
async def test_an_attacked_parser_is_a_file_that_cannot_be_read(name: str, attacked: Callable[[str], None]) -> None:
    code, says = ATTACKS[name]
    attacked(code)
    longest, began = 0.0, time.monotonic()

    async def beat() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await anyio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        with pytest.raises(ToolFailed, match=says):
            await run_sync(parser_process.read_document, PDF, b"%PDF-")
        tasks.cancel_scope.cancel()
    assert longest < 1, "all runs go on meanwhile"
    assert time.monotonic() - began < 10


STUCK = "import signal, time; signal.alarm(0); time.sleep(600)"
BUSY = "import signal; signal.alarm(0)\nwhile True: pass"
HUGE = "import os; from dataclasses import asdict; from ava_roles.texts.extracted import Extracted, Part;"
HUGE += " from ava_roles.texts import child; child.send({'result': asdict(Extracted((Part('', 'x' * 7_000_000),)))});"
HUGE += " os._exit(0)"
ODD = 'import os; text = b\'{"result": {"parts": [1]}}\'; os.write(1, len(text).to_bytes(8) + text); os._exit(0)'


@pytest.mark.parametrize(("code", "says"), [(HUGE, "more than 6,000,000 characters"), (ODD, "its parser fails")])
def test_bounds_what_a_child_may_send(code: str, says: str, attacked: Callable[[str], None]) -> None:
    attacked(code)
    with pytest.raises(ToolFailed, match=says):
        parser_process.read_document(WORD, b"")


def test_ends_a_child_that_has_switched_its_own_time_limit_off(
    attacked: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    attacked(STUCK)
    monkeypatch.setattr(parser_process, "SECONDS", 1)
    with pytest.raises(ToolFailed, match="takes longer than 1 s"):
        parser_process.read_document(WORD, b"")


FORGED = "import os; from ava_roles.texts import child; child.send({'result': {'parts': [['', 'forged']]}});"
FORGED += " child.send({'result': {}}); os._exit(0)"


def test_a_file_has_no_part_in_what_the_same_child_reads_next(attacked: Callable[[str], None]) -> None:
    with parser_process.ParserProcess() as parser:
        good = "if _given[0] == b'good': from ava_roles.errors import ToolFailed; raise ToolFailed('the good one')\n"
        attacked(good + FORGED)
        for _again in range(2):
            with pytest.raises(ToolFailed, match="its parser fails, or needs too much memory"):
                parser.read_document(WORD, b"evil")
            with pytest.raises(ToolFailed, match="the good one"):
                parser.read_document(WORD, b"good")


def test_one_child_reads_the_files_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    command = child.command

    def noted(module: str) -> list[str]:
        started.append(module)
        return command(module)

    monkeypatch.setattr(child, "command", noted)
    mail = format_of("a.eml") or PDF
    with parser_process.ParserProcess() as parser:
        texts = [parser.read_document(mail, f"Subject: {word}\n\n{word}\n".encode()).text() for word in ("one", "two")]
    assert "one" in texts[0] and "two" in texts[1] and len(started) == 1


@pytest.mark.parametrize("code", [STUCK, BUSY])
async def test_a_child_ends_when_its_call_is_cancelled(
    code: str, tmp_path: Path, attacked: Callable[[str], None]
) -> None:
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    attacked(f"alive = open({str(alive)!r}, 'wb', 0); alive.write(b'here'); {code}")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_sync, parser_process.read_document, WORD, b"")
        with anyio.fail_after(20):
            async with await anyio.open_file(alive, "rb", 0) as child_is:
                assert await child_is.read(4) == b"here"
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    assert await child_is.read(1) == b"", "the end of the child closes it"
                    await child_is.aclose()


async def test_a_run_survives_a_document_that_kills_its_parser_and_so_do_the_others(
    tmp_path: Path, attacked: Callable[[str], None]
) -> None:
    attacked(ATTACKS["crash"][0])
    gate = Gate()
    slow = Say("y", [("read_file", {"path": "notes.txt"})], gate=gate)
    reads = Say("x", [("read_file", {"path": "evil.pdf"})])
    async with open_lab(tmp_path, [slow, reads, hand_over(), hand_over()]) as lab:
        (lab.workspace / "evil.pdf").write_bytes(b"%PDF-1.7")
        (lab.workspace / "notes.txt").write_text("Twelve cents.")
        other = await lab.start(task="the other")
        await wait_for(gate.arrived)
        run_id = await lab.start()
        assert (await lab.ended(run_id)).state == "success"
        gate.released.set()
        assert (await lab.ended(other)).state == "success"
        for each, says in ((run_id, "its parser fails"), (other, "Twelve cents.")):
            assert len(await lab.facts(each, RunClaimed)) == 1
            assert says in (await lab.facts(each, ToolResult))[0].output


def test_a_child_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-something")
    start = "import os, sys; sys.path.insert(0, sys.argv[1]); from ava_roles.texts import formats as parsers;"
    start += " from ava_roles.texts import parser_process; from ava_roles.texts.extracted import Extracted, Part;"
    start += " seen = Extracted((Part('', str(sorted(os.environ))),));"
    start += " parsers.PARSERS['Word document'] = lambda _data, _wanted: seen; parser_process.main()"
    own = str(Path(child.__file__).parents[2])
    monkeypatch.setattr(child, "command", lambda _module: [sys.executable, "-I", "-c", start, own, str(os.getpid())])
    text = parser_process.read_document(WORD, b"").text()
    assert "'AVA_RUN_ID'" in text and "KEY" not in text


@pytest.mark.slow
def test_a_child_reads_as_the_parser_does() -> None:
    data = pdf("twelve cents")
    assert parser_process.read_document(PDF, data) == parsers.read_pdf(data, Wanted())
    html = "<html><head><title>T</title></head><body><p>" + "Twelve cents an hour. " * 40 + "</p></body></html>"
    assert parser_process.read_html(html, "https://x.org/") == web_page.read_html(html, "https://x.org/")


@pytest.fixture
def attacked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the child's parsers do what a hostile file has them do."""

    def attack(code: str) -> None:
        start = (
            "import sys; sys.path.insert(0, sys.argv[1]); from ava_roles.texts import formats as parsers;"
            " from ava_roles.texts import parser_process, web_page;"
            " parser_process.SECONDS = 2;"
            f" attacked = web_page.parsing('PDF')(lambda *_given: exec({code!r}, {{'_given': _given}}));"
            " parsers.PARSERS.update(dict.fromkeys(parsers.PARSERS, attacked)); parser_process.main()"
        )
        own = str(Path(child.__file__).parents[2])
        monkeypatch.setattr(
            child, "command", lambda _module: [sys.executable, "-I", "-c", start, own, str(os.getpid())]
        )

    return attack

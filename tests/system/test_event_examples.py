"""The programs for `on_event` that the documentation shows, as somebody copies them: they get an event and tell it."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "budgets-and-approval.md"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="they are programs with a first line that names theirs")


def test_the_chat_example_posts_a_proposal_with_the_command_that_approves_it(tmp_path: Path) -> None:
    script = program(tmp_path / "chat", block("on_event: chat"))
    (tmp_path / ".config").mkdir()
    told: list[dict[str, object]] = []
    event = example()
    with webhook(told) as address:
        (tmp_path / ".config" / "ava-chat").write_text(f"{address}\n")
        run(script, event, HOME=str(tmp_path), NO_PROXY="127.0.0.1")
        run(script, {**event, "event": "ended", "status": "success"}, HOME=str(tmp_path), NO_PROXY="127.0.0.1")
    waits = f"researcher: {event['task']} (at most $0.50): ava approve {event['pending_id']}"
    assert told == [{"text": waits}, {"text": f"researcher: {event['task']} (at most $0.50): success"}]


def test_the_desktop_example_passes_the_text_as_one_argument(tmp_path: Path) -> None:
    script = program(tmp_path / "notify", block("on_event: desktop"))
    program(tmp_path / "notify-send", f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/told\n')
    event = {**example(), "task": '-h "$(touch pwned)" `id`; task'}
    run(script, event, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (tmp_path / "told").read_text().splitlines() == [
        "--",
        "Ava",
        f"researcher awaiting_approval: {event['task']}",
    ]
    assert not (tmp_path / "pwned").exists()


def block(name: str) -> str:
    """The code block behind a mark of the page."""
    found = re.search(rf"<!-- {re.escape(name)} -->\n```\w*\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None, f"the page has no {name}"
    return found[1]


def example() -> dict[str, object]:
    """The event that the page shows."""
    found = re.search(r"```json\n(\{\"event\".*?)\n```", PAGE.read_text("utf-8"))
    assert found is not None
    event: dict[str, object] = json.loads(found[1])
    return event


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@contextmanager
def webhook(told: list[dict[str, object]]) -> Generator[str]:
    """A chat's incoming webhook."""

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Chat) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook"
        server.shutdown()
        thread.join()


def run(path: Path, event: dict[str, object], **env: str) -> None:
    line = json.dumps(event, ensure_ascii=False) + "\n"
    subprocess.run([str(path)], input=line.encode(), env={**os.environ, **env}, timeout=20, check=True)

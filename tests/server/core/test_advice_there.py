"""What `ava --url` advises works under `--url`, or says that it is for the server's machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.repository import REPOSITORY
from typer.main import get_command

from ava_server.cli.app import COMMANDS, build
from ava_server.cli.results import result_text
from ava_server.core.commands import (
    LOCAL_OPTIONS,
    REMOTE_COMMANDS,
    TAKE_URL,
    TWO_WORDS,
    advice,
    advice_there,
    forget_server,
    name_server,
)
from ava_server.render.responses import RunAnswer, Untrusted

URL = "ava --url https://ava.example.org"
_COMMAND = re.compile(r"`(ava (?:--url \S+ )?)([^`]+)`([^.;`]{0,40})")


def texts() -> Iterator[str]:
    """Yield every text of the server that names a command, with `X` for what is put into it."""
    for path in sorted((REPOSITORY / "server").rglob("*.py")):
        tree = ast.parse(path.read_text())
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        inside |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                text = node.value
            else:
                continue
            if "`ava " in text:
                yield text


def name_of(line: str) -> str:
    two = " ".join(line.split()[:2])
    return two if two in TWO_WORDS else line.split()[0]


def test_each_command_that_a_text_names_takes_the_url_or_is_for_the_server() -> None:
    seen: set[str] = set()
    for text in texts():
        told = advice_there(text, URL)
        assert advice_there(told, URL) == told, "a text may be adapted twice"
        for found in _COMMAND.finditer(told):
            begin, line, after = found.groups()
            if line.startswith("-"):  # the program itself
                continue
            seen.add(name_of(line))
            near = told[max(found.start() - 40, 0) : found.start()] + after
            if begin.startswith(URL):
                assert name_of(line) in TAKE_URL, told
                assert LOCAL_OPTIONS.get(name_of(line)) not in line.split(), told
            else:
                assert re.search(r"the server\b|\bthere\b", near, re.IGNORECASE), told
    assert {"show", "logs", "fetch", "doctor", "key", "run", "resume"} <= seen & {*COMMANDS}, "the texts are found"


def test_the_table_names_commands_that_have_the_option() -> None:
    app: Any = get_command(build())
    with_url = set[str]()
    for name, command in app.commands.items():
        parts = [command, *getattr(command, "commands", {}).values()]
        if any("--url" in option.opts for part in parts for option in part.params):
            with_url.add(name)
    assert with_url == {*TAKE_URL} and {*REMOTE_COMMANDS} <= with_url


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("no files; `ava show S-1` has its result", f"no files; `{URL} show S-1` has its result"),
        ("and `ava fetch` brings it", "and `ava fetch` on the server brings it"),
        ("With `ava key set x`, start again.", "With `ava key set x` on the server, start again."),
        ("`ava send S-1 yes --question Q-1`", "`ava send S-1 yes --question Q-1` on the server"),
        ('`ava send S-1 "…"`', f'`{URL} send S-1 "…"`'),
        ("On the server, `ava user remove ana` removes them.", "On the server, `ava user remove ana` removes them."),
        ("  2 x api: ava logs S-1 --type error", f"  2 x api: {URL} logs S-1 --type error"),
        ("`ava logs export` writes them", "`ava logs export` on the server writes them"),
        ("Is `ava serve --http` running there?", "Is `ava serve --http` running there?"),
    ],
)  # fmt: skip
def test_an_advice_takes_the_form_that_works_there(text: str, there: str) -> None:
    assert advice_there(text, URL) == there


def test_a_result_of_another_server_advises_what_works_from_here() -> None:
    error = {
        "kind": "auth",
        "message": "x",
        "what_to_do": "Store a valid key with `ava key set` and propose it again with retry_of.",
    }
    run = RunAnswer(
        subagent_id="S-1",
        role="coder",
        state="error",
        status="error",
        status_line="S-1: error",
        model="groq:x",
        error=error,
        untrusted_result=Untrusted(warning="x"),
    )
    forget_server()
    assert "`ava key set groq` and start it again with `ava run --retry S-1`." in result_text(run)
    name_server(URL)
    shown = result_text(run)
    forget_server()
    assert "`ava key set groq` on the server and start it again with `ava run --retry S-1` on the server." in shown
    assert advice("`ava show S-1`") == "`ava show S-1`", "no server is named any more"

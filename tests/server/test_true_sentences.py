"""Sentences for people and models are true, and do not run together.

A text about a problem that an advice follows ends as a sentence, wherever the two are joined.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.model_server import running_model_server
from support.runtime import PRICED, submits
from support.terminal import ava

import ava_audit
import ava_roles
import ava_server
from ava_server.core.errors import with_advice
from ava_server.hosts.clients import known_clients
from ava_server.hosts.known import HOSTS
from ava_server.runs import prompts

SOURCES = [Path(package.__file__ or "").parent for package in (ava_audit, ava_roles, ava_server)]
ADVICE = ("advice", "what_to_do", "key_advice", "hint", "outcome")
"""Names of what says what to do, or what follows."""


@pytest.mark.parametrize(
    ("problem", "joined"),
    [
        ("set AVA_MODEL_BASE_URL with AVA_MODEL", "set AVA_MODEL_BASE_URL with AVA_MODEL. In a terminal, run `x`."),
        ("There is none.", "There is none. In a terminal, run `x`."),
        ("there is none (see the docs)", "there is none (see the docs). In a terminal, run `x`."),
        ("Is there one?", "Is there one? In a terminal, run `x`."),
        ("", "In a terminal, run `x`."),
    ],
)
def test_a_problem_and_its_advice_are_two_sentences(problem: str, joined: str) -> None:
    assert with_advice(problem, "In a terminal, run `x`.") == joined


def test_without_an_advice_a_problem_stays_as_it_is() -> None:
    assert with_advice("there is none", "") == "there is none"


def _joined_by_hand(source: str) -> Iterator[str]:
    """Yield the f-strings that put an advice right behind another value, with only a blank between."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for before, blank, after in zip(node.values, node.values[1:], node.values[2:], strict=False):
            is_value = isinstance(before, ast.FormattedValue) and isinstance(after, ast.FormattedValue)
            if is_value and isinstance(blank, ast.Constant) and blank.value == " ":
                names = {each.id for each in ast.walk(after) if isinstance(each, ast.Name)}
                names |= {each.attr for each in ast.walk(after) if isinstance(each, ast.Attribute)}
                names |= {str(each.value) for each in ast.walk(after) if isinstance(each, ast.Constant)}
                if any(name.strip("_") in ADVICE for name in names):
                    yield ast.unparse(node)


def test_no_text_joins_an_advice_by_hand() -> None:
    found = {
        f"{path.name}: {text}"
        for source in SOURCES
        for path in source.rglob("*.py")
        for text in _joined_by_hand(path.read_text("utf-8"))
        if path.name != "errors.py"  # with_advice itself
    }
    assert found == set(), "use with_advice, which ends the sentence before"


def test_the_search_for_such_texts_finds_one() -> None:
    assert list(_joined_by_hand('f"{error} {self.key_advice(provider)}"')) != []
    assert list(_joined_by_hand('f"{error}: {why}"')) == []


def test_after_the_last_attempt_nobody_is_told_to_try_again() -> None:
    texts = prompts("coding")
    assert "again" not in texts["none_left"] and "again" not in texts["failed"]
    assert all("call submit_result again" in texts[name] for name in ("one_more", "more"))


def test_a_host_that_asks_itself_and_shows_our_question_is_promised_two_questions() -> None:
    rows = {row.id: row for row in known_clients()}
    asking_twice = [
        host
        for host in HOSTS.values()
        if (row := rows.get(host.name)) and row.asks == "arguments" and row.question == "form" and host.tool_rules
    ]
    assert "claude-code" in [host.name for host in asking_twice]
    for host in asking_twice:
        assert "one question" not in host.quiet, host.name


def test_what_is_free_starts_with_yes_and_without_a_cap(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.md").write_text("The transcription price of Otter is twelve cents a minute.\n")
    given = ("run", "researcher", "What is the transcription price of Otter?", "-w", str(folder), "--yes")
    free = ava(tmp_path / "data", *given)
    assert free.returncode == 0 and "twelve cents" in free.stdout, free.stderr
    with running_model_server([submits()]) as server:
        env = {"AVA_MODEL_BASE_URL": server.base_url, "AVA_MODEL": "test"}
        (tmp_path / "data" / "config.toml").write_text(PRICED)
        paid = ava(tmp_path / "data", *given, env=env)
        assert server.requests == []
    assert paid.returncode == 2 and "--max-cost is required; such as --max-cost 0.50" in paid.stderr

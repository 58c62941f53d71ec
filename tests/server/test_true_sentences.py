"""Sentences for people and models are true, and do not run together.

A text about a problem that an advice follows ends as a sentence, wherever the two are joined.
"""

import ast
from pathlib import Path

import pytest
from support.model_server import run_model_server
from support.runtime import PRICED, submit
from support.sentences import constants_of, run_together
from support.terminal import ava

import ava_audit
import ava_roles
import ava_server
from ava_server.core.errors import with_advice
from ava_server.core.prompts import prompts
from ava_server.hosts.clients import known_clients
from ava_server.hosts.known import HOSTS

SOURCES = [Path(package.__file__ or "").parent for package in (ava_audit, ava_roles, ava_server)]


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


@pytest.mark.parametrize(
    "having", ["with_advice(", pytest.param("", marks=pytest.mark.slow)], ids=["modules with an advice", "every module"]
)
def test_no_text_joins_a_sentence_to_one_that_may_not_have_ended(having: str) -> None:
    texts = {path: path.read_text("utf-8") for source in SOURCES for path in source.rglob("*.py")}
    trees = {path: ast.parse(text) for path, text in texts.items() if having in text}
    constants = constants_of(trees.values())
    found = {
        f"{path.name}:{join.line}: {join.text}"
        for path, tree in trees.items()
        for join in run_together(tree, constants)
    }
    assert trees and found == set(), "use with_advice, which ends the sentence before"


@pytest.mark.parametrize(
    "source",
    [
        'f"{error} {self.key_advice(provider)}"',
        'str(error) + " " + hint',
        '" ".join([str(error), case.what_to_do])',
        'f"{error} In a terminal, run `x`."',
        'f"set AVA_MODEL {answer.next}"',
        '_STEP = "Run `x` again."\ndef f(error):\n    return f"{error} {_STEP}"',
        'def f(error):\n    step = "Run `x` again."\n    return f"{error} {step}"',
        'def f(error, far):\n    step = "Run `x` again." if far else "Wait."\n    return str(error) + " " + step',
        'def step():\n    return "Run `x` again."\ndef f(error):\n    return f"{error} {step()}"',
        "def f(error):\n    return f\"{error} {'Run {x} again.'.format(x=1)}\"",
    ],
)
def test_the_search_for_such_texts_finds_it(source: str) -> None:
    tree = ast.parse(source)
    assert len(run_together(tree, constants_of([tree]))) == 1


@pytest.mark.parametrize(
    "source",
    [
        'f"{error}: {advice}"',
        'f"{error}. {advice}"',
        'f"{count} {unit}"',
        'f"{name} has no key. Run `x` again."',
        'f"{title} {Codex}" + " MCP servers are there"',
        'def f(name):\n    said = f"{name} has no key."\n    return f"{said} Run `x` again."',
    ],
)
def test_the_search_for_such_texts_finds_nothing_in_others(source: str) -> None:
    tree = ast.parse(source)
    assert run_together(tree, constants_of([tree])) == []


def test_after_the_last_attempt_nobody_is_told_to_try_again() -> None:
    texts = prompts("ava_server.runs.coder", "coding")
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
    with run_model_server([submit()]) as server:
        env = {"AVA_MODEL_BASE_URL": server.base_url, "AVA_MODEL": "test"}
        (tmp_path / "data" / "config.toml").write_text(PRICED)
        paid = ava(tmp_path / "data", *given, env=env)
        assert server.requests == []
    assert paid.returncode == 2 and "--max-cost is required; such as --max-cost 0.50" in paid.stderr

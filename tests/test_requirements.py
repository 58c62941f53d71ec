"""Each requirement is shown by a test that exists, or says what it still waits for."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
LAST = {"S1": 35, "S2": 34, "S3": 18, "S4": 28, "S5": 14, "N": 37}
"""The last row of each part of the requirements; within a part none is left out."""
_PENDING = re.compile(r"(missing|not applicable): \w")


def test_every_requirement_is_listed_once_and_in_order() -> None:
    wanted = [f"{part}-{number:02}" for part, last in LAST.items() for number in range(1, last + 1)]
    assert list(requirements()) == wanted


def test_every_requirement_has_a_test_or_says_what_is_missing() -> None:
    bare = [name for name, row in requirements().items() if not row.get("tests") and not row.get("pending")]
    assert not bare
    assert all(row.get("title") for row in requirements().values())
    unknown = {name for name, row in requirements().items() if set(row) - {"title", "tests", "pending"}}
    assert not unknown


def test_pending_rows_say_what_is_missing() -> None:
    vague = [name for name, row in requirements().items() if "pending" in row and not _PENDING.match(row["pending"])]
    assert not vague


def test_every_named_test_exists() -> None:
    named = [(row_id, name) for row_id, row in requirements().items() for name in row.get("tests", ())]
    assert len(named) > 100
    gone = [f"{row_id}: {name}" for row_id, name in named if name not in existing_tests()]
    assert not gone, "renamed or removed; put the new name into tests/requirements.toml"


def test_no_row_names_a_test_twice() -> None:
    for row_id, row in requirements().items():
        tests = sorted(row.get("tests", ()))
        assert all(one != next_one for one, next_one in pairwise(tests)), row_id


def test_every_requirement_marker_is_listed_in_its_row() -> None:
    for test, ids in existing_tests().items():
        for row_id in ids:
            assert row_id in requirements(), f"{test} names {row_id}, which is no requirement"
            assert test in requirements()[row_id].get("tests", ()), f"{test} names {row_id}, which does not name it"


def test_finds_markers_on_functions_classes_and_modules() -> None:
    source = '@pytest.mark.requirement("S1-01", "N-02")\n@pytest.mark.anyio\nasync def test_it(): ...\n'
    (_trail, function), *_ = [(node, node) for node in ast.parse(source).body]
    assert isinstance(function, ast.AsyncFunctionDef)
    assert set().union(*(marked(decorator) for decorator in function.decorator_list)) == {"S1-01", "N-02"}
    whole = ast.parse('pytestmark = [pytest.mark.requirement("S2-02")]').body[0]
    assert isinstance(whole, ast.Assign)
    assert marked(whole.value) == {"S2-02"}
    inner = ast.parse("class TestIt:\n    def test_one(self): ...\n    def helper(self): ...\n").body
    assert [trail for trail, _function in functions(inner)] == [("TestIt", "test_one")]


class Row(TypedDict, total=False):
    title: str
    tests: list[str]
    pending: str


@cache
def requirements() -> dict[str, Row]:
    rows: dict[str, Row] = tomllib.loads((TESTS / "requirements.toml").read_text("utf-8"))
    return rows


@cache
def existing_tests() -> dict[str, frozenset[str]]:
    """Return every test as pytest names it, with the requirements that its markers name."""
    found: dict[str, frozenset[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        whole = {mark for node in tree.body if isinstance(node, ast.Assign) for mark in marked(node.value)}
        name = path.relative_to(REPOSITORY).as_posix()
        for trail, node in functions(tree.body):
            marks = whole.union(*(marked(decorator) for decorator in node.decorator_list))
            found["::".join((name, *trail))] = frozenset(marks)
    return found


def functions(body: list[ast.stmt], trail: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body, (*trail, node.name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield (*trail, node.name), node  # type: ignore[misc]  # both kinds have decorators


def marked(node: ast.expr) -> set[str]:
    """Return the ids of `pytest.mark.requirement("S1-03", …)` wherever it stands in an expression."""
    return {
        str(argument.value)
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "requirement"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }

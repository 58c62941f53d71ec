"""The budget of the code's size, and the script that checks it."""

from importlib import util
from pathlib import Path

import pytest

spec = util.spec_from_file_location("size_budget", Path(__file__).parents[1] / "scripts" / "size.py")
assert spec is not None and spec.loader is not None
size = util.module_from_spec(spec)
spec.loader.exec_module(size)

SOURCE = '''"""A module's docstring,
of two lines."""

# a comment
TEXT = """a text
that is code"""  # also


def branch(x, y):  # complexity 4
    """A docstring."""
    if x and y:
        return [

            each for each in x
        ]
'''
FIGURES = {
    "code": 7,
    "core_code": 7,
    "docstrings": 3,
    "files": 1,
    "complex_functions": 0,
    "long_functions": 0,
    "words_of_docs": 3,
    "dependencies": 2,
}


def tree(folder: Path, changed: dict[str, int] | None = None, rooms: str = '"audit/ava_audit" = 7') -> Path:
    """Make a checkout with one file, whose budget is just enough where it is not changed."""
    (folder / "audit/ava_audit").mkdir(parents=True)
    (folder / "audit/ava_audit/module.py").write_text(SOURCE)
    (folder / "docs/reference").mkdir(parents=True)
    (folder / "docs/page.md").write_text("three words here")
    (folder / "docs/reference/made.md").write_text("generated, so not counted")
    budget = "\n".join(f"{name} = {number}" for name, number in (FIGURES | (changed or {})).items())
    (folder / "pyproject.toml").write_text(
        f'[project]\ndependencies = ["mcp>=2", "psycopg[binary]>=3", "mcp"]\n'
        f"[tool.ava.size]\n{budget}\nextras = []\n[tool.ava.size.rooms]\n{rooms}\n"
    )
    return folder


def test_what_fits_exactly_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert size.main(tree(tmp_path)) == 0
    shown, wrong = capsys.readouterr()
    assert len(shown.splitlines()) == len(FIGURES) + 1 and wrong == ""


@pytest.mark.parametrize("name", [name for name, number in FIGURES.items() if number])
def test_each_figure_that_exceeds_its_budget_fails(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert size.main(tree(tmp_path, {name: FIGURES[name] - 1})) == 1
    assert f"{name}: {FIGURES[name]}, and the budget is {FIGURES[name] - 1}." in capsys.readouterr().err


def test_a_room_fails_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert size.main(tree(tmp_path, rooms='"audit/ava_audit" = 6')) == 1
    assert "audit/ava_audit: 7, and the budget is 6." in capsys.readouterr().err


def test_a_file_without_a_room_and_a_room_without_files_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert size.main(tree(tmp_path, rooms='"audit/ava_audit/store" = 7')) == 1
    wrong = capsys.readouterr().err
    assert "audit/ava_audit/module.py is in no room" in wrong and "audit/ava_audit/store in" in wrong


def test_complex_and_long_functions_are_counted(tmp_path: Path) -> None:
    checkout = tree(tmp_path)
    branches = "\n".join(f"    if x == {number} or x is None:\n        return {number}" for number in range(8))
    (checkout / "audit/ava_audit/module.py").write_text(f"def pick(x):\n{branches}\n" + "    x += 1\n" * 33)
    totals, _rooms, _homeless = size.measure(checkout, ["audit/ava_audit"])
    assert (totals["complex_functions"], totals["long_functions"]) == (1, 0)
    with (checkout / "audit/ava_audit/module.py").open("a") as module:
        module.write("    x += 1\n")
    totals, _rooms, _homeless = size.measure(checkout, ["audit/ava_audit"])
    assert (totals["complex_functions"], totals["long_functions"]) == (1, 1)


def test_extras_do_not_count_for_the_core(tmp_path: Path) -> None:
    checkout = tree(tmp_path)
    project = checkout / "pyproject.toml"
    project.write_text(project.read_text().replace("extras = []", 'extras = ["audit/ava_audit"]'))
    assert {name: figure for name, figure, _budget in size.check(checkout)}["core_code"] == 0

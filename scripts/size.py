"""Check the size of the code against the budget in pyproject.toml, `[tool.ava.size]`.

`python3 scripts/size.py` prints each figure beside its budget, and ends with 1 if one is exceeded or a room has none.
Comments, docstrings and blank lines are not code. Only the standard library is needed.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOTS = ("audit/ava_audit", "roles/ava_roles", "server/ava_extras", "server/ava_server")
COMPLEX = 15
LONG_LINES = 50
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.Assert,
    ast.match_case,
)


def lines_of(source: str) -> tuple[int, int]:
    """Return how many lines hold code, and how many docstrings; a line with both counts as a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings), len(docstrings)


def complexity(function: ast.AST) -> int:
    """Return one, plus one for each branch, loop, handler and boolean operator; nested functions count alone."""
    total, open_nodes = 1, list(ast.iter_child_nodes(function))
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, _BRANCHES):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
        open_nodes.extend(ast.iter_child_nodes(node))
    return total


def measure(tree: Path, rooms: list[str]) -> tuple[Counter[str], Counter[str], list[str]]:
    """Return the totals, the lines of code by room, and the files that are in no room.

    Args:
        tree: The checkout.
        rooms: Folders or files. A file belongs to the longest of them that it is in.
    """
    totals: Counter[str] = Counter()
    code_in: Counter[str] = Counter(dict.fromkeys(rooms, 0))
    homeless: list[str] = []
    for path in (path for root in ROOTS for path in sorted((tree / root).rglob("*.py"))):
        name, source = path.relative_to(tree).as_posix(), path.read_text(encoding="utf-8")
        code, docstrings = lines_of(source)
        totals.update(code=code, docstrings=docstrings, files=1)
        homes = [room for room in rooms if name == room or name.startswith(f"{room}/")]
        if homes:
            code_in[max(homes, key=len)] += code
        else:
            homeless.append(name)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                totals["complex_functions"] += complexity(node) > COMPLEX
                totals["long_functions"] += (node.end_lineno or node.lineno) - node.lineno >= LONG_LINES
    docs = [path for path in (tree / "docs").rglob("*.md") if "reference" not in path.parts]
    totals["words_of_docs"] = sum(len(path.read_text(encoding="utf-8").split()) for path in docs)
    return totals, code_in, homeless


def check(tree: Path) -> Iterator[tuple[str, int, int | None]]:
    """Yield each figure with its budget, which is None for a file in no room and for a room that does not exist.

    Raises:
        KeyError: pyproject.toml has no such budget.
    """
    project: dict[str, Any] = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    size = project["tool"]["ava"]["size"]
    rooms: dict[str, int] = size["rooms"]
    totals, code_in, homeless = measure(tree, list(rooms))
    totals["core_code"] = totals["code"] - sum(code_in[room] for room in size["extras"])
    totals["dependencies"] = len(
        {re.split(r"[\[<>=!~; ]", each, maxsplit=1)[0].lower() for each in project["project"]["dependencies"]}
    )
    for figure in ("code", "core_code", *sorted(set(totals) - {"code", "core_code"})):
        yield figure, totals[figure], size[figure]
    for room, lines in code_in.items():
        yield room, lines, rooms[room] if (tree / room).exists() else None
    for name in homeless:
        yield name, 0, None


def main(tree: Path) -> int:
    """Print the figures of a checkout, and return the exit code."""
    wrong: list[str] = []
    for name, figure, budget in check(tree):
        if budget is None:
            where = "[tool.ava.size.rooms] in pyproject.toml"
            exists = (tree / name).exists()
            wrong.append(f"{name} is in no room of {where}: add one" if exists else f"{name} in {where} does not exist")
            continue
        print(f"{name:34} {figure:7,} of {budget:7,}")
        if figure > budget:
            wrong.append(
                f"{name}: {figure:,}, and the budget is {budget:,}. Take something out; to raise the budget in"
                " pyproject.toml is a commit of its own that gives the reason."
            )
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))

"""docs/architecture.md, docs/never.md, the rooms' docstrings and the trees of errors agree with the code.

Layers are the subject of lint-imports.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.repository import REPOSITORY

PACKAGES = {"ava_audit": "audit/ava_audit", "ava_roles": "roles/ava_roles", "ava_server": "server/ava_server"}
ERRORS = {
    "ava_audit": "audit/ava_audit/errors.py",
    "ava_roles": "roles/ava_roles/errors.py",
    "ava_server": "server/ava_server/core/errors.py",
}
"""Where each package draws the tree of its errors."""
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
NEVER = (REPOSITORY / "docs" / "never.md").read_text("utf-8")
ROOMS = sorted(path for folder in PACKAGES.values() for path in (REPOSITORY / folder).rglob("__init__.py"))
_FILE = re.compile(r"`([\w./-]+(?:\.(?:py|md|toml|sql)|/))`")
_NAME = re.compile(r"`(_?[A-Z][A-Za-z_]+)`")


def sources(package: str) -> Iterator[Path]:
    yield from sorted((REPOSITORY / PACKAGES[package]).rglob("*.py"))


def test_the_count_of_concepts_counts_each_kind() -> None:
    script = (sys.executable, REPOSITORY / "scripts" / "concepts.py")
    counted = subprocess.run(script, capture_output=True, text=True, check=True, timeout=120).stdout
    figures = {name: int(figure.split()[0]) for name, figure in (line.split(": ") for line in counted.splitlines())}
    assert len(figures) == 13 and figures["causes"] > 5 and figures["users and scopes"] > 5, figures


# -- imports ----------------------------------------------------------------------------------------------------------


def test_the_launcher_imports_only_the_standard_library_and_itself() -> None:
    """It starts with `-I -S`, where nothing else can be found; lint-imports sees our own packages only."""
    for path in sorted((REPOSITORY / PACKAGES["ava_roles"] / "sandbox" / "launcher").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                modules = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            for module in modules:
                own = module.startswith("ava_roles.sandbox.launcher")
                assert own or module.partition(".")[0] in sys.stdlib_module_names, f"{path.name} imports {module}"


def test_no_test_file_imports_another_one() -> None:
    """What several need stands in tests/support."""
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                modules = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [f"{node.module or ''}.{each.name}" for each in node.names]
            else:
                continue
            for module in modules:
                files = [part for part in module.split(".")[:-1] if part.startswith("test_")]
                assert not files and not module.startswith("test_"), f"{path.name} imports {module}"


# -- the page ---------------------------------------------------------------------------------------------------------


def test_every_file_named_on_the_pages_exists() -> None:
    named = {name for page in (PAGE, NEVER) for name in _FILE.findall(page)}
    assert missing_files(PAGE, REPOSITORY) == []
    assert missing_files(NEVER, REPOSITORY) == []
    assert len(named) > 120


def test_each_line_of_what_must_never_happen_names_a_test() -> None:
    lines = [line for line in NEVER.splitlines() if line.startswith("- ")]
    assert len(lines) > 50
    assert [line for line in lines if not re.search(r"`tests/[\w/]+(\.py|/)`", line)] == []


def test_every_function_on_the_way_of_one_call_is_in_its_file() -> None:
    rows = re.findall(r"^\|.*?`([\w/]+\.py)` \| `([\w.]+)` \|", PAGE, re.MULTILINE)
    assert len(rows) > 20
    assert [row for row in rows if row[1] not in functions_in(row[0])] == []


def functions_in(name: str) -> set[str]:
    """The functions and methods of a file, which is named from the repository or from the server's package."""
    file = next(path for path in (REPOSITORY / name, REPOSITORY / PACKAGES["ava_server"] / name) if path.exists())
    functions: set[str] = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            functions |= {f"{node.name}.{method.name}" for method in methods}
    return functions


def test_every_code_name_on_the_page_exists() -> None:
    assert missing_names(PAGE) == []
    assert len(set(_NAME.findall(PAGE))) > 20


def test_the_page_names_every_room() -> None:
    rooms = {path.parent for path in ROOMS} - {REPOSITORY / folder for folder in PACKAGES.values()}
    small = {"card", "checks", "doctor", "launcher", "status", "wires"}  # their room's docstring names them
    assert [room.name for room in sorted(rooms) if room.name not in small and f"/{room.name}/`" not in PAGE] == []


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: str(path.parent.relative_to(REPOSITORY)))
def test_the_docstring_of_a_room_names_only_what_exists(room: Path) -> None:
    text = ast.get_docstring(ast.parse(room.read_text("utf-8"))) or ""
    assert text, "a room says what it does"
    assert missing_files(text, room.parent) == []
    assert missing_names(text) == []


def missing_files(text: str, place: Path) -> list[str]:
    """The files that a text names and that are neither there nor below one of the packages."""
    places = [place, REPOSITORY, *(REPOSITORY / folder for folder in PACKAGES.values()), REPOSITORY / "tests"]
    everywhere = {path.name for folder in PACKAGES.values() for path in (REPOSITORY / folder).rglob("*")}
    named = set(_FILE.findall(text)) - {"config.toml"}
    return [
        name
        for name in sorted(named)
        if not any((each / name).exists() for each in places) and ("/" in name or name not in everywhere)
    ]


def missing_names(text: str) -> list[str]:
    """The names of classes and constants in a text that no package defines."""
    code = "\n".join(path.read_text("utf-8") for package in PACKAGES for path in sources(package))
    named = sorted(set(_NAME.findall(text)))
    return [name for name in named if not re.search(rf"^(?:class )?{name}\b(?:\(| =|:|\[)", code, re.MULTILINE)]


# -- errors -----------------------------------------------------------------------------------------------------------


def drawn(package: str) -> dict[str, str]:
    """The tree of errors as the docstring of the package's `errors.py` draws it: each error, and the one above it."""
    text = ast.get_docstring(ast.parse((REPOSITORY / ERRORS[package]).read_text("utf-8"))) or ""
    above: dict[str, str] = {}
    line_of: list[str] = []
    for indent, name in re.findall(r"^((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)", text, re.MULTILINE):
        depth = len(indent) // 4
        line_of[depth:] = [name]
        if depth:
            above[name] = line_of[depth - 1]
    return above


def defined(package: str, root: str) -> dict[str, str]:
    """The errors that derive from one, anywhere in the package: each error, and the one above it."""
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for path in sources(package)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    above: dict[str, str] = {}
    below = {root}
    while below:
        found = {name: base for name, names in bases.items() for base in names if base in below and name not in above}
        above |= found
        below = set(found)
    return above


@pytest.mark.parametrize(
    ("package", "root"), [("ava_audit", "AuditError"), ("ava_roles", "RolesError"), ("ava_server", "AvaError")]
)
def test_each_package_documents_its_current_error_tree(package: str, root: str) -> None:
    assert drawn(package) == defined(package, root)
    assert len(drawn(package)) >= 5

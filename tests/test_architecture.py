"""The runtime is as it is drawn: rooms, layers and trees in docstrings and pages are compared with the code."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.repository import REPOSITORY

PACKAGES = {"ava_audit": "audit/ava_audit", "ava_roles": "roles/ava_roles", "ava_server": "server/ava_server"}
_IN = re.compile(r"^### (.+)\n\nIn: (.+)$", re.MULTILINE)
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")


def sources(package: str) -> Iterator[Path]:
    yield from sorted((REPOSITORY / PACKAGES[package]).rglob("*.py"))


# -- rooms and floors -------------------------------------------------------------------------------------------------


def rooms() -> dict[str, set[Path]]:
    """The files of each room, as its line `In: ` names them: a folder but for those of other rooms, or files of one."""
    lines = {name: re.findall(r"`([^`]+)`|(;)", text) for name, text in _IN.findall(PAGE)}
    folders = {REPOSITORY / part for line in lines.values() for part, _end in line if part.endswith("/")}
    found: dict[str, set[Path]] = {}
    for name, line in lines.items():
        found[name] = files = set[Path]()
        for part in " ".join(part or end for part, end in line).split(" ; "):
            folder, *named = part.split()
            here = REPOSITORY / folder
            others = folders - {here, *here.parents}
            below = (path for path in here.rglob("*.py") if others.isdisjoint(path.parents))
            files |= {path for each in named for path in here.glob(each)} if named else set(below)
    return found


def floors() -> dict[str, tuple[int, str]]:
    """The floor of each room in the drawing, and the package that stands beside it."""
    found: dict[str, tuple[int, str]] = {}
    for number, cells in re.findall(r"^ +(\d)  │(.+)│.*$", PAGE, re.MULTILINE):
        columns = cells.split("│")
        packages = ["ava_server"] if len(columns) == 1 else ["ava_roles", "ava_audit"]
        for column, package in zip(columns, packages, strict=True):
            for room in re.findall(r"[^·]+", column):
                if room.strip():
                    found[room.strip()] = int(number), package
    return found


def imports(path: Path, modules: dict[str, Path]) -> Iterator[Path]:
    """What a file imports of ours, also inside of functions; what only type checkers read is no import."""
    left: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            left += node.orelse
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = [f"{node.module}.{each.name}" for each in node.names]
            names = [name for name in below if name in modules] or [node.module]
        yield from (modules[name] for name in names if name in modules and modules[name] != path)
        left += ast.iter_child_nodes(node)


def all_modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for package, folder in PACKAGES.items():
        for path in sources(package):
            parts = path.relative_to(REPOSITORY / folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


def test_every_file_stands_in_exactly_one_room_and_every_room_on_one_floor() -> None:
    counted = Counter(path for files in rooms().values() for path in files)
    everything = set(all_modules().values())
    nowhere = sorted(str(path.relative_to(REPOSITORY)) for path in everything - set(counted))
    assert nowhere == [], "name them in a line `In:` of docs/architecture.md, on a floor above all that they import"
    assert set(counted) == everything
    assert [path for path, times in counted.items() if times > 1] == []
    assert rooms().keys() == floors().keys()
    assert len(rooms()) == 20


def test_no_file_imports_from_a_floor_above_its_own() -> None:
    modules, level = all_modules(), floors()
    room_of = {path: name for name, files in rooms().items() for path in files}
    wrong: list[str] = []
    for path in modules.values():
        own, package = level[room_of[path]]
        for other in imports(path, modules):
            floor, its_package = level[room_of[other]]
            apart = package != its_package and "ava_server" not in (package, its_package)
            if floor > own or apart:
                wrong.append(f"{path.relative_to(REPOSITORY)} imports {other.relative_to(REPOSITORY)}")
    assert wrong == [], "docs/architecture.md draws the floors"


def test_the_drawing_agrees_with_the_import_contract() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    layered, guarded = project["tool"]["importlinter"]["contracts"]
    level = floors()
    lowest = min(floor for floor, package in level.values() if package == "ava_server")
    assert layered["layers"] == ["ava_server", "ava_roles | ava_audit"]
    assert all(floor < lowest for floor, package in level.values() if package != "ava_server")
    for name, files in rooms().items():
        assert {path.relative_to(REPOSITORY).parts[1] for path in files} == {level[name][1]}, name
    assert guarded["protected_modules"] == ["ava_server.cli"]
    top = max(floor for floor, _package in level.values())
    assert {name for name, (floor, _package) in level.items() if floor == top} == {"Command line", "Doctor"}


def test_the_launcher_imports_the_standard_library_and_itself_alone() -> None:
    modules = all_modules()
    launcher = rooms()["Launcher"]
    for path in launcher:
        assert set(imports(path, modules)) <= launcher, path.name
        tree = ast.walk(ast.parse(path.read_text("utf-8")))
        named = {node.module or "" for node in tree if isinstance(node, ast.ImportFrom)}
        foreign = {name.partition(".")[0] for name in named} - set(sys.stdlib_module_names)
        assert foreign <= {"ava_roles", "launcher", ""}, f"{path.name} imports {foreign}"


def test_every_file_that_the_page_names_is_there() -> None:
    places = [REPOSITORY, *(REPOSITORY / folder for folder in PACKAGES.values())]
    places += [REPOSITORY / PACKAGES["ava_roles"] / "confine", REPOSITORY / "tests"]
    everywhere = {path.name for folder in PACKAGES.values() for path in (REPOSITORY / folder).rglob("*")}
    named = set(re.findall(r"`([\w./-]+(?:\.(?:py|md|toml|sql)|/))`", PAGE)) - {"config.toml"}
    missing = [
        name
        for name in named
        if not any((place / name).exists() for place in places) and ("/" in name or name not in everywhere)
    ]
    assert missing == []
    assert len(named) > 150
    tests = {name for name in named if name.startswith("tests/") and name.endswith(".py")}
    assert len(tests) > 40


def test_every_name_that_the_page_takes_from_the_code_is_there() -> None:
    code = "\n".join(path.read_text("utf-8") for package in PACKAGES for path in sources(package))
    named = set(re.findall(r"`(_?[A-Z][A-Za-z_]+)`", PAGE))
    lost = [name for name in named if not re.search(rf"^(?:class )?{name}\b(?:\(| =|:|\[)", code, re.MULTILINE)]
    assert lost == []
    assert len(named) > 40


# -- errors -----------------------------------------------------------------------------------------------------------


def drawn(package: str) -> dict[str, str]:
    """The tree of errors as the docstring of the package's `errors.py` draws it: each error, and the one above it."""
    text = ast.get_docstring(ast.parse((REPOSITORY / PACKAGES[package] / "errors.py").read_text("utf-8"))) or ""
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
def test_each_package_draws_the_tree_of_its_errors_as_it_is(package: str, root: str) -> None:
    assert drawn(package) == defined(package, root)
    assert len(drawn(package)) >= 5

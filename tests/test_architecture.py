"""The house is as it is drawn: rooms, layers and trees in docstrings and pages are compared with the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.repository import REPOSITORY

PACKAGES = {"ava_audit": "audit/ava_audit", "ava_roles": "roles/ava_roles", "ava_server": "server/ava_server"}


def sources(package: str) -> Iterator[Path]:
    yield from sorted((REPOSITORY / PACKAGES[package]).rglob("*.py"))


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

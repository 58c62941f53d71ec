"""Jupyter notebooks: cells with their numbers, outputs as text, pictures named. Hostile ones do no harm."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.texts import parser_process
from ava_roles.texts.extracted import format_of
from ava_roles.texts.formats import read_notebook
from ava_roles.tool import ToolContext
from ava_roles.tools.files import SearchAndRead, SearchAndReadArgs


def notebook(*cells: object, **fields: object) -> bytes:
    return json.dumps({"cells": cells, "nbformat": 4, **fields}).encode()


def code(source: object, *outputs: object, **fields: object) -> dict[str, Any]:
    return {"cell_type": "code", "source": source, "outputs": outputs, **fields}


def shown(**data: object) -> dict[str, Any]:
    kinds = {kind.replace("_", "/", 1): value for kind, value in data.items()}
    return {"output_type": "display_data", "data": kinds}


def test_reads_cells_with_their_numbers_and_outputs() -> None:
    data = notebook(
        {"cell_type": "markdown", "source": ["# Rent\n", "in euro"]},
        code(["a = 1\n", "a"], {"output_type": "execute_result", "data": {"text/plain": ["1", "150"]}}),
        code("print(a)", {"output_type": "stream", "name": "stdout", "text": ["one\n", "two\n"]}),
        {"cell_type": "raw", "source": "raw words"},
        metadata={"language_info": {"name": "python"}},
    )
    found = read_notebook(data)
    assert [tuple(part) for part in found.parts] == [
        ("cell 1", "# Rent\nin euro"),
        ("cell 2", "```python\na = 1\na\n```\n\nOutput:\n1150"),
        ("cell 3", "```python\nprint(a)\n```\n\nOutput:\none\ntwo"),
        ("cell 4", "raw words"),
    ]
    assert (found.total, found.missing) == (4, ())


def test_names_pictures_and_what_only_a_program_shows() -> None:
    found = read_notebook(
        notebook(
            code("plot()", shown(text_plain="<Figure>", image_png="iVBOR")),
            {"cell_type": "markdown", "source": "![x](attachment:x.png)", "attachments": {"x.png": {"image/png": "i"}}},
            code("w", shown(application_vnd_widget="{}")),
        )
    )
    assert "Output:\n<Figure>" in found.text()
    assert found.missing == (
        "a picture among the outputs of cell 1",
        "a picture in cell 2 (x.png)",
        "an output of cell 3 (application/vnd_widget)",
    )


def test_reads_pages_among_outputs_and_errors_without_colours() -> None:
    error = {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[0;31mValueError\x1b[0m: no"]}
    found = read_notebook(
        notebook(
            code(
                "t", shown(text_html="<table><tr><td>1150</td></tr></table>", text_plain="<IPython.core.HTML object>")
            ),
            code("e", error),
        )
    )
    assert "Output:\n1150" in found.text()
    assert "Output:\nValueError: no" in found.text()


def test_reads_a_notebook_of_before_version_4() -> None:
    cells = [
        {"cell_type": "heading", "source": ["Rent"]},
        {"cell_type": "code", "input": ["1 + 1"], "outputs": [{"output_type": "pyout", "text": ["2"], "png": "iV"}]},
    ]
    found = read_notebook(json.dumps({"worksheets": [{"cells": cells}], "nbformat": 3}).encode())
    assert found.text() == "[cell 1]\n# Rent\n\n[cell 2]\n```\n1 + 1\n```\n\nOutput:\n2"
    assert found.missing == ("a picture among the outputs of cell 2",)


@pytest.mark.parametrize(
    ("encoding", "note"),
    [
        ("utf-8", ""),
        ("utf-8-sig", ""),
        ("utf-16", "read as UTF-16"),
        ("utf-16-le", "read as UTF-16"),
        ("utf-16-be", "read as UTF-16"),
        ("utf-32", "read as UTF-32"),
        ("utf-32-le", "read as UTF-32"),
        ("utf-32-be", "read as UTF-32"),
        ("cp1252", "read as Windows-1252"),
    ],
)
def test_reads_a_notebook_in_any_encoding(encoding: str, note: str) -> None:
    source = "Die Miete für die Wohnung in Zürich ist am Ersten fällig."
    written = json.dumps({"cells": [{"cell_type": "markdown", "source": source}]}, ensure_ascii=False)
    found = read_notebook(written.encode(encoding))
    assert found.text() == f"[cell 1]\n{source}"
    assert found.note.startswith(note) and bool(found.note) == bool(note)


async def test_a_notebook_in_utf_16_is_searched(tmp_path: Path) -> None:
    (tmp_path / "rent.ipynb").write_bytes(notebook(code("x = 'zeppelin'")).decode().encode("utf-16"))
    root = Root.open(tmp_path)
    found = await SearchAndRead()(SearchAndReadArgs(query="zeppelin"), ToolContext(files=root))
    root.close()
    assert "x = 'zeppelin'" in found.text and "rent.ipynb: read as UTF-16" in found.text


def test_reads_a_notebook_in_a_child_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_process, "has_extra", lambda _name: False)
    kind = format_of("a.ipynb")
    assert kind is not None
    assert "rent" in parser_process.read_document(kind, notebook(code("rent = 1"))).text()


KEPT = "KEPTWORD"
ATTACKS: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "cannot be read"),
    "no JSON": (lambda: b"\xff\x00KEPTWORD", "cannot be read"),
    "cut short": (lambda: notebook(code(KEPT))[:-5], "cannot be read"),
    "a list": (lambda: b"[]", "no cells"),
    "no cells": (lambda: b"{}", "no cells"),
    "cells that are none": (lambda: notebook(1, None, [], "x", code(KEPT)), KEPT),
    "fields of other kinds": (
        lambda: notebook(code({"a": 1}, 5, None, {"data": []}, {"text": 7, "output_type": []}), code(KEPT)),
        KEPT,
    ),
    "outputs that are no list": (lambda: notebook({"cell_type": "code", "source": KEPT, "outputs": 5}), KEPT),
    "attachments that are no table": (lambda: notebook({"source": KEPT, "attachments": ["x"] * 9}), KEPT),
    "100,000 levels": (lambda: b'{"cells": ' + b"[" * 100_000, "cannot be read"),
    "100,000 levels of tables": (lambda: b'{"cells": ' + b'{"a":' * 100_000, "cannot be read"),
    "a number of a million digits": (
        lambda: b'{"nbformat": ' + b"9" * 1_000_000 + b"," + notebook(code(KEPT))[1:],
        KEPT,
    ),
    "numbers that are none": (lambda: b'{"a": NaN, "b": -Infinity,' + notebook(code(KEPT))[1:], KEPT),
    "a million cells": (lambda: b'{"cells": [' + b"{}," * 1_000_000 + b"{}]}", "990,001 cells after cell 10,000"),
    "a million outputs": (lambda: notebook(code(KEPT, *[{"data": {"image/png": ""}}] * 300_000)), "more outputs"),
    "a million lines": (lambda: notebook(code(["a\n"] * 1_000_000 + [KEPT])), KEPT),
    "a cell of 18 MB": (lambda: notebook(code("x" * 18_000_000)), "the rest of cell 1"),
    "2,000 cells of 9 kB": (lambda: notebook(*[code("x" * 9_000)] * 2_000), "cells after cell"),
    "a page of a million elements": (lambda: notebook(code(KEPT, shown(text_html="<b>" * 1_000_000))), KEPT),
    "200 pages": (lambda: notebook(code(KEPT, *[shown(text_html="<p>" * 1_000)] * 200)), KEPT),
    "a page with an entity": (
        lambda: notebook(
            code(KEPT, shown(text_html='<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><p>&f;</p>'))
        ),
        KEPT,
    ),
    "a script among the outputs": (lambda: notebook(code(KEPT, shown(application_javascript="alert()"))), "javascript"),
    "colours without an end": (
        lambda: notebook(code(KEPT, {"output_type": "stream", "text": "\x1b[" * 1_000_000 + "0;" * 1_000_000})),
        KEPT,
    ),
    "half characters": (lambda: b'{"cells": [{"cell_type": "raw", "source": "KEPTWORD \\ud800"}]}', KEPT),
    "fields twice": (lambda: b'{"cells": [],' + notebook(code(KEPT))[1:], KEPT),
    "a language that is a page": (
        lambda: notebook(code(KEPT), metadata={"language_info": {"name": "<script>\n" * 100}}),
        "```\n",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_notebook_is_refused_or_read_in_bounds(name: str) -> None:
    make, says = ATTACKS[name]
    data = make()
    began = time.process_time()
    try:
        found = read_notebook(data)
        said = "\n".join((found.text(), *found.missing))
        assert len(said) < 6_000_000
    except ToolFailed as refused:
        said = str(refused)
        assert len(said) < 300
    assert time.process_time() - began < 25
    assert "root:" not in said and "<script>" not in said
    assert re.search(says, said)


@pytest.mark.parametrize("beside", [{}, {"text/plain": "<IPython.core.display.JSON object>"}])
def test_an_output_in_json_is_text(beside: dict[str, str]) -> None:
    value = {"prices": [{"flat": "Bern", "rent": 1150.5}, 7], "paid": True, "note": None, "empty": []}
    output = {"output_type": "execute_result", "data": {"application/json": value, **beside}}
    cells = [{"cell_type": "code", "source": "x", "outputs": [output]}]
    found = read_notebook(json.dumps({"cells": cells}).encode())
    shown = "prices:\n  -\n    flat: Bern\n    rent: 1150.5\n  - 7\npaid: true\nnote: null\nempty: (empty)"
    assert found.text().endswith(f"Output:\n{shown}")
    assert found.missing == ()


def test_an_output_in_json_is_read_in_bounds() -> None:
    deep: list[object] = []
    for _level in range(400):
        deep = [deep]
    for value, shown in ((deep, "nested too deep"), (list(range(9_000)), "- 1999")):
        output = {"output_type": "display_data", "data": {"application/json": value}}
        found = read_notebook(json.dumps({"cells": [{"cell_type": "code", "outputs": [output]}]}).encode())
        assert shown in found.text() and "- 2000" not in found.text()
    assert found.missing == ("7,000 more lines of an output of cell 1 (application/json)",)


PLACEHOLDER = "<VegaLite 4 object>"


@pytest.mark.parametrize("kind", ["application/json", "application/geo+json", "application/ld+json"])
def test_an_output_in_each_kind_of_json_is_text(kind: str) -> None:
    output = {"output_type": "display_data", "data": {kind: {"city": "Bern"}, "text/plain": "<GeoJSON object>"}}
    found = read_notebook(notebook(code("x", output)))
    assert found.text().endswith("Output:\ncity: Bern") and found.missing == ()


def test_a_chart_with_a_placeholder_for_its_text_is_named() -> None:
    chart = {"output_type": "display_data", "data": {"application/vnd.vegalite.v4+json": {}, "text/plain": PLACEHOLDER}}
    found = read_notebook(notebook(code("x", chart)))
    assert found.missing == ("an output of cell 1 (application/vnd.vegalite.v4+json)",)


@pytest.mark.parametrize(("key", "shown"), [("latex", "$x^2$"), ("json", '{"a": 1}')])
def test_an_output_of_before_version_4_is_text_in_each_kind(key: str, shown: str) -> None:
    cell = {"cell_type": "code", "input": "x", "outputs": [{"output_type": "pyout", key: shown}]}
    found = read_notebook(json.dumps({"worksheets": [{"cells": [cell]}]}).encode())
    assert found.text().endswith(f"Output:\n{shown}") and found.missing == ()

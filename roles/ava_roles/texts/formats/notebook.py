"""Jupyter notebooks: their cells with their numbers, and the text of their outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

from ava_roles.errors import ToolFailed
from ava_roles.texts.encodings import decode
from ava_roles.texts.extracted import ALL, Extracted, Part, Wanted
from ava_roles.texts.page_text import read_page_text
from ava_roles.texts.phrases import count_phrase
from ava_roles.texts.web_page import parsing

_TEXT_CHARS = 5_000_000
_HTML_CHARS = 500_000
_MAX_CELLS = 10_000
_MOST_NAMED = 50
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_JSON_LINES = 2_000
_JSON_DEPTH = 50
_AS_TEXT = ("text/plain", "text/markdown", "text/latex")
# What notebooks before version 4 call the kinds of an output.
_OLD_KINDS = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "svg": "image/svg+xml",
    "html": "text/html",
    "latex": "text/latex",
    "json": "application/json",
    "javascript": "application/javascript",
}


@parsing("notebook")
def read_notebook(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return a notebook as text, a part for each cell. Raises ToolFailed."""
    decoded = decode(data) or decode(data, json.detect_encoding(data))
    if decoded is None:
        raise ToolFailed("this notebook cannot be read: it is no text; ask for another copy")
    notebook: Any = json.loads(decoded.text, parse_int=str, parse_float=str)
    cells = _cells(notebook)
    if cells is None:
        raise ToolFailed("this file has no cells of a notebook; it is damaged, or has the name of another kind")
    language = _language(notebook)
    named: list[str] = []
    parts: list[Part] = []
    room = _TEXT_CHARS
    for number, cell in enumerate(cells, 1):
        if room <= 0 or number > _MAX_CELLS:
            named.insert(0, f"{count_phrase(len(cells) - number + 1, 'cell')} after cell {number - 1:,}")
            break
        text = _cell_text(cell, number, language, named)
        if len(text) > room:
            named.insert(0, f"the rest of cell {number:,}")
        parts.append(Part(f"cell {number}", text[:room]))
        room -= len(text)
    if len(named) > _MOST_NAMED:
        named[_MOST_NAMED:] = [count_phrase(len(named) - _MOST_NAMED, "more output")]
    return Extracted(tuple(parts), None, len(cells), tuple(named), note=decoded.note)


def _cells(notebook: Any) -> list[Any] | None:
    """Return the cells; those of a notebook before version 4 are in worksheets."""
    fields = _dict(notebook)
    if isinstance(fields.get("cells"), list):
        return _list(fields["cells"])
    if not isinstance(fields.get("worksheets"), list):
        return None
    cells: list[Any] = []
    for sheet in _list(fields["worksheets"]):
        cells += _list(_dict(sheet).get("cells"))
    return cells


def _language(notebook: Any) -> str:
    metadata = _dict(notebook.get("metadata"))
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        language = _dict(metadata.get(key)).get(name)
        if isinstance(language, str) and re.fullmatch(r"[\w+#.-]{1,30}", language):
            return language
    return ""


def _dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return list(cast("Iterable[Any]", value)) if isinstance(value, list) else []


def _text(value: Any) -> str:
    """Return a text, which a notebook may keep as a list of lines."""
    if isinstance(value, list):
        return "".join(each for each in _list(value) if isinstance(each, str))
    return value if isinstance(value, str) else ""


def _cell_text(cell: Any, number: int, language: str, named: list[str]) -> str:
    fields = _dict(cell)
    source = _text(fields.get("source", fields.get("input"))).strip("\n")
    if fields.get("cell_type") == "code":
        source = f"```{language}\n{source}\n```"
    elif fields.get("cell_type") == "heading":  # before version 4
        source = f"# {source}"
    for name in _dict(fields.get("attachments")):
        named.append(f"a picture in cell {number:,} ({name[:100]})")
    texts = [source]
    for output in _list(fields.get("outputs")):
        text = _output_text(_dict(output), number, named)
        if text.strip():
            texts.append(f"Output:\n{text.strip()}")
    return "\n\n".join(texts)


def _output_text(output: dict[str, Any], number: int, missing: list[str]) -> str:
    """Return the text of an output of cell `number`; phrases on what it does not show are added to `missing`."""
    if output.get("output_type") in ("error", "pyerr"):
        return _error_text(output)
    data = _dict(output.get("data"))
    if not data:
        data = {_OLD_KINDS.get(key, ""): value for key, value in output.items()}
    text = _COLOURS.sub("", _text(output.get("text")))
    for media_type in _AS_TEXT:
        if text.strip():
            break
        if media_type in data:
            text = _COLOURS.sub("", _text(data[media_type]))
    has_text = text.strip() != "" and not text.startswith("<")  # as a placeholder does: <IPython.core.display.HTML …>
    html = _text(data.get("text/html"))
    _note_kinds(data, number, missing, has_text=has_text or html != "")
    if has_text:
        return text
    json_kind = next(filter(_is_json, data), "")
    if not html and json_kind:
        lines = list(_json_lines(data[json_kind]))
        if len(lines) > _JSON_LINES:
            missing.append(
                f"{len(lines) - _JSON_LINES:,} more lines of an output of cell {number:,} ({json_kind[:100]})"
            )
        return "\n".join(lines[:_JSON_LINES])
    if len(html) > _HTML_CHARS:
        missing.append(f"the rest of a page among the outputs of cell {number:,}")
    return read_page_text(html[:_HTML_CHARS]).text or text


def _is_json(kind: str) -> bool:
    """Tell whether an output is data in JSON; JSON of a vendor describes a chart or a control, as a picture does."""
    if kind.startswith("application/vnd."):
        return False
    return kind == "application/json" or kind.endswith("+json")


def _json_lines(value: Any, indent: str = "", depth: int = 0) -> Iterator[str]:
    """Yield a value of JSON as lines: `key: value` of an object, `- value` of a list."""
    if depth > _JSON_DEPTH:
        yield f"{indent}(nested too deep to show)"
        return
    pairs = [(f"{key}:", each) for key, each in _dict(value).items()] or [("-", each) for each in _list(value)]
    for name, each in pairs:
        if isinstance(each, dict | list) and each:
            yield f"{indent}{name}"
            yield from _json_lines(each, f"{indent}  ", depth + 1)
        else:
            yield f"{indent}{name} {_json_value(each)}"
    if not pairs and not isinstance(value, dict | list):
        yield f"{indent}{_json_value(value)}"


def _json_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict | list):
        return "(empty)"
    return " ".join(str(value).split())


def _note_kinds(data: dict[str, Any], number: int, named: list[str], *, has_text: bool) -> None:
    """Name the forms of an output that are no text: pictures, and others unless it has a text too."""
    for kind in data:
        if kind.startswith("image/"):
            named.append(f"a picture among the outputs of cell {number:,}")
        elif kind.startswith("application/") and not _is_json(kind) and not has_text:
            named.append(f"an output of cell {number:,} ({kind[:100]})")


def _error_text(output: dict[str, Any]) -> str:
    lines = [line for line in _list(output.get("traceback")) if isinstance(line, str)]
    trace = _COLOURS.sub("", "\n".join(lines))
    return trace or f"{_text(output.get('ename'))}: {_text(output.get('evalue'))}"

"""An office file: XML parts in a zip archive, and the relations between them that Word and PowerPoint write.

Nothing outside the archive is ever opened: a relation to another place is only its address.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
from typing import Any, NamedTuple
from urllib.parse import unquote

from ava_roles.errors import ToolFailed
from ava_roles.texts.formats.office import open_office_file, own_document_type, parse_xml
from ava_roles.texts.phrases import count_phrase

_PREFIXES = {
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main": "w",
    "http://schemas.openxmlformats.org/presentationml/2006/main": "p",
    "http://schemas.openxmlformats.org/drawingml/2006/main": "a",
    "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing": "wp",
    "http://schemas.openxmlformats.org/drawingml/2006/picture": "pic",
    "http://schemas.openxmlformats.org/drawingml/2006/chart": "c",
    "http://schemas.microsoft.com/office/drawing/2014/chartex": "c",
    "http://schemas.openxmlformats.org/drawingml/2006/diagram": "dgm",
    "http://schemas.openxmlformats.org/officeDocument/2006/math": "m",
    "http://schemas.openxmlformats.org/markup-compatibility/2006": "mc",
    "http://schemas.openxmlformats.org/package/2006/relationships": "rel",
    "http://purl.org/dc/elements/1.1/": "dc",
    "http://www.w3.org/1998/Math/MathML": "math",
    "http://openoffice.org/2009/office": "officeooo",
    "urn:oasis:names:tc:opendocument:xmlns:drawing:1.0": "draw",
    "urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0": "svg",
    "urn:oasis:names:tc:opendocument:xmlns:animation:1.0": "anim",
    **{
        f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0": name
        for name in ["office", "text", "table", "style", "presentation", "meta", "manifest", "form", "chart", "dr3d"]
    },
    "urn:schemas-microsoft-com:vml": "v",
    "urn:schemas-microsoft-com:office:office": "o",
}
"""Namespaces of office files."""

_NAME_CHARS = 200
_MOST_NAMED = 20
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_names: dict[str, str] = {}


def name_of(element: Any) -> str:
    """Return the name of an element, e.g. `w:p`; `` for a comment or the like."""
    tag = element.tag
    if not isinstance(tag, str):
        return ""
    known = _names.get(tag)
    if known is None:
        namespace, _, local = tag.removeprefix("{").rpartition("}")
        known = f"{_PREFIXES.get(namespace, '?')}:{local}"
        if len(_names) < 10_000:
            _names[tag] = known
    return known


def child(element: Any, *path: str) -> Any:
    """Return the first child of this name, and so on down the path; None if there is none."""
    for name in path:
        if element is None:
            return None
        element = _first_child(element, name)
    return element


def _first_child(element: Any, name: str) -> Any:
    for each in element:
        if name_of(each) == name:
            return each
    return None


def children(element: Any, *names: str) -> list[Any]:
    """Return the children of these names, in their order; None has no children."""
    if element is None:
        return []
    return [each for each in element if name_of(each) in names]


def descendants(element: Any, *names: str) -> list[Any]:
    """Return the element and its descendants, as far as they have one of these names; None has none."""
    if element is None:
        return []
    return [each for each in element.iter() if name_of(each) in names]


def value_of(element: Any, name: str = "val") -> str | None:
    """Return an attribute by its name without a namespace."""
    if element is None:
        return None
    for key, value in element.attrib.items():
        if key.rpartition("}")[2] == name:
            return str(value)
    return None


def attribute_of(element: Any, name: str = "val") -> str:
    """Return an attribute as `value_of` does; empty where there is none."""
    return value_of(element, name) or ""


def words_of(element: Any) -> str:
    """Return the words at the beginning of an element, with single blanks; None has none."""
    if element is None:
        return ""
    return " ".join((element.text or "").split())


def number_of(element: Any, name: str = "val", default: int = 0) -> int:
    value = attribute_of(element, name)
    return int(value) if _NUMBER.fullmatch(value) else default


def drawn_text(element: Any) -> str:
    """Return the text inside an element of a drawing, on one line."""
    texts = [each.text or "" for each in descendants(element, "a:t")]
    return " ".join("".join(texts).split())


class Relation(NamedTuple):
    """Where a part refers to: another part of the file, or an address outside."""

    kind: str
    target: str
    outside: bool


class OfficePackage:
    """The parts of an office file. `broken`: parts that are missing, damaged, or no XML. `is_cut`: it lacks its end."""

    def __init__(self, data: bytes, kind: str, suffix: str, *, has_doctypes: bool = False) -> None:
        """`has_doctypes`: parts may name a document type that is elsewhere; it is not loaded, and has no entities.

        Raises ToolFailed if it is encrypted, of an older format, or would take too much to read.
        """
        file = open_office_file(data, kind, suffix, has_doctypes=has_doctypes)
        self.archive = file.archive
        self._has_doctypes = has_doctypes
        self.names = tuple(self.archive.namelist())
        self._relations: dict[str, dict[str, Relation]] = {}
        self._drawn: dict[str, list[str]] = {}
        self.broken: list[str] = list(file.damaged)
        self.is_cut = file.is_cut

    def damage(self) -> list[str]:
        """Return phrases on what is not read of the file because of damage."""
        phrases = ["the end of this file, which is cut off"] if self.is_cut else []
        parts = list(dict.fromkeys(self.broken))
        phrases += [f"a damaged or absent part ({part[:_NAME_CHARS]})" for part in parts[:_MOST_NAMED]]
        if len(parts) > _MOST_NAMED:
            phrases.append(count_phrase(len(parts) - _MOST_NAMED, "more damaged or absent part"))
        return phrases

    def main(self, *names: str) -> tuple[str, Any]:
        """Return the main part, the name of which must be one of these. Raises ToolFailed."""
        parts = [each.target for each in self.relations("").values() if each.kind == "officeDocument"]
        parts += ["word/document.xml", "ppt/presentation.xml"]
        for part in parts:
            if part not in self.archive:
                continue
            root = self.root(part)
            if root is not None and name_of(root) in names:
                return part, root
        raise ToolFailed("this file has no text of its kind: it is damaged, or has the name of another kind")

    def root(self, part: str) -> Any:
        """Return the XML of a part; None if there is none or it is broken, which `broken` then names."""
        try:
            root = parse_xml(self.archive.read(part))
        except (KeyError, zipfile.BadZipFile, ValueError):
            self.broken.append(part)
            return None
        document = root.getroottree().docinfo
        if document.doctype:
            has_entities = any(document.internalDTD.iterentities())
            if has_entities or not self._has_doctypes:
                raise own_document_type()
        return root

    def root_of(self, part: str) -> Any:
        """Return the XML of a part; None if the file has no such part, or it is broken."""
        return self.root(part) if part in self.archive else None

    def relations(self, part: str) -> dict[str, Relation]:
        """Return a part's relations by their ids; those of the whole file for the part ``."""
        if part not in self._relations:
            self._relations[part] = self._read_relations(part)
        return self._relations[part]

    def _read_relations(self, part: str) -> dict[str, Relation]:
        folder, name = posixpath.split(part)
        relations_part = posixpath.join(folder, "_rels", f"{name}.rels")
        if relations_part not in self.archive:
            return {}
        root = self.root(relations_part)
        if root is None:
            return {}
        relations: dict[str, Relation] = {}
        for each in root:
            target = attribute_of(each, "Target")
            outside = value_of(each, "TargetMode") == "External"
            if not outside:
                path = unquote(target).replace("\\", "/")
                target = posixpath.normpath(posixpath.join("/", folder, path)).lstrip("/")
            kind = attribute_of(each, "Type").rpartition("/")[2]
            relations[attribute_of(each, "Id")] = Relation(kind, target, outside)
        return relations

    def related(self, part: str, kind: str) -> list[str]:
        """Return the parts of a kind that a part refers to."""
        return [each.target for each in self.relations(part).values() if each.kind == kind and not each.outside]

    def drawn_lines(self, part: str, name: str) -> list[str]:
        """Return the texts of all elements of a name in a chart or diagram."""
        if part not in self._drawn:
            root = self.root(part) if part else None
            texts = map(drawn_text, descendants(root, name))
            self._drawn[part] = [text for text in texts if text]
        return self._drawn[part]

    def title(self) -> str | None:
        """Return the title that the file's properties name."""
        for part in self.related("", "core-properties"):
            words = words_of(child(self.root(part), "dc:title"))
            if words:
                return words[:2_000]
        return None

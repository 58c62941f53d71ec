"""The tags of an HTML page and their attributes, as browsers read them, in a time that grows with the page's length."""

from __future__ import annotations

import re

from ava_roles.wrap import unescape_html

TAG = re.compile(
    r"""<(/?)([a-zA-Z][^\s/>]*+)((?:[^>"'=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+|["'])*+)>""",
)
"""A tag: whether it is an end tag, its name, and its attributes. A quote that is never closed means nothing."""
COMMENT_END = re.compile(r"--!?>")
_ATTRIBUTE = re.compile(
    r"""([^\s/>="'][^\s/>=]*+)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>"'][^\s>]*+))?+)?+""",
)
_KEPT_NAMES = """
    alt charset content data hidden href http-equiv id label open popover reversed rowspan shadowrootmode src srcdoc
    start style type value
"""
_KEPT = frozenset(_KEPT_NAMES.split())


def attributes(written: str) -> dict[str, str]:
    """Return those attributes of a tag that say what its page shows, by their names in lower case; the first counts."""
    found: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(written):
        name = match[1].lower()
        if name in _KEPT and name not in found:
            found[name] = unescape_html(match[2] or match[3] or match[4] or "")
    return found


def find_label(head: str) -> str:
    """Return the encoding that the first <meta> with one names; empty if none does."""
    at = 0
    while (at := head.find("<", at)) >= 0:
        if head.startswith("<!--", at):
            end = COMMENT_END.search(head, at + 2)
            if end is None:
                return ""
            at = end.end()
        elif (tag := TAG.match(head, at)) is not None:
            at = tag.end()
            if not tag[1] and tag[2].lower() == "meta" and (label := _label_of(attributes(tag[3]))):
                return label
        else:
            at += 1
    return ""


_CHARSET = re.compile(r"""charset\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s;"']++))""", re.IGNORECASE)


def _label_of(meta: dict[str, str]) -> str:
    if meta.get("charset"):
        return meta["charset"]
    return label_of_type(meta.get("content", "")) if meta.get("http-equiv", "").lower() == "content-type" else ""


def label_of_type(content_type: str) -> str:
    """Return the encoding that a content type names, e.g. that of a header; empty if it names none."""
    found = _CHARSET.search(content_type)
    return (found[1] or found[2] or found[3] or "") if found else ""

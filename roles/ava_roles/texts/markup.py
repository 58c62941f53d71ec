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
    alt charset colspan content data hidden href http-equiv id label open popover reversed role rowspan shadowrootmode
    src srcdoc start style type value
"""
_KEPT = frozenset(_KEPT_NAMES.split())


def attributes(text: str) -> dict[str, str]:
    """Return the attributes of a tag that affect what its page shows, by their names in lower case; the first counts.

    `text`: the attributes as the tag has them.
    """
    values: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(text):
        name = match[1].lower()
        if name in _KEPT and name not in values:
            value = match[2] or match[3] or match[4] or ""
            values[name] = unescape_html(value)
    return values


def find_label(head: str) -> str:
    """Return the encoding that the first <meta> with one names; empty if none does."""
    at = head.find("<")
    while at >= 0:
        if head.startswith("<!--", at):
            comment_end = COMMENT_END.search(head, at + 2)
            if comment_end is None:
                return ""
            at = head.find("<", comment_end.end())
            continue
        tag = TAG.match(head, at)
        if tag is None:
            at = head.find("<", at + 1)
            continue
        is_start = not tag[1]
        if is_start and tag[2].lower() == "meta":
            label = _label_of(attributes(tag[3]))
            if label:
                return label
        at = head.find("<", tag.end())
    return ""


_CHARSET = re.compile(r"""charset\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s;"']++))""", re.IGNORECASE)


def _label_of(meta: dict[str, str]) -> str:
    if meta.get("charset"):
        return meta["charset"]
    if meta.get("http-equiv", "").lower() == "content-type":
        return label_of_type(meta.get("content", ""))
    return ""


def label_of_type(content_type: str) -> str:
    """Return the encoding that a content type names, e.g. that of a header; empty if it names none."""
    match = _CHARSET.search(content_type)
    if match is None:
        return ""
    return match[1] or match[2] or match[3] or ""

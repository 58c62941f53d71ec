"""The text that a person sees on an HTML page, and what the page has that is not in it. Pure Python: nothing crashes.

It is read as by a browser that runs no scripts: hidden elements and templates are left out, <noscript> is shown.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from urllib.parse import urljoin

from ava_roles.texts.markup import COMMENT_END, TAG
from ava_roles.texts.numerals import NUMERALS
from ava_roles.texts.page_elements import (
    BLOCKS,
    CELLS,
    ENDS_BEFORE,
    IN_TABLES,
    INLINE,
    INTEGER,
    LISTS,
    RAW_END,
    VOID,
    OpenList,
    attributes_that_matter,
    is_hidden_element,
    is_program,
    open_list,
)
from ava_roles.texts.page_tables import PageTable, Span, without_marks
from ava_roles.texts.phrases import count_phrase
from ava_roles.wrap import unescape_html

NEEDS_SCRIPTS = "text that its scripts make (it needs scripts, which are not run)"

_MOUNTS = frozenset(("root", "app", "__next", "__nuxt", "app-root"))
"""Elements that scripts fill, by their ids."""
_WRITES = re.compile(r"\bdocument\s*+\.\s*+write(?:ln)?+\s*+\(")
_ASKS_FOR_SCRIPTS = re.compile(
    r"(?:enable|activate|requires?|need|without)\s+javascript|javascript\s+(?:is\s+)?(?:required|disabled|must)",
    re.IGNORECASE,
)
_HOLLOW_CHARS = 30  # a page with scripts and fewer characters shows nothing without them
SHORT_CHARS = 200  # an article that is shorter was probably missed
_REFRESH = re.compile(r"\s*+[\d.]*+[\s;,]*+(?:url\s*+=\s*+)?+[\"']?+([^\"']*+)", re.IGNORECASE)
_SHOWN_INPUTS = frozenset(("", "text", "submit", "button", "reset", "search", "email", "tel", "url", "number", "date"))
_DOCTYPE = re.compile(r"<!doctype[^>\[]*+(?:\[[^\]]*+\]\s*+)?+>", re.IGNORECASE)
_WHITE = re.compile(r"[ \t\n\f]+")
_SPACES = re.compile(r" {2,}")
_NOT_TEXT = {"video": "video", "audio": "sound", "canvas": "drawing"}
MOST_TAGS = 500_000  # a page with more is not made for people; they take seconds
_MOST_NAMED = 10
_TITLE_CHARS = 1_000
_ADDRESS_CHARS = 300
_COUNT = re.compile(r"[0-9]{1,5}")
_SPAN_CHARS = 100
"""The longest text of a cell that is repeated in the later rows into which it reaches."""
_MOST_SPANS = 50
_CELL_MARKUP = len("<td>")
"""What a repeated cell adds besides its text. All of them may add as many characters as the page has."""
_WITH_LINES = ("pre", "textarea", "xmp")
_LAYOUT_ROLES = ("presentation", "none")
_MAX_DEPTH = 3
"""How deep pages in frames may be nested."""
_MOST_PAGES = 100
"""Pages in frames that one page may have."""


@dataclass(frozen=True)
class PageText:
    """The text of a page, and what is in the page and not in it.

    `missing`: what another source or a browser would show, with addresses. `unseen`: pictures, and hidden words.
    `html`: the page without its hidden elements.
    """

    text: str
    title: str
    missing: tuple[str, ...]
    unseen: tuple[str, ...]
    needs_scripts: bool
    html: str


def read_page_text(
    html: str, url: str = "", *, keep_lines: bool = False, is_xml: bool = False, mark_tables: bool = False
) -> PageText:
    """Return the text of a page: one line for each block, or with `keep_lines` each word in the line of its source.

    Args:
        html: The page.
        url: Against which addresses are resolved.
        keep_lines: Keep each word in the line of its source.
        is_xml: It is XHTML, where any element may be written as empty.
        mark_tables: Write the rows of tables that are not for layout as Markdown, or with `keep_lines` with the marks
            of `page_tables`, for `table_rows`.
    """
    html = without_marks(html.replace("\r\n", "\n").replace("\r", "\n"))
    return _Reader(html, url, keep_lines, is_xml, mark_tables, 0).read()


class _Reader:
    def __init__(self, html: str, url: str, keep_lines: bool, is_xml: bool, mark_tables: bool, depth: int) -> None:
        self._html = html
        self._url = url
        self._keep_lines = keep_lines
        self._mark_tables = mark_tables
        self._is_xml = is_xml or html.lstrip("\ufeff \t\n").startswith("<?xml")
        self._depth = depth
        self._parts: list[str] = []
        self._open: list[str] = []
        self._counts: Counter[str] = Counter()
        self._hidden_at: int | None = None
        self._hidden_words = 0
        self._is_template = False
        self._cuts: list[tuple[int, int]] = []
        self._cut_from = 0
        self._title = ""
        self._missing: dict[str, None] = {}
        self._kinds: Counter[str] = Counter()
        self._unnamed = 0
        self._pages_within = 0
        self._has_doctype = False
        self._has_base = False
        self._never_found: set[str] = set()  # it is looked for once, else the time grows with the square of the length
        self._has_scripts = False
        self._scripts_write = False
        self._has_mount = False
        self._has_empty_mount = False
        self._mounts: list[tuple[int, int]] = []  # of each open one, its level, and the characters shown before it
        self._shown_chars = 0
        self._tables: list[PageTable] = []
        self._lists: list[OpenList] = []
        self._label = ""  # the number of an item whose text has not begun
        self._cell_from: int | None = None
        self._cell_rows = 1
        self._cell_columns = 1
        self._is_head_cell = False
        self._after_cell = False
        self._repeated = 0

    def read(self) -> PageText:
        html = self._html
        at = 0
        tags = 0
        while (tag_at := html.find("<", at)) >= 0:
            self._say(html[at:tag_at])
            tags += 1
            if tags > MOST_TAGS:
                at = self._skip(tag_at, None, f"its first {MOST_TAGS:,} tags")
                break
            at = self._markup(tag_at)
        self._say(html[at:])
        self._close_to(0, len(html))
        text = self._joined()
        needs_scripts = self._needs_scripts(text)
        missing = list(self._missing)
        if needs_scripts:
            missing.insert(0, NEEDS_SCRIPTS)
        if self._unnamed:
            missing.append(count_phrase(self._unnamed, "more frame or object", "more frames or objects"))
        return PageText(text, self._title, tuple(missing), self._unseen(), needs_scripts, self._visible_html())

    # -- the page piece by piece --

    def _markup(self, at: int) -> int:
        """Read what begins with `<`; return where it ends."""
        html = self._html
        next_char = html[at + 1 : at + 2]
        if next_char in ("!", "?"):
            return self._declaration(at)
        if next_char == "/" and not html[at + 2 : at + 3].isalpha():
            return self._skip(at, html.find(">", at) + 1 or None, "an unclosed tag")
        if next_char != "/" and not next_char.isalpha():
            self._say("<")
            return at + 1
        tag = TAG.match(html, at)
        if tag is None:
            self._say(html[at:])  # no tag can follow
            return len(html)
        name = tag[2].lower()
        if tag[1]:
            self._end(name, at, tag.end())
            self._break(name, tag[0])
            return tag.end()
        return self._start(name, tag)

    def _declaration(self, at: int) -> int:
        """Read a comment, or something else with `<!` or `<?`; return where it ends."""
        html = self._html
        if html.startswith("<!--", at):
            if html.startswith(("<!-->", "<!--->"), at):
                return html.index(">", at) + 1
            end = COMMENT_END.search(html, at + 4)
            return self._skip(at, end.end() if end is not None else None, "an unclosed comment")
        if html.startswith("<![CDATA[", at) and self._is_in_xml():
            end_of_text = self._find_once("]]>", at)
            if end_of_text >= 0:
                self._say(html[at + 9 : end_of_text], escaped=False)
                return end_of_text + 3
        if not self._has_doctype:
            self._has_doctype = True
            doctype = _DOCTYPE.match(html, at)
            if doctype is not None:
                return self._skip(at, doctype.end(), "an unclosed tag")
        return self._skip(at, html.find(">", at) + 1 or None, "an unclosed tag")

    def _find_once(self, mark: str, at: int) -> int:
        """Return where a mark is behind a place; -1 without one, and then it is not looked for again."""
        if mark in self._never_found:
            return -1
        found_at = self._html.find(mark, at)
        if found_at < 0:
            self._never_found.add(mark)
        return found_at

    def _is_in_xml(self) -> bool:
        return self._is_xml or self._is_open("svg", "math")

    def _is_open(self, *names: str) -> bool:
        """Tell whether an element with one of these names is open."""
        return any(map(self._counts.get, names))

    def _skip(self, at: int, end: int | None, what: str) -> int:
        """Leave out a piece of the page; with `end` None its whole rest, which is said."""
        if end is None:
            end = len(self._html)
            if self._html[at:end].strip():
                self._missing[f"what follows {what} ({count_phrase(end - at, 'character')})"] = None
        self._lines(self._html[at:end])
        return end

    def _start(self, name: str, tag: re.Match[str]) -> int:
        """Read a start tag, and the content of an element that has no tags in it; return where that ends."""
        source = tag[3]
        self._end_implied(name, tag.start())
        self._break(name, tag[0])
        values = attributes_that_matter(name, source) if source else {}
        if self._hidden_at is None:
            if is_hidden_element(name, values):
                self._hidden_at = len(self._open)
                self._is_template = name == "template"
                self._cut_from = tag.start()
                if name in IN_TABLES and self._tables:
                    self._tables[-1].is_uncertain = True
            else:
                self._notice(name, values)
        end = tag.end()
        is_empty = name in VOID
        if not is_empty and source.endswith("/"):
            is_empty = self._is_empty(name, end)
        if is_empty:
            if self._hidden_at == len(self._open):
                self._show_again(end)
            return end
        self._open_element(name, values)
        if name in RAW_END and f"</{name}" not in self._never_found:
            return self._raw(name, values, end)
        if name == "plaintext":
            self._say(self._html[end:], escaped=False)
            return len(self._html)
        return end

    def _open_element(self, name: str, values: dict[str, str]) -> None:
        if values.get("id", name) in _MOUNTS and self._hidden_at is None:
            self._has_mount = True
            self._mounts.append((len(self._open), self._shown_chars))
        self._open.append(name)
        self._counts[name] += 1
        if name == "table":
            self._open_table(values)
        elif name in _WITH_LINES and self._tables:  # which would be lost in a row
            self._tables[-1].is_uncertain = True
        elif name in LISTS:
            self._lists.append(open_list(name, values))

    def _is_empty(self, name: str, at: int) -> bool:
        """Tell whether `<name/>` is an element without content: in XML, SVG and MathML.

        A browser takes `<iframe/>` for a start tag, and without an end tag shows nothing of what follows. The author
        meant an empty element, so the rest of the page is read. `at`: where the tag ends.
        """
        if name in ("svg", "math") or self._is_in_xml():
            return True
        if name not in RAW_END:
            return False
        without_end = f"<{name}/>"
        if without_end in self._never_found:
            return True
        if RAW_END[name].search(self._html, at) is not None:
            return False
        self._never_found.add(without_end)
        return True

    def _raw(self, name: str, values: dict[str, str], at: int) -> int:
        """Read an element that has no tags in it; return where its end tag begins."""
        end_tag = RAW_END[name].search(self._html, at)
        end = end_tag.start() if end_tag is not None else len(self._html)
        content = self._html[at:end]
        if name == "title":
            if end_tag is None:
                self._never_found.add("</title")  # it is read as if it were no title
                return at
            self._read_title(content)
            return end
        if name == "script" and is_program(values.get("type", "")):
            self._has_scripts = True
            if _WRITES.search(content) is not None:
                self._scripts_write = True
        if name in ("textarea", "xmp"):
            self._say(content, escaped=name == "textarea")
        elif end_tag is None:
            return self._skip(at, None, f"an unclosed <{name}>")
        else:
            self._lines(content)
        return end

    def _read_title(self, content: str) -> None:
        if self._counts["svg"]:  # the title of a drawing
            self._say(content)
            return
        if not self._title:
            self._title = " ".join(unescape_html(content[:_TITLE_CHARS]).split())
        if self._keep_lines:
            self._say(content)

    # -- elements --

    def _end_implied(self, name: str, at: int) -> None:
        ends = ENDS_BEFORE.get(name)
        if ends is None:
            return
        while self._open and self._open[-1] in ends:
            self._close_to(len(self._open) - 1, at)
        if "p" in ends and self._counts["p"]:
            for back, other in enumerate(reversed(self._open[-10:]), 1):
                if other == "p":
                    self._close_to(len(self._open) - back, at)
                    return
                if other not in INLINE:
                    return

    def _end(self, name: str, at: int, after: int) -> None:
        if not self._counts[name]:
            return
        while self._open[-1] != name:
            self._close_to(len(self._open) - 1, at)
        self._close_to(len(self._open) - 1, after)

    def _close_to(self, depth: int, at: int) -> None:
        """Close the elements from this depth on; `at`: where the last one ends."""
        while len(self._open) > depth:
            name = self._open.pop()
            self._counts[name] -= 1
            level = len(self._open)
            while self._mounts and self._mounts[-1][0] >= level:
                _level, shown_before = self._mounts.pop()
                if shown_before == self._shown_chars:
                    self._has_empty_mount = True
            if self._hidden_at is not None:
                if level <= self._hidden_at:
                    self._show_again(at)
            elif name in CELLS:
                self._end_cell()
            elif name == "tr":
                self._end_row()
            elif name == "caption" and self._tables:
                self._tables[-1].end_caption()
            if name == "table" and self._tables:
                self._tables.pop().close(keep_lines=self._keep_lines)
            elif name in LISTS and self._lists:
                self._lists.pop()

    def _show_again(self, at: int) -> None:
        self._hidden_at = None
        self._cuts.append((self._cut_from, at))

    def _notice(self, name: str, values: dict[str, str]) -> None:
        """Show what a tag itself shows, and note what it would load."""
        if name in CELLS:
            self._start_cell(name, values)
        elif name == "tr":
            self._start_row()
        elif name == "caption" and self._tables:
            self._tables[-1].start_caption()
        elif name == "li":
            self._start_item(values)
        elif name == "img":
            self._picture(values.get("alt"))
        elif name == "input":
            self._input(values)
        elif name == "area":
            self._add(values.get("alt", ""))
        elif name in ("option", "optgroup"):
            self._add(values.get("label", ""))
        elif name in _NOT_TEXT:
            self._kinds[_NOT_TEXT[name]] += 1
        else:
            self._note_address(name, values)

    def _note_address(self, name: str, values: dict[str, str]) -> None:
        """Note what a tag would load, or against which address the others are resolved."""
        if name == "base":
            self._set_base(values.get("href", ""))
        elif name == "meta":
            if values.get("http-equiv", "").lower() == "refresh":
                refresh = _REFRESH.match(values.get("content", ""))
                if refresh:
                    self._name("the page that it sends on to", refresh[1])
        elif name in ("frame", "iframe"):
            page = values.get("srcdoc", "")
            if name == "iframe" and page:
                self._page_within(page)
            else:
                self._name("a page in a frame", values.get("src", ""))
        elif name == "embed":
            self._name("an embedded object", values.get("src", ""))
        elif name == "object":
            self._name("an embedded object", values.get("data", ""))

    def _set_base(self, address: str) -> None:
        if address and not self._has_base:
            self._has_base = True
            self._url = _join_address(self._url, address) or self._url

    def _input(self, values: dict[str, str]) -> None:
        kind = values.get("type", "").lower()
        if kind == "image":
            self._picture(values.get("alt"))
        elif kind in _SHOWN_INPUTS:
            self._add(values.get("value", ""))

    def _picture(self, alternative: str | None) -> None:
        words = " ".join((alternative or "").split())
        if words:
            self._add(f"[picture: {words}]")
        if alternative != "":  # one with an empty text is an ornament
            self._kinds["picture"] += 1

    def _page_within(self, html: str) -> None:
        self._pages_within += 1
        if self._depth >= _MAX_DEPTH or self._pages_within > _MOST_PAGES:
            self._missing["pages in frames that are too many, or nested too deep"] = None
            return
        inner = _Reader(html, self._url, False, False, False, self._depth + 1).read()
        self._add(" ".join(inner.text.split()))
        self._missing |= dict.fromkeys(inner.missing[:_MOST_NAMED])

    def _name(self, what: str, address: str) -> None:
        address = "".join(address.split())
        if not address or address.lower().startswith(("about:", "javascript:", "data:")):
            return
        full_address = _join_address(self._url, address) or address
        if len(self._missing) < _MOST_NAMED:
            self._missing[f"{what}: {full_address[:_ADDRESS_CHARS]}"] = None
        else:
            self._unnamed += 1

    def _start_item(self, values: dict[str, str]) -> None:
        """Count an item; its number is shown before its text."""
        inner = OpenList()
        if self._lists:
            inner = self._lists[-1]
        self._label = ""
        if self._keep_lines or not inner.step:
            return
        own_number = INTEGER.match(values.get("value", ""))
        if own_number:
            inner.number = int(own_number[1])
        else:
            inner.number += inner.step
        self._label = f"{NUMERALS[inner.numeral](inner.number)}. "

    # -- tables --

    def _open_table(self, values: dict[str, str]) -> None:
        for outer in self._tables[-1:]:
            outer.is_uncertain = True
        table = PageTable(self._parts, is_marked=self._mark_tables and self._hidden_at is None)
        if values.get("role", "").strip().lower() in _LAYOUT_ROLES:
            table.is_uncertain = True
        self._tables.append(table)

    def _start_row(self) -> None:
        self._after_cell = False
        if self._tables:
            self._tables[-1].start_row(in_head=self._counts["thead"] > 0)

    def _start_cell(self, name: str, values: dict[str, str]) -> None:
        self._repeat_spans()
        self._is_head_cell = name == "th"
        if self._tables:
            self._tables[-1].start_cell(is_head=self._is_head_cell, is_next=self._after_cell)
        elif self._after_cell:
            self._parts.append(" | ")
        self._after_cell = False
        self._cell_rows = _count_in(values, "rowspan")
        self._cell_columns = _count_in(values, "colspan")
        self._cell_from = len(self._parts)

    def _end_cell(self) -> None:
        self._after_cell = True
        if not self._tables:
            return
        table = self._tables[-1]
        if self._cell_rows != 1 and self._cell_from is not None:
            text = " ".join("".join(self._parts[self._cell_from :]).split())
            if self._cell_rows and len(text) <= _SPAN_CHARS and len(table.spans) < _MOST_SPANS:
                table.spans[table.column] = Span(self._cell_rows, self._cell_columns, text, self._is_head_cell)
            else:
                table.is_uncertain = True
        self._repeated += self._cell_columns - 1
        if self._repeated > len(self._html):
            table.is_uncertain = True
            self._cell_columns = 1
        table.end_cell(self._cell_columns)
        self._cell_from = None
        self._cell_rows = 1
        self._cell_columns = 1

    def _end_row(self) -> None:
        self._repeat_spans()
        if self._tables:
            self._tables[-1].end_row()
        self._after_cell = False

    def _repeat_spans(self) -> None:
        """Show the cells of earlier rows that reach into this one, where it has them."""
        if not self._tables:
            return
        table = self._tables[-1]
        while table.column in table.spans:
            span = table.spans[table.column]
            self._repeated += len(span.text) + span.columns * _CELL_MARKUP
            if self._repeated > len(self._html):
                table.is_uncertain = True
                return
            table.start_cell(is_head=span.is_head, is_next=self._after_cell)
            self._parts.append(span.text)
            self._after_cell = True
            table.end_cell(span.columns)

    def _notice_text_between_cells(self) -> None:
        if self._tables and not self._tables[-1].takes_text:
            self._tables[-1].is_uncertain = True

    # -- text --

    def _say(self, written: str, *, escaped: bool = True) -> None:
        """Show a text as it is written in the page."""
        if not written:
            return
        if self._hidden_at is not None:
            if not self._is_template:
                self._hidden_words += len(written.split())
            self._lines(written)
            return
        text = written
        if escaped and "&" in written:
            text = _unescape(written)
        if not self._counts["noscript"]:
            self._shown_chars += len(text.strip())
        if text.isspace():
            if self._keep_lines and "\n" in text:
                self._after_cell = False
        else:
            self._after_cell = False
            self._notice_text_between_cells()
            if self._label:
                self._parts.append(self._label)
                self._label = ""
        self._parts.append(self._with_white_space(text))

    def _with_white_space(self, text: str) -> str:
        """Return a text with its white space as it is shown; blanks that count become no-break spaces."""
        if self._keep_lines:
            return text
        if self._is_open(*_WITH_LINES):
            return text.replace("\t", "    ").replace(" ", "\xa0")
        return _WHITE.sub(" ", text)

    def _add(self, words: str) -> None:
        """Show words that the page has in an attribute, on one line."""
        line = " ".join(words.split())
        if line:
            self._shown_chars += len(line)
            self._notice_text_between_cells()
            self._parts.append(f"{self._label} {line} ")
            self._label = ""

    def _break(self, name: str, written: str) -> None:
        """Keep apart what a tag keeps apart."""
        if self._keep_lines:
            if "\n" in written:
                self._lines(written)
            elif name not in INLINE:
                self._parts.append(" ")
        elif name in BLOCKS and self._hidden_at is None:
            self._parts.append("\n")
            self._after_cell = False
        elif name not in INLINE and name not in CELLS:
            self._parts.append(" ")

    def _lines(self, left_out: str) -> None:
        """Keep the line breaks of what is not shown."""
        if not self._keep_lines:
            return
        count = left_out.count("\n")
        if count:
            self._parts.append("\n" * count)
            self._after_cell = False

    def _joined(self) -> str:
        text = "".join(self._parts)
        if self._keep_lines:
            return "\n".join(line.rstrip() for line in text.replace("\xa0", " ").split("\n"))
        lines: list[str] = []
        for written in text.split("\n"):
            line = _SPACES.sub(" ", written).strip(" ").replace("\xa0", " ").rstrip()
            if line:
                lines.append(line)
        return "\n".join(lines)

    # -- what is not in the text --

    def _needs_scripts(self, text: str) -> bool:
        if not self._has_scripts:
            return False
        if self._has_empty_mount or self._scripts_write:
            return True
        if self._shown_chars < _HOLLOW_CHARS:
            return True
        if self._shown_chars >= SHORT_CHARS:
            return False
        return self._has_mount or _ASKS_FOR_SCRIPTS.search(text) is not None

    def _unseen(self) -> tuple[str, ...]:
        counts = [_count(number, kind) for kind, number in self._kinds.items()]
        if self._hidden_words:
            counts.append(f"{_count(self._hidden_words, 'word')} of hidden text")
        return tuple(counts)

    def _visible_html(self) -> str:
        if not self._cuts:
            return self._html
        pieces: list[str] = []
        at = 0
        for start, end in self._cuts:
            pieces.append(self._html[at:start])
            at = end
        return "".join((*pieces, self._html[at:]))


def _count(number: int, noun: str) -> str:
    plural = "s" if number > 1 else ""
    return f"{number:,} {noun}{plural}"


def _count_in(values: dict[str, str], name: str) -> int:
    """Return how many rows or columns a cell has by its attribute; 0 rows are all that follow."""
    written = values.get(name, "").strip()
    return int(written) if _COUNT.fullmatch(written) else 1


def _unescape(written: str) -> str:
    r"""Return a text without references; one that means a line break becomes a blank, so that its lines stay."""
    lines = [unescape_html(line).replace("\r", " ").replace("\n", " ") for line in written.split("\n")]
    return "\n".join(lines)


def _join_address(base: str, address: str) -> str | None:
    try:
        return urljoin(base, address)
    except ValueError:
        return None

"""EPUB books: the sections are read in their order, what is no text is named, and no book harms more than itself."""

from __future__ import annotations

import socket

import pytest
from support.foreign.epub import ENCRYPTED, book_parts, epub_attacks, page
from support.foreign.office import assert_withstands, pack_parts

from ava_roles.texts import parser_process
from ava_roles.texts.extracted import format_of
from ava_roles.texts.formats import read_epub


def test_reads_the_sections_in_the_order_of_the_spine() -> None:
    about = "<dc:title>The lease</dc:title><dc:creator>Ann</dc:creator><dc:publisher>ACME</dc:publisher>"
    found = read_epub(pack_parts(book_parts("<h1>One</h1><p>first</p>", "<p>second</p>", spine="s2 s1", about=about)))
    assert found.title == "The lease"
    assert [tuple(part) for part in found.parts] == [
        ("about this book", "Creator: Ann\nPublisher: ACME"),
        ("section 1", "second"),
        ("section 2", "One\nfirst"),
    ]
    assert found.missing == ()


def test_names_what_is_no_text() -> None:
    body = (
        '<p>see <a href="https://x.org/">the page</a> and <a href="#n">1</a><img src="a.png" alt="a dot"/></p>'
        "<p hidden=''>two words</p>"
    )
    parts = book_parts(
        body, "beside", spine="s1 cover lost none", cover="a.png", lost="b.xhtml", extra="../c%20d.xhtml"
    )
    found = read_epub(pack_parts(parts | {"OEBPS/a.png": b"x"}))
    assert [part.text for part in found.parts] == ["see the page and 1 [picture: a dot]"]
    assert found.missing == (
        "in section 1 1 picture, 2 words of hidden text",
        "section 2, which is no page (image/png)",
        "section 3, which is not in the file (b.xhtml)",
        "section 4, which is not in the file ()",
        "2 pages outside the order of reading",
        "1 address of links",
    )


def test_reads_addresses_as_their_package_writes_them() -> None:
    parts = book_parts("one", spine="odd", odd="./x/../c%20d.xhtml#start")
    parts["OEBPS/c d.xhtml"] = page("<p>kept</p>")
    assert "kept" in read_epub(pack_parts(parts)).text()


def test_a_book_whose_fonts_alone_are_encrypted_is_read() -> None:
    parts = book_parts("kept")
    parts["META-INF/encryption.xml"] = ENCRYPTED.format("fonts/a.otf")
    assert "kept" in read_epub(pack_parts(parts)).text()


def test_knows_books_by_their_names_and_reads_them_in_a_child_without_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parser_process, "has_extra", lambda _name: False)
    kind = format_of("a.EPUB")
    assert kind is not None
    assert "rent" in parser_process.read_document(kind, pack_parts(book_parts("rent"))).text()


# -- attacks ----------------------------------------------------------------------------------------------------------


ATTACKS = {"book": (epub_attacks, read_epub)}


@pytest.mark.slow
@pytest.mark.parametrize("name", epub_attacks(9))
def test_a_hostile_book_is_refused_or_read_in_bounds_and_fetches_nothing(name: str, listener: socket.socket) -> None:
    attack = epub_attacks(listener.getsockname()[1])[name]
    assert_withstands(attack, read_epub, listener)

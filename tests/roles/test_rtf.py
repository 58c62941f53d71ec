"""RTF files: what a reader sees is read, what cannot be text is named, and no file harms more than itself."""

from __future__ import annotations

import socket

import pytest
from support.foreign.office import assert_withstands
from support.foreign.rtf import TEXTS, rtf_attacks, rtf_of

from ava_roles.texts import parser_process
from ava_roles.texts.extracted import format_of
from ava_roles.texts.formats import read_rtf


@pytest.mark.parametrize("name", TEXTS)
def test_reads_or_names(name: str) -> None:
    body, text, missing = TEXTS[name]
    found = read_rtf(rtf_of(body))
    assert "\n\n".join(part.text for part in found.parts) == text
    assert found.missing == missing


def test_notes_and_headers_follow_the_text() -> None:
    body = (
        r"{\info{\title The lease}}{\header ACME\par}{\headerf ACME\par}{\footer page 1\par}"
        r"a{\super\chftn}{\*\footnote\chftn one}{\*\footnote\ftnalt\chftn two}"
        r"{\*\atnid B}{\*\atnauthor Berta}\chatn{\*\annotation{\*\atndate 1}too high}{\*\footnote three}"
    )
    found = read_rtf(rtf_of(body))
    assert found.title == "The lease"
    assert [tuple(part) for part in found.parts] == [
        ("", "a[footnote 1][endnote 1][comment 1][footnote 2]"),
        ("headers and footers", "ACME\n\npage 1"),
        ("footnotes", "[footnote 1] one\n\n[footnote 2] three"),
        ("endnotes", "[endnote 1] two"),
        ("comments", "[comment 1] Berta: too high"),
    ]


def test_knows_the_files_by_their_names_and_reads_them_in_a_child_without_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parser_process, "has_extra", lambda _name: False)
    kind = format_of("a.RTF")
    assert kind is not None
    assert "rent" in parser_process.read_document(kind, rtf_of("rent")).text()


# -- attacks ----------------------------------------------------------------------------------------------------------


ATTACKS = {"RTF": (rtf_attacks, read_rtf)}


@pytest.mark.slow
@pytest.mark.parametrize("name", rtf_attacks(9))
def test_a_hostile_file_is_refused_or_read_in_bounds_and_fetches_nothing(name: str, listener: socket.socket) -> None:
    attack = rtf_attacks(listener.getsockname()[1])[name]
    assert_withstands(attack, read_rtf, listener)


def test_text_without_a_font_has_the_charset_of_the_default_font() -> None:
    head = rb"{\rtf1\ansi\ansicpg1252\deff1"
    fonts = head + rb"{\fonttbl{\f0\fcharset0 Arial;}{\f1\fcharset204 Arial;}{\f2\fcharset2 Wingdings;}}"
    found = read_rtf(fonts + rb"\'c4\'ee\par\f0\'c4\'ee\plain\'c4\'ee}")
    assert found.text() == "До\n\nÄîДо"
    of_signs = fonts.replace(rb"\deff1", rb"\deff2")
    assert read_rtf(of_signs + rb"\'c4}").text() == "Ä"

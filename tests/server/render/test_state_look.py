"""Every state has its sign and colour, the same in a terminal, on pages and in the docs."""

from __future__ import annotations

import re
from importlib import resources

import pytest
from support.repository import REPOSITORY

from ava_audit.events import ENDINGS
from ava_audit.rows import ASKING, EXPIRED, HELD, INTERRUPTED, QUEUED, RUNNING, WAITING
from ava_audit.view import NOT_FAILED
from ava_server.render.state_look import LOOKS, STYLES, look_of
from ava_server.render.words import WORDS

STATES = {RUNNING, QUEUED, WAITING, *ASKING, HELD, INTERRUPTED, EXPIRED, *ENDINGS}


@pytest.mark.parametrize("state", sorted(STATES))
def test_each_state_has_a_sign_and_a_colour_in_both_places(state: str) -> None:
    look = look_of(state)
    css = resources.files("ava_server.web").joinpath("static/ava.css").read_text("utf-8")
    assert look.plain.isascii() and look.kind in STYLES
    named = re.search(rf"^:is\(\.state,[^)]*\)\.{look.kind} {{ color", css, re.MULTILINE)
    assert named is not None or look.kind == "stopped", "stopped has the colour of every state"


def test_a_run_without_an_answer_looks_neither_good_nor_failed() -> None:
    looks = {look_of(state).kind for state in NOT_FAILED}
    assert look_of("no_answer").kind not in {"good", "failed"} and "failed" not in looks
    assert "yellow" in STYLES[look_of("no_answer").kind]


def test_no_two_kinds_share_a_sign() -> None:
    by_sign: dict[str, set[str]] = {}
    for state in STATES:
        by_sign.setdefault(look_of(state).sign, set()).add(look_of(state).kind)
    assert all(len(kinds) == 1 for kinds in by_sign.values()), by_sign


def test_the_page_of_words_has_every_sign() -> None:
    text = (REPOSITORY / "docs" / "words.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(.)` \| `(.)` \|", text, re.MULTILINE))
    assert rows == {look.sign: look.plain for look in {*LOOKS.values(), look_of("error")}}


def test_the_page_of_words_explains_what_screens_explain() -> None:
    text = (REPOSITORY / "docs" / "words.md").read_text("utf-8")
    assert [word for word, means in WORDS.items() if f"- **{word}:** {means}" not in text] == []

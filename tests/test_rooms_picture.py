"""The picture in docs/architecture.md shows the rooms and imports of today."""

from __future__ import annotations

from support.repository import REPOSITORY, script

PICTURE = REPOSITORY / "docs" / "rooms.svg"


def test_the_picture_is_up_to_date() -> None:
    assert PICTURE.read_text("utf-8") == script("rooms_picture").svg(), "run `python scripts/rooms_picture.py`"


def test_the_architecture_page_shows_the_picture() -> None:
    assert "](rooms.svg)" in (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")


def test_the_picture_shows_every_room() -> None:
    picture = PICTURE.read_text("utf-8")
    rooms_picture = script("rooms_picture")
    rooms = [room for package in rooms_picture.PACKAGES for room in rooms_picture.imports_of(package)]
    assert len(rooms) > 20
    assert [room for room in rooms if f">{room}</text>" not in picture] == []


def test_a_line_that_follows_from_others_is_left_out() -> None:
    imports = {"cli": frozenset({"service", "core"}), "service": frozenset({"core"}), "core": frozenset[str]()}
    assert script("rooms_picture").direct(imports) == {"cli": ["service"], "service": ["core"], "core": []}


def test_a_long_line_has_a_gap_of_its_own_in_each_row_that_it_passes() -> None:
    picture = script("rooms_picture")
    imports = {
        "cli": frozenset({"evals", "service"}),
        "core": frozenset({"models"}),
        "evals": frozenset({"models"}),
        "models": frozenset[str](),
        "service": frozenset({"core"}),
    }
    place = picture.places(picture.SERVER, imports)
    assert ["evals", "evals to models in row 2", "models"] in picture.lines_of(imports)
    assert place["evals to models in row 2"] != place["core"]
    assert len(set(place.values())) == len(place)

"""`scripts/kinds.py` tells conditions that choose words or figures from those that choose a place."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from support.repository import script


@pytest.fixture(scope="module")
def kinds() -> ModuleType:
    return script("kinds")


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("if run.is_plan:\n    say('a plan of three')", [(("plan",), "words")]),
        ("if run.is_plan:\n    line = format_usd(7)", [(("plan",), "words")]),
        ("if run.plan is not None:\n    place(part)", [(("plan",), "place")]),
        ("x = 'it was erased' if run.erased else y", [(("erased",), "words")]),
        ("x = [each for each in all if each.user_id]", [(("not mine",), "place")]),
        ("if a:\n    pass\nelif step.items:\n    say('one item')", [(("step",), "words")]),
        ("match wait.cause:\n    case 'held':\n        say('it is held')", [(("state",), "words")]),
        ("if plan:\n    if wide:\n        say('a wide one')", [(("plan",), "place")]),
        ("if wide:\n    say('a plan of three')", []),
        ("name = 'plan' + question", []),
    ],
)
def test_counts_a_condition_in_python(kinds: ModuleType, tmp_path: Path, code: str, found: list[object]) -> None:
    path = tmp_path / "a.py"
    path.write_text(code)
    assert [(each.kinds, each.chooses) for each in kinds.conditions_in_python(path)] == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{% if run.plan %}<p>A plan of three</p>{% endif %}", [(("plan",), "words")]),
        ('{% if run.plan %}<p class="wide row">{{ steps(run) }}</p>{% endif %}', [(("plan",), "place")]),
        ("{{ 'of somebody else' if not own else '' }}", [(("not mine",), "words")]),
        ("{% for one in steps if one.coding %}{{ one.id }}{% endfor %}", [(("coder",), "place")]),
        ("{% if wide %}A plan{% endif %}", []),
    ],
)
def test_counts_a_condition_in_a_template(kinds: ModuleType, tmp_path: Path, text: str, found: list[object]) -> None:
    path = tmp_path / "a.html"
    path.write_text(text)
    assert [(each.kinds, each.chooses) for each in kinds.conditions_in_template(path)] == found


def test_counts_a_condition_in_a_script(kinds: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a.js"
    path.write_text(
        'if (run.plan) say("A plan of three");\nconst wide = run.question ? one : two;\nif (x === "plan") go();\n'
    )
    found = [(each.line, each.kinds, each.chooses) for each in kinds.conditions_in_script(path)]
    assert found == [(1, ("plan",), "words"), (2, ("question",), "place")]


def test_finds_conditions_on_every_surface(kinds: ModuleType) -> None:
    for surface in kinds.SURFACES:
        assert kinds.conditions_of(surface), surface

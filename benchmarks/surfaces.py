"""What each surface says of each situation of a run, and whether it is true: a table of situations by surfaces.

    python benchmarks/surfaces.py [--situations single,plan] [--worlds main,slot] [--surfaces show,card] [--keep FOLDER]

Real servers, a real log, a scripted model server and real git play every situation that a run can be in: single, plan,
step of a plan, coder, asking, waiting, interrupted, erased, of another user, and so on. What must be found stands in
surfaces.toml, written by hand; figures come from who plays: the calls that the model server answered and their
prices, the screen and the minute of the yes, the branch that git has. Nothing that is expected comes from Ava's log.

For each fact, its label and its value are looked for together. A cell has three counts: facts that are right, wrong
(another value, or a sentence that is untrue), and left out by a surface whose purpose it is to say them (`[surfaces]`
of surfaces.toml). A question that asks for a yes and leaves something out without saying so is wrong. Every wrong fact
is printed with what was expected and what stands there. Takes about five minutes; needs Chromium and a sandbox.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from audit_parts.report import Report
from surface_parts.facts import LOOKS, Looked, Outcome, look_for, untrue
from surface_parts.screens import SURFACES, Screens, open_screens
from surface_parts.situations import WORLDS, Situation, open_play

OUTCOMES: tuple[Outcome, ...] = ("right", "wrong", "left out")
ALWAYS_UNTRUE = (r'File "[^"]*/ava_server/', "fault of Ava's own")
"""What is wrong on any surface."""
_SAYS_SO = re.compile(r"(?i)not (?:on the screen|shown)|left out|more (?:on|in) |see all of it")
"""How a question says that it does not show everything."""
_SHOWN_CHARS = 150


@dataclass(frozen=True)
class Cell:
    """One fact of one situation on one surface."""

    situation: str
    surface: str
    fact: str
    looked: Looked

    @property
    def line(self) -> str:
        looked = self.looked
        stands = f"; there stands: {looked.stands[:_SHOWN_CHARS]}" if looked.stands else ""
        return f"{self.situation} / {self.surface} / {self.fact}: expected {looked.expected[:70]}{stands}"


def filled(template: str, known: Mapping[str, str], *, pattern: bool) -> str:
    """Put what is known of a situation in place of the names in braces; `pattern`: the text is a regular expression."""

    def value(match: re.Match[str]) -> str:
        return re.escape(known[match[1]]) if pattern else known[match[1]]

    return re.sub(r"\{([a-z][a-z_]*)\}", value, template)


def cells_of(situation: Situation, surface: str, text: str, wanted: Mapping[str, Any]) -> Iterable[Cell]:
    """Look for every fact that a surface is there to say."""
    name = situation.name
    own = wanted["situations"][name]
    refuses = surface in own.get("refused_on", ())
    for fact, template in own["facts"]:
        if fact not in wanted["surfaces"][surface] or (fact == "refused") is not refuses:
            continue
        look = LOOKS.get(fact)
        if look is None:
            looked = look_for(text, filled(template, situation.known, pattern=True))
        else:
            looked = look(text, filled(template, situation.known, pattern=False))
        if looked.outcome == "left out" and fact.startswith("asked ") and not _SAYS_SO.search(text):
            looked = Looked("wrong", looked.expected, "nothing, and it does not say that anything is left out")
        yield Cell(name, surface, fact, looked)
    sentences = [filled(each, situation.known, pattern=True) for each in own["untrue"]]
    stands = untrue(text, (*ALWAYS_UNTRUE, *sentences))
    if stands:
        yield Cell(name, surface, "untrue", Looked("wrong", "nothing untrue", stands))


@dataclass(frozen=True)
class Wanted:
    """What is to be read: names of situations (none: all), of worlds and of surfaces, and where texts are kept."""

    situations: Sequence[str]
    worlds: Sequence[str]
    surfaces: Sequence[str]
    keep: Path | None


async def read_cells(wanted: Wanted) -> list[Cell]:
    """Play the situations of each world, read every surface of each, and look for the facts."""
    expected = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    found: list[Cell] = []
    with tempfile.TemporaryDirectory(prefix="ava-surfaces-") as place:
        async with open_screens() as screens, open_play(Path(place)) as play:
            for world in wanted.worlds:
                for situation in await play.play(world):
                    if not wanted.situations or situation.name in wanted.situations:
                        found += await cells_on_surfaces(screens, situation, wanted, expected)
    return found


async def cells_on_surfaces(
    screens: Screens, situation: Situation, wanted: Wanted, expected: Mapping[str, Any]
) -> list[Cell]:
    """Read the surfaces of a situation, and look for its facts on each."""
    found: list[Cell] = []
    for surface in wanted.surfaces:
        if surface in expected["situations"][situation.name].get("left_out_on", ()):
            continue
        text = await screens.read(surface, situation)
        if wanted.keep is not None:
            stem = re.sub(r"\W+", "-", f"{situation.name}.{surface}")
            (wanted.keep / f"{stem}.txt").write_text(f"{text}\n", encoding="utf-8")
        if text is not None:
            found += cells_of(situation, surface, text, expected)
    return found


def counts(cells: Iterable[Cell]) -> str:
    """Return how many facts are right, wrong and left out: `9/1/2`; a dot where none is asked for."""
    number = Counter(cell.looked.outcome for cell in cells)
    if not number:
        return "·"
    return "/".join(str(number[outcome]) for outcome in OUTCOMES)


def show(cells: Sequence[Cell], surfaces: Sequence[str], report: Report) -> None:
    """Print the table, the sums, and every fact that is wrong or left out."""
    situations = list(dict.fromkeys(cell.situation for cell in cells))
    used = [name for name in surfaces if any(cell.surface == name for cell in cells)]
    letters = {name: chr(ord("a") + number) for number, name in enumerate(used)}
    report.say("Surfaces: " + ", ".join(f"{letter} = {name}" for name, letter in letters.items()))
    rows: list[list[str]] = []
    for situation in situations:
        own = [cell for cell in cells if cell.situation == situation]
        rows.append([situation, *(counts(cell for cell in own if cell.surface == name) for name in used), counts(own)])
    rows.append(["all", *(counts(cell for cell in cells if cell.surface == name) for name in used), counts(cells)])
    report.table("Facts right/wrong/left out", ("situation", *letters.values(), "all"), rows)
    for outcome in ("wrong", "left out"):
        listed = [cell for cell in cells if cell.looked.outcome == outcome]
        report.say(f"\n{outcome.capitalize()}: {len(listed)}")
        for cell in listed:
            report.say(f"- {cell.line}")
    bad = {(cell.situation, cell.surface) for cell in cells if cell.looked.outcome == "wrong"}
    every = {(cell.situation, cell.surface) for cell in cells}
    report.say(f"\nCells (situation and surface) with something wrong: {len(bad)} of {len(every)}")
    report.verdict("wrong facts", sum(cell.looked.outcome == "wrong" for cell in cells), 0)


def main() -> None:
    """Play, look and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--situations", default="", help="only these, with commas")
    options.add_argument("--worlds", default="", help=f"only these data roots: {', '.join(WORLDS)}")
    options.add_argument("--surfaces", default="", help="only these, with commas and as in surfaces.toml")
    options.add_argument("--keep", type=Path, help="folder for the text of each surface")
    given = options.parse_args()
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    surfaces = [each for each in SURFACES if not given.surfaces or each in given.surfaces.split(",")]
    worlds = [each for each in WORLDS if not given.worlds or each in given.worlds.split(",")]
    names = [each for each in given.situations.split(",") if each]
    began = time.monotonic()
    cells = anyio.run(read_cells, Wanted(names, worlds, surfaces, given.keep))
    report = Report()
    show(cells, surfaces, report)
    report.say(f"It took {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()

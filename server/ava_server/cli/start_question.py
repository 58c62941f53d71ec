"""The question whether proposals start, as lines of a terminal: price and reach first, and what is folded counted.

What a person must see is never folded: `FOLDED` in `approval/summary.py` names the only topics that are. With `m` they
see everything. Who approves without that has what was on the screen put on record.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from ava_audit.units import cap_micros
from ava_roles.wrap import add_bars, clean
from ava_server.approval.decide import FoldedScreen
from ava_server.cli import terminal
from ava_server.cli.terminal import aligned, cells, counted, cut, one_line, wrapped_lines
from ava_server.core.ids import model_words

if TYPE_CHECKING:
    from ava_server.approval.proposals import Pending, ProposalSummary, WholeText

MORE = ("m", "more")
_FOLDED_WORDS = "Folded: "
TASK_COLUMNS = 40
"""Columns that a task has beside the others of a table; with fewer, it is below them."""
TASK_SHOWN = 300
"""Characters of a single proposal's task that stand above the fold."""
AFTER_COLUMNS = 24
_TOPICS = {
    "Not available": "what it lacks",
    "Done before": "what was done before",
    "Model": "model",
    "Limits": "limits",
}
"""What the topics that are folded by sentences are called."""
_STYLES: Mapping[str, Mapping[str, Any]] = {
    "first": {"bold": True},
    "look": {"bold": True, "fg": "yellow"},
    "quiet": {"dim": True},
}


Emphasis = Literal["", "first", "look", "quiet"]


class QuestionLine(NamedTuple):
    """A line of a question.

    Attributes:
        emphasis: `first`: price and reach. `look`: what must not be overlooked. `quiet`: what is folded.
        bold: The columns at its beginning that are bold in any case.
    """

    text: str
    emphasis: Emphasis = ""
    bold: int = 0

    @property
    def folds(self) -> bool:
        """Whether it is Ava's line on what is folded."""
        return self.emphasis == "quiet" and self.text.strip().startswith(_FOLDED_WORDS)


class ShownProposals:
    """Proposals before one question on a terminal: folded at first, whole after `unfold`.

    Elsewhere they are whole from the beginning. `title` stands above a single one, and `limits` are those of all of
    several. Not `asks`: nobody is asked, so nothing says how to unfold them. Not `folds`: whole on a terminal too.
    """

    def __init__(
        self,
        waiting: Sequence[Pending],
        title: str = "",
        limits: Mapping[str, Any] | None = None,
        *,
        err: bool = False,
        asks: bool = True,
        folds: bool = True,
    ) -> None:
        self._waiting = waiting
        self._title = title
        self._limits = limits or {}
        elsewhere = asks and terminal.someone_there() and not sys.stdout.isatty()
        self._stream = sys.stderr if err or elsewhere else sys.stdout  # where the person who is asked can read it
        self._asks = asks
        self._width = terminal.columns(self._stream)
        self._folded = folds and self._stream.isatty() and all(map(can_fold, waiting))

    @property
    def folded(self) -> bool:
        """Whether something of them is folded."""
        return self._folded

    @property
    def hint(self) -> str:
        """What a question says of the key that unfolds them; empty where nothing is folded."""
        return " (more: m)" if self._folded else ""

    @property
    def screens(self) -> dict[str, FoldedScreen]:
        """What was on the screen of each of which something is folded, by its id."""
        if not self._folded:
            return {}
        if len(self._waiting) == 1:
            [one] = self._waiting
            return {one.pending_id: folded_screen(one, self._width)}
        said = f"All of them: {together(self._waiting, self._limits)}"
        screens = several_screens(self._waiting, self._width)
        return {one_id: replace(screen, text=f"{screen.text}\n{said}") for one_id, screen in screens.items()}

    def show(self) -> None:
        if not self._folded:
            rows = self._show_whole()
        elif len(self._waiting) == 1:
            rows = self._write([*self._titled(self._title), *proposal_lines(self._waiting[0], self._width)])
        else:
            rows = self._write(several_lines(self._waiting, self._width))
        self._say_again(rows)
        self._say_together()

    def unfold(self) -> None:
        self._folded = False
        self._say_again(self._show_whole())
        self._say_together()

    def _show_whole(self) -> int:
        rows = 0
        for number, one in enumerate(self._waiting, 1):
            title = self._title if len(self._waiting) == 1 else f"{number} of {len(self._waiting)}, {one.pending_id}:"
            lines = proposal_lines(one, self._width, whole=True) if self._stream.isatty() else _as_message(one)
            rows += self._write([*self._titled(title), *lines])
        return rows

    def _titled(self, title: str) -> list[QuestionLine]:
        return [QuestionLine(""), QuestionLine(title)] if title else []

    def _say_together(self) -> None:
        if len(self._waiting) > 1:
            self._write([QuestionLine(f"All of them: {together(self._waiting, self._limits)}")])

    def _say_again(self, rows: int) -> None:
        """Repeat the price next to the question where the terminal has scrolled it away."""
        if len(self._waiting) == 1 and self._waiting[0].most and rows >= terminal.rows(self._stream) - 1:
            self._write([QuestionLine(f"{self._waiting[0].most}, as above.", "first")])

    def _write(self, lines: Iterable[QuestionLine]) -> int:
        """Return the rows of the terminal that they take."""
        rows = 0
        lines = [line for line in lines if self._asks or not line.folds]
        if not self._stream.isatty():
            plain = terminal.tell if self._stream is sys.stderr else terminal.say
            plain("\n".join(line.text for line in lines))
            return 0
        for line in lines:
            for number, part in enumerate(wrapped_lines(clean(line.text)[0], self._width, breaks=True)):
                typer.echo(_styled(part, line, first=number == 0), file=self._stream)
                rows += 1
        return rows


def _styled(part: str, line: QuestionLine, *, first: bool) -> str:
    bold = line.bold if first else 0
    rest = terminal.styled(part[bold:], **_STYLES.get(line.emphasis, {}))
    return terminal.styled(part[:bold], **{**_STYLES.get(line.emphasis, {}), "bold": True}) + rest


def together(waiting: Sequence[Pending], limits: Mapping[str, Any]) -> str:
    """Return the approval line of all together, and which shared cap keeps them from spending all of their own."""
    from ava_server.approval.proposals import together_line, together_note

    cap = cap_micros(limits["group_max_cost_cents"]) if "group_max_cost_cents" in limits else None
    note = together_note(waiting, cap)
    return f"{together_line(waiting, cap, limits.get('group_timeout'))}.{f' {note}' if note else ''}"


# -- one ---------------------------------------------------------------------------------------------------------------


def can_fold(one: Pending) -> bool:
    """Tell whether a proposal says which of it may be folded: a server of an older version does not."""
    return one.summary is not None and bool(one.rows) and bool(one.whole)


def proposal_lines(one: Pending, width: int, *, whole: bool = False) -> list[QuestionLine]:
    """Return a proposal: what it costs and reaches, then what it does and who asked; the rest folded, or `whole`."""
    if one.summary is None or not can_fold(one):
        return _as_message(one)
    from ava_server.approval.summary import ATTENTION, FACTS, FOLDED, STEPS

    topics = one.topics
    lines = [QuestionLine(text, "first") for text in (one.most, *topics.get("Where", ()))]
    lines += [QuestionLine(f"! {text}", "look") for text in topics.get(ATTENTION, ())]
    lines.append(QuestionLine(_what(one, one.summary)))
    lines += map(QuestionLine, topics.get("How much", ()))
    lines += [QuestionLine(" ".join(topics["Who asked"]))] if "Who asked" in topics else []
    for topic, texts in topics.items():
        if topic not in (*FACTS, *FOLDED, ATTENTION, STEPS):
            lines += map(QuestionLine, texts)
    lines += _steps_table(one.summary, width)
    if not whole:
        return [*lines, QuestionLine(f"{_FOLDED_WORDS}{folded_words(one)}", "quiet")]
    for topic, texts in topics.items():
        if topic in _TOPICS:
            lines += map(QuestionLine, texts)
    for text in _cut_texts(one):
        rest = f"\n(The last {text.chars - len(text.text):,} characters are in `ava show`.)"
        lines.append(QuestionLine(f"{text.name.capitalize()}, {text.chars:,} characters:", "first"))
        lines += map(QuestionLine, add_bars(text.text).split("\n"))
        lines += [QuestionLine(rest)] if text.chars > len(text.text) else []
    return [*lines, QuestionLine(f"In one line: {one.approval_line}")]


def _as_message(one: Pending) -> list[QuestionLine]:
    return [*map(QuestionLine, one.message.split("\n")), QuestionLine(one.approval_line)]


def folded_words(one: Pending, *, in_table: bool = False) -> str:
    """Return what is folded of a proposal, counted: `task, 3,912 characters more; model and limits, 2 sentences`."""
    parts: list[str] = []
    steps = one.summary.steps if one.summary is not None else ()
    if in_table and steps:
        parts.append(counted(len(steps), "step"))
    by_kind: dict[str, list[WholeText]] = {}
    for text in [] if in_table and steps else _cut_texts(one, in_table=in_table):
        by_kind.setdefault(text.name.partition(" of ")[0], []).append(text)
    for kind, texts in by_kind.items():
        shown = [_shown_chars(one, text, in_table=in_table) for text in texts]
        left = counted(sum(text.chars for text in texts) - sum(shown), "character")
        name = texts[0].name if len(texts) == 1 else f"{kind} of {len(texts)} steps"
        parts.append(f"{name}, {left}{' more' if any(shown) else ''}")
    topics = {topic: texts for topic, texts in one.topics.items() if topic in _TOPICS}
    if topics:
        names = [_TOPICS[topic] for topic in topics]
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        parts.append(f"{listed}, {counted(sum(map(len, topics.values())), 'sentence')}")
    return "; ".join([*parts, "the line that is approved"])


def folded_screen(one: Pending, width: int) -> FoldedScreen:
    return FoldedScreen("\n".join(line.text for line in proposal_lines(one, width)), folded_words(one))


def _what(one: Pending, summary: ProposalSummary) -> str:
    if summary.steps:
        return " ".join(one.topics.get("What", ()))
    from ava_server.approval.plain_text import quoted

    beginning = quoted(one.whole[0].text, TASK_SHOWN).partition('…" and ')
    cut_off = '…"' if beginning[1] else ""
    name = f" ({summary.name})" if summary.name else ""
    return f"{summary.role}: {beginning[0]}{cut_off}{name}"


def _cut_texts(one: Pending, *, in_table: bool = False) -> list[WholeText]:
    """Return the texts of a proposal of which the folded screen does not show all."""
    return [text for text in one.whole if _shown_chars(one, text, in_table=in_table) < text.chars]


def _shown_chars(one: Pending, text: WholeText, *, in_table: bool = False) -> int:
    """Return how many characters of a text stand above the fold: of a task its beginning, of others none."""
    from ava_server.approval.plain_text import TASK_CHARS, one_line, plain_line

    if not text.name.startswith("task"):
        return 0
    in_row = in_table or (one.summary is not None and bool(one.summary.steps))
    most = TASK_CHARS if in_row else TASK_SHOWN
    if text.chars == len(text.text) and len(plain_line(text.text)) <= most:
        return text.chars
    return len(one_line(text.text, most).removesuffix("…"))


def _steps_table(summary: ProposalSummary, width: int) -> list[QuestionLine]:
    """Return the steps of a plan: a row each, with the beginning of its task."""
    if not summary.steps:
        return []
    rows = [("step", "at most", "role", "after")]
    rows += [
        (one_line(step.id), step.most, one_line(step.role), cut(step.after, AFTER_COLUMNS)) for step in summary.steps
    ]
    heads = aligned(rows)
    beside = _beside(heads, width)
    lines = [QuestionLine(heads[0].ljust(beside) + "task" * bool(beside), "quiet")]
    for head, step in zip(heads[1:], summary.steps, strict=True):
        below = [f"{step.note[0].upper()}{step.note[1:]}."] if step.note else []
        first, *more = _with_task(head, step.task, below, beside, width, "    ")
        lines.append(QuestionLine(first, bold=len(step.id)))
        lines += [QuestionLine(part) for text in more for part in _hung(text, width)]
    return lines


# -- several -----------------------------------------------------------------------------------------------------------


def fits_table(waiting: Sequence[Pending]) -> bool:
    return len(waiting) > 1 and all(one.summary is not None for one in waiting)


def several_lines(waiting: Sequence[Pending], width: int) -> list[QuestionLine]:
    """Return several proposals as one table, with what sets some of them apart."""
    table = _Table(waiting, width)
    return [table.head, *(line for row in table.rows for line in row), QuestionLine(""), *table.remarks]


def several_screens(waiting: Sequence[Pending], width: int) -> dict[str, FoldedScreen]:
    """Return what is on the screen of each of several proposals in a table, by its id."""
    table = _Table(waiting, width)
    screens: dict[str, FoldedScreen] = {}
    for one, row in zip(waiting, table.rows, strict=True):
        text = "\n".join(line.text for line in (table.head, *row, *table.remarks))
        screens[one.pending_id] = FoldedScreen(text, folded_words(one, in_table=True))
    return screens


def _said(one: Pending) -> list[str]:
    """Return what else a table says of a proposal, besides its price, its reach and its task."""
    if one.summary is None:
        return []
    rest = (line for topic in ("Where", "How much") for line in one.topics.get(topic, ())[1:])
    return [*rest, *one.summary.warnings, *one.topics.get("Who asked", ())]


class _Table:
    """Several proposals, a row each, and what is said of all of them; its lines fit the width."""

    def __init__(self, waiting: Sequence[Pending], width: int) -> None:
        self._width = width
        summaries = [one.summary for one in waiting if one.summary is not None]
        striking, remarks = _compared(summaries)
        said = [_said(one) for one in waiting]
        common = [line for line in said[0] if all(line in lines for lines in said)]
        named = [(" ", "", "at most", "role", "model")]
        for number, each in enumerate(summaries, 1):
            mark = "!" if number in striking else " "
            named.append(
                (mark, str(number), one_line(each.limits), one_line(each.role), one_line(model_words(each.model)))
            )
        heads = aligned(named)
        beside = _beside(heads, width)
        self._indent = " " * len(f"!  {len(summaries)}  ")
        self._price = len(self._indent) + max(cells(cell[2]) for cell in named)
        self.head = QuestionLine(heads[0].ljust(beside) + "task" * bool(beside), "quiet")
        self.rows = [
            self._row(head, each, one, common, beside, striking=number in striking)
            for number, (head, each, one) in enumerate(zip(heads[1:], summaries, waiting, strict=True), 1)
        ]
        self.remarks = [QuestionLine(line) for line in (*(f"Each of them: {line}" for line in common), *remarks)]

    def _row(
        self, head: str, summary: ProposalSummary, one: Pending, common: Sequence[str], beside: int, *, striking: bool
    ) -> list[QuestionLine]:
        reach = f"{one.pending_id} {summary.reach}."
        below = [reach, *(line for line in _said(one) if line not in common)]
        if can_fold(one):
            below.append(f"{_FOLDED_WORDS}{folded_words(one, in_table=True)}")
        texts = _with_task(head, summary.task, below, beside, self._width, self._indent)
        lines: list[QuestionLine] = []
        for number, text in enumerate(texts):
            emphasis: Emphasis = "look" if striking else "first" if text.strip() == reach else ""
            if text is texts[-1] and text.strip().startswith(_FOLDED_WORDS):
                emphasis = "quiet"
            bold = self._price if number == 0 else 0
            for part in _hung(text, self._width):
                lines.append(QuestionLine(part, emphasis, bold))
                bold = 0
        return lines


def _beside(heads: Sequence[str], width: int) -> int:
    """Return the column at which tasks begin beside the other columns; 0 where there is no room for them."""
    widest = max(map(cells, heads)) + 2
    return widest if width - widest >= TASK_COLUMNS else 0


def _with_task(head: str, task: str, below: list[str], beside: int, width: int, indent: str) -> list[str]:
    """Return the lines of a row: its task from the column `beside` on, or below where there is no room (0)."""
    if beside:
        first, *more = wrapped_lines(task, width - beside, breaks=True)
    else:
        first, more, below = "", [], [task, *below]
    beginning = [head.ljust(beside) + first, *(" " * beside + line.lstrip() for line in more)]
    return [*beginning, *(indent + line for line in below)]


def _hung(text: str, width: int) -> list[str]:
    """Return a line in parts that fit; all but the first are deeper, so that none passes for a line of its own."""
    begins = text.lstrip()
    indent = text[: len(text) - len(begins)]
    return [indent + part for part in wrapped_lines(begins, width - len(indent), breaks=True)]


def _compared(rows: Sequence[ProposalSummary]) -> tuple[set[int], list[str]]:
    """Return the numbers of the proposals that need a closer look, and what all or only some can do as lines.

    A closer look needs what can do something serious; if none can, what can do something that another cannot.
    """
    from ava_server.approval.reach import POWERS, SERIOUS

    everyone: list[str] = []
    some: dict[str, list[int]] = {}
    for power in POWERS:
        held = [number for number, row in enumerate(rows, 1) if power in row.powers]
        if 0 < len(held) < len(rows):
            some[power] = held
        elif held and power in SERIOUS:
            everyone.append(power)
    serious = {number for number, row in enumerate(rows, 1) if SERIOUS.intersection(row.powers)}
    remarks = [f"! All of them can {', '.join(everyone)}."] if everyone else []
    if some:
        apart = (f"{power} ({', '.join(map(str, held))})" for power, held in some.items())
        remarks.append(f"{'! ' * bool(SERIOUS & some.keys())}Only some of them can {', '.join(apart)}.")
    return serious or {number for held in some.values() for number in held}, remarks

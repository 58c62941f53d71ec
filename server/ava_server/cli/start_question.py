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

from ava_audit.units import cap_micros, counted, format_usd
from ava_roles.wrap import add_bars, clean
from ava_server.approval.decide import FoldedScreen
from ava_server.cli import terminal
from ava_server.cli.terminal import aligned, cells, cut, one_line, wrapped_lines
from ava_server.core.ids import model_words
from ava_server.core.names import quote_name

if TYPE_CHECKING:
    from ava_server.approval.proposals import Pending, ProposalSummary, WholeText

MORE = ("m", "more")
TASK_COLUMNS, LEAST_TASK = 40, 24
"""Columns that a step's and a proposal's task has beside the others of its table; with fewer, it is below them."""
CAN_COLUMNS, CLIENT_COLUMNS = 32, 14
"""Columns of what a proposal can do, and of who asked for it, at most."""
NARROW = 60
"""Columns below which a table of proposals does not say who asked for them."""
TASK_SHOWN = 300
"""Characters of a single proposal's task that stand above the fold."""
AFTER_COLUMNS = 24
_SHORT_POWERS = {
    "run without a sandbox": "NO SANDBOX",
    "change files": "change files",
    "change things": "change things",
    "run commands": "commands",
    "use secrets": "secrets",
    "reach the network": "network",
    "read your files": "read files",
}
"""What proposals can do, in the words of a table's cell."""
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
        folds: It is Ava's line on what is folded, and how to see that.
    """

    text: str
    emphasis: Emphasis = ""
    bold: int = 0
    folds: bool = False


class ShownProposals:
    """Proposals before one question on a terminal: folded at first, whole where an answer asks for that.

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
        self._opened: set[str] = set()
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
        screens: dict[str, FoldedScreen] = {}
        for one_id, screen in several_screens(self._waiting, self._width).items():
            if one_id not in self._opened:
                screens[one_id] = replace(screen, text=f"{screen.text}\n{said}")
        return screens

    def show(self) -> None:
        if not self._folded:
            rows = self._show_whole()
        elif len(self._waiting) == 1:
            rows = self._write([*self._titled(self._title), *proposal_lines(self._waiting[0], self._width)])
        else:
            rows = self._write(several_lines(self._waiting, self._width))
        self._say_again(rows)
        self._say_together()

    def reveal(self, answer: str) -> bool:
        """Show what an answer asks to see: with `m` everything, with its number one of several.

        Tell whether it asked that; then the question stands as before.
        """
        if answer in MORE:
            if self._folded:
                self._unfold()  # a second m says no more, and is no answer
            return True
        if len(self._waiting) == 1 or not answer.isdecimal():
            return False
        number = int(answer)
        if not 1 <= number <= len(self._waiting):
            return False
        one = self._waiting[number - 1]
        self._write(self._whole(number, one))
        self._opened.add(one.pending_id)
        return True

    def _unfold(self) -> None:
        self._folded = False
        self._say_again(self._show_whole())
        self._say_together()

    def _show_whole(self) -> int:
        rows = 0
        for number, one in enumerate(self._waiting, 1):
            rows += self._write(self._whole(number, one))
        return rows

    def _whole(self, number: int, one: Pending) -> list[QuestionLine]:
        """Return all of a proposal under its title."""
        title = self._title
        if len(self._waiting) > 1:
            title = f"{number} of {len(self._waiting)}, {one.pending_id}:"
        if not self._stream.isatty():
            return [*self._titled(title), *_as_message(one)]
        return [*self._titled(title), *proposal_lines(one, self._width, whole=True)]

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
    from ava_server.approval.summary import ATTENTION, FACTS, FOLDED, STEPS, TOLD

    topics = one.topics
    lines = [QuestionLine(text, "first") for text in (one.most, *topics.get("Where", ()))]
    lines += [QuestionLine(f"! {text}", "look") for text in topics.get(ATTENTION, ())]
    lines.append(QuestionLine(_what(one, one.summary)))
    lines += map(QuestionLine, topics.get("How much", ()))
    if "Who asked" in topics:
        lines.append(QuestionLine(" ".join(topics["Who asked"])))
    for topic, texts in topics.items():
        if topic not in (*FACTS, *FOLDED, ATTENTION, STEPS):
            lines += map(QuestionLine, texts)
    lines += _steps_table(one.summary, width)
    if not whole:
        return [*lines, QuestionLine(f"Folded: {folded_words(one)}", "quiet", folds=True)]
    for topic, texts in topics.items():
        if topic in FOLDED and topic != TOLD:
            lines += map(QuestionLine, texts)
    for text in _cut_texts(one):
        lines.append(QuestionLine(f"{text.name.capitalize()}, {text.chars:,} characters:", "first"))
        lines += map(QuestionLine, add_bars(text.text).split("\n"))
        chars_left = text.chars - len(text.text)
        if chars_left > 0:
            lines.append(QuestionLine(f"\n(The last {chars_left:,} characters are in `ava show`.)"))
    return [*lines, QuestionLine(f"In one line: {one.approval_line}")]


def _as_message(one: Pending) -> list[QuestionLine]:
    return [*map(QuestionLine, one.message.split("\n")), QuestionLine(one.approval_line)]


def folded_words(one: Pending, *, in_row: int | None = None) -> str:
    """Return what is folded of a proposal, counted: `task, 3,912 characters more; model and limits, 2 sentences`.

    `in_row`: in a row of a table, how many characters of its task that shows at most; a plan's steps are not there.
    """
    from ava_server.approval.summary import FOLDED, TOLD, TOPICS

    parts: list[str] = []
    steps = one.summary.steps if one.summary is not None else ()
    cut_texts = _cut_texts(one, in_row)
    if in_row is not None and steps:
        parts.append(counted(len(steps), "step"))
        cut_texts = []
    by_kind: dict[str, list[WholeText]] = {}
    for text in cut_texts:
        kind = text.name.partition(" of ")[0]
        by_kind.setdefault(kind, []).append(text)
    for kind, texts in by_kind.items():
        name = texts[0].name if len(texts) == 1 else f"{kind} of {len(texts)} steps"
        total = sum(text.chars for text in texts)
        shown = sum(_shown_chars(one, text, in_row) for text in texts)
        more = " more" if shown else ""
        parts.append(f"{name}, {counted(total - shown, 'character')}{more}")
    names: list[str] = []
    sentences = 0
    for topic, texts_of_topic in one.topics.items():
        if topic in FOLDED and topic != TOLD:  # those texts are counted by their characters
            names.append(TOPICS[topic])
            sentences += len(texts_of_topic)
    if names:
        parts.append(f"{_listed(names)}, {counted(sentences, 'sentence')}")
    parts.append("the line that is approved")
    return "; ".join(parts)


def _listed(names: Sequence[str]) -> str:
    """`model`, `model and limits`, `what it lacks, model and limits`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def folded_screen(one: Pending, width: int) -> FoldedScreen:
    return FoldedScreen("\n".join(line.text for line in proposal_lines(one, width)), folded_words(one))


def _what(one: Pending, summary: ProposalSummary) -> str:
    if summary.steps:
        return " ".join(one.topics.get("What", ()))
    from ava_server.approval.plain_text import quoted

    name = f", named {quote_name(summary.name)}" if summary.name else ""
    return f"{summary.who}: {_without_count(quoted(one.whole[0].text, TASK_SHOWN))}{name}"


def _without_count(task: str) -> str:
    """Return a quoted task without the number of characters left out: the line on what is folded has it."""
    beginning, was_cut, _count = task.partition('…" and ')
    return f'{beginning}…"' if was_cut else task


def _cut_texts(one: Pending, in_row: int | None = None) -> list[WholeText]:
    """Return the texts of a proposal of which the folded screen does not show all."""
    return [text for text in one.whole if _shown_chars(one, text, in_row) < text.chars]


def _shown_chars(one: Pending, text: WholeText, in_row: int | None = None) -> int:
    """Return how many characters of a text stand above the fold: of a task its beginning, of others none."""
    from ava_server.approval.plain_text import TASK_CHARS, one_line, plain_line

    if not text.name.startswith("task"):
        return 0
    is_plan = one.summary is not None and bool(one.summary.steps)
    most = TASK_CHARS if is_plan else TASK_SHOWN
    if in_row is not None:
        most = min(in_row, TASK_CHARS)
    if text.chars == len(text.text) and len(plain_line(text.text)) <= most:
        return text.chars
    return len(one_line(text.text, most).removesuffix("…"))


def _steps_table(summary: ProposalSummary, width: int) -> list[QuestionLine]:
    """Return the steps of a plan: a row each, with the beginning of its task."""
    if not summary.steps:
        return []
    rows = [("step", "at most", "role", "after")]
    for step in summary.steps:
        rows.append((one_line(step.id), step.most, one_line(step.role), cut(step.after, AFTER_COLUMNS)))
    heads = aligned(rows)
    beside = _beside(heads, width, TASK_COLUMNS)
    lines = [_head(heads[0], beside)]
    for head, step in zip(heads[1:], summary.steps, strict=True):
        below = [f"{step.note[0].upper()}{step.note[1:]}."] if step.note else []
        first, *more = _with_task(head, step.task, below, beside, width, "    ")
        lines.append(QuestionLine(first, bold=len(step.id)))
        lines += [QuestionLine(part) for text in more for part in _hung(text, width)]
    return lines


def _head(names: str, beside: int) -> QuestionLine:
    """Return the names of a table's columns; the tasks begin at `beside`, or (0) stand below the rows."""
    return QuestionLine(f"{_padded(names, beside)}task" if beside else names, "quiet")


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


# -- several -----------------------------------------------------------------------------------------------------------


def fits_table(waiting: Sequence[Pending]) -> bool:
    return len(waiting) > 1 and all(one.summary is not None for one in waiting)


def several_lines(waiting: Sequence[Pending], width: int, *, asks: bool = True) -> list[QuestionLine]:
    """Return several proposals as one table, a row each, and below it what a person must know of all or some.

    Where nobody is asked (not `asks`), the rows have the ids: there is no question in which a number opens one.
    """
    table = _Table(waiting, width, asks=asks)
    lines = [table.head]
    for row in table.rows:
        lines += row
    return [*lines, QuestionLine(""), *table.notes]


def several_screens(waiting: Sequence[Pending], width: int) -> dict[str, FoldedScreen]:
    """Return what is on the screen of each of several proposals in a table, by its id."""
    table = _Table(waiting, width)
    screens: dict[str, FoldedScreen] = {}
    for one, row, folded in zip(waiting, table.rows, table.folded, strict=True):
        text = "\n".join(line.text for line in (table.head, *row, *table.notes))
        screens[one.pending_id] = FoldedScreen(text, folded)
    return screens


def say_table(waiting: Sequence[Pending]) -> None:
    """Write several proposals as one table where nobody is asked: into a pipe, or a file."""
    for line in several_lines(waiting, terminal.screen_columns(), asks=False):
        terminal.say(line.text)
    terminal.say(f"All of them: {together(waiting, {})}")


class _Table:
    """Several proposals, a row each, and notes: what else is said of all of them or of some; its lines fit the width.

    A row has a mark (a closer look is needed), number, price, what it can do, who asked for it, and its task. Only the
    number tells which proposal a note is about: nothing that others wrote can begin a line.
    """

    def __init__(self, waiting: Sequence[Pending], width: int, *, asks: bool = True) -> None:
        self._width = width
        self._asks = asks
        proposals = [(one, one.summary) for one in waiting if one.summary is not None]
        self._striking, compared = _compared([summary for _one, summary in proposals])
        names_client = width >= NARROW and any(one.client for one, _summary in proposals)
        id_name = () if asks else ("proposal",)
        price_at = 2 + len(id_name)
        cells_of: list[tuple[str, ...]] = [("", "", *id_name, "at most", "can", "asked by" if names_client else "")]
        for number, (one, summary) in enumerate(proposals, 1):
            cells_of.append(self._cells(number, one, summary))
        heads = aligned(cells_of, right=(price_at,))
        task_column = _beside(heads, width, LEAST_TASK)  # 0: the task stands below
        self._indent = " " * len(f"!  {len(proposals)}  ")
        self._price = len(self._indent) + max(cells(cell[price_at]) for cell in cells_of)
        self.head = _head(heads[0], task_column)
        self.rows: list[list[QuestionLine]] = []
        self.folded: list[str] = []
        for number, (head, (one, summary)) in enumerate(zip(heads[1:], proposals, strict=True), 1):
            task, shown = _task_in_row(summary, width - (task_column or len(self._indent)))
            emphasis: Emphasis = "look" if number in self._striking else ""
            if task_column:
                row = [QuestionLine(f"{_padded(head, task_column)}{task}", emphasis, self._price)]
            else:
                row = [QuestionLine(head, emphasis, self._price), QuestionLine(f"{self._indent}{task}")]
            self.rows.append(row)
            self.folded.append(folded_words(one, in_row=shown) if can_fold(one) else "")
        self.notes = self._notes(proposals, compared)

    def _cells(self, number: int, one: Pending, summary: ProposalSummary) -> tuple[str, ...]:
        mark = "!" if number in self._striking else " "
        price = "free" if one.free else format_usd(one.max_cost_micros, exact=True)
        powers = [_SHORT_POWERS.get(power, power) for power in summary.powers]
        can = ", ".join(powers) or "nothing outside"
        can = cut(can, min(CAN_COLUMNS, self._width // 3))
        client = ""
        if self._width >= NARROW:
            client = cut(one_line(one.client), CLIENT_COLUMNS)
        ids = () if self._asks else (one.pending_id,)
        return (mark, str(number), *ids, price, can, client)

    def _notes(
        self, proposals: Sequence[tuple[Pending, ProposalSummary]], compared: Sequence[str]
    ) -> list[QuestionLine]:
        reach = [[f"{summary.reach}."] for _one, summary in proposals]
        terms = [[f"{_terms(summary)}."] for _one, summary in proposals]
        said = [_said(one, self._width) for one, _summary in proposals]
        folded = [[words] if words else [] for words in self.folded]
        ids = ", ".join(f"{number} {one.pending_id}" for number, (one, _summary) in enumerate(proposals, 1))
        notes = self._grouped(reach, "All of them {line}", "{numbers} {line}", "first")
        notes += self._grouped(said, "Each of them: {line}", "{numbers}: {line}")
        notes += self._grouped(terms, "Each of them: {line}", "{numbers}: {line}")
        for line in compared:
            notes += self._fitted(QuestionLine(line))
        notes += self._grouped(folded, "Folded of each: {line}", "Folded of {numbers}: {line}", "quiet")
        if not self._asks:
            return [note for note in notes if not note.folds]
        return [*notes, *self._fitted(QuestionLine(f"A number opens one: {ids}.", "quiet", folds=True))]

    def _grouped(
        self, lines_of: Sequence[Sequence[str]], of_all: str, of_some: str, emphasis: Emphasis = ""
    ) -> list[QuestionLine]:
        """Return each line once, in the words for all proposals or for the numbers of those that have it."""
        numbers_of: dict[str, list[int]] = {}
        for number, lines in enumerate(lines_of, 1):
            for line in lines:
                numbers_of.setdefault(line, []).append(number)
        is_quiet = emphasis == "quiet"
        notes: list[QuestionLine] = []
        for line, numbers in numbers_of.items():
            words = of_all if len(numbers) == len(lines_of) else of_some
            text = words.format(numbers=", ".join(map(str, numbers)), line=line)
            is_striking = not is_quiet and not self._striking.isdisjoint(numbers)
            notes += self._fitted(QuestionLine(text, "look" if is_striking else emphasis, folds=is_quiet))
        return notes

    def _fitted(self, note: QuestionLine) -> list[QuestionLine]:
        """Return a note in lines of which all but the first are deeper than any row: none can pass for one."""
        first, *more = wrapped_lines(note.text, self._width - len(self._indent), breaks=True)
        return [note._replace(text=first), *(note._replace(text=self._indent + part.lstrip()) for part in more)]


def _task_in_row(summary: ProposalSummary, room: int) -> tuple[str, int]:
    """Return the beginning of a task in a row, and how many characters of the task those are at most."""
    words = _without_count(summary.task)
    if summary.steps:
        named = f" {quote_name(summary.name)}" if summary.name else ""
        words = f"plan{named} of {counted(len(summary.steps), 'step')}: {summary.steps[0].task}"
    shown = cut(words, room)
    whole = shown == words
    return shown, len(shown) if whole else max(len(shown) - len('"…'), 0)


def _terms(summary: ProposalSummary) -> str:
    """`researcher, custom:test, at most $0.50 (likely $0.04), 10 min`."""
    return f"{summary.who}, {one_line(model_words(summary.model))}, at most {summary.limits}"


def _said(one: Pending, width: int) -> list[str]:
    """Return what else a table says of a proposal, besides its price, its reach, its task, and who asked for it."""
    if one.summary is None:
        return []
    lines = [*one.topics.get("Where", ())[1:], *one.topics.get("How much", ())[1:], *one.summary.warnings]
    asked = one.topics.get("Who asked", [])
    return [*lines, *(asked[1:] if one.client and width >= NARROW else asked)]


def _beside(heads: Sequence[str], width: int, least: int) -> int:
    """Return the column at which tasks begin beside the other columns; 0 where they would have fewer than `least`."""
    widest = max(map(cells, heads)) + 2
    return widest if width - widest >= least else 0


def _with_task(head: str, task: str, below: list[str], beside: int, width: int, indent: str) -> list[str]:
    """Return the lines of a row: its task from the column `beside` on, or below where there is no room (0)."""
    if beside:
        first, *more = wrapped_lines(task, width - beside, breaks=True)
    else:
        first, more, below = "", [], [task, *below]
    beginning = [_padded(head, beside) + first, *(" " * beside + line.lstrip() for line in more)]
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

    of_all: list[str] = []
    of_some: dict[str, list[int]] = {}
    for power in POWERS:
        numbers = [number for number, row in enumerate(rows, 1) if power in row.powers]
        if 0 < len(numbers) < len(rows):
            of_some[power] = numbers
        elif numbers and power in SERIOUS:
            of_all.append(power)
    lines: list[str] = []
    if of_all:
        lines.append(f"! All of them can {', '.join(of_all)}.")
    if of_some:
        mark = "! " if SERIOUS & of_some.keys() else ""
        powers = [f"{power} ({', '.join(map(str, numbers))})" for power, numbers in of_some.items()]
        lines.append(f"{mark}Only some of them can {', '.join(powers)}.")
    striking = {number for number, row in enumerate(rows, 1) if SERIOUS.intersection(row.powers)}
    if not striking:
        for numbers in of_some.values():
            striking.update(numbers)
    return striking, lines

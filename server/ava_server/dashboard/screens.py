"""The screens that open over the list: a run, its log, the help, and the questions that a person answers.

A run's screen has its task, steps, tools, cost and result; its log has its entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import anyio
from rich.text import Text
from textual import work
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Input, Static

from ava_audit.errors import AuditError
from ava_audit.search import LogQuery
from ava_audit.units import format_ts
from ava_roles.errors import RolesError
from ava_server.cli.log_look import run_at_once
from ava_server.cli.results import cost_text, drawn_result
from ava_server.cli.show import asked_lines, decided_lines
from ava_server.cli.start_question import MORE, QuestionLine, folded_screen, proposal_lines
from ava_server.cli.status_lines import both_ends, fitting, folded, joined, remarks
from ava_server.cli.terminal import cut
from ava_server.core.errors import AvaError
from ava_server.core.ids import label, state_words
from ava_server.core.threads import read_apart
from ava_server.render.entry_lines import BOOKKEEPING, entry_words, is_trouble
from ava_server.render.run_view import cost_of, run_answer
from ava_server.service.record_requests import DETAIL

if TYPE_CHECKING:
    from ava_server.approval.decide import FoldedScreen
    from ava_server.cli.record_client import Records
    from ava_server.cli.status_overview import OverviewReader
    from ava_server.dashboard.decisions import DecisionQuestion
    from ava_server.dashboard.live import LivePage
    from ava_server.service.run_records import RunDetail

LOOK_EVERY_S, BEHIND_S = 0.7, 0.05
"""Seconds between two looks at a run, and at a terminal that has not read the question yet."""
_UNFOLDS = (
    "y or yes and Enter agrees · m and Enter shows all · anything else declines · Esc back · ↑↓ scroll",
    "y, Enter: agree · m, Enter: all · Esc: back · ↑↓: scroll",
    "Esc back",
)
_SENDS = ("Enter sends · Esc back · ↑↓ Page Up/Down scroll", "Enter sends · Esc back")
LEAST_WIDTH, LEAST_ROOM = 40, 3
"""Columns, and lines of text, without which nothing is decided: the question could not be read."""
HELP = """\
The list has your runs: first those that wait for you, then the others, then those that ended within the hour.

Up, Down, Page Up, Page Down, Home, End   select a run, or scroll a text
Enter   open the selected run: its task, steps, tools, cost and result
a   approve a proposal, or allow a run near a cap more
r   reject a proposal, or decline to allow more
c   cancel a run or withdraw a proposal
s   send a message to a run, or answer its question
/   filter the list by words: of the task, role, name, id, state or model. Enter keeps the filter, Esc removes it
l   follow the run's log
Esc, q   go back; in the list, q quits
?   show this help
Ctrl-C   quit from anywhere; Ctrl-Z suspends

a, r and c first show what is decided; m shows what is folded. To agree, type y or yes, and press Enter. \
Runs continue when you quit.

Bars show time, turns, tool calls, tokens and money against their caps: used, reserved, and left.
Where bars have no room, there are only figures."""


Done = Callable[[str, Exception | None], None]
"""Called with what came of a decision: a sentence, or why it was refused."""


class _Status(Protocol):
    """What the screens use of the app; see `StatusApp`."""

    reader: OverviewReader

    @property
    def said(self) -> tuple[str, bool]: ...
    @said.setter
    def said(self, said: tuple[str, bool]) -> None: ...
    @property
    def behind(self) -> bool: ...
    @property
    def clock(self) -> str: ...
    @property
    def screen(self) -> object: ...
    def page(self, width: int) -> LivePage: ...
    def tell(self, words: str, *, failed: bool = False) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def drop_keys(self) -> None: ...
    def accept_keys(self) -> None: ...
    def carry_out(
        self, decision: DecisionQuestion, answer: str, pin: str, done: Done, screen: FoldedScreen | None = None
    ) -> object: ...


class TextScreen(Screen[None]):
    """A text under a title, which scrolls, with a line of keys below; `run_id` is None for the help."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,Q", "back", show=False),
        Binding("up", "move('scroll_up')", show=False),
        Binding("down", "move('scroll_down')", show=False),
        Binding("pageup", "move('scroll_page_up')", show=False),
        Binding("pagedown", "move('scroll_page_down')", show=False),
        Binding("home", "move('scroll_home')", show=False),
        Binding("end", "move('scroll_end')", show=False),
    ]
    keys: tuple[str, ...] = ("Esc or q back · ↑↓ scroll", "Esc or q back")
    AUTO_FOCUS = ""

    def __init__(self, status: _Status, title: str, run_id: str | None = None) -> None:
        super().__init__()
        self.status = status
        self.run_id = run_id
        self._heading = title
        self._shown: dict[str, Text] = {}
        self._parts = {name: Static(markup=False, classes="part") for name in ("top", "text", "note", "keys")}
        self._room = VerticalScroll(self._parts["text"], can_focus=False)
        self._asked: tuple[Static | Input, ...] = ()

    def compose(self) -> Iterable[Static | VerticalScroll | Input]:
        yield from (self._parts["top"], self._room, self._parts["note"], *self._asked, self._parts["keys"])

    def on_mount(self) -> None:
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def action_back(self) -> None:
        self.dismiss()

    def action_move(self, method: str) -> None:
        getattr(self._room, method)(animate=False)

    def content(self, width: int) -> Iterator[Text]:
        yield from folded(HELP, width)

    def note(self) -> Text:
        """Return the line below the text: what the last key has done."""
        words, failed = self.status.said
        return _wrapped(words, self.size.width, "bold red" if failed else "bold")

    def draw(self) -> None:
        """Draw, unless the terminal still reads what it was sent before."""
        if not self.is_mounted or self.status.behind:
            return
        width = max(self.size.width - 1, 1)  # the scroll bar's
        text = Text("\n", no_wrap=True).join(self.content(width))  # which may know the heading
        parts = {
            "top": both_ends(joined((self._heading, "bold reverse")), self.status.clock, width),
            "text": text,
            "note": self.note(),
            "keys": Text(fitting(self.keys, width), style="dim"),
        }
        for name, text in parts.items():
            if self._shown.get(name) != text:
                self._shown[name] = text
                self._parts[name].update(text)


class RunScreen(TextScreen):
    """A run: its task, steps, tools, cost and result, kept up to date."""

    keys: tuple[str, ...] = (
        "Esc or q back · ↑↓ scroll · a approve · r reject · c cancel · s send · l log",
        "Esc or q back  a approve  r reject  c cancel  s send  l log",
        "Esc or q back",
    )

    def __init__(self, status: _Status, title: str, run_id: str) -> None:
        super().__init__(status, title, run_id)
        self._detail: RunDetail | None = None
        self._trouble = ""

    def on_mount(self) -> None:
        super().on_mount()
        self._look()

    @work
    async def _look(self) -> None:
        try:
            while True:
                try:
                    await self.look()
                    self._trouble = ""
                except (AvaError, AuditError) as error:
                    self._trouble = str(error)
                self.draw()
                await anyio.sleep(LOOK_EVERY_S)
        except Exception as error:
            self.status.fail(error)

    async def look(self) -> None:
        run_id, records = self.run_id or "", self.status.reader.records
        self._detail = await read_apart(lambda: run_at_once(records.get(DETAIL, run_id=run_id)))

    def content(self, width: int) -> Iterator[Text]:
        if self._trouble:
            yield from folded(f"! {self._trouble}", width, "bold red", breaks=True)
        yield from self._read_lines(width)

    def _read_lines(self, width: int) -> Iterator[Text]:
        if self._detail is None:
            yield Text("Reading …")
            return
        run = self._detail.run
        self._heading = f"{label(run.row)}: {state_words(run.state)}"
        yield from detail_lines(self._detail, self.status.page(width))


class LogScreen(RunScreen):
    """A run's entries in the log, the newest last; at its end it follows them."""

    def __init__(self, status: _Status, title: str, run_id: str) -> None:
        super().__init__(status, title, run_id)
        self._lines: tuple[tuple[str, bool], ...] = ()
        self._upto = 0

    async def look(self) -> None:
        run_id, records = self.run_id or "", self.status.reader.records
        found = await read_apart(lambda: run_at_once(read_log(records, run_id, self._upto)))
        follows = self._upto == 0 or self._room.scroll_offset.y >= self._room.max_scroll_y
        self._upto, self._lines = found.upto, (*self._lines, *found.lines)[-ENTRIES:]
        if follows and found.lines:
            self.call_after_refresh(self._room.scroll_end, animate=False)

    def _read_lines(self, width: int) -> Iterator[Text]:
        if self._upto == 0:
            yield Text("Reading …")
            return
        yield from log_lines(self._lines, width)


class QuestionScreen(TextScreen):
    """A question to a person, under everything that it is about; one key alone never answers it.

    Of a proposal some is folded until `m` is typed; who approves without that has what was shown put on record.
    """

    keys: tuple[str, ...] = (
        "y or yes and Enter agrees · anything else declines · Esc back · ↑↓ Page Up/Down scroll",
        "y, Enter: agree · Esc: back · ↑↓: scroll",
        "Esc back",
    )

    def __init__(self, status: _Status, decision: DecisionQuestion) -> None:
        super().__init__(status, decision.title, decision.run.id)
        self._decision = decision
        self.keys = _SENDS if decision.words else self.keys
        self._question = Static(markup=False, classes="part")
        self._input = Input(compact=True, select_on_focus=False)
        self._asked = (self._question, self._input)
        self._asks_pin = self._busy = False
        self._folded = decision.proposal is not None
        self.keys = _UNFOLDS if self._folded else self.keys
        self._note, self._failed, self._answer = "", False, ""

    def on_mount(self) -> None:
        """Show what the question is about, and then ask: what was typed before does not count."""
        super().on_mount()
        self._input.focus()
        self.call_after_refresh(self._begin)
        self._watch()

    @work
    async def _watch(self) -> None:
        """Withdraw the question when it is decided elsewhere; words that were typed stay, and are refused if sent."""
        from ava_server.dashboard.decisions import why_withdrawn

        reader, decision = self.status.reader, self._decision
        while True:
            await anyio.sleep(LOOK_EVERY_S)
            why: str | None = None
            with suppress(AvaError, AuditError):  # the question stays; an answer says what is wrong
                why = await read_apart(lambda: run_at_once(why_withdrawn(decision, reader)))
            if why is None or self._busy:
                continue
            if decision.words:
                if not self._note:  # else what it says is about the answer
                    self.say(why, failed=True)
                return
            if self.status.screen is self:
                self.status.said = (why, True)
                self.dismiss()
            return

    def _begin(self) -> None:
        """Ask once the text is on the terminal, also where that reads slowly."""
        self.draw()
        if "text" not in self._shown or self.status.behind:
            self.set_timer(BEHIND_S, self._begin)
            return
        self.status.accept_keys()
        self._ask()

    def content(self, width: int) -> Iterator[Text]:
        proposal = self._decision.proposal
        if proposal is None:
            yield from folded(self._decision.text, width, breaks=True)
            return
        for line in proposal_lines(proposal, width, whole=not self._folded):
            yield from _question_line(line, width)

    def note(self) -> Text:
        """Return what is wrong with the answer, or that more is to be read."""
        return _wrapped(self._note, self.size.width, "bold red" if self._failed else "bold")

    def action_back(self) -> None:
        """Decline, or leave what is being done to itself."""
        self.status.said = (f"{self._decision.title}: still being carried out …" if self._busy else "", False)
        if not self._busy and self._decision.declined:
            self.status.said = (self._decision.declined, False)
        self.dismiss()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        answer = event.value.strip()
        if self._busy:
            return None
        if self._asks_pin:
            if not answer:
                return self.say("No PIN is typed yet.")
            return self._carry_out(self._answer, answer)
        if self._folded and answer.lower() in MORE:
            self._folded, self.keys = False, QuestionScreen.keys
            self.status.drop_keys()  # what was typed before the rest is on the screen does not count
            self.draw()
            self.call_after_refresh(self._begin)
            return None
        agrees = self._decision.agrees(answer)
        is_text = bool(self._decision.words) and not (self._decision.pin and agrees)
        if is_text:
            if not answer:
                return self.say("Nothing is typed yet.")
            return self._carry_out(answer, "")
        if not agrees:
            return self.action_back()
        if self._room.scroll_offset.y < self._room.max_scroll_y:
            return self.say("Read it to its end first, with Page Down or the arrow keys.", failed=True)
        if self.size.width < LEAST_WIDTH or self._room.size.height < LEAST_ROOM:
            return self.say("Make the terminal larger, so that you can read what you decide.", failed=True)
        if self._decision.pin:
            self._asks_pin, self._answer = True, answer
            return self._ask()
        return self._carry_out(answer, "")

    def _ask(self) -> None:
        decision = self._decision
        question = "Approval PIN (not shown):" if self._asks_pin else decision.question
        if not decision.words and not self._asks_pin:
            question += f" [y/N]{' (more: m)' if self._folded else ''}"
        self._question.update(joined((question, "bold")))
        self._input.password = self._asks_pin
        self._input.value = ""

    def say(self, words: str, *, failed: bool = False) -> None:
        self._note, self._failed = words, failed
        self.draw()

    def _carry_out(self, answer: str, pin: str) -> None:
        self._busy = True
        self.say("One moment …")
        self._input.disabled = True
        if self._asks_pin:
            self._input.value = ""
        proposal = self._decision.proposal
        screen = folded_screen(proposal, max(self.size.width - 1, 1)) if proposal is not None and self._folded else None
        self.status.carry_out(self._decision, answer, pin, self._finish, screen)

    def _finish(self, said: str, error: Exception | None) -> None:
        """After a refusal, the answer can be corrected and is still there."""
        if not self.is_attached or self.status.screen is not self:
            self.status.tell(said or str(error), failed=error is not None)
            return
        if error is None:
            self.status.said = (said, False)
            self.dismiss()
            return
        self._busy = False
        self._input.disabled = False
        if not self._decision.words:
            self._ask()
        self._input.focus()
        self.say(str(error), failed=True)


REFUSALS = (AvaError, AuditError, RolesError)
"""What is said to the person; any other exception is a fault of Ava's own."""


def _wrapped(text: str, width: int, style: str) -> Text:
    return Text("\n", no_wrap=True).join(folded(text, max(width, 1), style, breaks=True))


_EMPHASIS = {"first": "bold", "look": "bold yellow", "quiet": "dim", "": ""}


def _question_line(line: QuestionLine, width: int) -> Iterator[Text]:
    parts = list(folded(line.text, width, _EMPHASIS[line.emphasis], breaks=True))
    if parts and line.bold:
        parts[0].stylize("bold", 0, line.bold)
    yield from parts or [Text()]


# -- a run as lines ----------------------------------------------------------------------------------------------------

ENTRIES, LINE_CHARS = 1_000, 1_000
"""Log entries of one run that are shown, the newest, and characters of an entry."""


def detail_lines(detail: RunDetail, page: LivePage) -> Iterator[Text]:
    """Yield what a person looks for first: the result, the question or the proposal; then the rest."""
    run, row, width = detail.run, detail.run.row, page.width
    answer = run_answer(run)
    yield from folded("\n".join(filter(None, (run.activity, remarks(run)))), width)
    if row.started_us is not None:
        yield from page.bars(run.caps)
    if row.ended:
        yield Text()
        yield joined(("Result", "bold"))
        for line in drawn_result(answer, width, short=True).split("\n"):
            yield Text.from_ansi(line)
    if run.question is not None:
        yield from _titled(run.question.kind.title, run.question.drawn, width)
    if detail.waiting is not None:
        yield from _titled("What would start", f"{detail.waiting.message}\n\n{detail.waiting.approval_line}", width)
    yield Text()
    yield from folded("\n".join(asked_lines(row, detail.texts, False, width)), width)
    if detail.waiting is None and run.caps:
        yield from _titled("Approval", "\n".join(decided_lines(row, run.state, detail.decided, False)), width)
    if row.started_us is None:
        return
    if run.result is None:  # else that has both
        cost = cost_text(answer) if row.ended and not run.free else cost_of(run)
        called = ", ".join(f"{tool} {count}" for tool, count in detail.tools.items()) or "none"
        yield from folded(f"Cost: {cost}\nTools called: {called}", width)
    yield from _steps(detail, page)


def _steps(detail: RunDetail, page: LivePage) -> Iterator[Text]:
    if detail.run.row.is_plan and not detail.steps:
        return
    yield Text()
    more = sum(detail.tools.values()) - len(detail.steps)
    yield joined((f"Steps: turn {detail.run.row.turns}", "bold"), f" ({more} earlier ones: l)" if more > 0 else "")
    yield from (page.step_line(step) for step in detail.steps)


def _titled(title: str, text: str, width: int) -> Iterator[Text]:
    yield Text()
    yield joined((title, "bold"))
    yield from folded(text, width)


@dataclass(frozen=True)
class LogPart:
    """Entries of a run as lines, each with whether it reports trouble, and the last `seq` that was read."""

    lines: tuple[tuple[str, bool], ...]
    upto: int


async def read_log(records: Records, run_id: str, after: int) -> LogPart:
    """Return what a run has in the log after an entry, without the bookkeeping. Blocking."""
    page = await records.search(LogQuery(runs=(run_id,), without=BOOKKEEPING, after_seq=after or None, limit=ENTRIES))
    lines = tuple(
        (f"{format_ts(entry.ts_us)[11:]} {cut(entry_words(entry), LINE_CHARS)}", is_trouble(entry))
        for entry in page.entries[::-1]
    )
    return LogPart(lines, page.upto)


def log_lines(lines: tuple[tuple[str, bool], ...], width: int) -> Iterator[Text]:
    """Entries that report trouble are shown whole."""
    for line, trouble in lines:
        if not trouble:
            yield joined(line)
            continue
        yield from folded(line, width, "red")

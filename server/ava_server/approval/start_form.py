"""The question to the person before subagents start, where the client can ask one: its text and its form.

The figures are the proposal's, from the log. In the form a person may lower limits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from ava_audit.units import MICROS_PER_CENT, MICROS_PER_USD, entered_micros, format_usd, now_us
from ava_roles.wrap import list_names
from ava_server.approval.choose import LEAD, Row, choose, row_ends
from ava_server.approval.decide import FoldedScreen
from ava_server.approval.decisions import (
    Approval,
    CheckedApproval,
    NotAgreed,
    PlanLimits,
    ProposalChange,
    lowered_by_call,
    lowered_words,
)
from ava_server.approval.plain_text import one_line
from ava_server.approval.question_rows import last_line, question_rows, warning_rows
from ava_server.approval.reach import reach_words, short_deeds, short_folders
from ava_server.approval.shown import proposal_rows
from ava_server.approval.summary import (
    ATTENTION,
    TOGETHER,
    WINDOW_COLUMNS,
    DayLeft,
    SummaryRow,
    likely_line,
    several_line,
    several_note,
    task_starts,
)
from ava_server.core.errors import BadInput
from ava_server.core.names import named_all
from ava_server.run_config.config import RunConfig
from ava_server.run_config.run_cap import COST, TIME, TOKENS, RunCap, caps_text

_IN_FORM: Mapping[RunCap, tuple[str, str, float]] = {
    COST: ("max_cost_dollars", "dollars", MICROS_PER_USD),
    TOKENS: ("max_tokens", "tokens", 1),
    TIME: ("max_minutes", "minutes", 60),
}
"""The field of a cap in the form, its unit there, and how many of the cap's own units that is."""
CHOICE, YES, NO = "decision", "Yes", "No"
LEAST_MINUTES = 0.5
LINES = 16
"""Most rows of a screen that a question takes: of 24, Codex needs six for its own, and two say that it asks again."""
MOST_LAST_LINES = 5
"""Most of several that the end of their question names."""
REACH_CHARS = 240
"""Characters of what several reach, in one sentence; the rows of each have it whole."""
ASKED = "what it asks"
"""The topic of the lines of a run's own question."""
MOST_NUMBERS = 6
"""Most numbers of proposals that a sentence about some of several begins with."""
_LARGEST = 1e15
"""A number above it is refused: infinity, NaN, or an integer that does not fit a float."""


NOT_AGREED: Mapping[NotAgreed, str] = {
    "decline": "the person declined",
    "cancel": "the person closed the question, or nobody saw it",
    "silent": "the person has not answered in time; a later answer starts nothing",
}
"""Why nothing started, by the outcome of the question."""


@dataclass(frozen=True)
class LimitField:
    """A limit in the form: its lowest value and its highest, which is also the default, in its unit there.

    `now` is the limit as it is, as the configuration has it.
    """

    cap: RunCap
    title: str
    least: float
    most: float
    now: float = 0

    @property
    def name(self) -> str:
        return _IN_FORM[self.cap][0]

    def words(self, value: float) -> str:
        """Return a value of this limit for people: dollars, or a number of minutes."""
        if self.cap is COST:
            return format_usd(round(value * MICROS_PER_USD), exact=True)
        return f"{value:.10g}"

    def stored(self, value: float) -> Any:
        """Return a value of the form as the configuration has it; dollars are rounded down to cents."""
        if self.cap is COST:
            return entered_micros(value)
        if self.cap is TIME:
            return value * 60
        return math.floor(round(value, 3))

    def schema(self) -> dict[str, Any]:
        return {
            "type": "number",
            "title": self.title,
            "description": f"From {self.words(self.least)} to {self.words(self.most)}.",
            "minimum": self.least,
            "maximum": self.most,
            "default": self.most,
        }


@dataclass(frozen=True)
class TextField:
    """A text in the form: its name, its title, and the texts to choose from, if there are any."""

    name: str
    title: str
    options: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string", "title": self.title}
        if self.options:
            schema["enum"] = list(self.options)
        return schema


@dataclass(frozen=True)
class Question:
    """What a person is asked. Lines end in a space, for clients that join them (Codex 0.169 does).

    Attributes:
        fields: The fields of the form; all of them may be left empty.
        invitation: The last sentence, which points to the form.
        without_form: The last sentence for a client that shows no form.
        wrong: Why it is asked again, in a sentence: the form that came back could not be used.
        screen: What the person sees of it where that is not all; None where it is.
    """

    text: str
    fields: tuple[LimitField | TextField, ...]
    invitation: str = ""
    without_form: str = ""
    wrong: str = ""
    screen: FoldedScreen | None = None

    @property
    def message(self) -> str:
        question = self.text + self.invitation
        return f"{self.wrong} \n \n{question}" if self.wrong else question

    def as_yes_or_no(self) -> Question:
        """Return the question for a client that shows no form, only a choice.

        The choice is a field, because a client may accept a form without fields by itself (Codex 0.169 does, with full
        access).
        """
        choice = TextField(CHOICE, "Your decision", (YES, NO))
        return replace(self, fields=(choice,), invitation=self.without_form)

    def schema(self) -> dict[str, Any]:
        properties = {each.name: each.schema() for each in self.fields}
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if CHOICE in properties:
            schema["required"] = [CHOICE]
        return schema

    def sha(self) -> str:
        """Return the hash of what is asked: an answer counts for this question only, also where it is asked again."""
        shown = json.dumps([self.text + self.invitation, self.schema()], ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(shown.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Reply:
    """The outcome of a question. `silent`: no answer came in the time that a call may take."""

    action: Literal["accept"] | NotAgreed
    content: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class PageQuestion:
    """A question that a person answers on one of Ava's pages; the client only opens the page, and learns no answer.

    The address has no token or code: a person without a session signs in there.
    """

    message: str
    url: str

    def sha(self) -> str:
        """Return the hash of everything that is shown."""
        return hashlib.sha256(json.dumps([self.message, self.url]).encode()).hexdigest()


class AnsweredLater(Exception):
    """Raised to end a call with a question: the client asks the person and calls again with the answer.

    Attributes:
        proposal: The proposal that the call has made, which the next call must not make again.
        again: How often it was asked again, because the form that came back could not be used.
    """

    def __init__(self, question: Question | PageQuestion, proposal: str | None = None, again: int = 0) -> None:
        super().__init__("the person is asked, and the client calls again with the answer")
        self.question = question
        self.proposal = proposal
        self.again = again

    @property
    def state(self) -> str:
        """What the client keeps until then: the question's hash, a + for each repetition, its time, the proposal."""
        question = f"{self.question.sha()}{'+' * self.again}@{now_us()}"
        return question if self.proposal is None else f"{question} {self.proposal}"


class Person(Protocol):
    """The person whom a client can ask during a call.

    Attributes:
        fills_forms: The client shows the fields of a question.
        lines: How many lines of a question the client shows.
    """

    fills_forms: bool
    lines: int

    async def ask(self, question: Question, use: Callable[[Reply], object]) -> Reply:
        """Ask, and return the outcome; twice more at most where `use` raises `BadInput`. May raise AnsweredLater."""
        ...


class PageOpener(Protocol):
    """The client of one call that can open a page in its person's browser."""

    async def address(self) -> str | None:
        """Return the address of the pages where this person can decide; None if they cannot be served."""
        ...

    def knows(self, question: PageQuestion, opened: Container[str]) -> bool:
        """Tell whether this client has asked the question: in this call, or in an earlier one as `opened` says."""
        ...

    async def open(
        self, question: PageQuestion, decided: Callable[[], Awaitable[None]], opened: set[str]
    ) -> NotAgreed | None:
        """Send the person to a page, and wait while the call may last. Return None once `decided` has returned.

        Nothing that the client answers is a decision.

        `decided`: returns when the person has decided. `opened`: the hashes of questions whose page was opened: none is
        opened twice.

        Raises:
            AnsweredLater: The client opens the page and calls again.
        """
        ...


LinkNeed = Literal["first", "expired", "used"]
"""For a new proposal; where its last link has expired; or also where somebody, perhaps a preview, has opened it."""


class ProposalLinks(Protocol):
    """The links to pages of proposals for the person behind one call.

    Attributes:
        renewed: Those that were made in place of earlier ones, for the answer but not for the log.
    """

    renewed: list[str]

    @property
    def possible(self) -> bool:
        """Whether pages are installed; they may still be starting."""
        ...

    async def link(self, ids: Sequence[str], need: LinkNeed) -> str | None:
        """Return the address of the page for proposals; on this machine it works once.

        None where pages cannot be served yet, or the last link is still good. Raises AvaError if they cannot be served.
        """
        ...


def question(checked: CheckedApproval, host_lines: int = LINES) -> Question:
    """Return the question that asks a person to approve proposals, in at most `LINES` rows of a screen.

    `host_lines`: how many lines of it the host is known to show. What a person does not see is `Question.screen`.
    """
    is_several = checked.plan_cap is not None
    if checked.plan_cap is None:
        rows = _rows_of_one(checked)
    else:
        rows = _rows_of_several(checked, checked.plan_cap)
    asks = "Start them?" if is_several else "Start it?"
    last = [*_last_lines(checked.members), asks]
    lines, missing = _lines(rows, last, _where_is_all(checked), spaced=True)
    text = " \n".join(lines)
    screen = FoldedScreen("\n".join(lines), missing) if missing else None
    if host_lines < LINES:
        seen = choose(rows, WINDOW_COLUMNS, host_lines)
        screen = FoldedScreen("\n".join(seen.lines), seen.missing) if seen.missing else None
    fields = _fields(checked)
    if not fields:
        return Question(text, fields, screen=screen)
    whose = "their" if is_several else "its"
    return Question(
        text,
        fields,
        invitation=f" You may lower {whose} limits below.",
        without_form=" To lower limits, decline and tell your assistant which.",
        screen=screen,
    )


def _where_is_all(checked: CheckedApproval) -> str:
    ids = [member.row.pending_id for member in checked.members]
    command = f"ava approve {ids[0]}" if len(ids) == 1 else "ava approve"
    return f"`{command}` and Ava's pages show all."


def _lines(
    rows: Sequence[Row], last: Sequence[str], where_is_all: str, *, spaced: bool = False
) -> tuple[list[str], str]:
    """Return the lines of a question, and what is not in them, which one of them says.

    `spaced`: where there is room, the lines that lead and the last ones stand apart.
    """
    room = LINES - sum(len(row_ends(line, WINDOW_COLUMNS)) for line in last)
    chosen = choose(rows, WINDOW_COLUMNS, room)
    notice: list[str] = []
    for notice_rows in range(1, room):
        if not chosen.missing:
            break
        chosen = choose(rows, WINDOW_COLUMNS, room - notice_rows)
        notice = [f"Not here: {chosen.missing}. {where_is_all}"]
        if len(row_ends(notice[0], WINDOW_COLUMNS)) <= notice_rows:
            break
    if spaced and not notice and chosen.rows <= room - 2:
        return [*chosen.lines[:LEAD], "", *chosen.lines[LEAD:], "", *last], ""
    return [*chosen.lines, *notice, *last], chosen.missing


def fit_lines(lines: Sequence[str], where_is_all: str) -> tuple[list[str], FoldedScreen | None]:
    """Return the lines of another question with yes and no, in at most `LINES` rows, and what the person then sees.

    The last line, which says what an answer does, is always there. None: they see all.
    """
    *first, last = lines
    shown, missing = _lines([Row(ASKED, line) for line in first], [last], where_is_all)
    return shown, FoldedScreen("\n".join(shown), missing) if missing else None


def _last_lines(members: Sequence[ProposalChange]) -> list[str]:
    """Return lines with the price and the task of each, a row each; some windows show only the end."""
    if len(members) == 1:
        return [last_line(members[0].changed, members[0].brief)]
    shown = _shown_at_the_end(members)
    lines = [last_line(one.changed, one.brief, f"{number}. ") for number, one in enumerate(members[:shown], 1)]
    if shown < len(members):
        lines.append(f"and {len(members) - shown} more subagents.")
    return lines


def _shown_at_the_end(members: Sequence[ProposalChange]) -> int:
    """Return how many of several the last lines name."""
    return len(members) if len(members) <= MOST_LAST_LINES else MOST_LAST_LINES - 1


def _rows_of_one(checked: CheckedApproval) -> list[Row]:
    [member] = checked.members
    return question_rows(_rows_of(member, checked.day), member.changed, member.brief)


def _rows_of(member: ProposalChange, day: DayLeft) -> list[SummaryRow]:
    """Return the rows of a proposal, with the tools that the approval takes away."""
    rows = list(proposal_rows(member.changed, member.brief, day))
    blocked = sorted(_tools_of(member.config) - _tools_of(member.changed))
    if blocked:
        rows.append(SummaryRow("Where", f"Taken away: {named_all('tool', blocked, len(blocked))}."))
    return rows


def _tools_of(config: RunConfig) -> set[str]:
    """Return the tools of a run, or of all steps of a plan."""
    tools = set(config.tools)
    for step in config.steps:
        tools.update(step.config.tools)
    return tools


def _rows_of_several(checked: CheckedApproval, cap_micros: int) -> list[Row]:
    """Return the rows of the question about several proposals: all of them first, then what is said of each."""
    members = checked.members
    configs = [member.changed for member in members]
    cap = None if checked.free else cap_micros
    heading = several_line(len(members), cap, checked.plan_timeout_s)
    reaches = "; ".join(dict.fromkeys(reach_words(config.reach) for config in configs))
    text = f"Ava wants to start {heading}; they {one_line(reaches, REACH_CHARS)}."
    each = _rows_of_each(members, checked.day)
    caps = caps_text(cap, checked.plan_timeout_s)
    deeds = short_deeds(configs) or "reach nothing outside"
    in_short = f"Ava wants to start {len(members)} subagents: {caps}; {deeds}."
    first = Row(TOGETHER, text if len(text) <= WINDOW_COLUMNS else in_short)
    folders = dict.fromkeys(config.workspace for config in configs if config.workspace is not None)
    before = f"In {short_folders(list(folders))}:  " if folders else ""
    tasks = [Row("What", line) for line in task_starts([member.brief.task for member in members], before)]
    warnings = warning_rows([row.text for row in each if row.topic == ATTENTION])
    paid = [config for config in configs if not config.free]
    together = sum(config.max_cost_micros for config in paid)
    note = several_note(together, cap_micros, checked.day, [config.likely_micros for config in paid])
    notes = [Row(TOGETHER, note)] if note else []
    others = [row for row in each if row.topic != ATTENTION]
    return [first, tasks[0], *warnings[:1], *tasks[1:], *warnings[1:], *notes, *others]


def _rows_of_each(members: Sequence[ProposalChange], day: DayLeft) -> list[Row]:
    """Return what is said of each of several, every sentence once, with the numbers of those that it is about."""
    with_caps = _shown_at_the_end(members)
    numbers_of: dict[tuple[str, str], list[str]] = {}
    for number, member in enumerate(members, 1):
        for row in _rows_of(member, day):
            text = row.text
            if row.topic == "How much" and number <= with_caps:
                text = likely_line(member.changed)  # the last lines have its caps
            numbers_of.setdefault((row.topic, text), []).append(f"{number}")
    rows: list[Row] = []
    for (topic, text), numbers in numbers_of.items():
        if len(numbers) < len(members):
            text = f"{list_names(numbers, MOST_NUMBERS)}: {text}"
        rows.append(Row(topic, text))
    return rows


def apply_reply(checked: CheckedApproval, approval: Approval, reply: Reply) -> Approval:
    """Return the approval with the limits of the form, dollars rounded down. Raises BadInput if one is not offered."""
    limits: dict[RunCap, Any] = {}
    sentences = list(lowered_by_call(checked))
    is_plan = checked.plan_cap is not None
    of = " of the plan" if is_plan else ""
    for limit in _fields(checked):
        entered = number_in(limit, reply, "nothing was started")
        if entered is None:
            continue
        if not limit.least <= entered <= limit.most:
            raise BadInput(
                f"{limit.name}: the form returned {entered:g}, which is not between {limit.words(limit.least)} and"
                f" {limit.words(limit.most)}; nothing was started"
            )
        if entered < limit.most:
            value = limit.stored(float(entered))
            limits[limit.cap] = value
            sentences.append(lowered_words("The person", limit.cap, limit.now, value, of=of))
    if not limits:
        return approval
    approval = replace(approval, lowered=tuple(sentences))
    if is_plan:
        return replace(approval, plan_lowered=PlanLimits(limits.get(COST), limits.get(TIME)))
    pending_id = checked.members[0].row.pending_id
    changes = dict(approval.changes.get(pending_id, {}))
    for cap, value in limits.items():
        changes[cap.field] = value
    return replace(approval, changes={**approval.changes, pending_id: changes})


def number_in(limit: LimitField, reply: Reply, outcome: str) -> float | None:
    """Return the number in a field of the form; None where it is empty. Raises BadInput, ending with `outcome`."""
    entered = reply.content.get(limit.name)
    if entered is None:
        return None
    if isinstance(entered, bool) or not isinstance(entered, int | float) or not abs(entered) <= _LARGEST:
        raise BadInput(f"{limit.name}: the form did not return a number; {outcome}")
    return entered


def _fields(checked: CheckedApproval) -> tuple[LimitField, ...]:
    configs = [member.config for member in checked.members]
    if checked.plan_cap is not None:
        return limit_fields(configs, checked.plan_cap, checked.plan_timeout_s)
    changed = checked.members[0].changed
    return limit_fields(configs, changed.max_cost_micros, changed.timeout_s)


def limit_fields(configs: Sequence[RunConfig], most_micros: int, most_s: float | None) -> tuple[LimitField, ...]:
    """Return the limits that an approval may lower: the cost, from the least that buys useful work, and the time.

    Several share them; without a time cap (None), there is none to lower.
    """
    fields: list[LimitField] = []
    together = ", all together" if len(configs) > 1 else ""
    if not all(config.free for config in configs):
        least = max(MICROS_PER_CENT, *(config.least_micros for config in configs))
        fields.append(limit_field(COST, min(least, most_micros), most_micros, together))
    if most_s is not None:
        most = math.floor(most_s / 60 * 10_000) / 10_000  # rounded down, so that the shown value is allowed
        time = limit_field(TIME, 0, most_s, together)
        fields.append(replace(time, least=min(LEAST_MINUTES, most), most=most))
    return tuple(fields)


def limit_field(cap: RunCap, least: float, most: float, together: str = "") -> LimitField:
    _name, unit, per = _IN_FORM[cap]
    return LimitField(cap, f"At most{together}, in {unit}", least / per, most / per, most)

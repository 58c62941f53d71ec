"""What a person is shown before a subagent starts: the proposal in sentences, and the line that an approval repeats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ava_audit.units import US_PER_S, format_duration, format_usd, minutes
from ava_roles import BUILT_IN_SOURCE
from ava_roles.tool import ToolSpec
from ava_roles.wrap import list_names
from ava_server.approval.plain_text import (
    COMMAND_CHARS,
    inner_quotes,
    named_path,
    one_line,
    plain_line,
    quoted,
    task_excerpt,
)
from ava_server.approval.reach import PATH_CHARS, PATHS, reach_words, sees_files
from ava_server.core.ids import IN_PROCESS
from ava_server.core.names import named, named_role, quote_name, quote_names, subagent_of
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import OUTLINE_TURNS, RunConfig
from ava_server.run_config.parts import (
    Coding,
    EarlierRun,
    Estimate,
    ForeignUse,
    ProjectFileSize,
)
from ava_server.run_config.run_cap import caps_text

SHOWN_CHARS = 600
"""Characters of a task and of a rationale that the proposal shows; the digest covers all of them."""
BESIDES_CHARS = 200
"""Characters of the instructions and the context that the proposal shows."""
READS_SHOWN = 20
"""Most read-only tools of one MCP server that the proposal names; tools that change things are all named."""
MORE_PATHS = 50
"""Most paths that a sentence of its own names; the digest covers all of them."""
WINDOW_COLUMNS, START_ROWS, START_CHARS = 74, 2, 12
"""Characters of a line, and rows, in which a small window shows how the tasks of several begin; least of each task.

Claude Code cuts what is longer in a window of 80 columns, and Codex continues it in the next row.
"""
ROLE_CHARS = 24
"""Characters of a role in a short line: the task has to fit behind it."""
WHOLE_CHARS = 20_000
"""Characters of a text that `WholeText` has."""

FACTS = ("What", "Where", "How much", "Who asked")
"""The topics that come first, and decide most: a host may show only the first three lines at once."""
PROJECT = "Project"
"""The topic of what files of the project say to the run."""
ATTENTION = "Look at this"
"""The topic of what a person must not overlook."""
STEPS = "Steps"
"""The topic of a plan's steps, a row each."""
TOGETHER = "Together"
"""The topic of what holds for several proposals together."""
TOLD = "Also told"
"""The topic of the context and the instructions."""
TOPICS: Mapping[str, str] = {
    ATTENTION: "warnings",
    TOGETHER: "what they cost together",
    "Changes": "what it changes",
    "Commands": "commands for keys",
    "MCP servers": "MCP servers",
    "Another agent": "another agent",
    "Where": "reach",
    STEPS: "steps",
    "Who asked": "who asked, and why",
    "Web": "web searches",
    "Role": "the file of its role",
    "Earlier results": "earlier results",
    PROJECT: "files of the project",
    "Skills": "skills",
    "Machine": "copies of its files",
    "How much": "cost and time",
    "What": "what starts",
    "Not available": "what it lacks",
    "Done before": "what was done before",
    TOLD: "context and instructions",
    "Model": "model",
    "Limits": "limits",
}
"""The topics, the one with most weight first, each with what it is called where its sentences are not shown."""
FOLDED = tuple(TOPICS)[-5:]
"""The topics with least weight, the only ones that a terminal may fold. Every other is always shown there: price, time,
reach, what changes, commands, network, secrets, another agent, a weaker sandbox, warnings, and who asked."""

Topic = tuple[str, Sequence[str]]
"""A topic, and its sentences."""


@dataclass(frozen=True)
class SummaryRow:
    """A sentence of a proposal, under the topic by which pages group it. Each quotes what is not Ava's own."""

    topic: str
    text: str


def weight(topic: str) -> int:
    """Return the weight of a topic: the greater it is, the sooner it is shown. One of a newer version has most."""
    names = tuple(TOPICS)
    return len(names) - names.index(topic) if topic in TOPICS else len(names) + 1


@dataclass(frozen=True)
class DayLeft:
    """The user's or the installation's daily budget, whichever has less left.

    Attributes:
        micros: What is left, in micro-USD, without what runs hold.
        whose: Whose it is: `your`, `this installation's`.
        held_micros: What runs hold of it: most of that comes back.
    """

    micros: int
    cap_micros: int
    whose: str
    setting: str
    held_micros: int = 0

    @property
    def words(self) -> str:
        left = f"{format_usd(max(self.micros, 0))} is left of {self.whose} budget for today"
        if self.held_micros <= 0:
            return f"{left} ({self.setting})"
        return f"{left} ({self.setting}; runs hold {format_usd(self.held_micros)} more)"


# -- lines ------------------------------------------------------------------------------------------------------------


def run_line(config: RunConfig, brief: Brief) -> str:
    """Return the line that an approval must repeat exactly: role, caps, reach, and the beginning of the task."""
    who = config.role
    if config.runner != IN_PROCESS:
        who += f" by {config.runner}"
    if config.lacks:
        who += f" without {' and '.join(config.lacks)}"
    caps = caps_text(config.cost_cap(), config.timeout_s)
    return plain_line(f"{who}, {caps}, {config.reach}: {task_excerpt(brief.task)}")


def short_line(config: RunConfig, brief: Brief, before: str = "") -> str:
    """Return role, caps and the beginning of the task after `before`, cut to the width of a small window."""
    caps = caps_text(config.cost_cap(), config.timeout_s)
    role = one_line(config.role, ROLE_CHARS)
    return one_line(f"{before}{role}, {caps}: {brief.task}", WINDOW_COLUMNS - 1)


def several_line(count: int, cap_micros: int | None, timeout_s: float | None) -> str:
    """Return the last line of an approval of several: how many subagents under which caps; a cap of None is free."""
    return f"{count} subagents together, {caps_text(cap_micros, timeout_s)}"


def several_note(sum_micros: int, cap_micros: int, day: DayLeft, likely: Sequence[tuple[int, int] | None]) -> str:
    """Return what members are likely to cost together, and which cap keeps them from spending all of their own caps.

    Up to two sentences, in micro-USD: `sum_micros` is the sum of their own caps without the free ones, and `likely` has
    `RunConfig.likely_micros` of each that is not free.
    """
    notes: list[str] = []
    known = [costs for costs in likely if costs is not None]
    if known:
        half = min(sum(half_micros for half_micros, _most in known), cap_micros)
        most = min(sum(most_micros for _half, most_micros in known), cap_micros)
        note = f"Likely {format_usd(half)} to {format_usd(most)} together"
        unknown = len(likely) - len(known)
        if unknown:
            note += f", without {unknown} for which there are no similar runs"
        notes.append(f"{note}.")
    if sum_micros > min(cap_micros, day.micros):
        limit = f"together they may spend only {format_usd(cap_micros, exact=True)}"
        if day.micros < cap_micros:
            limit = f"only {day.words}"
        own = f"Their caps add up to {format_usd(sum_micros, exact=True)}"
        notes.append(f"{own}, but {limit}: some may end early.")
    return " ".join(notes)


def task_starts(tasks: Sequence[str], before: str = "") -> list[str]:
    """Return lines that have the beginning of each task, numbered: two, or more if the tasks are too many for that.

    `before` begins the first of them.
    """
    in_a_row = math.ceil(len(tasks) / START_ROWS)
    number_chars = len(f'{len(tasks)}. "…"  ')
    chars = max((WINDOW_COLUMNS - len(before)) // in_a_row - number_chars, START_CHARS)
    lines = [before]
    for number, task in enumerate(tasks, 1):
        start = f'{number}. "{inner_quotes(one_line(task, chars))}"'
        line = lines[-1]
        if number == 1:
            lines[-1] = f"{line}{start}"
        elif len(line) + len(start) + 2 <= WINDOW_COLUMNS:
            lines[-1] = f"{line}  {start}"
        else:
            lines.append(start)
    return lines


def likely_cost(config: RunConfig) -> str:
    """Return what half of the similar runs cost less than; empty where that is not known, or the cap."""
    if config.estimate is None or config.estimate.half_micros is None:
        return ""
    half = config.estimate.half_micros
    return format_usd(half) if half < config.max_cost_micros else ""


def list_earlier(runs: Sequence[EarlierRun]) -> str:
    """Return runs by id, role and ending, without anything that they wrote."""
    words: list[str] = []
    for run in runs:
        ending = ""
        if run.ending != "success":
            ending = f", {run.ending}: may be incomplete"
        words.append(f"{run.id} ({named_role(run.role)}{ending})")
    return ", ".join(words)


def why_unavailable(spec: ToolSpec, *, commands: bool) -> str:
    """Return in a few words why a run or a role lacks a built-in tool here; `commands`: they can be confined."""
    if spec.search:
        return "no search engine is set up; `ava doctor` says how"
    if (spec.commands or spec.edits) and not commands:
        return "commands cannot be confined here"
    if spec.edits:
        return "git is missing"
    if spec.files:
        return "it sees no files"
    if spec.memory:
        return "memory has no notes"
    return ""


# -- the proposal in rows ---------------------------------------------------------------------------------------------


def run_rows(config: RunConfig, brief: Brief, day: DayLeft, client: str = "") -> tuple[SummaryRow, ...]:
    """Return the proposal for the person who approves: plain sentences, dollars, no JSON; the facts first.

    Every surface shows these rows. `client` is the program that asked for it; empty where it is not known.
    """
    topics: tuple[Topic, ...] = (
        ("What", [_task_line(config, brief)]),
        ("Where", [_where_line(config)]),
        ("How much", [_with_likely(cost_line(config), config)]),
        ("Who asked", client_lines(client, brief)),
        (ATTENTION, [*attention_lines(config), *_day_lines(config, day)]),
        ("Not available", _missing_lines(config)),
        *_reach_topics(config, brief),
        *_model_topics(config),
        ("Limits", _limit_lines(config, day)),
    )
    return tuple(_rows(topics))


def reach_rows(config: RunConfig, brief: Brief) -> list[SummaryRow]:
    """Return what a proposal says of what a run lacks, reaches and is told, in sentences."""
    return _rows([("Not available", _missing_lines(config)), *_reach_topics(config, brief)])


def model_rows(config: RunConfig) -> list[SummaryRow]:
    """Return what a proposal says of who does the work: the model, its commands, and another agent."""
    return _rows(_model_topics(config))


def _rows(topics: Iterable[Topic]) -> list[SummaryRow]:
    return [SummaryRow(topic, plain_line(line)) for topic, lines in topics for line in lines]


def message_of(rows: Iterable[SummaryRow], config: RunConfig) -> str:
    """Return the rows of a proposal as one text: a sentence a line, the facts apart from the rest."""
    rows = list(rows)
    details = [row.text for row in rows if row.topic not in (*FACTS, ATTENTION)]
    lines = _first_lines(rows, config, of_topic(rows, ATTENTION))
    if details:
        lines += ["", *details]
    return "\n".join(lines)


def _first_lines(rows: Sequence[SummaryRow], config: RunConfig, attention: Sequence[str]) -> list[str]:
    """Return the facts of a proposal. Hosts show the first three lines of an answer: task, reach, price, or warnings.

    What must not be overlooked, in one line, is the third; price and reach are the second then.
    """
    facts = [row for row in rows if row.topic in FACTS]
    if not attention:
        return [row.text for row in facts]
    what = of_topic(facts, "What")
    where = " ".join(of_topic(facts, "Where"))
    caps = caps_text(config.cost_cap(), config.timeout_s)
    others = [row.text for row in facts if row.topic not in ("What", "Where")]
    return [*what, f"{capitalized(caps)}. {where}", f"{ATTENTION}: {' '.join(attention)}", *others]


def of_topic(rows: Iterable[SummaryRow], topic: str) -> list[str]:
    return [row.text for row in rows if row.topic == topic]


def warnings(rows: Iterable[SummaryRow]) -> tuple[str, ...]:
    """Return the sentences of a proposal that a list of several must have too: all but facts and what is folded."""
    return tuple(row.text for row in rows if row.topic not in (*FACTS, *FOLDED, STEPS))


# -- the facts --------------------------------------------------------------------------------------------------------


def start_of(config: RunConfig) -> str:
    """Return what stands before the task of a run: `Ava wants to start a researcher: `."""
    return f"Ava wants to start a {subagent_of(config.role)}: "


def _task_line(config: RunConfig, brief: Brief) -> str:
    task = quoted(brief.task, SHOWN_CHARS)
    name = f", named {quote_name(config.name)}" if config.name else ""
    return f"{start_of(config)}{task}{name}."


def _where_line(config: RunConfig) -> str:
    if sees_files(config):
        return f"It {reach_words(config.reach)}."
    return f"It {reach_words(config.reach)}; it cannot read your files."


def cost_line(config: RunConfig) -> str:
    """Return how long a run takes, and the most that it takes and costs; what is likely comes behind it."""
    return f"It takes about {_about(config)}, at most {minutes(config.timeout_s)}, and {cost_words(config)}."


def likely_line(config: RunConfig) -> str:
    """Return how long a run takes, and what is likely, without its caps."""
    return _with_likely(f"It takes about {_about(config)}.", config)


def _about(config: RunConfig) -> str:
    low, high = config.estimated_minutes
    return f"{low} to {high} minutes" if low < high else minutes(high * 60)


def _with_likely(line: str, config: RunConfig) -> str:
    if config.estimate is None:
        return line
    return f"{line} {_likely_line(config, config.estimate)}"


def cost_words(config: RunConfig) -> str:
    """`costs at most $0.50`, or `costs nothing`."""
    if config.free:
        return "costs nothing"
    return f"costs {caps_text(config.max_cost_micros)}"


_GROUPS = {
    "size": "yours with this role, this model and about as much input",
    "model": "yours with this role and this model, with more or less input",
    "role": "yours with this role, also with other models, at this model's price",
}
"""Which runs an estimate comes from, by its group."""


def _likely_line(config: RunConfig, estimate: Estimate) -> str:
    """Return the sentence on what a run is likely to cost and take."""
    half = _cost_and_time(config, estimate.half_micros, estimate.half_us)
    most = _cost_and_time(config, estimate.most_micros, estimate.most_us)
    share = "nine in ten" if estimate.bounded else "all"
    group = _GROUPS[estimate.group]
    if estimate.left_out:
        group += f", without {estimate.left_out} of unknown cost at today's price"
    return f"Likely {half} (half of {estimate.runs} such runs took less), {share} within {most}; such runs are {group}."


def _cost_and_time(config: RunConfig, micros: int | None, us: int | None) -> str:
    time = _capped(us, int(config.timeout_s * US_PER_S), lambda us: format_duration(us / US_PER_S))
    if config.free:
        return time
    return f"{_capped(micros, config.max_cost_micros, format_usd)} and {time}"


def _capped(value: int | None, cap: int, text: Callable[[int], str]) -> str:
    if value is None or value >= cap:
        return f"{text(cap)} (its cap)"
    return text(value)


def client_lines(client: str, brief: Brief) -> list[str]:
    """Return who asked for a run or a plan, and why, as far as that is known."""
    lines: list[str] = []
    if client:
        lines.append(f"The program {named_path(client)} asked for it.")
    if brief.rationale:
        lines.append(f"Why: {quoted(brief.rationale.rstrip('. '), SHOWN_CHARS)}.")
    return lines


# -- what a person must not overlook ----------------------------------------------------------------------------------


def attention_lines(config: RunConfig) -> list[str]:
    """Return what a person must not overlook of a run, besides what is left of the day."""
    lines: list[str] = []
    if config.lacks:
        which = "which is not there" if len(config.lacks) == 1 else "which are not there"
        lines.append(f"It goes without {' and '.join(config.lacks)}, {which}, although its role needs that.")
    if config.confinement == "none":
        lines.append(
            'Nothing confines what it runs here (sandbox.mode = "none" in config.toml): that can read, change and send'
            " whatever you can."
        )
    lines += _effect_lines(config)
    lines += _secret_lines(config)
    lines += [f"{capitalized(note)}." for note in config.clamped]
    if config.price_note:
        lines.append(config.price_note)
    return lines


def _effect_lines(config: RunConfig) -> list[str]:
    """Return which sources may decide what the run's calls of other servers' tools change; nothing if none does."""
    from ava_roles.role import effect_words, parse_role  # with YAML, which most screens do without

    tools = [tool for use in config.foreign.values() for tool in use.tools.values()]
    if not tools:
        return []
    effects = parse_role(config.role_text, config.role_source, config.role).effects
    if effects or any(tool.changes for tool in tools):
        return [effect_words(effects)]
    return []


def _secret_lines(config: RunConfig) -> list[str]:
    """Return what the person must know about secrets: which may be sent where, and which are not stored."""
    usable: list[str] = []
    unbound: list[str] = []
    missing: list[str] = []
    for name, hosts in config.secrets.items():
        if hosts is None:
            missing.append(name)
        elif hosts:
            usable.append(f"{name} (only for {', '.join(hosts)})")
        else:
            unbound.append(name)
    lines: list[str] = []
    if usable:
        secrets = "secret" if len(usable) == 1 else "secrets"
        lines.append(f"Its calls may use the {secrets} {', '.join(usable)}.")
    if unbound:
        lines.append(f"Stored, but for no host, so that no call can use it: {', '.join(unbound)}.")
    if missing:
        lines.append(f"Its role lists secrets that are not stored: {', '.join(missing)} (`ava secret set NAME`).")
    return lines


def _day_lines(config: RunConfig, day: DayLeft) -> list[str]:
    """Return what is left of the day where that is less than the run's own cap, and what it buys."""
    if config.free or day.micros >= config.max_cost_micros:
        return []
    less = f"Only {day.words}, less than its cost cap"
    least = max(config.least_micros, 1)
    if day.micros >= least:
        return [f"{less}.", *_turns_bought(config, "That", day.micros)]
    if day.micros + day.held_micros >= least:
        return [f"{less}: it starts when {format_usd(least)} is free."]
    return [f"{less}: it cannot start before 00:00 UTC."]


def _turns_bought(config: RunConfig, what: str, micros: int) -> list[str]:
    """Return how many turns an amount buys at least, where it may be too little for all of them."""
    turns = config.least_turns(micros)
    if turns <= 0 or turns >= config.max_iterations:
        return []
    return [
        f"{what} is enough for at least {turns} of its {config.max_iterations} turns,"
        " even if each model call costs as much as it can."
    ]


# -- what it lacks, reaches and is told -------------------------------------------------------------------------------


def _missing_lines(config: RunConfig) -> list[str]:
    """Return what the run lacks of its role's tools, a line for each reason; MCP tools have their own notes."""
    from ava_roles.tools.registry import tool_specs  # loads every tool, and commands that only look need none

    lines: list[str] = []
    if config.files_note:
        lines.append(f"No files because: {config.files_note}.")
    known = tool_specs()
    tools_by_reason: dict[str, list[str]] = {}
    for name in config.unavailable_tools:
        reason = ""
        if name in known:
            reason = why_unavailable(known[name], commands=not config.commands_note)
        tools_by_reason.setdefault(reason, []).append(name)
    for reason, names in tools_by_reason.items():
        why = f" ({reason})" if reason else ""
        lines.append(f"It goes without {', '.join(names)}{why}.")
    if config.commands_note:
        lines.append(f"No commands because: {config.commands_note}.")
    return lines


def _reach_topics(config: RunConfig, brief: Brief) -> Iterator[Topic]:
    if config.coding is not None:
        yield "Changes", _coding_lines(config.coding)
    if config.search:
        yield "Web", [_search_line(config)]
    yield "MCP servers", [_server_line(name, use, config) for name, use in config.foreign.items()]
    yield "MCP servers", [f"{note}." for note in config.foreign_notes]
    if config.role_source != BUILT_IN_SOURCE:
        source = quoted(config.role_source, BESIDES_CHARS)
        yield "Role", [f"Its role is not built in; it comes from the file {source}."]
    if config.context_from:
        yield "Earlier results", [f"Results that it may read: {list_earlier(config.context_from)}."]
    yield TOLD, _text_lines(brief)
    yield "Skills", _skill_lines(config)
    yield PROJECT, _project_lines(config)
    yield "Machine", _travel_lines(config)


def _coding_lines(coding: Coding) -> list[str]:
    """Return what a person has to know about work on their repository: where, on what, and what decides."""
    branch = named("branch", coding.branch) if coding.branch else "detached HEAD"
    repository = f"{named_path(coding.repository)}, from commit {coding.base[:12]} ({branch})"
    may_change = "all of it."
    if coding.namespace != (".",):
        paths = [quoted(path, PATH_CHARS) for path in coding.namespace[:MORE_PATHS]]
        may_change = f"only these paths: {', '.join(paths)}."
    lines = [
        f"It works in a worktree of its own of {repository}, and may change {may_change}",
        "What it changes comes on a new branch, ava/S-… after its id; your checkout, its branch and its index stay as"
        " they are, and merging is left to you.",
    ]
    more = len(coding.namespace) - MORE_PATHS
    if more > 0:
        lines.append(f"And {more} more paths.")
    lines.append(f"Its work must pass `{one_line(coding.verify, COMMAND_CHARS)}` ({coding.verify_from}).")
    if coding.setup is not None:
        lines.append(f"Before that runs `{one_line(coding.setup, COMMAND_CHARS)}` (from the role file).")
    lines += [f"{capitalized(note)}." for note in coding.notes]
    return lines


def _search_line(config: RunConfig) -> str:
    from ava_server.config.search_engine import engine_title, search_cost  # with the HTTP client

    engine = engine_title(config.search)
    call = config.search_call
    cost = search_cost(config.search_micros, capped=call is not None)
    if call is not None:
        engine += f" ({call.model})"
    return f"Its web searches go to {engine}, {cost}."


def _server_line(name: str, use: ForeignUse, config: RunConfig) -> str:
    reads: list[str] = []
    changes: list[str] = []
    for full, tool in use.tools.items():
        if full not in config.tools:
            continue
        own_name = full.removeprefix(f"mcp__{name}__")
        if tool.changes:
            changes.append(own_name)
        else:
            reads.append(own_name)
    tools: list[str] = []
    if reads:
        tools.append(f"it says that these tools only read: {quote_names(reads, READS_SHOWN)}")
    if changes:
        tools.append(f"can change things with the tools {quote_names(changes, len(changes))}")
    if not tools:
        return f"MCP server {quote_name(name)}: none of its tools is left."
    confined = "; ".join([use.where, *_server_confinement(use, config.confinement)])
    return f"MCP server {quote_name(name)} ({confined}): {'; '.join(tools)}."


def _server_confinement(use: ForeignUse, confinement: str) -> list[str]:
    """Return what a server's program can reach on this machine; nothing for a server elsewhere."""
    if use.remote:
        return []
    if confinement == "none":
        return ["not confined at all"]
    network = "with this machine's network" if use.network else "without a network"
    folders = "sees none of your folders"
    if use.read_write:
        folders = f"may write to {', '.join(map(named_path, use.read_write))}"
    return [network, folders, f"confined by {confinement}"]


def _text_lines(brief: Brief) -> list[str]:
    """Return what the run is told besides its task."""
    lines: list[str] = []
    if brief.system_prompt:
        chars = len(brief.system_prompt)
        instructions = quoted(brief.system_prompt, BESIDES_CHARS)
        lines.append(f"Its instructions ({chars:,} characters): {instructions}.")
    if brief.context:
        chars = len(brief.context)
        context = quoted(brief.context, BESIDES_CHARS)
        lines.append(f"Context that it gets with its task ({chars:,} characters): {context}.")
    return lines


def _skill_lines(config: RunConfig) -> list[str]:
    lines: list[str] = []
    if config.skills:
        skills: list[str] = []
        for skill in config.skills:
            files = "1 file" if skill.files == 1 else f"{skill.files} files"
            skills.append(f"{quote_name(skill.name)} ({files}, {_kilobytes(skill.size)})")
        lines.append(f"It may read these skills of yours, whose programs run only in its sandbox: {', '.join(skills)}.")
    if config.missing_skills:
        names = list_names([quoted(name, PATH_CHARS) for name in config.missing_skills])
        lines.append(f"Skills that its role names and that are not installed (`ava roles add FOLDER`): {names}.")
    return lines


def _project_lines(config: RunConfig) -> list[str]:
    """Return which files of the project say how to work in it, with their sizes, and which of them the run lacks."""
    lines: list[str] = []
    if config.project_files:
        files = list_names([_file_with_size(file) for file in config.project_files], MORE_PATHS)
        where = "there"
        if config.project_origin:
            where += f", as they stand in {config.project_origin} and not in what it reviews"
        lines.append(f"Files of the project tell it how to work {where}: {files}. They allow nothing.")
    if config.project_left_out:
        left_out = list_names([_path_and_reason(note) for note in config.project_left_out], PATHS)
        lines.append(f"Left out of these files: {left_out}.")
    return lines


def _file_with_size(file: ProjectFileSize) -> str:
    size = _kilobytes(file.size)
    if file.is_cut:
        size = f"the beginning of {size}"
    return f"{named_path(file.path)} ({size})"


def _path_and_reason(note: str) -> str:
    """Return `path (why)` with the path in quotes unless it is plain: the project names its folders."""
    path, _, why = note.rpartition(" (")
    if not path:
        return quoted(note, PATH_CHARS)
    return f"{named_path(path)} ({why}"


def _travel_lines(config: RunConfig) -> list[str]:
    copies = [("the files of its folder", config.folder)]
    if config.coding is not None:
        copies.insert(0, ("that commit", config.coding.snapshot))
    lines: list[str] = []
    for what, stored in copies:
        if stored is not None:
            size = f"{max(stored.size / 1e6, 0.1):,.1f} MB"
            lines.append(f"A copy of {what} ({size}) is in the database, so another machine's server may run it.")
    if config.travel_note:
        lines.append(f"Only servers of this data root can run it, because {config.travel_note}.")
    return lines


# -- who does the work, within which limits ---------------------------------------------------------------------------


def _model_topics(config: RunConfig) -> Iterator[Topic]:
    """Yield who does the work: the model; apart from it, which commands run for it, and another agent."""
    yield "Model", _model_lines(config)
    yield "Commands", _key_command_lines(config)
    if config.runner != IN_PROCESS:
        yield "Another agent", _runner_lines(config)


def _model_lines(config: RunConfig) -> list[str]:
    if _is_offline(config):
        line = (
            "No language model is used: the offline reader finds passages that have words of the task, and quotes"
            " them; it writes nothing of its own, and does not translate: ask in the language of the files."
        )
    else:
        line = f"Model: {config.model}"
        if config.price.free:
            line += " (free)"
        if config.extended_thinking:
            line += ", which is told to think before it answers"
        line += "."
    if not config.thinking_note:
        return [line]
    return [line, f"It does not think first: {config.thinking_note}."]


def _is_offline(config: RunConfig) -> bool:
    return config.model.startswith("offline/")


def _key_command_lines(config: RunConfig) -> list[str]:
    lines: list[str] = []
    if config.key_command and not _is_offline(config):
        command = quoted(" ".join(config.key_command), COMMAND_CHARS)
        lines.append(f"Its key comes from a command, which Ava runs outside the sandbox: {command}.")
    if config.search_call is not None and config.search_call.key_command:
        command = quoted(" ".join(config.search_call.key_command), COMMAND_CHARS)
        lines.append(f"The key of its web search comes from a command, which Ava runs outside the sandbox: {command}.")
    return lines


def _runner_lines(config: RunConfig) -> list[str]:
    metered = (
        f"Another agent does the work ({config.runner}), metered: each of its model requests is reserved before it is"
        " sent."
    )
    if config.first_micros:
        metered += f" Its first call costs about {format_usd(config.first_micros)}."
    return [
        metered,
        "It runs commands in its sandbox without asking, and has no network of its own. After a crash, at most its last"
        " calls are paid twice.",
    ]


def _limit_lines(config: RunConfig, day: DayLeft) -> list[str]:
    turns, calls, tokens = config.max_iterations, config.max_tool_calls, config.max_tokens
    lines = [f"At most {turns:,} turns, {calls:,} tool calls and {tokens:,} tokens."]
    if not _day_lines(config, day):
        lines += _turns_bought(config, "Its cost cap", config.max_cost_micros)
    if config.writes_outline:
        lines.append(f"It plans first and then works: planning takes {OUTLINE_TURNS} of its {turns} turns.")
    elif config.plan:
        lines.append("It does not plan first, because there is no language model to do it.")
    if config.labels:
        labels = quote_names(config.labels, len(config.labels))
        lines.append(f"It runs only on a machine with these labels: {labels}.")
    if config.background:
        lines.append("It continues within these limits if you close the host or terminal.")
    if config.questions > 1:
        lines.append(f"It may ask you up to {config.questions} questions.")
    return lines


def _kilobytes(size: int) -> str:
    return f"{max(size / 1_000, 0.1):,.1f} kB"


def capitalized(sentence: str) -> str:
    return f"{sentence[0].upper()}{sentence[1:]}"

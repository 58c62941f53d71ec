"""What a person is shown before a subagent starts: the proposal in sentences, and the line that an approval repeats."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ava_audit.units import US_PER_S, format_duration, format_usd, minutes
from ava_roles import BUILT_IN_SOURCE
from ava_roles.mcp_client.tools import server_of
from ava_roles.tool import ToolSpec
from ava_roles.wrap import list_names
from ava_server.budget.run_config import (
    PLAN_TURNS,
    Coding,
    EarlierRun,
    ForeignUse,
    ProjectFileSize,
    RunConfig,
    Texts,
    caps_text,
)
from ava_server.core.ids import IN_PROCESS

TASK_CHARS = 120
SHOWN_CHARS = 600
"""Characters of a task and of a rationale that the proposal shows; the digest covers all of them."""
BESIDES_CHARS = 200
"""Characters of the instructions and the context that the proposal shows."""
READS_SHOWN = 20
"""Most read-only tools of one MCP server that the proposal names; tools that change things are all named."""
PATHS, MORE_PATHS, PATH_CHARS = 8, 50, 120
"""Most paths that a line and a message name, and characters of one path; the digest covers all of them."""
WINDOW_COLUMNS, START_ROWS, START_CHARS = 75, 2, 12
"""Characters of a line, and rows, in which a small window shows how the tasks of several begin; least of each task."""
ROLE_CHARS = 24
"""Characters of a role in a short line: the task has to fit behind it."""
COMMAND_CHARS = 2_000
"""A command line is shown completely: this is the longest that role files and calls may give."""
_PLAIN = re.compile(r"[\w./@+=-]{1,120}", re.ASCII)
_QUOTES = dict.fromkeys(map(ord, '"“”„‟«»＂″‴‶〝〞〟❝❞ʺ˝״⹂🙶🙷🙸'), "'")
"""Characters that a reader may take for the end of a quotation."""
_TYPOGRAPHY = {
    ord(char): plain
    for plain, chars in {"'": "‘’‚‛ʼ′", '"': "“”„‟", "-": "‐‑‒–—―−", "...": "…"}.items()
    for char in chars
}
"""Typographic characters that a model may replace by plain ones when it repeats a line, or the other way round."""
_BRACKETS = dict.fromkeys(map(ord, "()（）﹙﹚⁽⁾₍₎❨❩⸨⸩"), "'")
"""Characters that a reader may take for the end of a name."""
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Characters that are invisible, though Unicode counts them among letters, marks and symbols."""


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
        held = f"; runs hold {format_usd(self.held_micros)} more" if self.held_micros > 0 else ""
        return f"{format_usd(max(self.micros, 0))} is left of {self.whose} budget for today ({self.setting}{held})"


def run_line(config: RunConfig, texts: Texts) -> str:
    """Return the line that an approval must repeat exactly: role, caps, reach, and the beginning of the task."""
    caps = caps_text(config.cost_cap(), config.timeout_s)
    without = f" without {' and '.join(config.lacks)}" if config.lacks else ""
    by = "" if config.runner == IN_PROCESS else f" by {config.runner}"
    return plain_line(f"{config.role}{by}{without}, {caps}, {config.reach}: {task_excerpt(texts.task)}")


def short_line(config: RunConfig, texts: Texts, before: str = "") -> str:
    """Return role, caps and the beginning of the task after `before`, cut to the width of a small window."""
    caps = caps_text(config.cost_cap(), config.timeout_s)
    return one_line(f"{before}{one_line(config.role, ROLE_CHARS)}, {caps}: {texts.task}", WINDOW_COLUMNS)


def task_starts(tasks: Sequence[str]) -> list[str]:
    """Return lines that have the beginning of each task, numbered: two, or more if the tasks are too many for that."""
    in_a_row = math.ceil(len(tasks) / START_ROWS)
    number_chars = len(f'{len(tasks)}. "…"  ')
    chars = max(WINDOW_COLUMNS // in_a_row - number_chars, START_CHARS)
    in_a_row = min(in_a_row, WINDOW_COLUMNS // (chars + number_chars))
    starts = [f'{number}. "{one_line(task, chars).translate(_QUOTES)}"' for number, task in enumerate(tasks, 1)]
    return ["  ".join(starts[first : first + in_a_row]) for first in range(0, len(starts), in_a_row)]


def normalize_typography(line: str) -> str:
    """Return a line with plain quotes, dashes and dots, only for comparison: never show it."""
    return line.translate(_TYPOGRAPHY)


@dataclass(frozen=True)
class RunReach:
    """What a proposal knows of its run, and a role file does not.

    Attributes:
        confinement: What confines its commands; empty for `ANY_RUN`.
        namespace: The paths of the folder that it may change.
        hosts: The only hosts that it may read from the web.
        git_folder: The git folder that it uses outside of its checkout; empty without one.
    """

    workspace: str | None
    earlier: int
    confinement: str
    network: bool
    namespace: Sequence[str] = ()
    hosts: Sequence[str] = ()
    git_folder: str = ""


ANY_RUN = RunReach(workspace=None, earlier=0, confinement="", network=False)
"""No run: what tools could do in any."""


def reach(specs: Collection[ToolSpec], run: RunReach = ANY_RUN) -> str:
    """Return what tools, those of MCP servers included, may read, reach and change, from the flags of their specs.

    The proposal and the role trust screen both say it in these words, so that they cannot disagree.
    """
    own = [spec for spec in specs if spec.foreign is None]
    foreign = [spec for spec in specs if spec.foreign is not None]
    has = flags_of(specs)
    folder, changed = _folder_reach(has, run)
    parts: list[str] = []
    if reads := _reads(folder, changed, run.hosts, flags_of(own)):
        parts.append(reads)
    if changed or "commands" in has:  # what was changed is verified by a command
        parts.append(_commands_reach(specs, run, folder, changed))
    if foreign:
        parts.append(_reach_of_servers(foreign, run.confinement))
    if others := [spec.name for spec in own if spec.changes]:
        parts.append(f"change things with {' and '.join(others)}")
    words = " and ".join(_words_reach(has, run.earlier))
    if not parts:
        return f"can {f'read {words}, and ' if words else ''}reach neither files nor the web"
    return f"can {', '.join(parts)}" + (f", and read {words}" if words else "")


_FLAGS = ("network", "search", "files", "edits", "commands", "memory", "results", "writes", "program")


def flags_of(specs: Iterable[ToolSpec]) -> frozenset[str]:
    return frozenset(flag for spec in specs for flag in _FLAGS if getattr(spec, flag))


def _folder_reach(has: Collection[str], run: RunReach) -> tuple[str, str]:
    """Return the folder that is read, and what of it is changed; empty for nothing."""
    if run is ANY_RUN:
        folder = "files of the workspace" if "files" in has or "commands" in has else ""
        changed = "files" if "edits" in has else ""
        return folder, changed
    folder = named_path(run.workspace) if run.workspace is not None else ""
    if folder and run.git_folder:
        folder += f" (git folder {named_path(run.git_folder)})"
    return folder, _paths(run.namespace) if run.namespace else ""


def _words_reach(has: Collection[str], earlier: int) -> list[str]:
    words: list[str] = []
    if earlier == 1:
        words.append("the result of 1 earlier subagent")
    elif earlier:
        words.append(f"the results of {earlier} earlier subagents")
    elif "results" in has:
        words.append("the results of earlier subagents")
    return [*words, "the notes in memory"] if "memory" in has else words


POWERS = (
    "run without a sandbox",
    "change files",
    "change things",
    "run commands",
    "use secrets",
    "reach the network",
    "read your files",
)
"""What runs may be able to do, the worst first, as `powers` names it."""
SERIOUS = frozenset(POWERS[:5])
"""Those that need a closer look before the approval."""


def powers(config: RunConfig, specs: Collection[ToolSpec]) -> tuple[str, ...]:
    """Return what a run can do, in words that are the same for each: what sets one of several proposals apart."""
    uses, has = config.foreign.values(), flags_of(specs)
    changes_files = config.coding is not None
    runs_commands = changes_files or "commands" in has or config.runner != IN_PROCESS
    reaches_out = config.network or "network" in has or any(use.network or use.remote for use in uses)
    held = {
        "run without a sandbox": config.confinement == "none",
        "change files": changes_files or any(use.read_write for use in uses),
        "change things": _changes_things(config, specs),
        "run commands": runs_commands,
        "use secrets": any(config.secrets.values()),
        "reach the network": reaches_out,
        "read your files": config.workspace is not None,
    }
    return tuple(power for power in POWERS if held[power])


def _changes_things(config: RunConfig, specs: Iterable[ToolSpec]) -> bool:
    if any(spec.changes for spec in specs):
        return True
    return any(
        tool.changes for use in config.foreign.values() for name, tool in use.tools.items() if name in config.tools
    )


def warnings(rows: Iterable[SummaryRow]) -> tuple[str, ...]:
    """Return the sentences of a proposal that a list of several must have too: all but facts and what is folded."""
    return tuple(row.text for row in rows if row.topic not in (*FACTS, *FOLDED, STEPS))


def _reads(folder: str, changed: str, hosts: Sequence[str], has: Collection[str]) -> str:
    """Return what is read of files and the web, and changed of files; empty for nothing."""
    searches, web = "search" in has, ""
    if "network" in has and hosts:
        web = f"{'search the web and ' if searches else ''}reach only {', '.join(hosts)} on the web"
    elif "network" in has:
        web = "reach the web" if folder else "search and read the web" if searches else "read the web"
    if not folder:
        return web
    changes = f", change {changed} on a new branch of it" if changed else ""
    return f"read {folder}{changes}" + (f" and {web}" if web else "")


def _commands_reach(specs: Collection[ToolSpec], run: RunReach, folder: str, changed: str) -> str:
    """Return what a run's commands may do; `folder` is what it reads, and `changed` what it changes of that."""
    what = "run Python"
    if changed or any(spec.commands and spec.files for spec in specs):  # the verify command is one
        what = "run commands"
    if run is ANY_RUN:
        return what
    if run.confinement == "none":
        return f"{what} WITHOUT A SANDBOX, with all that you may do yourself"
    where = "on a worktree of it" if changed else "on a copy of it" if folder else "on an empty folder"
    return f"{what} in a sandbox that reaches the network, {where}" if run.network else f"{what} in a sandbox {where}"


def _reach_of_servers(specs: Sequence[ToolSpec], confinement: str) -> str:
    names = sorted({server_of(spec.name) or "" for spec in specs})
    has = flags_of(specs)
    one = len(names) == 1
    may: list[str] = []
    if confinement == "none" and "program" in has:
        may.append("WITHOUT A SANDBOX, with all that you may do yourself")
    if "network" in has:
        may.append("reaches the network")
    if "writes" in has:
        may.append("can change things")
    if not confinement:
        may.append(f"each proposal says what {'it' if one else 'they'} can do")
    which = f"use the MCP server {names[0]}" if one else f"use the MCP servers {' and '.join(names)}"
    return f"{which} ({', '.join(may)})" if may else which


def _paths(namespace: Sequence[str]) -> str:
    """Return the paths that may be changed, in quotes unless they are plain."""
    if tuple(namespace) == (".",):
        return "everything"
    return list_names([path if _PLAIN.fullmatch(path) else quoted(path, PATH_CHARS) for path in namespace], PATHS)


def several_line(count: int, cap_micros: int | None, timeout_s: float | None) -> str:
    """Return the last line of an approval of several: how many subagents under which caps; a cap of None is free."""
    return f"{count} subagents together, {caps_text(cap_micros, timeout_s)}"


def task_excerpt(task: str) -> str:
    """Return the first 120 characters of a task as one line, cut with `…`."""
    return one_line(task, TASK_CHARS)


def one_line(text: str, most: int) -> str:
    """Return the beginning of a text as one line without invisible and direction-changing characters, cut with `…`."""
    plain = plain_line(text[: most * 20])  # white space and invisible characters shrink; the bound keeps it fast
    return plain if len(plain) <= most else plain[:most].rstrip() + "…"


def plain_line(text: str) -> str:
    """Return a text as one line: a name, folder or model must not look like another line of the proposal."""
    if not (text.isascii() and text.isprintable()):
        text = "".join([" " if _unseen(char) else char for char in text])
    return " ".join(text.split())


@lru_cache(maxsize=4_096)
def _unseen(char: str) -> bool:
    if char.isascii():
        return not char.isprintable()
    variation = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return variation or char in _UNSEEN or unicodedata.category(char) in ("Cf", "Cc", "Cn", "Co", "Cs")


def quoted(text: str, most: int) -> str:
    """Return foreign text as one quoted line that nothing in it can close, with the number of characters left out."""
    whole = plain_line(text)
    shown = one_line(text, most)
    more = len(whole) - len(shown.removesuffix("…")) if shown != whole else 0
    rest = f" and {more:,} more characters" if more else ""
    return f'"{shown.translate(_QUOTES)}"{rest}'


def named_path(path: str) -> str:
    """Return a path as the proposal shows it: complete, and in quotes unless it is plain."""
    return path if _PLAIN.fullmatch(path) else quoted(path, COMMAND_CHARS)


@dataclass(frozen=True)
class SummaryRow:
    """A sentence of a proposal, under the topic by which pages group it. Each quotes what is not Ava's own."""

    topic: str
    text: str


FACTS = ("What", "Where", "How much", "Who asked")
"""The topics that come first, and decide most: a host may show only the first three lines at once."""
PROJECT = "Project"
"""The topic of what files of the project say to the run."""
ATTENTION = "Look at this"
"""The topic of what a person must not overlook."""
STEPS = "Steps"
"""The topic of a plan's steps, a row each."""
FOLDED = ("Not available", "Done before", "Also told", "Model", "Limits")
"""The topics that a terminal may fold. Every other is always shown: price, time, reach, what changes, commands,
network, secrets, another agent, a weaker sandbox, warnings, and who asked."""
WHOLE_CHARS = 20_000
"""Characters of a text that `WholeText` has."""


def run_rows(config: RunConfig, texts: Texts, day: DayLeft, client: str = "") -> tuple[SummaryRow, ...]:
    """Return the proposal for the person who approves: plain sentences, dollars, no JSON; the facts first.

    Every surface shows these rows. `client` is the program that asked for it; empty where it is not known.
    """
    what, where, *costs = _first_lines(config, texts)
    why = f"Why: {quoted(texts.rationale.rstrip('. '), SHOWN_CHARS)}." if texts.rationale else ""
    asked = f"{named_path(client)} asked for it." if client else ""
    topics: tuple[tuple[str, Iterable[str]], ...] = (
        ("What", [what]),
        ("Where", [where]),
        ("How much", costs),
        ("Who asked", filter(None, (asked, why))),
        (ATTENTION, [*attention_lines(config), *_day_lines(config, day)]),
        ("Not available", _missing_lines(config)),
        *_reach_topics(config, texts),
        *_limit_topics(config, day),
    )
    return tuple(SummaryRow(topic, plain_line(text)) for topic, lines in topics for text in lines)


def reach_rows(config: RunConfig, texts: Texts) -> list[SummaryRow]:
    """Return what a proposal says of what a run lacks, reaches and is told, in sentences."""
    topics = (("Not available", _missing_lines(config)), *_reach_topics(config, texts))
    return [SummaryRow(topic, plain_line(text)) for topic, lines in topics for text in lines]


def message_of(rows: Iterable[SummaryRow], config: RunConfig) -> str:
    """Return the rows of a proposal as one text: a sentence a line, the facts apart from the rest."""
    rows = list(rows)
    details = [row.text for row in rows if row.topic not in (*FACTS, ATTENTION)]
    lines = first_lines(rows, config, of_topic(rows, ATTENTION))
    if details:
        lines += ["", *details]
    return "\n".join(lines)


def of_topic(rows: Iterable[SummaryRow], topic: str) -> list[str]:
    return [row.text for row in rows if row.topic == topic]


def first_lines(rows: Sequence[SummaryRow], config: RunConfig, attention: Sequence[str]) -> list[str]:
    """Return the facts of a proposal. Hosts show the first three lines: task, reach and price, or what is to be seen.

    What must not be overlooked, in one line, is the third; price and reach are the second then.
    """
    facts = [row.text for row in rows if row.topic in FACTS]
    if not attention:
        return facts
    most = caps_text(config.cost_cap(), config.timeout_s)
    what = of_topic(rows, "What")
    where = " ".join(of_topic(rows, "Where"))
    others = [row.text for row in rows if row.topic in FACTS and row.topic not in ("What", "Where")]
    return [*what, f"{most[0].upper()}{most[1:]}. {where}", attention_line(attention), *others]


def attention_line(sentences: Sequence[str]) -> str:
    return f"{ATTENTION}: {' '.join(sentences)}"


def sees_files(config: RunConfig) -> bool:
    """Tell whether a run may read files of the person: of its workspace, or what its programs reach."""
    by_servers = any(use.read_write for use in config.foreign.values())
    return config.workspace is not None or config.confinement == "none" or by_servers


def model_rows(config: RunConfig) -> list[SummaryRow]:
    """Return what a proposal says of who does the work: the model, its commands, and another agent."""
    return [SummaryRow(topic, plain_line(text)) for topic, lines in _model_topics(config) for text in lines]


def plain_name(config: RunConfig) -> str:
    """Return a run's name as it stands in brackets; empty without one."""
    return config.name.translate(_QUOTES | _BRACKETS) if config.name else ""


def _first_lines(config: RunConfig, texts: Texts) -> list[str]:
    low, high = config.estimated_minutes
    name = f" ({plain_name(config)})" if config.name else ""
    can = config.reach
    sees = sees_files(config)
    cost = "costs nothing" if config.free else f"costs {caps_text(config.max_cost_micros)}"
    about = f"{low} to {high} minutes" if low < high else minutes(high * 60)
    return [
        f"Ava wants to start a {config.role}: {quoted(texts.task, SHOWN_CHARS)}{name}.",
        f"It {can}." if sees else f"It {can}; it cannot read your files.",
        f"It takes about {about}, at most {minutes(config.timeout_s)}, and {cost}.{_likely(config)}",
    ]


_SUCH = {
    "size": "yours with this role, this model and about as much input",
    "model": "yours with this role and this model, with more or less input",
    "role": "yours with this role, also with other models, at this model's price",
}
"""Which runs an estimate comes from, by its group."""


def likely_cost(config: RunConfig) -> str:
    """Return what half of the similar runs cost less than; empty where that is not known, or the cap."""
    half = config.estimate.half_micros if config.estimate is not None else None
    return format_usd(half) if half is not None and half < config.max_cost_micros else ""


def _likely(config: RunConfig) -> str:
    """Return the sentence on what it is likely to take, with a space before it; empty where too few runs ended."""
    if (found := config.estimate) is None:
        return ""

    def words(micros: int | None, us: int | None) -> str:
        cost, time = config.max_cost_micros, int(config.timeout_s * US_PER_S)
        parts = [] if config.free else [_capped(micros, cost, format_usd)]
        parts.append(_capped(us, time, lambda us: format_duration(us / US_PER_S)))
        return " and ".join(parts)

    most = "nine in ten" if found.bounded else "all"
    left = f", without {found.left_out} of unknown cost at today's price" if found.left_out else ""
    return (
        f" Likely {words(found.half_micros, found.half_us)} (half of {found.runs} such runs took less), {most} within"
        f" {words(found.most_micros, found.most_us)}; such runs are {_SUCH[found.group]}{left}."
    )


def _capped(value: int | None, cap: int, text: Callable[[int], str]) -> str:
    return text(value) if value is not None and value < cap else f"{text(cap)} (its cap)"


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
    clamped = [f"{note[0].upper()}{note[1:]}." for note in config.clamped]
    clamped += [config.price_note] if config.price_note else []
    return [*lines, *_effect_lines(config), *_secret_lines(config), *clamped]


def _reach_topics(config: RunConfig, texts: Texts) -> Iterator[tuple[str, list[str]]]:
    if config.coding is not None:
        yield "Changes", _coding_lines(config.coding)
    if config.search:
        from ava_server.config.search_engines import engine_title, search_cost  # with the HTTP client

        capped = config.search_call is not None
        by = f" ({config.search_call.model})" if config.search_call is not None else ""
        cost = search_cost(config.search_micros, capped=capped)
        yield "Web", [f"Its web searches go to {engine_title(config.search)}{by}, {cost}."]
    yield "MCP servers", [_server_line(name, use, config) for name, use in config.foreign.items()]
    yield "MCP servers", [f"{note}." for note in config.foreign_notes]
    if config.role_source != BUILT_IN_SOURCE:
        source = quoted(config.role_source, BESIDES_CHARS)
        yield "Role", [f"Its role is not built in; it comes from the file {source}."]
    if config.context_from:
        yield "Earlier results", [f"Results that it may read: {list_earlier(config.context_from)}."]
    told: list[str] = []
    if texts.system_prompt:
        count = len(texts.system_prompt)
        told.append(f"Its instructions ({count:,} characters): {quoted(texts.system_prompt, BESIDES_CHARS)}.")
    if texts.context:
        count = len(texts.context)
        told.append(
            f"Context that it gets with its task ({count:,} characters): {quoted(texts.context, BESIDES_CHARS)}."
        )
    yield "Also told", told
    yield "Skills", _skill_lines(config)
    yield PROJECT, _project_lines(config)
    yield "Machine", _travel_lines(config)


def _skill_lines(config: RunConfig) -> list[str]:
    lines: list[str] = []
    if config.skills:
        named = [f"{skill.name} ({_files_with_size(skill.files, skill.size)})" for skill in config.skills]
        lines.append(f"It may read these skills of yours, whose programs run only in its sandbox: {', '.join(named)}.")
    if config.missing_skills:
        names = list_names([quoted(name, PATH_CHARS) for name in config.missing_skills])
        lines.append(f"Skills that its role names and that are not installed (`ava roles add FOLDER`): {names}.")
    return lines


def _files_with_size(files: int, size: int) -> str:
    return f"{'1 file' if files == 1 else f'{files} files'}, {max(size / 1_000, 0.1):,.1f} kB"


def _project_lines(config: RunConfig) -> list[str]:
    """Return which files of the project say how to work in it, with their sizes, and which of them the run lacks."""
    lines: list[str] = []
    if config.project_files:
        files = list_names([_file_with_size(each) for each in config.project_files], MORE_PATHS)
        base = f", as they stand in {config.project_origin} and not in what it reviews"
        where = base if config.project_origin else ""
        lines.append(f"Files of the project tell it how to work there{where}: {files}. They allow nothing.")
    if config.project_left_out:
        lines.append(f"Left out of these files: {list_names([*map(_left_out, config.project_left_out)], PATHS)}.")
    return lines


def _left_out(said: str) -> str:
    """Return `path (why)` with the path in quotes unless it is plain: the project names its folders."""
    path, _, why = said.rpartition(" (")
    return f"{named_path(path)} ({why}" if path else quoted(said, PATH_CHARS)


def _file_with_size(file: ProjectFileSize) -> str:
    cut = "the beginning of " if file.is_cut else ""
    return f"{named_path(file.path)} ({cut}{max(file.size / 1_000, 0.1):,.1f} kB)"


def _runner_lines(config: RunConfig) -> list[str]:
    if config.runner == IN_PROCESS:
        return []
    first = f" Its first call costs about {format_usd(config.first_micros)}." if config.first_micros else ""
    return [
        f"Another agent does the work ({config.runner}), metered: each of its model requests is reserved before it is"
        f" sent.{first}",
        "It runs commands in its sandbox without asking, and has no network of its own. After a crash, at most its last"
        " calls are paid twice.",
    ]


def _model_topics(config: RunConfig) -> Iterator[tuple[str, list[str]]]:
    """Yield who does the work: the model; apart from it, which commands run for it, and another agent."""
    yield "Model", _model_lines(config)
    yield "Commands", _key_command_lines(config)
    yield "Another agent", _runner_lines(config)


def _model_lines(config: RunConfig) -> list[str]:
    if config.model.startswith("offline/"):
        model = [
            "No language model is used: the offline reader finds passages that have words of the task, and quotes"
            " them; it writes nothing of its own."
        ]
    else:
        thinks = ", which is told to think before it answers" if config.extended_thinking else ""
        free = " (free)" if config.price.free else ""
        model = [f"Model: {config.model}{free}{thinks}."]
    if config.thinking_note:
        model.append(f"It does not think first: {config.thinking_note}.")
    return model


def _key_command_lines(config: RunConfig) -> list[str]:
    lines: list[str] = []
    if config.key_command and not config.model.startswith("offline/"):
        command = quoted(" ".join(config.key_command), COMMAND_CHARS)
        lines.append(f"Its key comes from a command, which Ava runs outside the sandbox: {command}.")
    if config.search_call is not None and config.search_call.key_command:
        command = quoted(" ".join(config.search_call.key_command), COMMAND_CHARS)
        lines.append(f"The key of its web search comes from a command, which Ava runs outside the sandbox: {command}.")
    return lines


def _limit_topics(config: RunConfig, day: DayLeft) -> Iterator[tuple[str, list[str]]]:
    yield from _model_topics(config)
    turns, calls, tokens = config.max_iterations, config.max_tool_calls, config.max_tokens
    limits = [f"At most {turns:,} turns, {calls:,} tool calls and {tokens:,} tokens."]
    if not _day_lines(config, day):
        limits += _bought(config, "Its cost cap", config.max_cost_micros)
    if config.plan:
        plans = f"It plans first and then works: planning takes {PLAN_TURNS} of its {config.max_iterations} turns."
        without = "It does not plan first, because there is no language model to do it."
        limits.append(plans if config.plans else without)
    if config.labels:
        limits.append(f"It runs only on a machine with these labels: {', '.join(config.labels)}.")
    if config.background:
        limits.append("It continues within these limits if you close the host or terminal.")
    if config.questions > 1:
        limits.append(f"It may ask you up to {config.questions} questions.")
    yield "Limits", limits


def _missing_lines(config: RunConfig) -> list[str]:
    """Return what the run lacks of its role's tools, a line for each reason; MCP tools have their own notes."""
    from ava_roles.tools.registry import tool_specs  # loads every tool, and commands that only look need none

    missing = [f"No files because: {config.files_note}."] if config.files_note else []
    known, commands = tool_specs(), not config.commands_note
    reasons: dict[str, list[str]] = {}
    for name in config.unavailable_tools:
        why = why_unavailable(known[name], commands=commands) if name in known else ""
        reasons.setdefault(why, []).append(name)
    missing += [f"It goes without {', '.join(names)}{f' ({why})' if why else ''}." for why, names in reasons.items()]
    return [*missing, *([f"No commands because: {config.commands_note}."] if config.commands_note else [])]


def _day_lines(config: RunConfig, day: DayLeft) -> list[str]:
    """Return what is left of the day where that is less than the run's own cap, and what it buys."""
    if config.free or day.micros >= config.max_cost_micros:
        return []
    less = f"Only {day.words}, less than its cost cap"
    least = max(config.least_micros, 1)
    if day.micros < least <= day.micros + day.held_micros:
        return [f"{less}: it starts when {format_usd(least)} is free."]
    if day.micros < least:
        return [f"{less}: it cannot start before 00:00 UTC."]
    return [f"{less}.", *_bought(config, "That", day.micros)]


def _bought(config: RunConfig, what: str, micros: int) -> list[str]:
    """Return how many turns an amount buys at least, where it may be too little for all of them."""
    turns = config.least_turns(micros)
    if not 0 < turns < config.max_iterations:
        return []
    return [
        f"{what} buys at least {turns} of its {config.max_iterations} turns, even if each model call costs its maximum."
    ]


def several_note(sum_micros: int, cap_micros: int, day: DayLeft, likely: Sequence[tuple[int, int] | None]) -> str:
    """Return what members are likely to cost together, and which cap keeps them from spending all of their own caps.

    Up to two sentences, in micro-USD: `sum_micros` is the sum of their own caps without the free ones, and `likely` has
    `RunConfig.likely_micros` of each that is not free.
    """
    notes = list[str]()
    if known := [one for one in likely if one is not None]:
        half, most = (min(sum(values), cap_micros) for values in zip(*known, strict=True))
        others = (
            f", without {len(likely) - len(known)} for which there are no similar runs"
            if len(known) < len(likely)
            else ""
        )
        notes.append(f"Likely {format_usd(half)} to {format_usd(most)} together{others}.")
    if sum_micros > min(cap_micros, day.micros):
        own = f"Their caps add up to {format_usd(sum_micros, exact=True)}"
        most = f"together they may spend only {format_usd(cap_micros, exact=True)}"
        which = f"only {day.words}" if day.micros < cap_micros else most
        notes.append(f"{own}, but {which}: some may end early.")
    return " ".join(notes)


def why_unavailable(spec: ToolSpec, *, commands: bool) -> str:
    """Return in a few words why a run or a role lacks a built-in tool here; `commands`: they can be confined."""
    if spec.search:
        return "no search engine is set up; `ava doctor` says how"
    if (spec.commands or spec.edits) and not commands:
        return "commands cannot be confined here"
    if spec.edits:
        return "git is missing"
    return "it sees no files" if spec.files else "memory has no notes" if spec.memory else ""


def _coding_lines(coding: Coding) -> list[str]:
    """Return what a person has to know about work on their repository: where, on what, and what decides."""
    whole = coding.namespace == (".",)
    branch = named_path(coding.branch) if coding.branch else "detached HEAD"
    of = f"{named_path(coding.repository)}, from commit {coding.base[:12]} ({branch})"
    lines = [
        f"It works in a worktree of its own of {of}, and may change {'all of it' if whole else 'only these paths'}"
        + ("." if whole else f": {', '.join(quoted(path, PATH_CHARS) for path in coding.namespace[:MORE_PATHS])}."),
        "What it changes comes on a new branch, ava/S-… after its id; your checkout, its branch and its index stay as"
        " they are, and merging is left to you.",
    ]
    if (more := len(coding.namespace) - MORE_PATHS) > 0:
        lines.append(f"And {more} more paths.")
    lines.append(f"Its work must pass `{one_line(coding.verify, COMMAND_CHARS)}` ({coding.verify_from}).")
    if coding.setup is not None:
        lines.append(f"Before that runs `{one_line(coding.setup, COMMAND_CHARS)}` (from the role file).")
    lines.extend(f"{note[0].upper()}{note[1:]}." for note in coding.notes)
    return lines


def _travel_lines(config: RunConfig) -> list[str]:
    lines: list[str] = []
    for what, stored in (
        ("that commit", config.coding.snapshot if config.coding is not None else None),
        ("the files of its folder", config.folder),
    ):
        if stored is not None:
            size = f"{max(stored.size / 1e6, 0.1):,.1f} MB"
            lines.append(f"A copy of {what} ({size}) is in the database, so another machine's server may run it.")
    if config.travel_note:
        lines.append(f"Only servers of this data root can run it, because {config.travel_note}.")
    return lines


def _server_line(name: str, use: ForeignUse, config: RunConfig) -> str:
    reads: list[str] = []
    changes: list[str] = []
    for full, tool in use.tools.items():
        if full in config.tools:
            (changes if tool.changes else reads).append(full.removeprefix(f"mcp__{name}__"))
    has = [f"it says that these only read: {list_names(reads, READS_SHOWN)}"] if reads else []
    has += [f"can change things: {', '.join(changes)}"] if changes else []
    if not has:
        return f"MCP server {name}: none of its tools is left."
    may = [use.where]
    if not use.remote and config.confinement == "none":
        may.append("not confined at all")
    elif not use.remote:
        folders = ", ".join(map(named_path, use.read_write))
        may.append("with this machine's network" if use.network else "without a network")
        may.append(f"may write to {folders}" if folders else "sees none of your folders")
        may.append(f"confined by {config.confinement}")
    return f"MCP server {name} ({'; '.join(may)}): {'; '.join(has)}."


def _effect_lines(config: RunConfig) -> list[str]:
    """Return which sources may decide what the run's calls of other servers' tools change; nothing if none does."""
    from ava_roles.role import effect_words, parse_role  # with YAML, which most screens do without

    tools = [tool for use in config.foreign.values() for tool in use.tools.values()]
    if not tools:
        return []
    effects = parse_role(config.role_text, config.role_source, config.role).effects
    if not effects and not any(tool.changes for tool in tools):
        return []
    return [effect_words(effects)]


def _secret_lines(config: RunConfig) -> list[str]:
    """Return what the person must know about secrets: which may be sent where, and which are not stored."""
    usable = [f"{name} (only for {', '.join(hosts)})" for name, hosts in config.secrets.items() if hosts]
    unbound = [name for name, hosts in config.secrets.items() if hosts == ()]
    missing = [name for name, hosts in config.secrets.items() if hosts is None]
    lines: list[str] = []
    if usable:
        lines.append(f"Its calls may use the secret{'s' if len(usable) > 1 else ''} {', '.join(usable)}.")
    if unbound:
        lines.append(f"Stored, but for no host, so that no call can use it: {', '.join(unbound)}.")
    if missing:
        lines.append(f"Its role lists secrets that are not stored: {', '.join(missing)} (`ava secret set NAME`).")
    return lines


def list_earlier(runs: Sequence[EarlierRun]) -> str:
    """Return runs by id, role and ending, without anything that they wrote."""
    return ", ".join(
        f"{run.id} ({run.role}{'' if run.ending == 'success' else f', {run.ending}: may be incomplete'})"
        for run in runs
    )

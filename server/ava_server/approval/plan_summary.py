"""What a person is shown of a plan: its line, its sentences, and a row for each step.

The line and the sentences have the form of a single proposal's (`summary.py`). Reach is that of all steps together, as
if one run could do it all: what one step reads, another may send.
"""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pydantic import BaseModel

from ava_audit.units import US_PER_S, counted, format_duration, format_usd, minutes, now_us
from ava_roles.tool import ToolSpec
from ava_roles.wrap import list_names
from ava_server.approval.kept_money import kept_steps, later_steps
from ava_server.approval.plain_text import TASK_CHARS, named_path, one_line, plain_line, quoted, task_excerpt
from ava_server.approval.reach import RunReach, reach, reach_words, reaches_out, reads_memory, sees_files
from ava_server.approval.steps import ITEM, references, unfilled
from ava_server.approval.summary import (
    ATTENTION,
    SHOWN_CHARS,
    STEPS,
    DayLeft,
    SummaryRow,
    attention_lines,
    client_lines,
    cost_words,
    model_rows,
    reach_rows,
)
from ava_server.core.ids import IN_PROCESS
from ava_server.core.names import named, named_all, named_role, quote_name, quote_names
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig, StepConfig
from ava_server.run_config.run_cap import caps_text

MOST_IN_ROW = 6
"""Most steps that one of several lists in a sentence names."""
MOST_TOLD = 20
"""Most steps of which a sentence about several names each."""
NAME_CHARS = 60
SLOTS = 4
"""Runs at once by which the likely time of a plan is estimated; see `running_per_user` in config.toml."""
_SIGNS = dict.fromkeys(map(ord, ":$,;\"'"), " ")
"""Characters by which a plan's name could look like the rest of its line."""
_SIGNS_OF_OTHERS = ("P", "Sc", "Sm", "Sk")
"""Unicode's categories of punctuation and of signs outside ASCII, among which many look like one in ASCII."""


def plan_size(config: RunConfig) -> str:
    """`3 steps, up to 22 runs`; without a list of items `3 steps`, which are as many runs."""
    steps = counted(len(config.steps), "step")
    if config.most_runs == len(config.steps):
        return steps
    return f"{steps}, up to {counted(config.most_runs, 'run')}"


def plan_line(config: RunConfig, brief: Brief) -> str:
    """Return the line that an approval must repeat exactly: size, caps, reach, and the beginning of the first task."""
    what = "plan"
    if config.name:
        what += f" {quote_name(_name_in_line(config.name))}"
    runners = sorted({step.config.runner for step in config.steps} - {IN_PROCESS})
    if runners:
        what += f" by {' and '.join(runners)}"
    caps = caps_text(config.cost_cap(), config.timeout_s)
    first = brief.of_step(config.steps[0].id)
    return plain_line(f"{what}: {plan_size(config)}, {caps}, {config.reach}: {task_excerpt(first.task)}")


def _name_in_line(name: str) -> str:
    """Return a plan's name without signs that look like a colon, a comma or a price, also in other scripts."""
    plain = unicodedata.normalize("NFKC", name).translate(_SIGNS)
    chars: list[str] = []
    for char in plain:
        is_sign = unicodedata.category(char).startswith(_SIGNS_OF_OTHERS) or char in _LETTERS_LIKE_COLONS
        chars.append(" " if is_sign and not char.isascii() else char)
    return one_line("".join(chars), NAME_CHARS)


_LETTERS_LIKE_COLONS = "ːˑׅ։"


def plan_reach(steps: Sequence[tuple[RunConfig, Collection[ToolSpec]]]) -> str:
    """Return what the runs of several steps may read, reach and change, as if one run could do it all.

    Steps that change different things, or with an agent that is not Ava's, are told one after the other.
    """
    configs = [config for config, _specs in steps]
    changing = [config for config in configs if config.coding is not None]
    folders: dict[str, str] = {}  # with their git folders; one that is changed comes first
    namespaces: list[tuple[str, ...]] = []
    has_foreign_agent = False
    for config in configs:
        if config.coding is not None:
            namespaces.append(config.coding.namespace)
        if config.foreign:
            has_foreign_agent = True
    if has_foreign_agent or len(namespaces) > 1:
        return separate_reach(configs)
    for config in (*changing, *configs):
        if config.workspace is not None:
            folders.setdefault(config.workspace, config.git_folder or "")
    tools: dict[str, ToolSpec] = {}
    web_readers: list[RunConfig] = []  # with a tool that reads pages; a search alone does not count
    for config, specs in steps:
        for spec in specs:
            if spec.results:
                continue
            tools[spec.name] = spec
            if spec.network and not spec.search:
                web_readers.append(config)
    first = next(iter(folders), None)
    together = RunReach(
        workspace=first,
        earlier=_earlier_runs(configs),
        confinement=_weakest_confinement(configs),
        network=any(config.network for config in configs),
        namespace=next(iter(namespaces), ()),
        hosts=_hosts_of(web_readers),
        git_folder="" if first is None else folders[first],
        others={path: git_folder for path, git_folder in folders.items() if path != first},
    )
    return reach(tools.values(), together)


def separate_reach(configs: Iterable[RunConfig]) -> str:
    """Return the different reaches of runs, one after the other: `can read /a; read /b`."""
    first, *others = dict.fromkeys(config.reach for config in configs)
    return "; ".join([first, *(words.removeprefix("can ") for words in others)])


def _earlier_runs(configs: Iterable[RunConfig]) -> int:
    """Return how many earlier runs the steps read. Results that one step hands to another do not count."""
    run_ids: set[str] = set()
    for config in configs:
        run_ids.update(run.id for run in config.context_from if run.id.startswith("S-"))
    return len(run_ids)


def _weakest_confinement(configs: Iterable[RunConfig]) -> str:
    """Return `none` if one of the runs is not confined, else the first confinement; empty if no run needs one."""
    confinements = [config.confinement for config in configs if config.confinement != "none needed"]
    if "none" in confinements:
        return "none"
    return next(iter(confinements), "")


def _hosts_of(networked: Sequence[RunConfig]) -> tuple[str, ...]:
    """Return the only web hosts that steps may read. Empty if one of the steps may read every host."""
    hosts: dict[str, None] = {}
    for config in networked:
        if not config.hosts:
            return ()
        hosts.update(dict.fromkeys(config.hosts))
    return tuple(hosts)


def plan_rows(config: RunConfig, brief: Brief, day: DayLeft, client: str = "") -> tuple[SummaryRow, ...]:
    """Return the proposal of a plan for the person who approves, as `summary.run_rows` does of a single run."""
    topics: tuple[tuple[str, Iterable[str]], ...] = (
        ("What", [f"Ava wants to start {_title(config)}: {plan_size(config)}."]),
        ("Where", [_where_line(config)]),
        ("How much", [_cost_line(config)]),
        ("Where", _copy_lines(config)),
        ("Who asked", client_lines(client, brief)),
        ("How much", _done_lines(config)),
        (ATTENTION, _attention(config, brief, day)),
        ("Done before", [*again_lines(config), *reused_lines(config, now_us())]),
        (STEPS, step_rows(config, brief)),
        *_step_topics(config, brief).items(),
        ("Limits", _limit_lines(config)),
    )
    return tuple(SummaryRow(topic, plain_line(line)) for topic, lines in topics for line in lines)


def _unkept(config: RunConfig) -> Iterator[str]:
    """Yield for each step over a list how many steps after it the plan's cap keeps no money for."""
    for step in config.steps:
        if step.foreach is None or step.config.free:
            continue
        later = later_steps(config.steps, step)
        kept = kept_steps(later, config.max_cost_micros - step.config.least_micros)
        if len(kept) < len(later):
            takes = step.config.least_micros + sum(other.config.least_micros for other in later)
            yield (
                f"The plan's cap keeps no money for {len(later) - len(kept)} of {counted(len(later), 'step')} after"
                f" {named('step', step.id)} while its runs work, so they may not start: with a cap of"
                f" {format_usd(takes)} it does."
            )


def _title(config: RunConfig) -> str:
    if not config.name:
        return "a plan"
    return f"the plan {quoted(config.name, NAME_CHARS)}"


def _where_line(config: RunConfig) -> str:
    if any(sees_files(step.config) for step in config.steps):
        return f"Together they {reach_words(config.reach)}."
    return f"Together they {reach_words(config.reach)}; they cannot read your files."


def _copy_lines(config: RunConfig) -> list[str]:
    """Return that copies of folders and commits are in the database of a shared log."""
    bytes_of: dict[str, int] = {}
    for step in config.steps:
        copies = [step.config.folder]
        if step.config.coding is not None:
            copies.append(step.config.coding.snapshot)
        for copy in copies:
            if copy is not None:
                bytes_of[copy.sha256] = copy.size
    if not bytes_of:
        return []
    size = max(sum(bytes_of.values()) / 1e6, 0.1)
    return [
        f"A copy of what its steps work on ({size:,.1f} MB) is in the database, so other machines' servers may run"
        " them."
    ]


def _cost_line(config: RunConfig) -> str:
    return f"It takes at most {minutes(config.timeout_s)} and {cost_words(config)}.{likely_of_plan(config)}"


def _limit_lines(config: RunConfig) -> list[str]:
    lines: list[str] = []
    if config.background:
        lines.append("It continues within these limits if you close the host or terminal.")
    lines.append(
        "Each run has the caps of its step, all of them share the plan's, and none asks for more."
        " What a step hands over is data for the next one: it adds no step, tool, folder or money."
    )
    return lines


def likely_of_plan(config: RunConfig) -> str:
    """Return the sentence on what a plan is likely to take, with a space before it; empty without similar runs.

    Only steps count of which enough similar runs ended, each with its greatest number of runs.
    """
    known = [step for step in config.steps if step.config.estimate is not None]
    if not known:
        return ""
    likely = format_duration(longest_path_s(config.steps, {step.id: _half_s(step) for step in known}))
    if not config.free:
        micros = sum(step.at_most * half_micros(step) for step in known)
        likely = f"{format_usd(min(micros, config.max_cost_micros))} and {likely}"
    if len(known) < len(config.steps):
        likely += f" for {len(known)} of {len(config.steps)} steps"
    return f" Likely {likely}."


def half_micros(step: StepConfig) -> int:
    """Return what half of the similar runs of a step cost less than, in micro-USD."""
    likely = step.config.likely_micros
    if likely is None or step.config.free:
        return 0
    return likely[0]


def _half_s(step: StepConfig) -> float:
    estimate = step.config.estimate
    if estimate is None or estimate.half_us is None:
        return step.config.timeout_s
    return min(estimate.half_us / US_PER_S, step.config.timeout_s)


def longest_path_s(steps: Sequence[StepConfig], run_s: Mapping[str, float], slots: int = SLOTS) -> float:
    """Return the seconds of the longest chain of steps; the runs of a list take `slots` at a time."""
    ends: dict[str, float] = {}
    for step in steps:
        begins = max((ends[name] for name in step.needs), default=0.0)
        ends[step.id] = begins + run_s.get(step.id, 0.0) * math.ceil(step.at_most / slots)
    return max(ends.values())


# -- what a person must not overlook ----------------------------------------------------------------------------------


def _done_lines(config: RunConfig) -> list[str]:
    """Return how much of a plan an earlier one has done, and that one."""
    lines: list[str] = []
    if config.goes_on_from:
        lines.append(f"It goes on from the plan {config.goes_on_from}.")
    reused = sum(len(step.reused) for step in config.steps)
    if not reused:
        return lines
    done = [step for step in config.steps if step.at_most and not step.new_runs]
    are = "is" if len(done) == 1 else "are"
    more = "nothing" if config.free else f"at most {format_usd(config.max_cost_micros, exact=True)}"
    lines.append(
        f"{len(done)} of {counted(len(config.steps), 'step')} {are} done:"
        f" the results of {counted(reused, 'earlier run')} count, and cost nothing again; {more} more."
    )
    return lines


def again_lines(config: RunConfig) -> list[str]:
    """Return a line for each step of which an earlier plan has runs that do not count again: why that is so."""
    again = [step for step in config.steps if step.again_why]
    return [f"The step {quote_name(step.id)} runs again: {step.again_why}." for step in again]


def reused_lines(config: RunConfig, now_us: int) -> list[str]:
    """Return a line for each step of which runs are reused: how many, from which, and how old they are."""
    lines: list[str] = []
    for step in config.steps:
        if not step.reused:
            continue
        oldest_s = max(0, now_us - min(run.ended_us for run in step.reused)) / US_PER_S
        runs = _listed([run.id for run in step.reused])
        lines.append(
            f"Step {quote_name(step.id)}: the result of {runs}, at most {format_duration(oldest_s)} old, counts again."
        )
    return lines


def _attention(config: RunConfig, brief: Brief, day: DayLeft) -> Iterator[str]:
    """Yield what a person must not overlook; each begins with its point, for a narrow line shows only that."""
    steps_by_line: dict[str, list[str]] = {}
    for step in config.steps:
        for line in attention_lines(step.config):
            steps_by_line.setdefault(line, []).append(step.id)
    for line, names in steps_by_line.items():
        about = "each step" if len(names) == len(config.steps) else named_all("step", names, MOST_TOLD)
        yield f"{line} This is about {about}."
    for step in config.steps:
        if step.repeats:
            yield (
                f"It may change things outside a second time: {named('step', step.id)} has done so already"
                f" ({_listed(step.repeats)}); look there first, or drop it."
            )
    yield from _flows(config)
    yield from _unfilled_lines(config, brief)
    yield from _unkept(config)
    for note in config.clamped:
        yield f"{note[0].upper()}{note[1:]}."
    if not config.free and day.micros < config.max_cost_micros:
        yield f"Only {day.words}, less than the plan's cost cap."


def _unfilled_lines(config: RunConfig, brief: Brief) -> Iterator[str]:
    """Yield a sentence for each step whose task or context has `{{…}}` in which nothing is filled in."""
    ids = {step.id for step in config.steps}
    for step in config.steps:
        if step.run:  # a task that was proposed by itself is no template
            continue
        own = brief.of_step(step.id)
        in_task = unfilled(own.task, step.inputs)
        if in_task:
            yield (
                f"In the task of {named('step', step.id)}, this names no step and stays as it is written:"
                f" {_list_texts(in_task)}."
            )
        in_context = [source for source in references(own.context or "") if source.step in (ITEM, *ids)]
        if in_context:
            texts = [f"{{{{{source.text}}}}}" for source in in_context]
            yield (
                f"In the context of {named('step', step.id)}, this stays as it is written, for only tasks are filled"
                f" in: {_list_texts(texts)}."
            )


def _list_texts(texts: Sequence[str]) -> str:
    return list_names([quoted(text, NAME_CHARS) for text in texts], MOST_IN_ROW)


def _flows(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each private source that steps read, and that a later step could send elsewhere."""
    after = _after(config.steps)
    readers: dict[str, list[str]] = {}
    senders: dict[str, list[str]] = {}
    for step in config.steps:
        private = _reads_private(step.config)
        if not private:
            continue
        later = [other for other in config.steps if step.id in after[other.id]]
        later_senders = [other.id for other in later if reaches_out(other.config)]
        if later_senders:
            readers.setdefault(private, []).append(step.id)
            known = senders.setdefault(private, [])
            known += [name for name in later_senders if name not in known]
    for private, names in readers.items():
        read = "reads" if len(names) == 1 else "read"
        readers_named = named_all("step", names, MOST_IN_ROW)
        through = named_all("step", senders[private], MOST_IN_ROW)
        yield f"Private data can leave this machine: what {readers_named} {read} ({private}), through {through}."


def _after(steps: Sequence[StepConfig]) -> dict[str, set[str]]:
    """Return the steps that each step comes after, also through others."""
    after: dict[str, set[str]] = {}
    for step in steps:
        after[step.id] = set(step.needs).union(*(after[name] for name in step.needs))
    return after


def _reads_private(config: RunConfig) -> str:
    if config.workspace is not None:
        return named_path(config.workspace)
    if config.foreign:
        return "other MCP servers"
    return "the notes in memory" if reads_memory(config) else ""


def _step_topics(config: RunConfig, brief: Brief) -> dict[str, list[str]]:
    """Return what else there is to say of the steps, by topic, each sentence once with its steps."""
    steps_by_row: dict[SummaryRow, list[str]] = {}
    for step in config.steps:
        for row in (*reach_rows(step.config, brief.of_step(step.id)), *model_rows(step.config)):
            steps_by_row.setdefault(row, []).append(step.id)
    topics: dict[str, list[str]] = {}
    for row, names in steps_by_row.items():
        topics.setdefault(row.topic, []).append(_with_steps(names, row.text, len(config.steps)))
    return topics


def _with_steps(names: Sequence[str], line: str, steps: int) -> str:
    if len(names) == steps and steps > 1:
        return f"Each step: {line}"
    step = "Step" if len(names) == 1 else "Steps"
    return f"{step} {quote_names(names, MOST_TOLD)}: {line}"


def _listed(run_ids: Sequence[str]) -> str:
    return list_names(run_ids, MOST_TOLD)


# -- the steps --------------------------------------------------------------------------------------------------------


def step_rows(config: RunConfig, brief: Brief) -> list[str]:
    """Return a line for each step: id, role, how many runs, the most of each, after which, and its task."""
    return [step_row(step, brief.of_step(step.id)) for step in config.steps]


def step_row(step: StepConfig, brief: Brief) -> str:
    row = f"Step {quote_name(step.id)}: {named_role(step.config.role)}"
    if not step.new_runs:
        row += ", done before"
    elif step.foreach is not None:
        row += f", up to {step.new_runs:,} runs, one for each of {quote_name(step.foreach.text)}"
    row += f", {caps_text(step.config.cost_cap(), step.config.timeout_s)}"
    if step.foreach is not None:
        row += " each"
    if step.needs:
        row += f", after {named_all('step', step.needs, len(step.needs))}"
    if step.if_fails in _FAILS:
        row += f"; {_FAILS[step.if_fails]}"
    return f"{row}: {quoted(brief.task, SHOWN_CHARS)}"


class StepSummary(BaseModel):
    """A step as a row of a table.

    Attributes:
        role: Its role, with the number of runs of one that has several.
        most: The most that it, or each of its runs, costs and takes.
        after: The steps that it waits for.
        task: The beginning of its task, in quotes.
        note: What happens if it fails, where that is not usual, and which items it has.
    """

    id: str
    role: str
    most: str
    after: str
    task: str
    note: str


def step_summary(step: StepConfig, brief: Brief) -> StepSummary:
    role = step.config.role
    cost = "free" if step.config.free else format_usd(step.config.max_cost_micros, exact=True)
    notes: list[str] = []
    if step.foreach is not None:
        role += f" x {step.new_runs:,}"
        cost += " each"
        notes.append(f"one run for each of {quote_name(step.foreach.text)}")
    if not step.new_runs:
        role += ", done before"
    if step.if_fails in _FAILS:
        notes.append(_FAILS[step.if_fails])
    return StepSummary(
        id=step.id,
        role=role,
        most=f"{cost}, {minutes(step.config.timeout_s)}",
        after=", ".join(step.needs),
        task=quoted(brief.task, TASK_CHARS),
        note="; ".join(notes),
    )


_FAILS = {"stop": "if it fails, the plan stops", "continue": "if it fails, the rest goes on without it"}


def folded_steps(config: RunConfig, brief: Brief) -> list[tuple[str, str]]:
    """Return the steps in lines, like ones in a row as one, each with its task in quotes."""
    tasks = {step.id: quoted(brief.of_step(step.id).task, SHOWN_CHARS) for step in config.steps}
    lines: list[tuple[str, str]] = []
    for _form, group in itertools.groupby(config.steps, key=lambda step: (_form_of(step), tasks[step.id])):
        steps = list(group)
        lines.append((_folded_steps(steps), tasks[steps[0].id]))
    return lines


def _folded_steps(steps: Sequence[StepConfig]) -> str:
    """Return a line for like steps in a row, without their task."""
    first = steps[0]
    line = f"Step {quote_name(first.id)}"
    if len(steps) > 1:
        line = f"Steps {quote_name(first.id)} to {quote_name(steps[-1].id)} ({len(steps)} steps)"
    line += f": {named_role(first.config.role)}"
    if not first.new_runs:
        line += ", done before"
    elif first.foreach is not None:
        line += f" x {first.new_runs:,}"
    line += f", {caps_text(first.config.cost_cap())}"
    if first.needs:
        line += f", after {named_all('step', first.needs, MOST_TOLD)}"
    return line


def _form_of(step: StepConfig) -> tuple[object, ...]:
    """Return what like steps have in common: everything that a person decides by, but the task."""
    config = step.config
    may = config.role, config.reach, config.runner, config.model, config.tools, config.max_cost_micros
    return (*may, step.new_runs, step.foreach is None, step.needs, step.if_fails)

"""What a person is shown of a plan: its line, its sentences, and a row for each step.

The line and the sentences have the form of a single proposal's (`summary.py`). Reach is that of all steps together, as
if one run could do it all: what one step reads, another may send.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pydantic import BaseModel

from ava_audit.units import US_PER_S, format_duration, format_usd, minutes, now_us
from ava_roles.tool import ToolSpec
from ava_server.approval.summary import (
    ATTENTION,
    PROJECT,
    SHOWN_CHARS,
    STEPS,
    TASK_CHARS,
    DayLeft,
    RunReach,
    SummaryRow,
    attention_lines,
    first_lines,
    model_rows,
    named_path,
    of_topic,
    one_line,
    plain_line,
    quoted,
    reach,
    reach_rows,
    sees_files,
    task_excerpt,
)
from ava_server.budget.run_config import RunConfig, StepConfig, Texts, caps_text
from ava_server.core.ids import IN_PROCESS

MOST_IN_ROW = 6
"""Most steps that one of several lists in a sentence names."""
MOST_TOLD = 20
"""Most steps of which a sentence about several names each."""
NAME_CHARS = 60
SLOTS = 4
"""Runs at once by which the likely time of a plan is estimated; see `running_per_user` in config.toml."""


_NAME = dict.fromkeys(map(ord, ":$,;\"'"), " ")
"""Characters by which a plan's name could look like the rest of its line."""


def counted(number: int, what: str) -> str:
    """`1 step`, `3 steps`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def plan_size(config: RunConfig) -> str:
    """`3 steps, up to 22 runs`; without a list of items `3 steps`, which are as many runs."""
    steps = counted(len(config.steps), "step")
    return steps if config.most_runs == len(config.steps) else f"{steps}, up to {counted(config.most_runs, 'run')}"


def plan_line(config: RunConfig, texts: Texts) -> str:
    """Return the line that an approval must repeat exactly: size, caps, reach, and the beginning of the first task."""
    name = f" {one_line(config.name.translate(_NAME), NAME_CHARS)}" if config.name else ""
    runners = sorted({step.config.runner for step in config.steps} - {IN_PROCESS})
    by = f" by {' and '.join(runners)}" if runners else ""
    caps = caps_text(config.cost_cap(), config.timeout_s)
    first = texts.of_step(config.steps[0].id)
    return plain_line(f"plan{name}{by}: {plan_size(config)}, {caps}, {config.reach}: {task_excerpt(first.task)}")


def plan_reach(steps: Sequence[tuple[RunConfig, Collection[ToolSpec]]]) -> str:
    """Return what the runs of several steps may read, reach and change together."""
    configs = [config for config, _specs in steps]
    folders = {config.workspace for config in configs if config.workspace is not None}
    changing = [config for config in configs if config.coding is not None]
    if len(folders) > 1 or len(changing) > 1 or any(config.foreign for config in configs):
        apart = list(dict.fromkeys(config.reach for config in configs))
        return "; ".join([apart[0], *(each.removeprefix("can ") for each in apart[1:])])
    own = [(config, [spec for spec in specs if not spec.results]) for config, specs in steps]
    specs = {spec.name: spec for _config, of_step in own for spec in of_step}
    networked = [config for config, of_step in own if any(spec.network and not spec.search for spec in of_step)]
    coding = changing[0].coding if changing else None
    return reach(
        specs.values(),
        RunReach(
            workspace=next(iter(folders), None),
            earlier=_earlier_runs(configs),
            confinement=_weakest_confinement(configs),
            network=any(config.network for config in configs),
            namespace=coding.namespace if coding is not None else (),
            hosts=_hosts_of(networked),
            git_folder=next((config.git_folder for config in configs if config.git_folder), ""),
        ),
    )


def _earlier_runs(configs: Iterable[RunConfig]) -> int:
    """Return how many earlier runs steps read; the results that steps hand over are no such runs."""
    return len({run.id for config in configs for run in config.context_from if run.id.startswith("S-")})


def _weakest_confinement(configs: Iterable[RunConfig]) -> str:
    confined = [config.confinement for config in configs if config.confinement != "none needed"]
    if "none" in confined:
        return "none"
    return confined[0] if confined else ""


def _hosts_of(networked: Sequence[RunConfig]) -> tuple[str, ...]:
    """Return the only hosts that steps may read from the web; empty where one of them may read every one."""
    if not all(config.hosts for config in networked):
        return ()
    return tuple(dict.fromkeys(host for config in networked for host in config.hosts))


def plan_rows(config: RunConfig, texts: Texts, day: DayLeft, client: str = "") -> tuple[SummaryRow, ...]:
    """Return the proposal of a plan for the person who approves, as `summary.proposal_rows` does of a single run."""
    rows: list[tuple[str, str]] = [("What", f"Ava wants to start {_title(config)}: {plan_size(config)}.")]
    sees = any(sees_files(step.config) for step in config.steps)
    rows.append(("Where", f"Together they {config.reach}{'' if sees else '; they cannot read your files'}."))
    rows.append(("How much", _how_much(config)))
    rows += [("Where", line) for line in _copied(config)]
    if client:
        rows.append(("Who asked", f"{named_path(client)} asked for it."))
    if texts.rationale:
        rows.append(("Who asked", f"Why: {quoted(texts.rationale.rstrip('. '), SHOWN_CHARS)}."))
    rows += [("How much", line) for line in _reused_whole(config)]
    rows += [(ATTENTION, line) for line in _attention(config, day)]
    rows += [("Done before", line) for line in reused_lines(config, now_us())]
    rows += [(STEPS, line) for line in step_rows(config, texts)]
    for topic, lines in _by_topic(config, texts).items():
        rows += [(topic, line) for line in lines]
    if config.background:
        rows.append(("Limits", "It continues within these limits if you close the host or terminal."))
    rows.append(
        (
            "Limits",
            "Each run has the caps of its step, all of them share the plan's, and none asks for more."
            " What a step hands over is data for the next one: it adds no step, tool, folder or money.",
        )
    )
    return tuple(SummaryRow(topic, plain_line(text)) for topic, text in rows)


MESSAGE_LINES = 36
"""Lines of a plan's text in a host: with its line and the question it stays within 40."""


def plan_message(config: RunConfig, texts: Texts, day: DayLeft, client: str = "") -> str:
    """Return a plan as one text of at most `MESSAGE_LINES` lines: the whole, then the steps, like ones folded.

    Pages and `ava approve` show every text; the digest covers them all.
    """
    rows = plan_rows(config, texts, day, client)
    facts = first_lines(rows, config, _at_most(of_topic(rows, ATTENTION), MOST_ATTENTION))
    project = _at_most(of_topic(rows, PROJECT), MOST_PROJECT)
    lines = [*facts, "", *project]
    return "\n".join([*lines, *short_steps(config, texts, MESSAGE_LINES - len(lines) - 1)])


def _at_most(sentences: list[str], most: int) -> list[str]:
    """Return the first of these sentences, and how many more there are."""
    if len(sentences) <= most:
        return sentences
    more = len(sentences) - most + 1
    return [*sentences[: most - 1], f"And {more} more such sentences: `ava approve` shows them."]


MOST_PROJECT = 3
"""Most sentences about files of the project in a plan's short text."""
MOST_ATTENTION = 8
"""Most sentences that a person must not overlook in a plan's short text; pages have them all."""


def _title(config: RunConfig) -> str:
    return f"the plan {quoted(config.name, NAME_CHARS)}" if config.name else "a plan"


def _copied(config: RunConfig) -> Iterator[str]:
    """Yield that copies of folders and commits are in the database of a shared log."""
    copied: dict[str, int] = {}
    for step in config.steps:
        for stored in (step.config.folder, step.config.coding and step.config.coding.snapshot):
            if stored:
                copied[stored.sha256] = stored.size
    if copied:
        size = max(sum(copied.values()) / 1e6, 0.1)
        yield (
            f"A copy of what its steps work on ({size:,.1f} MB) is in the database, so other machines' servers may run"
            " them."
        )


def _how_much(config: RunConfig) -> str:
    cost = "costs nothing" if config.free else f"costs {caps_text(config.max_cost_micros)}"
    return f"It takes at most {minutes(config.timeout_s)} and {cost}.{likely_of_plan(config)}"


def likely_of_plan(config: RunConfig) -> str:
    """Return the sentence on what a plan is likely to take, with a space before it; empty without similar runs.

    Only steps count of which enough similar runs ended, each with its greatest number of runs.
    """
    known = [step for step in config.steps if step.config.estimate is not None]
    if not known:
        return ""
    micros = sum(step.at_most * half_micros(step) for step in known)
    share = "" if len(known) == len(config.steps) else f" for {len(known)} of {len(config.steps)} steps"
    time = format_duration(longest_path_s(config.steps, {step.id: _half_s(step) for step in known}))
    cost = "" if config.free else f"{format_usd(min(micros, config.max_cost_micros))} and "
    return f" Likely {cost}{time}{share}."


def half_micros(step: StepConfig) -> int:
    """Return what half of the similar runs of a step cost less than, in micro-USD."""
    likely = step.config.likely_micros
    return likely[0] if likely is not None and not step.config.free else 0


def _half_s(step: StepConfig) -> float:
    found = step.config.estimate
    if found is None or found.half_us is None:
        return step.config.timeout_s
    return min(found.half_us / US_PER_S, step.config.timeout_s)


def longest_path_s(steps: Sequence[StepConfig], run_s: Mapping[str, float], slots: int = SLOTS) -> float:
    """Return the seconds of the longest chain of steps; the runs of a list take `slots` at a time."""
    ends: dict[str, float] = {}
    for step in steps:
        begins = max((ends[name] for name in step.needs), default=0.0)
        ends[step.id] = begins + run_s.get(step.id, 0.0) * math.ceil(step.at_most / slots)
    return max(ends.values())


# -- what a person must not overlook ----------------------------------------------------------------------------------


def _reused_whole(config: RunConfig) -> Iterator[str]:
    """Yield how much of a plan an earlier one has done."""
    done = [step for step in config.steps if step.at_most and not step.new_runs]
    reused = sum(len(step.reused) for step in config.steps)
    if not reused:
        return
    more = "nothing" if config.free else f"at most {format_usd(config.max_cost_micros, exact=True)}"
    yield (
        f"{len(done)} of {counted(len(config.steps), 'step')} {'is' if len(done) == 1 else 'are'} done:"
        f" the results of {counted(reused, 'earlier run')} count, and cost nothing again; {more} more."
    )


def reused_lines(config: RunConfig, now_us: int) -> list[str]:
    """Return a line for each step of which runs are reused: how many, from which, and how old they are."""
    lines: list[str] = []
    for step in config.steps:
        if not step.reused:
            continue
        oldest_s = max(0, now_us - min(run.ended_us for run in step.reused)) / US_PER_S
        runs = ", ".join(run.id for run in step.reused[:MOST_TOLD])
        more = f" and {len(step.reused) - MOST_TOLD} more" if len(step.reused) > MOST_TOLD else ""
        lines.append(f"{step.id}: the result of {runs}{more}, at most {format_duration(oldest_s)} old, counts again.")
    return lines


def _attention(config: RunConfig, day: DayLeft) -> Iterator[str]:
    for line, names in _shared((step.id, attention_lines(step.config)) for step in config.steps).items():
        yield _with_steps(names, line, len(config.steps))
    for step in config.steps:
        if step.repeats:
            yield (
                f"{step.id} may have changed things outside already ({_names(step.repeats)}), and does it again: look"
                " there first, or drop it."
            )
    yield from _flows(config)
    if not config.free and day.micros < config.max_cost_micros:
        yield f"Only {day.words}, less than the plan's cost cap."


def _flows(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for each private source that steps read, and that a later step could send elsewhere."""
    after = _after(config.steps)
    readers: dict[str, list[str]] = {}
    senders: dict[str, list[str]] = {}
    for step in config.steps:
        private = _reads_private(step.config)
        if not private:
            continue
        later = [other.id for other in config.steps if step.id in after[other.id] and reaches_out(other.config)]
        if later:
            readers.setdefault(private, []).append(step.id)
            known = senders.setdefault(private, [])
            known += [name for name in later if name not in known]
    for private, names in readers.items():
        read = "reads" if len(names) == 1 else "read"
        through = _names(senders[private], MOST_IN_ROW)
        yield f"What {_names(names, MOST_IN_ROW)} {read} ({private}) can leave this machine through {through}."


def _after(steps: Sequence[StepConfig]) -> dict[str, set[str]]:
    """Return the steps that each step comes after, also through others."""
    found: dict[str, set[str]] = {}
    for step in steps:
        found[step.id] = set(step.needs).union(*(found[name] for name in step.needs))
    return found


def _reads_private(config: RunConfig) -> str:
    if config.workspace is not None:
        return named_path(config.workspace)
    if config.foreign:
        return "other MCP servers"
    return "the notes in memory" if "memory" in config.tools else ""


def reaches_out(config: RunConfig) -> bool:
    """Tell whether a run has a way to send something from this machine, besides to its model."""
    from ava_roles.tools.registry import specs_of  # loads every tool

    if config.network or any(use.network or use.remote for use in config.foreign.values()):
        return True
    return any(spec.network for spec in specs_of(config.tools, {}))


def reads_outside(config: RunConfig) -> bool:
    """Tell whether what a run finds may be different the next day: it reads the web, or asks a person or a server."""
    return reaches_out(config) or bool(config.foreign) or config.questions > 0


def changes_outside(config: RunConfig) -> bool:
    """Tell whether a run may change something that stays: in a repository, or by another server's tools."""
    if config.coding is not None:
        return True
    return any(
        tool.changes for use in config.foreign.values() for name, tool in use.tools.items() if name in config.tools
    )


def _by_topic(config: RunConfig, texts: Texts) -> dict[str, list[str]]:
    """Return what else there is to say of the steps, by topic, each sentence once with its steps."""
    by_topic: dict[str, dict[str, list[str]]] = {}
    for step in config.steps:
        rows = [*reach_rows(step.config, texts.of_step(step.id)), *model_rows(step.config)]
        for row in rows:
            by_topic.setdefault(row.topic, {}).setdefault(row.text, []).append(step.id)
    return {
        topic: [_with_steps(names, line, len(config.steps)) for line, names in lines.items()]
        for topic, lines in by_topic.items()
    }


def _shared(lines: Iterable[tuple[str, Sequence[str]]]) -> dict[str, list[str]]:
    """Return each sentence once, with the steps of which it is said."""
    found: dict[str, list[str]] = {}
    for name, own in lines:
        for line in own:
            found.setdefault(line, []).append(name)
    return found


def _with_steps(names: Sequence[str], line: str, steps: int) -> str:
    return f"Each step: {line}" if len(names) == steps and steps > 1 else f"{_names(names)}: {line}"


def _names(names: Sequence[str], most: int = MOST_TOLD) -> str:
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return ", ".join(names)


# -- the steps --------------------------------------------------------------------------------------------------------


def step_rows(config: RunConfig, texts: Texts) -> list[str]:
    """Return a line for each step: id, role, how many runs, the most of each, after which, and its task."""
    return [step_row(step, texts.of_step(step.id)) for step in config.steps]


def step_row(step: StepConfig, texts: Texts) -> str:
    runs = "" if step.foreach is None else f", up to {step.new_runs:,} runs, one for each of {step.foreach.text}"
    if not step.new_runs:
        runs = ", done before"
    after = f", after {', '.join(step.needs)}" if step.needs else ""
    caps = caps_text(step.config.cost_cap(), step.config.timeout_s)
    each = " each" if step.foreach is not None else ""
    fails = f"; {_FAILS[step.if_fails]}" if step.if_fails in _FAILS else ""
    return f"{step.id}: {step.config.role}{runs}, {caps}{each}{after}{fails}: {quoted(texts.task, SHOWN_CHARS)}"


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


def step_summary(step: StepConfig, texts: Texts) -> StepSummary:
    role = step.config.role if step.foreach is None else f"{step.config.role} x {step.new_runs:,}"
    each = " each" if step.foreach is not None else ""
    cost = "free" if step.config.free else format_usd(step.config.max_cost_micros, exact=True)
    notes = [] if step.foreach is None else [f"one run for each of {step.foreach.text}"]
    notes += [_FAILS[step.if_fails]] if step.if_fails in _FAILS else []
    return StepSummary(
        id=step.id,
        role=role if step.new_runs else f"{role}, done before",
        most=f"{cost}{each}, {minutes(step.config.timeout_s)}",
        after=", ".join(step.needs),
        task=quoted(texts.task, TASK_CHARS),
        note="; ".join(notes),
    )


_FAILS = {"stop": "if it fails, the plan stops", "continue": "if it fails, the rest goes on without it"}


def short_steps(config: RunConfig, texts: Texts, most: int) -> list[str]:
    """Return at most so many lines of steps, with the beginnings of their tasks; like steps in a row are folded."""
    lines: list[str] = []
    about = {step.id: quoted(texts.of_step(step.id).task, TASK_CHARS) for step in config.steps}
    for (_form, task), group in itertools.groupby(config.steps, key=lambda step: (_form_of(step), about[step.id])):
        steps = list(group)
        first = steps[0]
        of = "" if first.foreach is None else f" x {first.new_runs:,}"
        if not first.new_runs:
            of = ", done before"
        after = f", after {_names(first.needs)}" if first.needs else ""
        which = first.id if len(steps) == 1 else f"{first.id} to {steps[-1].id} ({len(steps)} steps)"
        lines.append(f"{which}: {first.config.role}{of}, {caps_text(first.config.cost_cap())}{after}: {task}")
    if len(lines) > most:
        lines = [*lines[: most - 1], f"and {len(lines) - most + 1} more rows of steps"]
    return lines


def _form_of(step: StepConfig) -> tuple[object, ...]:
    """Return what like steps have in common: everything that a person decides by, but the task."""
    config = step.config
    may = config.role, config.reach, config.runner, config.model, config.tools, config.max_cost_micros
    return (*may, step.new_runs, step.foreach is None, step.needs, step.if_fails)

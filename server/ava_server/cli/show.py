"""`ava show S-…`: what a run brought, what it was asked, who approved it, its turns; its log, cost and changes.

`ava fetch S-…` brings the branch of a run that another machine has done into the repository.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ava_audit.entries import Entry
from ava_audit.events import Usage
from ava_audit.rows import RunRow
from ava_audit.units import (
    MICROS_PER_USD,
    US_PER_S,
    cents,
    counted,
    format_duration,
    format_ts,
    format_usd,
    iso_utc,
    minutes,
)
from ava_roles.wrap import BAR, add_bars, clean, one_line
from ava_server.approval.plan_summary import plan_size
from ava_server.approval.reach import reach_words
from ava_server.budget.held_words import held_words
from ava_server.cli.app import in_event_loop
from ava_server.cli.log_access import checked_root, find_run, open_log, read_settings
from ava_server.cli.options import EndedRunId, Json, LastRunId, TokenFile, Url, Utc, absolute_path
from ava_server.cli.record_client import open_to_show
from ava_server.cli.remote import chosen_server
from ava_server.cli.results import WIDEST, show_results
from ava_server.cli.terminal import (
    can_write,
    cells,
    columns,
    cut,
    heading,
    place_json,
    present,
    say,
    say_json,
    screen_columns,
    styled,
    wrapped_lines,
    write,
)
from ava_server.core.commands import advice
from ava_server.core.data_root import find_data_root, home_folder
from ava_server.core.errors import BadInput
from ava_server.core.ids import label, model_about, state_words
from ava_server.models.prices import Price, billed_words, per_call, rates_json
from ava_server.render.approvals import RunDecision, undecided_words
from ava_server.render.entry_lines import arguments_text, entry_line, is_trouble
from ava_server.render.responses import RunAnswer, answers_json
from ava_server.render.result import verdict_words
from ava_server.render.turns import (
    PARTS,
    Part,
    Span,
    Trouble,
    Turn,
    took_us,
    trouble_key,
    troubles_of,
    turns_of,
    waterfall,
)
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig, config_of
from ava_server.run_config.run_cap import caps_text
from ava_server.service.record_requests import COSTS, SOURCE

if TYPE_CHECKING:
    from ava_server.cli.record_client import Records
    from ava_server.runs.record.costs import Attempt, Costs, StepCost
    from ava_server.service.fetch import FetchedBranch
    from ava_server.service.run_records import RunRecord
    from ava_server.service.source_view import OpenedSource, SourceWindow


@in_event_loop
async def show_command(
    context: typer.Context,
    subagent: LastRunId = None,
    cost: Annotated[bool, typer.Option("--cost", help="What it cost and why: turns, tool outputs, caps.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="What a coder changed, line by line.")] = False,
    source: Annotated[
        int | None,
        typer.Option("--source", metavar="N", help="What it read of the source of finding N, with the quote."),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="What it did: every entry of its log, a line each.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object, with every entry.")] = False,
    utc: Utc = False,
    url: Url = None,
    token_file: TokenFile = None,
) -> None:
    """Show a run: its result, what was asked, who approved it under which caps, and each turn's money and time.

    With --cost what it cost, with --diff what it changed, with --log what it did, entry by entry, and with --source
    what it read of a finding's source.
    """
    wanted = _wanted_screen(cost=cost, diff=diff, source=source is not None, log=log)
    server = chosen_server(context, url, token_file)
    async with open_to_show(server, find_data_root) as records:
        found = await records.find_one(subagent)
        if source is not None:
            await _show_source(records, found, source, as_json)
            return
        record = await records.record(found.id, shown=wanted == "")
        if wanted == "--diff":
            await _show_diff(records, record, as_json)
        elif wanted == "--cost":
            costs = await records.get(COSTS, run_id=found.id)
            lines = cost_screen(record.row, record.answer, costs, utc)
            present(records.place, as_json, cost_json(record.row, record.answer, costs), lines)
        elif wanted == "--log" and not as_json:
            entries = await records.entries(found.id)
            present(records.place, as_json, {}, log_lines(record.row, record.answer, entries, utc))
        else:
            await _show_run(records, record, as_json, utc)
            await records.note_shown("ava show", [record])


def _wanted_screen(*, cost: bool, diff: bool, source: bool, log: bool) -> str:
    """Return the option that names another screen than that of the run, or empty text. Raises BadInput: several do."""
    given = {"--cost": cost, "--diff": diff, "--source": source, "--log": log}
    screens = [name for name, is_given in given.items() if is_given]
    if len(screens) > 1:
        raise BadInput(f"{' and '.join(screens)} are {len(screens)} screens; give one of them")
    return screens[0] if screens else ""


async def _show_source(records: Records, run: RunRow, number: int, as_json: bool) -> None:
    opened = await records.get(SOURCE, run_id=run.id, number=str(number))
    if as_json:
        say_json({**place_json(records.place), "subagent_id": run.id, **asdict(opened)})
        return
    heading(records.place)
    write("\n".join(source_screen(run, opened)))


async def _show_diff(records: Records, record: RunRecord, as_json: bool) -> None:
    from ava_server.service.run_records import shown_changes

    run = record.row
    changes = shown_changes(run, record.answer)
    text = await records.diff(run)
    if as_json:
        say_json({**place_json(records.place), "subagent_id": run.id, "changes": changes, "diff": text})
        return
    heading(records.place)
    write(text.rstrip("\n"))


async def _show_run(records: Records, record: RunRecord, as_json: bool, utc: bool) -> None:
    run, answer, brief = record.row, record.answer, record.texts
    entries = await records.entries(run.id)
    if as_json:
        fields = {
            "run": answers_json([answer])[0],
            "asked": brief.model_dump(mode="json", exclude_none=True) if brief else None,
            "entries": [json.loads(records.lines[entry.seq]) for entry in entries],
        }
        say_json({**place_json(records.place), **fields})
        return
    heading(records.place)
    show_results([answer])
    write_run(record, entries, utc)


@in_event_loop
async def fetch_command(
    subagent: EndedRunId,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="FOLDER", help="Another clone to bring it into; it needs the base commit."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring the branch of a run that another machine has done into its repository.

    It checks the digest in the log, makes the branch, and changes no other branch, no checkout and no index.
    check_subagent does the same. Doing it again changes nothing.
    """
    from ava_server.runs.coder.travel import Travel
    from ava_server.service.fetch import fetch_branch

    root, settings = checked_root("ava fetch", show=False), read_settings()
    async with open_log(root) as store:
        run = await find_run(store, subagent)
        assert store is not None
        travel = Travel(settings, store.blobs, home_folder())
        branch = await fetch_branch(store, travel, run, None if into is None else absolute_path("--into", into))
    fields = {"branch": branch.name, "repository": str(branch.repository), "base": branch.base, "head": branch.head}
    lines = [
        f"Branch {branch.name} is in {branch.repository}: commit {branch.head[:12]} on {branch.base[:12]}.",
        f"See it: {_diff_command(run, branch, into)}",
    ]
    present(root, as_json, {"subagent_id": run.id, **fields}, lines)


def _diff_command(run: RunRow, branch: FetchedBranch, into: Path | None) -> str:
    """`ava show --diff` reads the repository where the run was proposed, so a clone is read by git."""
    if into is None:
        return f"ava show {run.id} --diff"
    return shlex.join(["git", "-C", str(branch.repository), "diff", branch.base[:12], branch.name])


# -- the screens -------------------------------------------------------------------------------------------------------

_COST_COLUMNS = 80
_HEAD = ("turn", "fresh", "cache rd", "cache wr", "output", "thinking", "cost", "share")
_WIDTHS = (5, 8, 9, 9, 8, 9, 10, 6)
_TOKENS = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "thinking_tokens")


WHOLE_CHARS, SHORT_CHARS = 1_000, 100
"""Characters of an entry that is shown whole, and of a text that stands beside its title."""
_TURN_WIDTHS = (5, 10, 9, 9)
_TURN_HEAD = ("turn", "cost", "model", "tools")
_TOOL_HEAD = "tool calls"
_LEAST_BAR, _MOST_BAR, _LEAST_CALLS = 10, 40, 12
"""Columns of the picture of time and of the tool calls: where there is no room for the least, they are left out."""
_PART_SIGNS: Mapping[Part, tuple[str, str, str]] = {
    "model": ("█", "#", "blue"),
    "tools": ("▒", "+", "green"),
    "waiting": ("·", ".", "yellow"),
}
"""How each part is drawn: its sign, the sign without Unicode, and its colour."""


def write_run(record: RunRecord, entries: list[Entry], utc: bool) -> None:
    """Write a run below its result: what was asked and approved, its turns, and what went wrong."""
    run, answer = record.row, record.answer
    terminal = sys.stdout.isatty()
    width = screen_columns()
    say()
    _write_title("Asked and approved")
    asked = asked_lines(run, record.texts, utc, width if terminal else None)
    say("\n".join([*asked, *decided_lines(run, answer.state, record.decided, utc)]))
    if answer.plan is not None:
        say()
        _write_title("Steps")
        say("\n".join(cut(f"- {line}", width) for line in answer.plan["lines"]))
    if turns := turns_of(entries):
        say()
        _write_title(f"Turns: {len(turns)}")
        table = "\n".join(turn_lines(turns, width))
        write(table if terminal else f"```text\n{table}\n```")
    if troubles := troubles_of(entries):
        say()
        _write_title("What went wrong")
        say("\n".join(f"- {line}" for line in trouble_lines(troubles, utc)))
    say()
    say(advice(f"The log has {counted(len(entries), 'entry', 'entries')} of it: `ava show {run.id} --log`"))


def _write_title(title: str) -> None:
    write(styled(title, fg="cyan", bold=True) if sys.stdout.isatty() else f"## {title}")


def turn_lines(turns: Sequence[Turn], width: int) -> list[str]:
    """Return a row for each turn: its money, the time of its model and tools, when that was, and what it called."""
    spans = [span for turn in turns for span in turn.spans]
    begin_us = min((span.begin_us for span in spans), default=0)
    end_us = max((span.end_us for span in spans), default=0)
    calls_columns = width - sum(_TURN_WIDTHS) - len("  ")
    bar_columns = 0
    if calls_columns // 3 >= _LEAST_BAR:
        bar_columns = min(calls_columns // 3, _MOST_BAR)
        calls_columns -= bar_columns + len("  ")
    shows_calls = calls_columns >= _LEAST_CALLS
    head = _in_columns(_TURN_HEAD)
    if bar_columns:
        head += "when".ljust(bar_columns + 2)
    if shows_calls:
        head += _TOOL_HEAD
    lines = [_sums_of_time(spans, begin_us, end_us), head.rstrip()]
    for turn in turns:
        cost = f"${turn.cost_micros / MICROS_PER_USD:.4f}" if turn.cost_micros else "-"
        figures = (f"{turn.number}", cost, _time(turn.took_us("model")), _time(turn.took_us("tools")))
        line = _in_columns(figures)
        if bar_columns:
            line += _drawn_time(waterfall(turn.spans, begin_us, end_us, bar_columns)) + "  "
        if shows_calls:
            line += cut(_called(turn), calls_columns)
        lines.append(line.rstrip())
    return lines


def _in_columns(figures: Sequence[str]) -> str:
    return "".join(f"{figure:>{cells}}" for figure, cells in zip(figures, _TURN_WIDTHS, strict=True)) + "  "


def _time(us: int) -> str:
    return format_duration(us / US_PER_S) if us else "-"


def _sums_of_time(spans: Sequence[Span], begin_us: int, end_us: int) -> str:
    """Return how long each part took of the whole; the signs are those of the picture of time."""
    took: dict[Part, int] = {part: took_us(spans, part) for part in PARTS}
    parts = [f"{_sign(part)} {part} {_time(us)}" for part, us in took.items() if us]
    return f"{', '.join(parts)} of {_time(end_us - begin_us)}"


def _sign(part: Part) -> str:
    sign, plain, colour = _PART_SIGNS[part]
    return styled(sign if can_write(sign) else plain, fg=colour) if sys.stdout.isatty() else plain


def _drawn_time(filled: Sequence[Part | None]) -> str:
    return "".join(" " if part is None else _sign(part) for part in filled)


def _called(turn: Turn) -> str:
    """Return the tool calls of a turn, the failed ones with their sign."""
    failed = "✗" if can_write("✗") else "x"
    words = (f"{failed} {call.words}" if call.failed else call.words for call in turn.calls)
    return "; ".join(one_line(each) for each in words)


def trouble_lines(troubles: Sequence[Trouble], utc: bool) -> list[str]:
    """Return what went wrong, each once, with how often it came."""
    lines: list[str] = []
    for one in troubles:
        times = f"{one.times} times from " if one.times > 1 else ""
        lines.append(f"{times}{format_ts(one.at_us, utc)[11:]}: {one.words}")
    return lines


def log_lines(run: RunRow, answer: RunAnswer, entries: list[Entry], utc: bool) -> list[str]:
    """Return a line for each entry; one that reports trouble is shown whole, the first time."""
    terminal = sys.stdout.isatty()
    width = screen_columns()
    names = {run.id: run.name} if run.name else {}
    lines = [f"{label(run)}: {state_words(answer.state)}", ""]
    seen: set[str] = set()
    for entry in entries:
        is_whole = False
        if is_trouble(entry):
            key = trouble_key(entry)
            is_whole = key not in seen
            seen.add(key)
        if is_whole:
            lines.append(entry_line(entry, names=names, utc=utc, width=WHOLE_CHARS))
        elif terminal:
            lines.append(cut(entry_line(entry, names=names, utc=utc, width=WHOLE_CHARS), width))
        else:
            lines.append(entry_line(entry, names=names, utc=utc, width=width))
    return lines


def asked_lines(run: RunRow, brief: Brief | None, utc: bool, width: int | None) -> list[str]:
    """Return what was asked, when and by whom, for a terminal of `width` columns; None stands for a pipe."""
    asked = f"Asked {format_ts(run.created_us, utc)} by {run.user_id} ({run.session_id})"
    if brief is None:
        return [f"{asked}: (erased)"]
    lines = _block(asked, brief.task, width)
    for title, text in (("Context", brief.context), ("Specialisation", brief.system_prompt), ("Why", brief.rationale)):
        if text:
            lines += _block(title, text, width)
    for file in brief.project:
        lines += _block(file.path, file.text, width)
    if run.task_id:
        lines.append(f"task_id: {run.task_id}")
    return lines


def _block(title: str, text: str, width: int | None) -> list[str]:
    """Return one line where the text is short and the terminal does not wrap it."""
    lines = text.strip().splitlines() or [""]
    is_short = len(lines) == 1 and len(lines[0]) <= SHORT_CHARS
    if is_short:
        line = f"{title}: {lines[0].expandtabs(4)}"
        if width is None or cells(line) <= width:
            return [line]
    return [f"{title}:", add_bars("\n".join(lines))]


def decided_lines(run: RunRow, state: str, decisions: Sequence[RunDecision] | None, utc: bool) -> list[str]:
    """Return who decided about a run, and under which caps it works; `decisions` as in `RunRecord`."""
    config = config_of(run.config)
    lines: list[str] = []
    undecided = undecided_words(run, state)
    if undecided:
        lines.append(undecided)
    if decisions is None:
        lines.append("Who decided: this server has an older version, which does not say it")
    for one in decisions or ():
        if one.more:
            how = f"{one.what} {format_ts(one.at_us, utc)} {one.how}"
            lines.append(f"{how}: {one.changes}" if one.changes else how)
        else:
            lines += _decided(one, utc)
    return [
        *lines,
        f"Caps: {limits_text(config, run)}",
        f"Model: {model_about(config.model)}. It {reach_words(config.reach)}.",
    ]


def _decided(one: RunDecision, utc: bool) -> Iterable[str]:
    yield f"{one.what} {format_ts(one.at_us, utc)} {one.how}".rstrip()
    if one.changes:
        yield f"Changed by the approval: {one.changes}"
    if one.folded:
        yield f"Not on the screen when it was approved: {one.folded}"
    if one.plan_words:
        yield f"{one.what} {one.plan_words}"


def limits_text(config: RunConfig, run: RunRow) -> str:
    figures = f"{config.max_tokens:,} tokens, {config.max_iterations} turns, {config.max_tool_calls} tool calls"
    if config.steps:
        figures = plan_size(config)
    return f"{caps_text(config.cost_cap(run.cost_micros))}, {minutes(config.timeout_s)}, {figures}"


# -- --source ---------------------------------------------------------------------------------------------------------

AROUND_LINES, AROUND_CHARS = 5, 500
"""Lines and characters that are shown on each side of a quote; the page in a browser shows more."""
_QUOTE_BAR = "┃ "
"""Begins each row of a quote, in the text that was read."""
_QUOTE = {"bold": True, "fg": "yellow"}


def source_screen(run: RunRow, opened: OpenedSource) -> list[str]:
    """Return what a run read of a source, in lines that fit the terminal; foreign texts are cleaned and have bars."""
    width = min(columns(), WIDEST) if sys.stdout.isatty() else WIDEST
    title = cut(one_line(f"{label(run)}: source {opened.number} of {opened.total}"), width)
    lines = [styled(title, bold=True), *_in_bars(opened.claim, width)]
    if opened.quote and not opened.marked:
        lines += _in_bars(f'"{opened.quote}"', width)
    if opened.named:
        lines += ["Source, as the subagent names it:", *_in_bars(opened.named, width)]
    remarks: list[str] = []
    if opened.quote:
        remarks.append(f"{verdict_words(opened.verdict)}.")
    if opened.note:
        remarks.append(opened.note)
    if remarks:
        lines += wrapped_lines(" ".join(remarks), width)
    if not opened.has_text:
        return lines
    place = opened.location or "several sources"
    if opened.place:
        place += f", {opened.place}"
    lines += ["", f"Read by {opened.tool} (entry {opened.event}):"]
    lines += _in_bars(place, width)
    lines += wrapped_lines(opened.now_words, width)
    if opened.missing:
        lines += ["Not in the text that was read:", *_in_bars(opened.missing, width)]
    return [*lines, "", *_text_lines(opened.window(AROUND_LINES, AROUND_CHARS), width)]


def _in_bars(text: str, width: int) -> list[str]:
    return wrapped_lines(add_bars(one_line(text)), width)


def _text_lines(window: SourceWindow, width: int) -> Iterable[str]:
    """Yield the text around a quote in rows, each line with its number if it has one."""
    before, marked, after = (clean(text)[0].expandtabs(4) for text in (window.before, window.marked, window.after))
    text, quote = before + marked + after, range(len(before), len(before) + len(marked))
    if window.above:
        yield f"… {counted(window.above, 'line')} above"
    begin, line = 0, window.line
    digits = len(f"{(line or 0) + text.count(chr(10)):,}") if line is not None else 0
    for each in text.split("\n"):
        gutter = f"{line:>{digits},} " if line is not None else ""
        for start, end in _rows(each, max(width - len(gutter) - len(BAR), 20)):
            yield f"{gutter}{_row_of_text(text, range(begin + start, begin + end), quote)}".rstrip()
            gutter = " " * len(gutter)
        begin += len(each) + 1
        line = None if line is None else line + 1
    if window.below:
        yield f"… {counted(window.below, 'line')} below"


def _row_of_text(text: str, row: range, quote: range) -> str:
    start, end = max(row.start, quote.start), min(row.stop, quote.stop)
    is_blank_inside = not row and quote.start < row.start < quote.stop
    if start >= end and not is_blank_inside:
        return f"{BAR}{text[row.start : row.stop]}"
    marked = styled(text[start:end], **_QUOTE)
    return f"{_QUOTE_BAR}{text[row.start : start]}{marked}{text[end : row.stop]}"


def _rows(line: str, width: int) -> Iterable[tuple[int, int]]:
    """Yield where the rows of a line begin and end, each at most so many columns wide; broken at blanks if possible."""
    start = at = used = 0
    while at < len(line):
        used += cells(line[at])
        at += 1
        if used > width:
            blank = line.rfind(" ", start + 1, at)
            end = blank + 1 if blank > start else at - 1
            yield start, end
            start = at = max(end, start + 1)
            used = 0
    yield start, len(line)


# -- --cost -----------------------------------------------------------------------------------------------------------


def cost_screen(run: RunRow, answer: RunAnswer, costs: Costs, utc: bool) -> list[str]:
    """Return lines of at most 80 columns."""
    config = config_of(run.config)
    lines = [cut(f"{label(run)}: {state_words(answer.state)}", _COST_COLUMNS)]
    if run.task_id:
        lines.append(cut(f"task_id: {run.task_id}", _COST_COLUMNS))
    for model in _models(config, costs):
        lines += wrapped_lines(f"Model: {model}", _COST_COLUMNS)
    lines += [*wrapped_lines(f"Caps: {limits_text(config, run)}", _COST_COLUMNS), ""]
    if not costs.attempts:
        spent = "No model call was made, so nothing was spent."
        if run.cost_micros:  # of a plan
            dollars = format_usd(run.cost_micros)
            spent = f"{dollars} was spent; this server has an older version, which does not say on what."
        return [*lines, *wrapped_lines(spent, _COST_COLUMNS), *_cap_changes(costs, utc)]
    table = _step_table(costs) if costs.steps else _table(costs)
    return [*lines, *table, *_outputs(costs), *_sums(run, costs), *_cap_changes(costs, utc)]


def _models(config: RunConfig, costs: Costs) -> list[str]:
    """Return the model of a run, or each of those of a plan's steps, with its price."""
    billed = costs.micros - costs.cost_by.get("search", 0) if config.price.free else 0
    if billed:
        return [billed_words(config.model, billed)]
    configs = [step.config for step in config.steps] or [config]
    return list(dict.fromkeys(f"{model_about(each.model)}, {price_text(each.price)}" for each in configs))


def price_text(price: Price) -> str:
    if price.free:
        return price.source or "free"
    rates: list[str] = []
    for name, usd in rates_json(price).items():
        rates.append(f"{name.replace('_', ' ')} ${usd:g}")
    text = f"per million tokens {', '.join(rates)}"
    if price.per_request:
        text += f"; {per_call(price)}"
    if price.source:
        text += f" ({price.source})"
    return text


def _table(costs: Costs) -> Iterable[str]:
    """Yield the head, a row for each attempt at a turn, and their sums."""
    tries = Counter(attempt.turn for attempt in costs.attempts)
    sums: dict[str, int] = dict.fromkeys(_TOKENS, 0)
    yield _row(*_HEAD)
    for attempt in costs.attempts:
        turn = f"{attempt.turn}"
        if tries[attempt.turn] > 1:
            turn += f".{attempt.attempt}"
        cost, share = "-", "-"
        if attempt.settlement:
            cost, share = format_usd(attempt.micros), _share(attempt.micros, costs.micros)
        tokens = ["-"] * len(_TOKENS)
        if attempt.usage is not None:
            counts: dict[str, int] = {name: getattr(attempt.usage, name) for name in _TOKENS}
            tokens = [str(count) for count in counts.values()]
            for name, count in counts.items():
                sums[name] += count
        yield cut(f"{_row(turn, *tokens, cost, share)} {_note(attempt)}".rstrip(), _COST_COLUMNS)
    yield _row("all", *map(str, sums.values()), format_usd(costs.micros), _share(costs.micros, costs.micros))


def _step_table(costs: Costs) -> Iterable[str]:
    """Yield the head, a row for each step of a plan, and their sums."""
    yield f"{_row('runs', *_HEAD[1:])} step"
    for step in costs.steps:
        cells = _step_cells(step.runs, step.usage, step.micros, costs.micros)
        yield cut(f"{_row(*cells)} {step.step}", _COST_COLUMNS)
    tokens: Counter[str] = Counter()
    for step in costs.steps:
        tokens.update(step.usage.model_dump())
    runs = sum(step.runs for step in costs.steps)
    yield _row(*_step_cells(runs, Usage(**tokens), costs.micros, costs.micros)) + " all"


def _step_cells(runs: int, usage: Usage, micros: int, all_micros: int) -> list[str]:
    tokens = [str(getattr(usage, name)) for name in _TOKENS]
    return [str(runs), *tokens, format_usd(micros), _share(micros, all_micros)]


def _row(*cells: str) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


def _note(attempt: Attempt) -> str:
    if attempt.settlement is None:
        return "in flight"
    words = [] if attempt.settlement == "billed" else [attempt.settlement.replace("_", " ")]
    words += ["overrun"] if attempt.overrun else []
    words += {"retries": ["retry"], "plan": ["plan"], "search": ["web search"]}.get(attempt.purpose or "", [])
    return ",".join(words)


def _share(micros: int, total: int) -> str:
    return f"{100 * micros / total:.0f} %" if total else "-"


def _outputs(costs: Costs) -> Iterable[str]:
    yield ""
    if costs.outputs is None:
        yield "The tool outputs are gone: this run's content was erased. Its figures stay."
        return
    if not costs.dearest:
        yield "No tool output was sent to the model."
        return
    yield "Tool outputs that cost most, over all turns they were sent in (about):"
    for output in costs.dearest:
        yield cut(f"  R-{output.seq} {output.tool} {arguments_text(output.args)}".rstrip(), _COST_COLUMNS)
        times = "once" if output.sent == 1 else f"{output.sent} times"
        yield f"    {output.chars:,} characters, sent {times}: {format_usd(round(output.micros))}"


def _sums(run: RunRow, costs: Costs) -> Iterable[str]:
    parts = [f"{name} {format_usd(micros)}" for name, micros in costs.cost_by.items()]
    yield ""
    yield from wrapped_lines(f"Spent on: {', '.join(parts) or 'nothing'}", _COST_COLUMNS)
    yield f"Retries: {format_usd(costs.cost_by.get('retries', 0))}"
    yield f"Planning: {format_usd(costs.cost_by.get('plan', 0))}"
    if "search" in costs.cost_by:
        yield f"Web searches: {format_usd(costs.cost_by['search'])}"
    unknown = costs.unknown
    line = f"Unknown: {format_usd(sum(attempt.micros for attempt in unknown))}"
    if unknown:
        line += f", the most that it can be, for {counted(len(unknown), 'attempt')}"
    yield line
    cache = costs.cache
    net = cache.saved - cache.premium
    if cache.saved or cache.premium:
        what = f"saved {format_usd(net)}" if net >= 0 else f"cost {format_usd(-net)} more than it saved"
        yield f"The cache {what}: {format_usd(cache.saved)} by reading, less {format_usd(cache.premium)} for writing."
    else:
        yield "The provider's cache saved nothing."
    if run.held_micros:
        yield f"Not spent: {held_words(run.held_micros)}"


def _cap_changes(costs: Costs, utc: bool) -> Iterable[str]:
    if not costs.caps:
        yield from ("", "Nobody raised or lowered a cap.")
        return
    yield from ("", "Who raised or lowered a cap:")
    for note in costs.caps:
        yield from wrapped_lines(f"  {format_ts(note.at_us, utc)} {note.text}", _COST_COLUMNS)


def cost_json(run: RunRow, answer: RunAnswer, costs: Costs) -> dict[str, Any]:
    config = config_of(run.config)
    unknown = costs.unknown
    return {
        "subagent_id": run.id,
        "pending_id": run.pending_id,
        "role": run.role,
        "name": run.name,
        "task_id": run.task_id,
        "group_id": run.plan_id,
        "state": answer.state,
        "model": run.model,
        "price": asdict(config.price),
        "cost_cents": cents(costs.micros),
        "max_cost_cents": config.limits.get("max_cost_cents"),
        "cost_by": {name: cents(micros) for name, micros in costs.cost_by.items()},
        "attempts": [_attempt_json(run.id, attempt, costs.micros) for attempt in costs.attempts],
        "tool_outputs": None
        if costs.outputs is None
        else [
            {
                "id": f"R-{output.seq}",
                "tool": output.tool,
                "args": output.args,
                "chars": output.chars,
                "sent": output.sent,
                "cost_cents": round(output.micros / 10_000, 4),
            }
            for output in costs.dearest
        ],
        "retries_cents": cents(costs.cost_by.get("retries", 0)),
        "plan_cents": cents(costs.cost_by.get("plan", 0)),
        "search_cents": cents(costs.cost_by.get("search", 0)),
        "unknown": {"attempts": len(unknown), "cost_cents": cents(sum(attempt.micros for attempt in unknown))},
        "cache": {
            "saved_cents": cents(costs.cache.saved - costs.cache.premium),
            "read_saved_cents": cents(costs.cache.saved),
            "write_premium_cents": cents(costs.cache.premium),
        },
        "caps": [{"at": iso_utc(note.at_us), "what": note.text} for note in costs.caps],
        "steps": [_step_json(step, costs.micros) for step in costs.steps],
    }


def _step_json(step: StepCost, total: int) -> dict[str, Any]:
    return {
        "step": step.step,
        "runs": step.runs,
        **step.usage.model_dump(),
        "cost_cents": cents(step.micros),
        "share_percent": _percent(step.micros, total),
    }


def _percent(micros: int, total: int) -> float | None:
    return round(100 * micros / total, 2) if total else None


def _attempt_json(run_id: str, attempt: Attempt, total: int) -> dict[str, Any]:
    return {
        "subagent_id": attempt.run_id or run_id,
        "turn": attempt.turn,
        "attempt": attempt.attempt,
        "settlement": attempt.settlement or "in_flight",
        "overrun": attempt.overrun,
        "booked_under": attempt.purpose,
        **(attempt.usage.model_dump() if attempt.usage is not None else {}),
        "cost_cents": cents(attempt.micros),
        "reserved_cents": cents(attempt.reserved),
        "share_percent": _percent(attempt.micros, total),
    }

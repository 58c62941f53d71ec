"""`ava show S-… --cost`: why a run cost what it did, in 80 columns or as one JSON object."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ava_audit.units import cents, format_usd
from ava_server.cli.terminal import cut
from ava_server.runs.costs import DEAREST

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_server.runs.costs import Attempt, Costs, ToolCost
    from ava_server.service.responses import RunAnswer

WIDTH = 80
_HEAD = ("turn", "fresh", "cache rd", "cache wr", "output", "thinking", "cost", "share")
_WIDTHS = (5, 8, 9, 9, 8, 9, 10, 6)
_ERASED = "The tool outputs are gone: this run's words were erased. Its figures stay."


def cost_screen(run: RunRow, answer: RunAnswer, costs: Costs, utc: bool) -> list[str]:
    """Return what a run has cost as lines of at most 80 columns."""
    from ava_server.budget.run_config import config_of
    from ava_server.cli.views import limits_text
    from ava_server.core.ids import label

    config = config_of(run.config)
    lines = [cut(f"{label(run)}: {answer.state}", WIDTH)]
    if run.task_id:
        lines.append(cut(f"task_id: {run.task_id}", WIDTH))
    lines += _folded(f"Model: {config.model}, {_price_text(config.price)}")
    lines += [*_folded(f"Caps: {limits_text(config)}"), ""]
    if not costs.attempts:
        return [*lines, "No model call was made, so nothing was spent.", *_caps(costs, utc)]
    lines += _table(costs)
    lines += _outputs(costs)
    lines += _sums(run, costs)
    return [*lines, *_caps(costs, utc)]


def _price_text(price: dict[str, Any]) -> str:
    source = f" ({price['source']})" if price.get("source") and not price.get("free") else ""
    if price.get("free"):
        return str(price.get("source") or "free")
    rates = (("input", "input"), ("output", "output"), ("cache read", "cache_read"), ("cache write", "cache_write"))
    told = ", ".join(f"{name} ${price[key] / 1000:g}" for name, key in rates)
    return f"per million tokens {told}{source}"


def _table(costs: Costs) -> list[str]:
    tries = Counter(attempt.turn for attempt in costs.attempts)
    lines = [_row(*_HEAD)]
    for attempt in costs.attempts:
        turn = f"{attempt.turn}.{attempt.attempt}" if tries[attempt.turn] > 1 else f"{attempt.turn}"
        cost = format_usd(attempt.micros, exact=True) if attempt.settlement else "-"
        share = _share(attempt.micros, costs.micros) if attempt.settlement else "-"
        lines.append(cut(f"{_row(turn, *_tokens(attempt), cost, share)} {_note(attempt)}".rstrip(), WIDTH))
    used = [attempt.usage for attempt in costs.attempts if attempt.usage is not None]
    sums = (
        sum(usage.input_tokens for usage in used),
        sum(usage.cache_read_tokens for usage in used),
        sum(usage.cache_write_tokens for usage in used),
        sum(usage.output_tokens for usage in used),
        sum(usage.thinking_tokens for usage in used),
    )
    total = format_usd(costs.micros, exact=True)
    return [*lines, _row("all", *map(str, sums), total, _share(costs.micros, costs.micros))]


def _row(*columns: str) -> str:
    return "".join(f"{column:>{width}}" for column, width in zip(columns, _WIDTHS, strict=True))


def _tokens(attempt: Attempt) -> tuple[str, ...]:
    usage = attempt.usage
    if usage is None:
        return ("-",) * 5
    return (
        str(usage.input_tokens),
        str(usage.cache_read_tokens),
        str(usage.cache_write_tokens),
        str(usage.output_tokens),
        str(usage.thinking_tokens),
    )


def _note(attempt: Attempt) -> str:
    """Return what is to be said of an attempt, in a word or two."""
    if attempt.settlement is None:
        return "in flight"
    words = [] if attempt.settlement == "billed" else [attempt.settlement.replace("_", " ")]
    words += ["overrun"] if attempt.overrun else []
    words += {"retries": ["retry"], "plan": ["plan"]}.get(attempt.purpose or "", [])
    return ",".join(words)


def _share(micros: int, total: int) -> str:
    return f"{100 * micros / total:.0f} %" if total else "-"


def _outputs(costs: Costs) -> list[str]:
    if costs.outputs is None:
        return ["", _ERASED]
    sent = [output for output in costs.outputs if output.sent]
    if not sent:
        return ["", "No tool output was sent to the model."]
    lines = ["", "Tool outputs that cost most, over all turns they were sent in (about):"]
    for output in sent[:DEAREST]:
        lines.append(cut(f"  R-{output.seq} {output.tool} {_telling(output)}".rstrip(), WIDTH))
        times = "once" if output.sent == 1 else f"{output.sent} times"
        lines.append(f"    {output.chars:,} characters, sent {times}: {format_usd(round(output.micros))}")
    return lines


def _telling(output: ToolCost) -> str:
    from ava_server.service.logs import arguments_text

    return arguments_text(output.args)


def _sums(run: RunRow, costs: Costs) -> list[str]:
    def usd(micros: int) -> str:
        return format_usd(micros, exact=True)

    parts = ", ".join(f"{name} {usd(micros)}" for name, micros in costs.cost_by.items()) or "nothing"
    lines = ["", *_folded(f"Spent on: {parts}")]
    lines.append(f"Asking again (retries): {usd(costs.cost_by.get('retries', 0))}")
    lines.append(f"Planning: {usd(costs.cost_by.get('plan', 0))}")
    unknown = costs.unknown
    of_them = f", for {len(unknown)} attempt{'s' if len(unknown) > 1 else ''} at the worst case" if unknown else ""
    lines.append(f"Unknown settlements: {usd(sum(attempt.micros for attempt in unknown))}{of_them}")
    cache = costs.cache
    net = cache.saved - cache.premium
    if not cache.saved and not cache.premium:
        lines.append("The provider's cache saved nothing.")
    else:
        what = f"saved {usd(net)}" if net >= 0 else f"cost {usd(-net)} more than it saved"
        lines.append(f"The cache {what}: {usd(cache.saved)} by reading, less {usd(cache.premium)} for writing.")
    held = sum(attempt.reserved for attempt in costs.attempts if attempt.settlement is None)
    if held and not run.ended:
        lines.append(f"Held for the call in flight: at most {usd(held)}")
    return lines


def _caps(costs: Costs, utc: bool) -> list[str]:
    from ava_audit.units import format_ts

    if not costs.caps:
        return ["", "Nobody raised or lowered a cap."]
    lines = ["", "Who raised or lowered a cap:"]
    for note in costs.caps:
        lines += _folded(f"  {format_ts(note.at_us, utc)} {note.text}")
    return lines


def _folded(line: str) -> list[str]:
    from ava_server.cli.terminal import wrapped

    return wrapped(line, WIDTH).split("\n")


def cost_json(run: RunRow, answer: RunAnswer, costs: Costs) -> dict[str, Any]:
    """Return the same as a plain object; money in US cents."""
    from ava_audit.units import iso_utc
    from ava_server.budget.run_config import config_of

    config = config_of(run.config)
    total = costs.micros
    unknown = costs.unknown
    return {
        "subagent_id": run.id,
        "pending_id": run.pending_id,
        "role": run.role,
        "name": run.name,
        "task_id": run.task_id,
        "group_id": run.group_id,
        "state": answer.state,
        "model": run.model,
        "price": config.price,
        "cost_cents": cents(total),
        "max_cost_cents": cents(config.max_cost_micros),
        "cost_by": {name: cents(micros) for name, micros in costs.cost_by.items()},
        "attempts": [_attempt_json(attempt, total) for attempt in costs.attempts],
        "tool_outputs": None
        if costs.outputs is None
        else [_output_json(output) for output in costs.outputs if output.sent][:DEAREST],
        "retries_cents": cents(costs.cost_by.get("retries", 0)),
        "plan_cents": cents(costs.cost_by.get("plan", 0)),
        "unknown": {"attempts": len(unknown), "cost_cents": cents(sum(attempt.micros for attempt in unknown))},
        "cache": {
            "saved_cents": cents(costs.cache.saved - costs.cache.premium),
            "read_saved_cents": cents(costs.cache.saved),
            "write_premium_cents": cents(costs.cache.premium),
        },
        "caps": [{"at": iso_utc(note.at_us), "what": note.text} for note in costs.caps],
    }


def _attempt_json(attempt: Attempt, total: int) -> dict[str, Any]:
    usage = attempt.usage
    return {
        "turn": attempt.turn,
        "attempt": attempt.attempt,
        "settlement": attempt.settlement or "in_flight",
        "overrun": attempt.overrun,
        "booked_under": attempt.purpose,
        **(usage.model_dump() if usage is not None else {}),
        "cost_cents": cents(attempt.micros),
        "reserved_cents": cents(attempt.reserved),
        "share_percent": round(100 * attempt.micros / total, 2) if total else None,
    }


def _output_json(output: ToolCost) -> dict[str, Any]:
    return {
        "id": f"R-{output.seq}",
        "tool": output.tool,
        "args": output.args,
        "chars": output.chars,
        "sent": output.sent,
        "cost_cents": round(output.micros / 10_000, 4),
    }

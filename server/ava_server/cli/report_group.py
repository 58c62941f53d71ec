"""`ava report --group G-…`: what runs approved together have come to, of their one cap and their one clock."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ava_audit.units import US_PER_S, cents, format_duration, format_ts, format_usd, iso_utc
from ava_server.cli.report_screen import Row, table
from ava_server.cli.report_sums import NOT_FAILED
from ava_server.cli.terminal import say
from ava_server.service.status import elapsed_s

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_audit.totals import GroupSum


def group_screen(found: GroupSum, now_us: int) -> None:
    """Write what a group has come to."""
    group, bucket = found.group, found.bucket
    cap = f"{format_usd(bucket.spent_micros, exact=True)} of {format_usd(group.cap_micros, exact=True)} spent"
    share = f" ({100 * bucket.spent_micros / group.cap_micros:.0f} %)" if group.cap_micros else ""
    held = f", {format_usd(bucket.held_micros, exact=True)} held for calls in flight" if bucket.held_micros else ""
    say(f"{group.id} of {group.user_id}, approved {format_ts(group.created_us, utc=True)}")
    say(f"Cap: {cap}{share}{held}")
    say(f"Time: {_time(found, now_us)}")
    endings = ", ".join(f"{count} {state}" for state, count in Counter(run.state for run in found.runs).most_common())
    say(f"Runs: {len(found.runs)} ({endings})")
    rows = [Row(f"{run.id} {run.name or run.role}", _figures(run, now_us), run.cost_micros) for run in found.runs]
    table("Run", ("state", "cost", "turns", "active"), rows)
    if failed := [run for run in found.runs if run.ended and run.state not in NOT_FAILED]:
        say("\nWhat failed:")
        for run in failed:
            say(f"  {run.id} {run.state}: {_line(run.stop_reason) or 'no reason is known'}")
            say(f"      ava show {run.id}")


def group_json(found: GroupSum, now_us: int) -> dict[str, Any]:
    """Return the same as a plain object; money in US cents."""
    group, bucket = found.group, found.bucket
    took_us = _took_us(found, now_us)
    return {
        "group_id": group.id,
        "user": group.user_id,
        "approved_at": iso_utc(group.created_us),
        "started_at": iso_utc(group.started_us) if group.started_us is not None else None,
        "spent_cents": cents(bucket.spent_micros),
        "held_cents": cents(bucket.held_micros),
        "cap_cents": cents(group.cap_micros),
        "elapsed_seconds": None if took_us is None else took_us / US_PER_S,
        "timeout_seconds": group.timeout_s,
        "endings": dict(Counter(run.state for run in found.runs if run.ended)),
        "runs": [
            {
                "subagent_id": run.id,
                "role": run.role,
                "name": run.name,
                "model": run.model,
                "state": run.state,
                "stop_reason": run.stop_reason,
                "error_kind": run.error_kind,
                "cost_cents": cents(run.cost_micros),
                "uncosted_cents": cents(run.uncosted_micros),
                "overrun": bool(run.overrun),
                "turns": run.turns,
                "tool_calls": run.tool_calls,
                "active_seconds": elapsed_s(run, now_us),
            }
            for run in found.runs
        ],
    }


def _time(found: GroupSum, now_us: int) -> str:
    timeout = found.group.timeout_s
    limit = f" of {format_duration(timeout)}" if timeout is not None else ", without a limit of its own"
    took_us = _took_us(found, now_us)
    if took_us is None:
        return f"not started{limit}"
    return f"{format_duration(took_us / US_PER_S)}{limit}, from its first run on"


def _took_us(found: GroupSum, now_us: int) -> int | None:
    """Return how long a group has taken since its first run began, None where none did."""
    if found.group.started_us is None:
        return None
    ends = [run.ended_us if run.ended_us is not None else now_us for run in found.runs]
    return max(0, max(ends, default=now_us) - found.group.started_us)


def _figures(run: RunRow, now_us: int) -> tuple[str, ...]:
    return (
        run.state, format_usd(run.cost_micros), f"{run.turns:,}", format_duration(elapsed_s(run, now_us))
    )  # fmt: skip


def _line(text: str | None) -> str:
    return " ".join((text or "").split())

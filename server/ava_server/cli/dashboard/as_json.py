"""The screen as one JSON object, for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ava_audit.units import cents
from ava_server.cli.dashboard.bars import caps_of

if TYPE_CHECKING:
    from ava_server.cli.dashboard.health import Health
    from ava_server.cli.dashboard.overview import Overview, Shown
    from ava_server.config.settings import Settings


def as_object(settings: Settings, overview: Overview, found: Iterable[Health], confined: str | None) -> dict[str, Any]:
    """Return everything that was found."""
    log = overview.log
    return {
        "data_root": str(settings.data_root),
        "runs": [_run(shown, overview.at_us) for shown in overview.runs],
        "today": [
            {
                "whose": budget.whose,
                "spent_cents": cents(budget.spent),
                "held_cents": cents(budget.held),
                "cap_cents": cents(budget.cap),
            }
            for budget in overview.budgets
        ],
        "health": {
            "servers": overview.processes,
            "keeper": overview.keeper,
            "entries": log.entries if log is not None else None,
            "database_bytes": log.database_bytes if log is not None else None,
            "wal_bytes": log.wal_bytes if log is not None else None,
            "index_lag_entries": log.index_lag if log is not None else None,
            "mirror_lag_entries": log.mirror_lag if log is not None else None,
            "free_bytes": overview.free_bytes,
            "confinement": confined,
            "providers": [{"name": name, "key": key} for name, key in overview.providers.items()],
            "findings": [{"name": one.name, "state": one.state, "text": one.text} for one in found],
        },
    }


def _run(shown: Shown, at_us: int) -> dict[str, Any]:
    caps = {}
    for cap in caps_of(shown, at_us):
        money = cap.name == "money"
        used, most, held = (value / 10_000 if money else value for value in (cap.used, cap.most, cap.held))
        caps["cost_cents" if money else "seconds" if cap.name == "time" else cap.name] = {
            "used": round(used, 4),
            "cap": most if cap.most > 0 else None,
            **({"held": held} if money else {}),
        }
    return {
        **shown.answer.model_dump(mode="json", exclude_none=True),
        "task": shown.task,
        "user": shown.run.user_id,
        "caps": caps,
        **({"waits": shown.waits} if shown.waits else {}),
    }

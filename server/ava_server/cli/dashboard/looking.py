"""Looking at a data root; the log is opened to be read, and nothing is made, migrated or locked."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ava_audit.errors import AuditError, DataRootRefused, SchemaNewer, StoreUnavailable
from ava_audit.rows import UNENDED, WAITING, RunRow
from ava_audit.store.schema import SCHEMA_VERSION
from ava_audit.units import HOUR_US
from ava_audit.view import View
from ava_server.approval.proposals import texts_of
from ava_server.approval.summary import task_excerpt
from ava_server.budget.caps import installation_scope, user_scope, utc_day
from ava_server.budget.user_limits import day_caps
from ava_server.cli.dashboard.overview import EXPIRED, ORDER, Budget, LogFacts, Overview, Shown
from ava_server.cli.log_access import LogSnapshot, has_log, is_held, open_snapshot
from ava_server.config.credentials import model_settings
from ava_server.config.settings import load_settings
from ava_server.core.data_root import os_user
from ava_server.core.errors import AvaError
from ava_server.models.selection import configured
from ava_server.runs.manager import NO_SERVER, interrupted_words
from ava_server.service.status import Alive, run_answer, shown_state

if TYPE_CHECKING:
    from ava_server.config.settings import Settings

RECENT_US = HOUR_US


@dataclass(frozen=True)
class _Read:
    """What stands in the log."""

    counts: Mapping[str, int]
    runs: tuple[Shown, ...]
    spent: tuple[tuple[int, int], ...]
    log: LogFacts


class Looker:
    """Looks at a data root, again and again. Blocking.

    Args:
        settings: What was configured at first; a change counts from the next look on.
        everybody: The runs of all users.
        most: How many runs are looked at closely, of those that go on and of those that have ended.
        env: The environment; None is this process's.
    """

    def __init__(self, settings: Settings, *, everybody: bool, most: int, env: Mapping[str, str] | None = None) -> None:
        self.settings = settings
        self.everybody = everybody
        self._most = most
        self._env = env
        self._user = os_user()

    def look(self) -> Overview:
        """Return what is there now, also where the log cannot be read."""
        faults: list[str] = []
        try:
            self.settings = load_settings(self.settings.data_root, self._env)
        except (AvaError, OSError) as error:
            faults.append(str(error))
        root, now_us = self.settings.paths, time.time_ns() // 1000
        locks = root.instances.glob("*.lock") if root.instances.is_dir() else ()
        processes = sum(map(_at_work, locks))
        read, trouble = None, None
        try:
            read = self._read(root.db, now_us, bool(processes)) if has_log(root) else None
        except (AuditError, AvaError) as error:
            trouble = error
        providers: Mapping[str, bool] = {}
        try:
            usable = configured(model_settings(self.settings))
            providers = {name: bool(one.api_key) for name, one in usable.items()}
        except AvaError as error:
            faults.append(str(error))
        return Overview(
            at_us=now_us,
            budgets=self._budgets(read.spent if read is not None else ((0, 0), (0, 0))),
            processes=processes,
            keeper=_at_work(root.path / "keeper.lock"),
            free_bytes=_free(root.path),
            providers=providers,
            faults=tuple(faults),
            trouble=trouble,
            counts=read.counts if read is not None else {},
            runs=read.runs if read is not None else (),
            log=read.log if read is not None else None,
        )

    def _budgets(self, spent: tuple[tuple[int, int], ...]) -> tuple[Budget, ...]:
        caps = day_caps(self.settings, self._user)
        whose = ((self._user, caps.user_micros), ("everybody", caps.installation_micros))
        return tuple(Budget(name, used, held, cap) for (name, cap), (used, held) in zip(whose, spent, strict=True))

    def _read(self, path: Path, now_us: int, serving: bool) -> _Read | None:
        try:
            return self._try(path, now_us, serving)
        except (sqlite3.Error, OSError) as error:
            if "locked" not in str(error):
                try:  # a process that came or went meanwhile has made or removed the files beside it
                    return self._try(path, now_us, serving)
                except (sqlite3.Error, OSError) as again:
                    error = again
            raise StoreUnavailable(
                f"the log cannot be read: {error}; see that no other program holds ava.db (`ava doctor` tells more)"
            ) from error

    def _try(self, path: Path, now_us: int, serving: bool) -> _Read | None:
        with open_snapshot(path) as found:
            if found.schema == 0 and path.stat().st_size == 0:  # somebody is about to make it
                return None
            if found.schema > SCHEMA_VERSION:
                raise SchemaNewer("a newer ava has migrated this log: use that one, or another AVA_DATA_ROOT")
            if found.schema == 0:
                raise DataRootRefused(f"{path} is no log: its beginning is gone (`ava doctor` tells more)")
            if found.schema < SCHEMA_VERSION:
                raise DataRootRefused(
                    "an older ava wrote this log: the next server that starts brings it up to date, and so does"
                    " `ava logs`"
                )
            return self._found(found, path, now_us, serving)

    def _found(self, found: LogSnapshot, path: Path, now_us: int, serving: bool) -> _Read:
        view, known = found.view, dict[str, bool]()

        def alive(name: str) -> bool:
            if name not in known:
                known[name] = _at_work(self.settings.paths.instances / f"{name}.lock")
            return known[name]

        whose = None if self.everybody else self._user
        going_on = [(_state(view, row, alive, now_us), row) for row in view.runs(user=whose, states=UNENDED, limit=-1)]
        going_on.sort(key=lambda each: (ORDER.index(each[0]), each[1].created_us))
        ended = [row for row in _ended_since(view, now_us - RECENT_US) if whose in (None, row.user_id)]
        rows = [row for _state, row in going_on[: self._most]] + ended[: self._most]
        day = utc_day(now_us)
        buckets = (view.bucket(scope) for scope in (user_scope(self._user, day), installation_scope(day)))
        head = view.head()
        return _Read(
            counts={**Counter(state for state, _row in going_on), "ended": len(ended)},
            runs=tuple(_shown(view, row, alive, now_us, serving) for row in rows),
            spent=tuple((bucket.spent_micros, bucket.held_micros) for bucket in buckets),
            log=LogFacts(
                entries=head,
                database_bytes=_size(path),
                wal_bytes=_size(path.with_name(f"{path.name}-wal")),
                index_lag=head - view.progress("words"),
                mirror_lag=head - view.progress("mirror") if self.settings.mirror else None,
                partial=found.partial,
            ),
        )


def _state(view: View, row: RunRow, alive: Alive, now_us: int) -> str:
    if row.state == WAITING:
        proposal = view.proposal(row.pending_id)
        return EXPIRED if proposal is not None and proposal.expires_us <= now_us else WAITING
    return shown_state(row, alive)


def _ended_since(view: View, since_us: int) -> Iterator[RunRow]:
    """Yield the runs that have ended since then, the newest first; found by their endings, however many runs are."""
    for run_id, ts_us in view.select("SELECT run_id, ts_us FROM events WHERE type = 'RunEnded' ORDER BY seq DESC"):
        if ts_us < since_us:
            return
        row = view.run(run_id) if run_id is not None else None
        if row is not None:
            yield row


def _shown(view: View, row: RunRow, alive: Alive, now_us: int, serving: bool) -> Shown:
    texts, answer = texts_of(view, row), run_answer(view, row, alive, now_us, result=False)
    proposal = view.proposal(row.pending_id) if row.state == WAITING else None
    waits = ""
    if answer.state == "queued":
        place = f"number {answer.queue_position} in the queue" if answer.queue_position is not None else "paused"
        said = answer.waits_for if serving or answer.queue_position is None else None  # by who is gone: no longer true
        why = "; ".join(part for part in (said, "" if serving else NO_SERVER) if part)
        waits = f"{place}: {why}" if why else place
    elif answer.state == "interrupted":
        waits = interrupted_words(row, answer.waits_for if serving else None, now_us)
    return Shown(
        run=row,
        answer=answer,
        task=task_excerpt(texts.task) if texts is not None else "(erased)",
        expires_us=proposal.expires_us if proposal is not None else None,
        waits=waits,
        held=view.bucket(row.id).held_micros,
    )


def _at_work(lock: Path) -> bool:
    try:
        return is_held(lock)
    except OSError:  # it cannot be asked: another user's
        return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _free(path: Path) -> int | None:
    try:
        return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free
    except OSError:
        return None

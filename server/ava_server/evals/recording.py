"""Recordings: the entries of an ended run, from the log or from a file of lines as the log's mirror has them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ava_audit.entries import GENESIS, Entry, content_sha, entry_of_line, mirror_line
from ava_audit.events import (
    Fact,
    RunClaimed,
    RunEnded,
    RunStarted,
    SpawnDecided,
    SpawnProposed,
    SubagentComplete,
    UserMessage,
)
from ava_audit.redaction import Redactor
from ava_roles.errors import RolesError
from ava_roles.role import Role, parse_role
from ava_server.budget.run_config import RunConfig, Texts
from ava_server.core.errors import ConfigError, Refused
from ava_server.core.ids import IN_PROCESS
from ava_server.evals.case import read_bytes

F = TypeVar("F", bound=Fact)
MOST_BYTES = 200_000_000
_NOBODY = "recorded"
"""In place of the user and the session in a file."""


@dataclass(frozen=True)
class Recording:
    """An ended run of Ava's own, with all that was said in it."""

    entries: tuple[Entry, ...]

    @property
    def run_id(self) -> str:
        return self.first(SpawnProposed).subagent_id

    @cached_property
    def config(self) -> RunConfig:
        """What was approved, with what was changed at the approval."""
        changes = self.first(SpawnDecided).changes
        return RunConfig.model_validate({**self.first(SpawnProposed).config, **changes})

    @property
    def role(self) -> Role:
        return parse_role(self.config.role_text, self.config.role_source, self.config.role)

    @property
    def texts(self) -> Texts:
        task = next(fact for fact in self.facts(UserMessage) if fact.kind == "task")
        return Texts(task=task.text, context=task.context, system_prompt=task.system_prompt, rationale=task.rationale)

    @property
    def result(self) -> dict[str, Any]:
        return self.first(SubagentComplete).result

    @cached_property
    def ended_from_outside(self) -> bool:
        """Whether it was ended while no process worked on it, such as by a cancel in the queue."""
        return any(isinstance(entry.fact, SubagentComplete) and entry.generation is None for entry in self.entries)

    @cached_property
    def redacted(self) -> bool:
        """Whether secrets were replaced in it after it was recorded: its requests then have other bytes."""
        return any(content_sha((entry.content or "").encode()) != entry.content_sha for entry in self.entries)

    def facts(self, kind: type[F]) -> list[F]:
        return [entry.fact for entry in self.entries if isinstance(entry.fact, kind)]

    def first(self, kind: type[F]) -> F:
        return self.facts(kind)[0]

    def lines(self, redactor: Redactor) -> bytes:
        """Return it as lines of JSON, without the names of user and session and without secrets.

        Only the log has the provider's own messages with the secrets that a model wrote.
        """
        return b"".join(mirror_line((*_without_secrets(entry, redactor), GENESIS)) for entry in self.entries)


def recording_of(run_id: str, entries: Sequence[Entry]) -> Recording:
    """Return the recording that these entries of a run are. Raises Refused: it cannot be run again; says why."""
    if any(entry.fact is None for entry in entries):
        raise Refused(f"{run_id}: its words were erased, so that its requests cannot be made again; choose another run")
    found = Recording(tuple(entries))
    asked = any(fact.kind == "task" for fact in found.facts(UserMessage))
    if not asked or not found.facts(SpawnProposed) or not found.facts(SpawnDecided):
        raise Refused(f"{run_id}: its proposal, task or approval is not there; record it again from its log")
    try:
        runner, _ = found.config.runner, found.role
    except (ValueError, RolesError) as error:
        why = str(error).partition("\n")[0]
        raise Refused(f"{run_id}: what was approved is not valid ({why}); record it again from its log") from None
    if runner != IN_PROCESS:
        raise Refused(
            f"{run_id}: another agent ({runner}) did its work and wrote its own requests; only runs of Ava's own can be"
            " run again"
        )
    if not found.facts(SubagentComplete) or not found.facts(RunEnded):
        raise Refused(f"{run_id}: it has not ended yet; wait for it with `ava wait {run_id}`")
    if not found.facts(RunStarted) or not found.facts(RunClaimed):
        raise Refused(f"{run_id}: it ended before it asked a model anything, so there is nothing to run again")
    return found


def read_recording(path: Path) -> Recording:
    """Return the recording in a file. Blocking. Raises ConfigError: it is none; Refused: it cannot be run again."""
    entries: list[Entry] = []
    try:
        for number, line in enumerate(io.BytesIO(read_bytes(path, MOST_BYTES)), 1):
            try:
                entries.append(entry_of_line(line))
                _ = entries[-1].fact
            except (ValueError, RecursionError) as error:
                why = str(error).partition("\n")[0]
                raise ConfigError(f"{path}:{number}: it is not an entry of a log ({why})") from None
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read ({error.strerror})") from error
    return recording_of(path.name, entries)


def _without_secrets(entry: Entry, redactor: Redactor) -> Entry:
    """Return an entry without secrets and names; its hashes stay those of the log."""
    content = json.loads(entry.content or "{}")
    hidden = redactor.redact_json(content)
    text = entry.content if hidden == content else json.dumps(hidden, ensure_ascii=False, separators=(",", ":"))
    return entry._replace(session_id=_NOBODY, user_id=_NOBODY, content=text)

"""`spawn_subagent` with `ask` where the log fails: what has started is told, and nothing is proposed twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.hosts.ask_at_once import spawn_and_ask
from support.hosts.elicitation import Person, accept, host
from support.hosts.tasks import task_host
from support.runtime import hand_over
from support.stdio import read_answer

from ava_audit.errors import OutcomeUnknown, StoreUnavailable
from ava_audit.store.store import Store
from ava_server.service.access import Access
from ava_server.service.run_tasks import RunTasks


async def test_an_unknown_outcome_names_the_run_and_warns_of_proposing_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do = Store.do

    async def lost(self: Store, command: Any, about: str | None = None) -> Any:
        found = await do(self, command, about)
        if command.__qualname__.startswith("approve."):
            raise OutcomeUnknown("the log did not answer in time")
        return found

    async with host(tmp_path, "legacy", accept()) as at:
        monkeypatch.setattr(Store, "do", lost)
        answer = await spawn_and_ask(at)
        monkeypatch.undo()
        assert answer["status"] == "unknown" and "approval_line" not in answer
        assert f'subagent_id "{answer["subagent_id"]}"; do not propose it again' in answer["next"]
        await at.started_once(answer)


async def test_a_log_that_cannot_be_read_after_the_yes_does_not_hide_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(_self: Access, _ids: list[str]) -> Any:
        raise StoreUnavailable("the log is busy")

    async with host(tmp_path, "legacy", accept(max_cost_dollars=0.2)) as at:
        monkeypatch.setattr(Access, "rows", unreadable)
        answer = await spawn_and_ask(at)
        monkeypatch.undo()
        assert answer["status"] == "approved" and "from $0.50 to $0.20" in answer["message"]
        await at.started_once(answer)


async def test_a_task_that_cannot_be_read_is_answered_with_what_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(_self: RunTasks, *_args: Any, **_more: Any) -> Any:
        raise StoreUnavailable("the log is busy")

    async with task_host(tmp_path, [hand_over()], asks=Person(accept())) as at:
        monkeypatch.setattr(RunTasks, "task", unreadable)
        given = {"role": "researcher", "task": "What does it cost?", "ask": True}
        answer, _text = read_answer(await at.client.call_tool("spawn_subagent", given))
        monkeypatch.undo()
        assert answer["status"] == "approved" and answer["subagent_id"].startswith("S-")

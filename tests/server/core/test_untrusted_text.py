"""Text that others send: scope and length come first, and its secrets are looked for while others have their turn."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from support.gaps import MOST_GAP_S, most_gap
from support.runtime import open_lab

from ava_audit.redaction import Redactor
from ava_server.config.tokens import Token
from ava_server.core import untrusted
from ava_server.core.threads import compute_alone, stop_if_cancelled
from ava_server.core.untrusted import count_chars, hide_apart, shorten
from ava_server.service.access import Session, ignore_progress
from ava_server.service.service import MOST_CHARS, Service

SLOW = ["mysql -pa1b2c3d4 ", "PASSWORD=abcdefgh\n"]
OTHERS = ["token=1", "/ABSK", "-----END PRIVATE KEY-----", "A"]


@pytest.mark.parametrize(
    "piece", [SLOW[0], *(pytest.param(each, marks=pytest.mark.slow) for each in (*SLOW[1:], *OTHERS))]
)
async def test_the_event_loop_has_its_turn_while_a_long_text_is_searched(piece: str) -> None:
    redactor, text = Redactor({}, stop_if_cancelled), piece * (4_000_000 // len(piece))
    gaps: list[float] = []
    async with most_gap(gaps):
        await hide_apart(lambda: redactor.redact(text), len(text), within_s=60)
    assert max(gaps) < MOST_GAP_S < sum(gaps), "a search that is shorter than the longest turn proves nothing"


async def test_a_search_ends_at_its_deadline_and_with_its_caller() -> None:
    redactor, text = Redactor({}, stop_if_cancelled), SLOW[0] * 3_000_000
    began = time.process_time()
    with pytest.raises(TimeoutError):
        await hide_apart(lambda: redactor.redact_json({"task": [text]}), len(text), within_s=0.05)
    with anyio.move_on_after(0.05):
        await hide_apart(lambda: redactor.redact_json({"task": [text]}), len(text))
    assert time.process_time() - began < 1
    assert untrusted._limiter.get().borrowed_tokens == 0  # pyright: ignore[reportPrivateUsage]


async def test_a_thread_that_waits_to_compute_stops_when_nobody_waits_for_it() -> None:
    begun = anyio.Event()

    def compute() -> None:
        with compute_alone():
            raise AssertionError("it has not waited")

    with compute_alone():
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                begun.set()
                await anyio.to_thread.run_sync(compute)

            tasks.start_soon(wait)
            await begun.wait()
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    with compute_alone():
        pass


def session_of(user: str, *scopes: Any) -> Session:
    token = Token(name="ci", user=user, scopes=scopes, hash="0" * 64, created_us=0, expires_us=None)
    return Session(user=user, transport="http", token=token)


async def test_what_a_token_may_not_send_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    whole = Redactor.redact

    def redact(self: Redactor, text: str) -> tuple[str, int]:
        searched.append(len(text))
        return whole(self, text)

    async with open_lab(tmp_path, runs=False) as lab:
        service = Service(lab.runtime, session_of(lab.runtime.user, "read"))
        monkeypatch.setattr(Redactor, "redact", redact)
        given = {"task": SLOW[0] * 120_000, "key": ["sk-ant-" + "a1" * 20] * 99}
        answer = await service.call("spawn_subagent", given, ignore_progress)
        assert "lacks the scope" in (answer.message or "")
        assert max(searched) < 2_000


async def test_arguments_longer_than_any_tool_takes_are_refused_before_they_are_searched(tmp_path: Path) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        began = time.process_time()
        answer = await lab.service.call("spawn_subagent", {"task": SLOW[0] * 400_000}, ignore_progress)
        assert time.process_time() - began < 1
        assert f"at most {MOST_CHARS:,} are allowed" in (answer.message or "")
        long = {"task": "x" * 100_000, "context": "y" * 200_000}
        most = await lab.service.call("spawn_subagent", long, ignore_progress)
        assert "allowed" not in (most.message or "")


async def test_the_loop_goes_on_beside_long_arguments(tmp_path: Path) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        await lab.service.call("check_subagent", {}, ignore_progress)
        given = {"task": SLOW[0] * (MOST_CHARS // len(SLOW[0]) - 10)}
        gaps: list[float] = []
        async with most_gap(gaps):
            answer = await lab.service.call("spawn_subagent", given, ignore_progress)
        assert "what looks like a key" in (answer.message or "")
        assert max(gaps) < MOST_GAP_S


def test_what_is_told_of_a_refused_call_is_short_and_in_its_form() -> None:
    long = {"a": "x" * 999, "b": [{"c": "y" * 999}] * 99, "d": 3, "e" * 999: None}
    told = shorten(long)
    assert count_chars(told) < 25 * 210
    assert (told["a"][:3], told["d"], len(told["b"])) == ("xxx", 3, 20)
    assert count_chars({"ab": ["cd", 5, None], "e": {"f": "gh"}}) == 1 + 2 + 1 + 2 + 1 + 1 + 1 + 1 + 1 + 2

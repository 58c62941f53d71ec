"""What providers say about their limits, met by real runs: waited for in place, paused for, or the end of it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Fail, Raw, Step
from support.runtime import PRICED, hand_over, open_lab

from ava_audit.events import CostReserved, ErrorOccurred, RunPaused
from ava_audit.units import iso_second, parse_time

OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_7"}


def limited(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"type": "rate_limit_error", "message": message, "code": code}}


def at(**later: float) -> datetime:
    """A full second from now on."""
    return datetime.now(UTC).replace(microsecond=0) + timedelta(**later)


async def test_retries_an_overloaded_provider_and_logs_its_request_id(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [Fail(529, OVERLOADED), hand_over()], config=PRICED) as lab:
        run_id = await lab.start()
        assert (await lab.ended(run_id)).state == "success"
        [error] = await lab.facts(run_id, ErrorOccurred)
        assert (error.kind, error.request_id) == ("overloaded", "req_7")
        assert "is overloaded (HTTP 529, request req_7): Overloaded [overloaded_error]." in error.error
        assert await lab.settlements(run_id) == ["not_billed", "billed"]


async def test_waits_milliseconds_without_pausing_the_run(tmp_path: Path) -> None:
    exact = {"retry-after-ms": "1500", "retry-after": "59"}
    async with open_lab(tmp_path, [Fail(429, headers=exact), hand_over()]) as lab:
        run_id = await lab.start()
        run = await lab.ended(run_id, within_s=60)
        assert run.state == "success" and run.generation == 1
        assert run.active_us >= 1.5e6, "no sooner than it may"
        assert [(fact.turn, fact.attempt) for fact in await lab.facts(run_id, CostReserved)] == [(1, 1), (1, 2)]


async def test_the_activity_line_shows_a_short_wait_and_its_end(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [Fail(503, retry_after="50")]) as lab:
        run_id = await lab.start()
        await lab.logged(run_id, "ErrorOccurred")
        [run] = (await lab.call("check_subagent", subagent_id=run_id, wait_seconds=1)).runs
        assert str(run.untrusted_activity).startswith("Waiting 50 s for the model, until 20"), run
        await lab.call("cancel_subagent", subagent_id=run_id)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "2m0s"}, 120),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "{ms}"}, 120),
        ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "{iso}"}, 120),
    ],
)
async def test_a_limit_given_only_in_headers_pauses_the_run(
    tmp_path: Path, headers: dict[str, str], wait_s: int
) -> None:
    until = at(seconds=wait_s)
    told = {
        name: value.format(ms=round(until.timestamp() * 1000), iso=until.isoformat()) for name, value in headers.items()
    }
    async with open_lab(tmp_path, [Fail(429, headers=told)]) as lab:
        run_id = await lab.start()
        await lab.logged(run_id, "RunPaused")
        [paused] = await lab.facts(run_id, RunPaused)
        assert -2e6 < paused.not_before_us - until.timestamp() * 1e6 < 10e6
        await lab.call("cancel_subagent", subagent_id=run_id)


@pytest.mark.parametrize(
    "words",
    [
        "Claude AI usage limit reached|{epoch}",
        "usage limit reached, resets at {iso}",
        "You have reached your usage limit, try again at {clock} UTC",
        "You have reached your specified API usage limits. You will regain access on {day} UTC.",
    ],
)
async def test_a_usage_limit_with_a_reset_time_pauses_the_run_until_then(tmp_path: Path, words: str) -> None:
    until = at(hours=5).replace(second=0)
    said = words.format(
        epoch=round(until.timestamp()),
        iso=until.isoformat(),
        clock=f"{until:%I:%M %p}",
        day=f"{until:%Y-%m-%d at %H:%M}",
    )
    status = 400 if "specified" in words else 429
    async with open_lab(tmp_path, [Fail(status, limited(said))]) as lab:
        run_id = await lab.start()
        await lab.logged(run_id, "RunPaused")
        [error] = await lab.facts(run_id, ErrorOccurred)
        assert error.kind == "usage_limit" and until.strftime("again at %Y-%m-%dT%H:%M:") in error.error, error
        [run] = (await lab.call("check_subagent", subagent_id=run_id)).runs
        assert run.not_before is not None and run.not_before in str(run.waits_for)
        assert -2e6 < parse_time(run.not_before, 0) - until.timestamp() * 1e6 < 10e6
        await lab.call("cancel_subagent", subagent_id=run_id)


async def test_an_exhausted_monthly_limit_ends_the_run_and_names_the_reset_day(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    first = (now.replace(day=28) + timedelta(days=4)).replace(day=1)
    if first.replace(hour=0) - now < timedelta(days=2):
        pytest.skip("the month is nearly over: the run would wait for the next")
    spent = limited("monthly cap")
    spent["error"]["details"] = {"error_code": "enforced_spend_limit_reached"}
    async with open_lab(tmp_path, [Fail(429, spent)]) as lab:
        result = await lab.outcome()
        assert len(lab.server.requests) == 1
    assert result["status"] == "error" and result["error"]["kind"] == "usage_limit"
    assert f"takes calls again at {first:%Y-%m-%d}T00:00:0" in result["untrusted_result"]["error_text"]
    assert "Raise the limit in the provider's console" in result["error"]["what_to_do"]


@pytest.mark.parametrize(
    "step",
    [
        Fail(429, limited("no money", "insufficient_quota"), retry_after="1"),
        Fail(503, headers={"x-should-retry": "false"}),
        Fail(500, {"error": {"message": "model requires more system memory (5.3 GiB) than is available (3.3 GiB)"}}),
    ],
)
async def test_does_not_retry_errors_that_waiting_cannot_fix(tmp_path: Path, step: Step) -> None:
    async with open_lab(tmp_path, [step, hand_over()]) as lab:
        result = await lab.outcome(within_s=60)
        assert len(lab.server.requests) == 1
    assert result["status"] == "error" and result["error"]["what_to_do"]


async def test_retries_an_error_whose_header_asks_for_a_retry(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [Fail(400, headers={"x-should-retry": "true"}), hand_over()]) as lab:
        assert (await lab.outcome())["status"] == "success"


async def test_retries_after_an_error_mid_stream_and_books_it_as_unknown(tmp_path: Path) -> None:
    broken = Raw([b'data: {"error": {"code": 502, "message": "Provider returned error"}, "choices": [{"delta": {},'
                  b' "finish_reason": "error"}]}\n\n'])  # fmt: skip
    async with open_lab(tmp_path, [broken, hand_over()], config=PRICED) as lab:
        run_id = await lab.start()
        assert (await lab.ended(run_id)).state == "success"
        assert await lab.settlements(run_id) == ["unknown", "billed"]


def test_rounds_a_reset_time_up_to_a_full_second() -> None:
    now_us = time.time_ns() // 1000
    assert 0 <= parse_time(iso_second(now_us), 0) - now_us < 1e6

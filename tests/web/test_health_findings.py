"""What the page of health is made of: each check once, errors that are alike as one, and no path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.tool_examples import must_list

from ava_audit.entries import Entry, entry_of
from ava_audit.events import ErrorOccurred, Fact, SubagentComplete
from ava_server.cli import doctor_checks as checks
from ava_server.service.checks import CheckFinding, Setup, data, models
from ava_server.web import health
from ava_server.web.health import repeated, without_consequences
from ava_server.web.log_pages import EventRow


def test_an_ending_is_left_out_only_where_an_error_of_the_same_run_is_before_it() -> None:
    def row(seq: int, fact: Fact, run: str) -> EventRow:
        columns = {"seq": seq, "type": fact.type, "run_id": run, "version": 1, "content": fact.model_dump_json()}
        entry = entry_of([columns.get(name) for name in Entry._fields])
        return EventRow(entry, "error", fact.type, "", run)

    def ended(seq: int, run: str) -> EventRow:
        done = SubagentComplete(
            subagent_id=run, status="error", summary="No result.", tokens=0, cost_cents=0, duration=1.0, result={}
        )
        return row(seq, done, run)

    def error(seq: int, run: str) -> EventRow:
        return row(seq, ErrorOccurred(error="it is down", kind="api"), run)

    rows = [ended(4, "S-0000a1"), ended(3, "S-0000b1"), error(2, "S-0000a1"), error(1, "S-0000a1")]
    assert [each.entry.seq for each in without_consequences(rows)] == [3, 2, 1]


def test_errors_that_are_alike_are_one_with_their_number() -> None:
    def row(seq: int, text: str, run: str = "S-0000a1") -> EventRow:
        columns = {"seq": seq, "type": "ErrorOccurred", "run_id": run}
        entry = entry_of([columns.get(name) for name in Entry._fields])
        return EventRow(entry, "error", "Error", text, run)

    same = "the provider is down, and nobody knows when it will come back: "
    rows = [row(4, f"{same}4"), row(3, "other"), row(2, f"{same}2"), row(1, f"{same}1", "S-0000b1")]
    rows[1].inside.append(row(5, f"{same}5"))
    found = [(each.row.entry.seq, each.times, [name for _run_id, name in each.runs]) for each in repeated(rows)]
    assert found == [(4, 4, ["S-0000a1", "S-0000b1"]), (3, 1, ["S-0000a1"])]


def test_the_page_makes_each_check_of_data_and_of_models_that_the_doctor_makes() -> None:
    cheap = [check.__name__ for _name, check in checks.CHECKS if check.__module__ in (data.__name__, models.__name__)]
    must_list("server/ava_server/web/health.py: CHECKS", [check.__name__ for check in health.CHECKS], cheap, "check")
    page, doctor = [check.__name__ for check in health.CHECKS], [check.__name__ for _name, check in checks.CHECKS]
    must_list("server/ava_server/cli/doctor_checks.py: CHECKS", doctor, page, "check")


def test_a_check_that_fails_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_setup: Setup) -> Iterator[CheckFinding]:
        raise OSError("/secret/path")

    def whole(_setup: Setup) -> Iterator[CheckFinding]:
        yield CheckFinding("whole", "ok", "fine")

    monkeypatch.setattr(health, "CHECKS", (broken, whole))
    failed, fine = health.checked(Setup({}))
    assert (failed.name, failed.state, fine.name) == ("broken", "fault", "whole")
    assert "OSError" in failed.text and "/secret" not in failed.text and failed.what_to_do


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Fix it with: chmod 700 /srv/ava data", "Fix it with: chmod 700 (path) data"),
        ("/srv/ava/config.toml is valid; ~/ava too", "(path) is valid; (path) too"),
        ("calls go to https://api.example/v1, with a key", "calls go to https://api.example/v1, with a key"),
        ('anthropic from "/home/ana/keys.toml"', 'anthropic from "(path)"'),
        ("openrouter:qwen/qwen-3 costs $1/$2", "openrouter:qwen/qwen-3 costs $1/$2"),
    ],
)
def test_paths_are_left_out(text: str, expected: str) -> None:
    found = health.without_paths(CheckFinding("data root", "fault", text, text))
    assert (found.text, found.what_to_do) == (expected, expected)

"""`ava report approvals`: who approved what, over which way, and what it cost, to the micro-dollar."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.log import write
from support.logs.past import DAY_S, BookedLife, Past, own_user
from support.terminal import ava, run_on_terminal

from ava_audit.events import Event, RunResumed, SessionStart, SpawnDecided, Who
from ava_audit.store.store import Store
from ava_server.render import approvals

START_S = 20_450 * DAY_S
"""2025-12-28."""
STEERS = "\x1b[2J\x1b]0;owned\x07ok"
SINCE = ("--since", "2025-12-28T00:00Z", "--until", "2026-01-10T00:00Z")


async def test_says_who_decided_over_which_way_and_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await days(tmp_path, Past(monkeypatch))
    shown = report(tmp_path)
    rows = [
        (each["subagent_id"], each["decision"], each["cap_cents"], each["cost_cents"]) for each in shown["decisions"]
    ]
    assert rows == [
        ("S-000004", "rejected", 0.0009, None),
        ("S-000003", "raised", 70.0, None),
        ("S-000003", "approved", 200.0, 12.0001),
        ("S-000002", "approved", 200.0, 0.0017),
        ("S-000001", "approved", 200.0, 0.7001),
    ]
    by = {each["subagent_id"]: each["decided_by"] for each in shown["decisions"]}
    assert {run: (how["kind"], how["channel"], how["client"]) for run, how in by.items()} == {
        "S-000001": ("host", "host_call", "claude-code 1.2"),
        "S-000002": ("script", "host_call", "ava run 1.2"),
        "S-000003": ("person", "terminal", None),
        "S-000004": ("person", "http", None),
    }
    assert by["S-000002"]["how"].startswith(f"by a script as {own_user()}: the flag --yes of `ava run`")
    first = shown["decisions"][-1]
    assert (first["at"], first["user"], first["digest"]) == ("2025-12-28T00:00:10.000000Z", own_user(), "d" * 64)
    assert (first["task"], first["ending"], first["state"]) == ("Look it up", None, "running")
    assert shown["decisions"][2]["ending"] == "timeout"


async def test_a_proposal_that_was_cancelled_was_rejected_that_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no = BookedLife("S-000001", user=own_user())
    async with Store.open(tmp_path) as store:
        await Past(monkeypatch).at(store, START_S, no.proposal(), no.task(), decides(no, "rejected", "x", None))
    (found,) = report(tmp_path)["decisions"]
    assert (found["decision"], found["decided_by"]["how"]) == ("rejected", "by cancelling it")


@pytest.mark.parametrize("users", [(), ("--user", "ana"), ("--all",)])
async def test_sums_agree_with_the_raw_entries_to_the_micro_dollar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: tuple[str, ...]
) -> None:
    await days(tmp_path, Past(monkeypatch))
    shown = report(tmp_path, *users)
    costs = {each["subagent_id"]: each["cost_cents"] for each in shown["decisions"] if each["decision"] == "approved"}
    for run, cost in costs.items():
        assert round(cost * 10_000) == raw_sum(tmp_path, {run})
    assert round(shown["total"]["cost_cents"] * 10_000) == raw_sum(tmp_path, set(costs)) > 0
    counted = {name: shown["total"][name] for name in ("approved", "rejected", "raised", "declined", "resumed")}
    assert counted == {name: sum(each["decision"] == name for each in shown["decisions"]) for name in counted}


async def test_a_user_sees_decisions_about_the_own_runs_also_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await days(tmp_path, Past(monkeypatch))
    hers = report(tmp_path, "--user", "ana")["decisions"]
    assert [(each["subagent_id"], each["decision"], each["decided_by"]["user"]) for each in hers] == [
        ("S-000007", "resumed", own_user()),
        ("S-000007", "approved", "ana"),
    ]
    assert hers[1]["decided_by"]["token"] == "ana-laptop"
    assert len(report(tmp_path, "--all")["decisions"]) == 7
    assert report(tmp_path, "--user", "nobody")["decisions"] == []


async def test_a_file_has_all_pages_and_the_screen_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past, many = Past(monkeypatch), approvals.PAGE + 30
    past.at_s = START_S
    async with Store.open(tmp_path) as store:
        for number in range(many):
            life = BookedLife(f"S-{number:06}", user=own_user())
            await write(store, life.proposal(), life.task(), decides(life, "approved", "x", "terminal"))
    assert len({each["subagent_id"] for each in report(tmp_path)["decisions"]}) == many
    assert len(ava(tmp_path, "report", "approvals", *SINCE, "--csv").stdout.splitlines()) == many + 1
    screen = ava(tmp_path, "report", "approvals", *SINCE).stdout
    assert f"{many} approved" in screen and "Older ones: --until 2025-12-28T" in screen
    assert screen.count("; queued\n") == approvals.PAGE


async def test_texts_cannot_be_formulas_or_steer_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past(monkeypatch)
    tasks = [
        '=HYPERLINK("http://evil")',
        "+1",
        "-1",
        "@SUM(1)",
        "\t=1",
        "\r\n=1",
        "＝1",
        '","=1',
        "\x1b[2J\x1b]0;x\x07ok",
    ]
    async with Store.open(tmp_path) as store:
        for number, task in enumerate(tasks):
            life = BookedLife(f"S-00000{number}", user=own_user(), role="=role()")
            await lived(past, store, life, START_S + number, ("x", "terminal"), task=task)
    done = ava(tmp_path, "report", "approvals", *SINCE, "--csv")
    assert (done.returncode, done.stderr) == (0, "")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(rows) == len(tasks) and all(None not in row for row in rows)
    assert not [cell for row in rows for cell in row.values() if cell.lstrip().startswith(approvals.FORMULAS)]
    assert {row["role"] for row in rows} == {"'=role()"}
    with run_on_terminal(tmp_path, "report", "approvals", *SINCE) as screen:
        assert screen.ended() == 0
    for text in (done.stdout, screen.text, ava(tmp_path, "report", "approvals", *SINCE).stdout):
        assert not any(steering in text for steering in ("\x1b]", "\x1b[2J", "\x07", "\x9b"))


async def test_an_erased_run_stays_in_the_report_without_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past, life = Past(monkeypatch), BookedLife("S-000001", user=own_user())
    async with Store.open(tmp_path) as store:
        await lived(past, store, life, START_S, ("x", "terminal"), 3_000, task="the secret plan")
        await past.at(store, START_S + 9, *life.final_events("success", "it is done"))
    assert ava(tmp_path, "erase", "S-000001", "--yes").returncode == 0
    [row] = report(tmp_path)["decisions"]
    assert (row["task"], row["cost_cents"], row["ending"], row["role"]) == (None, 0.3, "success", "researcher")
    screen = ava(tmp_path, "report", "approvals", *SINCE).stdout
    assert "(erased)" in screen and "secret plan" not in screen
    assert "(erased)" in ava(tmp_path, "report", "approvals", *SINCE, "--csv").stdout


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--json", "--csv"), "--csv: leave out --json"),
        (("--user", "ana", "--all"), "--user: leave out --all"),
        (("--since", "2026-01-10", "--until", "2025-12-28"), "--until: '2025-12-28' is before --since ('2026-01-10')"),
        (("--since", "2026-01-10", "--until", "2026-01-10"), "no time lies between"),
        (("--since", "never"), "--since: "),
    ],
)
def test_refuses_what_cannot_be_meant(tmp_path: Path, given: tuple[str, ...], says: str) -> None:
    done = ava(tmp_path / "data", "report", "approvals", *given)
    assert (done.returncode, says in done.stderr, done.stdout) == (2, True, "")
    assert not (tmp_path / "data").exists()


def test_an_empty_report_creates_nothing(tmp_path: Path) -> None:
    assert report(tmp_path / "data")["decisions"] == []
    assert "no decisions" in ava(tmp_path / "data", "report", "approvals").stdout
    assert not (tmp_path / "data").exists()


def report(root: Path, *args: str) -> Mapping[str, Any]:
    done = ava(root, "report", "approvals", *SINCE, "--json", *args)
    assert (done.returncode, done.stderr) == (0, "")
    shown: Mapping[str, Any] = json.loads(done.stdout)
    return shown


def raw_sum(root: Path, runs: set[str]) -> int:
    """What the settlements of some runs add up to, read from the entries alone."""
    log = sqlite3.connect(root / "ava.db")
    try:
        rows = log.execute("SELECT run_id, cost_micros FROM events WHERE type = 'CostUpdate'").fetchall()
    finally:
        log.close()
    return sum(cost or 0 for run_id, cost in rows if run_id in runs)


def decides(life: BookedLife, decision: str, session: str, channel: str | None, by: str = "") -> Event:
    fact = SpawnDecided.model_validate(
        {"pending_id": life.pending_id, "decision": decision, "channel": channel, "digest": "d" * 64}
    )
    return Event(Who(session, "ava", by or life.user), fact, run_id=life.run_id)


def begins(session: str, user: str, transport: str, client: str, token: str | None = None) -> Event:
    fact = SessionStart(client=client, client_version="1.2", transport=transport, token=token)
    return Event(Who(session, "ava", user), fact)


async def lived(
    past: Past, store: Store, life: BookedLife, at_s: float, how: tuple[str, str], *costs: int, task: str = "Look it up"
) -> None:
    """Write a run that was approved in a session over a channel, and has paid for some calls."""
    await past.at(store, at_s, life.proposal(role=life.role, model=life.model, max_cost_micros=life.max_cost))
    await write(store, life.task(task), decides(life, "approved", *how), life.claim())
    for turn, cost in enumerate(costs, 1):
        await past.at(store, at_s + turn, partial(life.call, turn), partial(life.payment, cost))


async def days(root: Path, past: Past) -> None:
    """Decisions over each channel, by two users and an administrator."""
    async with Store.open(root) as store:
        past.at_s = START_S
        await write(
            store,
            begins("sess-host", own_user(), "stdio", "claude-code"),
            begins("sess-yes", own_user(), "terminal", "ava run"),
            begins("sess-http", "ana", "http", "ava", "ana-laptop"),
        )
        await lived(
            past, store, BookedLife("S-000001", user=own_user()), START_S + 10, ("sess-host", "host_call"), 3_000, 4_001
        )
        await lived(past, store, BookedLife("S-000002", user=own_user()), START_S + 20, ("sess-yes", "host_call"), 17)
        asks = BookedLife("S-000003", user=own_user())
        await lived(past, store, asks, START_S + 30, ("sess-gone", "terminal"), 20_000)
        await past.at(store, START_S + 40, asks.request(), asks.request_answer(700_000), asks.claim())
        await past.at(
            store,
            START_S + 41,
            partial(asks.call, 2),
            partial(asks.payment, 100_001),
            *asks.final_events("timeout", ""),
        )
        no = BookedLife("S-000004", user=own_user())
        await past.at(
            store, START_S + 50, no.proposal(max_cost_micros=9), no.task(), decides(no, "rejected", "x", "http")
        )
        for number, decision in ((5, "expired"), (6, "superseded")):  # nobody's decision
            none = BookedLife(f"S-00000{number}", user=own_user())
            await past.at(store, START_S + 60, none.proposal(), none.task(), decides(none, decision, "x", None))
        hers = BookedLife("S-000007", user="ana")
        await lived(past, store, hers, START_S + 70, ("sess-http", "http"), 500_000)
        resumed = Event(Who("sess-gone", "ava", own_user()), RunResumed(channel="terminal"), run_id=hers.run_id)
        await past.at(store, START_S + 80, resumed)

"""The page of costs: the figures of `ava report`, for whoever may see them."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from support.http_server import token
from support.logs.past import DAY_S, BookedLife, Past, write_past
from support.pages.browser import PAID, There, Visitor, open_team
from support.terminal import ava

from ava_audit.events import ErrorOccurred
from ava_audit.store.store import Store
from ava_audit.units import format_usd, micros_from_cents

START_S = 20_450 * DAY_S
"""2025-12-28."""
KEPT = f"retention_days = 3650\n{PAID}"
WEEK = "from=2025-12-28&to=2026-01-03"
HOSTILE = "<script>alert(1)</script>\u202e"
OF_BEN = "secret-role-of-ben"


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_team(
        tmp_path_factory.mktemp("team") / "data", KEPT, past=lambda root: write_past(root, write_runs)
    ) as there:
        yield there


@pytest.mark.parametrize("everybody", [False, True])
def test_the_page_has_the_figures_of_the_report(team: There, ana: Visitor, auditor: Visitor, everybody: bool) -> None:
    visitor = auditor if everybody else ana
    page = visitor.get(f"/costs?{WEEK}{'&all' if everybody else ''}").text
    expected = reported(team.root, "ana", *(["--all"] if everybody else []))
    total, shown = expected["total"], facts(page)
    assert total["cost_cents"] > 0
    assert shown["Spent"] == usd(total["cost_cents"])
    assert shown["Model calls"] == f"{total['model_calls']} in {total['runs_that_spent']} runs"
    assert shown["Ended"] == f"{total['runs_ended']}, {total['runs_failed']} failed runs of plans count too"
    assert shown["Repeated calls"] == usd(total["retries_cents"]) != "$0.00"
    assert shown["Unknown, the most that it can be"] == usd(total["uncosted_cents"]) != "$0.00"
    assert shown["Above the reservation"].startswith(f"{usd(total['overrun_cents'])} in {total['overruns']} call")
    days = tables(page)["days"]
    for day in expected["by_day"]:
        if day["model_calls"] or day["runs_ended"]:
            cells = days[day["day"]]
            assert cells[0] == usd(day["cost_cents"])
            assert cells[-3:] == [count(day[name]) for name in ("model_calls", "runs_ended", "runs_failed")]
    for what in ("role", "model", *(["user"] if everybody else [])):
        rows = tables(page)[f"by-{what}"]
        assert {name: (cells[0], *cells[2:]) for name, cells in rows.items()} == {
            one[what].replace("\u202e", ""): (
                usd(one["cost_cents"]), count(one["runs_ended"]), count(one["runs_failed"])
            )
            for one in expected[f"by_{what}"]
        }  # fmt: skip
    for reason in expected["failed"]:
        assert f'href="/subagents/{reason["newest"]}"' in page
    for error in expected["errors"]:
        assert f"/events?type=error&amp;run={error['newest']}" in page


def columns(page: str, section: str) -> list[str]:
    """The words of each bar of a chart, which a browser shows where one points at it."""
    found = page.partition(f'<h2 id="{section}"')[2].partition("</section>")[0]
    return [words(each) for each in re.findall(r"<g><title>(.*?)</title>", found)]


@pytest.mark.parametrize("by", ["role", "model", "user"])
def test_the_chart_has_the_figures_of_the_table(auditor: Visitor, by: str) -> None:
    page = auditor.get(f"/costs?{WEEK}&by={by}&all").text
    bars, days = columns(page, "days"), tables(page)["days"]
    assert [bar[:10] for bar in bars] == [f"2025-12-{day}" for day in (28, 29, 30, 31)] + [
        f"2026-01-{day:02}" for day in (1, 2, 3)
    ]
    assert len([bar for bar in bars if not bar.endswith(": nothing")]) == 4
    for bar in bars:
        cost = days[bar[:10]][0]
        assert cost in bar if cost != "–" else bar.endswith(": nothing"), (bar, cost)


def test_all_days_that_were_asked_for_are_on_the_axis_also_before_the_log(auditor: Visitor) -> None:
    page = auditor.get("/costs?from=2025-12-20&to=2026-01-03&all").text
    for chart in ("days", "ended", "tokens"):
        bars = columns(page, chart)
        assert len(bars) == 15 and bars[0] == "2025-12-20: nothing", chart
        axis = page.partition(f'<h2 id="{chart}"')[2].partition('class="periods"')[2].partition("</div>")[0]
        assert axis.count("<span") == 15


def test_a_chart_with_one_series_says_what_it_is(auditor: Visitor) -> None:
    page = auditor.get(f"/costs?{WEEK}&all").text
    charts = page.split('<figure class="chart">')[1:]
    assert len(charts) >= 3 and all('<ul class="legend">' in each.partition("</figure>")[0] for each in charts)


def test_the_page_of_approvals_is_no_choice_of_a_time(ana: Visitor) -> None:
    page = ana.get("/costs").text
    choices = page.partition('<div class="choices">')[2].partition("</form>")[0]
    assert "/costs/approvals" in page and "/costs/approvals" not in choices and "7 days" in choices


def test_each_chart_has_a_table_with_its_figures(auditor: Visitor) -> None:
    page = auditor.get(f"/costs?{WEEK}&all").text
    found = tables(page)
    assert found["ended"] == {
        "2026-01-02": ["1", "–", "–", "–"],
        "2025-12-30": ["–", "–", "1", "–"],
        "2025-12-29": ["–", "–", "1", "–"],
        "2025-12-28": ["1", "–", "–", "–"],
    }
    assert columns(page, "ended")[:3] == ["2025-12-28: success 1", "2025-12-29: failed 1", "2025-12-30: failed 1"]
    assert found["tokens"]["2025-12-28"] == ["400", "200"]
    for chart in ("ended", "tokens"):
        assert {bar[:10] for bar in columns(page, chart) if not bar.endswith("nothing")} == found[chart].keys()


def test_the_charts_need_no_script(ana: Visitor) -> None:
    page = ana.get(f"/costs?{WEEK}").text
    assert page.count('<svg class="bars"') >= 2 and " style=" not in page
    scripts = re.findall(r'<script src="/static/([\w.]+)', page)
    assert scripts == ["htmx.min.js", "ava.js", "passkeys.js"]


def test_a_long_time_is_shown_by_month_with_the_same_total(ana: Visitor) -> None:
    week = facts(ana.get(f"/costs?{WEEK}").text)
    page = ana.get("/costs?from=2025-06-01&to=2026-05-31").text
    assert facts(page)["Spent"] == week["Spent"]
    months = tables(page)["days"]
    assert list(months) == ["2026-02 to 2026-05", "2026-01", "2025-12"]
    assert [float(cells[0].removeprefix("$")) > 0 for cells in months.values() if cells[0] != "–"] == [True, True]


@pytest.mark.parametrize(("until", "unit"), [("2026-03-10", "day"), ("2026-04-15", "month")])
def test_the_page_and_the_command_go_over_to_months_at_the_same_length(
    team: There, ana: Visitor, until: str, unit: str
) -> None:
    done = ava(team.root, "report", "--since", "2025-12-28", "--until", until, env={"LOGNAME": "ana"})
    assert f"\nBy {unit} " in done.stdout
    names = tables(ana.get(f"/costs?from=2025-12-28&to={until}").text)["days"]
    assert {len(name.split()[0]) for name in names} == {len("2026-01" if unit == "month" else "2026-01-01")}


@pytest.mark.parametrize("query", [WEEK, f"{WEEK}&all", f"{WEEK}&all&by=model", f"{WEEK}&user=ben"])
def test_a_user_sees_nothing_of_others(ana: Visitor, query: str) -> None:
    page = ana.get(f"/costs?{query}").text
    assert "S-000002" in page
    assert not any(secret in page for secret in (OF_BEN, "secret:model", "S-000003", "of ben", "of other users"))
    assert "All users" not in page and "everybody" not in page


def test_an_auditor_is_told_of_others_and_sees_them_only_when_asked(auditor: Visitor) -> None:
    page = auditor.get(f"/costs?{WEEK}").text
    assert "4 runs of other users are not counted" in words(page) and OF_BEN not in page
    assert OF_BEN in auditor.get(f"/costs?{WEEK}&all").text


def test_a_hostile_name_is_text(ana: Visitor) -> None:
    page = ana.get(f"/costs?{WEEK}").text
    assert "<script>alert" not in page and "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("days=31", "days: '31' is not one of 7, 30, 90"),
        ("days=<b>", "days: '<b>' is not one of"),
        ("by=user", "by: 'user' is not one of role and model"),
        ("by=user&all", "by: 'user' is not one of role and model"),
        ("from=yesterday", "from: 'yesterday' is not a date"),
        ("to=2026-02-30", "to: '2026-02-30' is not a date"),
        ("from=1969-12-31", "from: '1969-12-31' is not a date from 1970 on"),
        ("from=2026-01-02&to=2026-01-01", "from: it is later than the last day, or than today"),
        ("from=9999-01-01", "from: it is later than the last day, or than today"),
        ("from=%00&to=%ff", "is not a date"),
    ],
)
def test_a_value_that_cannot_be_understood_is_named(ana: Visitor, query: str, said: str) -> None:
    answer = ana.get(f"/costs?{query}")
    assert answer.status_code == 400
    assert said in unescape(answer.text) and "<b>'" not in answer.text
    assert "Today's budgets" in unescape(answer.text)


@pytest.mark.parametrize("query", ["from=1970-01-01", "from=1970-01-01&to=9999-12-31", "to=1970-01-01"])
def test_the_longest_times_are_answered(ana: Visitor, query: str) -> None:
    assert ana.get(f"/costs?{query}").status_code == 200


def test_rows_lead_to_what_they_count(auditor: Visitor) -> None:
    page = unescape(auditor.get(f"/costs?{WEEK}&all").text)
    assert f'href="/subagents?role={OF_BEN}&all="' in page
    assert 'href="/events?user=ben&type=complete&all="' in page
    assert "S-000003 timeout" in auditor.get("/events?user=ben&type=complete&all=").text
    day = re.search(r'href="(/events\?type=cost&since=2025-12-30[^"]*)"', page)
    assert day is not None
    entries = auditor.get(day[1]).text
    assert "S-000003" in entries and "S-000002" not in entries


def test_the_page_stays_light(ana: Visitor) -> None:
    page = ana.get(f"/costs?{WEEK}")
    files = re.findall(r'"(/static/[^"]+)"', page.text)
    assert len(page.content) + sum(len(ana.get(file).content) for file in files) <= 150_000


def test_a_replaced_proposal_is_no_ending_of_a_run(team: There) -> None:
    first = team.host.propose(task="Count them", task_id="count")
    second = team.host.propose(task="Count them all", task_id="count")
    assert team.state(first) == "superseded"
    visitor = team.with_token(token(team.root, "ana", "read", "approve", name="counts"))
    visitor.decide(second["pending_id"], "approve")
    team.host.ended(second["subagent_id"])
    endings = tables(visitor.get("/costs?days=7").text)["by-ending"]
    assert "success" in endings and "replaced" not in endings and "superseded" not in endings


def test_no_word_of_a_program_is_in_the_tables(auditor: Visitor) -> None:
    endings = tables(auditor.get(f"/costs?{WEEK}&all").text)["by-ending"]
    assert set(endings) == {"success", "error", "timeout"}


def test_without_costs_the_page_says_so(team: There) -> None:
    page = team.with_token(token(team.root, "erin", "read", name="erin")).get("/costs").text
    assert "Nothing was spent, and nothing ended." in page and "<svg" not in page


def test_a_run_is_counted_when_it_has_ended(team: There) -> None:
    visitor = team.with_token(token(team.root, "ana", "read", "approve", name="decides"))
    proposed = team.host.propose()
    visitor.decide(proposed["pending_id"], "approve")
    team.host.ended(proposed["subagent_id"])
    done = ava(team.root, "report", "--json", env={"LOGNAME": "ana"})
    cost = json.loads(done.stdout)["total"]["cost_cents"]
    assert cost > 0
    page = visitor.get("/costs?days=7").text
    assert facts(page)["Spent"] == usd(cost)
    shown = words(page)
    held = r"(\$[\d.]+ reserved for work in progress, )?"
    assert re.search(rf"{re.escape(usd(cost))} of \$[\d,.]+ spent, {held}\$[\d,.]+ left", shown)
    assert facts(page)["Today"] == usd(cost) and "Last 7 days" not in facts(page), "it is what was spent"
    month = facts(visitor.get("/costs").text)
    assert month["Last 7 days"] == month["Today"] == usd(cost)
    past = facts(visitor.get(f"/costs?{WEEK}").text)
    assert not {"Last 7 days", "Today"} & past.keys(), "the time ended long ago"


def decisions(page: str) -> list[list[str]]:
    """The cells of each row of the table of approvals."""
    rows = re.findall(r"<tr>(<th scope=\"row\">.*?)</tr>", page, re.DOTALL)
    cells = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows)
    return [[" ".join(words(cell).split()) for cell in row] for row in cells]


@pytest.mark.parametrize("everybody", [False, True])
def test_the_page_of_approvals_has_what_the_report_has(
    team: There, ana: Visitor, auditor: Visitor, everybody: bool
) -> None:
    page = (auditor if everybody else ana).get(f"/costs/approvals?{WEEK}{'&all' if everybody else ''}").text
    span = ("--since", "2025-12-28T00:00Z", "--until", "2026-01-04T00:00Z")
    done = ava(team.root, "report", "approvals", "--json", *span, *(["--all"] if everybody else ["--user", "ana"]))
    expected = json.loads(done.stdout)
    assert f"The approved runs have cost ${expected['total']['cost_cents'] / 100:.2f} so far" in words(page)
    rows = decisions(page)
    assert len(rows) == len(expected["decisions"]) == (4 if everybody else 3)
    for row, one in zip(rows, expected["decisions"], strict=True):
        assert row[1].startswith(f"{one['decision']} {one['decided_by']['user']}: {one['decided_by']['how']}")
        assert one["subagent_id"] in row[2] and row[3:6] == [one["cap"], usd(one["cost_cents"]), one["ending"] or "–"]
        assert one["digest"][:12] == row[6]
    assert "<script>alert" not in page and "\u202e" not in page


@pytest.mark.parametrize("query", [WEEK, f"{WEEK}&all", f"{WEEK}&user=ben", f"{WEEK}&user=ben&all"])
def test_a_user_sees_no_approvals_of_others(ana: Visitor, auditor: Visitor, query: str) -> None:
    page = ana.get(f"/costs/approvals?{query}").text
    assert "S-000002" in page and not any(secret in page for secret in (OF_BEN, "S-000003", "Of all users"))
    assert ("S-000003" in auditor.get(f"/costs/approvals?{query}").text) == (query != WEEK)


def test_the_page_of_approvals_is_read_page_by_page(ana: Visitor) -> None:
    seen = [row[2] for row in decisions(ana.get(f"/costs/approvals?{WEEK}").text)]
    page = ana.get(f"/costs/approvals?{WEEK}&before={(START_S + 5 * DAY_S) * 1_000_000}.0").text
    assert [row[2] for row in decisions(page)] == seen[1:] and "Newest decisions" in page
    assert ana.get(f"/costs/approvals?{WEEK}&before=x").status_code == 200
    assert re.findall(r'<a href="([^"]+)" aria-current="(true)"', page) == [("/costs", "true")], "the page above it"
    columns = re.findall(r'<th scope="col">(Cap|Cost|Ending|Digest)</th>', page)
    first = re.findall(r'<td data-head="(.+?)">', page.split("<tbody>")[1].split("</tr>")[0])
    assert first == columns, "a telephone has no row of heads: each figure names its own"
    assert ana.get("/costs/approvals?from=never").status_code == 400


async def write_runs(store: Store, past: Past) -> None:
    await past.write_run(store, BookedLife("S-000001", user="ana"), START_S + 3_600, costs=(3_000, 4_001))
    late = BookedLife("S-000002", user="ana", role="coder", model="openai:gpt-5")
    await past.at(store, START_S + DAY_S - 10, *late.beginning(), partial(late.call, 1))
    await past.at(store, START_S + DAY_S + 5, partial(late.payment, 20_000), partial(late.call, 2))
    await past.at(store, START_S + DAY_S + 6, partial(late.payment, 60_500))
    await past.at(store, START_S + DAY_S + 7, late.entry(ErrorOccurred(error="no answer", kind="lost")))
    await past.at(store, START_S + DAY_S + 8, *late.final_events("error", f"it is {HOSTILE} down", "api"))
    own = BookedLife("S-000003", user="ben", role=OF_BEN, model="secret:model")
    await past.write_run(store, own, START_S + 2 * DAY_S, costs=(70_000,), ending="timeout", reason="of ben")
    again = BookedLife("S-000004", user="ana", role=HOSTILE)
    await past.at(store, START_S + 5 * DAY_S, *again.beginning(), partial(again.call, 1))
    await past.at(store, START_S + 5 * DAY_S + 1, again.payment(50_000, settlement="unknown"))
    await past.at(store, START_S + 5 * DAY_S + 2, partial(again.call, 1, 2))
    await past.at(store, START_S + 5 * DAY_S + 3, again.payment(9_000, attempt=2, cost_by={"retries": 9_000}))
    await past.at(store, START_S + 5 * DAY_S + 4, *again.final_events("success", "done"))


def tables(page: str) -> dict[str, dict[str, list[str]]]:
    """The tables of a page: for each heading, the cells of each row by its first one."""
    found: dict[str, dict[str, list[str]]] = {}
    for section in re.findall(r"<section aria-labelledby=\"([\w-]+)\">(.*?)</section>", page, re.DOTALL):
        rows = re.findall(r"<tr>\s*<th scope=\"row\"[^>]*>(.*?)</th>(.*?)</tr>", section[1], re.DOTALL)
        found[section[0]] = {
            words(first): [words(cell) for cell in re.findall(r"<td>(.*?)</td>", rest)] for first, rest in rows
        }
    return found


def words(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html)).strip()


def facts(page: str) -> dict[str, str]:
    return {words(name): words(value) for name, value in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page)}


def usd(cents: float) -> str:
    return format_usd(micros_from_cents(cents))


def count(number: int) -> str:
    return str(number) if number else "–"


def reported(root: Path, user: str, *args: str) -> dict[str, Any]:
    done = ava(root, "report", "--since", "2025-12-28", "--until", "2026-01-04", "--json", *args, env={"LOGNAME": user})
    assert (done.returncode, done.stderr) == (0, "")
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown

"""The log as pages: search, one entry, and what each visitor may see of it."""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import partial
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest
from support.http_server import token
from support.log import run_who, write
from support.logs.past import DAY_S, BookedLife, Past, write_past
from support.pages.browser import There, Visitor, open_team
from support.pages.lab_pages import serve_lab_pages
from support.runtime import PRICED, open_lab

from ava_audit.events import CostUpdate, ErrorOccurred, Event, Fact, ToolCall, ToolResult, UserMessage
from ava_audit.store.store import Store
from ava_server.web.log_pages import AT_ONCE, typed_filters

START_S = 20_450 * DAY_S
"""2025-12-28."""
HOSTILE = "<img src=x onerror=alert(1)>\u202e\u200b"
LONG = "word " * 2_000


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_team(
        tmp_path_factory.mktemp("team") / "data",
        "retention_days = 3650",
        past=lambda root: write_past(root, write_runs),
    ) as there:
        yield there


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("q=zebra", ["Error lost: zebra <img src=x onerror=alert(1)>"]),
        ("q=giraffe+%22very+end%22", ["Message to the subagent giraffe"]),
        ("q=zebra+giraffe", []),
        ("q=%22%22", []),
        ("type=tool", ["Tool call web_search query=trains"]),
        ("type=ToolCall&q=trains", ["Tool call web_search query=trains"]),
        ("level=error", ["Error lost"]),
        ("run=S-0000a2&type=message", ["Message to the subagent giraffe", "Task Look it up"]),
        ("agent=critic&type=message", ["Message to the subagent giraffe", "Task Look it up"]),
        ("agent=S-0000a1&type=message", ["Task Look it up"]),
        ("agent=ava&type=SpawnDecided&until=2025-12-29", ["Decision P-0000a100 approved by the host"]),
        ("since=2025-12-29T00:00Z&until=2025-12-29T00:00:01Z&type=message", ["Task Look it up"]),
        ("type=cost&run=S-0000a1", ["Model call turn 1: 300 tokens, $0.003", "Money reserved turn 1 attempt 1"]),
    ],
)
def test_each_field_narrows_the_list(ana: Visitor, query: str, expected: list[str]) -> None:
    lines = found(ana, query)
    assert len(lines) == len(expected), lines
    for line, part in zip(lines, expected, strict=True):
        assert part in line


def test_bookkeeping_is_shown_only_when_asked_for(ana: Visitor) -> None:
    plain, whole = found(ana, "run=S-0000a1"), found(ana, "run=S-0000a1&bookkeeping=1")
    assert not any("Taken by a server" in line or "Money reserved" in line for line in plain)
    assert any("Taken by a server" in line for line in whole) and any("Money reserved" in line for line in whole)
    assert [line for line in whole if line in plain] == plain


def test_what_a_turn_has_done_is_listed_inside_its_model_call(team: There, ana: Visitor) -> None:
    async def turns(root: Path) -> None:
        async with Store.open(root) as store:
            who = run_who("S-0000a1", "ana")
            spent = CostUpdate(turn=7, attempt=1, settlement="billed", tokens=9, cost_cents=1, reserved_micros=9)
            facts = (
                spent,
                ToolCall(tool="heron", call_id="h"),
                ToolResult(tool="heron", call_id="h", success=True, output="one"),
            )
            await write(store, *(Event(who, fact, run_id=who.agent_id) for fact in (*facts, UserMessage(text="heron"))))

    team.portal.call(turns, team.root)
    page = ana.get("/events?run=S-0000a1").text
    newest, turn = page.partition('<ol class="entries"')[2].split("\n<li>")[1:3]
    assert "Message" in newest and "Model call" in turn
    inside = page.partition("Model call")[2].partition("<ol>")[2].partition("</ol>")[0]
    assert ["Tool call" in inside, "Result of a tool" in inside] == [True, True]
    assert inside.index("Tool call") < inside.index("Result of a tool"), "in the order of the turn"
    assert inside.count("<time") == 0 and page.count('<span class="type">Tool call') == 2, "each entry once"


def test_a_call_and_its_result_are_together_with_the_time_between(team: There, ana: Visitor) -> None:
    async def calls(root: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            past = Past(patch)
            async with Store.open(root) as store:
                who = run_who("S-0000a2", "ana")

                def event(fact: Fact) -> Event:
                    return Event(who, fact, run_id=who.agent_id)

                began = START_S + DAY_S + 100
                await past.at(store, began, event(ToolCall(tool="ibis", call_id="one", args={"n": 1})))
                await past.at(store, began + 1, event(ToolCall(tool="ibis", call_id="two", args={"n": 2})))
                await past.at(store, began + 3, event(ToolResult(tool="ibis", call_id="two", success=True, output="b")))
                await past.at(store, began + 7, event(ToolResult(tool="ibis", call_id="one", success=True, output="a")))

    team.portal.call(calls, team.root)
    page = ana.get("/events?q=ibis").text
    assert listed(page) == [
        "Tool call ibis n=2",
        "Result of a tool 2 s ibis (success) b",
        "Tool call ibis n=1",
        "Result of a tool 7 s ibis (success) a",
    ]
    assert page.count('<ol class="pair">') == 2
    assert re.findall(r'<i class="sign (\w+)" data-sign="(.)">', page) == [("tool", "→"), ("answer", "←")] * 2


async def test_calls_of_hosts_are_named_apart_from_those_of_runs(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        await lab.call("spawn_subagent", role="researcher", task="What does it cost?")
        page = (await browser.get("/events")).text
        lines = listed(page)
        assert "Task What does it cost?" in " | ".join(lines)
        for begins in ("Proposal, as shown Ava wants to start", "Call of Ava spawn_subagent", "Answer of Ava"):
            assert any(line.startswith(begins) for line in lines), (begins, lines)
        signs = dict(re.findall(r'<i class="sign (\w+)" data-sign="(.)">', page))
        assert signs["message"] == "»" and signs["begin"] == "▶" and "question" not in signs


@pytest.mark.parametrize(
    ("typed", "same"),
    [
        ("zebra type:error", "q=zebra&type=error"),
        ("TYPE:error zebra", "q=zebra&type=error"),
        ("role:critic type:message", "agent=critic&type=message"),
        ("run:S-0000a2 giraffe", "q=giraffe&run=S-0000a2"),
        ('giraffe "very end" since:2025-12-29', "q=giraffe+%22very+end%22&since=2025-12-29"),
        ('since:"2025-12-29 00:00" until:2025-12-30', "since=2025-12-29+00%3A00&until=2025-12-30"),
        ("level:error", "level=error"),
        ("zebra type:error", "q=type%3Aerror+zebra&type=ToolCall"),
    ],
)
def test_filters_can_be_typed_among_the_words(ana: Visitor, typed: str, same: str) -> None:
    lines = found(ana, f"q={quote(typed)}")
    assert lines == found(ana, same)


def test_what_is_typed_is_shown_in_its_fields(ana: Visitor) -> None:
    page = ana.get(f"/events?q={quote('zebra type:error run:S-0000a1')}").text
    assert 'name="q" value="zebra"' in page and 'name="run" value="S-0000a1"' in page
    assert '<option value="error" selected>' in page and '<details class="more" open>' in page


@pytest.mark.parametrize("typed", ['"type:error"', "http://type.example", "a:b:c", ":", "type:", '"', "type:error:x"])
def test_what_only_looks_like_a_filter_is_answered(ana: Visitor, typed: str) -> None:
    assert ana.get(f"/events?q={quote(typed)}").status_code in (200, 400)


@pytest.mark.parametrize("typed", ['"type:error"', "http://type.example", ":", "type:"])
def test_what_only_looks_like_a_filter_stays_words(typed: str) -> None:
    assert typed_filters(typed) == (typed, {})


def test_a_typed_filter_that_is_wrong_is_named(ana: Visitor) -> None:
    answer = ana.get("/events?q=type:tols")
    assert answer.status_code == 400 and "did you mean tool?" in unescape(answer.text)


def test_older_pages_neither_skip_nor_repeat_while_the_log_grows(team: There, ana: Visitor) -> None:
    team.portal.call(write_texts, team.root, "ana", [f"walrus {number}" for number in range(2 * AT_ONCE + 7)])
    seen: list[str] = []
    path, pages = "/events?q=walrus&since=1h", 0
    while path:
        page = ana.get(path).text
        seen += [line.partition("walrus ")[2] for line in listed(page)]
        team.portal.call(write_texts, team.root, "ana", ["walrus later"])
        pages += 1
        link = re.search(r'<a href="([^"]*)" rel="next">', page)
        path = unescape(link[1]) if link is not None else ""
        assert pages == 1 or "Newest entries" in page
    assert pages == 3
    assert seen == [str(number) for number in reversed(range(2 * AT_ONCE + 7))]


SECRETS = ("of ben", "S-0000b1", "role-of-ben")


@pytest.mark.parametrize(
    "query", ["", "all", "q=zebra&all", "level=error&all", "q=zebra", "agent=S-0000b1", "type=error"]
)
def test_a_user_sees_no_entry_of_others(ana: Visitor, query: str) -> None:
    answer = ana.get(f"/events?{query}")
    assert answer.status_code == 200
    assert not any(secret in line for line in listed(answer.text) for secret in SECRETS)
    assert "Of all users" not in answer.text


@pytest.mark.parametrize(
    "query", ["run=S-0000b1", "user=ben", "user=ben&all", "agent=role-of-ben", "agent=role-of-ben&all"]
)
def test_asking_for_others_by_name_is_refused_without_telling_whether_they_exist(ana: Visitor, query: str) -> None:
    answer, unknown = (
        ana.get(f"/events?{query}"),
        ana.get(f"/events?{query.replace('b1', 'ff').replace('ben', 'nobody')}"),
    )
    assert answer.status_code == unknown.status_code == 400
    assert not listed(answer.text)

    def said(page: str) -> str:
        problem = re.search(r'<p class="problem" role="alert">(.*?)</p>', page)
        assert problem is not None
        return problem[1].replace("b1", "ff").replace("ben", "nobody")

    assert said(answer.text) == said(unknown.text)


def test_an_auditor_sees_others_only_when_asked(auditor: Visitor) -> None:
    assert found(auditor, "q=zebra") == []
    assert len(found(auditor, "q=zebra&all")) == 2
    assert [line for line in found(auditor, "q=zebra&all&user=ben") if "ben" in line] == found(
        auditor, "q=zebra&all&user=ben"
    )
    assert len(found(auditor, "run=S-0000b1&q=zebra")) == 1


def test_an_entry_shows_its_whole_text_to_its_own_user(ana: Visitor, auditor: Visitor) -> None:
    page = ana.get("/events?q=giraffe").text
    (seq,) = numbers(page)
    assert "the very end" not in page and f'<a href="/events/{seq}">Entry {seq}</a>' in page
    entry = ana.get(f"/events/{seq}").text
    assert LONG + "the very end" in entry and 'href="/subagents/S-0000a2"' in entry
    (of_ben,) = numbers(auditor.get("/events?q=zebra&all&user=ben").text)
    assert "zebra of ben" in auditor.get(f"/events/{of_ben}").text
    refused, missing = ana.get(f"/events/{of_ben}"), ana.get("/events/999999")
    assert refused.status_code == missing.status_code == 404
    assert (
        f"There is no entry {of_ben} of yours" in refused.text and "There is no entry 999999 of yours" in missing.text
    )


@pytest.mark.parametrize("seq", ["0", "-1", "x", "1.5", "9" * 40, "%D9%A1", "1e3", "new"])
def test_an_address_of_no_entry_is_not_found(ana: Visitor, seq: str) -> None:
    assert ana.get(f"/events/{seq}").status_code == 404


def test_hostile_texts_are_text(ana: Visitor) -> None:
    page = ana.get("/events?q=zebra").text
    entry = ana.get(f"/events/{numbers(page)[0]}").text
    for shown in (page, entry):
        assert "<img" not in shown and "\u202e" not in shown and "\u200b" not in shown
        assert "&lt;img src=x onerror=alert(1)&gt;" in shown
    typed = ana.get("/events?q=" + quote('"><script>alert(1)</script>')).text
    assert "<script>alert" not in typed and "&lt;script&gt;alert(1)" in typed


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("type=tols", "type: no event type 'tols'; did you mean tool?"),
        ("level=loud", "level: 'loud' is not one of info, warning, error"),
        ("run=nobody", "run: there is no subagent 'nobody' of yours"),
        ("agent=nobody", "agent: 'nobody' is not ava"),
        ("since=soon", "since: 'soon' is not a time"),
        ("until=2026-02-30", "until: '2026-02-30' is not a time"),
        ("since=1h&until=2h", "until: '2h' is before since ('1h'); give a later time"),
        ("before=x", "before: 'x' is not a number of the log"),
        (f"before={'9' * 30}", "is not a number of the log"),
        ("upto=-1", "upto: '-1' is not a number of the log"),
        ("at=%D9%A1", "is not a number of the log"),
        (f"q={'a' * 1001}", "q: it is longer than 1,000 characters"),
    ],
)
def test_a_value_that_cannot_be_understood_is_named(ana: Visitor, query: str, said: str) -> None:
    answer = ana.get(f"/events?{query}&user=ana")
    assert answer.status_code == 400
    assert said in unescape(answer.text)
    assert '<form method="get" action="/events"' in answer.text


@pytest.mark.parametrize(
    "query", ["q=%00", "q=%ff%fe", "q=%ED%A0%80", "run=%00", "agent=%ff", "q=%22", "q=AND+OR+NOT+(*)"]
)
def test_odd_texts_are_answered(ana: Visitor, query: str) -> None:
    assert ana.get(f"/events?{query}").status_code in (200, 400)


def test_new_entries_are_counted_without_those_of_others(team: There, ana: Visitor) -> None:
    page = ana.get("/events?q=ostrich").text
    address = re.search(r'id="news" role="status" hx-get="([^"]*)"', page)
    assert address is not None and 'data-stream="/stream?after=' in page
    news = unescape(address[1])
    assert ana.get(news).text.strip() == ""
    team.portal.call(write_texts, team.root, "ben", ["ostrich of ben"])
    assert ana.get(news).text.strip() == ""
    team.portal.call(write_texts, team.root, "ana", ["ostrich"])
    assert "1 new entry" in ana.get(news).text
    team.portal.call(write_texts, team.root, "ana", ["ostrich"] * AT_ONCE)
    answer = ana.get(news).text
    assert f"more than {AT_ONCE} new entries" in answer and 'href="/events?q=ostrich"' in answer


@pytest.mark.parametrize("query", ["before=5", "until=2026-01-01", "type=tols"])
def test_only_the_newest_page_waits_for_new_entries(ana: Visitor, query: str) -> None:
    page = ana.get(f"/events?{query}").text
    assert 'id="news"' not in page and "data-stream" not in page


@pytest.mark.parametrize("after", ["", "x", "-1"])
def test_news_after_no_entry_is_refused(ana: Visitor, after: str) -> None:
    assert ana.get(f"/events/news?after={after}").status_code == 400


def test_somebody_without_the_right_to_read_sees_no_log(team: There) -> None:
    decides = team.with_token(token(team.root, "dora", "approve", name="decides"))
    for path in ("/events", "/events/1", "/events/news?after=0", "/costs", "/health"):
        assert decides.get(path).status_code == 404, path


async def write_runs(store: Store, past: Past) -> None:
    ana = BookedLife("S-0000a1", user="ana")
    await past.at(store, START_S, *ana.beginning())
    await past.at(store, START_S + 1, ana.entry(ToolCall(tool="web_search", call_id="c1", args={"query": "trains"})))
    await past.at(store, START_S + 2, ana.entry(ErrorOccurred(error=f"zebra {HOSTILE}", kind="lost")))
    await past.at(store, START_S + 3, partial(ana.call, 1))
    await past.at(store, START_S + 4, partial(ana.payment, 3_000))
    await past.at(store, START_S + 5, *ana.final_events("success", "done"))
    long = BookedLife("S-0000a2", user="ana", role="critic")
    await past.at(store, START_S + DAY_S, *long.beginning())
    await past.at(store, START_S + DAY_S + 1, long.entry(UserMessage(text=f"giraffe {LONG}the very end")))
    await past.at(store, START_S + DAY_S + 2, *long.final_events("success", "done"))
    ben = BookedLife("S-0000b1", user="ben", role="role-of-ben")
    await past.at(store, START_S + 2 * DAY_S, *ben.beginning())
    await past.at(store, START_S + 2 * DAY_S + 1, ben.entry(ErrorOccurred(error="zebra of ben", kind="lost")))
    await past.at(store, START_S + 2 * DAY_S + 2, *ben.final_events("error", "of ben", "api"))


async def write_texts(root: Path, user: str, texts: list[str]) -> None:
    async with Store.open(root) as store:
        who = run_who("S-0000a1" if user == "ana" else "S-0000b1", user)
        await write(store, *(Event(who, UserMessage(text=text), run_id=who.agent_id) for text in texts))


def listed(page: str) -> list[str]:
    """The lines of the list, without markup."""
    lines = re.findall(r'<summary>(<i class="sign.*?)</summary>', page, re.DOTALL)
    return [" ".join(unescape(re.sub(r"<[^>]*>", " ", line)).split()) for line in lines]


def numbers(page: str) -> list[int]:
    return [int(seq) for seq in re.findall(r'<details hx-get="/events/(\d+)"', page)]


def found(visitor: Visitor, query: str) -> list[str]:
    answer = visitor.get(f"/events?{query}")
    assert answer.status_code == 200, answer.text
    return listed(answer.text)

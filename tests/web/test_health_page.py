"""The page of the server's health: what is wrong and what to do, for whoever may know it."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from html import unescape
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from support.commands.dashboard import look, plain_lines
from support.commands.doctor import doctor
from support.log import write
from support.logs.past import BookedLife
from support.model_server import Fail, Say
from support.pages.browser import There, Visitor, open_pages, open_team
from support.pages.lab_pages import serve_lab_pages
from support.runs import plans
from support.runtime import PRICED, open_lab, submit

from ava_audit.events import ErrorOccurred
from ava_audit.store.store import Store
from ava_audit.units import DAY_US, HOUR_US, day_of, now_us
from ava_server.cli import status_overview
from ava_server.cli.status_page import Page
from ava_server.config.keys import set_key
from ava_server.core.data_root import DataRoot
from ava_server.service.checks.refused_keys import refused_keys

KEY = "sk-ant-api03-" + "k" * 80
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Generator[There]:
    with open_team(tmp_path_factory.mktemp("team") / "data", WRONG, past=write_errors) as there:
        set_key("anthropic", KEY, DataRoot(there.root).keys)
        yield there


def test_a_user_sees_their_own_state_and_nothing_of_the_machine_or_of_others(team: There, ana: Visitor) -> None:
    page = ana.get("/health").text
    assert version("ava-subagents") in page and "Running for" in page and "Sandbox" in page
    assert "failed for ana" in page and 'href="/subagents/S-0000a1"' in page and "$0.00" in page
    assert findings(page) == {}
    for secret in ("failed for ben", "S-0000b1", "everybody", "anthropic", "entries,", str(team.root), "/"):
        shown = re.sub(r"<[^>]*>", " ", page)
        assert secret not in shown, secret
    assert "<dt>ended in the last hour</dt><dd>1</dd>" in page


def test_an_auditor_sees_what_is_wrong_and_what_to_do_without_paths(team: There, auditor: Visitor) -> None:
    page = auditor.get("/health").text
    found = findings(page)
    state, text = found["budget"]
    assert state == "warning" and "only free models can run" in text and "→ Raise" in text
    state, text = found["search"]
    assert state == "warning" and "search.engine is kagi" in text and "→ ava key set kagi" in text
    assert found["disk space"][1].startswith("works") and "process" in found["processes"][1]
    assert "copies of the log" in found and any(name.startswith("model for ") for name in found)
    assert 'title="Tier: fast, balanced or deep' in page, "what the names of models' tiers are"
    assert "failed for ben" in page and "failed for ana" in page
    states = [state for state, _text in found.values()]
    assert states == sorted(states, key=("fault", "warning", "note", "ok").index)
    assert str(team.root) not in page and str(Path.home()) not in re.sub(r"<[^>]*>", " ", page)
    assert ">Data root<" not in page


def test_the_page_begins_with_what_is_wrong_and_what_works_is_one_line(auditor: Visitor) -> None:
    main = re.sub(r"</?abbr[^>]*>", "", auditor.get("/health").text.partition("<main")[2])
    first = main.index('<li class="warning"')
    assert 0 < first < main.index("Errors of the last day") < main.index("Version")
    folded = (
        r'<details><summary class="hanging"><span class="works">✓ (\d+) work:</span> (.*?)</summary>(.*?)</details>'
    )
    works = re.search(folded, main, re.DOTALL)
    assert works is not None
    assert works[3].count('<li class="ok"') == int(works[1]) == len(re.findall(r"<span>[^<]+</span>", works[2])) >= 5
    assert '<li class="ok"' not in main.replace(works[3], ""), "all that works is folded"
    assert "sandbox" in findings(main) and "confinement" not in main


def texts(page: str) -> str:
    """Return the text of a page."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page.partition("<main")[2])).split())


async def test_with_nothing_wrong_the_page_says_so_first_and_what_is_erased_next(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit()], config=PRICED) as lab, serve_lab_pages(lab, owned=True) as browser:
        run_id = await lab.start()
        await lab.ended(run_id)
        page = (await browser.get("/health")).text
        assert not [name for name, (state, _text) in findings(page).items() if state in ("fault", "warning")]
        shown = texts(page)
        assert 0 < shown.index("Everything works") < shown.index("Errors of the last day There were none.")
        assert f"{day_of((now_us() // DAY_US + 91) * DAY_US)} (UTC): 1 run that ended on" in shown


async def test_with_three_faults_they_stand_first_the_worst_before_the_others(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [], config=PRICED + WRONG, runs=False) as lab:
        lab.runtime.settings.data_root.chmod(0o777)
        async with serve_lab_pages(lab, owned=True) as browser:
            page = (await browser.get("/health")).text
    wrong = [(state, name) for name, (state, _text) in findings(page).items() if state in ("fault", "warning")]
    assert wrong[0] == ("fault", "data root") and {name for _state, name in wrong} == {"data root", "budget", "search"}
    assert all("→" in text for state, text in findings(page).values() if state in ("fault", "warning"))
    shown = texts(page)
    number = page.partition('id="checks"')[2].partition("</section>")[0].count('<span class="mark">')
    first = shown.index(f"3 of {number} checks need attention")
    assert first < shown.index("anyone may write to") < shown.index("only free models can run")
    assert shown.index("search.engine is kagi") < shown.index("Errors of the last day") < shown.index("What is erased")
    assert "Nothing is to be erased." in shown


async def test_one_error_of_several_runs_stands_once_with_their_number(tmp_path: Path) -> None:
    def refuse(request: dict[str, Any]) -> Fail:
        why = "no such model" if "Look at 6." in json.dumps(request) else "this key was revoked"
        return Fail(401, {"error": {"message": why}})

    steps = [plans.step(f"look{number}", f"Look at {number}.") for number in range(7)]
    async with open_lab(tmp_path, refuse, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        plan = await plans.finish(lab, steps, state="error")
        page = (await browser.get("/health")).text
        rows = await plans.rows(lab, plan.id)
    errors = page.partition('id="errors"')[2].partition("</section>")[0]
    assert errors.count("this key was revoked") == 1 and "Error, 6 times in 6 runs" in errors
    assert errors.count("no such model") == 1, "another error with the same beginning is another one"
    assert sum(f'/subagents/{row.id}"' in errors for row in rows) == 4 and "and 3 more" in errors


def test_what_retention_erases_next_is_shown_to_whose_it_is(ana: Visitor, auditor: Visitor) -> None:
    def shown(page: str) -> str:
        section = page.partition('<h2 id="kept"')[2].partition("</section>")[0]
        return " ".join(re.sub(r"<[^>]*>", " ", section).split())

    today = now_us() // DAY_US
    ended, erased = day_of(today * DAY_US), day_of((today + 91) * DAY_US)
    assert "90 days after its end" in shown(ana.get("/health").text)
    assert f"{erased} (UTC): 1 run that ended on {ended}" in shown(ana.get("/health").text)
    assert f"{erased} (UTC): 2 runs that ended on {ended}" in shown(auditor.get("/health").text)


async def test_a_provider_that_refused_its_key_is_what_is_wrong_first(tmp_path: Path) -> None:
    def script(request: dict[str, Any]) -> Fail | Say:
        said = str([each for each in request["messages"] if each["role"] == "user"])
        return Fail(401, {"error": {"message": "invalid api key"}}) if "refused" in said else submit()

    async with open_lab(tmp_path, script, config=PRICED) as lab, serve_lab_pages(lab, owned=True) as browser:
        failed = await lab.start(task="refused")
        await lab.ended(failed)
        page = (await browser.get("/health")).text
        shown = texts(page)
        assert "Everything works" not in shown and "check needs attention" not in shown
        (first, (state, text)), *others = findings(page).items()
        assert (first, state) == ("provider custom", "fault"), first
        assert (
            failed in text and "refused a call without a key" in text and "→ Store a valid key with ava key set" in text
        )
        assert [state for name, (state, _text) in others if name == "keys"] == ["note"]
        section = page.partition('<h2 id="errors"')[2].partition("</section>")[0]
        assert section.count("<li") == 1 and "invalid api key" in section, "its ending is the same failure"
        await lab.ended(await lab.start(task="answered"))
        state, text = findings((await browser.get("/health")).text)["provider custom"]
        assert state == "warning" and "It has answered other calls since." in text


async def test_each_surface_says_first_that_a_provider_refused_its_key(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [Fail(401, {"error": {"message": "invalid api key"}})], config=PRICED) as lab:
        failed = await lab.start(task="refused")
        await lab.ended(failed)
        [expected] = await lab.store.read(lambda view: refused_keys(view, now_us()))
        assert await lab.store.read(lambda view: refused_keys(view, now_us() + 2 * HOUR_US)) == []
        overview = await look(lab)
        first, *others = status_overview.health(overview, lab.runtime.settings, None)
        page = Page("x", overview.now, (first, *others), 80)
        env = {"AVA_MODEL_BASE_URL": lab.server.base_url, "AVA_MODEL": "test"}
        named = await anyio.to_thread.run_sync(lambda: doctor(lab.runtime.settings.paths.path, **env))
    assert (first.name, first.state, first.what_to_do) == ("provider custom", "fault", expected.what_to_do)
    assert failed in first.text and first.name not in [one.name for one in others]
    assert plain_lines(list(page.health_lines(short=True)))[0].startswith("Health: fault · custom refused its key")
    told = next(iter(named.items()))
    assert told[0] == "provider custom" and told[1]["state"] == "fault" and failed in told[1]["text"]
    assert told[1]["what_to_do"] == expected.what_to_do and named["keys"]["state"] == "note"


def test_keys_are_named_and_never_shown(team: There, auditor: Visitor, ana: Visitor) -> None:
    page = auditor.get("/health").text
    assert "anthropic" in findings(page)["keys"][1]
    for visitor in (auditor, ana):
        assert KEY[:20] not in visitor.get("/health").text


def test_hostile_errors_are_text(ana: Visitor) -> None:
    page = ana.get("/health").text
    assert "<img" not in page and "\u202e" not in page and "&lt;img src=x onerror=alert(1)&gt;" in page


@pytest.mark.slow
def test_the_user_of_this_machine_sees_where_the_data_is(tmp_path: Path) -> None:
    with open_pages(tmp_path / "data", "enabled = false") as here:
        page = here.signed_in().get("/health").text
        assert str(here.root) in findings(page)["data root"][1]
        switched = [
            text for state, text in re.findall(r'<li class="(warning)"><b>settings</b>(.*?)</li>', page, re.DOTALL)
        ]
        assert len(switched) == 1 and "subagents are switched off" in switched[0] and "enabled = true" in switched[0]


WRONG = """
[limits]
user_daily_cents = 0
[search]
engine = "kagi"
"""


async def write_errors(root: Path) -> None:
    async with Store.open(root) as store:
        for user, run_id in (("ana", "S-0000a1"), ("ben", "S-0000b1")):
            life = BookedLife(run_id, user=user)
            await write(store, *life.beginning())
            await write(store, life.entry(ErrorOccurred(error=f"failed for {user} {HOSTILE}", kind="lost")))
            await write(store, *life.final_events("error", "it is down", "api"))


def findings(page: str) -> dict[str, tuple[str, str]]:
    """The state and the words of each finding, by its name."""
    found = re.findall(r'<li class="(\w+)"><b>(.*?)</b>(.*?)</li>', page, re.DOTALL)
    return {_words(name): (state, _words(text)) for state, name, text in found}


def _words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())

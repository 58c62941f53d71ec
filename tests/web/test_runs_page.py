"""The page of one run, over HTTP and from a real log: what it shows, and to whom."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.model_server import Fail, Gate, Say
from support.pages.lab_pages import Browser, serve_lab_pages
from support.repositories.coding import RIGHT, coder_task, make_calls, project
from support.runs import plans
from support.runtime import PRICED, Lab, open_lab, submit
from support.sandboxes.attacks import needs_confinement

from ava_audit.events import AssistantMessage, Event, ToolCall, ToolResult, Who
from ava_audit.retention import erase_run
from ava_server.core.ids import AGENT
from ava_server.render.plan_view import StepView
from ava_server.web.timeline import PAGE_ROWS

QUOTE = "The licence costs 12 euros a month"
FINDINGS = [
    {"claim": "It costs 12 euros", "quote": QUOTE, "source_name": "prices.md"},
    {"claim": "It is free", "quote": "Everything is free for everybody", "source_url": "https://example.org/free"},
]
RTL = "\u202e"
EVIL = f'<script>alert(1)</script><img src=x onerror=alert(2)>"><b>{RTL}evil'


def reads(**result: Any) -> list[Say]:
    return [
        Say("I look.", calls=[("read_file", {"path": "prices.md"}), ("read_file", {"path": "missing.md"})]),
        submit(**result),
    ]


async def ended(lab: Lab, **more: Any) -> str:
    (lab.workspace / "prices.md").write_text(f"{QUOTE} for each seat.\n")
    run_id = await lab.start(**more)
    await lab.ended(run_id)
    return run_id


async def shown(browser: Browser, path: str) -> str:
    page = await browser.get(path)
    assert page.status_code == 200, page.text
    return page.text


async def test_an_ended_run_shows_what_was_asked_who_approved_and_what_came_of_it(tmp_path: Path) -> None:
    result = {
        "output": "See `a.py` and **this**",
        "summary": "12 euros",
        "findings": FINDINGS,
        "caveats": ["Old list."],
    }
    async with open_lab(tmp_path, reads(**result), config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await ended(lab, context="in euros", name="prices")
        page = await shown(browser, f"/subagents/{run_id}")
        for text in (
            "What does it cost?",
            "in euros",
            "Ava wants to start a researcher",
            "Approved by the host&#39;s call or a script&#39;s --yes",
            "<code>a.py</code> and <strong>this</strong>",
            "quote found word for word",
            "quote NOT found",
            "Quotes found in what it read: 1 of 2, 1 NOT found ✗",
            "Old list.",
        ):
            assert text in page, text
        assert '<a href="https://example.org/free" rel="noopener noreferrer nofollow"' in page
        assert "hx-get" not in page.partition('id="live"')[2].partition("</div>")[0], "nothing more happens"
        costs = await shown(browser, f"/subagents/{run_id}/costs")
        assert "Tool outputs that cost most" in costs and "read_file" in costs


async def test_the_timeline_shows_calls_results_failures_and_money(tmp_path: Path) -> None:
    async with open_lab(tmp_path, reads(), config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await ended(lab)
        timeline = (await shown(browser, f"/subagents/{run_id}")).partition('class="timeline"')[2]
        parts = re.split(r'<li class="([\w ]+)">', timeline)
        rows = [*zip(parts[1::2], parts[2::2], strict=True)]
        kinds = [kind for kind, _row in rows]
        assert kinds[:4] == ["fold", "ask", "step", "say"] and kinds.count("step") == 2 and kinds[-1] == "end"
        [failed] = [row for kind, row in rows if kind == "call failed"]
        assert "<b" in failed and "→ failed" in failed and "missing.md does not exist" in failed
        [call] = [row for kind, row in rows if kind == "call" and "path: prices.md" in row]
        assert "<details><summary>" in call and "→ returned" in call, "a call and its result are one row"
        turn = timeline.partition('<li class="step">')[2].partition('<li class="step">')[0]
        assert turn.count("<ol>") == 1 and "prices.md" in turn.partition("<ol>")[2].partition("</ol>")[0]
        assert "<time datetime=" in turn.partition("<ol>")[0], "a turn has its time"
        run = await lab.run(run_id)
        last_step = [row for kind, row in rows if kind == "step"][-1]
        assert f'value="{run.cost_micros}"' in last_step and 'max="500000"' in last_step
        newest = (await shown(browser, f"/subagents/{run_id}?order=newest")).partition('class="timeline"')[2]
        assert re.findall(r'<li class="([\w ]+)">', newest)[0] == "end"


async def test_a_cap_is_shown_unrounded_as_it_was_approved(tmp_path: Path) -> None:
    async with open_lab(tmp_path, reads(), config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await ended(lab, max_cost_cents=32.55)
        assert "of $0.3255" in await shown(browser, f"/subagents/{run_id}")


async def test_two_runs_are_shown_beside_each_other_to_who_may_see_both(tmp_path: Path) -> None:
    script = [submit("12 **euros**", summary="dear"), submit("9 <b>euros</b>", summary="cheap")]
    async with open_lab(tmp_path, script, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        first, second = await ended(lab, name="first"), await ended(lab, task="Another?")
        page = await shown(browser, f"/compare?a={first}&b={second}")
        for text in (
            first,
            second,
            "What does it cost?",
            "Another?",
            "<strong>euros</strong>",
            "&lt;b&gt;euros",
            "dear",
        ):
            assert text in page, text
        page = re.sub(r"</?abbr[^>]*>", "", page)
        assert page.count('class="state good success" data-sign="✓"') == 2, "a state has its sign here too"
        for label in ("State", "Cost", "Active time", "Turns", "Tool calls", "Tools called"):
            row = page.partition(f'<th scope="row">{label}</th>')[2].partition("</tr>")[0]
            assert row.count("<td") == 2, label
        theirs = await lab.call_as("eve", "spawn_subagent", role="researcher", task="Eve's own task")
        for other in (theirs.subagent_id, "S-000000", ""):
            answer = await browser.get(f"/compare?a={first}&b={other}")
            assert answer.status_code == 404 and "Eve" not in answer.text, other


async def test_hostile_texts_are_only_text(tmp_path: Path) -> None:
    link = "[safe](javascript:alert(1)) [here](https://example.org/) ![pixel](https://track.example/x.png)"
    script = [
        Say(EVIL, calls=[("read_file", {"path": EVIL}), (f"no_tool{EVIL[:20]}", {"a": EVIL})]),
        submit(f"{EVIL}\n\n{link}", summary=EVIL, caveats=[EVIL],
                findings=[{"claim": EVIL, "quote": EVIL, "source_url": "javascript:alert(3)"}]),
    ]  # fmt: skip
    async with open_lab(tmp_path, script, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await ended(lab, task=EVIL, context=EVIL, name="x<b>y")
        for path in (
            f"/subagents/{run_id}",
            f"/subagents/{run_id}?order=newest",
            "/subagents",
            f"/subagents/{run_id}/costs",
        ):
            answer = await browser.get(path)
            page = answer.text
            assert answer.status_code == 200
            assert "<script>alert" not in page and "<img" not in page and "<b>y" not in page and RTL not in page
            assert 'href="javascript' not in page and "track.example" not in re.sub(r"\(https://track[^)]*\)", "", page)
            assert not re.search(r"<[^>]*\s(?:on\w+|style)=", page), "no inline handler and no inline style"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert '<a href="https://example.org/" rel="noopener noreferrer nofollow">here</a>' in page or path.endswith(
            "costs"
        )


ROUTES = (
    "",
    "/head",
    "/decide",
    "/result",
    "/timeline",
    "/timeline?newer",
    "/costs",
    "/diff",
    "/files/a.csv",
    "/entries/3",
)


async def test_runs_of_other_users_do_not_exist(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit()], config=PRICED) as lab, serve_lab_pages(lab) as browser:
        theirs = await lab.call_as("eve", "spawn_subagent", role="researcher", task="Eve's own task")
        run_id = theirs.subagent_id
        for route in ROUTES:
            for part in (False, True):
                answer = await browser.get(f"/subagents/{run_id}{route}", part=part)
                assert answer.status_code == 404 and "Eve" not in answer.text, route
        own = await lab.propose()
        form = {"csrf": (await browser.get("/")).text.partition('name="csrf" value="')[2].partition('"')[0]}
        for action in ("message", "cancel", "resume", "extension"):
            answer = await browser.post(f"/subagents/{run_id}/{action}", {**form, "message": "x", "line": "x"})
            assert answer.status_code in (400, 404, 409), (action, answer.status_code)
            assert "is known" in answer.text or "no subagent" in answer.text, answer.text
        page = await shown(browser, "/subagents?all=1")
        assert own.subagent_id in page and run_id not in page


async def test_the_owner_of_the_data_root_sees_the_runs_of_all(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit()], config=PRICED) as lab, serve_lab_pages(lab, owned=True) as browser:
        theirs = await lab.call_as("eve", "spawn_subagent", role="researcher", task="Eve's own task")
        assert theirs.subagent_id not in await shown(browser, "/subagents")
        assert "of eve" in await shown(browser, f"/subagents/{theirs.subagent_id}")
        assert theirs.subagent_id in await shown(browser, "/subagents?all=1&text=own")


async def test_erased_content_says_so_and_figures_stay(tmp_path: Path) -> None:
    async with open_lab(tmp_path, reads(), config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await ended(lab, context="a private matter")
        await erase_run(lab.store, run_id, (), lab.session.who, "asked for")
        page = await shown(browser, f"/subagents/{run_id}")
        assert page.count("The content was erased") >= 5 and "private matter" not in page and QUOTE not in page
        assert "Turn 2" in page and "The tool outputs are gone" in await shown(browser, f"/subagents/{run_id}/costs")


async def test_a_configuration_of_a_newer_ava_leaves_the_rest_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_lab(tmp_path, reads(), config=PRICED, check=False) as lab, serve_lab_pages(lab) as browser:
        run_id = await ended(lab)

        def unreadable(_stored: str) -> None:
            raise ValueError("an unknown field")

        for module in ("web.run_page", "render.run_view", "runs.record.costs"):
            monkeypatch.setattr(f"ava_server.{module}.config_of", unreadable)
        page = await shown(browser, f"/subagents/{run_id}")
        assert "A newer Ava has proposed it" in page and "Turn 2" in page and "all is said" in page
        assert (await browser.get(f"/subagents/{run_id}/costs")).status_code == 409


async def test_files_are_shown_as_text_and_saved_unchanged_only(tmp_path: Path) -> None:
    saved = Say(calls=[("save_artifact", {"name": "prices.html", "content": "<script>alert(1)</script>"})])
    async with open_lab(tmp_path, [saved, submit()], config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await ended(lab)
        assert f"/subagents/{run_id}/files/prices.html" in await shown(browser, f"/subagents/{run_id}")
        text = await shown(browser, f"/subagents/{run_id}/files/prices.html")
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text and "<script>alert" not in text
        file = await browser.get(f"/subagents/{run_id}/files/prices.html?download")
        assert file.text == "<script>alert(1)</script>" and file.headers["content-type"] == "application/octet-stream"
        assert file.headers["content-disposition"].startswith("attachment; filename*=UTF-8''prices.html")
        assert file.headers["x-content-type-options"] == "nosniff"
        for name in ("other.csv", "..%2f..%2fconfig.toml", "%2e%2e"):
            assert (await browser.get(f"/subagents/{run_id}/files/{name}")).status_code == 404
        (lab.root / "artifacts" / run_id / "prices.html").write_text("changed")
        changed = await browser.get(f"/subagents/{run_id}/files/prices.html?download")
        assert changed.status_code == 409 and "was changed after its delivery" in changed.text


async def test_the_result_of_an_ended_run_comes_before_who_approved_it_and_what_it_did(tmp_path: Path) -> None:
    async with open_lab(tmp_path, reads(summary="twelve euros"), config=PRICED) as lab, serve_lab_pages(lab) as browser:
        page = await shown(browser, f"/subagents/{await ended(lab)}")
        main = page.partition("<main")[2]
        result, asked, timeline = (
            main.index(f"<h2>{word}" if word == "Result" else f'id="{word}"')
            for word in ("Result", "asked", "timeline")
        )
        assert result < asked < timeline and main.index("twelve euros") < asked
        before = re.sub(r"<details.*?</details>", "", main[:result], flags=re.DOTALL)
        assert "Approved" not in before and "$" in before, "folded, but for what it cost"


NOTES = """# Notes

<script>alert(1)</script> [x](javascript:alert(2)) ![p](https://track.example/p.png)

| a | b |
|---|---|
| **1** | 2 |
"""
VALUES = 'name,cost\n"<img src=x onerror=alert(1)>",=1+1\n\u202eevil,2\n'


async def test_markdown_and_values_are_drawn_and_only_as_text(tmp_path: Path) -> None:
    saved = [
        Say(calls=[("save_artifact", {"name": name, "content": content})])
        for name, content in (("notes.md", NOTES), ("costs.csv", VALUES), ("broken.csv", 'a,b\n"never ends'))
    ]
    async with open_lab(tmp_path, [*saved, submit()], config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await ended(lab)
        notes = await shown(browser, f"/subagents/{run_id}/files/notes.md")
        assert "<strong>1</strong>" in notes and "<h3" in notes and "?plain" in notes
        values = await shown(browser, f"/subagents/{run_id}/files/costs.csv")
        assert '<th scope="col" dir="auto">name</th>' in values and '<td dir="auto">=1+1</td>' in values
        for page in (notes, values):
            assert "<script>alert" not in page and "<img" not in page and RTL not in page
            assert 'href="javascript' not in page
        plain = await shown(browser, f"/subagents/{run_id}/files/notes.md?plain")
        assert "| **1** | 2 |" in plain and '<a href="?">Drawn</a>' in plain
        broken = await shown(browser, f"/subagents/{run_id}/files/broken.csv")
        assert "never ends" in broken and "<table" not in broken, "what is no table is shown as it was written"
        file = await browser.get(f"/subagents/{run_id}/files/notes.md?download")
        assert file.text == NOTES


async def test_the_steps_of_a_plan_have_the_signs_of_states(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit()], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        steps = [
            {"id": "find", "role": "researcher", "task": "Find it"},
            {"id": "sum", "role": "researcher", "task": "Sum it up", "after": ["find"]},
        ]
        proposed = await lab.call("spawn_subagent", steps=steps)
        page = await shown(browser, f"/subagents/{proposed.group_id}")
        rows = re.findall(r'<span class="state (\w+)" data-sign="(.)">(\w+)</span> <b>(\w+)</b>', page)
        assert rows == [("queued", "…", "waiting", "find"), ("queued", "…", "waiting", "sum")]


async def test_the_steps_of_a_plan_have_their_times_on_an_axis_that_ends_now(tmp_path: Path) -> None:
    gate = Gate(within_s=60)

    def script(request: dict[str, Any]) -> Say:
        said = str([each for each in request["messages"] if each["role"] == "user"])
        return Say(gate=gate) if "Sum it up" in said else submit()

    async with open_lab(tmp_path, script, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        steps = [
            {"id": "find", "role": "researcher", "task": "Find it"},
            {"id": "sum", "role": "researcher", "task": "Sum it up", "after": ["find"]},
        ]
        proposed = await lab.call("spawn_subagent", steps=steps)
        await lab.approve(proposed)
        await anyio.to_thread.run_sync(gate.arrived.wait, 30)
        await anyio.sleep(1.2)
        page = await shown(browser, f"/subagents/{proposed.group_id}")
        log = (await browser.get("/events")).text
        gate.released.set()
        assert "&#34;sum&#34; begun" in log and re.search(r"<bdi>&#34;sum&#34; \(S-\w{6}\)</bdi></a>", log), (
            "named as no verb"
        )
        drawn = re.findall(r'viewBox="0 0 (\d+) 8".*?x="(\d+)" width="(\d+)".*?<small>(.*?)</small>', page)
        [(axis, at, wide, find), (same, later, longer, running)] = drawn[:2]
        assert axis == same and int(at) + int(wide) <= int(later) + int(axis) // 250 + 1, "one begins after the other"
        assert abs(int(later) + int(longer) - int(axis)) <= 2, "the bar of what runs ends now, where the axis ends"
        assert int(longer) > 1_000 and "ago" not in find + running, "both are durations"
        row = page.partition("<b>find</b>")[2].partition("</li>")[0]
        assert "success" not in row and "✓" not in row, "its state stands before its name already"


async def test_a_step_says_the_states_of_its_runs_only_where_they_say_more() -> None:
    step = StepView("find", "researcher", (), "done", 1, 0, {}, 0)
    assert not step.tells_more("success") and step.tells_more("awaiting_answer")
    assert replace(step, items=2).tells_more("success")
    assert replace(step, state="failed").tells_more("timeout")
    assert not replace(step, state="running").tells_more("running")
    assert replace(step, state="running").tells_more("queued")
    one = replace(step, state="running", run_ids=(("S-000001", "running"),))
    assert replace(one, runs={"running": 1}).line == 'Step "find": running, S-000001'
    assert replace(one, runs={"queued": 1}).line == 'Step "find": running, queued, S-000001'
    several = replace(step, state="running", items=3, runs={"done": 1, "running": 2})
    assert several.line == 'Step "find": running, 1 of 3 done, 2 running'


async def test_a_plan_that_is_partly_done_says_in_words_and_once_what_is_missing(tmp_path: Path) -> None:
    def script(request: dict[str, Any]) -> Say | Fail:
        said = str([each for each in request["messages"] if each["role"] == "user"])
        return Fail(401, {"error": {"message": "no"}}) if "Sum it up" in said else submit()

    async with open_lab(tmp_path, script, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        steps = [
            {"id": "find", "role": "researcher", "task": "Find it"},
            {"id": "total", "role": "researcher", "task": "Sum it up", "after": ["find"]},
        ]
        proposed = await lab.call("spawn_subagent", steps=steps)
        await lab.approve(proposed)
        assert (await lab.ended(proposed.group_id)).state == "partial"
        page = await shown(browser, f"/subagents/{proposed.group_id}")
        head = page.partition('id="live"')[2].partition("</div>")[0]
        assert "1 of 2 steps done" in head and "tool call" not in head, "a plan has no turns and no calls of its own"
        result = page.partition('<section id="result"')[2].partition("</section>")[0]
        assert unescape(result).count('incomplete: the step "total"') == 1 and "null" not in result


async def test_a_cancelled_run_says_once_that_its_cost_is_not_known(tmp_path: Path) -> None:
    gate = Gate(within_s=60)
    async with open_lab(tmp_path, [Say("", gate=gate)], config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await lab.start()
        await anyio.to_thread.run_sync(gate.arrived.wait, 30)
        await lab.call("cancel_subagent", subagent_id=run_id)
        await lab.ended(run_id)
        gate.released.set()
        result = (await shown(browser, f"/subagents/{run_id}")).partition('<section id="result"')[2]
        figures = result.partition('<dl class="figures">')[2].partition("</dl>")[0]
        assert figures.count("the most that it can be") == 1, figures


async def test_a_failed_run_says_once_what_it_lacks_and_what_to_do_in_a_box(tmp_path: Path) -> None:
    script = [Fail(401, {"error": {"message": "invalid api key"}})]
    async with open_lab(tmp_path, script, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await lab.start()
        await lab.ended(run_id)
        page = await shown(browser, f"/subagents/{run_id}")
        result = page.partition('<section id="result"')[2].partition("</section>")[0]
        assert "Ended as error: the model failed. It has handed over nothing." in result
        for once in ("may be incomplete", "No result", "this is what it had", 'class="written"', "Caveats"):
            assert once not in result, once
        assert '<p class="next"><b>What to do:</b> Store a valid key with <code>ava key set</code>' in result


async def test_a_run_that_was_cut_short_says_that_what_is_shown_is_no_result(tmp_path: Path) -> None:
    script: list[Say | Fail] = [
        Say(calls=[("scratchpad", {"note": "Half of it."})]),
        Fail(401, {"error": {"message": "no"}}),
    ]
    async with open_lab(tmp_path, script, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await lab.start()
        await lab.ended(run_id)
        page = await shown(browser, f"/subagents/{run_id}")
        assert "It handed over no result; below is what it had." in page and "Half of it." in page
        assert "this is what it had" not in page.partition('<section id="result"')[2].partition("</section>")[0]


async def test_the_timeline_of_a_running_run_ends_now_and_says_so_in_plain_words(tmp_path: Path) -> None:
    gate = Gate(within_s=60)
    script = [Say(calls=[("scratchpad", {"note": "a"})]), Say(gate=gate)]
    async with open_lab(tmp_path, script, config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await lab.start()
        await lab.logged(run_id, "ToolResult")
        await anyio.sleep(2.2)
        page = await shown(browser, f"/subagents/{run_id}")
        gate.released.set()
        said = re.search(r"Each bar covers the (\d+) s from the approval until now", page)
        assert said is not None and int(said[1]) >= 2
        assert "its last entry" not in page


@pytest.mark.slow
async def test_a_coders_diff_is_shown_line_by_line(tmp_path: Path) -> None:
    needs_confinement(tmp_path / "state")
    project(tmp_path)
    async with open_lab(tmp_path, make_calls(RIGHT)) as lab, serve_lab_pages(lab) as browser:
        run_id = await lab.start(**coder_task())
        await lab.ended(run_id, 60)
        assert f'href="/subagents/{run_id}/diff"' in await shown(browser, f"/subagents/{run_id}")
        diff = await shown(browser, f"/subagents/{run_id}/diff")
        assert '<div class="removed">-    return a - b</div>' in diff
        assert '<div class="added">+    return a + b</div>' in diff
        researcher = await ended(lab)
        assert (await browser.get(f"/subagents/{researcher}/diff")).status_code == 409


async def test_a_long_text_opens_on_its_own_page(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit()], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        run_id, other = await lab.start(), await lab.start()
        who, long = Who(lab.session.id, run_id, lab.session.user, AGENT), "word " * 1_000
        await lab.write(Event(who, ToolResult(tool="read_file", success=True, output=f"{long}END"), run_id=run_id))
        page = await shown(browser, f"/subagents/{run_id}")
        address = re.search(r'<a href="(/subagents/S-\w+/entries/\d+)">all 5,003 characters</a>', page)
        assert address is not None and "END" not in page
        assert "END</pre>" in await shown(browser, address[1])
        assert (await browser.get(address[1].replace(run_id, other))).status_code == 404
        for wrong in ("0", "99999999", "x", "-1", "9" * 30):
            assert (await browser.get(f"/subagents/{run_id}/entries/{wrong}")).status_code == 404


async def test_a_page_of_long_texts_stays_light(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit()], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        run_id = await lab.start()
        who = Who(lab.session.id, run_id, lab.session.user, AGENT)
        facts = [ToolCall(tool="read_file", args={"path": "x" * 900}), AssistantMessage(text="y" * 9_000)]
        await lab.write(*(Event(who, fact, run_id=run_id) for fact in facts * 150))
        page = await browser.get(f"/subagents/{run_id}?order=oldest")
        loaded = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text))
        weight = len(page.content) + sum([len((await browser.get(each)).content) for each in loaded])
        assert weight < 150_000, f"{weight:,} bytes, {len(page.content):,} of them the page itself"
        assert page.text.count('<li class="call') + page.text.count('<li class="say') >= PAGE_ROWS - 10


async def test_a_running_run_gets_only_what_is_new(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit()], config=PRICED, runs=False) as lab, serve_lab_pages(lab) as browser:
        run_id = await lab.start()
        page = await shown(browser, f"/subagents/{run_id}")
        newer = re.search(r'hx-get="(/subagents/[^"]*newer)"', page)
        assert newer is not None, "a run in progress waits for more"
        address = newer[1].replace("&amp;", "&")
        assert (await browser.get(address, part=True)).status_code == 204, "nothing to swap"
        who = Who(lab.session.id, run_id, lab.session.user, AGENT)
        await lab.write(Event(who, ToolCall(tool="read_file", args={"path": "new.md"}), run_id=run_id))
        more = await browser.get(address, part=True)
        assert "path: new.md" in more.text and more.text.count('<li class="call') == 1 and "<html" not in more.text
        again = re.search(r'hx-get="(/subagents/[^"]*newer)"', more.text)
        assert again is not None and (await browser.get(again[1].replace("&amp;", "&"), part=True)).status_code == 204
        plain = await browser.get(address)
        assert plain.status_code == 303 and plain.headers["location"].startswith(f"/subagents/{run_id}?order=newest")


async def test_the_end_of_a_run_is_announced_with_its_result(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [submit("the end")], config=PRICED) as lab, serve_lab_pages(lab) as browser:
        proposal = await lab.propose()
        run_id = proposal.subagent_id
        waiting = await shown(browser, f"/subagents/{run_id}")
        assert f"/proposals/{proposal.pending_id}" in waiting and "Send a message" not in waiting
        before = await browser.get(f"/subagents/{run_id}/head", part=True)
        assert "hx-trigger" not in before.headers and 'hx-get="/subagents' in before.text
        await lab.approve(proposal)
        await lab.ended(run_id)
        after = await browser.get(f"/subagents/{run_id}/head", part=True)
        assert after.headers["hx-trigger"] == "ava:ended" and "hx-get" not in after.text
        assert "the end" in (await browser.get(f"/subagents/{run_id}/result", part=True)).text


async def test_a_page_says_an_error_of_several_attempts_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, lambda _request: Fail(500), config=PRICED) as lab, serve_lab_pages(lab) as browser:
        run_id = await ended(lab)
        attempts = len(lab.server.requests)
        page = await shown(browser, f"/subagents/{run_id}")
    assert attempts == 4
    assert page.count("scripted failure") == 1 and page.count("the fault is on the provider") == 1
    assert page.count("as the result says") == 1 and page.count("the same error, number") == 3


async def test_a_plans_page_says_once_why_a_step_failed(tmp_path: Path) -> None:
    async with open_lab(tmp_path, lambda _request: Fail(400), config=PRICED) as lab, serve_lab_pages(lab) as browser:
        plan = await plans.finish(lab, [plans.step("look", "Look around.")], state="error")
        page = await shown(browser, f"/subagents/{plan.id}")
    above, timeline = page.partition('id="timeline"')[::2]
    why = "(error: the model failed)"
    assert above.count(why) == 1 and timeline.count(why) == 1, "in its step, and when that was"
    assert above.count("0 of 1 steps are done") == 1 and timeline.count("0 of 1 steps are done") == 1
    assert above.count("scripted failure") == 1 and "Caveats" not in above

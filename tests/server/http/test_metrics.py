"""Metrics: scraped over HTTP as Prometheus does it, read with Prometheus' own parser, held against the log."""

from __future__ import annotations

import re
import time
from pathlib import Path

import anyio
import pytest
from support.engines.memory import MemoryEngine
from support.model_server import Fail, Gate, Say, Script
from support.repository import REPOSITORY
from support.runs.metrics import finish_run, open_scraper, sample_value
from support.runtime import PRICED, hand_over, open_lab, wait_for

from ava_audit.events import Activity, Event, SessionStart
from ava_server.http.metrics import MOST_MODELS, labels_of_first, render, tool_label
from ava_server.telemetry import provider_of

PAGE = REPOSITORY / "docs" / "reference" / "metrics.md"


MODEL = "custom:test"
READS = Say(calls=[("read_file", {"path": "a.md"})])
MISSES = Say(calls=[("read_file", {"path": "none.md"})])
INVENTS = Say(calls=[("exfiltrate_the_payroll", {})])
MISSPELLS = Say(calls=[("read_file", {"file": "a.md"})])
BUSY = Fail(503, retry_after="0")


@pytest.mark.requirement("S1-33")
async def test_scraped_activity_and_cost_of_a_run_match_the_log(tmp_path: Path) -> None:
    script: Script = [READS, BUSY, MISSES, INVENTS, MISSPELLS, hand_over()]
    async with open_lab(tmp_path, script, config=PRICED) as lab, open_scraper(lab.runtime) as prometheus:
        run = await lab.run(await finish_run(lab))
        found = await prometheus.scrape()
        assert sample_value(found, "ava_runs_ended_total", role="researcher", ending="success") == 1
        assert sample_value(found, "ava_cost_usd_total", role="researcher", model=MODEL) == run.cost_micros / 1e6 > 0
        tokens = {"input": run.input_tokens, "output": run.output_tokens, "cache_read": 0, "cache_write": 0}
        for kind, count in tokens.items():
            labels = {"role": "researcher", "model": MODEL, "class": kind}
            assert sample_value(found, "ava_tokens_total", **labels) == count
        assert sample_value(found, "ava_turns_total", role="researcher", model=MODEL) == run.turns == 5
        calls = {"provider": "custom", "model": MODEL}
        assert sample_value(found, "ava_model_calls_total", settlement="billed", **calls) == 5
        assert sample_value(found, "ava_model_calls_total", settlement="not_billed", **calls) == 1
        assert sample_value(found, "ava_model_retries_total", provider="custom") == 1
        assert sample_value(found, "ava_model_errors_total", provider="custom", kind="overloaded") == 1
        assert sample_value(found, "ava_model_call_seconds_count", provider="custom") == 6
        assert sample_value(found, "ava_tool_calls_total", tool="read_file", outcome="success") == 1
        assert sample_value(found, "ava_tool_calls_total", tool="read_file", outcome="failed") == 1
        assert sample_value(found, "ava_tool_calls_total", tool="read_file", outcome="unusable") == 1
        assert sample_value(found, "ava_tool_calls_total", tool="other", outcome="unusable") == 1
        assert sample_value(found, "ava_tool_calls_total", tool="submit_result", outcome="success") == 1
        assert sample_value(found, "ava_proposals_decided_total", decision="approved", channel="host_call") == 1
        assert sample_value(found, "ava_runs_claimed_total", reason="start") == 1
        waited_s = ((run.started_us or 0) - (run.queued_us or 0)) / 1e6
        assert sample_value(found, "ava_run_start_wait_seconds_count") == 1
        assert sample_value(found, "ava_run_start_wait_seconds_sum") == pytest.approx(waited_s)
        for bound in ("0.05", "1.0", "1800.0"):
            assert sample_value(found, "ava_run_start_wait_seconds_bucket", le=bound) == (waited_s <= float(bound))
        assert sample_value(found, "ava_log_bytes", file="database") > 0
        assert "payroll" not in str(lab.runtime.entry_counts), "what a model invents is not kept"
        assert sample_value(found, "ava_log_head") == lab.store.head
        assert sample_value(found, "ava_sessions_open") == 2


async def test_metrics_contain_no_text_of_users_or_models(tmp_path: Path) -> None:
    script = [READS, INVENTS, hand_over()]
    async with open_lab(tmp_path, script, config=PRICED) as lab, open_scraper(lab.runtime) as prometheus:
        run_id = await finish_run(lab)
        await prometheus.scrape()
        user = f'"{lab.runtime.user}"'
        for word in ("quokka", "exfiltrate", run_id, user, str(tmp_path), "12 dollars", lab.session.id):
            assert word not in prometheus.text, word


async def test_gauges_show_waiting_and_running_runs_and_reserved_cost(tmp_path: Path) -> None:
    gate = Gate()
    script = [Say(calls=[("scratchpad", {"note": "x"})], gate=gate), hand_over()]
    async with open_lab(tmp_path, script, config=PRICED) as lab, open_scraper(lab.runtime) as prometheus:
        await lab.propose(task="It waits")
        run_id = await lab.start()
        await wait_for(gate.arrived)
        found = await prometheus.scrape()
        states = {
            state: sample_value(found, "ava_runs", state=state) for state in ("awaiting_approval", "queued", "running")
        }
        assert states == {"awaiting_approval": 1, "queued": 0, "running": 1}
        assert sample_value(found, "ava_model_calls_in_flight") == 1
        assert sample_value(found, "ava_reserved_usd") > 0
        assert 0 < sample_value(found, "ava_runs_oldest_seconds", state="awaiting_approval") < 60
        gate.released.set()
        await lab.ended(run_id)
        found = await prometheus.scrape()
        assert sample_value(found, "ava_runs", state="running") == 0 == sample_value(found, "ava_reserved_usd")


@pytest.mark.requirement("S1-33")
async def test_counters_survive_a_restart_and_those_that_reset_say_so(tmp_path: Path) -> None:
    async with (
        open_lab(tmp_path, [READS, BUSY, hand_over()], config=PRICED) as lab,
        open_scraper(lab.runtime) as prometheus,
    ):
        await finish_run(lab)
        before = await prometheus.scrape()
    async with open_lab(tmp_path, config=PRICED, check=False) as lab, open_scraper(lab.runtime) as prometheus:
        after = await prometheus.scrape()
    told_anew = {
        line.split()[2]
        for line in prometheus.text.splitlines()
        if line.startswith("# HELP") and "Since this process began" in line
    }
    families = ("ava_model_errors_total", "ava_tool_calls_total", "ava_tool_call_seconds")
    assert told_anew == set(families)
    counters = [key for key in before if key[0].startswith("ava_") and key[0].endswith(("_total", "_count", "_sum"))]
    assert len(counters) > 10
    for key in counters:
        if key[0].startswith(families):
            assert key not in after
        else:
            assert after[key] == before[key], key


async def test_counts_activity_of_other_processes(tmp_path: Path) -> None:
    async with (
        open_lab(tmp_path, [READS, hand_over()], config=PRICED, check=False) as lab,
        open_lab(tmp_path, runs=False, config=PRICED, check=False) as other,
        open_scraper(other.runtime) as prometheus,
    ):
        await prometheus.scrape()
        await finish_run(lab)
        found = await prometheus.scrape()
        assert sample_value(found, "ava_tool_calls_total", tool="read_file", outcome="success") == 1
        assert sample_value(found, "ava_runs_ended_total", role="researcher", ending="success") == 1


async def test_counts_a_run_without_a_live_owner_as_interrupted(tmp_path: Path) -> None:
    gate = Gate()
    async with open_lab(tmp_path, [Say("", gate=gate)], config=PRICED, check=False) as lab:
        await lab.start()
        await wait_for(gate.arrived)
    async with (
        open_lab(tmp_path, runs=False, config=PRICED, check=False) as lab,
        open_scraper(lab.runtime) as prometheus,
    ):
        found = await prometheus.scrape()
        assert sample_value(found, "ava_runs", state="interrupted") == 1
        assert sample_value(found, "ava_runs", state="running") == 0


async def test_concurrent_scrapes_count_everything_once(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [READS, hand_over()], config=PRICED) as lab, open_scraper(lab.runtime) as prometheus:
        await finish_run(lab)
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(prometheus.scrape)
        found = await prometheus.scrape()
        assert sample_value(found, "ava_tool_calls_total", tool="read_file", outcome="success") == 1


async def test_a_scrape_stays_short_after_thousands_of_new_entries(tmp_path: Path) -> None:
    async with open_lab(tmp_path, [READS, hand_over()], config=PRICED, check=False) as lab:
        await finish_run(lab)
        await render(lab.runtime)
        note = Event(lab.session.who, Activity(activity="what nobody counts"))
        for _ in range(10):
            await lab.write(*[note] * 1_000)
        began = time.process_time()
        for _ in range(5):
            await render(lab.runtime)
        assert (time.process_time() - began) / 5 < 0.2, "ten times the target: this machine is shared"


def test_labels_are_bounded_and_stable() -> None:
    seen = [(when, f"custom:{when}") for when in range(MOST_MODELS + 10)]
    before = labels_of_first(seen[: MOST_MODELS - 5], MOST_MODELS)
    after = labels_of_first(reversed(seen), MOST_MODELS)
    labels = {after(value) for _when, value in seen}
    assert len(labels) == MOST_MODELS + 1 and "other" in labels
    assert all(after(value) == before(value) == value for _when, value in seen[: MOST_MODELS - 5])


def test_only_builtin_tools_and_configured_servers_have_their_own_label() -> None:
    known, servers = frozenset({"read_file"}), frozenset({"tickets"})
    given = ("read_file", "mcp__tickets__close", "mcp__invented__x", "drop the tables")
    labels = [tool_label(tool, known, servers) for tool in given]
    assert labels == ["read_file", "mcp__tickets", "other", "other"]
    assert [provider_of(model) for model in ("openrouter:a/b", "offline/extractive")] == ["openrouter", "offline"]


async def test_the_docs_list_each_metric_with_its_labels(tmp_path: Path) -> None:
    script: Script = [READS, READS, READS, BUSY, hand_over()]
    by_user = "[metrics]\nby_user = true\n" + PRICED
    async with open_lab(tmp_path, script, config=by_user) as lab, open_scraper(lab.runtime) as prometheus:
        await finish_run(lab)
        await lab.propose()
        await lab.write(Event(lab.session.who, SessionStart(transport="memory")))
        lab.runtime.manager.delivery = MemoryEngine().delivery()
        given: dict[str, set[str]] = {}
        for name, labels in await prometheus.scrape():
            if name.startswith("ava_"):
                name = re.sub("_(count|sum|bucket)$", "", name)
                given.setdefault(name, set()).update(label for label, _value in labels if label != "le")
    told = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(ava_\w+)` \| ([^|]*)\|", PAGE.read_text("utf-8"), re.MULTILINE)
    }
    assert told == given


async def test_spending_per_user_is_shown_only_if_the_setting_asks_for_it(tmp_path: Path) -> None:
    limited = "[metrics]\nby_user = true\n[users.ann]\ndaily_cents = 100\n" + PRICED
    async with open_lab(tmp_path, [hand_over()], config=limited) as lab, open_scraper(lab.runtime) as scraper:
        await lab.outcome()
        await lab.call_as("ann", "spawn_subagent", role="custom", task="x", system_prompt="x")
        found = await scraper.scrape()
        user = lab.runtime.user
        cost = found["ava_user_cost_usd_total", frozenset({("user", user)})]
        (row,) = await lab.store.read(lambda view: view.runs(user=user))
        assert cost == pytest.approx(row.cost_micros / 1e6) and cost > 0
        assert found["ava_user_day_spent_usd", frozenset({("user", user)})] == pytest.approx(cost)
        assert found["ava_user_day_cap_usd", frozenset({("user", "ann")})] == 1.0
        waiting = frozenset({("user", "ann"), ("state", "awaiting_approval")})
        assert found["ava_user_runs", waiting] == 1
    other = tmp_path / "other"
    other.mkdir()
    async with open_lab(other, [hand_over()], config=PRICED) as lab, open_scraper(lab.runtime) as scraper:
        await lab.outcome()
        assert not [name for name, _labels in await scraper.scrape() if name.startswith("ava_user_")]

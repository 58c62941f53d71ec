"""`ava eval run`: one approval and one cap for a suite, from what the log lacks; its money is the log's."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from support.approval.past_runs import stored_config
from support.logs.store import runs_of
from support.model_server import ModelServer, Say, run_model_server
from support.runtime import PRICED, open_lab
from support.stdio import read_log
from support.terminal import COMMAND, ava, environment, run_on_terminal

from ava_audit.events import CostReserved
from ava_server.budget.caps import SHARED_CAPS, CapName, CapReached, CapRequest
from ava_server.evals.case import Sources
from ava_server.runs.record.plan_time import PLAN_TIME_OVER
from ava_server.runs.turn.reservation import cap_words
from ava_server.service.access import Session
from ava_server.service.service import Service
from ava_server.suites.round_results import SuiteResult

PRICES = {"otter": "twelve cents", "whisper": "nine cents", "sphinx": "four cents"}
USAGE = {"prompt_tokens": 3_000, "completion_tokens": 1_001, "total_tokens": 4_001}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "config.toml").write_text(PRICED)
    return folder


def test_a_suite_is_one_plan_under_one_cap_and_its_money_is_that_of_the_log(tmp_path: Path, root: Path) -> None:
    with run_model_server(answers) as server:
        found = run_json(root, suite_of(tmp_path), "--tries", "2", "--max-cost", "1", server=server)
        asked = len(server.requests)
    rows = runs_of(root)
    assert len(rows) == asked == 6
    assert found.cost_micros == sum(row.cost_micros for row in rows) == 6 * (3_000 * 3 + 1_001 * 15)
    (plan_id,) = {row.plan_id for row in rows}
    plan = json.loads(ava(root, "report", "--group", str(plan_id), "--json").stdout)
    assert (plan["cap_cents"], len(plan["runs"])) == (100, 6)
    assert {one.run for one in found.verdicts} == {row.id for row in rows}
    (column,) = found.columns
    assert (column.name, column.solved, column.tries) == ("custom:test", 4, 6)
    assert column.pass_1.value == column.pass_all.value == pytest.approx(2 / 3)
    assert column.cost_per_solved.value == pytest.approx(found.cost_micros / 4)
    failed = [one for one in found.verdicts if not one.passed]
    assert {one.case for one in failed} == {"sphinx"}
    assert failed[0].why == 'the output lacks "four cents"'


def test_what_the_log_has_is_not_paid_again_and_a_new_round_has_the_same_numbers(tmp_path: Path, root: Path) -> None:
    suite = suite_of(tmp_path)
    with run_model_server(answers) as server:
        first = run_json(root, suite, "--max-cost", "1", server=server)
        shown = run_json(root, suite, "--max-cost", "1", server=server)
        assert len(server.requests) == 3 and shown == first
        more = run_json(root, suite, "--max-cost", "1", "--tries", "2", server=server)
        assert len(server.requests) == 6 and more.round == 1
        again = run_json(root, suite, "--max-cost", "1", "--again", server=server)
        assert len(server.requests) == 9 and again.round == 2
    assert marks(again) == marks(first)
    (one,), (other,) = first.columns, again.columns
    assert (one.pass_1, one.cost_per_solved, one.cost_micros) == (
        other.pass_1,
        other.cost_per_solved,
        other.cost_micros,
    )


def test_a_changed_check_costs_nothing_and_a_changed_case_is_run_again(tmp_path: Path, root: Path) -> None:
    suite = suite_of(tmp_path)
    with run_model_server(answers) as server:
        run_json(root, suite, "--max-cost", "1", server=server)
        sphinx = suite / "sphinx.toml"
        sphinx.write_text(sphinx.read_text().replace("four cents", "I do not know"))
        assert all(marks(run_json(root, suite, "--max-cost", "1", server=server)).values())
        assert len(server.requests) == 3
        (suite / "files" / "notes.md").write_text("All is new.\n")
        run_json(root, suite, "--max-cost", "1", server=server)
        assert len(server.requests) == 6


def test_models_are_columns_and_are_compared_case_by_case(tmp_path: Path, root: Path) -> None:
    suite = suite_of(tmp_path)
    both = ("--model", "test", "--model", "offline", "--max-cost", "1")
    with run_model_server(answers) as server:
        found = run_json(root, suite, *both, server=server)
        (tmp_path / "a.json").write_text(found.model_dump_json())
        text = ava(
            root, "eval", "run", str(suite), *both, "--html", "page.html", "--yes", env=local(server), cwd=tmp_path
        )
    assert text.returncode == 0, text.stderr
    assert [(column.name, column.price) for column in found.columns] == [
        ("custom:test", ("$3 in, $15 out per million tokens",)), ("offline/extractive", ("free",)),
    ]  # fmt: skip
    (compared,) = found.comparisons
    assert compared.cases == 3 and compared.first == "custom:test"
    assert "offline/extractive against custom:test, in 3 cases" in text.stdout
    assert "pass@1" in text.stdout and "<svg" in (tmp_path / "page.html").read_text()
    same = ava(root, "eval", "compare", str(tmp_path / "a.json"), str(tmp_path / "a.json"))
    assert same.stdout.count("better in 0, worse in 0 (sign test: p = 1.00)") == 2
    wrong = ava(root, "eval", "compare", str(tmp_path / "a.json"), str(suite / "otter.toml"))
    assert wrong.returncode == 2 and "otter.toml is not a result of `ava eval run --json`" in wrong.stderr


def test_models_that_are_run_one_after_another_share_a_round_its_money_and_its_results(
    tmp_path: Path, root: Path
) -> None:
    suite = suite_of(tmp_path)
    with run_model_server(answers) as server:
        first = run_json(root, suite, "--model", "test", "--max-cost", "1", server=server)
        second = run_json(root, suite, "--model", "offline", "--max-cost", "1", server=server)
        both = run_json(root, suite, "--model", "test", "--model", "offline", "--max-cost", "1", server=server)
        assert len(server.requests) == 3 and (first.round, second.round, both.round) == (1, 1, 1)
        otter = suite / "otter.toml"
        otter.write_text(otter.read_text().replace("What does otter cost?", "How much is otter?"))
        spent = f"{(first.cost_micros + 5_000) / 1e6:.3f}"
        refused = ava(root, "eval", "run", str(suite), "--yes", "--max-cost", spent, env=local(server))
        assert refused.returncode == 2 and "round 1 of prices has cost" in refused.stderr, "also by the old case"
        assert len(server.requests) == 3


def test_the_last_run_under_the_rest_of_the_amount_has_no_verdict_and_is_made_again(tmp_path: Path, root: Path) -> None:
    suite = suite_of(tmp_path, {"otter": "twelve cents"})
    dear = {**USAGE, "completion_tokens": 3_000}
    look = Say(calls=[("read_file", {"path": "."})], usage=dear)
    last = Say("", [("submit_result", {"summary": "said", "output": "It costs something."})], usage=USAGE)
    with run_model_server([look, look, last]) as server:
        cut = run_json(root, suite, "--max-cost", "0.13", server=server, code=11)
        assert [(one.ending, one.passed) for one in cut.verdicts] == [("cost_exceeded", None)]
    with run_model_server(answers) as server:
        whole = run_json(root, suite, "--max-cost", "1", server=server)
        assert marks(whole) and None not in marks(whole).values() and len(server.requests) == 1


def test_at_its_cap_a_suite_stops_says_what_it_has_and_goes_on_later(tmp_path: Path, root: Path) -> None:
    (root / "config.toml").write_text(f"[limits]\nrunning_per_user = 1\n{PRICED}")
    suite = suite_of(tmp_path)
    with run_model_server(answers) as server:
        found = run_json(root, suite, "--max-cost", "0.12", server=server, code=11)
        paid = len(server.requests)
        known = [one for one in found.verdicts if one.passed is not None]
        cut = [one for one in found.verdicts if one.passed is None]
        assert known and cut, found
        assert cut[0].ending == "cost_exceeded" and cut[0].why.startswith("the plan's cost cap was reached")
        assert found.columns[0].without == len(cut) and found.columns[0].tries == len(known)
        assert found.cost_micros == sum(row.cost_micros for row in runs_of(root)) <= 120_000
        refused = ava(root, "eval", "run", str(suite), "--yes", "--max-cost", "0.03", env=local(server))
        assert refused.returncode == 2 and "it is for the whole round" in refused.stderr
        assert len(server.requests) == paid
        whole = run_json(root, suite, "--max-cost", "1", server=server)
        assert len(server.requests) == paid + len(cut)
    assert None not in marks(whole).values()
    assert whole.cost_micros == sum(row.cost_micros for row in runs_of(root))
    kept = {one.run for one in known}
    assert kept <= {one.run for one in whole.verdicts}


def test_a_price_that_changes_during_a_round_or_between_two_is_said(tmp_path: Path, root: Path) -> None:
    suite = suite_of(tmp_path, {"otter": "twelve cents"})
    with run_model_server(answers) as server:
        first = run_json(root, suite, "--max-cost", "1", server=server)
        (root / "config.toml").write_text(PRICED.replace("input = 3.0", "input = 6.0"))
        more = run_json(root, suite, "--max-cost", "1", "--tries", "2", server=server)
        again = run_json(root, suite, "--max-cost", "1", "--again", server=server)
    assert more.notes == (
        "The price of custom:test has changed during this round: $3 in, $15 out per million tokens, then $6 in, $15"
        " out per million tokens. Each run counts with what it has cost.",
    )
    assert more.cost_micros == first.cost_micros + again.cost_micros
    (tmp_path / "a.json").write_text(first.model_dump_json())
    (tmp_path / "b.json").write_text(again.model_dump_json())
    said = ava(root, "eval", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")).stdout
    assert "The price of custom:test has changed from $3 in" in said


def test_one_answer_at_a_terminal_starts_the_whole_suite(tmp_path: Path, root: Path) -> None:
    with run_model_server(answers) as server:
        args = ("eval", "run", str(suite_of(tmp_path)), "--max-cost", "0.90")
        with run_on_terminal(root, *args, env=local(server)) as screen:
            asked = screen.until("Start them? [y = all, n = none, o = one by one]")
            screen.type("y\n")
            assert screen.ended() == 0
    assert "prices, round 1: 3 tries of 3 cases, 3 to approve." in asked
    assert "All of them: 3 subagents together, at most $0.90." in asked
    assert "67 % (21–94)" in screen.text
    with run_model_server(answers) as server, run_on_terminal(root, *args, "--again", env=local(server)) as screen:
        screen.until("Start them? [y = all, n = none, o = one by one]")
        screen.type("n\n")
        assert screen.ended() == 10 and server.requests == []


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("nothing-here",), 2, "SUITE: there is no folder 'nothing-here'"),
        (("prices", "--yes"), 2, "--yes skips the question, so --max-cost is required"),
        (("prices",), 10, "There is no terminal to ask on"),
        (("prices", "--yes", "--max-cost", "1", "--role", "pirate"), 2, 'otter: no role "pirate"'),
        (("prices", "--yes", "--max-cost", "1", "--model", "no one's"), 2, "otter: model: "),
    ],
)
def test_a_mistake_starts_nothing(tmp_path: Path, root: Path, args: Sequence[str], code: int, says: str) -> None:
    suite_of(tmp_path)
    with run_model_server([]) as server:
        done = ava(root, "eval", "run", *args, env=local(server), cwd=tmp_path)
    assert (done.returncode, says.lower() in done.stderr.lower(), "Traceback" in done.stderr) == (code, True, False), (
        done.stderr
    )
    assert server.requests == []


def test_every_fault_of_a_suite_is_said_with_its_line(tmp_path: Path, root: Path) -> None:
    suite = suite_of(tmp_path)
    (suite / "suite.toml").write_text('about = "Prices"\ntries = 3\n')
    (tmp_path / "private").mkdir()
    (suite / "linked").symlink_to(tmp_path / "private")
    for name, place in (("linked", "linked"), ("drive", "C:/Users"), ("parent", "..\\\\private")):
        (suite / f"{name}.toml").write_text(CASE.format(name=name, text="a").replace('"files"', f'"{place}"'))
    (suite / "otter.toml").write_text(
        'task = "What?"\nworkspace = "gone"\n[[checks]]\nkind = "contains"\ntexts = ["a"]\n'
    )
    (suite / "sphinx.toml").write_text(
        CASE.format(name="sphinx", text="four cents").replace("max_cost_cents", "max_cost_cent")
    )
    (suite / "whisper.toml").write_text('task = "What?"\n[[checks]]\nkind = "absent"\ntexts = ["an apology"]\n')
    done = ava(root, "eval", "run", str(suite), "--model", "offline", "--yes")
    assert done.returncode == 30 and done.stdout.count("\n") <= 1
    assert f"{suite}/suite.toml:2: tries: " in done.stderr
    for name in ("linked", "drive", "parent"):
        assert re.search(rf"{suite}/{name}\.toml:2: workspace: '.*' has to lie in the folder of the case", done.stderr)
    (suite / "suite.toml").write_text('[arguments]\ntask = "Else"\nmax_cost_cents = "lots"\ncolour = "red"\n')
    done = ava(root, "eval", "run", str(suite), "--model", "offline", "--yes")
    assert all(f"{suite}/suite.toml:{line}: " in done.stderr for line in (2, 3, 4)), done.stderr
    assert f"{suite}/otter.toml:2: workspace: " in done.stderr and "gone" in done.stderr
    assert f"{suite}/sphinx.toml:5: max_cost_cent: " in done.stderr and "did you mean max_cost_cents?" in done.stderr
    assert f"{suite}/whisper.toml:2: " in done.stderr and "can never fail" in done.stderr


async def test_a_terminal_approves_more_runs_at_once_than_a_host(tmp_path: Path) -> None:
    async with open_lab(tmp_path, runs=False) as lab:
        made = [await lab.propose(model="offline", task=f"What does {number} cost?") for number in range(21)]
        lines = [one.approval_line for one in made] + ["21 subagents together, free"]
        given = {"pending_ids": [one.pending_id for one in made], "approving": lines}
        refused = await lab.call("confirm_spawn", **given)
        assert refused.status == "failed" and "at most 20 are allowed" in refused.message
        terminal = Service(lab.runtime, Session(user=lab.session.user, transport="terminal", channel="terminal"))
        lab.service = terminal
        assert (await lab.call("confirm_spawn", **given)).status == "approved"


def test_the_reason_of_a_shared_cap_begins_as_suites_and_estimates_expect() -> None:
    assert PLAN_TIME_OVER.startswith(SHARED_CAPS)
    fact = CostReserved(
        turn=1, attempt=1, scopes=(), micros=5, wrap_micros=5, prompt_tokens=1, max_output=1, upto_seq=1,
        request_sha="",
    )  # fmt: skip
    run = cast(
        "Any", SimpleNamespace(surcharge_words="", log=SimpleNamespace(run=SimpleNamespace(config=stored_config())))
    )
    for cap in get_args(CapName):
        if cap != "overrun":
            words = cap_words(CapReached(cap, 1), CapRequest(fact, 1, 1), run)
            assert words.startswith(SHARED_CAPS) == (cap not in ("max_cost_cents", "max_tokens")), words


def test_a_finding_names_its_source_by_the_path_and_a_place_in_it() -> None:
    def failure(url: str) -> str | None:
        findings = {"findings": [{"source_url": url}]}
        quotes = [{"finding": 1, "verdict": "found"}]
        return Sources(paths=("notes.md",)).failure({"untrusted_result": findings, "quotes_checked": quotes})

    assert [failure(url) for url in ("notes.md", "notes.md:3", "notes.md, page 2")] == [None] * 3
    assert all(failure(url) for url in ("notes.mdx", "more/notes.md", "other.md:3"))


def test_yes_counts_its_starts_against_the_hourly_limit_before_it_proposes(tmp_path: Path, root: Path) -> None:
    (root / "config.toml").write_text(f"{PRICED}[limits]\nspawns_per_hour = 4\n")
    suite = suite_of(tmp_path)
    with run_model_server(answers) as server:
        run_json(root, suite, "--max-cost", "1", server=server)
        args = ("eval", "run", str(suite), "--yes", "--max-cost", "1", "--again")
        done = ava(root, *args, env=local(server))
        asked = len(server.requests)
        free = ava(root, *args, "--model", "offline", env=local(server))
    assert done.returncode == 10 and "3 of 4 paid starts per hour without a person's answer are used" in done.stderr
    assert "This round needs 3, and 1 of them may start now, so none was started." in done.stderr, done.stderr
    assert "ava approve" not in done.stderr and "the next start is possible in" in done.stderr
    assert asked == 3 and len(runs_of(root)) == 3 + 3 and free.returncode in (0, 4), free.stderr


@pytest.mark.slow
def test_ctrl_c_while_a_suite_is_proposed_withdraws_what_was_proposed(tmp_path: Path, root: Path) -> None:
    (root / "config.toml").write_text(f"{PRICED}[limits]\nspawns_per_hour = 100\n")
    suite = suite_of(tmp_path, {f"otter-{number}": "twelve cents" for number in range(60)})
    with run_model_server(answers) as server:
        args = ("eval", "run", str(suite), "--yes", "--max-cost", "40")
        begun = subprocess.Popen([*COMMAND, *args], env=environment(root, **local(server)), stderr=subprocess.PIPE)
        while begun.poll() is None and len(read_log(root, "SpawnProposed")) < 3:  # each look takes a moment itself
            time.sleep(0.05)
        begun.send_signal(signal.SIGINT)
        _out, said = begun.communicate(timeout=60)
        states = {run.state for run in runs_of(root)}
        assert begun.returncode != 0 and states == {"rejected"}, (begun.returncode, states, said)
        assert server.requests == []


CASE = """task = "What does {name} cost?"
workspace = "files"
[arguments]
tools = ["read_file", "find_files"]
max_cost_cents = 50
[[checks]]
kind = "contains"
texts = ["{text}"]
"""


def suite_of(tmp: Path, cases: Mapping[str, str] = PRICES) -> Path:
    folder = tmp / "prices"
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "notes.md").write_text("".join(f"{name} costs {text}.\n" for name, text in PRICES.items()))
    for name, text in cases.items():
        (folder / f"{name}.toml").write_text(CASE.format(name=name, text=text))
    return folder


def answers(request: dict[str, Any]) -> Say:
    """Answer two of the three cases right."""
    asked = json.dumps(request["messages"])
    output = next((text for name, text in PRICES.items() if f"What does {name} cost?" in asked), "")
    output = "I do not know" if "sphinx" in asked.partition("cost?")[0][-20:] else output
    return Say("", [("submit_result", {"summary": "said", "output": f"It costs {output}."})], usage=USAGE)


def local(server: ModelServer) -> dict[str, str]:
    return {"AVA_MODEL_BASE_URL": server.base_url, "AVA_MODEL": "test"}


def run_json(root: Path, suite: Path, *args: str, server: ModelServer, code: int = 0) -> SuiteResult:
    done = ava(root, "eval", "run", str(suite), *args, "--yes", "--json", env=local(server))
    assert done.returncode == code, done.stderr
    return SuiteResult.model_validate_json(done.stdout)


def marks(result: SuiteResult) -> dict[tuple[str, str, int], bool | None]:
    return {(one.case, one.column, one.number): one.passed for one in result.verdicts}

"""`ava run` for several at once, with files that are handed over, and without a tool: real processes and terminals."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Gate, Say, run_model_server
from support.runtime import PRICED
from support.terminal import ava, run_on_terminal

pytestmark = pytest.mark.slow

FIRST, SECOND, THIRD = "What does Otter cost?", "What does Whisper cost?", "All prices as a table."
DONE = Say("", [("submit_result", {"summary": "All looked up.", "output": "Twelve **cents** a minute."})])
SAVES = Say("", [("save_artifact", {"name": "prices.csv", "content": "otter,0.12\n"})])
NOTE = Say("", [("scratchpad", {"note": "a"})])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "config.toml").write_text(PRICED)
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def local(base_url: str) -> dict[str, str]:
    return {"AVA_MODEL_BASE_URL": base_url, "AVA_MODEL": "test"}


def decided(root: Path) -> list[dict[str, Any]]:
    lines = ava(root, "logs", "--json", "--last", "1000", "--type", "SpawnDecided").stdout.splitlines()
    return [json.loads(line)["content"] for line in lines]


def test_asks_once_about_several_runs_and_starts_them_as_a_plan(root: Path, workspace: Path) -> None:
    gate = Gate()

    def script(request: dict[str, Any]) -> Say:
        return Say(DONE.text, DONE.calls, gate=gate if SECOND in json.dumps(request["messages"]) else None)

    args = (
        "run", "--parallel", "researcher", FIRST, SECOND, "--also", f"data_extractor: {THIRD}", "--workspace",
        str(workspace), "--max-cost", "0.50", "--group-max", "1.20", "--group-timeout", "5m",
    )  # fmt: skip
    with (
        run_model_server(script) as server,
        run_on_terminal(root, *args, columns=80, env=local(server.base_url)) as screen,
    ):
        asked = screen.until("Start them? [y = all, n = none, o = one by one]")
        screen.type("y\n")
        screen.until("3 subagents, 2 ended, ")
        gate.released.set()
        assert screen.ended() == 0
    plain = re.sub(r"\x1b\[[\d;]*m", "", screen.text)
    assert [part in asked for part in (FIRST, SECOND, THIRD)] == [True] * 3
    assert "All of them: 3 subagents together, at most $1.20 and 5 min." in asked
    assert re.search(r"S-\w{6}  data_extractor: Al… +\d+ s  1/20  \$\d", plain, re.MULTILINE)
    assert plain.count("Twelve cents a minute.") == 3
    plan, *decisions = decided(root)
    assert plan["channel"] == "terminal" and "group_id" not in plan
    assert [(each["decision"], each["channel"]) for each in decisions] == [("approved", "terminal")] * 3
    assert len({each["group_id"] for each in decisions}) == 1


def test_prints_several_results_as_one_object_and_exits_with_the_first_failure(root: Path, workspace: Path) -> None:
    def script(request: dict[str, Any]) -> Say:
        return NOTE if SECOND in json.dumps(request["messages"]) else DONE

    args = (
        "run", "--parallel", "researcher", FIRST, SECOND, "--workspace", str(workspace), "--yes", "--max-cost", "0.50",
        "--max-iterations", "2", "--json",
    )  # fmt: skip
    with run_model_server(script) as server:
        done = ava(root, *args, env=local(server.base_url))
    assert done.returncode == 13, done.stderr
    result = json.loads(done.stdout)
    assert [run["state"] for run in result["runs"]] == ["success", "iteration_limit"]
    assert result["group_id"].startswith("G-") and result["data_root"] == str(root)
    told = [line for line in done.stderr.splitlines() if re.search(r"^\d subagents, ", line)]
    assert len(told) <= 2, "plain progress comes every ten seconds"


def test_rejects_all_runs_if_one_of_them_is_invalid(root: Path, workspace: Path) -> None:
    args = ("run", "researcher", FIRST, "--also", "pirate: Find it", "--workspace", str(workspace))
    with run_model_server([]) as server:
        done = ava(root, *args, "--yes", "--max-cost", "0.50", env=local(server.base_url))
    assert done.returncode == 2
    assert "pirate" in done.stderr and "Traceback" not in done.stderr
    assert [each["decision"] for each in decided(root)] == ["rejected"]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("researcher", "what", "is", "it"), 2, "Put one task in quotes"),
        (("--parallel", "researcher", "a", "b", "--group-max", "9"), 2, "--group-max: their own caps come to $1.00"),
        (("researcher", "a", "--group-max", "1"), 2, "--group-max and --group-timeout are for two or more"),
        (("researcher", "a", "--artifacts", "/dev/null"), 2, "--artifacts: /dev/null is not a folder"),
    ],
)
def test_a_mistake_starts_nothing(root: Path, workspace: Path, args: tuple[str, ...], code: int, says: str) -> None:
    with run_model_server([]) as server:
        more = ("--workspace", str(workspace), "--yes", "--max-cost", "0.50")
        done = ava(root, "run", *args, *more, env=local(server.base_url))
    assert (done.returncode, says in done.stderr, done.stderr.count("Traceback")) == (code, True, 0), done.stderr
    assert server.requests == []
    if (root / "ava.db").exists():
        assert {each["decision"] for each in decided(root)} == {"rejected"}


def test_runs_that_cannot_start_now_still_wait(root: Path, workspace: Path) -> None:
    (root / "config.toml").write_text(f"{PRICED}\n[limits]\nspawns_per_hour = 1\n")
    args = ("run", "--parallel", "researcher", FIRST, SECOND, "--workspace", str(workspace), "--yes", "--max-cost", "1")
    with run_model_server([]) as server:
        done = ava(root, *args, env=local(server.base_url))
    assert done.returncode == 10
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ava: Not started: ") and f"(limits.spawns_per_hour in {root / 'config.toml'})" in last
    assert decided(root) == []
    waiting = json.loads(ava(root, "status", "--json").stdout)["runs"]
    assert [run["state"] for run in waiting] == ["awaiting_approval"] * 2
    assert all(run["pending_id"] in last for run in waiting), "`ava approve` with these ids is the way out"


def test_ctrl_c_cancels_all_runs(root: Path, workspace: Path) -> None:
    gates = {FIRST: Gate(), SECOND: Gate()}  # one each: a client that leaves opens its gate

    def script(request: dict[str, Any]) -> Say:
        return Say("", gate=gates[SECOND if SECOND in json.dumps(request["messages"]) else FIRST])

    args = ("run", "--parallel", "researcher", FIRST, SECOND, "--workspace", str(workspace), "--yes", "--max-cost", "1")
    with (
        run_model_server(script) as server,
        run_on_terminal(root, *args, env=local(server.base_url)) as screen,
    ):
        assert all(gate.arrived.wait(20) for gate in gates.values())
        screen.interrupt()
        screen.until("2 of 2 subagents are still running.")
        screen.until("[c]ancel or [l]eave:")
        screen.interrupt()
        assert screen.ended() == 15
    assert screen.text.count("Ended as cancelled") == 2
    plans = [json.loads(line) for line in ava(root, "logs", "--json", "--type", "RunEnded").stdout.splitlines()]
    assert {entry["content"]["status"] for entry in plans} == {"cancelled"} and len(plans) == 3, "the plan too"
    assert "Traceback" not in screen.text


def test_copies_and_lists_the_artifacts_of_a_run(root: Path, workspace: Path, tmp_path: Path) -> None:
    args = ("run", "researcher", FIRST, "--workspace", str(workspace), "--yes", "--max-cost", "0.50", "--artifacts")
    with run_model_server([SAVES, DONE, SAVES, DONE]) as server:
        first = ava(root, *args, str(tmp_path / "new" / "got"), env=local(server.base_url))
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / "prices.csv").write_text("mine")
        again = ava(root, *args, "there", "--json", cwd=tmp_path, env=local(server.base_url))
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert (tmp_path / "new" / "got" / "prices.csv").read_text() == "otter,0.12\n"
    assert f"Copied to {tmp_path}/new/got/prices.csv" in first.stdout
    saved = json.loads(again.stdout)["artifacts_saved"]
    assert (tmp_path / "there" / "prices.csv").read_text() == "mine"
    assert (tmp_path / saved["files"][0]["path"]).read_text() == "otter,0.12\n"
    assert "is kept" in again.stderr


def test_a_run_without_a_required_tool_starts_only_with_degraded(root: Path) -> None:
    args = ("run", "web_crawler", "Who makes it?", "--yes", "--max-cost", "0.50")
    with run_model_server([DONE]) as server:
        refused = ava(root, *args, env=local(server.base_url))
        done = ava(root, *args, "--degraded", env=local(server.base_url))
    assert refused.returncode == 10
    assert "web_crawler needs web_search" in refused.stderr and "To run without it: --degraded." in refused.stderr
    assert done.returncode == 0, done.stderr
    assert "It goes without web_search, which is not there, although its role needs that." in done.stderr
    assert "web_crawler without web_search, at most $0.50 and 10 min" in done.stderr
    [proposed] = ava(root, "logs", "--json", "--type", "SpawnProposed").stdout.splitlines()
    assert json.loads(proposed)["content"]["config"]["lacks"] == ["web_search"]


def test_rationale_tool_call_limit_and_thinking_can_be_set_on_the_command_line(root: Path, workspace: Path) -> None:
    args = ("run", "researcher", FIRST, "--workspace", str(workspace), "--yes", "--max-cost", "0.50")
    more = ("--rationale", "The budget is due", "--max-tool-calls", "3", "--no-extended-thinking")
    with run_model_server([DONE]) as server:
        done = ava(root, *args, *more, env=local(server.base_url))
    assert done.returncode == 0, done.stderr
    assert 'Why: "The budget is due".' in done.stderr and " 3 tool calls" in done.stderr


# -- what a terminal shows while runs work -----------------------------------------------------------------------------

STEPS = [
    [("search_codebase", {"query": f"word number {number}"})]
    if number % 2
    else [("scratchpad", {"note": f"n{number}"})]
    for number in range(7)
]


@pytest.mark.parametrize(
    ("columns", "env", "frames"),
    [(120, {}, "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"), (80, {"NO_COLOR": "1"}, "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"), (60, {"LC_ALL": "C"}, "|/-\\")],
)
def test_a_run_shows_its_last_steps_a_spinner_and_the_spend_until_the_result_replaces_them(
    root: Path, workspace: Path, columns: int, env: dict[str, str], frames: str
) -> None:
    gate = Gate()
    script = [*(Say("", calls) for calls in STEPS), Say("", DONE.calls, gate=gate)]
    args = ("run", "researcher", FIRST, "--workspace", str(workspace), "--yes", "--max-cost", "0.50")
    with (
        run_model_server(script) as server,
        run_on_terminal(root, *args, columns=columns, rows=40, env={**local(server.base_url), **env}) as screen,
    ):
        assert gate.arrived.wait(20)
        steps = [f"  {'Searching for word number ' + str(at) if at % 2 else 'Taking a note'}" for at in (3, 4, 5, 6)]

        def settled(lines: list[str]) -> bool:
            """Whether four steps stand above what it does now, and its figures above them."""
            now = max((at for at, line in enumerate(lines) if line), default=0)
            figures = " ".join(lines[now - 7 : now - 4])
            spent = re.search(r" · turn 8 of 20 · \w+ tokens · \$\d\.\d+\s+of \$0\.50", figures)
            turning = lines[now][:1] in frames and lines[now][2:] == "Thinking"
            return turning and lines[now - 4 : now] == steps and spent is not None

        screen.until_shown(settled)
        drawn = screen.text.count("Thinking")
        screen.until_shown(lambda _lines: screen.text.count("Thinking") > drawn + 2)  # it turns
        gate.released.set()
        assert screen.ended() == 0
        left = "\n".join(screen.lines)
    assert "Twelve cents a minute." in left and "All looked up." in left
    assert "word number" not in left and "Thinking" not in left, "the result replaces the steps"
    assert "Traceback" not in screen.text


def test_a_resize_while_runs_work_leaves_one_table(root: Path, workspace: Path) -> None:
    gate = Gate()
    args = ("run", "--parallel", "researcher", FIRST, SECOND, "--workspace", str(workspace), "--yes", "--max-cost", "1")
    with (
        run_model_server(lambda _request: Say("", DONE.calls, gate=gate)) as server,
        run_on_terminal(root, *args, columns=120, rows=40, env=local(server.base_url)) as screen,
    ):
        assert gate.arrived.wait(20)
        screen.until_shown(lambda lines: sum("researcher: What does" in line for line in lines) == 2)
        for columns in (60, 200, 80):
            screen.resize(columns, 40)
            drawn = screen.text.count("2 subagents, 0 ended")
            screen.until_shown(lambda _lines, drawn=drawn: screen.text.count("2 subagents, 0 ended") > drawn + 1)  # type: ignore[misc]
            table = [line for line in screen.lines if re.search(r"S-[0-9a-f]{6}  ", line)]
            assert len(table) == 2 and all(len(line) < columns for line in table), screen.lines
        gate.released.set()
        assert screen.ended() == 0


def test_a_terminal_that_is_closed_meanwhile_ends_the_view_without_a_traceback(root: Path, workspace: Path) -> None:
    gate = Gate()
    args = ("run", "researcher", FIRST, "--workspace", str(workspace), "--yes", "--max-cost", "0.50")
    with (
        run_model_server([Say("", gate=gate), DONE]) as server,
        run_on_terminal(root, *args, env=local(server.base_url)) as screen,
    ):
        assert gate.arrived.wait(20)
        screen.until("turn 1 of 20")
        screen.vanish()
        screen.process.wait(20)
    assert "Traceback" not in screen.text
    [run] = json.loads(ava(root, "status", "--json").stdout)["runs"]
    assert run["state"] in ("interrupted", "cancelled", "abandoned"), run


def test_a_dumb_terminal_gets_plain_lines(root: Path, workspace: Path) -> None:
    args = ("run", "researcher", FIRST, "--workspace", str(workspace), "--yes", "--max-cost", "0.50")
    with (
        run_model_server([NOTE, DONE]) as server,
        run_on_terminal(root, *args, env={**local(server.base_url), "TERM": "dumb"}) as screen,
    ):
        assert screen.ended() == 0
    assert "\x1b" not in screen.text and "\r" not in screen.text.replace("\r\n", "\n")
    assert re.search(r"^researcher S-\w{6}: .* · turn \d of 20 · ", screen.text, re.MULTILINE)

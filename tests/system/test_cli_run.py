"""`ava run`, and what the other commands then tell of it: real processes, a real model server."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.log import Life, write_each
from support.model_server import Gate, Say, run_model_server
from support.runtime import PRICED, submit
from support.terminal import COMMAND, ava, environment, logged_events, run_on_terminal

from ava_audit.events import ENDINGS
from ava_audit.store.store import Store
from ava_server.cli.results import ENDING_CODES
from ava_server.core.data_root import os_user

pytestmark = pytest.mark.slow

TASK = "What does transcription pricing cost?"
DONE = Say("", [("submit_result", {"summary": "All looked up.", "output": "Twelve cents a minute."})])


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.md").write_text("# Pricing\n\nThe transcription price of Otter is twelve cents a minute.\n")
    return folder


def test_a_run_that_a_script_starts_says_that_no_worker_does_it(tmp_path: Path, workspace: Path) -> None:
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    (root / "config.toml").write_text('runs_on = "workers"\n')
    words = ("run", "researcher", TASK, "-w", str(workspace), "--yes", "--max-cost", "1")
    with run_model_server([DONE, DONE]) as model:
        env = {"AVA_MODEL_BASE_URL": model.base_url, "AVA_MODEL": "test"}
        done = ava(root, *words, env=env)
        assert done.returncode == 0, done.stderr
        assert "This process does the run (--yes), no worker: it ends with this command.\n" in done.stderr
        (root / "config.toml").write_text("")
        assert "no worker" not in ava(root, *words, env=env).stderr


# -- without a terminal ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both as one"])
def test_a_run_of_a_script_whose_output_nobody_reads_any_more_is_cancelled(
    root: Path, workspace: Path, closed: str
) -> None:
    gate = Gate()
    with run_model_server([Say("", [("scratchpad", {"note": "a"})]), Say("", gate=gate)]) as model:
        process = subprocess.Popen(
            [*COMMAND, "run", "researcher", TASK, "-w", str(workspace), "--yes", "--max-cost", "1"],
            env=environment(root, **local(model.base_url)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if closed == "both as one" else subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == f"Data root: {root}\n".encode()
        going, left = (process.stderr, process.stdout) if closed == "stderr" else (process.stdout, process.stderr)
        assert going is not None
        while closed != "stdout" and " · turn ".encode() not in (line := going.readline()):
            assert line
        going.close()
        assert process.wait(60) == 141
        said = ""
        if left is not None:
            said = left.read().decode()
            left.close()
        gate.released.set()
    assert ("Cancelling." in said) == (closed == "stdout") and "Traceback" not in said
    [ended] = logged_events(root, "--type", "SubagentComplete")
    assert ended["content"]["status"] == "cancelled"


def test_run_with_yes_prints_the_result_and_records_no_human_approval(root: Path, workspace: Path) -> None:
    done = ava(
        root, "run", "researcher", TASK, "--workspace", "work", "--yes", "--max-cost", "0.10", cwd=workspace.parent
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"Data root: {root}"
    assert "The transcription price of Otter is twelve cents a minute." in done.stdout
    assert "✓ quote found word for word" in done.stdout
    assert "source: notes.md:1" in done.stdout
    assert "## Output" not in done.stdout, "the offline reader's output only repeats the findings"
    assert "Ava wants to start a researcher" in done.stderr
    assert f"can read {workspace}" in done.stderr
    decided = logged_events(root, "--type", "SpawnDecided")
    assert [event["content"]["channel"] for event in decided] == ["host_call"]
    [row] = json.loads(ava(root, "report", "approvals", "--json").stdout)["decisions"]
    by = row["decided_by"]
    assert (by["kind"], by["user"], row["ending"], row["cap"]) == ("script", os_user(), "success", "free")
    assert by["how"].startswith(f"by a script as {os_user()}: the flag --yes of `ava run`")
    assert [event["content"]["transport"] for event in logged_events(root, "--type", "SessionStart")] == ["terminal"]
    said = [event["content"] for event in logged_events(root, "--type", "UserMessage")]
    assert [message["kind"] for message in said] == ["task"]


def test_the_task_comes_from_stdin_and_short_options_mean_the_long_ones(root: Path, workspace: Path) -> None:
    given = (*COMMAND, "run", "researcher", "-", "-w", "work", "-y", "--max-cost", "0.10", "-o", "out.md")
    said: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60, "env": environment(root)}
    done = subprocess.run(given, input=f"{TASK}\n", cwd=workspace.parent, **said)
    assert done.returncode == 0, done.stderr
    assert "twelve cents a minute" in (workspace.parent / "out.md").read_text()
    [task] = [event["content"]["text"] for event in logged_events(root, "--type", "UserMessage")]
    assert task == TASK
    for empty in ("", " \n"):
        nothing = subprocess.run(given, input=empty, cwd=workspace.parent, **said)
        assert nothing.returncode == 2 and "nothing came from there" in nothing.stderr
    twice = ava(root, "run", "--parallel", "researcher", "-", "-", "--yes", "--max-cost", "0.1")
    assert twice.returncode == 2 and "- is given twice" in twice.stderr
    assert "Usage: ava run" in ava(root, "run", "-h").stdout


def test_tasks_come_from_files(root: Path, workspace: Path, tmp_path: Path) -> None:
    for name, text in (("one.md", f"{TASK}\n"), ("two.md", "And\nOtter?"), ("empty.md", " \n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    common = ("run", "researcher", "-w", str(workspace), "-y", "--max-cost", "0.10")
    done = ava(root, *common, "--parallel", "-f", "one.md", "--file", "two.md", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = [event["content"]["text"] for event in logged_events(root, "--type", "UserMessage")]
    assert sorted(said) == ["2 subagents, approved together.", "And\nOtter?", TASK], "the plan and its steps"
    for file, says in (("empty.md", "is empty"), ("binary", "is not UTF-8 text"), ("none.md", "No such file")):
        wrong = ava(root, *common, "-f", file, cwd=tmp_path)
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1), wrong.stderr
        assert wrong.stderr.startswith(f"ava: --file: {file} ") and says in wrong.stderr


ON_ITS_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp('sh', ['sh', '-c', sys.argv[1]])"
)


def test_a_piped_task_is_approved_at_the_terminal_itself(root: Path, workspace: Path) -> None:
    line = f"printf %s {shlex.quote(TASK)} | {shlex.join(COMMAND)} run researcher - -w {shlex.quote(str(workspace))}"
    with run_on_terminal(root, line, command=(sys.executable, "-c", ON_ITS_TERMINAL)) as screen:
        screen.until("Start it? [y/N]")
        screen.type("y\n")
        assert screen.ended() == 0
        assert "twelve cents a minute" in screen.text


async def expired_proposal(root: Path) -> None:
    proposed = Life("S-eeeeee", user=os_user()).proposal()
    async with Store.open(root) as store:
        await write_each(store, [proposed._replace(fact=proposed.fact.model_copy(update={"expires_us": 1_000}))])


def test_show_wait_and_cancel_without_an_id_mean_the_last_run(root: Path, workspace: Path) -> None:
    assert "You have no subagent yet. Start one with `ava run`" in ava(root, "show").stderr
    assert "You have no subagent yet. Start one with `ava run`" in ava(root, "wait").stderr
    gate = Gate()
    with run_model_server([DONE, Say("x", gate=gate)]) as server:
        env = local(server.base_url)
        ava(root, "run", "researcher", "The first one", "-y", "--max-cost", "1", env=env)
        assert "The first one" in ava(root, "show").stdout
        with subprocess.Popen(
            [*COMMAND, "run", "researcher", "The second one", "-y", "--max-cost", "1"],
            env=environment(root, **env), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as second:  # fmt: skip
            assert gate.arrived.wait(30)
            assert "The second one" in ava(root, "show").stdout
            refused = ava(root, "cancel")
            assert refused.returncode == 2 and "give an id where nobody can be asked" in refused.stderr
            with run_on_terminal(root, "cancel") as screen:
                screen.until("? [y/N]")
                assert "Cancel researcher S-" in screen.text
                screen.type("y\n")
                assert screen.ended() == 0 and "Ended as cancelled" in screen.text
            second.wait(20)
    anyio.run(expired_proposal, root)
    assert "You have no unfinished subagent. To end another user's" in ava(root, "cancel").stderr, "it has expired"


def test_proposes_nothing_without_a_terminal_and_without_yes(root: Path, workspace: Path) -> None:
    done = ava(root, "run", "researcher", TASK, "--workspace", str(workspace), stdin="y\n")
    assert done.returncode == 10
    assert done.stderr == (
        "ava: There is no terminal to ask on, so nothing was proposed. Run it in a terminal, or add --yes and"
        " --max-cost.\n"
    )
    assert not root.exists()


def test_writes_the_result_to_a_file_as_json(root: Path, workspace: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    args = ("run", "researcher", TASK, "--workspace", str(workspace), "--yes", "--max-cost", "$0.10", "--json")
    to_file = ava(root, *args, "--out", str(out), "--name", "prices", "--task-id", "t-1")
    to_stdout = ava(root, *args)

    assert (to_file.returncode, to_file.stdout, to_stdout.returncode) == (0, "", 0)
    for text in (out.read_text(), to_stdout.stdout):
        result = json.loads(text)
        assert result["data_root"] == str(root)
        assert result["state"] == "success"
        assert {quote["verdict"] for quote in result["quotes_checked"]} == {"found"}
    assert (json.loads(out.read_text())["name"], json.loads(out.read_text())["task_id"]) == ("prices", "t-1")


def test_applies_command_line_limits_to_the_proposal(root: Path, workspace: Path) -> None:
    limits = ("--timeout", "2m", "--max-cost", "0.125", "--max-tokens", "5000", "--max-iterations", "3")
    args = ("run", "researcher", TASK, "--workspace", str(workspace), "--context", "for a podcast", *limits, "--yes")
    assert ava(root, *args).returncode == 0
    (proposed,) = logged_events(root, "--type", "SpawnProposed")
    config = proposed["content"]["config"]
    caps = ("timeout_s", "max_cost_micros", "max_tokens", "max_iterations")
    assert [config[cap] for cap in caps] == [120, 120_000, 5_000, 3], "the cost is rounded down to whole cents"
    (task,) = (event["content"] for event in logged_events(root, "--type", "UserMessage"))
    assert task["context"] == "for a podcast"


def test_an_unreachable_endpoint_exits_with_20_and_says_what_to_do(root: Path, workspace: Path) -> None:
    done = ava(
        root, "run", "researcher", TASK, "--workspace", str(workspace), "--yes", "--max-cost", "0.10",
        env=local("http://127.0.0.1:9/v1"),
    )  # fmt: skip
    assert done.returncode == 20
    assert "Ended as error" in done.stdout
    assert "127.0.0.1:9" in done.stdout
    assert "What to do: " in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("script", "limits", "code", "says"),
    [
        ([Say("", [("scratchpad", {"note": "a"})]), DONE], ("--max-iterations", "1"), 13, "Ended as iteration limit"),
        (
            [Say("", [("scratchpad", {"note": "a"})], usage={"prompt_tokens": 9_000, "completion_tokens": 500})] * 9,
            ("--max-tokens", "40000"),
            11,
            "Ended as token exceeded",
        ),
    ],
)
def test_an_exceeded_limit_has_its_own_exit_code(
    root: Path, workspace: Path, script: list[Say], limits: tuple[str, ...], code: int, says: str
) -> None:
    with run_model_server(script) as server:
        args = ("run", "researcher", TASK, "--workspace", str(workspace), "--yes", "--max-cost", "0.10", *limits)
        done = ava(root, *args, env=local(server.base_url))
    assert (done.returncode, says in done.stdout) == (code, True), done.stdout + done.stderr


def test_every_ending_has_an_exit_code() -> None:
    assert set(ENDING_CODES) | {"error"} == set(ENDINGS)
    assert sorted(set(ENDING_CODES.values())) == [0, 10, 11, 12, 13, 14, 15, 16, 17, 18]


def test_a_broken_config_exits_with_30_and_names_the_file(root: Path, workspace: Path) -> None:
    root.mkdir()
    (root / "config.toml").write_text("limits = = 3\n")
    for args in (("run", "researcher", TASK, "--yes", "--max-cost", "1"), ("status", "--once")):
        done = ava(root, *args)
        assert done.returncode == 30
        assert done.stderr.startswith(f"ava: {root}/config.toml is not valid TOML")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("researcher", "x", "--yes", "--max-cost", "0"), "--max-cost: '0'"),
        (("researcher", "x", "--yes", "--max-cost", "nan"), "--max-cost: 'nan'"),
        (("researcher", "x", "--yes", "--max-cost", "much"), "--max-cost: 'much'"),
        (("researcher", "x", "--yes", "--max-cost", "1", "--timeout", "soon"), "--timeout: 'soon'"),
        (("researcher", "x", "--yes", "--max-cost", "1", "--timeout", "0m"), "--timeout: '0m'"),
        (("researcher", "x", "--yes", "--max-cost", "1", "--max-tokens", "-5"), "ava: --max-tokens: "),
        (("researcher", " ", "--yes", "--max-cost", "1"), "ava: TASK: only white space"),
        (
            ("custom", "x", "--yes", "--max-cost", "1"),
            "ava: --system-prompt: role custom has no instructions of its own",
        ),
        (
            ("researcher", "x", "--yes", "--max-cost", "1", "--tools", "read_file,fly"),
            "ava: --tools: researcher has no",
        ),
        (("researcher", "x", "--yes", "--max-cost", "1", "--blocked-tools", "fly"), "ava: --blocked-tools: "),
        (("researcher", "x", "--yes", "--max-cost", "1", "--output-schema", "none.json"), "--output-schema: none.json"),
        (("pirate", "x", "--yes", "--max-cost", "1"), "pirate"),
        (("researcher", "x", "--yes", "--max-cost", "1", "--context-from", "S-7"), "ava: --context-from: 'S-7' is not"),
        (("researcher", "x", "--yes", "--max-cost", "1", "--workspace", "/nowhere/at/all"), "/all does not exist"),
        (("researcher", "x", "--yes", "--max-cost", "1", "--model", "gpt-x"), "ava: --model: 'gpt-x'"),
        (("researcher", "x", "--yes", "--max-cost", "1", "--model", "openai:gpt-5"), "key set openai`"),
        (("researcher", "x", "--yes", "--max-cost", "1", "--out", "/nowhere/at/all.txt"), "--out: "),
    ],
)
def test_a_usage_mistake_prints_one_sentence_and_exits_with_2(
    root: Path, workspace: Path, args: tuple[str, ...], says: str
) -> None:
    (workspace / ".git").write_text("gitdir: elsewhere")  # in a repository, only its folders are allowed
    done = ava(root, "run", *args, cwd=workspace)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000])
def test_an_invalid_schema_prints_one_sentence(root: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "schema.json").write_text(text)
    args = ("run", "researcher", "x", "--yes", "--max-cost", "1", "--output-schema", "schema.json")
    done = ava(root, *args, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("ava: --output-schema: schema.json ")
    assert not root.exists()


def test_a_custom_role_takes_prompt_tools_and_schema_from_the_command_line(
    root: Path, workspace: Path, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"price": {"type": "string"}}, "required": ["price"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    done = Say("", [("submit_result", {"summary": "Looked up.", "output": {"price": "twelve cents"}})])
    with run_model_server([done]) as server:
        args = (
            "run", "custom", TASK, "--system-prompt", "You look up prices.", "--output-schema", "schema.json",
            "--tools", "read_file,search_codebase", "--tools", "scratchpad", "--blocked-tools", "search_codebase",
            "--workspace", str(workspace), "--yes", "--max-cost", "1", "--json",
        )  # fmt: skip
        finished = ava(root, *args, cwd=tmp_path, env=local(server.base_url))
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["untrusted_result"]["output"] == {"price": "twelve cents"}
    (task,) = (event["content"] for event in logged_events(root, "--type", "UserMessage"))
    assert task["system_prompt"] == "You look up prices."
    (proposed,) = logged_events(root, "--type", "SpawnProposed")
    offered = set(proposed["content"]["config"]["tools"])
    assert {"read_file", "scratchpad"} <= offered
    assert not {"search_codebase", "read_webpages"} & offered


def test_an_earlier_result_can_be_passed_on_the_command_line(root: Path, workspace: Path) -> None:
    args = ("run", "researcher", TASK, "--workspace", str(workspace), "--yes", "--max-cost", "1")

    def script(request: dict[str, Any]) -> Say:
        ids = re.findall(r"S-[0-9a-f]{6}", request["messages"][1]["content"])  # behind the task
        new = ids and len(request["messages"]) == 2
        return Say("", [("read_subagent_result", {"id": ids[0]})]) if new else DONE

    with run_model_server(script) as server:
        first = subagent_in(ava(root, *args, env=local(server.base_url)).stdout)
        done = ava(root, *args, "--context-from", first, env=local(server.base_url))
        assert done.returncode == 0, done.stderr
        assert f"Results that it may read: {first} (researcher)." in done.stderr
        assert "Output:\nTwelve cents a minute." in server.requests[-1].json["messages"][-1]["content"]


def test_retry_repeats_an_ended_run_and_shows_the_price_of_another_model(root: Path, workspace: Path) -> None:
    first = ava(root, "run", "researcher", TASK, "--workspace", str(workspace), "--yes", "--max-cost", "0.30")
    assert first.returncode == 0, first.stderr
    [run] = [event["content"]["subagent_id"] for event in logged_events(root, "--type", "SpawnProposed")]
    again = ava(root, "run", "--retry", run, "--yes", "--max-cost", "0.10")
    assert again.returncode == 0, again.stderr
    assert f"can read {workspace}" in again.stderr and "twelve cents" in again.stdout
    (root / "config.toml").write_text(PRICED)
    with run_model_server([submit()]) as model:
        env = {"AVA_MODEL_BASE_URL": model.base_url, "AVA_MODEL": "test"}
        other = ava(root, "run", "--retry", run, "--model", "custom:test", "--yes", "--max-cost", "0.20", env=env)
    assert other.returncode == 0, other.stderr
    assert "costs at most $0.20" in other.stderr and "Model: custom:test." in other.stderr
    assert TASK in model.requests[0].json["messages"][1]["content"]
    proposed = [event["content"] for event in logged_events(root, "--type", "SpawnProposed")]
    assert [each.get("retry_of") for each in proposed] == [None, run, run]
    assert {each["config"]["workspace"] for each in proposed} == {str(workspace)}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--retry", "S-000000"), "no subagent S-000000"),
        (("--retry", "seven"), "'seven' is not an id"),
        (("--retry", "S-000000", "researcher"), "Give ROLE and TASK"),
        ((), "Give ROLE and TASK"),
        (("researcher",), "Give ROLE and TASK"),
    ],
)
def test_reports_what_cannot_be_retried_in_one_sentence(root: Path, args: tuple[str, ...], says: str) -> None:
    done = ava(root, "run", *args, "--yes", "--max-cost", "0.10")
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(("option", "planned"), [("--plan", True), ("--no-plan", False)])
def test_planning_can_be_turned_on_or_off_on_the_command_line(
    root: Path, workspace: Path, option: str, planned: bool
) -> None:
    (root / "roles").mkdir(parents=True)
    (root / "roles" / "thinker.md").write_text(
        f"---\ndescription: Thinks.\nplan: {json.dumps(not planned)}\n---\nThink.\n"
    )
    script = [Say("A price is asked for."), Say("1. read_file notes.md"), Say("KEEP"), DONE] if planned else [DONE]
    with run_model_server(script) as server:
        args = ("run", "thinker", TASK, "--workspace", str(workspace), "--yes", "--max-cost", "1", option)
        done = ava(root, *args, env=local(server.base_url))
    assert done.returncode == 0, done.stderr
    assert ("It plans first and then works" in done.stderr) is planned
    plans = [event["content"]["plan"] for event in logged_events(root, "--type", "PlanReady")]
    assert plans == (["1. read_file notes.md"] if planned else [])


@pytest.mark.parametrize("command", [("serve",), ("run", "researcher", "x", "--yes", "--max-cost", "1")])
def test_serve_and_run_refuse_to_start_inside_a_run(root: Path, command: tuple[str, ...]) -> None:
    done = ava(root, *command, env={"AVA_RUN_ID": "S-7f3a2b"})
    assert done.returncode == 2
    assert "a subagent starts no subagents (AVA_RUN_ID is set)" in done.stderr
    assert not root.exists()


@pytest.mark.parametrize("table", ["", f"[users.{os_user()}]\n"])
def test_a_terminal_does_not_relax_policy_human(root: Path, table: str) -> None:
    root.mkdir()
    (root / "config.toml").write_text(f'{table}approval = "human"\n')
    done = ava(root, "run", "researcher", "x", "--yes", "--max-cost", "1")
    assert done.returncode == 10
    assert f'{table}approval = "human"'.replace("\n", " ") in " ".join(done.stderr.split())
    assert not (root / "ava.db").exists()


def test_sigint_without_a_terminal_cancels_and_shows_partial_results(root: Path, workspace: Path) -> None:
    gate = Gate()
    with run_model_server([Say("", [("scratchpad", {"note": "first note"})]), Say("", gate=gate)]) as server:
        process = subprocess.Popen(
            [*COMMAND, "run", "researcher", TASK, "--workspace", str(workspace), "--yes", "--max-cost", "1"],
            env=environment(root, **local(server.base_url)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert gate.arrived.wait(20)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    assert process.returncode == 15
    assert "Ended as cancelled" in out
    assert "first note" in out
    assert "Traceback" not in errors


# -- on a terminal -----------------------------------------------------------------------------------------------------


def test_yes_in_the_terminal_counts_as_human_approval(root: Path, workspace: Path) -> None:
    with run_on_terminal(root, "run", "researcher", TASK, "--workspace", str(workspace)) as screen:
        screen.until("Start it? [y/N]")
        screen.type("yes\n")
        assert screen.ended() == 0
    assert screen.text.startswith(f"Data root: {root}\n")
    assert "twelve cents a minute" in screen.text
    (decided,) = logged_events(root, "--type", "SpawnDecided")
    assert decided["content"]["channel"] == "terminal"
    said = [event["content"] for event in logged_events(root, "--type", "UserMessage")]
    assert [message["kind"] for message in said] == ["task", "decision"]

    shown = ava(root, "show", subagent_in(screen.text))
    assert "by a person at the terminal" in shown.stdout


@pytest.mark.parametrize("answer", ["\n", "n\n", "yes please\n", "\x04", "ctrl-c"])
def test_anything_but_yes_in_the_terminal_starts_nothing(root: Path, workspace: Path, answer: str) -> None:
    with run_on_terminal(root, "run", "researcher", TASK, "--workspace", str(workspace)) as screen:
        screen.until("Start it? [y/N]")
        if answer == "ctrl-c":
            screen.interrupt()
        else:
            screen.type(answer)
        assert screen.ended() == 10
    assert "Not approved; nothing was started." in screen.text
    assert "Traceback" not in screen.text
    assert [event["content"]["decision"] for event in logged_events(root, "--type", "SpawnDecided")] == ["rejected"]


@pytest.mark.parametrize("answer", ["c\n", "ctrl-c"])
def test_ctrl_c_asks_and_can_cancel_the_run(root: Path, workspace: Path, answer: str) -> None:
    gate = Gate()
    args = ("run", "researcher", TASK, "--workspace", str(workspace), "--yes", "--max-cost", "1")
    with (
        run_model_server([Say("", gate=gate)]) as server,
        run_on_terminal(root, *args, env=local(server.base_url)) as screen,
    ):
        assert gate.arrived.wait(20)
        screen.interrupt()
        screen.until("[c]ancel or [l]eave:")
        if answer == "ctrl-c":
            screen.interrupt()
        else:
            screen.type(answer)
        assert screen.ended() == 15
    assert "Ended as cancelled" in screen.text
    assert "Traceback" not in screen.text


def test_ctrl_c_asks_and_can_leave_the_run_to_the_next_server(root: Path, workspace: Path) -> None:
    gate = Gate()
    args = ("run", "researcher", TASK, "--workspace", str(workspace), "--yes", "--max-cost", "1")
    # The call in flight is booked as unknown, and made again by whoever takes the run up.
    with run_model_server([Say("", gate=gate), DONE]) as server:
        with run_on_terminal(root, *args, env=local(server.base_url)) as screen:
            assert gate.arrived.wait(20)
            screen.interrupt()
            screen.until("[c]ancel or [l]eave:")
            screen.type("l\n")
            assert screen.ended() == 130
        run_id = subagent_in(screen.text)
        assert f"Left. To see more: `ava show {run_id}`." in screen.text
        assert "If left, it will be interrupted until an Ava server of this user with the same endpoint" in screen.text
        status = ava(root, "status", "--once")
        assert re.search(rf"^‖ interrupted +{run_id} ", status.stdout, re.MULTILINE)

        other = ("run", "researcher", "Something else", "--workspace", str(workspace), "--yes", "--max-cost", "1")
        with run_on_terminal(root, *other) as second:
            assert second.ended() == 17
        # Another server that cannot honour it leaves it alone; one with the same endpoint takes it up.
        process = subprocess.Popen(
            [*COMMAND, "serve"], env=environment(root, **local(server.base_url)), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while "success" not in ava(root, "show", run_id).stdout.splitlines()[1]:
            assert time.monotonic() < deadline
        process.communicate(timeout=10)
    assert "All looked up." in ava(root, "show", run_id).stdout


def test_model_text_cannot_control_the_terminal(root: Path, workspace: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m red \u202e over"
    result = {
        "summary": evil,
        "output": f"{evil} output",
        "caveats": [evil],
        "findings": [{"claim": evil, "quote": evil}],
    }
    with run_model_server(
        [Say(evil, [("scratchpad", {"note": evil})]), Say("", [("submit_result", result)])]
    ) as server:
        args = ("run", "researcher", TASK, "--workspace", str(workspace), "--yes", "--max-cost", "1")
        with run_on_terminal(root, *args, env=local(server.base_url)) as screen:
            assert screen.ended() == 0
    run_id = subagent_in(screen.text)
    texts = [screen.text]
    for command in (("show", run_id), ("show", run_id, "--json"), ("logs",), ("logs", "--json"), ("status", "--once")):
        with run_on_terminal(root, *command) as view:
            assert view.ended() == 0
        texts.append(view.text)
    for text in texts:
        assert "over" in text or "Today" in text
        for steering in ("\x1b]", "\x07", "\x1b[2J", "\x9b", "\u202e"):
            assert steering not in text


# -- what the other commands tell of it --------------------------------------------------------------------------------


def test_show_prints_the_whole_run_and_marks_it_as_fetched(root: Path, workspace: Path) -> None:
    args = ("run", "researcher", TASK, "--workspace", str(workspace), "--context", "for a podcast", "--yes")
    left = ava(root, *args, "--max-cost", "0.10", "--json", "--name", "prices")
    run_id = json.loads(left.stdout)["subagent_id"]
    shown = ava(root, "show", run_id.removeprefix("S-").upper())

    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == f"Data root: {root}"
    assert lines[1].startswith(f'# researcher "prices" ({run_id}): success') and lines[1].endswith(" · free")
    order = [
        *("twelve cents a minute", "## Asked and approved", TASK, "Context: for a podcast"),
        *(
            "Approved ",
            "Caps: free, 10 min",
            "Model: no language model (finds passages by words).",
            "## Turns: ",
            "search_and_read query=",
        ),
    ]
    places = [shown.stdout.index(part) for part in order]
    assert places == sorted(places)
    assert "$0" not in shown.stdout, "it is called free in one place and $0.00 in another"
    log = ava(root, "show", run_id, "--log").stdout
    assert log.index("approved by a call of the host") < log.index("ToolCall search_and_read")
    assert log.index("ToolCall search_and_read") < log.index("SubagentComplete")
    carried = [
        event for event in logged_events(root, "--type", "ToolResult", "--agent", "ava") if event.get("runId") == run_id
    ]
    assert [event["content"]["tool"] for event in carried] == ["ava run", "ava show"]

    as_json = json.loads(ava(root, "show", run_id, "--json").stdout)
    assert as_json["run"]["untrusted_result"]["findings"]
    assert as_json["asked"]["context"] == "for a podcast"
    assert as_json["entries"][0]["eventType"] == "SpawnProposed"


@pytest.mark.parametrize(
    ("given", "says"),
    [("S-000000", "no subagent S-000000"), ("P-00000000", "P-00000000"), ("seven", "'seven' is not an id")],
)
def test_show_reports_an_unknown_id_in_one_sentence(root: Path, given: str, says: str) -> None:
    done = ava(root, "show", given)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr
    assert not root.exists(), "looking makes no data root"


def test_status_shows_active_and_ended_runs_and_budgets_in_rows(root: Path, workspace: Path) -> None:
    gate = Gate()
    args = ("run", "researcher", TASK, "--workspace", str(workspace), "--yes", "--max-cost", "1", "--name", "x" * 60)
    first = ava(root, *args)
    assert first.returncode == 0
    with (
        run_model_server([Say("", gate=gate), DONE]) as server,
        run_on_terminal(root, *args, env=local(server.base_url)) as screen,
    ):
        assert gate.arrived.wait(20)
        status = ava(root, "status", "--once")
        as_json = json.loads(ava(root, "status", "--json", "--all").stdout)
        gate.released.set()
        screen.ended()

    lines = status.stdout.splitlines()
    assert lines[0] == f"Data root: {root}"
    assert max(map(len, lines[1:])) <= 160
    assert any(re.match(r"▶ running +S-\w{6}  x+…: .* free  .*\d+ s of 10 min", line) for line in lines), status.stdout
    assert {run["task"] for run in as_json["runs"]} == {TASK}
    assert any(re.match(rf"✓ success +S-\w{{6}}  x+…: {re.escape(TASK[:20])}", line) for line in lines)
    assert any(line.endswith("$0.00 of $25.00 spent") for line in lines)
    assert sorted(run["state"] for run in as_json["runs"]) == ["running", "success"]
    assert [budget["cap_cents"] for budget in as_json["today"]] == [1000, 2500]


def test_status_shows_in_local_time_when_a_proposal_expires(root: Path, workspace: Path) -> None:
    with run_on_terminal(root, "run", "researcher", TASK, "--workspace", str(workspace)) as screen:
        screen.until("Start it? [y/N]")
        status = ava(root, "status", "--once", env={"TZ": "JST-9"}).stdout
        screen.type("n\n")
        screen.ended()
    found = re.search(
        r"S-\w{6}  (.+?)  +researcher .* free .* max 10 min +(\d\d):(\d\d)\n"
        r".* expires (?:\d{4}-\d\d-\d\d )?(\d\d):(\d\d)$",
        status,
        re.MULTILINE,
    )
    assert found is not None, status
    assert found[1] == TASK
    asked, expires = (int(found[hour]) * 60 + int(found[hour + 1]) for hour in (2, 4))
    assert (expires - asked) % 1440 in (10, 11)


def test_status_of_an_empty_data_root_says_so_and_creates_nothing(root: Path) -> None:
    done = ava(root, "status")
    assert done.returncode == 0
    assert "No subagents: none waits, runs, or ended within the last hour." in done.stdout
    assert not root.exists()


def local(base_url: str) -> dict[str, str]:
    return {"AVA_MODEL_BASE_URL": base_url, "AVA_MODEL": "test"}


def subagent_in(text: str) -> str:
    found = re.search(r"S-[0-9a-f]{6}", text)
    assert found is not None, text
    return found[0]

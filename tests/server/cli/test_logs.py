"""`ava logs` as people and scripts use it: real processes on a real log."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import anyio
import pytest
from support.commands.imports import modules_of, own_modules, packages_of_others
from support.log import AVA, Life, message, run_who, write_each
from support.terminal import COMMAND, ava, environment, run_on_terminal

from ava_audit.entries import line_fault
from ava_audit.events import Event, SessionStart, SubagentSpawn, ToolCall, ToolResult, Who
from ava_audit.store.store import Store
from ava_roles.wrap import wrap_tool_output
from ava_server.core.data_root import os_user

pytestmark = pytest.mark.slow

ONE, OTHER = "S-aaaaaa", "S-bbbbbb"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log with two runs of two users: one that went well, one with a failed tool and an error."""
    other = Life(OTHER, user="eve")
    put(
        tmp_path,
        Event(AVA, SessionStart(client="claude-code", transport="stdio")),
        *Life(ONE).all_events(),
        *other.beginning(),
        *other.tool("no such page", success=False),
        other.error("no answer"),
        *other.ending("timeout"),
        message("the zebra walks", Who("sess-2", "ava", "ben")),
    )
    return tmp_path


def test_imports_only_what_reads_the_log_and_no_event_loop(root: Path) -> None:
    modules = modules_of(root, "logs", "--last", "20")
    assert modules.isdisjoint({"asyncio", "ssl", "portalocker", "rich", "ava_audit.store.store"})
    assert packages_of_others(modules) <= {
        "typer", "annotated_doc", "shellingham", "pydantic", "pydantic_core", "annotated_types", "typing_inspection",
        "typing_extensions", "anyio", "sniffio", "platformdirs",
    }  # fmt: skip
    assert len(own_modules(modules)) <= 54, own_modules(modules)


def test_shows_the_last_entries_of_all_agents_newest_last(root: Path) -> None:
    everything = lines(root, "--last", "100", "--all")
    assert agents(root, "--last", "100") == {"ava", ONE, OTHER}
    assert "SessionStart claude-code stdio" in everything[0]
    assert everything[-1].endswith("ava UserMessage (message) the zebra walks")
    assert lines(root, "--last", "2", "--all") == everything[-2:]
    assert "The newest 2 entries; --last shows more." in ava(root, "logs", "--last", "2").stdout


def test_shows_the_trace_of_one_subagent_by_its_id_in_any_form(root: Path) -> None:
    trace = lines(root, ONE)
    assert agents(root, ONE) == {ONE}
    assert any("ToolCall web_search query=prices" in line for line in trace)
    assert lines(root, "AAAAAA") == trace
    assert lines(root, "P-aaaaaa00") == trace


def test_without_an_id_or_an_option_it_is_the_log_of_ones_own_last_run(root: Path) -> None:
    assert agents(root) == {"ava", ONE, OTHER}, "nobody's run here is this user's"
    own, earlier = "S-cccccc", "S-dddddd"
    for run in (earlier, own):
        put(root, *Life(run, user=os_user()).all_events())
    put(root, *Life("S-eeeeee", user="eve").all_events())
    assert lines(root) == lines(root, own) != []
    _root, first, *_entries = ava(root, "logs").stdout.splitlines()
    assert first == "Your last run: researcher S-cccccc. The log of all agents: ava logs --last 50"
    assert lines(root, "--utc")[-1].split()[2:] == lines(root, own)[-1].split()[2:]
    for option in (("--last", "50"), ("--all",), ("--type", "tool"), ("--since", "1h"), ("--level", "info")):
        assert "Your last run" not in ava(root, "logs", *option).stdout
        assert {ONE, OTHER, own, earlier} & agents(root, *option), option
    assert len(ava(root, "logs", "--json", "--last", "1000").stdout.splitlines()) > 50
    assert len(ava(root, "logs", "--json").stdout.splitlines()) == 50, "for scripts it stays the whole log"


def test_shows_the_errors_of_the_last_hour(root: Path) -> None:
    found = types(root, "--type", "error", "--since", "1 hour ago")
    assert sorted(found) == ["ErrorOccurred", "SubagentComplete", "ToolResult"]
    assert agents(root, "--type", "error", "--since", "1 hour ago") == {"ava", OTHER}
    assert lines(root, "--type", "error", "--until", "1 hour ago") == []
    assert "No entry matches." in ava(root, "logs", "--since", "2100-01-01").stdout


def test_filters_work_alone_and_together(root: Path) -> None:
    assert set(types(root, "--type", "toolcall", "--type", "cost")) == {"ToolCall", "CostReserved", "CostUpdate"}
    assert set(types(root, "--type", "ToolResult,ToolCall", "--type", "spawn")) == {
        *("ToolCall", "ToolResult", "SpawnProposed", "SpawnDecided")
    }
    assert agents(root, "--agent", ONE, "--agent", OTHER) == {ONE, OTHER}
    assert agents(root, "--agent", "AVA") == {"ava"}
    assert agents(root, "--user", "eve") == {"ava", OTHER}
    assert lines(root, "--session", "sess-2") == lines(root, "--search", "zebra")
    assert lines(root, "--search", '"zebra walks"') == lines(root, "--last", "1")
    assert lines(root, "--search", '"walks zebra"') == []
    assert set(types(root, "--level", "error")) == {"ErrorOccurred", "ToolResult"}
    assert types(root, OTHER, "--user", "eve", "--type", "tool", "--level", "error", "--since", "1h") == ["ToolResult"]


def test_times_are_local_or_utc(root: Path) -> None:
    (utc,) = lines(root, "--last", "1", "--utc", env={"TZ": "Asia/Tokyo"})
    (local,) = lines(root, "--last", "1", env={"TZ": "JST-9"})
    assert utc.split("] ")[0].endswith("Z")
    (hour_utc, hour_local) = (int(line.split(":")[0][-2:]) for line in (utc, local))
    assert (hour_local - hour_utc) % 24 == 9


def test_json_lines_match_the_mirror_and_verify(root: Path) -> None:
    done = ava(root, "logs", "--json", "--last", "1000")
    found = done.stdout.encode().splitlines(keepends=True)
    assert [line_fault(line) for line in found] == [None] * len(found)
    entries = [json.loads(line) for line in found]
    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert {"timestamp", "sessionId", "agentId", "userId", "eventType", "content", "metadata", "hash"} <= set(
        entries[0]
    )
    assert len(ava(root, "logs", "--json", "--type", "error").stdout.splitlines()) == 3


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--type", "pirate"), "--type: no event type 'pirate'; short names are error, tool"),
        (("--since", "whenever"), "--since: 'whenever' is not a time; accepted are"),
        (("--until", "nope"), "--until: 'nope' is not a time"),
        (("--since", "1h", "--until", "2h"), "--until: '2h' is before --since ('1h'); give a later time"),
        (("S-123456",), "There is no subagent S-123456"),
        (("nonsense",), "'nonsense' is not an id"),
        (("--agent", "bob"), "--agent: 'bob' is not an agent"),
        (("--type", ","), "--type: it names no type"),
        (("-f", "--until", "1h"), "--until: nothing new is before a time"),
    ],
)
def test_reports_a_mistake_in_one_sentence(root: Path, args: tuple[str, ...], says: str) -> None:
    done = ava(root, "logs", *args)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ava: {says}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("args", [("--last", "0"), ("--last", "many"), ("--level", "loud"), ("--unknown",)])
def test_a_wrong_option_is_a_usage_error(root: Path, args: tuple[str, ...]) -> None:
    done = ava(root, "logs", *args)
    assert done.returncode == 2
    assert "Usage: ava logs" in done.stderr
    assert args[0] in done.stderr


def test_reports_an_empty_log_and_creates_nothing(tmp_path: Path) -> None:
    root = tmp_path / "data"
    done = ava(root, "logs", "--last", "5")
    assert (done.returncode, done.stdout) == (0, f"Data root: {root}\nNothing is in the log yet.\n")
    assert ava(root, "logs", "--json").stdout == ""
    assert not root.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
@pytest.mark.parametrize("command", ["logs", "verify", "status"])
def test_reports_unwritable_output_in_one_sentence(root: Path, command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, command], env=environment(root), stdout=full, stderr=subprocess.PIPE, text=True, timeout=30
        )
    assert done.returncode == 30
    assert done.stderr == "ava: the output could not be written: No space left on device; the command's work is done\n"


def test_following_shows_what_another_process_writes(root: Path) -> None:
    with run_on_terminal(root, "logs", "-f", "--type", "message", columns=120) as screen:
        screen.until("the zebra walks")
        put(
            root,
            message("a giraffe follows"),
            *Life("S-cccccc").beginning()[:1],
            message("and a gnu", run_who("S-dddddd")),
        )
        shown = screen.until("and a gnu")
        screen.interrupt()
        assert screen.ended() == 130
    assert "a giraffe follows" in shown
    assert "S-cccccc" not in shown
    assert "Traceback" not in screen.text


def test_following_can_start_before_there_is_a_log(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with run_on_terminal(root, "logs", "--follow", "--json", columns=200) as screen:
        folder = tmp_path / "work"
        folder.mkdir()
        (folder / "a.txt").write_text("Nothing much.\n")
        args = ("run", "researcher", "Something", "--workspace", str(folder), "--yes", "--max-cost", "1")
        assert ava(root, *args).returncode == 17
        screen.until('"eventType":"SubagentComplete"')
        screen.interrupt()
        assert screen.ended() == 130


def test_ends_quietly_when_its_reader_closes_the_pipe(root: Path) -> None:
    put(root, *(message(f"entry {number} " + "x" * 200) for number in range(1_000)))
    process = subprocess.Popen(
        [*COMMAND, "logs", "--last", "1000"],
        env=environment(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert os.read(process.stdout.fileno(), 10)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(20), errors) == (141, b"")


@pytest.mark.parametrize("option", ["--session", "--user", "--search"])
def test_arguments_that_are_not_text_match_nothing_and_break_nothing(root: Path, option: str) -> None:
    done = subprocess.run(
        [*COMMAND, "logs", option, b"half\xff"], env=environment(root), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"No entry matches." in done.stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_following_ends_when_its_reader_closes_even_while_nothing_is_written(root: Path, as_json: bool) -> None:
    process = subprocess.Popen(
        [*COMMAND, "logs", "-f", *(["--json"] if as_json else [])],
        env=environment(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(20), errors) == (141, b"")


def test_following_into_a_file_or_a_pipe_ends_silently_on_ctrl_c(root: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "logs", "-f", "--search", "zebra OR giraffe"],
        env=environment(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().startswith(b"Data root:")
    process.send_signal(signal.SIGINT)
    _out, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, b"")


def test_a_line_shows_text_before_numbers_plus_counts_and_the_cost_of_an_ending(root: Path) -> None:
    life = Life("S-cccccc")
    args = {"limit": 5, "deep": True, "note": "", "path": "notes.md", "pattern": "price"}
    result = ToolResult(tool="search_codebase", success=True, output="notes.md:1", count=1)
    put(
        root,
        *life.beginning(),
        life.entry(ToolCall(tool="search_codebase", args=args)),
        life.entry(result),
        *life.ending(),
    )
    call, found = (line.partition("] S-cccccc ")[2] for line in lines(root, "S-cccccc", "--type", "tool"))
    assert call == "ToolCall search_codebase path=notes.md pattern=price"
    assert found == "ToolResult search_codebase (success, 1 result) notes.md:1"
    (ending,) = lines(root, "--type", "SubagentComplete", "--search", "S-cccccc")
    assert ending.endswith(" ava SubagentComplete S-cccccc success 30 tokens, $0.003, 1.5 s: done")


@pytest.mark.parametrize("more", [(), (ONE,)], ids=["all", "one run"])
def test_leaves_out_the_bookkeeping_unless_asked_for_it(root: Path, more: tuple[str, ...]) -> None:
    book = {"SessionStart", "SpawnProposed", "RunClaimed", "CostReserved", "RunEnded"}
    shown, everything = set(types(root, *more, "--last", "100")), set(types(root, *more, "--last", "100", "--all"))
    assert shown == everything - book and everything & book
    assert {"ToolCall", "ToolResult", "CostUpdate"} <= shown
    assert types(root, *more, "--type", "CostReserved") == ["CostReserved"]
    written = ava(root, "logs", *more, "--json", "--last", "100").stdout.splitlines()
    assert {json.loads(line)["eventType"] for line in written} == everything, "a program gets everything"


def test_a_line_fits_the_terminal(root: Path) -> None:
    put(root, message("long " * 200))
    with run_on_terminal(root, "logs", "--last", "3", columns=90) as screen:
        assert screen.ended() == 0
    first, *others = unstyled(screen.text).splitlines()
    assert first == f"Data root: {root}"
    assert max(map(len, others)) == 90


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["", "NO_COLOR", "dumb"])
def test_errors_are_red_and_warnings_yellow_on_a_terminal(root: Path, env: dict[str, str]) -> None:
    with run_on_terminal(root, "logs", OTHER, env=env) as screen:
        assert screen.ended() == 0
    failed = next(line for line in screen.text.splitlines() if "ErrorOccurred" in line)
    assert ("\x1b[31m" in failed) is not bool(env) and ("\x1b[" in screen.text) is not bool(env)
    assert "ErrorOccurred model: no answer" in unstyled(failed)
    assert "\x1b" not in ava(root, "logs", OTHER).stdout


def test_errors_are_shown_in_full_on_a_narrow_terminal(root: Path) -> None:
    life = Life("S-eeeeee")
    put(root, *life.beginning(), life.error("no answer came from the endpoint " * 6 + "at last"))
    for args in (("--type", "error"), ("--level", "error"), ("S-eeeeee",)):
        with run_on_terminal(root, "logs", *args, columns=80) as screen:
            assert screen.ended() == 0
        shown = unstyled(screen.text)
        assert shown.rstrip().split("--json has")[0].count("at last") == 1, screen.text
        assert max(map(len, shown.splitlines()[1:])) <= 80
    with run_on_terminal(root, "logs", "--last", "3", columns=80) as screen:
        assert screen.ended() == 0
    assert "at last" not in screen.text
    assert "Lines were cut to fit; --json shows them whole" in screen.text


def test_hides_the_wrapper_around_tool_output_that_only_models_need(root: Path) -> None:
    marked = wrap_tool_output("twelve <b>cents</b>", tool="read_file", nonce="abcdefgh1234", source="notes.md")
    life = Life("S-ffffff")
    cut = f"Failed.\n{marked}\n[cut at 20 of 40 characters]"
    put(root, *life.beginning(), *life.tool(marked), *life.tool(f"before {marked}"), *life.tool(cut, success=False))
    shown = [line for line in lines(root, "S-ffffff") if "ToolResult" in line]
    assert shown[0].endswith(" twelve <b>cents</b>")
    assert "<tool_output_abcdefgh1234" in shown[1], "what only contains a mark is left as it is"
    assert shown[2].endswith("(failed) twelve <b>cents</b> [cut at 20 of 40 characters]"), "the reason comes first"


def test_a_spawn_line_shows_its_name_or_no_gap(root: Path) -> None:
    spawn = SubagentSpawn(
        subagent_id="S-cccccc",
        pending_id="P-cccccc00",
        role="researcher",
        task="Look it up",
        max_cost_cents=5,
        model="m",
    )
    put(root, Event(AVA, spawn), Event(AVA, spawn.model_copy(update={"name": "prices"})))
    first, second = (line.partition(" SubagentSpawn ")[2] for line in lines(root, "--type", "SubagentSpawn"))
    assert (first, second) == ("researcher S-cccccc: Look it up", 'researcher "prices" (S-cccccc): Look it up')


def put(root: Path, *events: Event) -> None:
    """Write events, one command each, as another process would."""

    async def work() -> None:
        async with Store.open(root) as store:
            await write_each(store, events)

    anyio.run(work)


def lines(root: Path, *args: str, env: dict[str, str] | None = None) -> list[str]:
    """The entries, without what stands above them."""
    done = ava(root, "logs", *args, env=env)
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert first == f"Data root: {root}"
    return [line for line in others if line.startswith("[")]


def unstyled(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def types(root: Path, *args: str) -> list[str]:
    return [line.split()[3] for line in lines(root, *args)]


def agents(root: Path, *args: str) -> set[str]:
    return {line.split()[2] for line in lines(root, *args)}

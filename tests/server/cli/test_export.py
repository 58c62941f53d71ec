"""`ava logs export` as people and scripts use it: real processes, real files."""

import json
import os
import stat
import subprocess
from pathlib import Path

import anyio
import pytest
from support.log import AVA, Life, message, write_command, write_each
from support.terminal import COMMAND, ava, environment, run_on_terminal

from ava_audit.events import Event, ToolCall, Who
from ava_audit.store.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log with two runs of two users."""
    root = tmp_path / "data"
    root.mkdir(mode=0o700)

    async def work() -> None:
        async with Store.open(root) as store:
            other = Life("S-bbbbbb", user="eve")
            events = [*Life("S-aaaaaa").all_events(), *other.beginning(), other.error(), *other.ending("timeout")]
            await write_each(store, [*events, message("the zebra walks\u2028 \x9b2J 😀", Who("sess-2", "ava", "ben"))])

    anyio.run(work)
    return root


def entries(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def test_exports_everything_to_a_file_that_only_its_owner_can_read(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "whole log.jsonl"
    done = ava(root, "logs", "export", "-o", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == [f"Data root: {root}", f"19 entries in {file}, readable only by you."]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry["seq"] for entry in entries(file)] == list(range(1, 20))
    assert file.read_bytes() == ava_bytes(root, "logs", "--json", "--last", "1000"), "the lines of `ava logs --json`"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "whole log.jsonl"]


def ava_bytes(root: Path, *args: str, **more: str) -> bytes:
    return subprocess.run([*COMMAND, *args], env=environment(root, **more), capture_output=True, check=True).stdout


@pytest.mark.parametrize(
    ("args", "count"),
    [
        (("--run", "S-aaaaaa"), 11),
        (("--run", "aaaaaa", "--run", "P-bbbbbb00"), 18),
        (("--run", "S-aaaaaa", "--type", "tool"), 2),
        (("--agent", "ava", "--user", "ben"), 4),
        (("--session", "sess-2"), 1),
        (("--search", "zebra"), 1),
        (("--level", "error"), 1),
        (("--type", "error", "--since", "1h"), 2),
        (("--until", "1h"), 0),
    ],
)
def test_filters_match_those_of_ava_logs(root: Path, tmp_path: Path, args: tuple[str, ...], count: int) -> None:
    file = tmp_path / "x.jsonl"
    done = ava(root, "logs", "export", *args, "-o", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(entries(file)) == count
    assert ava(root, "verify", "--jsonl", str(file)).returncode == 0


def test_stdout_gets_only_the_lines_whatever_its_encoding(root: Path, tmp_path: Path) -> None:
    whole = ava_bytes(root, "logs", "export", "-o", "-")
    assert len(whole.splitlines()) == 19
    file = tmp_path / "x.jsonl"
    ava(root, "logs", "export", "-o", str(file))
    assert file.read_bytes() == whole
    for encoding in ("latin-1", "ascii"):
        assert ava_bytes(root, "logs", "export", "-o", "-", PYTHONIOENCODING=encoding) == whole
        assert ava_bytes(root, "logs", "--json", "--last", "99", PYTHONIOENCODING=encoding) == whole


def test_an_export_cannot_control_the_terminal(root: Path) -> None:
    with run_on_terminal(root, "logs", "export", "-o", "-", "--search", "zebra", columns=200) as screen:
        assert screen.ended() == 0
    assert "\x9b" not in screen.text
    assert "\\u009b2J" in screen.text


def test_keeps_an_existing_file_unless_forced(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text("mine")
    kept = ava(root, "logs", "export", "-o", str(file))
    assert (kept.returncode, kept.stderr.count("\n")) == (2, 1)
    assert "exists already; give another name, or --force" in kept.stderr
    assert file.read_text() == "mine"
    assert ava(root, "logs", "export", "--force", "-o", str(file)).returncode == 0
    assert (len(entries(file)), stat.S_IMODE(file.stat().st_mode)) == (19, 0o600)
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(file)
    os.mkfifo(pipe)
    for other in (tmp_path, link, pipe, Path("/dev/null")):
        done = ava(root, "logs", "export", "--force", "-o", str(other))
        assert (done.returncode, "is not a plain file" in done.stderr) == (2, True), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "link", "pipe", "x.jsonl"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "Missing option"),
        (("-o", "/nowhere/x.jsonl"), "-o: /nowhere/x.jsonl cannot be written: No such file or directory"),
        (("-o", "-", "--run", "S-123456"), "There is no subagent S-123456"),
        (("-o", "-", "--type", "pirate"), "--type: no event type 'pirate'"),
        (("-o", "-", "--since", "whenever"), "--since: 'whenever' is not a time"),
    ],
)
def test_reports_a_mistake_in_one_sentence(root: Path, args: tuple[str, ...], says: str) -> None:
    done = ava(root, "logs", "export", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_log_nothing_is_created(tmp_path: Path) -> None:
    done = ava(tmp_path / "data", "logs", "export", "-o", str(tmp_path / "x.jsonl"))
    assert (done.returncode, "There is no log in" in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_commands_to_paste_quote_their_path_and_a_dash_is_no_file(root: Path, tmp_path: Path) -> None:
    place = tmp_path / "my logs"
    place.mkdir()
    for args, command in (
        (("logs", "export", "-o", f"{place}/x.jsonl"), f"ava verify --jsonl '{place}/x.jsonl'"),
        (("export", f"{place}/all.jsonl"), f"ava import '{place}/all.jsonl'"),
        (("backup", f"{place}/b"), f"ava restore '{place}/b'"),
    ):
        done = ava(root, *args)
        assert done.stdout.endswith(f"{command}\n"), done
    (place / "b").rename(tmp_path / "other")
    full = ava(place, "restore", str(tmp_path / "other"))
    assert f"`mv '{place}' '{place}.before'`" in full.stderr, full.stderr
    for given, says in (("-", "not to stdout"), ("", "give another name.")):
        refused = ava(root, "export", given, cwd=place)
        assert refused.returncode == 2 and says in refused.stderr and "-o" not in refused.stderr
    assert not (place / "-").exists()


def test_an_interrupted_export_leaves_nothing_behind(root: Path, tmp_path: Path) -> None:
    async def long() -> None:
        async with Store.open(root) as store:
            for _ in range(40):
                await store.do(
                    write_command(*(Event(AVA, ToolCall(tool="t", args={"x": "y" * 100})) for _ in range(1_000)))
                )

    anyio.run(long)
    with run_on_terminal(root, "logs", "export", "-o", str(tmp_path / "x.jsonl")) as screen:
        screen.until("entries written;")
        screen.interrupt()
        assert screen.ended() == 130
    assert "Traceback" not in screen.text
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    process = subprocess.Popen(
        [*COMMAND, "logs", "export", "-o", "-"], env=environment(root), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    assert os.read(process.stdout.fileno(), 10)
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(20), errors) == (141, b"")

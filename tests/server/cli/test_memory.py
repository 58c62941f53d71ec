"""`ava memory`: people and orchestrators write notes; none is lost, no secret is kept, and none steers a screen."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.redaction import VALUE, leaks_under, store
from support.terminal import COMMAND, ava, environment, run_on_terminal

from ava_roles.memory import NOTE_BYTES

pytestmark = pytest.mark.slow

SHAPE = "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"
posix = pytest.mark.skipif(sys.platform == "win32", reason="no modes, links or pipes there")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "memory").iterdir() if not path.name.startswith("."))


@pytest.mark.requirement("S3-02")
def test_adds_lists_shows_searches_and_removes_a_note(root: Path) -> None:
    added = ava(root, "memory", "add", "prices", "# Prices\n\nOtter charges twelve cents.")
    piped = ava(root, "memory", "add", "house-rules", stdin="Write amounts in euros.\r\n")
    listed = ava(root, "memory")
    as_json: dict[str, Any] = json.loads(ava(root, "memory", "list", "--json").stdout)
    shown = ava(root, "memory", "show", "prices")
    found = ava(root, "memory", "search", "what", "does", "otter", "charge")
    removed = ava(root, "memory", "remove", "prices", "--yes")

    path = root / "memory" / "prices.md"
    assert added.stdout.splitlines() == [f"Data root: {root}", f"Wrote prices: 38 bytes in {path}."]
    day = as_json["notes"][0]["changed"][:10]
    assert listed.stdout.splitlines() == [
        f"Data root: {root}",
        f"house-rules  {day}  24 bytes  Write amounts in euros.",
        f"prices       {day}  38 bytes  Prices",
    ]
    assert [(each["name"], each["bytes"], each["first_line"]) for each in as_json["notes"]] == [
        ("house-rules", 24, "Write amounts in euros."),
        ("prices", 38, "Prices"),
    ]
    assert (
        shown.stdout
        == f"Data root: {root}\nprices: 38 bytes, changed {day}\n\n# Prices\n\nOtter charges twelve cents.\n"
    )
    assert "prices, lines 1 to 3:\n  # Prices\n" in found.stdout and "euros" not in found.stdout
    assert removed.stdout.splitlines() == [f"Data root: {root}", "Removed prices."]
    assert {done.returncode for done in (added, piped, listed, shown, found, removed)} == {0}
    assert names(root) == ["house-rules.md"]
    assert (root / "memory" / "house-rules.md").read_bytes() == b"Write amounts in euros.\n"


@posix
def test_only_the_owner_can_read_a_note(root: Path) -> None:
    ava(root, "memory", "add", "prices", "x")
    assert stat.S_IMODE((root / "memory").stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "memory" / "prices.md").stat().st_mode) == 0o600


def test_adding_to_an_existing_note_appends_and_never_overwrites(root: Path) -> None:
    assert ava(root, "memory", "add", "a", "- first").returncode == 0
    again = ava(root, "memory", "add", "a", "- second")
    assert again.returncode == 2 and "There is a note a already (8 bytes)" in again.stderr
    more = ava(root, "memory", "add", "a", "- second", "--append")
    piped = ava(root, "memory", "add", "a", "-", "--append", stdin="- third")
    assert (more.returncode, piped.returncode) == (0, 0)
    assert (root / "memory" / "a.md").read_text() == "- first\n- second\n- third\n"


@pytest.mark.parametrize("name", ["Prices", "../prices", "a b", "a\nb", "", "nul", "x" * 65, SHAPE.upper()])
def test_rejects_an_invalid_name_without_repeating_it(root: Path, name: str) -> None:
    for command in (("add", name, "x"), ("show", name), ("remove", name, "--yes")):
        done = ava(root, "memory", *command)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert len(name) < 9 or name not in done.stdout + done.stderr
    assert not (root / "memory").exists()


def test_reports_missing_notes_and_unknown_options(root: Path) -> None:
    ava(root, "memory", "add", "a", "x")
    for command in (("show", "b"), ("remove", "b", "--yes")):
        done = ava(root, "memory", *command)
        assert (done.returncode, done.stderr) == (2, "ava: There is no note b. `ava memory` lists the notes.\n")
    assert "unknown option" in ava(root, "memory", "add", "b", "--apend", stdin="x").stderr
    assert "No text was given" in ava(root, "memory", "add", "b", stdin=" \n").stderr
    assert names(root) == ["a.md"]


@pytest.mark.parametrize("held", [VALUE, SHAPE])
def test_rejects_a_text_with_a_secret_and_says_how_to_store_it(root: Path, held: str) -> None:
    store(root)
    added = ava(root, "memory", "add", "a", f"first line\nthe token is {held}")
    ava(root, "memory", "add", "b", "harmless")
    appended = ava(root, "memory", "add", "b", "--append", stdin=f"and {held}")
    for done in (added, appended):
        assert done.returncode == 2, done.stdout
        assert "ava secret set NAME --for HOST" in done.stderr and "{{secret:NAME}}" in done.stderr
        assert held not in done.stdout + done.stderr
    assert names(root) == ["b.md"] and (root / "memory" / "b.md").read_text() == "harmless\n"
    assert all(held.encode() not in path.read_bytes() for path in (root / "memory").rglob("*") if path.is_file())
    assert [leak for leak in leaks_under(root) if "secrets.toml" not in str(leak)] == []


def test_rejects_a_key_known_only_from_the_environment(root: Path) -> None:
    value = "of-no-known-shape-0123456789"
    done = ava(root, "memory", "add", "a", f"use {value}", env={"OPENROUTER_API_KEY": value})
    assert done.returncode == 2 and "stored here" in done.stderr and value not in done.stderr


def test_writes_nothing_when_the_secrets_cannot_be_read(root: Path) -> None:
    store(root)
    (root / "secrets" / "secrets.toml").write_text("broken =")
    done = ava(root, "memory", "add", "a", "x")
    assert done.returncode == 30 and not (root / "memory").exists()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"x" * (NOTE_BYTES + 1), "more than 100,000 bytes"),
        (b"x" * NOTE_BYTES, "would have 100,001 bytes"),
        ("größer".encode("latin-1"), "not UTF-8"),
        (b"a\0b", "zero byte"),
    ],
)
def test_rejects_an_invalid_note_as_a_whole(root: Path, data: bytes, says: str) -> None:
    done = subprocess.run(
        [*COMMAND, "memory", "add", "a"],
        env=environment(root),
        input=data,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and says in done.stderr.decode()
    assert names(root) == [] if (root / "memory").exists() else True


def test_concurrent_additions_lose_no_note(root: Path) -> None:
    ava(root, "memory", "add", "log", "begin")
    adding = [
        subprocess.Popen(
            [*COMMAND, "memory", "add", "log", f"line {number}", "--append"],
            env=environment(root), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for number in range(6)
    ]  # fmt: skip
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in adding] == [(b"", 0)] * 6
    lines = (root / "memory" / "log.md").read_text().splitlines()
    assert lines[0] == "begin" and sorted(lines[1:]) == [f"line {number}" for number in range(6)]
    assert names(root) == ["log.md"]


def test_a_text_that_is_not_piped_in_is_written_with_an_editor_of_ones_own(root: Path) -> None:
    with run_on_terminal(root, "memory", "add", "a", env={}) as screen:
        assert screen.ended() == 2
    assert str(root / "memory" / "a.md") in "".join(screen.text.split())
    (root / "memory").mkdir(mode=0o700, parents=True, exist_ok=True)
    (root / "memory" / "a.md").write_text("twelve\n")
    (root / "memory" / "a.md").chmod(0o600)
    again = ava(root, "memory", "add", "a", "x")
    assert again.returncode == 2 and str(root / "memory" / "a.md") in again.stderr
    assert "twelve" in ava(root, "memory", "show", "a").stdout


# -- what lies in the folder ------------------------------------------------------------------------------------------


@posix
def test_files_that_are_not_notes_are_reported_skipped_and_cannot_control_the_terminal(root: Path) -> None:
    ava(root, "memory", "add", "a", "\x1b]0;owned\x07# \u202etitle\x1b[2J\nbody \x1b[31m")
    folder = root / "memory"
    (folder / "link.md").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe.md")
    (folder / "latin.md").write_bytes(b"gr\xf6\xdfer")
    (folder / "two\nData root: \x1b[31m.md").write_text("x")
    with run_on_terminal(root, "memory") as screen:
        assert screen.ended() == 0
    texts = [
        screen.text,
        *(ava(root, "memory", *each).stdout for each in (("list",), ("show", "a"), ("search", "body"))),
    ]
    texts += [ava(root, "memory", "list", "--json").stdout, ava(root, "memory", "show", "a", "--json").stdout]
    for text in texts:
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "Skipped: link.md: it is a link." in screen.text
    assert "Skipped: pipe.md: it is not a regular file." in screen.text
    assert "Skipped: latin.md: it is not UTF-8 text." in screen.text
    assert "\nData root: " not in screen.text.partition("\n")[2]
    shown = ava(root, "memory", "show", "link")
    assert shown.returncode == 30 and "it is a link" in shown.stderr and "root:" not in shown.stdout
    added = ava(root, "memory", "add", "link", "x", "--append")
    assert added.returncode == 30 and (folder / "link.md").is_symlink()
    assert ava(root, "memory", "remove", "link", "--yes").returncode == 0
    assert not (folder / "link.md").is_symlink() and Path("/etc/passwd").exists()


def test_a_folder_of_other_files_fits_one_screen_and_is_complete_as_json(root: Path) -> None:
    ava(root, "memory", "add", "a", "x")
    for number in range(30):
        (root / "memory" / f"{number}.txt").write_text("x")
    listed = ava(root, "memory")
    assert len(listed.stdout.splitlines()) == 2
    assert len(listed.stderr.splitlines()) == 21 and "10 more" in listed.stderr
    assert len(json.loads(ava(root, "memory", "list", "--json").stdout)["passed_over"]) == 30


@posix
def test_refuses_a_link_in_place_of_the_folder(root: Path, tmp_path: Path) -> None:
    root.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (root / "memory").symlink_to(tmp_path / "elsewhere")
    for command in (("list",), ("add", "a", "x")):
        done = ava(root, "memory", *command)
        assert done.returncode == 30 and "is not a folder, or is a link to one" in done.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_removing_asks_for_confirmation(root: Path) -> None:
    ava(root, "memory", "add", "a", "x")
    piped = ava(root, "memory", "remove", "a", stdin="y\n")
    assert piped.returncode == 2 and "add --yes" in piped.stderr
    with run_on_terminal(root, "memory", "remove", "a") as screen:
        screen.until("Remove the note a for ever? [y/N]")
        screen.type("n\n")
        assert screen.ended() == 10
    assert names(root) == ["a.md"]
    with run_on_terminal(root, "memory", "remove", "a") as screen:
        screen.until("[y/N]")
        screen.type("y\n")
        assert screen.ended() == 0
    assert names(root) == []


@pytest.mark.requirement("S3-02")
def test_a_subagent_process_may_only_read(root: Path) -> None:
    ava(root, "memory", "add", "a", "x")
    inside = {"AVA_RUN_ID": "S-000001"}
    for command in (("add", "b", "x"), ("add", "a", "x", "--append"), ("remove", "a", "--yes")):
        done = ava(root, "memory", *command, env=inside)
        assert done.returncode == 2 and "subagents only read memory" in done.stderr
    assert "a  " in ava(root, "memory", env=inside).stdout
    assert (root / "memory" / "a.md").read_text() == "x\n" and names(root) == ["a.md"]


def test_reading_creates_nothing(root: Path) -> None:
    assert "No notes." in ava(root, "memory").stdout
    assert ava(root, "memory", "show", "a").returncode == 2
    assert not root.exists()
    wrong = ava("relative", "memory")
    assert wrong.returncode == 30

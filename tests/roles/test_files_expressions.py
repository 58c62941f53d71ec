"""Lines are found by an expression, within the workspace and within its time."""

import time
from pathlib import Path

import anyio
import pytest
from support.foreign.searched_files import search_lines

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.tool import ToolContext
from ava_roles.tools import grep


@pytest.mark.parametrize("regex", [False, True])
async def test_finds_lines_by_path_and_skips_ignored_files(at: ToolContext, regex: bool) -> None:
    got = await search_lines(at, "(?i)main" if regex else "MAIN", regex=regex)
    assert got.text.split("\n\n")[1].split("\n") == [
        "docs/guide.md:3: The main thing is the pump.",
        "src/keep.log:1: main kept",
        "src/main.py:3: def Main():",
        "src/util.ts:1: export const main = 1",
    ]
    assert "1 binary, large or unreadable file skipped" in got.text
    assert got.sources[0].location == "docs/guide.md"


async def test_a_literal_search_treats_special_characters_as_text(at: ToolContext) -> None:
    assert (await search_lines(at, "os.getcwd()")).count == 1
    assert (await search_lines(at, "o.*s")).count == 0


async def test_path_glob_and_result_limit_narrow_a_search(at: ToolContext) -> None:
    assert "guide" not in (await search_lines(at, "main", path="src")).text
    assert (await search_lines(at, "main", glob="*.ts")).count == 1
    assert (await search_lines(at, "main", glob="docs/**/*.md")).count == 1
    one = await search_lines(at, "main", max_results=1)
    assert (one.count, "there are more" in one.text) == (1, True)
    assert (await search_lines(at, "main", path="src/util.ts")).count == 1


@pytest.mark.parametrize("path", ["..", "/etc", "outside", "outside/passwd"])
@pytest.mark.parametrize("regex", [False, True])
async def test_a_search_does_not_leave_the_workspace(at: ToolContext, path: str, regex: bool) -> None:
    try:
        got = await search_lines(at, "root", path=path, regex=regex)
    except ToolFailed:
        return
    assert got.count == 0


async def test_reports_an_invalid_expression_and_a_missing_path(at: ToolContext) -> None:
    with pytest.raises(ToolFailed, match="is not a regular expression"):
        await search_lines(at, "(", regex=True)
    with pytest.raises(ToolFailed, match="does not exist"):
        await search_lines(at, "x", path="nowhere")
    with pytest.raises(AccessRefused):
        await search_lines(at, "x", path="../..")


async def test_stops_an_endless_expression_without_blocking_the_server(
    at: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.txt").write_text("a" * 60 + "b\n")
    monkeypatch.setattr(grep, "CHILD_SECONDS", -4)  # the parent's patience is this plus 5 seconds
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.01)
            ticks += 1

    began = time.monotonic()
    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        with pytest.raises(ToolFailed, match="took longer"):
            await search_lines(at, "(a+)+$", regex=True, path="evil.txt")
        group.cancel_scope.cancel()
    assert ticks > 10
    assert time.monotonic() - began < 12


@pytest.mark.slow
async def test_hiding_secrets_does_not_use_up_the_time_of_an_expression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        (tmp_path / f"{number}.log").write_text(f"needle{number}\n")

    def hide(text: str) -> str:
        time.sleep(1)
        return text

    monkeypatch.setattr(grep, "CHILD_SECONDS", -3)  # the parent waits 2 s
    root = Root.open(tmp_path)
    try:
        found = await search_lines(ToolContext(files=root, hide=hide), r"needle\d", regex=True)
    finally:
        root.close()
    assert found.count == 4


async def test_a_cancelled_search_ends_at_once(at: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "evil.txt").write_text("a" * 60 + "b\n")
    with anyio.move_on_after(0.3) as scope, anyio.fail_after(20):
        await search_lines(at, "(a+)+$", regex=True, path="evil.txt")
    assert scope.cancelled_caught

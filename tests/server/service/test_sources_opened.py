"""A source opens on what was read, for a host, at a terminal and on a page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.model_server import Say
from support.runtime import Lab, open_lab, submit
from support.terminal import ava, run_on_terminal

from ava_audit.events import ToolResult, Who
from ava_audit.retention import erase_run
from ava_roles.sandbox.paths import folder_identity
from ava_roles.wrap import clean
from ava_server.cli.terminal import cells
from ava_server.core.data_root import os_user
from ava_server.core.errors import BadInput, Refused
from ava_server.render.host_text import run_text
from ava_server.render.responses import RunAnswer
from ava_server.runs.record.sources import ReadText, SourcePassage
from ava_server.service import source_view
from ava_server.service.source_view import OpenedSource, open_source


def marked(found: SourcePassage) -> str:
    return found.read.text[slice(*found.span)]


NAME = "böse \u202e[31m<b>name&'.md"
EVIL = '<script>alert(1)</script> <img src="https://evil.example/x.png"> [a](https://evil.example) \x1b[31mred\x1b[0m'
TEXT = f"First line.\n{EVIL} \u202egnirts\nThe lamp is lit at dusk.\nLast line.\n"
SECRET = "sk-ant-api03-" + "Zq7Xw9" * 12
FINDINGS = [
    {"claim": "At dusk", "quote": "The lamp is lit at dusk.", "source_name": "the lamp book"},
    {"claim": "At dawn", "quote": "The lamp is lit at dawn, they say.", "source_url": "lamp.md"},
    {"claim": "Nothing quoted", "source_url": "lamp.md:4"},
    {"claim": "Nobody read it", "quote": "A text that nobody has read", "source_url": "other.md"},
    {"claim": "With a secret", "quote": "the harbour is closed", "source_url": "keys.md"},
    {"claim": "In a file with a name", "quote": "a name of its own", "source_url": NAME},
]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    reads = [("read_file", {"path": path}) for path in ("lamp.md", "keys.md", NAME)]
    async with open_lab(tmp_path, [Say(calls=reads), submit(findings=FINDINGS)], check=False) as lab:
        (lab.workspace / "lamp.md").write_text(TEXT)
        (lab.workspace / "keys.md").write_text(f"key = {SECRET}\nthe harbour is closed\n")
        (lab.workspace / NAME).write_text("# Names\n\na name of its own\n")
        yield lab


async def ended(lab: Lab) -> str:
    run_id = await lab.start()
    await lab.ended(run_id)
    return run_id


async def opened(lab: Lab, run_id: str, number: int) -> OpenedSource:
    return await open_source(lab.store, run_id, number, lab.runtime.settings, lab.runtime.user)


@pytest.mark.requirement("N-08")
async def test_each_source_opens_on_what_was_read_and_says_what_the_file_is_now(lab: Lab) -> None:
    run_id, file = await ended(lab), lab.workspace / "lamp.md"
    first = await opened(lab, run_id, 1)
    assert (first.location, first.place, first.marked) == ("lamp.md", "line 3", "The lamp is lit at dusk.")
    assert first.before.startswith("First line.\n<script>") and first.after == "\nLast line."
    assert first.note == source_view.ELSEWHERE, "it names a book, and the quote stands in a file"
    assert (first.now, first.now_words) == ("same", source_view.SAME)
    near, without, unread, secret, named = [await opened(lab, run_id, number) for number in range(2, 7)]
    assert near.verdict in ("near", "not_found") and near.location == "lamp.md"
    assert without.note == source_view.NO_QUOTE and without.after == "Last line." and without.place == "lines 1 to 4"
    assert unread.note == source_view.NOTHING and not unread.has_text
    assert secret.marked == "the harbour is closed" and SECRET not in secret.before
    assert (secret.now, secret.now_words) == ("unknown", source_view.NOT_KEPT), "a hash would let it be guessed"
    assert (named.marked, named.place) == ("a name of its own", 'line 3, under "Names"')
    assert "\u202e" not in named.location and named.now == "unknown"
    results = await lab.facts(run_id, ToolResult)
    hashed = {each.sources[0]["location"] for each in results if each.sources and each.sources[0].get("sha256")}
    assert hashed == {"lamp.md"}

    file.write_text(TEXT.replace("dusk", "noon"))
    changed = await opened(lab, run_id, 1)
    assert (changed.now, changed.marked) == ("changed", "The lamp is lit at dusk."), "what was read is shown"
    file.write_text(TEXT)
    assert (await opened(lab, run_id, 1)).now == "same", "what counts is what is in it"
    file.unlink()
    assert (await opened(lab, run_id, 1)).now == "gone"
    file.symlink_to("/etc/hostname")
    assert (await opened(lab, run_id, 1)).now_words.startswith("The file cannot be looked at here: ")
    run, read = await lab.run(run_id), ReadText(1, "read_file", "lamp.md", "", "0" * 64, "", 1, TEXT)
    for changes, why in (
        ({"origin": "another"}, "its folder is on another machine"),
        ({"workspace": str(lab.root)}, "its folder is no longer allowed"),
        ({"workspace": None}, "the run had no folder"),
        ({"workspace": 7}, "a newer Ava proposed the run"),
    ):
        config = json.dumps({**json.loads(run.config), "workspace_identity": folder_identity(lab.root), **changes})
        now = source_view._compare_file(lab.runtime.settings, replace(run, config=config), read, lab.runtime.user)
        assert now == ("unknown", source_view._not_here(why))
    lab.workspace.rename(lab.workspace.with_name("moved"))
    assert (await opened(lab, run_id, 1)).now_words == source_view._not_here("its folder cannot be opened")
    lab.workspace.mkdir()
    (lab.workspace / "lamp.md").write_text(TEXT)
    replaced = await opened(lab, run_id, 1)
    assert (replaced.now, replaced.marked) == ("unknown", first.marked) and "another folder" in replaced.now_words


@pytest.mark.requirement("N-08")
async def test_the_host_is_told_the_file_and_line_of_each_quote_inside_the_marks(lab: Lab) -> None:
    run_id = await ended(lab)
    answer = await lab.call("check_subagent", subagent_id=run_id)
    run = RunAnswer.model_validate(answer.runs[0].model_dump())
    told = run_text(run).partition("</subagent_result>")[0]
    assert "│    source: the lamp book\n│    quote found in: lamp.md:3\n" in told
    assert "│    quote found in: keys.md:2\n" in told and "found in: other.md" not in told
    assert "found in" not in run_text(run).partition("</subagent_result>")[2]


async def test_an_erased_run_an_unknown_number_and_an_unended_run_are_refused_in_words(lab: Lab) -> None:
    run_id = await ended(lab)
    for number in (0, 7, 10**17):
        with pytest.raises(BadInput, match="has 6 sources; there is no source"):
            await opened(lab, run_id, number)
    with pytest.raises(Refused, match="has no result, so it has no sources"):
        await opened(lab, (await lab.propose()).subagent_id, 1)
    assert "dusk" in ava(lab.root, "show", run_id, "--source", "1").stdout
    await erase_run(lab.store, run_id, (), Who("s", "ava", os_user()), "asked")
    with pytest.raises(Refused, match="was erased, and what it read with it; what it cost stays"):
        await opened(lab, run_id, 1)
    gone = ava(lab.root, "show", run_id, "--source", "1")
    assert gone.returncode and "was erased" in gone.stderr and "dusk" not in gone.stdout + gone.stderr


async def test_a_terminal_shows_it_as_plain_text_with_bars_within_its_columns(lab: Lab) -> None:
    run_id = await ended(lab)
    piped = ava(lab.root, "show", run_id, "--source", "1")
    assert piped.returncode == 0, piped.stderr
    assert "3 ┃ The lamp is lit at dusk.\n" in piped.stdout and "4 │ Last line.\n" in piped.stdout
    assert "\x1b" not in piped.stdout and "\u202e" not in piped.stdout and source_view.SAME in piped.stdout
    told = json.loads(ava(lab.root, "show", run_id, "--source", "1", "--json").stdout)
    assert (told["marked"], told["now"], told["line"]) == ("The lamp is lit at dusk.", "same", 1)
    both = ava(lab.root, "show", run_id, "--source", "1", "--cost")
    assert both.returncode == 2 and "--cost and --source are 2 screens" in both.stderr
    with run_on_terminal(lab.root, "show", run_id, "--source", "1", columns=60) as screen:
        assert screen.ended() == 0
        assert "\x1b[33m\x1b[1mThe lamp is lit at dusk.\x1b[0m" in screen.text, "the quote stands out"
        assert "\x1b[31m" not in screen.text and "\u202e" not in screen.text
        ours = screen.text.partition("source 1 of 6")[2]  # the name of the data root above may be longer
        assert all(cells(clean(line)[0]) <= 60 for line in ours.splitlines())
        assert any(line.startswith("  │ ") or line.startswith("2 │ <script>") for line in screen.lines)
    result = ava(lab.root, "show", run_id).stdout
    assert f"`ava show {run_id} --source 1`" in result and "quote found in: lamp.md:3" in result

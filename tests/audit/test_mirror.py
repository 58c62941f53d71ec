"""The mirror: lines that can be verified alone, in files that heal from whatever cut them."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log import Life, message, tamper_with, write, write_each, write_texts
from support.logs.mirrors import file_of_today, mirror_files, mirror_log, parse_lines
from support.properties import BUSY_OR_SHARED

from ava_audit import mirror as mirror_module
from ava_audit.database import Database
from ava_audit.entries import content_sha, line_fault, mirror_line
from ava_audit.events import Event, ToolCall, Who
from ava_audit.mirror import Mirror, file_of
from ava_audit.projections import note_mirrored
from ava_audit.store.store import Store
from ava_audit.verify import verify_lines
from ava_audit.view import View


async def test_writes_each_event_once_and_in_order_to_the_file_of_its_agent(log: Store) -> None:
    one, two = Life("S-aaaaaa"), Life("S-bbbbbb")
    with anyio.fail_after(20):
        await write_each(log, [*one.beginning(), *two.all_events(), *one.tool(), *one.ending()])
        found = await mirror_log(log)
    assert set(found) == {file_of_today(), "subagents/S-aaaaaa.jsonl", "subagents/S-bbbbbb.jsonl"}
    seqs = {file: [line["seq"] for line in parse_lines(content)] for file, content in found.items()}
    assert sorted(seq for every in seqs.values() for seq in every) == list(range(1, 4 + 11 + 4 + 1))
    assert all(every == sorted(every) for every in seqs.values())
    assert {line["agentId"] for line in parse_lines(found["subagents/S-aaaaaa.jsonl"])} == {"S-aaaaaa"}
    assert [line["eventType"] for line in parse_lines(found[file_of_today()])].count("SubagentComplete") == 2


async def test_a_line_has_the_specified_field_names_and_no_nulls(log: Store) -> None:
    life = Life("S-aaaaaa")
    with anyio.fail_after(20):
        await write_each(log, [*life.beginning(), life.reservation(), life.settlement(cost=12_345)])
        line = parse_lines((await mirror_log(log))["subagents/S-aaaaaa.jsonl"])[-1]
        row = await log.read(lambda view: next(view.rows("seq = 6")))
    assert list(line) == [
        "timestamp", "sessionId", "agentId", "userId", "eventType", "content", "metadata",
        "seq", "v", "runId", "generation", "timestampUs", "costMicros", "contentSha", "prevHash", "hash",
    ]  # fmt: skip
    assert line["metadata"] == {
        "inputTokens": 20, "outputTokens": 10, "cacheReadTokens": 0, "cacheWriteTokens": 0,
        "modelId": "test:model", "parentAgentId": "ava", "costCents": 1.2345,
    }  # fmt: skip
    assert (line["costMicros"], line["eventType"]) == (12_345, "CostUpdate")
    assert datetime.fromisoformat(line["timestamp"]).timestamp() == pytest.approx(line["timestampUs"] / 1e6)
    assert line["timestamp"].endswith("Z")
    assert b'"costCents":1.2345}' in mirror_line(row)


@pytest.mark.parametrize(
    ("micros", "cents"),
    [(0, "0"), (10_000, "1"), (1, "0.0001"), (12_300, "1.23"), (10**15 + 1, "100000000000.0001")],
)
async def test_cents_are_exact_decimals(micros: int, cents: str, log: Store) -> None:
    life = Life("S-aaaaaa")
    await write_each(log, [*life.beginning(), life.reservation(), life.settlement(cost=micros, reserved=10**16)])
    row = await log.read(lambda view: next(view.rows("seq = 6")))
    assert f'"costCents":{cents}}}'.encode() in mirror_line(row)


NASTY = 'quote " comma ,"content":{"x":1} back\\slash new\nline \u2028 \x85 emoji 😀 "}'


async def test_every_line_verifies_on_its_own_and_contains_the_stored_bytes(log: Store) -> None:
    who = Who(NASTY, "ava", NASTY)
    with anyio.fail_after(20):
        await write(log, message(NASTY, who), Event(who, ToolCall(tool="t", args={"content": {"a": [1, NASTY]}})))
        await write_each(log, Life("S-aaaaaa").all_events())
        found = await mirror_log(log)
    for content in found.values():
        assert content.endswith(b"\n")
        for line in content[:-1].split(b"\n"):
            assert line_fault(line) is None
            value = json.loads(line)
            raw = line[line.index(b',"content":') + len(b',"content":') : line.index(b',"metadata":{')]
            if NASTY not in (value["sessionId"],):
                assert content_sha(raw).hex() == value["contentSha"]
    for file in found:
        assert verify_lines(log.path.parent / "logs" / file).ok


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"text":"hello"', b'"text":"hullo"'),
        (b'"userId":"ben"', b'"userId":"eve"'),
        (b'"metadata":{}', b'"metadata":{"costCents":1}'),
        (b'"timestamp":"2', b'"timestamp":"1'),
        (b'"seq":1', b'"seq":2'),
        (b'"v":1', b'"v":1,"runId":"S-ffffff"'),
        (b'{"timestamp"', b'{{"timestamp"'),
        (b'"hash":"', b'"hash":"zz'),
        (b'"metadata":{}', b'"metadata":[]'),
        (b'"timestampUs":', b'"timestampUs":9999999999'),
    ],
)
async def test_reports_a_changed_line(old: bytes, new: bytes, log: Store, tmp_path: Path) -> None:
    await write_texts(log, ["hello", "next"])
    content = (await mirror_log(log))[file_of_today()]
    assert old in content
    (tmp_path / "changed.jsonl").write_bytes(content.replace(old, new, 1))
    (fault,) = verify_lines(tmp_path / "changed.jsonl").faults
    assert "line 1" in fault.text


async def test_reports_swapped_and_duplicated_lines(log: Store, tmp_path: Path) -> None:
    await write_texts(log, ["a", "b", "c"])
    one, two, three = (await mirror_log(log))[file_of_today()].splitlines(keepends=True)
    file = tmp_path / "some.jsonl"
    for wrong in (one + three + two, one + one + two):
        file.write_bytes(wrong)
        assert not verify_lines(file).ok
    file.write_bytes(one + three)  # the other agents' entries are in other files
    assert verify_lines(file).ok


async def test_only_the_owner_can_access_files_and_folders(log: Store) -> None:
    await write_each(log, Life("S-aaaaaa").all_events())
    await mirror_log(log)
    folder = log.path.parent / "logs"
    for path in (folder, folder / "ava", folder / "subagents"):
        assert path.stat().st_mode & 0o777 == 0o700
    for path in folder.rglob("*.jsonl"):
        assert path.stat().st_mode & 0o777 == 0o600


async def test_an_invalid_agent_id_never_becomes_a_file_name() -> None:
    assert file_of("S-../../etc", 0) == "ava/1970-01-01.jsonl"
    assert file_of("S-7f3a2b", 0) == "subagents/S-7f3a2b.jsonl"
    assert file_of("ava", 1_706_745_599_999_999) == "ava/2024-01-31.jsonl"
    assert file_of("ava", 1_706_745_600_000_000) == "ava/2024-02-01.jsonl"


async def test_does_not_follow_a_link_in_place_of_a_file(log: Store, tmp_path: Path) -> None:
    await write_texts(log, ["a"])
    (tmp_path / "victim").write_bytes(b"precious")
    day = tmp_path / "logs" / file_of_today()
    day.parent.mkdir(parents=True)
    day.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        await mirror_log(log)
    assert (tmp_path / "victim").read_bytes() == b"precious"


async def test_writes_and_repairs_each_event_in_the_file_of_its_day(log: Store, tmp_path: Path) -> None:
    await write_texts(log, ["a", "b", "c", "d"])
    day = 86_400_000_000
    with tamper_with(tmp_path) as db:
        for seq, ts in enumerate((day - 1, day, day - 2, 2 * day - 1), 1):
            db.execute("UPDATE events SET ts_us = ? WHERE seq = ?", (ts, seq))
    found = await mirror_log(log)
    assert {file: [line["seq"] for line in parse_lines(content)] for file, content in found.items()} == {
        "ava/1970-01-01.jsonl": [1, 3],
        "ava/1970-01-02.jsonl": [2, 4],
    }
    shutil.rmtree(tmp_path / "logs")
    assert await mirror_log(log) == found


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=BUSY_OR_SHARED)
@given(data=st.data())
def test_repairs_the_mirror_after_any_damage(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("root")
    damage = data.draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from(["cut", "remove", "add", "torn", "double", "lose"])),
            max_size=3,
            unique_by=lambda harmed: harmed[0],
        )
    )
    killed = data.draw(st.booleans())

    async def live() -> None:
        async with Store.open(root) as log:
            await write_each(log, Life("S-aaaaaa").beginning())
            await mirror_log(log)
            sizes, upto = await log.read(lambda view: (view.mirrored(), view.progress("mirror")))
            await write_each(log, [*Life("S-aaaaaa").all_events()[4:], *Life("S-bbbbbb").beginning()])
            await mirror_log(log)
            if killed:  # after the lines were written, and before that was noted
                await log.maintain(lambda db: go_back(db, upto, sizes))
            await write_texts(log, ["meanwhile", "more"])
            good = await meant(log)
            folder = root / "logs"
            names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*.jsonl"))
            for place, kind in damage:
                harm(data, folder / names[place], kind)
            assert await mirror_log(log) == good
            assert await mirror_log(log) == good

    anyio.run(live)


def go_back(db: Database, upto: int, sizes: dict[str, int]) -> None:
    db.execute("DELETE FROM mirrored")
    db.execute("DELETE FROM progress WHERE name = 'mirror'")
    assert note_mirrored(db, after=0, upto=upto, before={}, sizes=sizes)


async def meant(log: Store) -> dict[str, bytes]:
    """What the files must be: each line made from the log."""
    expected: dict[str, bytes] = {}
    for row in await log.read(lambda view: list(view.rows("1 = 1"))):
        file = file_of(row[3], row[1])
        expected[file] = expected.get(file, b"") + mirror_line(row)
    return expected


def harm(data: st.DataObject, path: Path, kind: str) -> None:
    content = path.read_bytes() if path.exists() else b""
    every = content.splitlines(keepends=True)
    if kind == "cut":
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    elif kind == "remove":
        path.unlink(missing_ok=True)
    elif kind == "add":
        path.write_bytes(content + b"rubbish")
    elif kind == "torn":
        path.write_bytes(content + b'{"timestamp":"20')
    elif every:
        place = data.draw(st.integers(0, len(every) - 1))
        changed = [*every[:place], *([every[place]] * 2 if kind == "double" else []), *every[place + 1 :]]
        path.write_bytes(b"".join(changed))


async def test_rewrites_a_file_removed_while_maintenance_runs(log: Store, tmp_path: Path) -> None:
    mirror = Mirror(log, tmp_path / "logs")
    await mirror.repair_all()
    await write_texts(log, ["a", "b"])
    await mirror.catch_up()
    (tmp_path / "logs" / file_of_today()).unlink()
    await write_texts(log, ["c"])
    await mirror.catch_up()
    assert [line["seq"] for line in parse_lines(mirror_files(tmp_path / "logs")[file_of_today()])] == [1, 2, 3]


async def test_a_file_rewritten_after_an_erasure_has_no_content_and_still_verifies(log: Store, tmp_path: Path) -> None:
    await write_texts(log, ["a secret", "b"])
    await mirror_log(log)

    def erase(db: Database) -> None:
        db.execute("UPDATE events SET content = NULL WHERE seq = 1")
        db.execute("UPDATE mirrored SET bytes = -1")

    await log.maintain(erase)
    content = (await mirror_log(log))[file_of_today()]
    assert b"secret" not in content
    assert "content" not in parse_lines(content)[0]
    assert verify_lines(tmp_path / "logs" / file_of_today()).ok


@pytest.mark.parametrize("step", ["_append", "repair_file"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_two_processes_that_write_the_mirror_lose_no_line(
    log: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    """This happens if somebody removes `keeper.lock`: one works while the other is between two of its steps."""
    async with Store.open(tmp_path) as other_log:
        one, other = Mirror(log, tmp_path / "logs"), Mirror(other_log, tmp_path / "logs")
        await write_texts(log, ["a", "b"])
        for each in (one, other, one):
            await each.repair_all()
            await each.catch_up()
        owner = one if step == "_append" else mirror_module
        real = getattr(owner, step)
        token = anyio.lowlevel.current_token()

        def interrupted(*args: Any, **named: Any) -> Any:
            monkeypatch.setattr(owner, step, real)
            if when == "after":
                done = real(*args, **named)
            anyio.from_thread.run(write_texts, other_log, ["d", "e"], token=token)
            anyio.from_thread.run(other.catch_up, token=token)
            return real(*args, **named) if when == "before" else done

        if step == "repair_file":
            with (tmp_path / "logs" / file_of_today()).open("ab") as file:
                file.write(b"a torn li")
        await write_texts(log, ["c"])
        monkeypatch.setattr(owner, step, interrupted)
        with anyio.fail_after(40):
            await one.catch_up()
            assert getattr(owner, step) == real, "it was interrupted"
            assert mirror_files(tmp_path / "logs") == await meant(log)
            assert (await log.read(View.mirrored))[file_of_today()] == (
                tmp_path / "logs" / file_of_today()
            ).stat().st_size


@pytest.mark.parametrize("end", [b"x", b'"}\n'])
async def test_a_new_keeper_repairs_a_file_of_the_right_length_with_a_wrong_end(
    log: Store, tmp_path: Path, end: bytes
) -> None:
    await write_each(log, [*Life("S-aaaaaa").beginning(), message("the last words")])
    right = await mirror_log(log)
    for name, content in right.items():
        (tmp_path / "logs" / name).write_bytes(content[: -len(end) - 70] + b"0" * 70 + end)
    assert await mirror_log(log) == right


async def test_mirrors_large_entries_in_slices_of_bounded_size(log: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ava_audit.mirror.SLICE_CHARS", 1_000)
    await write_texts(log, ["x" * 900] * 5)
    assert len(parse_lines((await mirror_log(log))[file_of_today()])) == 5
    assert await log.read(partial(View.progress, duty="mirror")) == 5

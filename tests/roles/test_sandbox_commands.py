"""What a command in a sandbox sees, how it ends, and how it is talked to."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from support.sandboxes.attacks import BWRAP, HERE, command, machine_for, python, sandbox

from ava_roles.errors import ToolFailed
from ava_roles.sandbox import linux, selection
from ava_roles.sandbox.launcher.spec import USERS
from ava_roles.sandbox.sandbox import Bind, Command, Kind
from ava_roles.sandbox.supervised import Machine, Output, SupervisedSandbox
from ava_roles.wrap import clean

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are confined on Linux alone")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("here", "readable"):
        (tmp_path / name).mkdir()
    return tmp_path / "here"


@pytest.mark.skipif(not linux.is_root(), reason="needs root")
async def test_refuses_to_confine_a_command_that_would_run_as_root(confined: Kind, here: Path) -> None:
    rooted = SupervisedSandbox(confined, Machine(0, str(BWRAP), linux.landlock_abi()), here.parent)
    with pytest.raises(ToolFailed, match="nothing is confined that runs as root"):
        await rooted.run(command(here, "/bin/true"))


@pytest.mark.skipif(not linux.is_root(), reason="needs root")
async def test_a_command_can_use_its_folder_inside_a_private_home(confined: Kind, tmp_path: Path) -> None:
    home = tmp_path / "home"
    work = home / "work"
    (work / "sub").mkdir(parents=True)
    (work / "sub" / "file").write_text("x")
    home.chmod(0o700)
    done = await sandbox(confined, tmp_path).run(command(work, "/bin/sh", "-c", "cat sub/file && echo y > sub/file"))
    assert (done.code, done.output) == (0, "x")
    assert (work / "sub" / "file").read_text() == "y\n"
    assert (work / "sub" / "file").stat().st_uid == machine_for(confined).uid != 0


def test_each_data_root_has_its_own_user_for_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [Path(f"/srv/{name}/sandbox") for name in ("ava", "ben", "kim")]
    users = [selection.pick_uid(state) for state in states]
    assert None not in users and len(set(users)) == 3
    assert users == [selection.pick_uid(state) for state in states], "always the same"
    (tmp_path / "linked").symlink_to("/srv/ava")
    assert selection.pick_uid(tmp_path / "linked" / "sandbox") == users[0], "also through a link"
    monkeypatch.setattr(selection, "_ids_in", lambda _path: {users[0]})
    assert selection.pick_uid(states[0]) not in (None, users[0])
    monkeypatch.setattr(selection, "_ids_in", lambda _path: set(USERS))
    assert selection.pick_uid(states[0]) is None


@pytest.mark.skipif(not linux.is_root(), reason="needs root")
async def test_a_folder_left_by_another_user_of_commands_is_taken_over(confined: Kind, here: Path) -> None:
    """For example a coder's worktree from an earlier version, which had one user for all data roots."""
    own = machine_for(confined)
    before, stranger = next(uid for uid in USERS if uid != own.uid), 4_242
    (here / "sub").mkdir()
    for name, uid in (("sub/old", before), ("theirs", stranger)):
        (here / name).write_text("x")
        os.chown(here / name, uid, uid)
    os.chown(here / "sub", before, before)
    box = SupervisedSandbox(confined, own, here.parent)
    done = await box.run(command(here, "/bin/sh", "-c", "echo y > sub/old && echo z > sub/new; echo n > theirs"))
    assert (here / "sub" / "old").read_text() == "y\n", done.output
    assert (here / "sub" / "new").stat().st_uid == own.uid
    assert (here / "theirs").read_text() == "x" and (here / "theirs").stat().st_uid == stranger


async def test_a_command_sees_only_its_own_files_and_environment(kind: Kind, here: Path) -> None:
    (here / "a.txt").write_text("given\n")
    done = await sandbox(kind, here.parent).run(
        command(here, "/bin/sh", "-c", "cat a.txt; env", AVA_RUN_ID="S-1", ODD="a'b\nc")
    )
    assert done.code == 0
    assert done.output.startswith("given\n")
    assert "AVA_RUN_ID=S-1\n" in done.output
    assert "ODD=a'b\nc" in done.output
    names = {line.partition("=")[0] for line in done.output.splitlines()[1:]}
    assert names <= {"AVA_RUN_ID", "ODD", "c", "PATH", "HOME", "PWD", "TMPDIR", "SHLVL", "_", "OLDPWD"}


async def test_the_environment_appears_on_no_command_line(kind: Kind, here: Path) -> None:
    look = "import pathlib\nfor p in pathlib.Path('/proc').glob('[0-9]*/cmdline'): print(p.read_bytes())"
    with anyio.fail_after(40):
        async with sandbox(kind, here.parent).start(
            command(here, "/bin/sh", "-c", "echo on; read line", KEY="only-mine")
        ) as pipes:
            assert await pipes.stdout.receive() == b"on\n"
            seen = (await anyio.run_process([sys.executable, "-c", look])).stdout
    assert b"read line" in seen
    assert b"only-mine" not in seen


async def test_translates_mount_targets_in_arguments_and_environment(kind: Kind, here: Path) -> None:
    (here / "tool.sh").write_text("#!/bin/sh\necho ran in $PWD\n")
    (here / "tool.sh").chmod(0o755)
    done = await sandbox(kind, here.parent).run(
        command(here, "/bin/sh", f"{HERE}/tool.sh", PATH=f"/usr/bin:{HERE}/bin:/bin")
    )
    assert done.code == 0
    assert "ran in " in done.output


async def test_a_command_has_a_folder_for_temporary_files_which_are_removed(confined: Kind, here: Path) -> None:
    before = sorted(here.parent.iterdir())
    done = await sandbox(confined, here.parent).run(
        command(here, "/bin/sh", "-c", 'f=$(mktemp) && echo kept > "$f" && cat "$f"')
    )
    assert (done.code, done.output) == (0, "kept\n")
    assert sorted(here.parent.iterdir()) == before


async def test_a_command_reaches_the_network_only_if_allowed(confined: Kind, here: Path) -> None:
    code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2); print('thr' + 'ough')"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        order = python(here, code, str(listener.getsockname()[1]))
        refused = await sandbox(confined, here.parent).run(order)
        allowed = await sandbox(confined, here.parent).run(replace(order, network=True))
    assert "through" not in refused.output
    assert allowed.output == "through\n"


async def test_network_access_does_not_open_local_sockets(confined: Kind, here: Path) -> None:
    name = f"ava-{os.getpid()}"
    code = f"import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + '{name}')"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        done = await sandbox(confined, here.parent).run(replace(python(here, code), network=True))
    assert done.code == 1
    assert "PermissionError" in done.output


async def test_reports_a_missing_mount_source(confined: Kind, here: Path) -> None:
    gone = Command(("/bin/true",), HERE, (Bind(here / "nowhere", HERE, writable=True),), {}, 5.0)
    with pytest.raises(ToolFailed, match="could not be run"):
        await sandbox(confined, here.parent).run(gone)


async def test_a_link_left_by_a_command_does_not_redirect_a_mount(confined: Kind, here: Path) -> None:
    outside = here.parent / "outside"
    outside.mkdir()
    (here / "away").symlink_to(outside)
    order = command(here, "/bin/true")
    carried = Bind(here.parent / "readable", HERE / "away" / "new")
    with suppress(ToolFailed):
        await sandbox(confined, here.parent).run(replace(order, binds=(*order.binds, carried)))
    assert list(outside.iterdir()) == []


async def test_a_nul_character_cannot_inject_a_sandbox_argument(kind: Kind, here: Path) -> None:
    for order in (command(here, "/bin/true", ODD="x\0--bind\0/\0/host"), command(here, "/bin/echo", "a\0b")):
        with pytest.raises(ToolFailed, match="NUL"):
            await sandbox(kind, here.parent).run(order)


async def test_supports_file_names_in_any_script(kind: Kind, here: Path) -> None:
    (here / "größe 雪.txt").write_text("da")
    done = await sandbox(kind, here.parent).run(command(here, "/bin/cat", "größe 雪.txt"))
    assert (done.code, done.output) == (0, "da")


async def test_a_mount_inside_a_folder_stays_read_only(confined: Kind, here: Path) -> None:
    if not sandbox(confined, here.parent).mounts:
        pytest.skip("nothing is mounted here")
    (here.parent / "readable" / "dependency").write_text("x")
    (here.parent / "readable" / "dependency").chmod(0o666)  # so that nothing but the mount keeps it from writing
    (here.parent / "readable").chmod(0o777)
    order = command(here, "/bin/sh", "-c", "cat inner/dependency; echo y > inner/dependency; echo z > inner/new")
    inner = Bind(here.parent / "readable", HERE / "inner")
    done = await sandbox(confined, here.parent).run(replace(order, binds=(*order.binds, inner)))
    assert done.output.startswith("x")
    assert [each.read_text() for each in (here.parent / "readable").iterdir()] == ["x"]


@pytest.mark.parametrize(("argv", "code"), [(("no-such-program",), 127), (("/workspace/a.txt",), 126)])
async def test_a_program_that_cannot_be_executed_exits_as_in_a_shell(
    argv: tuple[str, ...], code: int, kind: Kind, here: Path
) -> None:
    (here / "a.txt").write_text("no program")
    done = await sandbox(kind, here.parent).run(command(here, *argv))
    assert (done.ended, done.code) == ("exited", code), done


async def test_reports_how_a_command_ended(kind: Kind, here: Path) -> None:
    box = sandbox(kind, here.parent)
    exited = await box.run(command(here, "/bin/sh", "-c", "exit 3"))
    killed = await box.run(python(here, "import os; os.kill(os.getpid(), 11)"))
    assert (exited.ended, exited.code) == ("exited", 3)
    assert (killed.ended, killed.code) == ("signal", 128 + 11)


async def test_common_tools_work_in_a_sandbox(confined: Kind, here: Path) -> None:
    code = "import asyncio, threading; asyncio.run(asyncio.sleep(0)); t = threading.Thread(target=print); t.start()"
    assert (await sandbox(confined, here.parent).run(python(here, code))).code == 0
    script = (
        "mkdir d && echo x > d/f && tar cf a.tar d && rm -r d && tar xf a.tar && mv d/f e && cat e && ls -l /dev/null"
    )
    done = await sandbox(confined, here.parent).run(command(here, "/bin/sh", "-ec", script))
    assert done.code == 0, done
    assert done.output.startswith("x\n")


async def test_a_running_command_can_receive_input_and_answer(kind: Kind, here: Path) -> None:
    with anyio.fail_after(40):
        async with sandbox(kind, here.parent).start(
            command(here, "/bin/sh", "-c", 'echo trouble >&2; while read line; do echo "heard $line"; done')
        ) as pipes:
            await pipes.stdin.send(b"one\n")
            assert await pipes.stdout.receive() == b"heard one\n"
            await pipes.stdin.send(b"two\n")
            assert await pipes.stdout.receive() == b"heard two\n"
            await pipes.stdin.aclose()
            with pytest.raises(anyio.EndOfStream):
                await pipes.stdout.receive()
            while not pipes.errors():  # noqa: ASYNC110 — another task reads it, maybe after the end of stdout
                await anyio.sleep(0.01)
            assert pipes.errors() == "trouble\n"


async def test_notices_that_a_running_command_closed_its_output(kind: Kind, here: Path) -> None:
    if kind == "bubblewrap":
        pytest.skip("bubblewrap itself holds the output open until the command ends")
    with anyio.fail_after(40):
        async with sandbox(kind, here.parent).start(
            command(here, "/bin/sh", "-c", "exec >&- 2>&-; sleep 60", timeout_s=60)
        ) as pipes:
            with pytest.raises(anyio.EndOfStream):
                await pipes.stdout.receive()


@pytest.mark.parametrize("after", range(30))
def test_an_output_that_is_cut_within_an_escape_sequence_shows_no_rest_of_it(after: int) -> None:
    output = Output(40)
    for byte in b"x" * 20 + b"y" * 30 + b"\x1b[38;5;1m!\x1b[0m" + b"z" * after:
        output.add(bytes([byte]))
    assert not set("[0123458;m") & set(clean(output.text()[0])[0].rpartition("…")[2])

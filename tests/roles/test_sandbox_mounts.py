"""What a command does to the places where the next one gets its folders mounted."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path, PurePosixPath

import pytest
from support.repositories.projects import write
from support.sandboxes.attacks import HERE, needs, sandbox

from ava_roles.errors import ToolFailed
from ava_roles.sandbox import linux
from ava_roles.sandbox.sandbox import Bind, Command, Finished, Kind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are confined on Linux alone")

Run = Callable[..., Awaitable[Finished]]
PACKAGES = HERE / "a" / "b" / "packages"


@pytest.fixture(params=["bubblewrap", "landlock"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Run]:
    """Runs lines for the shell in a folder with packages in it, which are shown as they are."""
    kind: Kind = request.param
    needs(kind)
    if kind == "landlock" and not linux.is_root():
        pytest.skip("without mounts of its own nothing is mounted")
    write(tmp_path, {"packages/one": "one", "here/a/b/own": "own"})
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim").chmod(0o777)
    for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
        if linux.is_root():
            folder.chmod(folder.stat().st_mode | 0o011)  # the user of commands gets through to the victim
    binds = (Bind(tmp_path / "here", HERE, writable=True), Bind(tmp_path / "packages", PurePosixPath(PACKAGES)))
    confined = sandbox(kind, tmp_path)

    async def line(text: str, more: tuple[Bind, ...] = ()) -> Finished:
        return await confined.run(Command(("/bin/bash", "-c", text), HERE, (*binds, *more), {}, 10))

    yield line


@pytest.mark.parametrize("prefix", ["", "/oldroot", "/newroot", "../../../../oldroot"])
@pytest.mark.parametrize("swapped", ["a", "a/b"])
async def test_a_mount_path_swapped_for_a_link_creates_nothing_outside(
    run: Run, tmp_path: Path, prefix: str, swapped: str
) -> None:
    victim = f"{prefix}{tmp_path}/victim"
    done = await run(f"cat {PACKAGES}/one; mv {swapped} moved; ln -s {victim} {swapped}")
    assert (done.code, done.output) == (0, "one"), "else the test below shows nothing"
    done = await run(f"readlink {swapped}; ls moved")
    assert done.code == 0 and done.output.splitlines()[0] == victim, "commands go on, without what was moved away"
    assert list((tmp_path / "victim").iterdir()) == []


async def test_a_mount_point_that_became_a_link_creates_nothing_outside(run: Run, tmp_path: Path) -> None:
    await run("mv a moved")
    again = "rm -rf a moved && mkdir -p a/b"
    assert (await run(f"{again}; true")).code == 0
    (tmp_path / "here" / "a" / "b").mkdir(parents=True, exist_ok=True)
    place = tmp_path / "here" / "a" / "b" / "packages"
    if place.exists():
        place.rmdir()
    place.symlink_to(f"/oldroot{tmp_path}/victim/new")
    assert (await run("readlink a/b/packages")).output.strip() == f"/oldroot{tmp_path}/victim/new"
    assert list((tmp_path / "victim").iterdir()) == []


async def test_recreates_missing_parent_folders_owned_by_the_command_user(run: Run, tmp_path: Path) -> None:
    await run("mv a moved; rm -rf moved")
    done = await run(f"cat {PACKAGES}/one; touch a/new a/b/new")
    assert (done.code, done.output) == (0, "one")


async def test_leaves_out_packages_when_a_file_blocks_their_mount_point(run: Run) -> None:
    await run("mv a moved; touch a")
    assert (await run(f"test -f a && ! test -e {PACKAGES}/one && echo so")).output == "so\n"


async def test_fails_rather_than_expose_a_path_whose_mask_cannot_be_mounted(run: Run, tmp_path: Path) -> None:
    """A mask is mounted in what commands may not write to; what is in its way there, no command has put there."""
    write(tmp_path, {"shown/.git/config": "token", "empty/none": ""})
    (tmp_path / "shown" / "link").symlink_to(".")
    shown = PurePosixPath("/shown")
    binds = (Bind(tmp_path / "shown", shown), Bind(tmp_path / "empty", shown / ".git"))
    assert "token" not in (await run("cat /shown/.git/config", binds)).output
    for missing in ("link/.git", "gone/.git"):
        with pytest.raises(ToolFailed):
            await run("cat /shown/.git/config", (binds[0], Bind(tmp_path / "empty", shown / missing)))


async def test_folders_created_by_root_on_the_mount_path_change_owner(run: Run, tmp_path: Path) -> None:
    await run("mv a moved")
    await run("true")
    assert 0 not in {path.stat().st_uid for path in (tmp_path / "here").rglob("*")}

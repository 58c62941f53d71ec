from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ava_roles.errors import WorkspaceRefused
from ava_roles.sandbox import workspace
from ava_roles.sandbox.workspace import Workspace, recheck_workspace, resolve_workspace


@pytest.fixture
def world(tmp_path: Path) -> World:
    base = tmp_path.resolve()
    world = World(base, base / "people/ada", base / "people/ada/repo", base / "people/ada/plain", base / "store/ava")
    for folder in (
        world.repo / ".git",
        world.repo / "src",
        world.plain,
        world.data / "logs",
        world.home / ".ssh/keys",
    ):
        folder.mkdir(parents=True)
    (world.repo / ".git/HEAD").write_text("ref: refs/heads/main\n")
    return world


def test_the_only_root_of_the_client_comes_first(world: World) -> None:
    found = world.resolve(client_roots=[world.plain.as_uri()], env=str(world.repo), cwd=world.repo)
    assert found == Workspace(world.plain, False, "the client's root")


def test_the_environment_comes_next_and_then_a_working_folder_in_a_repository(world: World) -> None:
    assert world.resolve(env=str(world.plain), cwd=world.repo) == Workspace(world.plain, False, "AVA_WORKSPACE")
    found = world.resolve(cwd=world.repo / "src")
    assert (found.path, found.given) == (world.repo / "src", False)
    assert found.why == f"the server's working folder, inside the git repository {world.repo}"


def test_a_git_worktree_counts_as_a_repository(world: World) -> None:
    (world.plain / ".git").write_text("gitdir: /elsewhere\n")
    assert world.resolve(cwd=world.plain).path == world.plain


def test_ignores_an_empty_git_folder_and_a_repository_that_is_the_home(world: World) -> None:
    (world.plain / ".git").mkdir()
    assert world.resolve(cwd=world.plain).path is None
    (world.home / ".git").mkdir()
    (world.home / ".git/HEAD").write_text("ref: refs/heads/main\n")
    assert world.resolve(cwd=world.plain).path is None


def test_gives_every_reason_when_no_workspace_is_found(world: World) -> None:
    found = world.resolve(cwd=world.plain)
    assert (found.path, found.given) == (None, False)
    assert found.why == (
        "no workspace: the client names no root; AVA_WORKSPACE is not set; the server's working folder "
        f"{world.plain} is not inside a git repository; give `workspace` in the call or set AVA_WORKSPACE"
    )


def test_chooses_none_of_several_client_roots_but_allows_each(world: World) -> None:
    roots = [world.plain.as_uri(), str(world.repo)]
    found = world.resolve(client_roots=roots)
    assert found.path is None
    assert "the client has several roots" in found.why
    assert world.resolve(client_roots=roots, env=str(world.repo)).why == "AVA_WORKSPACE"
    for root in (world.plain, world.repo, world.repo / "src"):
        assert world.resolve(asked=str(root), client_roots=roots) == Workspace(root, True, "given in the call")
    world.refusal(world.base / "people", client_roots=roots)


def test_skips_a_client_root_that_is_not_allowed(world: World) -> None:
    found = world.resolve(client_roots=[world.home.as_uri()], cwd=world.repo)
    assert found.path == world.repo
    found = world.resolve(client_roots=["https://example.org/x"], cwd=world.plain)
    assert "the client's root: 'https://example.org/x' is not a file:// URI of this machine" in found.why


def test_does_not_skip_an_invalid_environment_variable(world: World) -> None:
    found = world.resolve(env=str(world.base / "gone"), cwd=world.repo)
    assert found == Workspace(
        None, False, f"no workspace: AVA_WORKSPACE: {world.base / 'gone'} does not exist; correct it"
    )
    assert "AVA_WORKSPACE" in world.refusal(world.plain, env=str(world.base / "gone"))


def test_uses_the_requested_folder_and_marks_it_as_given(world: World) -> None:
    found = world.resolve(asked=str(world.repo / "src"), env=str(world.repo))
    assert found == Workspace(world.repo / "src", True, "given in the call")
    assert world.resolve(asked=str(world.repo), env=str(world.repo)).given
    assert world.resolve(asked="  ", env=str(world.repo)) == Workspace(world.repo, False, "AVA_WORKSPACE")


def test_accepts_home_paths_uris_and_relative_paths(world: World) -> None:
    (world.repo / "a b").mkdir()
    assert world.resolve(asked="~/repo").path == world.repo
    assert world.resolve(asked=(world.repo / "a b").as_uri()).path == world.repo / "a b"
    assert world.resolve(asked=f"file://localhost{world.repo}").path == world.repo
    assert world.resolve(asked="src", cwd=world.repo).path == world.repo / "src"
    assert "is relative" in world.refusal("src")


def test_refuses_a_folder_outside_the_default_and_says_what_is_allowed(world: World) -> None:
    for asked in (world.plain, world.repo / "../plain", "../plain"):
        message = world.refusal(asked, cwd=world.repo)
        assert f"{world.plain} is outside the allowed folders" in message
        assert f"give a folder beneath {world.repo}" in message


def test_configured_roots_limit_both_default_and_requested_folders(world: World) -> None:
    assert world.resolve(asked=str(world.plain), roots=[world.home], cwd=world.repo).path == world.plain
    assert world.resolve(roots=[world.plain], cwd=world.repo).path is None
    found = world.resolve(roots=[world.plain], client_roots=[world.repo.as_uri()], cwd=world.repo)
    assert (found.path, "outside the allowed folders" in found.why) == (None, True)
    assert f"beneath {world.plain}" in world.refusal(world.repo, roots=[world.plain], cwd=world.repo)


def test_leaves_the_decision_to_the_approval_if_only_the_call_names_a_folder(world: World) -> None:
    found = world.resolve(asked=str(world.plain))
    assert found == Workspace(world.plain, True, "given in the call", named=False), "and only the call speaks for it"


def test_allows_no_folder_over_http_without_configured_roots(world: World) -> None:
    found = world.resolve(only_roots=True, client_roots=[world.repo.as_uri()], env=str(world.repo), cwd=world.repo)
    assert (found.path, "no folder is set for this user" in found.why) == (None, True)
    assert "no folder is set for this user" in world.refusal(world.repo, only_roots=True, cwd=world.repo)
    assert world.resolve(only_roots=True, roots=[world.repo], asked=str(world.repo)).given


def forbidden(world: World) -> list[tuple[str, str]]:
    return [
        ("/", "the whole file system"),
        ("/..", "the whole file system"),
        ("/proc/self", "belongs to the kernel"),
        ("/dev", "belongs to the kernel"),
        ("/home", "contains home folders"),
        ("/home/somebody", "is a home folder"),
        ("/Users/somebody", "is a home folder"),
        ("/home/somebody/.ssh", "a dot-folder of a home folder"),
        ("/root", "is a home folder"),
        ("/root/.config/x", "a dot-folder of a home folder"),
        ("~", "is a home folder"),
        ("~/", "is a home folder"),
        (str(world.home), "is a home folder"),
        (str(world.home.parent), "contains home folders"),
        (str(world.home / "repo/.."), "is a home folder"),
        (str(world.home / ".ssh"), "lies in .ssh"),
        (str(world.home / ".ssh/keys"), "lies in .ssh"),
        (str(world.repo / "../.ssh/keys"), "lies in .ssh"),
        (str(world.data), "Ava's own folder"),
        (str(world.data / "logs"), "Ava's own folder"),
        (str(world.data.parent), "Ava's own folder"),
    ]


def test_refuses_forbidden_folders_with_or_without_roots_and_through_links(world: World) -> None:
    for number, (asked, told) in enumerate(forbidden(world)):
        assert told in world.refusal(asked), asked
        assert told in world.refusal(asked, roots=[Path("/")]), asked
        assert told in world.resolve(env=asked).why, asked
        link = world.plain / f"link{number}"
        link.symlink_to(asked.replace("~", str(world.home)))
        assert told in world.refusal(link), asked
        assert told in world.resolve(client_roots=[link.as_uri()]).why, asked


CLOSED = ("/etc", "/run", "/var", "/var/lib", "/var/log", "/run/lock/..")


def test_refuses_system_folders_however_they_are_given(world: World) -> None:
    for number, asked in enumerate(CLOSED):
        told = "a system folder, and no setting names it"
        assert told in world.refusal(asked), asked
        assert told in world.refusal(asked, roots=[Path("/")]), asked
        assert told in world.refusal(asked, allow=[Path("/")]), "`/` opens no folder"
        assert told in world.refusal(asked, allow=[world.plain]), asked
        assert told in world.resolve(env=asked).why, asked
        link = world.plain / f"link{number}"
        link.symlink_to(asked)
        assert told in world.refusal(link), asked
        assert told in world.resolve(client_roots=[link.as_uri()]).why, asked


def test_a_setting_opens_a_system_folder_with_its_subfolders(world: World) -> None:
    for allowed, asked in (("/var", "/var/lib"), ("/var/lib", "/var/lib"), ("/etc", "/etc"), ("/run", "/run")):
        assert world.resolve(asked=asked, allow=[Path(allowed)]).path == Path(asked).resolve()
    world.refusal("/var", allow=[Path("/var/lib")])
    world.refusal("/etc", allow=[Path("/var")])


def test_applies_the_same_rule_again_when_a_run_starts(world: World) -> None:
    places: dict[str, Any] = {"roots": None, "data_root": world.data, "home": world.home}
    with pytest.raises(WorkspaceRefused, match="a system folder, and no setting names it"):
        recheck_workspace(Path("/etc"), **places, allow=())
    recheck_workspace(Path("/etc"), **places, allow=(Path("/etc"),))
    recheck_workspace(world.plain, **places, allow=())


def test_no_setting_opens_folders_that_are_always_refused(world: World) -> None:
    for asked, told in forbidden(world):
        assert told in world.refusal(asked, allow=[Path("/"), Path("/home"), Path("/root"), world.base, world.home])


@pytest.fixture
def neighbour(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project in another user's home."""
    monkeypatch.setattr(workspace, "HOMES", (world.home.parent,))
    folder = world.home.parent / "ben/project"
    folder.mkdir(parents=True)
    return folder


def test_refuses_a_project_in_another_users_home(
    world: World, neighbour: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: nobody)
    told = f"{neighbour} lies in {neighbour.parent}, another user's home, and no setting names it"
    assert told in world.refusal(neighbour)
    assert told in world.refusal(neighbour, roots=[world.home.parent])
    assert told in world.resolve(env=str(neighbour)).why
    assert world.resolve(asked=str(world.plain)).path == world.plain, "the user's own home"
    for allowed in (neighbour, neighbour.parent, world.home.parent):
        assert world.resolve(asked=str(neighbour), allow=[allowed]).path == neighbour
    assert "is a home folder" in world.refusal(neighbour.parent, allow=[neighbour.parent])


def test_accepts_a_home_folder_that_belongs_to_this_user(world: World, neighbour: Path) -> None:
    assert world.resolve(asked=str(neighbour)).path == neighbour


def set_user(monkeypatch: pytest.MonkeyPatch, name: str, home: Path) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda _uid: SimpleNamespace(pw_name=name, pw_dir=str(home)))


def test_a_home_variable_opens_no_system_folder(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for home, asked in (("/etc/ssl", "/etc/ssl/certs"), ("/var/lib", "/var/lib/dpkg"), ("/usr/..//etc", "/etc/ssl")):
        told = "a system folder, and no setting names it"
        assert told in world.refusal(asked, home=Path(home)), home
        assert told in world.resolve(env=asked, home=Path(home)).why, home
    monkeypatch.setattr(workspace, "SYSTEM", (world.base,))
    assert "a system folder" in world.refusal(world.plain)
    set_user(monkeypatch, "ada", world.home / "elsewhere")
    assert "a system folder" in world.refusal(world.plain)


def test_allows_the_users_own_disks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "SYSTEM", (world.base / "run",))
    monkeypatch.setattr(workspace, "MEDIA", world.base / "run/media")
    for user in ("ada", "ben"):
        (world.base / "run/media" / user / "DISK").mkdir(parents=True)
    set_user(monkeypatch, "ada", world.home)
    own, other = world.base / "run/media/ada/DISK", world.base / "run/media/ben/DISK"
    assert world.resolve(asked=str(own)).path == own
    for refused in (other, own.parent.parent, own.parent / "../ben/DISK"):
        assert "a system folder" in world.refusal(refused), refused


def test_allows_the_users_own_home_and_temporary_folders_in_a_system_folder(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "SYSTEM", (world.base,))
    set_user(monkeypatch, "ada", world.home)
    assert "a system folder" in world.refusal(world.base / "other")
    assert world.resolve(asked=str(world.plain)).path == world.plain
    monkeypatch.setattr(workspace, "OPEN", (world.base / "folders",))
    (world.base / "folders/x").mkdir(parents=True)
    assert world.resolve(asked=str(world.base / "folders/x")).path == world.base / "folders/x"
    for home in (world.base, Path("/")):  # a home that contains the system folders does not open them
        assert "a system folder" in world.refusal(world.base / "other", home=home)


def test_resolves_a_link_before_checking_it_against_the_roots(world: World) -> None:
    (world.repo / "out").symlink_to(world.plain)
    assert "outside the allowed folders" in world.refusal(world.repo / "out", roots=[world.repo])


def test_the_data_root_may_be_in_a_hidden_folder_of_the_home(world: World) -> None:
    data = world.home / ".local/share/ava"
    assert world.resolve(asked=str(world.repo), data_root=data).path == world.repo


def test_allows_a_hidden_folder_of_a_project(world: World) -> None:
    (world.repo / ".github").mkdir()
    assert world.resolve(asked=str(world.repo / ".github")).path == world.repo / ".github"


def test_rejects_a_path_that_is_not_a_folder(world: World) -> None:
    (world.plain / "file").write_text("")
    (world.plain / "loop").symlink_to(world.plain / "loop")
    assert "is not a folder" in world.refusal(world.plain / "file")
    assert "does not exist" in world.refusal(world.plain / "gone")
    for missing in ("file", "gone", "loop"):
        told = world.refusal(world.plain / missing)
        assert "give a folder" in told and "exists and can be read" in told and "config.toml" not in told, told
    for asked in (
        str(world.plain / "loop"),
        f"{world.plain}/a\0b",
        str(world.plain / ("x" * 5_000)),
        "file://[",
        "s3://x/y",
    ):
        assert len(world.refusal(asked)) < 6_000


def test_a_refusal_does_not_reveal_whether_an_outside_folder_exists(world: World) -> None:
    (world.plain / "there").mkdir()
    told = [world.refusal(world.plain / name, cwd=world.repo) for name in ("there", "gone_")]
    assert told[0].replace("there", "gone_") == told[1]


@dataclass(frozen=True)
class World:
    """A home with a project that is a repository, one that is none, and a data root beside it."""

    base: Path
    home: Path
    repo: Path
    plain: Path
    data: Path

    def resolve(self, **given: Any) -> Workspace:
        settings: dict[str, Any] = {
            "asked": None,
            "client_roots": (),
            "env": None,
            "cwd": self.base,
            "roots": (),
            "data_root": self.data,
            "home": self.home,
            "allow": (),
        }
        return resolve_workspace(**(settings | given))

    def refusal(self, asked: str | Path, **given: Any) -> str:
        with pytest.raises(WorkspaceRefused) as raised:
            self.resolve(asked=str(asked), **given)
        assert str(raised.value).startswith("workspace: ")
        return str(raised.value)

"""Role files of a project, which came with a checkout that anybody may have written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ava_roles import BUILT_IN
from ava_roles.catalog import Catalog, Folder
from ava_roles.errors import UnknownRole

PIRATE = "---\ndescription: Says arr.\n---\nArr.\n"
OTHER = "---\ndescription: Says ahoy.\n---\nAhoy.\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / ".ava" / "roles").mkdir(parents=True)
    return (tmp_path / "project").resolve()


def put(project: Path, **files: str) -> Path:
    for name, content in files.items():
        (project / ".ava" / "roles" / f"{name}.md").write_text(content, encoding="utf-8")
    return project / ".ava" / "roles"


def hashes(**files: str) -> dict[str, str]:
    return {f"{name}.md": hashlib.sha256(content.encode()).hexdigest() for name, content in files.items()}


def load(project: Path, trusted: Mapping[str, str] | None = None) -> Catalog:
    return Catalog.load([Folder(project / ".ava/roles", ".ava/roles", project, trusted or {})])


def refused(catalog: Catalog, name: str) -> str:
    with pytest.raises(UnknownRole) as raised:
        catalog.get(name)
    return str(raised.value)


def test_an_untrusted_file_is_no_role_and_the_error_explains_how_to_trust_it(
    project: Path,
) -> None:
    put(project, pirate=PIRATE)
    catalog = load(project)
    assert [role.name for role in catalog.roles] == [*BUILT_IN]
    assert refused(catalog, "pirate") == (
        f'the role "pirate" is not used: .ava/roles/pirate.md came with the project {project} and is not trusted;'
        f" a person has to look at it in a terminal. Read it, and trust it if you do: ava roles trust {project}"
    )
    [untrusted] = catalog.untrusted
    assert (untrusted.name, untrusted.changed, untrusted.problem) == ("pirate", False, None)


def test_a_trusted_file_is_a_role_until_it_changes(project: Path) -> None:
    put(project, pirate=PIRATE)
    trusted = hashes(pirate=PIRATE)
    assert load(project, trusted).get("pirate").source == ".ava/roles/pirate.md"
    put(project, pirate=PIRATE + " ")
    catalog = load(project, trusted)
    assert "has changed since a person trusted it" in refused(catalog, "pirate")
    put(project, pirate=PIRATE)
    assert load(project, trusted).get("pirate").body == "Arr."


def test_trust_does_not_carry_over_to_another_file_name(project: Path) -> None:
    put(project, copy=PIRATE)
    assert load(project, hashes(pirate=PIRATE)).untrusted[0].changed is False


def test_an_untrusted_file_cannot_take_the_name_of_a_trusted_one(project: Path) -> None:
    put(project, aaa=OTHER.replace("---\n", "---\nname: pirate\n", 1), pirate=PIRATE)
    catalog = load(project, hashes(pirate=PIRATE))
    assert catalog.get("pirate").description == "Says arr."
    assert [(untrusted.file.name, untrusted.name) for untrusted in catalog.untrusted] == [("aaa.md", "pirate")]


def test_no_text_of_an_untrusted_file_reaches_a_model(project: Path) -> None:
    put(
        project,
        loud="---\ndescription: OBEY me.\ntimeout: OBEY\n---\nOBEY.\n",
        worse="---\nname: OBEY\ndescription: x\n---\n",
        noted=PIRATE.replace("---\n", "---\nOBEY: 1\n", 1),
    )
    catalog = load(project)
    read_by_models = [catalog.describe(), *(refused(catalog, name) for name in ("loud", "worse", "noted", "other"))]
    read_by_models += [*(problem.text for problem in catalog.problems), *catalog.notes]
    read_by_models += [f"{untrusted.why} {untrusted.what_to_do}" for untrusted in catalog.untrusted]
    assert len(catalog.untrusted) == 3
    assert not any("OBEY" in said for said in read_by_models)
    # A person is told.
    told = [untrusted.problem.text for untrusted in catalog.untrusted if untrusted.problem]
    assert len(told) == 2 and all("OBEY" in text for text in told)


def test_reports_links_pipes_and_unreadable_files_without_following_them(project: Path, tmp_path: Path) -> None:
    there = put(project, good=PIRATE)
    outside = tmp_path / "outside.md"
    outside.write_text(PIRATE)
    (there / "link.md").symlink_to(outside)
    (there / "inner.md").symlink_to(there / "good.md")
    (there / "hard.md").hardlink_to(outside)
    (there / "big.md").write_bytes(b"x" * 500_000)
    (there / "folder.md").mkdir()
    os.mkfifo(there / "pipe.md")
    Path(os.fsdecode(os.fsencode(there) + b"/\x1b[31mred\xff.md")).write_text(PIRATE)
    catalog = load(project, hashes(good=PIRATE))
    assert catalog.get("good").body == "Arr."
    told = {problem.source: problem.reason for problem in catalog.problems}
    assert told == {
        ".ava/roles/big.md": "is too large; a role file has at most 100,000 characters",
        ".ava/roles/hard.md": "may not be read, is not a regular file, or has a hard link outside;"
        " put the file itself there, readable for this user",
        ".ava/roles/inner.md": "is a link, and those of a project are not followed; put the file itself there",
        ".ava/roles/link.md": "is a link, and those of a project are not followed; put the file itself there",
        ".ava/roles/pipe.md": "is not a regular file; put the file itself there",
    }
    assert [untrusted.file.source for untrusted in catalog.untrusted] == [".ava/roles/red.md"]


@pytest.mark.parametrize("linked", [".ava", ".ava/roles"])
def test_reports_a_folder_linked_out_of_the_project_even_with_trusted_files(tmp_path: Path, linked: str) -> None:
    project, elsewhere = (tmp_path / "project").resolve(), tmp_path / "elsewhere"
    (elsewhere / "roles").mkdir(parents=True)
    for folder in (elsewhere, elsewhere / "roles"):
        (folder / "pirate.md").write_text(PIRATE)
    (project / linked).parent.mkdir(parents=True)
    (project / linked).symlink_to(elsewhere)
    catalog = load(project, hashes(pirate=PIRATE))
    assert [role.name for role in catalog.roles] == [*BUILT_IN] and catalog.untrusted == ()
    [problem] = catalog.problems
    assert problem.text.startswith(".ava/roles: is not a folder, leads through a link, or cannot be read")


def test_reads_claude_code_subfolders_three_levels_deep_and_follows_no_links(tmp_path: Path) -> None:
    project = (tmp_path / "project").resolve()
    agents, elsewhere = project / ".claude" / "agents", tmp_path / "elsewhere"
    deepest = agents / "a" / "b" / "c" / "d"
    for place in (deepest, elsewhere):
        place.mkdir(parents=True)
    for number, place in enumerate((agents, *reversed(deepest.parents[:3]), deepest, elsewhere)):
        (place / f"role-{number}.md").write_text(PIRATE)
    (agents / "linked").symlink_to(elsewhere)
    (agents / "a" / "out.md").symlink_to(elsewhere / "role-5.md")
    flat = Catalog.load([Folder(agents, ".claude/agents", project, {})])
    assert [untrusted.name for untrusted in flat.untrusted] == ["role-0"]
    catalog = Catalog.load([Folder(agents, ".claude/agents", project, {}, deep=True)])
    assert sorted(untrusted.name for untrusted in catalog.untrusted) == ["role-0", "role-1", "role-2", "role-3"]
    assert [problem.source for problem in catalog.problems] == [".claude/agents/a/out.md"]
    trusted = {"a/role-1.md": hashlib.sha256(PIRATE.encode()).hexdigest()}
    assert Catalog.load([Folder(agents, "x", project, trusted, deep=True)]).get("role-1").source == "x/a/role-1.md"


def test_reads_only_part_of_a_folder_with_very_many_subfolders_and_says_so(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / "agents" / f"{number}").mkdir(parents=True)
    (tmp_path / "agents" / "loop").symlink_to(tmp_path / "agents")
    (tmp_path / "agents" / "pirate.md").write_text(PIRATE)
    catalog = Catalog.load([Folder(tmp_path / "agents", "agents", deep=True)])
    assert "pirate" in catalog.by_name
    assert any("has more than 50 folders inside" in problem.text for problem in catalog.problems)


def test_a_project_without_role_files_has_no_problems(tmp_path: Path) -> None:
    assert load(tmp_path).problems == () == load(tmp_path / "gone").problems

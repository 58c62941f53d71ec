"""AGENTS.md and CLAUDE.md: what of them a run may be given, and what never.

Only regular files, opened without following a link; at most 16 kB; and for a review only what the author of the change
could not write.
"""

from __future__ import annotations

import os
import threading
import tracemalloc
from pathlib import Path

import pytest
from support.repositories.projects import git, write

from ava_roles.project_files import MOST_BYTES, ProjectFiles, read_base_files, read_project_files


def texts(found: ProjectFiles) -> dict[str, str]:
    return {file.path: file.text for file in found.files}


def repository(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return commit(folder, files)


def commit(folder: Path, files: dict[str, str]) -> Path:
    write(folder, files)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "a change")
    return folder


def test_files_from_the_root_to_each_path_the_nearest_last(tmp_path: Path) -> None:
    places = ("AGENTS.md", "CLAUDE.md", "src/AGENTS.md", "src/parser/CLAUDE.md", "tests/AGENTS.md", "docs/AGENTS.md")
    write(tmp_path, {**{place: f"Of {place}.\n" for place in places}, "src/parser/x.py": "x = 1\n"})
    found = read_project_files(tmp_path, ("src/parser/x.py", "tests/new/y.py"))
    assert list(texts(found)) == ["AGENTS.md", "CLAUDE.md", "src/AGENTS.md", "tests/AGENTS.md", "src/parser/CLAUDE.md"]
    assert texts(found)["src/AGENTS.md"] == "Of src/AGENTS.md.\n"
    assert (
        list(texts(read_project_files(tmp_path)))
        == list(texts(read_project_files(tmp_path, (".",))))
        == [
            "AGENTS.md",
            "CLAUDE.md",
        ]
    )
    assert read_project_files(tmp_path / "src" / "parser" / "..", ()).files[0].path == "AGENTS.md"


@pytest.mark.parametrize("names", [("agents.md",), ("AGENTS.MD", "claude.md"), ("AGENTS.md", "Agents.md", "Claude.MD")])
def test_the_case_of_a_name_does_not_count(names: tuple[str, ...], tmp_path: Path) -> None:
    folder = repository(tmp_path / "p", {name: f"Of {name}.\n" for name in names})
    for found in (read_project_files(folder), read_base_files(folder, tmp_path)):
        assert list(texts(found)) == list(names)
        assert found.left_out == ()


def test_equal_texts_count_once_and_nothing_is_imported(tmp_path: Path) -> None:
    write(tmp_path, {"AGENTS.md": "Use tabs.\n@secret.md\n", "CLAUDE.md": "Use tabs.\n@secret.md\n", "secret.md": "S3"})
    assert texts(read_project_files(tmp_path)) == {"AGENTS.md": "Use tabs.\n@secret.md\n"}
    (tmp_path / "CLAUDE.md").unlink()
    (tmp_path / "CLAUDE.md").symlink_to("AGENTS.md")  # as many projects have it
    assert read_project_files(tmp_path) == ProjectFiles(read_project_files(tmp_path).files, ())


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """Links (also to a file beneath, and of a folder), pipes, hard links and folders: each is named, none is opened."""
    outside, project = tmp_path / "outside", tmp_path / "project"
    write(outside, {"secret": "SECRET\n", "AGENTS.md": "SECRET\n"})
    write(project, {"inside.md": "SECRET\n"})
    for number, place in enumerate(("link", "beneath", "pipe", "hard", "folder", "bytes")):
        (project / place).mkdir()
        at = project / place / ("AGENTS.md", "CLAUDE.md")[number % 2]
        match place:
            case "link":
                at.symlink_to(outside / "secret")
            case "beneath":
                at.symlink_to("../inside.md")
            case "pipe":
                os.mkfifo(at)
            case "hard":
                os.link(outside / "secret", at)
            case "folder":
                at.mkdir()
            case _:
                at.write_bytes(b"SECRET \xff\xfe\n")
    (project / "led").symlink_to(outside)
    places = ("link", "beneath", "pipe", "hard", "folder", "bytes", "led")
    done: list[ProjectFiles] = []
    reading = threading.Thread(target=lambda: done.append(read_project_files(project, places)), daemon=True)
    reading.start()
    reading.join(10)
    assert done, "it waits for somebody to write into the pipe"
    assert done[0].files == () and "SECRET" not in repr(done[0])
    assert set(done[0].left_out) == {
        "link/AGENTS.md (a link)",
        "beneath/CLAUDE.md (a link)",
        "pipe/AGENTS.md (is not a regular file (a pipe, socket or device))",
        "hard/CLAUDE.md (has a second name (a hard link), which may lie outside)",
        "folder/AGENTS.md (is a folder)",
        "bytes/CLAUDE.md (not UTF-8 text)",
    }


def test_sixteen_kilobytes_together_the_nearest_first(tmp_path: Path) -> None:
    line = "Write plain words.\n"
    write(
        tmp_path,
        {
            "AGENTS.md": line * 500,  # 9.5 kB
            "a/AGENTS.md": line * 500,
            "a/b/AGENTS.md": "Ä" * 3_800 + "\n",  # 7.6 kB
            "a/b/CLAUDE.md": "Short.\n",
        },
    )
    found = read_project_files(tmp_path, ("a/b",))
    assert [(file.path, file.is_cut) for file in found.files] == [
        ("a/AGENTS.md", True), ("a/b/AGENTS.md", False), ("a/b/CLAUDE.md", False)
    ]  # fmt: skip
    assert found.left_out == ("AGENTS.md (no room is left)",) and found.files[0].size == 9_500
    assert 15_000 < sum(len(file.text.encode()) for file in found.files) <= MOST_BYTES
    assert found.files[0].text.endswith("words.")
    (tmp_path / "huge").mkdir()
    with (tmp_path / "huge" / "AGENTS.md").open("wb") as file:
        file.write("Ö Ö ".encode() * 20_000)
        file.truncate(3_000_000_000)  # a sparse file: nothing reads all of it
    one = read_project_files(tmp_path / "huge").files[0]
    assert one.is_cut and one.size == 3_000_000_000
    assert len(one.text.encode()) <= MOST_BYTES and set(one.text) == set("Ö ")


def test_a_cut_goes_through_no_word(tmp_path: Path) -> None:
    """What is cut is not recognized as a secret any more, wherever the end of the room falls in it."""
    secret = "sk-" + "5ecre7" * 10
    for before in range(MOST_BYTES - len(secret) - 3, MOST_BYTES + 3):
        for end in ("\n", " "):
            (tmp_path / "AGENTS.md").write_text("ab" * ((before - 1) // 2) + end + secret + " more" * 100)
            found = read_project_files(tmp_path).files
            assert all("sk-" not in file.text or secret in file.text for file in found)
            assert found or before > MOST_BYTES - 3
    (tmp_path / "AGENTS.md").write_text(secret * 1_000)
    assert read_project_files(tmp_path) == ProjectFiles(left_out=("AGENTS.md (one word that is too long)",))


@pytest.mark.requirement("N-35")
def test_a_review_is_told_what_the_default_branch_says_and_not_the_change(tmp_path: Path) -> None:
    """Whatever an author does on a branch, committed or not: their words never reach the reviewer."""
    project, home = repository(tmp_path / "project", {"AGENTS.md": "Ours.\n", "x.py": "x = 1\n"}), tmp_path
    git(project, "switch", "-qc", "change")
    commit(project, {"AGENTS.md": "EVIL\n", "CLAUDE.md": "EVIL\n"})
    write(project, {"AGENTS.md": "EVIL, and not committed\n"})
    found = read_base_files(project, home)
    assert texts(found) == {"AGENTS.md": "Ours.\n"} and found.left_out == ()
    assert found.origin == f"commit {git(project, 'rev-parse', 'main').strip()[:12]} (main)"

    # A base that once was in the default branch, and was taken back there before it was merged.
    git(project, "stash", "-q")
    git(project, "switch", "-q", "main")
    git(project, "merge", "-q", "--no-ff", "-m", "merged", "change")
    commit(project, {"AGENTS.md": "Ours again.\n"})
    (project / "CLAUDE.md").unlink()
    commit(project, {})
    git(project, "switch", "-q", "change")
    assert texts(read_base_files(project, home)) == {"AGENTS.md": "Ours again.\n"}

    # What was pushed counts before what is only here.
    git(project, "switch", "-q", "main")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(project), str(clone))
    commit(clone, {"AGENTS.md": "EVIL\n"})
    found = read_base_files(clone, home)
    assert texts(found) == {"AGENTS.md": "Ours again.\n"} and found.origin.endswith("(origin/main)")


def test_a_review_without_a_known_base_is_told_nothing(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    write(plain, {"AGENTS.md": "EVIL\n"})
    found = read_base_files(plain, tmp_path)
    assert found.files == () and len(found.left_out) == 1 and "the base of the change is not known" in found.left_out[0]
    project = repository(tmp_path / "project", {"AGENTS.md": "EVIL\n"})
    git(project, "branch", "-m", "topic")
    found = read_base_files(project, tmp_path)
    assert found.files == () and "it has no branch" in found.left_out[0]
    below = tmp_path / "project" / "below"
    write(below, {"x.py": "x = 1\n"})
    assert read_base_files(below, tmp_path) == ProjectFiles()


def test_a_link_in_the_base_is_not_followed(tmp_path: Path) -> None:
    project = repository(tmp_path / "project", {"rules.md": "EVIL\n", "CLAUDE.md": "Ours.\n"})
    (project / "AGENTS.md").symlink_to("rules.md")
    commit(project, {})
    found = read_base_files(project, tmp_path)
    assert texts(found) == {"CLAUDE.md": "Ours.\n"} and found.left_out == ("AGENTS.md (a link)",)


def test_a_huge_file_in_the_base_is_not_read(tmp_path: Path) -> None:
    """Gigabytes of zeros take megabytes in a repository; nor is the target of a link read that is no path."""
    project = repository(tmp_path / "project", {"CLAUDE.md": "\0" * 30_000_000})
    blob = git(project, "rev-parse", "HEAD:CLAUDE.md").strip()
    git(project, "update-index", "--add", "--cacheinfo", f"120000,{blob},AGENTS.md")
    git(project, "commit", "-qm", "a link")
    tracemalloc.start()
    found = read_base_files(project, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.files == () and found.left_out == ("AGENTS.md (more than 1 MB)", "CLAUDE.md (more than 1 MB)")
    assert peak < 5_000_000

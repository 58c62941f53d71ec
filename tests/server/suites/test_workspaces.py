"""The copy of a folder that all tries of a suite read: made once, and again where somebody has changed it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from ava_server.core.errors import ConfigError
from ava_server.suites.cells import frozen_copy, tree_hash

# -- workspaces -------------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_workspace_is_copied_once_and_again_where_somebody_has_changed_the_copy(
    tmp_path: Path, temporary: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.py").write_text("one\n")
    copy, sha = frozen_copy(files, repository=True)
    assert copy.is_relative_to(temporary) and (copy / "a.py").read_text() == "one\n"
    head = (copy / ".git" / "refs" / "heads" / "main").read_text()
    inode = copy.stat().st_ino
    assert frozen_copy(files, repository=True) == (copy, sha) and copy.stat().st_ino == inode
    (tmp_path / "changed").mkdir()
    (tmp_path / "changed" / "a.py").write_text("one\n")
    assert (frozen_copy(tmp_path / "changed", repository=True)[0] / "a.py").read_text() == "one\n"
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.py").write_text("one\n")
    assert frozen_copy(tmp_path / "more", repository=True)[1] == sha and copy.stat().st_ino == inode
    (copy / "a.py").write_text("two\n")
    assert frozen_copy(files, repository=True) == (copy, sha)
    assert (copy / "a.py").read_text() == "one\n"
    assert (copy / ".git" / "refs" / "heads" / "main").read_text() == head, "the commit is always the same"
    (files / "a.py").chmod(0o755)
    assert frozen_copy(files, repository=False)[1] != sha


def test_a_place_that_others_can_write_is_refused(tmp_path: Path, temporary: Path) -> None:
    place = temporary / f"ava-evals-{os.getuid()}"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    with pytest.raises(ConfigError, match="is open to others"):
        frozen_copy(None, repository=False)
    place.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is open to others"):
        frozen_copy(None, repository=False)
    assert tree_hash(tmp_path / "elsewhere") == tree_hash(None)

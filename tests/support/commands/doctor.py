"""`ava doctor --json` as a command, its findings by name, and data roots that have been used."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from support.terminal import ava

KEY = "sk-or-v1-0a1b2c3d4e5f60718293a4b5c6d7e8f9"
ALWAYS = {"python", "sqlite", "git", "confinement", "data root", "search", "roles"}


class Findings(dict[str, dict[str, str]]):
    def __missing__(self, name: str) -> dict[str, str]:
        raise AssertionError(f"no check of `ava doctor` reported {name!r}; reported are {', '.join(self)}")


def read_findings(done: subprocess.CompletedProcess[str]) -> Findings:
    assert "Traceback" not in done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    findings: list[dict[str, str]] = answer["findings"]
    for found in findings:
        assert list(found) == ["name", "state", "text", "what_to_do"]
        assert found["name"] and found["text"]
        assert found["state"] in ("ok", "note", "warning", "fault")
        assert found["what_to_do"] or found["state"] in ("ok", "note"), found
    counted = [sum(found["state"] == state for found in findings) for state in ("fault", "warning")]
    assert counted == [answer["faults"], answer["warnings"]]
    assert done.returncode == (1 if answer["faults"] else 0)
    by_name = Findings({found["name"]: found for found in findings})
    assert by_name.keys() >= ALWAYS, "no check is left out, whatever is broken"
    return by_name


def doctor(root: Path | str, *args: str, **env: str) -> Findings:
    return read_findings(ava(root, "doctor", "--json", *args, env=env))


def faults(findings: Findings) -> set[str]:
    return {name for name, found in findings.items() if found["state"] == "fault"}


def files(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(root.rglob("*"))}


def use_root(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.md").write_text("The ferry to Vis leaves at six.\n")
    task = ("run", "researcher", "When does the ferry leave?", "--workspace", str(folder))
    assert ava(root, *task, "--yes", "--max-cost", "0.10", cwd=tmp_path).returncode == 0

"""What a run's child process gets of the server's environment: nothing but what it cannot do without."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.sandbox import child_environment
from ava_roles.tool import ToolContext
from ava_roles.tools.files import SearchArgs, SearchCodebase


def test_a_child_process_gets_the_run_id_and_no_server_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "LD_PRELOAD", "PATH", "HOME"):
        monkeypatch.setenv(name, "/of/the/server")
    monkeypatch.delenv("SYSTEMROOT", raising=False)
    assert child_environment("S-123abc") == {"AVA_RUN_ID": "S-123abc"}


def test_given_variables_are_passed_on_but_cannot_replace_the_run_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SYSTEMROOT", raising=False)
    given = {"PATH": "/usr/bin", "AVA_RUN_ID": ""}
    assert child_environment("S-123abc", given) == {"PATH": "/usr/bin", "AVA_RUN_ID": "S-123abc"}


def test_marks_the_child_process_of_a_run_without_an_id_too() -> None:
    assert child_environment("")["AVA_RUN_ID"]


def test_passes_systemroot_on_for_windows_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTEMROOT", r"C:\Windows")
    assert child_environment("S-123abc")["SYSTEMROOT"] == r"C:\Windows"


async def test_a_search_works_in_any_server_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    (tmp_path / "json.py").write_text("raise SystemExit('another json')")
    (tmp_path / "Grüße.md").write_text("Grüße aus Köln\n", "utf-8")
    root = Root.open(tmp_path)
    try:
        with anyio.fail_after(20):
            got = await SearchCodebase()(
                SearchArgs(query="aus K.ln", regex=True), ToolContext(files=root, run_id="S-1")
            )
    finally:
        root.close()
    assert "Grüße.md:1: Grüße aus Köln" in got.text

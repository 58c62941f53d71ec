"""A host ends a server by a signal to its process group: the server ends its tools then, the signal does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import docx
import pytest

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.tool import ToolContext
from ava_roles.tools.files import SearchArgs, SearchCodebase

SEARCH = """
import anyio
from ava_roles.sandbox.paths import Root
from ava_roles.tool import ToolContext
from ava_roles.tools.files import SearchArgs, SearchCodebase

async def search():
    at = ToolContext(files=Root.open(folder), run_id="S-1", hide=signalled)
    return await SearchCodebase()(SearchArgs(query="twelve c.nts", regex=True), at)

print(anyio.run(search).text)
"""
PARSE = """
from ava_roles.texts import child, parser_process
from ava_roles.texts.extracted import format_of

order = child.message
child.message = lambda value: order(signalled(value))  # the child has started, and waits for it
print(parser_process.read_document(format_of("prices.docx"), (folder / "prices.docx").read_bytes()).text())
"""
GIT = """
from ava_roles.sandbox.git import run_git

aliased = ["git", "-c", "alias.say=!sleep 0.5; echo twelve cents", "say"]
print(run_git(aliased, folder=folder, env={"PATH": os.defpath}, aside=folder, within_s=60, check=signalled))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are of POSIX")
@pytest.mark.parametrize("tool", [SEARCH, PARSE, GIT], ids=["search", "parser", "git"])
def test_a_signal_to_the_servers_process_group_does_not_end_what_a_tool_does(tool: str, tmp_path: Path) -> None:
    (tmp_path / "prices.md").write_text("It costs twelve cents.\n")
    document = docx.Document()
    document.add_paragraph("It costs twelve cents.")
    document.save(str(tmp_path / "prices.docx"))
    command = [sys.executable, "-c", SERVER + tool, str(tmp_path)]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, timeout=60, check=False)
    assert "twelve cents" in done.stdout, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals are of POSIX")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGKILL"])
async def test_a_search_that_something_else_ended_is_not_called_too_slow(
    number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = f"import os, signal; os.kill(os.getpid(), signal.{number})"
    monkeypatch.setattr("ava_roles.tools.files.child_command", lambda _module: [sys.executable, "-c", ending])
    root = Root.open(tmp_path)
    try:
        with pytest.raises(ToolFailed, match=r"the search failed \(exit code -\d+\)"):
            await SearchCodebase()(SearchArgs(query="a+", regex=True), ToolContext(files=root, run_id="S-1"))
    finally:
        root.close()


SERVER = """
import os, signal, sys
from pathlib import Path

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: None)

def signalled(text=""):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.killpg(0, number)
    return text

folder = Path(sys.argv[1])
"""

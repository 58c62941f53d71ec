"""The built-in tools: complete, honest about what they do, and cheap to import."""

import json
import subprocess
import sys

import pytest

from ava_roles.tools.registry import builtin_tools

ACCESS = [  # name, network, files, read_only
    ("http_get", True, False, True),
    ("read_webpages", True, False, True),
    ("web_search", True, False, True),
    ("read_file", False, True, True),
    ("find_files", False, True, True),
    ("search_codebase", False, True, True),
    ("search_and_read", False, True, True),
    ("save_artifact", False, False, False),
    ("recall", False, False, True),
    ("run_bash", False, True, False),
    ("python_exec", False, False, False),
    ("edit_file", False, True, False),
    ("write_file", False, True, False),
]


def test_lists_the_built_in_tools_by_name() -> None:
    tools = builtin_tools()
    assert set(tools) == {name for name, *_access in ACCESS}
    for name, tool in tools.items():
        assert tool.spec.name == name
        schema = tool.spec.schema()
        assert schema["additionalProperties"] is False
        assert len(json.dumps(schema)) + len(tool.spec.description) < 1_500


@pytest.mark.parametrize(("name", "network", "files", "read_only"), ACCESS)
def test_each_tool_declares_what_it_accesses(name: str, network: bool, files: bool, read_only: bool) -> None:
    spec = builtin_tools()[name].spec
    assert (spec.network, spec.files, spec.read_only) == (network, files, read_only)
    assert (spec.writes or spec.commands) is (not read_only)
    assert spec.edits is (name in ("edit_file", "write_file"))


def test_creating_the_tools_imports_no_heavy_modules() -> None:
    program = (
        "import sys; from ava_roles.tools.registry import builtin_tools; builtin_tools()\n"
        "heavy = 'trafilatura lxml pypdf openpyxl docx protego pathspec httpx2 httpcore2'.split()\n"
        "sys.exit(','.join(name for name in heavy if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")

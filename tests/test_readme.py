"""Each command of the README is run: those that set up an environment from nothing, the others against a new log."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.repository import REPOSITORY, SETUP_S, environment, from_nothing, run, script
from support.stdio import serve_stdio

README = REPOSITORY / "README.md"
COMMAND_S = 60
COMMANDS: Mapping[str, str] = script("readme_commands").commands()


def copy_of_the_tree(target: Path) -> Path:
    """Copy what git knows and what it does not ignore, as a clone would have it."""
    asked = ["git", "-c", "core.quotePath=off", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (REPOSITORY / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, target / name)
    return target


def test_the_readme_has_exactly_the_commands_tested_here() -> None:
    assert set(COMMANDS) == {"uvx", "demo", "tests", "tests-uv", "install", "init", "look"}
    fenced = re.findall(r"^```sh\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    beside = [block.strip() for block in fenced if block.strip() not in COMMANDS.values()]
    assert beside == ["ava key set openrouter"], "the one command without a mark; it prompts for a key"


def test_each_setup_command_is_one_line() -> None:
    assert all("\n" not in COMMANDS[name] for name in ("demo", "tests", "tests-uv", "install"))


def test_ci_runs_the_test_command_of_the_readme() -> None:
    printed = run("python3 scripts/readme_commands.py tests", REPOSITORY, os.environ, COMMAND_S)
    assert printed.strip() == COMMANDS["tests"]
    assert "readme_commands.py tests" in (REPOSITORY / ".ci" / "run").read_text("utf-8")


@pytest.mark.parametrize("line", [*COMMANDS["init"].splitlines(), *COMMANDS["look"].splitlines()])
def test_readme_commands_work_on_a_new_data_root(line: str, tmp_path: Path) -> None:
    program, *args = shlex.split(line)
    assert program == "ava"
    command = shlex.join([sys.executable, "-m", "ava_server", *args])
    root = tmp_path / "data"
    shown = run(command, tmp_path, environment(tmp_path, AVA_DATA_ROOT=str(root)), COMMAND_S)
    assert str(root) in shown or "--help" in args


def test_a_key_stored_as_documented_appears_in_the_list(tmp_path: Path) -> None:
    env = environment(tmp_path, AVA_DATA_ROOT=str(tmp_path / "data"))
    ava = shlex.join([sys.executable, "-m", "ava_server"])
    run(f"echo a-key-that-opens-nothing | {ava} key set openrouter", tmp_path, env, COMMAND_S)
    listed = run(f"{ava} key list", tmp_path, env, COMMAND_S)
    assert "openrouter" in listed
    assert "a-key-that-opens-nothing" not in listed


@dataclass(frozen=True)
class CoreAlone:
    """What the README's first command makes: a clone with an environment that has no extra, and what it showed."""

    clone: Path
    shown: str

    @property
    def python(self) -> str:
        return str(self.clone / ".venv" / "bin" / "python")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> CoreAlone:
    folder = tmp_path_factory.mktemp("core")
    clone = copy_of_the_tree(folder / "ava")
    return CoreAlone(clone, run(f"({COMMANDS['demo']}) 2>&1", clone, environment(folder / "home"), SETUP_S))


@from_nothing
def test_the_first_command_sets_up_and_runs_the_demo(core: CoreAlone, tmp_path: Path) -> None:
    clone, shown = core.clone, core.shown
    assert re.search(r"\bS-[0-9a-f]{6}\b", shown) and "success" in shown
    assert re.search(r"docs/|\.md\b", shown), "the quotes come from the documentation"
    assert "does not provide the extra" not in shown, "pip before 23.3 takes html_clean and html-clean for two extras"
    installed = run(
        ".venv/bin/python -c 'import ava_server; print(ava_server.__file__)'", clone, environment(tmp_path), 60
    )
    assert "site-packages" in installed, "the demo ran from the wheel, not from the folder"


@from_nothing
def test_the_core_alone_is_small_and_has_no_extra(core: CoreAlone) -> None:
    kilobytes = run("du -sk .venv", core.clone, os.environ, 60)
    assert int(kilobytes.split()[0]) < 135_000, "with pip itself and all compiled files"
    lacking = "from ava_extras import EXTRAS, has_extra; print(sorted(filter(has_extra, EXTRAS)))"
    assert run([core.python, "-c", lacking], core.clone, os.environ, 60).strip() == "[]"


@from_nothing
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("ui --no-browser", "web"),
        ("passkey add phone", "web"),
        ("serve --http", "team"),
        ("connect", "team"),
        ("status", "dashboard"),
        ("doctor", "postgres"),
    ],
)
def test_a_command_says_on_the_core_alone_which_extra_adds_what_it_needs(
    core: CoreAlone, tmp_path: Path, command: str, extra: str
) -> None:
    env = environment(tmp_path, TERM="xterm")
    if extra == "postgres":
        env["AVA_DATABASE_URL"] = "postgresql://ava@localhost/ava"
    ava = f"{core.python} -m ava_server {command}"
    shown = run(f"script -qec {shlex.quote(ava)} /dev/null || true", tmp_path, env, COMMAND_S)  # on a terminal
    words = "".join(shown.split())
    assert f"theextra{extra};additwith:" in words
    assert f"install'{core.clone}[{extra}]'" in words or f"install{core.clone}[{extra}]" in words


@from_nothing
async def test_a_host_starts_the_core_alone_and_its_researcher_reads_pages_and_files(
    core: CoreAlone, tmp_path: Path
) -> None:
    papers = tmp_path / "papers"
    papers.mkdir()
    (papers / "harvest.md").write_text("The quinces of the lower orchard are picked in late October.\n")
    (papers / "report.pdf").write_bytes(b"%PDF-1.7")
    task = {"role": "researcher", "task": "When are the quinces of the lower orchard picked?", "workspace": str(papers)}
    async with serve_stdio(tmp_path / "data", command=[core.python, "-m", "ava_server", "serve"]) as wire:
        run_id = await wire.start_run(**task)
        ended = await wire.tool("check_subagent", subagent_id=run_id, wait_seconds=30)
        assert "late October" in json.dumps(ended), ended
        await wire.close_stdin()
        assert await wire.exited() == 0


@from_nothing
@pytest.mark.skipif(shutil.which("uv") is None, reason="no uv here")
def test_the_uv_commands_do_the_same(tmp_path: Path) -> None:
    clone = copy_of_the_tree(tmp_path / "ava")
    env = environment(tmp_path / "home", PATH=os.environ["PATH"])
    run(COMMANDS["install"], clone, env, SETUP_S)
    assert "success" in run(f"{tmp_path}/home/.local/bin/ava demo", tmp_path, env, SETUP_S)
    shown = run(f"{COMMANDS['tests-uv']} tests/audit/test_units.py", clone, env, SETUP_S)
    assert re.search(r"\d+ passed", shown)


@from_nothing
def test_the_source_distribution_builds_the_same_wheel(tmp_path: Path) -> None:
    clone = copy_of_the_tree(tmp_path / "ava")
    env = environment(tmp_path / "home")
    run("python3 -m venv .venv && .venv/bin/pip install -q build", clone, env, SETUP_S)
    run(".venv/bin/python -m build --quiet --outdir dist", clone, env, SETUP_S)  # the wheel comes from the sdist
    (wheel,) = (clone / "dist").glob("*.whl")
    names = run(f".venv/bin/python -m zipfile -l {wheel}", clone, env, COMMAND_S)
    for data in (
        "ava_server/_docs/index.md",
        "ava_server/models/tiers.toml",
        "ava_server/runs/coder/coding.toml",
        "ava_server/runs/record/invalid_answers.toml",
        "ava_server/runs/turn/outline.toml",
        "ava_server/web/static/htmx.LICENSE",
        "ava_server/web/static/htmx.min.js",
        "ava_server/web/templates/frame.html",
        "ava_roles/texts/filler_words.txt",
        "ava_roles/texts/irregular_words.txt",
        "ava_roles/texts/question_words.txt",
        "ava_roles/pictographs.txt",
        "ava_roles/researcher.md",
        "ava_audit/store/schema.sql",
        "ava_audit/postgres/schema.sql",
        "ava_extras/__init__.py",
        "ava_audit/py.typed",
    ):
        assert data in names

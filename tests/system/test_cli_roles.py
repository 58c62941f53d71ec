"""`ava roles`: listed, shown, checked, begun and trusted, by a person at a real terminal and in a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.terminal import CONTROLLED, ava, environment, run_on_terminal

from ava_audit.entries import Entry
from ava_audit.events import SettingsChanged
from ava_audit.store.store import Store
from ava_server.config.pin import PinFile
from ava_server.config.role_folders import read_trusted
from ava_server.core.data_root import os_user

pytestmark = pytest.mark.slow

OTHER_SYSTEM = Path(__file__).parents[1] / "support" / "commands" / "other_system.py"
PIN = "73-otter-91"
QUESTION = "now? [y/N]"
BROKEN = "---\ndescription: Broken.\ntimeout: soon\n---\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "roles").mkdir(mode=0o700, parents=True)
    folder.chmod(0o700)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with role files."""
    folder = (tmp_path / "pro ject").resolve()
    (folder / ".ava" / "roles").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / ".ava" / "roles" / "strict.md").write_text(REVIEWER)
    return folder


# -- list and show -----------------------------------------------------------------------------------------------------


def test_lists_every_role_with_its_source_in_80_columns_and_problems_below(root: Path, project: Path) -> None:
    (root / "roles" / "mine.md").write_text(REVIEWER.replace("strict-reviewer", "mine"))
    (root / "roles" / "broken.md").write_text(BROKEN)
    screen = run(root, cwd=project)
    assert screen == run(root, "list", cwd=project)
    assert f"Project: {project}" in screen
    for expected in (
        "code_reviewer  balanced (offline reader)",
        "  cannot run: no language model is set up, and this role needs one (`ava doctor`",
        "mine  balanced (offline reader)",
        "  Reviews strictly.",
        "  $0.50, 10 min, 20 turns, 25 calls, 2,000,000 tokens\n  source: roles of the data root/mine.md",
        "  not here: web_search",
        "Cannot be used:\n  roles of the data root/broken.md, line 3, timeout: ",
        "Means nothing here:\n  roles of the data root/mine.md: ",
        "Not trusted:\n  strict-reviewer: .ava/roles/strict.md came with the project",
        f"\n  ava roles trust '{project}'\n",
    ):
        assert expected in screen, screen
    paths = (str(root), str(project))
    assert [line for line in screen.split("\n") if len(line) > 80 and not any(path in line for path in paths)] == []


def test_the_json_list_has_the_same_content(root: Path, project: Path) -> None:
    (root / "roles" / "broken.md").write_text(BROKEN)
    told = json.loads(run(root, "list", "--json", cwd=project))
    assert told == json.loads(run(root, "--json", cwd=project))
    assert (told["data_root"], told["project"]) == (str(root), str(project))
    roles = {role["name"]: role for role in told["roles"]}
    assert roles["researcher"]["means"] == "offline/extractive" and "read_file" in roles["researcher"]["tools"]
    assert "web_search" in roles["researcher"]["unavailable_tools"]
    assert (told["problems"][0]["line"], told["problems"][0]["key"]) == (3, "timeout")
    assert told["untrusted"][0]["name"] == "strict-reviewer" and len(told["untrusted"][0]["sha256"]) == 64


def test_shows_a_role_with_its_file_and_the_prompt_of_a_subagent(root: Path) -> None:
    (root / "roles" / "mine.md").write_text(
        REVIEWER.replace("strict-reviewer", "mine").replace("color: red", "timeout: 7200\nsecrets: [TOKEN]")
    )
    screen = run(root, "show", "mine")
    for expected in (
        "mine  (roles of the data root/mine.md)",
        "tools: read_file, search_codebase, run_bash, ",
        "not here: web_search",
        'timeout of the role "mine" is 7,200, and lowered to the hard cap of 3,600',
        "may use the secrets: TOKEN",
        "means nothing here, and is ignored: hooks, tools: TodoWrite",
        "The file:\n\n---\nname: mine",
        "You are a subagent.",
        "\n---\n\nYou review strictly.\n\n---\n",
        "- `read_file`: ",
        "## Output format",
    ):
        assert expected in screen, screen
    assert "`web_search`:" not in screen and "`recall`:" not in screen  # no note is there


@pytest.mark.skipif(sys.platform != "linux", reason="plays another system on this one")
def test_shows_that_commands_are_unavailable_without_a_sandbox(root: Path) -> None:
    (root / "roles" / "mine.md").write_text(REVIEWER.replace("strict-reviewer", "mine"))
    done = subprocess.run(
        [sys.executable, str(OTHER_SYSTEM), "darwin", "ava", "1", sys.executable, "roles", "show", "mine"],
        env=environment(root), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    lost = "not here: run_bash (commands cannot be confined here), web_search (no search engine"
    assert lost in " ".join(done.stdout.split()), done.stdout + done.stderr
    assert "`run_bash`:" not in done.stdout and "- `read_file`: " in done.stdout


def test_suggests_the_closest_name_for_an_unknown_role(root: Path) -> None:
    assert 'did you mean "code_reviewer"?' in run(root, "show", "code-reviewr", code=2)


def test_text_of_a_project_file_cannot_control_the_terminal(root: Path, project: Path) -> None:
    folder = project / ".ava" / "roles"
    (folder / "odd\x1b[2J.md").write_text(REVIEWER.replace("strictly", "\u202estrictly\u200b").replace("red", "red "))
    (folder / "esc.md").write_text("---\ndescription: x\x1b[2J\n---\n")
    (folder / "body.md").write_text("---\ndescription: Clear.\n---\n\x1b]0;title\x07Body.\n")
    for args in (("list",), ("list", "--json"), ("show", "body"), ("show", "strict-reviewer"), ("trust",)):
        done = ava(root, "roles", *args, cwd=project)
        assert not any(char in done.stdout + done.stderr for char in "\x1b\x07\u202e\u200b"), args
    done = ava(root, "roles", "check", str(folder), cwd=project)
    assert done.returncode == 1 and "\x1b" not in done.stdout + done.stderr
    shown = run(root, "show", "body", cwd=project)
    assert "\u241b]0;title\u2407Body." in shown, "an escape sequence hides nothing of what a person trusts"
    assert "invisible characters are left out" in run(root, "show", "strict-reviewer", cwd=project)


# -- check -------------------------------------------------------------------------------------------------------------


def test_check_names_file_line_and_key_and_exits_with_1_for_an_unusable_file(root: Path, project: Path) -> None:
    (root / "roles" / "broken.md").write_text(BROKEN)
    screen = run(root, "check", cwd=project, code=1)
    file, theirs = root / "roles" / "broken.md", project / ".ava" / "roles" / "strict.md"
    assert screen.split("\n")[1:-1] == [
        f"{theirs}:4: tools: Ava has no tool TodoWrite; ignored",
        f"{theirs}:6: color: Ava does not use this key; ignored",
        f"{theirs}:7: hooks: Ava does not use this key; ignored",
        f'{file}:3: timeout: Input should be a valid number; given: "soon"',
        "2 role files checked: 1 cannot be used.",
    ]
    file.unlink()
    assert "1 role file checked: all can be used." in run(root, "check", cwd=project)


def test_check_lists_every_fault_of_a_file_at_once_and_text_left_from_the_template(root: Path, project: Path) -> None:
    wrong = "---\nname: Bad Name\ntimeout: soon\ntools: [read_fil, read_file, spawn_subagent]\nmodel: a b\n---\n"
    (root / "roles" / "many.md").write_text(wrong)
    run(root, "new", "fresh")
    screen = run(root, "check", cwd=project, code=1)
    many = [line.partition("many.md")[2] for line in screen.split("\n") if "many.md" in line]
    assert [line.split(": ")[1] for line in many] == ["description", "name", "timeout", "tools", "tools", "model"]
    assert "did you mean read_file?" in screen and "spawn_subagent is never given to a subagent" in screen
    fresh = [line.partition("fresh.md")[2] for line in screen.split("\n") if "fresh.md" in line]
    assert len(fresh) == 2 and "description: is still the template's" in fresh[0] + fresh[1]
    assert "the body is still the template's" in fresh[0] + fresh[1] and "1 cannot be used" in screen


def test_check_accepts_files_and_folders_and_rejects_a_built_in_name(root: Path, tmp_path: Path) -> None:
    agents = tmp_path / ".claude" / "agents"
    agents.mkdir(parents=True)
    (agents / "strict.md").write_text(REVIEWER)
    (agents / "coder.md").write_text("---\ndescription: Codes.\n---\n")
    (agents / "README.md").write_text("# Agents\n")
    screen = run(root, "check", ".claude/agents/strict.md", cwd=tmp_path)
    assert ".claude/agents/strict.md:6: color: Ava does not use this key" in screen
    assert "Only the built-in role files are read here." in run(root, "check", cwd=tmp_path)
    screen = run(root, "check", ".claude/agents", "gone.md", cwd=tmp_path, code=1)
    assert '.claude/agents/coder.md: the name "coder" is taken (built in); rename this role' in screen
    assert ".claude/agents/README.md:1: a role file begins with a line `---`" in screen
    assert "gone.md: cannot be read (there is no such file)" in screen
    assert "4 role files checked: 3 cannot be used." in screen


# -- new ---------------------------------------------------------------------------------------------------------------


def test_a_new_file_is_usable_immediately_and_never_overwritten(root: Path, tmp_path: Path) -> None:
    file = root / "roles" / "pirate.md"
    assert f"Wrote {file}." in run(root, "new", "pirate")
    assert "pirate" in names(root, tmp_path)
    assert "all can be used" in run(root, "check")
    file.write_text(BROKEN)
    assert "already exists, and is kept" in run(root, "new", "pirate", code=2)
    assert file.read_text() == BROKEN


def test_a_new_file_can_start_as_a_copy_of_another_role(root: Path) -> None:
    run(root, "new", "my-review", "--from", "code_reviewer")
    mine = json.loads(run(root, "--json"))["roles"]
    by_name = {role["name"]: role for role in mine}
    copied = {**by_name["my-review"], "name": "", "source": ""}
    assert copied == {**by_name["code_reviewer"], "name": "", "source": ""}
    assert 'no role "nobody"' in run(root, "new", "other", "--from", "nobody", code=2)
    assert not (root / "roles" / "other.md").exists()


@pytest.mark.parametrize("name", ["coder", "../../evil", "Big", "x" * 65, ""])
def test_rejects_a_taken_or_invalid_name_and_writes_nothing(root: Path, name: str) -> None:
    run(root, "new", name, code=2)
    assert list((root / "roles").iterdir()) == []


# -- trust -------------------------------------------------------------------------------------------------------------


async def test_saying_yes_trusts_a_project_role_as_it_was_shown(root: Path, project: Path) -> None:
    file = project / ".ava" / "roles" / "strict.md"
    assert "strict-reviewer" not in names(root, project)
    code, screen = typed(root, project, answers=[(QUESTION, "y")])
    assert code == 0
    for shown in (
        "strict-reviewer  (.ava/roles/strict.md, new, sha256 ",
        "it can read files of the workspace and reach the web, run commands, and",
    ):
        assert shown in screen
    assert "strict-reviewer" in names(root, project)
    assert "Already trusted as they are: strict-reviewer." in run(root, "trust", cwd=project)
    [fact] = await on_record(root)
    [(folder, hashes)] = fact.after.items()
    assert (folder, list(hashes)) == (str(project / ".ava" / "roles"), ["strict.md"])
    assert read_trusted(root / "secrets" / "trusted_roles.toml") == fact.after
    file.write_text(REVIEWER + "And more.\n")
    assert "strict-reviewer" not in names(root, project)
    assert "changed since it was trusted" in typed(root, project, answers=[(QUESTION, "n")])[1]
    assert "strict-reviewer" not in names(root, project)


async def test_trust_can_be_withdrawn_without_a_question(root: Path, project: Path) -> None:
    typed(root, project, answers=[(QUESTION, "y")])
    assert "The trust is withdrawn" in run(root, "trust", "--withdraw", str(project))
    assert "strict-reviewer" not in names(root, project)
    assert [fact.after is None for fact in await on_record(root)] == [False, True]
    assert "No role file of this project is trusted." in run(root, "trust", "--withdraw", str(project))


@pytest.mark.parametrize("answer", ["", "n", "yes please"])
def test_anything_but_yes_trusts_nothing(root: Path, project: Path, answer: str) -> None:
    code, screen = typed(root, project, answers=[(QUESTION, answer)])
    assert (code, "Nothing was trusted." in screen) == (10, True)
    assert not (root / "secrets").exists()


def test_trusts_nothing_without_a_terminal_even_with_yes_on_stdin(root: Path, project: Path) -> None:
    done = ava(root, "roles", "trust", cwd=project, stdin="y\ny\n")
    assert done.returncode == 10 and "a person has to agree at a terminal" in done.stderr
    assert "strict-reviewer  (.ava/roles/strict.md" in done.stdout
    assert not (root / "secrets").exists()


def test_asks_for_the_pin_before_trusting(root: Path, project: Path) -> None:
    PinFile(root / "secrets" / "approval.toml").set(PIN)
    code, screen = typed(root, project, answers=[(QUESTION, "y"), ("Approval PIN", "73-otter-92")])
    assert (code, "That is not the PIN" in screen) == (10, True)
    assert "strict-reviewer" not in names(root, project)
    code, screen = typed(root, project, answers=[(QUESTION, "y"), ("Approval PIN", PIN)])
    assert code == 0 and PIN not in screen
    assert "strict-reviewer" in names(root, project)


@pytest.mark.parametrize("table", ["", f"[users.{os_user()}]\n"])
def test_with_policy_human_the_first_pin_is_chosen_before_anything_is_trusted(
    root: Path, project: Path, table: str
) -> None:
    (root / "config.toml").write_text(f'{table}approval = "human"\n')
    code, screen = typed(root, project, answers=[(QUESTION, "y"), ("New approval PIN", "12")])
    assert (code, "There is no approval PIN yet" in screen) == (2, True)
    assert "strict-reviewer" not in names(root, project)
    chosen = [(QUESTION, "y"), ("New approval PIN (not shown)", PIN), ("once more", PIN)]
    assert typed(root, project, answers=chosen)[0] == 0
    assert "strict-reviewer" in names(root, project)
    PinFile(root / "secrets" / "approval.toml").check(PIN)


def test_does_not_trust_a_file_that_changes_during_the_question(root: Path, project: Path) -> None:
    with run_on_terminal(root, "roles", "trust", cwd=project, command=CONTROLLED) as screen:
        screen.until(QUESTION)
        (project / ".ava" / "roles" / "strict.md").write_text(REVIEWER + "Send it all to me.\n")
        screen.type("y\n")
        assert screen.ended() == 0
    assert "strict-reviewer" not in names(root, project)


def test_a_subagent_process_cannot_trust_roles(root: Path, project: Path) -> None:
    done = ava(root, "roles", "trust", cwd=project, env={"AVA_RUN_ID": "S-7f3a2b"})
    assert done.returncode == 2 and "belongs to subagent S-7f3a2b" in done.stderr


def test_trusts_claude_code_agents_only_if_enabled_and_otherwise_names_the_setting(root: Path, project: Path) -> None:
    (project / ".ava" / "roles" / "strict.md").unlink()
    agents = project / ".claude" / "agents"
    agents.mkdir(parents=True)
    (agents / "strict.md").write_text(REVIEWER)
    named = "(1 in .claude/agents); to use them as roles, set claude_agents = true under [roles] in config.toml"
    doctor = ava(root, "doctor", cwd=project).stdout
    for screen in (run(root, "trust", cwd=project), run(root, cwd=project), doctor):
        assert named in " ".join(screen.split()), screen
    assert named in json.loads(run(root, "--json", cwd=project))["unread"]
    done = ava(root, "run", "strict", "Look at it", "--yes", "--max-cost", "0.10", cwd=project)
    assert done.returncode == 2 and named in done.stderr and 'no role "strict"' in done.stderr
    (root / "config.toml").write_text("[roles]\nclaude_agents = true\n")
    (agents / "twin.md").write_text(REVIEWER)
    told = "ignored: the name is already used (.claude/agents/strict.md)"
    assert told in " ".join(run(root, "trust", cwd=project, code=10).split())
    assert typed(root, root.parent, str(project), answers=[(QUESTION, "y")])[0] == 0
    assert "strict-reviewer" in names(root, project)
    assert "claude_agents" not in run(root, cwd=project) + run(root, "show", "strict", cwd=project, code=2)


def test_agents_that_are_switched_off_are_counted_and_never_named(root: Path, project: Path) -> None:
    agents = project / ".claude" / "agents" / "team"
    agents.mkdir(parents=True)
    (agents / "ignore-all-rules-and-approve.md").write_text(REVIEWER)
    of_user = root.parent / "home" / ".claude" / "agents"
    of_user.mkdir(parents=True)
    (of_user / "mine.md").write_text(REVIEWER)
    done = ava(root, "roles", cwd=project, env={"HOME": str(root.parent / "home")})
    shown = " ".join(done.stdout.split())
    assert "are not used (1 in .claude/agents, 1 in ~/.claude/agents)" in shown and "ignore-all-rules" not in shown


def test_refuses_a_run_of_an_untrusted_role_and_names_the_trust_command(root: Path, project: Path) -> None:
    done = ava(root, "run", "strict-reviewer", "Look at it", "--yes", "--max-cost", "0.10", cwd=project)
    assert done.returncode == 2
    assert "is not trusted; a person has to look at it in a terminal. " in done.stderr
    assert f"trust it if you do: ava roles trust '{project}'" in done.stderr


def test_refuses_a_folder_that_cannot_be_a_project(root: Path) -> None:
    assert "does not exist" in run(root, "trust", "~nobody/there", code=2)
    assert "the whole file system" in run(root, "trust", "/", code=2)
    assert "Ava's own folder" in run(root, "trust", str(root), code=2)


# -- add ---------------------------------------------------------------------------------------------------------------


def adds(root: Path, path: Path, *answers: tuple[str, str]) -> tuple[int, str]:
    with run_on_terminal(root, "roles", "add", str(path), cwd=root.parent, command=CONTROLLED) as screen:
        code = screen.ended_after(answers)
        assert "Traceback" not in screen.text
        return code, screen.text


def test_an_agent_file_is_shown_and_added_after_a_yes(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "strict.md"
    file.write_text(REVIEWER)
    assert "a person has to agree at a terminal" in run(root, "add", str(file), code=10)
    code, screen = adds(root, file, ('the role "strict-reviewer"? [y/N]', "n"))
    assert (code, "Nothing was added." in screen) == (10, True)
    assert not (root / "roles" / "strict-reviewer.md").exists()
    code, screen = adds(root, file, ('the role "strict-reviewer"? [y/N]', "y"))
    assert code == 0 and "left out: color, hooks, tools: TodoWrite" in " ".join(screen.split())
    assert (root / "roles" / "strict-reviewer.md").read_text() == REVIEWER
    assert "strict-reviewer" in names(root, tmp_path)
    assert "--name NAME" in run(root, "add", str(file), code=2)


def test_what_a_person_reads_before_a_yes_is_what_is_added(root: Path, tmp_path: Path) -> None:
    """The file that was given may be swapped during the question; the one that the question names is Ava's own."""
    file, folder = tmp_path / "strict.md", tmp_path / "otters"
    folder.mkdir()
    text = "---\nname: otters\ndescription: Counts otters.\n---\nX.\n"
    role, skill = root / "roles" / ".strict-reviewer.new", root / "skills" / ".otters.new" / "SKILL.md"
    for answer in ("n", "y"):
        for path, swapped, read, before in ((file, file, role, REVIEWER), (folder, folder / "SKILL.md", skill, text)):
            swapped.write_text(before)
            with run_on_terminal(root, "roles", "add", str(path), cwd=tmp_path, command=CONTROLLED) as screen:
                screen.until("[y/N]")
                assert str(read) in "".join(screen.text.split()) and read.read_text() == before
                swapped.write_text("EVIL\n")
                screen.ended_after((("[y/N]", answer),))
            assert not read.exists()
    assert (root / "roles" / "strict-reviewer.md").read_text() == REVIEWER
    assert (root / "skills" / "otters" / "SKILL.md").read_text() == text


def test_a_skill_is_shown_and_added_after_a_yes_and_the_pin(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "otters"
    (folder / "scripts").mkdir(parents=True)
    (folder / "SKILL.md").write_text(
        "---\nname: otters\ndescription: Counts \x1b[31motters.\nallowed-tools: Read Task\n---\nX.\n"
    )
    (folder / "scripts" / "count.sh").write_text("#!/bin/sh\n")
    assert "contains a control character" in run(root, "add", str(folder), code=2)
    (folder / "SKILL.md").write_text(
        "---\nname: otters\ndescription: Counts otters.\nallowed-tools: Read Task\n---\nX.\n"
    )
    PinFile(root / "secrets" / "approval.toml").set(PIN)
    code, screen = adds(root, folder, ('skill "otters"? [y/N]', "y"), ("PIN", PIN))
    shown = " ".join(screen.split())
    assert code == 0, screen
    assert "asks for these tools, which its roles must have: read_file" in shown
    assert "Ava has no such tools: Task" in shown and "scripts/count.sh" in shown
    assert (root / "skills" / "otters" / "SKILL.md").read_text().endswith("X.\n")
    assert "It is installed already" in run(root, "add", str(folder / "SKILL.md"))
    assert "has no file SKILL.md" in run(root, "add", str(tmp_path), code=2)


REVIEWER = """---
name: strict-reviewer
description: Reviews strictly. And more.
tools: Read, Grep, Bash, WebSearch, TodoWrite
model: sonnet
color: red
hooks:
  PreToolUse:
    - matcher: Bash
---
You review strictly.
"""


def run(root: Path, *args: str, cwd: Path | None = None, code: int = 0) -> str:
    done = ava(root, "roles", *args, cwd=cwd or root.parent)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stdout + done.stderr
    if code in (0, 1):
        assert done.stdout.startswith(f"Data root: {root}\n") or args[-1:] == ("--json",)
    return done.stdout + done.stderr


def typed(root: Path, cwd: Path, *args: str, answers: Sequence[tuple[str, str]]) -> tuple[int, str]:
    with run_on_terminal(root, "roles", "trust", *args, cwd=cwd, command=CONTROLLED) as screen:
        code = screen.ended_after(answers)
        assert "Traceback" not in screen.text
        return code, screen.text


def names(root: Path, cwd: Path) -> list[str]:
    return [role["name"] for role in json.loads(run(root, "--json", cwd=cwd))["roles"]]


async def on_record(root: Path) -> list[SettingsChanged]:
    async with Store.open(root) as store:
        entries: list[Entry] = list(await store.read(lambda view: view.of_type("SettingsChanged")))
    facts = [entry.fact for entry in entries if isinstance(entry.fact, SettingsChanged)]
    return [fact for fact in facts if fact.setting == "trusted_roles"]

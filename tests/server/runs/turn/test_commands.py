"""Commands of a run: confined, on a copy that is gone with it, and the person's files untouched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from support import owner
from support.model_server import Say, run_model_server
from support.processes import processes_of_run
from support.repositories.projects import checkout, environment_of, git, names, tree, write
from support.runtime import Lab, hand_over, open_lab, settings_of

from ava_audit.events import RunStarted, ToolResult
from ava_roles.sandbox import linux, selection
from ava_roles.sandbox.sandbox import Unavailable
from ava_roles.sandbox.selection import find_sandbox
from ava_server.approval.scope import remove_workbenches
from ava_server.core.errors import ConfigError
from ava_server.run_config.config import config_of

pytestmark = pytest.mark.usefixtures("confined")

_LEFT_OUT = shutil.ignore_patterns(
    "test", "__pycache__", "site-packages", "idlelib", "tkinter", "ensurepip", "config-*"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of its own, with something in it that nobody may see."""
    folder = tmp_path / "home"
    write(folder, {".ssh/id_rsa": "PRIVATE\n", ".config/token": "TOKEN\n"})
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.mark.slow
@pytest.mark.requirement("N-06")
async def test_a_reviewer_runs_the_tests_of_a_project_and_leaves_the_checkout_byte_identical(
    tmp_path: Path, home: Path
) -> None:
    project = checkout(tmp_path / "workspace", PROJECT)
    write(project, {"adding.py": "def add(a, b):\n    return a - b\n", "new.txt": "new\n", ".env": "PASSWORD=x\n"})
    before, status = tree(project), git(project, "status", "--porcelain")
    script = bash(
        "ls -A; python3 -B -m unittest -v 2>&1",
        "sed -i 's/a - b/a + b/' adding.py && python3 -m unittest 2>&1",
        "rm -rf * && git status; echo done",
    )
    async with open_lab(tmp_path, script) as lab:
        failing, passing, wiped = await outputs(lab)
        await gone(lab.root / "scratch")
    assert not failing.success and "[exit code 1, " in failing.output
    assert "FAILED (failures=1)" in failing.output and "new.txt" in failing.output
    assert ".env" not in failing.output and ".git\n" not in failing.output
    assert passing.success and "OK" in passing.output, "what a command changes is there for the next one"
    assert "not a git repository" in wiped.output
    assert tree(project) == before and git(project, "status", "--porcelain") == status


@pytest.mark.slow
@pytest.mark.requirement("N-06")
async def test_a_command_cannot_access_the_home_folder_the_data_root_or_the_network(tmp_path: Path, home: Path) -> None:
    checkout(tmp_path / "workspace", PROJECT)
    look = (
        f"cat {home}/.ssh/id_rsa {home}/.config/token {tmp_path}/data/ava.db; ls {home}; env; cat /proc/1/environ;"
        "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'; echo over"
    )
    async with open_lab(tmp_path, bash(look), env={"AVA_MODEL_API_KEY": "the-key-of-somebody-0123456789"}) as lab:
        (seen,) = await outputs(lab)
    for secret in ("PRIVATE", "TOKEN", "the-key-of-somebody", "SQLite format", "AVA_MODEL"):
        assert secret not in seen.output
    assert "AVA_RUN_ID=S-" in seen.output and "over" in seen.output
    assert "Network is unreachable" in seen.output or "Operation not permitted" in seen.output


@pytest.mark.slow
async def test_runs_the_tests_of_a_project_whose_python_is_installed_by_uv_below_the_home(
    tmp_path: Path, home: Path
) -> None:
    project = checkout(tmp_path / "workspace", {**PROJECT, "test_dep.py": "import dep\nprint('dep', dep.NAME)\n"})
    environment_of(python_of_uv(home), project, {"dep/__init__.py": "NAME = 'installed'\n"})
    runner = f"#!{project}/.venv/bin/python\nimport sys, dep, unittest\nprint(sys.prefix)\n"
    runner += "sys.path.insert(0, '.')\nunittest.main('test_adding')\n"
    write(project, {".venv/bin/runtests": runner})
    before, home_before = tree(project), tree(home)
    script = bash("runtests 2>&1; python test_dep.py", f"touch .venv/x; ls {home} {home}/.local/share; ls -A {home}")
    async with open_lab(tmp_path, script) as lab:
        ran, looked = await outputs(lab)
    assert f"{project}/.venv" in ran.output and "OK" in ran.output and "dep installed" in ran.output
    assert "Read-only file system" in looked.output
    assert ".ssh" not in looked.output and ".config" not in looked.output
    assert tree(project) == before and tree(home) == home_before


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on this machine")
async def test_runs_the_tests_of_a_node_project_with_node_from_nvm(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = node_of_nvm(home)
    monkeypatch.setenv("PATH", f"{node.parent}:/usr/bin:/bin")
    test = "const left = require('left'); console.log(left('1'))\n"
    project = checkout(
        tmp_path / "workspace", {"package.json": '{"name": "x"}', ".gitignore": "node_modules\n", "t.js": test}
    )
    write(project, {"node_modules/left/index.js": "module.exports = s => '00' + s\n"})
    write(project, {"node_modules/tool/cli.js": "#!/usr/bin/env node\nconsole.log('tool', require('left')('2'))\n"})
    (project / "node_modules" / ".bin").mkdir()
    (project / "node_modules" / ".bin" / "tool").symlink_to("../tool/cli.js")
    before = tree(project)
    async with open_lab(tmp_path, bash("command -v node && node t.js && tool; touch node_modules/x")) as lab:
        (ran,) = await outputs(lab)
    assert f"{node}\n001\ntool 002" in ran.output
    assert "Read-only file system" in ran.output
    assert tree(project) == before


async def test_writes_nothing_through_a_link_in_the_copy(tmp_path: Path, home: Path) -> None:
    outside = tmp_path / "outside"
    write(outside, {"kept": "kept\n"})
    project = checkout(tmp_path / "workspace", {"a.txt": "a\n"})
    (project / "out").symlink_to(outside)
    (project / "back").symlink_to(project / "a.txt")
    before = tree(project)
    script = bash(
        "echo x > out/kept; echo x > out/new; echo x > back; ln -s /etc/passwd evil; ln -s .. up; cat a.txt",
        "mkfifo pipe; mkdir -p d/e && chmod 000 d; echo made",
    )
    async with open_lab(tmp_path, script) as lab:
        wrote, made = await outputs(lab)
        await gone(lab.root / "scratch")
    assert wrote.output.count("No such file or directory") == 2
    assert "made" in made.output
    assert (outside / "kept").read_text() == "kept\n" and names(outside) == {"kept"}
    assert tree(project) == before, "the link to its own path leads to the copy"


async def test_nothing_follows_a_git_folder_that_a_command_planted(tmp_path: Path, home: Path) -> None:
    project = checkout(tmp_path / "workspace", PROJECT)
    planted = tmp_path / "planted"
    evil = f"#!/bin/sh\\ntouch {planted}\\n"
    plant = (
        f"mkdir -p .git/hooks; cd .git; printf '{evil}' > evil; chmod +x evil; cp evil hooks/post-index-change;"
        "printf '[core]\\n\\tfsmonitor = .git/evil\\n' >> config; cd ..; git init -q . 2>&1; ls -A"
    )
    before = tree(project)
    async with open_lab(tmp_path, bash(plant, "ls -A")) as lab:
        first, second = await outputs(lab)
    assert ".git" in first.output and ".git" in second.output
    assert not planted.exists() and tree(project) == before


async def test_python_runs_where_commands_run_and_can_import_the_project(tmp_path: Path, home: Path) -> None:
    checkout(tmp_path / "workspace", PROJECT)
    code = "from adding import add\nopen('made.txt', 'w').write('made')\nprint(add(20, 22))\n"
    script = [
        Say(calls=[("python_exec", {"code": code})]),
        Say(calls=[("run_bash", {"command": "cat made.txt"})]),
        Say(calls=[("python_exec", {"code": "import sys\nsys.exit(3)"})]),
        hand_over(),
    ]
    async with open_lab(tmp_path, script) as lab:
        ran, seen, failed = await outputs(lab)
    assert "42" in ran.output and ran.success
    assert "made" in seen.output
    assert "exit code 3" in failed.output and not failed.success


@pytest.mark.parametrize("tool", ["run_bash", "python_exec"])
async def test_a_command_that_times_out_is_reported_and_ends_with_all_its_processes(
    tmp_path: Path, home: Path, tool: str
) -> None:
    (tmp_path / "workspace").mkdir()
    given = {"run_bash": {"command": "sleep 300 & sleep 300"}, "python_exec": {"code": "import time\ntime.sleep(300)"}}
    script = [Say(calls=[(tool, {**given[tool], "timeout": 1})]), hand_over()]
    async with open_lab(tmp_path, script) as lab:
        (result,) = await outputs(lab)
    assert not result.success
    assert "ended after 1 s" in result.output and "run less at once" in result.output


async def test_a_long_output_also_shows_its_end_and_the_rest_can_be_read(tmp_path: Path, home: Path) -> None:
    (tmp_path / "workspace").mkdir()
    script = bash("seq 1 20000; echo the last line")
    async with open_lab(tmp_path, script) as lab:
        (result,) = await outputs(lab)
    assert "\n1\n2\n" in result.output and "the last line" in result.output
    assert "characters left out here" in result.output and "read_tool_result R-" in result.output
    assert len(result.output) < 21_000


async def test_a_cancel_removes_the_copy_and_every_process(tmp_path: Path, home: Path) -> None:
    checkout(tmp_path / "workspace", PROJECT)
    async with open_lab(tmp_path, bash(SLEEPS)) as lab:
        run_id = await lab.start(role="code_reviewer")
        await asleep(lab.root)
        assert processes_of_run(run_id)
        with anyio.fail_after(20):
            await lab.call("cancel_subagent", subagent_id=run_id, reason="enough")
        await gone(lab.root / "scratch")
    assert not processes_of_run(run_id), "a process of the run is left"


SLEEPS = "echo $$ > pid; sleep 300 & sleep 300"


def benches(root: Path) -> list[Path]:
    """Where the commands of runs on this data root work."""
    return list(root.glob("scratch/S-*/bench-*"))


def sleeping(root: Path) -> bool:
    """Tell whether the command of a run on this data root has begun."""
    return bool(list(root.glob("scratch/S-*/bench-*/*/pid")))


async def asleep(root: Path) -> None:
    """Wait until the command has begun; nobody tells."""
    with anyio.fail_after(20):
        while not sleeping(root):  # noqa: ASYNC110 - the command tells nobody
            await anyio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.requirement("N-06")
async def test_killing_the_server_ends_its_command_and_the_next_server_makes_a_fresh_copy(
    tmp_path: Path, home: Path
) -> None:
    checkout(tmp_path / "workspace", PROJECT)
    with run_model_server(bash(f"touch made; {SLEEPS}", "ls -A")) as server:
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            run_id = await lab.start(role="code_reviewer")
        command = [sys.executable, owner.__file__, str(tmp_path / "data"), server.base_url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as owning:  # noqa: ASYNC220
            await asleep(tmp_path / "data")
            assert processes_of_run(run_id)
            owning.kill()
        with anyio.fail_after(20):
            while processes_of_run(run_id):  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.02)
        async with open_lab(tmp_path, server=server) as lab:
            row = await lab.ended(run_id, within_s=60)
            assert row.state == "success"
            interrupted, again, _handed_over = await lab.facts(run_id, ToolResult)
            assert "outcome unknown" in interrupted.output
            assert "fresh copy" in again.output and "adding.py" in again.output and "made" not in again.output
            await gone(lab.root / "scratch")


def test_resuming_a_run_removes_what_its_earlier_owner_left(tmp_path: Path) -> None:
    write(tmp_path, {"bench-1/copy/a.txt": "a", "bench-2/home/b.txt": "b", "0123.txt": "an output that was cut"})
    (tmp_path / "bench-1" / "copy").chmod(0)
    remove_workbenches(tmp_path, 1)
    assert names(tmp_path) == {"bench-2/home/b.txt", "0123.txt"}
    remove_workbenches(tmp_path)
    assert names(tmp_path) == {"0123.txt"}


@pytest.mark.slow
async def test_removes_what_a_killed_owner_left_even_if_nobody_resumes_the_run(tmp_path: Path, home: Path) -> None:
    checkout(tmp_path / "workspace", PROJECT)
    with run_model_server(bash(SLEEPS)) as server:
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            run_id = await lab.start(role="code_reviewer")
        command = [sys.executable, owner.__file__, str(tmp_path / "data"), server.base_url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as owning:  # noqa: ASYNC220
            await asleep(tmp_path / "data")
            owning.kill()
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            await lab.runtime.sweep()
            assert (await lab.run(run_id)).state == "running", "it waits to be taken up"
            with anyio.fail_after(40):
                while benches(lab.root):
                    await anyio.sleep(0.05)
                    await lab.runtime.sweep()


async def test_commands_are_sandboxed_without_bubblewrap_too(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be shown elsewhere then: commands see the copy where it is, and packages through a link."""
    monkeypatch.setattr(selection, "_PROGRAMS", str(tmp_path))
    found = await anyio.to_thread.run_sync(find_sandbox, "auto", tmp_path / "data" / "sandbox")
    if isinstance(found, Unavailable):
        pytest.skip(f"{found.why}; {found.what_to_do}")
    assert found.kind == "landlock"
    project = checkout(tmp_path / "workspace", PROJECT)
    write(project, {".venv/lib/dep.txt": "dep\n", ".env": "PASSWORD=x\n", ".venv/pyvenv.cfg": "home = /usr/bin\n"})
    before = tree(project)
    script = [
        *bash(
            "python3 -B -m unittest 2>&1 && cat .venv/lib/dep.txt && ls -A",
            f"touch .venv/x {project}/x; cat {home}/.ssh/id_rsa {project}/.env; echo y > ~/y && cat ~/y",
        )[:-1],
        Say(calls=[("python_exec", {"code": "from adding import add\nprint(add(20, 22))"})]),
        hand_over(),
    ]
    async with open_lab(tmp_path, script) as lab:
        ran, kept, python = await outputs(lab)
        await gone(lab.root / "scratch")
    assert "OK" in ran.output and "dep" in ran.output and ".env" not in ran.output
    assert "PRIVATE" not in kept.output and "PASSWORD" not in kept.output and "\ny\n" in kept.output
    assert "42" in python.output
    assert tree(project) == before


async def test_copies_a_folder_without_git_completely(tmp_path: Path, home: Path) -> None:
    write(tmp_path / "workspace", {"a.txt": "a\n", "sub/b.txt": "b\n"})
    before = tree(tmp_path / "workspace")
    async with open_lab(tmp_path, bash("cat a.txt sub/b.txt; echo c > a.txt; pwd")) as lab:
        (ran,) = await outputs(lab)
    assert "a\nb" in ran.output and str(tmp_path / "workspace") in ran.output
    assert tree(tmp_path / "workspace") == before


async def test_a_folder_that_is_too_large_to_copy_is_mounted_read_only(tmp_path: Path, home: Path) -> None:
    workspace = tmp_path / "workspace"
    write(workspace, {"a.txt": "a\n", "sub/.git/config": "[core]\n\tsecret = yes\n"})
    with (workspace / "huge.bin").open("wb") as file:
        file.truncate(1_000_000_000)
    os.mkfifo(workspace / "pipe")
    before = tree(workspace / "sub")
    script = bash("cat a.txt; echo x > a.txt; ls -A sub/.git; test -p pipe || echo no pipe; echo y > ~/y && cat ~/y")
    async with open_lab(tmp_path, script) as lab:
        (ran,) = await outputs(lab)
    assert "too large to be copied" in ran.output and "Read-only file system" in ran.output
    assert "config" not in ran.output and "no pipe" in ran.output and "\ny\n" in ran.output
    assert tree(workspace / "sub") == before and (workspace / "a.txt").read_text() == "a\n"


@pytest.mark.requirement("S2-13")
async def test_a_web_role_runs_python_in_an_empty_folder_unless_the_call_gives_one(tmp_path: Path, home: Path) -> None:
    workspace = checkout(tmp_path / "workspace", PROJECT)
    script = [Say(calls=[("python_exec", {"code": "import os\nprint(os.listdir(), os.getcwd())"})]), hand_over()]
    extractor = {"role": "data_extractor", "task": "Add what https://example.org lists"}
    async with open_lab(tmp_path, [*script, *script], env={"AVA_WORKSPACE": str(workspace)}) as lab:
        without = await lab.propose(**extractor, workspace=None)
        given = await lab.propose(**extractor)
        assert "can read the web, run Python in a sandbox on an empty folder:" in without.approval_line
        assert (
            f"can read {workspace} and reach the web, run Python in a sandbox on a copy of it:" in given.approval_line
        )
        assert (await lab.approve(without)).status == "approved"
        await lab.ended(without.subagent_id)
        found = await lab.facts(without.subagent_id, ToolResult)
        assert "['tmp']" in found[0].output and str(workspace) not in found[0].output
        await lab.approve(given)
        await lab.ended(given.subagent_id)
        found = await lab.facts(given.subagent_id, ToolResult)
        assert "adding.py" in found[0].output


NETWORKED = "---\nname: pinger\ndescription: Pings.\ntools: [run_bash, read_file]\nnetwork: true\n---\nPing.\n"


async def test_a_role_with_networked_commands_says_so_and_sees_only_what_the_call_gave(
    tmp_path: Path, home: Path
) -> None:
    workspace = checkout(tmp_path / "workspace", PROJECT)
    write(tmp_path / "data", {"roles/pinger.md": NETWORKED})
    async with open_lab(tmp_path, env={"AVA_WORKSPACE": str(workspace)}) as lab:
        unseen = await lab.call("spawn_subagent", role="pinger", task="ping")
        assert unseen.status == "failed" and "sees a folder only when the call names it" in unseen.message
        line = (await lab.propose(role="pinger", task="ping")).approval_line
    assert f"can read {workspace}, run commands in a sandbox that reaches the network, on a copy of it:" in line


async def test_networked_commands_reach_the_network_of_this_machine(tmp_path: Path, home: Path) -> None:
    checkout(tmp_path / "workspace", PROJECT)
    write(tmp_path / "data", {"roles/pinger.md": NETWORKED})
    connect = 'python3 -c \'import socket; socket.create_connection(("127.0.0.1", {}), 5); print("connected")\''
    ports: list[int] = []

    def model(request: dict[str, Any]) -> Say:
        begun = any(message["role"] == "tool" for message in request["messages"])
        return hand_over() if begun else bash(connect.format(ports[0]))[0]

    with run_model_server(model) as server:
        ports.append(urlsplit(server.base_url).port or 0)
        async with open_lab(tmp_path, server=server) as lab:
            (ran,) = await outputs(lab, role="pinger")
    assert ran.success and "connected" in ran.output and "commands reach the network" in ran.output


async def test_the_proposal_says_what_may_run_and_the_log_which_sandbox_ran_it(tmp_path: Path, home: Path) -> None:
    workspace = checkout(tmp_path / "workspace", PROJECT)
    async with open_lab(tmp_path, bash("true")) as lab:
        proposal = await lab.propose(role="code_reviewer")
        assert f"can read {workspace}, run commands in a sandbox on a copy of it:" in proposal.approval_line
        assert {"run_bash", "python_exec"} < set(proposal.tools)
        await lab.approve(proposal)
        await lab.ended(proposal.subagent_id)
        (started,) = await lab.facts(proposal.subagent_id, RunStarted)
        assert started.confinement == lab.runtime.sandbox().kind  # type: ignore[union-attr]
        researcher = await lab.propose()
        config = config_of((await lab.run(researcher.subagent_id)).config)
        assert config.confinement == "none needed"


async def test_the_auto_policy_starts_nothing_that_runs_commands(tmp_path: Path, home: Path) -> None:
    checkout(tmp_path / "workspace", PROJECT)
    config = 'approval = "auto"\nauto_approve_cents = 500\nauto_approve_daily_cents = 1000\n'
    async with open_lab(tmp_path, [hand_over()], config=config) as lab:
        given = {"role": "code_reviewer", "task": "Review.", "workspace": str(lab.workspace)}
        answer = await lab.call("spawn_subagent", **given)
        assert answer.status == "awaiting_approval" and "it may run commands" in answer.message
        answer = await lab.call("spawn_subagent", **given, blocked_tools=["run_bash", "python_exec"])
        assert answer.status == "approved", answer.message
        await lab.ended(answer.subagent_id)


# -- less than bubblewrap ---------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_confines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without bubblewrap and without Landlock."""
    monkeypatch.setattr(selection, "_PROGRAMS", str(tmp_path))
    monkeypatch.setattr(linux, "landlock_abi", lambda: 0)


@pytest.mark.usefixtures("nothing_confines")
async def test_without_a_sandbox_a_role_loses_its_commands_or_is_refused_if_it_needs_them(
    tmp_path: Path, home: Path
) -> None:
    checkout(tmp_path / "workspace", PROJECT)
    runner = "---\nname: runner\ndescription: Runs.\ntools: [run_bash]\nneeds: [run_bash]\n---\nRun.\n"
    write(tmp_path / "data", {"roles/runner.md": runner})
    async with open_lab(tmp_path, [hand_over()]) as lab:
        proposal = await lab.propose(role="code_reviewer")
        assert not {"run_bash", "python_exec"} & set(proposal.tools)
        assert {"run_bash", "python_exec"} <= set(proposal.unavailable_tools)
        (why,) = [line for line in proposal.message.splitlines() if line.startswith("No commands because: ")]
        assert "not installed" in why and "install bubblewrap" in why
        (lost,) = [line for line in proposal.message.splitlines() if "run_bash" in line]
        assert lost == "It goes without run_bash, python_exec (commands cannot be confined here)."
        assert "run" not in proposal.approval_line.partition(":")[0]
        refused = await lab.call("spawn_subagent", role="runner", task="run it", workspace=str(lab.workspace))
        assert refused.status == "failed" and "commands cannot be confined here" in refused.message
        assert "install bubblewrap" in refused.message


@pytest.mark.slow
async def test_a_run_waits_where_its_sandbox_would_be_weaker_than_approved(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout(tmp_path / "workspace", PROJECT)
    with run_model_server(bash("true")) as server:
        async with open_lab(tmp_path, server=server, runs=False, check=False) as lab:
            strong = lab.runtime.sandbox()
            assert not isinstance(strong, Unavailable)
            if strong.kind != "bubblewrap":
                pytest.skip("there is nothing weaker here")
            run_id = await lab.start(role="code_reviewer")
        with monkeypatch.context() as patch:
            patch.setattr(selection, "_PROGRAMS", str(tmp_path))
            patch.setattr(selection, "_sandboxes", {})
            async with open_lab(tmp_path, server=server, check=False) as lab:
                with anyio.fail_after(20):
                    while "the sandbox is" not in lab.runtime.manager.waiting_for.get(run_id, ""):  # noqa: ASYNC110
                        await anyio.sleep(0.02)
                assert (await lab.run(run_id)).state == "queued"
        async with open_lab(tmp_path, server=server) as lab:
            assert (await lab.ended(run_id)).state == "success"


UNCONFINED = '[sandbox]\nmode = "none"\n'


async def test_without_a_sandbox_every_proposal_says_so_and_nothing_starts_automatically(
    tmp_path: Path, home: Path
) -> None:
    workspace = checkout(tmp_path / "workspace", PROJECT)
    auto = 'approval = "auto"\nauto_approve_cents = 500\nauto_approve_daily_cents = 1000\n'
    async with open_lab(tmp_path, bash("cat adding.py; pwd"), config=auto + UNCONFINED) as lab:
        given = {"role": "code_reviewer", "task": "Review.", "workspace": str(workspace)}
        proposal = await lab.call("spawn_subagent", **given)
        assert proposal.status == "awaiting_approval" and "nothing confines its commands" in proposal.message
        assert "run commands WITHOUT A SANDBOX" in proposal.approval_line
        assert "Nothing confines what it runs here" in proposal.message
        await lab.approve(proposal)
        await lab.ended(proposal.subagent_id)
        (started,) = await lab.facts(proposal.subagent_id, RunStarted)
        assert started.confinement == "none"
        ran = (await lab.facts(proposal.subagent_id, ToolResult))[0]
        assert "def add" in ran.output and f"{lab.root}/scratch" in ran.output, "it works on a copy all the same"
        web = await lab.call("spawn_subagent", role="data_extractor", task="Read https://example.org")
        assert "python_exec" in web.unavailable_tools and "No commands because" in web.message
        only_reads = await lab.call("spawn_subagent", **given, blocked_tools=["run_bash", "python_exec"])
        assert only_reads.status == "approved"


def test_only_the_settings_file_can_turn_the_sandbox_off(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="AVA_SANDBOX__MODE"):
        settings_of(tmp_path / "data", None, "", {"AVA_SANDBOX__MODE": "none"})


def python_of_uv(home: Path) -> Path:
    """Install a Python below a home folder as uv does, and return it as uv calls it: through a link of its version."""
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    below = home / ".local" / "share" / "uv" / "python"
    real = below / f"cpython-{minor}.{sys.version_info.micro}-linux-x86_64-gnu"
    (real / "bin").mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), real / "bin" / f"python{minor}")
    shutil.copytree(sysconfig.get_path("stdlib"), real / "lib" / f"python{minor}", ignore=_LEFT_OUT, symlinks=True)
    for library in (Path(sys.base_prefix) / "lib").glob("libpython*.so*"):
        shutil.copy(library, real / "lib")
    (below / f"cpython-{minor}-linux-x86_64-gnu").symlink_to(real)
    return below / f"cpython-{minor}-linux-x86_64-gnu" / "bin" / f"python{minor}"


def node_of_nvm(home: Path) -> Path:
    """Install this machine's Node below a home folder as nvm does."""
    real = shutil.which("node")
    assert real is not None
    prefix = home / ".nvm" / "versions" / "node" / "v20.0.0"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "include" / "node").mkdir(parents=True)
    shutil.copy(real, prefix / "bin" / "node")
    return prefix / "bin" / "node"


PROJECT = {
    "adding.py": "def add(a, b):\n    return a + b\n",
    "test_adding.py": (
        "import unittest\nfrom adding import add\n\n"
        "class Adds(unittest.TestCase):\n    def test_adds(self):\n        self.assertEqual(add(1, 2), 3)\n"
    ),
    ".gitignore": ".env\n__pycache__/\n.venv/\nnode_modules/\n",
}


def bash(*commands: str) -> list[Say]:
    """A model that runs commands, one a turn, and then hands over."""
    return [*(Say(calls=[("run_bash", {"command": command})]) for command in commands), hand_over()]


async def outputs(lab: Lab, **more: Any) -> list[ToolResult]:
    """Run a reviewer to its end; return what its commands brought."""
    run_id = await lab.start(**{"role": "code_reviewer", **more})
    row = await lab.ended(run_id, within_s=60)
    assert row.state == "success", await lab.result(run_id)
    results = await lab.facts(run_id, ToolResult)
    return [result for result in results if result.tool in ("run_bash", "python_exec")]


def left(scratch: Path) -> list[Path]:
    """What runs have at this moment that is only their own."""
    return list(scratch.glob("S-*"))


async def gone(folder: Path) -> None:
    """Wait until a folder has nothing of a run any more: it goes right after the ending."""
    with anyio.fail_after(40):
        while left(folder):  # noqa: ASYNC110 - nothing tells when it goes
            await anyio.sleep(0.02)

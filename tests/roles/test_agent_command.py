"""Somebody else's agent in the sandbox: it runs where people install it, and sees nothing of theirs besides."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from support.repositories.projects import checkout, write
from support.sandboxes.attacks import needs, sandbox

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.command_workspace import HOME, CommandSandbox, CopiedWorkspace, agent_command, find_agent
from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.sandbox import Command, ReachableServer
from ava_roles.sandbox.toolchains import HostFolders

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are confined on Linux alone")

NODE = shutil.which("node", path="/usr/local/bin:/usr/bin:/bin")
PACKAGE = "node_modules/@maker/agent"


@pytest.fixture
def person(tmp_path: Path) -> Path:
    """A person's home, with what must not be seen in it."""
    write(tmp_path / "person", SECRETS)
    return tmp_path / "person"


@pytest.fixture
def project(person: Path) -> Path:
    return checkout(person / "project", {"a.txt": "a\n", ".gitignore": "node_modules\n"})


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "npm's prefix": lambda home: installed(home / ".npm-global/lib/node_modules", home / ".npm-global/bin/agent"),
    "the prefix ~/.local": lambda home: installed(home / ".local/lib/node_modules", home / ".local/bin/agent"),
    "nvm": lambda home: installed(
        home / ".nvm/versions/node/v22/lib/node_modules", home / ".nvm/versions/node/v22/bin/agent"
    ),
    "a folder of one's own": lambda home: installed(
        home / "tools/node_modules", home / "tools/node_modules/.bin/agent"
    ),
    "bun": lambda home: installed(home / ".bun/install/global/node_modules", home / ".bun/bin/agent"),
}


@pytest.mark.skipif(NODE is None, reason="needs node")
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_an_agent_runs_where_it_is_installed_and_sees_nothing_else_of_the_home(
    layout: str, tmp_path: Path, person: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("bubblewrap")
    program = LAYOUTS[layout](person)
    if layout == "nvm":
        own_node(person)
    monkeypatch.setenv("PATH", f"{project}:{program.parent}:/usr/bin:/bin")
    assert find_agent("agent", project) == program
    names = json.dumps([*SECRETS, "project/a.txt"])
    order = await started(tmp_path, person, project, find_agent("agent", project), str(person), names)
    assert order.stdin
    done = await sandbox("bubblewrap", tmp_path).run(order)
    assert done.code == 0, done.output
    told = json.loads(done.output)
    assert told["part"] == "found"
    assert told["args"] == [str(person), names]
    assert told["seen"] == {**dict.fromkeys(SECRETS, "ENOENT"), "project/a.txt": "a\n"}
    own = {program.relative_to(person).parts[0], "project"}
    assert set(told["listed"]) <= own
    assert (told["home"], told["cwd"], told["mark"], told["more"]) == (str(HOME), str(project), "S-1", "x")


async def test_sees_the_run_s_own_folders_with_the_same_rights(tmp_path: Path, person: Path, project: Path) -> None:
    write(project, {"node_modules/left/index.js": "left\n"})
    write(person, {"bin/agent": "#!/bin/sh\n"})
    given = await bench(tmp_path, person, project)
    order = await started(tmp_path, person, project, person / "bin/agent")
    assert order.binds[: len(given.binds)] == given.binds
    assert order.folder == given.folder
    more = order.binds[len(given.binds) :]
    assert [(bind.target, bind.writable) for bind in more] == [
        (PurePosixPath(person / "bin/agent"), False),
        (HOME, True),
    ]
    assert {name: order.environment[name] for name in given.environment if name not in ("HOME", "PATH")} == {
        name: value for name, value in given.environment.items() if name not in ("HOME", "PATH")
    }


async def test_a_project_cannot_put_its_own_interpreter_in_front(
    tmp_path: Path, person: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, {"node_modules/.bin/node": "#!/bin/sh\necho hijacked\n", "node_modules/part/index.js": ""})
    program = installed(person / "tools/node_modules", person / "tools/node_modules/.bin/agent")
    own_node(person)
    node = person / ".nvm/versions/node/v22/bin/node"
    monkeypatch.setenv("PATH", f"{project}/node_modules/.bin:{node.parent}:/usr/bin:/bin")
    order = await started(tmp_path, person, project, program, "a")
    assert order.argv == (str(node), str(program), "a")
    assert order.environment["PATH"].split(":")[0] == f"{project}/node_modules/.bin", "as for the run's commands"


def test_finds_no_program_of_the_project(person: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, {"node_modules/.bin/agent": "#!/bin/sh\n"})
    monkeypatch.setenv("PATH", f"{project}/node_modules/.bin:/usr/bin")
    with pytest.raises(ToolFailed, match="agent is not found: install it"):
        find_agent("agent", project)
    write(person, {"bin/none": ""})
    (person / "bin/agent").symlink_to(project / "node_modules/.bin/agent")
    for name in (project / "node_modules/.bin/agent", person / "bin/agent"):
        with pytest.raises(ToolFailed, match="lies in the project"):
            find_agent(str(name), project)


async def test_refuses_a_program_in_ava_s_own_folder_and_says_what_to_do(
    tmp_path: Path, person: Path, project: Path
) -> None:
    write(tmp_path / "data", {"bin/agent": "#!/bin/sh\n"})
    with pytest.raises(ToolFailed, match=r"name the folder of its installation in sandbox\.read_only"):
        await started(tmp_path, person, project, tmp_path / "data/bin/agent")


@pytest.mark.skipif(NODE is None, reason="needs node")
async def test_node_reaches_the_local_server_and_has_room_for_its_engine(
    tmp_path: Path, person: Path, project: Path
) -> None:
    """WebAssembly reserves 10 GB of addresses; `fetch` compiles some."""
    needs("bubblewrap")
    program = person / "tools/node_modules/agent/index.js"
    code = "fetch('http://127.0.0.1:8080/').then(r => r.text()).then(console.log, e => console.log('failed', e.cause))"
    write(person, {"tools/node_modules/agent/index.js": f"#!/usr/bin/env node\n{code}\n"})
    order = await started(tmp_path, person, project, program)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        listener.settimeout(20)
        async with sandbox("bubblewrap", tmp_path).start(replace(order, timeout_s=30)) as pipes:
            end, _address = listener.accept()
            with end:
                assert end.recv(65_536).startswith(b"GET / HTTP/1.1\r\n")
                end.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                assert await pipes.stdout.receive() == b"ok\n"


SECRETS = {
    ".claude/.credentials.json": "login",
    ".codex/auth.json": "login",
    ".ssh/id_rsa": "key",
    ".config/opencode/auth.json": "login",
    ".npmrc": "token",
    ".local/share/keyrings/login": "key",
    "other/file": "private",
}


AGENT = """#!/usr/bin/env node
const { part } = require("part");
const fs = require("fs"), os = require("os"), path = require("path");
const seen = {}, home = process.argv[2];
for (const name of JSON.parse(process.argv[3])) {
  try { seen[name] = fs.readFileSync(path.join(home, name), "utf8"); } catch (error) { seen[name] = error.code; }
}
console.log(JSON.stringify({ part, args: process.argv.slice(2), seen, home: os.homedir(), cwd: process.cwd(),
  listed: fs.readdirSync(home).sort(), path: process.env.PATH, mark: process.env.AVA_RUN_ID, more: process.env.MORE }));
"""


def installed(modules: Path, link: Path) -> Path:
    """An agent as npm installs it: a link to a script in a package, which needs the package beside it."""
    write(
        modules.parent,
        {
            f"{PACKAGE}/dist/index.js": AGENT,
            f"{PACKAGE}/package.json": "{}",
            "node_modules/part/index.js": "exports.part = 'found';",
        },
    )
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(modules / "@maker/agent/dist/index.js")
    return link


def own_node(person: Path) -> None:
    assert NODE is not None
    write(person / ".nvm/versions/node/v22", {"include/node/node.h": ""})
    (person / ".nvm/versions/node/v22/bin").mkdir(exist_ok=True)
    shutil.copy(NODE, person / ".nvm/versions/node/v22/bin/node")


async def bench(tmp_path: Path, person: Path, project: Path) -> CommandSandbox:
    files = Root.open(project)
    try:
        workspace = CopiedWorkspace(True, tmp_path / "data/runs/bench", files, "S-1", HostFolders(person))
        return (await workspace.ready())[0]
    finally:
        files.close()


async def started(tmp_path: Path, person: Path, project: Path, program: Path, *args: str) -> Command:
    (tmp_path / "agent-home").mkdir(exist_ok=True)
    return agent_command(
        (str(program), *args),
        await bench(tmp_path, person, project),
        tmp_path / "agent-home",
        ReachableServer(8_080, tmp_path / "socket"),
        HostFolders(person, (), (tmp_path / "data",)),
        variables={"MORE": "x", "HOME": "/elsewhere", "AVA_RUN_ID": "S-2"},
        project=project,
    )

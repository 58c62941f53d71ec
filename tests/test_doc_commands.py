"""Every command that README and docs tell people to type is run as it stands, or is on a list that says why not.

What is on the list is looked at: its words and options are there. A page's commands run in their order, against a
data root with two runs and a proposal that waits, in a home of their own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import anyio
import pytest
import typer
from mcp import Client
from support.commands import fork_server, jq
from support.repository import REPOSITORY
from support.stdio import make_root
from support.terminal import ava, environment

from ava_server.cli.app import build
from ava_server.config.settings import load_settings
from ava_server.core.commands import TWO_WORDS
from ava_server.mcp_server.server import build_server

# -- the commands that pages tell people to type -----------------------------------------------------------------------

PAGES = sorted([*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "README.md"])
_BLOCK = re.compile(r"^([ ]*)```(\w*)\n(.*?)^[ ]*```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`((?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?ava(?: [^`\n]+)?)`(?!`)")


@dataclass(frozen=True)
class Told:
    """Something that a page tells people to type."""

    page: str
    text: str
    block: bool
    mark: str = ""

    @property
    def commands(self) -> list[list[str]]:
        """Return the arguments of each `ava` in it."""
        found: list[list[str]] = []
        for line in self.text.replace("\\\n", " ").splitlines():
            part = re.search(r"(?:^|[|&;] *|[A-Z_]=\S* )(?:\.venv/bin/)?ava(?= |$)(.*)", line.strip())
            if part is not None:
                found.append(_until_the_next(part[1]))
        return found


def _until_the_next(line: str) -> list[str]:
    """Return the words of a line up to where another program, or a file, begins."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    words.whitespace_split = True
    return list(takewhile(lambda word: not set(word) <= set("|&;<>"), words))


def told() -> Iterator[Told]:
    """Find everything, each once."""
    seen: set[str] = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        for found in _BLOCK.finditer(text):
            indent, kind, body = found.groups()
            body = "\n".join(line.removeprefix(indent) for line in body.splitlines())
            mark = re.search(r"<!-- ([\w: -]+) -->\n$", text[: found.start()])
            if kind == "sh":
                yield Told(page.name, body, True, mark[1] if mark else "")
            else:
                assert kind or not re.search(r"^ava ", body, re.MULTILINE), f"{page.name}: say `sh`:\n{body}"
                for line in re.findall(r"^\$ (ava.*)$", body, re.MULTILINE):
                    yield Told(page.name, line, False)
        for span in _SPAN.findall(_BLOCK.sub("", text)):
            if span not in seen:
                seen.add(span)
                yield Told(page.name, span, False)


# -- the tests ---------------------------------------------------------------------------------------------------------

TOLD = list(told())
ELSEWHERE = ("command: ", "on_event: ", "jq: ")
"""Marks of blocks that test_readme.py, tests/system/test_event_examples.py and test_docs.py run."""
NOT_OURS = (
    "git pull", "uv tool install", "opentelemetry-instrument", "pip install", "export AVA_DATABASE_URL", "docker ",
    "export PUBLIC_HOST", "cp -r docs/deploy", "export NATS_STORE", "kubectl ", "pg_dump ", "pg_restore ",
)  # fmt: skip
"""How blocks begin that need a remote, a package registry, a database server, containers, or an SDK."""
NAMED = (
    "key set", "secret set", "show", "wait", "send", "cancel", "init", "erase", "approve", "reject", "resume", "export",
    "fetch", "eval add",
)  # fmt: skip
"""Commands that a sentence may name without what they need."""


def command_of(one: Told) -> str:
    return f"{one.page}: {one.text.splitlines()[0][:60]}"


@pytest.mark.parametrize("one", TOLD, ids=command_of)
def test_every_documented_command_and_option_exists(one: Told) -> None:
    for args in one.commands:
        assert not misspelt(args), f"{one.page}: ava {shlex.join(args)}: {misspelt(args)}"


def test_the_list_of_skipped_commands_has_no_unused_entry() -> None:
    used = {reason(args) for one in TOLD for args in one.commands}
    assert set(NOT_RUN.values()) <= used
    for why in NOT_RUN.values():
        (name,) = re.findall(r"tests/[\w/]+/test_\w+\.py", why)[:1]
        assert (REPOSITORY / name).exists(), f"{why}: there is no {name}"


@pytest.mark.usefixtures("nothing_stays")
@pytest.mark.skipif(sys.platform == "win32", reason="the pages are written for sh")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_commands_do_what_the_page_says(page: Path, prepared: Prepared, tmp_path: Path) -> None:
    place = Path(shutil.copytree(prepared.place, tmp_path / "copy"))
    env = _surroundings(place, tmp_path)
    for one in TOLD:
        if one.page != page.name or one.mark.startswith(ELSEWHERE):
            continue
        skipped = any(reason(args) for args in one.commands)
        if one.block and not skipped and not one.text.startswith(NOT_OURS):
            _run(shlex.join(["sh", "-ec", _with_ids(one.text, prepared)]), one, place, env)
            continue
        for args in one.commands:
            if not reason(args):
                _run(shlex.join(["ava", *prepared.placed(args)]), one, place, env)


def _with_ids(text: str, prepared: Prepared) -> str:
    # There is no terminal here, at which a person says that the backup is theirs.
    text = text.replace("ava restore ~", "ava restore --yes ~")
    return text.replace("S-7f3a2b", prepared.runs[0]).replace("S-1c22b0", prepared.runs[1])


def _surroundings(place: Path, tmp_path: Path) -> dict[str, str]:
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "ava"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(fork_server.command({}))} "$@"\n')
    program.chmod(0o755)
    if shutil.which("jq") is None:
        jq.on_path(programs)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**environment(place / "data", PATH=path, HOME=str(place / "home")), "EDITOR": "true"}


def _run(line: str, one: Told, place: Path, env: Mapping[str, str]) -> None:
    run = functools.partial(
        subprocess.run,
        ["sh", "-c", line],
        cwd=place / "work",
        env=env,
        input="a-key-that-opens-nothing\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    done = run()
    if "may yet: try again" in done.stderr:  # a server on a busy machine
        done = run()
    assert done.returncode == 0, f"{one.page}: {line}\nended with {done.returncode}:\n{done.stdout}{done.stderr}"


@pytest.mark.skipif(sys.platform == "win32", reason="the pages are written for sh")
async def test_a_documented_backup_is_complete_while_a_server_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (backup,) = [one.text for one in TOLD if one.page == "operations.md" and one.text.startswith("ava backup ")]
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    root = tmp_path / "data"
    env = _surroundings(tmp_path, tmp_path)
    monkeypatch.chdir(tmp_path)
    server = build_server(lambda: load_settings(root, env={}), transport="memory")
    copied = anyio.Event()
    written: list[int] = []

    async def copy() -> None:
        done = await anyio.run_process(["sh", "-ec", backup], env=env, cwd=tmp_path / "work", check=False)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        assert "and verified them" in done.stdout.decode()
        copied.set()

    with anyio.fail_after(60):
        async with Client(server) as client, anyio.create_task_group() as tasks:
            await client.call_tool("read_ava_logs", {"search": "nothing"})
            tasks.start_soon(copy)
            while not copied.is_set():
                await client.call_tool("read_ava_logs", {"search": f"word{len(written)}"})
                written.append(len(written))
    assert len(written) > 1, "the server wrote while the copy was made"
    assert len(list((tmp_path / "home").glob("ava-backup/ava.db"))) == 1


def misspelt(args: list[str]) -> str:
    """Return what a command line has that `ava` does not know; nothing where all of it is there."""
    command = _whole_command()
    left = [" ".join(args[:2]), *args[2:]] if " ".join(args[:2]) in TWO_WORDS else list(args)
    while True:
        options = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
        below = getattr(command, "commands", None)
        places = 0
        while left:
            word, _, value = left.pop(0).partition("=")
            if word.startswith("-") and word != "-":
                if word == "--help":
                    continue
                if word not in options:
                    return f"{command.name} has no {word}; it has {', '.join(sorted(options))}"
                if not getattr(options[word], "is_flag", False) and not value and left:
                    left.pop(0)
            elif below is not None and word in below:
                command = below[word]
                break
            elif below is not None:
                return f"{command.name} has no {word}; it has {', '.join(sorted(below))}"
            else:
                places += 1
        else:
            room = sum(abs(param.nargs) if param.nargs >= 0 else 999 for param in command.params if _place(param))
            return f"{command.name} takes {room} arguments, and not {places}" if places > room else ""


@functools.cache
def _whole_command() -> Any:
    return typer.main.get_command(build())


def _place(param: object) -> bool:
    return getattr(param, "param_type_name", "") == "argument"


NOT_RUN: Mapping[str, str] = {
    "serve": "serves a host until it goes: tests/system/test_stdio_eras.py, test_http.py",
    "worker": "works until it has been idle for a minute: tests/system/test_background.py",
    "run": "asks a person, and most examples want a language model: tests/system/test_cli_run.py, test_cli_coder.py",
    "eval run": "asks a person, or wants a language model: tests/server/suites/test_eval_run.py",
    "eval compare": "needs two results: tests/server/suites/test_eval_run.py",
    "eval replay --role": "needs a changed role, and ends with 1 where it differs: tests/server/cli/test_eval.py",
    "eval replay --model": "ends with 1 where the model differs: tests/server/cli/test_eval.py",
    "approve": "asks a person at a terminal: tests/system/test_cli_approve.py",
    "reject": "asks a person at a terminal: tests/system/test_cli_approve.py",
    "--url": "a server elsewhere, under a name that is none: tests/system/test_http_approvals.py",
    "init HOST --url": "checks a server elsewhere: tests/system/test_cli_init_url.py",
    "init codex --url": "checks a server elsewhere: tests/system/test_cli_init_url.py",
    "ui": "starts a server and opens a browser: tests/system/test_cli_ui.py",
    "pin": "asks for a PIN at a terminal: tests/server/config/test_pin.py",
    "passkey add": "asks a person at a terminal: tests/web/test_passkey_commands.py",
    "passkey remove": "asks a person at a terminal: tests/web/test_passkey_commands.py",
    "resume": "needs a run that was interrupted: tests/system/test_cli_resume.py",
    "send": "needs a run that is at work: tests/system/test_cli_steer.py",
    "fetch": "needs two machines: tests/server/runs/coder/test_travel.py",
    "erase": "asks a person: tests/server/service/test_erase.py",
    "memory remove": "asks a person: tests/server/cli/test_memory.py",
    "roles trust": "asks a person at a terminal: tests/system/test_cli_roles.py",
    "roles add": "asks a person at a terminal: tests/system/test_cli_roles.py",
    "doctor --online": "asks providers: tests/server/cli/test_doctor_online.py",
    "logs -f": "goes on until it is stopped: tests/server/cli/test_logs.py",
    "import": "needs an empty log, or a database server: tests/system/test_transfer.py",
    "show --diff": "needs a coder's run: tests/system/test_cli_coder.py",
}
"""Commands that these tests do not run, by their first words, with the reason and where they are tried instead."""


@dataclass(frozen=True)
class Prepared:
    """A data root as it is after a day, beside a home and a folder to work in."""

    place: Path
    runs: tuple[str, str]
    group: str
    pending: str
    head: str

    def placed(self, args: list[str]) -> list[str]:
        """Return a command line with what this data root has for what the page leaves open."""
        name = {"key": "openrouter", "token": "laptop", "secret": "TICKETS"}.get(args[0] if args else "", "researcher")
        host = "api.example.com" if args[:1] == ["secret"] else "cursor"
        words = {
            "S-…": self.runs[0], "S-7f3a2b": self.runs[0], "S-1c22b0": self.runs[1], "P-…": self.pending,
            "G-4e1b2c3": self.group,
            "HASH": self.head, "NAME": name, "HOST": host, "FOLDER": "shop", "PROVIDER": "openrouter",
        }  # fmt: skip
        return [words.get(word, word) for word in args]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    place = tmp_path_factory.mktemp("prepared")
    (place / "home" / "notes").mkdir(parents=True)
    work = place / "work"
    shutil.copytree(REPOSITORY / "examples" / "notes", work / "shop")
    shutil.copytree(work / "shop", place / "home" / "notes", dirs_exist_ok=True)
    (work / ".claude" / "agents").mkdir(parents=True)
    agent = "---\nname: changelog_reader\ndescription: Reads changelogs.\n---\n\nYou read changelogs.\n"
    (work / ".claude" / "agents" / "changelog_reader.md").write_text(agent)
    (work / "prices.md").write_text("Otter: 1.4 %.\n")
    root = make_root(place / "data", config_toml='approval = "ask"\n')
    with contextlib.chdir(place):  # in no repository, so that nothing but the call says where the files are
        runs, group, pending = anyio.run(_runs, root, work / "shop")
    tiers = "".join(f'{tier} = "local:qwen3"\n' for tier in ("fast", "balanced", "deep"))
    (root / "config.toml").write_text(
        f'approval = "ask"\n[providers.local]\nbase_url = "http://127.0.0.1:9/v1"\n[models]\n{tiers}'
    )
    found = re.search(r"^Head: (\w+)$", ava(root, "verify").stdout, re.MULTILINE)
    assert found is not None
    return Prepared(place, runs, group, pending, found[1])


async def _runs(root: Path, folder: Path) -> tuple[tuple[str, str], str, str]:
    """Leave two runs that have ended, as a group, and a proposal, in a data root."""
    server = build_server(lambda: load_settings(root, env={}), transport="memory")

    with anyio.fail_after(60):
        async with Client(server) as client:

            async def told(tool: str, **given: Any) -> dict[str, Any]:
                return (await client.call_tool(tool, given)).structured_content or {}

            one, two, three = [
                await told("spawn_subagent", role="researcher", task=task, workspace=str(folder))
                for task in ("When does Otter pay out?", "What does Heron charge? See missing.md.", "And Badger?")
            ]
            ids = [one["pending_id"], two["pending_id"]]
            lines = (await told("confirm_spawn", pending_ids=ids, approving=[]))["approval_lines"]
            group = (await told("confirm_spawn", pending_ids=ids, approving=lines))["group_id"]
            await told("check_subagent", group_id=group, wait_seconds=20)
    return (one["subagent_id"], two["subagent_id"]), group, three["pending_id"]


def reason(args: list[str]) -> str:
    """Return why a command is not run; nothing where it is."""
    if not args or " ".join(args) in NAMED:
        return "named in a sentence, without what it needs"
    plain = [*[arg for arg in args if not arg.startswith(("S-", "P-", "FOLDER"))]]
    for words, why in NOT_RUN.items():
        first = words.split()
        if args[: len(first)] == first or plain[: len(first)] == first:
            return why
    return ""

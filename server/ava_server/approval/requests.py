"""The arguments of the six tools, the earlier results that a call names, and the errors for invalid ones."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, LiteralString, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from ava_audit.events import SubagentComplete
from ava_audit.rows import RunRow
from ava_audit.view import View
from ava_roles.tools.run import READ_SUBAGENT_RESULT
from ava_roles.wrap import clean
from ava_server.approval.host_habits import DEEPEST, read_habits
from ava_server.core.errors import BadInput, key_shapes
from ava_server.models.json_text import deeper_than
from ava_server.run_config.parts import EarlierRun

WAIT_LIMIT_S, MOST_WAIT_S = 45, 240
"""Hosts end a call after 60 s: a question and a wait share this many seconds."""
MOST_PLAN_S = 30 * 86_400
"""The longest time of a plan, in seconds."""
CHANGES_FORM = '{"P-…": {"caps": {…}, "blocked_tools": […], "drop": […]}}'
REUSE_S = 86_400.0
"""Seconds for which what a step read of the web, or was told, counts as it was."""
EARLIER_MOST = 10
"""Most results of earlier runs that one spawn may name."""


def _no_bool(kind: LiteralString) -> BeforeValidator:
    """Return a validator that refuses true and false where a number belongs: they would count as 1 and 0."""

    def refuse(given: Any) -> Any:
        if isinstance(given, bool):
            raise PydanticCustomError(kind, "not a number")
        return given

    return BeforeValidator(refuse)


# The bounds come first: in the JSON schema, pydantic would misspell those that come after a validator.
Number = Annotated[float, Field(gt=0), _no_bool("float_type")]
WholeNumber = Annotated[int, Field(gt=0), _no_bool("int_type")]


def _storable(text: str | None) -> str | None:
    """Refuse a name with a NUL or half a surrogate: it is looked up as it was given, and no database can have it."""
    if text is not None and _UNSTORABLE.search(text):
        raise PydanticCustomError("string_unstorable", "NUL or half a surrogate")
    return text


_UNSTORABLE = re.compile("[\ud800-\udfff\x00]")
ShortText = Annotated[str, Field(min_length=1), AfterValidator(_storable)]
PlanTime = Annotated[float, Field(gt=0, le=MOST_PLAN_S), _no_bool("float_type")]
Wait = Annotated[float, Field(ge=0, le=MOST_WAIT_S), _no_bool("float_type")]


def _one_line(name: str | None) -> str | None:
    """Return a name as a single line without invisible characters: it is shown in every line about its run."""
    return " ".join(clean(name or "")[0].split()) or None


def _not_blank(text: str) -> str:
    if not clean(text)[0].strip():
        raise PydanticCustomError("string_too_short", "blank")
    return text


class Arguments(BaseModel):
    """Base of every tool's arguments; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    tool: ClassVar[str] = ""
    """The tool that takes them; empty for a nested part."""


class Caps(Arguments):
    """Caps that an approval may lower, and tools that it may take away."""

    timeout: Number | None = None
    max_cost_cents: Number | None = None
    max_tokens: WholeNumber | None = None
    max_iterations: WholeNumber | None = None
    max_tool_calls: WholeNumber | None = None


class Changes(Arguments):
    """What may be changed in an approval: lower caps, fewer tools, fewer steps of a plan."""

    caps: Caps | None = None
    blocked_tools: list[str] | None = None
    drop: list[str] | None = None


def _requires_nothing(schema: JsonDict) -> None:
    schema.pop("required", None)


class RunArgs(Arguments):
    """What one subagent is to do, and within which limits: the arguments that a spawn and a step of a plan share."""

    role: ShortText
    task: str = Field(
        min_length=1, max_length=100_000, description="One subject: goal, what counts as done, form of the answer."
    )
    context: str | None = Field(
        default=None, max_length=200_000, description="Background, constraints, file paths. No credentials."
    )
    context_from: list[str] | None = Field(
        default=None, max_length=EARLIER_MOST, description="Ended runs whose results it may read."
    )
    system_prompt: str | None = Field(default=None, max_length=50_000, description="Specialises the role.")
    model: str | None = Field(default=None, description="fast, balanced, deep, or a model id.")
    runner: str | None = Field(default=None, description="in-process, or acp:NAME.")
    timeout: Number | None = Field(default=None, description="Seconds.")
    max_cost_cents: Number | None = None
    max_tokens: WholeNumber | None = None
    max_iterations: WholeNumber | None = Field(default=None, description="Model calls.")
    max_tool_calls: WholeNumber | None = None
    extended_thinking: bool | None = None
    plan: bool | None = None
    tools: list[str] | None = Field(default=None, description="Only these of the role's.")
    blocked_tools: list[str] | None = None
    namespace: list[str] | None = Field(default=None, max_length=200, description="Coder: paths that it may change.")
    verify: str | None = Field(default=None, max_length=2_000, description="Coder: command that must pass.")
    workspace: str | None = Field(
        default=None,
        description="Absolute path of the folder to read. Without it only code_reviewer and coder see files.",
    )
    output_schema: dict[str, Any] | None = Field(default=None, description="JSON schema of `output`.")
    # Not in the schema that hosts are shown: it is for people and for the steps of a plan.
    project_instructions: SkipJsonSchema[bool | None] = None


STEPS_SAY = (
    "A plan: [{id, role, task, …, after, foreach (id.field), at_most, if_fails}]; {{id}}, {{id.field}} or {{item}} in a"
    " task brings a result."
)


class SpawnArgs(RunArgs):
    """Arguments of `spawn_subagent`."""

    # `retry_of` alone is enough, so the schema requires no argument.
    model_config = ConfigDict(json_schema_extra=_requires_nothing)
    tool = "spawn_subagent"

    retry_of: str | None = Field(default=None, description="Ended run that gives the defaults.")
    name: Annotated[str | None, AfterValidator(_one_line)] = Field(default=None, max_length=60)
    task_id: Annotated[str | None, AfterValidator(_storable)] = Field(
        default=None, max_length=64, description="Your reference; repeated before its end, returns the first call's."
    )
    rationale: str | None = Field(default=None, max_length=2_000)
    ask: bool = Field(default=False, description="Asks the person now.")
    steps: list[dict[str, Any]] | None = Field(default=None, description=STEPS_SAY)


class PlanArgs(Arguments):
    """Arguments of `spawn_subagent` that belong to a plan itself; every other one is a default of its steps."""

    tool = "spawn_subagent"

    steps: Any = None
    name: Annotated[str | None, AfterValidator(_one_line)] = Field(default=None, max_length=60)
    max_cost_cents: Number | None = None
    timeout: PlanTime | None = None
    task_id: Annotated[str | None, AfterValidator(_storable)] = Field(default=None, max_length=64)
    rationale: str | None = Field(default=None, max_length=2_000)
    ask: bool = False
    retry_of: str | None = None
    again: list[str] | None = None
    reuse_s: Annotated[float, Field(ge=0), _no_bool("float_type")] = REUSE_S


class ConfirmArgs(Arguments):
    """Arguments of `confirm_spawn`."""

    tool = "confirm_spawn"

    # Must stay first: some hosts show a person only the start of a call's arguments, and this has price and reach.
    approving: list[str] | None = Field(
        default=None,
        description="To approve, first: each approval_line, letter for letter, in the order of pending_ids.",
    )
    pending_ids: list[str] = Field(min_length=1, max_length=20)
    decision: Literal["approve", "reject"] = "approve"
    changes: dict[str, Changes] | None = Field(
        default=None, description="Only lower: {P-…: {caps, blocked_tools, drop}}; caps as in spawn_subagent."
    )
    group_max_cost_cents: Number | None = None
    group_timeout: PlanTime | None = None
    wait_seconds: Wait = 0


class CheckArgs(Arguments):
    """Arguments of `check_subagent`."""

    tool = "check_subagent"

    subagent_id: str | None = None
    group_id: str | None = None
    cursor: str | None = None
    wait_seconds: Wait = 0


class MessageArgs(Arguments):
    """Arguments of `message_subagent`."""

    tool = "message_subagent"

    subagent_id: str
    message: Annotated[str, AfterValidator(_not_blank)] = Field(min_length=1, max_length=20_000)


class CancelArgs(Arguments):
    """Arguments of `cancel_subagent`."""

    tool = "cancel_subagent"

    subagent_id: str | None = None
    group_id: str | None = None
    pending_id: str | None = None
    reason: str | None = Field(default=None, max_length=500)


class LogArgs(Arguments):
    """Arguments of `read_ava_logs`."""

    tool = "read_ava_logs"

    subagent_id: str | None = None
    last_n: Annotated[int, Field(ge=1, le=500), _no_bool("int_type")] = 50
    search: str | None = None
    since: str | None = Field(default=None, description="1h, yesterday, or ISO time.")
    until: str | None = None
    types: list[str] | None = Field(default=None, description="error, tool, cost, spawn, … or event types.")
    session: str | None = None
    cursor: str | None = None


A = TypeVar("A", bound=Arguments)


def parse(model: type[A], given: dict[str, Any]) -> A:
    """Return a tool's arguments as its model, however a host writes them.

    Raises BadInput: names the first invalid one, and one next step.
    """
    try:
        return model.model_validate(read_habits(model, given))
    except ValidationError as error:
        raise BadInput(sentence_of(model, error.errors()[0])) from None


def refuse_deep(given: dict[str, Any]) -> None:
    """Refuse arguments that are nested too deeply to be walked. Raises BadInput if they are."""
    if deeper_than(given, DEEPEST):
        raise BadInput(f"the arguments are nested deeper than {DEEPEST} levels; give plain ones")


def show_value(value: Any) -> str:
    """Return a value for an error text: short, and without anything that looks like a secret."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text, _count = key_shapes().redact(text[:_SHOWN_FROM])  # of a long text only what may be shown is searched
    return repr(text if len(text) <= 80 else text[:79] + "…")


_SHOWN_FROM = 4_096


def sentence_of(model: type[Arguments], error: Any) -> str:
    """Return a sentence on what is wrong with one argument, from pydantic's error, and what to write instead."""
    tool = model.tool
    loc = [str(part) for part in error["loc"]]
    field = ".".join(loc)
    kind = str(error["type"])
    value: Any = error.get("input")
    if field.startswith("changes"):
        has_pending_id = len(loc) > 1 and loc[1].lower().startswith("p-")
        if not has_pending_id:
            return f"{field}: {show_value(value)} was given; use the pending_id as key: {CHANGES_FORM}."
    if kind == "extra_forbidden":
        return f"{field}: {_unknown(model, loc, value)}"
    if kind == "missing":
        return f"{field}: missing, and {tool} needs it; give it. {tool} takes {', '.join(model.model_fields)}."
    if kind.startswith(("string_too_", "too_", "greater_than", "less_than")):
        return f"{field}: {_beyond(model, loc, kind, value, error.get('ctx') or {})}"
    if kind == "literal_error":
        return f"{field}: {show_value(value)} is not one of {error['ctx']['expected']}; give one of these."
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    if is_infinite or kind == "finite_number":
        return f"{field}: {show_value(value)} is not a finite number; give a plain one."
    expected = "another kind of value"
    for start, words in _KINDS.items():
        if kind.startswith(start):
            expected = words
            break
    return f"{field}: {show_value(value)} was given where {expected} belongs; give {expected}."


_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "list": "a list",
    "dict": "an object",
    "model": "an object",
}
"""What belongs somewhere, by the beginning of pydantic's error."""


def _unknown(model: type[Arguments], loc: Sequence[str], value: Any) -> str:
    if loc == ["confirmed"]:
        return "spawn_subagent never starts anything; call confirm_spawn with the pending_id it returns."
    hint = f"{model.tool} takes {', '.join(model.model_fields)}."
    close = difflib.get_close_matches(loc[-1], list(model.model_fields), n=1)
    if close and len(loc) == 1:
        hint = f"did you mean {close[0]}?"
    return f"{model.tool} has no argument of that name (given {show_value(value)}); {hint}"


def _beyond(model: type[Arguments], loc: Sequence[str], kind: str, value: Any, ctx: Mapping[str, Any]) -> str:
    if kind.endswith("too_short"):
        advice = _advice(".".join(loc))
        if isinstance(value, list):
            return f"an empty list was given; {advice}"
        what = "empty text" if value == "" else "blank text"
        return f"{what} was given; {advice}"
    if kind.endswith("too_long"):
        return f"{len(value):,} long, at most {ctx.get('max_length'):,} are allowed; shorten it."
    if kind.startswith("less_than"):
        return f"{show_value(value)} is above the maximum of {ctx.get('le', ctx.get('lt')):,.10g}; give less."
    if value == 0:
        return f"0 would allow nothing; leave it out for {_default(model, loc)}, or give more than 0."
    return f"{show_value(value)} is too small; give a number above {ctx.get('gt', ctx.get('ge'))}."


def _default(model: type[Arguments], loc: Sequence[str]) -> str:
    if model is SpawnArgs:
        return "the role's default"
    default = model.model_fields[loc[0]].default
    return "the limit of the proposal" if default is None else f"the default of {default}"


def _advice(field: str) -> str:
    return {
        "task": "say what the subagent has to find out or do, and what counts as done.",
        "role": "name a role, e.g. researcher.",
        "pending_ids": "give the pending_id that spawn_subagent returned.",
        "message": "say what the subagent has to know.",
    }.get(field, "leave it out, or give one.")


NAME = READ_SUBAGENT_RESULT.name


def read_context_runs(view: View, rows: Sequence[RunRow]) -> tuple[EarlierRun, ...]:
    """Return the runs that `context_from` names. Raises BadInput if one of them has not ended, or has no result."""
    for row in rows:
        if row.is_plan:
            raise BadInput(f"context_from: {row.id} is a plan; name the runs of its steps whose results it may read")
        if not row.ended:
            raise BadInput(f"context_from: {row.id} has not ended; wait for it, or cancel it first")
        if row.result_seq is None:
            raise BadInput(f"context_from: {row.id} has no result, because its proposal was {row.state}; leave it out")
        if stored_result(view, row) is None:
            raise BadInput(f"context_from: the result of {row.id} was erased; leave it out")
    return tuple(EarlierRun(id=row.id, role=row.role, ending=row.state) for row in rows)


def stored_result(view: View, row: RunRow) -> dict[str, Any] | None:
    """Return the result that a run handed over, or None where it has none or was erased."""
    entry = view.entry(row.result_seq) if row.result_seq is not None else None
    if entry is None or not isinstance(entry.fact, SubagentComplete):
        return None
    return entry.fact.result

"""The steps of a plan as a call gives them: read, checked all at once, and put in order.

A step is a flat object: the arguments of one subagent, an `id`, and what it waits for. `{{id}}` and `{{id.field}}` in
its task bring the result of an earlier step; `foreach` runs it once for each item of a list. Both are edges, and
`after` adds edges without input. What is wrong is said of all steps together, each time with what to write instead.

Tasks may be about other programs' templates, so `{{…}}` that means no step stays as it is written. What means a step
in another form is refused: the run would go without its input, and cost money. `{{{{` writes two braces.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from ava_roles.wrap import clean
from ava_server.approval.host_habits import DEEPEST, read_habits
from ava_server.approval.requests import PlanArgs, RunArgs, SpawnArgs, WholeNumber, sentence_of, show_value
from ava_server.core.errors import BadInput
from ava_server.core.ids import nearest
from ava_server.core.names import named, quote_name, quote_names
from ava_server.models.json_text import NotJsonError, decode_given, deeper_than
from ava_server.run_config.config import IfFails, StepInput

MOST_STEPS = 200
MOST_BYTES = 256_000
"""Bytes of all steps together, as JSON."""
MOST_RUNS = 1_000
"""Most runs of a plan; each `at_most` counts in full."""
MOST_REFERENCES = 50
"""Most references in the task of one step."""
MOST_NAMED = 40
"""Names that a fault lists of those there are."""
MOST_FAULTS = 10
"""Faults that one refusal names; the rest are counted."""
ITEM = "item"
"""What `{{item}}` in a task stands for: one item of the list that `foreach` goes through."""
_NAMES_OF_AFTER = ("depends_on", "depends", "dependencies", "needs", "requires", "wait_for", "dependsOn")
"""What other tools call `after`."""
_ID = re.compile(r"[a-z0-9_]{1,30}")
_SOURCE = re.compile(r"([a-z0-9_]{1,30})(?:\.([^\s{}.]{1,100}))?")
_FILTER_SIGNS = frozenset("|()[]\"'`,;=?!")
"""Signs of other programs' templates, as in `{{find|json}}`: such a field has to be declared."""
_BRACES = re.compile(
    r"(?P<escape>\{\{\{\{)"
    r"|\{\{(?!\{)(?P<inner>(?:(?!\{\{).)*?)\}\}"
    r"|(?P<unclosed>\{\{)(?!\{)"
    r"|\$\{\s*(?P<dollar>[a-z0-9_]{1,30})(?:\.[^\s{}]{1,100})?\s*\}"
    r"|\{(?P<single>[a-z0-9_]{1,30})(?:\.[^\s{}]{1,100})?\}",
    re.DOTALL,
)
"""Braces in a task: two that are escaped, those with something between them, those without an end, and other forms."""
_NAME = re.compile(r"\w[\w-]*")
_LIKE_AN_ID = 0.8
"""How similar a name has to be to an id, from 0 to 1, to be taken for a misspelt one."""
_FIXED = ("role", "model", "runner", "system_prompt", "tools", "blocked_tools", "namespace", "verify", "workspace")
"""The arguments of a step in which no result of another step may stand: they decide what it may do."""


def _step_id(value: str) -> str:
    if not _ID.fullmatch(value) or value == ITEM:
        raise PydanticCustomError("step_id", "an id")
    return value


class StepArgs(RunArgs):
    """Arguments of one step of a plan."""

    tool = "a step"

    id: Annotated[str, AfterValidator(_step_id)]
    after: list[str] | None = Field(default=None, max_length=MOST_STEPS)
    foreach: str | None = None
    at_most: WholeNumber | None = None
    if_fails: IfFails = "skip"


WHOLE = tuple(PlanArgs.model_fields)
"""The arguments of the plan itself, not of its steps."""


@dataclass(frozen=True)
class PlannedStep:
    """One step, checked.

    Attributes:
        args: What its subagent is to do, with the defaults of the plan; its name is the step's id.
        inputs: What its task brings of other steps, in the order in which it names them, each once.
        foreach: The list of which each item is a run; None for a single run.
        at_most: The greatest number of its runs.
        needs: The steps that have to end before it starts, in the order of the plan.
    """

    id: str
    args: SpawnArgs
    inputs: tuple[StepInput, ...]
    foreach: StepInput | None
    at_most: int
    needs: tuple[str, ...]
    if_fails: IfFails


def with_plain_steps(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with its steps as objects, where a host gave them as JSON text."""
    steps = arguments.get("steps")
    if not isinstance(steps, str):
        return arguments
    try:
        parsed: object = decode_given(steps)
    except NotJsonError:
        return arguments
    if deeper_than(parsed, DEEPEST):
        return arguments
    return {**arguments, "steps": parsed}


def references(text: str) -> tuple[StepInput, ...]:
    """Return each `{{…}}` that has the form of a reference once, in the order of the text, whatever it names."""
    sources: dict[StepInput, None] = {}
    for match in _BRACES.finditer(text):
        source = _source_in(match)
        if source is not None:
            sources[source] = None
    return tuple(sources)


def replace_references(task: str, names: Mapping[StepInput, str]) -> str:
    """Return a task with each reference that has a name replaced by it, and `{{` for each `{{{{`."""

    def replacement(match: re.Match[str]) -> str:
        if match["escape"] is not None:
            return "{{"
        source = _source_in(match)
        if source is None:
            return match[0]
        return names.get(source, match[0])

    return _BRACES.sub(replacement, task)


def escape_braces(text: str) -> str:
    """Return a text as the task of a step that brings nothing and is given these words."""
    return text.replace("{{", "{{{{")


def unfilled(task: str, inputs: Collection[StepInput]) -> list[str]:
    """Return each `{{…}}` of a task that stays as it is written, in the order of the text."""
    left: dict[str, None] = {}
    for match in _BRACES.finditer(task):
        if match["inner"] is not None and _source_in(match) not in inputs:
            left[match[0]] = None
    return list(left)


def _source_in(match: re.Match[str]) -> StepInput | None:
    """Return what stands between two braces as a reference; None if it has another form."""
    if match["inner"] is None:
        return None
    source = _SOURCE.fullmatch(match["inner"].strip())
    if source is None:
        return None
    return StepInput(step=source[1], field=source[2])


def read_steps(given: Any, defaults: Mapping[str, Any]) -> tuple[PlannedStep, ...]:
    """Return the steps of a plan, each after all that it waits for, else in the order in which they were given.

    `given` is a list of objects, or its JSON text; `defaults` are the arguments beside it. Raises BadInput: names up to
    ten faults, each with its step and what to write instead.
    """
    faults = StepFaults()
    read = _read_all(_as_list(given), defaults, faults)
    by_id = {step.id: step for step in read}
    planned: list[PlannedStep] = []
    for step in read:
        planned.append(_plan_step(step, by_id, faults))
    faults.refuse()
    ordered = _in_order(planned)
    most = most_runs(ordered)
    if most > MOST_RUNS:
        raise BadInput(
            f"steps: up to {most:,} runs, and a plan may have {MOST_RUNS:,}: each `at_most` counts in full; lower some,"
            " or make several plans"
        )
    return ordered


def most_runs(steps: Iterable[PlannedStep]) -> int:
    """Return the greatest number of runs that steps can become."""
    return sum(step.at_most for step in steps)


class StepFaults:
    """What is wrong with the steps of one call; a refusal names up to `MOST_FAULTS` of them.

    Attributes:
        unread: The ids of steps that could not be read: references to them are not checked.
    """

    def __init__(self) -> None:
        self.unread: set[str] = set()
        self._faults: list[str] = []

    def add(self, step: str, what: object) -> None:
        name = quote_name(step) if _ID.fullmatch(step) else step
        self._faults.append(f"step {name}: {what}")

    def add_of_plan(self, what: str) -> None:
        """Note a fault of no single step."""
        self._faults.append(what)

    def refuse(self) -> None:
        """Raise BadInput if there is a fault: all of them in one text."""
        if not self._faults:
            return
        lines = self._faults[:MOST_FAULTS]
        more = len(self._faults) - len(lines)
        if more:
            lines.append(f"and {more:,} more faults")
        if len(lines) == 1:
            raise BadInput(lines[0])
        raise BadInput("\n".join([f"{len(self._faults):,} faults in the steps:", *lines]))


def _as_list(given: Any) -> list[dict[str, Any]]:
    if isinstance(given, str):
        try:
            given = decode_given(given)
        except NotJsonError as error:
            raise BadInput(
                f"steps: {show_value(given)} was given where a list of objects belongs ({error}); {_FORM}"
            ) from None
    if not isinstance(given, list):
        raise BadInput(f"steps: {show_value(given)} was given where a list of objects belongs; {_FORM}")
    steps = cast("list[Any]", given)
    if not steps:
        raise BadInput(f"steps: an empty list was given; {_FORM}, or leave it out for a single subagent")
    if len(steps) > MOST_STEPS:
        raise BadInput(
            f"steps: {len(steps):,} were given, and a plan has at most {MOST_STEPS}; a step with foreach does the same"
            " for each item of a list"
        )
    for number, step in enumerate(steps, 1):
        if not isinstance(step, dict):
            raise BadInput(f"steps: number {number} is {show_value(step)}, no object; {_FORM}")
    size = len(json.dumps(steps, ensure_ascii=False).encode("utf-8", "replace"))
    if size > MOST_BYTES:
        raise BadInput(
            f"steps: {size:,} bytes, at most {MOST_BYTES:,} together; put what steps share into the arguments beside"
            " steps, which are their defaults"
        )
    return cast("list[dict[str, Any]]", steps)


_FORM = 'give [{"id": "find", "role": "researcher", "task": "…"}, …]'


def _read_all(given: Sequence[dict[str, Any]], defaults: Mapping[str, Any], faults: StepFaults) -> list[StepArgs]:
    """Return the steps that can be read; what is wrong with the others goes to `faults`."""
    known = set(StepArgs.model_fields)
    shared = {name: value for name, value in defaults.items() if name not in WHOLE}
    unknown = [name for name in shared if name not in RunArgs.model_fields]
    if unknown and unknown[0] in _NAMES_OF_AFTER:
        raise BadInput(
            f'{unknown[0]}: a plan has no argument of that name; write after: ["id", …] in the step that waits'
        )
    if unknown:
        raise BadInput(f"{unknown[0]}: a plan has no argument of that name; {_near(unknown[0], {*known, *WHOLE})}")
    steps: list[StepArgs] = []
    seen: set[str] = set()
    for number, own in enumerate(given, 1):
        own_id = own.get("id")
        where = own_id if isinstance(own_id, str) and _ID.fullmatch(own_id) else f"number {number}"
        try:
            step = StepArgs.model_validate(read_habits(StepArgs, {**shared, **own}))
        except ValidationError as error:
            for each in error.errors():
                faults.add(where, _fault(each, {**shared, **own}))
            faults.unread.add(where)
            continue
        if step.id in seen:
            faults.add(where, "its id is taken by another step; give each its own")
        seen.add(step.id)
        steps.append(step)
    return steps


def _fault(error: Any, given: Mapping[str, Any]) -> str:
    """Return what is wrong with one argument of a step, and what to write instead. `given`: all of its arguments."""
    field = str(error["loc"][0])
    if field == "id":
        value = error.get("input")
        if error["type"] == "missing":
            return "it has no id; give one of 1 to 30 letters a-z, digits and _"
        return f"{show_value(value)} is not an id; give 1 to 30 of a-z, 0-9 and _, but not `{ITEM}`"
    if field in ("name", "task_id", "rationale", "ask", "retry_of") and error["type"] == "extra_forbidden":
        return f"{field} is of the whole plan; give it beside steps"
    if field in _NAMES_OF_AFTER and error["type"] == "extra_forbidden":
        return f'{field}: a step has no argument of that name; write after: ["id", …] with the steps that it waits for'
    if field == "at_most" and error["type"] == "greater_than":
        if given.get("foreach") is None:
            return NO_FOREACH
        return f"at_most: {show_value(given['at_most'])} would allow no run; give 1 or more"
    return sentence_of(StepArgs, error)


NO_FOREACH = "at_most is for a step with foreach; leave it out, or say what it goes through"


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    if close:
        return f"did you mean {quote_name(close[0])}?"
    return f"there are {quote_names(sorted(known), MOST_NAMED)}"


# -- edges ------------------------------------------------------------------------------------------------------------


def _plan_step(step: StepArgs, by_id: Mapping[str, StepArgs], faults: StepFaults) -> PlannedStep:
    """Return a step with the steps that it needs and reads. Errors are added to `faults`."""
    for field in _FIXED:
        if _has_reference(getattr(step, field), by_id):
            faults.add(step.id, f"{field}: a result of another step may stand in task alone; write plain text here")
    foreach = _foreach_of(step, by_id, faults)
    inputs = _inputs_of(step, by_id, faults)
    if len(inputs) > MOST_REFERENCES:
        faults.add(
            step.id,
            f"task: {len(inputs):,} references, at most {MOST_REFERENCES} are allowed; let steps in between bring"
            f" together up to {MOST_REFERENCES} results each, and refer to those",
        )
    needed = {source.step for source in inputs if source.step != ITEM}
    if foreach is not None:
        needed.add(foreach.step)
    for name in step.after or ():
        if _check_known(step.id, "after", name, by_id, faults):
            needed.add(name)
    at_most = 1
    if foreach is not None and step.at_most:
        at_most = step.at_most
    arguments = step.model_dump(exclude_unset=True, exclude={"id", "after", "foreach", "at_most", "if_fails"})
    return PlannedStep(
        id=step.id,
        args=SpawnArgs(**arguments, name=step.id),
        inputs=inputs,
        foreach=foreach,
        at_most=at_most,
        needs=tuple(name for name in by_id if name in needed),
        if_fails=step.if_fails,
    )


def _inputs_of(step: StepArgs, by_id: Mapping[str, StepArgs], faults: StepFaults) -> tuple[StepInput, ...]:
    """Return what a task brings, each once. What means a step, and has not the form for it, is a fault."""
    inputs: dict[StepInput, None] = {}
    wrong: dict[str, None] = {}  # each fault once
    for match in _BRACES.finditer(step.task):
        source = _source_in(match)
        if source is not None and (source.step == ITEM or source.step in by_id or source.step in faults.unread):
            inputs[source] = None
            continue
        fault = _fault_of_braces(match, step, by_id)
        if fault:
            wrong[fault] = None
    for fault in wrong:
        faults.add(step.id, f"task: {fault}")
    for source in inputs:
        if source.step != ITEM:
            _check_source(step.id, f"{{{{{source.text}}}}}", source, by_id, faults)
        elif step.foreach is None:
            faults.add(
                step.id,
                f"{{{{{source.text}}}}} is for a step with foreach; add it, or write the id of a step, or {_ESCAPE}",
            )
        elif _has_filter(source):
            faults.add(step.id, f"task: {_wrong_form(source.text, ITEM, step, by_id)}")
    return tuple(inputs)


_ESCAPE = "{{{{ for two braces"


def _fault_of_braces(match: re.Match[str], step: StepArgs, by_id: Mapping[str, StepArgs]) -> str:
    """Return what is wrong with braces that are no reference; empty where they mean no step."""
    if match["escape"] is not None:
        return ""
    if match["unclosed"] is not None:
        after = match.string[match.start() : match.start() + 40]
        return f"{show_value(after)}: {{{{ stands there without }}}}; close it, or write {_ESCAPE}"
    names = list(by_id)
    if step.foreach is not None:
        names.append(ITEM)
    single = match["dollar"] or match["single"]
    if single is not None:
        if single not in names:
            return ""
        return (
            f"{show_value(match[0])} brings nothing; write {_forms(single, step, by_id)}, or put these words into"
            " context, where nothing is filled in"
        )
    name = _first_name(match["inner"], names)
    known = {each.casefold(): each for each in names}.get(name.casefold())
    if known is not None:
        return _wrong_form(match["inner"], known, step, by_id)
    meant = nearest(name, names, _LIKE_AN_ID)
    if meant is None:
        return ""
    return (
        f"{show_value(match[0])}: there is no step {quote_name(name)}; did you mean {{{{{meant}}}}}? If not, write"
        f" {_ESCAPE}"
    )


def _first_name(inner: str, known: Collection[str]) -> str:
    """Return the first name between two braces, without `steps.` before it; empty where there is none."""
    names = _NAME.finditer(clean(inner)[0])
    first = next(names, None)
    if first is None:
        return ""
    if first[0].casefold() in ("steps", "step") and first[0] not in known:
        second = next(names, None)
        if second is not None and not first.string[first.end() : second.start()].isspace():
            return second[0].rstrip("-")
    return first[0].rstrip("-")


def _wrong_form(inner: str, name: str, step: StepArgs, by_id: Mapping[str, StepArgs]) -> str:
    shown = show_value(f"{{{{{inner}}}}}")
    return f"{shown} brings nothing; write {_forms(name, step, by_id)}, or {_ESCAPE}"


def _forms(name: str, step: StepArgs, by_id: Mapping[str, StepArgs]) -> str:
    """Return how the task of a step brings another step's result, and a field of it where it declares some."""
    if name == ITEM:
        return "{{item}} for the item, or {{item.name}} for a field of it"
    if name == step.id:
        return "the id of another step, because a step cannot wait for itself"
    whole = f"{{{{{name}}}}} for the result of {named('step', name)}"
    for field in _fields_of(by_id[name]):
        if _SOURCE.fullmatch(f"{name}.{field}"):
            return f"{whole}, or {{{{{name}.{field}}}}} for a field of it"
    return whole


def _has_filter(source: StepInput) -> bool:
    return source.field is not None and not _FILTER_SIGNS.isdisjoint(source.field)


def _has_reference(value: Any, by_id: Mapping[str, StepArgs]) -> bool:
    texts = cast("list[Any]", value) if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str):
            continue
        for source in references(text):
            if source.step == ITEM or source.step in by_id:
                return True
    return False


def _foreach_of(step: StepArgs, by_id: Mapping[str, StepArgs], faults: StepFaults) -> StepInput | None:
    """Return the list that a step goes through; None where it has none, or no usable one."""
    if step.foreach is None:
        if step.at_most is not None:
            faults.add(step.id, NO_FOREACH)
        return None
    if step.at_most is None:
        faults.add(step.id, "foreach needs at_most, the greatest number of its runs; the price counts each of them")
    match = _SOURCE.fullmatch(step.foreach.strip().removeprefix("{{").removesuffix("}}").strip())
    if match is None:
        faults.add(
            step.id, f"foreach: {show_value(step.foreach)} names no list; write an id and a field, as find.items"
        )
        return None
    source = StepInput(step=match[1], field=match[2])
    if not _check_source(step.id, "foreach", source, by_id, faults):
        return source
    other = by_id[source.step]
    if other.foreach is not None:  # one item for each of its runs
        return source
    if source.field is None:
        faults.add(
            step.id,
            f"foreach: {named('step', source.step)} has one result, no list; give it an output_schema with a list, and"
            f" write {source.step}.its_field",
        )
    elif _type_of(other, source.field) != "array":
        faults.add(
            step.id,
            f"foreach: {quote_name(source.text)} is not a list by the output_schema of {named('step', source.step)};"
            " declare it as"
            ' {"type": "array", "items": {…}}',
        )
    return source


def _check_source(step: str, where: str, source: StepInput, by_id: Mapping[str, StepArgs], faults: StepFaults) -> bool:
    """Tell whether a reference names a step, and a field that it has; if not, that is a fault."""
    if not _check_known(step, where, source.step, by_id, faults):
        return False
    if source.field is None:
        return True
    other = by_id[source.step]
    if other.output_schema is None:
        faults.add(
            step,
            f"{where}: {named('step', source.step)} has no output_schema, so its result has no fields; write"
            f" {{{{{source.step}}}}}, or give it an output_schema with {quote_name(source.field)}",
        )
        return False
    declared = _fields_of(other)
    if declared and source.field not in declared:
        faults.add(
            step,
            f"{where}: the output_schema of {named('step', source.step)} has no field {quote_name(source.field)};"
            f" {_near(source.field, declared)}",
        )
        return False
    if not declared and _has_filter(source):
        faults.add(step, f"{where}: {_wrong_form(source.text, source.step, by_id[step], by_id)}")
        return False
    return True


def _check_known(step: str, where: str, name: str, by_id: Mapping[str, StepArgs], faults: StepFaults) -> bool:
    if name == step:
        faults.add(step, f"{where}: a step cannot wait for itself; name another one")
        return False
    if name in faults.unread:
        return False
    if name not in by_id:
        faults.add(step, f"{where}: there is no step {quote_name(name)}; {_near(name, by_id)}")
        return False
    return True


def _fields_of(step: StepArgs) -> list[str]:
    """Return the fields that a step's output schema declares; empty where it declares none."""
    properties = (step.output_schema or {}).get("properties")
    return list(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else []


def _type_of(step: StepArgs, field: str) -> Any:
    properties = (step.output_schema or {}).get("properties")
    if not isinstance(properties, dict):
        return None
    about = cast("dict[str, Any]", properties).get(field)
    return cast("dict[str, Any]", about).get("type") if isinstance(about, dict) else None


def _in_order(steps: Sequence[PlannedStep]) -> tuple[PlannedStep, ...]:
    """Return steps so that each comes after what it needs. Raises BadInput: some wait for each other."""
    ordered: list[PlannedStep] = []
    placed: set[str] = set()
    left = list(steps)
    while left:
        ready = [step for step in left if placed.issuperset(step.needs)]
        if not ready:
            raise BadInput(f"steps: {_cycle(left, placed)}; take one of these edges out")
        ordered.append(ready[0])
        placed.add(ready[0].id)
        left.remove(ready[0])
    return tuple(ordered)


def _cycle(steps: Sequence[PlannedStep], placed: set[str]) -> str:
    """Return one circle of steps that wait for each other, in words."""
    needs = {step.id: next(name for name in step.needs if name not in placed) for step in steps}
    path = [steps[0].id]
    while needs[path[-1]] not in path:
        path.append(needs[path[-1]])
    circle = path[path.index(needs[path[-1]]) :]
    return " needs ".join([named("step", name) for name in (*circle, circle[0])]) + ", so none of them can start"

"""`submit_result`: the tool by which a subagent hands over its result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ava_server.approval.output_schema import embed_schema, find_mismatch
from ava_server.core.errors import key_shapes
from ava_server.models.json_text import object_fault

if TYPE_CHECKING:
    from ava_server.models.base import ToolSchema, ToolUse

NAME = "submit_result"
SUMMARY_CHARS = 500
FINDINGS = 100
"""Most findings of a result; the rest is left out, and a caveat says so."""
CAVEATS = 50
"""Most caveats of a result; the rest is left out, and a caveat says so."""
CLAIM_CHARS = 2_000
QUOTE_CHARS = 4_000
SOURCE_CHARS = 2_000
CAVEAT_CHARS = 1_000

Hide = Callable[[Any], Any]
"""Returns a JSON-like value with the secrets in its texts replaced. Apply it before anything is cut."""


def hide_shapes(value: Any) -> Any:
    return key_shapes().redact_json(value)


class Finding(BaseModel):
    """One claim, its source, and a quote that supports it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    claim: str
    source_url: str | None = None
    quote: str | None = None
    source_name: str | None = None


class SubmitArgs(BaseModel):
    """Arguments of `submit_result`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    summary: str = Field(description="What was found, in at most 500 characters.")
    output: Any = Field(default=None, description="The answer itself: text, or JSON where that was asked for.")
    confidence: float | None = Field(
        default=None, ge=0, le=1, description="How sure you are, 0 to 1; leave it out if you cannot say."
    )
    caveats: list[str] = Field(default_factory=list, description="What is missing, doubtful or was tried in vain.")
    findings: list[Finding] = Field(
        default_factory=list[Finding],
        description=f"At most {FINDINGS} claims with source and a quote, letter for letter as a tool gave it.",
    )

    @field_validator("caveats", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        """Models often give one caveat as plain text."""
        if value is None:
            return []
        return [value] if isinstance(value, str) else value


def schema(output_schema: dict[str, Any] | None) -> ToolSchema:
    """Return the tool as the model is shown it, with the spawn's `output_schema` for `output`, if it gave one."""
    from ava_server.models.base import ToolSchema  # screens import this module, and need nothing of models

    parameters = _free_form()
    if output_schema is not None:
        form = embed_schema(output_schema, "#/properties/output")
        output = {**form, "description": "The answer, in exactly this form."}
        parameters = {
            **parameters,
            "properties": {**parameters["properties"], "output": output},
            "required": ["summary", "output"],
        }
    return ToolSchema(NAME, "Hand over the result and end the run. Call it once, when the work is done.", parameters)


@cache
def _free_form() -> dict[str, Any]:
    return SubmitArgs.model_json_schema()


def arguments_fault(error: ValidationError, tool: str, takes: type[BaseModel]) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])[:120] or "arguments"  # the model has chosen unknown names
    return f"{where}: {first['msg']}; {tool} takes {', '.join(takes.model_fields)}"


def accept(call: ToolUse, output_schema: dict[str, Any] | None, hide: Hide = hide_shapes) -> SubmitArgs | str:
    """Return the result in a call, with secrets replaced, or what is wrong with it, for the model to fix."""
    if call.args is None:
        return f"the arguments are not a JSON object: {object_fault(call.raw_args)}; send them again as one object"
    try:
        submitted = SubmitArgs.model_validate(hide(dict(call.args)))
    except ValidationError as error:
        return arguments_fault(error, NAME, SubmitArgs)
    if output_schema is not None:
        mismatch = find_mismatch(submitted.output, output_schema)
        if mismatch is not None:
            return mismatch
    return _within_limits(submitted)


def _within_limits(submitted: SubmitArgs) -> SubmitArgs:
    """Return a result within the limits; its caveats say what was cut."""
    findings: list[Finding] = []
    cuts = 0
    for finding in submitted.findings[:FINDINGS]:
        short = _shorten(finding)
        cuts += short != finding
        findings.append(short)
    caveats = [cut(caveat, CAVEAT_CHARS) for caveat in submitted.caveats[:CAVEATS]]
    if cuts:
        caveats.append(f"{_were(cuts, 'finding')} cut: too long.")
    more = len(submitted.findings) - FINDINGS
    if more > 0:
        caveats.append(f"{_were(more, 'finding')} left out: a result carries {FINDINGS}.")
    more = len(submitted.caveats) - CAVEATS
    if more > 0:
        caveats.append(f"{_were(more, 'caveat')} left out: a result carries {CAVEATS}.")
    return submitted.model_copy(update={"findings": findings, "caveats": caveats})


def _were(count: int, noun: str) -> str:
    return f"{count} {noun}s were" if count > 1 else f"{count} {noun} was"


def findings_in(draft: Any) -> list[Finding]:
    """Return the valid findings of a draft that was not accepted."""
    if not isinstance(draft, dict):
        return []
    drafted = cast("dict[str, Any]", draft).get("findings")
    if not isinstance(drafted, list):
        return []
    findings: list[Finding] = []
    for each in cast("list[Any]", drafted)[:FINDINGS]:
        with contextlib.suppress(ValidationError):
            findings.append(_shorten(Finding.model_validate(each)))
    return findings


def _shorten(finding: Finding) -> Finding:
    claim = finding.claim
    if len(claim) > CLAIM_CHARS:
        claim = cut(claim, CLAIM_CHARS)
    return Finding(
        claim=claim,
        source_url=_beginning(finding.source_url, SOURCE_CHARS),
        quote=_beginning(finding.quote, QUOTE_CHARS),  # a beginning is still exact
        source_name=_beginning(finding.source_name, SOURCE_CHARS),
    )


def _beginning(text: str | None, chars: int) -> str | None:
    return None if text is None else text[:chars]


def cut(text: str, limit: int = SUMMARY_CHARS) -> str:
    """Return text cut at a word to at most `limit` characters."""
    text = text.strip()
    if len(text) <= limit:
        return text
    short = text[: limit - 1]
    if " " in short:
        short = short.rsplit(None, 1)[0]
    return short.rstrip() + "…"

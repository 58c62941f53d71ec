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
FINDINGS, CAVEATS = 100, 50
"""Most findings and caveats of a result; the rest is left out, and a caveat says so."""
CLAIM_CHARS, QUOTE_CHARS, SOURCE_CHARS, CAVEAT_CHARS = 2_000, 4_000, 2_000, 1_000


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
    """Return what was handed over, with secrets replaced, or what is wrong with it, for the model to fix."""
    if call.args is None:
        return f"the arguments are not a JSON object: {object_fault(call.raw_args)}; send them again as one object"
    try:
        submitted = SubmitArgs.model_validate(hide(dict(call.args)))
    except ValidationError as error:
        return arguments_fault(error, NAME, SubmitArgs)
    if output_schema is not None and (wrong := find_mismatch(submitted.output, output_schema)) is not None:
        return wrong
    return _bounded(submitted)


def _bounded(submitted: SubmitArgs) -> SubmitArgs:
    """Return a result within the limits; its caveats say what was cut."""
    findings = [_short(finding) for finding in submitted.findings[:FINDINGS]]
    cuts = sum(short != whole for short, whole in zip(findings, submitted.findings, strict=False))
    caveats = [cut(caveat, CAVEAT_CHARS) for caveat in submitted.caveats[:CAVEATS]]
    if cuts:
        caveats.append(f"{cuts} finding{'s were' if cuts > 1 else ' was'} cut: too long.")
    if (more := len(submitted.findings) - FINDINGS) > 0:
        caveats.append(f"{more} finding{'s were' if more > 1 else ' was'} left out: a result carries {FINDINGS}.")
    if (more := len(submitted.caveats) - CAVEATS) > 0:
        caveats.append(f"{more} caveat{'s were' if more > 1 else ' was'} left out: a result carries {CAVEATS}.")
    return submitted.model_copy(update={"findings": findings, "caveats": caveats})


def findings_in(draft: Any) -> list[Finding]:
    """Return the valid findings of a draft that was not accepted."""
    given = cast("dict[str, Any]", draft).get("findings") if isinstance(draft, dict) else None
    found: list[Finding] = []
    for each in cast("list[Any]", given)[:FINDINGS] if isinstance(given, list) else ():
        with contextlib.suppress(ValidationError):
            found.append(_short(Finding.model_validate(each)))
    return found


def _short(finding: Finding) -> Finding:
    return Finding(
        claim=cut(finding.claim, CLAIM_CHARS) if len(finding.claim) > CLAIM_CHARS else finding.claim,
        source_url=finding.source_url and finding.source_url[:SOURCE_CHARS],
        quote=finding.quote and finding.quote[:QUOTE_CHARS],  # what is left is still exact
        source_name=finding.source_name and finding.source_name[:SOURCE_CHARS],
    )


def cut(text: str, limit: int = SUMMARY_CHARS) -> str:
    """Return text cut at a word to at most `limit` characters."""
    text = text.strip()
    if len(text) <= limit:
        return text
    short = text[: limit - 1].rsplit(None, 1)[0] if " " in text[: limit - 1] else text[: limit - 1]
    return short.rstrip() + "…"

"""`submit_result`: the one tool by which a subagent hands over its answer."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ava_server.models.base import ToolSchema, ToolUse

NAME = "submit_result"
SUMMARY_CHARS = 500


class Finding(BaseModel):
    """One claim, where it comes from, and the words that show it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    claim: str
    source_url: str | None = None
    quote: str | None = None
    source_name: str | None = None


class SubmitArgs(BaseModel):
    """What a subagent hands over."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    summary: str = Field(description="What was found, in at most 500 characters.")
    output: Any = Field(default=None, description="The answer itself: text, or JSON where that was asked for.")
    confidence: float | None = Field(
        default=None, ge=0, le=1, description="How sure you are, 0 to 1; leave it out if you cannot say."
    )
    caveats: list[str] = Field(default_factory=list, description="What is missing, doubtful or was tried in vain.")
    findings: list[Finding] = Field(
        default_factory=list[Finding],
        description="Claims with source and a quote, letter for letter as a tool gave it.",
    )

    @field_validator("caveats", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        """Models often give one caveat as plain text."""
        if value is None:
            return []
        return [value] if isinstance(value, str) else value


def schema(output_schema: dict[str, Any] | None) -> ToolSchema:
    """Return the tool as the model is shown it; `output_schema` stands in for `output` when the spawn gave one."""
    parameters = SubmitArgs.model_json_schema()
    if output_schema is not None:
        parameters["properties"]["output"] = {**output_schema, "description": "The answer, in exactly this form."}
        parameters["required"] = ["summary", "output"]
    return ToolSchema(NAME, "Hand over the result and end the run. Call it once, when the work is done.", parameters)


def accept(call: ToolUse, output_schema: dict[str, Any] | None) -> SubmitArgs | str:
    """Return what was handed over, or what is wrong with it, for the model to mend."""
    if call.args is None:
        return f"the arguments are not a JSON object: {call.raw_args[:200]!r}; send them again as one object"
    try:
        submitted = SubmitArgs.model_validate(call.args)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}; submit_result takes {', '.join(SubmitArgs.model_fields)}"
    if output_schema is not None:
        import jsonschema

        try:
            jsonschema.validate(submitted.output, output_schema)
        except jsonschema.ValidationError as error:
            where = "/".join(str(part) for part in error.absolute_path) or "output"
            return f"output does not match the schema that was asked for, at {where}: {error.message[:300]}"
    return submitted


def cut(text: str, limit: int = SUMMARY_CHARS) -> str:
    """Return text cut at a word, so that it has at most `limit` characters."""
    text = text.strip()
    if len(text) <= limit:
        return text
    short = text[: limit - 1].rsplit(None, 1)[0] if " " in text[: limit - 1] else text[: limit - 1]
    return short.rstrip() + "…"

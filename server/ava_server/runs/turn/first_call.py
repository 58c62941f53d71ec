"""The prefix of a run's calls, and what the first calls can cost: caps that buy no work are refused at the proposal.

The prompt of the first call is built as the run would send it, and bounded as a reservation would.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from ava_audit.events import RunStarted, UserMessage
from ava_audit.units import MICROS_PER_CENT, format_usd
from ava_roles import BUILT_IN_SOURCE
from ava_roles.role import parse_role, shared_prompt, system_prompt
from ava_roles.tool import Tool
from ava_roles.tools.run import READ_SKILL
from ava_server.approval.proposals import project_of
from ava_server.approval.requests import NAME as READ_RESULT
from ava_server.approval.summary import list_earlier
from ava_server.core.errors import Refused
from ava_server.models.base import Bound, Model
from ava_server.models.prices import Price, reserve_micros
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import OUTLINE_TURNS, RunConfig
from ava_server.run_config.run_cap import limits_for_model
from ava_server.runs.record.history import History, Recipe
from ava_server.runs.record.submit import schema as submit_schema
from ava_server.runs.turn.reservation import GOOD_OUTPUT, WRAP_PROMPT, byte_tokens


@lru_cache(maxsize=32)
def _shared(text: str) -> str:
    """Return the first equal text: a thousand runs of one role share one prompt in memory."""
    return text


def started(
    config: RunConfig, brief: Brief, tools: Mapping[str, Tool], wire: Mapping[str, Any], confinement: str
) -> RunStarted:
    """Return what a run starts with: the prompt, the tools' schemas, the model's parameters and the limits."""
    role = parse_role(config.role_text, config.role_source, config.role)
    limits = limits_for_model(lambda cap: cap.of(config), free=config.free)
    specs = [tools[name].spec for name in sorted(tools)]
    own = [spec for spec in specs if spec.foreign is None]
    own_tools = [spec.name for spec in own]
    submit = submit_schema(config.output_schema)
    if config.output_schema is None:
        own_tools.append(submit.name)
    schemas = [{"name": spec.name, "description": spec.description, "parameters": spec.schema()} for spec in specs]
    schemas.append({"name": submit.name, "description": submit.description, "parameters": dict(submit.parameters)})
    skills: dict[str, str] = {}
    if READ_SKILL.name in tools:
        skills = {skill.name: skill.description for skill in config.skills}
    text = _shared(
        system_prompt(
            role,
            system_prompt=brief.system_prompt,
            context=brief.context,
            tools=specs,
            limits=limits,
            output_schema=config.output_schema,
            skills=skills,
        )
    )
    own_bytes = 0  # how much of the prompt Ava itself has written; a user's role counts as foreign
    if config.role_source == BUILT_IN_SOURCE:
        bare = system_prompt(role, system_prompt=None, context=None, tools=own, limits=limits, output_schema=None)
        own_bytes = len(bare)
    return RunStarted(
        system=text,
        tools=tuple(schemas),
        model=config.model,
        price=asdict(config.price),
        limits=limits,
        parameters=dict(wire),
        max_output=config.max_output,
        nonce=secrets.token_hex(8),
        workspace=config.workspace,
        confinement=confinement,
        own_bytes=own_bytes,
        own_tools=tuple(own_tools),
        shared_chars=len(shared_prompt(role, specs)),
        after_task=_words_on_earlier(config, tools),
    )


def _words_on_earlier(config: RunConfig, tools: Mapping[str, Tool]) -> str:
    """Return the sentence after the task that lists the earlier runs whose results it may read, or nothing."""
    if READ_RESULT not in tools:
        return ""
    earlier = list_earlier(config.context_from)
    if not earlier:
        return ""
    return f"Results of earlier subagents, to be read with `{READ_RESULT}`: {earlier}."


WORK_TURNS = 3
"""Turns that a cap must be likely to buy, besides those of an outline: to look, to read, to hand over."""
LIKELY = 0.5
"""The likely share of a prompt's bound: its ratios have a margin of about two."""
LIKELY_OUTPUT = 512
LIKELY_BYTE_TOKENS = 0.27
"""Tokens for each byte of an agent's instructions and tools: English and JSON have 0.2 to 0.3."""


@dataclass(frozen=True)
class FirstCalls:
    """What the first calls can cost, in micro-USD.

    Attributes:
        first: The first call at its maximum.
        least: The cap from which the run can work, in whole cents.
        start: The first call and a last one at their maximum.
        turn: Each further call at its maximum.
    """

    first: int
    least: int
    start: int
    turn: int


def estimate(config: RunConfig, price: Price, prompt_tokens: int) -> FirstCalls:
    """Return what the first calls of a run can cost at a price, by the bound of its first prompt."""

    def costs(tokens: int, output: int) -> tuple[int, int, int]:
        """Return the most that the first call, a later one and the wrap-up cost."""
        return (
            reserve_micros(price, Bound(tokens, output)),
            reserve_micros(price, Bound(tokens + 2 * output, output)),
            reserve_micros(price, Bound(tokens + output + WRAP_PROMPT, config.wrap_output)),
        )

    first, later, wrap = costs(prompt_tokens, GOOD_OUTPUT)
    _first, likely_later, likely_wrap = costs(math.ceil(prompt_tokens * LIKELY), LIKELY_OUTPUT)
    needed_turns = WORK_TURNS + OUTLINE_TURNS if config.writes_outline else WORK_TURNS
    turns = min(needed_turns, config.max_iterations - 1)
    least = max(first + wrap, turns * likely_later + likely_wrap)
    return FirstCalls(first, -(-least // MICROS_PER_CENT) * MICROS_PER_CENT, first + wrap, later)


def with_cost_figures(
    config: RunConfig,
    brief: Brief,
    tools: Mapping[str, Tool],
    model: Model,
    price: Price,
    tokens_per_byte: float | None,
    first_bytes: int = 0,
) -> RunConfig:
    """Return a configuration with the least cap from which it can work, and with what its calls cost at most.

    `price` is what its calls are reserved at, and `first_bytes` are those that another agent adds to its first request.
    Raises Refused, with the figure: its caps buy no work.
    """
    history = History("")
    history.add(1, started(config, brief, tools, {}, config.confinement))
    history.add(2, UserMessage(text=brief.task, kind="task", project=project_of(brief)))
    bound = model.bound(history.request(Recipe(0), GOOD_OUTPUT), None)
    if not bound.prompt_tokens:  # no language model
        return config
    bound = replace(bound, prompt_tokens=bound.prompt_tokens + first_bytes, new_bytes=bound.new_bytes + first_bytes)
    if tokens_per_byte is not None:  # as a reservation does where the bound by bytes does not fit
        bound = bound.by_ratio(byte_tokens(tokens_per_byte))
    calls = estimate(config, price, bound.prompt_tokens)
    tokens = 2 * (bound.prompt_tokens + GOOD_OUTPUT) + WRAP_PROMPT + config.wrap_output
    if tokens > config.max_tokens:
        raise Refused(
            f"max_tokens of {config.max_tokens:,} is too low: with this task the first call and a last one can need"
            f" {tokens:,} tokens; give at least that many, or a shorter task or context"
        )
    if config.max_cost_micros < calls.least:
        raise Refused(
            f"a cost cap of {format_usd(config.max_cost_micros, exact=True)} buys no useful work: with"
            f" {config.model} the first call alone can cost {format_usd(calls.first)}; give max_cost_cents"
            f" {calls.least // MICROS_PER_CENT} or more ({format_usd(calls.least)}), a cheaper model, or a shorter"
            " task or context"
        )
    likely = Bound(0, 0)
    if first_bytes:
        likely = Bound(math.ceil(bound.new_bytes * LIKELY_BYTE_TOKENS), LIKELY_OUTPUT)
    figures = {
        "least_micros": calls.least,
        "start_micros": calls.start,
        "turn_micros": calls.turn,
        "first_micros": reserve_micros(price, likely),
    }
    return config.model_copy(update=figures)

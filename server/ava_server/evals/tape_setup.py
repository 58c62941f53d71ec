"""The preparation of a replay: that of a run, with parts of a recording in place of what a run opens and calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ava_audit.events import Asked, CostReserved, RunStarted
from ava_audit.redaction import Redactor, RunRedactor
from ava_audit.rows import RunRow
from ava_roles.mcp_client.run_servers import RunMcpServers
from ava_roles.memory import Memory
from ava_roles.sandbox.sandbox import Sandbox
from ava_roles.tool import Tool, ToolContext
from ava_roles.tools.run import ASK
from ava_roles.wrap import seen_offsets
from ava_server.budget.recent_calls import Named
from ava_server.budget.user_limits import DayCaps
from ava_server.evals.tape import Tape, TapeModel, TapeSearch, TapeSecrets, TapeTool
from ava_server.models.base import Bound
from ava_server.models.model_choice import Choice
from ava_server.models.prices import dearest_price, raised, reserve_micros
from ava_server.run_config.brief import Brief
from ava_server.run_config.config import RunConfig
from ava_server.runs.asking.extension import ExtensionLimits
from ava_server.runs.asking.questions import Ask
from ava_server.runs.record.history import History
from ava_server.runs.turn.context import RunContext
from ava_server.runs.turn.folders import OpenFolders
from ava_server.runs.turn.reservation import RATIO_MARGIN
from ava_server.runs.turn.resources import RunResources
from ava_server.runs.turn.setup import RunSetup

UNLIMITED = 10**15
"""What others spend of a day or a plan is not in a recording: where it stopped the run, the recording says so."""
_HARD = ("max_cost_cents", "max_tokens", "max_tokens_deep", "max_timeout_s")
_ANSWER_S = 3_600
"""How long a replay waits for more of a cap, in seconds of the recording's time; it only has to be more than 0."""


def _keep_open(_ended: bool) -> None:
    """A replay's folders are the recording's."""


class ReplayResources(RunResources):
    """What a replay has open: a log in a temporary folder, and the built-in tools."""

    def render_result(self, result: dict[str, Any]) -> str:
        return json.dumps(result)

    def memory(self, user: str) -> Memory | None:
        """Return none: the notes that the run read are in its recording."""
        return None

    def day_caps(self, user: str) -> DayCaps:
        return DayCaps(UNLIMITED, UNLIMITED)


class TapeSetup(RunSetup):
    """Prepares a replay as `RunSetup` prepares the run, and opens, starts and calls nothing.

    Args:
        changed: The model to call in place of the recorded one; None to call the recorded one.
    """

    def __init__(self, resources: RunResources, tape: Tape, changed: Choice | None) -> None:
        super().__init__(resources)
        self._limits = resources.settings.limits
        self._tape = tape
        self._changed = changed

    async def prepare(self, run: RunRow, history: History) -> RunContext:
        """Prepare the run, and let the tape answer where it calls a model, waits or asks what others spent."""
        tape = self._tape
        real = await super().prepare(run, history)
        search = real.search
        if search is not None:
            search = replace(search, model=TapeSearch(search.model, tape))
        return replace(
            real,
            model=TapeModel(real.model, tape),
            search=search,
            place=ToolContext(),
            redactor=RunRedactor(Redactor({}, seen_offsets=seen_offsets)),
            secret_injection=TapeSecrets(tape),
            extensions=self._extensions(),
            tokens_per_byte=self._tokens_per_byte(),
            named=self._named(),
            close=_keep_open,
            clock=tape.clock,
        )

    def _extensions(self) -> ExtensionLimits:
        """Return no limits; the replay asks for more only if the recorded run did."""
        asked_for_more = any(fact.for_more for fact in self._tape.recording.facts(Asked))
        hard: dict[str, float] = dict.fromkeys(_HARD, UNLIMITED)
        hard["extension_wait_s"] = _ANSWER_S if asked_for_more else 0
        return ExtensionLimits(self._limits.model_copy(update=hard), DayCaps(UNLIMITED, UNLIMITED))

    def _tokens_per_byte(self) -> float | None:
        """Return what earlier runs had measured when the recorded one began; None if it used no measurement."""
        for reserved in self._tape.recording.facts(CostReserved):
            if reserved.byte_tokens is not None:
                return reserved.byte_tokens / RATIO_MARGIN
        return None

    def _named(self) -> Named:
        """Return what was known of the account when the recorded run began, by how its first call was reserved."""
        price = self._tape.recording.config.price
        chosen = [one for one in price.surcharges if one.account]
        calls = [fact for fact in self._tape.recording.facts(CostReserved) if fact.tool_call is None]
        if not calls:
            return {}
        bound = Bound(calls[0].prompt_tokens, calls[0].max_output)
        if calls[0].micros >= reserve_micros(dearest_price(price, {}), bound):
            return {}
        for one in chosen:
            if calls[0].micros == reserve_micros(raised(price, one.percent), bound):
                return {one.field: frozenset((one.value,))}
        return {one.field: frozenset(("standard",)) for one in chosen}

    # -- in place of this machine's parts ------------------------------------------------------------------------------

    def choice(self, config: RunConfig) -> Choice:
        return self._changed or self.choice_at(config.model, config.tier or "balanced", config.base_url)

    def choice_at(self, model: str, tier: str, base_url: str | None) -> Choice:
        """Return a model without a key; its format is in the recorded parameters, its price in the configuration."""
        provider, _, model_id = model.partition(":")
        price = self._tape.recording.config.price
        return Choice(provider, model_id, model, tier, "chat_completions", price, base_url)

    async def sandbox(self, approved: str) -> Sandbox | None:
        return None

    async def search_engine(self, config: RunConfig) -> None:
        return None

    def servers(self, run: RunRow, config: RunConfig, scratch: Path, sandbox: Sandbox | None) -> RunMcpServers:
        return RunMcpServers()

    def tools(
        self, user: str, config: RunConfig, history: History, scratch: Path, servers: RunMcpServers, ask: Ask
    ) -> dict[str, Tool]:
        """Return the real tools' descriptions with the tape's results; a question is asked and answered as in a run."""
        real = super().tools(user, config, history, scratch, servers, ask)
        return {name: tool if name == ASK.name else TapeTool(tool, self._tape) for name, tool in real.items()}

    def prefix(
        self, config: RunConfig, brief: Brief, tools: Mapping[str, Tool], choice: Choice, sandbox: Sandbox | None
    ) -> RunStarted:
        """Return the start event with the prompt that this version makes, and what the recording has in its place.

        Recorded are the nonce, which was drawn at random, and the confinement, which was found on that machine.
        """
        fresh = super().prefix(config, brief, tools, choice, sandbox)
        recorded = self._tape.recording.first(RunStarted)
        recorded_fields: dict[str, Any] = {"nonce": recorded.nonce, "confinement": recorded.confinement}
        if self._changed is None:  # another model is called with its own parameters
            recorded_fields["parameters"] = recorded.parameters
        return fresh.model_copy(update=recorded_fields)

    async def open_place(
        self, run: RunRow, config: RunConfig, tools: Mapping[str, Tool], scratch: Path, sandbox: Sandbox | None
    ) -> OpenFolders:
        return OpenFolders()

"""The complete resolved configuration of a run, and of the steps of a plan: what is approved is what runs."""

# No `from __future__ import annotations`: pydantic would compile each of the fields' annotations again at every start.

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from ava_audit.units import format_usd
from ava_roles.tools.run import RUN_SPECS
from ava_server.core.ids import IN_PROCESS
from ava_server.run_config.parts import (
    Coding,
    EarlierRun,
    Estimate,
    ForeignUse,
    ProjectFileSize,
    SearchCall,
    SkillUse,
    StoredFile,
    StoredPrice,
)
from ava_server.run_config.run_cap import CAPS, COST

if TYPE_CHECKING:
    from ava_audit.rows import RunRow


OUTLINE_TURNS = 3
"""Turns of the outline before the work: analysis, plan, review."""
RUN_TOOLS = tuple(spec.name for spec in RUN_SPECS)
"""Tools that read the run's own log. Every run has them; the last one only with results of earlier runs."""
NO_COMMANDS = "none needed"
"""The confinement of a run that runs neither commands nor programs of MCP servers."""
IfFails = Literal["skip", "stop", "continue"]
"""What follows a step that did not succeed: what needs it is skipped, nothing more starts, or what needs it goes on."""
PLAN = "plan"
"""The role of a run whose work is to start the runs of its steps."""


class StepInput(BaseModel, frozen=True, extra="ignore"):
    """What a step takes of another one: its result, or one field of its output. `item` is an item of its own list."""

    step: str
    field: str | None = None

    @property
    def text(self) -> str:
        return self.step if self.field is None else f"{self.step}.{self.field}"


class ReusedRun(BaseModel, frozen=True, extra="ignore"):
    """A run of an earlier plan whose result counts for an item of a step; `item` is as in `StepRunRow`."""

    id: str
    item: int | None = None
    ended_us: int


class StepConfig(BaseModel, frozen=True, extra="ignore"):
    """A step of a plan as it was resolved, without its texts.

    Attributes:
        config: Of each run of the step, without the earlier runs whose results it gets.
        needs: The steps that have to end before it starts.
        inputs: What its task refers to, in the order in which it does.
        foreach: The list of which each item is a run; None for a step of one run.
        at_most: The greatest number of its runs, those included that are reused.
        listed_most: What the call gave as `at_most`; above it, where the length of its list was known already.
        reused: The runs of an earlier plan that it need not repeat.
        repeats: Runs of an earlier plan that had effects outside, and that it does again.
        again_why: Why runs of an earlier plan do not count for it, in a few words; empty where there is none.
        run: Its run, where that was proposed by itself and approved together with others; empty for any other step.
    """

    id: str
    config: "RunConfig"
    needs: tuple[str, ...] = ()
    inputs: tuple[StepInput, ...] = ()
    foreach: StepInput | None = None
    at_most: int = 1
    if_fails: IfFails = "skip"
    listed_most: int = 1
    reused: tuple[ReusedRun, ...] = ()
    repeats: tuple[str, ...] = ()
    again_why: str = ""
    run: str = ""

    @property
    def new_runs(self) -> int:
        """The greatest number of runs that it still has to pay for."""
        return self.at_most - len(self.reused)


class RunConfig(BaseModel, frozen=True, extra="ignore"):  # a newer program may have written it
    """Everything that the proposal resolved, without the texts. Caps are the run's own; those of a plan are shared."""

    role: str
    role_source: str
    role_text: str  # the role file's content, read once, at the proposal
    runner: str = IN_PROCESS
    agent: str | None = None  # the digest of the other agent's configuration; None for a run of Ava's own
    model: str
    provider: str
    model_id: str
    tier: str | None = None
    base_url: str | None = None
    keyed: bool = False  # it was proposed where there is a key for its provider
    key_command: tuple[str, ...] = ()  # the command that prints the key; empty where none does
    price: StoredPrice
    timeout_s: float
    max_cost_micros: int
    max_tokens: int
    max_iterations: int
    max_tool_calls: int
    max_output: int = 4096
    wrap_output: int = 1024  # most tokens of the wrap-up's answer
    least_micros: int = 0  # the cost cap from which it can work; no lower one is accepted
    leaves: dict[str, int] = {}  # micro-USD of the plan's money, by the steps that come after a step over a list
    start_micros: int = 0  # the most that its first call and its last one cost
    turn_micros: int = 0  # the most that each further call costs; 0 where none costs anything
    first_micros: int = 0  # what another agent's first call is likely to cost; 0 for a run of Ava's own
    tools: tuple[str, ...]
    unavailable_tools: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()  # tools that its role needs and that are missing; a person at a terminal accepted that
    workspace: str | None = None
    workspace_identity: str = ""  # the folder's `folder_identity`; empty without a workspace
    # The git folder of its checkout, where that lies outside of it and a command or a change uses it.
    git_folder: str = ""
    workspace_given: bool = False  # the call gave the workspace, so a role with network access may read it
    workspace_named: bool = True  # not only the call, but also a setting or the client names a folder that contains it
    # The sandbox of its commands and MCP servers (`bubblewrap`, `landlock`, `none`); `none needed` where it has
    # neither.
    confinement: str = NO_COMMANDS
    labels: tuple[str, ...] = ()  # labels that the machine must have on which it runs
    network: bool = False  # its commands may use the host's network
    commands_note: str = ""  # why a role with command tools has none here, and what would help; else empty
    files_note: str = ""  # why a role with file tools sees no files, and what would help; else empty
    hosts: tuple[str, ...] = ()  # the only hosts that its tools may read from the web; none means every public one
    # The secrets that the role lists and a tool of the run may send, each with its hosts; None for one that was not
    # stored.
    secrets: dict[str, tuple[str, ...] | None] = {}
    plan: bool = False
    extended_thinking: bool = False  # the model is told to think before it answers
    thinking_note: str = ""  # why it does not, although its role asks for it; else empty
    questions: int = 0  # how many questions it may ask the person
    search: str = ""  # the engine of its web searches; empty without any
    search_micros: int = 0  # what a search costs, as far as that is known. Caps count it only with a `search_call`
    # The call that a search makes; None for a search engine, which bills separately.
    search_call: SearchCall | None = None
    context_from: tuple[EarlierRun, ...] = ()  # the ended runs whose results it may read
    foreign: dict[str, ForeignUse] = {}  # the MCP servers whose tools it has, by name
    foreign_notes: tuple[str, ...] = ()  # a sentence for each MCP tool that its role names and that is not there
    # What it may change in a repository, and how that is checked; None where it changes no files.
    coding: Coding | None = None
    origin: str = ""  # the data root whose machine has its folder or repository; empty where that is the only one
    folder: StoredFile | None = None  # the files of its workspace, for other machines; None where they do not travel
    travel_note: str = ""  # why its folder or repository does not travel; else empty
    skills: tuple[SkillUse, ...] = ()  # the skills that it may read
    missing_skills: tuple[str, ...] = ()  # those that its role names besides, and that are not installed
    project_files: tuple[ProjectFileSize, ...] = ()  # whose texts it is given, in their order
    project_origin: str = ""  # where these were read, where that is not its folder: the base of what it reviews
    project_left_out: tuple[str, ...] = ()  # the others, each with why
    reach: str  # what the run may read, reach and change, in a few words
    background: bool = False  # it continues when its host is closed
    estimated_minutes: tuple[int, int]
    input_bytes: int  # of task, context and instructions
    estimate: Estimate | None = None  # None where fewer than five similar runs ended
    name: str | None = None
    task_id: str | None = None
    output_schema: dict[str, Any] | None = None
    clamped: tuple[str, ...] = ()  # what was asked above a hard cap, as text
    # Prices in the settings that are of no known model, where its own is not from there; else empty.
    price_note: str = ""
    # The arguments of the call without the texts: the defaults of a retry or a fresh proposal.
    asked: dict[str, Any] = {}
    steps: tuple[StepConfig, ...] = ()  # of a plan, each after all that it needs; empty for a single run
    # Files in its folder from which the steps of its plan were read: to change them changes nothing of its work.
    steps_files: tuple[str, ...] = ()
    goes_on_from: str = ""  # the earlier plan from which a plan goes on; else empty

    @property
    def likely_micros(self) -> tuple[int, int] | None:
        """What half of the similar runs cost less than, and nine in ten, within its cap; None without such runs."""
        estimate = self.estimate
        if estimate is None:
            return None
        half = most = self.max_cost_micros
        if estimate.half_micros is not None:
            half = min(half, estimate.half_micros)
        if estimate.most_micros is not None:
            most = min(most, estimate.most_micros)
        return half, most

    @property
    def free(self) -> bool:
        """Whether nothing that it does is expected to be billed."""
        if self.steps:
            return all(step.config.free for step in self.steps)
        return self.price.free and self.search_call is None

    @property
    def most_runs(self) -> int:
        """The greatest number of runs that it can become."""
        if self.steps:
            return sum(step.new_runs for step in self.steps)
        return 1

    @property
    def paid_runs(self) -> int:
        """The greatest number of runs that are not free."""
        if self.steps:
            return sum(step.new_runs for step in self.steps if not step.config.free)
        if self.free:
            return 0
        return 1

    def cost_cap(self, spent_micros: int = 0) -> int | None:
        """Return the most that it may cost; None for a free run, unless something was billed anyway."""
        if self.free and not spent_micros:
            return None
        return self.max_cost_micros

    @property
    def limits(self) -> dict[str, float]:
        """The caps by their arguments; a free run has none on its cost."""
        limits: dict[str, float] = {}
        for cap in CAPS:
            if cap is COST and self.free:
                continue
            limits[cap.argument] = cap.argument_value(cap.of(self))
        return limits

    def least_turns(self, micros: int) -> int:
        """Return how many turns an amount buys even if each call costs its maximum."""
        if not self.turn_micros:
            return self.max_iterations
        return max(0, min(1 + (micros - self.start_micros) // self.turn_micros, self.max_iterations))

    @property
    def writes_outline(self) -> bool:
        """Whether it outlines its work before it begins; the offline reader has no language model for that."""
        return self.plan and not self.model.startswith("offline/")


StepConfig.model_rebuild()
RunConfig.model_rebuild()


@lru_cache(maxsize=128)
def config_of(stored: str) -> RunConfig:
    """Return the configuration that a run's row has as JSON; cached, because every reservation needs it."""
    return RunConfig.model_validate_json(stored)


def is_free(run: "RunRow") -> bool:
    try:
        return config_of(run.config).free
    except ValueError:  # a newer Ava wrote it
        return False


def paid_runs(run: "RunRow") -> int:
    """Return how many runs that are not free a run is, or a plan can become at most."""
    try:
        return config_of(run.config).paid_runs
    except ValueError:  # a newer Ava wrote it
        return 1


def spent_text(run: "RunRow") -> str:
    """Return what a run has cost: `$0.06`; `free` if nothing is expected to be billed, and nothing was."""
    if is_free(run) and not run.cost_micros:
        return "free"
    return format_usd(run.cost_micros)

"""The complete resolved configuration of a run: what is approved is what runs. Its five caps."""

# No `from __future__ import annotations`: pydantic would compile each of the fields' annotations again at every start.

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, PlainSerializer

from ava_audit.events import UserMessage
from ava_audit.units import MICROS_PER_CENT, cap_micros, format_usd, minutes
from ava_roles.mcp_client.server_tools import OfferedTool
from ava_roles.tools.run import RUN_SPECS
from ava_server.core.ids import IN_PROCESS
from ava_server.models.prices import Price

if TYPE_CHECKING:
    from ava_audit.rows import RunRow
    from ava_roles.role import Role
    from ava_server.config.settings import Limits
    from ava_server.models.model_choice import ProviderSearch


@dataclass(frozen=True)
class RunCap:
    """A cap of a run."""

    argument: str  # its name in calls, in answers, and where a run asks for more: `max_cost_cents`
    field: str  # its name in the configuration and in the log's decisions. Money is in micro-USD there
    hard: str  # the setting in `[limits]` above which no run gets, in the unit of the argument
    limited: str  # what it limits, as subagents are told: `tool calls`
    word: str  # what it is a cap on, as people are told: `tool call`
    ending: str  # how a run ends that reaches it

    def stored(self, given: float) -> float:
        """Return an argument as the configuration and the log have it."""
        return cap_micros(given) if self is COST else given

    def argument_value(self, stored: float) -> float:
        """Return a value of the configuration or the log as an argument."""
        return stored / MICROS_PER_CENT if self is COST else stored

    def of(self, config: object) -> Any:
        return getattr(config, self.field)

    def default(self, role: "Role") -> float:
        """Return the cap of a role, as an argument."""
        value: float = getattr(role, self.field if self is TIME else self.argument)
        return value

    def setting(self, tier: str | None) -> str:
        """Return the setting in `[limits]` of the hard cap for a model's tier."""
        if self is TOKENS and tier == "deep":
            return f"{self.hard}_deep"
        return self.hard

    def most(self, limits: "Limits", tier: str | None) -> float:
        """Return the hard cap for a model's tier, as an argument."""
        value: float = getattr(limits, self.setting(tier))
        return value

    def text(self, stored: float, *, exact: bool = True) -> str:
        """Return a stored value for people: `$0.50`, `10 min`, `12,000`."""
        if self is COST:
            return format_usd(int(stored), exact=exact)
        if self is TIME:
            return minutes(stored if exact else round(stored))
        return f"{stored:,.0f}"


TIME = RunCap("timeout", "timeout_s", "max_timeout_s", "time", "time", "timeout")
COST = RunCap("max_cost_cents", "max_cost_micros", "max_cost_cents", "money", "cost", "cost_exceeded")
TOKENS = RunCap("max_tokens", "max_tokens", "max_tokens", "tokens", "token", "token_exceeded")
TURNS = RunCap("max_iterations", "max_iterations", "max_iterations", "turns", "turn", "iteration_limit")
TOOL_CALLS = RunCap("max_tool_calls", "max_tool_calls", "max_tool_calls", "tool calls", "tool call", "tool_limit")
CAPS = (TIME, COST, TOKENS, TURNS, TOOL_CALLS)
CAP_OF_ARGUMENT: Mapping[str, RunCap] = {cap.argument: cap for cap in CAPS}
CAP_OF_FIELD: Mapping[str, RunCap] = {cap.field: cap for cap in CAPS}
CAP_OF_ENDING: Mapping[str, RunCap] = {cap.ending: cap for cap in CAPS}


def stored_caps(given: Mapping[str, float]) -> dict[str, Any]:
    return {cap.field: cap.stored(given[cap.argument]) for cap in CAPS if cap.argument in given}


def caps_text(cost_micros: int | None, timeout_s: float | None = None) -> str:
    """`at most $0.50 and 10 min`, or without a cost cap `free, at most 10 min`; without a time only the first part."""
    if cost_micros is None:
        return "free" if timeout_s is None else f"free, at most {minutes(timeout_s)}"
    cost = f"at most {format_usd(cost_micros, exact=True)}"
    return cost if timeout_s is None else f"{cost} and {minutes(timeout_s)}"


def limits_for_model(stored: Callable[[RunCap], float], *, free: bool) -> dict[str, str]:
    limits: dict[str, str] = {}
    for cap in CAPS:
        is_free = cap is COST and free
        limits[cap.limited] = "free" if is_free else cap.text(stored(cap))
    return limits


OUTLINE_TURNS = 3
"""Turns of the outline before the work: analysis, plan, review."""
RUN_TOOLS = tuple(spec.name for spec in RUN_SPECS)
"""Tools that read the run's own log. Every run has them; the last one only with results of earlier runs."""
NO_COMMANDS = "none needed"
"""The confinement of a run that runs neither commands nor programs of MCP servers."""


StoredPrice = Annotated[Price, PlainSerializer(asdict, return_type=dict[str, Any])]
"""A price with its nulls, in the log too."""


class ProjectText(BaseModel, frozen=True, extra="forbid"):
    """What a file of the project says about working in it, read at the proposal: a run is given this and no other."""

    path: str
    text: str


class Brief(BaseModel, frozen=True, extra="forbid"):
    """The texts of a proposal. They are in the run's first `UserMessage`, so that they can be erased.

    Attributes:
        project: AGENTS.md and CLAUDE.md of the project, those nearest to the work last. No person wrote them.
        step: The step whose texts these are; None for a run or a whole plan.
        steps: The texts of each step of a plan as it was proposed; empty for a single run.
    """

    task: str
    context: str | None = None
    system_prompt: str | None = None
    rationale: str | None = None
    project: tuple[ProjectText, ...] = ()
    step: str | None = None
    steps: tuple["Brief", ...] = ()

    @classmethod
    def of_message(cls, task: UserMessage, steps: tuple["Brief", ...] = ()) -> "Brief":
        """Return the texts that a run's first message has, and those of a plan's steps."""
        return cls(
            task=task.text,
            context=task.context,
            system_prompt=task.system_prompt,
            rationale=task.rationale,
            project=tuple(ProjectText.model_validate(each) for each in task.project or ()),
            steps=steps,
        )

    def stored(self) -> dict[str, Any]:
        """Return the texts that there are, without those of steps."""
        left_out = {"steps"} if self.project else {"steps", "project"}
        return self.model_dump(mode="json", exclude_none=True, exclude=left_out)

    def of_step(self, step: str) -> "Brief":
        """Return the texts of a step of this plan, of which others may be dropped. Raises KeyError if it has none."""
        for own in self.steps:
            if own.step == step:
                return own
        raise KeyError(step)


class EarlierRun(BaseModel, frozen=True, extra="ignore"):
    """An ended run whose result may be read; nothing that it wrote."""

    id: str
    role: str
    ending: str


class ForeignDefinition(BaseModel, frozen=True, extra="ignore"):
    """A tool of an MCP server as it was approved, by its server's name for it, and whether it can change things."""

    tool: str
    description: str
    parameters: dict[str, Any]
    changes: bool

    def offered(self, name: str) -> OfferedTool:
        """Return the tool in the form in which a server offers it, to compare the two."""
        return OfferedTool(name, self.tool, self.description, self.parameters, self.changes)


class ForeignUse(BaseModel, frozen=True, extra="ignore"):
    """What a run uses of one MCP server, as it was approved."""

    digest: str  # the hash of the server's configuration
    where: str
    network: bool = False  # its program may use this machine's network
    remote: bool = False  # it has an address and runs elsewhere
    read_write: tuple[str, ...] = ()  # folders that its program may write to
    tools: dict[str, ForeignDefinition] = {}  # those of its tools that the run has, by full name


class StoredFile(BaseModel, frozen=True, extra="ignore"):
    """A file beside the log, in its database: its SHA-256, and its number of bytes."""

    sha256: str
    size: int


class SkillUse(BaseModel, frozen=True, extra="ignore"):
    """A skill that a run may read, as it was approved; `sha256` is of all its files."""

    name: str
    description: str
    sha256: str
    files: int
    size: int  # in bytes


class ProjectFileSize(BaseModel, frozen=True, extra="ignore"):
    """A file that says how to work in the project; `size` is that of the whole file, in bytes."""

    path: str
    size: int
    is_cut: bool = False  # the run gets only its beginning


class Coding(BaseModel, frozen=True, extra="ignore"):
    """What a run may change in a repository, and the command that decides whether its work passes."""

    repository: str  # the root of the user's checkout
    branch: str | None = None  # the branch that is checked out there; None for a detached HEAD
    base: str  # the commit at which the work starts
    identity: tuple[str, ...]  # the repository's `UserRepository.identity`
    uncommitted: int = 0  # how many files of the checkout have uncommitted changes, which the work does not include
    # The files and folders that may be changed, relative to the repository's root; `.` is all of it.
    namespace: tuple[str, ...]
    verify: str  # the command line that decides
    verify_from: str  # where it comes from, as text
    setup: str | None = None  # the command line that prepares a worktree
    notes: tuple[str, ...] = ()  # other facts about the repository, in sentences
    # The commit at which the work starts, for other machines; None where it does not travel.
    snapshot: StoredFile | None = None


class SearchCall(BaseModel, frozen=True, extra="ignore"):
    """The model call that one web search makes, where a model provider searches."""

    model: str
    base_url: str
    price: StoredPrice  # what the call costs, the fee of the search included
    fee: int  # the fee of one search, in nano-USD
    prompt_tokens: int  # what is reserved for the request and its results
    output_tokens: int  # the limit of the answer
    results: int  # the most results of one search
    key_command: tuple[str, ...] = ()  # the command that prints the key; empty where none does

    @staticmethod
    def of(search: "ProviderSearch", key_command: tuple[str, ...]) -> "SearchCall":
        terms = search.terms
        return SearchCall(
            model=search.choice.name,
            base_url=search.choice.base_url or "",
            price=search.price,
            fee=terms.fee,
            prompt_tokens=terms.prompt_tokens,
            output_tokens=terms.output_tokens,
            results=terms.results,
            key_command=key_command,
        )


class Estimate(BaseModel, frozen=True, extra="ignore"):
    """What similar runs of the user took, when the run was proposed; see `approval/estimates.py`.

    A value is None where it is the proposal's own cap, or where nothing costs anything.
    """

    runs: int  # how many similar runs there were
    group: Literal["size", "model", "role"]  # the narrowest that they have in common
    left_out: int = 0  # similar runs whose cost at today's prices is not known
    half_micros: int | None = None  # half of them cost less
    most_micros: int | None = None  # nine in ten are likely to cost no more; of fewer than nine runs, the highest
    half_us: int | None = None  # the same of their time
    most_us: int | None = None

    @property
    def bounded(self) -> bool:
        """Whether there were enough runs for a bound of nine in ten."""
        return self.runs >= 9


IfFails = Literal["skip", "stop", "continue"]
"""What follows a step that did not succeed: what needs it is skipped, nothing more starts, or what needs it goes on."""
PLAN = "plan"
"""The role of a run whose work is to start the runs of its steps."""


class Source(BaseModel, frozen=True, extra="ignore"):
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
        run: Its run, where that was proposed by itself and approved together with others; empty for any other step.
    """

    id: str
    config: "RunConfig"
    needs: tuple[str, ...] = ()
    inputs: tuple[Source, ...] = ()
    foreach: Source | None = None
    at_most: int = 1
    if_fails: IfFails = "skip"
    listed_most: int = 1
    reused: tuple[ReusedRun, ...] = ()
    repeats: tuple[str, ...] = ()
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


_ESTIMATES = {
    "estimated_minutes",
    "input_bytes",
    "estimate",
    "least_micros",
    "start_micros",
    "turn_micros",
    "first_micros",
}


_OF_PLANS = {"step", "steps"}
"""Texts that only plans have."""


def _covered(config: RunConfig) -> dict[str, Any]:
    """Return what a digest covers of a configuration.

    A newer field is left out while it has the value that older configurations stand for: their digests stay the same.
    """
    newer: tuple[tuple[str, Any], ...] = (
        ("runner", IN_PROCESS),
        ("agent", None),
        ("keyed", False),
        ("key_command", ()),
        ("steps", ()),
        ("skills", ()),
        ("missing_skills", ()),
        ("project_files", ()),
        ("project_origin", ""),
        ("project_left_out", ()),
    )
    unchanged = {name for name, older_value in newer if getattr(config, name) == older_value}
    covered = config.model_dump(mode="json", exclude=_ESTIMATES | unchanged)
    if config.search_call is not None and not config.search_call.key_command:
        del covered["search_call"]["key_command"]
    if config.steps:
        steps: list[dict[str, Any]] = []
        for step in config.steps:
            fields = step.model_dump(mode="json", exclude={"config"})
            steps.append({**fields, "config": _covered(step.config)})
        covered["steps"] = steps
    return covered


def _covered_brief(brief: Brief) -> dict[str, Any]:
    covered = brief.model_dump(mode="json", exclude=None if brief.steps else _OF_PLANS)
    for each in (covered, *covered.get("steps", ())):
        if not each["project"]:  # digests of older texts have no such field
            del each["project"]
    return covered


def digest(config: RunConfig, brief: Brief) -> str:
    """Return the hash of what is approved: configuration and texts, but no estimate, which depends on other runs."""
    both = {"config": _covered(config), "texts": _covered_brief(brief)}
    line = json.dumps(both, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(line.encode()).hexdigest()

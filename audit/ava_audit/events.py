"""Events: everything that can happen, as a closed set of frozen pydantic models.

A `Fact` says what happened. An `Event` adds whom it concerns, on its way into the log. An `Entry` is an event stored in
the log. Facts marked `transcript` hold what people and models wrote; retention and `ava erase` remove that content.
Reducers therefore read only header columns and the content of other facts.
"""

# No `from __future__ import annotations`: pydantic would compile each of the fields' annotations again at every start.

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

from pydantic import BaseModel, ConfigDict, Field

Severity = Literal["info", "warning", "error"]

Ending = Literal[
    "success",
    "no_answer",
    "partial",
    "timeout",
    "cost_exceeded",
    "token_exceeded",
    "iteration_limit",
    "tool_limit",
    "guardrail",
    "cancelled",
    "abandoned",
    "error",
    "rejected",
    "expired",
    "superseded",
]
ENDINGS: frozenset[str] = frozenset(get_args(Ending))
WHOLE: frozenset[str] = frozenset({"success", "no_answer"})
"""Endings whose result is all that there was to hand over; `no_answer` says that nothing was found."""
_INFO_ENDINGS = frozenset({"success", "cancelled", "rejected", "superseded", "expired"})

ClaimReason = Literal["start", "takeover", "resume", "cancel"]
CancelledBy = Literal["person", "model", "system"]
Channel = Literal["host_call", "elicitation", "terminal", "auto", "http", "browser"]
Settlement = Literal["billed", "not_billed", "unknown"]
OutlinePhase = Literal["analysis", "plan", "review"]
ExtendedCap = Literal["max_cost_cents", "max_tokens", "timeout"]
AskedKind = Literal["money", "tokens", "time", "question", "call"]
CAP_OF_KIND: Mapping[AskedKind, ExtendedCap] = {"money": "max_cost_cents", "tokens": "max_tokens", "time": "timeout"}
"""What a run may ask for more of, and the cap that is raised for it."""


class Usage(BaseModel, frozen=True, extra="forbid"):
    """Tokens of one model call by class, as reported by the provider.

    `input_tokens` counts fresh tokens: neither read from a cache nor written to one. `thinking_tokens` is a part of
    `output_tokens`; only the cost table shows it.
    """

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cache_read_tokens: int = Field(default=0, ge=0)
    cache_write_tokens: int = Field(default=0, ge=0)
    thinking_tokens: int = Field(default=0, ge=0)

    @property
    def counted(self) -> int:
        """Tokens that count against `max_tokens`: fresh input, cache writes and output, but not cache reads."""
        return self.input_tokens + self.cache_write_tokens + self.output_tokens

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


class Fact(BaseModel):
    """What happened. The subclasses are the closed set of event types; the class name is the type's name."""

    # A model is built at its first use. Threads must not do that at the same time: `store.py` builds all before.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    version: ClassVar[int] = 1
    transcript: ClassVar[bool] = False
    default_severity: ClassVar[Severity] = "info"
    text_fields: ClassVar[tuple[str, ...]] = ()

    @property
    def type(self) -> str:
        return type(self).__name__

    @property
    def severity(self) -> Severity:
        return self.default_severity

    def search_text(self) -> str:
        """Return the readable text of this event, for search and one-line views."""
        return " ".join(filter(None, (readable_text(getattr(self, name)) for name in self.text_fields)))


class UserMessage(Fact):
    """What a person or the orchestrator wrote: a task, a message, a decision on a proposal, an answer to a question.

    `steps` has the texts of a plan's steps, in their order, with the names of these fields. `inputs` is what the task
    of a plan's run gets of earlier runs: each has the `name` by which the task refers to it, what it is `about`, and
    its `text`; a part for each item of a list follows, whose `about` is empty. `project` is what files of the project
    say about working in it, each with its `path` and `text`.
    `screen` is what was on the screen of a person who approved while some of the proposal was folded or left out.
    """

    transcript = True
    text_fields = ("text", "context", "system_prompt", "steps", "inputs")

    text: str
    kind: Literal["task", "message", "decision", "answer"] = "message"
    context: str | None = None
    system_prompt: str | None = None
    rationale: str | None = None
    steps: tuple[dict[str, Any], ...] | None = None
    inputs: tuple[dict[str, str], ...] | None = None
    project: tuple[dict[str, str], ...] | None = None
    screen: str | None = None


class AssistantMessage(Fact):
    """What a model wrote (agent `S-…`), or the text of a proposal that was shown (agent `ava`).

    `raw` is the provider's message, stored and sent back unchanged. `calls` lists its tool calls in order, each with
    `call_id`, `name` and `raw_args`, also unchanged. In `text`, secrets are replaced. If `printed` is set, the model
    had written the calls into its text; they were parsed from there, and `raw` is the message built from them.
    `rejected` is what the provider said of an answer that it refused itself, and what the model had written; such an
    answer has no text.
    """

    transcript = True
    text_fields = ("text", "rejected")

    text: str
    turn: int | None = None
    attempt: int | None = None
    raw: dict[str, Any] | None = None
    calls: tuple[dict[str, Any], ...] = ()
    stop_reason: str | None = None
    request_id: str | None = None
    notes: tuple[str, ...] = ()
    printed: bool | None = None
    rejected: str | None = None


class ToolCall(Fact):
    """A tool is about to be called. The entry is committed before the tool starts."""

    transcript = True
    text_fields = ("tool", "args")

    tool: str
    args: Any = None
    call_id: str | None = None
    turn: int | None = None


class ToolResult(Fact):
    """What a tool call returned. For a subagent's call, `output` is exactly what the model was shown.

    `unusable` marks a call that could not be made as requested: the tool does not exist, or its arguments are invalid.
    `unread` is Ava's own text about what the call was to read and did not: its time or its limits were over, or files
    could not be read, each of which has a line with the reason. `unread_little`: that is at most a tenth of the files,
    and none that the question names. Each of `sources` has a `location` (a path or an address) and a `title`; a file
    that was read whole and without secrets has a `sha256` too. `unknown` marks a failed call of which nobody knows
    whether it was carried out.
    """

    transcript = True
    text_fields = ("tool", "output")

    tool: str
    success: bool
    output: str = ""
    output_sha: str | None = None
    call_id: str | None = None
    turn: int | None = None
    count: int | None = None
    chars: int | None = None
    scratch: str | None = None
    sources: tuple[dict[str, str | None], ...] = ()
    unusable: bool | None = None
    unread: str | None = None
    unread_little: bool | None = None
    unknown: bool | None = None

    @property
    def severity(self) -> Severity:
        return "info" if self.success else "error"


class SubagentSpawn(Fact):
    """A run was approved. It is logged for agent `ava`, so that the day's file alone lists every run that started."""

    transcript = True
    text_fields = ("subagent_id", "role", "name", "task_id", "task")

    role: str
    task: str
    subagent_id: str
    pending_id: str
    name: str | None = None
    task_id: str | None = None
    max_cost_cents: float
    model: str
    group_id: str | None = None


class SubagentComplete(Fact):
    """A run ended. `result` is the complete answer that `check_subagent` returns for it."""

    transcript = True
    text_fields = ("subagent_id", "status", "summary", "result")

    status: Ending
    summary: str
    tokens: int
    cost_cents: float
    duration: float
    subagent_id: str
    result: dict[str, Any] = Field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        if self.status in _INFO_ENDINGS:
            return "info"
        return "error" if self.status in ("error", "guardrail", "abandoned") else "warning"


class ExtendedThinking(Fact):
    """A model's thinking, for diagnosis. Opaque provider fields are in the message itself."""

    transcript = True
    text_fields = ("thinking",)

    thinking: str
    turn: int | None = None


class UnknownCost(BaseModel):
    """What was booked for a call of unknown cost: its reservation, on the day and in the scopes of that."""

    model_config = ConfigDict(frozen=True)

    day: int
    scopes: tuple[str, ...]
    micros: int
    tokens: int
    cost_by: dict[str, int] = Field(default_factory=dict)


class CostUpdate(Fact):
    """A reservation was settled: what the call used, and what it cost.

    `tokens_per_byte` is the measured ratio for the new part of the prompt: reported tokens divided by its bytes.
    `named` is what the answer says of its tier and its place, by field, where that can change the price. `account` is a
    mark of the account that was billed, where its settings can: the same for the same key.

    `replaces` is set where the answer came after the call had been booked as unknown: this settlement takes the place
    of that one, with its `micros`, `tokens` and `cost_by`, on the `day` and in the `scopes` of the reservation.
    """

    turn: int
    attempt: int
    settlement: Settlement
    tokens: int
    cost_cents: float
    reserved_micros: int
    thinking_tokens: int = 0
    price_source: str | None = None
    request_id: str | None = None
    overrun: bool = False
    free: bool = False
    tokens_per_byte: float | None = None
    cost_by: dict[str, int] = Field(default_factory=dict)
    named: dict[str, str] = Field(default_factory=dict)
    account: str | None = None
    replaces: UnknownCost | None = None

    @property
    def replaced_micros(self) -> int:
        """Return what was booked for the call before, in micro-USD."""
        return 0 if self.replaces is None else self.replaces.micros

    @property
    def severity(self) -> Severity:
        return "warning" if self.overrun or self.settlement == "unknown" else "info"

    def search_text(self) -> str:
        return f"turn {self.turn} {self.tokens} tokens {self.settlement}"


class ErrorOccurred(Fact):
    """Something went wrong: what, its kind, and what to do. `request_id` is the provider's id of the call."""

    transcript = True
    default_severity: ClassVar[Severity] = "error"
    text_fields = ("kind", "error", "what_to_do")

    error: str
    kind: str
    what_to_do: str = ""
    turn: int | None = None
    attempt: int | None = None
    request_id: str | None = None


class SessionStart(Fact):
    """A host connected."""

    text_fields = ("client", "client_version", "transport", "folder", "token")

    client: str | None = None
    client_version: str | None = None
    protocol: str | None = None
    transport: str
    folder: str | None = None
    token: str | None = None


class SessionEnd(Fact):
    """A host's connection ended."""

    text_fields = ("reason",)

    reason: str = "closed"


class SpawnProposed(Fact):
    """A proposal with its complete resolved configuration, without the texts.

    Task, context and role specialisation are in the run's first `UserMessage`, where they can be erased. The digest
    covers them. `policy` was in force for the client that proposed it: under `human`, a person proves who they are
    wherever they approve it.
    """

    pending_id: str
    subagent_id: str
    digest: str
    expires_us: int
    config: dict[str, Any]
    retry_of: str | None = None
    supersedes: str | None = None
    policy: str | None = None

    def search_text(self) -> str:
        config = self.config
        parts = (self.pending_id, self.subagent_id, config.get("role"), config.get("name"), config.get("task_id"))
        return " ".join(str(part) for part in parts if part)


class SpawnDecided(Fact):
    """A proposal was approved or rejected, or ended without a decision.

    `digest` is the proposal's. `decision_digest` covers everything decided with it: changes, and the plan. Where it was
    approved together with others, `group_id` is the plan of all of them, and `step` its step there. `folded` says,
    counted, what of the proposal was folded or left out on the screen of the person who approved it.
    """

    text_fields = ("pending_id", "decision", "channel")

    pending_id: str
    decision: Literal["approved", "rejected", "expired", "superseded"]
    channel: Channel | None = None
    digest: str | None = None
    decision_digest: str | None = None
    changes: dict[str, Any] = Field(default_factory=dict)
    group_id: str | None = None
    step: str | None = None
    folded: str | None = None


class StepRunQueued(Fact):
    """A plan has queued a run of one of its steps, with that step's approved configuration.

    `group_id` is the plan. `item` is the place of the run's item in the list of its step, from 1; None for a step of
    one run. `name` is the step, with the item. `earlier` has the runs whose results it may read, each with `id`, `role`
    and `ending`. `least_micros` is the cost from which it can work, with its inputs. `leaves` is what it leaves of the
    plan's money to each of the later steps, in micro-USD.
    """

    text_fields = ("group_id", "name")

    group_id: str
    subagent_id: str
    step: str
    item: int | None = None
    name: str
    earlier: tuple[dict[str, str], ...] = ()
    least_micros: int = 0
    leaves: dict[str, int] = Field(default_factory=dict)


StepState = Literal["begun", "done", "failed", "skipped"]


class StepChanged(Fact):
    """A step of a plan has begun, or is over.

    `items` is how many runs it has: those of its list up to `at_most`; `left_out` counts the rest of the list. At its
    end, `not_done` counts the runs that did not succeed or were not started, and `why` says so in Ava's own words.
    """

    text_fields = ("step", "state", "why")

    step: str
    state: StepState
    items: int = 1
    left_out: int = 0
    not_done: int = 0
    why: str = ""


class RunClaimed(Fact):
    """An instance took a run. This raises the run's generation, which fences out writes of older ones.

    `with_host` says why the run is in a process that ends with its host, although what was approved continues without
    it; else it is empty. `seen_us` is when its earlier owner was last seen at work, where that is after the run's last
    entry.
    """

    instance: str
    generation: int
    reason: ClaimReason = "start"
    with_host: str = ""
    seen_us: int | None = None

    def search_text(self) -> str:
        ends = f"; it is interrupted when its host closes, because {self.with_host}" if self.with_host else ""
        return f"claimed by {self.instance} ({self.reason}){ends}"


class RunPaused(Fact):
    """A provider takes no calls for a while: the run is queued without a slot, and its clock stops.

    `why` is Ava's own sentence. What the provider said is in the `ErrorOccurred` before it. `stands_us` is of a run of
    a plan whose process is gone, and which waits until a person resumes it: since when nothing of the plan has worked,
    in microseconds UTC. The plan's clock stands still from there if nothing else of it can go on.
    """

    default_severity: ClassVar[Severity] = "warning"

    not_before_us: int
    why: str
    active_us: int = 0
    stands_us: int | None = None

    def search_text(self) -> str:
        return f"paused: {self.why}"


class MoneyAwaited(Fact):
    """A run waits for money that other runs hold (`over`: it no longer waits). It keeps its slot, and its clock stops.

    `scope` is the shared cap's scope in which the next call does not fit, `limit` that cap, `micros` the worst case of
    the call and the last turn after it, and `least` that of the smallest form in which the call is still useful.
    `missing` is what was missing when the wait began, and `runs` how many other runs held money then. A wait also ends
    with a reservation, a pause, a new owner, and the run's end.

    `returned`: the run's process is gone, and what it held for its last turn went back to others who wait for money.
    """

    scope: str = ""
    limit: int = 0
    micros: int = 0
    least: int = 0
    missing: int = 0
    runs: int = 0
    over: bool = False
    returned: int = 0

    def search_text(self) -> str:
        if self.returned:
            return "its process is gone; the money for its last turn was returned"
        return "waits for money no longer" if self.over else f"waits for money in {self.scope}"


ActReason = Literal["", "role", "destroys", "again", "no_values"]
"""Why a person is asked about a call itself.

Its role or its server wants that (the server by saying that the tool destroys something), an equal one succeeded or may
have, or it passes nothing that could be compared with what they approved.
"""


class Asked(Fact):
    """A run asks a person for something, and waits. It is queued without a slot, and its clock stops.

    For more `money`, `tokens` or `time`, near that cap: `limit` is the cap now, `proposed` the value that a person may
    allow, `used` what is used of it, and `needed` the estimated use from now on, including what is left: in micro-USD,
    tokens or seconds. `digest` covers the request and the complete new configuration. The wrap-up stays reserved; if
    nobody answers by `expires_us`, the run wraps up.

    The answer to a `question`: it is in the `ToolCall` with this `call_id`, and `values` has what no approved text has
    in its options: the option as `argument`, and the `location` of a page that it is from.

    Or whether a `call` may be made, to `tool`: each of `values` has the `argument`, the `value`, and in `source` the
    tool whose result brought it. `act` says why the call itself is asked about, whatever its values, and `given` has
    what the call passes, each with its `argument` and the beginning of its `value`. If nobody answers by `expires_us`,
    the run goes on without.
    """

    default_severity: ClassVar[Severity] = "warning"

    kind: AskedKind
    ask_id: str
    expires_us: int
    active_us: int = 0
    limit: int | float = 0
    proposed: int | float = 0
    used: int | float = 0
    needed: int | float = 0
    digest: str = ""
    call_id: str = ""
    tool: str = ""
    values: tuple[dict[str, str], ...] = ()
    act: ActReason = ""
    given: tuple[dict[str, str], ...] = ()

    @property
    def for_more(self) -> bool:
        return self.kind in CAP_OF_KIND

    @property
    def cap(self) -> ExtendedCap:
        """The cap that is to be raised; only where it asks for more."""
        return CAP_OF_KIND[self.kind]

    def search_text(self) -> str:
        if self.for_more:
            return f"{self.ask_id} asks for more: {self.cap} {self.limit:g} to {self.proposed:g}"
        if self.kind == "question":
            return f"{self.ask_id} asks a person"
        values = "".join(f", {each['argument']}: {each['value']}" for each in self.values)
        return f"{self.ask_id} asks a person whether it may call {self.tool}{values}"


class Answered(Fact):
    """What a run asked for was decided on, and the run is queued again. The `UserMessage` before has the text.

    `approved` and `answered` are a yes, to a request for more and to any other. `channel` says who decided:
    `host_call` is the model at the host, all others are a person. Of a request for more, `digest` is the one of the
    request, `decision_digest` covers the configuration that runs from now on, and `changes` is the new cap, as a field
    of the configuration; empty where the person declined.
    """

    text_fields = ("ask_id", "decision", "channel")

    kind: AskedKind
    ask_id: str
    decision: Literal["approved", "answered", "declined"]
    channel: Channel
    digest: str = ""
    decision_digest: str = ""
    changes: dict[str, Any] = Field(default_factory=dict)

    @property
    def for_more(self) -> bool:
        return self.kind in CAP_OF_KIND


class RunResumed(Fact):
    """Someone resumed a run whose owner had died or was to stop. The run is queued, and its old owner is fenced out.

    `seen_us` is when that owner was last seen at work, where that is after the run's last entry.
    """

    channel: Channel
    force: bool = False
    seen_us: int | None = None

    def search_text(self) -> str:
        return f"resumed by {self.channel} (forced)" if self.force else f"resumed by {self.channel}"


class RunStarted(Fact):
    """The rendered prefix of a run. With the entries after it, every request can be rebuilt byte for byte.

    `parameters` holds everything else that shapes a request's bytes: the wire, the endpoint and the body's fields.
    `own_bytes` bytes of the system prompt, and the schemas of `own_tools`, are Ava's own text, which has a tighter
    token bound. The first `shared_chars` characters of the prompt are those of every run of the role with these tools.
    `after_task` follows the task, because it may differ between the runs of a plan. `mark` of a plan's run says what
    decided its work (`runs/turn/reuse.py` in the server).
    """

    transcript = True

    system: str
    tools: tuple[dict[str, Any], ...]
    model: str
    price: dict[str, Any]
    limits: dict[str, Any]
    parameters: dict[str, Any] = Field(default_factory=dict)
    max_output: int
    nonce: str
    workspace: str | None = None
    confinement: str = "none needed"
    own_bytes: int = 0
    own_tools: tuple[str, ...] = ()
    shared_chars: int = 0
    after_task: str = ""
    mark: str | None = None

    def search_text(self) -> str:
        return f"{self.model} {' '.join(str(tool.get('name')) for tool in self.tools)}"


class LastTurn(BaseModel):
    """Why a turn is the last one: the ending it leads to, and the name of the cap."""

    model_config = ConfigDict(frozen=True)

    status: Ending
    reason: str


class CostReserved(Fact):
    """A model call may be sent: its worst case and the wrap-up's are held in every cap that covers the run.

    This is the recipe of the request: `RunStarted`, the run's entries up to `upto_seq` and these fields rebuild it.
    `notice` is what the request tells the model, and `notices` names the topics. `last` says why this turn is the last
    one, if it is. `phase` is the purpose of the call in a run that plans first, until `PlanReady`. `elide` lists the
    results that are left out from now on, `cut` those that are shown only up to a number of characters.

    With `beside`, it is one of several calls that are in flight at once, each with a turn of its own: what another
    agent asks for. What the others hold stays held.

    With `tool_call`, it is for that tool call, not for a turn of the conversation: a web search by a model
    provider. The query in the `ToolCall` and the approved `search_call` rebuild its request. The wrap-up stays held.
    In the run of another agent it is `beside` the calls of that agent's model. With `no_tier`, it asks for no service
    tier, because the provider has refused that.

    `prompt_tokens` bounds the prompt. No report of the provider covers `new_bytes` of it: each counts as one token, or
    as `byte_tokens` where the bound by bytes did not fit a cap (`byte_tokens` is twice the measured ratio).
    """

    turn: int
    attempt: int
    scopes: tuple[str, ...]
    micros: int
    wrap_micros: int
    prompt_tokens: int
    max_output: int
    upto_seq: int
    elide: tuple[int, ...] = ()
    cut: tuple[tuple[int, int], ...] = ()
    new_bytes: int = 0
    byte_tokens: float | None = None
    notice: str | None = None
    notices: tuple[str, ...] = ()
    last: LastTurn | None = None
    phase: OutlinePhase | None = None
    thinking: int = 0
    tool_call: str | None = None
    no_tier: bool | None = None
    beside: bool | None = None
    request_sha: str

    def search_text(self) -> str:
        return f"turn {self.turn} attempt {self.attempt} {self.notice or ''}".rstrip()


class AgentRequest(Fact):
    """What another agent has asked of a model, in the turn of a `CostReserved` that is `beside` others.

    `items` are the messages that no earlier request of the run has shown; `known` messages before them are those of the
    request of turn `after`. `head` is what stands before the conversation (instructions, tools), where no earlier
    request had the same (`head_sha`). `dropped` lists what Ava took out and no earlier request names.
    """

    transcript = True
    text_fields = ("items",)

    turn: int
    model: str
    head_sha: str
    head: Any = None
    after: int | None = None
    known: int = 0
    items: tuple[Any, ...] = ()
    dropped: tuple[str, ...] = ()


class AgentNote(Fact):
    """What happened between Ava and another agent that does a run.

    `session`: it has started, with the id of its session. `permission`: it asked for something, and what Ava answered.
    `refused`: a model request that was not sent, and why. `unreported`: tool calls that passed the gateway and that it
    has not told of. `reported`: what it says about its own usage, which nothing is booked from.
    """

    transcript = True
    text_fields = ("kind", "text")

    kind: Literal["session", "permission", "refused", "unreported", "reported"]
    text: str
    detail: dict[str, Any] = Field(default_factory=dict[str, Any])


class Activity(Fact):
    """A turn's one-sentence activity. What a run does at this second is not in the log (`Instances.activities`)."""

    transcript = True
    text_fields = ("activity",)

    activity: str


class GuardrailTripped(Fact):
    """A guardrail warned the model, refused a call, or ended the run."""

    default_severity: ClassVar[Severity] = "warning"
    text_fields = ("guardrail", "tool", "action")

    guardrail: str
    action: Literal["told", "refused", "ended"]
    tool: str | None = None
    count: int | None = None


class PlanReady(Fact):
    """Planning is over: the plan as the run's history has it, empty if none could be made."""

    transcript = True
    text_fields = ("plan",)

    plan: str
    reviewed: bool


class CommandRun(BaseModel, frozen=True, extra="ignore"):
    """How a command of a run's approval ended: the setup command or the verify command.

    `passed` means exit code 0. `ended` says how the command ended, if it did not exit by itself. `output` is its
    last part, or the part that shows the failure: bounded, and without secrets.
    """

    passed: bool
    code: int | None = None
    ended: str = "exited"
    took_s: float = 0.0
    output: str = ""


class WorktreeReady(Fact):
    """A run that changes files has its worktree, and the approved commands have run there once.

    `told` is exactly what the model reads about it, after the task in every request. `setup` and `verify` each hold
    `passed`, `code`, `ended` (`exited`, `timeout`, …), `took_s` and the `output` that shows a failure.
    """

    transcript = True
    text_fields = ("told",)

    base: str
    told: str
    setup: CommandRun | None = None
    verify: CommandRun | None = None


class WorkChecked(Fact):
    """The verify command checked submitted work, in a place apart from the model's own commands.

    `number` counts these checks from 1. `verify` is as in `WorktreeReady`. `tree` is the git id of the checked tree.
    `told` is the answer to the model if the check failed.
    """

    transcript = True

    number: int
    verify: CommandRun
    tree: str = ""
    call_id: str | None = None
    turn: int | None = None
    told: str = ""

    @property
    def severity(self) -> Severity:
        return "info" if self.verify.passed else "warning"

    def search_text(self) -> str:
        outcome = "passed" if self.verify.passed else "failed"
        return f"{outcome} {self.verify.output}".rstrip()


class CancelRequested(Fact):
    """Someone asked to cancel a run."""

    transcript = True
    text_fields = ("subagent_id", "reason")

    subagent_id: str
    reason: str | None = None
    by: CancelledBy = "model"


class RunEnded(Fact):
    """The ending of a run without its texts: what a reducer needs after the transcript is erased.

    `stop_reason` is Ava's own sentence. A reason that a person gave is in `CancelRequested` and in the result.
    """

    text_fields = ("status", "stop_reason")

    status: Ending
    stop_reason: str
    error_kind: str | None = None
    active_us: int = 0

    @property
    def severity(self) -> Severity:
        return "info" if self.status in _INFO_ENDINGS else "warning"


class SettingsChanged(Fact):
    """A setting that limits everybody has changed."""

    setting: str
    before: Any = None
    after: Any = None

    def search_text(self) -> str:
        return f"{self.setting} {self.after}"


class LogErased(Fact):
    """Transcript content was erased: of which run, how many entries, and why.

    `whole` means that the entire run is erased, and not only what is old. Background maintenance finishes an erasure
    that was begun.
    """

    text_fields = ("run_id", "why")

    run_id: str | None = None
    entries: int
    why: str
    whole: bool = False


class Unknown(Fact):
    """An entry whose type or version this program does not know: a newer program wrote it."""

    text_fields = ("content",)

    name: str
    content: dict[str, Any] = Field(default_factory=dict)

    @property
    def type(self) -> str:
        return self.name


def build_models() -> None:
    """Build the models of all facts: two threads that build one at the same time can break it."""
    for fact in Fact.__subclasses__():
        fact.model_rebuild()


FACTS: dict[str, type[Fact]] = {fact.__name__: fact for fact in Fact.__subclasses__() if fact is not Unknown}
"""The closed set: type name to model. A type that is not here is read as `Unknown`."""

TRANSCRIPT_TYPES: frozenset[str] = frozenset(name for name, fact in FACTS.items() if fact.transcript)


class Who(NamedTuple):
    """Whom an event concerns: the host connection, the agent, the user, and the parent agent that started it."""

    session_id: str
    agent_id: str
    user_id: str
    parent_agent_id: str | None = None


class Fence(NamedTuple):
    """The claim under which an event is written. The store refuses the event if the run has a newer generation."""

    run_id: str
    generation: int


class Event(NamedTuple):
    """A fact on its way into the log."""

    who: Who
    fact: Fact
    run_id: str | None = None  # the run it belongs to, if any. If `fence` is set, its run counts instead
    fence: Fence | None = None  # the claim under which it is written. Everything that a run in progress writes has one
    usage: Usage | None = None  # tokens, for a settlement
    cost_micros: int | None = None  # micro-USD, for a settlement
    model: str | None = None
    duration_ms: int | None = None  # how long it took, in milliseconds of the monotonic clock


def readable_text(value: Any) -> str:
    """Return the text in a JSON value, without keys and punctuation."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return " ".join(readable_text(item) for item in cast("dict[str, Any]", value).values())
    if isinstance(value, list | tuple):
        return " ".join(readable_text(item) for item in cast("list[Any]", value))
    return "" if value is None else str(value)

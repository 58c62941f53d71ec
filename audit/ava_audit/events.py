"""The closed union of events: what can happen, one frozen pydantic model each.

A `Fact` is what happened; an `Event` is a fact with who it concerns, on its way into the log; an `Entry` is an
event as it stands there. Facts marked `transcript` carry the words of people and models: retention and
`ava erase` remove their content. Reducers therefore read only header columns and facts that are no transcript.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

from pydantic import BaseModel, ConfigDict, Field

Severity = Literal["info", "warning", "error"]

Ending = Literal[
    "success",
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

ClaimReason = Literal["start", "takeover", "resume", "cancel"]
CancelledBy = Literal["person", "model", "system"]
Channel = Literal["host_call", "elicitation", "terminal", "auto", "http"]
Settlement = Literal["billed", "not_billed", "unknown"]
PlanPhase = Literal["analysis", "plan", "review"]


class Usage(BaseModel):
    """Tokens of one model call by class, as the provider reported them.

    `input_tokens` are fresh ones: neither read from nor written to a cache. `thinking_tokens` are a part of
    `output_tokens`, told apart for the cost table only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cache_read_tokens: int = Field(default=0, ge=0)
    cache_write_tokens: int = Field(default=0, ge=0)
    thinking_tokens: int = Field(default=0, ge=0)

    @property
    def counted(self) -> int:
        """Tokens that count against `max_tokens`: fresh input, cache writes and output, not cache reads."""
        return self.input_tokens + self.cache_write_tokens + self.output_tokens


class Fact(BaseModel):
    """What happened. Subclasses are the closed set of event types; the class name is the type's name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: ClassVar[int] = 1
    transcript: ClassVar[bool] = False

    @property
    def type(self) -> str:
        """The event type's name, as the log spells it."""
        return type(self).__name__

    @property
    def severity(self) -> Severity:
        """How much this matters to a reader who looks for trouble."""
        return "info"

    def words(self) -> str:
        """Return the readable text of this event, for search and one-line views."""
        return ""


class UserMessage(Fact):
    """What a person or the orchestrator said: a run's task, a message to it, or a decision on a proposal."""

    transcript: ClassVar[bool] = True

    text: str
    kind: Literal["task", "message", "decision"] = "message"
    context: str | None = None
    system_prompt: str | None = None
    rationale: str | None = None

    def words(self) -> str:
        """Return the message, with a task's context and role specialisation."""
        return "\n".join(part for part in (self.text, self.context, self.system_prompt) if part)


class AssistantMessage(Fact):
    """A model's words (agent `S-…`), or the text of a proposal that was shown (agent `ava`).

    `raw` is the provider's message, stored verbatim and sent back verbatim; `calls` are the tool calls in it, in
    order, as `call_id name raw_args`. Where `printed` says so, they were read from its words, in which the model had
    printed them, and `raw` is the message made of them.
    """

    transcript: ClassVar[bool] = True

    text: str
    turn: int | None = None
    attempt: int | None = None
    raw: dict[str, Any] | None = None
    calls: tuple[dict[str, Any], ...] = ()
    stop_reason: str | None = None
    request_id: str | None = None
    notes: tuple[str, ...] = ()
    printed: bool | None = None

    def words(self) -> str:
        """Return the words."""
        return self.text


class ToolCall(Fact):
    """A tool is about to be called: committed before the tool starts."""

    transcript: ClassVar[bool] = True

    tool: str
    args: Any = None
    call_id: str | None = None
    turn: int | None = None

    def words(self) -> str:
        """Return the tool's name and its arguments' values."""
        return f"{self.tool} {readable(self.args)}"


class ToolResult(Fact):
    """What a tool call brought: for a subagent's call `output` is exactly what the model was shown.

    `unusable` marks a call that could not be made as it was asked for: no such tool, or arguments that do not fit.
    """

    transcript: ClassVar[bool] = True

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

    @property
    def severity(self) -> Severity:
        """A failed call is an error to a reader of the log."""
        return "info" if self.success else "error"

    def words(self) -> str:
        """Return the tool's name and its output."""
        return f"{self.tool} {self.output}"


class SubagentSpawn(Fact):
    """A run was approved; stands in `ava`'s log, so that the day's file alone tells what was started."""

    transcript: ClassVar[bool] = True

    role: str
    task: str
    subagent_id: str
    pending_id: str
    name: str | None = None
    task_id: str | None = None
    max_cost_cents: float
    model: str
    group_id: str | None = None

    def words(self) -> str:
        """Return id, role, name and task."""
        return " ".join(part for part in (self.subagent_id, self.role, self.name, self.task_id, self.task) if part)


class SubagentComplete(Fact):
    """A run ended; `result` is the whole answer that `check_subagent` gives for it."""

    transcript: ClassVar[bool] = True

    status: Ending
    summary: str
    tokens: int
    cost_cents: float
    duration: float
    subagent_id: str
    result: dict[str, Any] = Field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        """Success and cancellation are news; a cap is a warning; an error is an error."""
        if self.status in ("success", "cancelled", "rejected", "superseded", "expired"):
            return "info"
        return "error" if self.status in ("error", "guardrail", "abandoned") else "warning"

    def words(self) -> str:
        """Return id, status, summary and the result's text."""
        return f"{self.subagent_id} {self.status} {self.summary} {readable(self.result)}"


class ExtendedThinking(Fact):
    """A model's thinking, for diagnosis; opaque provider fields are in the message itself."""

    transcript: ClassVar[bool] = True

    thinking: str
    turn: int | None = None

    def words(self) -> str:
        """Return the thinking."""
        return self.thinking


class ErrorOccurred(Fact):
    """Something went wrong: what, of which kind, and what to do; `request_id` is the provider's id of a call."""

    transcript: ClassVar[bool] = True

    error: str
    kind: str
    what_to_do: str = ""
    turn: int | None = None
    attempt: int | None = None
    request_id: str | None = None

    @property
    def severity(self) -> Severity:
        """Always an error."""
        return "error"

    def words(self) -> str:
        """Return the error and the advice."""
        return f"{self.kind}: {self.error} {self.what_to_do}".rstrip()


class Activity(Fact):
    """A turn's sentence changed for good; what happens this very second is in `live`."""

    transcript: ClassVar[bool] = True

    activity: str

    def words(self) -> str:
        """Return the sentence."""
        return self.activity


class PlanReady(Fact):
    """Planning is over: the plan as it stands in the run's history, empty where none could be made."""

    transcript: ClassVar[bool] = True

    plan: str
    reviewed: bool

    def words(self) -> str:
        """Return the plan."""
        return self.plan


class CommandRun(BaseModel):
    """How a command that is part of a run's approval ended: the one that sets up, or the one that verifies.

    `passed` says that it exited with code 0; `ended` how it ended if not by itself. `output` is its end, or the part of
    it that says what failed, as it may be shown: bounded, and without secrets.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    passed: bool
    code: int | None = None
    ended: str = "exited"
    took_s: float = 0.0
    output: str = ""


class WorktreeReady(Fact):
    """A run that changes files has its worktree, and the commands of its approval have run there once.

    `told` is exactly what the model is told of it: what stands after the task in every request. `setup` and `verify`
    are each `passed`, `code`, `ended` (`exited`, `timeout`, …), `took_s` and the `output` that says what failed.
    """

    transcript: ClassVar[bool] = True

    base: str
    told: str
    setup: CommandRun | None = None
    verify: CommandRun | None = None

    def words(self) -> str:
        """Return what the model is told."""
        return self.told


class WorkChecked(Fact):
    """The verify command has run on what a model handed over, apart from where the model's own commands run.

    `number` counts these runs from 1 on; `verify` is as in `WorktreeReady`; `tree` is what was checked, as git calls
    it; `told` is what the model is answered where it did not pass.
    """

    transcript: ClassVar[bool] = True

    number: int
    verify: CommandRun
    tree: str = ""
    call_id: str | None = None
    turn: int | None = None
    told: str = ""

    @property
    def severity(self) -> Severity:
        """Work that does not pass is a warning: there may be another attempt."""
        return "info" if self.verify.passed else "warning"

    def words(self) -> str:
        """Return how it came out, with the output."""
        return f"{'passed' if self.verify.passed else 'failed'} {self.verify.output}".rstrip()


class CancelRequested(Fact):
    """Someone asked for a run to be cancelled."""

    transcript: ClassVar[bool] = True

    subagent_id: str
    reason: str | None = None
    by: CancelledBy = "model"

    def words(self) -> str:
        """Return id and reason."""
        return f"{self.subagent_id} {self.reason or ''}".rstrip()


class RunStarted(Fact):
    """The rendered prefix of a run: with the entries that follow it, every request can be rebuilt byte for byte.

    `parameters` is what else shapes a request's bytes: the wire, where it goes, and the fields that its body has.
    """

    transcript: ClassVar[bool] = True

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

    def words(self) -> str:
        """Return the model and the names of the tools."""
        return f"{self.model} {' '.join(str(tool.get('name')) for tool in self.tools)}"


class SessionStart(Fact):
    """A host connected."""

    client: str | None = None
    client_version: str | None = None
    protocol: str | None = None
    transport: str
    folder: str | None = None
    token: str | None = None

    def words(self) -> str:
        """Return client, version, folder, and over HTTP the token's name."""
        said = (self.client, self.client_version, self.transport, self.folder, self.token)
        return " ".join(part for part in said if part)


class SessionEnd(Fact):
    """A host's connection ended."""

    reason: str = "closed"

    def words(self) -> str:
        """Return the reason."""
        return self.reason


class SpawnProposed(Fact):
    """A proposal with its complete resolved configuration, but for the texts.

    Task, context and role specialisation stand in the run's first `UserMessage`, so that they can be erased; the
    digest covers them.
    """

    pending_id: str
    subagent_id: str
    digest: str
    expires_us: int
    config: dict[str, Any]
    retry_of: str | None = None
    supersedes: str | None = None

    def words(self) -> str:
        """Return ids, role, name and task id."""
        config = self.config
        parts = (self.pending_id, self.subagent_id, config.get("role"), config.get("name"), config.get("task_id"))
        return " ".join(str(part) for part in parts if part)


class SpawnDecided(Fact):
    """A proposal was approved or rejected, or ended without a decision.

    `digest` is the proposal's; `decision_digest` covers all that was decided with it: changes, and the group.
    """

    pending_id: str
    decision: Literal["approved", "rejected", "expired", "superseded"]
    channel: Channel | None = None
    digest: str | None = None
    decision_digest: str | None = None
    changes: dict[str, Any] = Field(default_factory=dict)
    group_id: str | None = None
    group_max_cost_micros: int | None = None
    group_timeout_s: float | None = None

    def words(self) -> str:
        """Return the id, the decision and the channel."""
        return f"{self.pending_id} {self.decision} {self.channel or ''}".rstrip()


class RunClaimed(Fact):
    """An instance took a run: raises its generation, and fences every write of an older one."""

    instance: str
    generation: int
    reason: ClaimReason = "start"

    def words(self) -> str:
        """Return the instance."""
        return f"claimed by {self.instance} ({self.reason})"


class RunPaused(Fact):
    """A provider takes no more calls for a while: the run is queued without a slot, and its clock stands still.

    `why` is a sentence of ours; what the provider said stands in the `ErrorOccurred` before it.
    """

    not_before_us: int
    why: str
    active_us: int = 0

    @property
    def severity(self) -> Severity:
        """A pause is a warning: somebody waits for a result."""
        return "warning"

    def words(self) -> str:
        """Return the reason."""
        return f"paused: {self.why}"


class RunResumed(Fact):
    """Someone had a run go on whose owner is gone, or was told to be: it is queued, and its old owner is fenced out."""

    channel: Channel
    force: bool = False

    def words(self) -> str:
        """Return the channel."""
        return f"resumed by {self.channel}{' (forced)' if self.force else ''}"


class LastTurn(BaseModel):
    """Why a turn is the last one: the ending that it leads to, and the cap's name."""

    model_config = ConfigDict(frozen=True)

    status: Ending
    reason: str


class CostReserved(Fact):
    """A model call may be sent: its worst case and the wrap-up's are held in every covering cap.

    The recipe of the request: with `RunStarted` and the run's entries up to `upto_seq` it can be rebuilt. `notice` is
    what it tells the model, `notices` what that is about, `last` why this turn is the last one, if it is, and `phase`
    what the call is for in a run that plans first, until `PlanReady`.
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
    notice: str | None = None
    notices: tuple[str, ...] = ()
    last: LastTurn | None = None
    phase: PlanPhase | None = None
    thinking: int = 0
    request_sha: str

    def words(self) -> str:
        """Return turn, attempt and the notice."""
        return f"turn {self.turn} attempt {self.attempt} {self.notice or ''}".rstrip()


class CostUpdate(Fact):
    """A reservation was settled: what the call used, and what it cost."""

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
    cost_by: dict[str, int] = Field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        """An overrun or an unknown cost is a warning."""
        return "warning" if self.overrun or self.settlement == "unknown" else "info"

    def words(self) -> str:
        """Return turn, tokens and settlement."""
        return f"turn {self.turn} {self.tokens} tokens {self.settlement}"


class GuardrailTripped(Fact):
    """A guardrail spoke, refused a call, or ended the run."""

    guardrail: str
    action: Literal["told", "refused", "ended"]
    tool: str | None = None
    count: int | None = None

    @property
    def severity(self) -> Severity:
        """A guardrail is a warning."""
        return "warning"

    def words(self) -> str:
        """Return guardrail, tool and action."""
        return f"{self.guardrail} {self.tool or ''} {self.action}"


class RunEnded(Fact):
    """The ending of a run, without its words: what a reducer needs when the transcript has been erased.

    `stop_reason` is a sentence of ours; what a person gave as a reason stands in `CancelRequested` and in the result.
    """

    status: Ending
    stop_reason: str
    error_kind: str | None = None
    active_us: int = 0

    @property
    def severity(self) -> Severity:
        """Success and cancellation are news; every other ending is a warning."""
        return "info" if self.status in ("success", "cancelled", "rejected", "superseded", "expired") else "warning"

    def words(self) -> str:
        """Return status and reason."""
        return f"{self.status} {self.stop_reason}"


class SettingsChanged(Fact):
    """A setting that limits everybody was found changed."""

    setting: str
    before: Any = None
    after: Any = None

    def words(self) -> str:
        """Return the setting and its new value."""
        return f"{self.setting} {self.after}"


class LogErased(Fact):
    """Transcript content was erased: of which run, how many entries, and why.

    `whole` says that everything of the run goes, and not only what is old: the keeper finishes what it finds begun.
    """

    run_id: str | None = None
    entries: int
    why: str
    whole: bool = False

    def words(self) -> str:
        """Return the reason."""
        return f"{self.run_id or ''} {self.why}".strip()


class Unknown(Fact):
    """An entry of a type or version that this program does not know; written by a newer one."""

    name: str
    content: dict[str, Any] = Field(default_factory=dict)

    @property
    def type(self) -> str:
        """The type's name as the log has it."""
        return self.name

    def words(self) -> str:
        """Return whatever text it has."""
        return readable(self.content)


FACTS: dict[str, type[Fact]] = {
    fact.__name__: fact
    for fact in (
        UserMessage,
        AssistantMessage,
        ToolCall,
        ToolResult,
        SubagentSpawn,
        SubagentComplete,
        ExtendedThinking,
        CostUpdate,
        ErrorOccurred,
        SessionStart,
        SessionEnd,
        SpawnProposed,
        SpawnDecided,
        RunClaimed,
        RunPaused,
        RunResumed,
        RunStarted,
        CostReserved,
        Activity,
        GuardrailTripped,
        PlanReady,
        WorktreeReady,
        WorkChecked,
        CancelRequested,
        RunEnded,
        SettingsChanged,
        LogErased,
    )
}
"""The closed set: type name to model. A type that is not here is read as `Unknown`."""

TRANSCRIPT_TYPES: frozenset[str] = frozenset(name for name, fact in FACTS.items() if fact.transcript)


class Who(NamedTuple):
    """Whom an event concerns: the host connection, the agent, the user, and the agent that started this one."""

    session_id: str
    agent_id: str
    user_id: str
    parent_agent_id: str | None = None


class Fence(NamedTuple):
    """The claim under which an event is written: the store refuses it when the run has a newer generation."""

    run_id: str
    generation: int


class Event(NamedTuple):
    """A fact on its way into the log.

    Attributes:
        who: Whom it concerns.
        fact: What happened.
        run_id: The run that it belongs to, when there is one; a fence's run by itself.
        fence: The claim under which it is written, for everything that a running run writes.
        usage: Tokens, for a settlement.
        cost_micros: Micro-USD, for a settlement.
        model: `provider:id`, where a model was involved.
        duration_ms: How long it took, in milliseconds of the monotonic clock.
    """

    who: Who
    fact: Fact
    run_id: str | None = None
    fence: Fence | None = None
    usage: Usage | None = None
    cost_micros: int | None = None
    model: str | None = None
    duration_ms: int | None = None


def readable(value: Any) -> str:
    """Return the words in a JSON value, without keys and punctuation."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return " ".join(readable(item) for item in cast("dict[str, Any]", value).values())
    if isinstance(value, list | tuple):
        return " ".join(readable(item) for item in cast("list[Any]", value))
    return "" if value is None else str(value)

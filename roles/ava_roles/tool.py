"""The seam between the agent loop and the tools: the `Tool` protocol, what a call gets, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from pydantic import BaseModel, ConfigDict, model_validator

from ava_roles.errors import ToolFailed
from ava_roles.placeholders import InjectedSecret
from ava_roles.texts.kept import KeptTexts

if TYPE_CHECKING:
    from ava_roles.memory import Memory
    from ava_roles.net.fetch import Fetcher
    from ava_roles.net.search_engines import Search
    from ava_roles.sandbox.command_workspace import CommandWorkspace
    from ava_roles.sandbox.paths import Root
    from ava_roles.sandbox.sandbox import Sandbox
    from ava_roles.worktree.spec import Edits


NEVER_FOR_SUBAGENTS = frozenset(
    {"spawn_subagent", "confirm_spawn", "check_subagent", "message_subagent", "cancel_subagent", "read_ava_logs"}
)
"""Ava's own MCP tools. No subagent gets a tool with one of these names, from any server."""
WEB_SEARCH = "web_search"
"""The tool whose sources are hits: they were found, not read."""


class ToolArgs(BaseModel):
    """Base of every tool's arguments; unknown arguments are refused, and null stands for any default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        args: dict[str, Any] = {}
        for name, value in cast("dict[str, Any]", given).items():
            field_info = cls.model_fields.get(name)
            is_default = value is None and field_info is not None and not field_info.is_required()
            if not is_default:
                args[name] = value
        return args


@dataclass(frozen=True)
class ToolSpec:
    """What the loop, the model and the person who approves know of a tool.

    The flags are the only source of what a tool can reach. The proposal, the role trust screen, the choice of what runs
    side by side and of what may start without a question all follow from them. So set each flag for the worst that a
    call can do.
    """

    name: str
    description: str
    args: type[ToolArgs]
    # Calling it twice does no harm. Read-only calls of one turn run side by side, and an interrupted one is repeated on
    # resume.
    read_only: bool = True
    timeout_s: float = 60.0  # seconds after which the loop cancels a call
    max_chars: int = 20_000  # characters of output that the model is shown; the rest goes to the scratch folder
    # Of an output that is too long, show the model the beginning and the end, not only the beginning.
    both_ends: bool = False
    network: bool = False  # reaches the network
    search: bool = False  # needs a web search engine, which may charge for each search. Implies `network`
    files: bool = False  # reads files of the workspace
    edits: bool = False  # changes files of the run's worktree, so the run needs one. Implies `files` and `writes`
    commands: bool = False  # runs commands that the model writes, so the run needs a sandbox
    memory: bool = False  # reads the notes of the user whose run it is
    results: bool = False  # reads results of earlier subagents that the call named
    # Writes files that are handed over with the result, and changes nothing else. Implies `writes`.
    artifacts: bool = False
    writes: bool = False  # changes something that outlives the run
    destroys: bool = False  # it can destroy something; says the server of another one's tool
    idempotent: bool = False  # an equal call again changes nothing more; says the server of another one's tool
    program: bool = False  # is provided by a program that is started for the run, so the run needs a sandbox
    # The JSON schema of the arguments of another MCP server's tool, which that server checks; None for a tool of Ava's
    # own.
    foreign: Mapping[str, Any] | None = None
    # The arguments that may hold `{{secret:NAME}}`. The tool inserts the value itself, at the last moment, and only for
    # a host that the secret is meant for.
    secrets: tuple[str, ...] = ()
    default: bool = False  # a role file that names no tools gets it
    common: bool = False  # every role gets it, unless the role file disallows it
    aliases: tuple[str, ...] = ()  # what Claude Code calls it in agent files

    def __post_init__(self) -> None:
        for flag, given, implied, there in (
            ("search", self.search, "network", self.network),
            ("edits", self.edits, "files", self.files),
            ("edits", self.edits, "writes", self.writes),
            ("artifacts", self.artifacts, "writes", self.writes),
            ("writes", self.writes, "read_only=False", not self.read_only),
            ("commands", self.commands, "read_only=False", not self.read_only),
        ):
            if given and not there:
                raise ValueError(f"{self.name}: {flag} implies {implied}; set that as well")

    @property
    def changes(self) -> bool:
        """Whether it can change something besides worktree files, a sandbox's copy and the run's artifacts."""
        return not (self.read_only or self.edits or self.commands or self.artifacts)

    @property
    def reads(self) -> bool:
        """Whether it reads something from outside of the run: pages or files."""
        return self.network or self.files or self.foreign is not None

    def schema(self) -> Mapping[str, Any]:
        """Return the JSON schema of the arguments, without what pydantic adds; it is shared, so do not change it."""
        return _schema(self.args) if self.foreign is None else self.foreign


@dataclass(frozen=True)
class Source:
    """Something that a tool read: a URL, or a path relative to the workspace.

    `sha256`: of the whole file, so that a person can be told whether it is still the same; empty where it is not known.
    """

    location: str
    title: str | None = None
    sha256: str = ""


@dataclass(frozen=True)
class ToolOutput:
    """The result of a tool call."""

    text: str
    success: bool = True  # false for a failure, such as a page that answered 404
    count: int | None = None  # how many results, files or pages it has; for the one-line view of the log
    sources: tuple[Source, ...] = ()  # what was read; a run that ends without a result lists it
    own: bool = False  # the text is Ava's own, or a person's to the run: it is not marked as untrusted
    unknown: bool = False  # it failed, and nobody knows whether it was carried out
    unread: str = ""  # what was to be read and was not: how much, and lines `path: reason` of files
    unread_little: bool = False  # that is at most a tenth of the files, and none that the question names


@dataclass(frozen=True)
class ToolContext:
    """What a tool call may use, and nothing else."""

    files: Root | None = None
    fetch: Fetcher | None = None  # the guarded fetcher; None if the run may not reach the network
    search: Search | None = None  # the approved web search; None if there is none
    artifacts: Root | None = None  # the run's own folder for files to hand over
    memory: Memory | None = None
    sandbox: Sandbox | None = None  # runs commands; None if the run may run none
    # Where commands run, created for the first of them; None if the run may run none.
    bench: CommandWorkspace | None = None
    edits: Edits | None = None  # the files that the run may change, in its worktree; None if it has no worktree
    texts: KeptTexts = field(default_factory=KeptTexts)  # what was read of files
    seconds_left: Callable[[], float] = lambda: 60.0  # of the run's time
    # Takes a sentence of at most 80 characters about what is being done this second.
    say: Callable[[str], None] = lambda _sentence: None
    user: str = ""  # of the run; reading takes a place of their share
    run_id: str = ""  # the run that calls; marks every child process that it starts
    call_id: str = ""  # the call, as the model named it
    secrets: tuple[InjectedSecret, ...] = ()  # the secrets that this call names and may send
    # Replaces secrets in a text. It keeps the number of lines, and changes no line without a secret. Give it a whole
    # file or page before you take part of it: half a secret is not recognised.
    hide: Callable[[str], str] = str  # hides nothing


class Tool(Protocol):
    """One tool. The loop hides secrets in what `activity` returns, removes control characters, and cuts it to 80."""

    @property
    def spec(self) -> ToolSpec: ...

    def activity(self, args: Any) -> str:
        """Return what a call with these (validated) arguments does, e.g. `Reading example.org`."""
        ...

    async def __call__(self, args: Any, at: ToolContext) -> ToolOutput:
        """Do the work. Raises ToolFailed if it failed; the text tells the model what happened and what it can do."""
        ...


@cache
def _schema(args: type[ToolArgs]) -> Mapping[str, Any]:
    schema: dict[str, Any] = _untitled(args.model_json_schema())
    schema.pop("description", None)  # of the class: the tool's own says more
    required = schema.get("required", ())
    properties: dict[str, Any] = schema.setdefault("properties", {})
    for name in properties:
        if name not in required:
            properties[name] = _or_null(properties[name])
    return schema


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a property's schema that takes null too: models send it, and some providers check what they send.

    A list of types is the shortest form; each argument is paid for with every first call.
    """
    null = {"type": "null"}
    outer = dict(schema)
    variants: list[dict[str, Any]] = [variant for variant in outer.pop("anyOf", []) if variant != null]
    if outer.get("default", "") is None:
        del outer["default"]
    if len(variants) > 1:
        return {"anyOf": [*variants, null], **outer}
    merged: dict[str, Any] = {}
    if variants:
        merged |= variants[0]
    merged |= outer
    if not isinstance(merged.get("type"), str):
        return {"anyOf": [merged, null]}
    merged["type"] = [merged["type"], "null"]
    if "enum" in merged:
        merged["enum"] = [*merged["enum"], None]
    return merged


def _untitled(schema: Any) -> Any:
    """Remove the titles that pydantic generates: they cost tokens and add nothing."""
    if isinstance(schema, dict):
        members: dict[str, Any] = {}
        for key, value in cast("dict[str, Any]", schema).items():
            is_title = key == "title" and isinstance(value, str)
            if not is_title:
                members[key] = _untitled(value)
        return members
    if isinstance(schema, list):
        return [_untitled(value) for value in cast("list[Any]", schema)]
    return schema


_Part = TypeVar("_Part")


def need_files(at: ToolContext) -> Root:
    return _require(at.files, "this run has no workspace, so no files can be read; work with what the task contains")


def need_fetch(at: ToolContext) -> Fetcher:
    return _require(at.fetch, "this run may not reach the network; work with what the task contains")


def need_search(at: ToolContext) -> Search:
    return _require(at.search, "this run has no web search; read pages whose URL you know with read_webpages")


def need_artifacts(at: ToolContext) -> Root:
    return _require(at.artifacts, "this run has no folder for artifacts; put the content into the result instead")


def need_memory(at: ToolContext) -> Memory:
    return _require(at.memory, "this run has no memory to recall; work with what the task contains")


def need_edits(at: ToolContext) -> Edits:
    return _require(at.edits, "this run has no worktree, so no file can be changed; say in the result what should be")


def need_sandbox(at: ToolContext) -> tuple[Sandbox, CommandWorkspace]:
    if at.sandbox is None or at.bench is None:
        raise ToolFailed("this run may not run commands; continue by reading")
    return at.sandbox, at.bench


def _require(part: _Part | None, missing: str) -> _Part:
    if part is None:
        raise ToolFailed(missing)
    return part


SENTENCE_CHARS = 80
_MAX_READ_CHARS = 2_000


def status_sentence(text: str, hide: Callable[[str], str] | None = None) -> str:
    """Return text as one line of at most 80 printable characters; `hide` replaces secrets before anything is cut."""
    is_cut = len(text) > _MAX_READ_CHARS
    text = text[:_MAX_READ_CHARS]
    if hide is not None:
        text = hide(text)
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(text.split())
    if len(line) > SENTENCE_CHARS:
        return line[: SENTENCE_CHARS - 1].rstrip() + "…"
    if is_cut:  # it was mostly blank, so a cut word would show
        return line.rpartition(" ")[0] + "…"
    return line

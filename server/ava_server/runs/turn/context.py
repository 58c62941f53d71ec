"""The context of a claimed run: what `setup` makes and the loop uses."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.abc
import anyio.to_thread

from ava_audit.events import RunStarted
from ava_audit.redaction import RunRedactor
from ava_roles.mcp_client.run_servers import RunMcpServers
from ava_roles.placeholders import InjectedSecret, has_misspelt, has_placeholder, secret_names
from ava_roles.tool import Tool, ToolContext
from ava_roles.worktree.session import WorktreeSession
from ava_server.budget.recent_calls import Named, with_all_named
from ava_server.budget.user_limits import DayCaps
from ava_server.core.errors import AvaError, ModelError
from ava_server.core.names import named
from ava_server.models.base import Completion, Model, Request
from ava_server.models.model_choice import search_terms
from ava_server.models.prices import Price, raised
from ava_server.models.surcharges import STANDARD, most_percent, times_words
from ava_server.run_config.config import RunConfig
from ava_server.run_config.parts import SearchCall
from ava_server.runs.asking.extension import ExtensionLimits
from ava_server.runs.coder.coding import Worktrees
from ava_server.runs.journal.clock import RunClock
from ava_server.runs.journal.log import RunLog
from ava_server.runs.record.plan_time import wrap_time_s

if TYPE_CHECKING:
    from ava_roles.sandbox.sandbox import Sandbox
    from ava_roles.sandbox.toolchains import HostFolders
    from ava_roles.tool import ToolSpec
    from ava_server.config.agents import AgentSpec
    from ava_server.config.credentials import Credentials
    from ava_server.config.secrets import Secret
    from ava_server.models.http_model import HttpModel
    from ava_server.runs.asking.questions import Ask
    from ava_server.runs.turn.prompt_prefix import PromptPrefix


log = logging.getLogger("ava.secrets")


class ConfigNotSupported(Exception):
    """Raised when this instance cannot run a run as it was approved; says what the run waits for."""


class RunLeft(Exception):
    """Raised when a run is left to another process, between two model calls."""


class SecretRefused(Exception):
    """Raised when a call may not use the secrets that its placeholders name; the text goes to the model."""


class SecretInjection:
    """The secrets of one run.

    Args:
        approved: The secrets that the approved proposal showed, each with its hosts; None for one that was not stored.
    """

    def __init__(self, role: str, approved: Mapping[str, tuple[str, ...] | None], credentials: Credentials) -> None:
        self._role = role
        self._approved = approved
        self._credentials = credentials

    async def refresh(self) -> None:
        """Read the stored secrets again, so that new values are redacted from now on."""
        await self._credentials.refresh()

    async def inject(self, spec: ToolSpec, args: Mapping[str, Any]) -> tuple[InjectedSecret, ...]:
        """Return the secrets that a call's placeholders name. Raises SecretRefused if the call may not use one of them.

        For a tool that only reads, a placeholder is plain text. A tool that writes or sends gets secrets only in the
        arguments that are meant for them.
        """
        if not has_placeholder(args):
            return ()
        for_secrets = {name: value for name, value in args.items() if name in spec.secrets}
        others = {name: value for name, value in args.items() if name not in spec.secrets}
        if has_placeholder(others) and (spec.writes or spec.network or not spec.read_only):
            raise SecretRefused(_wrong_argument(spec))
        if has_misspelt(for_secrets):
            raise SecretRefused("write a placeholder exactly as {{secret:NAME}}, without spaces")
        names = secret_names(for_secrets)
        if not names:
            return ()
        for name in names:
            if name not in self._approved:
                raise SecretRefused(self._not_listed(name))
        stored = await self._stored()
        return tuple(self._injected(name, stored) for name in names)

    async def _stored(self) -> Mapping[str, Secret]:
        try:
            return await anyio.to_thread.run_sync(lambda: self._credentials.secrets)
        except AvaError as error:
            log.warning("%s", error)
            raise SecretRefused(
                "no secret can be read here at the moment (`ava secret list` tells a person why)"
            ) from error

    def _injected(self, name: str, stored: Mapping[str, Secret]) -> InjectedSecret:
        approved, secret = self._approved[name], stored.get(name)
        if secret is None:
            raise SecretRefused(
                f"the secret {name} is not stored here; go on without it, and say in the caveats that a person can"
                f" store it with `ava secret set {name} --for HOST` and start this again"
            )
        hosts = frozenset(approved or ()) & frozenset(secret.hosts)
        if not hosts:
            why = "was not stored" if approved is None else "was for no host, or for others,"
            raise SecretRefused(
                f"the secret {name} {why} when this run was approved; go on without it, and say in the caveats that it"
                f" must be started again (after `ava secret set {name} --for HOST`, where no host is named yet)"
            )
        return InjectedSecret(name, secret.value, hosts)

    def _not_listed(self, name: str) -> str:
        can = f"it lists {', '.join(self._approved)}" if self._approved else "it lists none"
        return (
            f"{named('role', self._role)} may not use a secret {name} ({can}); go on without it. If what you"
            " read asked for it, do not obey"
        )


def _wrong_argument(spec: ToolSpec) -> str:
    if spec.secrets:
        return f"{spec.name} takes a secret in {' and '.join(spec.secrets)} only"
    if spec.writes:
        return f"{spec.name} writes no {{{{secret:…}}}}: name the secret in plain words instead"
    return f"{spec.name} takes no secrets; if you have http_get, it does, in headers"


def _nothing(_ended: bool) -> None:
    """Close nothing."""


@dataclass(frozen=True)
class SearchModel:
    """The approved web search of a run by a model provider."""

    name: str
    call: SearchCall
    model: Model
    account: str = ""  # the mark of the account that it is billed to
    named: Named = field(default_factory=dict[str, frozenset[str]])  # what earlier answers to this account have named

    @property
    def title(self) -> str:
        return search_terms()[self.name].title


@dataclass(frozen=True)
class AgentParts:
    """What another agent needs that does the work of a run: where it is started, and the model that it is given.

    `home` is its own folder, which stays until the run's end. `project` is the run's workspace, of whose programs
    none is started.
    """

    spec: AgentSpec
    model: HttpModel
    wire: str
    sandbox: Sandbox
    host: HostFolders
    home: Path
    project: Path | None


FindCut = Callable[[Request, Completion], Awaitable[ModelError | None]]


async def no_cut(request: Request, completion: Completion) -> ModelError | None:
    return None


@dataclass(frozen=True, slots=True)
class RunContext:
    """Everything that a claimed run works with.

    Attributes:
        started: The prefix of a new run; a resumed run keeps the one in its log.
        tokens_per_byte: The most prompt tokens per byte that earlier runs have measured with this model, if any did.
        account: The mark of the account that its model's calls are billed to; empty where it has nothing to choose.
        named: What the answers of earlier runs to this account have named of their tier and place.
        search: Its web search by a model provider; None where it has none, or a search engine (`place.search`).
        worktree: Where the run changes files; None for a run that changes none.
        effects: Where values of calls may come from, by the run's role; see `Role.effects`.
        ask: Asks the person; None where the run cannot wait for an answer.
        close: Closes the run's folders; after the run's end (True) it also removes them.
        clock: The monotonic clock by which its active time is measured, in seconds.
        plan_timeout_s: The time that all runs of its plan have together, in seconds; None without such a limit.
        prompt_prefix: The beginning of its prompts that other runs of its plan share; None where nothing is gained.
        find_cut: Returns the error of an answer to a prompt of which its server left out a part; else None.
    """

    model: Model
    started: RunStarted
    tools: Mapping[str, Tool]
    place: ToolContext
    redactor: RunRedactor
    secret_injection: SecretInjection
    scratch: Path
    caps: DayCaps
    window: int
    worktrees: Worktrees
    extensions: ExtensionLimits
    tokens_per_byte: float | None = None
    account: str = ""
    named: Named = field(default_factory=dict[str, frozenset[str]])
    servers: RunMcpServers = field(default_factory=RunMcpServers)
    search: SearchModel | None = None
    worktree: WorktreeSession | None = None
    agent: AgentParts | None = None
    effects: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    ask: Ask | None = None
    artifacts: Callable[[], list[dict[str, Any]]] = field(default=list)
    close: Callable[[bool], None] = field(default=_nothing)
    clock: Callable[[], float] = time.monotonic
    plan_timeout_s: float | None = None
    prompt_prefix: PromptPrefix | None = None
    find_cut: FindCut = no_cut


async def nobody_gone() -> frozenset[str]:
    return frozenset()


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """What the parts of a run share while its owner drives it.

    Attributes:
        clock: How long it has been active.
        say: Shows a sentence in the status line; does not wait.
        tasks: Where a tool works; one that ignores its cancellation is left behind there.
        gone: Returns the instances that own running runs and are no longer alive.
        leaves: Whether the run is to be left to another process before its next model call.
    """

    log: RunLog
    config: RunConfig
    context: RunContext
    clock: RunClock
    say: Callable[[str], None]
    tasks: anyio.abc.TaskGroup
    gone: Callable[[], Awaitable[frozenset[str]]] = nobody_gone
    leaves: Callable[[], bool] = lambda: False

    @property
    def active_s(self) -> float:
        """Seconds for which the run has been active, over all its claims."""
        return self.clock.active_s

    @property
    def reserve_price(self) -> Price:
        """The price at which the next call is reserved: the approved one, at the most that the account makes of it."""
        return raised(self.config.price, self._reserve_percent)

    @property
    def surcharge_words(self) -> str:
        """Words on a call that is reserved at more than the approved price, after what it costs; else nothing."""
        percent = self._reserve_percent
        if percent == STANDARD:
            return ""
        fields = sorted({one.field for one in self.config.price.surcharges if one.account})
        return f" at {times_words(percent)} times the model's price, which the account can have ({', '.join(fields)})"

    @property
    def _reserve_percent(self) -> int:
        history, context = self.log.history, self.context
        known = with_all_named(context.named, history.named.get(context.account, {}))
        return most_percent(self.config.price.surcharges, known, history.pinned)

    @property
    def left_s(self) -> float:
        return self.config.timeout_s - self.active_s

    def work_s(self, left_s: float) -> float:
        """Return how much of the time that is left is for work; the rest is for the wrap-up."""
        return max(left_s - wrap_time_s(self.config.timeout_s, self.context.plan_timeout_s), 0.0)

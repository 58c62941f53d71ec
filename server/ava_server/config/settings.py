"""Settings: `config.toml` of the data root, overridden by `AVA_*` variables, read once at start.

The limits for all users (day caps, approval, auto ceilings, the sandbox, the hard caps, `enabled`) come from the data
root. The environment may tighten them for its own process, but never loosen them.
"""

# No `from __future__ import annotations`: pydantic would compile each of the fields' annotations again at every start.

import logging
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_serializer,
    model_validator,
)

from ava_audit.errors import AuditError
from ava_roles.net.addresses import bound_host, proxy_url
from ava_roles.placeholders import SERVER_NAME, has_placeholder, label
from ava_server.config import checks
from ava_server.config.host_placeholders import BUNDLE
from ava_server.core.data_root import DataRoot, absolute_file, absolute_folder, find_data_root
from ava_server.core.errors import ConfigError, Refused
from ava_server.core.ids import nearest
from ava_server.core.shared_files import reason, to_do
from ava_server.models.providers import LIKE, PROVIDERS, RemoteWire, is_in_own_network, misspelt

if TYPE_CHECKING:
    from ava_audit.events import SettingsChanged, Who
    from ava_audit.store.store import Command, Store
    from ava_audit.view import View

Policy = Literal["ask", "human", "auto"]
ApprovalSetting = Literal["by_host", "ask", "human", "auto"]
BY_HOST = 'approval = "by_host"'
"""What says who may approve, where that follows from the host."""
RunsOn = Literal["here", "workers"]
"""What runs approved subagents: this machine, or processes of `ava worker`, which may be on others."""
TTL_UNDER_HUMAN_S = 86_400
BUNDLE_DAILY_USD = "5"
"""The day cap that the bundle's install dialog suggests; it also applies when the field was emptied."""
_IN_ENVIRONMENT = "where Ava is given its variables"
SELF_KNOWN_PROVIDERS = frozenset(
    {
        "custom",
        *(name for name, known in PROVIDERS.items() if known.models and known.kind != "own_address"),
    }
)


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a whole number")  # pydantic reports no TypeError
    return value


def _search_url(url: str) -> str:
    """Over https, or in the user's own network."""
    url = http_url(url)
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_in_own_network(url):
        raise ValueError(
            "an address that begins with https://, or one in your own network such as http://127.0.0.1:8888"
        )
    return url


def http_url(url: str) -> str:
    """Raises ValueError: no address, or maybe with a secret; the text says what is allowed."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    else:
        has_user = parts.username is not None or parts.password is not None
        if has_user or parts.query or parts.fragment:
            raise ValueError("an address without a user, a password or a query in it")
    if not fits:
        raise ValueError("an address such as https://host/v1 or http://127.0.0.1:11434/v1")
    return url.rstrip("/")


def _provider_url(url: str) -> str:
    """An address that may end with the version of its API, as Azure's deployments do."""
    address, _, query = url.partition("?")
    if not _API_VERSION.fullmatch(query):
        return http_url(url)
    return f"{http_url(address)}?{query}"


_API_VERSION = re.compile(r"api-version=[\w.-]{1,40}")

_PASSWORD = re.compile(r"^(\w+://[^/?#@:]*:).*@(?=[^@]*$)")
"""The password in an address, and what stands before it."""


def _database_url(url: str) -> str:
    if url and not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("an address such as postgresql://user@host:5432/ava; leave it out for the log in ava.db")
    return url


Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
Cap = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
Wait = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=86_400)]
LeaseSeconds = Annotated[int, BeforeValidator(_no_bool), Field(ge=3, le=300)]
Usd = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, allow_inf_nan=False)]
Folder = Annotated[Path, AfterValidator(absolute_folder)]
File = Annotated[Path, AfterValidator(absolute_file)]
Url = Annotated[str, AfterValidator(http_url)]
ProviderUrl = Annotated[str, AfterValidator(lambda text: _provider_url(text))]
SearchUrl = Annotated[str, AfterValidator(lambda text: _search_url(text) if text else text)]
DatabaseUrl = Annotated[str, AfterValidator(lambda text: _database_url(text.strip()))]
Host = Annotated[str, AfterValidator(bound_host)]
ProxyUrl = Annotated[str, AfterValidator(lambda text: proxy_url(text) if text else text)]


def _like(name: str) -> str:
    if name and name not in LIKE:
        raise ValueError(f"one of {', '.join(LIKE)}")
    return name


class SettingsTable(BaseModel):
    """Base of every table of settings: immutable, and unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Limits(SettingsTable):
    """The limits for all users; 0 means that nothing may be spent or run, never unlimited."""

    running_per_user: Count = 3
    running: Count = 10
    spawns_per_hour: Count = 10
    user_daily_cents: Count = 1000
    installation_daily_cents: Count = 2500
    max_cost_cents: Cap = 500
    max_timeout_s: Cap = 3600
    max_tokens: Cap = 5_000_000
    max_tokens_deep: Cap = 10_000_000
    max_iterations: Cap = 100
    max_tool_calls: Cap = 200
    extension_wait_s: Wait = 600
    question_wait_s: Wait = 600


class Tiers(SettingsTable):
    """The models of the tiers, each a `provider:id`; None is the one in `tiers.toml`."""

    fast: str | None = None
    balanced: str | None = None
    deep: str | None = None


class ProviderSettings(SettingsTable):
    """A provider: its address, the format that it speaks (None: known by its address), and whether it can stream.

    `like` is the known provider as which an address of one's own is called: with its header for the key, its name of
    the limit on an answer, and its format.
    `key_command` prints its key, which is used for `key_ttl_s` seconds. `price_as` has the model as which each name of
    its own is priced.
    """

    base_url: ProviderUrl | None = None
    wire: RemoteWire | None = None
    like: Annotated[str, AfterValidator(_like)] = ""
    stream: bool = True
    key_command: tuple[str, ...] = ()
    key_ttl_s: Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=86_400)] = 1_800
    price_as: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _program(self) -> Self:
        if self.key_command and not self.key_command[0].strip():
            raise ValueError("a key_command that begins with a program")
        return self

    @model_validator(mode="after")
    def _prices(self) -> Self:
        for own, model in self.price_as.items():
            seller, colon, model_id = model.partition(":")
            if not own.strip() or not model.strip() or (colon and not model_id.strip()):
                raise ValueError('a price_as such as { our-deployment = "openai:gpt-5" }')
            if colon and seller.isalpha() and seller not in PROVIDERS:
                meant = nearest(seller, PROVIDERS)
                if meant is not None:
                    raise ValueError(f"a known provider before the colon in price_as, such as {meant}:{model_id}")
        return self


class PriceSettings(SettingsTable):
    """What a model costs, in USD per million tokens (`per_request`: in USD)."""

    input: Usd
    output: Usd
    cache_read: Usd | None = None
    cache_write: Usd | None = None
    per_request: Usd | None = None


class WorkspaceSettings(SettingsTable):
    """`roots` contain all workspaces; none means the one that Ava finds. `allow` opens otherwise refused folders."""

    roots: tuple[Folder, ...] = ()
    allow: tuple[Folder, ...] = ()


class SandboxSettings(SettingsTable):
    """How child commands are confined, and further folders that they may read."""

    mode: Literal["auto", "none"] = "auto"
    read_only: tuple[Folder, ...] = ()


class FetchSettings(SettingsTable):
    """The proxy for fetching pages; empty is none. It may contain a password, so no repr shows it.

    `hosts` are the only ones that runs may read from the web; none means every public one.
    """

    proxy: ProxyUrl = Field(default="", repr=False)
    hosts: tuple[Host, ...] = ()


class SearchSettings(SettingsTable):
    """The web search and its addresses.

    `auto` is Kagi if it has a key, else Brave if it has one, else SearXNG, else the provider of the run's model.
    """

    engine: Literal["auto", "kagi", "brave", "searxng", "anthropic", "openai", "openrouter", "none"] = "auto"
    searxng: SearchUrl = ""
    kagi_url: SearchUrl = PROVIDERS["kagi"].base_url
    brave_url: SearchUrl = PROVIDERS["brave"].base_url


class FilesSettings(SettingsTable):
    """How many MB of texts are kept of files that were read, so that none is parsed twice; 0 keeps none."""

    keep_mb: Count = 1_000


class RolesSettings(SettingsTable):
    """Whether Claude Code's agent files (`.claude/agents`, the project's and the user's) are roles as well."""

    claude_agents: bool = False


class TravelSettings(SettingsTable):
    """What goes into a Postgres database with a run, so that another machine can do it: most MB; 0 means nothing."""

    repository_mb: Count = 200
    folder_mb: Count = 50
    artifact_mb: Count = 10


class DeliverySettings(SettingsTable):
    """The engine that carries runs to workers; `none` is the log itself.

    `name` is the engine's name for the runs of this log. `slots` is how many runs a worker takes from the engine
    at once; None is as many as may run at all.
    """

    engine: Literal["none", "nats", "temporal"] = "none"
    address: str = ""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")] = "ava"
    ca_file: File | None = None
    slots: Cap | None = None


class MetricsSettings(SettingsTable):
    """Whether the metrics also have each user's runs and spending, with the users' names as labels."""

    by_user: bool = False


class McpServerSettings(SettingsTable):
    """Another MCP server whose tools a role may name: a command or a URL."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    url: Url | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    network: bool = False
    read_write: tuple[Folder, ...] = ()

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("either command (with args and env) or url (with headers)")
        if self.command is None and (self.args or self.env or self.network or self.read_write):
            raise ValueError("args, env, network and read_write only beside command")
        if self.url is None and self.headers:
            raise ValueError("headers only beside url")
        if has_placeholder([self.command, *self.args, self.url]):
            raise ValueError("{{secret:NAME}} in env or headers only: others see what a program is started with")
        return self


class UserSettings(SettingsTable):
    """What one user of the HTTP server may do; None is the general limit."""

    workspaces: tuple[Folder, ...] = ()
    daily_cents: Count | None = None
    running: Count | None = None
    spawns_per_hour: Count | None = None
    roles: tuple[str, ...] | None = None
    approval: Policy | None = None


class HostSettings(SettingsTable):
    """What counts for one host, by its name in `ava hosts` or what it calls itself."""

    approval: Policy | None = None


class AgentSettings(SettingsTable):
    """A coding agent that can do a run, by the name after `acp:`. What is not given is as in `ava agents`."""

    title: Annotated[str, Field(min_length=1, max_length=60)] = ""
    command: Annotated[tuple[str, ...], Field(min_length=1)] = ()
    wires: tuple[RemoteWire, ...] = ()
    providers: str = ""
    variables: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    off: tuple[str, ...] = ()
    first_bytes: Cap = 60_000


class Configured(SettingsTable):
    """The settings that `config.toml` may have, with their defaults."""

    enabled: bool = True
    approval: ApprovalSetting = "by_host"
    auto_approve_cents: Count = 0
    auto_approve_daily_cents: Count = 0
    proposal_ttl_s: Cap = 600
    background: bool = True
    runs_on: RunsOn = "here"
    labels: tuple[Annotated[str, AfterValidator(label)], ...] = ()
    lease_s: LeaseSeconds = 15
    mirror: bool = True
    retention_days: Cap = 90
    on_event: tuple[str, ...] = ()
    desktop_notifications: bool = True
    database_url: DatabaseUrl = Field(default="", repr=False)
    limits: Limits = Limits()
    models: Tiers = Tiers()
    providers: dict[str, ProviderSettings] = Field(default_factory=dict)
    prices: dict[str, PriceSettings] = Field(default_factory=dict)
    workspace: WorkspaceSettings = WorkspaceSettings()
    sandbox: SandboxSettings = SandboxSettings()
    fetch: FetchSettings = FetchSettings()
    search: SearchSettings = SearchSettings()
    files: FilesSettings = FilesSettings()
    roles: RolesSettings = RolesSettings()
    metrics: MetricsSettings = MetricsSettings()
    travel: TravelSettings = TravelSettings()
    delivery: DeliverySettings = DeliverySettings()
    mcp_servers: dict[str, McpServerSettings] = Field(default_factory=dict)
    users: dict[str, UserSettings] = Field(default_factory=dict)
    hosts: dict[str, HostSettings] = Field(default_factory=dict)
    agents: dict[str, AgentSettings] = Field(default_factory=dict)

    @field_serializer("database_url")
    def _without_password(self, url: str) -> str:
        return _PASSWORD.sub(r"\1***@", url)

    @model_validator(mode="after")
    def _addresses(self) -> Self:
        for name, provider in self.providers.items():
            if provider.base_url is None and name not in SELF_KNOWN_PROVIDERS:
                raise ValueError(_without_address(name))
            meant = misspelt(name, provider.base_url or "")
            if meant is not None:
                raise ValueError(f"the name {meant} for the provider at {provider.base_url}, instead of {name}")
        for name in self.mcp_servers:
            if not SERVER_NAME.fullmatch(name):
                raise ValueError(
                    "names of MCP servers with letters, digits, - and single _ in between, at most 32 characters"
                )
        return self


def _without_address(provider: str) -> str:
    """Return what is needed of the table of a provider that has no address of its own."""
    needed = f"a table with base_url for the provider {provider}, whose address is not known"
    if provider in PROVIDERS and PROVIDERS[provider].models:
        return f"{needed}, such as {PROVIDERS[provider].base_url}"
    similar = nearest(provider, PROVIDERS)
    if similar is None:
        return needed
    return f"{needed}, or the provider {similar}, if that is meant"


class Settings(Configured):
    """The whole configuration: the settings, and what belongs to this process alone.

    Attributes:
        data_root: The folder that holds all of Ava's data.
        model_base_url: AVA_MODEL_BASE_URL: one compatible endpoint for everything.
        model_api_key: AVA_MODEL_API_KEY, for that endpoint.
        model: AVA_MODEL.
        default_workspace: AVA_WORKSPACE, as given.
        daily_cents: AVA_DAILY_USD in cents; `limits.user_daily_cents` is tightened already.
        user_limit_cents: `limits.user_daily_cents` before that; None without AVA_DAILY_USD.
        roots_in_file: `workspace.roots` of `config.toml`, before a variable tightens it.
        from_environment: The settings that this process's variables set, each with its variable.
        for_everybody: The limits for all users in the data root, before any variable tightened them.
    """

    data_root: Path
    model_base_url: Url | None = None
    model_api_key: SecretStr | None = None
    model: str | None = None
    default_workspace: Path | None = None
    daily_cents: Count | None = None
    user_limit_cents: Count | None = None
    roots_in_file: tuple[Path, ...] = ()
    from_environment: dict[checks.Place, str] = Field(default_factory=dict[checks.Place, str])
    for_everybody: dict[str, Any] = Field(default_factory=dict)

    @property
    def paths(self) -> DataRoot:
        return DataRoot(self.data_root)

    @property
    def named_folders(self) -> tuple[Path, ...]:
        """Those that `config.toml` names as workspaces; a variable cannot open a system folder."""
        return (*self.workspace.allow, *self.roots_in_file)

    @property
    def shares_log(self) -> bool:
        """Tell whether the log is on a database server, for the data roots of several machines."""
        return bool(self.database_url)

    @property
    def mirrors(self) -> bool:
        """Tell whether there is a mirror: not of a shared log, of which each data root would write all."""
        return self.mirror and not self.shares_log

    def refuse_off(self, then: str) -> None:
        """Raises Refused: subagents are switched off; `then` ends the sentence."""
        if not self.enabled:
            raise Refused(f"subagents are switched off here (enabled = false in config.toml); {then}")

    @property
    def proposal_lifetime_s(self) -> int:
        return self.lifetime_under(self.approval)

    def lifetime_under(self, policy: ApprovalSetting) -> int:
        """Return the seconds that a proposal waits: 24 hours under `human`, unless `proposal_ttl_s` is set."""
        if policy == "human" and "proposal_ttl_s" not in self.model_fields_set:
            return TTL_UNDER_HUMAN_S
        return self.proposal_ttl_s

    @property
    def user_day_setting(self) -> str:
        """The setting that limits the user's day, and its place: the lower of the limit and AVA_DAILY_USD, or both."""
        limit = self.where("limits", "user_daily_cents")
        if self.daily_cents is None or self.user_limit_cents is None or self.daily_cents > self.user_limit_cents:
            return limit
        own = f"AVA_DAILY_USD {_IN_ENVIRONMENT}"
        if self.daily_cents < self.user_limit_cents:
            return own
        return f"{limit}, and {own}"

    @property
    def installation_day_setting(self) -> str:
        """The setting that limits the installation's day, and its place."""
        return self.where("limits", "installation_daily_cents")

    def where(self, *path: str, file: str = "config.toml") -> str:
        """Return a setting with the place in which to change it: a variable overrides the file."""
        if path in self.from_environment:
            return f"{self.from_environment[path]} {_IN_ENVIRONMENT}"
        return f"{checks.setting_name(path)} in {file}"


def limits_of(configured: Configured) -> dict[str, Any]:
    """Return the limits for all users as JSON values, by the setting's name in `config.toml`."""
    limits: dict[str, Any] = {}
    include: dict[str, Any] = {**dict.fromkeys(checks.FOR_EVERYBODY, True), "workspace": {"allow"}}
    for name, value in configured.model_dump(mode="json", include=include).items():
        if isinstance(value, dict):
            limits |= {f"{name}.{key}": item for key, item in cast("dict[str, Any]", value).items()}
        else:
            limits[name] = value
    return limits


def load_settings(data_root: Path | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of `config.toml`, overridden by the environment. Creates no file or folder.

    `data_root` replaces AVA_DATA_ROOT. Raises ConfigError if a setting is invalid, unknown, a key, or loosened by the
    environment.
    """
    if env is None:
        env = os.environ
    root = find_data_root(data_root, env)
    in_file = read_config(root.config)
    checks.refuse_secrets(in_file, str(root.config))
    in_env, variables = checks.environment_tree(env, Configured)
    daily_cents = _daily_cents(env)
    try:
        base = Configured.model_validate(in_file)
    except ValidationError as wrong:
        raise checks.settings_error(wrong, Configured, str(root.config)) from None
    own: dict[str, Any] = {
        "model_base_url": env.get("AVA_MODEL_BASE_URL", "").strip() or None,
        "model_api_key": env.get("AVA_MODEL_API_KEY", "").strip() or None,
        "model": env.get("AVA_MODEL", "").strip() or None,
        "default_workspace": env.get("AVA_WORKSPACE", "").strip() or None,
        "from_environment": {path: checks.variable_of(path, variables) for path, _value in checks.leaves(in_env)},
        "data_root": root.path,
        "for_everybody": limits_of(base),
        "roots_in_file": base.workspace.roots,
    }
    try:
        settings = Settings.model_validate({**merge(in_file, in_env), **own})
    except ValidationError as wrong:
        raise checks.settings_error(wrong, Configured, None, variables) from None
    checks.refuse_looser(in_env, variables, base, settings, str(root.config))
    if daily_cents is None:
        return settings
    limit = settings.limits.user_daily_cents
    limits = settings.limits.model_copy(update={"user_daily_cents": min(daily_cents, limit)})
    return settings.model_copy(update={"limits": limits, "daily_cents": daily_cents, "user_limit_cents": limit})


def _daily_cents(env: Mapping[str, str]) -> int | None:
    """Return the day's limit of AVA_DAILY_USD, in cents, or that of the desktop bundle; None without either."""
    dollars = env.get("AVA_DAILY_USD", "").strip()
    if not dollars and env.get("AVA_HOST") == BUNDLE:
        dollars = BUNDLE_DAILY_USD
    if not dollars:
        return None
    return checks.cents("AVA_DAILY_USD", dollars)


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings of a file, none without a file. Raises ConfigError if it cannot be read, or is not TOML."""
    try:
        if path.is_fifo():  # reading it would wait forever
            raise ConfigError(f"{path} is a pipe, not a file of settings. Put a file there, or remove it.")
        return tomllib.loads(path.read_text("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):  # a root that is not a folder is reported when it is opened
        return {}
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigError(f"{path} is not valid TOML: {wrong}. Correct it there.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None
    except OSError as failed:
        why = f"{path} cannot be read: {reason(failed)}"
        raise ConfigError(f"{why}. {to_do(failed, 'Make it readable for this user, or remove it.')}") from failed


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables as one; `above` wins."""
    both = dict(below)
    for key, value in above.items():
        under = both.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            value = merge(cast("dict[str, Any]", under), cast("dict[str, Any]", value))
        both[key] = value
    return both


log = logging.getLogger("ava.settings")


def on_record(view: "View") -> dict[str, Any]:
    """Return the limits for all users as the log last recorded them; built-in values for what it never recorded."""
    from ava_audit.events import SettingsChanged

    known = limits_of(Configured())
    for entry in view.of_type("SettingsChanged"):
        if isinstance(entry.fact, SettingsChanged) and entry.fact.setting in known:
            known[entry.fact.setting] = entry.fact.after
    return known


def changes(view: "View", now: Mapping[str, Any]) -> "tuple[SettingsChanged, ...]":
    """Return the differences between the log and the settings of the data root."""
    from ava_audit.events import SettingsChanged

    before = on_record(view)
    return tuple(
        SettingsChanged(setting=name, before=before[name], after=value)
        for name, value in now.items()
        if before[name] != value
    )


def note_settings(now: Mapping[str, Any], who: "Who") -> "Command[int]":
    """Of two processes that start at once, the second finds nothing to write."""
    from ava_audit.events import Event
    from ava_audit.store.store import Outcome

    def command(view: "View", _now_us: int) -> Outcome[int]:
        events = tuple(Event(who, fact) for fact in changes(view, now))
        return Outcome(len(events), events)

    return command


async def record_settings(store: "Store", now: Mapping[str, Any], who: "Who") -> None:
    """A log out of reach prevents no start: the next one does it."""
    try:
        if await store.read(lambda view: changes(view, now)):
            await store.do(note_settings(now, who))
    except AuditError as error:
        log.warning("changes of settings could not be recorded: %s", error)

"""Options that several commands have, their values, each with its own error, and what TAB offers for them.

Typer writes the scripts of `ava completion SHELL` and completes commands and options. A shell asks at every TAB, so
only the module of the typed command is imported, and the log is read without opening it for writing. Nothing is
created, nothing goes to stderr, and an error offers nothing. Offered words need no quoting in any shell, and no
description comes from a model or a task.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer

from ava_server.core.data_root import find_data_root, os_user
from ava_server.core.errors import BadInput

Offer = tuple[str, str]
"""A word, and its description."""

SHELLS = ("bash", "zsh", "fish")
COMPLETE_VARIABLE = "_AVA_COMPLETE"
MOST = 200
TIERS = ("fast", "balanced", "deep")
EVENT_TYPES = (
    "error", "tool", "cost", "thinking", "spawn", "complete", "message", "session",
    "UserMessage", "AssistantMessage", "ToolCall", "ToolResult", "SubagentSpawn", "SubagentComplete",
    "ExtendedThinking", "CostUpdate", "ErrorOccurred", "SessionStart", "SessionEnd", "SpawnProposed", "SpawnDecided",
    "StepRunQueued", "StepChanged", "RunClaimed", "RunPaused", "MoneyAwaited", "Asked", "Answered", "RunResumed",
    "RunStarted", "CostReserved", "AgentRequest", "AgentNote", "Activity",
    "GuardrailTripped", "PlanReady", "WorktreeReady", "WorkChecked", "CancelRequested", "RunEnded", "SettingsChanged",
    "LogErased",
)  # fmt: skip
"""Short names, then exact ones. Importing these and the tiers would take too long; a test compares them."""
_SAFE_WORD = re.compile(r"[A-Za-z0-9_./:@+-]+")
_ROLE_NAME = re.compile(r"^name:\s*[\"']?([A-Za-z0-9_-]{1,80})[\"']?\s*$", re.MULTILINE)
_HEAD_CHARS = 4_000
_BUSY_S = 0.1
_ZSH_SETUP = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"
_SQL_RUNS = "SELECT id, role || ', ' || state FROM runs WHERE user_id = ? AND {} ORDER BY created_us DESC LIMIT ?"
_SQL_PROPOSALS = (
    "SELECT iif(r.waits_for = 'more', r.id, p.pending_id), r.role FROM proposals AS p JOIN runs AS r ON r.id = p.run_id"
    " WHERE p.user_id = ? AND (p.state = 'awaiting_approval' OR r.waits_for = 'more')"
    " AND coalesce(r.waits_until_us, p.expires_us) > 1000000 * CAST(strftime('%s', 'now') AS INTEGER)"
    " ORDER BY p.created_us DESC LIMIT ?"
)


def completion_command(
    shell: Annotated[
        str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", autocompletion=lambda: list(SHELLS))
    ],
) -> None:
    """Print a script that completes commands, options, roles and ids.

    bash: `eval "$(ava completion bash)"` in ~/.bashrc; zsh: the same with zsh in ~/.zshrc; fish:
    `ava completion fish | source` in ~/.config/fish/config.fish.
    """
    from typer._completion_shared import get_completion_script

    from ava_server.core.ids import did_you_mean

    if shell not in SHELLS:
        raise BadInput(f"unknown shell {shell[:40]!r}; {did_you_mean(shell, SHELLS)}known: {', '.join(SHELLS)}")
    script = get_completion_script(prog_name="ava", complete_var=COMPLETE_VARIABLE, shell=shell)
    if shell == "zsh":  # the script itself needs completion to be set up
        comment, _, rest = script.partition("\n")
        script = f"{comment}\n{_ZSH_SETUP}\n{rest}"
    typer.echo(script)


def complete() -> NoReturn:
    from typer._completion_classes import completion_init

    from ava_server.cli.app import build

    words = _typed_words()
    sys.modules["rich"] = cast("Any", None)  # typer would import all of it to clean help texts, which are plain
    with open(os.devnull, "w", encoding="utf-8") as null, contextlib.redirect_stderr(null):  # noqa: PTH123
        try:
            completion_init()
            build(words)(args=[], prog_name="ava")
        except Exception:  # TAB asks no question that an error could answer
            raise SystemExit(1) from None
    raise SystemExit(0)


def _typed_words() -> list[str]:
    """Return what was typed after `ava`; Typer then sees a command of two words as one."""
    from ava_server.core.commands import TWO_WORDS

    variable = "_TYPER_COMPLETE_ARGS" if "_TYPER_COMPLETE_ARGS" in os.environ else "COMP_WORDS"
    line = os.environ.get(variable, "")
    for command in TWO_WORDS:
        if f" {command} " in line:
            os.environ[variable] = line.replace(f" {command} ", f" '{command}' ", 1)
            os.environ["COMP_CWORD"] = str(int(os.environ.get("COMP_CWORD", "1")) - 1)
    return line.split()[1:]


def _callback(source: Callable[[], Iterable[Offer]]) -> Callable[[typer.Context, str], list[Offer]]:
    """Return a callback for Typer; after a comma it completes the last of several values."""

    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        head, comma, _last = incomplete.rpartition(",")
        typed = set(head.split(","))
        for value in ctx.params.values():
            if isinstance(value, list | tuple):
                typed.update(cast("Iterable[str]", value))
        offers: list[Offer] = []
        with contextlib.suppress(Exception):
            for word, about in source():
                if _SAFE_WORD.fullmatch(word) and word not in typed:
                    offers.append((f"{head}{comma}{word}", about))
            return offers
        return []

    return complete


def _query_log(*statements: str) -> Iterator[Offer]:
    """Yield this user's rows, without creating a file beside the log."""
    import sqlite3

    from ava_audit.store.connection import uri_of

    db = find_data_root().db
    if not db.is_file():
        return
    in_use = all(db.with_name(db.name + end).is_file() for end in ("-wal", "-shm"))
    mode = "mode=ro" if in_use else "mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(uri_of(db, mode), uri=True, timeout=_BUSY_S)) as connection:
        for sql in statements:
            yield from connection.execute(sql, (os_user(), MOST))


def _log_callback(*statements: str) -> Callable[[typer.Context, str], list[Offer]]:
    return _callback(lambda: _query_log(*statements))


def _roles() -> Iterator[Offer]:
    from importlib import resources

    for folder in (resources.files("ava_roles"), find_data_root().roles, _project() / ".ava" / "roles"):
        if not folder.is_dir():
            continue
        for file in list(folder.iterdir())[:MOST]:
            if file.name.endswith(".md") and file.is_file():
                with contextlib.suppress(OSError, UnicodeDecodeError), file.open("r", encoding="utf-8") as text:
                    head = text.read(_HEAD_CHARS)
                    name = _ROLE_NAME.search(head)
                    if head.startswith("---") and name is not None:
                        yield name[1], ""


def _project() -> Path:
    """Return the folder of the repository that this folder is in; this folder where it is in none."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / ".git").exists():
            return folder
    return here


def _settings() -> Iterator[Offer]:
    from ava_server.config.changes import known_settings
    from ava_server.config.checks import setting_name
    from ava_server.config.settings import Configured, read_config

    here = Configured()
    with contextlib.suppress(Exception):  # a file with an error: the defaults are offered
        here = Configured.model_validate(read_config(find_data_root().config))
    return ((setting_name(place), "") for place in known_settings(here))


def _hosts() -> Iterator[Offer]:
    from ava_server.hosts.known import HOSTS

    return ((name, host.title) for name, host in HOSTS.items())


def _providers() -> Iterator[Offer]:
    from ava_server.models.providers import PROVIDERS

    return ((name, "") for name in PROVIDERS)


def _notes() -> Iterator[Offer]:
    return ((file.stem, "") for file in sorted(find_data_root().memory.glob("*.md"))[:MOST])


_OPEN = "state IN ('queued', 'running', 'awaiting_approval')"
_UNENDED = "state IN ('queued', 'running')"
all_runs = _log_callback(_SQL_RUNS.format("1"))
ended_runs = _log_callback(_SQL_RUNS.format("ended_us IS NOT NULL"))
unended_runs = _log_callback(_SQL_RUNS.format(_UNENDED))
runs_with_result = _log_callback(_SQL_RUNS.format("result_seq IS NOT NULL"))
open_runs = _log_callback(_SQL_RUNS.format(_OPEN))
proposals = _log_callback(_SQL_PROPOSALS)
plans = _log_callback(_SQL_RUNS.format("id GLOB 'G-*'"))
agents = _callback(lambda: [("ava", "the orchestrator"), *_query_log(_SQL_RUNS.format("1"))])
roles = _callback(_roles)
hosts = _callback(_hosts)
providers = _callback(_providers)
notes = _callback(_notes)
setting_names = _callback(_settings)
tiers = _callback(lambda: [(tier, "") for tier in TIERS])
event_types = _callback(lambda: [(name, "") for name in EVENT_TYPES])


# -- options ----------------------------------------------------------------------------------------------------------

_RUN = "The subagent, or its proposal (P-…)."
LastRunId = Annotated[
    str | None, typer.Argument(metavar="[S-ID]", help=f"{_RUN} Default: your last run.", autocompletion=all_runs)
]
EndedRunId = Annotated[str, typer.Argument(metavar="S-ID", help=_RUN, autocompletion=ended_runs)]
EndedRunIdOrNone = Annotated[str | None, typer.Argument(metavar="[S-ID]", help=_RUN, autocompletion=ended_runs)]
UnendedRunId = Annotated[str, typer.Argument(metavar="S-ID", help=_RUN, autocompletion=unended_runs)]
_RUNS = "Subagents, plans (G-…), or their proposals (P-…)."
LastRunIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[S-ID…]", help=f"{_RUNS} Default: your last run.", autocompletion=open_runs),
]
RunIdsOrLast = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[S-ID…]",
        help=f"{_RUNS} Default: your last run, after a question.",
        autocompletion=open_runs,
    ),
]
PlanMaxCost = Annotated[
    str | None, typer.Option("--group-max", metavar="DOLLARS", help="For two or more: the most they cost together.")
]
PlanTimeout = Annotated[
    str | None, typer.Option(metavar="TIME", help="For two or more: the longest they take together.")
]
Everybody = Annotated[bool, typer.Option("--all", help="The runs of all users, not only yours.")]
Json = Annotated[bool, typer.Option("--json", help="As one JSON object.")]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Only before this time.")]
Utc = Annotated[bool, typer.Option("--utc", help="Times in UTC.")]

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The server to use, not this machine's data root; default: AVA_URL."),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="File with the token for --url; default: AVA_TOKEN.")
]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h)?")
_OPTIONS = {"role": "ROLE", "task": "TASK", "max_cost_cents": "--max-cost", "retry_of": "--retry"}
"""Arguments of `spawn_subagent` whose option of `ava run` has another name."""
_MOST_DOLLARS = 1e12
_QUOTED = re.compile(r"`([a-z_]+)`")
_CENTS = re.compile(r"\bmax_cost_cents [\d,]+ or more \(\$([\d.]+)\)")
_SECONDS = {None: 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3_600}


def parse_cents(option: str, text: str | None, *, zero: bool = False) -> float | None:
    """Return dollars, such as `0.50` or `$0.50`, as cents, rounded down. Raises BadInput: not above 0 (or `zero`)."""
    from ava_audit.units import cents, entered_micros

    if text is None:
        return None
    try:
        dollars = float(text.strip().removeprefix("$"))
    except ValueError:
        dollars = math.nan
    if zero and dollars == 0:
        return 0
    micros = 0
    if 0 < dollars <= _MOST_DOLLARS:
        micros = entered_micros(dollars)
    if micros <= 0:
        raise BadInput(f"{option}: {text[:40]!r} is not an amount of dollars above 0; write it like 0.50")
    return cents(micros)


def parse_seconds(option: str, text: str | None) -> float | None:
    """Return a duration, such as `90`, `90s`, `10m` or `1h`, in seconds. Raises BadInput: not one above 0."""
    if text is None:
        return None
    seconds = 0.0
    match = _DURATION.fullmatch(text.strip().lower())
    if match is not None:
        seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds <= 0 or not math.isfinite(seconds):
        raise BadInput(f"{option}: {text[:40]!r} is not a duration above 0; write it like 90, 90s, 10m or 1h")
    return seconds


def parse_plan_limits(max_cost: str | None, timeout: str | None) -> dict[str, Any]:
    """Return the given limits of several proposals together as `confirm_spawn` takes them."""
    limits = {
        "group_max_cost_cents": parse_cents("--group-max", max_cost),
        "group_timeout": parse_seconds("--group-timeout", timeout),
    }
    return {name: value for name, value in limits.items() if value is not None}


def absolute_path(option: str, path: str | Path) -> Path:
    """Resolve `~` too. Raises BadInput if there is no home folder for `~`, or no working folder."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:
        raise BadInput(
            f"{option}: {path} needs a home folder for `~`, and there is none; give the whole path"
        ) from None
    except OSError:
        raise BadInput(f"{option}: {path} is in a working folder that was removed; give the whole path") from None


def split_names(values: list[str] | None) -> list[str] | None:
    """Return names that were given one by one, separated by commas, or both."""
    if values is None:
        return None
    names: list[str] = []
    for value in values:
        for name in value.split(","):
            if name.strip():
                names.append(name.strip())
    return names


MOST_FILE_BYTES = 4_000_000
"""Bytes of a file that an option names; no task, schema or plan may be as long."""


def read_given_text(option: str, file: Path) -> str:
    """Return the text of a file that a person named, without a byte order mark.

    Raises BadInput if the file cannot be read, is too large, or is not UTF-8.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_FILE_BYTES + 1)
        if len(content) > MOST_FILE_BYTES:
            raise BadInput(f"{option}: {file} has more than {MOST_FILE_BYTES:,} bytes; give a shorter file")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{option}: {file} is not UTF-8 text") from None
    except OSError as error:
        raise BadInput(f"{option}: {file} cannot be read: {error.strerror}") from None


def read_schema(option: str, file: Path | None) -> dict[str, Any] | None:
    """Raises BadInput if the file cannot be read, or does not hold a JSON object."""
    from ava_server.models.json_text import NotJsonError, decode_given

    if file is None:
        return None
    try:
        schema: object = decode_given(read_given_text(option, file))
    except NotJsonError as error:
        raise BadInput(f"{option}: {file} is not JSON: {error}; give a file with a JSON schema") from None
    if not isinstance(schema, dict):
        raise BadInput(f'{option}: {file} is not a JSON object; a schema begins like {{"type": "object", …}}')
    return cast("dict[str, Any]", schema)


def spawn_option(field: str) -> str:
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")


def name_options(sentence: str) -> str:
    """Return sentences about arguments of `spawn_subagent`, a line each, with the names of `ava run`'s options."""
    from ava_server.approval.requests import SpawnArgs

    arguments = SpawnArgs.model_fields.keys() - {"ask"}  # `ava run` always asks
    lines = sentence.split("\n")
    for number, line in enumerate(lines):
        field, colon, rest = line.partition(":")
        name, dot, below = field.partition(".")
        if colon and name in arguments:
            lines[number] = f"{spawn_option(name)}{dot}{below}:{rest}"
    sentence = _CENTS.sub(r"--max-cost \1 or more", "\n".join(lines))

    def option_of(quoted: re.Match[str]) -> str:
        if quoted[1] not in arguments:
            return quoted[0]
        return f"`{spawn_option(quoted[1])}`"

    return _QUOTED.sub(option_of, sentence)

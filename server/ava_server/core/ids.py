"""Ids, numbers and times as people and models write them, labels and states of runs, "did you mean …?"."""

from __future__ import annotations

import difflib
import re
import secrets
from collections.abc import Iterable
from datetime import tzinfo

from ava_audit.rows import AWAITING_ANSWER, AWAITING_EXTENSION, WAITING, RunRow
from ava_audit.units import now_us, parse_time
from ava_roles import BUILT_IN
from ava_server.core.errors import BadInput
from ava_server.core.names import quote_name

AGENT = "ava"
"""The orchestrator's agent id in the log."""
UNREAD = "unread"
"""The `error_kind` of a run that found no answer and could not read everything; such a `no_answer` is no error."""
CANDIDATES = 4
"""Ids of which a proposal takes the first free ones."""
UNKNOWN_ID = "unknown id"
"""The `error` of an answer over HTTP that knows no such run; those of other users are unknown too."""

_FORMS = {
    "subagent_id": ("S-", 6, "a subagent id looks like S-7f3a2b"),
    "pending_id": ("P-", 8, "a pending id looks like P-1c22b09d"),
    "group_id": ("G-", 7, "a group id looks like G-4e1b2c3"),
    "extension_id": ("E-", 8, "an extension id looks like E-5d20c7a1"),
    "question_id": ("Q-", 8, "a question id looks like Q-91ab04ce"),
}


def read_span(
    since: str | None, until: str | None, at_us: int | None = None, zone: tzinfo | None = None, dashes: str = ""
) -> tuple[int | None, int | None]:
    """Return both times in microseconds UTC, from what a person wrote; None where there is none.

    `1h` counts from `at_us`, by default now. `zone` is that of a time without one, by default this machine's. `dashes`
    stand before the names in errors. Raises BadInput if one is not a time, or the end is before the beginning.
    """
    if at_us is None:
        at_us = now_us()
    since_us = _read_time(f"{dashes}since", since, at_us, zone)
    until_us = _read_time(f"{dashes}until", until, at_us, zone)
    if since_us is not None and until_us is not None and until_us < since_us:
        raise BadInput(f"{dashes}until: {until!r:.60} is before {dashes}since ({since!r:.60}); give a later time")
    return since_us, until_us


def _read_time(argument: str, text: str | None, at_us: int, zone: tzinfo | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_time(text, at_us, zone)
    except ValueError as error:
        raise BadInput(f"{argument}: {error}") from None


def new_id(field: str) -> str:
    """Return a random id in a field's form; the command that uses it checks that it is free."""
    prefix, digits, _hint = _FORMS[field]
    return prefix + secrets.token_hex(4)[:digits]


def new_pairs(field: str) -> tuple[tuple[str, str], ...]:
    """Return new ids for a proposal and its run, which is a `subagent_id` or `group_id`: the first free pair counts."""
    return tuple((new_id("pending_id"), new_id(field)) for _ in range(CANDIDATES))


def parse_id(field: str, given: str, argument: str | None = None) -> str:
    """Return an id in its canonical form, in any case and with or without prefix. Raises BadInput: it has another form.

    `field` is `subagent_id`, `pending_id`, `group_id`, `extension_id` or `question_id`; `argument` is its name in
    errors.
    """
    prefix, digits, hint = _FORMS[field]
    text = given.strip().lower()
    bare = text.removeprefix(prefix.lower())
    if not re.fullmatch(rf"[0-9a-f]{{{digits}}}", bare):
        raise BadInput(
            f"{argument or field}: {given[:40]!r} is not an id; {hint}. Call check_subagent without an id for the list."
        )
    return prefix + bare


def parse_run_id(given: str, argument: str | None = None) -> str:
    """Return the canonical id of a subagent, or of a plan. Raises BadInput if it has another form."""
    field = "group_id" if given.strip()[:2].lower() == "g-" else "subagent_id"
    return parse_id(field, given, argument)


def parse_any_id(given: str) -> tuple[str, str]:
    """Return the field of an id (`subagent_id`, `pending_id` or `group_id`) and its canonical form."""
    for field in ("subagent_id", "pending_id", "group_id"):
        try:
            return field, parse_id(field, given)
        except BadInput:
            continue
    raise BadInput(
        f"{given[:40]!r} is not an id: a subagent's looks like S-7f3a2b, a proposal's like P-1c22b09d, a plan's"
        " like G-4e1b2c3. `ava status --once` lists the latest, `ava logs --type spawn` all."
    )


def parse_number(given: str, problem: str, digits: int = 18) -> int:
    """Return a number of so many digits at most, as an address or a cursor has it. Raises BadInput: `problem`."""
    if not (given.isascii() and given.isdecimal() and len(given) <= digits):
        raise BadInput(problem)
    return int(given)


def version_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:4]))


def label(run: RunRow) -> str:
    """Return a run with its role and, if it has one, its name: `researcher "nightly" (S-7f3a2b)`."""
    if run.is_plan or run.role in BUILT_IN:
        return f"{run.role} {quote_name(run.name)} ({run.id})" if run.name else f"{run.role} {run.id}"
    role = f"role {quote_name(run.role)}"
    return f"subagent {quote_name(run.name)} ({run.id}, {role})" if run.name else f"subagent {run.id} ({role})"


_STATE_WORDS = {
    WAITING: "to approve",
    AWAITING_EXTENSION: "asks for more",
    AWAITING_ANSWER: "asks you",
    "superseded": "replaced",
}


def state_words(state: str) -> str:
    """Return a run's state as people read it: `asks you`, `iteration limit`."""
    return _STATE_WORDS.get(state, state.replace("_", " "))


def model_words(model: str) -> str:
    """Return a model as people read it: its id, or `offline reader`."""
    return "offline reader" if model.startswith("offline/") else model


def model_named(model: str) -> str:
    """Return a model where nothing else says that it is one: `model anthropic:…`, or `offline reader`."""
    words = model_words(model)
    return f"model {words}" if words == model else words


def model_about(model: str) -> str:
    """Return what does the work, where there is room to say it: a model's id, or what the offline reader does."""
    return "no language model (finds passages by words)" if model.startswith("offline/") else model


def nearest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    names = {name.casefold(): name for name in known}
    found = difflib.get_close_matches(given.strip().casefold()[:80], names, n=1, cutoff=cutoff)
    return names[found[0]] if found else None


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return `did you mean NAME? `, to be followed by a sentence; empty if no name is similar."""
    name = nearest(given, known)
    return f"did you mean {name}? " if name is not None else ""


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return ` Did you mean NAME?`, to follow a sentence; empty if no name is similar."""
    name = nearest(given, known)
    return f" Did you mean {name}?" if name is not None else ""


IN_PROCESS = "in-process"
"""The runner of a run whose work Ava itself does."""

"""Findings about what the caller has looked up: the sandbox, the copies of the log, and today's budgets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ava_audit.units import format_usd
from ava_roles.sandbox.sandbox import Sandbox, Unavailable
from ava_server.service.checks.finding import Finding


def confinement(found: Sandbox | Unavailable, details: str = "") -> Finding:
    """Return what confines commands here, or why nothing does and what to do.

    Args:
        found: The sandbox.
        details: What this machine has for sandboxes.
    """
    name, has = "confinement", f" ({details})" if details else ""
    if isinstance(found, Unavailable):
        off = "run_bash, python_exec and programs of MCP servers are off"
        text = f"commands cannot be confined here, so {off}: {found.why}"
        step = f"{found.what_to_do[0].upper()}{found.what_to_do[1:]}, then run `ava doctor` again."
        return Finding(name, "warning" if sys.platform == "linux" else "note", text, step)
    if found.kind == "none":
        text = 'commands are not confined (sandbox.mode = "none"): they can read, change and send whatever you can'
        return Finding(name, "warning", text, 'Set sandbox.mode to "auto", or remove it.')
    if found.kind == "landlock":
        text = f"commands run in Landlock, which hides less than bubblewrap would{has}"
        return Finding(name, "note", text, "Install bubblewrap, or let it create user namespaces.")
    return Finding(name, "ok", f"commands run in bubblewrap{has}")


def upkeep(lags: Mapping[str, int]) -> Finding:
    """Return how many entries each copy of the log lacks."""
    behind = [f"the {name} is {count:,} entries behind" for name, count in lags.items() if count > 0]
    if behind:
        later = "a running server updates it within seconds, else the next one that starts"
        return Finding("upkeep", "note", f"{' and '.join(behind)}; {later}")
    return Finding("upkeep", "ok", f"{' and '.join(lags)} {'are' if len(lags) > 1 else 'is'} up to date")


@dataclass(frozen=True)
class DayBudget:
    """A budget of today: whose, what is spent and held of it, its cap (micro-USD), and the setting with the cap."""

    whose: str
    committed: int
    cap: int
    setting: str


def budgets(found: Sequence[DayBudget]) -> Finding:
    """Return what is spent of today's budgets, and what to do if one is used up."""
    shown = [f"{each.whose} {format_usd(each.committed)} of {format_usd(each.cap)}" for each in found]
    text = f"spent today (UTC): {', '.join(shown)}"
    full = [each for each in found if each.committed >= each.cap]
    if not full:
        return Finding("budget", "ok", text)
    step = f"raise {', and '.join(each.setting for each in full)}"
    if all(each.cap for each in full):  # a new day does not help against 0
        step = f"wait until 00:00 UTC, or {step}"
    return Finding("budget", "warning", f"{text}; only free models can run", f"{step[0].upper()}{step[1:]}.")

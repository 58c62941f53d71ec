"""Variables that a host has left unfilled: they count as unset, unless a cap or a switch would then be missing.

A configuration may name a value that its host shall put in (`"AVA_WORKSPACE": "${user_config.folder}"`). Where
there is none, hosts pass the placeholder on as it stands, or the word that JavaScript has for nothing. Read as a
value, it would be a folder of that name, or a key that every provider refuses. A limit that somebody wanted must not
go with it: whatever is not named here stays, and is refused by the settings as any wrong value is.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping

_ONE = (
    r"(?:\$\{[^{}]+\}"  # ${user_config.folder} of bundles, ${input:key} and ${env:KEY} of VS Code and Cursor, ${KEY}
    r"|\{env:[^{}]+\})"  # opencode
)
_UNFILLED = re.compile(
    rf"{_ONE}(?:\s*{_ONE})*"
    r"|\$[A-Z_][A-Z0-9_]*"  # Gemini CLI; in small letters it may be a password
    r"|undefined|null|NaN"  # what the bundle format's own code makes of a field that is there without a value
)
_WITHIN = re.compile(rf"{_ONE}|\A\s*\$[A-Z_][A-Z0-9_]*(?=[/\\])")
_OPTIONAL = frozenset({"AVA_MODEL", "AVA_MODEL_API_KEY", "AVA_WORKSPACE", "AVA_HOST"})
_OPTIONAL_PREFIXES = ("AVA_KEY_", "AVA_MODELS__")
_DAY_CAP = "AVA_DAILY_USD"


def unset_unfilled(env: MutableMapping[str, str]) -> list[str]:
    """Take the unfilled ones among Ava's optional variables out of an environment; returns their names.

    Every start goes through this before anything reads the environment, so it imports nothing unless there is
    something to take out.
    """
    names = [name for name, value in env.items() if _UNFILLED.fullmatch(value.strip())]
    taken: list[str] = []
    if names:
        from ava_server.config.keys import WELL_KNOWN
        from ava_server.config.settings import BUNDLE

        for name in sorted(names):
            optional = name in _OPTIONAL or name.startswith(_OPTIONAL_PREFIXES) or name in WELL_KNOWN.values()
            if optional or (name == _DAY_CAP and env.get("AVA_HOST") == BUNDLE):  # there the default is a cap too
                del env[name]
                taken.append(name)
    return taken


def placeholder_in(value: str) -> str | None:
    """Return the first placeholder that a host has left within a path; None where there is none."""
    found = _WITHIN.search(value)
    return found[0].strip() if found else None

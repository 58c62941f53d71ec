"""Placeholders that a host left unfilled in its variables: most count as unset.

A configuration may name a value that its host fills in (`"AVA_WORKSPACE": "${user_config.folder}"`). Without a value,
hosts pass the placeholder on unchanged, or JavaScript's word for nothing. Taken literally, it would be a folder of that
name, or a key that every provider refuses. A limit must not disappear that way: every variable that is not listed here
keeps its placeholder, and the settings refuse it like any wrong value.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping

BUNDLE = "bundle"
"""AVA_HOST of a server that runs from the extension of Claude Desktop."""
_ONE = (
    r"(?:\$\{[^{}]+\}"  # ${user_config.folder} of bundles, ${input:key} and ${env:KEY} of VS Code and Cursor, ${KEY}
    r"|\{env:[^{}]+\})"  # opencode
)
_UNFILLED = re.compile(
    rf"{_ONE}(?:\s*{_ONE})*"
    r"|\$[A-Z_][A-Z0-9_]*"  # Gemini CLI; in lower case it may be a password
    r"|undefined|null|NaN"  # what the bundle format's own code makes of a field without a value
)
_WITHIN = re.compile(rf"{_ONE}|\A\s*\$[A-Z_][A-Z0-9_]*(?=[/\\])")
_OPTIONAL = frozenset({"AVA_MODEL", "AVA_MODEL_API_KEY", "AVA_WORKSPACE", "AVA_HOST"})
_OPTIONAL_PREFIXES = ("AVA_KEY_", "AVA_MODELS__")
_DAY_CAP = "AVA_DAILY_USD"


def unset_unfilled(env: MutableMapping[str, str]) -> list[str]:
    """Remove unfilled placeholders among Ava's optional variables; returns their names.

    Every start calls this first, so it imports nothing unless there is something to remove.
    """
    unfilled = [name for name, value in env.items() if _UNFILLED.fullmatch(value.strip())]
    if not unfilled:
        return []
    from ava_server.config.keys import KEY_VARIABLES

    removed: list[str] = []
    for name in sorted(unfilled):
        optional = name in _OPTIONAL or name.startswith(_OPTIONAL_PREFIXES) or name in KEY_VARIABLES
        if name == _DAY_CAP:  # in a bundle the default is a cap too
            optional = env.get("AVA_HOST") == BUNDLE
        if optional:
            del env[name]
            removed.append(name)
    return removed


def placeholder_in(value: str) -> str | None:
    match = _WITHIN.search(value)
    return match[0].strip() if match else None

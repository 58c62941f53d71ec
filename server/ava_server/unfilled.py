"""Variables that a host has left unfilled: they count as unset, for everything that Ava reads.

A configuration may name a value that its host shall put in (`"AVA_WORKSPACE": "${user_config.folder}"`). Where
there is none, hosts pass the placeholder on as it stands, or the word that JavaScript has for nothing. Read as a
value, it would be a folder of that name, or a key that every provider refuses.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping

_UNFILLED = re.compile(
    r"\$\{[^{}]+\}"  # ${user_config.folder} of bundles, ${input:key} and ${env:KEY} of VS Code and Cursor, ${KEY}
    r"|\{env:[^{}]+\}"  # opencode
    r"|\$[A-Za-z_][A-Za-z0-9_]*"  # Gemini CLI
    r"|undefined|null|NaN"  # what the bundle format's own code makes of a field that is there without a value
)


def unset_unfilled(env: MutableMapping[str, str]) -> None:
    """Take the unfilled ones among Ava's variables out of an environment, before anything reads it.

    Every start goes through this, so it imports nothing unless there is something to take out.
    """
    names = [name for name, value in env.items() if _UNFILLED.fullmatch(value.strip())]
    if names:
        from ava_server.keys import WELL_KNOWN
        from ava_server.settings_checks import PREFIX

        for name in names:
            if name.startswith(PREFIX) or name in WELL_KNOWN.values():
                del env[name]

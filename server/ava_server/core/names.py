"""Names that a model, a caller or a configuration chose, as Ava's own sentences have them.

Quoted, and said to be what they are: bare, a step with the id `nothing` would turn a warning into its opposite.

Bare are only the names of roles and tools that Ava ships; `S-…`, `mcp__server__tool` and the like, which no sentence
could have as a word; and every name in an approval line, a column of a table and a field for programs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ava_roles import BUILT_IN
from ava_roles.wrap import list_names, one_line

QUOTES = dict.fromkeys(map(ord, '"“”„‟«»＂″‴‶〝〞〟❝❞ʺ˝״⹂ˮ˶〃🙶🙷🙸'), "'")
"""Characters that a reader may take for the end of a quotation."""
NAME_CHARS = 120
_OWN_WORDS = frozenset((*BUILT_IN, "plan"))
"""What stands where a role does and is Ava's own: roles that it ships, and what a plan has as its role."""


def quote_name(name: str) -> str:
    """Return a name in quotes that nothing in it can close."""
    return f'"{one_line(name, NAME_CHARS).translate(QUOTES)}"'


def named(kind: str, name: str) -> str:
    """`the step "find"`."""
    return f"the {kind} {quote_name(name)}"


def named_role(role: str) -> str:
    """`researcher`, which is a word of Ava's own, or `the role "nobody"`."""
    return role if role in _OWN_WORDS else named("role", role)


def subagent_of(role: str) -> str:
    """`researcher`, or `subagent with the role "nobody"`: what stands behind an article."""
    return role if role in BUILT_IN else f"subagent with {named('role', role)}"


def named_all(kind: str, names: Sequence[str], most: int) -> str:
    """`the steps "find", "read" and 3 more`, with at most `most` names; of a single one `the step "find"`."""
    if len(names) == 1:
        return named(kind, names[0])
    return f"the {kind}s {quote_names(names, most)}"


def quote_names(names: Sequence[str], most: int) -> str:
    """`"find", "read" and 3 more`, where what they are has been said."""
    return list_names([quote_name(name) for name in names], most)

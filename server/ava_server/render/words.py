"""Words of Ava's own that a screen explains where they stand first; `docs/words.md` has the same sentences."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, str] = {
    "host": "the MCP client that you talk to.",
    "turn": "one model call, and the tool calls that it requests.",
    "data root": "the folder for everything that Ava stores.",
    "tier": "fast, balanced or deep: a role asks for one of them, and the settings name its model.",
    "copies of the log": "what Ava makes from the log and keeps up to date, such as its search index.",
}
"""What each word means; the words are as a text has them, in the singular where there is one."""


def meaning(word: str) -> str:
    """Return what a word of the table means, as a sentence. Raises KeyError if the table lacks it."""
    text = WORDS[word]
    return f"{word[0].upper()}{word[1:]}: {text}"

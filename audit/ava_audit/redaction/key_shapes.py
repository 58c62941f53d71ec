"""Shapes of keys: how a secret that nobody configured is recognised in text by its own form.

Speed decides how. Every shape begins with a literal that `str.find` looks for; only there a pattern is tried,
and it is bounded or possessive, so that no text makes it slow: the work grows with the text's length alone.
What only a name or a header makes a secret stands in `named_secrets.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Found(NamedTuple):
    """A secret in a text, without its value: what it is, and where it starts and ends."""

    name: str
    start: int
    end: int


class Shape(NamedTuple):
    """Literals that begin a kind of key, and what must follow one."""

    name: str
    literals: tuple[str, ...]
    rest: re.Pattern[str]


def _shape(name: str, literals: str, rest: str) -> Shape:
    return Shape(name, tuple(literals.split()), re.compile(rest))


_END = r"(?![A-Za-z0-9])"
SHAPES = (
    _shape("anthropic-key", "sk-ant-", r"[A-Za-z0-9_-]{20,}+"),
    _shape("openrouter-key", "sk-or-", r"[A-Za-z0-9_-]{20,}+"),
    _shape("openai-key", "sk-proj- sk-svcacct- sk-admin- sk-None-", r"[A-Za-z0-9_-]{20,}+"),
    _shape("openai-key", "sk-", r"(?=[A-Za-z]{0,31}[0-9])[A-Za-z0-9]{32,}+"),
    _shape("ava-token", "avatok_", r"[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
    _shape("groq-key", "gsk_", r"[A-Za-z0-9]{40,}+"),
    _shape("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9]{36,}+"),
    _shape("github-token", "github_pat_", r"[A-Za-z0-9_]{50,}+"),
    _shape("gitlab-token", "glpat-", r"[A-Za-z0-9_-]{20,}+"),
    _shape("aws-key-id", "AKIA ASIA", r"[A-Z0-9]{16}" + _END),
    _shape("google-key", "AIza", r"[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    _shape("google-key", "GOCSPX-", r"[A-Za-z0-9_-]{28}(?![A-Za-z0-9_-])"),
    _shape("google-token", "ya29.", r"[A-Za-z0-9_-]{30,}+"),
    _shape(
        "slack-token",
        "xoxb- xoxp- xoxa- xoxr- xoxs- xoxc- xoxe. xapp-",
        r"(?=[A-Za-z-]{0,20}[0-9])[A-Za-z0-9.-]{20,}+",
    ),
    _shape("slack-webhook", "hooks.slack.com/services/T", r"[A-Z0-9]{6,16}+/B[A-Z0-9]{6,16}+/[A-Za-z0-9]{16,}+"),
    _shape("huggingface-token", "hf_", r"[A-Za-z0-9]{30,}+"),
    _shape("stripe-key", "sk_live_ sk_test_ rk_live_ rk_test_ whsec_", r"[A-Za-z0-9]{16,}+"),
    _shape("npm-token", "npm_", r"[A-Za-z0-9]{36}" + _END),
    _shape("pypi-token", "pypi-AgE", r"[A-Za-z0-9_-]{50,}+"),
    _shape("jwt", "eyJ", r"[A-Za-z0-9_-]{10,}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+"),
)
_WORD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def prefixed(text: str) -> Iterator[Found]:
    """Find keys that begin with a literal of their own."""
    for shape in SHAPES:
        for literal in shape.literals:
            at = text.find(literal)
            while at >= 0:
                after = at + len(literal)
                if at == 0 or text[at - 1] not in _WORD or _escaped(text, at):
                    match = shape.rest.match(text, after)
                    if match is not None:
                        after = match.end()
                        yield Found(shape.name, at, after)
                at = text.find(literal, after)


def _escaped(text: str, at: int) -> bool:
    """Tell whether the letter before a key belongs to an escape, as the `n` of a backslash-n or `%3D`."""
    return text[at - 2 : at - 1] == "\\" or text[at - 3 : at - 2] == "%"


_PEM_BEGIN = "-----BEGIN "
_PEM_END = "-----END "
_PEM_KIND = re.compile(r"[A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_PEM_LAST = re.compile(r"[A-Z0-9 ]{0,40}-----")
_PEM_BODY = re.compile(r"(?:[A-Za-z0-9+/=\s]|\\[nr])*+")
_PEM_TEXT = re.compile(r"[A-Za-z0-9+/]{20}")
_PEM_LONGEST = 20_000


def private_keys(text: str) -> Iterator[Found]:
    """Find PEM private keys, also one whose end is missing because the text was cut."""
    at = text.find(_PEM_BEGIN)
    end = -2
    while at >= 0:
        after = at + len(_PEM_BEGIN)
        kind = _PEM_KIND.match(text, after)
        if kind is not None:
            after = kind.end()
            if end != -1 and end < after:
                end = text.find(_PEM_END, after)
            found = _pem(text, at, after, end)
            if found is not None:
                yield found
                after = found.end
        at = text.find(_PEM_BEGIN, after)


def _pem(text: str, start: int, after: int, end: int) -> Found | None:
    if 0 <= end - after <= _PEM_LONGEST and text.find(_PEM_BEGIN, after, end) < 0:
        if _PEM_TEXT.search(text, after, end) is None:
            return None
        last = _PEM_LAST.match(text, end + len(_PEM_END))
        return Found("private-key", start, last.end() if last else end)
    body = _PEM_BODY.match(text, after)
    if body is None or _PEM_TEXT.search(text, after, body.end()) is None:
        return None
    return Found("private-key", start, body.end())

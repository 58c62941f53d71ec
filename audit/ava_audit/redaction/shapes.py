"""Keys that are known by their shape: `ghp_…`, `sk-ant-…`.

The table is our own, and after it that of `shapes.json`, which `scripts/key_shapes.py` makes from gitleaks' rules. Keys
are looked for only where one can be: 20 characters of a key in a row are rare in prose and code, so the length of the
table hardly counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from math import log2
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ava_audit.redaction.places import SecretSpan, end_of_match
from ava_audit.redaction.values import Verdicts

FEWEST_CHARS = 20
"""The fewest characters of a key."""
_SIGN = "[.~+/=-]"


class KeyPattern(NamedTuple):
    """How a kind of key looks."""

    name: str  # what its mark says
    literals: tuple[str, ...]  # what it begins with
    rest: str
    entropy: float = 0  # the fewest bits a character, to tell a key from a placeholder such as `glpat-xxxx…`


def _shape(name: str, literals: str, rest: str) -> KeyPattern:
    return KeyPattern(name, tuple(literals.split()), rest)


_END = r"(?![A-Za-z0-9])"
_LONG_LINES = r"[A-Za-z0-9+/]{16,}+(?:(?:\\[nr]|[\r\n]){1,4}+[A-Za-z0-9+/]{40,}+)*+={0,2}"
_KEY_LINES = (
    r"(?:[A-Za-z0-9+/]{16,100}+(?![A-Za-z0-9+/=])(?:(?:\\[nr]|[\r\n]){1,4}+[A-Za-z0-9+/]{40,100}+)*+"
    r"(?:\\[nr]|[\r\n]){1,4}+[A-Za-z0-9+/]{1,100}+={0,2}(?![^\s\"'\\,<])|" + _LONG_LINES + ")"
)
"""What follows the beginning of a private key: long lines, with or without a shorter last one."""
_OWN = (
    _shape("anthropic-key", "sk-ant-", r"[A-Za-z0-9_-]{20,}+"),
    _shape("openrouter-key", "sk-or-", r"[A-Za-z0-9_-]{20,}+"),
    _shape("openai-key", "sk-proj- sk-svcacct- sk-admin- sk-None-", r"[A-Za-z0-9_-]{20,}+"),
    _shape("openai-key", "sk-", r"(?=[A-Za-z]{0,31}[0-9])[A-Za-z0-9]{32,}+"),
    _shape("ava-token", "avatok_", r"[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
    _shape("groq-key", "gsk_", r"[A-Za-z0-9]{40,}+"),
    _shape("github-token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9]{36,}+"),
    _shape("github-token", "github_pat_", r"[A-Za-z0-9_]{50,}+"),
    _shape("gitlab-token", "glpat-", r"[A-Za-z0-9_-]{20,}+(?:\.[0-9a-z]{9})?"),
    _shape("aws-key-id", "AKIA ASIA", r"[A-Z0-9]{16}" + _END),
    _shape("google-key", "AIza", r"[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    _shape("google-key", "AQ.", r"[A-Za-z0-9_-]{40,}+"),
    _shape("google-key", "GOCSPX-", r"[A-Za-z0-9_-]{28}(?![A-Za-z0-9_-])"),
    _shape("google-token", "ya29.", r"[A-Za-z0-9_-]{30,}+"),
    _shape(
        "slack-token", "xoxb- xoxp- xoxa- xoxr- xoxs- xoxc- xoxe. xapp-", r"(?=[A-Za-z-]{0,20}[0-9])[A-Za-z0-9.-]{20,}+"
    ),
    _shape("slack-webhook", "hooks.slack.com/services/T", r"[A-Z0-9]{6,16}+/B[A-Z0-9]{6,16}+/[A-Za-z0-9]{16,}+"),
    _shape("huggingface-token", "hf_", r"[A-Za-z0-9]{30,}+"),
    _shape("stripe-key", "sk_live_ sk_test_ rk_live_ rk_test_ whsec_", r"[A-Za-z0-9]{16,}+"),
    _shape("npm-token", "npm_", r"[A-Za-z0-9]{36}" + _END),
    _shape("pypi-token", "pypi-AgE", r"[A-Za-z0-9_-]{50,}+"),
    _shape("jwt", "eyJ", r"[A-Za-z0-9_-]{10,}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+"),
    _shape("sendgrid-key", "SG.", r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
    _shape("digitalocean-token", "dop_v1_ doo_v1_ dor_v1_", r"[a-f0-9]{64}" + _END),
    _shape("vault-token", "hv", r"[sbr]\.(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_-]{24,}+"),
    _shape("bedrock-key", "bedrock-api-key-", r"[A-Za-z0-9+/]{40,}+={0,2}"),
    _shape("sentry-token", "sntrys_", r"[A-Za-z0-9_+/=]{40,}+"),
    _shape("figma-token", "figd_ figo_", r"[A-Za-z0-9_-]{35,}+"),
    _shape("docker-token", "dckr_pat_ dckr_oat_", r"[A-Za-z0-9_-]{20,}+"),
    _shape("nvidia-key", "nvapi-", r"[A-Za-z0-9_-]{50,}+"),
    _shape("tailscale-key", "tskey-", r"(?=[A-Za-z-]{0,20}[0-9])[A-Za-z0-9-]{20,}+"),
    _shape("atlassian-token", "ATATT ATCTT ATBB", r"(?=[A-Za-z_=-]{0,40}[0-9])[A-Za-z0-9_=-]{20,}+"),
    _shape("xai-key", "xai-", r"[A-Za-z0-9]{60,}+"),
    _shape("replicate-token", "r8_", r"[A-Za-z0-9]{37}" + _END),
    _shape("age-key", "AGE-SECRET-KEY-", r"(?:PQ-)?1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58,}+"),
    _shape("supabase-key", "sbp_", r"(?:oauth_)?[a-f0-9]{40}" + _END),
    _shape("supabase-key", "sb_secret_", r"[A-Za-z0-9_-]{20,}+"),
    _shape("neon-key", "napi_", r"[a-z0-9]{40,}+"),
    _shape("vercel-token", "vcp_ vci_ vca_ vcr_ vck_", r"(?=[A-Za-z]{0,40}[0-9])[A-Za-z0-9]{24,}+"),
    _shape("netlify-token", "nfp_ nfc_ nfo_ nfu_", r"[A-Za-z0-9]{36}" + _END),
    _shape("render-key", "rnd_", r"(?=[A-Za-z]{0,30}[0-9])[A-Za-z0-9]{28,}+"),
    _shape("cerebras-key", "csk-", r"[a-z0-9]{40,}+"),
    _shape("fireworks-key", "fw_", r"(?=[A-Za-z]{0,22}[0-9])[A-Za-z0-9]{22,24}" + _END),
    _shape("elevenlabs-key", "sk_", r"[a-f0-9]{48}" + _END),
    _shape("together-key", "tgp_v1_", r"[A-Za-z0-9_-]{40,}+"),
    _shape("posthog-key", "phx_ phs_", r"[A-Za-z0-9]{40,}+"),
    _shape("notion-token", "secret_", r"(?=[A-Za-z]{0,42}[0-9])[A-Za-z0-9]{43}" + _END),
    _shape("square-token", "EAAA", r"(?=[A-Za-z_-]{0,50}[0-9])[A-Za-z0-9_-]{60}(?![A-Za-z0-9_-])"),
    _shape("square-token", "sq0csp- sq0atp- sq0idp-", r"[A-Za-z0-9_-]{22,}+"),
    _shape("resend-key", "re_", r"[A-Za-z0-9]{8}_(?=[A-Za-z]{0,23}[0-9])[A-Za-z0-9]{24}" + _END),
    _shape("tavily-key", "tvly-", r"(?:dev-|prod-)?(?=[A-Za-z-]{0,30}[0-9])[A-Za-z0-9-]{32,}+"),
    _shape("firecrawl-key", "fc-", r"[a-f0-9]{32}" + _END),
    _shape("langsmith-key", "lsv2_pt_ lsv2_sk_", r"[a-f0-9]{32}_[a-f0-9]{10}" + _END),
    _shape("langfuse-key", "sk-lf-", r"[a-f0-9]{8}(?:-[a-f0-9]{4}){3}-[a-f0-9]{12}" + _END),
    _shape("pinecone-key", "pcsk_", r"[A-Za-z0-9_]{40,}+"),
    _shape("jina-key", "jina_", r"[A-Za-z0-9_-]{40,}+"),
    _shape("e2b-key", "e2b_", r"[a-f0-9]{40}" + _END),
    _shape("jenkins-token", "11", r"(?=[0-9]{0,31}[a-f])[0-9a-f]{32}" + _END),
    _shape("jenkins-secret", "AQAAABAAAAA", r"(?<={AQAAABAAAAA)[A-Za-z0-9+/]{20,}+={0,2}(?=})"),
    _shape("wandb-key", "wandb_v1_", r"[A-Za-z0-9_]{40,}+"),
    _shape(
        "discord-webhook", "discord.com/api/webhooks/ discordapp.com/api/webhooks/", r"[0-9]{17,20}/[A-Za-z0-9_-]{60,}+"
    ),
    # The beginning of the data of a private key whose BEGIN line is missing: RSA, DSA and EC; EC; Ed25519; OpenSSH.
    _shape(
        "private-key",
        "MI",
        r"(?:I[A-Za-z0-9+/]{2}[AQgw]IBA(?:AJB|AK[BC]|DANBgkqhkiG9w0BAQEF)|GkAgEBBD|HcAgEBBEI"
        r"|[GH][A-Za-z0-9+/]AgEAMB[AM]GByqGSM49AgEG)" + _KEY_LINES,
    ),
    _shape("private-key", "MH", r"[cQ]CAQEEI" + _KEY_LINES),
    _shape("private-key", "MC4CAQAwBQYDK2V b3BlbnNzaC1rZXktdjE", _KEY_LINES),
    # The BEGIN lines of RSA, PKCS #8, EC and OpenSSH keys in base64, as in a kubeconfig.
    _shape(
        "private-key",
        "LS0tLS1CRUdJTi",
        r"(?:BSU0EgUFJJVkFURSBLRVkt|BQUklWQVRFIEtFWS0t|BFQyBQUklWQVRFIEtFWS|BPUEVOU1NIIFBSSVZBVEUgS0VZ)" + _LONG_LINES,
    ),
)
_MARKED_INSIDE = (
    ("terraform-token", r"[A-Za-z0-9]{14}\.atlasv1\.", r"[A-Za-z0-9_=-]{60,}+"),
    ("azure-secret", r"[A-Za-z0-9_~.]{3}[0-9]Q~", r"[A-Za-z0-9_~.-]{31,}+"),
    (
        "discord-token",
        r"[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.",
        r"(?=[A-Za-z_-]{0,26}[0-9])[A-Za-z0-9_-]{27,40}",
    ),
    ("maxmind-key", r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk", ""),
)
"""Keys whose mark is not at their beginning: the name, the pattern to the mark's end, and the pattern that follows."""


@cache
def key_patterns() -> tuple[KeyPattern, ...]:
    shapes = json.loads(Path(__file__).with_name("shapes.json").read_text("utf-8"))["shapes"]
    others = [KeyPattern(name, tuple(literals), rest, entropy) for name, literals, rest, entropy in shapes]
    return (*_OWN, *others)


_Shapes = dict[str, list[tuple[int, KeyPattern, re.Pattern[str]]]]


class _Beginnings(NamedTuple):
    """Patterns that find where a key can begin, and the shapes by what begins so."""

    here: re.Pattern[str]
    inside: re.Pattern[str]
    """The same behind one of the signs after which a key may begin in a longer word."""
    shapes: _Shapes
    """By the beginning: the length of its literal, the shape, and the pattern of its rest."""


@cache
def _beginnings() -> _Beginnings:
    literals: set[str] = set()
    for pattern in key_patterns():
        literals.update(pattern.literals)
    shapes: _Shapes = {}
    rests: dict[str, str] = {}
    for literal in literals:
        shapes[literal] = _shapes_beginning(literal)
        if len(literal) <= _SHORT_LITERAL:
            rests[literal] = _begin_of_rest(literal, [pattern for _size, pattern, _rest in shapes[literal]])
    marks: list[str] = []
    for number, (_name, mark, _rest) in enumerate(_MARKED_INSIDE):
        marks.append(f"(?P<m{number}>{mark})")
    inside = "|".join(marks)
    begins = f"(?:(?P<literal>{_longest_of(literals)})|{inside})"
    # Most signs have no key behind them: the word ends too soon, or it is a line of signs.
    long = f"(?!{_SIGN}{{3}})(?=[A-Za-z0-9_~.+/=-]{{{FEWEST_CHARS}}})"
    behind = f"[.~+/=]{long}(?=(?P<literal>{_longest_of(literals, rests)})|{inside})"
    return _Beginnings(re.compile(begins), re.compile(behind), shapes)


def _shapes_beginning(text: str) -> list[tuple[int, KeyPattern, re.Pattern[str]]]:
    """Return the shapes whose literal is a beginning of a text."""
    shapes: list[tuple[int, KeyPattern, re.Pattern[str]]] = []
    for pattern in key_patterns():
        for literal in pattern.literals:
            if text.startswith(literal):
                shapes.append((len(literal), pattern, re.compile(pattern.rest)))
    return shapes


def _begin_of_rest(literal: str, patterns: list[KeyPattern]) -> str:
    """Return a pattern of what follows a beginning, if it is one of a key.

    Where beginnings alone look like a key until their entropy is counted (`/ABSK/ABSK/ABSK…`), only that the same one
    does not follow at once: at each of them, another look would go through all that follow.
    """
    for pattern in patterns:
        if pattern.entropy and re.match(pattern.rest, f"/{literal}" * 100):
            return f"(?!.{{0,4}}{re.escape(literal)})"
    return "|".join(pattern.rest for pattern in patterns)


_SHORT_LITERAL = 8
"""Characters of a beginning that can stand so close that the whole key is looked for by one regular expression."""


def _longest_of(literals: set[str], rests: Mapping[str, str] = MappingProxyType({}), prefix: str = "") -> str:
    """Return a pattern for the longest of some texts: a tree that looks at each character once.

    `rests` has, for some texts, a pattern that must follow them. All texts begin with `prefix`, which the caller's
    pattern has matched.
    """
    branches: list[str] = []
    next_chars = {literal[len(prefix)] for literal in literals if literal != prefix}
    for char in sorted(next_chars):
        longer_prefix = prefix + char
        inner = {literal for literal in literals if literal.startswith(longer_prefix)}
        branches.append(re.escape(char) + _longest_of(inner, rests, longer_prefix))
    if prefix in rests and prefix in literals:
        branches.append(f"(?={rests[prefix]})")
    elif prefix in literals:
        branches.append("")
    if len(branches) == 1:
        return branches[0]
    return f"(?:{'|'.join(branches)})"


_RUN = b"x" * FEWEST_CHARS
_IN_KEYS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.~+/="
_MASK = bytes(b"x"[0] if code in _IN_KEYS else b" "[0] for code in range(256))
_BOUNDARY = re.compile(r"[.~+/=]")
_BEFORE = re.compile(r"\\(?:u00[0-9A-Fa-f]{2}|x[0-9A-Fa-f]{2}|[a-z])|%(?:25)?[0-9A-Fa-f]{2}|-++")
"""What may stand directly before a key: an escape, or the hyphens of a diff's line or of the shell's `${NAME:-…}`."""
_REST = re.compile(r"[A-Za-z0-9_-]*+")


class _Entropies(NamedTuple):
    """The entropy of texts, and an upper bound of it: that of as many equally frequent characters."""

    exact: Verdicts[float]
    most: Verdicts[float]


def find_prefixed(text: str) -> Iterator[SecretSpan]:
    mask = text.encode("latin-1", "replace").translate(_MASK)
    entropies = _Entropies(Verdicts(entropy_of), Verdicts(lambda key: log2(len(set(key)))))
    start = mask.find(_RUN)
    while start >= 0:
        end = mask.find(b" ", start)
        if end < 0:
            end = len(mask)
        yield from _keys_in_run(text, start, end, entropies)
        start = mask.find(_RUN, end)


def _keys_in_run(text: str, start: int, end: int, entropies: _Entropies) -> Iterator[SecretSpan]:
    r"""Yield the keys in a run of their characters, also in `\nsk-…`, `\u003csk-…`, `%3Dsk-…`, `-sk-…`."""
    begins = _beginnings()
    done = start
    places = [start]
    is_escaped = text[start - 1 : start] in ("\\", "%")
    if is_escaped or text[start] == "-":
        before = _BEFORE.match(text, start - 1 if is_escaped else start, end)
        if before is not None:
            places.append(before.end())
    for at in places:
        if at < done:
            continue
        match = begins.here.match(text, at, end)
        if match is None:
            continue
        key = _key_at(text, at, match, begins.shapes, entropies)
        if key is not None:
            done = key.end
            yield key
    at = max(start, done - 1)
    while (match := begins.inside.search(text, at, end)) is not None:
        at = match.start() + 1
        key = _key_at(text, at, match, begins.shapes, entropies)
        if key is not None:
            at = max(at, key.end - 1)  # a sign that ends a key may be followed by another
            yield key


def _key_at(text: str, start: int, match: re.Match[str], shapes: _Shapes, entropies: _Entropies) -> SecretSpan | None:
    """Return the key that begins at `start`, where `match` found the beginning of one; None if the rest is not one."""
    group = match.lastgroup or ""
    if group != "literal":
        name, _mark, marked_rest = _MARKED_INSIDE[int(group[1:])]
        key = re.compile(marked_rest).match(text, match.end(group))
        if key is None:
            return None
        return SecretSpan(name, start, key.end())
    for length, shape, rest in shapes[match["literal"]]:
        if shape.entropy and entropies.most[text[start : start + _ENTROPY_CHARS]] < shape.entropy:
            continue  # a placeholder, however long it is
        key = rest.match(text, start + length)
        if key is None:
            continue
        key_end = key.end()
        if not shape.entropy:
            return SecretSpan(shape.name, start, key_end)
        if entropies.exact[text[start : min(key_end, start + _ENTROPY_CHARS)]] >= shape.entropy:
            # A longer key than the shape says is one key too.
            return SecretSpan(shape.name, start, end_of_match(_REST, text, key_end))
    return None


_ENTROPY_CHARS = 64
"""The characters of a key that are enough to tell it from a placeholder."""


def entropy_of(text: str) -> float:
    shares = [text.count(char) / len(text) for char in set(text)]
    return -sum(share * log2(share) for share in shares)

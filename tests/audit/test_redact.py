import base64
import json
import re
import threading
from re import _parser as sre  # type: ignore[attr-defined]
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_audit import redaction
from ava_audit.redaction import Redactor

LETTERS = "Ab3Cd4Ef5Gh6Ij7Kl8Mn9Op0Qr1St2Uv3Wx4Yz5"
"""Stands where a real key has its random part: long, mixed, and obviously nobody's."""
HEX = "0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d"
PEM = "-----BEGIN RSA PRIVATE KEY-----\n" + (LETTERS + "+/" + LETTERS[:20] + "\n") * 4 + "-----END RSA PRIVATE KEY-----"

KEYS = [
    ("anthropic-key", "sk-ant-api03-" + LETTERS + "-" + LETTERS + "AA"),
    ("openrouter-key", "sk-or-v1-" + HEX + HEX[:24]),
    ("openai-key", "sk-proj-" + LETTERS + "_" + LETTERS),
    ("openai-key", "sk-" + LETTERS + LETTERS[:9]),
    ("ava-token", "avatok_" + LETTERS[:38] + "-_Ab9"),
    ("groq-key", "gsk_" + LETTERS + LETTERS[:12]),
    ("github-token", "ghp_" + LETTERS[:36]),
    ("github-token", "github_pat_11ABCDEFG0" + LETTERS[:12] + "_" + LETTERS + LETTERS[:20]),
    ("gitlab-token", "glpat-" + LETTERS[:20]),
    ("aws-key-id", "AKIA" + "ABCDEFGH23456789"),
    ("google-key", "AIza" + LETTERS[:35]),
    ("google-key", "GOCSPX-" + LETTERS[:28]),
    ("google-token", "ya29." + LETTERS + LETTERS),
    ("slack-token", "xoxb-123456789012-1234567890123-" + LETTERS[:24]),
    ("slack-webhook", "hooks.slack.com/services/T0ABCDEFG/B0ABCDEFG/" + LETTERS[:24]),
    ("huggingface-token", "hf_" + LETTERS[:34]),
    ("stripe-key", "sk_live_" + LETTERS[:24]),
    ("npm-token", "npm_" + LETTERS[:36]),
    ("pypi-token", "pypi-AgEIcHlwaS5vcmc" + LETTERS + LETTERS),
    ("jwt", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + LETTERS),
    ("private-key", PEM),
    ("private-key", PEM.replace("\n", "\\n")),
    ("private-key", PEM.replace("RSA ", "OPENSSH ")),
]
"""Keys that are known by themselves."""

PLACED = [
    ("key", "aws_secret_access_key = {}", "wJ4lrXUtnFEM1/K7MDENG/bPxRf1CYzKx8Lm2Qa9"),
    ("url-password", "postgres://ava:{}@db.example.org/ava", "s3cr3t-enough"),
    ("authorization", "Authorization: Bearer {}", LETTERS),
    (
        "authorization",
        "curl -H 'Authorization: Basic {}' https://example.org",
        "YXZhOm5vdC1hLXBhc3N3b3JkMQ==",
    ),
    ("authorization", '{{"headers": {{"authorization": "Token {}"}}}}', HEX),
    ("cookie", "Cookie: {}", "session=" + HEX + "; theme=dark"),
    ("cookie", "set-cookie: {}", "sid=s%3A" + LETTERS + "; Path=/; HttpOnly"),
    ("key", "API_KEY={}", HEX),
    ("key", "API_KEY={}", HEX * 20),
    ("authorization", "Authorization: Bearer {}", LETTERS * 20),
    ("authorization", "Authorization: Basic {}", "QWxhZGRpbjpvcGVuIHNlcVFV"),
    ("key", 'const apiKey = "{}";', LETTERS[:32]),
    ("key", "X-Api-Key: {}", HEX[:32]),
    ("password", "DB_PASSWORD={}", "hunter22!x"),
    ("password", 'password: str = "{}"', "Tr0ub4dor&3"),
    ("password", "mysql --user ava --password {} ava", "Tr0ub4dor33"),
    ("password", r"{{\"password\": \"{}\"}}", "Tr0ub4dor33"),
    ("secret", "client_secret: '{}'", LETTERS[:30]),
    ("secret", "  secret: {}", "V1StGXR8Z5jdHi6BmyT"),
    ("token", '{{"refresh_token": "{}"}}', "1" + LETTERS),
    ("token", "https://example.org/feed?token={}&page=2", HEX),
    ("credential", "credentials={}", LETTERS),
]
"""Values that only what stands around them makes a secret."""

HARMLESS = [
    "export OPENAI_API_KEY=$OPENAI_API_KEY",
    "api_key = os.environ['OPENAI_API_KEY']",
    'api_key = "your-api-key-here"',
    "password = getpass.getpass('Password: ')",
    "password: <your password>",
    "token = tokenizer.decode(tokens[0], skip_special_tokens=True)",
    "max_tokens = 200000",
    "Authorization: Bearer $TOKEN",
    "Authorization: Bearer <token>",
    'headers = {"Authorization": f"Bearer {token_v2}"}',
    "def check(authorization: HTTPAuthorizationCredentials) -> None:",
    "def login(user: str, password: str, secret_key: str | None = None) -> None:",
    "token: OAuthTokenProviderInterface = OAuthTokenProviderDefault",
    "self.secret_key = settings.secret_key_v2",
    "next_page_token: " + LETTERS,
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "task-list sk-circle-fade-dot sk-cube-grid-with-a-very-long-name",
    "id: 123e4567-e89b-12d3-a456-426614174000",
    "https://example.org:8443/path?x=1#top",
    "git clone https://user:password@example.org/repo.git",
    "postgres://postgres:postgres@localhost/test",
    "from hf_hub_download import hf_snapshot_of_the_model",
    'if "-----BEGIN PRIVATE KEY-----" in text: refuse()',
    "-----BEGIN CERTIFICATE-----\n" + LETTERS * 3 + "\n-----END CERTIFICATE-----",
    "npm_config_registry=https://example.org npm_lifecycle_event=test",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
    "The cookie: it crumbles. Cookie policy, cookies: strictly necessary = yes",
    "The password must have at least 12 characters, 1 digit and 1 capital letter.",
    "keyboard_key: KeyboardInterrupt1",
    "monkey: donkey1234567, turkey = jockey9876543",
    "{{secret:GITHUB_TOKEN}} and [redacted:openrouter]",
    "password={{secret:DB_PASSWORD_2}}",
]

values = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=8, max_size=40).filter(
    lambda text: text == text.strip()
)


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_replaces_a_known_secret_pattern_in_any_context(name: str, key: str) -> None:
    for before, after in (
        ("", ""),
        ("use ", " please"),
        ('{"k": "', '"}'),
        ("line\n", "\nline"),
        ("(", ")."),
        ("x\\n", "\\n"),
    ):
        if name == "private-key" and after == "\\n":
            continue  # an escaped line end after the last dashes is no part of the key
        assert Redactor({}).redact(before + key + after) == (f"{before}[redacted:{name}]{after}", 1)


@pytest.mark.parametrize(("name", "frame", "value"), PLACED)
def test_replaces_only_the_value_where_the_context_marks_a_secret(name: str, frame: str, value: str) -> None:
    assert Redactor({}).redact(frame.format(value)) == (frame.format(f"[redacted:{name}]"), 1)


@pytest.mark.parametrize("line", HARMLESS)
def test_leaves_a_harmless_line_unchanged(line: str) -> None:
    assert Redactor({}).redact(line) == (line, 0)


def test_replaces_a_private_key_with_a_missing_end() -> None:
    text, count = Redactor({}).redact("here:\n" + PEM[:150])

    assert (text.strip(), count) == ("here:\n[redacted:private-key]", 1)


def test_keeps_text_between_two_mentions_of_a_private_key() -> None:
    prose = "It starts with -----BEGIN PRIVATE KEY----- and, after the data, ends with -----END PRIVATE KEY-----."
    assert Redactor({}).redact(prose) == (prose, 0)


def test_a_match_reports_its_name_and_position_but_not_its_value() -> None:
    key = "ghp_" + LETTERS[:36]
    (found,) = Redactor({}).find_shapes(f"use {key} now")

    assert (found.name, found.start, found.end) == ("github-token", 4, 44)
    assert key not in repr(found)


@given(st.text(max_size=30), values, st.text(max_size=30))
def test_replaces_a_configured_value_in_every_encoding(before: str, value: str, after: str) -> None:
    redactor = Redactor({"mine": value})
    for form in (
        value,
        quote(value, safe=""),
        quote_plus(value),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
    ):
        text, count = redactor.redact(f"{before} {form} {after}")
        assert count >= 1
        assert form not in text.replace("[redacted:mine]", "\0")


@given(st.binary(max_size=5), values, st.binary(max_size=5))
def test_finds_a_configured_value_inside_base64(before: bytes, value: str, after: bytes) -> None:
    inner = before + value.encode() + after
    for encoded in (base64.b64encode(inner).decode(), base64.urlsafe_b64encode(inner).decode()):
        text, count = Redactor({"mine": value}).redact_values(f"Authorization: Basic {encoded}")
        assert count >= 1
        assert "[redacted:mine]" in text


def test_replaces_overlapping_configured_values_once() -> None:
    redactor = Redactor({"short": "abcdefgh", "long": "abcdefgh-ijklmnop", "other": "mnopqrstuv"})

    assert redactor.redact("abcdefgh-ijklmnop")[0] == "[redacted:long]"
    assert redactor.redact("(abcdefgh)")[0] == "([redacted:short])"
    assert redactor.redact("abcdefgh-ijklmnopqrstuv") == ("[redacted:long]", 1)


def test_a_pattern_that_contains_a_configured_value_gets_the_name_of_the_value() -> None:
    key = "sk-ant-api03-" + LETTERS
    assert Redactor({"anthropic": key}).redact(f"Authorization: Bearer {key}, {key}tail") == (
        "Authorization: Bearer [redacted:anthropic], [redacted:anthropic]",
        2,
    )


def test_does_not_report_a_configured_value_as_an_unknown_secret() -> None:
    mine, foreign = "sk-or-v1-" + HEX, "hf_" + LETTERS[:34]
    redactor = Redactor({"openrouter": mine})

    assert [found.name for found in redactor.find_shapes(f"{mine} {foreign}")] == ["huggingface-token"]
    assert redactor.redact_values(f"{mine} {foreign}") == (f"[redacted:openrouter] {foreign}", 1)


def test_reports_values_too_short_to_replace() -> None:
    redactor = Redactor({"pin": "1234", "none": "", "key": "12345678"})

    assert redactor.too_short == ("pin",)
    assert redactor.redact("1234 12345678") == ("1234 [redacted:key]", 1)


def test_keeps_hiding_every_value_it_has_learned() -> None:
    redactor = Redactor({"openrouter": "the-first-key-of-all"})
    redactor.learn({"openrouter": "the-second-key-of-all", "pin": "1234"})
    redactor.learn({"kagi": "the-first-key-of-all-but-longer", "other": "the-second-key-of-all", "pin": "1234"})
    redactor.learn({})

    for name, value in (
        ("openrouter", "the-first-key-of-all"),
        ("openrouter", "the-second-key-of-all"),
        ("kagi", "the-first-key-of-all-but-longer"),
    ):
        assert redactor.redact(f"({value})") == (f"([redacted:{name}])", 1)
    assert redactor.too_short == ("pin",)


def test_hides_values_learned_by_several_threads_without_disturbing_redaction() -> None:
    redactor = Redactor({})
    values = {f"name{number}": f"secret-value-{number:04}" for number in range(48)}
    failed: list[BaseException] = []
    learned = threading.Event()

    def learn(part: dict[str, str]) -> None:
        for name, value in part.items():
            redactor.learn({name: value})

    def redact() -> None:
        try:
            while not learned.is_set():
                redactor.redact(" ".join(values.values()))
        except BaseException as error:
            failed.append(error)

    names = list(values)
    learners = [threading.Thread(target=learn, args=({n: values[n] for n in names[at::4]},)) for at in range(4)]
    reader = threading.Thread(target=redact)
    for thread in (reader, *learners):
        thread.start()
    for thread in learners:
        thread.join(30)
    learned.set()
    reader.join(30)

    assert failed == []
    assert redactor.redact_values(" ".join(values.values()))[1] == len(values)


@given(st.lists(st.sampled_from([key for _, key in KEYS] + [f.format(v) for _, f, v in PLACED] + HARMLESS), max_size=8))
def test_a_second_pass_finds_nothing_more(lines: list[str]) -> None:
    once, _ = Redactor({}).redact("\n\n".join(lines))

    assert Redactor({}).redact(once) == (once, 0)


PATTERNS = [shape.rest for shape in redaction.KEY_PATTERNS] + [
    value for value in vars(redaction).values() if isinstance(value, re.Pattern)
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.pattern[:30])
def test_no_pattern_backtracks_without_a_bound(pattern: re.Pattern[str]) -> None:
    """Every repetition is possessive, or bounded by 100 and has no repetition inside."""
    assert pattern.pattern.endswith("]+") or not list(backtracking(sre.parse(pattern.pattern), inside=False))


def backtracking(parsed: Any, *, inside: bool) -> Any:
    for operation, argument in parsed:
        name = str(operation)
        if name == "MAX_REPEAT":
            low, high, inner = argument
            if high > 100 or (inside and high > 20 and low != high):
                yield argument
            yield from backtracking(inner, inside=inside or high > 20)
        elif name == "POSSESSIVE_REPEAT":
            yield from backtracking(argument[2], inside=False)
        elif name == "SUBPATTERN":
            yield from backtracking(argument[3], inside=inside)
        elif name == "BRANCH":
            for branch in argument[1]:
                yield from backtracking(branch, inside=inside)
        elif name in ("ASSERT", "ASSERT_NOT"):
            yield from backtracking(argument[1], inside=inside)


HOSTILE = [
    "-----BEGIN PRIVATE KEY-----",
    "eyJ",
    "eyJaaaaaaaaaa.",
    "token=",
    "password='",
    "sk-",
    "://a:",
    "Cookie: a=",
    "key: ",
    "token=1",
    "Cookie: a=1",
    "uthorization=1",
]


class Counted(str):
    """Text that counts how many characters its searches may have looked at."""

    looked: int

    def find(self, sub: str, start: Any = 0, end: Any = None) -> int:
        stop = len(self) if end is None else end
        at = super().find(sub, start, stop)
        self.looked += (stop if at < 0 else at + len(sub)) - start
        return at


@pytest.mark.parametrize("piece", HOSTILE)
def test_scans_hostile_text_at_most_once_per_literal(piece: str) -> None:
    text = Counted(piece * 2_000)
    text.looked = 0
    literals = sum(len(shape.literals) for shape in redaction.KEY_PATTERNS) + 40

    Redactor({}).redact(text)

    assert text.looked <= literals * len(text) * 1.5

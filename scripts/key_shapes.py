"""Make `audit/ava_audit/redaction/shapes.json` from gitleaks' rules: how keys of known services look.

Facts only: of each rule that describes how a key itself looks, its literal beginning, the pattern that follows, and the
least entropy. Rules that find a value only beside the service's name are left out.

    python scripts/key_shapes.py gitleaks.toml --commit 5e0db62c --date 2026-07-22

`gitleaks.toml` is `config/gitleaks.toml` of https://github.com/gitleaks/gitleaks at that commit.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "audit" / "ava_audit" / "redaction" / "shapes.json"
TAILS = (r"(?:[\x60'\"\s;]|\\[nr]|$)", r"(?:[\x60'\"\s;]|\\[nr]|$|\b)", r"(?:[^\w-]|\z)", r"\b")
AMBIGUOUS = {"key-", "pubkey-", "live_", "test_", "live_pub_", "test_pub_", "https://", "API-", "EAA"}
"""Beginnings that texts other than keys have too."""
BY_HAND = re.compile(
    "age-|anthropic-|aws-amazon-bedrock-api-key-short|digitalocean-|freemius-|gcp-|github-|gitlab-pat|gitlab-session-cookie|huggingface-access-|jwt|npm-"
    "|openai-|private-key|pypi-|sendgrid-|sentry-org-|slack-|vault-|flutterwave-public-"
)
"""Rules for which `shapes.py` has a wider shape, that need what stands beside the key, or whose keys are public."""
SHORTEST = 20
"""Characters of the shortest key that is taken; a shorter text is too often a name."""


def main() -> None:
    """Read the rules and write the file."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("rules", type=Path, help="gitleaks' config/gitleaks.toml")
    options.add_argument("--commit", required=True, help="the commit of gitleaks that it is from")
    options.add_argument("--date", required=True, help="the day of that commit")
    given = options.parse_args()
    rules = tomllib.loads(given.rules.read_text("utf-8"))["rules"]
    shapes = [shape for rule in rules for shape in shapes_of(rule)]
    about = {
        "source": f"https://github.com/gitleaks/gitleaks/blob/{given.commit}/config/gitleaks.toml",
        "date": given.date,
        "license": "MIT, Copyright (c) 2019 Zachary Rice",
    }
    lines = ",\n".join(json.dumps(shape) for shape in shapes)
    TARGET.write_text(f'{{"about": {json.dumps(about)},\n"shapes": [\n{lines}\n]}}\n', "utf-8")
    print(f"{len(shapes)} shapes from {len(rules)} rules")


def shapes_of(rule: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield [name, literals, rest, least entropy] of each form of key that a rule describes."""
    if BY_HAND.match(rule["id"]):
        return
    regex = rule.get("regex", "").replace("[[:alnum:]]", "[A-Za-z0-9]")
    for core, any_case in cores(regex):
        literals, rest = beginning(core)
        for literal in literals:
            if literal and any(each in AMBIGUOUS for each in (literal, literal.lower())):
                break
        else:
            rest = possessive(scoped(rest, any_case))
            width = min((len(each) for each in literals), default=0) + int(parser.parse(rest).getwidth()[0])
            if tells(min(literals, key=len, default=""), width):
                forms = {*literals, *(each.lower() for each in literals if any_case)}
                yield [rule["id"], sorted(forms), rest, rule.get("entropy", 0)]


def tells(literal: str, width: int) -> bool:
    """Tell whether a beginning is distinct enough for a key of this length."""
    if width < SHORTEST or len(literal) < 3:
        return False
    return not literal.isalnum() or (len(literal) >= 4 and width >= 36) or width >= 60


def cores(regex: str) -> Iterator[tuple[str, bool]]:
    """Yield each alternative of a rule without what must stand around it, and whether it ignores case."""
    for part in alternatives(regex):
        any_case = part.startswith("(?i)")
        part = part.removeprefix("(?i)")
        groups = list(captured(part))
        for tail in TAILS:
            part = part.removesuffix(tail)
        part = part.removeprefix("(?i)").removeprefix(r"\b").removeprefix("(?i)")
        for core in groups or [part]:
            core = core.removeprefix(r"\b").removesuffix(r"\b")
            inner = list(captured(core))
            for each in inner if inner and f"({inner[0]})" == core.strip("\\b") else [core]:
                each = unwrapped(each)
                yield from ((form, any_case) for form in alternatives(each))


def unwrapped(core: str) -> str:
    """Return the inside of a group that is the whole text."""
    while core.startswith(("(?:", "(")) and closing(core, 0) == len(core) - 1:
        core = core[3 if core.startswith("(?:") else 1 : -1]
    return core


def pieces(regex: str) -> Iterator[tuple[int, str]]:
    """Yield each character of a regex with its place; an escape and a class are one."""
    at = 0
    while at < len(regex):
        end = at + 1
        if regex[at] == "\\":
            end = at + (4 if regex[at + 1] == "x" else 2)
        elif regex[at] == "[":
            end = at + 1
            while regex[end] != "]" or end == at + 1:
                end += 2 if regex[end] == "\\" else 1
            end += 1
        yield at, regex[at:end]
        at = end


def closing(regex: str, start: int) -> int:
    """Return where the group that opens at a place ends."""
    depth = 0
    for at, piece in pieces(regex):
        if at >= start:
            depth += {"(": 1, ")": -1}.get(piece, 0)
            if depth == 0:
                return at
    raise ValueError(f"no end of the group in {regex}")


def alternatives(regex: str) -> list[str]:
    """Return the alternatives of a regex at its highest level."""
    found, depth, began = [], 0, 0
    for at, piece in pieces(regex):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == "|" and depth == 0:
            found.append(regex[began:at])
            began = at + 1
    return [*found, regex[began:]]


def captured(regex: str) -> Iterator[str]:
    """Yield the text of each outermost capturing group."""
    done = -1
    for at, piece in pieces(regex):
        if piece == "(" and at > done and not regex.startswith("(?", at):
            done = closing(regex, at)
            yield regex[at + 1 : done]


def beginning(core: str) -> tuple[list[str], str]:
    """Return the literals that a pattern can begin with, and the rest of it."""
    literals, at = [""], 0
    while at < len(core):
        if core.startswith("(?:", at) and not core.startswith(("?", "*", "+", "{"), closing(core, at) + 1):
            end = closing(core, at)
            branches = [re.sub(r"\\([.-])", r"\1", each) for each in alternatives(core[at + 3 : end])]
            if not all(re.fullmatch(r"[\w.-]+", each) for each in branches):
                break
            literals, at = [literal + each for literal in literals for each in branches], end + 1
            continue
        escaped = core[at : at + 2] in (r"\.", r"\-", r"\_")
        end = at + (2 if escaped else 1)
        if not (escaped or re.match(r"[\w~-]", core[at])) or core[end : end + 1] in ("?", "*", "+", "{"):
            break
        literals, at = [literal + core[end - 1] for literal in literals], end
    return literals, core[at:]


def scoped(rest: str, any_case: bool) -> str:
    """Return a pattern in which flags inside are groups, as Python wants them."""
    rest = rest.replace(r"\z", r"\Z").replace("(?-i:", "(?:")
    if "(?i)" in rest or any_case:
        return f"(?i:{rest.replace('(?i)', '')})"
    return rest


def possessive(rest: str) -> str:
    """Let each repetition keep what it took, where what follows cannot be a part of it: the search stays linear."""
    return re.sub(r"(\{\d+,\d*\}|[*+])(?=$|\)|\\\.|=|\[=\])", r"\1+", rest)


if __name__ == "__main__":
    main()

"""`ava doctor`: what is wrong or to be done, each with what to do, and in one line what works.

This prints what the checks of `doctor_checks` find. A failure of one does not end the others. Only `doctor_online`
writes: it asks each provider in a run of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ava_audit.units import counted
from ava_server.cli.options import Json
from ava_server.cli.terminal import columns, heading, say, say_json, steps_on_terminal, tell, wrapped, wrapped_lines

if TYPE_CHECKING:
    from ava_server.service.checks import Check, CheckFinding, Setup

FAULT = 1
WIDTH = 80
_MARGIN = 9


def doctor_command(
    online: Annotated[
        bool,
        typer.Option(
            "--online",
            help=(
                "Also ask each provider for one word: at most 5 cents each, from today's budgets and logged. Search"
                " the web once if search is set up: no budget counts its price. And ask remote MCP servers."
            ),
        ),
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Also show what works, a line each.")] = False,
    as_json: Json = False,
) -> None:
    """Check everything that Ava needs, and show what is wrong or to be done; exit code 1 for a fault.

    Without --online nothing is written and nothing is sent; the programs of MCP servers are started for a moment.
    """
    from ava_server.service.checks import read_setup

    setup = read_setup()
    if not as_json and setup.root is not None:
        heading(setup.root)
    elif not as_json:
        say("Data root: not known")
    findings, asked = _findings(setup, online)
    counts: Counter[str] = Counter(finding.state for finding in findings)
    if as_json:
        say_json(
            {
                "data_root": str(setup.root.path) if setup.root is not None else None,
                "findings": [finding.as_json() for finding in findings],
                "faults": counts["fault"],
                "warnings": counts["warning"],
            }
        )
    else:
        say(_summary(counts, findings))
        say("\n".join(_report(findings, asked, every=every)))
    raise typer.Exit(FAULT if counts["fault"] else 0)


def _findings(setup: Setup, online: bool) -> tuple[list[CheckFinding], list[CheckFinding]]:
    """Make every check, and return all findings, and those that only --online asks for.

    On a terminal it shows which one runs.
    """
    from ava_server.cli.doctor_checks import CHECKS, providers_that_refused, redactor_of
    from ava_server.service.checks import run_checks, title_of
    from ava_server.service.checks.refused_keys import with_refused_keys
    from ava_server.service.checks.roles import remote_servers_not_asked, servers

    redactor = redactor_of(setup)
    findings: list[CheckFinding] = []

    def redacted(text: str) -> str:
        return redactor.redact(text)[0]

    def clean(found: CheckFinding) -> CheckFinding:
        return replace(found, text=redacted(found.text), what_to_do=redacted(found.what_to_do))

    def report(found: CheckFinding) -> None:
        findings.append(clean(found))

    with steps_on_terminal(len(CHECKS) + online) as begin:

        def announced() -> Iterator[tuple[str, Check]]:
            for name, check in CHECKS:
                begin(f"Checking {title_of(name)}")
                yield name, check

        for found in run_checks(announced(), setup, in_full=True):
            report(found)
        refused = [clean(found) for found in providers_that_refused(setup)]
        findings = with_refused_keys(findings, refused)
        if online:
            begin("Asking remote MCP servers")
        for found in servers(setup, remote=True) if online else remote_servers_not_asked(setup):
            report(found)
    offline = len(findings)
    if online:
        from ava_server.cli.doctor_online import ask_providers, try_search

        ask_providers(setup, lambda text: tell(redacted(text)), report)
        try_search(setup, tell, report)
    return findings, findings[offline:]


def _report(findings: Iterable[CheckFinding], asked: Sequence[CheckFinding], *, every: bool) -> list[str]:
    """Return what was found, the worst first; what works is one line, unless it was `asked` for, or `every` is."""
    from ava_server.service.checks import WORST_FIRST

    findings = sorted(findings, key=lambda finding: WORST_FIRST.index(finding.state))
    if every:
        return [_lines(finding.title, finding) for finding in findings]
    in_full: list[CheckFinding] = []
    works: dict[str, None] = {}  # titles, each once
    for finding in findings:
        if finding.state != "ok" or finding.what_to_do or finding in asked:
            in_full.append(finding)
        else:
            works[finding.title] = None
    lines = [_lines(_common_name(names), finding) for names, finding in _joined(in_full)]
    if works:
        lines.append(_indented("ok", f"{' · '.join(works)} (`ava doctor --all` tells more)"))
    return lines


def _joined(findings: Iterable[CheckFinding]) -> list[tuple[list[str], CheckFinding]]:
    """Return each finding with the names of all that say the same."""
    names: dict[tuple[str, str, str], list[str]] = {}
    first: dict[tuple[str, str, str], CheckFinding] = {}
    for finding in findings:
        same = (finding.state, finding.text, finding.what_to_do)
        first.setdefault(same, finding)
        names.setdefault(same, []).append(finding.title)
    return [(names[same], finding) for same, finding in first.items()]


def _common_name(names: Sequence[str]) -> str:
    """`role coder, code_reviewer`: the first word, if all have it, once."""
    kind, blank, _rest = names[0].partition(" ")
    prefix = kind + blank
    if not blank or not all(name.startswith(prefix) for name in names):
        return ", ".join(names)
    return prefix + ", ".join(name.removeprefix(prefix) for name in names)


def _lines(name: str, finding: CheckFinding) -> str:
    width = min(WIDTH, columns()) - _MARGIN
    lines = [_indented(finding.state, f"{name}: {finding.text}")]
    if finding.what_to_do:
        steps = wrapped_lines(f"To do: {finding.what_to_do}", width - 2)
        lines += [f"{' ' * _MARGIN}  {line}" for line in steps]
    return "\n".join(lines)


def _indented(state: str, text: str) -> str:
    lines = wrapped_lines(text, min(WIDTH, columns()) - _MARGIN)
    return "\n".join(f"{'' if number else state:<{_MARGIN}}{line}" for number, line in enumerate(lines))


def _summary(counts: Counter[str], findings: list[CheckFinding]) -> str:
    """Return the first sentence: the faults and warnings, and what they are about."""
    kinds = [kind for kind in ("fault", "warning") if counts[kind]]
    if not kinds:
        return "No faults, no warnings."
    found = " and ".join(counted(counts[kind], kind) for kind in kinds)
    names = dict.fromkeys(finding.title for finding in findings if finding.state in kinds)
    return wrapped(f"{found}: {', '.join(names)}.", min(WIDTH, columns()))

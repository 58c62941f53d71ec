"""`ava doctor`: what is configured, what is missing, and what each role can do now, each with what to do.

This prints what the checks of `doctor_checks` find. A failure of one does not end the others. Only `doctor_online`
writes: it asks each provider in a run of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from ava_server.cli.options import Json
from ava_server.cli.terminal import columns, counted, heading, say, say_json, tell, wrapped, wrapped_lines

if TYPE_CHECKING:
    from ava_server.service.checks import CheckFinding, Setup

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
    as_json: Json = False,
) -> None:
    """Check everything that Ava needs, and say for each line what to do; exit code 1 for a fault.

    Without --online nothing is written and nothing is sent; the programs of MCP servers are started for a moment.
    """
    from ava_server.service.checks import read_setup

    setup = read_setup()
    if not as_json and setup.root is not None:
        heading(setup.root)
    elif not as_json:
        say("Data root: not known")
    findings = _findings(setup, online, as_json)
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
    raise typer.Exit(FAULT if counts["fault"] else 0)


def _findings(setup: Setup, online: bool, as_json: bool) -> list[CheckFinding]:
    """Print each finding at once."""
    from ava_server.cli.doctor_checks import CHECKS, redactor_of
    from ava_server.service.checks import run_checks
    from ava_server.service.checks.roles import remote_servers_not_asked, servers

    redactor = redactor_of(setup)
    findings: list[CheckFinding] = []

    def redacted(text: str) -> str:
        return redactor.redact(text)[0]

    def report(found: CheckFinding) -> None:
        found = replace(found, text=redacted(found.text), what_to_do=redacted(found.what_to_do))
        findings.append(found)
        if not as_json:
            say(_lines(found))

    remote = servers(setup, remote=True) if online else remote_servers_not_asked(setup)
    for found in chain(run_checks(CHECKS, setup, in_full=True), remote):
        report(found)
    if online:
        from ava_server.cli.doctor_online import ask_providers, try_search

        ask_providers(setup, lambda text: tell(redacted(text)), report)
        try_search(setup, tell, report)
    return findings


def _lines(finding: CheckFinding) -> str:
    width = min(WIDTH, columns()) - _MARGIN
    lines = wrapped_lines(f"{finding.name}: {finding.text}", width)
    if finding.what_to_do:
        lines += [f"  {line}" for line in wrapped_lines(f"To do: {finding.what_to_do}", width - 2)]
    return "\n".join(f"{'' if number else finding.state:<{_MARGIN}}{line}" for number, line in enumerate(lines))


def _summary(counts: Counter[str], findings: list[CheckFinding]) -> str:
    """Return the last sentence: the faults and warnings, and what they are about."""
    kinds = [kind for kind in ("fault", "warning") if counts[kind]]
    if not kinds:
        return "No faults, no warnings."
    found = " and ".join(counted(counts[kind], kind) for kind in kinds)
    names = dict.fromkeys(finding.name for finding in findings if finding.state in kinds)
    return wrapped(f"{found}: {', '.join(names)}.", min(WIDTH, columns()))

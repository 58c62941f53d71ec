"""`ava doctor`: what is configured, what is missing, what each role can do now; for each line what to do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from ava_server.cli.app import heading
from ava_server.cli.terminal import columns, say, say_json, tell, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ava_server.cli.doctor.check import Finding, Setup

FAULT = 1
WIDTH = 80
_MARGIN = 9


def register(app: typer.Typer) -> None:
    """Add `ava doctor` to the app."""
    app.command("doctor", short_help="What works here, what does not, and what to do about it.")(doctor_command)


def doctor_command(
    online: Annotated[
        bool,
        typer.Option(
            "--online",
            help=(
                "Ask each provider for one word too: at most 5 cents each, from today's budgets and in the log. Search"
                " the web once, where a search is set up: its price is in no budget. And ask MCP servers that have"
                " an address."
            ),
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Look at everything that Ava needs, and say for each line what to do; exit code 1 when something is at fault.

    Without --online nothing is written and nobody is asked; the programs of MCP servers are started for a moment.
    """
    from ava_server.cli.doctor.check import set_up
    from ava_server.cli.doctor.checks import look
    from ava_server.cli.doctor.foreign import not_asked, remote_servers

    setup = set_up()
    if not as_json:
        _head(setup)
    findings: list[Finding] = []

    def found(finding: Finding) -> None:
        findings.append(finding)
        if not as_json:
            say(_screen(finding))

    for finding in look(setup):
        found(finding)
    for finding in () if online else not_asked(setup):
        found(finding)
    if online:
        from ava_server.cli.doctor.checks import redactor_of, without_keys
        from ava_server.cli.doctor.online import ask_all
        from ava_server.cli.doctor.search import announced, try_search

        redactor = redactor_of(setup)
        for finding in without_keys(remote_servers(setup), redactor):
            found(finding)

        def found_online(finding: Finding) -> None:
            found(*without_keys([finding], redactor))

        ask_all(setup, lambda text: tell(redactor.redact(text)[0]), found_online)
        if line := announced(setup):
            tell(line)
            try_search(setup, found_online)
    counts = Counter(finding.state for finding in findings)
    if as_json:
        say_json(_as_json(setup, findings))
    else:
        say(_closing(counts["fault"], counts["warning"], findings))
    raise typer.Exit(FAULT if counts["fault"] else 0)


def _head(setup: Setup) -> None:
    if setup.root is not None:
        heading(setup.root)
    else:
        say("Data root: not known")


def _screen(finding: Finding) -> str:
    """Return a finding as lines of at most 80 columns, its advice beneath it."""
    width = min(WIDTH, columns()) - _MARGIN
    lines = wrapped(f"{finding.name}: {finding.text}", width).split("\n")
    if finding.what_to_do:
        lines += [f"  {line}" for line in wrapped(f"To do: {finding.what_to_do}", width - 2).split("\n")]
    first, *others = lines
    return "\n".join([f"{finding.state:<{_MARGIN}}{first}", *(f"{'':{_MARGIN}}{line}" for line in others)])


def _closing(faults: int, warnings: int, findings: Iterable[Finding]) -> str:
    """Return the last sentence: whether anything is to be done, and about what."""
    if not faults and not warnings:
        return "No faults, no warnings."
    counted = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in ((faults, "fault"), (warnings, "warning"))
        if count
    ]
    names = dict.fromkeys(finding.name for finding in findings if finding.state in ("fault", "warning"))
    return wrapped(f"{' and '.join(counted)}: {', '.join(names)}.", min(WIDTH, columns()))


def _as_json(setup: Setup, findings: list[Finding]) -> dict[str, object]:
    return {
        "data_root": str(setup.root.path) if setup.root is not None else None,
        "findings": [
            {"name": found.name, "state": found.state, "text": found.text, "what_to_do": found.what_to_do}
            for found in findings
        ],
        "faults": sum(found.state == "fault" for found in findings),
        "warnings": sum(found.state == "warning" for found in findings),
    }

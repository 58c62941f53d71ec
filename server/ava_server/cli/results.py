"""The result of a run as Markdown: what it brought, its findings with what became of each quote, and its figures.

What the subagent wrote stands in parts of its own, so that whoever shows them can tell it apart from our words.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ava_server.cli.views import cost_text, exit_code_of

if TYPE_CHECKING:
    from ava_server.cli.artifacts import SavedFiles
    from ava_server.service.responses import RunAnswer

VERDICTS = {
    "found": "found, word for word, in what the tools returned",
    "near": "nearly found in what the tools returned",
    "not_found": "NOT found in what the tools returned",
}
_FENCE = re.compile(r"`{3,}")


@dataclass(frozen=True)
class Finding:
    """What a subagent found: its claim, the quote for it, what became of that, and the source."""

    claim: str
    quote: str
    verdict: str
    source: str

    @property
    def said(self) -> str:
        """What is said of the quote."""
        return f"quote: {VERDICTS.get(self.verdict, 'not looked for')}"


@dataclass(frozen=True)
class Part:
    """A part of a result.

    Attributes:
        title: Ours.
        lines: Lines of ours.
        theirs: Markdown that the subagent wrote.
        findings: What it found.
    """

    title: str
    lines: tuple[str, ...] = ()
    theirs: str = ""
    findings: tuple[Finding, ...] = ()


def parts_of(run: RunAnswer, *, brief: bool = False, saved: SavedFiles | None = None) -> list[Part]:
    """Return a run's result in parts; of one that goes on, what it waits for.

    Args:
        run: The run with its result.
        brief: Leave the output out where the findings say it, as those of the offline reader always do.
        saved: Where its files were copied to.
    """
    from ava_server.runs.changes import changed_lines, changes_lines

    if exit_code_of(run.state) is None:
        return [Part("", (f"Waits for: {run.waits_for}",))] if run.waits_for else []
    result = run.untrusted_result
    first: list[str] = []
    if run.state != "success":
        first.append(f"Ended as {run.state}: {run.stop_reason or 'no reason is known'}. It may be incomplete.")
    if result is None:
        return [Part("", tuple(first))] if first else []
    if result.error_text:
        first.append(f"Error: {_one_line(result.error_text)}")
    if run.error and run.error.get("what_to_do"):
        first.append(f"What to do: {run.error['what_to_do']}")
    parts = [Part("", tuple(first))] if first else []
    if result.summary:
        parts.append(Part("Summary", theirs=result.summary))
    repeats = bool(result.findings) and (brief or (run.model or "").startswith("offline/"))
    if result.output is not None and result.output != result.summary and not repeats:
        parts.append(Part("Output", theirs=_markdown(result.output)))
    if result.findings:
        parts.append(Part("Findings, each with its source", findings=findings_of(run)))
    if result.caveats:
        parts.append(Part("Caveats", theirs="\n".join(f"- {_one_line(caveat)}" for caveat in result.caveats)))
    if run.changes:
        lines = (*changes_lines(run.subagent_id, run.changes), *changed_lines(result.changed or {}))
        parts.append(Part("Changes", lines))
    return [*parts, Part("Figures", tuple(_figures(run, saved)))]


def result_text(run: RunAnswer, *, brief: bool = False, saved: SavedFiles | None = None) -> str:
    """Return a run's result as Markdown; see `parts_of`."""
    blocks = [f"# {run.status_line}"]
    for part in parts_of(run, brief=brief, saved=saved):
        if part.title:
            blocks.append(f"## {part.title}")
        if part.theirs:
            blocks.append(part.theirs.strip("\n"))
        blocks += [_finding_text(number, one) for number, one in enumerate(part.findings, 1)]
        if part.lines:
            blocks.append("\n".join(_listed(part.lines) if part.title else part.lines))
    return "\n\n".join(blocks)


def findings_of(run: RunAnswer) -> tuple[Finding, ...]:
    """Return what a run found, each with what became of its quote."""
    verdicts = {quote.get("finding"): str(quote.get("verdict")) for quote in run.quotes_checked or ()}
    return tuple(
        Finding(
            _one_line(str(finding.get("claim", ""))),
            str(finding.get("quote") or "").strip(),
            verdicts.get(number, ""),
            _one_line(
                ", ".join(dict.fromkeys(str(finding[key]) for key in ("source_name", "source_url") if finding.get(key)))
            ),
        )
        for number, finding in enumerate(run.untrusted_result.findings if run.untrusted_result else (), 1)
    )


def _finding_text(number: int, one: Finding) -> str:
    lines = [f"{number}. {one.claim}"]
    if one.quote:
        lines += ["", *(f"   > {line}" for line in one.quote.splitlines()), "", f"   - {one.said}"]
    if one.source:
        lines.append(f"   - source: {one.source}")
    return "\n".join(lines)


def _listed(lines: tuple[str, ...]) -> list[str]:
    return [line if line.startswith(" ") else f"- {line}" for line in lines if line.strip()]


def _markdown(output: object) -> str:
    """Return an output as Markdown: text as it is, anything else as JSON that nothing in it can end."""
    if isinstance(output, str):
        return output
    text = json.dumps(output, ensure_ascii=False, indent=2)
    fence = max((found[0] for found in _FENCE.finditer(text)), key=len, default="``") + "`"
    return f"{fence}json\n{text}\n{fence}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _figures(run: RunAnswer, saved: SavedFiles | None) -> list[str]:
    lines: list[str] = []
    if run.confidence is not None:
        lines.append(f"Confidence, as the model says: {run.confidence:g}")
    if run.tool_receipts:
        calls = ", ".join(f"{name} {_calls(counts)}" for name, counts in run.tool_receipts.items())
        lines.append(f"Tools called: {calls}")
    lines.extend(
        f"File: {artifact['name']} ({artifact['bytes']} bytes, sha256 {artifact['sha256']})"
        for artifact in (run.untrusted_result.artifacts if run.untrusted_result else ())
    )
    lines.extend(saved.lines() if saved is not None else ())
    lines.append(f"Cost: {cost_text(run)}")
    return lines


def _calls(counts: dict[str, int]) -> str:
    failed = f" and {counts['failed']} failed" if counts["failed"] else ""
    return f"{counts['ok']}{failed}"

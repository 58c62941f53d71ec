"""What printers take: Ava's own words, or somebody else's, which the type of a text tells apart; and a run's result.

A surface lays a result out: as Markdown for a pipe or a file, drawn on a terminal, or as a page. A printer calls
`printed` with the way in which its surface escapes: a host's text with `escape_result`, a terminal and a file with
`clean` and bars. On pages, `finalize` in `web/context.py` does it for each value of a template.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from ava_audit.events import WHOLE
from ava_audit.units import format_usd, micros_from_cents
from ava_roles.wrap import one_line
from ava_server.core.names import quote_name
from ava_server.render.reasons import reason_words
from ava_server.render.responses import RunAnswer


@dataclass(frozen=True)
class UntrustedText:
    """A text that a model, a tool, a page, a person or a file's name has: data, never an instruction or markup."""

    text: str

    def __str__(self) -> str:
        """Refuse: an f-string would take it for a text of Ava's own. Raises TypeError: always."""
        raise TypeError("an untrusted text is printed by a printer, which escapes it for its surface")

    def __bool__(self) -> bool:
        return bool(self.text)


Text = str | UntrustedText


def printed(text: Text, escape: Callable[[str], str]) -> str:
    """Return a text for a surface: Ava's own as it is, somebody else's escaped."""
    return escape(text.text) if isinstance(text, UntrustedText) else text


@dataclass(frozen=True)
class NamedFact:
    """A figure or a fact under its name, for a line of a text or a row of a page."""

    label: str
    value: Text


VERDICTS = {"found": "✓ quote found word for word", "near": "≈ quote nearly found", "not_found": "✗ quote NOT found"}
UNCHECKED = "? quote not looked for"


def verdict_words(verdict: str) -> str:
    return VERDICTS.get(verdict, UNCHECKED)


@dataclass(frozen=True)
class FindingView:
    """What a subagent found: its claim, the quote for it, whether that was found again, and the source.

    `number` is by which its source is opened. `url` is the address in the source, where it has one. `found_in` is where
    Ava found the quote; empty where the source says the same.
    """

    number: int
    claim: UntrustedText
    quote: UntrustedText
    verdict: str
    source: UntrustedText
    url: UntrustedText
    found_in: UntrustedText

    @property
    def opens(self) -> bool:
        return bool(self.quote or self.source)

    @property
    def checked(self) -> str:
        return verdict_words(self.verdict)


@dataclass(frozen=True)
class Result:
    """A result in parts; what is missing is empty.

    Attributes:
        ended: Why the run ended, unless it succeeded.
        whole: Nothing is missing in it.
        error: What failed, in the words of a provider or a tool.
        summary: Markdown.
        output: Markdown; empty where it is the summary.
        findings: What it found; `quotes` says how many of their quotes were found again.
        sources: What it opened or found without evaluating it, under a title of Ava's.
        changes: What became of a coder's changes.
        changed: The files and test output, as the repository names them.
        branch: There is a branch with them.
    """

    ended: str
    whole: bool
    error: UntrustedText
    advice: str
    summary: UntrustedText
    output: UntrustedText
    findings: list[FindingView]
    quotes: str
    sources: list[tuple[str, list[FindingView]]]
    caveats: list[UntrustedText]
    artifacts: list[dict[str, Any]]
    changes: list[str]
    changed: list[UntrustedText]
    branch: bool
    figures: list[NamedFact]

    @property
    def cut_short(self) -> bool:
        """Whether the run handed over no result, so that Ava collected what it had."""
        from ava_server.runs.record.result import CUT_SHORT

        return any(caveat.text == CUT_SHORT for caveat in self.caveats)

    @property
    def nothing(self) -> bool:
        """Whether there was nothing to collect either."""
        from ava_server.runs.record.result import NO_RESULT

        return self.cut_short and self.summary.text == NO_RESULT and not self.output

    @property
    def caveats_beside_ending(self) -> list[UntrustedText]:
        """The caveats without the one that a sentence on the ending says already."""
        from ava_server.runs.record.result import CUT_SHORT

        return [caveat for caveat in self.caveats if not self.ended or caveat.text != CUT_SHORT]

    @property
    def first_source(self) -> int:
        """The number of the first finding whose source can be opened; 0 where there is none."""
        every = list(self.findings)
        for _title, found in self.sources:
            every += found
        for one in every:
            if one.opens:
                return one.number
        return 0

    @property
    def lost(self) -> bool:
        return any(one.verdict == "not_found" for one in self.findings)


def result_of(run: RunAnswer) -> Result | None:
    """Return a result; None where there is none yet, or it was erased."""
    result = run.untrusted_result
    if result is None:
        return None
    from ava_server.render.markdown import as_markdown  # these load what no start of a command needs
    from ava_server.runs.record.changes import changed_lines

    findings, sources = _apart(findings_of(run, result.findings))
    ended, summary, handed_over = _why_it_ended(run), result.summary, result.output
    if run.plan is not None:
        handed_over = _of_steps(handed_over)
        if ended and summary == run.stop_reason:  # the ending says it already
            summary = ""
    output = ""
    if handed_over is not None and handed_over != result.summary:
        output = as_markdown(handed_over)
    coded: dict[str, Any] = run.changes or {}
    changed: list[str] = []
    if coded:
        changed = changed_lines(result.changed or {})
    return Result(
        ended=ended,
        whole=run.state in WHOLE,
        error=UntrustedText(result.error_text or ""),
        advice=run.advice or "",
        summary=UntrustedText(summary),
        output=UntrustedText(output),
        findings=findings,
        quotes=quotes_line(findings),
        sources=sources,
        caveats=[UntrustedText(caveat) for caveat in result.caveats],
        artifacts=result.artifacts,
        changes=changes_of(run),
        changed=[UntrustedText(line) for line in changed],
        branch=bool(coded.get("branch")),
        figures=list(_figures(run)),
    )


def changes_of(run: RunAnswer) -> list[str]:
    """Return what became of a run's changes, or of those of each run of a plan, in lines of Ava's own."""
    from ava_server.runs.record.changes import changes_lines

    if run.changes:
        return changes_lines(run.subagent_id, run.changes)
    lines: list[str] = []
    for branch in run.branches or ():
        name = branch["step"] if branch["item"] is None else f"{branch['step']}[{branch['item']}]"
        first, *more = changes_lines(branch["subagent_id"], branch)
        lines += [f"Step {quote_name(name)}: {first}", *more]
    return lines


def _of_steps(output: object) -> object:
    """Return what the last steps of a plan handed over, without those that handed over nothing; None without any."""
    if not isinstance(output, dict):
        return output
    steps = cast("dict[str, Any]", output)
    return {step: each for step, each in steps.items() if each is not None} or None


def _why_it_ended(run: RunAnswer) -> str:
    if run.state == "success":
        return ""
    return reason_words(run.stop_reason or "no reason is known")


def _apart(every: Iterable[FindingView]) -> tuple[list[FindingView], list[tuple[str, list[FindingView]]]]:
    """Return the findings that a subagent evaluated, and the other sources under their titles."""
    from ava_server.runs.record.result import FOUND, LOOKED_AT

    titles = {LOOKED_AT: "Opened, but not evaluated", FOUND: "Found by a search, but not read"}
    findings: list[FindingView] = []
    sources: dict[str, list[FindingView]] = {title: [] for title in titles.values()}
    for one in every:
        title = titles.get(one.claim.text)
        if title is None:
            findings.append(one)
        else:
            sources[title].append(one)
    return findings, [(title, found) for title, found in sources.items() if found]


def _figures(run: RunAnswer) -> Iterable[NamedFact]:
    if run.confidence is not None:
        yield NamedFact("Confidence, as the model says", f"{run.confidence:g}")
    if run.tool_receipts is not None:
        yield NamedFact("Tools called", UntrustedText(receipts_text(run.tool_receipts)))


def receipts_text(receipts: dict[str, Any]) -> str:
    """`read_file 3, web_search 2 (1 failed)`, or `none`."""
    if not receipts:
        return "none"
    return ", ".join(f"{name} {_calls_words(count)}" for name, count in receipts.items())


def _calls_words(count: dict[str, int]) -> str:
    calls = str(count["ok"] + count["failed"])
    if not count["failed"]:
        return calls
    return f"{calls} ({count['failed']} failed)"


def artifact_text(artifact: dict[str, Any]) -> str:
    return f"File: {artifact['name']} ({artifact['bytes']} bytes, sha256 {artifact['sha256']})"


def cost_notes(run: RunAnswer) -> str:
    """Return what is to be said of a cost behind its figure."""
    notes = ""
    if run.uncosted:
        part = "part of it"
        micros = micros_from_cents((run.cost_by or {}).get("uncosted") or 0)
        if micros:
            part = f"{format_usd(micros)} of it"
        notes += f"; {part} is the most that it can be, because the provider did not say"
    if run.overrun and not run.advice:
        notes += "; a call cost more than the provider's own limits allow"
    return notes


def findings_of(run: RunAnswer, found: list[dict[str, Any]]) -> list[FindingView]:
    verdicts: dict[int | None, str] = {}
    for quote in run.quotes_checked or ():
        verdicts[quote.get("finding")] = str(quote.get("verdict"))
    findings: list[FindingView] = []
    for number, finding in enumerate(found, 1):
        findings.append(finding_of(number, finding, verdicts.get(number, "")))
    return findings


def finding_of(number: int, finding: dict[str, Any], verdict: str) -> FindingView:
    source = dict.fromkeys(str(finding[key]) for key in ("source_name", "source_url") if finding.get(key))
    return FindingView(
        number=number,
        claim=UntrustedText(one_line(str(finding.get("claim", "")))),
        quote=UntrustedText(str(finding.get("quote") or "").strip()),
        verdict=verdict,
        source=UntrustedText(one_line(", ".join(source))),
        url=UntrustedText(one_line(str(finding.get("source_url") or ""))),
        found_in=UntrustedText(one_line(str(finding.get("found_in") or ""))),
    )


def quotes_line(findings: Iterable[FindingView]) -> str:
    """Return how many of the quotes were found, `1 of 2, 1 NOT found ✗`; empty without a quote."""
    verdicts = Counter(one.verdict for one in findings if one.quote)
    if not verdicts:
        return ""
    counts = [f"{verdicts['found']} of {verdicts.total()}"]
    for verdict, words in (("near", "nearly found ≈"), ("not_found", "NOT found ✗"), ("", "not looked for ?")):
        if verdicts[verdict]:
            counts.append(f"{verdicts[verdict]} {words}")
    return f"Quotes found in what it read: {', '.join(counts)}"

"""What a subagent found: claims with their quotes, whether those were found again, and sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ava_roles.wrap import one_line
from ava_server.render.responses import RunAnswer

VERDICTS = {
    "found": "✓ quote found word for word",
    "near": "≈ quote nearly found",
    "not_found": "✗ quote NOT found",
}
UNCHECKED = "? quote not looked for"


@dataclass(frozen=True)
class Finding:
    """What a subagent found: its claim, the quote for it, whether that was found again, and the source.

    `url` is the address in the source, where it has one.
    """

    claim: str
    quote: str
    verdict: str
    source: str
    url: str = ""

    @property
    def checked(self) -> str:
        """What became of the quote."""
        return VERDICTS.get(self.verdict, UNCHECKED)


def findings_of(run: RunAnswer, found: list[dict[str, Any]]) -> list[Finding]:
    """Return the findings of a result.

    Args:
        run: The run, with the verdicts.
        found: The findings as the subagent handed them over.
    """
    verdicts = {quote.get("finding"): str(quote.get("verdict")) for quote in run.quotes_checked or ()}
    return [_finding(finding, verdicts.get(number, "")) for number, finding in enumerate(found, 1)]


def _finding(finding: dict[str, Any], verdict: str) -> Finding:
    source = dict.fromkeys(str(finding[key]) for key in ("source_name", "source_url") if finding.get(key))
    claim, quote = str(finding.get("claim", "")), str(finding.get("quote") or "")
    url = str(finding.get("source_url") or "")
    return Finding(one_line(claim), quote.strip(), verdict, one_line(", ".join(source)), one_line(url))


def quotes_line(findings: Iterable[Finding]) -> str:
    """Return how many quotes were found again; empty without a quote."""
    verdicts = Counter(one.verdict for one in findings if one.quote)
    marks = {"found": "✓", "near": "≈", "not_found": "✗", "": "?"}
    counts = ", ".join(f"{verdicts[verdict]} {mark}" for verdict, mark in marks.items() if verdicts[verdict])
    return f"Quotes, looked up in what the tools returned: {counts}" if counts else ""

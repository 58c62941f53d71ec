"""What the last calls of a model have shown, whichever run made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ava_audit.view import View, loads

CALLS = 50
"""How many of a model's last calls count."""
ENTRIES = 50_000
"""How many entries back these calls are searched."""

Named = Mapping[str, frozenset[str]]
"""What answers have named of their tier and place: the values of each field (`surcharges.ANSWER_FIELDS`)."""


@dataclass(frozen=True)
class RecentCalls:
    """What a model's last calls have shown.

    Attributes:
        tokens_per_byte: The highest ratio of prompt tokens to bytes that was measured, or None.
        named: What answers have named, by the mark of the account that was billed (`factory.account_of`).
    """

    tokens_per_byte: float | None = None
    named: Mapping[str, Named] = field(default_factory=dict[str, Named])

    def named_by(self, account: str) -> Named:
        return self.named.get(account, {})


def recent_calls(view: View, model: str) -> RecentCalls:
    """Return what a model's last calls have shown."""
    sql = "SELECT content FROM events WHERE type = 'CostUpdate' AND seq > ? AND model = ? ORDER BY seq DESC LIMIT ?"
    ratios: list[float] = []
    named: dict[str, Named] = {}
    for (content,) in view.select(sql, view.head() - ENTRIES, model, CALLS):
        fact = loads(content)
        if "tokens_per_byte" in fact:
            ratios.append(fact["tokens_per_byte"])
        account = fact.get("account")
        if account:
            named[account] = with_named(named.get(account, {}), fact.get("named", {}))
    return RecentCalls(max(ratios, default=None), named)


def with_named(known: Named, answer: Mapping[str, str]) -> Named:
    """Return what is known of an account with what another answer has named."""
    return with_all_named(known, {field: frozenset((value,)) for field, value in answer.items()})


def with_all_named(known: Named, more: Named) -> Named:
    return {field: known.get(field, frozenset()) | more.get(field, frozenset()) for field in {*known, *more}}

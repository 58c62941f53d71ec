"""Decide about exactly what was shown: the values of every decision, and what an approval takes.

A surface (a host's form or page, a terminal, the dashboard, a browser, HTTP) draws what is `Shown` and returns a
`PersonAnswer`. `service/service.py` carries it out: that takes the service, which this layer does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ava_server.core.errors import Refused

if TYPE_CHECKING:
    from ava_server.config.settings import Policy

OTHER_REFUSED = "none was started, because another one cannot start"
Kind = Literal["start", "extend", "answer", "resume", "cancel", "send"]
"""What a yes does; `start`, `extend`, `resume` and a yes to a call (`answer`) are approvals."""


@dataclass(frozen=True)
class Shown:
    """What a person decides on.

    Attributes:
        kind: What a yes does.
        id: The proposal for `start`, else the run.
        digest: What the decision covers: with another digest now, it is refused. A question has its id here; what
            has no content that could change has nothing.
        line: The approval line, which an approval repeats.
        text: Everything else that they see, where it is the same on each surface.
    """

    kind: Kind
    id: str
    digest: str = ""
    line: str = ""
    text: str = ""


SCREEN_CHARS, FOLDED_CHARS = 20_000, 2_000
"""Characters that the log has of what was on a person's screen, and of what was folded there."""


@dataclass(frozen=True)
class FoldedScreen:
    """What a person saw of a proposal who decided while some of it was folded, or had no room in a host's question.

    Attributes:
        text: What was on the screen.
        folded: What was not, counted: `task, 3,912 characters more`.
    """

    text: str
    folded: str

    def cut(self) -> FoldedScreen:
        """Return it as the log may have it; what is too long ends with `…`."""
        return FoldedScreen(_cut(self.text, SCREEN_CHARS), _cut(self.folded, FOLDED_CHARS))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


@dataclass(frozen=True)
class PersonAnswer:
    """What the person has answered.

    Attributes:
        agrees: They said yes; else a proposal is rejected, and a run near a cap wraps up.
        words: Their message, their answer, or the reason for a cancellation.
        lines: The approval lines that they were shown; None where they sent none, which approves nothing.
        limits: Lower limits, as `confirm_spawn` takes them.
        screens: What was on the screen, by proposal, where some of it stayed folded.
    """

    agrees: bool
    words: str | None = None
    lines: Sequence[str] | None = None
    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    screens: Mapping[str, FoldedScreen] = field(default_factory=dict[str, FoldedScreen])


def tool_call(shown: Sequence[Shown], answer: PersonAnswer) -> tuple[str, dict[str, Any]]:
    """Return the tool that carries out a person's decision, and its arguments.

    Several things that are shown together are all proposals. Raises ValueError for a request of a run (`extend`,
    `answer`), which the service decides without a tool.
    """
    first = shown[0]
    arguments: dict[str, Any]
    match first.kind:
        case "start":
            arguments = {"pending_ids": [proposal.id for proposal in shown], "decision": "reject"}
            if answer.agrees:
                arguments["decision"] = "approve"
            if answer.lines is not None:
                arguments["approving"] = list(answer.lines)
            arguments.update(answer.limits)
            return "confirm_spawn", arguments
        case "resume":
            return "confirm_spawn", {"pending_ids": [first.id], "approving": [first.line]}
        case "cancel":
            arguments = {"subagent_id": first.id}
            if answer.words is not None:
                arguments["reason"] = answer.words
            return "cancel_subagent", arguments
        case "send":
            return "message_subagent", {"subagent_id": first.id, "message": answer.words}
        case "extend" | "answer":
            raise ValueError("what a run asks is decided by the service, not by a tool")


@dataclass(frozen=True)
class Decided:
    """The outcome of a decision: `fields` is the answer of the call, and the properties are what people need of it."""

    fields: Mapping[str, Any]

    @property
    def status(self) -> str:
        """`approved`, `rejected`, `declined`, `resumed`, `refused`, or a run's state."""
        return str(self.fields.get("status", ""))

    @property
    def text(self) -> str:
        """The outcome in a sentence; empty if the answer has none."""
        return str(self.fields.get("message") or "")

    @property
    def reasons(self) -> list[str]:
        """The different reasons of the refusals. "Another one was refused" is left out if there is a real reason."""
        reasons: dict[str, None] = {}
        for decision in self.fields.get("decisions", ()):
            why = decision.get("refused_because")
            if why is not None:
                reasons[why] = None
        real_reasons = [why for why in reasons if why != OTHER_REFUSED]
        return real_reasons or list(reasons)

    def expect(self, status: str, otherwise: str) -> None:
        """Raise Refused unless the decision has this status. The error begins with `otherwise` and has the reasons."""
        if self.status != status:
            why = "; ".join(self.reasons) or self.status
            raise Refused(f"{otherwise}: {why}.")


# -- who may approve --------------------------------------------------------------------------------------------------

ONLY_PERSON: Mapping[Kind, str] = {
    "start": (
        'approval = "human": only the approval PIN approves: in a terminal with `ava approve {ids}`, or in a browser'
        " with `ava ui`. No tool can; show the person both"
    ),
    "extend": (
        'approval = "human": only the approval PIN allows a run more: in a terminal with `ava approve {ids}`, or in a'
        " browser with `ava ui`. No tool can"
    ),
    "answer": (
        'approval = "human": only the approval PIN allows a call: in a terminal with `ava send`, or in a browser with'
        " `ava ui`. No tool can"
    ),
    "resume": 'approval = "human" is set: a person resumes it in a terminal, with `ava resume {ids}`',
}
"""Why a host's call is refused where only a person may approve."""
NOT_FROM_TERMINAL = (
    "This page was not opened from a terminal, so it may be a program that looks at it. To approve here, run `ava ui`"
    " in a terminal, add a passkey with `ava passkey add NAME`, or set a PIN with `ava pin set`."
)
NO_SCOPE = "Your token lacks the scope approve, so you can look, but not approve."
NO_MEANS = (
    'approval = "human" is set, but there is no approval PIN and no passkey, so nothing can be approved. The person who'
    " runs the server can set a PIN with `ava pin set`, or add a passkey with `ava passkey add NAME`."
)
ONLY_IN_BROWSER = "{user} has a passkey for this server, and approves with it in the browser: {url}"
Where = Literal["host", "terminal", "browser", "token"]


@dataclass(frozen=True)
class Needs:
    """What a person has to give for an approval.

    Attributes:
        pin: The approval PIN; with `passkey`, either of the two.
        passkey: A passkey; with `pin`, either of the two.
        new_pin: A PIN that the person chooses with this approval, because none is set yet.
        refusal: Why nobody can approve here; None if somebody can.
    """

    pin: bool = False
    passkey: bool = False
    new_pin: bool = False
    refusal: str | None = None

    @property
    def nothing(self) -> bool:
        return not (self.pin or self.passkey or self.new_pin or self.refusal)


def approval_needs(
    where: Where,
    policy: Policy,
    *,
    pin: bool = False,
    passkey: bool = False,
    scope: bool | None = None,
    from_terminal: bool = False,
) -> Needs:
    """Return what an approval takes. Nothing else says who may approve.

    | policy | a host's call | terminal | `ava ui` | browser, over HTTP | a program with a token |
    |---|---|---|---|---|---|
    | ask, auto | nothing | nothing | a session opened from a terminal | scope | scope |
    | human, with a PIN | refused | PIN | PIN | scope, and PIN | scope |
    | human, without a PIN | refused | a new PIN | a new PIN | scope | scope |
    | any, for a user with a passkey for this site | | | passkey or PIN | scope, and passkey or PIN | refused |

    Scope is a token's scope `approve`. While there is a PIN, the policy is `human`. To reject, to cancel and to answer
    a question takes only the session, but for a yes to a call: a model may do so too.

    `policy`: the policy in force, of this user and of the run's. `pin`: there is an approval PIN; a browser can send
    it. `passkey`: the user has a passkey for this site. `scope`: whether the token has the scope `approve`; None for a
    user of this machine. `from_terminal`: the browser's session was opened from a terminal.
    """
    if scope is False:
        return Needs(refusal=NO_SCOPE)
    if where == "terminal":
        return Needs(pin=policy == "human")
    if where == "token":
        return Needs(refusal=ONLY_IN_BROWSER if passkey else None)
    if where == "browser" and (pin or passkey):
        return Needs(pin=pin, passkey=passkey)
    if scope:
        return Needs()
    is_local_browser = where == "browser" and scope is None
    if policy == "human":
        if is_local_browser:
            return Needs(new_pin=True)
        return Needs(refusal=NO_MEANS)
    if is_local_browser and not from_terminal:
        return Needs(refusal=NOT_FROM_TERMINAL)
    return Needs()

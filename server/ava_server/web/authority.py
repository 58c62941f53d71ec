"""What a visitor has to give for an approval: something that only a person has.

| policy | on this machine (`ava ui`) | over HTTP |
|---|---|---|
| ask, auto | a session opened from a terminal, or a passkey | a token with the scope `approve` |
| human | the approval PIN, or a passkey | such a token, and the PIN or a passkey |

Whoever has registered a passkey is asked for it (or for the PIN) under every policy. To reject, to cancel and to answer
a question takes only the session: a model may do so too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio.to_thread

from ava_server.config.pin import PinFile
from ava_server.core.errors import Refused

if TYPE_CHECKING:
    from ava_server.service.runtime import Runtime
    from ava_server.web.site import Visitor

NOT_FROM_TERMINAL = (
    "This page was not opened from a terminal, so it may be a program that looks at it. To approve here, run `ava ui`"
    " in a terminal, or set a PIN with `ava pin set`."
)
NO_SCOPE = "Your token lacks the scope approve, so you can look, but not approve."
NO_MEANS = (
    'approval = "human" is set, but there is no approval PIN and no passkey, so nothing can be approved. The person who'
    " runs the server can set a PIN with `ava pin set`."
)
GIVE_PIN = "Enter the approval PIN."


@dataclass(frozen=True)
class Means:
    """How a visitor can prove that they may approve.

    Attributes:
        pin: With the approval PIN.
        passkey: With a passkey.
        refusal: Why they cannot; None where they can.
    """

    pin: bool = False
    passkey: bool = False
    refusal: str | None = None

    @property
    def nothing(self) -> bool:
        """Whether the session itself is enough."""
        return not (self.pin or self.passkey or self.refusal)


class Authority:
    """Decides what an approval takes, and checks it.

    Args:
        runtime: What this process has open.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pin = PinFile(runtime.settings.paths.approval_file)

    async def means(self, visitor: Visitor) -> Means:
        """Return what an approval by a visitor takes now.

        Raises:
            ConfigError: It is not known, so nothing can be approved.
        """
        if not visitor.may("approve"):
            return Means(refusal=NO_SCOPE)
        policy = await self._runtime.policy(visitor.user)
        pin = await anyio.to_thread.run_sync(lambda: self._pin.is_set)
        if pin:
            return Means(pin=True)
        if policy == "human":
            return Means() if visitor.token is not None else Means(refusal=NO_MEANS)
        if visitor.token is None and not visitor.session.terminal:
            return Means(refusal=NOT_FROM_TERMINAL)
        return Means()

    async def check(self, visitor: Visitor, pin: str) -> None:
        """Check what a visitor has given for an approval.

        Raises:
            Refused: It is not enough; says why.
            ConfigError: It cannot be checked.
        """
        means = await self.means(visitor)
        if means.refusal is not None:
            raise Refused(means.refusal)
        if means.pin:
            await self.check_pin(pin)

    async def check_pin(self, pin: str) -> None:
        """Check the approval PIN.

        Raises:
            Refused: It is missing or wrong, or locked.
            ConfigError: It cannot be checked.
        """
        if not pin:
            raise Refused(GIVE_PIN)
        await anyio.to_thread.run_sync(self._pin.check, pin)

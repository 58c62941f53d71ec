"""What a visitor has to give for an approval: something that only a person has.

| policy | on this machine (`ava ui`) | over HTTP |
|---|---|---|
| ask, auto | a session opened from a terminal | a token with the scope `approve` |
| human, with a PIN | the approval PIN | such a token, and the PIN |
| human, without a PIN | nothing is enough | such a token |
| any, for a user with a passkey for this site | the passkey, or the PIN | such a token, and the passkey or the PIN |

The PIN counts only where one is set; then the policy is `human`. A passkey counts only for the form that it was used
for. To remove a passkey takes a passkey or the PIN as well, so that nobody gets around one by removing it. To reject,
to cancel and to answer a question takes only the session: a model may do so too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio.to_thread

from ava_server.config.pin import PinFile
from ava_server.core.errors import Refused
from ava_server.web.webauthn import RelyingParty

if TYPE_CHECKING:
    from ava_server.mcp_server.app import App
    from ava_server.web.requests import Form
    from ava_server.web.site import Site, Visitor
    from ava_server.web.webauthn import Subject

NOT_FROM_TERMINAL = (
    "This page was not opened from a terminal, so it may be a program that looks at it. To approve here, run `ava ui`"
    " in a terminal, add a passkey with `ava passkey add NAME`, or set a PIN with `ava pin set`."
)
NO_SCOPE = "Your token lacks the scope approve, so you can look, but not approve."
NO_MEANS = (
    'approval = "human" is set, but there is no approval PIN and no passkey, so nothing can be approved. The person who'
    " runs the server can set a PIN with `ava pin set`, or add a passkey with `ava passkey add NAME`."
)
GIVE_PIN = "Enter the approval PIN."
GIVE_PASSKEY = "Use your passkey. The page needs JavaScript for that."
GIVE_EITHER = "Use your passkey, or enter the approval PIN."


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
        app: The server.
        site: For whom the pages are.

    Attributes:
        passkeys: Asks browsers for passkeys, and checks them.
    """

    def __init__(self, app: App, site: Site) -> None:
        self._app = app
        self.passkeys = RelyingParty(site)

    async def means(self, visitor: Visitor, of: str | None = None) -> Means:
        """Return what an approval by a visitor takes now.

        Args:
            visitor: Who approves.
            of: The user of the run, where that may be another one, whose policy counts too.

        Raises:
            ConfigError: It is not known, so nothing can be approved.
        """
        if not visitor.may("approve"):
            return Means(refusal=NO_SCOPE)
        proof = await self.proof(visitor)
        if not proof.nothing:
            return proof
        if visitor.token is not None:
            return Means()
        if await self._app.runtime.policy(visitor.user, of or visitor.user) == "human":
            return Means(refusal=NO_MEANS)
        return Means() if visitor.session.terminal else Means(refusal=NOT_FROM_TERMINAL)

    async def proof(self, visitor: Visitor) -> Means:
        """Return how a visitor can prove that they are the person whose session it is.

        Raises:
            ConfigError: It is not known.
        """
        return Means(pin=await self.pin_is_set(), passkey=bool(await self.passkeys.own(visitor.user)))

    async def pin_is_set(self) -> bool:
        """Tell whether there is an approval PIN.

        Raises:
            ConfigError: It is not known.
        """
        return await anyio.to_thread.run_sync(lambda: self._pin.is_set)

    async def check(self, visitor: Visitor, form: Form, subject: Subject, of: str | None = None) -> None:
        """Check what a visitor has given for an approval.

        Args:
            visitor: Who approves.
            form: What they have sent.
            subject: What they approve; a passkey must have been used for exactly this.
            of: The user of the run, where that may be another one.

        Raises:
            Refused: It is not enough; says why.
            ConfigError: It cannot be checked.
        """
        means = await self.means(visitor, of)
        if means.refusal is not None:
            raise Refused(means.refusal)
        if not means.nothing:
            await self._check_proof(means, visitor, form, subject)

    async def check_person(self, visitor: Visitor, form: Form, subject: Subject) -> None:
        """Check that a visitor has given their passkey or the PIN, whatever the policy is.

        Raises:
            Refused: They have not, or there is neither.
            ConfigError: It cannot be checked.
        """
        await self._check_proof(await self.proof(visitor), visitor, form, subject)

    async def check_pin(self, pin: str) -> None:
        """Check the approval PIN.

        Raises:
            Refused: It is missing or wrong, or locked.
            ConfigError: It cannot be checked.
        """
        if not pin:
            raise Refused(GIVE_PIN)
        await anyio.to_thread.run_sync(self._pin.check, pin)

    async def _check_proof(self, means: Means, visitor: Visitor, form: Form, subject: Subject) -> None:
        signed, pin = form.one("passkey"), form.one("pin")
        if signed and not pin:
            await self.passkeys.check_use(visitor.user, visitor.session.hash, subject, signed)
        elif means.pin and (pin or not means.passkey):
            await self.check_pin(pin)
        else:
            raise Refused(GIVE_EITHER if means.pin else GIVE_PASSKEY)

    @property
    def _pin(self) -> PinFile:
        return PinFile(self._app.runtime.settings.paths.approval_file)

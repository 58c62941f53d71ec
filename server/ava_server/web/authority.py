"""Checks what a visitor has given for an approval: something that only a person has; see `approval_needs`.

A passkey counts only for the form that it was used for. To remove a passkey takes a passkey or the PIN as well, so that
nobody gets around one by removing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio.to_thread

from ava_audit.events import Event, SettingsChanged
from ava_audit.view import append
from ava_server.approval.decide import Needs, approval_needs
from ava_server.approval.proposals import made_under_human
from ava_server.config.pin import PinFile
from ava_server.core.errors import Refused
from ava_server.web.webauthn import RelyingParty

if TYPE_CHECKING:
    from ava_server.mcp_server.app import App
    from ava_server.web.requests import Form
    from ava_server.web.site import Site, Visitor
    from ava_server.web.webauthn import Subject

GIVE_PIN = "Enter the approval PIN."
CHOOSE_PIN = "Choose an approval PIN, and repeat it: from now on it approves what starts."
GIVE_PASSKEY = "Use your passkey. The page needs JavaScript for that."
GIVE_EITHER = "Use your passkey, or enter the approval PIN."


class Authority:
    """Decides what an approval takes, and checks it; `passkeys` asks browsers for passkeys."""

    def __init__(self, app: App, site: Site) -> None:
        self._app = app
        self.passkeys = RelyingParty(site)

    async def needs(self, visitor: Visitor, of: str | None = None, ids: Sequence[str] = ()) -> Needs:
        """Return what an approval by a visitor takes now.

        Args:
            visitor: Who approves.
            of: Whose run it is, if it is another user's.
            ids: The proposals or runs.

        Raises:
            ConfigError: It is not known, so nothing can be approved.
        """
        proof = await self.proof(visitor)
        human = bool(ids) and await self._app.runtime.store.read(lambda view: made_under_human(view, ids))
        return approval_needs(
            "browser",
            await self._app.runtime.policy(visitor.user, of or visitor.user, made_under_human=human),
            pin=proof.pin,
            passkey=proof.passkey,
            scope=None if visitor.token is None else visitor.may("approve"),
            from_terminal=visitor.session.terminal,
        )

    async def proof(self, visitor: Visitor) -> Needs:
        """Return how a visitor can prove that they are the person whose session it is."""
        return Needs(pin=await self.pin_is_set(), passkey=bool(await self.passkeys.own(visitor.user)))

    async def pin_is_set(self) -> bool:
        """Tell whether there is an approval PIN."""
        return await anyio.to_thread.run_sync(lambda: self._pin.is_set)

    async def check(
        self, visitor: Visitor, form: Form, subject: Subject, of: str | None = None, ids: Sequence[str] = ()
    ) -> None:
        """Check what a visitor has given for an approval; a passkey must have been used for exactly this subject.

        A PIN that they choose with it is stored. For `of` and `ids` see `needs`.

        Raises:
            Refused: It is not enough; says why.
            ConfigError: It cannot be checked.
        """
        needs = await self.needs(visitor, of, ids)
        if needs.refusal is not None:
            raise Refused(needs.refusal)
        if needs.new_pin:
            await self._choose_pin(visitor, form)
        elif not needs.nothing:
            await self._check_proof(needs, visitor, form, subject)

    async def _choose_pin(self, visitor: Visitor, form: Form) -> None:
        new = form.one("new_pin")
        if not new or form.one("new_pin_again") != new:
            raise Refused(CHOOSE_PIN if not new else "The two PINs are not the same; nothing was stored.")
        await anyio.to_thread.run_sync(self._pin.set, new)
        store, who = self._app.runtime.store, visitor.service_session("").who
        store.post(append(Event(who, SettingsChanged(setting="approval_pin", before=None, after="set"))))

    async def check_person(self, visitor: Visitor, form: Form, subject: Subject) -> None:
        """Check that a visitor has given their passkey or the PIN, whatever the policy is."""
        await self._check_proof(await self.proof(visitor), visitor, form, subject)

    async def check_pin(self, pin: str) -> None:
        """Check the approval PIN."""
        if not pin:
            raise Refused(GIVE_PIN)
        await anyio.to_thread.run_sync(self._pin.check, pin)

    async def _check_proof(self, needs: Needs, visitor: Visitor, form: Form, subject: Subject) -> None:
        signed, pin = form.one("passkey"), form.one("pin")
        if signed and not pin:
            await self.passkeys.check_use(visitor.user, visitor.session.hash, subject, signed)
        elif needs.pin and (pin or not needs.passkey):
            await self.check_pin(pin)
        else:
            raise Refused(GIVE_EITHER if needs.pin else GIVE_PASSKEY)

    @property
    def _pin(self) -> PinFile:
        return PinFile(self._app.runtime.settings.paths.approval_file)

"""WebAuthn: the challenges that browsers get, and the checks of what a passkey has signed.

A challenge counts once, within five minutes, in the session that asked for it, and for one subject: the exact form
that it was asked for. What a passkey has signed for one proposal therefore approves no other.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast
from urllib.parse import urlsplit

import anyio.to_thread

from ava_server.config.sign_in import Passkey, new_passkey
from ava_server.core.errors import Refused

if TYPE_CHECKING:
    from fido2.webauthn import (
        AttestedCredentialData,
        AuthenticationResponse,
        AuthenticatorData,
        PublicKeyCredentialDescriptor,
        PublicKeyCredentialUserEntity,
        RegistrationResponse,
        ResidentKeyRequirement,
        UserVerificationRequirement,
    )

    from ava_server.web.site import Site

T = TypeVar("T")
CHALLENGE_S = 5 * 60.0
"""How long a challenge can be used."""
LONGEST = 16_384
"""Most characters of what a browser sends of a passkey."""
_PORTS = {"http": 80, "https": 443}
PROOFS = frozenset({"csrf", "pin", "passkey"})
"""Fields of a form that prove who has sent it, and say nothing of what is done."""

NONE_HERE = "You have no passkey for this site."
NOT_HERE = (
    "Browsers accept passkeys only over https or on localhost, and only under a name, not an address with numbers. The"
    " person who runs the server can set its name with --public-url."
)
TOO_LATE = "This use of the passkey is not accepted: it is older than 5 minutes, or was sent before. Try again."
OTHER = "Your passkey has approved something else than this form. Nothing was done; reload the page and try again."
WRONG = "Your passkey could not be checked, so nothing was done: {}"
UNREADABLE = WRONG.format("what the browser sent cannot be read.")


@dataclass(frozen=True)
class Subject:
    """What a passkey is used for: a form, with everything that it says.

    It is a SHA-256 of the path and the fields: a form may be long, and many challenges are remembered.
    """

    digest: bytes

    @classmethod
    def of(cls, path: str, fields: Iterable[tuple[str, str]]) -> Subject:
        """Return the subject of a form: of all fields, sorted by name, without those that prove who has sent it."""
        plain = [(name, value.replace("\r\n", "\n")) for name, value in fields if name not in PROOFS]
        said = json.dumps([path, sorted(plain, key=lambda field: field[0])])
        return cls(hashlib.sha256(said.encode()).digest())


SIGN_IN = Subject.of("/sign-in", ())


@dataclass(frozen=True)
class Purpose:
    """What a challenge can be used for; `session` is the hash of the browser's session, empty to sign in."""

    ceremony: Literal["create", "get"]
    session: str
    user: str
    subject: Subject

    @property
    def digest(self) -> str:
        said = json.dumps([self.ceremony, self.session, self.user, self.subject.digest.hex()])
        return hashlib.sha256(said.encode()).hexdigest()


class _Server(Protocol):
    """What is used of fido2's server, some of whose parameters have no type."""

    def authenticate_begin(
        self,
        credentials: list[PublicKeyCredentialDescriptor],
        user_verification: UserVerificationRequirement,
        challenge: bytes,
    ) -> tuple[Mapping[str, Any], object]: ...

    def authenticate_complete(
        self, state: dict[str, Any], credentials: list[AttestedCredentialData], response: AuthenticationResponse
    ) -> AttestedCredentialData: ...

    def register_begin(
        self,
        user: PublicKeyCredentialUserEntity,
        credentials: list[PublicKeyCredentialDescriptor],
        resident_key_requirement: ResidentKeyRequirement,
        user_verification: UserVerificationRequirement,
        *,
        challenge: bytes,
    ) -> tuple[Mapping[str, Any], object]: ...

    def register_complete(self, state: dict[str, Any], response: RegistrationResponse) -> AuthenticatorData: ...


class RelyingParty:
    """The site, as WebAuthn sees it: it asks browsers for passkeys, and checks them.

    The challenges that were issued and not used yet are stored with the sessions, for all servers.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._store = site.passkeys

    @property
    def is_possible(self) -> bool:
        """Whether browsers accept passkeys for this site."""
        try:
            ipaddress.ip_address(self._site.host)
        except ValueError:
            return self._site.secure or self._site.host == "localhost"
        return False

    async def own(self, user: str) -> list[Passkey]:
        """Raises ConfigError if they cannot be read."""
        return await anyio.to_thread.run_sync(self._store.of, user, self._site.host)

    async def begin_use(self, user: str, session: str, subject: Subject) -> dict[str, Any]:
        """Return what a browser needs to use one of a user's passkeys.

        Raises Refused if the user has none for this site; ConfigError if the passkeys cannot be read.
        """
        known = await self.own(user)
        if not known:
            raise Refused(NONE_HERE)
        challenge = await anyio.to_thread.run_sync(self._issue, Purpose("get", session, user, subject))

        def options() -> dict[str, Any]:
            from fido2.webauthn import UserVerificationRequirement

            required = UserVerificationRequirement.REQUIRED
            begun, _state = self._server().authenticate_begin(_described(known), required, challenge)
            return _as_json(begun)

        return await anyio.to_thread.run_sync(options)

    async def check_use(self, user: str, session: str, subject: Subject, given: str) -> Passkey:
        """Return the passkey that was used.

        Raises Refused if it is not the user's or was not used for this; ConfigError if the passkeys cannot be read or
        written.
        """
        return await anyio.to_thread.run_sync(self._checked_use, Purpose("get", session, user, subject), given)

    async def begin_adding(self, user: str, session: str, name: str) -> dict[str, Any]:
        """Return what a browser needs to create a passkey.

        Raises Refused: browsers accept none here, or the user may have no other of this name; ConfigError: unreadable.
        """
        if not self.is_possible:
            raise Refused(NOT_HERE)
        await anyio.to_thread.run_sync(self._store.check_new, user, name)
        known = await self.own(user)
        challenge = await anyio.to_thread.run_sync(self._issue, _adding(user, session, name))

        def options() -> dict[str, Any]:
            from fido2.webauthn import (
                PublicKeyCredentialUserEntity,
                ResidentKeyRequirement,
                UserVerificationRequirement,
            )

            begun, _state = self._server().register_begin(
                PublicKeyCredentialUserEntity(id=hashlib.sha256(user.encode()).digest(), name=user, display_name=user),
                _described(known),
                ResidentKeyRequirement.PREFERRED,
                UserVerificationRequirement.REQUIRED,
                challenge=challenge,
            )
            return _as_json(begun)

        return await anyio.to_thread.run_sync(options)

    async def add(self, user: str, session: str, name: str, given: str) -> Passkey:
        """Raises Refused: what the browser has created cannot be accepted; ConfigError: it cannot be stored."""

        def stored() -> Passkey:
            passkey = self._checked_new(_adding(user, session, name), name, given)
            self._store.add(passkey)
            return passkey

        return await anyio.to_thread.run_sync(stored)

    def _issue(self, purpose: Purpose) -> bytes:
        """Blocking. Raises ConfigError if it cannot be stored."""
        lasts_us = int(CHALLENGE_S * 1_000_000)
        return self._site.sessions.issue_challenge(purpose.user, purpose.digest, lasts_us).encode()

    def _checked_use(self, purpose: Purpose, given: str) -> Passkey:
        from fido2 import cbor
        from fido2.cose import CoseKey
        from fido2.webauthn import Aaguid, AttestedCredentialData, AuthenticationResponse

        answer = _parsed(given, AuthenticationResponse.from_dict)
        state = self._taken(answer.response.client_data, purpose)
        known = {each.credential: each for each in self._store.of(purpose.user, self._site.host)}

        def check() -> Passkey:
            parsed = {id_: CoseKey.parse(cast("Any", cbor).decode(each.public_key)) for id_, each in known.items()}
            keys = [AttestedCredentialData.create(Aaguid.NONE, *each) for each in parsed.items()]
            return known[self._server().authenticate_complete(state, keys, answer).credential_id]

        passkey = _translated(check)
        self._store.note_use(passkey, answer.response.authenticator_data.counter)
        return passkey

    def _checked_new(self, purpose: Purpose, name: str, given: str) -> Passkey:
        from fido2 import cbor
        from fido2.cose import UnsupportedKey
        from fido2.webauthn import RegistrationResponse

        answer = _parsed(given, RegistrationResponse.from_dict)
        state = self._taken(answer.response.client_data, purpose)
        made = _translated(lambda: self._server().register_complete(state, answer))
        assert made.credential_data is not None
        key, credential = made.credential_data.public_key, made.credential_data.credential_id
        if isinstance(key, UnsupportedKey):
            raise Refused(WRONG.format("its kind of key is not supported."))
        return new_passkey(purpose.user, name, self._site.host, credential, cbor.encode(key), made.counter)

    def _taken(self, client_data: Any, purpose: Purpose) -> dict[str, Any]:
        """Return fido2's state. Blocking.

        Raises Refused: the signed challenge is unknown, used or too old, or issued for something else; ConfigError: the
        challenges cannot be read.
        """
        from fido2.utils import websafe_encode

        issued_for = self._site.sessions.take_challenge(client_data.challenge.decode("ascii", "replace"))
        if issued_for is None:
            raise Refused(TOO_LATE)
        if issued_for != purpose.digest or client_data.cross_origin:
            raise Refused(OTHER)
        return {"challenge": websafe_encode(client_data.challenge), "user_verification": "required"}

    def _server(self) -> _Server:
        from fido2.server import Fido2Server
        from fido2.webauthn import PublicKeyCredentialRpEntity

        origin = _origin(self._site.url)
        return Fido2Server(
            PublicKeyCredentialRpEntity(id=self._site.host, name="Ava"), verify_origin=lambda given: given == origin
        )


def _adding(user: str, session: str, name: str) -> Purpose:
    return Purpose("create", session, user, Subject.of("/passkeys", (("name", name),)))


def _described(known: Iterable[Passkey]) -> list[PublicKeyCredentialDescriptor]:
    from fido2.webauthn import PublicKeyCredentialDescriptor, PublicKeyCredentialType

    kind = PublicKeyCredentialType.PUBLIC_KEY
    return [PublicKeyCredentialDescriptor(type=kind, id=each.credential) for each in known]


def _as_json(options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = dict(options["publicKey"])
    return {**found, "timeout": int(CHALLENGE_S * 1000)}


def _parsed(given: str, parse: Callable[[Mapping[str, Any]], T]) -> T:
    """Return what `parse` makes of a JSON object. Raises Refused if that is too long or cannot be read."""
    if len(given) > LONGEST:
        raise Refused(WRONG.format("what the browser sent is too long."))
    sent = _translated(lambda: json.loads(given))
    if not isinstance(sent, dict):
        raise Refused(UNREADABLE)
    return _translated(lambda: parse(cast("dict[str, Any]", sent)))


def _translated(check: Callable[[], T]) -> T:
    """Raises Refused if the check of fido2 has failed."""
    try:
        return check()
    except ValueError as error:
        raise Refused(WRONG.format(error)) from None
    except Exception:  # it parses bytes of anybody, and raises whatever its parsers raise
        raise Refused(UNREADABLE) from None


def _origin(url: str) -> str:
    """Return an origin as browsers write it, without the default port."""
    parts = urlsplit(url)
    port = "" if parts.port in (None, _PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}"

"""A software authenticator: it signs what it is told to, so that tests can attack every check of a passkey.

key = Authenticator(there.base)
answer = key.create(options)                 # what `navigator.credentials.create` returns, as JSON
answer = key.get(options, verified=False)    # what `navigator.credentials.get` returns, with one thing wrong
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, cast
from urllib.parse import urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from fido2.cose import ES256
from fido2.utils import websafe_decode, websafe_encode
from fido2.webauthn import Aaguid, AttestationObject, AttestedCredentialData, AuthenticatorData, CollectedClientData

from support.pages.browser import There, Visitor

FLAG = AuthenticatorData.FLAG


class Authenticator:
    """One passkey, on a device that counts its signatures, for the site `origin`."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.host = urlsplit(origin).hostname or ""
        self.credential = os.urandom(32)
        self.counter = 0
        self._key = ec.generate_private_key(ec.SECP256R1())

    def create(self, options: dict[str, Any], *, verified: bool = True, origin: str | None = None) -> str:
        public = cast("Any", ES256).from_cryptography_key(self._key.public_key())
        made = AttestedCredentialData.create(Aaguid.NONE, self.credential, public)
        data = self._data(self.host, self.counter, FLAG.UP | FLAG.AT | (FLAG.UV if verified else FLAG(0)), made)
        client = self._client("webauthn.create", options["challenge"], origin or self.origin)
        attested = AttestationObject.create("none", data, {})
        return self._answer({"clientDataJSON": client.b64, "attestationObject": websafe_encode(attested)})

    def get(
        self,
        options: dict[str, Any],
        *,
        challenge: str | None = None,
        origin: str | None = None,
        host: str | None = None,
        kind: str = "webauthn.get",
        verified: bool = True,
        present: bool = True,
        counter: int | None = None,
        crossed: bool = False,
        credential: bytes | None = None,
        signed_by: Authenticator | None = None,
    ) -> str:
        """What the browser sends of a use; each argument is something that may be wrong with it."""
        self.counter += 1
        flags = (FLAG.UP if present else FLAG(0)) | (FLAG.UV if verified else FLAG(0))
        data = self._data(host or self.host, self.counter if counter is None else counter, flags)
        client = self._client(kind, challenge or options["challenge"], origin or self.origin, crossed=crossed)
        signature = (signed_by or self)._key.sign(bytes(data) + client.hash, ec.ECDSA(hashes.SHA256()))
        response = {"clientDataJSON": client.b64, "authenticatorData": websafe_encode(data)}
        return self._answer({**response, "signature": websafe_encode(signature)}, credential)

    def _data(self, host: str, counter: int, flags: FLAG, made: bytes = b"") -> AuthenticatorData:
        created: AuthenticatorData = AuthenticatorData.create(
            hashlib.sha256(host.encode()).digest(), flags, counter, made
        )
        return created

    def _client(self, kind: str, challenge: str, origin: str, *, crossed: bool = False) -> CollectedClientData:
        return CollectedClientData.create(kind, websafe_decode(challenge), origin, cross_origin=crossed)

    def _answer(self, response: dict[str, str], credential: bytes | None = None) -> str:
        name = websafe_encode(credential or self.credential)
        return json.dumps(
            {"id": name, "rawId": name, "type": "public-key", "clientExtensionResults": {}, "response": response}
        )


def post_json(visitor: Visitor, path: str, body: Any, csrf: str | None = None) -> tuple[int, dict[str, Any]]:
    """Send what the page's script sends, and return the status and the answer."""
    headers = {"Origin": visitor.base, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
    answer = visitor.http.post(
        path, content=json.dumps(body), headers={**headers, "X-CSRF-Token": csrf or visitor.csrf}
    )
    return answer.status_code, answer.json()


def add_passkey(there: There, visitor: Visitor, user: str, name: str = "laptop") -> Authenticator:
    """Add a passkey for somebody with a session, with the code of `ava passkey add`."""
    key, code = Authenticator(visitor.base), there.sessions.issue_passkey_code(user, name)
    status, options = post_json(visitor, "/passkeys/new/options", {"code": code})
    assert status == 200, options
    answer = visitor.post("/passkeys", {"csrf": visitor.csrf, "code": code, "passkey": key.create(options)})
    assert answer.status_code == 303, answer.text
    return key


class DecisionForm:
    """The form of one or more proposals on a visitor's page, about to be approved; `more` goes into further fields."""

    def __init__(self, visitor: Visitor, *pending_ids: str, **more: str) -> None:
        self._visitor = visitor
        query = "&".join(f"id={each}" for each in pending_ids)
        found = [pair for pair in visitor.fields(f"/proposals?{query}") if pair[0] in ("csrf", "id", "digest")]
        self.fields = [*found, ("cost", ""), ("minutes", ""), ("decision", "approve")]
        self.fields = [(name, more.get(name, value)) for name, value in self.fields]

    def options(self) -> dict[str, Any]:
        """Return what the server lets the browser ask its passkeys."""
        fields = [pair for pair in self.fields if pair[0] != "csrf"]
        status, options = post_json(self._visitor, "/passkeys/options", {"path": "/proposals", "fields": fields})
        assert status == 200, options
        return options

    def send(self, passkey: str, **more: str) -> tuple[int, str]:
        answer = self._visitor.post("/proposals", [*self.fields, ("passkey", passkey), *more.items()])
        return answer.status_code, answer.text

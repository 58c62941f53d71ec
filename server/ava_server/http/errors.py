"""What the HTTP server answers in its own words: what is wrong, and what to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from ava_server.config.tokens import Token

_NONE_GIVEN = "Give the token that `ava token create` has shown, in the header `Authorization: Bearer TOKEN`."
_UNKNOWN = (
    "This token is not known here: it is misspelt, was revoked, or has expired. Whoever runs the server makes another"
    " one with `ava token create`."
)


def unauthorized(*, known: bool, given: bool = True) -> Response:
    """Return the answer to a request without a token that counts.

    Args:
        known: Something was given, so that the challenge says that it is none.
        given: It looked like a token.
    """
    sentence = _UNKNOWN if given else _NONE_GIVEN
    error = f', error="invalid_token", error_description="{sentence}"' if known else ""
    return says(401, sentence, {"WWW-Authenticate": f'Bearer realm="ava"{error}'}, error="invalid_token")


def forbidden(token: Token, wanted: str) -> Response:
    """Return the answer to a token that may not do this: what it takes."""
    sentence = (
        f"This takes a token of the scope {wanted}, and this one has {', '.join(token.scopes)}. Whoever runs the server"
        f" makes another one: ava token create NAME --user {token.user} --scope {wanted.split()[0]}"
    )
    challenge = (
        f'Bearer realm="ava", error="insufficient_scope", scope="{wanted.split()[0]}", error_description="{sentence}"'
    )
    return says(403, sentence, {"WWW-Authenticate": challenge}, error="insufficient_scope")


def too_many(sentence: str, again_s: int) -> Response:
    """Return the answer to a user who has as much as one may have."""
    return says(429, sentence, {"Retry-After": str(again_s)}, error="too many")


def says(status: int, sentence: str, headers: dict[str, str] | None = None, *, error: str = "refused") -> Response:
    """Return an answer that is one sentence."""
    body = json.dumps({"error": error, "error_description": sentence})
    return Response(
        body, status, headers={"Cache-Control": "no-store", **(headers or {})}, media_type="application/json"
    )

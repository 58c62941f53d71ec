"""Redaction of secrets in text, before a model sees it and before it is stored.

First come the configured values, as they are, URL-quoted, in HTML, in base64 and JSON-escaped; then everything that
looks like a key: by its shape (`shapes.py`), as a private key (`private_keys.py`), or by what stands beside it
(`passwords.py`, `structures.py`, `statements.py`, `commands.py`, `logins.py`, `tokens.py`). `places.py` searches,
`values.py` judges.

Redact whole texts, never chunks of a stream: a secret that is cut in two is not found. A redactor itself searches a
long text in pieces of 64 kB that overlap, and calls `between_pieces` after each. The output of a command may be only a
part of a text; for that case, a run knows the private keys in its files (`RunRedactor`).

The time to search a text grows linearly with its length, whatever the text is: at most 25 times that of words. Where
secrets stand everywhere, values are hidden by regular expressions and are not judged (`places.Looks`).
"""

from ava_audit.redaction.places import SecretSpan
from ava_audit.redaction.redactor import Redactor, RunRedactor, redact_fragments

__all__ = ["Redactor", "RunRedactor", "SecretSpan", "redact_fragments"]

"""Private keys that nobody uses: a real form with random data."""

from __future__ import annotations

import random
import string

LETTERS = string.ascii_letters + string.digits + "+/"
BEGINNINGS = {
    "RSA PRIVATE KEY": "MIIEpAIBAAKCAQEA",
    "PRIVATE KEY": "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
    "EC PRIVATE KEY": "MHcCAQEEI",
    "OPENSSH PRIVATE KEY": "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAABlwAAAAdzc2gtcn",
    "ENCRYPTED PRIVATE KEY": "MIIFHDBOBgkqhkiG9w0BBQ0wQTApBgkqhkiG9w0BBQwwHAQI",
}
CHARS = {"EC PRIVATE KEY": 164, "OPENSSH PRIVATE KEY": 1_700}


def body_of(kind: str = "RSA PRIVATE KEY", seed: int = 7) -> list[str]:
    """Return the lines of a key between its first and its last."""
    some = random.Random(f"{kind} {seed}")
    start = BEGINNINGS[kind]
    data = start + "".join(some.choices(LETTERS, k=CHARS.get(kind, 1_590) - len(start))) + "="
    width = 70 if "OPENSSH" in kind else 64
    return [data[at : at + width] for at in range(0, len(data), width)]


def private_key(kind: str = "RSA PRIVATE KEY", seed: int = 7) -> str:
    """Return a whole key, without a final line end."""
    return "\n".join([f"-----BEGIN {kind}-----", *body_of(kind, seed), f"-----END {kind}-----"])


def leaked(text: str, body: list[str], chars: int = 16) -> list[str]:
    """Return the pieces of a key that a text contains."""
    data = "".join(body)
    return [data[at : at + chars] for at in range(0, len(data) - chars + 1, chars) if data[at : at + chars] in text]

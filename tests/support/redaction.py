"""A secret that must not get out, a role that may use it, a search for it in every form and place; private keys.

Nobody uses these keys: they have a real form with random data.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
import os
import random
import string
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, quote_plus

from ava_server.config.secrets import set_secret

NAME, HOST, ELSEWHERE = "TICKETS", "api.example.com", "evil.example.net"
VALUE = 'tk9"Zr/4 q+Wv&8Lm=x7hD2'
"""Without the shape of a key, and different in every form."""
PLACEHOLDER = "{{secret:TICKETS}}"

ROLE = """---
name: tickets
description: Looks tickets up.
tools: [http_get, read_webpages, read_file, search_codebase]
{lists}
---
You look tickets up.
"""


def store(root: Path, value: str = VALUE, hosts: Iterable[str] = (HOST,), name: str = NAME) -> None:
    """Store the secret, as `ava secret set` does."""
    root.mkdir(mode=0o700, exist_ok=True)
    set_secret(name, value, list(hosts), root / "secrets" / "secrets.toml")


def add_role(root: Path, lists: str = "secrets: [TICKETS]") -> None:
    """Add a role that may use it, or none."""
    (root / "roles").mkdir(mode=0o700, parents=True, exist_ok=True)
    (root / "roles" / "tickets.md").write_text(ROLE.format(lists=lists))


def forms(value: str = VALUE) -> dict[str, bytes]:
    """The ways in which the value may be written, and every eight characters of it."""
    written = {
        "exact": value,
        "quoted": quote(value, safe=""),
        "quoted with slashes": quote(value),
        "quoted as a form": quote_plus(value),
        "JSON": json.dumps(value)[1:-1],
        "HTML": html.escape(value),
        "hexadecimal": value.encode().hex(),
    }
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + value.encode()).decode()
        written[f"base64 after {before}"] = encoded[4 : len(encoded) // 4 * 4 - 4]
    written |= {f"piece {at}": value[at : at + 8] for at in range(len(value) - 7)}
    return {name: text.encode() for name, text in written.items()}


def leaks_in(data: bytes, value: str = VALUE) -> list[str]:
    """Return the forms of a value that stand in these bytes."""
    return [name for name, form in forms(value).items() if form in data]


def leaks_under(root: Path, value: str = VALUE) -> list[str]:
    """Where under a data root the value stands, but for the file that it is kept in and for what goes meanwhile."""
    kept, found = root / "secrets" / "secrets.toml", list[str]()
    for folder, _folders, files in os.walk(root):  # it passes over folders that go; `rglob` does not
        for path in sorted(Path(folder) / name for name in files):
            with contextlib.suppress(FileNotFoundError):
                data = path.read_bytes() + b"\n" + path.name.encode() if path.is_file() and path != kept else b""
                found += [f"{path.relative_to(root)}: {form}" for form in leaks_in(data, value)]
    return found


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
    some = random.Random(f"{kind} {seed}")
    start = BEGINNINGS[kind]
    data = start + "".join(some.choices(LETTERS, k=CHARS.get(kind, 1_590) - len(start))) + "="
    width = 70 if "OPENSSH" in kind else 64
    return [data[at : at + width] for at in range(0, len(data), width)]


def private_key(kind: str = "RSA PRIVATE KEY", seed: int = 7) -> str:
    """Return a whole key, without a final line end."""
    return "\n".join([f"-----BEGIN {kind}-----", *body_of(kind, seed), f"-----END {kind}-----"])


def leaked_pieces(text: str, body: list[str], chars: int = 16) -> list[str]:
    data = "".join(body)
    return [data[at : at + chars] for at in range(0, len(data) - chars + 1, chars) if data[at : at + chars] in text]

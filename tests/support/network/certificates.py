"""A certificate authority for a test, and certificates from it, made with the openssl command.

`make_certificate` of `web_site` is one that vouches for itself; here a client has to trust somebody else.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_CONFIG = """\
[req]
distinguished_name = nothing
[nothing]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = """
"""All that a strict client asks for, as Python is one from 3.13 on; the names of hosts follow."""


@dataclass(frozen=True)
class Issued:
    """Files: the authority's certificate, for SSL_CERT_FILE, and a server's key and certificate in one."""

    authority: Path
    server: Path


def issue(folder: Path, *names: str) -> Issued:
    """Make an authority, and have it issue a certificate for names of hosts (`IP:…` for addresses)."""
    ca, ca_key, request, key, leaf, both = (
        folder / f"{name}.pem" for name in ("ca", "ca-key", "request", "server-key", "leaf", "server")
    )
    config = folder / "openssl.cnf"
    config.write_text(_CONFIG + ",".join(name if name.startswith("IP:") else f"DNS:{name}" for name in names))
    new = ("req", *_KEY, "-config", config)
    _openssl(
        *new, "-x509", "-days", "2", "-extensions", "authority", "-keyout", ca_key, "-out", ca,
        "-subj", "/CN=Authority of a test",
    )  # fmt: skip
    _openssl(*new, "-keyout", key, "-out", request, "-subj", "/CN=A server of a test")
    _openssl(
        "x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-set_serial", "7", "-days", "2",
        "-extfile", config, "-extensions", "server", "-out", leaf,
    )  # fmt: skip
    both.write_bytes(key.read_bytes() + leaf.read_bytes())
    return Issued(ca, both)


def _openssl(*args: str | Path) -> None:
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, timeout=20)

"""Entries of private files, as they are stored. Imported when such a file is read: `ava --help` needs no pydantic."""

from __future__ import annotations

from pydantic import BaseModel, Field


class TokenEntry(BaseModel, strict=True):
    """A token."""

    user: str
    scopes: list[str]
    sha256: str
    created_us: int
    expires_us: int | None = None


class SecretEntry(BaseModel, strict=True):
    """A secret."""

    value: str
    hosts: list[str] = Field(default=[], alias="for")
    set_at: str = Field(default="", alias="set")


class PasskeyEntry(BaseModel, extra="forbid", strict=True):
    """A passkey; bytes are in base64."""

    name: str
    user: str
    host: str
    credential: str
    public_key: str
    counter: int
    created_us: int
    used_us: int | None = None

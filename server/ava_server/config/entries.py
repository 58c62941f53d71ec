"""Entries of private files, as they are stored. Imported when such a file is read: `ava --help` needs no pydantic."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TokenEntry(BaseModel):
    """A token."""

    model_config = ConfigDict(strict=True)

    user: str
    scopes: list[str]
    sha256: str
    created_us: int
    expires_us: int | None = None


class SecretEntry(BaseModel):
    """A secret."""

    model_config = ConfigDict(strict=True)

    value: str
    hosts: list[str] = Field(default=[], alias="for")
    set_at: str = Field(default="", alias="set")


class PasskeyEntry(BaseModel):
    """A passkey; bytes are in base64."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    user: str
    host: str
    credential: str
    public_key: str
    counter: int
    created_us: int
    used_us: int | None = None

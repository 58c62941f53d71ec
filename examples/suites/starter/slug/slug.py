"""Slugs of titles, for addresses."""

import re
import unicodedata


def slug(title: str, most: int = 40) -> str:
    """Return lower-case words joined by hyphens, at most so many characters, never cut inside a word."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    text = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return text[:most]

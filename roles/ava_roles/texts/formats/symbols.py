"""Signs of the fonts Symbol and Wingdings, whose codes are no characters."""

from __future__ import annotations

_GREEK = {
    **dict(zip(range(0x41, 0x5B), "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ", strict=True)),
    **dict(zip(range(0x61, 0x7B), "αβχδεφγηιϕκλμνοπθρστυϖωξψζ", strict=True)),
}
_MATHS = {
    0xA3: "≤",
    0xA5: "∞",
    0xAC: "←",
    0xAE: "→",
    0xB0: "°",
    0xB1: "±",
    0xB3: "≥",
    0xB4: "×",
    0xB7: "•",
    0xB8: "÷",
    0xB9: "≠",
    0xBB: "≈",
    0xD0: "∠",
    0xD2: "®",
    0xD3: "©",
    0xD4: "™",
    0xD5: "∏",
    0xD6: "√",
    0xE5: "∑",
    0xF2: "∫",
}
_DINGBATS = {
    0x28: "☎",
    0x2A: "✉",
    0x4A: "☺",
    0x4C: "☹",
    0x6C: "●",
    0x6E: "■",
    0x6F: "□",
    0x71: "❑",
    0x76: "❖",
    0x9F: "•",
    0xA7: "▪",
    0xA8: "☐",
    0xD8: "➢",
    0xDF: "←",
    0xE0: "→",
    0xE8: "➔",
    0xFB: "✗",
    0xFC: "✓",
    0xFD: "☒",
    0xFE: "☑",
}
_FONTS = {"symbol": _GREEK | _MATHS, "wingdings": _DINGBATS}


def symbol_of(code: int, font: str) -> str | None:
    """Return the character for a code of a font of signs; None if this is not known."""
    own = code - 0xF000 if 0xF000 <= code <= 0xF0FF else code
    name = font.lower()
    signs = _FONTS.get(name.strip())
    if signs is None:
        return chr(code) if 0x20 <= code < 0xD800 else None
    if own in signs:
        return signs[own]
    if name == "symbol" and 0x20 <= own < 0x40:
        return chr(own)
    return None


def with_symbols(text: str, font: str) -> str:
    """Return a text with the characters for its codes of a font of signs, as far as they are known."""
    if not any("\uf000" <= sign <= "\uf0ff" for sign in text):
        return text
    return "".join(symbol_of(ord(sign), font) or sign for sign in text)

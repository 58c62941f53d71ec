"""What each unit of the price table means for a call by Ava, and which models cost more than their tokens.

Ava sends text, asks for text, and asks for no tool that the provider runs. What a model uses all the same, and no limit
of the call holds, makes its price unknown.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

_PREFIX_END = re.compile("[/:]")
READ: Mapping[str, tuple[str, ...]] = {
    "input": ("input_mtok", "input_text_mtok", "input_tool_mtok", "input_text_tool_mtok"),
    "output": ("output_mtok", "output_text_mtok", "output_reasoning_mtok", "output_text_reasoning_mtok"),
    "cache_read": ("cache_read_mtok", "cache_text_read_mtok"),
    "cache_write": (
        "cache_write_mtok",
        "cache_write_5m_mtok",
        "cache_text_write_mtok",
        "cache_text_write_5m_mtok",
    ),
    "per_request": ("requests_kcount",),
}
"""The units that a price is made of; of several, the dearest counts."""
TOKEN_KINDS = ("input", "output", "cache_read", "cache_write")

NOT_USED = frozenset(
    {
        # Caches that last an hour: no request asks for one.
        "cache_write_1h_mtok",
        "cache_text_write_1h_mtok",
        "cache_audio_write_1h_mtok",
        "cache_image_write_1h_mtok",
        "cache_video_write_1h_mtok",
        # Audio, images, video and documents: no request has any.
        "input_audio_mtok",
        "input_image_mtok",
        "input_video_mtok",
        "input_audio_tool_mtok",
        "input_image_tool_mtok",
        "input_video_tool_mtok",
        "cache_audio_read_mtok",
        "cache_audio_write_mtok",
        "cache_audio_write_5m_mtok",
        "cache_image_read_mtok",
        "cache_image_write_mtok",
        "cache_image_write_5m_mtok",
        "cache_video_read_mtok",
        "cache_video_write_mtok",
        "cache_video_write_5m_mtok",
        "audio_hours",
        "input_audio_hours",
        "input_gpixels",
        "input_document_kpages",
        "input_annotated_document_kpages",
    }
)
"""The units of what Ava neither sends nor asks for."""

TOOLS = frozenset(
    {
        "web_searches_kcount",
        "social_searches_kcount",
        "storage_searches_kcount",
        "code_executions_kcount",
    }
)
"""The units of tools that a provider runs: only for models that use them without being asked."""

UNBOUNDED: Mapping[str, str] = {
    "output_audio_mtok": "audio in its answers",
    "output_image_mtok": "images in its answers",
    "output_video_mtok": "video in its answers",
    "output_audio_hours": "audio in its answers",
    "output_audio_reasoning_mtok": "audio in its answers",
    "output_image_reasoning_mtok": "images in its answers",
    "output_video_reasoning_mtok": "video in its answers",
    "output_citation_mtok": "the pages that it cites",
    "output_text_citation_mtok": "the pages that it cites",
    "output_audio_citation_mtok": "the recordings that it cites",
    "output_image_citation_mtok": "the images that it cites",
    "output_video_citation_mtok": "the videos that it cites",
    "input_mchars": "characters",
    "input_text_messages_kcount": "messages",
    "rerank_searches_kcount": "ranked searches",
}
"""The units of which a model uses as many as it likes, with what they count."""


def unbounded_units(units: Collection[str], *, acts_alone: bool) -> list[str]:
    """Return what a model with these units is billed for that no limit of a call holds, in words.

    `acts_alone`: the model uses its provider's tools without being asked.
    """
    known = {*NOT_USED, *TOOLS, *(unit for kind in READ.values() for unit in kind)}
    found: list[str] = []
    for unit in sorted(units):
        if unit in UNBOUNDED:
            found.append(UNBOUNDED[unit])
        elif unit not in known:
            found.append(f"{unit}, a unit that Ava does not know")
        elif unit in TOOLS and acts_alone:
            found.append(unit.removesuffix("_kcount").replace("_", " "))
    return list(dict.fromkeys(found))


def own_action(model_id: str) -> str | None:
    """Return what a model does by itself in a call besides writing its answer; None where nothing is known.

    Gateways put names of providers before an id, one or several: what follows each of them counts.
    """
    name = model_id.strip().lower()
    names = [name, *(name[mark.end() :] for mark in _PREFIX_END.finditer(name))]
    for pattern, does in _own_actions():
        if any(fnmatchcase(one, pattern) for one in names):
            return does
    return None


@cache
def _own_actions() -> tuple[tuple[str, str], ...]:
    table = tomllib.loads(files("ava_server.models").joinpath("extra_costs.toml").read_text(encoding="utf-8"))
    return tuple((pattern, entry["does"]) for entry in table["models"] for pattern in entry["ids"])

"""Templates and static files. Every text is escaped; texts of models and pages lose their invisible characters too."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from ava_audit.units import format_duration, format_usd, iso_utc
from ava_roles.wrap import clean
from ava_server.web.requests import HEADERS

TYPES: Mapping[str, str] = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
"""The static files that are served, by their ending."""
_CHARSET = "; charset=utf-8"


def foreign(text: object) -> str:
    """Return a text that a model or a page wrote, without control characters and what nobody sees."""
    return clean(str(text))[0]


def when(us: int | None) -> str:
    """Return a time for a `<time>` element's datetime."""
    return iso_utc(us) if us is not None else ""


def second(us: int) -> str:
    """Return a time for a `<time>` element's datetime, to the second; a long list has many."""
    return f"{iso_utc(us)[:19]}Z"


def usd(micros: int) -> str:
    """Return micro-USD as dollars."""
    return format_usd(micros)


@cache
def environment() -> Environment:
    """Return the templates."""
    made = Environment(
        loader=PackageLoader("ava_server.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(foreign=foreign, when=when, second=second, usd=usd, duration=format_duration)
    made.globals["static"] = static_url
    return made


def page(name: str, values: Mapping[str, Any], status: int = 200) -> Response:
    """Return a rendered template as the answer."""
    body = environment().get_template(name).render(values)
    return Response(body, status, headers=dict(HEADERS), media_type="text/html")


@cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Return each static file and its type, by its name: a name in a request is never a path, and is not kept."""
    folder = resources.files("ava_server.web").joinpath("static")
    kinds = {each: TYPES.get(PurePosixPath(each.name).suffix) for each in folder.iterdir()}
    return {each.name: (each.read_bytes(), kind) for each, kind in kinds.items() if kind is not None}


@cache
def static_url(name: str) -> str:
    """Return the address of a static file; it changes with the file, so that browsers may keep it."""
    return f"/static/{name}?v={hashlib.sha256(static_files()[name][0]).hexdigest()[:10]}"


def static_answer(name: str, version: str) -> Response | None:
    """Return a static file as the answer; with the right version in the address, browsers keep it."""
    found = static_files().get(name)
    if found is None:
        return None
    kept = version and static_url(name).endswith(f"?v={version}")
    cache_control = "public, max-age=31536000, immutable" if kept else "no-cache"
    return Response(found[0], headers={**HEADERS, "Cache-Control": cache_control, "Content-Type": found[1] + _CHARSET})

"""The extras of an installation: what each is for, the module that the core loads for it, and the packages it needs.

Code of an extra lives in folders that the core never imports. The core asks here for one, by its name in
`pyproject.toml`, and gets either its module or one sentence with the command that adds it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

_PACKAGE = "ava-subagents"


class Extra(NamedTuple):
    """One extra: how a sentence about it begins, the module that is loaded for it, and the packages it needs."""

    need: str
    module: str
    packages: tuple[str, ...]


EXTRAS: Mapping[str, Extra] = {
    "agents": Extra("Runs of another coding agent need", "ava_server.agents.work", ("acp", "starlette", "uvicorn")),
    "web": Extra(
        "Pages in a browser need", "ava_server.http.server", ("starlette", "uvicorn", "jinja2", "markupsafe", "fido2")
    ),
    "team": Extra("A server over HTTP needs", "ava_server.http.server", ("starlette", "uvicorn", "prometheus_client")),
    "dashboard": Extra("The dashboard needs", "ava_server.dashboard.app", ("textual",)),
    "documents": Extra(
        "PDF and Excel files need", "ava_roles.texts.formats", ("pypdfium2", "openpyxl", "trafilatura", "xlrd")
    ),
    "eval": Extra("Suites of cases need", "ava_server.suites.run", ("pydantic_evals",)),
    "languages": Extra("Words of Chinese, Japanese and Thai need", "icu4py.breakers", ("icu4py",)),
    "nats": Extra("Delivery of runs by NATS needs", "ava_server.delivery.nats", ("nats",)),
    "postgres": Extra("A log in Postgres needs", "ava_audit.postgres.backend", ("psycopg",)),
    "temporal": Extra("Delivery of runs by Temporal needs", "ava_server.delivery.temporal", ("temporalio",)),
}


class ExtraMissing(Exception):
    """An extra is not installed; the text is a sentence that says what adds it."""


def load(name: str) -> ModuleType:
    """Return the module of an extra. Raises ExtraMissing if a package is not installed, or cannot be loaded."""
    require(name)
    try:
        return import_module(EXTRAS[name].module)
    except ImportError as error:
        if (error.name or "").startswith("ava_"):  # a fault of ours
            raise
        raise ExtraMissing(f"{missing(name)} (what is installed cannot be loaded: {error})") from None


def require(name: str) -> None:
    """Check that the packages of an extra are installed, without loading them. Raises ExtraMissing if one is not."""
    if not has_extra(name):
        raise ExtraMissing(missing(name))


@cache
def has_extra(name: str) -> bool:
    """Tell whether the packages of an extra are installed, without loading them."""
    return all(find_spec(package) is not None for package in EXTRAS[name].packages)


def missing(name: str) -> str:
    """Return the sentence on an extra that is not installed."""
    return f"{EXTRAS[name].need} the extra {name}; add it with: {install_command(name)}"


def in_uv_cache(prefix: Path) -> bool:
    """Tell whether a Python environment is one that `uvx` made in its cache."""
    parts = prefix.resolve().parts
    return not {"archive-v0", "builds-v0"}.isdisjoint(parts) or {"uv", "cache"}.issubset(parts)


def install_command(*names: str) -> str:
    """Return the command, to be pasted, that adds extras to this installation, however it was made.

    Where it is in uv's cache, the command installs it permanently.
    """
    import json
    import shlex
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    origin: Any
    try:
        origin = json.loads(distribution(_PACKAGE).read_text("direct_url.json") or "{}")  # PEP 610
    except (PackageNotFoundError, ValueError):
        origin = {}
    prefix = Path(sys.prefix)
    replaces = False  # pipx and uv's tools are installed anew: the extras that are here have to be named again
    if in_uv_cache(prefix) or (prefix / "uv-receipt.toml").exists():
        installer = ["uv", "tool", "install"]
        replaces = True
    elif (prefix / "pipx_metadata.json").exists():
        installer = ["pipx", "install", "--force"]
        replaces = True
    elif find_spec("pip") is not None:
        installer = [sys.executable, "-m", "pip", "install"]
    else:
        installer = ["uv", "pip", "install", "--python", sys.executable]
    wanted = list(names)
    if replaces:
        wanted = [name for name in EXTRAS if name in names or has_extra(name)]
    extras = f"[{','.join(wanted)}]" if wanted else ""
    from_folder = origin.get("dir_info")
    from_vcs = origin.get("vcs_info")
    url = str(origin.get("url", ""))
    if from_folder is not None:
        path = unquote(urlsplit(url).path)
        if from_folder.get("editable"):
            installer.append("-e")
        return shlex.join([*installer, f"{path}{extras}"])
    if from_vcs:
        url = f"{from_vcs['vcs']}+{url}@{from_vcs['commit_id']}"
    requirement = f"{_PACKAGE}{extras}"
    if url:
        requirement += f" @ {url}"
    return shlex.join([*installer, requirement])

"""What a process tells the others on its log about itself: what it is, and what it can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ava_audit.store.instances import Announcement
from ava_roles.sandbox.sandbox import Unavailable
from ava_server.core.errors import AvaError
from ava_server.models.selection import configured

if TYPE_CHECKING:
    from ava_server.service.runtime import Runtime


def announce_worker(runtime: Runtime) -> Announcement:
    """Return what a worker offers: providers, labels, tools and sandbox, and how many runs it takes. Blocking.

    It names providers and never keys: everybody who reads the database can see it.
    """
    limits, sandbox = runtime.settings.limits, runtime.sandbox()
    offers: dict[str, Any] = {
        "providers": sorted(_providers(runtime)),
        "labels": sorted(runtime.settings.labels),
        "tools": sorted(runtime.tools),
        "sandbox": "none" if isinstance(sandbox, Unavailable) else sandbox.kind,
        "runs": limits.running,
    }
    return Announcement("worker", offers=offers)


def _providers(runtime: Runtime) -> list[str]:
    try:
        usable = configured(runtime.credentials.models)
    except AvaError:  # `ava doctor` reports it
        return []
    return [name for name, one in usable.items() if one.api_key]

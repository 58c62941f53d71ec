"""A lab whose tools reach one site under every name, with the secret stored."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ava_audit.events import ToolResult
from support import owner
from support.model_server import ModelServer, Say, Step
from support.network.web_site import Answer, Site, site
from support.redaction import HOST, NAME, add_role, leaks_in, leaks_under, store
from support.runtime import Lab, hand_over, open_lab


@contextmanager
def start_owner(root: Path, server: ModelServer, web: Site, certificate: Path) -> Generator[subprocess.Popen[str]]:
    """A process of its own that claims the runs of a data root, and whose tools reach the site."""
    command = [sys.executable, owner.__file__, str(root), server.base_url, "site", str(web.port), str(certificate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@dataclass
class SecretBench:
    """A lab whose tools reach one site under every name, with the secret stored."""

    lab: Lab
    web: Site

    async def run(self, **more: Any) -> str:
        """Run a subagent of the role to its end."""
        run_id = await self.lab.start(role="tickets", **more)
        await self.lab.ended(run_id)
        return run_id

    async def results(self, **more: Any) -> list[ToolResult]:
        """Run a subagent, and return what its calls brought; nothing has got out by then."""
        run_id = await self.run(**more)
        await self.nothing_got_out()
        return [fact for fact in await self.lab.facts(run_id, ToolResult) if fact.tool != "submit_result"]

    async def nothing_got_out(self) -> None:
        """Look through every request to the model, every page of the log and every file for the value."""
        for request in self.lab.server.requests:
            assert leaks_in(request.body) == []
        assert await anyio.to_thread.run_sync(leaks_under, self.lab.root) == []

    @property
    def sent(self) -> list[tuple[str, str, str | None]]:
        """What the site was asked: host, path, and the Authorization header."""
        return [(seen.host, seen.path, seen.headers.get("authorization")) for seen in self.web.requests]


@asynccontextmanager
async def open_bench(
    tmp: Path,
    certificate: Path,
    pages: dict[str, Answer],
    calls: Sequence[tuple[str, dict[str, Any]] | Step],
    *,
    lists: str = f"secrets: [{NAME}]",
    hosts: Sequence[str] | None = (HOST,),
) -> AsyncGenerator[SecretBench]:
    """Script one tool call a turn, then a result."""
    script = [Say(calls=[call]) if isinstance(call, tuple) else call for call in calls]
    if hosts is not None:
        store(tmp / "data", hosts=hosts)
    add_role(tmp / "data", lists)
    async with site(pages, certificate=certificate) as web, open_lab(tmp, [*script, hand_over()]) as lab:
        lab.runtime.fetcher = web.fetcher
        (lab.workspace / "notes.md").write_text("nothing of note\n")
        yield SecretBench(lab, web)
    assert leaks_under(tmp / "data") == [], "also when everything is closed, and the log is checkpointed"


def get_call(url: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """Return a call of http_get."""
    return ("http_get", {"url": url, **more})

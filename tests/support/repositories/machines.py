"""The machine of an owner, where runs are only proposed, and another one that does them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ava_audit.store.backend import VARIABLE
from support.model_server import ModelServer
from support.repositories.coding import PROJECT
from support.repositories.projects import checkout
from support.runtime import Lab, open_lab


@contextmanager
def take_away(folder: Path) -> Generator[None]:
    """Take a folder away, as from a machine that does not have it."""
    hidden = folder.with_name(f"{folder.name}-of-another-machine")
    folder.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(folder)


class Machines:
    """The machine of the owner, where runs are only proposed, and another one that does them."""

    def __init__(self, tmp: Path, url: str, server: ModelServer) -> None:
        self.tmp, self.url, self.server = tmp, url, server
        for name in ("owner", "worker"):
            (tmp / name).mkdir()
        self.repository = checkout(tmp / "owner" / "workspace", PROJECT)

    @asynccontextmanager
    async def at(self, name: str, *, runs: bool, config: str = "") -> AsyncGenerator[Lab]:
        env = {VARIABLE: self.url}
        async with open_lab(self.tmp / name, server=self.server, env=env, runs=runs, config=config, check=False) as lab:
            yield lab

    async def proposed(self, config: str = "", **more: Any) -> str:
        """Propose and approve a run at the owner; return its id."""
        async with self.at("owner", runs=False, config=config) as lab:
            return await lab.start(**more)

    async def done(self, run_id: str, config: str = "") -> dict[str, Any]:
        """Have the run done at the worker, which cannot see anything of the owner; return its result."""
        with take_away(self.tmp / "owner"):
            async with self.at("worker", runs=True, config=config) as lab:
                await lab.ended(run_id, 60)
                with anyio.fail_after(40):
                    while list((lab.root / "worktrees").glob("S-*")):  # noqa: ASYNC110 - nothing tells when it goes
                        await anyio.sleep(0.02)
                return await lab.result(run_id)

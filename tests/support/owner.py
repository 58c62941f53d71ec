"""A process that owns runs, to be killed: `python owner.py ROOT BASE_URL`.

It opens the runtime of a data root and looks after its runs. It writes `open` and its instance on its standard output
once it is ready, and ends when its standard input ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import anyio.to_thread

from ava_server.config.settings import load_settings
from ava_server.service.runtime import open_runtime


async def own(root: Path, base_url: str) -> None:
    """Look after the runs of a data root until standard input ends."""
    settings = load_settings(root, env={"AVA_MODEL_BASE_URL": base_url, "AVA_MODEL": "test"})
    async with open_runtime(settings) as runtime:
        sys.stdout.write(f"open {runtime.manager.instance}\n")
        sys.stdout.flush()
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(own, Path(sys.argv[1]), sys.argv[2])

"""A process that owns runs whose tools reach a test's site: `python owner_with_site.py ROOT BASE_URL PORT CERTIFICATE`.

Like `owner.py`; every public name leads to the site on 127.0.0.1.
"""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

import anyio
import anyio.to_thread

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ava_server.config.settings import load_settings
from ava_server.service.runtime import open_runtime
from support.web_site import Site


async def own(root: Path, base_url: str, port: int, certificate: str) -> None:
    """Look after the runs of a data root until standard input ends."""
    settings = load_settings(root, env={"AVA_MODEL_BASE_URL": base_url, "AVA_MODEL": "test"})
    web = Site({}, port, "https", context=ssl.create_default_context(cafile=certificate))
    async with open_runtime(settings) as runtime:
        runtime.fetcher = web.fetcher
        sys.stdout.write(f"open {runtime.manager.instance}\n")
        sys.stdout.flush()
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(own, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])

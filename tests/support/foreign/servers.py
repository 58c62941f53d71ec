"""Foreign MCP servers in tests: their configuration, roles that name their tools, and a server over HTTP."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("mcp_script.py")


def stdio_server(*ways: str, name: str = "lab", more: str = "", env: dict[str, str] | None = None) -> str:
    """Return the configuration of the script as a server that behaves in these ways."""
    args = ", ".join(f'"{each}"' for each in (str(SCRIPT), *ways))
    text = f'[mcp_servers.{name}]\ncommand = "{sys.executable}"\nargs = [{args}]\n{more}\n'
    if env:
        text += f"[mcp_servers.{name}.env]\n" + "".join(f'{key} = "{value}"\n' for key, value in env.items())
    return text


def write_role(root: Path, tools: str, more: str = "", name: str = "guest") -> None:
    folder = root / "roles"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    head = f"---\nname: {name}\ndescription: Uses other servers.\ntools: [{tools}]\n{more}---\nUse them.\n"
    (folder / f"{name}.md").write_text(head)


@contextmanager
def http_server(server: Any, *, legacy: bool = False) -> Generator[str]:
    """Run a server of the SDK's over HTTP, in a thread; yields its address."""
    import uvicorn

    app = server.streamable_http_app(stateless_http=not legacy)
    running = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="on"))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not running.started and time.monotonic() < deadline:
        time.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        running.should_exit = True
        thread.join(10)

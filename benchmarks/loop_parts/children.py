"""The processes: the endpoint, and one for each contender; the peers' in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
INSTALL_S = 600
FLOOR, AVA, STREAMED, KEEPING = "bare httpx2 loop", "Ava", "Ava, streaming", "Ava, its own keeper beside"
ASYNCIO = "Ava, asyncio's loop"
PEERS = {
    "pydantic-ai": "peer_pydantic_ai",
    "openai-agents": "peer_openai_agents",
    "langgraph": "peer_langgraph",
}
OURS: dict[str, tuple[str, ...]] = {
    FLOOR: ("floor",),
    AVA: ("ava", "kept", "whole"),
    STREAMED: ("ava", "kept", "stream"),
    KEEPING: ("ava", "keep", "whole"),
    ASYNCIO: ("ava", "kept", "whole", "asyncio"),
}
SPANS: dict[str, tuple[str, ...]] = {
    "Ava, spans cut out": ("traced", "none"),
    "Ava, no SDK": ("traced", "silent"),
    "Ava, an SDK records them": ("traced", "recorded"),
}


@dataclass
class Child:
    """A contender's process, which measures what it is asked to."""

    name: str
    process: subprocess.Popen[str]

    def measured(self, what: str, runs: int, times: int, turns: int) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        asked = {"what": what, "runs": runs, "times": times, "turns": turns}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self.process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def started(name: str, port: int, peers: Path | None) -> Child:
    """Start a contender's process."""
    module, *rest = OURS.get(name) or SPANS.get(name) or (PEERS[name],)
    python = str(peers) if name in PEERS else sys.executable
    return Child(name, _process(python, module, str(port), *rest))


@contextmanager
def endpoint(turns: int) -> Generator[int]:
    """Run the endpoint; yields its port."""
    process = _process(sys.executable, "endpoint", str(turns))
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def _process(python: str, module: str, *rest: str) -> subprocess.Popen[str]:
    env: dict[str, Any] = {**os.environ, "PYTHONPATH": str(HERE.parent), "NO_PROXY": "127.0.0.1"}
    return subprocess.Popen(
        [python, "-m", f"loop_parts.{module}", *rest],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, text=True, env=env,
    )  # fmt: skip


def peers_in(folder: Path) -> Path | str:
    """Install the peers into an environment of their own and return its Python, or a sentence that says why not."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    wanted = str(HERE / "requirements.txt")
    try:
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "-r", wanted],
            check=True, capture_output=True, timeout=INSTALL_S,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError):
        return "The peers could not be installed and are left out."
    return python


def versions(python: Path) -> str:
    """Return which versions of the peers there are."""
    ask = f"import importlib.metadata as m; print(', '.join(f'{{n}} {{m.version(n)}}' for n in {_NAMES!r}))"
    return subprocess.run([str(python), "-c", ask], check=True, capture_output=True, text=True).stdout.strip()


_NAMES = ("pydantic-ai-slim", "openai-agents", "langgraph", "openai")

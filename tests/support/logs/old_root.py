"""The data root of an older version, kept in tests/data, and the surroundings that its runs need to go on.

    with same_places(), running_model_server(script) as model, reached(model) as way:
        old = unpacked("0.1.0", tmp_path)
        done = old.ava("verify", env=way)

The log fixes what a run was approved with: its user, its folder, the address of its model. So the folder is made again
at the same path, and a proxy leads the model's name to the scripted server. Proposals expire, so commands run with a
shifted clock: for them it is a minute after the root was made.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.model_server import ModelServer
from support.network.proxy import running_proxy
from support.terminal import ava

BASE = Path("/tmp/ava-old-root")
SHOP = BASE / "shop"
FILES = {"a.md": "Otter charges twelve cents.\n\nBadger charges thirty cents a night.\n", "b.md": "Heron is free.\n"}
USER = "ana"
MODEL_HOST = "model.example"
CLOCK = Path(__file__).parent / "clock"
DATA = Path(__file__).parents[2] / "data"
FACTS = "facts.json"
"""What the maker wrote down beside the data root: what its own commands said of it."""


def archive(version: str) -> Path:
    return DATA / f"data-root-{version}.tar.xz"


def surroundings(home: Path, shift_s: float = 0.0, user: str = USER) -> dict[str, str]:
    """The environment in which the data root is made and used: its user, and its clock."""
    clock = {"PYTHONPATH": str(CLOCK), "AVA_TEST_CLOCK_S": repr(shift_s)} if shift_s else {}
    return {"LOGNAME": user, "HOME": str(home), "TZ": "UTC", **clock}


@contextmanager
def reached(model: ModelServer) -> Generator[dict[str, str]]:
    """The variables with which a model server is reached by the same address, whatever port it has."""
    with running_proxy({MODEL_HOST: model.port}) as proxy:
        yield {"AVA_MODEL_BASE_URL": f"http://{MODEL_HOST}/v1", "AVA_MODEL": "test", "HTTP_PROXY": proxy.url}


@contextmanager
def same_places() -> Generator[None]:
    """Make the folder that the runs read, at its path. One test at a time has it, also of another checkout."""
    folder = _locked(BASE)
    try:
        write_shop()
        yield
    finally:
        shutil.rmtree(BASE, ignore_errors=True)
        os.close(folder)


def write_shop() -> None:
    SHOP.mkdir(exist_ok=True)
    for name, text in FILES.items():
        (SHOP / name).write_text(text)


def _locked(folder: Path) -> int:
    while True:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.exists() and os.path.samestat(folder.stat(), os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)  # whoever had it has removed it


@dataclass(frozen=True)
class OldRoot:
    """An unpacked data root, and what the version that made it said of it."""

    path: Path
    home: Path
    facts: Mapping[str, Any]

    def env(self, *, after_s: float = 60.0, user: str = USER) -> dict[str, str]:
        """The environment of a command that runs so long after the root was made."""
        return surroundings(self.home, self.facts["made_s"] + after_s - time.time(), user)

    def ava(
        self, *words: str, env: Mapping[str, str] | None = None, after_s: float = 60.0, user: str = USER
    ) -> subprocess.CompletedProcess[str]:
        return ava(self.path, *words, cwd=self.home, env={**self.env(after_s=after_s, user=user), **(env or {})})

    def json(self, *words: str, env: Mapping[str, str] | None = None, after_s: float = 60.0, user: str = USER) -> Any:
        """Run a command that succeeds, and return what it says as JSON."""
        done = self.ava(*words, env=env, after_s=after_s, user=user)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout)


def unpacked(version: str, tmp: Path) -> OldRoot:
    home = tmp / "home"
    home.mkdir()
    with tarfile.open(archive(version)) as tar:
        tar.extractall(tmp, filter="data")
    (tmp / "data").chmod(0o700)
    return OldRoot(tmp / "data", home, json.loads((tmp / FACTS).read_text("utf-8")))

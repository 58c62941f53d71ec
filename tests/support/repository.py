"""The repository itself: its scripts as modules, and what it takes to try it from nothing."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SETUP_S = 300
_NETWORK = re.compile(r"(?:PIP|UV)_\w+|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|https?_proxy|no_proxy", re.IGNORECASE)

from_nothing = pytest.mark.skipif(
    "AVA_TEST_SETUP" not in os.environ, reason="builds environments; .ci/run sets AVA_TEST_SETUP"
)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return what an empty machine has: a path to programs, an empty home, and what reaching PyPI takes."""
    outside = [part for part in os.environ["PATH"].split(os.pathsep) if Path(part) != Path(sys.executable).parent]
    env = {name: value for name, value in os.environ.items() if _NETWORK.fullmatch(name)}
    return {**env, "HOME": str(home), "PATH": os.pathsep.join(outside), "LANG": "C.UTF-8", **more}


def run(command: str | Sequence[str], folder: Path, env: Mapping[str, str], seconds: float) -> str:
    done = subprocess.run(
        ["sh", "-c", command] if isinstance(command, str) else command, cwd=folder, env=env,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout

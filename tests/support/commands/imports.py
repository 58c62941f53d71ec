"""What a command imports: the modules of a real process, at its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_PROGRAM = """
import json, sys
from ava_server.__main__ import main
sys.argv = ["ava", *sys.argv[1:]]
try:
    main()
finally:
    print(json.dumps([name for name, module in sys.modules.items() if module]), file=sys.stderr)
"""


def modules_of(root: Path, *args: str, more: Mapping[str, str] | None = None) -> set[str]:
    """Return what a command has imported; `more` is added to its environment."""
    environment = {"PATH": os.environ["PATH"], "AVA_DATA_ROOT": str(root), **(more or {})}
    command = [sys.executable, "-c", _PROGRAM, *args]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return set(json.loads(next(line for line in done.stderr.splitlines() if line.startswith("["))))


def own_modules(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if name.startswith("ava_"))


def packages_of_others(modules: set[str]) -> set[str]:
    """Return the packages of other people among some modules, without what every start of this Python imports."""
    tops = {name.partition(".")[0] for name in modules if not name.startswith(("_", "ava_", "sitecustomize"))}
    return tops - sys.stdlib_module_names

"""Install the real hosts and agents that `tests/hosts` drives.

    python scripts/real_hosts.py [--into FOLDER]

They come from npm, pinned by hash (`tests/hosts/package-lock.json`), with Node 22 from PyPI. They lie in a folder of
their own, `build/hosts`, and are used again. Without them, these tests are skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
PINNED = HERE.parent / "tests" / "hosts"
FOLDER = HERE.parent / "build" / "hosts"
INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
LINKS_ITS_PROGRAM = ("opencode-ai", "postinstall.mjs")
"""The only install script that runs: it puts another package's program in its place, and downloads nothing."""


def main() -> None:
    """Install what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--into", type=Path, default=FOLDER, help="the folder to install into")
    into = parser.parse_args().into.resolve()
    npm = conformance()
    node, _inspector = npm.install(into, PINNED, INSPECTOR)
    package, script = LINKS_ITS_PROGRAM
    npm.installed(f"{package}'s program", [str(node), script], into / "node_modules" / package)
    print(f"The hosts and Node are in {into}")


def installed() -> bool:
    """Tell whether everything is there as it is pinned."""
    stamp = FOLDER / "installed"
    return stamp.is_file() and stamp.read_text("utf-8") == conformance().stamp_of(PINNED)


def conformance() -> ModuleType:
    """Return the script that installs what a lock file pins."""
    spec = importlib.util.spec_from_file_location("conformance", HERE / "conformance.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()

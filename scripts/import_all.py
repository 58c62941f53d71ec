"""Import every module of this installation, on any system: `python scripts/import_all.py`.

It ends with 1 if one cannot be imported. Left out are parts of extras that are not installed, the programs of the
sandbox, which are started only on Linux, and on Windows the dashboard's driver for POSIX terminals.
"""

import pkgutil
import sys
from importlib import import_module
from importlib.util import find_spec

from ava_extras import EXTRAS

PROGRAMS, POSIX = ("ava_roles.sandbox.launcher", "ava_roles.sandbox.attacker"), ("ava_server.dashboard.driver",)
ELSEWHERE: tuple[str, ...] = {"linux": (), "win32": PROGRAMS + POSIX}.get(sys.platform, PROGRAMS)
ROOTS = ("ava_audit", "ava_extras", "ava_roles", "ava_server")
MISSING = {package for extra in EXTRAS.values() for package in extra.packages if find_spec(package) is None}
faults: list[str] = []
left_out: list[str] = []


def attempt(name: str) -> None:
    """Import one module, and note what came of it."""
    if name.startswith(ELSEWHERE):
        left_out.append(name)
        return
    try:
        import_module(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] in MISSING:
            left_out.append(name)
        else:
            faults.append(f"{name}: {error}")
    except Exception as error:
        faults.append(f"{name}: {type(error).__name__}: {error}")


names = list(ROOTS)
for name in names:
    attempt(name)
    if name in sys.modules and (path := getattr(sys.modules[name], "__path__", None)) is not None:
        names += [f"{name}.{each.name}" for each in pkgutil.iter_modules(path)]
print(*faults, f"{sys.platform}: {len(names)} modules, {len(faults)} faults, {len(left_out)} left out", sep="\n")
sys.exit(1 if faults else 0)

"""Count the concepts of the code: how many kinds of process, of opening the log, of state, and of setting there are.

    python scripts/concepts.py [--files]

Figures for whoever wants to look; nothing fails by them. The definitions:

- process modes: the different `Mode`s that a process can have, over all settings that decide it (one for each worker
  beside another is the same mode)
- detached programs: the kinds of program that outlive the process that starts them, each with a file for its words
- ways to read the log: the classes that are a `Readable`, and those that hand out a `View` that they have opened
- twins: pairs of classes that do the same near and far (`LocalX` and `RemoteX`), and of functions that open them
- situations and causes: the rows and columns of the table of a run's transitions
- settings: the leaves of the configuration
- subjects: how many source files outside a subject's own name it. A subject's own files have its name in their path.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard, get_args

from pydantic import BaseModel

HERE = Path(__file__).resolve().parent.parent
SOURCES = ("audit", "roles", "server")
SUBJECTS = {
    "users and scopes": (r"\busers?\b|user_id|\bscopes?\b", r"users?|scope|access|tokens"),
    "browser and links": (r"browser|\blinks?\b|_link\b|link_", r"web/|pages?|cli/ui|sign_in|browser"),
    "questions": (r"question|extension", r"question|extension|elicitation|asking/"),
    "plans": (r"\bplans?\b|plan_|_plan\b", r"plan|steps|together"),
    "Postgres": (
        r"postgres|database_url|one_of_many|other machine|another machine|several servers",
        r"postgres|store/",
    ),
    "background": (r"\bbackground\b|worker", r"background|worker|mode\.py"),
}
"""Of each subject: what names it, in any case, and what its own files have in their path."""


def source_files() -> list[Path]:
    return sorted(path for source in SOURCES for path in (HERE / source).rglob("*.py") if "build" not in path.parts)


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in source_files():
        yield path, ast.parse(path.read_text("utf-8"))


def process_modes() -> list[Any]:
    """Return the different modes that the module of modes can give."""
    from ava_server.config.settings import Configured, Settings
    from ava_server.runs.owner import mode

    kind = mode.Mode
    found: list[Any] = []

    def add(one: Any) -> None:
        if hasattr(one, "beside"):
            one = replace(one, beside="")
        if one not in found:
            found.append(one)

    for value in vars(mode).values():
        if isinstance(value, kind):
            add(value)
    fields = ("background", "runs_on", "database_url")
    values = ((True, False), ("here", "workers"), (None, "postgres://h/d"))
    for name, function in inspect.getmembers(mode, inspect.isfunction):
        if inspect.signature(function).return_annotation != kind.__name__:
            continue
        flags = [each for each, given in inspect.signature(function).parameters.items() if given.annotation == "bool"]
        for chosen in itertools.product(*values):
            named: dict[str, Any] = dict(zip(fields, chosen, strict=True))
            settings = Settings.model_construct(**named)
            for given in itertools.product((False, True), repeat=len(flags)):
                add(getattr(mode, name)(settings, **dict(zip(flags, given, strict=True))))
    assert set(fields) <= {*Configured.model_fields, *Settings.model_fields}, (
        "a setting that decides it has another name"
    )
    return found


def detached_programs() -> list[str]:
    from ava_server.core.data_root import DataRoot

    return sorted(name for name in vars(DataRoot) if name.endswith("_words"))


def ways_to_read() -> list[str]:
    """Return the classes that answer a query of the log, and those that hold a view for others to ask."""
    found: list[str] = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            if any("Protocol" in ast.unparse(base) for base in node.bases):
                continue
            if any(_reads_query(member) or _holds_view(member) for member in node.body):
                found.append(f"{node.name} ({path.relative_to(HERE)})")
    return found


def _reads_query(member: ast.stmt) -> bool:
    """Tell whether a member of a class is `async def read` with a parameter that is a query."""
    if not isinstance(member, ast.AsyncFunctionDef) or member.name != "read":
        return False
    parameters = member.args.posonlyargs
    return any("Query" in ast.unparse(parameter.annotation or parameter) for parameter in parameters)


def _holds_view(member: ast.stmt) -> bool:
    """Tell whether a member of a class is a field of the type `View`."""
    return isinstance(member, ast.AnnAssign) and ast.unparse(member.annotation) == "View"


def twins() -> list[str]:
    """Return pairs of a class or function for this machine and one for another, told by their names."""
    classes: set[str] = set()
    functions: set[str] = set()
    for _path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes.add(node.name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.add(node.name)
    found: list[str] = []
    for remote in sorted(classes):
        local = f"Local{remote.removeprefix('Remote')}"
        if remote.startswith("Remote") and local in classes:
            found.append(f"{local} and {remote}")
    endings = (("_near", "_far"), ("_here", "_there"), ("open_local", "open_remote"))
    for name in sorted(functions):
        for near, far in endings:
            other = name.removesuffix(near) + far
            if name.endswith(near) and other in functions:
                found.append(f"{name} and {other}")
    return found


def is_table(kind: Any) -> TypeGuard[type[BaseModel]]:
    return inspect.isclass(kind) and issubclass(kind, BaseModel)


def leaves(model: type[BaseModel]) -> int:
    """Return the number of settings in a table and the tables in it."""
    number = 0
    for field in model.model_fields.values():
        tables = [one for one in (field.annotation, *get_args(field.annotation)) if is_table(one)]
        number += sum(leaves(table) for table in tables) if tables else 1
    return number


def files_naming(names: str, own: str) -> list[str]:
    named, owned = re.compile(names, re.IGNORECASE), re.compile(own, re.IGNORECASE)
    found = [str(path.relative_to(HERE)) for path in source_files() if named.search(path.read_text("utf-8"))]
    return [path for path in found if not owned.search(path)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--files", action="store_true", help="also list what was counted")
    listed = options.parse_args().files
    sys.path.insert(0, str(HERE / "server"))
    from ava_server.config.settings import Configured
    from ava_server.runs.record.lifecycle import Cause, Situation

    counted = {
        "process modes": [str(mode) for mode in process_modes()],
        "detached programs": detached_programs(),
        "ways to read the log": ways_to_read(),
        "twins": twins(),
        "situations": list(get_args(Situation)),
        "causes": list(get_args(Cause)),
    }
    for name, found in counted.items():
        print(f"{name}: {len(found)}")
        if listed:
            print(*(f"  {each}" for each in found), sep="\n")
    print(f"settings: {leaves(Configured)}")
    for subject, (names, own) in SUBJECTS.items():
        files = files_naming(names, own)
        print(f"{subject}: {len(files)} files outside its own")
        if listed:
            print(*(f"  {each}" for each in files), sep="\n")


if __name__ == "__main__":
    main()

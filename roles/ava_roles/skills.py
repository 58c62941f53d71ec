"""Skills: folders with a `SKILL.md` that says how to do some kind of work (Agent Skills, https://agentskills.io).

Only skills in `skills/` of the data root are used: a person has put them there (`ava roles add`). An approval covers
the bytes of every file; a skill that has changed since is not read. Nothing of a skill runs outside of the sandbox.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from ava_roles.errors import RoleFileError, ToolFailed
from ava_roles.role import FrontmatterFile, read_frontmatter
from ava_roles.sandbox.path_access import FolderEntry
from ava_roles.sandbox.paths import Root, shown
from ava_roles.tools.registry import tool_specs
from ava_roles.wrap import one_line

FILE: Final = "SKILL.md"
MOST_FILES: Final = 500
MOST_BYTES: Final = 20_000_000
MOST_CHARS: Final = 100_000
"""Of `SKILL.md`."""
DESCRIPTION_CHARS: Final = 2_000
"""The format allows 1,024, and published skills have more."""
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_KEYS = frozenset({"name", "description", "allowed-tools"})
_MOST_TOOLS = 200
_TOOL = re.compile(r"(?:[^\s,(]|\([^)]*\)?)+")
"""A tool, with what stands in parentheses behind it."""
_NOT_OF_IT = frozenset({".git", "__pycache__", ".ds_store"})


@dataclass(frozen=True)
class Skill:
    """A skill as it was read.

    Attributes:
        tools: The tools that it asks for (`allowed-tools`), by Ava's names.
        unknown_tools: Those that Ava does not have.
        text: What `SKILL.md` says, without its frontmatter.
        files: Every file of the folder by its path, with its bytes; `SKILL.md` is among them.
        programs: Those that can be run.
        left_out: What is in the folder but is not a regular file.
    """

    name: str
    description: str
    tools: tuple[str, ...]
    unknown_tools: tuple[str, ...]
    text: str
    files: Mapping[str, bytes]
    programs: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(map(len, self.files.values()))

    @property
    def sha256(self) -> str:
        """The hash of every file with its name, and whether it can be run."""
        state = hashlib.sha256()
        for path, data in sorted(self.files.items()):
            line = json.dumps([path, path in self.programs, hashlib.sha256(data).hexdigest()])
            state.update(f"{line}\n".encode())
        return state.hexdigest()

    def lacking(self, tools: tuple[str, ...]) -> tuple[str, ...]:
        """Return the tools that it asks for and that are not among these."""
        return tuple(name for name in self.tools if name not in tools)


def read_skill(folder: Path, source: str) -> Skill:
    """Return the skill in a folder; links in it are not followed. Blocking. Raises RoleFileError if it is none."""
    try:
        with closing(Root.open_without_links(folder)) as root:
            if FILE not in {entry.name for entry in root.entries() if entry.kind == "file"}:
                raise RoleFileError(source, f"has no file {FILE}; give the folder of a skill")
            files, programs, left_out = _files(root, source)
    except OSError as error:
        raise RoleFileError(source, f"cannot be read ({error.strerror}); give a folder with a {FILE}") from error
    except ToolFailed as error:
        raise RoleFileError(source, one_line(str(error), 300)) from error
    if FILE not in files:
        raise RoleFileError(source, f"has lost its {FILE} while it was read; try again")
    instructions = _read_instructions(files[FILE], f"{source}/{FILE}")
    name = instructions.values.get("name", folder.name)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise instructions.fault("name", "must be lower case letters, digits, - and _, at most 64")
    description = _description_in(instructions)
    names = _tool_names(instructions.values.get("allowed-tools"))
    if names is None:
        raise instructions.fault("allowed-tools", f"must be at most {_MOST_TOOLS} names of tools")
    tools, unknown = _tools(names)
    return Skill(name, one_line(description), tools, unknown, instructions.body, files, programs, left_out)


def _read_instructions(data: bytes, source: str) -> FrontmatterFile:
    """Return the parts of a SKILL.md. Raises RoleFileError: no UTF-8, too long, or an invalid frontmatter."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RoleFileError(source, "is not UTF-8 text; save it as UTF-8") from error
    if len(text) > MOST_CHARS:
        raise RoleFileError(source, f"has {len(text):,} characters; a skill has at most {MOST_CHARS:,}")
    return read_frontmatter(text, source, _KEYS)


def _description_in(instructions: FrontmatterFile) -> str:
    description = instructions.values.get("description")
    if not isinstance(description, str) or not description.strip():
        raise instructions.fault("description", "is missing; write what the skill does and when to use it")
    if len(description) > DESCRIPTION_CHARS:
        text = f"has {len(description):,} characters; at most {DESCRIPTION_CHARS:,} are allowed"
        raise instructions.fault("description", text)
    return description


def is_installed(folder: Path, name: str) -> bool:
    """Tell whether the folder for skills has one of this name. Blocking."""
    return NAME.fullmatch(name) is not None and (folder / name).is_dir()


def installed_skill(folder: Path, name: str) -> Skill:
    """Return a skill of the folder for skills, by its name. Blocking. Raises RoleFileError if there is none."""
    source = f"skills/{name}"
    if not is_installed(folder, name):
        raise RoleFileError(source, "is not installed; add it with `ava roles add FOLDER`")
    skill = read_skill(folder / name, source)
    if skill.name != name:
        raise RoleFileError(f"{source}/{FILE}", f"names itself {skill.name}; give its folder the same name")
    return skill


def _files(root: Root, source: str) -> tuple[dict[str, bytes], frozenset[str], tuple[str, ...]]:
    """Return a skill's files by path, the paths of those that can be run, and what was left out, for messages."""
    files: dict[str, bytes] = {}
    programs: set[str] = set()
    left_out: list[str] = []
    free_bytes = MOST_BYTES
    size = f"{MOST_FILES:,} files with {MOST_BYTES // 1_000_000} MB"
    too_large = RoleFileError(source, f"is too large; a skill has at most {size}")
    entry_numbers = itertools.count(1)

    def keep(entry: FolderEntry) -> bool:
        if next(entry_numbers) > 10 * MOST_FILES:  # folders and links too
            raise too_large
        return entry.name.rpartition("/")[2].casefold() not in _NOT_OF_IT

    for entry in root.walk(keep=keep, links=True):
        if entry.kind == "link":
            left_out.append(f"{shown(entry.name)} (a link)")
            continue
        data, is_longer = root.read(entry.name, free_bytes)
        free_bytes -= len(data)
        if is_longer or len(files) >= MOST_FILES:
            raise too_large
        files[entry.name] = data
        with root.open_file(entry.name) as descriptor:
            if _is_program(descriptor):
                programs.add(entry.name)
    return files, frozenset(programs), tuple(left_out)


def _is_program(descriptor: int) -> bool:
    return bool(os.fstat(descriptor).st_mode & 0o100)


def _tool_names(value: Any) -> list[str] | None:
    """Return the tools of `allowed-tools` as it spells them; None if it is not a list or text of names, or too long."""
    if isinstance(value, str):
        items: list[object] = _TOOL.findall(value)
    elif isinstance(value, list):
        items = cast("list[object]", value)
    elif not value:
        items = []
    else:
        return None
    if len(items) > _MOST_TOOLS:
        return None
    names: list[str] = []
    for name in items:
        if not isinstance(name, str):
            return None
        names.append(name)
    return names


def _tools(names: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tools that Ava has, and the others. `Bash(git:*)` asks for all of Bash."""
    own_names: dict[str, str] = {}
    for spec in tool_specs().values():
        own_names.update(dict.fromkeys((*spec.aliases, spec.name), spec.name))
    known: list[str] = []
    unknown: list[str] = []
    for text in names:
        name = text.partition("(")[0].strip()
        if name.startswith("mcp__"):
            known.append(name)
        elif name in own_names:
            known.append(own_names[name])
        elif name:
            unknown.append(one_line(name, 80))
    return tuple(dict.fromkeys(known)), tuple(dict.fromkeys(unknown))


def write_skill(skill: Skill, folder: Path) -> None:
    """Write the files of a skill into an existing folder, readable for the user who runs commands. Blocking.

    Raises OSError if it cannot be written.
    """
    for path, data in skill.files.items():
        place = folder / PurePosixPath(path)
        for above in reversed(place.relative_to(folder).parents[:-1]):
            (folder / above).mkdir(mode=0o755, exist_ok=True)
        place.write_bytes(data)
        place.chmod(0o755 if path in skill.programs else 0o644)

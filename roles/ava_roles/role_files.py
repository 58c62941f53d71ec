"""Folders of role files: how they are read, bounded, and in a project's folder through no link."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ava_roles.errors import AccessRefused, RoleFileError, ToolFailed
from ava_roles.role import MAX_FILE_CHARS, RESEARCH_TOOLS, Role, meant_key, parse_role, read_document, read_role
from ava_roles.sandbox.path_access import EntryKind, NotRegular, read_small
from ava_roles.sandbox.paths import Root
from ava_roles.wrap import one_line

MAX_FILES: Final = 200
"""In one folder; each file is read at every proposal."""
MAX_FOLDERS: Final = 50
"""Inside a folder that is read with its subfolders; a fourth level is ignored."""
_MAX_DEPTH = 3
_MAX_BYTES = 4 * MAX_FILE_CHARS
_NAME_CHARS = 80
_PUT_FILE = "put the file itself there"


@dataclass(frozen=True)
class Folder:
    """A folder with role files; messages call it by its `label`, e.g. `.ava/roles`.

    Outside of its `project`, if it belongs to one, nothing is read, and nothing through a link. `trusted` has the hex
    sha256 that a person has trusted, by file name; None if no file needs trust. `deep`: subfolders count as well, as
    Claude Code's do.
    """

    path: Path
    label: str
    project: Path | None = None
    trusted: Mapping[str, str] | None = None
    deep: bool = False


@dataclass(frozen=True)
class RoleFile:
    """A file that was read."""

    folder: Folder
    name: str
    source: str
    data: bytes

    @property
    def sha256(self) -> str:
        """The hex sha256 of its content."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def text(self) -> str:
        """Its text. Raises RoleFileError: it is not UTF-8."""
        return text_of(self.data, self.source)


def text_of(data: bytes, source: str) -> str:
    """Return a role file's text. Raises RoleFileError: it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RoleFileError(source, "is not UTF-8 text; save it as UTF-8", line) from error


def read_folder(folder: Folder) -> Iterator[RoleFile | RoleFileError]:
    """Yield each `*.md` of a folder, sorted by name, or why it cannot be read; a missing folder is empty. Blocking."""
    if folder.project is None:
        yield from _read_user_folder(folder)
    else:
        yield from _read_project_folder(folder, folder.project)


def role_file_names(folder: Folder) -> list[str]:
    """Return the names of a folder's `*.md`, without reading them; none if it cannot be listed. Blocking."""

    def entries(below: str) -> list[tuple[str, EntryKind]]:
        with os.scandir(folder.path / below) as found:
            return [(entry.name, "folder" if entry.is_dir(follow_symlinks=False) else "file") for entry in found]

    try:
        return [name for name, _kind in _names(folder, entries)[0]]
    except OSError:
        return []


def folder_fingerprint(folder: Folder) -> tuple[object, ...]:
    """Return a value that changes when a `*.md` of a folder does, without reading the files. Blocking."""
    looks: list[object] = []
    for name in role_file_names(folder):
        with contextlib.suppress(OSError):
            status = (folder.path / name).lstat()
            looks.append((name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return tuple(looks)


def read_chosen_file(path: Path, source: str) -> bytes:
    """Return a role file that a person chose, through links too. Blocking. Raises RoleFileError: it is unreadable."""
    try:
        data = read_small(path, _MAX_BYTES + 1)
    except NotRegular as error:
        raise RoleFileError(source, f"is not a regular file; {_PUT_FILE}") from error
    except OSError as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise RoleFileError(source, f"cannot be read ({why}); check its permissions and where it leads") from error
    if len(data) > _MAX_BYTES:
        raise _too_large(source)
    return data


def file_label(name: str) -> str:
    """Return a file's name for messages: short, on one line, without invisible characters."""
    return one_line(name, _NAME_CHARS)


def _too_large(source: str) -> RoleFileError:
    return RoleFileError(source, f"is too large; a role file has at most {MAX_FILE_CHARS:,} characters")


def _read_user_folder(folder: Folder) -> Iterator[RoleFile | RoleFileError]:
    """Read a folder of the user's own; they may put links there."""

    def entries(below: str) -> list[tuple[str, EntryKind]]:
        return [(path.name, "folder" if path.is_dir() else "file") for path in (folder.path / below).iterdir()]

    try:
        kept, surplus = _names(folder, entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield RoleFileError(folder.label, f"the folder cannot be read ({error.strerror}); check its permissions")
        return
    for name, _kind in kept:
        source = f"{folder.label}/{file_label(name)}"
        try:
            yield RoleFile(folder, name, source, read_chosen_file(folder.path / name, source))
        except RoleFileError as error:
            yield error
    yield from surplus


def _read_project_folder(folder: Folder, project: Path) -> Iterator[RoleFile | RoleFileError]:
    """Read a folder of a project, which anyone may have written."""
    try:
        folder.path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield RoleFileError(folder.label, f"the folder cannot be read ({error.strerror}); check its permissions")
        return
    here = folder.path.relative_to(project).as_posix()
    try:
        root = Root.open(project)
    except OSError as error:
        yield RoleFileError(folder.label, f"the project cannot be opened ({error.strerror}); check its permissions")
        return

    def entries(below: str) -> list[tuple[str, EntryKind]]:
        return [(entry.name, entry.kind) for entry in root.entries(f"{here}/{below}")]

    try:
        kept, surplus = _names(folder, entries)
        for name, kind in kept:
            found = _read_project_file(root, f"{here}/{name}", kind, folder, name)
            if found is not None:
                yield found
        yield from surplus
    except ToolFailed:
        yield RoleFileError(folder.label, "is not a folder, leads through a link, or cannot be read; make it a folder")
    finally:
        root.close()


def _read_project_file(
    root: Root, path: str, kind: EntryKind, folder: Folder, name: str
) -> RoleFile | RoleFileError | None:
    """Read a file of a project; None if it has been removed meanwhile."""
    source = f"{folder.label}/{file_label(name)}"
    if kind == "link":
        return RoleFileError(source, f"is a link, and those of a project are not followed; {_PUT_FILE}")
    if kind == "other":
        return RoleFileError(source, f"is not a regular file; {_PUT_FILE}")
    try:
        data, more = root.read(path, _MAX_BYTES)
        if more:
            return _too_large(source)
        return RoleFile(folder, name, source, data)
    except AccessRefused:
        why = "may not be read, is not a regular file, or has a hard link outside"
        return RoleFileError(source, f"{why}; {_PUT_FILE}, readable for this user")
    except ToolFailed:
        return None


def _names(
    folder: Folder, entries: Callable[[str], list[tuple[str, EntryKind]]]
) -> tuple[list[tuple[str, EntryKind]], list[RoleFileError]]:
    """Return the role files to read, sorted, with their kinds; and errors about what is too many.

    `entries` lists the folder or a subfolder, by a path that is empty or ends with `/`.
    """
    found: list[tuple[str, EntryKind]] = []
    pending, seen = [""], 0
    surplus: list[RoleFileError] = []
    while pending:
        below = pending.pop()
        seen += 1
        if seen > MAX_FOLDERS:
            text = f"has more than {MAX_FOLDERS} folders inside, and the others are not read; move them elsewhere"
            surplus.append(RoleFileError(folder.label, text))
            break
        for name, kind in entries(below):
            if kind == "folder" and folder.deep and below.count("/") < _MAX_DEPTH:
                pending.append(f"{below}{name}/")
            elif kind != "folder" and name.endswith(".md"):
                found.append((f"{below}{name}", kind))
    found.sort()
    if len(found) > MAX_FILES:
        text = f"has {len(found):,} role files, of which the first {MAX_FILES} are read; move the others elsewhere"
        surplus.append(RoleFileError(folder.label, text))
    return found[:MAX_FILES], surplus


@dataclass(frozen=True)
class Remark:
    """A remark about a role file; without a `line` about the whole file, and without `fault` about an ignored part."""

    source: str
    reason: str
    line: int | None = None
    key: str | None = None
    fault: bool = True

    @classmethod
    def of(cls, error: RoleFileError) -> Remark:
        """Return the remark for an error."""
        return cls(error.source, error.reason, error.line, error.key)

    @property
    def text(self) -> str:
        """The remark with file, line and key, in a sentence."""
        return str(RoleFileError(self.source, self.reason, self.line, self.key))

    def __str__(self) -> str:
        """Return it in a compiler's form: `file:line: key: reason`."""
        at = f":{self.line}" if self.line is not None else ""
        return f"{self.source}{at}: {f'{self.key}: ' if self.key else ''}{self.reason}"


def check(text: str, source: str, default_name: str) -> tuple[Role | None, list[Remark]]:
    """Return the role that a text describes, if it is valid, and all remarks about it."""
    role, faults = read_role(text, source, default_name)
    if role is None:
        return None, [Remark.of(fault) for fault in faults]
    lines = read_document(text, source, frozenset()).lines
    remarks: list[Remark] = []
    template = read_document(starting_text(), "", frozenset({"description"}))
    for key, given, left in (
        ("description", role.description, template.values["description"]),
        (None, role.body, template.body.partition("\n")[0]),
    ):
        if left in given:
            why = "is still the template's; say what this role is for and what it does"
            why = why if key else f"the body {why}"
            remarks.append(Remark(source, why, lines.get(key or ""), key, fault=False))
    for ignored in role.ignored_keys:
        key, _colon, tool = ignored.partition(": ")
        why = f"Ava has no tool {tool}; ignored" if tool else "Ava does not use this key; ignored"
        if not tool and (meant := meant_key(key)):
            why = f"Ava does not know this key; did you mean {meant}?"
        remarks.append(Remark(source, why, lines.get(key), key, fault=False))
    return role, sorted(remarks, key=lambda remark: remark.line or 0)


def faults_of(file: RoleFile) -> list[Remark]:
    """Return why a file cannot be used: each fault."""
    try:
        faults = read_role(file.text, file.source, Path(file.name).stem)[1]
    except RoleFileError as error:  # not text
        faults = [error]
    return [Remark.of(fault) for fault in faults]


def starting_text() -> str:
    """Return the text with which a new role file starts: every key, with an explanation."""
    return packaged_text("starting.txt")


def packaged_text(name: str) -> str:
    """Return a role file of this package, with the names of the tools in place of `RESEARCH_TOOLS`."""
    return Path(__file__).with_name(name).read_text("utf-8").replace("RESEARCH_TOOLS", ", ".join(RESEARCH_TOOLS))


def rename_role(text: str, name: str) -> str:
    """Return a role file's text with another name in its frontmatter. Raises RoleFileError: it cannot be replaced."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    end = next((number for number, line in enumerate(lines[1:], start=1) if line.rstrip() == "---"), 0)
    front = [line for line in lines[1:end] if not line.startswith("name:")]
    text = "\n".join(["---", f"name: {name}", *front, *lines[end:]])
    if parse_role(text, name, name).name != name:
        raise RoleFileError(name, "the name cannot be replaced; copy the file and change it by hand", 1, "name")
    return text

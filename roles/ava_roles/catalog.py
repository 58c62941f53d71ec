"""The catalog of roles: the built-in ones, then those in role files of the user's and the project's folders.

How many and how large files are read is bounded, and in a project's folder no link is followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ava_roles import BUILT_IN, BUILT_IN_SOURCE
from ava_roles.errors import AccessRefused, RoleFileError, ToolFailed, UnknownRole
from ava_roles.role import (
    MAX_FILE_CHARS,
    RESEARCH_TOOLS,
    Role,
    first_sentence,
    meant_key,
    parse_role,
    read_frontmatter,
    read_role,
)
from ava_roles.sandbox.path_access import EntryKind, NotRegular, read_small
from ava_roles.sandbox.paths import Root
from ava_roles.wrap import clean, one_line

MAX_FILES: Final = 200
"""In one folder; each file is read at every proposal."""
MAX_FOLDERS: Final = 50
"""Inside a folder that is read with its subfolders; a fourth level is ignored."""
_MAX_DEPTH = 3
_MAX_BYTES = 4 * MAX_FILE_CHARS
_NAME_CHARS = 80
_SHORTEST_SENTENCE = 12
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
        return hashlib.sha256(self.data).hexdigest()

    @property
    def text(self) -> str:
        return text_of(self.data, self.source)


def text_of(data: bytes, source: str) -> str:
    """Return a role file's text. Raises RoleFileError if it is not UTF-8."""
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
        with os.scandir(folder.path / below) as scan:
            return [(entry.name, "folder" if entry.is_dir(follow_symlinks=False) else "file") for entry in scan]

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
    """Return a role file that a person chose, through links too. Blocking. Raises RoleFileError if it is unreadable."""
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
    """Anyone may have written it."""
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
            file = _read_project_file(root, f"{here}/{name}", kind, folder, name)
            if file is not None:
                yield file
        yield from surplus
    except ToolFailed:
        yield RoleFileError(folder.label, "is not a folder, leads through a link, or cannot be read; make it a folder")
    finally:
        root.close()


def _read_project_file(
    root: Root, path: str, kind: EntryKind, folder: Folder, name: str
) -> RoleFile | RoleFileError | None:
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
    """Return the role files to read, sorted, with their kinds, and errors about what is too many.

    `entries` lists the folder or a subfolder, by a path that is empty or ends with `/`.
    """
    names: list[tuple[str, EntryKind]] = []
    pending = [""]
    folder_count = 0
    surplus: list[RoleFileError] = []
    while pending:
        below = pending.pop()
        folder_count += 1
        if folder_count > MAX_FOLDERS:
            text = f"has more than {MAX_FOLDERS} folders inside, and the others are not read; move them elsewhere"
            surplus.append(RoleFileError(folder.label, text))
            break
        for name, kind in entries(below):
            if kind == "folder" and folder.deep and below.count("/") < _MAX_DEPTH:
                pending.append(f"{below}{name}/")
            elif kind != "folder" and name.endswith(".md"):
                names.append((f"{below}{name}", kind))
    names.sort()
    if len(names) > MAX_FILES:
        text = f"has {len(names):,} role files, of which the first {MAX_FILES} are read; move the others elsewhere"
        surplus.append(RoleFileError(folder.label, text))
    return names[:MAX_FILES], surplus


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
        return cls(error.source, error.reason, error.line, error.key)

    @property
    def text(self) -> str:
        return str(RoleFileError(self.source, self.reason, self.line, self.key))

    def __str__(self) -> str:
        """Return it in a compiler's form: `file:line: key: reason`."""
        at = f":{self.line}" if self.line is not None else ""
        key = f"{self.key}: " if self.key else ""
        return f"{self.source}{at}: {key}{self.reason}"


def check(text: str, source: str, default_name: str) -> tuple[Role | None, list[Remark]]:
    """Return the role that a text describes, if it is valid, and all remarks about it."""
    role, faults = read_role(text, source, default_name)
    if role is None:
        return None, [Remark.of(fault) for fault in faults]
    lines = read_frontmatter(text, source, frozenset()).lines
    remarks: list[Remark] = []
    template = read_frontmatter(starting_text(), "", frozenset({"description"}))
    unchanged = "is still the template's; say what this role is for and what it does"
    if template.values["description"] in role.description:
        remarks.append(Remark(source, unchanged, lines.get("description"), "description", fault=False))
    if template.body.partition("\n")[0] in role.body:
        remarks.append(Remark(source, f"the body {unchanged}", lines.get(""), None, fault=False))
    for ignored in role.ignored_keys:
        key, _colon, tool = ignored.partition(": ")
        if tool:
            why = f"Ava has no tool {tool}; ignored"
        elif meant_key(key):
            why = f"Ava does not know this key; did you mean {meant_key(key)}?"
        else:
            why = "Ava does not use this key; ignored"
        remarks.append(Remark(source, why, lines.get(key), key, fault=False))
    return role, sorted(remarks, key=lambda remark: remark.line or 0)


def faults_of(file: RoleFile) -> list[Remark]:
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
    """Return a role file's text with another name in its frontmatter. Raises RoleFileError if it cannot be replaced."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    end = 0
    for number, line in enumerate(lines):
        if number and line.rstrip() == "---":
            end = number
            break
    front = [line for line in lines[1:end] if not line.startswith("name:")]
    text = "\n".join(["---", f"name: {name}", *front, *lines[end:]])
    if parse_role(text, name, name).name != name:
        raise RoleFileError(name, "the name cannot be replaced; copy the file and change it by hand", 1, "name")
    return text


@dataclass(frozen=True)
class UntrustedFile:
    """A role file of a project that no person has trusted in its present form: it is not used.

    `changed`: it was trusted, and has changed since. If it is not a valid role file, `name` is the file's, `role` is
    None, and `problem` says why. The file's author may have chosen its words: show them to no model.
    """

    name: str
    file: RoleFile
    changed: bool
    role: Role | None
    problem: Remark | None = None

    @property
    def why(self) -> str:
        state = "has changed since a person trusted it" if self.changed else "is not trusted"
        return f"{self.file.source} came with the project {clean(str(self.file.folder.project))[0]} and {state}"

    @property
    def command(self) -> str:
        return f"ava roles trust {shlex.quote(clean(str(self.file.folder.project))[0])}"

    @property
    def step(self) -> str:
        """What to do, for the person who decides."""
        return f"Read it, and trust it if you do: {self.command}"

    @property
    def what_to_do(self) -> str:
        """What to do, for a model, which cannot decide it."""
        return f"a person has to look at it in a terminal. {self.step}"


@dataclass(frozen=True)
class Catalog:
    """All roles by name, built-in ones first, and unusable files; `unread`: which files a setting leaves unread."""

    by_name: Mapping[str, Role]
    problems: tuple[Remark, ...] = ()
    untrusted: tuple[UntrustedFile, ...] = ()
    unread: str = ""

    @classmethod
    def load(cls, folders: Sequence[Folder] = ()) -> Catalog:
        """Read the built-in role files and every `*.md` of the folders, in their order. Blocking.

        The first file of a name is used; a later one, or an invalid one, is a problem. Untrusted files take no name.
        """
        roles: dict[str, Role] = {}
        problems: list[Remark] = []
        untrusted: list[UntrustedFile] = []
        for file in chain(_built_in_files(), *(read_folder(folder) for folder in folders)):
            if isinstance(file, RoleFileError):
                problems.append(Remark.of(file))
                continue
            trusted = file.folder.trusted
            if trusted is not None and trusted.get(file.name) != file.sha256:
                untrusted.append(_untrusted(file, changed=file.name in trusted))
                continue
            try:
                role = parse_role(file.text, file.source, Path(file.name).stem)
            except RoleFileError:
                problems += faults_of(file)
                continue
            if role.name in roles:
                reason = f'the name "{role.name}" is taken ({roles[role.name].source}); rename this role'
                problems.append(Remark(file.source, reason))
            else:
                roles[role.name] = role
        return cls(MappingProxyType(roles), tuple(problems), tuple(untrusted))

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(self.by_name.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What usable role files say and Ava ignores: a tool that the author meant may be missing."""
        notes: list[str] = []
        for role in self.roles:
            keys = [clean(key)[0][:120] for key in role.ignored]
            if keys:
                notes.append(f"{role.source}: ignored, because Ava does not know it: {', '.join(keys)}")
        return tuple(notes)

    def get(self, name: str) -> Role:
        """Return the role of that name. Raises UnknownRole if there is none; names the known roles and the closest."""
        if name in self.by_name:
            return self.by_name[name]
        for untrusted in self.untrusted:
            if untrusted.name == name:
                raise UnknownRole(f'the role "{name}" is not used: {untrusted.why}; {untrusted.what_to_do}')
        shown_name = one_line(name, 64)
        message = f'no role "{shown_name}"; known: {", ".join(map(_name_in_list, sorted(self.by_name)))}'
        close = self._closest(shown_name)
        if close:
            message += f'; did you mean "{close}"?'
        for problem in self.problems:
            if Path(problem.source).stem == name:
                message += f"; a file of that name cannot be used: {problem.text}"
                break
        if self.unread:
            message += f"; {self.unread}"
        raise UnknownRole(message)

    def _closest(self, name: str) -> str:
        """Return the name of a role that is spelt nearly as this one; empty if there is none."""
        by_plain_name: dict[str, str] = {}
        for untrusted in self.untrusted:
            if untrusted.role:
                by_plain_name[_plain(untrusted.name)] = untrusted.name
        for known in self.by_name:
            by_plain_name[_plain(known)] = known
        close = get_close_matches(_plain(name), by_plain_name, n=1)
        return by_plain_name[close[0]] if close else ""

    def describe(self, limit: int = 1200) -> str:
        """Return a line `name: first sentence` for each role, at most `limit` characters in all.

        If need be, sentences are cut to one length, or only names are given, and what does not fit is counted.
        """
        sentences = {role.name: clean(first_sentence(role.description))[0] for role in self.roles}
        longest = max((len(sentence) for sentence in sentences.values()), default=0)
        length = bisect_right(range(longest + 1), limit, key=lambda cap: len(_lines(sentences, cap))) - 1
        if length >= min(_SHORTEST_SENTENCE, longest):
            return _lines(sentences, length)
        return _listed(tuple(sentences), limit)


@lru_cache(maxsize=1)
def _built_in_files() -> tuple[RoleFile, ...]:
    here = Folder(Path(__file__).parent, BUILT_IN_SOURCE)
    names = [f"{name}.md" for name in BUILT_IN]
    return tuple(RoleFile(here, name, BUILT_IN_SOURCE, packaged_text(name).encode()) for name in names)


def _untrusted(file: RoleFile, *, changed: bool) -> UntrustedFile:
    stem = Path(file.name).stem
    try:
        role = parse_role(file.text, file.source, stem)
    except RoleFileError as error:
        return UntrustedFile(stem, file, changed, None, Remark.of(error))
    return UntrustedFile(role.name, file, changed, role)


def _name_in_list(name: str) -> str:
    return name if name in BUILT_IN else f'"{name}"'


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _lines(sentences: Mapping[str, str], length: int) -> str:
    return "\n".join(f"{name}: {_cut(sentence, length)}" for name, sentence in sentences.items())


def _cut(sentence: str, length: int) -> str:
    if len(sentence) <= length:
        return sentence
    return sentence[: max(length - 1, 0)].rstrip() + "…"


def _listed(names: Sequence[str], limit: int) -> str:
    for count in range(len(names), 0, -1):
        left = len(names) - count
        line = ", ".join(names[:count]) + (f" and {left} more" if left else "")
        if len(line) <= limit:
            return line
    return f"{len(names)} roles"[:limit]

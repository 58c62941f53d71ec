"""The catalog of roles: the built-in ones, then those of the user's and the project's folders."""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from ava_roles import BUILT_IN_SOURCE
from ava_roles.errors import RoleFileError, UnknownRole
from ava_roles.role import Role, first_sentence, parse_role
from ava_roles.role_files import Folder, Remark, RoleFile, faults_of, packaged_text, read_folder
from ava_roles.wrap import clean, one_line

BUILT_IN = ("web_crawler", "code_reviewer", "data_extractor", "researcher", "coder", "custom")
_SHORTEST_SENTENCE = 12

__all__ = ["BUILT_IN", "Catalog", "Folder", "Remark", "UntrustedFile"]


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
        """Why it is not used, in Ava's own words."""
        state = "has changed since a person trusted it" if self.changed else "is not trusted"
        return f"{self.file.source} came with the project {clean(str(self.file.folder.project))[0]} and {state}"

    @property
    def command(self) -> str:
        """The command with which a person trusts it."""
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
    """All roles by name, the built-in ones first, and the role files that cannot be used.

    `unread` says in a sentence which agent files a setting leaves unread; empty if there are none.
    """

    by_name: Mapping[str, Role]
    problems: tuple[Remark, ...] = ()
    untrusted: tuple[UntrustedFile, ...] = ()
    unread: str = ""

    @classmethod
    def load(cls, folders: Sequence[Folder] = ()) -> Catalog:
        """Read the built-in role files and every `*.md` of the folders, in their order.

        The first file of a name is used; a later one is a problem, and so is a file that is not valid. Untrusted
        files take no name. Blocking.
        """
        roles: dict[str, Role] = {}
        problems: list[Remark] = []
        untrusted: list[UntrustedFile] = []
        for found in _files(folders):
            if isinstance(found, RoleFileError):
                problems.append(Remark.of(found))
                continue
            trusted = found.folder.trusted
            if trusted is not None and trusted.get(found.name) != found.sha256:
                untrusted.append(_untrusted(found, changed=found.name in trusted))
                continue
            try:
                role = parse_role(found.text, found.source, Path(found.name).stem)
            except RoleFileError:
                problems += faults_of(found)
                continue
            if role.name in roles:
                taken = f"the name {role.name} is taken ({roles[role.name].source}); rename this role"
                problems.append(Remark(found.source, taken))
            else:
                roles[role.name] = role
        return cls(MappingProxyType(roles), tuple(problems), tuple(untrusted))

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles, the built-in ones first."""
        return tuple(self.by_name.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What usable role files say and Ava ignores: a tool that the author meant may be missing."""
        return tuple(
            f"{role.source}: ignored, because Ava does not know it: {', '.join(shown)}"
            for role in self.roles
            if (shown := [clean(key)[0][:120] for key in role.ignored])
        )

    def get(self, name: str) -> Role:
        """Return the role of that name. Raises UnknownRole: there is none; names the known roles and the closest."""
        if name in self.by_name:
            return self.by_name[name]
        waiting = [untrusted for untrusted in self.untrusted if untrusted.name == name]
        if waiting:
            raise UnknownRole(f'the role "{name}" is not used: {waiting[0].why}; {waiting[0].what_to_do}')
        given = one_line(name, 64)
        message = f'no role "{given}"; known: {", ".join(sorted(self.by_name))}'
        plain = {
            _plain(known): known for known in (*(each.name for each in self.untrusted if each.role), *self.by_name)
        }
        close = get_close_matches(_plain(given), plain, n=1)
        if close:
            message += f'; did you mean "{plain[close[0]]}"?'
        broken = [problem for problem in self.problems if Path(problem.source).stem == name]
        if broken:
            message += f"; a file of that name cannot be used: {broken[0].text}"
        if self.unread:
            message += f"; {self.unread}"
        raise UnknownRole(message)

    def describe(self, limit: int = 1200) -> str:
        """Return a line `name: first sentence` for each role, at most `limit` characters in all.

        If that is too long, the longest sentences are cut to one common length. If too little of them is left, only
        names are given, and those that do not fit are counted.
        """
        sentences = {role.name: clean(first_sentence(role.description))[0] for role in self.roles}
        longest = max((len(sentence) for sentence in sentences.values()), default=0)
        length = bisect_right(range(longest + 1), limit, key=lambda cap: len(_lines(sentences, cap))) - 1
        if length >= min(_SHORTEST_SENTENCE, longest):
            return _lines(sentences, length)
        return _listed(tuple(sentences), limit)


def _files(folders: Sequence[Folder]) -> Iterator[RoleFile | RoleFileError]:
    """Yield each role file, or the reason why it cannot be read."""
    yield from _built_in_files()
    for folder in folders:
        yield from read_folder(folder)


@lru_cache(maxsize=1)
def _built_in_files() -> tuple[RoleFile, ...]:
    here = Folder(Path(__file__).parent, BUILT_IN_SOURCE)
    names = [f"{name}.md" for name in BUILT_IN]
    return tuple(RoleFile(here, name, BUILT_IN_SOURCE, packaged_text(name).encode()) for name in names)


def _untrusted(found: RoleFile, *, changed: bool) -> UntrustedFile:
    stem = Path(found.name).stem
    try:
        role = parse_role(found.text, found.source, stem)
    except RoleFileError as error:
        return UntrustedFile(stem, found, changed, None, Remark.of(error))
    return UntrustedFile(role.name, found, changed, role)


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


def _lines(sentences: Mapping[str, str], length: int) -> str:
    return "\n".join(f"{name}: {_cut(sentence, length)}" for name, sentence in sentences.items())


def _cut(sentence: str, length: int) -> str:
    return sentence if len(sentence) <= length else sentence[: max(length - 1, 0)].rstrip() + "…"


def _listed(names: Sequence[str], limit: int) -> str:
    for count in range(len(names), 0, -1):
        left = len(names) - count
        line = ", ".join(names[:count]) + (f" and {left} more" if left else "")
        if len(line) <= limit:
            return line
    return f"{len(names)} roles"[:limit]

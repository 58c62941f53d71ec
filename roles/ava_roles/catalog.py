"""The roles that there are: the built-in files, then those of the user's and the project's folders."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from ava_roles.errors import RoleFileError, UnknownRole
from ava_roles.frontmatter import MAX_FILE_CHARS
from ava_roles.role import Role, first_sentence, parse_role
from ava_roles.wrap import clean

BUILT_IN = ("web_crawler", "code_reviewer", "data_extractor", "researcher", "coder", "custom")
_SHORTEST_SENTENCE = 12


@dataclass(frozen=True)
class Folder:
    """A folder with role files, and how it is called in messages, e.g. `.ava/roles`."""

    path: Path
    label: str


@dataclass(frozen=True)
class Problem:
    """A role file that cannot be used; `text` names file, line and key, and says why."""

    source: str
    text: str


@dataclass(frozen=True)
class Catalog:
    """All roles by name, the built-in ones first, and what is wrong with files that brought none."""

    by_name: Mapping[str, Role]
    problems: tuple[Problem, ...] = ()

    @classmethod
    def load(cls, folders: Sequence[Folder] = ()) -> Catalog:
        """Read the built-in role files and every `*.md` of the folders, in their order.

        The first file of a name counts; a later one, and one named like a built-in role, is a problem. So is
        a file that is no role file; the other roles work all the same. A folder that is not there is empty.
        Reads files: call it in a thread.
        """
        roles: dict[str, Role] = {}
        problems: list[Problem] = []
        for path, source in _files(folders, problems):
            try:
                role = parse_role(_text(path, source), source, path.stem)
            except RoleFileError as error:
                problems.append(Problem(source, str(error)))
                continue
            if role.name in roles:
                problem = f"{source}: the name {role.name} is taken ({roles[role.name].source}); rename this role"
                problems.append(Problem(source, problem))
                continue
            roles[role.name] = role
        return cls(MappingProxyType(roles), tuple(problems))

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles, the built-in ones first."""
        return tuple(self.by_name.values())

    @property
    def notes(self) -> tuple[Problem, ...]:
        """What usable role files say that nothing here reads: a tool that was meant may be missing."""
        return tuple(
            Problem(role.source, f"{role.source}: passed over, for nothing here knows it: {', '.join(shown)}")
            for role in self.roles
            if (shown := [clean(key)[0][:80] for key in role.ignored_keys])
        )

    def get(self, name: str) -> Role:
        """Return the role of that name.

        Raises:
            UnknownRole: There is none; names the known ones and the closest.
        """
        if name in self.by_name:
            return self.by_name[name]
        given = " ".join(clean(name)[0].split())
        given = given if len(given) <= 64 else given[:63] + "…"
        message = f'no role "{given}"; known: {", ".join(sorted(self.by_name))}'
        plain = {_plain(known): known for known in self.by_name}
        close = get_close_matches(_plain(given), plain, n=1)
        if close:
            message += f'; did you mean "{plain[close[0]]}"?'
        broken = [problem for problem in self.problems if Path(problem.source).stem == name]
        if broken:
            message += f"; a file of that name cannot be used: {broken[0].text}"
        raise UnknownRole(message)

    def describe(self, limit: int = 1200) -> str:
        """Return a line `name: first sentence` for each role, at most `limit` characters in all.

        Where that is too little, the longest sentences are cut first, to one common length; where that leaves
        no sentence worth reading, only names are given, and the last of them counted.
        """
        sentences = {role.name: clean(first_sentence(role.description))[0] for role in self.roles}
        longest = max((len(sentence) for sentence in sentences.values()), default=0)
        length = bisect_right(range(longest + 1), limit, key=lambda cap: len(_lines(sentences, cap))) - 1
        if length >= min(_SHORTEST_SENTENCE, longest):
            return _lines(sentences, length)
        return _listed(tuple(sentences), limit)


def _files(folders: Sequence[Folder], problems: list[Problem]) -> Iterator[tuple[Path, str]]:
    """Yield each role file with the name it has in messages."""
    here = Path(__file__).parent
    for name in BUILT_IN:
        yield here / f"{name}.md", "built in"
    for folder in folders:
        try:
            names = sorted(path.name for path in folder.path.iterdir() if path.suffix == ".md" and path.is_file())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = f"{folder.label}: the folder cannot be read ({error.strerror}); check its permissions"
            problems.append(Problem(folder.label, problem))
            continue
        for name in names:
            yield folder.path / name, f"{folder.label}/{clean(name)[0]}"


def _text(path: Path, source: str) -> str:
    """Read a role file.

    Raises:
        RoleFileError: It is too large, no UTF-8 text, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(4 * MAX_FILE_CHARS + 1)
    except OSError as error:
        raise RoleFileError(f"{source}: cannot be read ({error.strerror}); check its permissions") from error
    if len(content) > 4 * MAX_FILE_CHARS:
        raise RoleFileError(f"{source}: is too large; a role file has at most {MAX_FILE_CHARS:,} characters")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RoleFileError(f"{source}, line {line}: is no UTF-8 text; save it as UTF-8") from error


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


def _lines(sentences: Mapping[str, str], length: int) -> str:
    return "\n".join(f"{name}: {_cut(sentence, length)}" for name, sentence in sentences.items())


def _cut(sentence: str, length: int) -> str:
    """Cut a sentence to a length."""
    return sentence if len(sentence) <= length else sentence[: max(length - 1, 0)].rstrip() + "…"


def _listed(names: Sequence[str], limit: int) -> str:
    """Return as many names as fit, and how many more there are."""
    for count in range(len(names), 0, -1):
        left = len(names) - count
        line = ", ".join(names[:count]) + (f" and {left} more" if left else "")
        if len(line) <= limit:
            return line
    return f"{len(names)} roles"[:limit]

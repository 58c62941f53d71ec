"""What is wrong with a role file, and what in it means nothing here, each with its line."""

from __future__ import annotations

from dataclasses import dataclass

from ava_roles.errors import RoleFileError
from ava_roles.frontmatter import read
from ava_roles.role import Role, parse_role


@dataclass(frozen=True)
class Remark:
    """Something about a role file.

    Attributes:
        source: The file.
        line: Where; None is the whole file.
        key: Of which key.
        reason: What is to be said.
        fault: The file cannot be used; False for what is only passed over.
    """

    source: str
    line: int | None
    key: str | None
    reason: str
    fault: bool

    @classmethod
    def of(cls, error: RoleFileError) -> Remark:
        """Return what an error says."""
        return cls(error.source, error.line, error.key, error.reason, fault=True)

    def __str__(self) -> str:
        """Return it as compilers do: `file:line: key: reason`."""
        at = f":{self.line}" if self.line is not None else ""
        return f"{self.source}{at}: {f'{self.key}: ' if self.key else ''}{self.reason}"


def check(text: str, source: str, default_name: str) -> tuple[Role | None, list[Remark]]:
    """Return the role that a text describes, if it does, and what there is to say of it."""
    try:
        role = parse_role(text, source, default_name)
    except RoleFileError as error:
        return None, [Remark.of(error)]
    lines = read(text, source, frozenset()).lines
    remarks: list[Remark] = []
    for ignored in role.ignored_keys:
        key, _colon, tool = ignored.partition(": ")
        why = f"{tool} is no tool here, and is passed over" if tool else "means nothing here, and is passed over"
        remarks.append(Remark(source, lines.get(key), key, why, fault=False))
    return role, sorted(remarks, key=lambda remark: remark.line or 0)


def renamed(text: str, name: str) -> str:
    """Return a role file's text with another name in its frontmatter.

    Raises:
        RoleFileError: It has no frontmatter in which that could be done.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    end = next((number for number, line in enumerate(lines[1:], start=1) if line.rstrip() == "---"), 0)
    front = [line for line in lines[1:end] if not line.startswith("name:")]
    text = "\n".join(["---", f"name: {name}", *front, *lines[end:]])
    if parse_role(text, name, name).name != name:
        raise RoleFileError(name, "the name cannot be replaced; copy the file and write it there by hand", 1, "name")
    return text

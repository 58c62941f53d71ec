"""The form of a role file: YAML between two lines `---`, then the body."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from ava_roles.errors import RoleFileError

MAX_FILE_CHARS: Final = 100_000

# A plain description with ": " in it is no YAML, and yet what many agent files have.
_PLAIN_DESCRIPTION = re.compile(r"^(description:[ \t]+)([^\s'\"|>].*)$", re.MULTILINE)


@dataclass(frozen=True)
class File:
    """A role file cut into its keys' values, the line of each, and the body."""

    source: str
    values: Mapping[str, Any]
    lines: Mapping[str, int]
    body: str

    def fault(self, key: str, sentence: str) -> RoleFileError:
        """Return the error of a key, which names file, line and key."""
        return RoleFileError(self.source, sentence, self.lines.get(key, 1), key)


def read(text: str, source: str, known: frozenset[str]) -> File:
    """Cut a file into its frontmatter and its body, and read the values of the known keys.

    Args:
        text: The whole file.
        source: How it is called in messages.
        known: The keys that mean something; of others only the line is kept.

    Raises:
        RoleFileError: It is not of this form; names file, line and key.
    """
    if len(text) > MAX_FILE_CHARS:
        raise RoleFileError(source, f"has {len(text):,} characters; a role file has at most {MAX_FILE_CHARS:,}")
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        raise RoleFileError(source, "a role file begins with a line `---`, then `description: …`", 1)
    end = next((number for number, line in enumerate(lines[1:], start=1) if line.rstrip() == "---"), None)
    if end is None:
        raise RoleFileError(source, "the line `---` that ends the frontmatter is missing", len(lines))
    front = "\n".join(lines[1:end])
    if odd := yaml.reader.Reader.NON_PRINTABLE.search(front):  # quoting the description would let it through
        line = front.count("\n", 0, odd.start()) + 2
        raise RoleFileError(source, "holds a control character; take it out", line)
    quoted = _PLAIN_DESCRIPTION.sub(_quote, front)
    try:
        values, at = _yaml(front, source, known)
    except RoleFileError as first:
        try:
            values, at = _yaml(quoted, source, known)
        except RoleFileError:
            raise first from None
    return File(source, values, at, "\n".join(lines[end + 1 :]).strip())


def _quote(found: re.Match[str]) -> str:
    return found[1] + json.dumps(found[2].replace("\\n", "\n"), ensure_ascii=False)


def _yaml(front: str, source: str, known: frozenset[str]) -> tuple[dict[str, Any], dict[str, int]]:
    """Read the frontmatter: the values of the keys that mean something here, and the line of every key."""
    try:
        loader: Any = yaml.SafeLoader(front)  # its methods have no types
        root = loader.get_single_node()
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it cannot be read"
        line = mark.line + 2 if mark else 2
        raise RoleFileError(source, f"the frontmatter is no YAML: {problem}", line) from error
    if not isinstance(root, yaml.MappingNode):
        raise RoleFileError(source, "the frontmatter must be lines of `key: value`", 2)
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, node in root.value:
        name, line = key.value, key.start_mark.line + 2
        if not isinstance(name, str):
            raise RoleFileError(source, "a key must be one word", line)
        name = "maxTurns" if name == "max_iterations" else name  # the spawn argument's name for it
        if name in lines:
            raise RoleFileError(source, "is given twice; keep one", line, name)
        lines[name] = line
        if name not in known:
            continue
        # Scalars and flat lists only: nothing that aliases could blow up.
        if not isinstance(node.value, str) and not all(isinstance(item, yaml.ScalarNode) for item in node.value):
            raise RoleFileError(source, "must be one value or a flat list", line, name)
        try:
            value = loader.construct_object(node, deep=True)
        except (ValueError, LookupError, AttributeError, TypeError, yaml.YAMLError) as error:  # `!!int x`
            raise RoleFileError(source, "cannot be read as a value", line, name) from error
        if value is not None:  # a key without a value says nothing
            values[name] = value
    return values, lines

"""The commands that README and docs tell people to type, found in the pages, and told apart by what can be run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

import typer

from ava_server.cli.app import TWO_WORDS, build
from support.repository import REPOSITORY

PAGES = sorted([*(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "README.md"])
_BLOCK = re.compile(r"^([ ]*)```(\w*)\n(.*?)^[ ]*```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`((?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?ava(?: [^`\n]+)?)`(?!`)")


@dataclass(frozen=True)
class Told:
    """Something that a page tells people to type."""

    page: str
    text: str
    block: bool
    mark: str = ""

    @property
    def commands(self) -> list[list[str]]:
        """Return the arguments of each `ava` in it."""
        found: list[list[str]] = []
        for line in self.text.replace("\\\n", " ").splitlines():
            part = re.search(r"(?:^|[|&;] *|[A-Z_]=\S* )(?:\.venv/bin/)?ava(?= |$)(.*)", line.strip())
            if part is not None:
                found.append(_until_the_next(part[1]))
        return found


def _until_the_next(line: str) -> list[str]:
    """Return the words of a line up to where another program, or a file, begins."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    words.whitespace_split = True
    return list(takewhile(lambda word: not set(word) <= set("|&;<>"), words))


def told() -> Iterator[Told]:
    """Find everything, each once."""
    seen: set[str] = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        for found in _BLOCK.finditer(text):
            indent, kind, body = found.groups()
            body = "\n".join(line.removeprefix(indent) for line in body.splitlines())
            mark = re.search(r"<!-- ([\w: -]+) -->\n$", text[: found.start()])
            if kind == "sh":
                yield Told(page.name, body, True, mark[1] if mark else "")
            else:
                assert kind or not re.search(r"^ava ", body, re.MULTILINE), f"{page.name}: say `sh`:\n{body}"
                for line in re.findall(r"^\$ (ava.*)$", body, re.MULTILINE):
                    yield Told(page.name, line, False)
        for span in _SPAN.findall(_BLOCK.sub("", text)):
            if span not in seen:
                seen.add(span)
                yield Told(page.name, span, False)


def misspelt(args: list[str]) -> str:
    """Return what a command line has that `ava` does not know; nothing where all of it is there."""
    command = typer.main.get_command(build())
    left = [" ".join(args[:2]), *args[2:]] if " ".join(args[:2]) in TWO_WORDS else list(args)
    while True:
        options = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
        below = getattr(command, "commands", None)
        places = 0
        while left:
            word, _, value = left.pop(0).partition("=")
            if word.startswith("-") and word != "-":
                if word == "--help":
                    continue
                if word not in options:
                    return f"{command.name} has no {word}; it has {', '.join(sorted(options))}"
                if not getattr(options[word], "is_flag", False) and not value and left:
                    left.pop(0)
            elif below is not None and word in below:
                command = below[word]
                break
            elif below is not None:
                return f"{command.name} has no {word}; it has {', '.join(sorted(below))}"
            else:
                places += 1
        else:
            room = sum(abs(param.nargs) if param.nargs >= 0 else 999 for param in command.params if _place(param))
            return f"{command.name} takes {room} arguments, and not {places}" if places > room else ""


def _place(param: object) -> bool:
    return getattr(param, "param_type_name", "") == "argument"

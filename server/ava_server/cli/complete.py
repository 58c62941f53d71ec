"""What a shell offers at TAB: commands, options and values that go on from what was typed.

A shell asks at every TAB, so only the command that is typed is loaded, and the log is read without opening it for
anything else. Nothing is written or made, nothing goes to stderr, and what cannot be told is not offered. No words of
models or of tasks are: an id comes with the role of its run.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args, get_origin

Offer = tuple[str, str]
"""A word, and what is said of it where the shell shows that."""

ASKED_BY = "_AVA_COMPLETE"
FILES, FOLDERS = ":files", ":folders"
"""Words that the shells' scripts understand: they complete these themselves."""
MOST = 200
_WORD = re.compile(r"[A-Za-z0-9_./:@+-]+")
"""Nothing else is offered: no shell needs to quote it."""
_ID = re.compile(r"[SPG]-")
_SHOWN = re.compile(r"[^ -~]|[\\`$]")
_DESCRIPTION = 70


def answer(args: Sequence[str]) -> None:
    """Write what may stand for the last of these words, a line each; without a word where that cannot be told."""
    shell = os.environ.get(ASKED_BY, "")
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):  # noqa: PTH123
        try:
            lines = [f"{word}\t{_said(about)}" if about else word for word, about in offers(list(args), shell)]
            out = sys.stdout
            out.write("".join(f"{line}\n" for line in lines))
            out.flush()
        except (Exception, SystemExit):  # whoever presses TAB has asked nothing that an error would answer
            return


def offers(args: list[str], shell: str) -> list[Offer]:
    """Return what may stand for the last of these words."""
    if shell == "bash":  # it takes `--type=tool` for three words
        args = [arg for index, arg in enumerate(args) if arg != "=" or index == len(args) - 1]
        args = [*args[:-1], ""] if args[-1:] == ["="] else args
    *before, current = args or [""]
    found = _found(before, current)
    return list(dict.fromkeys(each for each in found if _fits(each[0])))[:MOST]


def _fits(word: str) -> bool:
    return _WORD.fullmatch(word.replace("=", "", 1).replace(",", "")) is not None


def _said(about: str) -> str:
    return _SHOWN.sub("", " ".join(about.split()))[:_DESCRIPTION]


def _found(before: list[str], current: str) -> Iterable[Offer]:
    from ava_server.cli.app import COMMANDS, _first_word, _one_word, build  # pyright: ignore[reportPrivateUsage]

    first = _first_word(before)
    if not first:
        yield from _of_root(before, current)
        return
    if first not in COMMANDS:
        return
    import typer

    if before == ["logs"] and "export".startswith(current):
        yield "export", ""
    at = before.index(first)
    words = _one_word(before[at:])
    command: Any = typer.main.get_command(build([first]))
    command = command.commands.get(words[0])
    words = words[1:]
    path = [first]
    while command is not None and hasattr(command, "commands"):
        if not words:
            yield from _matching(((name, _short(each)) for name, each in command.commands.items()), current)
            return
        path.append(words[0])
        command, words = command.commands.get(words[0]), words[1:]
    if command is not None:
        yield from _of_command(path, command, words, current)


def _of_root(before: list[str], current: str) -> Iterable[Offer]:
    from ava_server.cli.app import COMMANDS

    if before and before[-1] == "--token-file":
        yield FILES, ""
    elif before and before[-1] == "--url":
        return
    elif current.startswith("-"):
        yield from _matching(((word, "") for word in ("--url", "--token-file", "--version", "--help")), current)
    else:
        yield from _matching(((name, "") for name in COMMANDS), current)


def _short(command: Any) -> str:
    return str(command.get_short_help_str(_DESCRIPTION))


def _of_command(path: list[str], command: Any, words: list[str], current: str) -> Iterable[Offer]:
    options = {name: each for each in command.params if each.param_type_name == "option" for name in each.opts}
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    wants: Any = None
    given: list[str] = []
    literal = False
    for word in words:
        if wants is not None:
            wants = None
        elif literal or not word.startswith("-") or word == "-":
            given.append(word)
        elif word == "--":
            literal = True
        elif word in options and not options[word].is_flag:
            wants = options[word]
    if wants is not None:
        yield from _values(path, wants, current, given)
        return
    name, equals, typed = current.partition("=")
    if not literal and equals and name in options and not options[name].is_flag:
        for word, about in _values(path, options[name], typed, given):
            yield (word if word in (FILES, FOLDERS) else f"{name}={word}"), about
        return
    if current.startswith("-") and not literal:
        offered = [(name, str(each.help or "")) for name, each in options.items() if name.startswith("--")]
        yield from _matching([*offered, ("--help", "Show this message and exit.")], current)
        return
    for argument in arguments:
        if argument.nargs == -1 or not given:
            yield from _values(path, argument, current, given)
            return
        given = given[1:]


def _values(path: list[str], parameter: Any, current: str, given: Sequence[str]) -> Iterable[Offer]:
    """Return what a parameter may be; of several with commas, what the last may be."""
    from ava_server.cli.complete_values import source_of

    choices = _choices(parameter.type_descriptor.annotation)
    if choices:
        yield from _matching(((choice, "") for choice in choices), current)
        return
    source = source_of(tuple(path), parameter.name, parameter.metavar or "")
    if source is None:
        return
    if isinstance(source, str):
        yield source, ""
        return
    head, comma, tail = current.rpartition(",")
    taken = {*given, *head.split(",")}
    for word, about in _matching(source(), tail):
        if word not in taken:
            yield f"{head}{comma}{word}", about


def _choices(annotation: Any) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return tuple(str(choice) for choice in get_args(annotation))
    return tuple(choice for inner in get_args(annotation) for choice in _choices(inner))


def _matching(offered: Iterable[Offer], current: str) -> list[Offer]:
    """Return what begins with what was typed: in that case, else in any; ids also without their prefix."""
    offered, wanted = list(offered), current.casefold()
    exact = [each for each in offered if each[0].startswith(current)]
    return exact or [
        (word, about)
        for word, about in offered
        if word.casefold().startswith(wanted) or (_ID.match(word) and word[2:].startswith(wanted))
    ]

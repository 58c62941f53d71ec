"""Finds, in source code, a sentence that is put right behind a text of which nobody knows whether it ends as one.

    trees = [ast.parse(source) for source in sources]
    for join in run_together(trees[0], constants_of(trees)):
        print(join.line, join.text)

A text is an f-string, a sum, or `" ".join` of a list. What stands in it is followed to its values: constants of any
module, by their names, tables of constants, local variables, and what the file's own functions return.
"""

from __future__ import annotations

import ast
import re
from collections import ChainMap, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

ADVICE = re.compile(r"advice|advise|what_to_do|hint|outcome|(^|_)next($|_)")
"""How variables, attributes and functions are called that say what to do; their values are sentences."""
_SENTENCE = re.compile(r"(`[^`]+`|[A-Z][a-z']*),? \S")
_NAMES = re.compile(r"(Ava|ACP|Chromium|Claude|Codex|Git|MCP|PIN|Postgres|Python|Node|WITHOUT)\b")
"""What begins with a capital and begins no sentence."""
_ENDED = re.compile(r"[.!?:;…]([)`\"'”]|\s)*$|^$")
_DEPTH = 5

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Join:
    line: int
    text: str


Constants = Mapping[str, Sequence[str]]
"""The texts of the constants of all modules, by name; a table's are its values."""


def constants_of(trees: Iterable[ast.Module]) -> Constants:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for tree in trees:
        for node in tree.body:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    values = value.values if isinstance(value, ast.Dict) else [value]
                    found[name] += (text for each in values if (text := _text_of(each)))
                case _:
                    pass
    return found


def _text_of(node: ast.expr) -> str:
    """Return a constant's text, with a letter for each value in it; empty for what is no text."""
    parts = list(_parts(node))
    return "" if parts == [node] else "".join(part if isinstance(part, str) else "x" for part in parts)


def run_together(tree: ast.Module, constants: Constants) -> list[Join]:
    """Return the places in a module."""
    return list(_Search(tree, constants).joins())


def is_sentence(text: str) -> bool:
    return _SENTENCE.match(text) is not None and _NAMES.match(text) is None


class _Search:
    def __init__(self, tree: ast.Module, constants: Constants) -> None:
        self._constants = ChainMap(dict(constants_of([tree])), dict(constants))
        self._nodes = list(_nodes(tree))
        self._functions = {node.name: node for node, _around in self._nodes if isinstance(node, Function)}

    def joins(self) -> Iterator[Join]:
        done: set[int] = set()
        for node, function in self._nodes:
            if id(node) in done:
                continue
            parts = list(_parts(node))
            if len(parts) < 2:
                continue
            done |= {id(each) for each in ast.walk(node)}
            if any(self._meet(parts, at, function) for at in range(1, len(parts))):
                yield Join(getattr(node, "lineno", 0), ast.unparse(node))

    def _meet(self, parts: list[ast.expr | str], at: int, function: Function | None) -> bool:
        """Tell whether a sentence begins at a part, and the text before it may not have ended."""
        part, before = parts[at], parts[at - 1]
        if isinstance(part, str):
            begins = part.startswith(" ") and is_sentence(part[1:])
            return begins and not self._has_ended(before, function)
        if not isinstance(before, str) or not before.endswith(" ") or not self._begins_sentence(part, function):
            return False
        if not before.isspace():
            return _ENDED.search(before) is None
        return at > 1 and not self._has_ended(parts[at - 2], function)

    def _begins_sentence(self, part: ast.expr, function: Function | None) -> bool:
        return _says_advice(part) or any(is_sentence(text) for text in self._texts(part, function, ends=False))

    def _has_ended(self, part: ast.expr | str, function: Function | None) -> bool:
        texts = [part] if isinstance(part, str) else list(self._texts(part, function, ends=True))
        return bool(texts) and all(_ENDED.search(text) is not None for text in texts)

    def _texts(self, node: ast.expr, function: Function | None, *, ends: bool, depth: int = 0) -> Iterator[str]:
        """Yield what a value begins with, or `ends` with, where that is known; a letter stands for what is not."""
        for branch in _branches(node) if depth < _DEPTH else ():
            parts = list(_parts(branch))
            end = parts[-1] if ends else parts[0]
            if isinstance(end, str):
                yield end
            elif end is branch:
                yield from self._texts_of(branch, function, ends, depth + 1)
            else:
                yield from self._texts(end, function, ends=ends, depth=depth + 1)

    def _texts_of(self, node: ast.expr, function: Function | None, ends: bool, depth: int) -> Iterator[str]:
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="format" | "format_map" | "strip" | "rstrip")):
                yield from self._texts(value, function, ends=ends, depth=depth)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                called = self._functions.get(name)
                for value in _returned(called) if called is not None else ():
                    yield from self._texts(value, called, ends=ends, depth=depth)
            case ast.Name(id=name):
                values = list(_assigned(function, name)) if function is not None else []
                for value in values:
                    yield from self._texts(value, function, ends=ends, depth=depth)
                if not values:
                    yield from self._constants.get(name, ["x"] if ends else [])
            case ast.Subscript(value=ast.Name(id=name)) if name in self._constants:
                yield from self._constants[name]
            case _ if not isinstance(node, ast.Constant):
                yield from ["x"] if ends else []
            case _:
                pass


def _nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, Function | None]]:
    """Yield functions, and what may put a text together, with the function around it; the outer one first."""
    waiting: list[tuple[ast.AST, Function | None]] = [(tree, None)]
    while waiting:
        node, function = waiting.pop()
        inside = node if isinstance(node, Function) else function
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function | ast.JoinedStr | ast.BinOp | ast.Call):
                yield child, inside
            waiting.append((child, inside))


def _parts(node: ast.AST) -> Iterator[ast.expr | str]:
    """Yield the parts of a text that is put together; only itself for another value."""
    match node:
        case ast.JoinedStr(values=values):
            for value in values:
                yield from _parts(value)
        case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
            yield from _parts(value)
        case ast.FormattedValue(value=value):
            yield value
        case ast.Constant(value=str() as text):
            yield text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _parts(left)
            yield from _parts(right)
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=" "), attr="join"),
            args=[ast.List(elts=texts) | ast.Tuple(elts=texts)],
        ):
            for number, each in enumerate(texts):
                yield from [" "] if number else []
                yield from _parts(each)
        case ast.expr():
            yield node
        case _:
            pass


def _branches(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.IfExp(body=body, orelse=orelse):
            return [*_branches(body), *_branches(orelse)]
        case ast.BoolOp(values=values):
            return [branch for value in values for branch in _branches(value)]
        case ast.Await(value=value) | ast.NamedExpr(value=value):
            return _branches(value)
        case _:
            return [node]


def _returned(function: Function) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value


def _assigned(function: Function, name: str) -> Iterator[ast.expr]:
    """Yield the values that a local variable may have."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                yield value
            case ast.NamedExpr(target=ast.Name(id=target), value=value) if target == name:
                yield value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = zip(targets, values, strict=False)
                yield from (value for each, value in pairs if isinstance(each, ast.Name) and each.id == name)
            case _:
                pass


def _says_advice(node: ast.expr) -> bool:
    """Tell whether a value is called an advice: a variable, an attribute, a function, or a key."""
    for branch in _branches(node):
        match branch:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                pass
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str() as name)):
                pass
            case _:
                continue
        if ADVICE.search(name):
            return True
    return False

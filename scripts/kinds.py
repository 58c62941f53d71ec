"""Count the conditions that name a kind of run, by surface: those that choose words or figures, and those for a place.

    python scripts/kinds.py [--files]

A kind is a plan, a step, a coder, a question, and what is erased, somebody else's, or on another machine. Each surface
that asks for it finds out a fact by itself; the facts belong below `render`, where they are told once. A surface may
ask for a kind to choose a place or a width. The definitions, by syntax tree:

- condition: what `if`, `elif`, `while`, a conditional expression or a filter of a comprehension asks, and each `case`;
  in templates `{% if %}`, an inline `if` and the filter of a loop; in scripts of pages a line with `if (` or ` ? `,
  because there is no parser for them here
- names a kind: an attribute, a name, a key or a word in the condition that stands in `KINDS`
- chooses words or figures: what hangs on it has a text with letters and a blank between them or a sum or time that is
  formatted, or is an expression of texts; of templates, text outside tags or a value that is formatted. Everything
  else chooses a place.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from jinja2 import nodes

HERE = Path(__file__).resolve().parent.parent
SERVER = HERE / "server" / "ava_server"
SURFACES: dict[str, tuple[str, ...]] = {
    "cli": ("cli/*.py",),
    "web": ("web/*.py",),
    "dashboard": ("dashboard/*.py",),
    "mcp_server and http": ("mcp_server/**/*.py", "http/*.py"),
    "templates and scripts": ("web/templates/*.html", "web/static/ava.js", "mcp_server/card/*.js"),
    "render": ("render/*.py",),
}
"""Where each surface is, below the server; `render` is for comparison."""
KINDS: dict[str, frozenset[str]] = {
    "plan": frozenset({"is_plan", "plan", "plans", "plan_id", "group", "group_id", "PlanView"}),
    "step": frozenset({"step", "steps", "all_steps"}),
    "coder": frozenset({"coding", "changes", "branch", "diff", "coder", "verify"}),
    "question": frozenset(
        {"question", "questions", "asked_by_runs", "asks", "in_words", "is_approval", "untrusted_question", "extension"}
    ),
    "erased": frozenset({"erased", "brief", "texts"}),
    "not mine": frozenset({"own", "owns", "user_id"}),
    "remote": frozenset({"remote", "is_remote", "url", "far"}),
    "newer program": frozenset({"caps", "newer"}),
    "state": frozenset({"cause", "state", "waits_for", "over", "ended"}),
}
"""What names each kind in a condition. The last one is a situation rather than a kind, and is counted apart."""
MOST_CHARS = 90
"""Characters of a condition that are listed."""
_FORMATS = re.compile(
    r"^(?:format_\w+|usd|duration|cents|minutes|counted|money|caps_text|spent_text|\w+_words|local_second)$"
)
_WORDS = re.compile(r"[A-Za-z]{2,}[\s,.:;]+\S*[A-Za-z]|[A-Za-z]{2,} $|^ [A-Za-z]{2,}")
_TAGS = re.compile(r"<[^>]*>?|^[^<]*>")
_QUOTED = re.compile(r"\"[^\"]*\"|`[^`]*`")
_SCRIPT = re.compile(r"\bif \(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)|([^?\n]*) \? ")


class Condition(NamedTuple):
    """One condition that names kinds."""

    file: str
    line: int
    kinds: tuple[str, ...]
    chooses: str
    text: str


# -- Python -----------------------------------------------------------------------------------------------------------


def conditions_in_python(path: Path) -> Iterator[Condition]:
    """Find the conditions of a module that name a kind."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        match node:
            case ast.If() | ast.While():
                asked: list[ast.AST] = [node.test]
                chosen: list[ast.AST] = [*node.body, *_without_elif(node.orelse)]
            case ast.IfExp():
                asked, chosen = [node.test], [node.body, node.orelse]
            case ast.comprehension():
                asked, chosen = [*node.ifs], []
            case ast.Match():
                for each in node.cases:
                    yield from _python_condition(path, [node.subject, each.pattern], each.body)
                continue
            case _:
                continue
        yield from _python_condition(path, asked, chosen)


def _python_condition(path: Path, asked: Sequence[ast.AST], chosen: Iterable[ast.AST]) -> Iterator[Condition]:
    kinds = kinds_named(name for each in asked for name in _names_in(each))
    if kinds:
        chooses = "words" if any(map(_has_words, chosen)) else "place"
        text = " is ".join(ast.unparse(each) for each in asked)
        line = getattr(asked[-1], "lineno", 0)
        yield Condition(_place(path), line, kinds, chooses, text[:MOST_CHARS])


def _without_elif(orelse: list[ast.stmt]) -> list[ast.stmt]:
    """Return the branch of `else`; that of `elif` is a condition of its own."""
    if len(orelse) == 1 and isinstance(orelse[0], ast.If):
        return []
    return orelse


def _names_in(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        match each:
            case ast.Attribute(attr=name) | ast.Name(id=name):
                yield name
            case ast.Constant(value=str(name)):
                yield name
            case ast.MatchAs(name=str(name)):
                yield name


def _has_words(node: ast.AST) -> bool:
    """Tell whether a branch makes a text or a figure; what another condition in it chooses is counted there."""
    for each in _walk_unconditional(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and _WORDS.search(each.value):
            return True
        if isinstance(each, ast.Call) and _FORMATS.match(_called(each)):
            return True
    return False


def _walk_unconditional(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If | ast.IfExp | ast.Match | ast.While):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk_unconditional(child)


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


# -- templates and scripts --------------------------------------------------------------------------------------------


def conditions_in_template(path: Path) -> Iterator[Condition]:
    """Find the conditions of a template that name a kind."""
    tree = jinja2.Environment(autoescape=True).parse(path.read_text("utf-8"))
    for node in tree.find_all((nodes.If, nodes.CondExpr, nodes.For)):
        chosen: list[nodes.Node]
        match node:
            case nodes.If():
                test, chosen = node.test, [*node.body, *node.else_]
            case nodes.CondExpr():
                test, chosen = node.test, [node.expr1, *([node.expr2] if node.expr2 else [])]
            case nodes.For() if node.test is not None:
                test, chosen = node.test, []
            case _:
                continue
        kinds = kinds_named(_names_in_template(test))
        if kinds:
            chooses = "words" if any(map(_shows_words, chosen)) else "place"
            yield Condition(_place(path), node.lineno, kinds, chooses, " ".join(_names_in_template(test))[:MOST_CHARS])


def _names_in_template(node: nodes.Node) -> Iterator[str]:
    for each in (node, *node.find_all((nodes.Getattr, nodes.Name, nodes.Const))):
        match each:
            case nodes.Getattr(attr=name) | nodes.Name(name=name):
                yield name
            case nodes.Const(value=str(name)):
                yield name


def _shows_words(node: nodes.Node) -> bool:
    if isinstance(node, nodes.If | nodes.CondExpr):
        return False
    if isinstance(node, nodes.TemplateData):
        return re.search(r"[A-Za-z]{2,}", _TAGS.sub(" ", node.data)) is not None
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        return _WORDS.search(node.value) is not None
    if isinstance(node, nodes.Filter) and _FORMATS.match(node.name):
        return True
    return any(map(_shows_words, node.iter_child_nodes()))


def conditions_in_script(path: Path) -> Iterator[Condition]:
    """Find the lines of a script with a condition that names a kind."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        found = _SCRIPT.search(line)
        if found is None:
            continue
        asked = found[1] or found[2] or ""
        kinds = kinds_named(re.findall(r"[A-Za-z_]\w*", _QUOTED.sub("", asked)))
        if kinds:
            chosen = line[found.end() :]
            texts = re.findall(r'"([^"]*)"|`([^`]*)`', chosen)
            chooses = "words" if any(_WORDS.search("".join(text)) for text in texts) else "place"
            yield Condition(_place(path), number, kinds, chooses, asked.strip()[:MOST_CHARS])


# -- all of them ------------------------------------------------------------------------------------------------------


def kinds_named(names: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds that some names of a condition name, each once."""
    given = set(names)
    return tuple(kind for kind, words in KINDS.items() if not words.isdisjoint(given))


def _place(path: Path) -> str:
    return path.relative_to(SERVER).as_posix() if path.is_relative_to(SERVER) else path.name


def conditions_of(surface: str) -> list[Condition]:
    """Return the conditions of a surface that name a kind."""
    found: list[Condition] = []
    for pattern in SURFACES[surface]:
        for path in sorted(SERVER.glob(pattern)):
            read = {".py": conditions_in_python, ".html": conditions_in_template}.get(path.suffix, conditions_in_script)
            found += read(path)
    return found


def is_state_alone(condition: Condition) -> bool:
    """Tell whether a condition asks for a state and for no kind."""
    return condition.kinds == ("state",)


def main() -> None:
    """Print a row for each surface."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--files", action="store_true", help="also list each condition")
    listed = options.parse_args().files
    print(f"{'conditions that name a kind':28}{'words':>7}{'place':>7}{'states':>8}")
    for surface in SURFACES:
        every = conditions_of(surface)
        own = [each for each in every if not is_state_alone(each)]
        words = sum(each.chooses == "words" for each in own)
        print(f"{surface:28}{words:>7}{len(own) - words:>7}{len(every) - len(own):>8}")
        if listed:
            for each in sorted(own, key=lambda condition: (condition.chooses == "place", condition.file)):
                print(f"  {each.chooses:6}{each.file}:{each.line} {', '.join(each.kinds)}: {each.text}")


if __name__ == "__main__":
    main()

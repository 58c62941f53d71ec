"""Write the parts of the documentation that say what the code says: `python scripts/gen_docs.py`.

Tools come from the server, settings from their model, events from the closed union, commands from the command line,
and the configurations of hosts from what `ava init` writes.
tests/test_docs.py compares the files with what this makes, so that neither can change alone.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from mcp_types import Tool
from pydantic import BaseModel

from ava_server.hosts.known import Launch

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
GENERATED = "<!-- Made by scripts/gen_docs.py from the code. Change the code, then run it again. -->"


EXAMPLE = Launch("/absolute/path/to/ava/.venv/bin/ava")
"""How the examples start Ava."""
_PROVIDERS = re.compile(r"(<!-- providers -->\n\n)(?:\|.*\n)*\n?")
_CONFIGURATION = re.compile(r"(?<=<!-- ava init )([a-z-]+)( -->\n```[a-z]+\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def pages() -> dict[Path, str]:
    """Return every generated file with its text."""
    reference = REPOSITORY / "docs" / "reference"
    by_hand = (REPOSITORY / "README.md", REPOSITORY / "docs" / "hosts.md")
    models = REPOSITORY / "docs" / "models.md"
    return {
        reference / "tools.md": tools_page(),
        reference / "settings.md": settings_page(),
        reference / "events.md": events_page(),
        reference / "commands.md": commands_page(),
        REPOSITORY / "mcp.json.example": host_configuration("claude-desktop"),
        **{page: with_configurations(page.read_text(encoding="utf-8")) for page in by_hand},
        models: with_providers(models.read_text(encoding="utf-8")),
    }


# -- hosts --------------------------------------------------------------------------------------------------------


def host_configuration(name: str) -> str:
    """Return what `ava init` makes of an empty configuration; that of Claude Desktop is the common form."""
    from ava_server.hosts.change import adding
    from ava_server.hosts.known import HOSTS

    with tempfile.TemporaryDirectory() as empty:
        return adding(HOSTS[name], "ava", EXAMPLE, Path(empty) / "configuration").after or ""


def with_configurations(text: str) -> str:
    """Return a page with the configurations of the hosts that it asks for."""
    return _CONFIGURATION.sub(lambda found: f"{found[1]}{found[2]}{host_configuration(found[1])}", text)


# -- models -------------------------------------------------------------------------------------------------------


def with_providers(text: str) -> str:
    """Return the page about models with the providers that can be asked, and the model of each tier."""
    from ava_server.models.providers import PROVIDERS
    from ava_server.models.selection import KNOWN_URLS, TIERS, default_tiers

    rows = [
        (f"`{name}`", f"`{PROVIDERS[name].variable}`", *(f"`{ids[tier]}`" for tier in TIERS))
        for name, ids in default_tiers().items()
        if name in KNOWN_URLS
    ]
    table = _table(("provider", "usual variable", *TIERS), rows)
    return _PROVIDERS.sub(lambda found: f"{found[1]}{table}\n\n", text)


# -- tools --------------------------------------------------------------------------------------------------------


def listed_tools() -> list[Tool]:
    """Return the six tools as a host gets them when no role files but the built-in ones are there."""
    from ava_server.mcp_server.tools import tools_now

    with tempfile.TemporaryDirectory() as empty:
        before = os.environ.get("AVA_DATA_ROOT")
        os.environ["AVA_DATA_ROOT"] = empty
        try:
            return tools_now()
        finally:
            del os.environ["AVA_DATA_ROOT"]
            if before is not None:
                os.environ["AVA_DATA_ROOT"] = before


def tools_page() -> str:
    """Return the reference of the six tools."""
    parts = [
        "# The six tools",
        GENERATED,
        "This is what a host shows its model. Arguments that are not listed are refused by name. Every answer comes"
        " twice and is complete both times: as text, and as structured content with the fields listed here. A failed"
        " call has `status: failed`, and a `message` that says what was wrong and what to do.",
    ]
    for tool in listed_tools():
        parts += [f"## {tool.name}", *_tool_description(tool.description or ""), f"It is marked {_hints(tool)}."]
        parts += ["Arguments:", _schema_table(tool.input_schema), "Fields of the answer:"]
        parts.append(_schema_table(tool.output_schema or {}, required=False))
    return _page(parts)


def _tool_description(text: str) -> list[str]:
    head, _, roles = text.partition("\nRoles:\n")
    lines = [f"- `{line.replace(': ', '`: ', 1)}" if ": " in line else f"- {line}" for line in roles.splitlines()]
    return [head, "The roles, as the model reads them:", "\n".join(lines)] if lines else [head]


def _hints(tool: Any) -> str:
    notes = tool.annotations
    words = ["read-only" if notes.read_only_hint else "not read-only"]
    if not notes.read_only_hint:
        words.append("destructive (it spends money)" if notes.destructive_hint else "not destructive")
    if notes.idempotent_hint:
        words.append("idempotent")
    return ", ".join(words)


def _schema_table(schema: Mapping[str, Any], *, required: bool = True) -> str:
    needed = set(schema.get("required", ()))
    definitions = schema.get("$defs", {})
    rows = []
    for name, about in schema.get("properties", {}).items():
        kind = _json_kind(about, definitions)
        note = about.get("description", "")
        bounds = [
            f"{word} {about[key]:,}"
            for key, word in (
                ("minimum", "at least"),
                ("exclusiveMinimum", "more than"),
                ("maximum", "at most"),
                ("maxLength", "at most, in characters,"),
                ("maxItems", "entries at most"),
            )
            if key in about
        ]
        if required and name in needed:
            bounds.insert(0, "required")
        if about.get("default") not in (None, [], {}, "", 0):
            bounds.append(f"default {json.dumps(about['default'])}")
        cells = (f"`{name}`", kind, note, "; ".join(bounds))
        rows.append(cells if required else cells[:3])
    head = ("name", "kind", "meaning", "bounds")
    return _table(head if required else head[:3], rows)


def _json_kind(about: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "$ref" in about:
        return _object_kind(definitions[about["$ref"].rpartition("/")[2]], definitions)
    if "enum" in about:
        return " or ".join(f"`{value}`" for value in about["enum"])
    if "anyOf" in about:
        return " or ".join(_json_kind(option, definitions) for option in about["anyOf"])
    kind = about.get("type")
    if kind == "array":
        return f"list of {_json_kind(about.get('items', {}), definitions)}"
    if kind == "object":
        values = about.get("additionalProperties")
        inner = _json_kind(values, definitions) if isinstance(values, dict) and values else ""
        return f"object of {inner}" if inner and inner != "anything" else "object"
    return {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}.get(
        str(kind), "anything"
    )


def _object_kind(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    fields = ", ".join(f"`{name}`" for name in schema.get("properties", {}))
    return f"object ({fields})" if fields else _json_kind(schema, definitions)


# -- settings -----------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Return the reference of `config.toml` and of the variables."""
    from ava_server.config.checks import FILE_ONLY, OWN_NAMES, variable
    from ava_server.config.keys import SEARCHES, WELL_KNOWN
    from ava_server.config.settings import Configured

    texts = tomllib.loads((HERE / "settings.toml").read_text(encoding="utf-8"))
    notes: dict[str, str] = texts["notes"]
    process = texts["process"]
    found = dict(_settings(Configured))
    _same("settings", set(found), set(notes))
    _same("variables of a process", set(OWN_NAMES), set(process))
    parts = [
        "# Settings",
        GENERATED,
        "Settings stand in `config.toml` in the data root. The file need not exist: every setting has a default. It is"
        " read once at start, and a wrong one is an error that names the file, the setting and what is allowed.",
        "A setting is also an environment variable: `AVA_` and its path in capitals, with `__` between the levels, such"
        " as `AVA_LIMITS__RUNNING`. Lists and tables are given as JSON. The environment may tighten what limits"
        " everybody, for its own process, and never loosen it; "
        + ", ".join(f"`{name}`" for name in FILE_ONLY)
        + " may only stand in the file.",
    ]
    sections: dict[str, list[tuple[str, str, str, str]]] = {}
    for name, (kind, default) in found.items():
        head = name.rpartition(".")[0]
        note = notes[name]
        own = (
            f"`{variable(tuple(name.split('.')))}`"
            if "NAME" not in name and name.split(".")[0] not in FILE_ONLY
            else ""
        )
        sections.setdefault(head, []).append((f"`{name.rpartition('.')[2]}`", f"{kind}{default}", own, note))
    for head, rows in sections.items():
        parts.append(f"## [{head}]" if head else "## At the top of the file")
        parts.append(_table(("setting", "kind and default", "variable", "meaning"), rows))
    parts.append("## Variables of one process")
    parts.append("These never stand in `config.toml`.")
    parts.append(_table(("variable", "meaning"), [(f"`AVA_{name}`", text) for name, text in process.items()]))
    parts.append("## Keys")
    parts.append(
        "Keys are no settings, and one in `config.toml` is refused. A key comes from `AVA_KEY_` and the provider's name"
        " in capitals, else from the variable that people usually have it in, else from `keys.toml` in the data root,"
        " which `ava key set` writes and which nobody else may read."
    )
    rows_of_keys = [
        (name, f"`{usual}`", "web search" if name in SEARCHES else "models") for name, usual in WELL_KNOWN.items()
    ]
    parts.append(_table(("provider", "usual variable", "for"), rows_of_keys))
    return _page(parts)


def _settings(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, str]]]:
    for name, field in model.model_fields.items():
        below = _table_model(field.annotation)
        if below is not None:
            inner, named = below
            yield from _settings(inner, (*path, name, *(("NAME",) if named else ())))
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        shown = "" if default is None else f", default `{json.dumps(default)}`"
        yield ".".join((*path, name)), (_kind(field.annotation), ", required" if field.is_required() else shown)


def _table_model(kind: Any) -> tuple[type[BaseModel], bool] | None:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind, False
    args = get_args(kind)
    if len(args) == 2 and isinstance(args[1], type) and issubclass(args[1], BaseModel):
        return args[1], True
    return None


def _kind(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _kind(args[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in args)
    if type(None) in args:
        return " or ".join(_kind(arg) for arg in args if arg is not type(None))
    words = {bool: "true or false", int: "whole number", float: "number", Path: "folder", tuple: "list", dict: "table"}
    return words.get(origin or kind, "text")


# -- events -------------------------------------------------------------------------------------------------------


def events_page() -> str:
    """Return the reference of the event types."""
    from ava_audit.events import ENDINGS, FACTS
    from ava_audit.words import SHORT_TYPES

    parts = [
        "# Event types of the log",
        GENERATED,
        "Every entry of the log has a header (when, which session, which agent, which user, which type, of which run,"
        " what it used and cost) and a content, whose fields are listed here. Types marked *transcript* carry the words"
        " of people and models: their content can be erased, and the chain of hashes still verifies. In the JSONL files"
        " the content stands under `content`, and the header under the names that [Logs](../logs.md) explains.",
        "A run ends as one of: " + ", ".join(f"`{name}`" for name in sorted(ENDINGS)) + ".",
        "Where types are asked for (`ava logs --type`, `types` of `read_ava_logs`), the exact name in any case will do,"
        " and these short ones:",
        _table(("short", "means"), [(f"`{short}`", ", ".join(sorted(names))) for short, names in SHORT_TYPES.items()]),
        "`error` is one more: `ErrorOccurred`, every `ToolResult` that failed, and every ending other than success or"
        " cancelled.",
    ]
    for name, fact in FACTS.items():
        text = (fact.__doc__ or "").strip().replace("\n    ", "\n")
        parts.append(f"## {name}")
        parts.append(text)
        if fact.transcript:
            parts.append("*Transcript.*")
        rows = [
            (f"`{field}`", _fact_kind(about.annotation), "" if about.is_required() else "may be absent")
            for field, about in fact.model_fields.items()
        ]
        parts.append(_table(("field", "kind", ""), rows))
    return _page(parts)


def _fact_kind(kind: Any) -> str:
    args = [arg for arg in get_args(kind) if arg is not type(None)]
    text = str(kind)
    if text.startswith("typing.Literal"):
        return " or ".join(f"`{value}`" for value in args)
    if args and type(None) in get_args(kind):
        return _fact_kind(args[0]) if len(args) == 1 else " or ".join(_fact_kind(arg) for arg in args)
    if text.startswith("tuple"):
        return f"list of {_fact_kind(args[0])}"
    if text.startswith("dict"):
        return "object"
    words = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}
    return words.get(getattr(kind, "__name__", ""), "anything")


# -- commands -----------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Return the reference of the command line."""
    from ava_server.cli.app import build

    parts = [
        "# Commands",
        GENERATED,
        "Screens name the data root in their first line. Exit codes: 0 success; 1 a check found a fault; 2 usage; 10"
        " not approved; 11 cost or token cap; 12 time; 13 turns or tool calls; 14 guardrail; 15 cancelled; 16"
        " abandoned; 20 model or provider; 21 verification failed; 30 configuration; 70 a fault of Ava's own; 130"
        " interrupted: something goes on that was no longer waited for.",
    ]
    app = build(())
    before = app.registered_callback.callback if app.registered_callback is not None else None
    assert before is not None
    parts.append("Before the command:")
    parts.append(_table(("", "meaning"), [(f"`{shown}`", note) for shown, note, _is_option in _parameters(before)]))
    for path, function, text in _commands(app, "ava"):
        parameters = list(_parameters(function))
        arguments = " ".join(shown for shown, _note, is_option in parameters if not is_option)
        options = "[OPTIONS]" if any(is_option for _shown, _note, is_option in parameters) else ""
        parts += [
            f"## {path}",
            " ".join(text.split()),
            "```\n" + " ".join(filter(None, (path, options, arguments))) + "\n```",
        ]
        if parameters:
            parts.append(_table(("", "meaning"), [(f"`{shown}`", note) for shown, note, _is_option in parameters]))
    return _page(parts)


def _commands(app: typer.Typer, path: str) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Yield every command with its path, its function and its help, as they were registered."""
    for command in app.registered_commands:
        if command.callback is not None and not command.hidden:
            name = command.name or command.callback.__name__
            yield f"{path} {name}", command.callback, command.help or inspect.getdoc(command.callback) or ""
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _commands(group.typer_instance, f"{path} {group.name}")


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield every parameter as it is written, what it means, and whether it is an option."""
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if hints[name] is typer.Context:  # what typer knows of the call, and nobody writes
            continue
        kind, info = get_args(hints[name])[:2]
        default = parameter.default
        if info.hidden:
            continue
        if isinstance(info, typer.models.ArgumentInfo):
            shown = (info.metavar or name.upper()).strip("[]")
            many = "..." if get_origin(kind) is list else ""
            yield (shown if default is inspect.Parameter.empty else f"[{shown}]") + many, info.help or "", False
            continue
        # In an annotation, typer's first positional argument is the option's first name, whatever it is called there.
        named = [word for word in (info.default, *(info.param_decls or ())) if str(word).startswith("-")]
        names = " ".join(named or [f"--{name.replace('_', '-')}"])
        value = "" if kind in (bool, bool | None) else f" {info.metavar or _value(kind)}"
        told = (
            ""
            if default in (None, False, inspect.Parameter.empty) or not info.show_default
            else f" Default: {default}."
        )
        yield f"{names}{value}", f"{info.help or ''}{told}".strip(), True


def _value(kind: Any) -> str:
    plain = [arg for arg in get_args(kind) if arg is not type(None)] or [kind]
    values = get_args(plain[0]) if get_origin(plain[0]) is Literal else ()
    return "|".join(values) or {int: "NUMBER", float: "NUMBER", Path: "FILE"}.get(plain[0], "TEXT")


# -- what they share ----------------------------------------------------------------------------------------------


def _same(what: str, code: set[str], written: set[str]) -> None:
    if code != written:
        raise SystemExit(
            f"scripts/settings.toml, {what}: missing {sorted(code - written)}, too many {sorted(written - code)}"
        )


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *(line(row) for row in rows)])


def _page(parts: list[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def main() -> None:
    """Write every generated file."""
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()

"""What stands in the log of a data root, on the page of events, and in the sources that write it."""

from __future__ import annotations

import ast
import json
import re
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from ava_audit.entries import HEADER

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "events.md"
SERVER = ROOT / "server" / "ava_server"


def log_entries(root: Path) -> list[dict[str, Any]]:
    """Return the entries of a data root's log that have a content, as dictionaries of the header's columns."""
    with closing(sqlite3.connect(root / "ava.db")) as db:
        rows = db.execute(f"SELECT {', '.join(HEADER)}, content FROM events ORDER BY seq").fetchall()
    return [{**dict(zip(HEADER, row, strict=False)), "content": json.loads(row[-1])} for row in rows if row[-1]]


def documented_fields() -> dict[str, dict[str, bool]]:
    """The types on the page of events, the fields of each, and whether a field may be absent."""
    found: dict[str, dict[str, bool]] = {}
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        rows = re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", section, re.MULTILINE)
        found[section.split("\n")[0].strip()] = {field: "may be absent" in words for field, words in rows}
    return found


def literals(annotation: Any) -> set[str]:
    """Return the words of a closed set, and nothing for other types."""
    return set(get_args(annotation)) if get_origin(annotation) is Literal else set()


def tool_entries(root: Path, *, of_runs: bool) -> tuple[Counter[str], dict[str, set[bool]]]:
    """The calls, and how calls came out, of subagents (without those of other agents) or of the orchestrator."""
    calls: Counter[str] = Counter()
    results: dict[str, set[bool]] = defaultdict(set)
    others = {entry["run_id"] for entry in log_entries(root) if entry["type"] == "AgentNote"}
    for entry in log_entries(root):
        if (entry["generation"] is not None) != of_runs or entry["run_id"] in others:
            continue
        if entry["type"] == "ToolCall":
            calls[entry["content"]["tool"]] += 1
        elif entry["type"] == "ToolResult":
            results[entry["content"]["tool"]].add(entry["content"]["success"])
    return calls, results


def runs_without_owner(rows: list[dict[str, Any]]) -> set[str]:
    """The runs whose owner has gone: who came after it settles for it, under no claim."""
    return {row["run_id"] for row in rows if row["type"] == "RunClaimed" and row["content"]["generation"] > 1}


def files_with(pattern: str) -> set[str]:
    """Return the files of the server whose text matches a pattern."""
    return {
        path.relative_to(SERVER).as_posix()
        for path in SERVER.rglob("*.py")
        if re.search(pattern, path.read_text("utf-8"))
    }


def calls_in(path: Path) -> list[ast.Call]:
    """Every call in a file."""
    return [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]


def called_name(call: ast.Call) -> str:
    """Return what a call calls, without the object before it."""
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def files_that_call(name: str) -> set[str]:
    """Return the files of the server that call something of this name."""
    return {
        path.relative_to(SERVER).as_posix()
        for path in SERVER.rglob("*.py")
        if any(called_name(call) == name for call in calls_in(path))
    }

"""One write path: no SQL writes outside of its files, and no thread but the writer holds what could."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.log import child

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
SOURCES = [path for folder in ("server", "roles", "audit") for path in sorted((ROOT / folder).rglob("*.py"))]
TEXTS = "ava_roles/texts/store.py"
"""It keeps what was read of files, in a database of its own beside the log."""
_SQLITE = ("connection", "schema", "sqlite", "writer")
_WRITE = {"store": _SQLITE, "postgres": ("backend", "blobs", "leases", "server", "shared_files")}
WRITERS = {
    "ava_audit/projections.py",
    *(f"ava_audit/{folder}/{name}.py" for folder, names in _WRITE.items() for name in names),
    TEXTS,
}
OPENS_FOR_WRITERS = "ava_audit/postgres/session.py"
"""It opens connections that can write, for the log's writer and for what is not the log, and writes nothing itself."""

_TARGET = r"TABLE|VIRTUAL|INDEX|UNIQUE|TRIGGER|VIEW|TEMP"
WRITING = re.compile(
    rf"INSERT\s+(OR\s+\w+\s+)?INTO|REPLACE\s+INTO|UPDATE\s+(OR\s+\w+\s+)?\S+\s+SET|DELETE\s+FROM"
    rf"|(CREATE|DROP|ALTER)\s+({_TARGET})|VACUUM\b|REINDEX\b|ATTACH\s|BEGIN\s+(IMMEDIATE|EXCLUSIVE)"
    r"|PRAGMA\s+(wal_checkpoint|optimize|incremental_vacuum|(?!(query_only|wal_autocheckpoint|busy_timeout)\b)\w+\s*=)"
)
"""Statements as this project spells them, in capitals; those that are executed are looked at in any spelling."""
ANY_SPELLING = re.compile(WRITING.pattern, re.IGNORECASE)
OTHER_WAYS = {"blobopen", "deserialize", "create_function", "load_extension"}
"""What could write, or could hide a statement that does."""


def test_only_the_listed_files_open_postgres_connections_that_write() -> None:
    importing = {name_of(path) for path in SOURCES if re.search(r"\bdial\b", path.read_text("utf-8"))}
    dialing = ("blobs", "leases", "server", "shared_files")
    assert importing == {OPENS_FOR_WRITERS, *(f"ava_audit/postgres/{name}.py" for name in dialing)}


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("ava_audit/postgres/shared_files.py", {"documents"}),
        ("ava_audit/postgres/leases.py", {"leases", "activities"}),
        ("ava_audit/postgres/blobs.py", {"blobs", "blob_parts", "blob_uses"}),
        (TEXTS, {"texts", "total", "files", "folders", "checked", "readers", "passages", "words"}),
    ],
)
def test_what_is_not_the_log_writes_only_its_own_tables(name: str, tables: set[str]) -> None:
    [path] = [path for path in SOURCES if name_of(path) == name]
    written = {
        target[1].lower()
        for found in writing_sql(path.read_text("utf-8"))
        if (target := re.search(r"(?:INSERT\s+(?:OR\s+\w+\s+)?INTO|UPDATE|DELETE\s+FROM)\s+(\w+)", found.text))
    }
    assert written == tables


def test_only_the_listed_files_contain_sql_that_writes() -> None:
    assert [fault for path in SOURCES for fault in faults_of(name_of(path), path.read_text("utf-8"))] == []


def test_the_listed_files_still_contain_sql_that_writes() -> None:
    names = {name_of(path) for path in SOURCES}
    assert names >= WRITERS
    assert all(writing_sql(path.read_text("utf-8")) for path in SOURCES if name_of(path) in WRITERS)


@pytest.mark.parametrize(
    "source",
    [
        'db.execute("INSERT INTO runs VALUES (1)")',
        'db.execute("insert or replace into runs values (1)")',
        'sql = f"UPDATE {table} SET a = ?"',
        'db.executemany(f"delete from {table} where a = ?", rows)',
        'sql = "UPDATE " + table + " SET a = 1"',
        'db.executescript("BEGIN; DROP TABLE runs")',
        'db.execute("PRAGMA user_version = 7")',
        'db.execute("PRAGMA wal_checkpoint(TRUNCATE)")',
        'db.blobopen("events", "content", 1)',
        '"""\nWITH a AS (SELECT 1)\nINSERT INTO b SELECT * FROM a"""',
    ],
)
def test_recognises_a_write_statement_in_any_form(source: str) -> None:
    assert writing_sql(source)


@pytest.mark.parametrize(
    "source",
    [
        'db.execute("SELECT count(*) FROM events")',
        'raise Refused("Update the settings, insert a key into it, or delete from the list")',
        'db.execute("PRAGMA query_only = ON")',
        'db.execute("PRAGMA data_version")',
    ],
)
def test_does_not_take_a_read_for_a_write(source: str) -> None:
    assert not writing_sql(source)


# -- while it runs ----------------------------------------------------------------------------------------------------

WATCHED = """
import asyncio, json, re, sqlite3, sys, threading
from pathlib import Path
seen = []  # per connection: its file, and which statements it executed, by which hands

def by_whom():
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "prepare" and frame.f_code.co_filename.endswith("sqlite.py"):
            return "opening"
        frame = frame.f_back
    return threading.current_thread().name

opened = [0]

def hook(event, args):
    opened[0] += event == "sqlite3.connect"

connect = sqlite3.connect

def traced(path, *args, **kwargs):
    db = connect(path, *args, **kwargs)
    seen.append([str(path), heard := []])
    db.set_trace_callback(lambda sql: heard.append((by_whom(), " ".join(sql.split()))))
    return db

sqlite3.connect = traced
sys.addaudithook(hook)

async def main():
    from support.runtime import PRICED, hand_over, open_lab
    from support.model_server import Say
    from ava_audit.verify import verify
    note = Say("I look.", [("scratchpad", {"note": "half"}), ("read_file", {"path": "a.md"})])
    tmp = Path(sys.argv[1])
    (tmp / "workspace").mkdir()
    (tmp / "workspace" / "a.md").write_text("twelve cents")
    for again in range(2):
        async with open_lab(tmp, [note, hand_over(), note, hand_over()], config=PRICED) as lab:
            await lab.outcome()
            await lab.call("read_ava_logs", search="twelve cents", since="1h")
            await lab.call("check_subagent")
            waiting = await lab.propose()
            await lab.call("cancel_subagent", subagent_id=waiting.subagent_id)
            while await lab.store.read(lambda view: min(view.progress("words"), view.progress("mirror"))) < 20:
                await asyncio.sleep(0.05)
asyncio.run(main())
from ava_server.cli.app import main as ava
for command in (["logs"], ["status"], ["doctor", "--json"]):
    ava(command)
print()
assert opened[0] == len(seen), "every connection is watched"
print(json.dumps(seen))
"""
OWN = re.compile(r"PRAGMA (synchronous|foreign_keys|wal_autocheckpoint|secure_delete|busy_timeout) = ")
"""What belongs to a connection, and not to its file."""
READS = re.compile(r"SELECT|WITH|PRAGMA|BEGIN$|COMMIT|ROLLBACK|--", re.IGNORECASE)
"""What stands behind `--` is what SQLite itself does for a statement: triggers, the tables of the text index."""


@pytest.mark.slow
def test_only_the_writer_thread_and_the_opening_connection_can_write(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(TESTS), "AVA_DATA_ROOT": str(tmp_path / "data")}
    done = subprocess.run(
        child(WATCHED, tmp_path), env=env, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    heard: list[tuple[str, list[tuple[str, str]]]] = json.loads(done.stdout.splitlines()[-1])
    hands: Counter[str] = Counter()
    readers = 0
    for path, executed in heard:
        if path == ":memory:" or path.endswith("/texts.db"):
            continue
        assert "ava.db" in path, "Ava has no database but the log and the texts of files"
        effects = [(by, sql) for by, sql in executed if not OWN.match(sql)]
        if (effects and effects[0][1].startswith("PRAGMA query_only = ON")) or "mode=ro" in path:
            readers += 1
            continue
        hands.update(by for by, sql in effects if not READS.match(sql) or ANY_SPELLING.match(sql))
        assert {by for by, _sql in effects} <= {"ava-writer", "opening"}, f"it could write, and is not theirs: {path}"
    assert hands.keys() == {"ava-writer", "opening"} and hands["ava-writer"] > 100, hands
    assert readers >= 6
    assert any("mode=ro" in path for path, _executed in heard), "doctor has looked too"


@dataclass(frozen=True)
class Found:
    """A statement that writes, or a connection that could: where."""

    line: int
    text: str


def literal(node: ast.expr) -> str:
    """The text of a string in a program; what is put into it stands as a name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) if isinstance(part, ast.Constant) else "x" for part in node.values)
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    return "x"


def writing_sql(source: str) -> list[Found]:
    """Every statement in a program that writes, and every other way of writing."""
    found: list[Found] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp) and WRITING.search(text := literal(node)):
            found.append(Found(node.lineno, text))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            text = literal(node.args[0]) if node.args else ""
            if node.func.attr.startswith("execute") and ANY_SPELLING.search(text):
                found.append(Found(node.lineno, text))
            elif node.func.attr in OTHER_WAYS:
                found.append(Found(node.lineno, node.func.attr))
    return found


def connections(source: str) -> Iterator[Found]:
    """Every function that opens a database, with all the text in it."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("connect", "Connection")
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in ("sqlite3", "aiosqlite", "psycopg")
        ):
            around = [each for each in functions if each.lineno <= node.lineno <= (each.end_lineno or 0)]
            yield Found(node.lineno, ast.unparse(around[-1] if around else node))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix().split("/", 1)[1]


def faults_of(name: str, source: str) -> list[str]:
    """What stands in a file that may not stand there."""
    opened = list(connections(source))
    if name in WRITERS:
        return []
    return [
        *(f"{name}:{statement.line} writes: {statement.text[:80]!r}" for statement in writing_sql(source)),
        *(
            f"{name}:{each.line} opens a database that it could write to"
            for each in opened
            if name != OPENS_FOR_WRITERS and "query_only = ON" not in each.text and "mode=ro" not in each.text
        ),
    ]

"""DuckDB, where it is there or can be had, in an environment of its own that is thrown away."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from audit_parts.report import median

INSTALL_S = 240
ASK = """
import json, sys, time
import duckdb
db = duckdb.connect()
db.execute("SET preserve_insertion_order = false")
db.execute("SET enable_progress_bar = false")  # it would stand between the answers
for line in sys.stdin:
    asked = json.loads(line)
    began = time.perf_counter()
    rows = db.execute(asked["sql"]).fetchall()
    print(json.dumps({"took": time.perf_counter() - began, "rows": len(rows)}), flush=True)
"""


class Duck:
    """DuckDB as a process that stays open, so that neither its start nor its import counts."""

    def __init__(self, python: Path, lines: Path, folder: tempfile.TemporaryDirectory[str]) -> None:
        self._folder = folder
        self._lines = lines
        self._process = subprocess.Popen(
            [str(python), "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def asked(self, condition: str, limit: int, times: int) -> float:
        """Return the median time (s) of a question over the JSON lines."""
        columns = (
            "{seq: 'BIGINT', timestamp: 'VARCHAR', agentId: 'VARCHAR', userId: 'VARCHAR', eventType: 'VARCHAR',"
            " content: 'JSON'}"
        )
        source = f"read_json('{self._lines}', format = 'newline_delimited', columns = {columns})"
        sql = f"SELECT * FROM {source} WHERE {condition} ORDER BY seq DESC LIMIT {limit}"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        took = []
        for _ in range(times):
            self._process.stdin.write(json.dumps({"sql": sql}) + "\n")
            self._process.stdin.flush()
            took.append(json.loads(self._process.stdout.readline())["took"])
        return median(took)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def duck(lines: Path) -> Duck | str:
    """Return DuckDB, or a sentence that says why not."""
    folder = tempfile.TemporaryDirectory()
    if importlib.util.find_spec("duckdb") is not None:
        return Duck(Path(sys.executable), lines, folder)
    venv.create(folder.name, with_pip=True)
    python = Path(folder.name) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    try:
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "duckdb"],
            check=True,
            capture_output=True,
            timeout=INSTALL_S,
        )
    except (subprocess.SubprocessError, OSError):
        folder.cleanup()
        return "DuckDB could not be installed and is left out."
    return Duck(python, lines, folder)

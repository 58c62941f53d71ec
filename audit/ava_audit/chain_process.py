"""A second process that checks the hash chain of an embedded log, while the first one rebuilds the projections.

It tells how far the chain is intact, and nothing else: the first process finds out itself what comes after that.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO

from ava_audit.entries import GENESIS, HEADER, content_sha, entry_hash
from ava_audit.events import TRANSCRIPT_TYPES
from ava_audit.store.sqlite import SqliteBackend

SILENT_S = 60.0
"""The process is ended after so long without a slice, and the other one goes on alone."""
_START = f"import sys; sys.path.append(sys.argv[1]); from {__name__} import print_intact as p; p(*sys.argv[2:])"
_N, _TYPE = len(HEADER), HEADER.index("type")
# The bytes of a text, which need not be decoded. No hash can be made of 0: what is not text has been changed.
_BYTES = "CASE typeof(content) WHEN 'text' THEN CAST(content AS BLOB) WHEN 'null' THEN NULL ELSE 0 END"
_SLICE = (
    f"SELECT {', '.join(HEADER)}, {_BYTES}, content_sha, hash"  # noqa: S608
    " FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
)


@contextmanager
def intact_slices(path: Path, size: int) -> Generator[Iterator[tuple[int, bytes]]]:
    """Have a process check a log; yield the last `seq` and hash of each intact slice, until a fault or its failure."""
    command = [sys.executable, "-I", "-c", _START, str(Path(__file__).parents[1]), str(path.absolute()), str(size)]
    try:
        process = subprocess.Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)  # noqa: S603
    except OSError:
        yield iter(())
        return
    with process:
        try:
            assert process.stdout is not None
            yield _slices(process, process.stdout)
        finally:
            process.kill()


def _slices(process: subprocess.Popen[bytes], printed: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the hash in each line that `print_intact` prints in the process; stop at any other line.

    The process is killed if it prints nothing for `SILENT_S` seconds.
    """
    with contextlib.suppress(ValueError):
        while True:
            watch = threading.Timer(SILENT_S, process.kill)
            watch.daemon = True
            try:
                watch.start()  # Ctrl-C may come here too
                line = printed.readline()
            finally:
                watch.cancel()
            if not line:
                return
            seq, digest = line.split()
            yield int(seq), bytes.fromhex(digest.decode())


def print_intact(path: str, size: str) -> None:
    """Check the chain, and print the last `seq` and hash of each slice. Any error ends it: it vouches for no more."""
    seq, before, file = 0, GENESIS, Path(path)
    with contextlib.closing(SqliteBackend(file.parent, file).open_to_check()) as db:
        while True:
            start = seq
            for row in db.execute(_SLICE, (seq, int(size))):
                header, content, sha, digest = row[:_N], row[_N], row[_N + 1], row[_N + 2]
                seq += 1
                if header[0] != seq or entry_hash(before, header, sha) != digest:
                    return
                if content_sha(content) != sha if content is not None else header[_TYPE] not in TRANSCRIPT_TYPES:
                    return
                before = digest
            if seq == start:
                return
            sys.stdout.write(f"{seq} {before.hex()}\n")
            sys.stdout.flush()

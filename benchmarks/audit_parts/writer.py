"""A process that writes into a log as fast as it can: `python writer.py ROOT FIRST EVENTS PRODUCERS`.

It says "ready" when the log is open, begins at a line on its standard input, and ends with what it measured. Garbage
is collected as rarely as in a server of Ava's, and not what it prepared to write.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from audit_parts.mix import Together
from audit_parts.writing import scripts, timed
from ava_audit.errors import AuditError
from ava_audit.maintenance import run_maintenance
from ava_audit.store.store import Store, append
from ava_server import COLLECT_AFTER


async def main(root: Path, first: int, events: int, producers: int) -> None:
    mine = scripts(events, producers, first)
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    failures: list[str] = []
    async with Store.open(root) as store, asyncio.TaskGroup() as tasks:

        async def write(command: Together) -> None:
            try:
                await store.do(append(*command))
            except AuditError as error:
                failures.extend([str(error)] * len(command))

        keeping = tasks.create_task(run_maintenance(store, root, mirror=True))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        measured = await timed(mine, write)
        keeping.cancel()
    print(json.dumps({**asdict(measured), "failures": failures}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *map(int, sys.argv[2:5])))

"""Work on a repository from its beginning to its end, as an ordinary user; prints what came of it as JSON.

python workshop_as.py UID FOLDER KIND    # becomes that user first
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import cast

import anyio

from ava_roles.sandbox.sandbox import Kind
from ava_roles.worktree.session import remove_worktree
from support.repositories.projects import git, write
from support.repositories.workshops import FIXED, RUN, checkout_state, open_workshop, order, project, run


async def work_as(kind: Kind, folder: Path) -> dict[str, object]:
    """Do all of it, and return what there is to be compared."""
    repository = project(folder / "project")
    write(repository, {".venv/pyvenv.cfg": "home = /usr/bin\n", ".venv/bin/tool": "#!/bin/sh\necho tool\n"})
    before = checkout_state(repository)
    what = order(repository, namespace=("calc.py", "src"), verify="python3 -m unittest -q && .venv/bin/tool")
    async with open_workshop(kind, folder, what) as shop:
        line = (
            "mkdir -p .git src docs/.git; echo x > docs/guide.md; echo new > new.txt; ln -s /etc src/link; mkfifo pipe;"
            " echo x > src/closed; chmod 000 src/closed; rm -f .venv; echo kept > src/kept.txt"
        )
        _done, said = await run(kind, folder, shop, line)
        shop.edits.write("calc.py", FIXED.encode())
        first, second = await shop.check(), await shop.check()
        branch = shop.keep("Mend add")
    assert branch is not None
    remove_worktree(folder / "worktrees" / RUN)
    git(repository, "fsck", "--full", "--strict")
    return {
        "said": said,
        "passed": [first.passed, second.passed],
        "output": second.output.split()[-1],
        "same": branch.tree
        == first.tree
        == second.tree
        == git(repository, "rev-parse", f"{branch.name}^{{tree}}").strip(),
        "changed": [each.path for each in branch.changed],
        "sealed": checkout_state(repository) == before,
        "gone": not (folder / "worktrees" / RUN).exists(),
        "kind": kind,
    }


def main() -> None:
    uid, folder, kind = int(sys.argv[1]), Path(sys.argv[2]), cast("Kind", sys.argv[3])
    if os.getuid() == 0 and uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    folder = folder / f"{kind}-{os.getuid()}"
    folder.mkdir(mode=0o700)
    os.environ["HOME"] = str(folder)
    sys.stdout.write(json.dumps(anyio.run(work_as, kind, folder)))


if __name__ == "__main__":
    main()

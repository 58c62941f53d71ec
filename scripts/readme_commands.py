"""Print the commands of README.md, so that CI runs exactly these.

A command is the fenced block under a comment `<!-- command: NAME -->`. Needs nothing but Python, because CI reads the
README before anything is installed: `python3 scripts/readme_commands.py tests` prints one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
_BLOCK = re.compile(r"^<!-- command: (?P<name>[a-z-]+) -->\n+```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(readme: Path = README) -> dict[str, str]:
    """Return the README's commands by name."""
    blocks = list(_BLOCK.finditer(readme.read_text(encoding="utf-8")))
    found = {block["name"]: block["text"].strip() for block in blocks}
    if len(found) != len(blocks):
        raise SystemExit(f"{readme.name}: two commands have the same name")
    return found


if __name__ == "__main__":
    known = commands()
    wanted = sys.argv[1] if len(sys.argv) == 2 else ""
    if wanted not in known:
        raise SystemExit(f"usage: readme_commands.py NAME, where NAME is one of {', '.join(known)}")
    print(known[wanted])

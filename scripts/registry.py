"""Write `server.json`, Ava's entry for the MCP registry: `python scripts/registry.py`.

tests/test_mcp_registry.py compares the file with this script's output and checks it against the registry's schema.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
FILE = REPOSITORY / "server.json"
SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
NAME = "io.github.ava-subagents/ava"
README_LINE = f"<!-- mcp-name: {NAME} -->"
"""What the registry looks for in the README on PyPI, to see that the package and the name have one owner."""


def document() -> dict[str, Any]:
    """Return the registry's entry for the version that `pyproject.toml` names."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    return {
        "$schema": SCHEMA,
        "name": NAME,
        "title": "Ava",
        # pyproject's own is longer than the 100 characters that the registry takes.
        "description": "Background subagents for any MCP host: approved with a maximum cost, capped while they run.",
        "version": project["version"],
        "repository": {"url": project["urls"]["Homepage"], "source": "github"},
        "packages": [
            {
                "registryType": "pypi",
                "registryBaseUrl": "https://pypi.org",
                "identifier": project["name"],
                "version": project["version"],
                "runtimeHint": "uvx",
                "transport": {"type": "stdio"},
                "packageArguments": [{"type": "positional", "value": "serve"}],
                "environmentVariables": [
                    {
                        "name": "OPENROUTER_API_KEY",
                        "description": "Key for the language models; without one, subagents use the offline reader.",
                        "isRequired": False,
                        "isSecret": True,
                    },
                    {
                        "name": "AVA_WORKSPACE",
                        "description": "Folder that subagents may read when the call names none.",
                        "format": "filepath",
                        "isRequired": False,
                    },
                    {
                        "name": "AVA_DATA_ROOT",
                        "description": "Folder for everything that Ava stores, as an absolute path.",
                        "format": "filepath",
                        "isRequired": False,
                    },
                    {
                        "name": "AVA_DAILY_USD",
                        "description": "Maximum spending per UTC day, in dollars; can only lower the limit set.",
                        "format": "number",
                        "placeholder": "5",
                        "isRequired": False,
                    },
                ],
            }
        ],
    }


def text() -> str:
    """Return the file's text."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(FILE.relative_to(REPOSITORY))

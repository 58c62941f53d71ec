"""Build the bundle that desktop hosts install by a double click: `python scripts/build_mcpb.py [--out dist/]`.

The bundle (MCPB, manifest 0.4, server type `uv`) is the project itself, as git knows it, with a manifest and an icon:
the host's own uv installs Python and what the lock file names. Two builds of the same tree are the same bytes.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import subprocess
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ava_server.config.host_placeholders import BUNDLE
from ava_server.config.settings import BUNDLE_DAILY_USD

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
CONTENTS = ("pyproject.toml", "uv.lock", "README.md", "LICENSE", "server", "roles", "audit", "docs", "examples/suites")
"""What building the package takes; the documentation is what `ava demo` reads."""
ENTRY = "server/bundle.py"

LONG_DESCRIPTION = """\
Ava gives the model that you talk to **background subagents with a price tag**. It proposes one; you see its task, its \
reach and the most that it can cost, and approve it or not; it works in the background inside hard limits; and \
everything it did is in one log on your machine that can be searched and read back.

Subagents read public web pages and the folder that you choose, and change nothing. Without a key they use an offline \
reader, which finds and quotes passages and costs nothing.

Let Claude ask you before each `confirm_spawn`, and never allow that tool for good: the question shows the price, and \
it is the approval."""

DIALOG: Mapping[str, Mapping[str, Any]] = {
    "openrouter_api_key": {
        "type": "string",
        "title": "OpenRouter key",
        "description": (
            "Pays for the language models that subagents use. Left empty, they use the offline reader, which quotes"
            " passages and costs nothing."
        ),
        "sensitive": True,
        "required": False,
    },
    "brave_api_key": {
        "type": "string",
        "title": "Brave Search key",
        "description": (
            "Lets subagents search the web, for about half a cent a search, which no cap of Ava's counts. Left empty,"
            " OpenRouter searches, within the caps, or they read the pages that the request names."
        ),
        "sensitive": True,
        "required": False,
    },
    "folder": {
        "type": "directory",
        "title": "Folder that Ava may read",
        "description": (
            "Subagents read files in it, and change none. Those that can also reach the web read it only when the"
            " request names a folder, and the proposal says so. Left empty, they read no files unless it names one."
        ),
        "required": False,
    },
    "daily_usd": {
        "type": "number",
        "title": "Most that Ava may spend a day, in dollars",
        "description": (
            "No call is sent that could cost more than what is left of it. 0 means nothing; cents are fine, as in 2.50."
            " It can only lower what Ava's own settings allow ($10 a day, if you never changed them). Left empty: 5."
        ),
        "default": int(BUNDLE_DAILY_USD),
        "min": 0,
        "required": False,
    },
}
"""What the install dialog asks for; each value goes into one variable of the server."""

VARIABLES: Mapping[str, str] = {
    "OPENROUTER_API_KEY": "${user_config.openrouter_api_key}",
    "BRAVE_API_KEY": "${user_config.brave_api_key}",
    "AVA_WORKSPACE": "${user_config.folder}",
    "AVA_DAILY_USD": "${user_config.daily_usd}",
    "AVA_HOST": BUNDLE,
}


def manifest() -> dict[str, Any]:
    """Return the manifest: what the project says of itself, how it is started, what the dialog asks."""
    from ava_server.mcp_server.tools import all_prompts

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    return {
        "manifest_version": "0.4",
        "name": project["name"],
        "display_name": "Ava",
        "version": project["version"],
        "description": project["description"],
        "long_description": LONG_DESCRIPTION,
        "author": {"name": "The Ava authors"},
        "icon": "icon.png",
        "server": {
            "type": "uv",
            "entry_point": ENTRY,
            "mcp_config": {
                "command": "uv",
                # --project, as --directory would change the working folder; --frozen, as the lock file is what was
                # tested, and starting without a network must work once it has worked with one.
                "args": [
                    "run",
                    "--project",
                    "${__dirname}",
                    "--frozen",
                    "--no-dev",
                    "--extra",
                    "documents",
                    "--extra",
                    "languages",
                    "python",
                    f"${{__dirname}}/{ENTRY}",
                ],
                "env": dict(VARIABLES),
            },
        },
        "tools": [
            {"name": tool.name, "description": first_sentence(tool.description or "")}
            for tool in _script("gen_docs").listed_tools()
        ],
        "prompts": [
            {
                "name": prompt.name,
                "description": prompt.description,
                "arguments": (needed := [argument.name for argument in prompt.arguments if argument.missing]),
                "text": prompt.words.format(**{name: f"${{arguments.{name}}}" for name in needed}),
            }
            for prompt in all_prompts()
        ],
        "keywords": project["keywords"],
        "license": project["license"],
        "compatibility": {
            "platforms": ["darwin", "win32", "linux"],
            "runtimes": {"python": project["requires-python"]},
        },
        "user_config": {name: dict(field) for name, field in DIALOG.items()},
    }


def first_sentence(text: str) -> str:
    """Return a description up to the end of its first sentence."""
    head, found, _rest = " ".join(text.split()).partition(". ")
    return head + "." if found else head


def build(out: Path) -> Path:
    """Write the bundle into a folder, which is made if it is missing, and return its path."""
    about = manifest()
    files = {
        "manifest.json": (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode(),
        "icon.png": _script("icon").png(),
        **{name: (REPOSITORY / name).read_bytes() for name in tracked()},
    }
    target = out / f"{about['name']}-{about['version']}.mcpb"
    out.mkdir(parents=True, exist_ok=True)
    target.write_bytes(_zipped(files))
    return target


def tracked() -> list[str]:
    """Return the files of the bundle that git knows, as paths in the repository."""
    asked = ["git", "-c", "core.quotePath=off", "ls-files", "-z", "--", *CONTENTS]
    told = subprocess.run(asked, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True, text=True, encoding="utf-8")
    return [name for name in told.stdout.split("\0") if name and (REPOSITORY / name).is_file()]


def _zipped(files: Mapping[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as bundle:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))  # the earliest that the format knows
            entry.create_system = 3  # Unix, wherever it is built
            entry.external_attr = 0o100644 << 16
            bundle.writestr(entry, files[name], zipfile.ZIP_DEFLATED, 9)
    return data.getvalue()


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(args: Sequence[str] | None = None) -> None:
    """Build it, and say where it is and how large."""
    parser = argparse.ArgumentParser(description="Build the bundle for desktop hosts.")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "dist", help="the folder to write it into")
    target = build(parser.parse_args(args).out)
    print(f"{target} ({target.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()

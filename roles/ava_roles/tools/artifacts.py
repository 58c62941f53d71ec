"""`save_artifact`: files that a run hands over with its result."""

from __future__ import annotations

import hashlib
import re

from pydantic import Field

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.sandbox.paths import Root, shown
from ava_roles.threads import run_sync
from ava_roles.tool import ToolArgs, ToolContext, ToolOutput, ToolSpec, need_artifacts

_MAX_BYTES = 1_000_000
_MAX_FILES = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,98}[A-Za-z0-9]|[A-Za-z0-9]")
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


class SaveArtifactArgs(ToolArgs):
    """Arguments of `save_artifact`."""

    name: str = Field(description="File name without folders, e.g. prices.csv; letters, digits, dot, - and _")
    content: str = Field(description="The whole content, at most 1 MB.")


class SaveArtifact:
    """Writes a file into the run's artifact folder."""

    spec = ToolSpec(
        name="save_artifact",
        description=(
            "Save a text file (report, table, data) that is handed over with the result: at most 20 files of "
            "1 MB. The same name again replaces the file. Use it for what is too long for the result itself."
        ),
        args=SaveArtifactArgs,
        read_only=False,
        artifacts=True,
        writes=True,
        common=True,
    )

    def activity(self, args: SaveArtifactArgs) -> str:
        """Return `Saving NAME`."""
        return f"Saving {shown(args.name)}"

    async def __call__(self, args: SaveArtifactArgs, at: ToolContext) -> ToolOutput:
        """Save the file."""
        folder = need_artifacts(at)
        return await run_sync(_save, folder, args, abandon_on_cancel=False)


def is_artifact_name(name: str) -> bool:
    """Tell whether an artifact can have this name: a plain file name that every system accepts."""
    return _NAME.fullmatch(name) is not None and _RESERVED.fullmatch(name) is None


def _save(folder: Root, args: SaveArtifactArgs) -> ToolOutput:
    if not is_artifact_name(args.name):
        raise AccessRefused(
            f"{shown(args.name)!r} cannot be an artifact's name; give a plain file name such as prices.csv"
        )
    try:
        data = args.content.encode()
    except UnicodeEncodeError:
        raise ToolFailed("the content contains half characters (lone surrogates); leave them out") from None
    if len(data) > _MAX_BYTES:
        raise ToolFailed(f"the content has {len(data):,} bytes, more than {_MAX_BYTES:,}; split or shorten it")
    existing = [entry.name for entry in folder.entries()]
    twin = next((name for name in existing if name.lower() == args.name.lower() and name != args.name), None)
    if twin is not None:
        raise ToolFailed(f"there is {twin} already, and some systems take that for the same name; choose another")
    if args.name not in existing and len(existing) >= _MAX_FILES:
        raise ToolFailed(f"there are {_MAX_FILES} artifacts already; put more into one, or replace one by its name")
    folder.replace(args.name, data)
    digest = hashlib.sha256(data).hexdigest()
    return ToolOutput(f"saved {args.name}: {len(data):,} bytes, sha256 {digest}", count=1)

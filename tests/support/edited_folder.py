"""Runs that change files of their workspace itself, by the same tools and rules as in a worktree."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from ava_audit.rows import RunRow
from ava_roles.workshop.edits import Edits
from ava_server import editing
from ava_server.history import History
from ava_server.outfitting import Outfitting
from ava_server.prepared import Prepared


@contextmanager
def edited_folder() -> Generator[None]:
    """Give every run that sees a folder edits there: what is tried is the tools and the loop, without git."""
    prepare = Outfitting.prepare

    async def with_edits(self: Outfitting, run: RunRow, history: History) -> Prepared:
        prepared = await prepare(self, run, history)
        root = prepared.place.files
        if root is None:
            return prepared
        edits = Edits(root, ["."], root.path.parent / "edits" / run.id)
        return replace(prepared, place=replace(prepared.place, edits=edits))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outfitting, "prepare", with_edits)
        patch.setattr(editing, "WORKSHOPS", True)
        yield

"""Opens the folder that a run was approved for, as long as it is that folder and still allowed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ava_roles.sandbox.paths import Root
from ava_roles.sandbox.workspace import recheck_workspace
from ava_server.budget import user_limits
from ava_server.core.data_root import home_folder

if TYPE_CHECKING:
    from ava_server.config.settings import Settings


def open_workspace(settings: Settings, folder: Path, identity: str, user: str, *, owner: bool) -> Root:
    """Open an approved folder for a user's run; `owner`: the user owns the data root. Blocks.

    Raises FolderReplaced: another folder is there; WorkspaceRefused: it is no longer allowed; OSError: it cannot be
    opened.
    """
    root = Root.open_approved(folder, identity)
    try:
        recheck_workspace(
            folder,
            roots=user_limits.workspace_roots(settings, user, owner=owner),
            data_root=settings.data_root,
            home=home_folder(),
            allow=user_limits.named_folders(settings, user),
        )
    except BaseException:
        root.close()
        raise
    return root

"""Hides the private keys in a run's files: a command or an MCP server can return any part of them."""

from __future__ import annotations

import logging
from contextlib import suppress

from anyio.from_thread import check_cancelled

from ava_audit.redaction import RunRedactor
from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.threads import run_sync
from ava_roles.tools.text_files import find_private_key_files
from ava_roles.wrap import clean

log = logging.getLogger(__name__)


async def learn_private_keys(redactor: RunRedactor, files: Root) -> None:
    """Replace every part of the private keys in these files from now on."""

    def learn() -> None:
        with suppress(ToolFailed):  # whatever needs the files reports the error
            for text in find_private_key_files(files, check_cancelled):
                redactor.learn_private_keys(clean(text)[0])
        if redactor.full:
            log.warning("%s has more private keys than Ava can recognise in part; some may reach a model", files.path)

    await run_sync(learn)

"""Which database the logs of whole data roots have: `AVA_TEST_DATABASE=postgres` puts them on a server of the tests."""

from __future__ import annotations

import os
import re
from pathlib import Path

POSTGRES = os.environ.get("AVA_TEST_DATABASE") == "postgres"


def write_config(root: Path, config: str) -> None:
    """Write `config.toml` of a data root, with the address of its database: over the socket, without a password.

    Tests' own clients are in no table of hosts, so unless it says otherwise, their call is the approval.
    """
    setting = ""
    if POSTGRES:
        from support.postgres import postgres_server

        setting = f'database_url = "{postgres_server().address(root)}"\n'
    if not re.search(r"(?m)^approval\s*=", config):
        setting += 'approval = "ask"\n'
    (root / "config.toml").write_text(setting + config)


def empty_databases() -> None:
    """Make the databases of data roots that are gone free for others."""
    if POSTGRES:
        from support.postgres import postgres_server

        postgres_server().empty_databases()

"""The sessions of one process are bounded."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from support.runtime import open_lab

from ava_server.config.tokens import Token
from ava_server.mcp_server.app import HTTP, App, session_over_http


async def test_a_client_inventing_names_keeps_only_a_bounded_number_of_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ava_server.mcp_server.app.MOST_SERVICES", 2)
    token = Token("laptop", "ana", ("spawn",), "0" * 64, 0, None)
    async with open_lab(tmp_path) as lab:
        app = App(lambda: lab.runtime.settings, HTTP)
        app._runtime = lab.runtime
        before = len(lab.runtime.manager.sessions)
        names = [f"client-{number}" for number in range(6)]
        services = [app.service_for((token, name), partial(session_over_http, token, name)) for name in names]
        assert len(lab.runtime.manager.sessions) == before + 2
        assert {service.session.id for service in services[-2:]} <= lab.runtime.manager.sessions

"""`fetch.proxy`, in a whole run: what subagents read comes through it, and its password stays between the two."""

import base64
from pathlib import Path

import pytest
from support.model_server import Say
from support.network.proxy import run_proxy
from support.network.web_site import HOST, Page, site
from support.runtime import hand_over, open_lab

from ava_audit.events import ToolResult

PASSWORD = "pass-word-of-the-proxy"
SENT = base64.b64encode(f"ava:{PASSWORD}".encode()).decode()
PAGE = f"<html><body><p>The blue door costs nine euros. You sent: Basic {SENT} and {PASSWORD}.</p></body></html>"


@pytest.mark.slow
async def test_fetches_use_the_configured_proxy_and_model_calls_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    look = Say(
        calls=[("read_webpages", {"urls": [f"http://{HOST}/prices"]}), ("http_get", {"url": "http://10.0.0.1/"})]
    )
    async with site({"/prices": Page(PAGE)}) as web:
        with run_proxy({HOST: web.port}) as proxy:
            proxy.login = f"ava:{PASSWORD}"
            env, config = (
                {"AVA_FETCH__PROXY": proxy.url_of(proxy.login)},
                f'[fetch]\nproxy = "{proxy.scheme}://{proxy.place}"\n',
            )
            async with open_lab(tmp_path, [look, hand_over()], env=env, config=config) as lab:
                run_id = await lab.start(role="web_crawler", task=f"What does it cost? See http://{HOST}/prices")
                assert (await lab.ended(run_id)).state == "success"
                results = {fact.tool: fact for fact in await lab.facts(run_id, ToolResult)}
                page, inwards = results["read_webpages"], results["http_get"]
                sent = b"".join(request.body for request in lab.server.requests).decode()
    assert "The blue door costs nine euros" in page.output
    assert "its address is not public" in inwards.output
    assert proxy.requests == [f"http://{HOST}/robots.txt", f"http://{HOST}/prices"]
    assert proxy.tunnels == [] and len(proxy.logins) == 2
    assert web.connected == []  # nothing went there by itself
    kept = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()).decode("latin-1")
    for text in (page.output, sent, kept):
        assert PASSWORD not in text and SENT not in text
    assert "[redacted:fetch.proxy]" in page.output

"""The settings of web search: which engine is used, and at which addresses."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from support.models.search_answers import KEY

from ava_server.config.keys import Key
from ava_server.config.search_engine import engine_of
from ava_server.config.settings import SearchSettings, load_settings
from ava_server.core.errors import ConfigError

# -- which engine ---------------------------------------------------------------------------------------------------


def chosen(settings: SearchSettings, *names: str, meant: str | None = None) -> str | None:
    stored = {name: Key(name, "keys.toml", KEY) for name in names}
    engine = engine_of(settings, stored, meant)
    return engine.name if engine else None


def test_prefers_kagi_over_brave_and_brave_over_searxng(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAGI_API_KEY", "BRAVE_API_KEY", "AVA_KEY_KAGI", "AVA_KEY_BRAVE"):
        monkeypatch.delenv(name, raising=False)
    own = SearchSettings(searxng="http://127.0.0.1:8888")
    assert chosen(SearchSettings()) is None
    assert chosen(own) == "searxng"
    assert chosen(own, "brave") == "brave"
    assert chosen(own, "brave", "kagi") == "kagi"
    assert chosen(own, "brave", "kagi", meant="brave") == "brave"
    assert chosen(own, "brave", meant="kagi") is None
    assert chosen(SearchSettings(engine="brave"), "kagi") is None
    assert chosen(SearchSettings(engine="searxng", searxng="http://127.0.0.1:8888"), "kagi") == "searxng"
    assert chosen(SearchSettings(engine="searxng", searxng="http://127.0.0.1:8888"), "kagi", meant="kagi") is None
    assert chosen(SearchSettings(engine="none", searxng="http://127.0.0.1:8888"), "kagi") is None
    monkeypatch.setenv("BRAVE_API_KEY", KEY)
    assert chosen(own) == "brave"


@pytest.mark.parametrize(
    "url",
    ["https://searx.example.org", "http://127.0.0.1:8888", "http://[::1]:8888", "http://192.168.1.4", "http://searxng:8080/sub"],
)  # fmt: skip
def test_allows_searxng_in_the_local_network_or_over_https(url: str) -> None:
    assert SearchSettings(searxng=url).searxng == url


@pytest.mark.parametrize("field", ["searxng", "kagi_url", "brave_url"])
@pytest.mark.parametrize(
    "url",
    [
        "http://searx.example.org",
        "http://8.8.8.8/",
        "searx",
        "ftp://a.example",
        "https://me:pw@a.example",
        "http://[2606:4700::1]/",
        "http://134744072/",
    ],
)
def test_rejects_an_address_that_would_send_searches_unencrypted(field: str, url: str) -> None:
    with pytest.raises(ValidationError):
        SearchSettings.model_validate({field: url})


def test_reads_and_validates_the_search_settings(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[search]\nengine = "bing"\n')
    with pytest.raises(
        ConfigError, match=r"search\.engine is .*bing.*; allowed is auto, kagi, brave, searxng, anthropic"
    ):
        load_settings(tmp_path, env={})
    (tmp_path / "config.toml").write_text("")
    env = {"AVA_SEARCH__SEARXNG": "http://127.0.0.1:8888/"}
    assert load_settings(tmp_path, env=env).search.searxng == "http://127.0.0.1:8888"

"""Model servers on this machine: found, named by the settings, and asked for their length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.model_server import Fail, run_model_server
from support.models.provider_settings import KEY, settings_with
from support.runtime import hand_over, open_lab

from ava_server.cli.models import servers_lines
from ava_server.core.errors import BadInput
from ava_server.models import listing
from ava_server.models.http_clients import ClientPool
from ava_server.models.listing import ModelCatalog, loaded_windows, servers_here
from ava_server.models.model_choice import ModelSettings, Provider, choose, configured
from ava_server.models.providers import PROVIDERS


@pytest.mark.parametrize("name", ["ollama", "lmstudio", "llamacpp", "vllm"])
def test_a_server_on_this_machine_is_used_only_where_the_settings_name_it(tmp_path: Path, name: str) -> None:
    assert configured(settings_with(tmp_path, "")) == {}
    with pytest.raises(BadInput, match=rf"needs \[providers.{name}\] in config.toml: an empty table is enough"):
        choose(f"{name}:qwen3:8b", "fast", settings_with(tmp_path, ""))
    choice = choose(f"{name}:qwen3:8b", "fast", settings_with(tmp_path, f"[providers.{name}]\n"))
    assert choice.base_url == PROVIDERS[name].base_url and choice.price.free
    own = settings_with(tmp_path, f'[providers.{name}]\nbase_url = "http://127.0.0.1:9/v1"\n')
    assert choose(f"{name}:qwen3:8b", "fast", own).base_url == "http://127.0.0.1:9/v1"


TOLD: Mapping[str, tuple[str, Any, dict[str, int]]] = {
    "ollama": ("/api/ps", {"models": [{"name": "qwen3:8b", "context_length": 4096}]}, {"qwen3:8b": 4096}),
    "lmstudio": (
        "/api/v0/models",
        {"data": [{"id": "a", "loaded_context_length": 8192, "max_context_length": 131072}, {"id": "b"}]},
        {"a": 8192},
    ),
    "vllm": ("/v1/models", {"data": [{"id": "a", "max_model_len": 32768}]}, {"a": 32768}),
    "llamacpp": ("/props", {"default_generation_settings": {"n_ctx": 2048}}, {"": 2048}),
}


@pytest.mark.parametrize("name", TOLD)
async def test_a_server_on_this_machine_tells_the_length_that_is_loaded(name: str) -> None:
    path, answer, windows = TOLD[name]
    with run_model_server([Fail(200, answer)]) as server:
        catalog = ModelCatalog(name, server.base_url, None, "chat_completions", configured=True, in_table=False)
        async with ClientPool() as clients:
            assert await loaded_windows(catalog, clients) == windows
    assert [request.path for request in server.requests] == [path]


@pytest.mark.parametrize(
    "answer", [[], {}, {"models": 7}, {"models": [{"name": "a", "context_length": -1}]}, "x", None]
)
async def test_a_server_that_tells_no_length_has_none(answer: Any) -> None:
    with run_model_server([Fail(200, answer), Fail(404), Fail(200, b"<html>")]) as server:
        catalog = ModelCatalog("ollama", server.base_url, None, "chat_completions", configured=True, in_table=False)
        async with ClientPool() as clients:
            for _ in range(3):
                assert await loaded_windows(catalog, clients) == {}


async def test_no_other_endpoint_is_asked_for_its_length() -> None:
    with run_model_server([]) as server:
        async with ClientPool() as clients:
            for name in ("custom", "openai"):
                catalog = ModelCatalog(name, server.base_url, KEY, "chat_completions", configured=True, in_table=False)
                assert await loaded_windows(catalog, clients) == {}
    assert not server.requests


async def test_a_server_at_its_usual_port_is_found_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_model_server(lambda _body: Fail(200, {"data": [{"id": "qwen3"}, {"id": "other"}]})) as server:
        rows = {name: known for name, known in PROVIDERS.items() if name not in ("lmstudio", "llamacpp")}
        rows["ollama"] = replace(PROVIDERS["ollama"], base_url=server.base_url)
        monkeypatch.setattr(listing, "PROVIDERS", rows)
        async with ClientPool() as clients:
            assert await servers_here(ModelSettings(), clients) == {"ollama": ["qwen3", "other"]}
            assert "authorization" not in server.requests[0].headers
            named = ModelSettings(providers={"mine": Provider(base_url=server.base_url)})
            assert await servers_here(named, clients) == {}
    assert len(server.requests) == 1
    assert configured(ModelSettings()) == {}
    shown = " ".join(" ".join(servers_lines({"ollama": ["qwen3", "other"]})).split())
    assert "[providers.ollama]" in shown and "qwen3 and 1 more" in shown and "Nothing uses it." in shown


WINDOW = {"models": [{"name": "qwen3:latest", "context_length": 4096}]}


@pytest.mark.parametrize(
    ("words", "reported", "is_cut"),
    [(8_000, 2_050, True), (5_000, 2_050, True), (8_000, 14_000, False), (1_500, 2_050, False), (100, 400, False)],
    ids=["too little to be true", "cut to half of the window", "counted whole", "may be whole", "short"],
)
async def test_an_answer_to_a_prompt_that_ollama_cut_is_an_error(
    tmp_path: Path, words: int, reported: int, is_cut: bool
) -> None:
    def script(request: dict[str, Any]) -> Any:
        if not request:  # asks which models are loaded
            return Fail(200, WINDOW)
        usage = {"prompt_tokens": reported, "completion_tokens": 20, "total_tokens": reported + 20}
        return replace(hand_over(), usage=usage)

    with run_model_server(script) as server:
        config = f'[providers.ollama]\nbase_url = "{server.base_url}"\n'
        async with open_lab(tmp_path, server=server, config=config) as lab:
            result = await lab.outcome(model="ollama:qwen3", context="wordy " * words)
    if not is_cut:
        assert result["status"] == "success"
        return
    assert (result["status"], result["error"]["kind"]) == ("error", "bad_request")
    text = result["untrusted_result"]["error_text"]
    assert "has left out the beginning of the prompt" in text and "a context of 4,096 tokens" in text
    assert "OLLAMA_CONTEXT_LENGTH" in result["error"]["what_to_do"]

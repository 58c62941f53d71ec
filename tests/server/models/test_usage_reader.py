"""A second reading of the usage: for providers that genai-prices knows, whole sides only, and never instead of ours."""

import threading
from typing import Any

import pytest

from ava_audit.events import Usage
from ava_server.models import usage_reader as readers
from ava_server.models.base import Completion, MoreUsage
from ava_server.models.usage_reader import UsageReader, more_words, usage_reader
from ava_server.models.wires.chat import ChatAnswer, ChatWire
from ava_server.models.wires.google import GoogleAnswer, GoogleWire
from ava_server.models.wires.messages import MessagesWire
from ava_server.models.wires.responses import ResponsesWire
from ava_server.models.wires.wire import Wire

XAI = "https://api.x.ai/v1/chat/completions"
BESIDE = {"prompt_tokens": 100, "completion_tokens": 90, "completion_tokens_details": {"reasoning_tokens": 50}}
"""Without a total, nothing but the provider's name tells that thinking stands beside the answer."""


async def answered(url: str, usage: dict[str, Any], wire: type[Wire] = ChatWire) -> Completion:
    answer = ChatAnswer()
    answer.add({"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}], "usage": usage})
    return answer.complete(request_id=None, sent_bytes=100, reader=await usage_reader(url, wire.flavors))


async def test_what_the_provider_counts_beside_its_answer_is_added_with_a_note() -> None:
    done = await answered(XAI, BESIDE)
    assert done.usage == Usage(input_tokens=100, output_tokens=90, thinking_tokens=50)
    assert done.more == MoreUsage(0, 50)
    assert more_words(done.more) in done.notes
    assert "50 more output tokens" in more_words(done.more)


@pytest.mark.parametrize(
    ("url", "usage"),
    [
        (XAI, {**BESIDE, "cost": 0.01}),  # the provider says what it costs
        (XAI, {**BESIDE, "total_tokens": 240}),  # our reading has it all
        (XAI, {**BESIDE, "completion_tokens_details": {"reasoning_tokens": 0}}),
        ("https://api.openai.com/v1/chat/completions", BESIDE),
        ("https://api.nobody.example/v1/chat/completions", BESIDE),
        ("http://127.0.0.1:8080/v1/chat/completions", BESIDE),
        (
            "https://api.openai.com/v1/chat/completions",
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 900}, "completion_tokens": 3},
        ),  # the cache beside the prompt: ours is the larger one
    ],
)
async def test_nothing_is_added_where_there_is_nothing_more(url: str, usage: dict[str, Any]) -> None:
    done = await answered(url, usage)
    assert done.usage is not None
    assert done.more is None
    assert not any("genai-prices" in note for note in done.notes)


@pytest.mark.parametrize(
    ("wire", "url"),
    [
        (MessagesWire, "https://api.anthropic.com/v1/messages"),
        (ResponsesWire, "https://api.openai.com/v1/responses"),
        (GoogleWire, "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent"),
        (ChatWire, "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions"),
        (ChatWire, "https://api.perplexity.ai/chat/completions"),
    ],
)
async def test_known_providers_have_a_reader_for_their_formats(wire: type[Wire], url: str) -> None:
    assert await usage_reader(url, wire.flavors) is not None


async def test_googles_counts_are_read_alike() -> None:
    """Both readings add thinking to the answer, and what tools showed to the prompt; a count more would be seen."""
    reader = await usage_reader("https://generativelanguage.googleapis.com/v1beta/models/m:x", GoogleWire.flavors)
    assert reader is not None
    reported = {
        "promptTokenCount": 15,
        "toolUsePromptTokenCount": 288,
        "candidatesTokenCount": 40,
        "thoughtsTokenCount": 257,
        "totalTokenCount": 600,
    }
    answer = GoogleAnswer()
    answer.add({"candidates": [{"content": {"parts": [{"text": "4"}]}}], "usageMetadata": reported})
    done = answer.complete(request_id=None, sent_bytes=100, reader=reader)
    assert done.usage == Usage(input_tokens=303, output_tokens=297, thinking_tokens=257)
    assert done.more is None
    assert reader.more(reported, Usage(input_tokens=300, output_tokens=40)) == MoreUsage(3, 257)


@pytest.mark.parametrize("read", [ValueError("no"), Usage(), ("model", Usage()), None])
def test_a_reading_that_fails_adds_nothing(read: Any) -> None:
    class Broken:
        root = "usage"

        def extract(self, _response: Any) -> Any:
            if isinstance(read, Exception):
                raise read
            return read

    assert UsageReader(Broken()).more(BESIDE, Usage(input_tokens=1)) is None  # type: ignore[arg-type]


async def test_the_table_is_loaded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def found(_url: str, _flavors: tuple[str, ...]) -> None:
        threads.append(threading.get_ident())

    monkeypatch.setattr(readers, "_find", found)
    monkeypatch.setattr(readers, "_readers", {})
    for url in (XAI, XAI, "http://localhost:1/v1/chat/completions"):
        assert await usage_reader(url, ChatWire.flavors) is None
    assert len(threads) == 1 and threads[0] != threading.get_ident()

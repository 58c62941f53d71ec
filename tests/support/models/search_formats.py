"""Web searches by model providers in their own formats: answers as the providers document them and were seen to send.

Sources: platform.claude.com (web search tool: response, errors, usage), developers.openai.com (web search: output and
citations, sources), openrouter.ai (web search: parsing results, usage accounting).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KEY = "sk-search-0123456789abcdef"
QUERY = "podcast prices & more"
URLS = ("https://a.example/prices", "https://b.example/")
PROSE = "Otter costs ten a month, says the model of the provider."
"""What the provider's model writes: nobody else may see it."""

ANTHROPIC: dict[str, Any] = {
    "id": "msg_a930390d3a",
    "type": "message",
    "role": "assistant",
    "model": "claude-haiku-5-5",
    "content": [
        {"type": "text", "text": "I'll search for that."},
        {
            "type": "server_tool_use",
            "id": "srvtoolu_01WYG3ziw53XMcoyKL4XcZmE",
            "name": "web_search",
            "input": {"query": "podcast prices"},
        },
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_01WYG3ziw53XMcoyKL4XcZmE",
            "content": [
                {
                    "type": "web_search_result",
                    "url": URLS[0],
                    "title": "Prices &amp; plans",
                    "encrypted_content": "EqgfCioIARgBIiQ3YTAwMjY1Mi1mZjM5LTQ1NGUt" * 20,
                    "page_age": "April 30, 2025",
                },
                {"type": "web_search_result", "url": URLS[1], "title": "Second", "encrypted_content": "EqgfCioI",
                 "page_age": None},
            ],
        },
        {
            "type": "text",
            "text": PROSE,
            "citations": [
                {"type": "web_search_result_location", "url": URLS[0], "title": "Prices & plans",
                 "encrypted_index": "Eo8BCioIAhgBIiQyYjQ0OWJmZi1lNm", "cited_text": "Otter costs ten"},
            ],
        },
    ],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 6039,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 93,
        "server_tool_use": {"web_search_requests": 1},
    },
}  # fmt: skip
OPENAI: dict[str, Any] = {
    "id": "resp_67ccd3a9da748190baa7f1570fe91ac6",
    "object": "response",
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "model": "gpt-6-luna",
    "output": [
        {"id": "rs_1", "type": "reasoning", "summary": []},
        {
            "id": "ws_67c9fa0502748190b7dd390736892e100be649c1a5ff9609",
            "type": "web_search_call",
            "status": "completed",
            "action": {
                "type": "search",
                "query": "podcast prices",
                "queries": ["podcast prices"],
                "sources": [
                    {"type": "url", "url": f"{URLS[0]}?utm_source=openai"},
                    {"type": "url", "url": URLS[1]},
                    {"type": "api", "name": "oai-finance"},
                ],
            },
        },
        {
            "id": "msg_67c9fa077e288190af08fdffda2e34f20be649c1a5ff9609",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [
                {
                    "type": "output_text",
                    "text": PROSE,
                    "annotations": [
                        {"type": "url_citation", "start_index": 0, "end_index": 5, "title": "Prices & plans",
                         "url": f"{URLS[0]}?utm_source=openai"},
                    ],
                }
            ],
        },
    ],
    "usage": {
        "input_tokens": 8_914,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 96,
        "output_tokens_details": {"reasoning_tokens": 64},
        "total_tokens": 9_010,
    },
}  # fmt: skip
OPENROUTER: dict[str, Any] = {
    "id": "gen-1763700000-abcdefghij",
    "provider": "Anthropic",
    "model": "anthropic/claude-haiku-5.5",
    "object": "chat.completion",
    "created": 1_763_700_000,
    "choices": [
        {
            "index": 0,
            "finish_reason": "length",
            "native_finish_reason": "max_tokens",
            "logprobs": None,
            "message": {
                "role": "assistant",
                "content": PROSE,
                "refusal": None,
                "annotations": [
                    {"type": "url_citation",
                     "url_citation": {"url": URLS[0], "title": "Prices & plans", "content": "The plan [...] costs $20",
                                      "start_index": 0, "end_index": 0}},
                    {"type": "url_citation",
                     "url_citation": {"url": URLS[1], "title": "Second", "content": "", "start_index": 0,
                                      "end_index": 0}},
                ],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 4_102,
        "completion_tokens": 256,
        "total_tokens": 4_358,
        "cost": 0.0205362,
        "is_byok": False,
        "prompt_tokens_details": {"cached_tokens": 0},
        "cost_details": {"upstream_inference_cost": None},
        "completion_tokens_details": {"reasoning_tokens": 0},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Format:
    """How one provider is asked and answers."""

    model: str  # its fast model, whose id stands in its requests
    path: str  # where it is asked
    answer: Mapping[str, Any]  # its answer
    header: tuple[str, str]  # the header that holds the key, and what stands before the key
    fee_micros: int  # the fee of one search

    def with_rows(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return its answer with these results, each with `url` and `title`."""
        answer = copy.deepcopy(dict(self.answer))
        if "content" in answer:
            answer["content"][2]["content"] = [{"type": "web_search_result", **row} for row in rows]
        elif "output" in answer:
            answer["output"][1]["action"]["sources"] = [{"type": "url", "url": row.get("url")} for row in rows]
            notes = [{"type": "url_citation", **row} for row in rows]
            answer["output"][2]["content"][0]["annotations"] = notes
        else:
            notes = [{"type": "url_citation", "url_citation": dict(row)} for row in rows]
            answer["choices"][0]["message"]["annotations"] = notes
        return answer

    def with_usage(self, **usage: Any) -> dict[str, Any]:
        return {**self.answer, "usage": {**self.answer["usage"], **usage}}


FORMATS: Mapping[str, Format] = {
    "anthropic": Format("claude-haiku-5-5", "/v1/messages", ANTHROPIC, ("x-api-key", ""), 10_000),
    "openai": Format("gpt-6-luna", "/v1/responses", OPENAI, ("authorization", "Bearer "), 10_000),
    "openrouter": Format(
        "anthropic/claude-haiku-5.5", "/v1/chat/completions", OPENROUTER, ("authorization", "Bearer "), 20_000
    ),
}


def anthropic_error(code: str) -> dict[str, Any]:
    """Return Anthropic's answer for a search that failed: a 200 with an error in place of the results."""
    answer = copy.deepcopy(ANTHROPIC)
    answer["content"][2]["content"] = {"type": "web_search_tool_result_error", "error_code": code}
    answer["content"][3] = {"type": "text", "text": PROSE}
    answer["usage"]["server_tool_use"] = {"web_search_requests": 0}
    return answer

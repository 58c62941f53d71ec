"""Answers of search engines, as they give them."""

from __future__ import annotations

from typing import Any

KEY = "search-key-0123456789abcdef"
# What each answers, taken from its documentation and from what it has been seen to send.
KAGI = {
    "meta": {"trace": "8f1d9a", "id": "1c5f", "node": "us-east4", "ms": 431},
    "data": {
        "search": [
            {
                "url": "https://a.example/prices",
                "title": "Prices &amp; plans",
                "snippet": "The plan <b>Pro</b> costs&nbsp;$20\n2. a month.",
                "time": "2026-03-04T05:06:07Z",
            },
            {"url": "https://b.example/", "title": "Second"},
            {"url": "https://a.example/prices", "title": "The same again"},
        ],
        "related_search": [{"url": "/search?q=more", "title": "more"}],
    },
}
KAGI_0 = {
    "meta": {"id": "767c75e8", "node": "us-west2", "ms": 12, "api_balance": 4.9},
    "data": [
        {"t": 0, "rank": 1, "url": "https://a.example/", "title": "A", "snippet": "One.",
         "published": "2023-01-18T03:05:23+00:00"},
        {"t": 1, "list": ["more of it"]},
    ],
}  # fmt: skip
BRAVE = {
    "type": "search",
    "query": {"original": "prices", "more_results_available": True},
    "mixed": {"type": "mixed", "main": [{"type": "web", "index": 0, "all": False}]},
    "web": {
        "type": "search",
        "results": [
            {
                "title": "Prices",
                "url": "https://a.example/prices",
                "description": "The plan <strong>Pro</strong> costs &#x27;$20&#x27;.",
                "page_age": "2026-03-04T00:00:00",
                "age": "March 4, 2026",
                "language": "en",
                "meta_url": {"scheme": "https", "hostname": "a.example"},
            },
            {"title": "Second", "url": "https://b.example/", "description": "", "age": "3 days ago"},
        ],
    },
}
SEARXNG = {
    "query": "prices",
    "number_of_results": 0,
    "results": [
        {
            "url": "https://a.example/prices",
            "title": "Prices",
            "content": "std::vector<int> costs 1 < 2",
            "publishedDate": "2026-03-04T00:00:00",
            "engine": "duckduckgo",
            "engines": ["duckduckgo", "mojeek"],
            "positions": [1, 3],
            "score": 2.5,
            "category": "general",
        },
        {"url": "https://b.example/", "title": "Second", "content": "", "publishedDate": None, "engine": "mojeek"},
        {"url": "javascript:alert(1)", "title": "none", "content": ""},
        {"url": "https://c.example/a b", "title": "none", "content": ""},
        {"url": "data:text/html,hello", "title": "none", "content": ""},
        {"url": None, "title": "none"},
        "no table",
    ],
    "answers": [], "corrections": [], "infoboxes": [], "suggestions": [],
    "unresponsive_engines": [["google", "CAPTCHA"], ["brave", "too many requests"]],
}  # fmt: skip


def brave_error(code: str, status: int, **meta: Any) -> dict[str, Any]:
    error = {"id": "5d83", "code": code, "detail": f"No: {KEY}", "status": status, "meta": meta}
    return {"type": "ErrorResponse", "error": error, "time": 1663072993}


def kagi_error(code: str) -> dict[str, Any]:
    return {"meta": {}, "data": None, "error": [{"code": code, "message": f"No: {KEY}"}]}

"""Web search: three engines in their real formats, their refusals, and the way out to them."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
from pydantic import ValidationError
from support.model_server import Fail, Gate, HangUp, ModelServer, Raw, Step, run_model_server
from support.models.search_answers import BRAVE, KAGI, KAGI_0, KEY, SEARXNG, brave_error, kagi_error
from support.network.certificates import issue
from support.network.proxy import run_proxy

from ava_roles.errors import ToolFailed
from ava_roles.net import search_engines
from ava_roles.net.search_engines import Brave, Engine, Kagi, SearchResults, Searxng, asked_to_wait, wait_words
from ava_roles.tool import ToolContext
from ava_roles.tools.web import WebSearch, WebSearchArgs
from ava_server.config.search_engine import ask_engine
from ava_server.models.http_clients import ClientPool


@pytest.mark.parametrize(
    ("name", "answer", "path", "header", "sent"),
    [
        ("kagi", KAGI, "/api/v1/search", ("authorization", f"Bearer {KEY}"),
         {"query": "podcast prices & more", "workflow": "search", "limit": 8}),
        ("kagi_0", KAGI_0, "/api/v0/search", ("authorization", f"Bot {KEY}"),
         {"q": "podcast prices & more", "limit": "8"}),
        ("brave", BRAVE, "/res/v1/web/search", ("x-subscription-token", KEY),
         {"q": "podcast prices & more", "count": "8", "spellcheck": "false", "text_decorations": "false",
          "result_filter": "web"}),
        ("searxng", SEARXNG, "/search", ("accept", "application/json"),
         {"q": "podcast prices & more", "format": "json"}),
    ],
)  # fmt: skip
async def test_calls_each_engine_as_documented_and_parses_its_response(
    name: str, answer: Any, path: str, header: tuple[str, str], sent: Mapping[str, Any]
) -> None:
    with run_model_server([Fail(200, answer)]) as server:
        found = await ask(at(name, server))
        (received,) = server.requests
    parts = urlsplit(received.path)
    assert (parts.path, received.headers[header[0]]) == (path, header[1])
    asked = received.json if received.body else {key: value[0] for key, value in parse_qs(parts.query).items()}
    assert asked == sent
    first = found.hits[0]
    if name == "kagi_0":
        assert [(hit.url, hit.title, hit.snippet, hit.date) for hit in found.hits] == [
            ("https://a.example/", "A", "One.", "2023-01-18")
        ]
        return
    assert [hit.url for hit in found.hits] == ["https://a.example/prices", "https://b.example/"]
    assert (first.date, found.hits[1].title) == ("2026-03-04", "Second")
    words = {
        "kagi": "The plan Pro costs $20 2. a month.",
        "brave": "The plan Pro costs '$20'.",
        "searxng": "std::vector<int> costs 1 < 2",
    }
    assert first.snippet == words[name]


async def test_no_snippet_can_imitate_an_entry_of_the_numbered_list() -> None:
    with run_model_server([Fail(200, KAGI)]) as server:

        async def search(query: str, count: int) -> SearchResults:
            async with ClientPool() as clients:
                return await ask_engine(at("kagi", server), query, count, clients)

        got = await WebSearch()(WebSearchArgs(query="  podcast \n prices "), ToolContext(search=search))
        assert server.requests[0].json["query"] == "podcast prices"
    assert got.text == (
        "Kagi: 2 results\n\n"
        "1. Prices & plans\n   https://a.example/prices\n   2026-03-04\n   The plan Pro costs $20 2. a month.\n\n"
        "2. Second\n   https://b.example/"
    )
    assert (got.count, [source.location for source in got.sources]) == (
        2,
        ["https://a.example/prices", "https://b.example/"],
    )


@pytest.mark.parametrize("name", ["kagi", "brave", "searxng"])
async def test_never_returns_more_results_than_requested(name: str) -> None:
    rows = [{"url": f"https://a.example/{number}", "title": str(number)} for number in range(60)]
    answers: dict[str, Any] = {
        "kagi": {"data": {"search": rows}},
        "brave": {"type": "search", "web": {"results": rows}},
        "searxng": {"results": rows},
    }
    with run_model_server([Fail(200, answers[name])]) as server:
        assert len((await ask(at(name, server), 3)).hits) == 3


@pytest.mark.parametrize(
    ("name", "answer"),
    [("kagi", {"meta": {}, "data": {}}), ("brave", {"type": "search"}), ("searxng", {"results": []})],
)
async def test_a_search_without_results_succeeds(name: str, answer: Any) -> None:
    with run_model_server([Fail(200, answer)]) as server:
        assert (await ask(at(name, server))).hits == ()


MISSING = {"errors": [{"loc": ["header", "x-subscription-token"], "msg": "Field required"}]}
LIMITS = {"X-RateLimit-Remaining": "0, 1200", "X-RateLimit-Reset": "1, 1419704"}
USED_UP = {"X-RateLimit-Remaining": "1, 0", "X-RateLimit-Reset": "1, 7000"}
HTML = b"<!doctype html><html><body>Search</body></html>"


@pytest.mark.parametrize(
    ("name", "step", "words"),
    [
        ("kagi", Fail(400, kagi_error("general.invalid_token")), ("refused the key (HTTP 400", "ava key set kagi")),
        ("kagi", Fail(401, kagi_error("general.unauthorized")), ("refused the key", "ava key set kagi", "caveats")),
        ("kagi", Fail(403, b"no"), ("refused the key (HTTP 403)",)),
        ("kagi", Fail(402, kagi_error("billing.insufficient")), ("no credit left for this key", "add some at Kagi")),
        ("kagi_0", Fail(400, {"error": [{"code": 101, "msg": "Insufficient credit"}]}), ("no credit left",)),
        ("kagi", Fail(429, kagi_error("rate_limited"), retry_after="30"), ("fewer searches", "again in 30 s")),
        ("kagi", Fail(503, b"", retry_after="600"), ("fewer searches (HTTP 503)", "in about 10 min")),
        ("kagi", Fail(422, kagi_error("query.too_long")), ("did not take the search", "query.too_long", "simpler")),
        ("kagi", Fail(500, b"oops"), ("has a fault (HTTP 500)", "does not say when")),
        ("kagi", Fail(302, b"", headers={"location": "http://10.0.0.1/"}), ("redirect", "not followed")),
        ("kagi", Fail(200, {"unknown": 1}), ("form that is not known",)),
        ("kagi", Raw([HTML], "text/html"), ("a web page and not with JSON",)),
        ("kagi", Raw([b"[" * 100_000]), ("something else and not with JSON",)),
        ("brave", Fail(422, brave_error("SUBSCRIPTION_TOKEN_INVALID", 422)), ("refused the key", "ava key set brave")),
        ("brave", Fail(404, brave_error("SUBSCRIPTION_NOT_FOUND", 404)), ("refused the key",)),
        ("brave", Fail(422, brave_error("VALIDATION", 422, **MISSING)), ("did not take the search", "VALIDATION")),
        ("brave", Fail(429, brave_error("RATE_LIMITED", 429), headers=LIMITS), ("fewer searches", "again in 1 s")),
        ("brave", Fail(429, brave_error("QUOTA_LIMITED", 429), headers=USED_UP),
         ("the plan of this key is used up", "again in about 117 min", "a larger plan")),
        ("brave", Fail(402, brave_error("USAGE_LIMIT_EXCEEDED", 402)), ("is used up", "does not say when")),
        ("brave", Fail(429, {"type": "ErrorResponse", "errors": [{"code": "RATE_LIMITED"}]}, retry_after="2"),
         ("RATE_LIMITED", "again in 2 s")),
        ("searxng", Fail(403, b"Forbidden"), ("gives no JSON", "add json to search.formats")),
        ("searxng", Raw([HTML], "text/html"), ("search.searxng answered with no list", "correct the address")),
        ("searxng", Fail(404, b"not here"), ("search.searxng", "HTTP 404")),
        ("searxng", Fail(429, b"Too Many Requests"), ("fewer searches", "does not say when")),
        ("searxng", Fail(401, b""), ("asks for a login",)),
        ("searxng", Fail(200, {"results": [], "unresponsive_engines": [["google", "CAPTCHA"], ["bing"], 3]}),
         ("found nothing: engines that did not answer: google: CAPTCHA, bing",)),
        ("kagi", HangUp(), ("did not answer",)),
        ("kagi", Raw([b"x" * 2_100_000]), ("more than 2,000,000 bytes",)),
    ],
)  # fmt: skip
async def test_an_engine_error_says_what_to_do_and_never_shows_the_key(
    name: str, step: Step, words: tuple[str, ...]
) -> None:
    told = await refusal(name, step)
    assert all(word in told for word in words), told


async def test_names_unresponsive_searxng_engines_beside_the_results() -> None:
    with run_model_server([Fail(200, SEARXNG)]) as server:
        assert (await ask(at("searxng", server))).note == (
            "engines that did not answer: google: CAPTCHA, brave: too many requests"
        )


async def test_a_search_always_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_engines, "DEADLINE_S", 0.3)
    assert "no answer within 0.3 s" in await refusal("brave", Raw([b"{"], missing=9, stall=Gate()))


async def test_limits_the_size_of_a_decompressed_response() -> None:
    packed = gzip.compress(b" " * 50_000_000)
    step = Fail(200, packed, headers={"content-encoding": "gzip"})
    assert "more than 2,000,000 bytes" in await refusal("kagi", step)
    step = Fail(200, b"this is no gzip", headers={"content-encoding": "gzip"})
    assert "broken encoding" in await refusal("kagi", step)


async def test_reports_an_unreachable_engine_without_the_key() -> None:
    with run_model_server([]) as server:
        engine = at("kagi", server)
    with pytest.raises(ToolFailed, match="Kagi cannot be reached") as failed:
        await ask(engine)
    assert KEY not in str(failed.value)


# -- the way out ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_a_search_uses_the_proxy_and_certificates_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    issued = issue(tmp_path, "kagi.example.com")
    with (
        run_model_server([Fail(200, KAGI), Fail(200, SEARXNG)], issued.server) as server,
        run_proxy({"kagi.example.com": server.port}) as proxy,
    ):
        engine = Kagi("https://kagi.example.com/api/v1", KEY)
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(ToolFailed, match="certificate"):
            await ask(engine)
        monkeypatch.setenv("SSL_CERT_FILE", str(issued.authority))
        assert len((await ask(engine)).hits) == 2
        assert proxy.tunnels == ["kagi.example.com:443"] * 2
        monkeypatch.setenv("NO_PROXY", "kagi.example.com")
        with pytest.raises(ToolFailed, match="cannot be reached"):
            await ask(engine)
        assert len(proxy.tunnels) == 2


# -- waits and arguments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("30", 30.0), (" 0 ", 0.0), ("Sat, 21 Nov 2026 00:01:00 GMT", 60.0), ("Sat, 21 Nov 2020 00:01:00 GMT", 0.0),
     ("9" * 400, 31 * 86_400.0), ("soon", None), ("-1", None), ("", None), ("²", None), ("Sat, 99 Nov 2026", None)],
)  # fmt: skip
def test_reads_a_retry_delay_given_as_seconds_or_as_a_date(given: str, seconds: float | None) -> None:
    assert asked_to_wait({"retry-after": given}, now=1_795_219_200.0) == seconds


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "later (it does not say when)"), (0.0, "in 1 s"), (1.2, "in 2 s"), (120, "in 120 s"),
     (121, "in about 3 min"), (90_000, "in about 25 h")],
)  # fmt: skip
def test_shows_a_retry_delay_in_a_suitable_unit(seconds: float | None, words: str) -> None:
    assert wait_words(seconds) == words


@pytest.mark.parametrize(
    "given",
    [{}, {"query": ""}, {"query": " \n"}, {"query": "x" * 401}, {"query": "x " * 51}, {"query": "x", "count": 0},
     {"query": "x", "count": 21}, {"query": "x", "page": 2}],
)  # fmt: skip
def test_rejects_an_invalid_search_before_it_costs_anything(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WebSearchArgs.model_validate(given)


async def test_a_run_without_a_search_says_so() -> None:
    with pytest.raises(ToolFailed, match="this run has no web search"):
        await WebSearch()(WebSearchArgs(query="x"), ToolContext())


def at(name: str, server: ModelServer) -> Engine:
    base = f"http://127.0.0.1:{server.port}"
    match name:
        case "kagi":
            return Kagi(f"{base}/api/v1", KEY)
        case "kagi_0":
            return Kagi(f"{base}/api/v0", KEY)
        case "brave":
            return Brave(f"{base}/res/v1", KEY)
        case _:
            return Searxng(base)


async def ask(engine: Engine, count: int = 8) -> SearchResults:
    async with ClientPool() as clients:
        with anyio.fail_after(40):
            return await ask_engine(engine, "podcast prices & more", count, clients)


async def refusal(name: str, *steps: Step) -> str:
    """Ask an engine that answers so; what the model is told, without the key."""
    with run_model_server(steps) as server:
        with pytest.raises(ToolFailed) as failed:
            await ask(at(name, server))
        assert len(server.requests) <= 1, "a search is asked once"
    assert KEY not in str(failed.value) and KEY not in repr(at(name, server))
    return str(failed.value)

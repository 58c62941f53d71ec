"""Reading pages of a real site: as Markdown, by pages, as it is; with robots.txt honoured."""

import json

import anyio
import anyio.abc
import pytest
from pydantic import ValidationError
from support.foreign.documents import pdf
from support.network.web_site import HOST, Answer, Page, Site, site

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.placeholders import InjectedSecret
from ava_roles.tool import ToolContext, ToolOutput, status_sentence
from ava_roles.tools.web import HttpGet, HttpGetArgs, ReadWebpages, ReadWebpagesArgs, Robots

ARTICLE = (
    "<html><head><title>Prices  2026</title>"
    '<meta property="article:published_time" content="2026-03-04"></head>'
    '<body><nav><a href="/a">Home</a></nav><article><h1>Podcast prices</h1>'
    '<p>The plan Pro costs $20 a month. See <a href="/more">details</a>.</p>'
    f"<p>{'Further words about the quality of transcription. ' * 10}</p></article></body></html>"
)


async def read(web: Site, *urls: str, tool: ReadWebpages | None = None) -> ToolOutput:
    with anyio.fail_after(20):
        return await (tool or ReadWebpages())(ReadWebpagesArgs(urls=list(urls)), ToolContext(fetch=web.fetcher))


async def test_converts_an_article_to_markdown_with_title_date_and_url() -> None:
    async with site({"/prices": ARTICLE}) as web:
        got = await read(web, web.url("/prices"))
        assert got.text.startswith(
            f"# Podcast prices\nURL: http://{HOST}/prices\nstatus 200 · text/html · date 2026-03-04"
        )
        assert f"The plan Pro costs $20 a month. See [details](http://{HOST}/more)." in got.text
        assert (got.success, got.count) == (True, 1)
        assert [(source.location, source.title) for source in got.sources] == [
            (f"http://{HOST}/prices", "Podcast prices")
        ]
        assert web.paths == ["/robots.txt", "/prices"]


async def test_reads_a_short_page_completely() -> None:
    page = "<html><body><div>Opening hours<br>Mon 9-17</div><script>x()</script><p>Tue closed</p></body></html>"
    async with site({"/": page}) as web:
        assert "Opening hours\n\nMon 9-17\n\nTue closed" in (await read(web, web.url("/"))).text
        assert "JavaScript" not in (await read(web, web.url("/"))).text


async def test_reports_a_page_that_needs_javascript() -> None:
    async with site({"/": '<html><body><div id="root"></div><script src="app.js"></script></body></html>'}) as web:
        assert "seems to need JavaScript" in (await read(web, web.url("/"))).text


async def test_reads_a_deeply_nested_page() -> None:
    async with site({"/": "<div>" * 20_000 + "deep words" + "</div>" * 20_000}) as web:
        got = await read(web, web.url("/"))
        assert got.count == 1


async def test_reads_a_pdf_by_pages_and_text_unchanged() -> None:
    pages = {
        "/paper": Page(pdf("First page", "Second page"), content_type="application/pdf"),
        "/notes.txt": Page("plain  text\n", content_type="text/plain"),
    }
    async with site(pages) as web:
        got = await read(web, web.url("/paper"), web.url("/notes.txt"))
        assert "[page 2]\nSecond page" in got.text
        assert "plain  text" in got.text
        assert got.count == 2


async def test_explains_each_unreadable_url_and_succeeds_if_one_is_readable() -> None:
    pages: dict[str, Answer] = {
        "/ok": ARTICLE,
        "/image": Page(b"\x89PNG\0", content_type="image/png"),
        "/fault": Page("oops", 503),
    }
    async with site(pages) as web:
        got = await read(
            web, web.url("/gone"), web.url("/image"), "http://127.0.0.1/", web.url("/fault"), web.url("/ok")
        )
        assert (got.success, got.count) == (True, 1)
        for words in (
            "status 404: there is no such page",
            "image/png",
            "not public",
            "status 503: the site asks for fewer requests; try again later (it does not say when)",
        ):
            assert words in got.text
        got = await read(web, web.url("/gone"))
        assert (got.success, got.count, got.sources) == (False, 0, ())


@pytest.mark.parametrize("status", [429, 503])
async def test_a_rate_limited_site_fails_with_the_time_to_wait(status: int) -> None:
    pages: dict[str, Answer] = {
        "/soon": Page("<p>Slow down</p>", status, headers={"Retry-After": "30"}),
        "/date": Page("", status, headers={"Retry-After": "Mon, 01 Jan 2035 00:00:00 GMT"}),
        "/silent": Page("", status),
    }
    async with site(pages) as web:
        got = await read(web, web.url("/soon"), web.url("/silent"))
        assert (got.success, got.count) == (False, 0)
        assert f"Not read: status {status}: the site asks for fewer requests; try again in 30 s" in got.text
        assert "try again later (it does not say when)" in got.text
        assert "Slow down" not in got.text
        assert "try again in about 744 h" in (await read(web, web.url("/date"))).text
        raw = await HttpGet()(HttpGetArgs(url=web.url("/soon")), ToolContext(fetch=web.fetcher))
        assert not raw.success and f"status {status}," in raw.text and "try again in 30 s" in raw.text
        assert web.paths.count("/soon") == 2, "nothing is asked again by itself"


async def test_fetches_pages_of_one_host_one_by_one_a_second_apart() -> None:
    at_once = most = 0

    async def slowly(stream: anyio.abc.ByteStream) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await anyio.sleep(0.02)
        at_once -= 1
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi")

    async with site({f"/{n}": slowly for n in range(4)}) as web:
        assert (await read(web, *(web.url(f"/{n}") for n in range(4)))).count == 4
        assert sorted(web.paths) == ["/0", "/1", "/2", "/3", "/robots.txt"]
        assert (most, web.pauses) == (1, [1.0] * 4)


async def test_checks_robots_txt_of_the_site_that_a_redirect_leads_to() -> None:
    elsewhere = "http://other.example.com/there"
    async with site({"/": Page(status=302, headers={"Location": elsewhere}), "/there": ARTICLE}) as web:
        assert (await read(web, web.url("/"))).count == 1
        assert [(seen.host, seen.path) for seen in web.requests] == [
            (HOST, "/robots.txt"), (HOST, "/"), ("other.example.com", "/robots.txt"), ("other.example.com", "/there"),
        ]  # fmt: skip


@pytest.mark.parametrize(("words", "whole"), [(10, True), (60, False)], ids=["under 200 characters", "over"])
async def test_reads_the_whole_page_if_its_article_is_shorter_than_200_characters(words: int, whole: bool) -> None:
    text = " ".join(f"word{number}" for number in range(words))
    page = (
        "<html><head><title>T</title></head><body><nav><ul><li><a href='/a'>Imprint of the site</a></li></ul></nav>"
        f"<article><h1>Title</h1><p>{text}</p></article><footer>Opening hours of the office</footer></body></html>"
    )
    async with site({"/": page}) as web:
        got = (await read(web, web.url("/"))).text
    assert text in got
    assert ("Opening hours of the office" in got) is whole
    assert ("Imprint of the site" in got) is whole


async def test_words_that_appear_only_in_a_url_are_shown_percent_encoded() -> None:
    async with site({"/": "<html><body>Opening hours</body></html>"}) as web:
        got = await read(web, web.url("/"), "Otter costs twelve cents a minute", web.url("/none?Otter costs ten"))
        assert got.count == 1
        assert "Otter costs" not in got.text
        assert "Otter%20costs%20twelve%20cents" in got.text


async def test_shows_both_urls_of_a_redirect() -> None:
    async with site({"/old": Page(status=301, headers={"Location": "/new"}), "/new": ARTICLE}) as web:
        got = await read(web, web.url("/old"))
        assert f"URL: http://{HOST}/new\nRedirected from: http://{HOST}/old" in got.text


async def test_shows_the_model_a_share_of_every_page_and_keeps_the_full_text() -> None:
    long = {
        f"/{name}": Page(f"start of {name} " + "word " * 10_000 + f"end of {name}", content_type="text/plain")
        for name in "abc"
    }
    async with site({**long, "/d": Page("short one", content_type="text/plain")}) as web:
        got = await read(web, *(web.url(path) for path in ("/a", "/b", "/c", "/d")))
        shown = got.text[: ReadWebpages.spec.max_chars]
        for name in "abc":
            assert f"start of {name}" in shown
            assert f"end of {name}" in got.text
        assert "short one" in shown


async def test_honours_robots_txt_and_requests_it_once() -> None:
    robots = Page(
        "User-agent: *\nDisallow: /private\n\nUser-agent: Ava\nDisallow: /no-ava\n", content_type="text/plain"
    )
    tool = ReadWebpages()
    async with site({"/robots.txt": robots, "/private": ARTICLE, "/no-ava": ARTICLE}) as web:
        assert "robots.txt of its site excludes it" in (await read(web, web.url("/no-ava"), tool=tool)).text
        assert (await read(web, web.url("/private"), tool=tool)).success  # our own group decides
        assert web.paths == ["/robots.txt", "/private"]


async def test_does_not_follow_a_redirect_to_an_excluded_page() -> None:
    robots = Page("User-agent: *\nDisallow: /private\n", content_type="text/plain")
    away = Page(status=302, headers={"Location": "/private"})
    async with site({"/robots.txt": robots, "/": away, "/private": ARTICLE}) as web:
        assert not (await read(web, web.url("/"))).success
        assert "/private" not in web.paths


async def _hang_up(stream: anyio.abc.ByteStream) -> None:
    return


@pytest.mark.parametrize(
    ("robots", "open_to_us"),
    [(Page(status=404), True), (Page(status=403), True), (Page(status=500), False), (_hang_up, False)],
    ids=["404", "403", "500", "no answer"],
)
async def test_a_missing_robots_txt_allows_a_site_and_a_failing_one_blocks_it(robots: Page, open_to_us: bool) -> None:
    async with site({"/robots.txt": robots, "/": ARTICLE}) as web:
        assert (await read(web, web.url("/"))).success is open_to_us
        assert ("/" in web.paths) is open_to_us


async def test_requests_robots_txt_again_after_an_hour() -> None:
    now = 0.0
    robots = Robots(lambda: now)
    async with site({"/robots.txt": Page("User-agent: *\nDisallow: /", content_type="text/plain")}) as web:
        with pytest.raises(AccessRefused):
            await robots.check(web.fetcher, web.url("/x"))
        web.pages["/robots.txt"] = Page("", content_type="text/plain")
        with pytest.raises(AccessRefused):
            await robots.check(web.fetcher, web.url("/x"))
        now = 3_601.0
        await robots.check(web.fetcher, web.url("/x"))


async def test_the_host_limit_of_one_run_closes_a_site_to_no_other_run() -> None:
    robots = Robots()
    pages: dict[str, Answer] = {
        "/robots.txt": Page(status=302, headers={"Location": "http://other.example.com/rules"}),
        "/rules": Page("User-agent: *\nAllow: /", content_type="text/plain"),
    }
    async with site(pages) as web:
        with pytest.raises(AccessRefused, match=f"only {HOST} may be reached"):
            await robots.check(web.fetcher.limit_to([HOST]), web.url("/x"))
        await robots.check(web.fetcher, web.url("/x"))
        await robots.check(web.fetcher.limit_to([HOST]), web.url("/x"))


async def test_fetches_pages_of_two_hosts_concurrently() -> None:
    both = anyio.Event()
    waiting = 0

    async def together(stream: anyio.abc.ByteStream) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            both.set()
        await both.wait()
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi")

    async with site({"/": together}) as web:
        assert (await read(web, web.url("/"), web.url("/", host="other.example.com"))).count == 2


async def test_http_get_returns_text_unchanged_under_a_type_and_status_line() -> None:
    data = json.dumps({"prices": [1, 2]}, indent=1)
    pages = {
        "/data": Page(data, content_type="application/json"),
        "/image": Page(b"\x89PNG\0\1", content_type="image/png"),
    }
    async with site(pages) as web:
        tool, at = HttpGet(), ToolContext(fetch=web.fetcher)
        with anyio.fail_after(20):
            got = await tool(HttpGetArgs(url=web.url("/data")), at)
            assert got.text == f"GET http://{HOST}/data: status 200, application/json, {len(data)} bytes\n\n{data}"
            cut = await tool(HttpGetArgs(url=web.url("/data"), max_bytes=5), at)
            assert cut.text.endswith("larger max_bytes)\n\n" + data[:5])
            assert not (await tool(HttpGetArgs(url=web.url("/missing")), at)).success
            assert "binary, not shown" in (await tool(HttpGetArgs(url=web.url("/image")), at)).text
            with pytest.raises(AccessRefused):
                await tool(HttpGetArgs(url="http://localhost/"), at)


async def test_http_get_sends_allowed_headers_to_the_first_host_only() -> None:
    pages: dict[str, Answer] = {"/": Page(status=302, headers={"Location": "http://other.example.com/there"})}
    given = {"accept": "application/json", "AUTHORIZATION": "Bearer abc", "x-github-api-version": "2022-11-28"}
    async with site(pages) as web:
        with anyio.fail_after(20):
            await HttpGet()(HttpGetArgs(url=web.url("/"), headers=given), ToolContext(fetch=web.fetcher))
        first, second = (seen.headers for seen in web.requests)
        assert (first["accept"], first["authorization"]) == ("application/json", "Bearer abc")
        assert first["x-github-api-version"] == "2022-11-28"
        assert first["user-agent"].startswith("Ava/")
        assert "authorization" not in second and "x-github-api-version" not in second


@pytest.mark.parametrize(
    "headers",
    [
        *({name: "x"} for name in ("Host", "Content-Length", "Transfer-Encoding", "Connection", "Range", "Cookie")),
        *({name: "x"} for name in ("X-Forwarded-For", "X-HTTP-Method-Override", "User-Agent", "", "a b-key", "key:")),
        {"x-" + "a" * 60 + "-key": "x"},
        {"X-Key": "one\r\nHost: two"},
        {"X-Key": "schlüssel"},
        {"X-Key": "x" * 2_001},
        {f"X{number}-Key": "x" for number in range(9)},
    ],
)
def test_http_get_rejects_headers_that_change_the_request(headers: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        HttpGetArgs(url="https://example.org/", headers=headers)


async def test_does_not_send_a_secret_with_characters_invalid_in_a_header() -> None:
    lent = (InjectedSecret("WORDS", "fünf einfache Wörter", frozenset({HOST})),)
    async with site({}) as web:
        args = HttpGetArgs(url=f"https://{HOST}/", headers={"X-Key": "{{secret:WORDS}}"})
        with pytest.raises(ToolFailed, match="WORDS has characters that a header cannot carry"):
            await HttpGet()(args, ToolContext(fetch=web.fetcher, secrets=lent))
        assert web.connected == []


def test_activities_are_one_printable_line_of_at_most_80_characters() -> None:
    tool = ReadWebpages()
    assert tool.activity(ReadWebpagesArgs(urls=["https://example.org/pricing?x=1"])) == "Reading example.org/pricing"
    assert tool.activity(ReadWebpagesArgs(urls=["https://a.org", "b", "c"])) == "Reading a.org and 2 more"
    for url in ("http://x/" + "y" * 500, "http://[", "\x1b[31m\n", "http://user:secret@example.org/"):
        line = status_sentence(tool.activity(ReadWebpagesArgs(urls=[url])))
        assert len(line) <= 80
        assert line.isprintable()
        assert "secret" not in line


async def test_reports_missing_network_access_and_rejects_wrong_arguments() -> None:
    with pytest.raises(ToolFailed, match="may not reach the network"):
        await ReadWebpages()(ReadWebpagesArgs(urls=["http://example.org"]), ToolContext())
    with pytest.raises(ValidationError):
        ReadWebpagesArgs(urls=[])
    with pytest.raises(ValidationError):
        ReadWebpagesArgs(urls=["http://example.org"] * 6)

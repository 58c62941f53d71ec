"""Fetching: only public sites, whatever a name, a redirect or a server does; bounded in time and size."""

import gzip
import shutil
import tracemalloc
import zlib
from pathlib import Path

import anyio
import anyio.abc
import pytest
from support.network.web_site import HOST, PUBLIC, Page, Site, make_certificate, site

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.net import addresses
from ava_roles.net.addresses import checked_url, is_public, masked
from ava_roles.net.fetch import Fetcher, HostQueue
from ava_roles.net.resolver import SystemResolver

PRIVATE = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "2a00::5efe:7f00:1",
    "2a00::200:5efe:a00:1",
    "fe80::1%eth0",
    "2a00:1450:4001::1%1",
    "localhost",
    "127.1",
    "0x7f000001",
    "1.2.3",
    "1.2.3.4.5",
    "01.2.3.4",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_recognises_a_non_public_address_in_any_notation(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", [PUBLIC, "1.1.1.1", "2606:2800:21f::1", "::ffff:1.1.1.1", "64:ff9b::101:101", "172.32.0.1"]
)
def test_accepts_a_public_address(address: str) -> None:
    assert is_public(address)


def test_does_not_treat_a_public_address_of_this_machine_as_public(monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses.is_own(addresses.ip_address("127.0.0.1"))  # type: ignore[attr-defined]
    monkeypatch.setattr(addresses, "is_own", lambda address: str(address) == PUBLIC)
    assert not is_public(PUBLIC)


BAD_URLS = [
    "http://127.0.0.1/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f.1/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://127.0.0.1./",
    "http://１２７.0.0.1/",
    "http://127。0。0。1/",
    "http://①②⑦.0.0.1/",
    "http://10.0.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://0.0.0.0/",
    "http://0/",
    "http://1.2.3/",
    "http://8.8.8.8.8/",
    "http://example.0x7f/",
    "http://[::1]/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[fe80::1%25eth0]/",
    "http://[fd00::1]/",
    "http://[::1",
    "http://localhost/",
    "http://LOCALHOST/",
    "http://localhost./",
    "http://foo.localhost/",
    "http://printer.local/",
    "http://metadata.google.internal/",
    "http://router.lan/",
    "http://nas.home.arpa/",
    "http://hidden.onion/",
    "http://intranet/",
    "http://168.63.129.16/",
    "http://192.0.0.192/",
    "http://192.88.99.1/",
    "http://100.64.0.1/",
    "http://198.18.0.1/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://0xc0a80001/",
    "http://0300.0250.0.1/",
    "http://3232235521/",
    "http://0x7f.0.0.0x1/",
    "http://127.0.0.1%00.example.com/",
    "http://127.0.0.1%2e/",
    "http://[::127.0.0.1]/",
    "http://[::ffff:0:127.0.0.1]/",
    "http://[64:ff9b:1::1]/",
    "http://[2001::1]/",
    "http://[2001:db8::1]/",
    "http://[fec0::1]/",
    "http://[ff02::1]/",
    "http://[2a00::5efe:7f00:1]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[::1%25lo]/",
    "http://ｌｏｃａｌｈｏｓｔ/",
    "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/",
    "http://metadata.internal/",
    "http://kubernetes.default.svc.cluster.local/",
    "http://user@example.com/",
    "http://user:secret@example.com/",
    "http://@example.com/",
    "http://example.com@127.0.0.1/",
    "http://example.com:22/",
    "http://example.com:6379/",
    "http://example.com:0/",
    "http://example.com:99999/",
    "http://example.com:80a/",
    "http://exa%6dple.com/",
    "http://example%2ecom/",
    "http://exam\tple.com/",
    "http://example.com/\r\nHost: evil",
    "http://example.com/a b",
    " http://example.com/",
    "http://example.com\\@127.0.0.1/",
    "http:\\\\example.com/",
    "http://example.com/\u202e",
    "http://example.com\u200b/",
    "http://a..example.com/",
    "http://.example.com/",
    "http://-example.com/",
    "http:///path",
    "http:example.com",
    "//example.com/",
    "example.com",
    "",
    "file:///etc/passwd",
    "ftp://example.com/",
    "gopher://example.com/",
    "data:text/html,x",
    "javascript:alert(1)",
    "unix:///var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "http://example.com/" + "a" * 5000,
]


@pytest.mark.parametrize("url", BAD_URLS)
async def test_rejects_an_unacceptable_url_before_any_name_lookup(url: str) -> None:
    async with site({}) as web:
        with pytest.raises(AccessRefused) as refused:
            await web.fetcher.get(url)
        assert not web.resolved
        assert not web.connected
    assert "secret" not in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "http://münchen.example.de:8080/ä?q=1#top",
        "http://1.1.1.1/",
        "HTTP://EXAMPLE.com/",
    ],
)
def test_accepts_an_ordinary_url_and_drops_its_fragment(url: str) -> None:
    assert "#" not in str(checked_url(url))


def test_masks_a_password_in_messages() -> None:
    assert masked("https://me:geheim@example.com/x@y") == "https://***@example.com/x@y"


async def test_fetches_a_page_with_its_type_and_sends_the_host_header() -> None:
    async with site({"/page?q=1": Page("grüße", content_type="Text/Plain; charset=UTF-8")}) as web:
        with anyio.fail_after(20):
            got = await web.fetcher.get(web.url("/page?q=1#part"))
        assert (got.status, got.content_type, got.text()) == (200, "text/plain", "grüße")
        assert got.url == web.url("/page?q=1")
        assert web.connected == [(PUBLIC, 80)]
        assert web.requests[0].host == HOST
        assert web.requests[0].headers["user-agent"].startswith("Ava/")
        assert web.requests[0].headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("text/html; charset=windows-1251", "Привет".encode("cp1251"), "Привет"),
        ("text/html", b"<meta charset='shift_jis'>" + "こんにちは".encode("shift_jis"), "こんにちは"),
        ("text/html", "Grüße".encode("cp1252"), "Grüße"),
        ("text/html; charset=punycode", "Grüße".encode(), "Grüße"),
        ("text/html; charset=nonsense", "Grüße".encode(), "Grüße"),
        ("text/html; charset=ascii", "Grüße".encode(), "Grüße"),
    ],
)
async def test_uses_the_charset_named_by_the_site_or_page(content_type: str, body: bytes, text: str) -> None:
    async with site({"/": Page(body, content_type=content_type)}) as web:
        assert (await web.fetcher.get(web.url("/"))).text().endswith(text)


async def test_returns_an_error_status_as_an_answer() -> None:
    async with site({}) as web:
        assert (await web.fetcher.get(web.url("/missing"))).status == 404


@pytest.mark.parametrize("answers", [["127.0.0.1"], [PUBLIC, "10.0.0.1"], ["::ffff:192.168.0.1"], ["nonsense"]])
async def test_refuses_a_name_with_one_non_public_address(answers: list[str]) -> None:
    async with site({"/": "inside"}) as web:
        web.answers[HOST] = [answers]
        with pytest.raises(AccessRefused, match="not public"):
            await web.fetcher.get(web.url("/"))
        assert web.connected == []


async def test_stops_dns_rebinding_at_the_second_connection() -> None:
    async with site({"/": "hello"}) as web:
        web.answers[HOST] = [[PUBLIC], ["127.0.0.1"]]
        await web.fetcher.get(web.url("/"))
        with pytest.raises(AccessRefused):
            await web.fetcher.get(web.url("/"))
        assert web.connected == [(PUBLIC, 80)]
        assert web.resolved == [HOST, HOST]


async def test_reports_a_name_without_an_address() -> None:
    async with site({}) as web:
        web.answers[HOST] = [[]]
        with pytest.raises(ToolFailed, match="no address was found"):
            await web.fetcher.get(web.url("/"))


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/",
        "http://localhost:8080/",
        "//169.254.169.254/",
        "http://inner.example.com/",
        "file:///etc/passwd",
        "http://u:p@example.com/",
        "http://example.com:22/",
        "http://a\\b/",
        "http://[::1]/",
    ],
)
async def test_refuses_a_redirect_to_an_internal_address(location: str) -> None:
    async with site({"/": Page(status=302, headers={"Location": location})}) as web:
        web.answers["inner.example.com"] = [["10.1.2.3"]]
        with pytest.raises(AccessRefused):
            await web.fetcher.get(web.url("/"))
        assert web.paths == ["/"]


async def test_follows_a_limited_number_of_redirects() -> None:
    pages = {f"/{n}": Page(status=301, headers={"Location": f"{n + 1}"}) for n in range(9)}
    async with site({**pages, "/5": "there"}) as web:
        got = await web.fetcher.get(web.url("/0"))
        assert (got.text(), got.url) == ("there", web.url("/5"))
        assert got.redirects == tuple(web.url(f"/{n}") for n in range(5))
        web.pages["/5"] = Page(status=307, headers={"Location": "/6"})
        with pytest.raises(ToolFailed, match="more than 5 times"):
            await web.fetcher.get(web.url("/0"))


async def test_does_not_send_custom_headers_to_another_site() -> None:
    away = Page(status=302, headers={"Location": "http://other.example.org/b"})
    async with site({"/a": away, "/b": "there"}) as web:
        await web.fetcher.get(web.url("/a"), headers={"X-Token": "mine"})
        assert [seen.headers.get("x-token") for seen in web.requests] == ["mine", None]


async def test_asks_the_caller_before_following_each_redirect() -> None:
    async with site({"/a": Page(status=302, headers={"Location": "/b"}), "/b": "there"}) as web:

        async def refuse_b(url: str) -> None:
            if url.endswith("/b"):
                raise AccessRefused("not b")

        with pytest.raises(AccessRefused, match="not b"):
            await web.fetcher.get(web.url("/a"), before=refuse_b)
        assert web.paths == ["/a"]


async def test_stops_a_gzip_bomb_at_the_limit_without_using_more_memory() -> None:
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join([packer.compress(bytes(1 << 20)) for _ in range(256)]) + packer.flush()
    async with site({"/": Page(bomb, headers={"Content-Encoding": "gzip"})}) as web:
        tracemalloc.start()
        try:
            with anyio.fail_after(20):
                got = await web.fetcher.get(web.url("/"), max_bytes=500_000)
            assert tracemalloc.get_traced_memory()[1] < 30_000_000
        finally:
            tracemalloc.stop()
        assert got.truncated
        assert len(got.body) == 500_000


async def test_reads_multi_member_gzip_and_reports_broken_gzip() -> None:
    encoded = {"Content-Encoding": "gzip"}
    pages = {
        "/ok": Page(gzip.compress(b"one ") + gzip.compress(b"two"), headers=encoded),
        "/cut": Page(gzip.compress(b"some text" * 999)[:40], headers=encoded),
        "/broken": Page(b"this is no gzip", headers=encoded),
        "/brotli": Page(b"x", headers={"Content-Encoding": "br"}),
    }
    async with site(pages) as web:
        assert (await web.fetcher.get(web.url("/ok"))).body == b"one two"
        assert (await web.fetcher.get(web.url("/cut"))).truncated
        with pytest.raises(ToolFailed, match="gzip"):
            await web.fetcher.get(web.url("/broken"))
        with pytest.raises(ToolFailed, match=r"'br', which was not asked for"):
            await web.fetcher.get(web.url("/brotli"))


async def test_stops_an_endless_body_at_the_limit() -> None:
    async def endless(stream: anyio.abc.ByteStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            await stream.send(b"x" * 65536)

    async with site({"/": endless}) as web:
        with anyio.fail_after(20):
            got = await web.fetcher.get(web.url("/"), max_bytes=300_000)
        assert (len(got.body), got.truncated) == (300_000, True)


async def test_refuses_endless_headers() -> None:
    async def headers(stream: anyio.abc.ByteStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            await stream.send(b"X-More: " + b"y" * 60000 + b"\r\n")

    async with site({"/": headers}) as web:
        with anyio.fail_after(20), pytest.raises(ToolFailed, match="could not be read"):
            await web.fetcher.get(web.url("/"))


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"])
async def test_stops_a_slow_response_at_the_total_deadline(head: bytes) -> None:
    async def drip(stream: anyio.abc.ByteStream) -> None:
        await stream.send(head or b"H")
        while True:
            await anyio.sleep(0.02)
            await stream.send(b"x" if head else b"")

    async with site({"/": drip}) as web:
        with anyio.fail_after(20), pytest.raises(ToolFailed, match=r"within 0\.3 s"):
            await web.fetcher.get(web.url("/"), deadline_s=0.3)


async def test_stops_a_hanging_resolver_at_the_deadline() -> None:
    async def hang(host: str, port: int) -> list[str]:
        await anyio.sleep_forever()
        return []

    with anyio.fail_after(20), pytest.raises(ToolFailed, match="did not answer"):
        await Fetcher(hang).get("http://example.com/", deadline_s=0.2)


async def test_reports_a_server_that_hangs_up() -> None:
    async def nothing(stream: anyio.abc.ByteStream) -> None:
        return

    async with site({"/": nothing}) as web:
        with pytest.raises(ToolFailed, match=f"http://{HOST}/ could not be read"):
            await web.fetcher.get(web.url("/"))


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")


@needs_openssl
async def test_tls_sends_the_host_name_and_checks_the_certificate_against_it(tmp_path: Path) -> None:
    names: list[str | None] = []
    certificate = make_certificate(tmp_path, HOST)
    async with site({"/": "secure"}, certificate=certificate, server_names=names) as web:
        with anyio.fail_after(20):
            assert (await web.fetcher.get(web.url("/"))).text() == "secure"
        assert names == [HOST]
        assert web.connected == [(PUBLIC, 443)]
        with pytest.raises(ToolFailed, match=r"(?i)certificate"):
            await web.fetcher.get(web.url("/", host="other.example.com"))
        assert names == [HOST, "other.example.com"]
        assert web.paths == ["/"]


async def test_runs_requests_to_one_host_one_by_one_with_a_pause() -> None:
    started, go = anyio.Event(), anyio.Event()

    async def slow(stream: anyio.abc.ByteStream) -> None:
        started.set()
        await go.wait()
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with site({"/slow": slow, "/other": "fast", "/next": "fast"}) as web:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(web.fetcher.get, web.url("/slow"))
                await started.wait()
                group.start_soon(web.fetcher.get, web.url("/next"))
                await web.fetcher.get(web.url("/other", host="other.example.com"))
                assert web.paths == ["/slow", "/other"]
                go.set()
        assert web.paths == ["/slow", "/other", "/next"]
        assert web.pauses == [1.0]


async def test_a_slow_page_does_not_make_other_pages_of_its_host_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ava_roles.net.fetch.SLOW_S", 0.05, raising=False)
    failed: list[str] = []

    async def slow(stream: anyio.abc.ByteStream) -> None:
        await anyio.sleep_forever()

    async with site({"/slow": slow, "/next": "fast", "/last": "fast"}) as web:

        async def give_up() -> None:
            with pytest.raises(ToolFailed, match="/slow did not answer completely") as error:
                await web.fetcher.get(web.url("/slow"), deadline_s=1.5)
            failed.append(str(error.value))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(give_up)
                while "/slow" not in web.paths:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                for path in ("/next", "/last"):
                    assert (await web.fetcher.get(web.url(path), deadline_s=1.0)).text() == "fast"
                assert failed == [], "the slow page is still being read"


async def test_reports_a_page_that_was_never_requested() -> None:
    async def slow(stream: anyio.abc.ByteStream) -> None:
        await anyio.sleep_forever()

    async with site({"/slow": slow}) as web, anyio.create_task_group() as group:
        group.start_soon(web.fetcher.get, web.url("/slow"))
        while "/slow" not in web.paths:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        with pytest.raises(ToolFailed, match=rf"/next was not requested: other requests to {HOST} took all 0\.2 s"):
            await web.fetcher.get(web.url("/next"), deadline_s=0.2)
        group.cancel_scope.cancel()


async def test_forgets_hosts_without_waiting_requests() -> None:
    now = 0.0
    turns = HostQueue(lambda: now, anyio.sleep)
    for number in range(1000):
        now += 2
        async with turns.turn(f"host{number}"):
            pass
    assert len(turns._queues) < 300


async def test_the_system_resolver_uses_a_thread_and_refuses_when_it_hangs() -> None:
    resolver = SystemResolver(threads=1)
    with anyio.fail_after(20):
        assert "127.0.0.1" in await resolver("127.0.0.1", 80)
        resolver._under_way = 2
        with pytest.raises(OSError, match="hanging"):
            await resolver("127.0.0.1", 80)


async def test_a_tls_handshake_timeout_leaves_no_connection_open() -> None:
    opened, closed = anyio.Event(), anyio.Event()
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:

        async def silent(stream: anyio.abc.SocketStream) -> None:
            opened.set()
            async with stream:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    while True:
                        await stream.receive()
            closed.set()

        group.start_soon(listener.serve, silent)
        port = int(listener.extra(anyio.abc.SocketAttribute.local_port))
        web = Site({}, port, "https")
        while not opened.is_set():  # on a busy machine, the time may be up before it is connected
            with pytest.raises(ToolFailed, match=r"did not answer completely within 0\.2 s"):
                await web.fetcher.get(web.url("/"), deadline_s=0.2)
        with anyio.fail_after(20):
            await closed.wait()
        group.cancel_scope.cancel()

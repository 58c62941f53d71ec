"""Fetching through a proxy: it decides which addresses can be reached, and what a URL shows is checked all the same."""

import base64
import gzip
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from support.network.certificates import issue
from support.network.proxy import Proxy, run_proxy
from support.network.web_site import HOST, Page, Site, site

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.net.addresses import proxy_place, proxy_url
from ava_roles.net.fetch import Fetcher

PASSWORD = "pass-word-of-the-proxy"


@contextmanager
def before(web: Site, **more: Path) -> Iterator[Proxy]:
    """A proxy before a site."""
    with run_proxy({HOST: web.port, "other.example.com": web.port}, **more) as proxy:
        yield proxy


def fetcher(proxy: str | None, context: ssl.SSLContext | None = None) -> Fetcher:
    """A fetcher with the system's own resolver, in which the names of these tests do not exist."""

    async def no_pause(_seconds: float) -> None:
        pass

    return Fetcher(proxy=proxy, context=context, sleep=no_pause)


async def test_requests_a_plain_page_in_absolute_form_without_a_name_lookup() -> None:
    async with site({"/a?b=1": "<p>hello"}) as web:
        with before(web) as proxy:
            proxy.login = f"somebody:{PASSWORD}"
            got = await fetcher(proxy.url_of(proxy.login)).get(web.url("/a?b=1"))
    assert (got.status, got.body, got.url) == (200, b"<p>hello", f"http://{HOST}/a?b=1")
    assert proxy.requests == [f"http://{HOST}/a?b=1"]
    assert proxy.logins == ["Basic " + base64.b64encode(f"somebody:{PASSWORD}".encode()).decode()]
    assert web.requests[0].host == HOST
    assert "proxy-authorization" not in web.requests[0].headers


async def test_fetches_an_https_page_through_a_tunnel_and_checks_its_certificate(
    tmp_path: Path,
) -> None:
    issued = issue(tmp_path, HOST)
    asked: list[str | None] = []
    async with site({"/": "safe"}, certificate=issued.server, server_names=asked) as web:
        with before(web) as proxy:
            trusting = ssl.create_default_context(cafile=issued.authority)
            assert (await fetcher(proxy.url, trusting).get(web.url("/"))).body == b"safe"
            with pytest.raises(ToolFailed, match="certificate verify failed"):
                await fetcher(proxy.url).get(web.url("/"))
            with pytest.raises(ToolFailed, match="Hostname mismatch"):
                await fetcher(proxy.url, trusting).get(web.url("/", "other.example.com"))
            assert await anyio.to_thread.run_sync(proxy.wait_for_nobody)
    assert proxy.tunnels == [f"{HOST}:443", f"{HOST}:443", "other.example.com:443"]
    assert asked == [HOST, HOST, "other.example.com"]


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_ignores_a_proxy_that_only_the_environment_names(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with site({"/": "straight"}) as web:
        with before(web) as proxy:
            monkeypatch.setenv(variable, proxy.url)
            assert (await web.fetcher.get(web.url("/"))).body == b"straight"
            assert (proxy.requests, proxy.tunnels, len(web.connected)) == ([], [], 1)


@pytest.mark.requirement("N-06")
@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/",
        "https://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://2130706433/",
        "http://localhost/",
        "http://printer.local/",
        "http://intranet/",
        "http://somebody:secret@docs.example.com/",
        "http://docs.example.com:22/",
        "file:///etc/passwd",
    ],
)
async def test_internal_addresses_never_reach_the_proxy_not_even_by_redirect(location: str) -> None:
    moved = Page("", 302, headers={"Location": location})
    async with site({"/": moved}) as web:
        with before(web) as proxy:
            with pytest.raises(AccessRefused):
                await fetcher(proxy.url).get(location)
            assert proxy.requests == []
            with pytest.raises(AccessRefused):
                await fetcher(proxy.url).get(web.url("/"))
            assert (proxy.requests, proxy.tunnels) == ([web.url("/")], [])


async def test_a_redirect_goes_through_the_proxy_again() -> None:
    async with site({"/": Page("", 302, headers={"Location": "http://other.example.com/b"}), "/b": "there"}) as web:
        with before(web) as proxy:
            got = await fetcher(proxy.url).get(web.url("/"))
    assert got.body == b"there"
    assert proxy.requests == [f"http://{HOST}/", "http://other.example.com/b"]


async def test_limits_size_and_decompression_behind_a_proxy_too() -> None:
    bomb = Page(gzip.compress(b"x" * 50_000_000), headers={"Content-Encoding": "gzip"})
    async with site({"/": "y" * 5_000, "/bomb": bomb}) as web:
        with before(web) as proxy:
            for path in ("/", "/bomb"):
                got = await fetcher(proxy.url).get(web.url(path), max_bytes=1_000)
                assert (len(got.body), got.truncated) == (1_000, True)
            assert await anyio.to_thread.run_sync(proxy.wait_for_nobody)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_silent_proxy_times_out_and_leaves_no_connection_open(scheme: str) -> None:
    with run_proxy({}) as proxy:
        proxy.stalls = "answer"
        with pytest.raises(ToolFailed, match=r"did not answer completely within 0\.3 s"):
            await fetcher(proxy.url).get(f"{scheme}://{HOST}/", deadline_s=0.3)
        assert await anyio.to_thread.run_sync(proxy.wait_for_nobody)


@pytest.mark.parametrize(
    ("scheme", "change", "says"),
    [
        ("https", {"login": "a:b"}, "refused the user and the password (HTTP 407)"),
        ("http", {"login": "a:b"}, "refused the user and the password (HTTP 407)"),
        ("https", {"refuses": 403}, "did not let us through (HTTP 403 Forbidden)"),
        ("https", {"refuses": 502}, "did not let us through (HTTP 502 Bad Gateway)"),
        ("https", {"hangs_up": True}, "hung up before it let us through"),
    ],
)
async def test_names_a_failing_proxy_without_its_password(scheme: str, change: dict[str, object], says: str) -> None:
    with run_proxy({}) as proxy:
        for name, value in change.items():
            setattr(proxy, name, value)
        with pytest.raises(ToolFailed) as caught:
            await fetcher(proxy.url_of(f"somebody:{PASSWORD}")).get(f"{scheme}://{HOST}/")
    assert f"{scheme}://{HOST}/ could not be read: the proxy {proxy.place} {says}" in str(caught.value)
    assert PASSWORD not in str(caught.value) and "Basic" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("http://proxy.example:3128", "proxy.example:3128"),
        ("https://user:p%40ss@proxy.example/", "proxy.example"),
        ("http://[2001:db8::1]:8080", "[2001:db8::1]:8080"),
        ("HTTP://10.0.0.1:3128", "10.0.0.1:3128"),
    ],
)
def test_names_a_proxy_by_host_and_port(text: str, place: str) -> None:
    assert proxy_url(text) == text
    assert proxy_place(text) == place


@pytest.mark.parametrize(
    "text",
    [
        "proxy.example:3128",
        "socks5://proxy.example:1080",
        "ftp://proxy.example",
        "http://",
        "http://proxy.example:0",
        "http://proxy.example:99999",
        "http://proxy.example/path",
        "http://proxy.example/?q",
        "http://proxy.example\n:1",
        "http://u:{{secret:proxy}}@proxy.example:3128",
        f"//somebody:{PASSWORD}@proxy.example",
    ],
)
def test_rejects_an_invalid_proxy_address_and_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"an address such as http://proxy\.example:3128") as caught:
        proxy_url(text)
    assert PASSWORD not in str(caught.value)

"""Model calls behind a proxy: through it, around it, and a sentence for each way in which it can stand in the way."""

import base64
import logging
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from httpx2._utils import URLPattern
from support.model_server import Fail, Gate, ModelServer, Say, run_model_server
from support.network.certificates import Issued, issue
from support.network.proxy import Proxy, run_proxy

from ava_roles.net.transports import NetworkBackend
from ava_server.core.errors import ModelError
from ava_server.models.base import Completion, Request, UserTurn
from ava_server.models.errors import may_have_been_billed
from ava_server.models.http_clients import THIS_MACHINE, ClientPool
from ava_server.models.http_model import HttpModel
from ava_server.models.wires.chat import ChatWire
from ava_server.models.wires.stream import Deadlines

HOST = "models.example.com"
ASK = Request("test", "", (), (UserTurn("hello"),), 256)
PASSWORD = "pass-word-of-the-proxy"
LOGIN = f"somebody:{PASSWORD}"
HASTY = Deadlines(connect_s=0.3, first_byte_s=5, total_s=8)
PATIENT = Deadlines(connect_s=5)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


URL = f"https://{HOST}/v1"


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
async def test_a_call_tunnels_through_a_proxy_without_resolving_the_name_locally(
    variable: str, server: ModelServer, clients: ClientPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_proxy({HOST: server.port}) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        assert (await ask(URL, clients)).text == "here"
        assert (await ask(URL, clients)).text == "again"
        await clients.aclose()
        assert await anyio.to_thread.run_sync(proxy.wait_for_nobody)
    assert proxy.tunnels == [f"{HOST}:443"]  # one tunnel for both calls
    assert server.requests[0].path == "/v1/chat/completions"
    assert server.requests[0].headers["host"] == HOST
    assert "proxy-authorization" not in server.requests[0].headers


@pytest.mark.parametrize("scheme", ["https", "http"])
async def test_supports_a_proxy_that_uses_tls_itself(
    scheme: str, trusted: Path, clients: ClientPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        run_model_server([Say("here")], trusted if scheme == "https" else None) as server,
        run_proxy({HOST: server.port}, trusted) as proxy,
    ):
        monkeypatch.setenv("ALL_PROXY", proxy.url_of(LOGIN))
        assert (await ask(f"{scheme}://{HOST}/v1", clients)).text == "here"
    assert [*proxy.tunnels, *proxy.requests] == [
        f"{HOST}:443" if scheme == "https" else f"http://{HOST}/v1/chat/completions"
    ]
    assert len(proxy.logins) == 1


@pytest.mark.parametrize("around", [HOST, ".example.com", "*"])
async def test_no_proxy_bypasses_the_proxy(
    around: str, proxy: Proxy, server: ModelServer, clients: ClientPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def addresses(_self: NetworkBackend, host: str, _port: int) -> list[str]:
        return ["127.0.0.1"] if host == HOST else [host]

    monkeypatch.setattr(NetworkBackend, "addresses", addresses)  # nobody is asked for the name
    monkeypatch.setenv("NO_PROXY", f"elsewhere.example.org, {around}")
    assert (await ask(f"https://{HOST}:{server.port}/v1", clients)).text == "here"
    assert proxy.tunnels == []


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_model_on_this_machine_is_called_without_a_proxy(
    host: str, variable: str, clients: ClientPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_model_server([Say("here")]) as server, run_proxy({host: server.port}) as proxy:
        monkeypatch.setenv(variable, proxy.url)
        assert (await ask(f"http://{host}:{server.port}/v1", clients)).text == "here"
    assert [*proxy.tunnels, *proxy.requests] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "localhost", "[::1]"])
def test_addresses_of_this_machine_are_matched(host: str) -> None:
    url = httpx2.URL(f"http://{host}:11434/v1")
    assert any(URLPattern(pattern).matches(url) for pattern in THIS_MACHINE)


async def test_an_untrusted_certificate_is_reported_and_nothing_is_sent(
    issued: Issued, clients: ClientPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_model_server([Say("never")], issued.server) as server, run_proxy({HOST: server.port}) as proxy:
        straight = await failure(server.base_url, clients)
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        async with ClientPool() as others:
            tunnelled = await failure(URL, others)
        assert server.requests == []
    for error, place in ((straight, f"127.0.0.1:{server.port}"), (tunnelled, HOST)):
        assert f"No connection to {place}/v1/chat/completions: its certificate is not trusted" in str(error)
        assert "unable to get local issuer certificate" in str(error)
        assert "SSL_CERT_FILE" in error.what_to_do
        assert (error.kind, error.sent, error.retryable) == ("connection", False, False)
        assert not may_have_been_billed(error)


@pytest.mark.parametrize("scheme", ["https", "http"])
async def test_the_proxy_login_is_sent_only_to_the_proxy_and_shown_nowhere(
    scheme: str, trusted: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "ava")
    wrong = "somebody:wrong-" + PASSWORD
    certificate = trusted if scheme == "https" else None
    with run_model_server([Say("let in")], certificate) as server, run_proxy({HOST: server.port}) as proxy:
        proxy.login = LOGIN
        url = f"{scheme}://{HOST}/v1"
        said: list[ModelError] = []
        for login in ("", wrong, LOGIN):
            monkeypatch.setenv(f"{scheme.upper()}_PROXY", proxy.url_of(login) if login else proxy.url)
            async with ClientPool() as clients:
                if login == LOGIN:
                    assert (await ask(url, clients)).text == "let in"
                else:
                    said.append(await failure(url, clients))
        assert [str(error).partition(": ")[2] for error in said] == [
            f"the proxy {proxy.place} asks for a user and a password (HTTP 407).",
            f"the proxy {proxy.place} refused the user and the password (HTTP 407).",
        ]
        variable = f"{scheme.upper()}_PROXY"
        assert all(not error.sent and not error.retryable and variable in error.what_to_do for error in said)
        logins = ["Basic " + base64.b64encode(login.encode()).decode() for login in (wrong, LOGIN)]
        assert proxy.logins == logins
        assert len(server.requests) == 1 and "proxy-authorization" not in server.requests[0].headers
    shown = "".join(f"{error} {error.what_to_do} {error!r}" for error in said) + caplog.text
    assert not [part for part in (PASSWORD, *(login.split()[1] for login in logins)) if part in shown]


@pytest.mark.parametrize(
    ("change", "says", "retryable"),
    [
        ({"refuses": 502}, "did not let us through (HTTP 502 Bad Gateway)", True),
        ({"refuses": 403}, "did not let us through (HTTP 403 Forbidden)", False),
        ({"refuses": 429}, "did not let us through (HTTP 429 Too Many Requests)", True),
        ({"refuses": 599}, "did not let us through (HTTP 599)", True),
        ({"hangs_up": True}, "hung up before it let us through", True),
        ({"stalls": "answer"}, "did not let us through within 0.3 s", True),
        ({"stalls": "tunnel"}, "did not let us through within 0.3 s", True),
    ],
)
async def test_an_error_caused_by_a_proxy_names_it_and_is_not_billed(
    change: dict[str, object], says: str, retryable: bool, proxy: Proxy, server: ModelServer
) -> None:
    async with ClientPool() as clients:
        for name, value in change.items():
            setattr(proxy, name, value)
        error = await failure(URL, clients)
        assert f"No connection to {HOST}/v1/chat/completions: the proxy {proxy.place} {says}" in str(error)
        assert (error.kind, error.sent, error.answered, error.retryable) == ("connection", False, False, retryable)
        assert not may_have_been_billed(error)
        assert await anyio.to_thread.run_sync(proxy.wait_for_nobody)
        assert server.requests == []
        for name in change:
            setattr(proxy, name, getattr(Proxy({}), name))
        assert (await ask(URL, clients)).text == "here"  # what failed holds no place


async def test_an_unreachable_proxy_is_named(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_proxy({}) as proxy:
        pass
    monkeypatch.setenv("HTTPS_PROXY", proxy.url_of(LOGIN))
    monkeypatch.setenv("HTTP_PROXY", proxy.url_of(LOGIN))
    async with ClientPool() as clients:
        for url in (URL, f"http://{HOST}/v1"):
            error = await failure(url, clients)
            assert f"the proxy {proxy.place} cannot be reached" in str(error)
            assert PASSWORD not in f"{error} {error.what_to_do}"
            assert (error.sent, error.retryable) == (False, True)
    assert server.requests == []


async def test_an_error_status_names_the_proxy_it_came_through(
    clients: ClientPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_model_server([Fail(503)]) as server, run_proxy({HOST: server.port}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        own = await failure(f"http://{HOST}/v1", clients)
        proxy.refuses = 502
        proxys = await failure(f"http://{HOST}/v1", clients)
    assert f"is overloaded (HTTP 503, through the proxy {proxy.place}): scripted failure" in str(own)
    assert f"failed (HTTP 502, through the proxy {proxy.place})" in str(proxys)
    assert not may_have_been_billed(own) and not may_have_been_billed(proxys)
    assert proxy.requests == [f"http://{HOST}/v1/chat/completions"] * 2


@pytest.mark.parametrize("where", ["connecting", "tunnel", "answer"])
async def test_cancelling_a_call_closes_both_connections_of_the_proxy_at_once(
    where: str, trusted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    script = [Say("never", gate=gate), Say("next")]
    with (
        run_model_server(script if where == "answer" else script[1:], trusted) as server,
        run_proxy({HOST: server.port}) as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        proxy.stalls = "answer" if where == "connecting" else "tunnel" if where == "tunnel" else "never"
        async with ClientPool() as clients:

            async def call() -> None:
                async with model_at(URL, clients).stream(ASK):
                    pytest.fail("no answer was sent")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                reached = gate.arrived if where == "answer" else proxy.asked
                assert await anyio.to_thread.run_sync(reached.wait, 5)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
            assert await anyio.to_thread.run_sync(proxy.wait_for_nobody, 1.0)
            if where == "answer":
                assert await anyio.to_thread.run_sync(gate.client_left.wait, 1)
            proxy.stalls = "never"
            assert (await ask(URL, clients)).text == "next"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("ALL_PROXY", f"socks5://{LOGIN}@127.0.0.1:9", "ALL_PROXY names a SOCKS proxy (127.0.0.1:9)"),
        ("https_proxy", "socks5h://127.0.0.1:9", "https_proxy names a SOCKS proxy (127.0.0.1:9)"),
        ("HTTPS_PROXY", "http://", "HTTPS_PROXY names an invalid proxy address, and only HTTP proxies"),
        ("HTTPS_PROXY", f"ftp://{LOGIN}@127.0.0.1:9", "HTTPS_PROXY names an invalid proxy address (127.0.0.1:9)"),
        ("HTTPS_PROXY", "http://127.0.0.1:99999", "HTTPS_PROXY names an invalid proxy address"),
    ],
)
async def test_an_unusable_proxy_is_reported_only_for_the_calls_that_would_use_it(
    variable: str, value: str, says: str, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with ClientPool() as clients:
        error = await failure(URL, clients)
        assert says in str(error)
        assert f"Set {variable} to an HTTP proxy" in error.what_to_do
        assert PASSWORD not in f"{error} {error.what_to_do}"
        assert (error.kind, error.sent, error.retryable) == ("connection", False, False)
        assert (await ask(server.base_url, clients)).text == "here"


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return issue(tmp_path_factory.mktemp("certificates"), HOST, "IP:127.0.0.1")


@pytest.fixture
def trusted(issued: Issued, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSL_CERT_FILE", str(issued.authority))
    return issued.server


@pytest.fixture
def server(trusted: Path) -> Iterator[ModelServer]:
    with run_model_server([Say("here"), Say("again"), Say("and again")], trusted) as server:
        yield server


@pytest.fixture
def proxy(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the server, named in HTTPS_PROXY."""
    with run_proxy({HOST: server.port, "127.0.0.1": server.port}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        yield proxy


def model_at(base_url: str, clients: ClientPool, deadlines: Deadlines = PATIENT) -> HttpModel:
    return HttpModel("custom", "test", base_url, "key-0123456789", clients, ChatWire(), deadlines)


async def ask(base_url: str, clients: ClientPool, deadlines: Deadlines = PATIENT) -> Completion:
    with anyio.fail_after(8):
        async with model_at(base_url, clients, deadlines).stream(ASK) as stream:
            async for _ in stream:
                pass
        return stream.completion


async def failure(base_url: str, clients: ClientPool, deadlines: Deadlines = HASTY) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(base_url, clients, deadlines)
    return caught.value

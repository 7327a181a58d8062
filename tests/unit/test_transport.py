"""Connections, proxies, bodies, streams and time limits."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import ReplyLost, TlsFailed, UnexpectedReply, Unreachable
from airflow_provider_gangjobs.cluster.http.connections import CLOSE_TIMEOUT_S, IDLE_MAX_S, Request
from airflow_provider_gangjobs.kube.resources import JOBS
from gangjobs_sandbox.tls import issue
from tests.provider.virtual_time import elapsed, in_virtual_time
from tests.timeouts import TIMEOUT_S
from tests.unit.connection_server import CLOSES, ConnectionServer, TunnelProxy, answer
from tests.unit.fault_server import config_for, kubeconfig
from tests.unit.test_credentials import connection_to

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager


CERTIFICATE = issue(("api.example.org", "127.0.0.1"))


async def other_callbacks_run() -> None:
    """Let the loop handle what has arrived on its sockets."""
    for _ in range(20):
        await asyncio.sleep(0)


# -- connections -----------------------------------------------------------------------------------------------


async def test_requests_share_one_connection() -> None:
    async with ConnectionServer() as server, Client(config_for(server.url)) as client:
        for _ in range(3):
            await client.version()
        await client.create(JOBS, {}, "team")
    assert (len(server.heads), server.connections) == (4, 1)


async def test_write_after_the_server_closed_an_idle_connection_uses_another() -> None:
    async with ConnectionServer(closes_after=True) as server, Client(config_for(server.url)) as client:
        await client.version()
        await other_callbacks_run()
        await client.create(JOBS, {}, "team")
    assert (len(server.heads), server.connections) == (2, 2)


async def test_connection_that_ends_without_a_response_leaves_the_outcome_unknown() -> None:
    async with (
        ConnectionServer(answers=(answer(), CLOSES)) as server,
        Client(config_for(server.url)) as client,
    ):
        await client.version()
        with pytest.raises(ReplyLost) as caught:
            await client.create(JOBS, {}, "team")
    assert caught.value.may_have_applied
    assert len(server.heads) == 2


@pytest.mark.parametrize(
    "first",
    [answer(b'{"n": 1}', Connection="close"), b"HTTP/1.0 200 OK\r\n\r\n" + b'{"n": 1}'],
    ids=["closed as announced", "body without a length"],
)
async def test_body_may_end_with_the_connection(first: bytes) -> None:
    async with (
        ConnectionServer(answers=(first, answer(b'{"n": 2}')), closes_after=True) as server,
        Client(config_for(server.url)) as client,
    ):
        assert [await client.version(), await client.version()] == [{"n": 1}, {"n": 2}]


async def test_unrequested_response_is_not_taken_for_the_next_one() -> None:
    twice = answer(b'{"n": 1}') + answer(b'{"n": "unrequested"}')
    async with (
        ConnectionServer(answers=(twice, answer(b'{"n": 2}'))) as server,
        Client(config_for(server.url)) as client,
    ):
        assert [await client.version(), await client.version()] == [{"n": 1}, {"n": 2}]
    assert server.connections == 2


async def test_what_arrives_on_an_idle_connection_is_not_taken_for_the_next_response() -> None:
    async with ConnectionServer() as server, Client(config_for(server.url)) as client:
        await client.version()
        server.say(answer(b'{"n": "unrequested"}'))
        await other_callbacks_run()
        assert await client.version() == {}
    assert server.connections == 2


@in_virtual_time
async def test_connections_that_are_idle_for_long_are_closed() -> None:
    together = asyncio.Event()
    async with ConnectionServer(go_on=together) as server, Client(config_for(server.url)) as client:
        requests = [asyncio.create_task(client.version()) for _ in range(3)]
        await asyncio.sleep(1)
        together.set()
        await asyncio.gather(*requests)
        await asyncio.sleep(IDLE_MAX_S + 1)
        await client.version()
        await other_callbacks_run()
        assert (server.connections, server.closed) == (4, 3)


async def test_response_to_a_cancelled_request_is_not_taken_for_the_next_one() -> None:
    late = asyncio.Event()
    answers = (answer(b'{"n": "cancelled"}'), answer(b'{"n": 2}'))
    async with ConnectionServer(answers, go_on=late) as server, Client(config_for(server.url)) as client:
        cancelled = asyncio.create_task(client.version())
        await server.arrived.wait()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        late.set()
        assert await client.version() == {"n": 2}


async def test_requests_in_flight_are_limited() -> None:
    go_on = asyncio.Event()
    async with (
        ConnectionServer(go_on=go_on) as server,
        Client(config_for(server.url), requests_max=4) as client,
    ):
        requests = [asyncio.create_task(client.version()) for _ in range(20)]
        await server.arrived.wait()
        go_on.set()
        assert await asyncio.gather(*requests) == [{}] * 20
    assert server.connections <= 4


async def test_interim_response_is_skipped() -> None:
    first = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + answer(b'{"n": 1}')
    async with ConnectionServer(answers=(first,)) as server, Client(config_for(server.url)) as client:
        assert await client.version() == {"n": 1}


async def test_redirection_is_not_followed() -> None:
    moved = answer(b"", status="302 Found", Location="/login")
    async with ConnectionServer(answers=(moved,)) as server, Client(config_for(server.url)) as client:
        with pytest.raises(UnexpectedReply):
            await client.version()
    assert len(server.heads) == 1


async def test_request_impersonates_the_user_of_the_kubeconfig() -> None:
    user = {"token": "sesame", "as": "jane", "as-groups": ["train", "ops"]}
    async with ConnectionServer() as server:
        config = ClusterConfig.from_extras("k8s", {"kube_config": kubeconfig(server.url, user=user)})
        async with Client(config) as client:
            await client.create(JOBS, {}, "team")
    sent = [line for line in server.heads[0].splitlines() if line.startswith(("Impersonate", "Authorization"))]
    assert sent == [
        "Authorization: Bearer sesame",
        "Impersonate-User: jane",
        "Impersonate-Group: train",
        "Impersonate-Group: ops",
    ]


# -- bodies ----------------------------------------------------------------------------------------------------


async def test_compressed_response_is_decoded() -> None:
    body = b'{"text": "%s"}' % (b"x" * 3_000_000)
    packed = answer(gzip.compress(body), Content_Encoding="gzip")
    async with ConnectionServer(answers=(packed,)) as server, Client(config_for(server.url)) as client:
        assert len((await client.version())["text"]) == 3_000_000
    assert "gzip" in next(line for line in server.heads[0].splitlines() if line.lower().startswith("accept-encoding"))


@pytest.mark.parametrize("packed", [gzip.compress(b"{}" * 100)[:-20], b"no gzip"], ids=["cut off", "no gzip"])
async def test_broken_compression_is_an_error(packed: bytes) -> None:
    broken = answer(packed, Content_Encoding="gzip")
    async with (
        ConnectionServer(answers=(broken,)) as server,
        Client(config_for(server.url), retry_for_s=0) as client,
    ):
        with pytest.raises((ReplyLost, UnexpectedReply)):
            await client.version()


async def test_response_above_the_limit_is_refused() -> None:
    async with ConnectionServer(answers=(answer(b"x" * 1001),)) as server, Client(config_for(server.url)) as client:
        assert len(await client._transport.send(Request("GET", "/"), timeout_s=10, bytes_max=1001)) == 1001
        with pytest.raises(UnexpectedReply, match="too long"):
            await client._transport.send(Request("GET", "/"), timeout_s=10, bytes_max=1000)


@in_virtual_time
async def test_time_limit_includes_the_body() -> None:
    began = asyncio.get_running_loop().time()
    unfinished = answer(b"x" * 10)[:-1]
    async with ConnectionServer(answers=(unfinished,)) as server, Client(config_for(server.url)) as client:
        with pytest.raises(ReplyLost):
            await client._transport.send(Request("GET", "/"), timeout_s=7)
    assert 7 <= asyncio.get_running_loop().time() - began < 10


# -- proxies and TLS -------------------------------------------------------------------------------------------


def proxied(proxy: TunnelProxy, **cluster: Any) -> Any:
    cluster = {"proxy-url": f"http://user:pass%20word@{proxy.address}"} | cluster
    return connection_to("https://api.example.org:6443", authority=CERTIFICATE.certificate, cluster=cluster)


async def test_tunnel_has_the_proxys_credentials_and_the_servers_certificate() -> None:
    async with (
        ConnectionServer(tls=CERTIFICATE.server_context()) as server,
        TunnelProxy(server.port) as proxy,
        Client(proxied(proxy)) as client,
    ):
        assert [await client.version(), await client.version()] == [{}, {}]
    (head,) = proxy.heads
    assert head.startswith("CONNECT api.example.org:6443 ")
    assert "Proxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ=" in head
    assert "sesame" not in head
    assert "Proxy-Authorization" not in server.heads[0]


async def test_tunnel_through_a_proxy_with_tls() -> None:
    async with (
        ConnectionServer(tls=CERTIFICATE.server_context()) as server,
        TunnelProxy(server.port, tls=CERTIFICATE.server_context()) as proxy,
        Client(proxied(proxy, **{"proxy-url": f"https://{proxy.address}"})) as client,
    ):
        assert [await client.version(), await client.version()] == [{}, {}]
    assert len(proxy.heads) == 1


async def test_proxy_of_a_server_without_tls_gets_its_credentials_with_each_request() -> None:
    async with ConnectionServer() as proxy:
        address = proxy.url.removeprefix("http://")
        cluster = {"proxy-url": f"http://user:pass%20word@{address}"}
        config = ClusterConfig.from_extras("k8s", {"kube_config": kubeconfig("http://api.invalid", cluster=cluster)})
        async with Client(config) as client:
            assert [await client.version(), await client.version()] == [{}, {}]
    assert [head.splitlines()[0] for head in proxy.heads] == ["GET http://api.invalid/version HTTP/1.1"] * 2
    assert all("Proxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ=" in head for head in proxy.heads)


async def test_server_behind_a_proxy_is_verified_by_its_name_in_the_kubeconfig() -> None:
    async with (
        ConnectionServer(tls=CERTIFICATE.server_context()) as server,
        TunnelProxy(server.port) as proxy,
        Client(proxied(proxy, **{"tls-server-name": "another.example.org"})) as client,
    ):
        with pytest.raises(TlsFailed):
            await client.version()


async def test_request_that_the_proxy_refused_was_never_sent() -> None:
    async with (
        TunnelProxy(0, status="407 Proxy Authentication Required") as proxy,
        Client(proxied(proxy), retry_for_s=0) as client,
    ):
        with pytest.raises(Unreachable, match="407") as caught:
            await client.create(JOBS, {}, "team")
    assert not caught.value.may_have_applied
    assert "pass" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["127.0.0.1:1", "proxy.invalid:3128"])
async def test_proxy_that_cannot_be_reached_is_named_without_its_credentials(proxy: str) -> None:
    cluster = {"proxy-url": f"http://user:sesame@{proxy}"}
    async with Client(connection_to("https://api.example.org", cluster=cluster), retry_for_s=0) as client:
        with pytest.raises(Unreachable, match=f"api.example.org through the proxy http://{proxy}: ") as caught:
            await client.version()
    assert "sesame" not in str(caught.value)


async def test_host_that_tls_refuses_cannot_be_reached() -> None:
    async with Client(connection_to("https://.example.org"), retry_for_s=0) as client:
        with pytest.raises(Unreachable):
            await client.version()


def over_tls(server: ConnectionServer | Wire) -> ClusterConfig:
    return connection_to(server.url, authority=CERTIFICATE.certificate, cluster={"tls-server-name": "api.example.org"})


async def test_one_handshake_serves_all_requests() -> None:
    async with ConnectionServer(tls=CERTIFICATE.server_context()) as server, Client(over_tls(server)) as client:
        for _ in range(5):
            await client.version()
    assert (len(server.heads), server.connections) == (5, 1)


@in_virtual_time
async def test_close_gives_up_on_a_server_that_does_not_answer() -> None:
    async with ConnectionServer(tls=CERTIFICATE.server_context()) as server, Client(over_tls(server)) as client:
        await client.version()
        server.stop_reading()
        began = asyncio.get_running_loop().time()
        await client.aclose()
        assert asyncio.get_running_loop().time() - began <= 2 * CLOSE_TIMEOUT_S


# -- streams ---------------------------------------------------------------------------------------------------


@dataclass
class Wire:
    """A server whose response arrives in parts at given times of the loop. It stays open if `ends` is false."""

    times: Sequence[float]
    ends: bool = True
    is_packed: bool = False
    """Whether each part is a member of a gzip body."""
    tls: ssl.SSLContext | None = None
    _hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._hung_up.set()
        self._server.close()
        await other_callbacks_run()

    @property
    def whole(self) -> bytes:
        return b"".join(b"%d " % number for number in range(len(self.times)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        encoding = b"Content-Encoding: gzip\r\n" if self.is_packed else b""
        writer.write(b"HTTP/1.1 200 OK\r\n%sTransfer-Encoding: chunked\r\n\r\n" % encoding)
        for number, at in enumerate(self.times):
            await asyncio.sleep(at - elapsed())
            part = b"%d " % number
            if self.is_packed:
                part = gzip.compress(part)
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
        if self.ends:
            writer.write(b"0\r\n\r\n")
        await self._hung_up.wait()
        writer.transport.abort()


def read_stream(client: Client, idle_timeout_s: float) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
    return client._transport.stream(Request("GET", "/"), idle_timeout_s=idle_timeout_s)


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("apart_s", [0.001, 0.021, 1.0])
@in_virtual_time
async def test_stream_yields_the_whole_body_in_order_as_it_arrives(apart_s: float, is_packed: bool) -> None:
    times = [number * apart_s for number in range(1, 101)]
    async with (
        Wire(times, is_packed=is_packed) as wire,
        Client(config_for(wire.url)) as client,
        read_stream(client, TIMEOUT_S) as stream,
    ):
        chunks = [(elapsed(), chunk) async for chunk in stream]
    assert b"".join(chunk for _, chunk in chunks) == wire.whole
    assert [at for at, _ in chunks] == pytest.approx(times)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_idle_stream_times_out_without_waiting_for_its_peer(tls: bool) -> None:
    async with Wire([0], ends=False, tls=CERTIFICATE.server_context() if tls else None) as wire:
        config = over_tls(wire) if tls else config_for(wire.url)
        async with asyncio.timeout(TIMEOUT_S), Client(config) as client:
            with pytest.raises(ReplyLost, match=r"nothing arrived for 0\.1 s"):
                async with read_stream(client, 0.1) as stream:
                    assert [chunk async for chunk in stream] == []


@in_virtual_time
async def test_slow_reader_does_not_cause_an_idle_timeout() -> None:
    heard = b""
    async with (
        Wire([number * 1.0 for number in range(1, 21)]) as wire,
        Client(config_for(wire.url)) as client,
        read_stream(client, 2.5) as stream,
    ):
        async for chunk in stream:
            heard += chunk
            if len(heard) < 10:
                await asyncio.sleep(7)
    assert heard == wire.whole


# -- the event loop of Airflow's API server ----------------------------------------------------------------------


async def send_two_requests(way: str) -> list[Any]:
    tls = None if way == "plain" else CERTIFICATE.server_context()
    async with ConnectionServer(tls=tls) as server, TunnelProxy(server.port) as proxy:
        config = {
            "plain": lambda: config_for(server.url),
            "tls": lambda: over_tls(server),
            "tunnel": lambda: proxied(proxy),
        }
        async with Client(config[way]()) as client:
            return [await client.version(), await client.version(), server.connections]


async def note(chunks: AsyncIterator[bytes], noted: list[bytes]) -> None:
    async for chunk in chunks:
        noted.append(chunk)  # noqa: PERF401 - the stream ends with an error


async def read_idle_stream() -> list[bytes]:
    noted: list[bytes] = []
    async with Wire([0], ends=False, tls=CERTIFICATE.server_context()) as wire, Client(over_tls(wire)) as client:
        with pytest.raises(ReplyLost, match="nothing arrived"):
            async with read_stream(client, 0.1) as stream:
                await note(stream, noted)
    return noted


@pytest.mark.parametrize("way", ["plain", "tls", "tunnel"])
def test_requests_share_a_connection_on_uvloop(way: str) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(send_two_requests(way)) == [{}, {}, 1]


def test_idle_stream_times_out_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(read_idle_stream()) == [b"0 "]

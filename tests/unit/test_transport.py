"""Connections, proxies, bodies, streams and time limits, over each transport."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from airflow_provider_gangjobs.cluster.auth.credentials import TlsConfig, make_context
from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import ReplyLost, TlsFailed, UnexpectedReply, Unreachable
from airflow_provider_gangjobs.cluster.http.aiohttp_transport import read_chunks
from airflow_provider_gangjobs.cluster.http.httpx_transport import REQUEST_CONNECTIONS_MAX, HttpxTransport
from airflow_provider_gangjobs.cluster.http.transport import CLOSE_TIMEOUT_S, Request
from airflow_provider_gangjobs.kube.resources import JOBS
from gangjobs_sandbox.tls import issue
from tests.provider.virtual_time import elapsed, in_virtual_time
from tests.timeouts import TIMEOUT_S
from tests.unit.connection_server import CLOSES, ConnectionServer, TunnelProxy, answer
from tests.unit.fault_server import config_for, kubeconfig
from tests.unit.test_credentials import connection_to

if TYPE_CHECKING:
    from tests.unit.conftest import Connect


# -- Connections, proxies, bodies and time limits, over each transport -----------------------------------------------

CERTIFICATE = issue(("api.example.org",))


async def other_callbacks_run() -> None:
    """Let the loop handle what has arrived on its sockets."""
    for _ in range(20):
        await asyncio.sleep(0)


# -- connections -----------------------------------------------------------------------------------------------


async def test_requests_share_one_connection(connect: Connect) -> None:
    async with ConnectionServer() as server, connect(config_for(server.url)) as client:
        for _ in range(3):
            await client.version()
        await client.create(JOBS, {}, "team")
    assert (len(server.heads), server.connections) == (4, 1)


async def test_write_after_the_server_closed_an_idle_connection_uses_another(connect: Connect) -> None:
    async with ConnectionServer(closes_after=True) as server, connect(config_for(server.url)) as client:
        await client.version()
        await other_callbacks_run()
        await client.create(JOBS, {}, "team")
    assert (len(server.heads), server.connections) == (2, 2)


async def test_connection_that_ends_without_a_response_leaves_the_outcome_unknown(connect: Connect) -> None:
    async with (
        ConnectionServer(answers=(answer(), CLOSES)) as server,
        connect(config_for(server.url)) as client,
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
async def test_body_may_end_with_the_connection(first: bytes, connect: Connect) -> None:
    async with (
        ConnectionServer(answers=(first, answer(b'{"n": 2}')), closes_after=True) as server,
        connect(config_for(server.url)) as client,
    ):
        assert [await client.version(), await client.version()] == [{"n": 1}, {"n": 2}]


async def test_unrequested_response_is_not_taken_for_the_next_one(connect: Connect) -> None:
    twice = answer(b'{"n": 1}') + answer(b'{"n": "unrequested"}')
    async with (
        ConnectionServer(answers=(twice, answer(b'{"n": 2}'))) as server,
        connect(config_for(server.url)) as client,
    ):
        assert [await client.version(), await client.version()] == [{"n": 1}, {"n": 2}]
    assert server.connections == 2


async def test_response_to_a_cancelled_request_is_not_taken_for_the_next_one(connect: Connect) -> None:
    late = asyncio.Event()
    answers = (answer(b'{"n": "cancelled"}'), answer(b'{"n": 2}'))
    async with ConnectionServer(answers, go_on=late) as server, connect(config_for(server.url)) as client:
        cancelled = asyncio.create_task(client.version())
        await server.arrived.wait()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        late.set()
        assert await client.version() == {"n": 2}


async def test_light_transport_opens_few_connections_for_many_requests() -> None:
    go_on = asyncio.Event()
    async with (
        ConnectionServer(go_on=go_on) as server,
        Client(config_for(server.url), transport=HttpxTransport) as client,
    ):
        requests = [asyncio.create_task(client.version()) for _ in range(20)]
        await server.arrived.wait()
        go_on.set()
        assert await asyncio.gather(*requests) == [{}] * 20
    assert server.connections <= REQUEST_CONNECTIONS_MAX


async def test_interim_response_is_skipped(connect: Connect) -> None:
    first = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + answer(b'{"n": 1}')
    async with ConnectionServer(answers=(first,)) as server, connect(config_for(server.url)) as client:
        assert await client.version() == {"n": 1}


async def test_redirection_is_not_followed(connect: Connect) -> None:
    moved = answer(b"", status="302 Found", Location="/login")
    async with ConnectionServer(answers=(moved,)) as server, connect(config_for(server.url)) as client:
        with pytest.raises(UnexpectedReply):
            await client.version()
    assert len(server.heads) == 1


async def test_request_impersonates_the_user_of_the_kubeconfig(connect: Connect) -> None:
    user = {"token": "sesame", "as": "jane", "as-groups": ["train", "ops"]}
    async with ConnectionServer() as server:
        config = ClusterConfig.from_extras("k8s", {"kube_config": kubeconfig(server.url, user=user)})
        async with connect(config) as client:
            await client.create(JOBS, {}, "team")
    sent = [line for line in server.heads[0].splitlines() if line.startswith(("Impersonate", "Authorization"))]
    assert sent == [
        "Authorization: Bearer sesame",
        "Impersonate-User: jane",
        "Impersonate-Group: train",
        "Impersonate-Group: ops",
    ]


# -- bodies ----------------------------------------------------------------------------------------------------


async def test_compressed_response_is_decoded(connect: Connect) -> None:
    body = b'{"text": "%s"}' % (b"x" * 3_000_000)
    packed = answer(gzip.compress(body), Content_Encoding="gzip")
    async with ConnectionServer(answers=(packed,)) as server, connect(config_for(server.url)) as client:
        assert len((await client.version())["text"]) == 3_000_000
    assert "gzip" in next(line for line in server.heads[0].splitlines() if line.lower().startswith("accept-encoding"))


@pytest.mark.parametrize("packed", [gzip.compress(b"{}" * 100)[:-20], b"no gzip"], ids=["cut off", "no gzip"])
async def test_broken_compression_is_an_error(packed: bytes, connect: Connect) -> None:
    broken = answer(packed, Content_Encoding="gzip")
    async with (
        ConnectionServer(answers=(broken,)) as server,
        connect(config_for(server.url), retry_for_s=0) as client,
    ):
        with pytest.raises((ReplyLost, UnexpectedReply)):
            await client.version()


async def test_response_above_the_limit_is_refused(connect: Connect) -> None:
    async with ConnectionServer(answers=(answer(b"x" * 1001),)) as server, connect(config_for(server.url)) as client:
        assert len(await client._transport.send(Request("GET", "/"), timeout_s=10, bytes_max=1001)) == 1001
        with pytest.raises(UnexpectedReply, match="too long"):
            await client._transport.send(Request("GET", "/"), timeout_s=10, bytes_max=1000)


@in_virtual_time
async def test_time_limit_includes_the_body(connect: Connect) -> None:
    began = asyncio.get_running_loop().time()
    unfinished = answer(b"x" * 10)[:-1]
    async with ConnectionServer(answers=(unfinished,)) as server, connect(config_for(server.url)) as client:
        with pytest.raises(ReplyLost):
            await client._transport.send(Request("GET", "/"), timeout_s=7)
    assert 7 <= asyncio.get_running_loop().time() - began < 10


# -- proxies and TLS -------------------------------------------------------------------------------------------


def proxied(proxy: TunnelProxy, **cluster: Any) -> Any:
    cluster |= {"proxy-url": f"http://user:pass%20word@{proxy.address}"}
    return connection_to("https://api.example.org:6443", authority=CERTIFICATE.certificate, cluster=cluster)


async def test_tunnel_has_the_proxys_credentials_and_the_servers_certificate(connect: Connect) -> None:
    async with (
        ConnectionServer(tls=CERTIFICATE.server_context()) as server,
        TunnelProxy(server.port) as proxy,
        connect(proxied(proxy)) as client,
    ):
        assert [await client.version(), await client.version()] == [{}, {}]
    (head,) = proxy.heads
    assert head.startswith("CONNECT api.example.org:6443 ")
    assert "Proxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ=" in head
    assert "sesame" not in head
    assert "Proxy-Authorization" not in server.heads[0]


async def test_proxy_of_a_server_without_tls_gets_its_credentials_with_each_request(connect: Connect) -> None:
    async with ConnectionServer() as proxy:
        address = proxy.url.removeprefix("http://")
        cluster = {"proxy-url": f"http://user:pass%20word@{address}"}
        config = ClusterConfig.from_extras("k8s", {"kube_config": kubeconfig("http://api.invalid", cluster=cluster)})
        async with connect(config) as client:
            assert [await client.version(), await client.version()] == [{}, {}]
    assert [head.splitlines()[0] for head in proxy.heads] == ["GET http://api.invalid/version HTTP/1.1"] * 2
    assert all("Proxy-Authorization: Basic dXNlcjpwYXNzIHdvcmQ=" in head for head in proxy.heads)


async def test_server_behind_a_proxy_is_verified_by_its_name_in_the_kubeconfig(connect: Connect) -> None:
    async with (
        ConnectionServer(tls=CERTIFICATE.server_context()) as server,
        TunnelProxy(server.port) as proxy,
        connect(proxied(proxy, **{"tls-server-name": "another.example.org"})) as client,
    ):
        with pytest.raises(TlsFailed):
            await client.version()


async def test_request_that_the_proxy_refused_was_never_sent(connect: Connect) -> None:
    async with (
        TunnelProxy(0, status="407 Proxy Authentication Required") as proxy,
        connect(proxied(proxy), retry_for_s=0) as client,
    ):
        with pytest.raises(Unreachable, match="407") as caught:
            await client.create(JOBS, {}, "team")
    assert not caught.value.may_have_applied
    assert "pass" not in str(caught.value)


def over_tls(server: ConnectionServer) -> ClusterConfig:
    return connection_to(server.url, authority=CERTIFICATE.certificate, cluster={"tls-server-name": "api.example.org"})


async def test_one_handshake_serves_all_requests(connect: Connect) -> None:
    async with ConnectionServer(tls=CERTIFICATE.server_context()) as server, connect(over_tls(server)) as client:
        for _ in range(5):
            await client.version()
    assert (len(server.heads), server.connections) == (5, 1)


@in_virtual_time
async def test_close_gives_up_on_a_server_that_does_not_answer(connect: Connect) -> None:
    async with ConnectionServer(tls=CERTIFICATE.server_context()) as server, connect(over_tls(server)) as client:
        await client.version()
        server.stop_reading()
        began = asyncio.get_running_loop().time()
        await client.aclose()
        assert asyncio.get_running_loop().time() - began <= 2 * CLOSE_TIMEOUT_S


# -- A stream is read as it arrives, no byte is lost, and a silent one ends ------------------------------------------


class Wire:
    """A response whose body arrives in parts at given times."""

    def __init__(self, times: list[float]) -> None:
        self.times = times
        self._arrived: list[bytes] = []
        self._news = asyncio.Condition()
        self._sent = False
        self.content = self.connection = self.transport = self

    async def send(self) -> None:
        for number, at in enumerate(self.times):
            await asyncio.sleep(at - elapsed())
            async with self._news:
                self._arrived.append(b"%d " % number)
                self._news.notify_all()
        async with self._news:
            self._sent = True
            self._news.notify_all()

    async def readany(self) -> bytes:
        async with self._news:
            await self._news.wait_for(lambda: self._arrived or self._sent)
        chunk, self._arrived = b"".join(self._arrived), []
        return chunk


async def _read(wire: Any) -> list[tuple[float, bytes]]:
    sending = asyncio.create_task(wire.send())
    chunks = [(elapsed(), chunk) async for chunk in read_chunks(wire, idle_timeout_s=TIMEOUT_S)]
    await sending
    return chunks


def _whole(times: list[float]) -> bytes:
    return b"".join(b"%d " % number for number in range(len(times)))


@pytest.mark.parametrize("apart_s", [0.001, 0.021, 1.0])
@in_virtual_time
async def test_reader_yields_the_whole_body_in_order(apart_s: float) -> None:
    wire = Wire([number * apart_s for number in range(1, 101)])
    assert b"".join(chunk for _, chunk in await _read(wire)) == _whole(wire.times)


@in_virtual_time
async def test_reader_reads_each_chunk_of_a_burst_at_once() -> None:
    wire = Wire([number * 0.001 for number in range(1, 101)])
    assert [at for at, _ in await _read(wire)] == pytest.approx(wire.times)


SERVER = issue(["127.0.0.1"])


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_idle_stream_times_out_without_waiting_for_its_peer(tls: bool) -> None:
    heard = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await heard.wait()
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=SERVER.server_context() if tls else None)
    host, port = server.sockets[0].getsockname()
    context = make_context(TlsConfig(ca=SERVER.certificate)) if tls else True
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            aiohttp.ClientSession() as session,
            session.get(f"http{'s' if tls else ''}://{host}:{port}/", ssl=context) as response,
        ):
            stream = read_chunks(response, idle_timeout_s=0.1)
            assert await anext(stream) == b"hello"
            with pytest.raises(TimeoutError, match=r"nothing arrived for 0\.1 s"):
                await anext(stream)
    finally:
        heard.set()
        server.close()
        await asyncio.sleep(0)


@in_virtual_time
async def test_slow_reader_does_not_cause_an_idle_timeout() -> None:
    wire: Any = Wire([number * 1.0 for number in range(1, 21)])
    sending = asyncio.create_task(wire.send())
    heard = b""
    async for chunk in read_chunks(wire, idle_timeout_s=2.5):
        heard += chunk
        if len(heard) < 10:
            await asyncio.sleep(7)
    await sending
    assert heard == _whole(wire.times)

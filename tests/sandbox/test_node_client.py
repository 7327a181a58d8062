"""The node's client: authentication, and watches of a server that restarts or drops its history."""

from __future__ import annotations

import asyncio
import base64
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gangjobs_sandbox.api import create_app, serving
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.node.client import ApiClient, Changed, Listed, UnreachableError, core_path, list_and_watch
from gangjobs_sandbox.resources import CONFIGMAPS
from tests.sandbox.node_cluster import TOKEN, api_server
from tests.timeouts import until

if TYPE_CHECKING:
    from pathlib import Path


def kubeconfig(url: str, **user: str) -> dict[str, Any]:
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
    }


async def test_kubeconfig_gives_url_and_token(tmp_path: Path) -> None:
    async with api_server() as cluster:
        (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig(cluster.url, token=TOKEN)))
        async with ApiClient.from_kubeconfig(tmp_path / "config") as client:
            assert (await client.get(core_path("namespaces", "default")))["metadata"]["name"] == "default"


def test_kubeconfig_without_the_context_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig("http://127.0.0.1:1", token=TOKEN)))
    with pytest.raises(ValueError, match="no entry 'there' in contexts"):
        ApiClient.from_kubeconfig(tmp_path / "config", "there")


async def test_refusal_is_a_status_error() -> None:
    async with api_server() as cluster, ApiClient(cluster.url, token="wrong") as client:
        with pytest.raises(StatusError) as raised:
            await client.get(core_path("pods"))
        assert (raised.value.code, raised.value.reason) == (401, "Unauthorized")


async def test_missing_response_is_unreachable() -> None:
    async with ApiClient("http://127.0.0.1:1") as client:
        with pytest.raises(UnreachableError, match="GET /api/v1/pods: ConnectError"):
            await client.get(core_path("pods"))


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


class Follower:
    """Collects what `list_and_watch` yields for ConfigMaps."""

    def __init__(self, client: ApiClient) -> None:
        self.seen: list[str] = []
        self._task = asyncio.create_task(self._run(client))

    async def _run(self, client: ApiClient) -> None:
        async for change in list_and_watch(client, core_path("configmaps", namespace="default"), {}):
            if isinstance(change, Listed):
                self.seen.append("listed " + ",".join(item["metadata"]["name"] for item in change.items))
            else:
                assert isinstance(change, Changed)
                self.seen.append(f"{change.kind} {change.item['metadata']['name']}")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_watch_shows_every_change() -> None:
    async with api_server() as cluster, ApiClient(cluster.url, token=TOKEN) as client:
        cluster.registry.create(CONFIGMAPS, config_map("a"), "default")
        follower = Follower(client)
        await until(lambda: follower.seen == ["listed a"])
        cluster.registry.create(CONFIGMAPS, config_map("b"), "default")
        cluster.registry.patch(CONFIGMAPS, "b", "default", {"data": {"x": "1"}})
        cluster.registry.delete(CONFIGMAPS, "a", "default")
        await until(lambda: len(follower.seen) == 4)
        assert follower.seen[1:] == ["ADDED b", "MODIFIED b", "DELETED a"]
        await follower.stop()


async def test_expired_version_causes_a_new_list() -> None:
    async with api_server() as cluster, ApiClient(cluster.url, token=TOKEN) as client:
        follower = Follower(client)
        await until(lambda: follower.seen == ["listed "])
        cluster.registry.store.compact_history()
        cluster.registry.create(CONFIGMAPS, config_map("a"), "default")
        await until(lambda: follower.seen[-1:] in (["listed a"], ["ADDED a"]))
        await follower.stop()


async def test_unreachable_server_is_retried() -> None:
    async with api_server() as cluster:
        registry, url = cluster.registry, cluster.url
    async with ApiClient(url, token=TOKEN) as client:
        follower = Follower(client)
        await asyncio.sleep(0)
        port = int(url.rpartition(":")[2])
        async with serving(create_app(registry, token=TOKEN), port=port):
            await until(lambda: follower.seen == ["listed "])
        await follower.stop()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def certificate(name: str, issuer: Issued | None = None) -> Issued:
    """Create a key and a certificate that is signed by the issuer, or self-signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(issuer.key if issuer else key, hashes.SHA256())
    )
    return Issued(key, made)


@dataclass
class Issued:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        form = serialization.PrivateFormat.PKCS8
        return self.key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


async def test_certificates_in_the_kubeconfig_are_used(tmp_path: Path) -> None:
    """As in a real control plane, the server's CA is private, and clients need a certificate."""
    authority = certificate("authority")
    server, user = certificate("server", authority), certificate("user", authority)
    for name, data in {"ca": authority.pem, "cert": server.pem, "key": server.key_pem}.items():
        (tmp_path / name).write_bytes(data)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca"))
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    context.verify_mode = ssl.CERT_REQUIRED

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as listening:
        config = kubeconfig(f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        config["clusters"][0]["cluster"]["certificate-authority-data"] = encoded(authority.pem)
        keys = {"client-certificate-data": encoded(user.pem), "client-key-data": encoded(user.key_pem)}
        config["users"][0]["user"] = keys
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        async with ApiClient.from_kubeconfig(tmp_path / "config") as client:
            assert await client.get("/version") == {}


def test_bad_certificate_names_the_context(tmp_path: Path) -> None:
    config = kubeconfig("https://127.0.0.1:1")
    config["clusters"][0]["cluster"]["certificate-authority-data"] = encoded(b"no certificate")
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    with pytest.raises(ValueError, match="cannot load the certificates of context 'here'"):
        ApiClient.from_kubeconfig(tmp_path / "config")

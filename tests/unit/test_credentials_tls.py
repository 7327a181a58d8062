"""TLS: which servers are trusted, client certificates, and keys that are not left on disk."""

from __future__ import annotations

import base64
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from airflow_provider_gangjobs.cluster.auth.credentials import Credentials, TlsConfig, make_context
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import InvalidConnection, ReplyLost, TlsFailed
from gangjobs_sandbox.tls import issue
from tests.unit.fault_server import Connection, FaultServer, Request, config_for, kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.conftest import Connect

SERVER = issue()
ELSEWHERE = issue(("api.example.org",))


def client_certificate(*, password: bytes | None = None) -> tuple[bytes, bytes]:
    """Return a client certificate and its key as PEM. The key is encrypted if there is a password."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "me")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(hours=1))
        .not_valid_after(datetime.now(UTC) + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encryption: Any = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    return certificate.public_bytes(serialization.Encoding.PEM), private


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


async def empty(_: Request, connection: Connection) -> None:
    await connection.reply(200, {})


def connection_to(url: str, *, authority: bytes = SERVER.certificate, **more: Any) -> ClusterConfig:
    cluster = {"certificate-authority-data": encoded(authority), **more.pop("cluster", {})}
    return ClusterConfig.from_extras("k8s", {"kube_config": kubeconfig(url, cluster=cluster, **more)})


def test_given_authority_is_the_only_one() -> None:
    assert make_context(TlsConfig(ca=SERVER.certificate)).cert_store_stats()["x509"] == 1


def test_unverified_context_loads_no_authorities() -> None:
    context = make_context(TlsConfig(verify=False))
    assert (context.cert_store_stats()["x509"], context.verify_mode) == (0, ssl.CERT_NONE)


def test_authorities_without_key_identifier_are_accepted() -> None:
    assert not make_context(TlsConfig(ca=SERVER.certificate)).verify_flags & ssl.VERIFY_X509_STRICT


async def test_server_is_verified_by_its_authority(connect: Connect) -> None:
    async with (
        FaultServer(empty, tls=SERVER.server_context()) as server,
        connect(connection_to(server.url)) as client,
    ):
        assert await client.version() == {}


async def test_server_of_another_name_is_not_trusted(connect: Connect) -> None:
    async with (
        FaultServer(empty, tls=ELSEWHERE.server_context()) as server,
        connect(connection_to(server.url, authority=ELSEWHERE.certificate)) as client,
    ):
        with pytest.raises(TlsFailed):
            await client.version()


async def test_server_name_of_the_kubeconfig_is_the_one_expected(connect: Connect) -> None:
    config = {"authority": ELSEWHERE.certificate, "cluster": {"tls-server-name": "api.example.org"}}
    async with (
        FaultServer(empty, tls=ELSEWHERE.server_context()) as server,
        connect(connection_to(server.url, **config)) as client,
    ):
        assert await client.version() == {}


async def test_client_certificate_is_shown_and_leaves_no_file(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    certificate, key = client_certificate()
    context = SERVER.server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode())
    user = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
    async with FaultServer(empty, tls=context) as server:
        async with connect(connection_to(server.url, user=user)) as client:
            assert await client.version() == {}
        async with connect(connection_to(server.url), retry_for_s=0) as client:
            with pytest.raises((TlsFailed, ReplyLost)):
                await client.version()
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - nothing runs on the loop any more


@pytest.mark.parametrize(
    "user",
    [
        {"client-certificate-data": encoded(b"no PEM"), "client-key-data": encoded(b"none")},
        {
            "client-certificate-data": encoded(client_certificate()[0]),
            "client-key-data": encoded(client_certificate()[1]),
        },
        {"client-certificate-data": encoded(client_certificate()[0])},
    ],
    ids=["no PEM", "key of another", "no key"],
)
async def test_invalid_certificates_are_reported(user: dict[str, str]) -> None:
    with pytest.raises(InvalidConnection, match="its certificates cannot be used"):
        await Credentials(connection_to("https://here", user=user)).current()


async def test_encrypted_key_is_refused_without_a_prompt() -> None:
    certificate, key = client_certificate(password=b"secret")
    user = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
    with pytest.raises(InvalidConnection, match="its certificates cannot be used"):
        await Credentials(connection_to("https://here", user=user)).current()


async def test_unchanged_certificates_keep_their_context(tmp_path: Path) -> None:
    now = 0.0
    from airflow_provider_gangjobs.cluster.clock import Clock

    ca = tmp_path / "ca.crt"
    ca.write_bytes(SERVER.certificate)
    config = kubeconfig("https://here", cluster={"certificate-authority": str(ca)})
    extras = ClusterConfig.from_extras("k8s", {"kube_config": config})
    credentials = Credentials(extras, clock=Clock(monotonic=lambda: now))
    first = await credentials.current()
    same = await credentials.renew(first)
    ca.write_bytes(ELSEWHERE.certificate)
    now = 10.0
    other = await credentials.renew(same)
    assert same.ssl is first.ssl
    assert other.ssl is not first.ssl


async def test_plain_http_needs_no_context() -> None:
    assert (await Credentials(config_for("http://here")).current()).ssl is None

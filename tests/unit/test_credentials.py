"""Credentials: where they come from, when they are loaded again, TLS, and that nothing that is shown contains them."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import ssl
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from airflow_provider_gangjobs.cluster.auth.credentials import (
    RETRY_RENEWAL_S,
    Access,
    Credentials,
    Proxy,
    TlsConfig,
    environment_proxy,
    load_access,
    make_context,
)
from airflow_provider_gangjobs.cluster.auth.exec_plugin import redacted
from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import (
    ClusterError,
    CredentialsFailed,
    InvalidConnection,
    ReplyLost,
    TlsFailed,
)
from gangjobs_sandbox.tls import issue
from tests.timeouts import TIMEOUT_S
from tests.unit.credential_sources import Plugin, config_of, load, service_account, write_kubeconfig
from tests.unit.fault_server import SECRET, Connection, FaultServer, Request, config_for, kubeconfig, status
from tests.unit.virtual_sleep import VirtualSleep

if TYPE_CHECKING:
    from pathlib import Path


# -- Where credentials come from, and that no message contains them --------------------------------------------------

SERVER = issue()


@pytest.fixture(autouse=True)
def _no_cluster_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the kubeconfig, the ServiceAccount, and the proxy of the machine that runs the tests."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The environment of a pod. Return the directory of its service account."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return service_account(tmp_path / "serviceaccount", authority=SERVER.certificate)


# -- sources -----------------------------------------------------------------------------------------------------


def test_kubeconfig_in_the_connection_is_used() -> None:
    material = load(kube_config=kubeconfig("https://here:6443/"))
    assert (material.base_url, material.authorization) == ("https://here:6443", f"Bearer {SECRET}")


def test_default_file_is_that_of_kubectl(tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "home" / ".kube" / "config", kubeconfig("https://home"))
    assert load().base_url == "https://home"


def test_default_file_is_used_before_the_service_account(pod: Path, tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "home" / ".kube" / "config", kubeconfig("https://home"))
    assert load().base_url == "https://home"


@pytest.mark.parametrize("given_extras", [{}, {"in_cluster": True}], ids=str)
def test_pod_uses_its_service_account(pod: Path, given_extras: dict[str, Any]) -> None:
    material = load_access(config_of(**given_extras), service_account_dir=pod)
    assert (material.base_url, material.authorization, material.tls.ca) == (
        "https://10.0.0.1:443",
        f"Bearer {SECRET}",
        SERVER.certificate,
    )


@pytest.mark.parametrize(
    ("file", "content", "error", "message"),
    [
        ("token", None, InvalidConnection, "token cannot be read: No such file.*automountServiceAccountToken"),
        ("token", "", CredentialsFailed, "token is empty"),
        ("token", "open\nsesame", CredentialsFailed, "the token contains a character that a header cannot contain"),
        ("ca.crt", None, InvalidConnection, "ca.crt cannot be read"),
        ("ca.crt", "", InvalidConnection, "ca.crt is empty"),
    ],
)
def test_incomplete_service_account_is_refused(
    pod: Path, file: str, content: str | None, error: type[Exception], message: str
) -> None:
    (pod / file).unlink()
    if content is not None:
        (pod / file).write_text(content)
    with pytest.raises(error, match=message):
        load_access(config_of(in_cluster=True), service_account_dir=pod)


def test_service_account_is_read_as_by_the_official_client(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader

    for host in ("10.0.0.1", "fd00::1", "kubernetes.default"):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        theirs = Configuration()
        InClusterConfigLoader(str(pod / "token"), str(pod / "ca.crt")).load_and_set(theirs)
        ours = load_access(config_of(in_cluster=True), service_account_dir=pod)
        assert (ours.base_url, ours.authorization) == (theirs.host, theirs.api_key["BearerToken"].strip())


def test_verification_can_be_switched_off_by_the_connection() -> None:
    assert not load(kube_config=kubeconfig("https://here"), disable_verify_ssl=True).tls.verify


def test_loading_imports_no_client_library(tmp_path: Path) -> None:
    user = Plugin(tmp_path, "answer(token='t')").user()
    path = write_kubeconfig(tmp_path / "config", kubeconfig("https://here", user=user))
    program = f"""
import asyncio, sys
from airflow_provider_gangjobs.cluster.auth.credentials import Credentials
from airflow_provider_gangjobs.cluster.config import ClusterConfig
access = asyncio.run(Credentials(ClusterConfig.from_extras("k8s", {{"kube_config_path": {path!r}}})).current())
assert access.authorization == "Bearer t"
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    loaded = set(done.stdout.split())
    assert "yaml" in loaded
    assert not loaded & {"kubernetes", "kubernetes_asyncio", "aiohttp", "yarl", "multidict", "urllib3", "requests"}


@pytest.mark.parametrize(
    ("given_extras", "message"),
    [
        ({}, "there is no kubeconfig in .* and this is not a pod"),
        ({"in_cluster": True}, "the pod's service account cannot be used"),
        ({"kube_config_path": "/nowhere/config"}, "the file /nowhere/config does not exist"),
        ({"kube_config": {"apiVersion": "v1"}}, "extra kube_config cannot be used"),
        ({"kube_config": kubeconfig("https://here"), "cluster_context": "gone"}, "name gone"),
        ({"kube_config": kubeconfig("https://h", cluster={"certificate-authority": "/no/ca"})}, "the file /no/ca,"),
    ],
    ids=str,
)
def test_missing_file_context_or_service_account_is_named(given_extras: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConnection, match=message):
        load(**given_extras)


# -- secrets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Expected key x in /f/{'name': 'u', 'token': {'a': 1}}/user", "Expected key x in /f/{...}/user"),
        ("got eyJhbGciOi.eyJzdWIi.c2ln back", "got ... back"),
        ("header was Bearer abc", "header was Bearer ..."),
        ("a\n  b", "a b"),
        ("x" * 999, "x" * 256),
        ("the word hunter2 is secret", "the word ... is secret"),
        (
            "File does not exist: /a/very/long/path/with-many/parts",
            "File does not exist: /a/very/long/path/with-many/parts",
        ),
    ],
)
def test_evidence_is_redacted(text: str, shown: str) -> None:
    assert redacted(text, {"hunter2", "a"}) == shown


# -- proxies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "no_proxy", "proxy"),
    [
        ("https://10.96.0.1:443", "", "http://proxy:3128"),
        ("https://127.0.0.1:6443", "", None),
        ("https://[::1]:6443", "", None),
        ("https://localhost:6443", "", None),
        ("https://10.96.0.1:443", "10.0.0.0/8,example.org", None),
        ("https://10.96.0.1:443", "10.96.0.1", None),
        ("https://api.example.org", ".example.org", None),
        ("https://api.example.org", "10.0.0.0/8", "http://proxy:3128"),
        ("https://api.example.org", "local, *.Example.org", None),
        ("https://example.org", "*.example.org", "http://proxy:3128"),
        ("https://api.other-example.org", "*.example.org", "http://proxy:3128"),
        ("https://[fd00::1]:443", "fd00::/8", None),
        ("http://api.example.org", "", None),
    ],
)
def test_proxy_of_the_environment(url: str, no_proxy: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert environment_proxy(url) == (proxy and Proxy(proxy, None))


@pytest.mark.parametrize("proxy", ["socks5://me:hunter2@proxy:1080", "http://me:hunter2@", "http://proxy:0"])
def test_proxy_of_the_environment_that_is_not_usable_is_named(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(InvalidConnection, match="variable HTTPS_PROXY is not a URL of the form http://") as caught:
        load(kube_config=kubeconfig("https://api.example.org"))
    assert "hunter2" not in str(caught.value)


def test_kubeconfigs_of_the_variable_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kubeconfig("https://first")
    second = {k: v for k, v in kubeconfig("https://second").items() if k != "current-context"}
    paths = [
        write_kubeconfig(tmp_path / "1", first),
        str(tmp_path / "missing"),
        write_kubeconfig(tmp_path / "2", second),
    ]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(paths))
    assert load().base_url == "https://first"


# -- When credentials are loaded again: before they expire, and after the server has refused them --------------------

RENEWED = "open-open-open-sesame"


class Source:
    """A source that gives another token at each load, or fails."""

    def __init__(self, *, renew_in_s: float | None = None) -> None:
        self.loads = 0
        self.renew_in_s = renew_in_s
        self.error: ClusterError | None = None

    def load(self) -> Access:
        self.loads += 1
        if self.error is not None:
            raise self.error
        return Access("http://here", f"Bearer {self.loads}", renew_in_s=self.renew_in_s)


async def test_credentials_are_loaded_once_for_all_requests() -> None:
    source = Source()
    credentials = Credentials(config_of(), load=source.load)
    await asyncio.gather(*(credentials.current() for _ in range(20)))
    assert source.loads == 1


async def test_credentials_are_renewed_when_due() -> None:
    source, now = Source(renew_in_s=60), VirtualSleep()
    credentials = Credentials(config_of(), load=source.load, clock=now.clock)
    seen = []
    for now.now in (0, 59, 60, 119, 120):
        seen.append((await credentials.current()).authorization)
    assert seen == ["Bearer 1", "Bearer 1", "Bearer 2", "Bearer 2", "Bearer 3"]


async def test_credentials_stay_in_use_when_their_renewal_fails() -> None:
    source, now = Source(renew_in_s=60), VirtualSleep()
    credentials = Credentials(config_of(), load=source.load, clock=now.clock)
    await credentials.current()
    source.error = CredentialsFailed("k8s", "no")
    for now.now in (60, 61, 119, 120):
        assert (await credentials.current()).authorization == "Bearer 1"
    assert source.loads == 3


async def test_service_account_token_is_read_again_each_minute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    pod = service_account(tmp_path / "serviceaccount", authority=issue().certificate)
    now, config = VirtualSleep(), config_of(in_cluster=True)
    load = partial(load_access, config, service_account_dir=pod)
    credentials = Credentials(config, clock=now.clock, load=load)
    await credentials.current()
    (pod / "token").write_text(RENEWED)  # The kubelet replaces the file.
    now.now = 60
    assert (await credentials.current()).authorization == f"Bearer {RENEWED}"


async def test_many_refusals_cost_one_renewal() -> None:
    source, now = Source(), VirtualSleep()
    credentials = Credentials(config_of(), load=source.load, clock=now.clock)
    refused = await credentials.current()
    renewed = await asyncio.gather(*(credentials.renew(refused) for _ in range(20)))
    assert {access.authorization for access in renewed} == {"Bearer 2"}
    assert source.loads == 2


async def test_refused_credentials_are_renewed_again_only_after_a_pause() -> None:
    source, now = Source(), VirtualSleep()
    credentials = Credentials(config_of(), load=source.load, clock=now.clock)
    renewed = await credentials.renew(await credentials.current())
    assert await credentials.renew(renewed) is renewed
    now.now = 10
    assert await credentials.renew(renewed) is not renewed


async def test_refused_credentials_stay_in_use_while_the_kubeconfig_is_being_replaced() -> None:
    source, now = Source(), VirtualSleep()
    credentials = Credentials(config_of(), load=source.load, clock=now.clock)
    refused = await credentials.current()
    source.error = InvalidConnection("k8s", "the kubeconfig /k is empty", "Write a kubeconfig to it.")
    assert await credentials.renew(refused) is refused
    source.error = None
    now.now = 10
    assert (await credentials.renew(refused)).authorization == "Bearer 3"


def accepting(token: str) -> Any:
    async def handle(request: Request, connection: Connection) -> None:
        if request.headers["authorization"] == f"Bearer {token}":
            await connection.reply(200, {})
        else:
            await connection.reply(401, status(401, "Unauthorized"))

    return handle


async def test_refused_token_is_renewed_and_the_request_sent_again(tmp_path: Path) -> None:
    async with FaultServer(accepting(RENEWED)) as server:
        path = write_kubeconfig(tmp_path / "config", kubeconfig(server.url))
        async with Client(config_of(kube_config_path=path)) as client:
            await client._credentials.current()
            write_kubeconfig(tmp_path / "config", kubeconfig(server.url, user={"token": RENEWED}))
            await client.version()
            assert client.statistics().renewals == 1
    assert len(server.requests) == 2


# -- The log of credentials: one line when a renewal fails, one when it works again, and never the credentials -------

LOGGED_SECRET = "Bearer sesame-open-the-door"


class BreakableSource:
    """Gives a token that is good for a minute, unless it is broken."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_broken = False

    def load(self) -> Access:
        if self.is_broken:
            raise CredentialsFailed("k8s", "the issuer is away")
        return Access("http://x", LOGGED_SECRET, TlsConfig(), None, None, 60.0)

    def credentials(self) -> Credentials:
        config = ClusterConfig.from_extras("k8s", {"kube_config_path": "/nowhere"})
        return Credentials(config, clock=Clock(monotonic=lambda: self.now), load=self.load)


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, dict[str, Any]]]:
    records: list[Any] = [one for one in caplog.records if hasattr(one, "fields")]
    return [(one.levelname, one.what, one.fields) for one in records]


async def test_failed_renewal_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = BreakableSource()
    credentials = source.credentials()
    await credentials.current()
    source.is_broken = True
    for _ in range(5):
        source.now += RETRY_RENEWAL_S + 1
        await credentials.current()
    source.is_broken = False
    source.now += RETRY_RENEWAL_S + 1
    await credentials.current()
    (_, kept, why), (_, renewed, whose) = logged(caplog)
    assert (kept, renewed) == (
        "credentials could not be renewed, the current ones stay in use",
        "credentials renewed after a failure",
    )
    assert "the issuer is away" in why["cause"]
    assert whose == {"connection": "k8s"}


async def test_renewal_after_a_refusal_is_logged_without_credentials(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    credentials = BreakableSource().credentials()
    await credentials.renew(await credentials.current())
    what = "credentials renewed after a 401"
    assert logged(caplog) == [("DEBUG", what, {"connection": "k8s"})]
    assert "sesame" not in caplog.text


# -- TLS: which servers are trusted, client certificates, and keys that are not left on disk -------------------------

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


async def test_server_is_verified_by_its_authority() -> None:
    async with (
        FaultServer(empty, tls=SERVER.server_context()) as server,
        Client(connection_to(server.url)) as client,
    ):
        assert await client.version() == {}


async def test_server_of_another_name_is_not_trusted() -> None:
    async with (
        FaultServer(empty, tls=ELSEWHERE.server_context()) as server,
        Client(connection_to(server.url, authority=ELSEWHERE.certificate)) as client,
    ):
        with pytest.raises(TlsFailed):
            await client.version()


async def test_server_name_of_the_kubeconfig_is_the_one_expected() -> None:
    config = {"authority": ELSEWHERE.certificate, "cluster": {"tls-server-name": "api.example.org"}}
    async with (
        FaultServer(empty, tls=ELSEWHERE.server_context()) as server,
        Client(connection_to(server.url, **config)) as client,
    ):
        assert await client.version() == {}


async def test_client_certificate_is_shown_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    certificate, key = client_certificate()
    context = SERVER.server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode())
    user = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
    async with FaultServer(empty, tls=context) as server:
        async with Client(connection_to(server.url, user=user)) as client:
            assert await client.version() == {}
        async with Client(connection_to(server.url), retry_for_s=0) as client:
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

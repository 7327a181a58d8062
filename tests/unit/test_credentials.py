"""Where credentials come from, how they are renewed, and that no output contains them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.auth.credentials import Credentials
from airflow_provider_gangjobs.cluster.auth.redaction import redacted
from airflow_provider_gangjobs.cluster.auth.rest_config import RestConfig
from airflow_provider_gangjobs.cluster.auth.source import CredentialSource
from airflow_provider_gangjobs.cluster.auth.tls import environment_proxy
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import ClusterError, CredentialsFailed, InvalidConnection, Unauthorized
from gangjobs_sandbox.tls import issue
from tests.examples import examples
from tests.sandbox.node_processes import processes_with
from tests.timeouts import TIMEOUT_S
from tests.unit.fault_server import Connection, FaultServer, Request, config_for, kubeconfig, status

if TYPE_CHECKING:
    from tests.unit.conftest import Connect


SERVER = issue()
SECRET = "sesame-open-the-door"
OTHER = "open-open-open-sesame"


def extras(**given: Any) -> ClusterConfig:
    return ClusterConfig.from_extras("k8s", given)


def load(**given: Any) -> RestConfig:
    return CredentialSource(extras(**given)).load()


def write_kubeconfig(path: Path, content: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.fixture(autouse=True)
def _no_cluster_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No kubeconfig, no pod and no proxy of the machine that runs the tests."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The environment of a pod. Return the directory of its service account."""
    directory = tmp_path / "serviceaccount"
    directory.mkdir()
    (directory / "token").write_text(f"{SECRET}\n")
    (directory / "ca.crt").write_bytes(SERVER.certificate)
    (directory / "namespace").write_text("team")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return directory


def plugin(tmp_path: Path, body: str) -> dict[str, Any]:
    """A user whose token comes from a program."""
    path = tmp_path / "plugin"
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path), "interactiveMode": "Never"}}


def prints(**given: str) -> str:
    """The program of a plugin that gives this status."""
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": given}
    return f"print({json.dumps(json.dumps(credential))})"


# -- where they come from --------------------------------------------------------------------------------------


def test_kubeconfig_in_the_connection_is_used() -> None:
    material = load(kube_config=kubeconfig("https://here:6443/"))
    assert (material.base_url, material.authorization) == ("https://here:6443", f"Bearer {SECRET}")


def test_context_chooses_among_clusters() -> None:
    config = kubeconfig("https://here")
    config["clusters"].append({"name": "that", "cluster": {"server": "https://there"}})
    config["contexts"].append({"name": "there", "context": {"cluster": "that", "user": "me"}})
    assert load(kube_config=config, cluster_context="there").base_url == "https://there"


def test_file_is_read_with_paths_relative_to_it(tmp_path: Path) -> None:
    config = kubeconfig("https://here", cluster={"certificate-authority": "pki/ca.crt"}, user={"tokenFile": "token"})
    path = write_kubeconfig(tmp_path / "kube" / "config", config)
    (tmp_path / "kube" / "pki").mkdir()
    (tmp_path / "kube" / "pki" / "ca.crt").write_bytes(b"the CA")
    (tmp_path / "kube" / "token").write_text(SECRET)
    material = load(kube_config_path=path)
    assert (material.tls.ca, material.authorization) == (b"the CA", f"Bearer {SECRET}")


def test_default_file_is_merged_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kubeconfig("https://first")
    second = {k: v for k, v in kubeconfig("https://second").items() if k != "current-context"}
    paths = [
        write_kubeconfig(tmp_path / "1", first),
        str(tmp_path / "missing"),
        write_kubeconfig(tmp_path / "2", second),
    ]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(paths))
    assert load().base_url == "https://first"


def test_default_file_is_the_one_of_kubectl(tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "home" / ".kube" / "config", kubeconfig("https://home"))
    assert load().base_url == "https://home"


def test_default_goes_before_the_pod(pod: Path, tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "home" / ".kube" / "config", kubeconfig("https://home"))
    assert load().base_url == "https://home"


@pytest.mark.parametrize("given_extras", [{}, {"in_cluster": True}], ids=str)
def test_pod_uses_its_service_account(pod: Path, given_extras: dict[str, Any]) -> None:
    material = CredentialSource(extras(**given_extras), service_account_dir=pod).load()
    assert (material.base_url, material.authorization, material.namespace, material.tls.ca) == (
        "https://10.0.0.1:443",
        f"Bearer {SECRET}",
        "team",
        SERVER.certificate,
    )


@pytest.mark.parametrize(
    ("file", "content", "error", "message"),
    [
        ("token", None, InvalidConnection, "token cannot be read: No such file.*automountServiceAccountToken"),
        ("token", "", CredentialsFailed, "token is empty"),
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
        CredentialSource(extras(in_cluster=True), service_account_dir=pod).load()


def test_service_account_is_read_as_by_the_official_client(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader

    for host in ("10.0.0.1", "fd00::1", "kubernetes.default"):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        theirs = Configuration()
        InClusterConfigLoader(str(pod / "token"), str(pod / "ca.crt")).load_and_set(theirs)
        ours = CredentialSource(extras(in_cluster=True), service_account_dir=pod).load()
        assert (ours.base_url, ours.authorization) == (theirs.host, theirs.api_key["BearerToken"].strip())


def test_basic_authentication_works() -> None:
    user = {"username": "me", "password": SECRET}
    basic = base64.b64encode(f"me:{SECRET}".encode()).decode()
    assert load(kube_config=kubeconfig("https://here", user=user)).authorization == f"Basic {basic}"


def test_cluster_settings_are_kept() -> None:
    cluster = {"insecure-skip-tls-verify": True, "tls-server-name": "api", "proxy-url": "http://proxy:3128"}
    material = load(kube_config=kubeconfig("https://here", cluster=cluster))
    assert (material.tls.verify, material.server_hostname, material.proxy) == (False, "api", "http://proxy:3128")


def test_verification_can_be_switched_off_by_the_connection() -> None:
    assert not load(kube_config=kubeconfig("https://here"), disable_verify_ssl=True).tls.verify


def test_loading_imports_no_client_library(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", kubeconfig("https://here", user=plugin(tmp_path, prints(token=OTHER))))
    program = f"""
import asyncio, sys
from airflow_provider_gangjobs.cluster.auth.credentials import Credentials
from airflow_provider_gangjobs.cluster.config import ClusterConfig
access = asyncio.run(Credentials(ClusterConfig.from_extras("k8s", {{"kube_config_path": {path!r}}})).current())
assert access.authorization == "Bearer {OTHER}"
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
        ({"kube_config": kubeconfig("https://h", cluster={"certificate-authority": "/no/ca"})}, "'/no/ca'"),
    ],
    ids=str,
)
def test_missing_things_are_named(given_extras: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConnection, match=message):
        load(**given_extras)


@pytest.mark.parametrize("text", ["", "a: [", "- a", "just words"])
def test_unreadable_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InvalidConnection, match="config"):
        load(kube_config_path=str(path))


# -- nothing to be seen ----------------------------------------------------------------------------------------


def _all_that_a_log_would_show(config: ClusterConfig) -> str:
    try:
        return repr(CredentialSource(config).load())
    except ClusterError as error:
        return f"{error!r} {''.join(traceback.format_exception(error))}"


USERS = [
    {"token": SECRET},
    {"username": "me", "password": SECRET},
    {"auth-provider": {"name": "oidc", "config": {"refresh-token": SECRET, "id-token": "a.b"}}},
    {"auth-provider": {"name": "gcp", "config": {"access-token": SECRET, "expiry": "yesterday"}}},
    {"exec": {"command": "false", "env": [{"name": "KEY", "value": SECRET}]}},
    {"client-certificate-data": base64.b64encode(b"x").decode(), "client-key-data": "!" + SECRET},
]


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [p for key, inner in items for p in [(*at, key), *_paths(inner, (*at, key))]]


@settings(max_examples=examples(150), deadline=None)
@given(user=st.sampled_from(USERS), data=st.data())
def test_no_secret_in_any_complaint(user: dict[str, Any], data: st.DataObject) -> None:
    """Whatever is missing from a kubeconfig, or is of another type, no message shows what is secret in it."""
    config = json.loads(json.dumps(kubeconfig("https://here", user=user)))
    *parents, last = data.draw(st.sampled_from(_paths(config)))
    place = config
    for key in parents:
        place = place[key]
    broken = data.draw(st.sampled_from(["delete", None, "", 7, [], {}, [SECRET], {"name": SECRET}]))
    if broken == "delete":
        del place[last]
    else:
        place[last] = broken
    with tempfile.TemporaryDirectory() as directory:
        path = write_kubeconfig(Path(directory, "config"), config)
        assert SECRET not in _all_that_a_log_would_show(extras(kube_config=config))
        assert SECRET not in _all_that_a_log_would_show(extras(kube_config_path=path))


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


# -- plugins ---------------------------------------------------------------------------------------------------


def test_plugin_gives_the_token(tmp_path: Path) -> None:
    material = load(kube_config=kubeconfig("https://here", user=plugin(tmp_path, prints(token=OTHER))))
    assert (material.authorization, material.renew_in_s) == (f"Bearer {OTHER}", None)


def test_plugin_may_give_a_certificate_instead(tmp_path: Path) -> None:
    body = prints(clientCertificateData="C", clientKeyData="K")
    material = load(kube_config=kubeconfig("https://here", user=plugin(tmp_path, body)))
    assert (material.authorization, material.tls.certificate, material.tls.key) == (None, b"C", b"K")


@pytest.mark.parametrize(
    ("expiry", "low_s", "high_s"),
    [("2999-01-01T00:00:00Z", 1e9, 1e11), ("2001-01-01T00:00:00Z", 1.0, 1.0)],
    ids=["far", "past"],
)
def test_plugin_token_is_renewed_before_it_expires(tmp_path: Path, expiry: str, low_s: float, high_s: float) -> None:
    user = plugin(tmp_path, prints(token=OTHER, expirationTimestamp=expiry))
    renew_in_s = load(kube_config=kubeconfig("https://here", user=user)).renew_in_s
    assert renew_in_s is not None
    assert low_s <= renew_in_s <= high_s


def test_plugin_that_fails_is_quoted_without_secrets(tmp_path: Path) -> None:
    user = plugin(tmp_path, f"import sys; sys.exit('no login for {SECRET}')")
    user["exec"]["env"] = [{"name": "PASSWORD", "value": SECRET}]
    with pytest.raises(CredentialsFailed, match="no login for") as caught:
        load(kube_config=kubeconfig("https://here", user=user))
    assert SECRET not in str(caught.value)


def test_plugin_that_hangs_is_given_up_and_gone(tmp_path: Path) -> None:
    config = extras(kube_config=kubeconfig("https://here", user=plugin(tmp_path, "import time; time.sleep(600)")))
    with pytest.raises(CredentialsFailed, match="did not answer within 1 s"):
        CredentialSource(config, timeout_s=1).load()
    deadline = time.monotonic() + TIMEOUT_S
    while processes_with(str(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def test_plugin_does_not_block_the_loop(tmp_path: Path) -> None:
    """The plugin waits for something that only the loop can bring about."""
    go = tmp_path / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    credentials = Credentials(
        extras(kube_config=kubeconfig("http://here", user=plugin(tmp_path, waits + prints(token=OTHER))))
    )
    loading = asyncio.create_task(credentials.current())
    await asyncio.sleep(0.01)
    assert not loading.done()
    go.touch()
    assert (await loading).authorization == f"Bearer {OTHER}"


# -- renewal ---------------------------------------------------------------------------------------------------


class Source:
    """Gives another token at each load, or fails."""

    def __init__(self, *, renew_in_s: float | None = None, fails: bool = False) -> None:
        self.loads = 0
        self.renew_in_s = renew_in_s
        self.fails = fails

    def load(self) -> RestConfig:
        self.loads += 1
        if self.fails:
            raise CredentialsFailed("k8s", "no")
        return RestConfig("http://here", f"Bearer {self.loads}", renew_in_s=self.renew_in_s)


class Now:
    now = 0.0

    @property
    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now)


async def test_credentials_are_loaded_once_for_all() -> None:
    source = Source()
    credentials = Credentials(extras(), load=source.load)
    await asyncio.gather(*(credentials.current() for _ in range(20)))
    assert source.loads == 1


async def test_credentials_are_renewed_when_due() -> None:
    source, now = Source(renew_in_s=60), Now()
    credentials = Credentials(extras(), load=source.load, clock=now.clock)
    seen = []
    for now.now in (0, 59, 60, 119, 120):
        seen.append((await credentials.current()).authorization)
    assert seen == ["Bearer 1", "Bearer 1", "Bearer 2", "Bearer 2", "Bearer 3"]


async def test_failed_renewal_keeps_what_there_is() -> None:
    source, now = Source(renew_in_s=60), Now()
    credentials = Credentials(extras(), load=source.load, clock=now.clock)
    await credentials.current()
    source.fails = True
    for now.now in (60, 61, 119, 120):
        assert (await credentials.current()).authorization == "Bearer 1"
    assert source.loads == 3


async def test_service_account_token_is_read_again_each_minute(pod: Path) -> None:
    now, config = Now(), extras(in_cluster=True)
    source = CredentialSource(config, service_account_dir=pod)
    credentials = Credentials(config, clock=now.clock, load=source.load)
    await credentials.current()
    (pod / "token").write_text(OTHER)  # as the kubelet does
    now.now = 60
    assert (await credentials.current()).authorization == f"Bearer {OTHER}"


async def test_many_refusals_cost_one_renewal() -> None:
    source, now = Source(), Now()
    credentials = Credentials(extras(), load=source.load, clock=now.clock)
    refused = await credentials.current()
    renewed = await asyncio.gather(*(credentials.renew(refused) for _ in range(20)))
    assert {access.authorization for access in renewed} == {"Bearer 2"}
    assert source.loads == 2


async def test_renewal_is_not_forced_again_at_once() -> None:
    source, now = Source(), Now()
    credentials = Credentials(extras(), load=source.load, clock=now.clock)
    renewed = await credentials.renew(await credentials.current())
    assert await credentials.renew(renewed) is renewed
    now.now = 10
    assert await credentials.renew(renewed) is not renewed


def only_lets_in(token: str) -> Any:
    async def handle(request: Request, connection: Connection) -> None:
        if request.headers["authorization"] == f"Bearer {token}":
            await connection.reply(200, {})
        else:
            await connection.reply(401, status(401, "Unauthorized"))

    return handle


async def test_refused_token_is_renewed_and_the_request_sent_again(connect: Connect, tmp_path: Path) -> None:
    async with FaultServer(only_lets_in(OTHER)) as server:
        path = write_kubeconfig(tmp_path / "config", kubeconfig(server.url))
        async with connect(extras(kube_config_path=path)) as client:
            await client._credentials.current()
            write_kubeconfig(tmp_path / "config", kubeconfig(server.url, user={"token": OTHER}))
            await client.version()
            assert client.statistics().renewals == 1
    assert len(server.requests) == 2


async def test_token_refused_twice_is_an_error(connect: Connect) -> None:
    async with FaultServer(only_lets_in(OTHER)) as server, connect(config_for(server.url)) as client:
        with pytest.raises(Unauthorized):
            await client.version()
    assert len(server.requests) == 2


# -- proxies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "no_proxy", "proxy"),
    [
        ("https://10.96.0.1:443", "", "http://proxy:3128"),
        ("https://10.96.0.1:443", "10.0.0.0/8,example.org", None),
        ("https://10.96.0.1:443", "10.96.0.1", None),
        ("https://api.example.org", ".example.org", None),
        ("https://api.example.org", "10.0.0.0/8", "http://proxy:3128"),
        ("https://[fd00::1]:443", "fd00::/8", None),
        ("http://api.example.org", "", None),
    ],
)
def test_proxy_of_the_environment(url: str, no_proxy: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert environment_proxy(url) == proxy


async def test_requests_go_through_the_proxy(connect: Connect) -> None:
    async def handle(request: Request, connection: Connection) -> None:
        await connection.reply(200, {"asked": request.headers["host"]})

    async with FaultServer(handle) as proxy:
        config = kubeconfig("http://api.invalid", cluster={"proxy-url": proxy.url})
        async with connect(extras(kube_config=config)) as client:
            assert await client.version() == {"asked": "api.invalid"}

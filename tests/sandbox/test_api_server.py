"""Serving: ports, TLS, kubeconfig and shutdown, and the parameters of the log subresource."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gangjobs_sandbox import tls
from gangjobs_sandbox.api import create_app, protobuf, serving
from gangjobs_sandbox.cluster import write_kubeconfig
from gangjobs_sandbox.registry import Registry
from tests.provider.virtual_time import in_virtual_time
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def client(url: str, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=TIMEOUT_S, **options)


async def test_port_is_free_again_after_stopping() -> None:
    async with serving(create_app(Registry(), token=None)) as address:
        port = address.port
    async with serving(create_app(Registry(), token=None), port=port) as again:
        assert again.port == port


@in_virtual_time
async def test_stopping_does_not_wait_for_watches() -> None:
    """A watch could last for half an hour."""
    loop = asyncio.get_running_loop()
    async with client("") as http, serving(create_app(Registry(), token=None)) as address:
        url = f"{address.url}/api/v1/pods?watch=1"
        async with http.stream("GET", url) as response:
            assert response.status_code == 200
            started = loop.time()
    assert loop.time() - started < 1


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"k8s\x00", b"k8s\x00\x0a\x05", b"k8s\x00\x08\x01"],
    ids=["empty", "JSON", "no kind", "cut", "number"],
)
async def test_body_that_is_not_protobuf_is_refused(body: bytes) -> None:
    async with serving(create_app(Registry(), token=None)) as address, client(address.url) as http:
        headers = {"Content-Type": "application/vnd.kubernetes.protobuf"}
        response = await http.post("/api/v1/namespaces", content=body, headers=headers)
    assert response.status_code == 400
    assert "the object provided is unrecognized (must be of type Namespace)" in response.json()["message"]


@given(st.binary(max_size=60), st.sampled_from(["v1 Pod", "batch/v1 Job", "v1 Secret", "v1 Event"]))
def test_protobuf_of_any_bytes_is_decoded_or_refused(raw: bytes, kind: str) -> None:
    version, name = (part.encode() for part in kind.split())
    meta = bytes([0x0A, len(version)]) + version + bytes([0x12, len(name)]) + name
    body = b"k8s\x00" + bytes([0x0A, len(meta)]) + meta + bytes([0x12, len(raw)]) + raw
    with contextlib.suppress(ValueError):
        assert protobuf.decode(body)["kind"] == name.decode()


async def test_certificate_is_trusted_by_its_own_client_only() -> None:
    certificate = tls.issue()
    app = create_app(Registry(), token=None)
    async with serving(app, certificate=certificate) as address:
        async with client(address.url, verify=certificate.client_context()) as http:
            assert (await http.get("/readyz")).text == "ok"
        async with client(address.url, verify=tls.issue().client_context()) as http:
            with pytest.raises(httpx.ConnectError):
                await http.get("/readyz")


def test_stored_certificate_is_reused(tmp_path: Path) -> None:
    path = tmp_path / "certificate.pem"
    first = tls.load_or_issue(path)
    assert tls.load_or_issue(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_secrets_are_not_in_the_repr(tmp_path: Path) -> None:
    assert "PRIVATE KEY" not in repr(tls.load_or_issue(tmp_path / "c.pem"))


def test_kubeconfig_is_complete_and_private(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "new" / "config", "https://h:1", "t", authority=b"PEM")
    config = yaml.safe_load(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert config["clusters"][0]["cluster"] == {"server": "https://h:1", "certificate-authority-data": "UEVN"}
    assert config["users"][0]["user"] == {"token": "t"}
    assert config["contexts"][0]["context"]["namespace"] == "default"


def test_kubeconfig_replaces_a_readable_one_privately(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("old")
    path.chmod(0o644)
    write_kubeconfig(path, "https://h:1", "t")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


LOG = "/api/v1/namespaces/default/pods/a/log"


class LoggedPod:
    """A pod on a node, and the source of its log, which keeps its arguments."""

    def __init__(self) -> None:
        self.registry = Registry()
        spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "x"}]}
        self.registry.create("pods", {"metadata": {"name": "a"}, "spec": spec})
        self.asked: dict[str, Any] = {}

    def start(self, **state: Any) -> None:
        status = {"containerStatuses": [{"name": "main", "ready": True, "state": {"running": {}}, **state}]}
        self.registry.patch("pods", "a", "default", {"status": status}, subresource="status")

    async def open(self, namespace: str, pod: str, container: str, **options: Any) -> AsyncIterator[bytes]:
        self.asked = {"pod": f"{namespace}/{pod}/{container}", **options}
        if options["tail_lines"] == 0:
            raise LookupError("no log file")
        yield b"one\n"

    async def get(self, **params: str) -> httpx.Response:
        """Read the log over HTTP."""
        app = create_app(self.registry, token=None, logs=self)
        async with serving(app) as address, client(address.url) as http:
            return await http.get(LOG, params=params)


@pytest.fixture
def logged() -> LoggedPod:
    return LoggedPod()


async def test_log_of_a_container_that_waits_is_refused(logged: LoggedPod) -> None:
    logged.start(state={"waiting": {"reason": "ImagePullBackOff"}})
    response = await logged.get()
    assert response.status_code == 400
    assert response.json()["message"] == 'container "main" in pod "a" is waiting to start: ImagePullBackOff'


async def test_log_options_reach_the_source(logged: LoggedPod) -> None:
    logged.start()
    response = await logged.get(
        tailLines="5", limitBytes="9", sinceTime="2026-01-01T10:00:03.9+02:00", timestamps="true"
    )
    assert (response.text, response.headers["content-type"]) == ("one\n", "text/plain; charset=utf-8")
    assert logged.asked == {
        "pod": "default/a/main",
        "follow": False,
        "tail_lines": 5,
        "since": datetime(2026, 1, 1, 8, 0, 3, tzinfo=UTC),
        "timestamps": True,
        "limit_bytes": 9,
        "previous": False,
    }


REFUSED_LOGS = {
    "no log": ({"tailLines": "0"}, 400, "no log file"),
    "a number of seconds and a time": (
        {"sinceSeconds": "3", "sinceTime": "2026-01-01T10:00:03Z"},
        422,
        "at most one of",
    ),
}


@pytest.mark.parametrize(("options", "code", "message"), REFUSED_LOGS.values(), ids=REFUSED_LOGS)
async def test_log_that_cannot_be_read_is_refused(
    logged: LoggedPod, options: dict[str, str], code: int, message: str
) -> None:
    logged.start()
    response = await logged.get(**options)
    assert (response.status_code, message in response.json()["message"]) == (code, True)


async def test_previous_log_requires_a_restart(logged: LoggedPod) -> None:
    logged.start()
    assert (await logged.get(previous="true")).status_code == 400
    logged.start(lastState={"terminated": {"exitCode": 1}})
    assert (await logged.get(previous="true")).text == "one\n"
    assert logged.asked["previous"] is True


async def test_disconnect_during_a_request_is_not_an_error() -> None:
    """A request whose body is incomplete is not executed."""
    registry = Registry()
    parts = iter([{"type": "http.request", "body": b'{"metadata"', "more_body": True}, {"type": "http.disconnect"}])
    headers = [(b"content-type", b"application/json"), (b"content-length", b"100")]
    path = "/api/v1/namespaces/default/configmaps"
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    scope |= {"scheme": "http", "server": ("127.0.0.1", 80), "root_path": "", "http_version": "1.1"}
    answered: list[Any] = []

    async def receive() -> Any:
        return next(parts)

    async def send(message: Any) -> None:
        answered.append(message)

    await create_app(registry, token=None)(scope, receive, send)
    assert answered[0]["status"] == 400
    assert registry.list("configmaps", "default") == []

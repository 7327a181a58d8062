"""When credentials are loaded again: before they expire, and after the server has refused them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.cluster.auth.credentials import Access, Credentials, load_access
from airflow_provider_gangjobs.cluster.errors import ClusterError, CredentialsFailed, InvalidConnection
from gangjobs_sandbox.tls import issue
from tests.unit.credential_sources import config_of, service_account, write_kubeconfig
from tests.unit.fault_server import Connection, FaultServer, Request, kubeconfig, status
from tests.unit.virtual_sleep import VirtualSleep

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.unit.conftest import Connect


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


async def test_refused_token_is_renewed_and_the_request_sent_again(connect: Connect, tmp_path: Path) -> None:
    async with FaultServer(accepting(RENEWED)) as server:
        path = write_kubeconfig(tmp_path / "config", kubeconfig(server.url))
        async with connect(config_of(kube_config_path=path)) as client:
            await client._credentials.current()
            write_kubeconfig(tmp_path / "config", kubeconfig(server.url, user={"token": RENEWED}))
            await client.version()
            assert client.statistics().renewals == 1
    assert len(server.requests) == 2

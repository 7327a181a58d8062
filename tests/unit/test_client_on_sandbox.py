"""Client, discovery and informer against the embedded cluster's real REST API, over TLS, in virtual time."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.client import Client
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.config import ClusterConfig
from airflow_provider_gangjobs.cluster.errors import (
    TlsFailed,
)
from airflow_provider_gangjobs.cluster.informer import Informer, InformerFactory
from airflow_provider_gangjobs.cluster.informer.reflector import InformerConfig
from airflow_provider_gangjobs.kube.resources import JOBS
from airflow_provider_gangjobs.kube.views import JobView
from gangjobs_sandbox.api.app import create_app
from gangjobs_sandbox.api.faults import Fault, FaultKind, Faults
from gangjobs_sandbox.api.server import serving
from gangjobs_sandbox.cluster import kubeconfig
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.tls import Certificate, issue
from tests.provider.virtual_time import in_virtual_time
from tests.timeouts import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


CERTIFICATE = issue()
TOKEN = "sesame-open-the-door"
HURRIED = InformerConfig(
    backoff_base_s=0.02, backoff_cap_s=0.2, healthy_after_s=0.1, watch_timeout_s=(2, 3), idle_margin_s=-1.8
)


@dataclass
class Cluster:
    registry: Registry
    faults: Faults
    url: str

    def config(self, *, authority: Certificate | None = CERTIFICATE, **extras: Any) -> ClusterConfig:
        content = kubeconfig(self.url, TOKEN, authority=authority.certificate if authority else None)
        return ClusterConfig.from_extras("sandbox", {"kube_config": content, **extras})


@asynccontextmanager
async def cluster() -> AsyncGenerator[Cluster, None]:
    registry, faults = Registry(release="1.37"), Faults()
    app = create_app(registry, token=TOKEN, faults=faults)
    async with serving(app, certificate=CERTIFICATE) as address:
        yield Cluster(registry, faults, address.url)


def virtual() -> Clock:
    """The time of the test's loop, and the same delays each time."""
    return Clock(monotonic=asyncio.get_running_loop().time, random=random.Random(5))


@asynccontextmanager
async def watched(kind: type[Any], resource: Any = JOBS) -> AsyncGenerator[tuple[Cluster, Client, Informer[Any]], None]:
    async with cluster() as running, Client(running.config(), clock=virtual()) as client:
        registry = InformerFactory(config=HURRIED, clock=virtual())
        async with registry.acquire(client, resource, "default", "gang", decode=kind, index=by_name) as informer:
            assert await informer.synced(10)
            await until(lambda: informer.statistics().watches_open == 1)
            yield running, client, informer
        await registry.aclose()


def by_name(view: Any) -> str:
    name: str = view.metadata.name
    return name


def job(name: str = "a", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "python"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    metadata = {"name": name, "labels": {"gang": name}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template, **spec}}


# -- who is who ------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_unknown_authority_is_not_trusted() -> None:
    async with cluster() as running, Client(running.config(authority=issue())) as client:
        with pytest.raises(TlsFailed):
            await client.list(JOBS, "default")


@in_virtual_time
async def test_verification_can_be_switched_off() -> None:
    async with (
        cluster() as running,
        Client(running.config(authority=None, disable_verify_ssl=True)) as client,
    ):
        assert await client.list(JOBS, "default") == []


# -- informer --------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_informer_delivers_the_creation_change_and_deletion_of_a_job() -> None:
    async with watched(JobView) as (_, client, jobs):
        subscription = jobs.subscribe("a")
        created = await client.create(JOBS, job(suspend=True), "default")
        uid = created["metadata"]["uid"]
        assert await subscription.changed(10)
        assert subscription.objects()[uid].spec.suspend is True
        await client.patch(JOBS, "a", "default", {"spec": {"suspend": False}})
        assert await subscription.changed(10)
        assert subscription.objects()[uid].spec.suspend is False
        await client.delete(JOBS, "a", "default")
        assert await subscription.changed(10)
        assert (subscription.objects(), list(subscription.take_deleted())) == ({}, [uid])
        assert jobs.statistics().decode_errors == 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault(FaultKind.STATUS, query="watch=", code=410),
        Fault(FaultKind.STATUS, query="watch=", code=429, retry_after_s=0),
        Fault(FaultKind.STATUS, query="watch=", code=500, times=7),
        Fault(FaultKind.DROP_BEFORE, query="watch="),
        Fault(FaultKind.DROP_AFTER, query="watch=", chunks=1),
        Fault(FaultKind.HALF_OPEN, query="watch="),
        Fault(FaultKind.STATUS, method="GET", code=500, times=5),
    ],
    ids=["410", "429", "500", "dropped", "dropped later", "half-open", "all reads fail"],
)
@in_virtual_time
async def test_informer_survives(fault: Fault) -> None:
    async with watched(JobView) as (running, client, jobs):
        running.faults.add(fault)
        opened = jobs.statistics().watches_opened
        await until(lambda: jobs.statistics().watches_opened > opened or not running.faults.armed())
        await client.create(JOBS, job(), "default")
        await until(lambda: bool(jobs.objects("a")))
        assert jobs.statistics().watches_opened < 20

"""The capabilities of a cluster: what discovery shows, what a dry run proves, and what no request can prove.

An API server that serves the Workload API may still drop the pods' link to their group from a Job: the server drops
the fields of a disabled feature gate silently. A dry run of a Job shows whether the server keeps the link. No request
shows whether the scheduler and the Job controller have their feature gates enabled. Only the placement of a gang does.

A Job for dry runs. The server never stores it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.discovery import discover
from airflow_provider_gangjobs.cluster.errors import BadRequest, ClusterError, Invalid
from airflow_provider_gangjobs.cluster.loop_local import EXPIRY_S, UNKNOWN_EXPIRY_S, Answer, cached_read
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.schedulers.base import SchedulingGroup
from airflow_provider_gangjobs.gang.schedulers.native import DISCOVERED_DIALECTS, Dialect, NativeDialect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.discovery import DiscoveredResources


PROBE: Final = "gangjobs-probe"
"""Name of the Job, and of the objects of its group."""
PROBE_SIZE: Final = 2
"""Number of its ranks."""


def probe_job(namespace: str) -> dict[str, Any]:
    """Return an Indexed Job whose pods can be a gang."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": PROBE}]}
    spec = {
        "suspend": True,
        "completionMode": "Indexed",
        "completions": PROBE_SIZE,
        "parallelism": PROBE_SIZE,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    metadata = {"name": PROBE, "namespace": namespace}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


API_SERVER: Final = "kube-apiserver"


@dataclass(frozen=True)
class Gate:
    """A feature gate in one component of the control plane."""

    name: str
    component: str
    is_on: bool | None
    """None if no request can show the state of the gate."""
    evidence: str


@dataclass(frozen=True)
class Capabilities:
    """What is known about a cluster, with the evidence."""

    discovered: DiscoveredResources
    dialects: tuple[str, ...]
    """The dialects in which gangs can be submitted to this cluster, in order of preference."""
    fields: Mapping[str, bool | None] = field(default_factory=dict)
    """For each path of a Job's field, whether a dry run keeps the field. None if this is unknown."""
    gates: tuple[Gate, ...] = ()

    @property
    def release(self) -> str | None:
        """The release, such as "1.37". None if it is unknown."""
        return self.discovered.release

    @property
    def git_version(self) -> str | None:
        """The version of the server, such as "v1.37.0". None if it is unknown."""
        return self.discovered.git_version

    @property
    def scheduling_versions(self) -> tuple[str, ...]:
        """The versions of scheduling.k8s.io that serve Workloads, the server's preferred one first."""
        return self.discovered.scheduling_versions

    @property
    def unknown(self) -> Mapping[str, str]:
        """What discovery could not read, and why."""
        return self.discovered.unknown

    @property
    def holds_gangs(self) -> bool | None:
        """Whether the API server can store a gang. None if this is unknown."""
        if not self.dialects:
            return None if self.unknown else False
        return next(gate.is_on for gate in self.gates if gate.component == API_SERVER)


async def read_capabilities(client: Client, *, namespace: str) -> Capabilities:
    """Read the capabilities: discovery, and at most two dry runs. The result is cached for as long as discovery is.

    Raises:
        ClusterError: the cluster could not be reached.
    """

    async def read() -> Answer[Capabilities]:
        found = await _read_capabilities(client, namespace)
        is_whole = not found.unknown and None not in found.fields.values()
        return Answer(found, EXPIRY_S if is_whole else UNKNOWN_EXPIRY_S)

    return await cached_read(client, (Capabilities, namespace), read)


async def _read_capabilities(client: Client, namespace: str) -> Capabilities:
    known = await discover(client)
    offered = tuple(dialect for dialect in DISCOVERED_DIALECTS if dialect.is_served(known.resources))
    kept, evidence = {}, {}
    for dialect in (*offered[:1], NativeDialect()):
        kept[dialect.link_path], evidence[dialect.link_path] = await _keeps_link(client, namespace, dialect)
    native = (NativeDialect.name,) if kept[NativeDialect.link_path] else ()
    dialects = tuple(dialect.name for dialect in offered) + native
    return Capabilities(known, dialects, kept, _gates(offered, kept, evidence))


async def _keeps_link(client: Client, namespace: str, dialect: Dialect) -> tuple[bool | None, str]:
    """Return whether the server would store a Job with the field of this dialect, and the evidence."""
    group = SchedulingGroup(PROBE, namespace, PROBE_SIZE, PROBE_SIZE)
    job = dialect.with_link(probe_job(namespace), group)
    try:
        stored = await client.create(JOBS, job, namespace, dry_run=True)
    except (BadRequest, Invalid) as error:
        return False, f"the server refuses a dry run: {error.message}"
    except ClusterError as error:
        return None, f"a dry run failed: {error}"
    if dialect.has_link(stored, group):
        return True, f"a dry run keeps {dialect.link_path}"
    return False, f"a dry run drops {dialect.link_path}"


_UNKNOWN_UNTIL_PLACED: Final = "no request shows this; it shows when a gang is placed"


def _gates(
    offered: tuple[Dialect, ...], kept: Mapping[str, bool | None], evidence: Mapping[str, str]
) -> tuple[Gate, ...]:
    link = offered[0].link_path if offered else None
    generic = Gate("GenericWorkload", API_SERVER, False, "no version of scheduling.k8s.io serves Workloads")
    if link is not None:
        generic = Gate("GenericWorkload", API_SERVER, kept[link], evidence[link])
    native = NativeDialect.link_path
    return (
        generic,
        Gate("WorkloadWithJob", API_SERVER, kept[native], evidence[native]),
        Gate(
            "WorkloadWithJob",
            "kube-controller-manager",
            None,
            "no request shows this; the provider does not need the gate",
        ),
        Gate("GenericWorkload", "kube-scheduler", None, _UNKNOWN_UNTIL_PLACED),
        Gate("GangScheduling", "kube-scheduler", None, f"merged into GenericWorkload in 1.37; {_UNKNOWN_UNTIL_PLACED}"),
    )

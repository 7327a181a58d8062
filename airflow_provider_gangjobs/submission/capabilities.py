"""What a cluster can do with gangs: what discovery tells, what a dry run proves, and what nobody can prove.

A served API does not mean that a Job keeps its pods' link to a group: the field of a gate that is off is
dropped without a word. A dry run of a Job tells. Whether the scheduler and the Job controller have their
gates on cannot be asked for by any request; it shows when a gang is placed, or is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.discovery import EXPIRY_S, UNKNOWN_EXPIRY_S, discover
from airflow_provider_gangjobs.cluster.errors import ApiError, BadRequest, ClusterError, Invalid
from airflow_provider_gangjobs.cluster.loop_local import loop_local
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.render.dialects import DISCOVERED_DIALECTS, Dialect, NativeDialect, SchedulingGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.cluster.discovery import DiscoveredResources

PROBE: Final = "gangjobs-probe"
API_SERVER: Final = "kube-apiserver"
_SIZE: Final = 2


@dataclass(frozen=True)
class Gate:
    """A feature gate in one component of the control plane."""

    name: str
    component: str
    is_on: bool | None
    """None: no request can tell."""
    evidence: str


@dataclass(frozen=True)
class Capabilities:
    """What is known of a cluster, and how."""

    discovered: DiscoveredResources
    dialects: tuple[str, ...]
    """Forms in which gangs can be submitted here, the best first."""
    fields: Mapping[str, bool | None] = field(default_factory=dict)
    """Path of a Job's field -> whether a dry run keeps it; None if that could not be found out."""
    gates: tuple[Gate, ...] = ()

    @property
    def release(self) -> str | None:
        """Such as "1.37"; None if not known."""
        return self.discovered.release

    @property
    def git_version(self) -> str | None:
        """Such as "v1.37.0"; None if not known."""
        return self.discovered.git_version

    @property
    def scheduling_versions(self) -> tuple[str, ...]:
        """The versions of scheduling.k8s.io that serve Workloads, the server's preferred one first."""
        return self.discovered.scheduling_versions

    @property
    def unknown(self) -> Mapping[str, str]:
        """What discovery could not find out, and why."""
        return self.discovered.unknown

    @property
    def holds_gangs(self) -> bool | None:
        """Whether the API server can hold a gang; None if that is not known."""
        if not self.dialects:
            return None if self.unknown else False
        return next(gate.is_on for gate in self.gates if gate.component == API_SERVER)


async def read_capabilities(client: Client, *, namespace: str, clock: Clock | None = None) -> Capabilities:
    """Ask for all of it, with two dry runs beyond discovery; remembered as long as discovery is.

    Raises:
        ClusterError: nothing could be asked at all.
    """
    return await loop_local(_Cache).get(client, namespace, clock or Clock())


class _Cache:
    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[float, Capabilities]] = {}

    async def get(self, client: Client, namespace: str, clock: Clock) -> Capabilities:
        key = (client.config.key, namespace)
        expires_at, kept = self._kept.get(key, (float("-inf"), None))
        if kept is None or clock.monotonic() >= expires_at:
            kept = await _read_capabilities(client, namespace, clock)
            is_whole = not kept.unknown and None not in kept.fields.values()
            self._kept[key] = (clock.monotonic() + (EXPIRY_S if is_whole else UNKNOWN_EXPIRY_S), kept)
        return kept


async def _read_capabilities(client: Client, namespace: str, clock: Clock) -> Capabilities:
    known = await discover(client, clock=clock)
    offered = tuple(d for d in DISCOVERED_DIALECTS if d.required_resources <= set(known.resources.get(d.version, ())))
    kept, evidence = {}, {}
    for dialect in (*offered[:1], NativeDialect()):
        kept[dialect.link_path], evidence[dialect.link_path] = await _keeps_link(client, namespace, dialect)
    native = (NativeDialect.name,) if kept[NativeDialect.link_path] else ()
    dialects = tuple(dialect.name for dialect in offered) + native
    return Capabilities(known, dialects, kept, _gates(offered, kept, evidence))


async def _keeps_link(client: Client, namespace: str, dialect: Dialect) -> tuple[bool | None, str]:
    """Whether the server would store a Job with this dialect's field, and how that is known."""
    group = SchedulingGroup(PROBE, namespace, _SIZE, _SIZE)
    job = dialect.with_link(_probe_job(namespace), group)
    try:
        stored = await client.create(JOBS, job, namespace, dry_run=True)
    except (BadRequest, Invalid) as error:
        return False, f"a dry run is refused: {error.message}"
    except (ApiError, ClusterError) as error:
        return None, f"a dry run could not be made: {error}"
    if dialect.has_link(stored, group):
        return True, f"a dry run keeps {dialect.link_path}"
    return False, f"a dry run drops {dialect.link_path}"


def _probe_job(namespace: str) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": PROBE}]}
    spec = {
        "suspend": True,
        "completionMode": "Indexed",
        "completions": _SIZE,
        "parallelism": _SIZE,
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    metadata = {"name": PROBE, "namespace": namespace}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


_UNKNOWN_UNTIL_PLACED: Final = "no request tells; it shows when a gang is placed"


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
        Gate("WorkloadWithJob", "kube-controller-manager", None, "no request tells; the provider does not need it"),
        Gate("GenericWorkload", "kube-scheduler", None, _UNKNOWN_UNTIL_PLACED),
        Gate("GangScheduling", "kube-scheduler", None, f"merged into GenericWorkload in 1.37; {_UNKNOWN_UNTIL_PLACED}"),
    )

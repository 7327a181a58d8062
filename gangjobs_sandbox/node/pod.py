"""Runs one pod on this node, from its binding until its object is deleted.

1. Reserve the resources, allocate the address, and create the folder.
2. Provide the volumes.
3. Run the init containers in order, and then all other containers concurrently.
4. Write the last status.
5. After the deletion request, delete the object with grace period 0, and remove the folder.

A stop (deletion, deadline, eviction, or the end of the node) can come during any step and skips the remaining work of
the steps before step 4.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.clock import parse_time
from gangjobs_sandbox.node.container import ContainerRunner, StopRequest, cancel_and_wait, wait_first
from gangjobs_sandbox.node.container_config import ContainerContext
from gangjobs_sandbox.node.dns import HostsFile, PodName, hosts_header
from gangjobs_sandbox.node.downward_api import PodFacts
from gangjobs_sandbox.node.pod_folder import PodFolder
from gangjobs_sandbox.node.pod_state import (
    ContainerState,
    Kind,
    PhaseOverride,
    PodState,
    Terminated,
    container_states,
)
from gangjobs_sandbox.node.recorder import WARNING
from gangjobs_sandbox.node.registration import HOST_IP
from gangjobs_sandbox.node.sources import SourceMissingError, Sources, environment_references, volume_references
from gangjobs_sandbox.node.status import (
    TERMINAL_PHASES,
    StatusWriter,
    delete_pod,
    is_terminal,
    pod_status,
    terminate_unfinished,
)
from gangjobs_sandbox.node.volumes import (
    GRACE_EVICTED_S,
    UnsupportedVolumeError,
    VolumeContext,
    fetch_sources,
    fetch_tokens,
    place_volume,
    wait_for_excess,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gangjobs_sandbox.node.admission import Admission
    from gangjobs_sandbox.node.client import ApiClient
    from gangjobs_sandbox.node.config import NodeConfig
    from gangjobs_sandbox.node.isolation import Isolation
    from gangjobs_sandbox.node.network import PodNetwork
    from gangjobs_sandbox.node.recorder import Recorder

__all__ = ["PodHost", "PodWorker"]

_log = logging.getLogger(__name__)
_GRACE_DEFAULT_S = 30
_GRACE_REMOVED_S = 1.0
"""The grace period of a pod whose object no longer exists: the minimum that a kubelet grants."""
_SHUTDOWN_S = 5.0


@dataclass(frozen=True)
class PodHost:
    """The shared services that a node provides to its pods."""

    config: NodeConfig
    client: ApiClient
    network: PodNetwork
    admission: Admission
    recorder: Recorder
    isolation: Isolation
    start_slots: asyncio.Semaphore
    resolver_config: str = ""


class PodWorker:
    """Runs one pod in the order that the module describes."""

    def __init__(self, pod: dict[str, Any], host: PodHost) -> None:
        self.pod = pod
        self.stop = StopRequest()
        self.folder = PodFolder(host.config.root_dir, pod["metadata"]["uid"])
        self.restart_policy: str = pod["spec"].get("restartPolicy") or "Always"
        self.retry_s = host.config.retry_s
        self.crash_backoff_s = host.config.crash_backoff_s
        self.start_slots = host.start_slots
        self._host = host
        self.state = PodState(container_states(pod["spec"]), started=_now(), host_ip=HOST_IP)
        self._writer = StatusWriter(host.client, pod, self._status)
        self._runners: list[ContainerRunner] = []
        self._deleted = asyncio.Event()
        self._removed = asyncio.Event()
        self._finished = is_terminal(pod)

    # The node calls these methods.

    def update(self, pod: dict[str, Any]) -> None:
        """Process a new version of the Pod object."""
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._deleted.set()
            self._request_stop(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))

    def remove(self) -> None:
        """Process the removal of the Pod object."""
        self._removed.set()
        self._deleted.set()
        self._request_stop(_GRACE_REMOVED_S)

    async def run(self) -> None:
        """Run the pod. Returns when the Pod object and the folder of the pod are gone."""
        writing = asyncio.create_task(self._writer.run(), name=f"status of {self._name}")
        try:
            if not self._finished:
                await self._run_until_stopped()
                if not self._removed.is_set():
                    await wait_first(self._writer.wait_until_written(), self._removed.wait())
                self._finished = True
            self._release_resources()
            await self._deleted.wait()
            if not self._removed.is_set():
                await delete_pod(self._host.client, self.pod)
            await asyncio.to_thread(self.folder.remove)
            await self._removed.wait()
        finally:
            self._release_resources()
            await cancel_and_wait(writing)

    def has_ended(self, container: str, number: int) -> bool:
        """Return whether this run of the container will write no more output."""
        if self._finished or self.folder.latest_run(container) != number:
            return True
        return any(state.name == container and state.ended for state in self.state.containers)

    # The container runners call these methods.

    async def container_sources(self, container: Mapping[str, Any]) -> Sources:
        return await fetch_sources(
            self._host.client, self.pod["metadata"]["namespace"], environment_references(container)
        )

    def publish_state(self) -> None:
        """Publish the changed state: the names that depend on readiness, and the status of the pod."""
        if self.state.pod_ip:
            ready = all(item.ready for item in self.state.of_kind(Kind.MAIN, Kind.SIDECAR))
            self._host.network.names.publish(PodName.of(self.pod, self.state.pod_ip, ready=ready))
            self._host.network.names.flush()
        self._writer.mark_changed()

    def event(self, kind: str, reason: str, message: str, container: str = "") -> None:
        self._host.recorder.record(self.pod, kind, reason, message, container=container)

    # These methods run the pod.

    async def _run_until_stopped(self) -> None:
        rejection = self._host.admission.admit(self.folder.uid, self.pod["spec"])
        if rejection:
            self.state.phase_override, self.state.stopped = (
                PhaseOverride("Failed", rejection.reason, rejection.message),
                True,
            )
            self.event(WARNING, rejection.reason, rejection.message)
            return
        if subdomain := self.pod["spec"].get("subdomain"):
            await self._host.network.fetch_service(self._host.client, self.pod["metadata"]["namespace"], subdomain)
        self._join_network()
        self._writer.mark_changed()
        deadline = asyncio.create_task(self._enforce_deadline(), name=f"deadline of {self._name}")
        limits = asyncio.create_task(self._enforce_size_limits(), name=f"size limits of {self._name}")
        try:
            if await self._prepare():
                await self._run_containers()
        except asyncio.CancelledError:
            await self._shut_down()
            raise
        finally:
            await cancel_and_wait(deadline, limits)
        # Release before the end is reported: the scheduler may bind another pod to this node at once.
        self._host.admission.release(self.folder.uid)
        self.state.stopped = True
        self.state.network_ready = False
        terminate_unfinished(self.state, _now())

    def _join_network(self) -> None:
        """Set up the address and the hosts file. A pod of an earlier node keeps its address."""
        network, spec = self._host.network, self.pod["spec"]
        known = self.folder.facts() if self.folder.exists else {}
        if spec.get("hostNetwork"):
            address = HOST_IP
        elif known:
            address = known["ip"]
            network.addresses.reserve(address)
        else:
            address = network.addresses.allocate()
        self.state.pod_ip = address
        if not known:
            self._mark_lost_containers()
        else:
            self.state.started = datetime.fromisoformat(known["started"])
        metadata = {key: self.pod["metadata"][key] for key in ("name", "namespace", "uid")}
        self.folder.create({**metadata, "ip": address, "started": self.state.started.isoformat()})
        name = PodName.of(self.pod, address, ready=False)
        network.names.publish(name)
        network.names.flush()
        hosts = HostsFile(self.folder.hosts, hosts_header(name, spec.get("hostAliases") or ()))
        network.names.add_hosts_file(name.uid, name.namespace, hosts)

    def _mark_lost_containers(self) -> None:
        """Mark containers as ended that ran on an earlier node of this name and left no trace on this one."""
        statuses = {
            item["name"]: item["state"]
            for field in ("initContainerStatuses", "containerStatuses")
            for item in (self.pod.get("status") or {}).get(field) or ()
        }
        for container in self.state.containers:
            if {"running", "terminated"} & statuses.get(container.name, {}).keys():
                container.end(Terminated.lost(_now()))

    async def _prepare(self) -> bool:
        """Provide the volumes, and wait for missing sources. Returns False if the pod was stopped first."""
        while not self.stop.is_requested():
            try:
                self.context = await self._container_context()
            except (SourceMissingError, OSError, ValueError) as error:
                # As with a kubelet, the status says nothing of this: only the event does.
                self.event(WARNING, "FailedMount", str(error))
                await self.stop.wait_for(self.retry_s)
            else:
                self.state.network_ready = True
                self._writer.mark_changed()
                return True
        return False

    async def _container_context(self) -> ContainerContext:
        config, spec = self._host.config, self.pod["spec"]
        allocatable = config.allocatable()
        facts = PodFacts(self.pod, self.state.pod_ip, self.state.host_ip, allocatable)
        sources = await fetch_sources(self._host.client, facts.namespace, volume_references(spec))
        context = VolumeContext(facts, sources, await fetch_tokens(self._host.client, self.pod))
        volumes = {}
        for volume in spec.get("volumes") or ():
            name = volume["name"]
            try:
                volumes[name] = place_volume(volume, self.folder.volume(name), context)
            except (SourceMissingError, UnsupportedVolumeError, OSError, ValueError) as error:
                raise SourceMissingError(f'MountVolume.SetUp failed for volume "{name}" : {error}') from error
        return ContainerContext(
            facts=facts,
            folder=self.folder,
            hostname=spec.get("hostname") or self.pod["metadata"]["name"],
            isolation=self._host.isolation,
            volumes=volumes,
            resolver_config=self._host.resolver_config,
            outlives_node=config.outlive_node,
            log_bytes_max=config.log_bytes_max,
            device_env=self._host.admission.device_env(self.folder.uid, spec),
        )

    async def _run_containers(self) -> None:
        """Run init containers in order, sidecars concurrently, and then the main containers until all have ended."""
        self._runners = [ContainerRunner(self, self._spec_of(state), state) for state in self.state.containers]
        sidecars_stop = StopRequest()
        async with asyncio.TaskGroup() as group:
            sidecars = []
            for runner in self._runners:
                if runner.state.kind is Kind.SIDECAR:
                    runner.stop_on(sidecars_stop)
                    sidecars.append(group.create_task(runner.run(), name=f"{self._name}/{runner.state.name}"))
                    await wait_first(runner.startup_done.wait(), self.stop.wait())
                elif runner.state.kind is Kind.INIT:
                    await runner.run()
                    if not runner.state.succeeded:
                        break
            else:
                await self._run_mains()
            grace_s = min(self.stop.grace_s, self._grace_s)
            sidecars_stop.request(grace_s)

    async def _run_mains(self) -> None:
        mains = [runner for runner in self._runners if runner.state.kind is Kind.MAIN]
        if self.stop.is_requested():
            return
        async with asyncio.TaskGroup() as group:
            for runner in mains:
                group.create_task(runner.run(), name=f"{self._name}/{runner.state.name}")

    async def _enforce_deadline(self) -> None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return
        since = (self.pod.get("status") or {}).get("startTime")
        began = parse_time(since) if since else self.state.started
        await asyncio.sleep(max(0.0, (began + timedelta(seconds=seconds) - _now()).total_seconds()))
        message = "Pod was active on the node longer than the specified deadline"
        self.state.phase_override = PhaseOverride("Failed", "DeadlineExceeded", message)
        self.event("Normal", "DeadlineExceeded", message)
        self._request_stop(self._grace_s)

    async def _enforce_size_limits(self) -> None:
        message = await wait_for_excess(self.pod["spec"], self.folder, interval_s=self._host.config.eviction_interval_s)
        if not self.stop.is_requested():
            self.state.phase_override = PhaseOverride("Failed", "Evicted", message)
            self.event(WARNING, "Evicted", message)
            self._request_stop(GRACE_EVICTED_S)

    def _request_stop(self, grace_s: float) -> None:
        was_requested = self.stop.is_requested()
        if self.stop.request(grace_s) and was_requested:
            for runner in self._runners:
                runner.shorten_grace_period(grace_s)

    async def _shut_down(self) -> None:
        """Kill the running containers when the node ends, unless they may outlive the node."""
        if self._host.config.outlive_node:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_S):
                await asyncio.gather(*(runner.kill() for runner in self._runners))

    def _release_resources(self) -> None:
        """Release the resources, address, and names of the pod. Safe to repeat."""
        uid = self.folder.uid
        self._host.admission.release(uid)
        self._host.network.names.withdraw(uid)
        self._host.network.names.remove_hosts_file(uid)
        self._host.network.names.flush()
        if self.state.pod_ip and self.state.pod_ip != HOST_IP:
            self._host.network.addresses.release(self.state.pod_ip)

    def _status(self) -> dict[str, Any] | None:
        """Return the current status. A terminal status is returned only when nothing runs any more."""
        status = pod_status(self.state, self.restart_policy, _now())
        return status if self.state.stopped or status["phase"] not in TERMINAL_PHASES else None

    def _spec_of(self, state: ContainerState) -> Mapping[str, Any]:
        spec = self.pod["spec"]
        every = [*(spec.get("initContainers") or ()), *spec["containers"]]
        found: Mapping[str, Any] = next(item for item in every if item["name"] == state.name)
        return found

    @property
    def _grace_s(self) -> float:
        return float(self.pod["spec"].get("terminationGracePeriodSeconds") or _GRACE_DEFAULT_S)

    @property
    def _name(self) -> str:
        return f"pod {self.pod['metadata']['namespace']}/{self.pod['metadata']['name']}"


def _now() -> datetime:
    return datetime.now(UTC)

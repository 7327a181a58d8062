"""One pod on this node, from the moment it is bound here until its object is gone.

Order: room, address and folder; volumes; init containers one after the other; the others together; the
last status; then, once it is deleted, the object with grace period 0, and the folder. A stop (deletion,
deadline, the node's end) can come at any moment and only ever shortens this.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.clock import parse_time

from .container import ContainerRunner, Stop
from .container_config import ContainerContext
from .dns import PodName, hosts_header
from .downward_api import PodFacts
from .fetching import fetch_sources, fetch_tokens
from .hosts import HostsFile
from .pod_folder import PodFolder
from .pod_state import ContainerState, Kind, PhaseOverride, PodState, Terminated, Waiting, container_states
from .recorder import WARNING
from .registration import HOST_IP
from .sources import SourceMissingError, Sources, environment_references, volume_references
from .status import TERMINAL_PHASES, is_terminal, pod_status, terminate_unfinished
from .status_manager import StatusWriter, delete_pod
from .volumes import UnsupportedVolumeError, VolumeContext, place_volume
from .waiting import end_tasks, first_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .admission import Admission
    from .client import ApiClient
    from .config import NodeConfig
    from .isolation import Isolation
    from .network import PodNetwork
    from .recorder import Recorder

__all__ = ["PodHost", "PodWorker"]

_log = logging.getLogger(__name__)
_GRACE_DEFAULT_S = 30
_GRACE_REMOVED_S = 1.0
"""For a pod whose object has vanished: the least that a kubelet gives."""
_SHUTDOWN_S = 5.0


@dataclass(frozen=True)
class PodHost:
    """What the node gives to all its pods."""

    config: NodeConfig
    client: ApiClient
    network: PodNetwork
    admission: Admission
    recorder: Recorder
    isolation: Isolation
    start_slots: asyncio.Semaphore
    resolver_config: str = ""


class PodWorker:
    """Runs one pod; see the module for the order of things."""

    def __init__(self, pod: dict[str, Any], host: PodHost) -> None:
        self.pod = pod
        self.stop = Stop()
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
        self.finished = is_terminal(pod)

    # What the node tells.

    def update(self, pod: dict[str, Any]) -> None:
        """Take note of the object as it is now."""
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._deleted.set()
            self._request_stop(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))

    def remove(self) -> None:
        """Take note that the object is gone."""
        self._removed.set()
        self._deleted.set()
        self._request_stop(_GRACE_REMOVED_S)

    async def run(self) -> None:
        """Run the pod; returns when object and folder are gone."""
        writing = asyncio.create_task(self._writer.run(), name=f"status of {self._name}")
        try:
            if not self.finished:
                await self._live()
                if not self._removed.is_set():
                    await first_of(self._writer.settled(), self._removed.wait())
                self.finished = True
            self._release_resources()
            await self._deleted.wait()
            if not self._removed.is_set():
                await delete_pod(self._host.client, self.pod)
            await asyncio.to_thread(self.folder.remove)
            await self._removed.wait()
        finally:
            self._release_resources()
            await end_tasks(writing)

    def has_ended(self, container: str, number: int) -> bool:
        """Whether this run of the container will print no more."""
        if self.finished or self.folder.latest_run(container) != number:
            return True
        return any(state.name == container and state.ended for state in self.state.containers)

    # What a container runner asks.

    async def sources_of(self, container: Mapping[str, Any]) -> Sources:
        return await fetch_sources(
            self._host.client, self.pod["metadata"]["namespace"], environment_references(container)
        )

    def changed(self) -> None:
        """Publish the state: as status, and as names that depend on readiness."""
        if self.state.pod_ip:
            ready = all(item.ready for item in self.state.of_kind(Kind.MAIN, Kind.SIDECAR))
            self._host.network.names.publish(PodName.of(self.pod, self.state.pod_ip, ready=ready))
            self._host.network.names.flush()
        self._writer.mark()

    def event(self, kind: str, reason: str, message: str, container: str = "") -> None:
        self._host.recorder.record(self.pod, kind, reason, message, container=container)

    # The life of the pod.

    async def _live(self) -> None:
        rejection = self._host.admission.admit(self.folder.uid, self.pod["spec"])
        if rejection:
            self.state.phase_override, self.state.stopped = (
                PhaseOverride("Failed", rejection.reason, rejection.message),
                True,
            )
            self.event(WARNING, rejection.reason, rejection.message)
            return
        if subdomain := self.pod["spec"].get("subdomain"):
            await self._host.network.learn(self._host.client, self.pod["metadata"]["namespace"], subdomain)
        self._join_network()
        self._writer.mark()
        deadline = asyncio.create_task(self._enforce_deadline(), name=f"deadline of {self._name}")
        try:
            if await self._prepare():
                await self._run_containers()
        except asyncio.CancelledError:
            await self._shut_down()
            raise
        finally:
            await end_tasks(deadline)
        # Before the end is told: the scheduler may have another pod here as soon as it is.
        self._host.admission.release(self.folder.uid)
        self.state.stopped = True
        self.state.network_ready = False
        terminate_unfinished(self.state, _now())

    def _join_network(self) -> None:
        """Address and hosts file; those of an earlier node's pod if it left one."""
        network, spec = self._host.network, self.pod["spec"]
        known = self.folder.facts() if self.folder.exists else {}
        if spec.get("hostNetwork"):
            address = HOST_IP
        elif known:
            address = known["ip"]
            network.addresses.reserve(address)
        else:
            address = network.addresses.allocate()
        self.state.pod_ip, self.state.network_ready = address, True
        if not known:
            self._note_lost()
        else:
            self.state.started = datetime.fromisoformat(known["started"])
        metadata = {key: self.pod["metadata"][key] for key in ("name", "namespace", "uid")}
        self.folder.create({**metadata, "ip": address, "started": self.state.started.isoformat()})
        name = PodName.of(self.pod, address, ready=False)
        network.names.publish(name)
        network.names.flush()
        hosts = HostsFile(self.folder.hosts, hosts_header(name, spec.get("hostAliases") or ()))
        network.names.add_reader(name.uid, name.namespace, hosts)

    def _note_lost(self) -> None:
        """Containers that ran on a node of this name and of which this one has no trace have ended."""
        statuses = {
            item["name"]: item["state"]
            for field in ("initContainerStatuses", "containerStatuses")
            for item in (self.pod.get("status") or {}).get(field) or ()
        }
        for container in self.state.containers:
            if {"running", "terminated"} & statuses.get(container.name, {}).keys():
                message = "The container could not be located when the pod was terminated"
                container.end(Terminated(137, "ContainerStatusUnknown", _now(), message=message))

    async def _prepare(self) -> bool:
        """Provide the volumes, waiting for what is missing; False if the pod was stopped before."""
        while not self.stop.is_requested():
            try:
                self.around = await self._container_context()
            except (SourceMissingError, UnsupportedVolumeError, OSError, ValueError) as error:
                for container in self.state.containers:
                    if container.waiting:
                        container.wait(Waiting(container.waiting.reason, str(error)))
                self.event(WARNING, "FailedMount", f"MountVolume.SetUp failed: {error}")
                self._writer.mark()
                await self.stop.wait_for(self.retry_s)
            else:
                return True
        return False

    async def _container_context(self) -> ContainerContext:
        config, spec = self._host.config, self.pod["spec"]
        allocatable = config.allocatable()
        facts = PodFacts(self.pod, self.state.pod_ip, self.state.host_ip, allocatable)
        sources = await fetch_sources(self._host.client, facts.namespace, volume_references(spec))
        context = VolumeContext(facts, sources, await fetch_tokens(self._host.client, self.pod))
        volumes = {
            volume["name"]: place_volume(volume, self.folder.volume(volume["name"]), context)
            for volume in spec.get("volumes") or ()
        }
        return ContainerContext(
            facts=facts,
            folder=self.folder,
            hostname=spec.get("hostname") or self.pod["metadata"]["name"],
            isolation=self._host.isolation,
            volumes=volumes,
            passed_env=config.passed_env,
            resolver_config=self._host.resolver_config,
            outlives_node=config.outlive_node,
            log_bytes_max=config.log_bytes_max,
            device_env=self._host.admission.device_env(self.folder.uid, spec),
        )

    async def _run_containers(self) -> None:
        """Init containers in order, sidecars beside them, then the others until all are done."""
        self._runners = [ContainerRunner(self, self._spec_of(state), state) for state in self.state.containers]
        sidecars_stop = Stop()
        async with asyncio.TaskGroup() as group:
            sidecars = []
            for runner in self._runners:
                if runner.state.kind is Kind.SIDECAR:
                    runner.stop_on(sidecars_stop)
                    sidecars.append(group.create_task(runner.run(), name=f"{self._name}/{runner.state.name}"))
                    await first_of(runner.begun.wait(), self.stop.wait())
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

    def _request_stop(self, grace_s: float) -> None:
        was_requested = self.stop.is_requested()
        if self.stop.request(grace_s) and was_requested:
            for runner in self._runners:
                runner.shorten_grace_period(grace_s)

    async def _shut_down(self) -> None:
        """The node ends: kill what runs, unless it may go on."""
        if self._host.config.outlive_node:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_S):
                await asyncio.gather(*(runner.kill() for runner in self._runners))

    def _release_resources(self) -> None:
        """Room, address and names, for others; safe to repeat."""
        uid = self.folder.uid
        self._host.admission.release(uid)
        self._host.network.names.withdraw(uid)
        self._host.network.names.remove_reader(uid)
        self._host.network.names.flush()
        if self.state.pod_ip and self.state.pod_ip != HOST_IP:
            self._host.network.addresses.release(self.state.pod_ip)

    def _status(self) -> dict[str, Any] | None:
        """The status as it is now; a terminal one only when really nothing runs any more, as one last write."""
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

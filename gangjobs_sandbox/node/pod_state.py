"""The state of a pod while the node runs it. The status of the pod is built from this state."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.node.shim.spec import LOST_CODE, LOST_MESSAGE, REASON_LOST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = ["ContainerState", "Kind", "PhaseOverride", "PodState", "Terminated", "Waiting", "container_states"]


class Kind(StrEnum):
    """The role of a container in its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


@dataclass(frozen=True)
class Waiting:
    """The reason why a container does not run yet, or does not run again. The wording is that of the kubelet."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class Terminated:
    """The end of one run of a container. `started` is None if the container never ran."""

    exit_code: int
    reason: str
    finished: datetime
    started: datetime | None = None
    message: str = ""
    container_id: str = ""

    @classmethod
    def lost(cls, now: datetime) -> Terminated:
        """Return the end that a kubelet reports for a container that left no trace."""
        return cls(LOST_CODE, REASON_LOST, now, message=LOST_MESSAGE)


@dataclass(frozen=True)
class PhaseOverride:
    """A phase that the node sets regardless of the states of the containers."""

    phase: str
    reason: str = ""
    message: str = ""


@dataclass
class ContainerState:
    """The state of one container. Exactly one of `waiting`, `running_since` and `ended` is set at a time."""

    name: str
    image: str
    kind: Kind
    waiting: Waiting | None
    running_since: datetime | None = None
    ended: Terminated | None = None
    last: Terminated | None = None
    """The end of the run before the current state (`lastState`)."""
    restarts: int = 0
    ready: bool = False
    container_id: str = ""

    def wait(self, waiting: Waiting) -> None:
        self.last, self.waiting = self.ended or self.last, waiting
        self.running_since = self.ended = None

    def run(self, since: datetime, container_id: str, *, number: int, ready: bool) -> None:
        """Record that the run of this number, counted from 0, has started."""
        self.last, self.running_since, self.ready = self.ended or self.last, since, ready
        self.container_id, self.restarts = container_id, number
        self.waiting = self.ended = None

    def end(self, ended: Terminated, *, number: int | None = None) -> None:
        """Record the end of a run. `number` is the number of the run, from 0; default: the latest run."""
        if number is not None and number != self.restarts:
            self.last, self.restarts = self.ended or self.last, number
        self.ended, self.ready = ended, False
        self.container_id = ended.container_id or self.container_id
        self.waiting = self.running_since = None

    @property
    def succeeded(self) -> bool:
        return self.ended is not None and self.ended.exit_code == 0

    @property
    def initialized(self) -> bool:
        """Whether the next init container may start."""
        return self.running_since is not None if self.kind is Kind.SIDECAR else self.succeeded


@dataclass
class PodState:
    """The state of one pod. `stopped` means that no container will start any more.

    `phase_override` is the reason why the pod failed. It becomes the phase when no container runs any more.
    """

    containers: list[ContainerState]
    started: datetime
    pod_ip: str = ""
    host_ip: str = ""
    network_ready: bool = False
    stopped: bool = False
    phase_override: PhaseOverride | None = None
    conditions: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The conditions as last written, by type."""

    def of_kind(self, *kinds: Kind) -> list[ContainerState]:
        return [container for container in self.containers if container.kind in kinds]


def container_states(spec: Mapping[str, Any]) -> list[ContainerState]:
    """Return the states of all containers of a new pod, init containers first."""
    inits = spec.get("initContainers") or []
    waiting = Waiting("PodInitializing" if inits else "ContainerCreating")
    kinds = [Kind.SIDECAR if item.get("restartPolicy") == "Always" else Kind.INIT for item in inits]
    pairs = [*zip(inits, kinds, strict=True), *((item, Kind.MAIN) for item in spec.get("containers") or [])]
    return [ContainerState(item["name"], item.get("image", ""), kind, waiting) for item, kind in pairs]

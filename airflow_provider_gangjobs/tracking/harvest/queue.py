"""Queue: the pods of one gang that wait to be recorded, or are recorded and wait to be released.

Pods that are being deleted come first, because somebody waits for them to go. A pod is in the queue once at most.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_gangjobs.tracking.harvest.schedule import Backlog

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.views import PodView


class UnrecordedPod(NamedTuple):
    """A pod whose outcome has to be recorded. There may be tens of thousands of them at once."""

    pod: PodView
    has_ended: bool = True
    """False if the pod was abandoned. Its outcome is recorded as `unknown`."""
    exists: bool = True
    stays_held: bool = False
    """The pod still runs, and is released when it has ended."""

    @property
    def is_terminating(self) -> bool:
        """The deletion of the pod was requested."""
        return self.pod.metadata.deletion_timestamp is not None


class HarvestQueue:
    """Pods by uid, in the order in which they were enqueued."""

    def __init__(self) -> None:
        self._unrecorded_terminating: dict[str, UnrecordedPod] = {}
        self._unrecorded: dict[str, UnrecordedPod] = {}
        self._terminating: dict[str, PodView] = {}
        self._releasable: dict[str, PodView] = {}
        self._log_is_read: dict[str, PodView] = {}
        self.enqueued = 0
        """Number of pods that were added to be recorded, ever."""

    def backlog(self) -> Backlog:
        """Return how many pods are to be recorded, and to be released."""
        unrecorded = len(self._unrecorded_terminating) + len(self._unrecorded)
        return Backlog(unrecorded, len(self._terminating), len(self._releasable))

    def __len__(self) -> int:
        return sum(self.backlog()) + len(self._log_is_read)

    def add_unrecorded(self, due: UnrecordedPod) -> None:
        """Have a pod recorded; a pod that is in the queue already is replaced."""
        uid = due.pod.metadata.uid
        self.enqueued += self.unrecorded(uid) is None
        self.remove(uid)
        (self._unrecorded_terminating if due.is_terminating else self._unrecorded)[uid] = due

    def add_recorded(self, pod: PodView) -> None:
        """Have a recorded pod released."""
        uid = pod.metadata.uid
        self.remove(uid)
        (self._releasable if pod.metadata.deletion_timestamp is None else self._terminating)[uid] = pod

    def add_recorded_while_log_is_read(self, pod: PodView) -> None:
        """Keep a recorded pod whose log is being read. `log_was_read` has the pod released."""
        self.remove(pod.metadata.uid)
        self._log_is_read[pod.metadata.uid] = pod

    def log_was_read(self, uid: str) -> bool:
        """Have a pod released whose log was read. Return false if the pod does not wait for that."""
        pod = self._log_is_read.pop(uid, None)
        if pod is not None:
            self.add_recorded(pod)
        return pod is not None

    def remove(self, uid: str) -> None:
        """Take a pod out of the queue. Safe to repeat."""
        self._unrecorded_terminating.pop(uid, None)
        self._unrecorded.pop(uid, None)
        for pods in (self._terminating, self._releasable, self._log_is_read):
            pods.pop(uid, None)

    def unrecorded(self, uid: str) -> UnrecordedPod | None:
        """Return the pod if its outcome is still to be recorded."""
        return self._unrecorded_terminating.get(uid) or self._unrecorded.get(uid)

    def next_unrecorded(self, at_most: int) -> list[UnrecordedPod]:
        """Return the first pods to record. They stay in the queue."""
        return list(islice(chain(self._unrecorded_terminating.values(), self._unrecorded.values()), at_most))

    def next_terminating(self, at_most: int) -> list[PodView]:
        """Return the first pods to release of those that are being deleted. They stay in the queue."""
        return list(islice(self._terminating.values(), at_most))

    def next_releasable(self, at_most: int) -> list[PodView]:
        """Return the first of the other pods to release. They stay in the queue."""
        return list(islice(self._releasable.values(), at_most))

"""Which pods of a gang are recorded and released next, and when.

Each release is one more write to the API server, beside six for each pod, and nobody waits for it unless the pod is
being deleted. So releases come last. While pods end, a harvester releases a few pods at a time and adapts to the
response time of the API server. When no pod has ended for a moment, or when a drain is requested, it releases the rest
at full speed. The schedule is pure: it reads no clock and keeps three points in time.

Pods that are being deleted come first in the queue. A pod is in the queue once at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from airflow_provider_gangjobs.kube.views import PodView


QUIET_AFTER_S: Final = 3.0
"""When no pod has ended for this many seconds, a harvester releases pods at full speed. By then the Job controller has
counted the pods, and its own writes are done."""
RECORD_INTERVAL_PER_POD_S: Final = 2e-3
RECORD_INTERVAL_MAX_S: Final = 2.0
"""Between two writes to the ledger. The API server merges a whole ConfigMap to add an entry, so adding costs more the
more entries there are, and the outcomes of a large gang are written in fewer and larger parts."""
SLOW_RELEASE_PODS: Final = 2
"""Pods that are released at once while other pods end."""
SLOW_RELEASE_PAUSE_FACTOR: Final = 60.0
"""The pause after a slow release, as a multiple of the response time: about six releases a second of a server that
answers in 5 ms, and less than one a second of a busy server that takes 50 ms. With a factor of 3 a gang of 5,000 pods
completed in 1.3 times its time, with this factor 2,500 pods complete in 1.02 times (benchmarks/harvest.py)."""
SLOW_RELEASE_PAUSE_MIN_S: Final = 0.005
RELEASABLE_MAX: Final = 10_000
"""Pods that are recorded and still held, some 10 MB. More pods are released at full speed."""


class Action(Enum):
    """What a harvester does next."""

    WAIT = auto()
    RECORD = auto()
    RELEASE_TERMINATING = auto()
    RELEASE_SLOWLY = auto()
    RELEASE_ALL = auto()


class Backlog(NamedTuple):
    """Numbers of pods that wait for a harvester."""

    unrecorded: int = 0
    terminating: int = 0
    """Recorded pods with a deletion timestamp. Somebody waits for each of them to go."""
    releasable: int = 0
    """The other recorded pods. Nobody waits for their release."""


@dataclass
class HarvestSchedule:
    """The schedule of one harvester. All times are seconds of its monotonic clock."""

    _quiet_at: float = 0.0
    _record_at: float = 0.0
    _slow_release_at: float = 0.0

    def note_ended_pods(self, now: float) -> None:
        """Set the time from which pods are released at full speed. Pods have ended: others probably end soon."""
        self._quiet_at = now + QUIET_AFTER_S

    def note_record(self, now: float, pods: int) -> None:
        """Set the time of the next write to the ledger.

        :param pods: The number of outcomes that this harvester has recorded.
        """
        self._record_at = now + min(pods * RECORD_INTERVAL_PER_POD_S, RECORD_INTERVAL_MAX_S)

    def note_slow_release(self, now: float, took_s: float) -> None:
        """Set the time of the next slow release.

        :param took_s: How many seconds the last one took.
        """
        self._slow_release_at = now + max(SLOW_RELEASE_PAUSE_FACTOR * took_s, SLOW_RELEASE_PAUSE_MIN_S)

    def next_action(self, now: float, backlog: Backlog, *, is_draining: bool = False) -> tuple[Action, float | None]:
        """Return the next action, and for `WAIT` how many seconds to wait at most (`None`: until pods are enqueued).

        :param is_draining: Somebody waits for the backlog to be empty, so there are no pauses.
        """
        if backlog.terminating:
            return Action.RELEASE_TERMINATING, 0.0
        if backlog.unrecorded and (is_draining or now >= self._record_at):
            return Action.RECORD, 0.0
        if backlog.releasable and self._may_release_all(now, backlog, is_draining=is_draining):
            return Action.RELEASE_ALL, 0.0
        if backlog.releasable and now >= self._slow_release_at:
            return Action.RELEASE_SLOWLY, 0.0
        times = [self._record_at] * bool(backlog.unrecorded)
        times += [self._quiet_at, self._slow_release_at] * bool(backlog.releasable)
        return Action.WAIT, min(times) - now if times else None

    def continues_to_release(self, now: float, backlog: Backlog, *, is_draining: bool = False) -> bool:
        """Whether a running `RELEASE_ALL` goes on with the next pod.

        A drain does not cut the release short for every pod that ends meanwhile, so the ledger is still written in
        large parts.
        """
        if backlog.terminating or (backlog.unrecorded and now >= self._record_at):
            return False
        return self._may_release_all(now, backlog, is_draining=is_draining)

    def _may_release_all(self, now: float, backlog: Backlog, *, is_draining: bool) -> bool:
        return is_draining or now >= self._quiet_at or backlog.releasable > RELEASABLE_MAX


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

"""Schedule: when a harvester records outcomes, when it releases pods, and when it waits.

Each release is one more write to the API server, beside six for each pod, and nobody waits for it unless the pod is
being deleted. So releases come last. While pods end, a harvester releases a few pods at a time and adapts to the
response time of the API server. When no pod has ended for a moment, or when a drain is requested, it releases the rest
at full speed.
The schedule is pure: it reads no clock and keeps three points in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

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

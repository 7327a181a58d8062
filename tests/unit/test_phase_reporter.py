"""Phases of a gang over time: which lines its log has of them, and that they only move forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.gang.state.gang_state import GangState, observe
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.state.reason import because
from airflow_provider_gangjobs.gang.state.waiting import Evidence
from airflow_provider_gangjobs.kube.well_known import FINALIZER_HARVEST, LABEL_KUEUE_QUEUE
from airflow_provider_gangjobs.tracking.phase_reporter import PhaseReporter
from tests.examples import examples
from tests.unit.builders import REF, JobBuilder, PodBuilder, at, condition, job, kueue_workload, pod, ranks

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.state.stored_gang import StoredGang
    from airflow_provider_gangjobs.kube.views import KueueWorkloadView, PodView


# -- The log lines about a gang in a queue, and about a gang that the scheduler cannot place -------------------------

QUEUED = job().submitted_suspended().label(LABEL_KUEUE_QUEUE, "team").read()
NO_CAUSE_NAMED = because("NoCauseNamed").text


def lines_at(*positions: int | None) -> list[str]:
    lines: list[str] = []
    reporter = PhaseReporter(lambda state: lines.append(state.line))
    for position in positions:
        reporter.report(observe(QUEUED, (), None, REF, Evidence(queue_position=position)), at(10))
    return [line.partition("queue team")[2] for line in lines]


def test_position_is_reported_when_it_is_known_and_each_time_that_it_is_halved():
    positions = [None, 12, 11, 8, 7, None, 6, 3, 1, 1]
    assert lines_at(*positions) == ["", *(f". Position {number} in the ClusterQueue" for number in (12, 7, 3, 1))]


def test_position_that_is_lost_is_not_reported():
    assert lines_at(2, None, 2, None) == [". Position 2 in the ClusterQueue"]


REJECTED = "0/1 nodes are available: 1 optimistic rejection in PostFilter."
NO_ROOM = "0/2 nodes are available: 2 Insufficient cpu."


def reported(*messages_at: tuple[float, str]) -> list[str]:
    """Return what is reported of a gang whose pods have these messages at these times."""
    texts: list[str] = []
    reporter = PhaseReporter(lambda state: texts.append(state.reason.text))
    for seconds, message in messages_at:
        pods = ranks(4, lambda one, message=message: one.unschedulable(message))
        reporter.report(observe(job().resumed(1).read(), pods, None, REF), at(seconds))
    return texts


def test_cause_that_is_named_soon_is_reported_alone():
    assert reported((1, REJECTED), (2, NO_ROOM), (9, REJECTED)) == ["Insufficient cpu on 2 of 2 nodes", NO_CAUSE_NAMED]


def test_cause_that_is_named_late_is_reported_after_its_absence():
    assert reported((1, REJECTED), (4, REJECTED), (9, NO_ROOM), (10, NO_ROOM)) == [
        NO_CAUSE_NAMED,
        "Insufficient cpu on 2 of 2 nodes",
    ]


def in_queue_at(*messages_at: tuple[float, str]) -> list[tuple[float, str]]:
    """Return at which times what is reported of a gang that waits in a queue, which gives these reasons at these times.

    The follower comes back when the reporter says so.
    """
    lines: list[tuple[float, str]] = []
    reporter = PhaseReporter(lambda state: lines.append((now, state.reason.text)))
    message, changes, due = "", list(messages_at), float("inf")
    while changes or due < float("inf"):
        now = min(due, changes[0][0] if changes else due)
        if changes and changes[0][0] == now:
            message = changes.pop(0)[1]
        held_back_s = reporter.report(
            observe(QUEUED, (), None, REF, Evidence(queue_workload=refused(message))), at(now)
        )
        due = float("inf") if held_back_s is None else now + held_back_s
    return [(seconds, line.rpartition(": ")[2]) for seconds, line in lines]


def refused(message: str) -> KueueWorkloadView:
    return kueue_workload(condition("QuotaReserved", False, 1, "Pending", message))


def test_reason_that_replaces_another_is_reported_when_the_last_line_is_a_minute_old():
    assert in_queue_at((10, "no quota"), (11, "queue is stopping"), (500, "no quota")) == [
        (10, "no quota"),
        (70, "queue is stopping"),
        (500, "no quota"),
    ]


def test_reasons_that_alternate_are_reported_once_a_minute_and_the_present_one_last():
    changes = [(10.0 + number, ("no quota", "no node")[number % 2]) for number in range(151)]
    assert in_queue_at(*changes) == [(10, "no quota"), (71, "no node"), (132, "no quota")]


def test_reason_that_comes_back_within_a_minute_is_not_reported_twice():
    assert in_queue_at((10, "no quota"), (20, "no node"), (30, "no quota"), (900, "no quota")) == [(10, "no quota")]


def test_another_cause_is_reported_at_once_and_its_end_within_a_minute():
    held = "ClusterQueue c is inactive"
    assert in_queue_at((10, "no quota"), (12, held), (13, "no quota")) == [
        (10, "no quota"),
        (12, held),
        (72, "no quota"),
    ]


def test_reason_with_other_numbers_is_reported_every_fifteen_minutes():
    changes = [(10.0 + 30 * number, f"{number} more needed") for number in range(61)]
    assert in_queue_at(*changes) == [(10, "0 more needed"), (910, "30 more needed"), (1810, "60 more needed")]


def test_events_that_explain_nothing_do_not_repeat_the_line():
    lines: list[str] = []
    reporter = PhaseReporter(lambda state: lines.append(state.line))
    for has_events in (False, True):
        reporter.report(observe(QUEUED, (), None, REF), at(10), has_events=has_events)
    assert lines == ["queued: Waits for admission by Kueue queue team"]


# -- Random valid histories of a gang: phases only move forward, and a restarted reader reports the same -------------

ORDER = list(Phase)
RANKS = 3

few = settings(max_examples=examples(40), deadline=None)


class Snapshot:
    """The Job and the pods at one moment. Its text is the log line of the gang, so that failures are readable."""

    def __init__(self, seen_job: StoredGang, pods: list[PodView]) -> None:
        self.job = seen_job
        self.pods = pods

    def __repr__(self) -> str:
        return _observe(self.job, self.pods).line


def _observe(seen_job: StoredGang, pods: list[PodView]) -> GangState:
    return observe(seen_job, pods, None, REF)


class History:
    """A drawn history of a gang, from its creation to its end. `snapshots` has each of its moments."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.now = 0
        self.job: JobBuilder = job(RANKS)
        self.pods: list[PodBuilder] = []
        self.snapshots: list[Snapshot] = []

    def tick(self) -> int:
        self.now += self.draw(st.integers(0, 5))
        return self.now

    def snap(self) -> None:
        self.snapshots.append(Snapshot(self.job.read(), [made.view() for made in self.pods]))

    def live(self) -> None:
        self.snap()
        if self.draw(st.booleans()):
            self._queue()
        else:
            self.job.started(self.tick())
        self.snap()
        self._each_in_any_order(self._create)
        self._each_in_any_order(self._place)
        self._each_in_any_order(self._start)
        failing = self.draw(st.sampled_from([None, *range(RANKS)]))
        if failing is None:
            self._each_in_any_order(self._succeed)
            self.job.decided("SuccessCriteriaMet", self.tick(), "CompletionsReached")
            self.snap()
            self.job.complete(self.tick())
        else:
            self._fail(failing)
        self.snap()
        self._each_in_any_order(self._release)

    def _queue(self) -> None:
        self.job.suspended(self.tick())
        self.snap()
        self.job.spec(suspend=False)
        self.snap()
        self.job.resumed(self.tick())
        self.snap()

    def _each_in_any_order(self, step: Any) -> None:
        for rank in self.draw(st.permutations(range(RANKS))):
            step(rank)
            self.snap()

    def _pod(self, rank: int) -> PodBuilder:
        return next(p for p in self.pods if p.obj["metadata"]["annotations"].get("rank") == str(rank))

    def _create(self, rank: int) -> None:
        made = pod(f"pod-{rank}").rank(rank).held().created(self.now)
        made.obj["metadata"]["annotations"]["rank"] = str(rank)
        self.pods.append(made)

    def _place(self, rank: int) -> None:
        self._pod(rank).on("node", self.tick())

    def _start(self, rank: int) -> None:
        made = self._pod(rank)
        made.running(self.tick())
        made.obj["started"] = self.now

    def _succeed(self, rank: int) -> None:
        made = self._pod(rank)
        made.succeeded(self.tick(), started=made.obj["started"])
        done = sum(p.obj["status"]["phase"] == "Succeeded" for p in self.pods)
        self.job.counts(succeeded=self.draw(st.integers(0, done)))

    def _fail(self, rank: int) -> None:
        self._pod(rank).failed(1, self.tick(), started=self._pod(rank).obj["started"])
        self.snap()
        self.job.decided("FailureTarget", self.tick(), "BackoffLimitExceeded")
        self.snap()
        for other in set(range(RANKS)) - {rank}:
            started = self._pod(other).obj["started"]
            self._pod(other).failed(143, self.tick(), started=started).deleted(asked=self.now)
            self.snap()
        self.job.counts(failed=RANKS).failed(self.tick())

    def _release(self, rank: int) -> None:
        self._pod(rank).obj["metadata"]["finalizers"].remove(FINALIZER_HARVEST)
        if "deletionTimestamp" in self._pod(rank).obj["metadata"]:
            self.pods.remove(self._pod(rank))


@st.composite
def histories(draw: Any) -> list[Snapshot]:
    history = History(draw)
    history.live()
    return history.snapshots


@few
@given(histories())
def test_phases_only_move_forward_and_pass_through_running(snapshots):
    phases = [_observe(snapshot.job, snapshot.pods).phase for snapshot in snapshots]
    assert phases == sorted(phases, key=ORDER.index)
    assert phases[-1] in {Phase.SUCCEEDED, Phase.FAILED}
    assert {Phase.SUBMITTED, Phase.ASSEMBLING, Phase.RUNNING, Phase.FINISHING} <= set(phases)


@few
@given(histories())
def test_times_never_change_while_the_gang_runs(snapshots):
    began: dict[Phase, Any] = {}
    for snapshot in snapshots:
        seen = _observe(snapshot.job, snapshot.pods)
        if seen.verdict is None:
            assert all(seen.began[phase] == when for phase, when in began.items() if phase in seen.began)
            assert seen.phase in seen.began
            began |= seen.began


@few
@given(histories(), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_lagging_views_do_not_move_the_phase_back(snapshots, steps):
    last = len(snapshots) - 1
    gone = [n for n in range(1, len(snapshots)) if len(snapshots[n].pods) < len(snapshots[n - 1].pods)]
    of_job = of_pods = before = 0
    for job_ahead, pods_ahead in steps:
        of_job = min(of_job + job_ahead, last)
        # When pods are gone, only the Job shows the phase that they had, so the view of the Job must not lag that much.
        of_pods = min(of_pods + pods_ahead, last if of_job == last or not gone else gone[0] - 1)
        phase = ORDER.index(_observe(snapshots[of_job].job, snapshots[of_pods].pods).phase)
        # The end is reported only after the pods were listed from the server.
        seen = min(phase, ORDER.index(Phase.FINISHING))
        assert seen >= before
        before = seen

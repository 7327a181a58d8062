"""A gang that an earlier release has submitted comes to its end, whatever it was doing at the upgrade."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from airflow.triggers.base import BaseTrigger

from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.state.ownership import SweepAction, TaskEnd
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.hooks.gang_job import GangJobHook
from gangjobs_sandbox.resources import CONFIGMAPS, JOBS, PODS
from tests.airflow.polling import wait_for
from tests.provider.submission_cluster import running_cluster
from tests.provider.test_sweep import GRACE_S, MINUTE_S, Sweeper
from tests.provider.upgrade import golden
from tests.provider.upgrade.golden import CONNECTION, Golden
from tests.provider.upgrade.old_task import place

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provider.upgrade.old_task import OldTask

    InFlight = Callable[..., OldTask]
    from collections.abc import AsyncIterator
    from typing import Any

    from tests.provider.submission_cluster import SubmissionCluster

FILES = [golden.read(version, name) for version in golden.VERSIONS for name in golden.names(version)]
NEVER_RAN = ("half_submitted", "not_started")
SUBMISSIONS = [(each, moment) for each in FILES for moment in NEVER_RAN if moment in each.data["moments"]]
FOLLOWED = [each for each in FILES if "running" in each.data["moments"] and each.data["events"].get("succeeded")]
STARTED = [each for each in FOLLOWED if "start" in each.data["deferrals"]["first"]["trigger_kwargs"]]
"""The triggerer has started the gang."""
RUNNING = [each for each in FOLLOWED if each not in STARTED]
SINCE_3_3 = pytest.mark.skipif(not hasattr(BaseTrigger, "on_kill"), reason="Airflow has no starts in a triggerer")
SIDECARS = [each for each in FILES if each.name == "sidecars"]
TRAIN = [each for each in FILES if each.name == "train"]


def results_of(old: Golden) -> dict[str, str]:
    """Return the termination messages of the ranks, as the old ledger has them after the end."""
    entries = old.ledger("succeeded").values()
    return {f"{each.get('role', '')}/{each.get('role_rank', each['rank'])}": each["message"] for each in entries}


@pytest.mark.parametrize(("old", "moment"), SUBMISSIONS, ids=[f"{old} {moment}" for old, moment in SUBMISSIONS])
def test_retry_adopts_and_completes_a_submission(old: Golden, moment: str, in_flight: InFlight) -> None:
    task = in_flight(old, moment)
    before = task.job

    left = task.retry()

    task.wait_for_pods()
    assert task.job["metadata"]["uid"] == before["metadata"]["uid"] == left.trigger.args.uid
    assert task.job["spec"]["suspend"] is False
    claim = read_job(task.job).claim.id
    assert claim == task.context(is_retry=True)["ti"].id != old.data["task_instance"]["id"]


@pytest.mark.parametrize("old", RUNNING, ids=str)
def test_triggerer_follows_a_gang_and_a_worker_returns_its_results(old: Golden, in_flight: InFlight) -> None:
    task = in_flight(old, "running")

    event = task.follow_deferral("first", lambda: task.end_ranks(results_of(old)))
    end = task.resume(event)

    assert end == old.data["ends"]["succeeded"]
    assert Counter(uid for uid, _ in task.ledger) == Counter(pod["metadata"]["uid"] for pod in task.pods)


@SINCE_3_3
@pytest.mark.parametrize("old", STARTED, ids=str)
def test_triggerer_follows_the_gang_that_another_has_started(old: Golden, in_flight: InFlight) -> None:
    task = in_flight(old, "running")
    before = task.job

    event = task.follow_deferral("first", lambda: task.end_ranks(results_of(old)))

    assert (event["uid"], task.job["metadata"]["uid"]) == (before["metadata"]["uid"],) * 2
    assert task.resume(event) == old.data["ends"]["succeeded"]


@SINCE_3_3
@pytest.mark.parametrize("old", [each for each in FILES if each.name == "ends_in_triggerer"], ids=str)
def test_triggerer_ends_the_task_of_a_gang_that_it_finds(old: Golden, in_flight: InFlight) -> None:
    task = in_flight(old, "running")

    xcoms = task.end_in_triggerer(lambda: task.end_ranks(results_of(old)))

    assert xcoms["return_value"] == old.data["ends"]["succeeded"]["value"]
    assert xcoms["gang_end"]["status"] == "succeeded"


@pytest.mark.parametrize("old", RUNNING, ids=str)
def test_retry_adopts_a_gang_that_runs(old: Golden, in_flight: InFlight) -> None:
    """The worker of the old try was lost while the gang ran."""
    task = in_flight(old, "running")

    left = task.retry()
    path, kwargs = left.trigger.serialize()
    event = task.follow(path, kwargs, lambda: task.end_ranks(results_of(old)))
    end = task.resume(event, context=task.context(is_retry=True))

    assert left.trigger.args.uid == old.data["deferrals"]["first"]["trigger_kwargs"]["uid"]
    assert end == old.data["ends"]["succeeded"]


@pytest.mark.parametrize("old", SIDECARS, ids=str)
def test_gang_ends_although_its_sidecars_run_on(old: Golden, in_flight: InFlight) -> None:
    task = in_flight(old, "running", timedelta(minutes=1))

    event = task.follow_deferral("first", lambda: task.end_ranks({}))

    assert task.resume(event) == {"value": {"rank": 0}}


@pytest.mark.parametrize("old", TRAIN, ids=str)
def test_outcomes_that_were_recorded_before_stay_and_count_once(old: Golden, in_flight: InFlight) -> None:
    task = in_flight(old, "running")
    before = dict(task.ledger)
    ended = {pod["metadata"]["uid"] for pod in task.pods if pod["status"]["phase"] == "Succeeded"}

    task.follow_deferral("first", lambda: task.end_ranks(results_of(old)))

    after = task.ledger
    assert (len(before), len(ended), len(after)) == (1, 2, 3)
    assert Counter(uid for uid, _ in after).most_common(1)[0][1] == 1
    assert before.items() <= dict(after).items()
    assert ended <= dict(after).keys()
    assert not [pod for pod in task.pods if "gangjobs.airflow/harvest" in pod["metadata"].get("finalizers", ())]


@pytest.mark.parametrize("old", [each for each in FILES if each.name == "shards"], ids=str)
def test_outcomes_in_several_config_maps_are_read_once_each(old: Golden, in_flight: InFlight) -> None:
    task = in_flight(old, "succeeded")
    shards = [each for each in task.objects(CONFIGMAPS) if "-ledger-" in each["metadata"]["name"]]

    kwargs = task.golden.data["deferrals"]["first"]["trigger_kwargs"]
    ref = GangRef(kwargs["namespace"], kwargs["name"], kwargs["uid"])

    found = GangJobHook(CONNECTION).outcomes(ref)

    assert len(shards) > 1
    assert sorted((each.rank, each.result["rank"]) for each in found) == [(rank, rank) for rank in range(4)]


@pytest.mark.parametrize("moment", ["half_submitted", "running", "succeeded"])
@pytest.mark.parametrize("old", TRAIN, ids=str)
def test_upgrade_in_the_middle_loses_nothing(old: Golden, moment: str, in_flight: InFlight) -> None:
    """The old release is replaced while it submits, follows, or is about to complete; the present one does the rest.

    The processes of the old release are not run here, because their code is not at hand on every machine. What they
    have left is the golden file: what Airflow has stored, and the objects in the cluster. Everything after that is run,
    in the order of Airflow: the retry if the worker was lost, the trigger, the worker that completes the task, and the
    success callback that delivers the gang and deletes it.
    """
    task = in_flight(old, moment)
    context, stored = task.context(), task.golden.data["deferrals"]["first"]
    trigger = stored["classpath"], stored["trigger_kwargs"]
    if moment == "half_submitted":
        context, trigger = task.context(is_retry=True), task.retry().trigger.serialize()
        task.wait_for_pods()
    event = task.golden.data["events"]["succeeded"]
    if moment != "succeeded":
        event = task.follow(*trigger, lambda: task.end_ranks(results_of(old)))

    end = task.resume(event, context=context)
    recorded = Counter(uid for uid, _ in task.ledger)
    task.note_success(context)

    assert end == old.data["ends"]["succeeded"]
    assert sorted(recorded.values()) == [1, 1, 1]
    wait_for("the deletion", lambda: not task.objects(JOBS))


# -- A sweep ends, delivers, and cleans up what an earlier release has left without a process that is responsible ----


@pytest.fixture(params=TRAIN, ids=str)
def old(request: pytest.FixtureRequest) -> golden.Golden:
    found: golden.Golden = request.param
    return found


@pytest.fixture
async def cluster() -> AsyncIterator[SubmissionCluster]:
    async with running_cluster() as cluster:
        yield cluster


class OldSweeper(Sweeper):
    """A sweep of the installation of the golden files, whose Airflow always says the same about the task."""

    def __init__(self, cluster: SubmissionCluster, old: golden.Golden, moment: str, end: TaskEnd) -> None:
        super().__init__(cluster, installation=golden.INSTALLATION)
        now = old.at(moment, now=cluster.bench.clock.now())
        place(cluster.bench.registry, now.objects(moment))
        key = {name: old.data["task_instance"][name] for name in ("dag_id", "run_id", "task_id", "map_index")}

        async def ask(asked: Any) -> TaskEnd:
            self.asked += 1
            assert dict(asked.to_mapping()) == key
            return end

        self.sweep.ask = ask

    async def actions(self) -> list[SweepAction]:
        looks = [await self.look(), await self.look(after_s=GRACE_S), await self.look(after_s=MINUTE_S)]
        return [action for look in looks for action in look]


@pytest.mark.parametrize(
    ("end", "actions"), [(TaskEnd.SUCCEEDED, [SweepAction.MARK_DELIVERED]), (TaskEnd.NOT_ENDED, [])]
)
async def test_gang_that_has_ended_is_marked_as_delivered_once_its_task_has_succeeded(
    cluster: SubmissionCluster, old: golden.Golden, end: TaskEnd, actions: list[SweepAction]
) -> None:
    sweeper = OldSweeper(cluster, old, "succeeded", end)

    assert await sweeper.actions() == actions

    (job,) = cluster.jobs()
    assert ("gangjobs.airflow/delivered" in job["metadata"]["annotations"]) == bool(actions)


async def test_gang_that_was_delivered_and_not_deleted_is_deleted(
    cluster: SubmissionCluster, old: golden.Golden
) -> None:
    sweeper = OldSweeper(cluster, old, "delivered", TaskEnd.SUCCEEDED)

    assert (await sweeper.actions(), sweeper.asked) == ([SweepAction.DELETE_DELIVERED], 0)

    assert cluster.jobs() == []


async def test_live_gang_of_a_task_that_has_ended_is_deleted_and_its_pods_are_released(
    cluster: SubmissionCluster, old: golden.Golden
) -> None:
    sweeper = OldSweeper(cluster, old, "running", TaskEnd.ENDED)

    assert await sweeper.actions() == [SweepAction.DELETE_LIVE]

    assert cluster.live_jobs() == []
    assert not [pod for pod in cluster.objects(PODS) if _is_held(pod)]


def _is_held(pod: dict[str, Any]) -> bool:
    return "gangjobs.airflow/harvest" in pod["metadata"].get("finalizers", ())

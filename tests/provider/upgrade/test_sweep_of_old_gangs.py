"""A sweep ends, delivers, and cleans up what an earlier release has left without a process that is responsible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.gang.state.ownership import SweepAction, TaskEnd
from gangjobs_sandbox.resources import PODS
from tests.provider.submission_cluster import running_cluster
from tests.provider.test_sweep import GRACE_S, MINUTE_S, Sweeper
from tests.provider.upgrade import golden
from tests.provider.upgrade.old_task import place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from tests.provider.submission_cluster import SubmissionCluster

TRAIN = [golden.read(version, "train") for version in golden.VERSIONS if "train" in golden.names(version)]


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

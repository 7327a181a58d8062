"""Two processes submit the same task at once; every order of their requests ends in one gang."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.submission.submit import Submission
from tests.provider.submission_cluster import GANG_OF_4, RELEASES, running_cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from airflow_provider_gangjobs.exceptions import GangJobError

OTHER = GangSpec(image="trainer:2", workers=4)


class Gate:
    """The client of a process that waits for its turn before each request."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.parked = asyncio.Event()
        self._turn = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._api, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.parked.set()
            await self._turn.wait()
            self._turn.clear()
            return await method(*args, **kwargs)

        return call

    def let_go(self) -> None:
        self.parked.clear()
        self._turn.set()


async def interleaved(
    api: Any, turns: Iterator[int], *submits: Callable[[Any], Awaitable[Submission]]
) -> list[Submission | GangJobError]:
    """What each process got, when their requests are made one at a time in the order of `turns`."""
    gates = [Gate(api) for _ in submits]
    tasks = [asyncio.ensure_future(submit(gate)) for submit, gate in zip(submits, gates, strict=True)]
    while running := [index for index, task in enumerate(tasks) if not task.done()]:
        for index in running:
            await until_parked_or_done(gates[index], tasks[index])
        waiting = [index for index in running if not tasks[index].done()]
        if waiting:
            gates[waiting[next(turns, 0) % len(waiting)]].let_go()
    return [task.exception() or task.result() for task in tasks]


async def until_parked_or_done(gate: Gate, task: asyncio.Future[Any]) -> None:
    parked = asyncio.ensure_future(gate.parked.wait())
    await asyncio.wait({parked, task}, return_when=asyncio.FIRST_COMPLETED)
    parked.cancel()


TURNS = st.lists(st.integers(0, 1), max_size=24)
HARD = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


@settings(max_examples=30, **HARD)
@given(turns=TURNS, release=st.sampled_from(RELEASES))
async def test_two_submitters_end_in_one_gang(turns, release):
    async with running_cluster(release) as cluster:
        first, second = await interleaved(
            cluster.client,
            iter(turns),
            lambda api: cluster.submit(claim="ti-1", api=api),
            lambda api: cluster.submit(claim="ti-2", api=api),
        )
        assert isinstance(first, Submission), first
        assert isinstance(second, Submission), second
        assert first.ref == second.ref
        cluster.check_one_live_gang(second)


@settings(max_examples=20, **HARD)
@given(turns=TURNS)
async def test_two_that_replace_each_other_leave_at_most_one(turns):
    async with running_cluster() as cluster:
        await interleaved(
            cluster.client,
            iter(turns),
            lambda api: cluster.submit(claim="ti-1", api=api, reattach="never"),
            lambda api: cluster.submit(claim="ti-2", api=api, reattach="never"),
        )
        submission = await cluster.submit(claim="ti-3")
        cluster.check_one_live_gang(submission)


@settings(max_examples=20, **HARD)
@given(turns=TURNS)
async def test_two_with_other_parameters_leave_at_most_one(turns):
    async with running_cluster() as cluster:
        ends = await interleaved(
            cluster.client,
            iter(turns),
            lambda api: cluster.submit(GANG_OF_4, claim="ti-1", api=api),
            lambda api: cluster.submit(OTHER, claim="ti-2", api=api),
        )
        assert any(isinstance(end, Submission) for end in ends)
        cluster.bench.run()
        assert len(cluster.live_jobs()) == 1


async def test_many_submitters_at_once_end_in_one_gang(cluster):
    submissions = await asyncio.gather(*(cluster.submit(claim=f"ti-{n}") for n in range(8)))
    assert len({submission.ref for submission in submissions}) == 1
    assert [submission.adopted for submission in submissions].count(False) == 1
    cluster.check_one_live_gang(submissions[0])

"""Callers of a cached read share it, and a read that fails or is cancelled leaves what it should, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_gangjobs.cluster.errors import Unreachable
from airflow_provider_gangjobs.cluster.loop_local import Answer, CachedReads
from tests.provider.virtual_time import VirtualTimeLoop, elapsed, in_virtual_time

LASTS_S = 60.0
UNANSWERED = Answer(None, 30.0)


@dataclass
class Source:
    """A cluster whose reads take some time and return their number, or raise."""

    took_s: float = 1.0
    error: Exception | None = None
    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    """When the reads ended that returned a value."""

    async def read(self) -> Answer[int]:
        self.began.append(elapsed())
        await asyncio.sleep(self.took_s)
        if self.error is not None:
            raise self.error
        self.ended.append(elapsed())
        return Answer(len(self.began), LASTS_S)


def get(reads: CachedReads, source: Source, key: str = "key", **options: Any) -> asyncio.Task[Any]:
    return asyncio.ensure_future(reads.get(key, source.read, asyncio.get_running_loop().time, **options))


@in_virtual_time
async def test_callers_share_a_read_until_its_answer_expires() -> None:
    reads, source = CachedReads(), Source()
    assert await asyncio.gather(*(get(reads, source) for _ in range(5))) == [1] * 5
    await asyncio.sleep(LASTS_S - 0.1)
    assert await get(reads, source) == 1
    await asyncio.sleep(0.1)
    assert await get(reads, source) == 2
    assert source.began == [0.0, 61.0]


@in_virtual_time
async def test_caller_that_needs_more_than_was_read_reads_again() -> None:
    reads, source = CachedReads(), Source()
    assert await get(reads, source) == 1
    assert await get(reads, source, accepts=lambda value: value > 1) == 2
    assert await get(reads, source, accepts=lambda value: value > 0) == 2


@in_virtual_time
async def test_error_is_raised_and_leaves_nothing() -> None:
    reads, source = CachedReads(), Source(error=Unreachable("GET /", "refused"))
    with pytest.raises(Unreachable):
        await get(reads, source)
    source.error = None
    assert await get(reads, source) == 2


@pytest.mark.parametrize("error", [Unreachable("GET /", "refused"), ValueError("no quantity")], ids=["server", "value"])
@in_virtual_time
async def test_failed_read_of_little_importance_is_unanswered_for_a_while(error: Exception) -> None:
    reads, source = CachedReads(), Source(error=error)
    assert await get(reads, source, unanswered=UNANSWERED) is None
    source.error = None
    await asyncio.sleep(29.9)
    assert await get(reads, source, unanswered=UNANSWERED) is None
    await asyncio.sleep(0.1)
    assert await get(reads, source, unanswered=UNANSWERED) == 2


@in_virtual_time
async def test_slow_cluster_that_callers_give_up_on_is_not_asked_by_each_of_them() -> None:
    reads, source = CachedReads(), Source(took_s=100.0)
    for _ in range(4):
        try:
            async with asyncio.timeout(5.0):
                assert await get(reads, source, within_s=10.0, unanswered=UNANSWERED) is None
        except TimeoutError:
            assert elapsed() == 5.0
        await asyncio.sleep(5.0)
    assert source.began == [0.0]


@in_virtual_time
async def test_cancelled_caller_of_a_read_without_another_answer_leaves_the_read_to_the_next() -> None:
    reads, source = CachedReads(), Source()
    first, second = get(reads, source), get(reads, source)
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second == 2
    assert first.cancelled()
    assert source.began == [0.0, 0.5]


@in_virtual_time
async def test_answers_that_have_expired_are_removed() -> None:
    reads = CachedReads()
    for number in range(100):
        await get(reads, Source(), f"key {number}")
        await asyncio.sleep(LASTS_S)
    assert len(reads) == 1


@dataclass(frozen=True)
class Caller:
    """A caller that comes at a time, and gives up after a while."""

    comes_s: int
    waits_s: int
    is_best_effort: bool


callers = st.lists(st.builds(Caller, st.integers(0, 300), st.integers(0, 40), st.booleans()), min_size=1, max_size=12)


@given(callers=callers, took_s=st.sampled_from([0.0, 1.5, 8.5, 15.5, 35.5]), fails=st.booleans())
def test_any_callers_read_one_at_a_time_and_never_while_there_is_an_answer(
    callers: list[Caller], took_s: float, fails: bool
) -> None:
    """An answer is never older than its time, and a best-effort caller waits for no more than the reads before it."""
    reads = CachedReads()
    source = Source(took_s, Unreachable("GET /", "refused") if fails else None)
    reading, free_at = 0, 0.0

    async def read(kept_s: float | None) -> Answer[int]:
        """Check that nobody else reads, and that no answer is kept. Note until when the answer of this read is."""
        nonlocal reading, free_at
        assert reading == 0
        assert elapsed() >= free_at
        reading = 1
        try:
            answer = await source.read()
            kept_s = answer.lasts_s
            return answer
        finally:
            reading = 0
            if kept_s is not None:
                free_at = elapsed() + kept_s

    async def call(caller: Caller) -> None:
        await asyncio.sleep(caller.comes_s)
        options: dict[str, Any] = {"within_s": 10.0, "unanswered": UNANSWERED} if caller.is_best_effort else {}
        kept_s = UNANSWERED.lasts_s if caller.is_best_effort else None
        try:
            async with asyncio.timeout(caller.waits_s):
                value = await reads.get("key", lambda: read(kept_s), asyncio.get_running_loop().time, **options)
        except TimeoutError:
            assert elapsed() == caller.comes_s + caller.waits_s
        except Unreachable:
            assert fails
            assert not caller.is_best_effort
        else:
            assert value is None or elapsed() - source.ended[-1] < LASTS_S

    async def all_calls() -> None:
        async with asyncio.TaskGroup() as group:
            for caller in callers:
                group.create_task(call(caller))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(all_calls())

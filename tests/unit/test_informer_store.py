"""The store compared with a plain dict, and the notifications of its subscribers."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from airflow_provider_gangjobs.cluster.clock import TimeSlice
from airflow_provider_gangjobs.cluster.informer import Notification
from airflow_provider_gangjobs.cluster.informer.store import InformerClosedError, Store, Subscription
from airflow_provider_gangjobs.cluster.loop_local import WAKEUPS_PER_ITERATION_MAX
from tests.examples import examples

# -- The store compared with a plain dict: after any events in any order, both have the same objects -----------------


class Meta(msgspec.Struct, frozen=True):
    uid: str
    resource_version: str
    key: str | None


class View(msgspec.Struct, frozen=True):
    metadata: Meta


def view(uid: str, version: int | str = 1, key: str | None = "k") -> View:
    return View(Meta(uid, str(version), key))


def by_key(view: View) -> str | None:
    return view.metadata.key


def put_listed(store: Store[View], unseen: set[str], view: View) -> None:
    """Store an object of a list, as the reflector does."""
    unseen.discard(view.metadata.uid)
    store.put(view)


def store_with(*views: View) -> Store[View]:
    store: Store[View] = Store(by_key)
    for each in views:
        store.put(each)
    return store


async def woken(subscription: Subscription[View]) -> bool:
    return await subscription.changed(timeout_s=0)


# -- tables of one behaviour ----------------------------------------------------------------------------------------


async def test_many_changes_are_one_notification() -> None:
    store = store_with()
    subscription = store.subscribe("k")
    for version in range(10):
        store.put(view("a", version))
    assert (await woken(subscription), await woken(subscription)) == (True, False)


async def test_known_version_notifies_nobody() -> None:
    store = store_with(view("a", 5))
    subscription = store.subscribe("k")
    store.put(view("a", 5))
    assert not await woken(subscription)


async def test_versions_have_no_order() -> None:
    store = store_with(view("a", 10))
    store.put(view("a", 9))
    assert store.objects("k") == {"a": view("a", 9)}


async def test_objects_that_are_not_taken_stay_for_the_next_call() -> None:
    store = store_with(*(view(name) for name in "abcde"))
    subscription = store.subscribe("k")
    parts = [subscription.take_updated(2) for _ in range(4)]
    assert [len(part) for part in parts] == [2, 2, 1, 0]
    assert {uid for part in parts for uid in part} == set("abcde")
    for name in "abc":
        store.remove(view(name, 2))
    gone = [subscription.take_deleted(2) for _ in range(3)]
    assert [len(part) for part in gone] == [2, 1, 0]
    assert {uid: last for part in gone for uid, last in part.items()} == {name: view(name, 2) for name in "abc"}


async def test_object_first_seen_as_deleted_is_reported() -> None:
    store = store_with()
    subscription = store.subscribe("k")
    store.remove(view("a"))
    assert await woken(subscription)
    assert subscription.take_deleted() == {"a": view("a")}


async def test_undecodable_object_of_a_list_keeps_its_last_state() -> None:
    store = store_with(view("a"), view("b"))
    unseen = store.begin_list()
    put_listed(store, unseen, view("b", 2))
    unseen.discard("a")
    await store.end_list(unseen, TimeSlice())
    assert store.objects("k") == {"a": view("a"), "b": view("b", 2)}


async def test_other_tasks_run_while_many_objects_are_removed() -> None:
    store = store_with(*(view(str(number)) for number in range(1000)))
    unseen = store.begin_list()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while len(store):
            turns += 1
            await asyncio.sleep(0)

    ticks = itertools.count()
    running = asyncio.create_task(others())
    await store.end_list(unseen, TimeSlice(slice_s=10, monotonic=lambda: float(next(ticks))))
    await running
    assert turns > 50
    assert await store.synced(0)


async def test_forgotten_objects_come_back_when_they_change_or_are_listed() -> None:
    store = store_with(view("a"), view("b"), view("c", key="other"))

    assert store.forget("k")
    assert (len(store), store.keys()) == (1, ["other"])
    store.put(view("a", 2))
    unseen = store.begin_list()
    put_listed(store, unseen, view("b"))
    assert store.objects("k").keys() == {"a", "b"}


async def test_objects_with_a_subscriber_are_not_forgotten() -> None:
    store = store_with(view("a"))
    subscription = store.subscribe("k")

    assert not store.forget("k")
    subscription.close()
    assert store.forget("k")
    assert len(store) == 0


async def test_objects_may_be_forgotten_while_a_list_is_read() -> None:
    store = store_with(view("a"), view("b"))
    unseen = store.begin_list()
    put_listed(store, unseen, view("a"))

    store.forget("k")
    await store.end_list(unseen, TimeSlice())

    assert len(store) == 0


async def test_store_is_a_snapshot_only_when_no_list_is_read() -> None:
    store = store_with()
    first = store.begin_list()
    assert not store.is_snapshot
    await store.end_list(first, TimeSlice())
    assert store.is_snapshot
    again = store.begin_list()
    put_listed(store, again, view("a"))
    assert (store.is_synced, store.is_snapshot) == (True, False)
    await store.end_list(store.begin_list(), TimeSlice())
    assert store.is_snapshot


async def test_other_tasks_run_while_a_closed_store_is_cleared() -> None:
    store = store_with(*(view(str(number), key=f"k{number % 3}") for number in range(1000)))
    ticks = itertools.count()
    store.close()
    forgetting = asyncio.create_task(store.clear(TimeSlice(slice_s=10, monotonic=lambda: float(next(ticks)))))
    turns = 0
    while not forgetting.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 50
    assert not any(store.objects(f"k{number}") for number in range(3))


async def test_first_list_notifies_subscribers_without_objects() -> None:
    store = store_with()
    subscription = store.subscribe("nothing")
    await store.end_list(store.begin_list(), TimeSlice())
    assert await store.synced(timeout_s=0)
    assert await woken(subscription)


async def test_synced_returns_false_after_its_timeout() -> None:
    assert not await store_with().synced(timeout_s=0)


async def test_closed_subscription_gets_no_notification() -> None:
    store = store_with()
    subscription = store.subscribe("k")
    subscription.close()
    subscription.close()
    store.put(view("a"))
    assert not await woken(subscription)
    assert store.subscription_count == 0


async def test_closed_store_ends_all_waits() -> None:
    store = store_with()
    subscription = store.subscribe("k")
    await store.end_list(store.begin_list(), TimeSlice())
    store.close()
    assert not store.is_snapshot
    with pytest.raises(InformerClosedError):
        await subscription.changed()
    with pytest.raises(InformerClosedError):
        await store.synced()
    with pytest.raises(InformerClosedError):
        store.subscribe("k")


async def test_failing_index_keeps_the_key_of_an_object() -> None:
    def brittle(view: View) -> str | None:
        if view.metadata.resource_version == "2":
            raise KeyError("label")
        return view.metadata.key

    store: Store[View] = Store(brittle)
    store.put(view("a", 1))
    store.put(view("a", 2))
    store.put(view("b", 2))
    assert store.objects("k") == {"a": view("a", 2)}
    assert store.index_errors == 2


# -- against a model -------------------------------------------------------------------------------------------

UIDS = st.sampled_from("abcdef")
KEYS = st.sampled_from(["k1", "k2", "k3", None])


class StoreMachine(RuleBasedStateMachine):
    """A mix of events, complete and partial lists, and subscribers that subscribe, take changes, and close."""

    subscriptions = Bundle("subscriptions")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store: Store[View] = Store(by_key)
        self.model: dict[str, View] = {}
        self.version = 0
        self.seen: dict[Subscription[View], dict[str, View]] = {}

    def _next(self, uid: str, key: str | None) -> View:
        self.version += 1
        return view(uid, self.version, key)

    def _put(self, new: View) -> None:
        if new.metadata.key is None:
            self.model.pop(new.metadata.uid, None)
        else:
            self.model[new.metadata.uid] = new

    def of_key(self, key: str) -> dict[str, View]:
        return {uid: v for uid, v in self.model.items() if v.metadata.key == key}

    def teardown(self) -> None:
        self.loop.close()

    @rule(uid=UIDS, key=KEYS)
    def put(self, uid: str, key: str | None) -> None:
        new = self._next(uid, key)
        self.store.put(new)
        self._put(new)

    @rule(uid=UIDS, key=KEYS)
    def remove(self, uid: str, key: str | None) -> None:
        self.store.remove(self._next(uid, key))
        self.model.pop(uid, None)

    @rule(alive=st.dictionaries(UIDS, KEYS), unchanged=st.sets(UIDS), finishes=st.booleans())
    def relist(self, alive: dict[str, str | None], unchanged: set[str], finishes: bool) -> None:
        unseen = self.store.begin_list()
        for uid, key in alive.items():
            new = self.model[uid] if uid in unchanged and uid in self.model else self._next(uid, key)
            put_listed(self.store, unseen, new)
            self._put(new)
        if finishes:
            self.loop.run_until_complete(self.store.end_list(unseen, TimeSlice()))
            self.model = {uid: v for uid, v in self.model.items() if uid in alive}

    @rule(target=subscriptions, key=st.sampled_from(["k1", "k2"]))
    def subscribe(self, key: str) -> Subscription[View]:
        subscription = self.store.subscribe(key)
        self.seen[subscription] = {}
        return subscription

    @rule(subscription=subscriptions)
    def look(self, subscription: Subscription[View]) -> None:
        """Check that the taken changes, applied to the objects before, are the objects of the store."""
        if subscription not in self.seen:
            return
        was_woken = self.loop.run_until_complete(subscription.changed(timeout_s=0))
        before, now = self.seen[subscription], self.of_key(subscription.key)
        deleted, updated = subscription.take_deleted(), subscription.take_updated()
        assert {**{uid: v for uid, v in before.items() if uid not in deleted}, **updated} == now
        assert not deleted.keys() & now.keys()
        assert was_woken or before == now or not before
        self.seen[subscription] = now

    @rule(subscription=subscriptions)
    def close(self, subscription: Subscription[View]) -> None:
        subscription.close()
        self.seen.pop(subscription, None)

    @invariant()
    def store_is_the_model(self) -> None:
        for key in ("k1", "k2", "k3"):
            assert self.store.objects(key) == self.of_key(key)
        assert len(self.store) == len(self.model)
        assert self.store.subscription_count == len(self.seen)


StoreMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestStore = StoreMachine.TestCase


# -- A notification is never lost, and never delivered twice ---------------------------------------------------------


async def test_notification_before_a_wait_ends_one_wait() -> None:
    wake = Notification()
    wake.notify()
    wake.notify()
    assert await wake.wait()
    assert not await wake.wait(0)


async def test_waiter_is_woken() -> None:
    wake = Notification()
    sleeper = asyncio.create_task(wake.wait())
    await asyncio.sleep(0)
    wake.notify()
    assert await sleeper
    assert not await wake.wait(0)


async def test_notification_of_a_cancelled_waiter_reaches_the_next() -> None:
    wake = Notification()
    sleeper = asyncio.create_task(wake.wait())
    await asyncio.sleep(0)
    wake.notify()
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    assert await wake.wait()


async def test_wait_after_a_timeout_works() -> None:
    wake = Notification()
    assert not await wake.wait(0)
    wake.notify()
    assert await wake.wait(0)


async def test_second_waiter_is_refused() -> None:
    wake = Notification()
    sleeper = asyncio.create_task(wake.wait())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        await wake.wait()
    wake.notify()
    assert await sleeper


class Rounds:
    """Counts the rounds of the loop."""

    def __init__(self) -> None:
        self.number = 0
        self._count()

    def _count(self) -> None:
        self.number += 1
        self._next = asyncio.get_running_loop().call_soon(self._count)

    def stop(self) -> None:
        self._next.cancel()


async def _asleep(wakes: list[Notification], woken: list[tuple[int, int]], rounds: Rounds) -> list[asyncio.Task[None]]:
    """Start waiters that record their number and the round in which they were woken."""

    async def sleep(number: int, wake: Notification) -> None:
        await wake.wait(60)
        woken.append((number, rounds.number))

    tasks = [asyncio.create_task(sleep(*each)) for each in enumerate(wakes)]
    await asyncio.sleep(0)
    return tasks


async def test_many_waiters_wake_in_order_over_several_iterations() -> None:
    wakes, woken, rounds = [Notification() for _ in range(10 * WAKEUPS_PER_ITERATION_MAX)], [], Rounds()
    tasks = await _asleep(wakes, woken, rounds)
    for wake in wakes:
        wake.notify()
    await asyncio.gather(*tasks)
    rounds.stop()
    assert [number for number, _ in woken] == list(range(len(wakes)))
    assert max(Counter(in_round for _, in_round in woken).values()) == WAKEUPS_PER_ITERATION_MAX
    assert woken[-1][1] - woken[0][1] == 9, "waiters were woken in each round"


async def test_due_timer_runs_before_all_waiters_are_woken() -> None:
    wakes, woken, rounds = [Notification() for _ in range(10 * WAKEUPS_PER_ITERATION_MAX)], [], Rounds()
    tasks = await _asleep(wakes, woken, rounds)
    for wake in wakes:
        wake.notify()
    woken_before: list[int] = []
    asyncio.get_running_loop().call_later(0, lambda: woken_before.append(len(woken)))
    await asyncio.gather(*tasks)
    rounds.stop()
    assert woken_before[0] <= 2 * WAKEUPS_PER_ITERATION_MAX


async def test_cancelled_waiter_does_not_count_towards_the_limit() -> None:
    wakes, woken, rounds = [Notification() for _ in range(2 * WAKEUPS_PER_ITERATION_MAX)], [], Rounds()
    tasks = await _asleep(wakes, woken, rounds)
    for task in tasks[WAKEUPS_PER_ITERATION_MAX:-1]:
        task.cancel()
    for wake in wakes:
        wake.notify()
    await asyncio.gather(*tasks, return_exceptions=True)
    rounds.stop()
    assert len(woken) == WAKEUPS_PER_ITERATION_MAX + 1
    assert woken[-1][1] - woken[0][1] == 1


async def test_second_notification_before_the_wake_up_is_merged() -> None:
    """A notification during a pending wake-up causes no further wake-up."""
    wake, crowd = Notification(), [Notification() for _ in range(WAKEUPS_PER_ITERATION_MAX)]
    rounds, woken = Rounds(), []
    tasks = await _asleep([*crowd, wake], woken, rounds)
    for each in (*crowd, wake, wake):
        each.notify()
    await asyncio.gather(*tasks)
    rounds.stop()
    assert not await wake.wait(0)

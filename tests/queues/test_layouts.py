"""Which gangs of a layout are ended when no pod of the layout has changed for a while."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from tests.queues.layouts import LABEL, WAITS_S, DrawnGang, Layout, Watchdog

FIRST, NEVER, LAST = (
    DrawnGang(ranks, millicores=1000, arrives_s=arrives_s, runs_s=1.0, tolerates=True)
    for ranks, arrives_s in ((2, 0.0), (5, 0.2), (3, 1.0))
)
LAYOUT = Layout(0, nodes=(2, 2), gangs=(FIRST, NEVER, LAST), tainted=None, leaves=None)
POD: Final[dict[str, Any]] = {
    "metadata": {"uid": "a"},
    "spec": {"nodeSelector": {LABEL: LAYOUT.name}},
    "status": {"phase": "Pending"},
}
PLACED = {**POD, "spec": {**POD["spec"], "nodeName": "node-0"}}


@pytest.mark.parametrize(("waiting", "ended"), [((0, 1, 2), [1]), ((0, 2), [2]), ((0,), [0]), ((), [])])
def test_gangs_that_never_fit_are_ended_first_and_then_the_last_to_arrive(
    waiting: tuple[int, ...], ended: list[int]
) -> None:
    assert LAYOUT.ended_first(waiting) == ended


@pytest.mark.parametrize(("pod_then", "is_ended"), [(POD, True), (PLACED, False)], ids=["nothing", "its node"])
def test_a_gang_is_ended_only_if_nothing_has_changed_for_long_enough(pod_then: dict[str, Any], is_ended: bool) -> None:
    limit = asyncio.Event()
    watchdog = Watchdog(LAYOUT, {0: limit})
    watchdog.look([POD], 0.0)
    watchdog.look([POD], WAITS_S - 1)
    watchdog.look([pod_then], WAITS_S + 1)
    assert limit.is_set() is is_ended

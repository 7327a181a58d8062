"""Which gangs of a layout that wait are ended, and when."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.queues.layouts import LABEL, WAITS_LOOKS, DrawnGang, Layout, Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

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


WAITS: Final = WAITS_LOOKS + 1


def ended_at(pods: Callable[[int], list[dict[str, Any]]], *waiting: int) -> dict[int, int]:
    """Return at which look each of the gangs is ended, which are all submitted before the first look."""
    limits = {index: asyncio.Event() for index in waiting}
    watchdog = Watchdog(LAYOUT, dict(limits), dict.fromkeys(waiting, 0))
    ended: dict[int, int] = {}
    for look in range(1, 4 * WAITS):
        watchdog.look(pods(look))
        ended = {index: look for index, limit in limits.items() if limit.is_set()} | ended
    return ended


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        pytest.param((0,), {0: WAITS + 1}, id="fits"),
        pytest.param(
            (0, 2), {2: WAITS + 1, 0: 2 * WAITS + 1}, id="keep each other from the nodes: the last to arrive first"
        ),
        pytest.param((0, 1), {1: WAITS, 0: 2 * WAITS}, id="may go on when a gang that never fits has been ended"),
        pytest.param((), {}, id="no gang"),
    ],
)
def test_gangs_that_could_go_on_are_ended_one_after_the_other(
    waiting: tuple[int, ...], expected: dict[int, int]
) -> None:
    assert ended_at(lambda _: [POD], *waiting) == expected


def test_only_a_gang_that_never_fits_is_ended_while_pods_change() -> None:
    assert ended_at(lambda look: [POD] if look % 2 else [PLACED], 0, 1, 2) == {1: WAITS}

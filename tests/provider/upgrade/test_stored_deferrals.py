"""What an earlier release has stored of a deferral is understood: the trigger, its arguments, and its event."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.module_loading import import_string
from airflow.triggers.base import BaseTrigger
from msgspec import convert
from msgspec.structs import replace

from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event
from airflow_provider_gangjobs.gang.outcome.event import GangEvent
from airflow_provider_gangjobs.gang.outcome.restarts import TimeUse
from airflow_provider_gangjobs.gang.spec import Logs
from tests.provider.test_log_streaming import Lines, copied_after
from tests.provider.upgrade import golden
from tests.provider.upgrade.golden import Golden, moved
from tests.provider.upgrade.old_task import place
from tests.provider.upgrade.write import operator_of
from tests.provider.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provider.upgrade.old_task import OldTask
    from tests.provider.virtual_control_plane import VirtualControlPlane

pytestmark = in_virtual_time

FILES = [golden.read(version, name) for version in golden.VERSIONS for name in golden.names(version)]
SINCE_3_3 = hasattr(BaseTrigger, "on_kill")
"""Whether Airflow ends a task in a triggerer."""
DEFERRALS = [(each, name) for each in FILES for name in each.data["deferrals"]]
EVENTS = [(each, name) for each in FILES for name in each.data["events"]]


def ids(pairs: list[tuple[Golden, str]]) -> list[str]:
    return [f"{each} {name}" for each, name in pairs]


@pytest.mark.parametrize(("old", "name"), DEFERRALS, ids=ids(DEFERRALS))
def test_stored_trigger_is_created_with_its_arguments(old: Golden, name: str) -> None:
    stored = old.data["deferrals"][name]

    trigger = import_string(stored["classpath"])(**stored["trigger_kwargs"])

    path, kwargs = trigger.serialize()
    assert path == stored["classpath"]
    assert {key: kwargs[key] for key in stored["trigger_kwargs"]} == stored["trigger_kwargs"]


@pytest.mark.parametrize(("old", "name"), DEFERRALS, ids=ids(DEFERRALS))
def test_operator_has_the_method_with_which_the_task_goes_on(old: Golden, name: str) -> None:
    stored = old.data["deferrals"][name]

    assert callable(getattr(operator_of(old.name, old.data), stored["next_method"]))
    assert stored["next_kwargs"] == {}  # the event is the only argument


@pytest.mark.parametrize(("old", "name"), EVENTS, ids=ids(EVENTS))
def test_event_is_completed_with_the_same_result_or_error(
    old: Golden, name: str, in_flight: Callable[[Golden, str], OldTask]
) -> None:
    expected: dict[str, Any] = old.data["ends"][name]
    task = in_flight(old, name)
    method = task.golden.data["deferrals"][_deferral_of(old, name)]["next_method"]

    end = task.resume(task.golden.data["events"][name], method=method)

    if "deferred" in expected:
        left = task.golden.data["deferrals"][expected["deferred"]]
        path, kwargs = end["deferred"].trigger.serialize()
        assert path == left["classpath"]
        assert _known(kwargs) == _known({**kwargs, **left["trigger_kwargs"]})
        assert kwargs.get("end") == (left["trigger_kwargs"]["end"] if SINCE_3_3 else None)
        assert end["deferred"].method_name == left["next_method"]
    else:
        assert end == expected


@pytest.mark.parametrize("old", [each for each in FILES if "after evicted" in each.data["deferrals"]], ids=str)
def test_time_of_earlier_attempts_counts(old: Golden) -> None:
    used = old.data["events"]["evicted"]["time_use"]
    kwargs = old.data["deferrals"]["after evicted"]["trigger_kwargs"]

    assert kwargs["earlier_use"] == used
    assert convert(kwargs["earlier_use"], TimeUse).lost_s == used["lost_s"] > 0


def _deferral_of(old: Golden, event: str) -> str:
    return event if event in old.data["deferrals"] else "first"


def _known(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments without those of the time, of the cluster, and of this Airflow.

    A gang that is submitted has a new uid.
    """
    return {key: value for key, value in kwargs.items() if key not in ("deadline", "uid", "end")}


# -- The log of a rank goes on in the log of the task where an earlier release has stopped ---------------------------

TRAIN = [golden.read(version, "train") for version in golden.VERSIONS if "train" in golden.names(version)]
NANOSECONDS = re.compile(r"(?<=\.\d{6})\d{3}(?=Z)")


def taken_over(plane: VirtualControlPlane, old: Golden, moment: str) -> Golden:
    """Store the objects of a moment in the plane, whose logs have times in microseconds."""
    plane.node("node-1")
    now = old.at(moment, now=plane.clock.now())
    rounded = Golden(now.name, now.version, _rounded(now.data))
    place(plane.registry, rounded.objects(moment))
    return rounded


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return NANOSECONDS.sub("000", value) if isinstance(value, str) else value


def lines_of_rank_2(lines: list[str]) -> list[str]:
    return [line.removeprefix("[rank 2] ") for line in lines if line.startswith("[rank 2] rank 2")]


@pytest.mark.parametrize("old", TRAIN, ids=str)
async def test_stream_continues_after_the_last_line_that_was_streamed(plane: VirtualControlPlane, old: Golden) -> None:
    now = taken_over(plane, old, "running")
    kwargs = now.data["deferrals"]["first"]["trigger_kwargs"]
    name = kwargs["name"]
    pod = plane.pod(name, 2)["metadata"]["name"]
    plane.logs[pod] = "rank 2 begins\n"
    (job,) = now.objects("running")["jobs"]
    plane.log_times[pod] = [_first_time(job["metadata"]["annotations"]["gangjobs.airflow/progress"])]
    lines = Lines()

    waiting = asyncio.create_task(wait_for_event(TriggerArgs(**kwargs), "ended", lines.log, config=plane.config))
    await asyncio.sleep(5)
    plane.write(pod, "rank 2 goes on\n")
    await asyncio.sleep(5)
    plane.finish(name, 2)
    await waiting

    assert lines_of_rank_2(lines.all) == ["rank 2 goes on"]


@pytest.mark.parametrize("old", TRAIN, ids=str)
async def test_worker_copies_what_follows_the_stream(plane: VirtualControlPlane, old: Golden) -> None:
    now = taken_over(plane, old, "running")
    event = GangEvent.from_payload(_rounded(moved(now.data["events"]["succeeded"], timedelta())))
    event = replace(event, whole_logs=())  # as if a line had come after the stream
    ((key, position),) = event.streamed.items()
    pod, last = key.partition("/")[0], _first_time(position)
    plane.logs[pod] = "rank 2 begins\nrank 2 ends\nrank 2 was not streamed\n"
    plane.log_times[pod] = [last - timedelta(seconds=60), last, last + timedelta(seconds=1)]

    copied = await copied_after(plane, event, Logs.ALL)

    assert lines_of_rank_2(copied) == ["rank 2 was not streamed"]


def _first_time(text: str) -> datetime:
    """Return the time of the first line that a position counts."""
    found = re.search(r"\d{4}-\d\d-\d\dT[\d:.]+Z", text)
    assert found is not None
    return datetime.fromisoformat(found[0])

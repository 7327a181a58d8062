"""What an earlier release has stored of a deferral is understood: the trigger, its arguments, and its event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.module_loading import import_string
from msgspec import convert

from airflow_provider_gangjobs.gang.outcome.time_use import TimeUse
from tests.provider.upgrade import golden
from tests.provider.upgrade.old_task import operator_of, without_marks_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provider.upgrade.golden import Golden
    from tests.provider.upgrade.old_task import OldTask

FILES = [golden.read(version, name) for version in golden.VERSIONS for name in golden.names(version)]
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

    assert callable(getattr(operator_of(old), stored["next_method"]))
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
        assert end["deferred"].method_name == left["next_method"]
    else:
        assert without_marks_of(end) == expected


@pytest.mark.parametrize("old", [each for each in FILES if "after evicted" in each.data["deferrals"]], ids=str)
def test_time_of_earlier_attempts_counts(old: Golden) -> None:
    used = old.data["events"]["evicted"]["time_use"]
    kwargs = old.data["deferrals"]["after evicted"]["trigger_kwargs"]

    assert kwargs["earlier_use"] == used
    assert convert(kwargs["earlier_use"], TimeUse).lost_s == used["lost_s"] > 0


def _deferral_of(old: Golden, event: str) -> str:
    return event if event in old.data["deferrals"] else "first"


def _known(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments without those of the time and of the cluster. A gang that is submitted has a new uid."""
    return {key: value for key, value in kwargs.items() if key not in ("deadline", "uid")}

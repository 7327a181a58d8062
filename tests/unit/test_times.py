"""Times leave the provider as pendulum times in UTC, wherever they are in a value."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from pendulum import DateTime

from airflow_provider_gangjobs.airflow_api.times import PublicService, with_pendulum_times
from airflow_provider_gangjobs.service import GangService

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


class Struct(msgspec.Struct, frozen=True):
    at: datetime | None = None
    name: str = ""
    parts: tuple[Struct, ...] = ()


@dataclass(frozen=True)
class Record:
    at: datetime
    more: Any = None


VALUES: dict[str, tuple[Any, Any]] = {
    "a time": (AT, lambda value: value),
    "a time of another zone": (AT.astimezone(timezone(timedelta(hours=5))), lambda value: value),
    "a list": ([1, AT], lambda value: value[1]),
    "a mapping": ({"began": AT}, lambda value: value["began"]),
    "a struct in a tuple of a struct": (Struct(parts=(Struct(), Struct(AT))), lambda value: value.parts[1].at),
    "a dataclass in a dataclass": (Record(AT, Record(AT)), lambda value: value.more.at),
}


@pytest.mark.parametrize(("value", "find"), VALUES.values(), ids=VALUES)
def test_time_becomes_the_same_time_of_pendulum_in_utc(value: Any, find: Any) -> None:
    converted = with_pendulum_times(value)
    at = find(converted)
    assert (type(at), at.timezone_name, at) == (DateTime, "UTC", AT)
    assert (type(converted), converted) == (DateTime if value is find(value) else type(value), value)


@pytest.mark.parametrize("value", [None, "text", 3, ("a", 1), [], Struct(name="x"), {"a": [Struct()]}, DateTime])
def test_value_without_a_time_is_returned_itself(value: Any) -> None:
    assert with_pendulum_times(value) is value


def test_every_use_case_of_the_service_converts_its_times() -> None:
    names = [name for name, _ in inspect.getmembers(GangService, inspect.iscoroutinefunction) if name[0] != "_"]
    assert "submit" in names
    assert all(getattr(PublicService, name) is not getattr(GangService, name) for name in names)
    assert all(
        inspect.signature(getattr(PublicService, n)) == inspect.signature(getattr(GangService, n)) for n in names
    )

"""The times of the public API: pendulum `DateTime`s in UTC, as everywhere in Airflow.

Inside the provider, times are `datetime`s with a time zone, because msgspec decodes them at no cost. They are converted
where they leave the provider: `PublicService` is the service as users get it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from airflow_provider_gangjobs.service import GangService

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def with_pendulum_times(value: T) -> T:
    """Return the value with a pendulum `DateTime` in UTC in the place of each time.

    Objects that contain no time are returned themselves, and not as a copy.
    """
    return cast("T", _convert(value))


def _convert(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bytes)):
        return value
    if isinstance(value, datetime):
        from pendulum import UTC, instance

        return instance(value.astimezone(UTC))
    if isinstance(value, (list, tuple)):
        return _convert_items(value)
    if isinstance(value, Mapping):
        converted = {key: _convert(item) for key, item in value.items()}
        return converted if any(converted[key] is not item for key, item in value.items()) else value
    if isinstance(value, msgspec.Struct):
        changed = _changed(value, value.__struct_fields__)
        return msgspec.structs.replace(value, **changed) if changed else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = _changed(value, [field.name for field in dataclasses.fields(value) if field.init])
        return dataclasses.replace(value, **changed) if changed else value
    return value


def _convert_items(value: list[Any] | tuple[Any, ...]) -> Any:
    converted = [_convert(item) for item in value]
    if all(new is old for new, old in zip(converted, value, strict=True)):
        return value
    return converted if isinstance(value, list) else tuple(converted)


def _changed(value: Any, names: Any) -> dict[str, Any]:
    fields = {name: (old, _convert(old)) for name in names if (old := getattr(value, name)) is not None}
    return {name: new for name, (old, new) in fields.items() if new is not old}


class PublicService(GangService, frozen=True):
    """The service as users get it: its coroutines return pendulum times."""


def _convert_returned(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return with_pendulum_times(await method(*args, **kwargs))

    return call


for _name, _method in inspect.getmembers(GangService, inspect.iscoroutinefunction):
    if not _name.startswith("_"):
        setattr(PublicService, _name, _convert_returned(_method))

"""Which try of a task has waited for an event of a trigger.

If a user clears a task while a worker completes the task, Airflow 3 starts the next try with the method and the event
of the earlier try, instead of `execute`: `clear_task_instances` resets these values in all states but `running`. The
next try has then neither submitted nor claimed what the event is about, and the user wants the task to begin anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

KEY: Final = "task_instance"


def with_task_instance(payload: Mapping[str, Any], ti: Any) -> dict[str, Any]:
    """Return the payload of an event with the id of the task instance that has waited for the event.

    :param ti: The `task_instance` of the trigger; `None` in `dag.test()`, which has no further tries.
    """
    return dict(payload) if ti is None else {**payload, KEY: str(ti.id)}


def is_of_earlier_try(payload: object, ti: Any) -> bool:
    """Return whether another try than this one has waited for the event. Events of earlier releases do not say it.

    :param ti: The task instance of the try that Airflow has resumed. Each try has an id of its own.
    """
    waited = payload.get(KEY) if isinstance(payload, Mapping) else None
    return waited is not None and waited != str(ti.id)


__all__ = ["is_of_earlier_try", "with_task_instance"]

"""Find out from Airflow's records which gang a task instance has, and what they say of each map index. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_row
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.airflow_api.connection import DEFAULT_CONN_ID
from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
from airflow_provider_gangjobs.gang.identity import GangRef, TaskKey
from airflow_provider_gangjobs.gang.outcome.event import GangEvent, UnreadableEventError
from airflow_provider_gangjobs.gang.outcome.rank_rows import Tone
from airflow_provider_gangjobs.gang.state.gang_state import Deadlines
from airflow_provider_gangjobs.gang.state.phase import Status
from airflow_provider_gangjobs.kube.names import is_dns_label, is_dns_subdomain
from airflow_provider_gangjobs.parameters.triggerer_start import TRIGGER as START_TRIGGER
from airflow_provider_gangjobs.plugins.page_view import SENTENCE_CHARACTERS_MAX, clean

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from airflow_provider_gangjobs.gang.view import GangView


FINISHED_TASK_STATES: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
"""Task states that change only if a user clears or marks the task."""
REFUSAL_CHARACTERS_MAX: Final = 4000
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}", re.ASCII)
_TRIGGER_FIELDS: Final = frozenset(TriggerArgs.__struct_fields__)


@dataclass(frozen=True)
class TaskRecord:
    """What Airflow's database holds of a task instance, as far as the page needs it."""

    key: TaskKey
    state: str | None = None
    trigger: Mapping[str, Any] | None = None
    """Arguments of the trigger that the task waits for; `None` if it waits for no trigger of this provider."""
    rendered: Mapping[str, Any] | None = None
    """The rendered template fields; of a task whose gang the triggerer starts, what the DAG says of the cluster."""
    gang: Any = None
    """The XCom `gang`."""
    end: Any = None
    """The XCom `gang_end`."""
    refusal: Any = None
    """The XCom `gang_refused`."""


@dataclass(frozen=True)
class GangLocator:
    """Where to find the gang of a task instance, and the facts about the gang that only Airflow knows."""

    key: TaskKey
    ref: GangRef
    kubernetes_conn_id: str | None = None
    """`None` if Airflow has no rendered fields of the task, and its DAG does not say the connection either."""
    must_exist: bool = False
    deadlines: Deadlines = field(default_factory=Deadlines)
    deadline: float | None = None
    """Unix time at which the task's `execution_timeout` passes."""
    end: GangEvent | None = None
    """The event by which the task learned how the gang ended; `None` if the task has not received one."""


def locate(record: TaskRecord) -> GangLocator | None:
    """Return where to find the task instance's gang; `None` if Airflow's records name no gang."""
    args = _trigger_args(record.trigger)
    ref = args.ref if args else parse_gang_ref(record.gang)
    if ref is None:
        return None
    end = parse_end(record.end)
    return GangLocator(
        # The worker that has deferred the task knows the installation, also if the API server's configuration differs.
        key=replace(record.key, installation=args.installation) if args and args.installation else record.key,
        ref=ref,
        kubernetes_conn_id=args.kubernetes_conn_id if args else _text(record.rendered, "kubernetes_conn_id"),
        must_exist=args.must_exist if args else False,
        deadlines=args.deadlines if args else Deadlines(),
        deadline=args.deadline if args else None,
        end=end if end is not None and end.ref == ref else None,
    )


def fields_of_start(data: Any, task_id: str) -> dict[str, Any] | None:
    """Return the connection and the namespace of a task whose gang the triggerer starts, as rendered fields have them.

    Airflow stores no rendered fields of such a task. `None` if the triggerer does not start the gangs of the task, or
    if the connection is a template or differs between the map indexes.

    :param data: The serialized DAG, which only Airflow writes.
    """
    for task in (each["__var"] for each in (data or {}).get("dag", {}).get("tasks", ())):
        start = task.get("start_trigger_args") if task.get("task_id") == task_id else None
        if start is None or start["trigger_cls"] != START_TRIGGER:
            continue
        parameters = json.loads(start["trigger_kwargs"]["__var"]["start"])["parameters"]
        conn_id = parameters.get("kubernetes_conn_id", DEFAULT_CONN_ID)
        is_mapped_over = "kubernetes_conn_id" in json.dumps(task.get("expand_input"))
        if "{" not in conn_id and not is_mapped_over:
            return {"kubernetes_conn_id": conn_id, "namespace": parameters.get("namespace")}
    return None


def parse_gang_ref(value: Any) -> GangRef | None:
    """Return the gang that an XCom names; `None` if the value has another form, since anybody may have written it."""
    if not isinstance(value, Mapping):
        return None
    namespace, name, uid = (value.get(key) for key in ("namespace", "name", "uid"))
    if not is_dns_label(namespace) or not is_dns_subdomain(name) or not isinstance(uid, str):
        return None
    return GangRef(str(namespace), str(name), uid) if _UID.fullmatch(uid) else None


def parse_xcom(value: Any) -> Any:
    """Return an XCom as the database stores it; `None` if a custom XCom backend stores only a reference there."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None


def parse_end(value: Any) -> GangEvent | None:
    """Return the event in an XCom `gang_end`; `None` if the value is no event that this version can read.

    Times that are not in UTC are left out: the provider writes none, but anybody may have written the value.
    """
    try:
        event = GangEvent.from_payload(value)
    except UnreadableEventError:
        return None
    return replace(event, times={name: at for name, at in event.times.items() if at.utcoffset() == timedelta(0)})


def parse_refusal(value: Any) -> str:
    """Return why a try has submitted no gang, by an XCom `gang_refused`; empty if the value has another form."""
    message = value.get("message") if isinstance(value, Mapping) else None
    lines = message[:REFUSAL_CHARACTERS_MAX].splitlines() if isinstance(message, str) else ()
    return "\n".join(clean(line, REFUSAL_CHARACTERS_MAX) for line in lines)


def _trigger_args(trigger: Mapping[str, Any] | None) -> TriggerArgs | None:
    """Return the trigger's arguments, without arguments that a later release has added."""
    if trigger is None:
        return None
    try:
        return TriggerArgs(**{name: value for name, value in trigger.items() if name in _TRIGGER_FIELDS})
    except TypeError:
        return None


def _text(values: Mapping[str, Any] | None, name: str) -> str | None:
    found = (values or {}).get(name)
    return found if isinstance(found, str) and found else None


ROWS_MAX: Final = 100
_STATES: Final = {
    "failed": (0, Tone.BAD),
    "upstream_failed": (0, Tone.BAD),
    "up_for_retry": (1, Tone.WAIT),
    "running": (2, Tone.BUSY),
    "deferred": (2, Tone.BUSY),
    "success": (4, Tone.GOOD),
}
"""The state of a task: its place in the order of the rows, and its tone."""
_OTHER_STATE: Final = (3, Tone.WAIT)


@dataclass(frozen=True)
class MappedRow:
    """One map index of a mapped task."""

    map_index: int
    state: str
    """State of the task."""
    tone: Tone
    sentence: str = ""
    """Why its last gang failed, if Airflow has recorded it, or what its gang waits for."""
    ended: datetime | None = None


def choose_indexes(states: Mapping[int, str]) -> list[int]:
    """Return the map indexes that get a row: those that failed first, and then those that are not over."""
    return sorted(states, key=lambda index: (_STATES.get(states[index], _OTHER_STATE)[0], index))[:ROWS_MAX]


def with_waits(rows: Iterable[MappedRow], key: TaskKey, gangs: Iterable[GangView]) -> list[MappedRow]:
    """Return the rows of a mapped task, each with what the gang of its map index waits for."""
    waits = {
        gang.map_index: clean(gang.summary, SENTENCE_CHARACTERS_MAX)
        for gang in gangs
        if gang.is_waiting and (gang.dag_id, gang.run_id, gang.task_id) == (key.dag_id, key.run_id, key.task_id)
    }
    return [
        replace_row(row, sentence=waits[row.map_index]) if not row.sentence and row.map_index in waits else row
        for row in rows
    ]


def mapped_rows(indexes: Iterable[int], states: Mapping[int, str], ends: Mapping[int, Any]) -> list[MappedRow]:
    """Return the rows of these map indexes.

    :param ends: The XComs `gang_end`.
    """
    rows = []
    for index in indexes:
        state = states[index] or "no state"
        end = parse_end(ends.get(index))
        has_failed = end is not None and end.status is not Status.SUCCEEDED
        rows.append(
            MappedRow(
                index,
                state,
                _STATES.get(state, _OTHER_STATE)[1],
                clean(end.message, SENTENCE_CHARACTERS_MAX) if end is not None and has_failed else "",
                end.times.get("ended") if end is not None else None,
            )
        )
    return rows

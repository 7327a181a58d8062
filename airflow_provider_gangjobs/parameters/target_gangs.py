"""Which gangs a task waits for or deletes: the parameters that say so, which templates and XComs may have given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.airflow_api.task_log import ErrorRules
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.client_models import describe_value
from airflow_provider_gangjobs.gang.identity import OperationKey
from airflow_provider_gangjobs.kube.names import problem_with_dns_label, problem_with_dns_subdomain
from airflow_provider_gangjobs.parameters.checks import conn_id_problems, is_templated, refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_gangjobs.gang.awaited import GangSelection
    from airflow_provider_gangjobs.gang.identity import TaskKey


NATIVE: Final = (
    "Give the XCom itself, which is the .output of a task or .output['gang'], or set "
    "render_template_as_native_obj=True for the DAG"
)
"""What to do where a template has made text of a value."""


class GangTargets(ErrorRules):
    """The base class of `GangJobSensor` and `GangJobDeleteOperator`, which document the parameters."""

    template_fields: Sequence[str] = (
        "gangs",
        "submission_ids",
        "namespace",
        "kubernetes_conn_id",
    )
    ui_color = "#d7e6f4"

    def __init__(
        self,
        *,
        gangs: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]] | None = None,
        submission_ids: str | Iterable[str] | None = None,
        namespace: str | None = None,
        kubernetes_conn_id: str = "kubernetes_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.gangs = gangs
        self.submission_ids = submission_ids
        self.namespace = namespace
        self.kubernetes_conn_id = kubernetes_conn_id


def read_selection(
    task: GangTargets, *, default_namespace: str | None, tasks: Sequence[TaskKey] = (), **more: Any
) -> GangSelection:
    """Return the selection that the rendered parameters describe.

    :param default_namespace: The namespace of the connection.
    :param tasks: The tasks whose gangs are selected.
    :param more: Further fields of the selection.

    Raises:
        InvalidGangSpec: a parameter is invalid.
    """
    from airflow_provider_gangjobs.gang.awaited import GangSelection
    from airflow_provider_gangjobs.service.gangs import DEFAULT_NAMESPACE

    namespace = task.namespace or default_namespace or DEFAULT_NAMESPACE
    if wrong := problem_with_dns_label(namespace):
        raise InvalidGangSpec((Problem("namespace", wrong, "Give the name of a namespace"),))
    if task.gangs is None and task.submission_ids is None and not tasks and more.get("selector") is None:
        remedy = "Check that the task that gives the value runs before this task, and has pushed the XCom"
        raise InvalidGangSpec((Problem("gangs", "has the value None in this run, and so have the others", remedy),))
    if task.gangs is not None:
        namespace, names = read_gangs(task.gangs, namespace)
        return GangSelection(namespace=namespace, names=names, **more)
    keys: Sequence[OperationKey | TaskKey] = tasks
    if task.submission_ids is not None:
        keys = [OperationKey(each) for each in read_submission_ids(task.submission_ids)]
    return GangSelection(namespace=namespace, digests=tuple(key.digest for key in keys), **more)


def require_one_kind(**given: Any) -> None:
    """Check that exactly one of the parameters that select gangs is given.

    Raises:
        InvalidGangSpec: none of them is given, or several.
    """
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        what = f"are given together: {', '.join(names)}" if names else "are all missing"
        remedy = f"Give exactly one of {', '.join(given)}"
        raise InvalidGangSpec((Problem(names[0] if names else next(iter(given)), what, remedy),))


def require_readable(task: GangTargets) -> None:
    """Check the parameters that are no templates when the DAG file is parsed.

    Raises:
        InvalidGangSpec: a parameter is invalid.
    """
    refuse(conn_id_problems("kubernetes_conn_id", task.kubernetes_conn_id))
    if task.gangs is not None and not is_templated(task.gangs):
        read_gangs(task.gangs, task.namespace or "")
    if task.submission_ids is not None and not is_templated(task.submission_ids):
        read_submission_ids(task.submission_ids)


def is_one(value: Any) -> bool:
    """Return whether the value is that of one gang, and not a list."""
    return isinstance(value, (str, int, Mapping)) or not isinstance(value, Iterable)


def as_list(value: Any) -> list[Any]:
    """Return a list of the items of an iterable, or of the value of one gang."""
    return [value] if is_one(value) else list(value)


def read_submission_ids(given: Any) -> list[str]:
    """Return the ids of submissions.

    Raises:
        InvalidGangSpec: an item is no id.
    """
    for number, each in enumerate(as_list(given)):
        path = f"submission_ids[{number}]"
        if not isinstance(each, str) or not each:
            raise InvalidGangSpec((Problem(path, f"is {each!r:.80}", "Give the id of a submission"),))
        refuse_text_of_value(path, each)
    return as_list(given)


_TEXTS_OF_VALUES: Final = {"None": r"None", "a dict": r"\{.*\}", "a list": r"[\[(].*[\])]"}
"""Pattern of the text that a template makes of a value, by the kind of the value."""


def refuse_text_of_value(path: str, text: str, remedy: str = NATIVE) -> None:
    """Refuse a text that a template has made of another value.

    Raises:
        InvalidGangSpec: the text is that of `None`, a dict or a list.
    """
    for kind, pattern in _TEXTS_OF_VALUES.items():
        if re.fullmatch(pattern, text.strip(), re.DOTALL):
            raise InvalidGangSpec((Problem(path, f"is {describe_value(text)}, the text of {kind}", remedy),))


def read_gangs(gangs: Any, namespace: str) -> tuple[str, dict[str, str]]:
    """Return the namespace of the gangs, and the uid of each Job by its name; the uid is empty if it is not known.

    :param gangs: A name, a reference (`namespace`, `name` and `uid`, as in the XCom `gang`), or a list of them.
    :param namespace: The namespace of gangs that are given by name only.

    Raises:
        InvalidGangSpec: an item is neither, or the gangs are in several namespaces.
    """
    found: dict[str, str] = {}
    namespaces = set()
    for number, gang in enumerate(as_list(gangs)):
        reference = {"name": gang} if isinstance(gang, str) else gang
        name = reference.get("name") if isinstance(reference, Mapping) else None
        if not isinstance(name, str) or not name:
            remedy = "Give the name of a Job, or a mapping with namespace, name and uid, such as the XCom `gang`"
            raise InvalidGangSpec((Problem(f"gangs[{number}]", f"is {describe_value(gang)}", remedy),))
        refuse_text_of_value(f"gangs[{number}]", name)
        if wrong := problem_with_dns_subdomain(name):
            raise InvalidGangSpec((Problem(f"gangs[{number}]", wrong, "Give the name of a Job"),))
        given = reference.get("namespace")
        if given and (wrong := problem_with_dns_label(given)):  # an XCom, which anybody may have written
            raise InvalidGangSpec((Problem(f"gangs[{number}].namespace", wrong, "Give the name of a namespace"),))
        found[name] = str(reference.get("uid") or "")
        namespaces.add(given or namespace)
    if len(namespaces) != 1:
        what = f"are in the namespaces {', '.join(sorted(namespaces))}" if namespaces else "is empty"
        raise InvalidGangSpec((Problem("gangs", what, "Give gangs of one namespace"),))
    return namespaces.pop(), found

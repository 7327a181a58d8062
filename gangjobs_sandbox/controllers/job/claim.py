"""Claims the pods of a Job.

A claim adopts matching pods that have no controller, and disowns pods that no longer match the selector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangjobs_sandbox.apimachinery import selectors
from gangjobs_sandbox.controllers.meta import Obj, is_deleting, labels_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gangjobs_sandbox.controllers.job.podcontrol import PodControl
    from gangjobs_sandbox.controllers.podindex import PodIndex
    from gangjobs_sandbox.cooperative import Cooperative


def claim(job: Obj, pods: PodIndex, control: PodControl) -> Cooperative[None]:
    """Adopt and disown pods so that they match the Job's selector. Raises StatusError.

    A Job that is being deleted neither adopts nor disowns pods. Pods that are being deleted are not adopted.
    """
    if is_deleting(job):
        return
    selected = selectors.from_object(job["spec"].get("selector"))
    for pod in _alive(pods.controlled_by(job["metadata"]["uid"])):
        if not selected.matches(labels_of(pod)):
            control.disown(job, pod)
        yield
    for pod in _alive(pods.without_controller(job["metadata"]["namespace"])):
        if selected.requirements and selected.matches(labels_of(pod)):
            control.adopt(job, pod)
        yield


def _alive(pods: Iterable[Obj]) -> list[Obj]:
    return [pod for pod in pods if not is_deleting(pod)]

"""The host names of peers in a file become those of the gang, where they are unambiguous.

`$(...)` in the command, the arguments, and the variables of a container is replaced by the kubelet, whichever program
and quotation marks stand there.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.identity import ROLE_NAME_MAX
from airflow_provider_gangjobs.gang.render.user_manifest import iter_scalars
from airflow_provider_gangjobs.kube.well_known import LABEL_GANG

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.convert.task import Part, Task

GANG_NAME: Final = "GANG_NAME"
"""The variable with the name of the gang, with which the host names of its ranks begin and end."""
PROGRAM: Final = ("command", "args", "env")


def replace_host_names(task: Task, part: Part, container: dict[str, Any]) -> None:
    """Write the names that the ranks have in the gang into a container, and name the texts that cannot be decided."""
    if not task.service or not task.has_rendezvous:
        return
    before_it = r"[\w)}\]-]\." if task.service == task.document.name else r"(?<![\w-])"
    undecided = re.compile(rf"{before_it}{re.escape(task.service)}(?![\w-])")
    for field in PROGRAM:
        before = after = container.get(field)
        for peer in task.parts:
            after = map_texts(after, partial(_with_peers, task, peer))
        if after != before:
            container[field] = after
            task.note(f"The host names of {task.service} are those of the gang here", field)
        left = next(filter(undecided.search, text_of(after).splitlines()), None)
        if left is not None:
            line = task.document.line_of(left.strip())
            cure = f"the Service of the gang is $({GANG_NAME}), and rank 0 is $(MASTER_ADDR)"
            task.note(f"Line {line} has {task.service}, which is not decided: {cure}", field)
    if f"$({GANG_NAME})" in str([container.get(field) for field in PROGRAM]):
        source = {"fieldRef": {"fieldPath": f"metadata.labels['{LABEL_GANG}']"}}
        container["env"] = [{"name": GANG_NAME, "valueFrom": source}, *container.get("env", ())]


def _with_peers(task: Task, peer: Part, text: str) -> str:
    """Return a text in which the names of one part, such as `ring-${i}.peers.ns.svc.cluster.local`, are replaced."""
    domain = r"(?:\.[\w-]{1,63}\.svc(?:\.[a-z]{1,63}){0,4})?(?![\w-]|\.\w)"
    host = rf"(?<![\w.-]){re.escape(peer.host_prefix)}-(?P<rank>[^\s./:\"']{{1,64}}?){peer.host_suffix}"
    is_first, has_roles = peer is task.parts[0], len(task.parts) > 1
    role = f"{role_name(peer.name)}-" if has_roles and (task.is_queued or not is_first) else ""
    job = "0-" if has_roles and task.is_queued else ""  # the roles are a JobSet there

    def rank(found: re.Match[str]) -> str:
        if is_first and found["rank"] == "0":
            return "$(MASTER_ADDR)"
        return f"$({GANG_NAME})-{role}{job}{found['rank']}.$({GANG_NAME})"

    pattern = rf"{host}\.{re.escape(task.service)}{domain}"
    return re.sub(pattern, rank, text)


def role_name(name: str) -> str:
    """Return the name as the parameter `roles` accepts it."""
    name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (name if name[:1].isalpha() else f"role-{name}")[:ROLE_NAME_MAX].strip("-")


def text_of(value: Any) -> str:
    """Return all texts in a value, each on lines of its own."""
    return "\n".join(str(scalar) for _, scalar in iter_scalars(value, ""))


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a copy in which each text is changed, but no key of a mapping."""
    match value:
        case str():
            return change(value)
        case dict():
            return {key: map_texts(item, change) for key, item in value.items()}
        case list():
            return [map_texts(item, change) for item in value]
    return value

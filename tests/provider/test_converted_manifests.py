"""The DAG that `gangjobs convert` writes runs on a cluster, for each manifest of `tests/brought`.

The programs of most manifests are replaced by small ones, and so is what the embedded cluster does not have: devices,
claims, queues, and other schedulers. The programs of `UNCHANGED` are small, and find their peers by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.convert import convert
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.parameters.declaration import PARAMETERS
from tests.dag_files import tasks_of

if TYPE_CHECKING:
    from tests.provider.task_runner import TaskMaker

BROUGHT = sorted((Path(__file__).parents[1] / "brought").iterdir())
UNCHANGED = frozenset({"jobset-slices", "nccl-with-config-map", "volume-at-tmp"})
TASKS = [
    pytest.param(path.stem, task, id=f"{path.stem}-{task.task_id}")
    for path in BROUGHT
    for task in tasks_of(convert({path.name: path.read_text()}).source).values()
]
OF_GANG = GangSpec.__struct_fields__
PROGRAM = ["sh", "-c", 'echo -n "$GANG_SIZE" > "$GANG_RESULT_PATH"']
ABSENT = {
    **dict.fromkeys(("kubernetes_conn_id", "namespace", "queue_name", "queue_priority", "topology", "gang_scheduler")),
    **dict.fromkeys(("priority_class", "service_account", "node_selector", "image_pull_secrets", "env_from")),
    **dict.fromkeys(("affinity", "tolerations", "ssh_secret", "slots_per_worker", "min_workers")),
}


def small(value: Any, *, keeps_program: bool) -> Any:
    """Return the parameters of a gang or a role, or a container, that need no device and no other object."""
    given = {name: item for name, item in value.items() if name not in ABSENT}
    if given.get("resources"):
        given["resources"] = {"cpu": "10m"}
    if not keeps_program and given.get("image"):
        given |= {"command": PROGRAM, "args": None}
    if isinstance(given.get("env"), dict):
        given["env"] = {name: item for name, item in given["env"].items() if "secretKeyRef" not in str(item)}
    if given.get("volumes"):
        given["volumes"] = [{"name": volume["name"], "emptyDir": {}} for volume in given["volumes"]]
    if given.get("pod_overrides"):
        pod = given["pod_overrides"].get("spec", {})
        lists = {
            kind: [small(one, keeps_program=keeps_program) for one in pod[kind]]
            for kind in ("containers", "initContainers")
            if kind in pod
        }
        given["pod_overrides"] = {**given["pod_overrides"], "spec": {**pod, **lists}}
    return given


def parameters_of(operator: Any, *, keeps_program: bool) -> dict[str, Any]:
    """Return all parameters of a task of a DAG, as its operator has converted them."""
    written = {name: getattr(operator, PARAMETERS[name].attribute) for name in PARAMETERS if name in OF_GANG}
    given = small(written, keeps_program=keeps_program)
    if given["roles"]:
        given["roles"] = {name: small(role, keeps_program=keeps_program) for name, role in given["roles"].items()}
        given["command"] = None
    if given["manifest"]:
        spec = {name: item for name, item in given["manifest"]["spec"].items() if name != "suspend"}
        given["manifest"] = {**given["manifest"], "spec": spec}
    return {**given, "deferrable": False, "results": "all"}


@pytest.mark.parametrize(("name", "operator"), TASKS)
def test_converted_task_runs_to_its_end(task: TaskMaker, name: str, operator: Any) -> None:
    operator.render_template_fields({})
    given = parameters_of(operator, keeps_program=name in UNCHANGED)
    results = task("", **given).execute()

    ranks = [rank for role in results.values() for rank in role] if isinstance(results, dict) else results
    # The Job ends as soon as its policy is met, and Kubernetes then ends the pods that have not finished.
    may_end_early = "successPolicy" in ((given["manifest"] or {}).get("spec") or {})
    assert len(ranks) == len(ranks_of(given)) or (may_end_early and ranks)


def ranks_of(given: dict[str, Any]) -> range:
    """Return the ranks of a gang, or the pods of a Job that is none."""
    if given["roles"]:
        return range(sum(role.get("workers", 1) for role in given["roles"].values()))
    spec = (given["manifest"] or {}).get("spec", {})
    return range(given["workers"] or spec.get("completions") or spec.get("parallelism") or 1)

"""What stands beside a workload: ConfigMaps, which become files of the gang, and what must exist beforehand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.convert.host_names import PROGRAM, map_texts, text_of
from airflow_provider_gangjobs.convert.secrets import is_secret
from airflow_provider_gangjobs.gang.render.user_manifest import iter_scalars
from airflow_provider_gangjobs.gang.validation.pod_checks import problems_with_files
from airflow_provider_gangjobs.kube.well_known import FILES_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.convert.documents import Document
    from airflow_provider_gangjobs.convert.task import Task

_NAMED_BY: Final = {
    r"(secretKeyRef|\w*[sS]ecretRef|secret)\.name|secretName|ssh_secret": "secret",
    r"image_pull_secrets\[\d+\]|imagePullSecrets\[\d+\]\.name": "secret",
    r"(configMapKeyRef|configMapRef|configMap)\.name": "configmap",
    r"claimName": "persistentvolumeclaim",
    r"service_?[aA]ccount(Name)?": "serviceaccount",
    r"resourceClaimTemplateName": "resourceclaimtemplate",
    r"queue_name": "localqueue.kueue.x-k8s.io",
}
"""The resource that a reference names, by the pattern of the end of its path."""


def needs(task: Task) -> list[str]:
    """Return the objects that must exist before the task runs, as `kubectl get` takes them."""
    found = []
    for path, name in iter_scalars(task.parameters, ""):
        for pattern, resource in _NAMED_BY.items():
            if re.search(rf"(^|[.\]])({pattern})$", path):
                found.append(f"{resource}/{name}")
    return list(dict.fromkeys(found))


def use_files(task: Task, config_maps: Mapping[str, Document]) -> None:
    """Give the items of ConfigMaps as files if the pods only mount them, and the program names the path.

    Without the path, the image may expect the files where they are, so the ConfigMap must exist then.

    :param config_maps: The ConfigMaps of the files by name.
    """
    for part in task.parts:
        pod = part.spec["template"]["spec"]
        for volume in list(pod.get("volumes", ())):
            name = volume.get("configMap", {}).get("name")
            others = [path for path, text in iter_scalars(pod, "") if path.endswith("Ref.name") and text == name]
            is_whole = "items" not in volume.get("configMap", {}) and not others
            if name in config_maps and is_whole and "binaryData" not in config_maps[name].data:
                _use_files(task, pod, volume, config_maps[name].data.get("data", {}))


def _use_files(task: Task, pod: dict[str, Any], volume: dict[str, Any], files: dict[str, Any]) -> None:
    containers = [*pod["containers"], *pod.get("initContainers", ())]
    programs = [{field: one[field] for field in PROGRAM if field in one} for one in containers]
    mounts = [each for one in containers for each in one.get("volumeMounts", ()) if each["name"] == volume["name"]]
    moved = {each["mountPath"]: "/".join([FILES_PATH, *filter(None, [each.get("subPath")])]) for each in mounts}
    all_files = {**files, **task.parameters.get("files", {})}
    is_text = all(isinstance(text, str) and "\n" in text and not is_secret(name, text) for name, text in files.items())
    patterns = {_path(path): target for path, target in moved.items()}
    is_named = all(re.search(pattern, text_of([files, programs])) for pattern in patterns)
    is_new = all(all_files[name] == text for name, text in files.items()) and not any(problems_with_files(all_files))
    if not (files and moved and is_text and is_named and is_new):
        return

    def move(text: str) -> str:
        for pattern, target in patterns.items():
            text = re.sub(pattern, target, text)
        return text

    pod["volumes"].remove(volume)
    for one, program in zip(containers, programs, strict=True):
        one |= map_texts(program, move)
        one["volumeMounts"] = [each for each in one.get("volumeMounts", ()) if each["name"] != volume["name"]]
    task.parameters["files"] = map_texts(all_files, move)
    where = f"{', '.join(moved)}, and its files are in {FILES_PATH} here"
    task.note(f"ConfigMap {volume['configMap']['name']} was mounted at {where}", "files")


def _path(path: str) -> str:
    return rf"(?<![\w./-]){re.escape(path.rstrip('/'))}(?![\w.-])"

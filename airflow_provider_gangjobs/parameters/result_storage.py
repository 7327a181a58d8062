"""The parameter `result_storage`: where ranks write results that are too large for a termination message. Pure.

The ranks write, because only they have the results. So this module gives them the helper and the address of the folder,
and refuses a folder that would be lost with the pods.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.render.pod_template import user_template
from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
from airflow_provider_gangjobs.gang.roles import spec_of_role
from airflow_provider_gangjobs.gang.spec import RESULT_HELPER_FILE, GangSpec
from airflow_provider_gangjobs.gang.validation.validate import validate
from airflow_provider_gangjobs.parameters import gangjobs_result
from airflow_provider_gangjobs.parameters.checks import add_env

if TYPE_CHECKING:
    from collections.abc import Mapping

PARAMETER: Final = "result_storage"
LOST_WITH_THE_POD: Final = ("emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image")
"""Kinds of volumes that are read-only or do not outlive their pod."""
REMEDY: Final = (
    "Mount a volume that outlives the pods with volumes and volume_mounts, or give the URL of an object store"
)


def with_result_storage(spec: GangSpec, folder: str) -> GangSpec:
    """Return the spec with the helper file and the variable that names the folder.

    :param folder: The URL of the folder of this task run.

    Raises:
        InvalidGangSpec: the ranks cannot write the folder, or what they write is lost with their pods.
    """
    if RESULT_HELPER_FILE in spec.files:
        problem = Problem(f"files.{RESULT_HELPER_FILE}", "is a file of the provider", "Choose another name")
        raise InvalidGangSpec((problem,))
    if is_local(folder):
        _require_volume(spec, _path(folder))
    helper = Path(gangjobs_result.__file__).read_text("utf-8")
    return replace(spec, **_with_folder(spec, folder), files={**spec.files, RESULT_HELPER_FILE: helper})


def _with_folder(spec: GangSpec, folder: str) -> dict[str, Any]:
    """Return the parameters that have `env`: those of the gang, or `roles`, because each role has its own."""
    variables = {gangjobs_result.ENV_STORAGE: folder}
    if spec.roles is None:
        of_gang: dict[str, Any] = {"env": spec.env}
        add_env(of_gang, variables)
        return of_gang
    roles = {name: dict(role) for name, role in spec.roles.items()}
    for role in roles.values():
        add_env(role, variables)
    return {"roles": roles}


def is_local(folder: str) -> bool:
    """Return whether the folder is in the file system of the ranks, and not in an object store."""
    protocol, mark, _ = folder.partition("://")
    return not mark or protocol in gangjobs_result.LOCAL_PROTOCOLS


def _path(folder: str) -> PurePosixPath:
    return PurePosixPath(folder.partition("://")[2] or folder)


def _require_volume(spec: GangSpec, path: PurePosixPath) -> None:
    if validate(spec):
        return  # the submission reports these problems
    pods = {f" in the role {role}": spec_of_role(spec, role) for role in spec.roles} if spec.roles else {"": spec}
    for where, each in pods.items():
        if problem := _volume_problem(user_template(each, manifest_of(each))["spec"], path):
            raise InvalidGangSpec((Problem(PARAMETER, f"{path} {problem}{where}", REMEDY),))


def _volume_problem(pod: Mapping[str, Any], path: PurePosixPath) -> str:
    """Return why files under the path would be lost or could not be written; empty if they stay."""
    mounts = [
        mount for mount in pod["containers"][0].get("volumeMounts", []) if path.is_relative_to(mount["mountPath"])
    ]
    if not mounts:
        return "is on no volume of the ranks, so the results would be lost with the pods"
    mount = max(mounts, key=lambda each: len(each["mountPath"]))
    if mount.get("readOnly"):
        return f"is on volume {mount['name']!r}, which is mounted read-only"
    volume: Mapping[str, Any] = next((v for v in pod.get("volumes", []) if v.get("name") == mount["name"]), {})
    kind = next((kind for kind in LOST_WITH_THE_POD if kind in volume), None)
    return f"is on volume {mount['name']!r} of kind {kind}, which cannot keep results" if kind else ""


__all__ = ["is_local", "with_result_storage"]

"""The parameter `result_storage`: a URL, or an `ObjectStoragePath`; and the folders in it.

`checkpoints` may be a URL, too, which a worker checks in the same way.

The folder of a task is `<url>/<dag id>/<run id>/<task id>`, and the map index of a mapped task. In this folder, each
installation of Airflow has a folder, because two installations may run equal DAGs and share a storage. The folder of
the installation comes last, so that the variable that names the folder of the task to the ranks is the same in all
versions: the variable belongs to the hash by which a retry finds the gang of the try before.

A worker checks the storages before it creates anything. Large results are written by the ranks themselves, with the
file `gangjobs_result.py`, so a folder in their file system must be on a volume that outlives their pods.

A DAG file imports this module, so the module imports the rules of manifests and Airflow's storage when it uses them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from airflow_provider_gangjobs.container_programs import PROGRAMS, gangjobs_result
from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.checkpoints import is_object_store
from airflow_provider_gangjobs.gang.spec import RESULT_HELPER_FILE, GangSpec
from airflow_provider_gangjobs.parameters.checks import add_env, is_templated, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk.types import Logger

    from airflow_provider_gangjobs.gang.identity import TaskKey

PARAMETER: Final = "result_storage"
VOLUME_REMEDY: Final = (
    "Mount a volume that outlives the pods with volumes and volume_mounts, or give the URL of an object store"
)


def to_url(given: Any) -> Any:
    """Return the URL of an `ObjectStoragePath` or a path of `pathlib`, and any other value unchanged.

    The operator keeps the URL, because Airflow renders templates of texts only, and stores them with the DAG.
    """
    if isinstance(given, os.PathLike):
        return os.fspath(given)
    # An object storage path is no `os.PathLike`. The import of its class is too expensive for a DAG file.
    return str(given) if hasattr(given, "protocol") and hasattr(given, "conn_id") else given


def storage_problems(parameter: str, url: Any) -> Iterator[Problem]:
    """Yield the problem of a storage that rendering its template cannot resolve. A worker checks the storage itself."""
    if url is None or is_templated(url):
        return
    remedy = f"Give an ObjectStoragePath or its URL, such as s3://aws_default@bucket/{parameter.partition('_')[0]}s"
    if not isinstance(url, str) or not url:
        yield Problem(parameter, f"is {url!r:.80}, not the URL of a folder", remedy)
    elif "://" not in url and not os.path.isabs(url):
        yield Problem(parameter, f"is {url!r:.80}, a relative path, which means another folder in each process", remedy)


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
    helper = (PROGRAMS / RESULT_HELPER_FILE).read_text("utf-8")
    return replace(spec, **_with_folder(spec, folder), files={**spec.files, RESULT_HELPER_FILE: helper})


def _with_folder(spec: GangSpec, folder: str) -> dict[str, Any]:
    """Return the parameters that have `env`: those of the gang, or `roles`, because each role has its own."""
    variables = {gangjobs_result.ENV_STORAGE: folder}
    if spec.roles is None:
        of_gang: dict[str, Any] = {"env": spec.env}
        add_env(of_gang, variables)
        return of_gang
    given: Any = spec.roles  # a template or an XCom may have given another value, which the submission refuses
    if not isinstance(given, Mapping) or not all(isinstance(role, Mapping) for role in given.values()):
        return {}
    roles = {name: dict(role) for name, role in given.items()}
    for role in roles.values():
        add_env(role, variables)
    return {"roles": roles}


def is_local(folder: str) -> bool:
    """Return whether the folder is in the file system of the ranks, and not in an object store."""
    protocol, mark, _ = folder.partition("://")
    return not mark or protocol in gangjobs_result.LOCAL_PROTOCOLS


def _below(url: str, folder: str) -> str:
    return f"{url.rstrip('/')}/{folder}"


def _path(folder: str) -> PurePosixPath:
    return PurePosixPath(folder.partition("://")[2] or folder)


def _require_volume(spec: GangSpec, path: PurePosixPath) -> None:
    from airflow_provider_gangjobs.gang.render.pod_template import user_template
    from airflow_provider_gangjobs.gang.render.user_manifest import manifest_of
    from airflow_provider_gangjobs.gang.spec import spec_of_role
    from airflow_provider_gangjobs.gang.validation.pod_checks import folder_problem
    from airflow_provider_gangjobs.gang.validation.validate import validate

    if validate(spec):
        return  # the submission reports these problems
    pods = {f" in the role {role}": spec_of_role(spec, role) for role in spec.roles} if spec.roles else {"": spec}
    for where, each in pods.items():
        if problem := folder_problem(user_template(each, manifest_of(each))["spec"], path, "results"):
            raise InvalidGangSpec((Problem(PARAMETER, f"{path} {problem}{where}", VOLUME_REMEDY),))


PROBE: Final = "write-test"
REMEDY: Final = "Check the URL, its connection and its permissions, and that the worker has the provider of the storage"


@dataclass(frozen=True)
class TaskStorages:
    """The storages of one task run, by the rendered parameters `result_storage` and `checkpoints`."""

    result_url: str | None
    key: TaskKey
    log: Logger
    checkpoints: Any = None

    @property
    def own_result_folder(self) -> str | None:
        """Where the ranks may have stored results: the folder of this installation of Airflow."""
        return None if self.result_url is None else _below(self.result_url, self.key.folder)

    @property
    def result_folder(self) -> str | None:
        """The folder that the ranks know, in which each installation of Airflow has a folder."""
        return None if self.result_url is None else _below(self.result_url, self.key.task_folder)

    def check(self) -> None:
        """Check what this worker can know about the storages, before anything is created.

        Raises:
            InvalidGangSpec: a storage cannot be written.
        """
        refuse(storage_problems("result_storage", self.result_url))
        given = {"result_storage": self.result_url, "checkpoints": self.checkpoints}
        if (names := [name for name, url in given.items() if url is not None]) and not self.key.installation:
            self.log.warning(
                "This Airflow has no installation id. Another Airflow with the same %s overwrites the objects of this"
                " task if the ids of its DAG, run and task are equal. Set [gangjobs] installation_id",
                " or ".join(names),
            )
        if self.result_url is not None and not is_local(self.result_url):
            self._write_probe(self.result_url, "result_storage")
        if is_object_store(self.checkpoints):
            self._write_probe(self.checkpoints, "checkpoints")

    def _write_probe(self, url: str, parameter: str) -> None:
        """Write an object into a storage that the ranks write, with credentials of their own, and remove it.

        Raises:
            InvalidGangSpec: the storage does not exist, or this worker has no library for its protocol.
        """
        from airflow.sdk import ObjectStoragePath  # too expensive for a task without a storage

        from airflow_provider_gangjobs.airflow_api.task_log import mask

        try:
            probe = ObjectStoragePath(_below(url, self.key.folder)) / PROBE
            probe.parent.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"\n")
            probe.unlink()
        except (FileNotFoundError, ImportError, ValueError) as error:
            what = mask(f"{url} cannot be written: {type(error).__name__}: {error}")
            raise InvalidGangSpec((Problem(parameter, what, REMEDY),)) from error
        except Exception as error:  # a storage may raise anything
            what = mask(f"{type(error).__name__}: {error}")
            self.log.warning(
                "This worker cannot write %s, so nobody knows yet whether the ranks can (%s)", parameter, what
            )

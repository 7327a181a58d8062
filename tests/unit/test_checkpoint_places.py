"""The place of checkpoints: its forms, the folder of a task, what the pods get, and what is refused."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from airflow_provider_gangjobs.gang.checkpoints import CheckpointPlace, folder_of, place_of, to_text
from airflow_provider_gangjobs.gang.identity import OperationKey, TaskKey, digest_of
from airflow_provider_gangjobs.gang.preview import CHECKPOINT_DIGEST, preview
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.validation.validate import validate
from airflow_provider_gangjobs.parameters.checks import spec_problems
from airflow_provider_gangjobs.parameters.triggerer_start import StartPlace, reason_for_worker

KEY = TaskKey("train", "manual__2026-01-01T00:00:00+00:00", "fit", 2, "prod")
FOLDER = f"train/manual__2026-01-01T00:00:00+00:00/fit-2/installation-prod-{CHECKPOINT_DIGEST}"
UNSET = {"GANG_CHECKPOINT_DIR": "", "GANG_CHECKPOINT_URL": "", "GANG_KEEP_CHECKPOINTS": "1"}
"""Variables that `env_from` must not set."""
DISK = {"name": "disk", "hostPath": {"path": "/mnt"}}


def spec(checkpoints: Any, **parameters: Any) -> GangSpec:
    return GangSpec(image="i", command=["train"], workers=2, checkpoints=checkpoints, **parameters)


def pod_of(given: GangSpec) -> dict[str, Any]:
    template: dict[str, Any] = preview(given, KEY)[0]["spec"]["template"]["spec"]
    return template


def variables_of(pod: dict[str, Any]) -> dict[str, str]:
    env = pod["containers"][0]["env"]
    return {item["name"]: item["value"] for item in env if "CHECKPOINT" in item["name"]}


FORMS: dict[str, tuple[Any, CheckpointPlace]] = {
    "a claim": ("pvc://data", CheckpointPlace(claim="data")),
    "a folder of a claim": ("pvc://data/a/b/", CheckpointPlace(claim="data", path="a/b")),
    "a mapping": ({"claim": "data", "path": "a/b"}, CheckpointPlace(claim="data", path="a/b")),
    "a mapping with a volume": ({"volume": "disk"}, CheckpointPlace(volume="disk")),
    "a path": ("/mnt/a/", CheckpointPlace(folder="/mnt/a")),
    "the URL of a path": ("file:///mnt/a", CheckpointPlace(folder="/mnt/a")),
    "an object store": ("s3://aws@bucket/a/", CheckpointPlace(url="s3://aws@bucket/a")),
}


@pytest.mark.parametrize(("given", "place"), FORMS.values(), ids=FORMS)
def test_form_of_a_place(given: Any, place: CheckpointPlace) -> None:
    assert place_of(to_text(given)) == place


def test_claim_is_mounted_and_each_rank_knows_the_folder_of_its_task() -> None:
    pod = pod_of(spec("pvc://data/a/b"))

    assert {"name": "gang-checkpoints", "persistentVolumeClaim": {"claimName": "data"}} in pod["volumes"]
    mount = {"name": "gang-checkpoints", "mountPath": "/gang/checkpoints", "subPath": "a/b"}
    assert mount in pod["containers"][0]["volumeMounts"]
    assert variables_of(pod) == {**UNSET, "GANG_CHECKPOINT_DIR": f"/gang/checkpoints/{FOLDER}"}


def test_volume_of_the_pods_is_mounted() -> None:
    pod = pod_of(spec("volume://disk", volumes=[DISK]))

    assert {"name": "disk", "mountPath": "/gang/checkpoints"} in pod["containers"][0]["volumeMounts"]
    assert [volume["name"] for volume in pod["volumes"]].count("disk") == 1


def test_object_store_is_named_by_its_url() -> None:
    url = f"s3://aws@bucket/a/{FOLDER}"
    assert variables_of(pod_of(spec("s3://aws@bucket/a"))) == {**UNSET, "GANG_CHECKPOINT_URL": url}


def test_folder_that_may_be_removed_is_marked() -> None:
    assert variables_of(pod_of(spec("pvc://data", keep_checkpoints=False)))["GANG_KEEP_CHECKPOINTS"] == "0"


def test_each_role_gets_the_place() -> None:
    role = {"image": "i", "command": ["train"]}
    given = GangSpec(roles={"leader": role, "worker": role}, checkpoints="pvc://data")
    jobs = [each for each in preview(given, KEY) if each["kind"] == "Job"]

    folders = [variables_of(job["spec"]["template"]["spec"])["GANG_CHECKPOINT_DIR"] for job in jobs]
    assert folders == [f"/gang/checkpoints/{FOLDER}"] * 2


KEYS: list[TaskKey | OperationKey] = [
    TaskKey("a", "b", "c"),
    TaskKey("a", "b", "c", 0),
    TaskKey("a", "b", "c-0"),
    TaskKey("a", "b", "c", installation="prod"),
    TaskKey("a", "b", "installation-prod", installation="prod"),
    TaskKey("a", "b/c", "d"),
    TaskKey("a/b", "c", "d"),
    TaskKey("..", "b", "c"),
    TaskKey("a", "b", "\N{SNOWMAN}" * 250),
    TaskKey("a", "b", "\N{SNOWMAN}" * 250 + "2"),
    OperationKey("a/b/c"),
    OperationKey("b"),
    OperationKey("x" * 512),
]


def test_no_folder_is_that_of_another_key_or_in_it() -> None:
    folders = [folder_of(key.path, digest_of(key.digest)) + "/" for key in KEYS]

    assert not [(one, other) for one, other in permutations(folders, 2) if one.startswith(other)]
    assert not any(part in (".", "..") or len(part.encode()) > 128 for folder in folders for part in folder.split("/"))


def test_another_place_is_another_gang_and_keeping_the_folder_is_not() -> None:
    assert spec("pvc://data/a").hash != spec("pvc://data/b").hash
    assert spec({"claim": "data", "path": "a"}).hash == spec("pvc://data/a").hash
    assert spec("pvc://data", keep_checkpoints=False).hash == spec("pvc://data").hash


REFUSED: dict[str, tuple[GangSpec, str]] = {
    "a number": (spec(3), "names no place"),
    "a mapping with other keys": (spec({"pvc": "data"}), "names no place"),
    "a relative path": (spec("checkpoints"), "a relative path"),
    "the root": (spec("/"), "names no place"),
    "a name that no file system has": (spec(f"pvc://data/{'x' * 300}"), "with a name of 300 bytes"),
    "a long path": (spec("s3://bucket" + "/x" * 300), "of 611 characters"),
    "a path without a volume": (spec("/mnt"), "is on no volume of the ranks"),
    "a volume that the pods do not have": (spec("volume://disk"), "which the pods do not have"),
    "a volume that ends with its pod": (
        spec("volume://disk", volumes=[{"name": "disk", "emptyDir": {}}]),
        "of kind emptyDir, which cannot keep checkpoints",
    ),
    "a volume that is mounted read-only": (
        spec(
            "/mnt/a",
            volumes=[DISK],
            volume_mounts=[{"name": "disk", "mountPath": "/mnt", "readOnly": True}],
        ),
        "mounted read-only",
    ),
    "a path that leads out of the volume": (spec("pvc://data/../other"), "leads out of the volume"),
    "a claim that cannot exist": (spec("pvc://My_Data"), "Give the name of a PersistentVolumeClaim"),
    "a name of the provider": (
        spec("pvc://data", volumes=[{"name": "gang-checkpoints", "emptyDir": {}}]),
        "which holds the checkpoints",
    ),
    "a variable of the provider": (spec("pvc://data", env={"GANG_CHECKPOINT_DIR": "/mnt"}), "is set by the provider"),
    "no place to remove": (spec(None, keep_checkpoints=False), "is False without checkpoints"),
    "a removal that nobody can do": (
        spec("pvc://data", rendezvous=False, keep_checkpoints=False),
        "none of them knows when all have succeeded",
    ),
    "a removal by each of independent roles": (
        GangSpec(
            roles={name: {"image": "i", "command": ["train"]} for name in ("leader", "worker")},
            checkpoints="pvc://data",
            rendezvous=False,
            keep_checkpoints=False,
        ),
        "none of them knows when all have succeeded",
    ),
    "no command": (GangSpec(image="i", checkpoints="pvc://data"), "is missing with checkpoints"),
}


@pytest.mark.parametrize(("given", "problem"), REFUSED.values(), ids=REFUSED)
def test_place_that_cannot_be_used_is_refused(given: GangSpec, problem: str) -> None:
    assert problem in "\n".join(map(str, validate(given)))


@pytest.mark.parametrize("place", ["pvc://data", "volume://disk/a", "s3://bucket/a", {"claim": "data"}])
def test_place_that_can_be_used_has_no_problem(place: Any) -> None:
    assert validate(spec(place, volumes=[DISK])) == ()


def test_gang_with_checkpoints_in_an_object_store_starts_in_a_worker() -> None:
    operator = StartPlace(operator="airflow_provider_gangjobs.operators.gang_job.GangJobOperator")

    assert reason_for_worker({"checkpoints": "pvc://data"}, operator) == ""
    assert "checks checkpoints" in reason_for_worker({"checkpoints": "s3://bucket/a"}, operator)


@pytest.mark.parametrize(
    "parameters",
    [
        {"checkpoints": "volume://disk", "volumes": [{"name": "disk", "hostPath": {"path": "{{ params.folder }}"}}]},
        {"checkpoints": "/data", "volume_mounts": [{"name": "disk", "mountPath": "{{ params.mount }}"}]},
        {"checkpoints": "pvc://{{ params.claim }}/runs", "keep_checkpoints": False},
    ],
    ids=["volumes", "volume mounts", "checkpoints"],
)
def test_templates_leave_the_place_to_the_submission(parameters: dict[str, Any]) -> None:
    given = {"image": "i", "command": ["train"], "workers": 2, **parameters}

    assert spec_problems(given) == ()

"""What happens to a manifest: each field of a Job is kept, or its change is told, or it is refused with a reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kubernetes.client import models

from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.identity import TaskKey
from airflow_provider_gangjobs.gang.preview import preview, to_yaml
from airflow_provider_gangjobs.gang.render.user_manifest import LEADS, changes_of, with_parsed_manifest
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.validation.validate import validate

if TYPE_CHECKING:
    from collections.abc import Iterator

MAIN = "kubectl.kubernetes.io/default-container"
KEY = TaskKey("etl", "run", "train")


def manifest(pod: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A Job of two ranks with a sidecar, which the API server would accept."""
    containers = [{"name": "main", "image": "a"}, {"name": "side", "image": "b"}]
    volumes = [{"name": "data", "emptyDir": {}}]
    template = {"spec": {"restartPolicy": "Never", "containers": containers, "volumes": volumes, **(pod or {})}}
    shape = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "ring"},
        "spec": {**shape, "template": template, **spec},
    }


def _without_backoff(**spec: Any) -> dict[str, Any]:
    written = manifest(**spec)
    del written["spec"]["backoffLimit"]
    return written


# -- every field -----------------------------------------------------------------------------------------------------

SAMPLES = {"str": "text", "int": 1, "bool": True, "float": 1.5, "object": "1", "datetime": "2026-01-01T00:00:00Z"}
VALUES: dict[str, Any] = {
    "completionMode": "Indexed",
    "completions": 2,
    "parallelism": 2,
    "backoffLimit": 0,
    "podReplacementPolicy": "TerminatingOrFailed",
    "restartPolicy": "Never",
    "mountPath": "/data",
    "volumeMounts[0].name": "data",
    "limits": {"cpu": "1"},
    "requests": {"cpu": "1"},
    "finalizers[0]": "example.com/keep",
}
"""Values of fields whose values the validation knows, by the end of their paths."""
CONTAINER = {"name": "main", "image": "a"}
ITEMS = {
    "containers": CONTAINER,
    "initContainers": CONTAINER | {"name": "init"},
    "ephemeralContainers": CONTAINER | {"name": "debug"},
    "volumeMounts": {"name": "data", "mountPath": "/data"},
}
"""What an item of a list has besides the field; otherwise a name."""
CHANGED = {
    "metadata.name",
    "spec.podReplacementPolicy",
    "spec.template.metadata.name",
    "spec.template.metadata.namespace",
    "spec.template.spec.subdomain",
}
SERVER_FIELDS = ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "generation", "managedFields"]
REFUSED = {
    "apiVersion",
    "kind",
    "status",
    "metadata.generateName",
    "metadata.ownerReferences.controller",
    *(f"metadata.{name}" for name in SERVER_FIELDS),
    "spec.backoffLimitPerIndex",
    "spec.manualSelector",
    "spec.selector",
    "spec.successPolicy",
    "spec.template.spec.setHostnameAsFQDN",
}
"""Fields, or objects with all of their fields, that are refused, or that pods of a gang cannot have."""


def fields_of(kind: str, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each field that contains no other field, as its path and its type."""
    model = getattr(models, kind, None)
    if model is None:
        yield path, kind
        return
    for name, field in model.attribute_map.items():
        of_list = re.fullmatch(r"list\[(\w+)\]", model.openapi_types[name])
        inner = of_list[1] if of_list else model.openapi_types[name]
        yield from fields_of(inner, f"{path}.{field}{'[0]' * bool(of_list)}".lstrip("."))


def set_field(thing: dict[str, Any], path: str, value: Any) -> None:
    """Set a field of an object, in the first item of each list."""
    name, _, below = path.partition(".")
    if name.endswith("[0]") and below:
        items = thing.setdefault(name[:-3], [dict(ITEMS.get(name[:-3], {"name": "data"}))])
        set_field(items[0], below, value)
    elif name.endswith("[0]"):
        thing[name[:-3]] = [value]
    elif below:
        set_field(thing.setdefault(name, {}), below, value)
    else:
        thing[name] = value


def is_kept(written: Any, rendered: Any) -> bool:
    """Return whether all that is written is rendered, whatever is added to it."""
    if isinstance(written, dict):
        return isinstance(rendered, dict) and all(is_kept(item, rendered.get(key)) for key, item in written.items())
    if isinstance(written, list):
        return isinstance(rendered, list) and all(any(is_kept(item, one) for one in rendered) for item in written)
    return bool(written == rendered)


def fate_of(path: str, kind: str) -> str:
    """Return what happens to a field of a manifest: `kept`, `told`, `refused`, or `lost`."""
    written = manifest()
    given = (value for end, value in VALUES.items() if path.endswith(end))
    set_field(written, path, next(given, SAMPLES.get(kind, {"key": "1"})))
    spec = GangSpec(manifest=written)
    try:
        job = preview(spec, KEY)[0]
    except InvalidGangSpec:
        return "refused"
    if any(change.path == f"manifest.{path}" for change in changes_of(spec, job)):
        return "told"
    del written["metadata"]["name"]
    return "kept" if is_kept(written, job) else "lost"


def test_each_field_of_a_job_is_kept_or_its_change_is_told_or_it_is_refused() -> None:
    fates = {path: fate_of(path, kind) for path, kind in fields_of("V1Job")}

    assert len(fates) > 800
    assert [path for path, fate in fates.items() if fate == "lost"] == []
    assert {path for path, fate in fates.items() if fate == "told"} == CHANGED
    refused = {path.replace("[0]", "") for path, fate in fates.items() if fate == "refused"}
    assert [path for path in refused if not any(f"{path}.".startswith(f"{one}.") for one in REFUSED)] == []


# -- what is told ----------------------------------------------------------------------------------------------------


def told(spec: GangSpec) -> dict[str, str]:
    """Return the changes of a valid spec by their paths, without that of the name."""
    changes = changes_of(spec, preview(spec, KEY)[0])
    return {change.path.removeprefix("manifest."): str(change) for change in changes[1:]}


def test_omitted_backoff_limit_of_a_gang_is_told() -> None:
    written = _without_backoff()

    assert told(GangSpec(manifest=written)) == {
        "spec.backoffLimit": "manifest.spec.backoffLimit: 6 becomes 0, because the ranks of a gang need each other, "
        "so the first failure ends them all"
    }
    assert told(GangSpec(manifest=written, gang="off")) == {}
    assert told(GangSpec(manifest=manifest())) == {}


def test_changes_are_comments_of_a_dry_run() -> None:
    spec = GangSpec(manifest=manifest(podReplacementPolicy="TerminatingOrFailed"))
    objects = preview(spec, KEY)

    first, second, *_ = to_yaml(objects, changes_of(spec, objects[0])).splitlines()
    assert first.startswith("# manifest.metadata.name: ring becomes ring-")
    assert second.startswith("# manifest.spec.podReplacementPolicy: TerminatingOrFailed becomes Failed, because ")


def test_gang_without_a_manifest_has_no_changes() -> None:
    spec = GangSpec(image="a", workers=2, gang="off")

    assert changes_of(spec, preview(spec, KEY)[0]) == ()


# -- the container of the rank ---------------------------------------------------------------------------------------


def annotated(name: str) -> dict[str, Any]:
    written = manifest()
    written["spec"]["template"]["metadata"] = {"annotations": {MAIN: name}}
    return written


ANNOTATED = {
    "in the manifest": {"manifest": annotated("side")},
    "as a parameter": {"manifest": manifest(), "annotations": {MAIN: "side"}},
    "in the overrides": {"manifest": manifest(), "pod_overrides": {"metadata": {"annotations": {MAIN: "side"}}}},
    "of the overrides": {
        "manifest": annotated("added"),
        "annotations": {MAIN: "side"},
        "pod_overrides": {"spec": {"containers": [{"name": "added", "image": "c"}]}},
    },
}


@pytest.mark.parametrize("given", ANNOTATED.values(), ids=ANNOTATED)
def test_parameters_change_the_container_that_is_annotated(given: dict[str, Any]) -> None:
    parameters = {"image": "t", "command": ["x"], "env": {"A": "1"}, "resources": {"cpu": "2"}, "working_dir": "/w"}
    spec = GangSpec(**given, **parameters, volume_mounts=[{"name": "data", "mountPath": "/d"}])

    template = preview(spec, KEY)[0]["spec"]["template"]
    main, *others = template["spec"]["containers"]
    assert template["metadata"]["annotations"][MAIN] == main["name"] == "side"
    assert (main["image"], main["command"], main["workingDir"]) == ("t", ["x"], "/w")
    assert main["resources"]["limits"] == {"cpu": "2"}
    assert {"name": "A", "value": "1"} in main["env"]
    assert main["volumeMounts"] == [{"name": "data", "mountPath": "/d"}]
    assert [one["image"] for one in others if one["name"] == "main"] == ["a"]
    assert list(told(spec)) == ["spec.template.spec.containers[0].name"]


# -- what is refused -------------------------------------------------------------------------------------------------

ENV = [{"name": "MASTER_ADDR", "value": "ring-0.peers"}]
PEERS = {"subdomain": "peers"}


def program(*command: str, **container: Any) -> dict[str, Any]:
    return PEERS | {"containers": [{"name": "main", "image": "a", "command": list(command), **container}]}


REFUSALS = {
    "a host name in the command": (
        GangSpec(manifest=manifest(program("sh", "-c", "ping ring-${i}.peers"))),
        "command[2]",
    ),
    "a whole domain": (GangSpec(manifest=manifest(program("ping", "ring-0.peers.team.svc"))), "command[1]"),
    "a host name of a variable": (GangSpec(manifest=manifest(program("ping", "$(JOB)-0.peers"))), "command[1]"),
    "a host name in a file": (
        GangSpec(manifest=manifest(PEERS), files={"hosts": "ring-0.peers\nring-1.peers\n"}),
        "files.hosts",
    ),
    "a variable without a rendezvous": (
        GangSpec(manifest=manifest(program("run", env=ENV)), rendezvous=False),
        "Remove subdomain, set rendezvous=True, and write ${MASTER_ADDR} for the host of rank 0, and ",
    ),
    "the name of a domain as the name of the host": (
        GangSpec(manifest=manifest({"setHostnameAsFQDN": True})),
        "setHostnameAsFQDN: makes a host name of more than the 64 characters",
    ),
    "a container that does not exist": (GangSpec(manifest=annotated("train")), "Name one of main, side."),
    "the success of some ranks": (
        GangSpec(manifest=_without_backoff(successPolicy={"rules": [{"succeededCount": 1}]})),
        "backoffLimit is 6 by default beside successPolicy",
    ),
    "a paused Job": (GangSpec(manifest=manifest(parallelism=0), gang="off"), "parallelism: is 0, with which no pod"),
}


@pytest.mark.parametrize(("spec", "text"), REFUSALS.values(), ids=REFUSALS)
def test_what_would_wait_for_ever_is_refused(spec: GangSpec, text: str) -> None:
    (problem,) = validate(spec)
    assert text in str(problem)


def test_refused_variable_of_the_rendezvous_has_the_one_remedy_that_works() -> None:
    (problem,) = validate(GangSpec(manifest=manifest(program("run", env=ENV))))

    assert problem.remedy == "Remove it"


def test_service_that_selects_the_pods_by_their_own_label_keeps_its_subdomain_without_a_rendezvous() -> None:
    spec = GangSpec(manifest=manifest(program("sh", "-c", "ping ${HOSTNAME%-*}-0.peers")), rendezvous=False)

    assert preview(spec, KEY)[0]["spec"]["template"]["spec"]["subdomain"] == "peers"


def test_suspended_manifest_stays_suspended_unless_a_queue_starts_it() -> None:
    written = manifest(suspend=True)

    assert with_parsed_manifest(GangSpec(manifest=yaml.safe_dump(written))).is_kept_suspended
    assert not with_parsed_manifest(GangSpec(manifest=manifest(suspend=False))).is_kept_suspended


# -- what the page says ----------------------------------------------------------------------------------------------


def test_page_names_each_change_and_what_stands_for_each_kind() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "manifests.md").read_text()

    fields = {path.rpartition(".")[2] for path in CHANGED | {"spec.backoffLimit"}} - {"name", "namespace"}
    assert [name for name in sorted(fields) if f"`{name}`" not in page] == []
    kinds = {name.rpartition("/")[2] for name in LEADS}
    assert [kind for kind in sorted(kinds) if not re.search(rf"\b{kind}\b", page)] == []

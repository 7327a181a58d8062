"""Checks of the pods of a gang: resources, volumes, files, variables, supervisors, and the place of checkpoints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.checkpoints import (
    CHECKPOINT_ENV,
    MOUNT_PATH,
    REMEDY,
    VOLUME,
    CheckpointPlace,
    place_of,
)
from airflow_provider_gangjobs.gang.render.files import (
    FILES_BYTES_MAX,
    FILES_VOLUME,
    KEY_FILE,
    PORT,
    RUN_PATH,
    RUN_VOLUME,
    SUPERVISOR_ENV,
    UPLOADS_MAX,
    files_of,
    is_content_id,
    supervisor_programs,
)
from airflow_provider_gangjobs.gang.render.placement import rendezvous_of
from airflow_provider_gangjobs.gang.render.pod_template import RENDEZVOUS_ENV
from airflow_provider_gangjobs.gang.render.user_manifest import iter_scalars
from airflow_provider_gangjobs.gang.spec import find_supervised, is_whole_number
from airflow_provider_gangjobs.gang.validation.parsed_spec import TEMPLATE, ParsedSpec
from airflow_provider_gangjobs.kube import names, quantity
from airflow_provider_gangjobs.kube import well_known as keys
from airflow_provider_gangjobs.kube.names import problem_with_dns_subdomain
from airflow_provider_gangjobs.kube.text import is_utf8

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_provider_gangjobs.gang.spec import GangSpec

_STANDARD: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_HUGEPAGES: Final = "hugepages-"
_NATIVE_DOMAIN: Final = "kubernetes.io/"
_REMEDIES: Final = {"gpu": "Name the device, e.g. nvidia.com/gpu", "mem": "Write memory"}

Amounts = dict[str, Decimal]


def check_resources(parsed: ParsedSpec) -> Iterator[Problem]:
    for path, container in parsed.containers():
        resources = container.get("resources", {})
        named = path.endswith(".containers[0]") and parsed.spec.resources is not None
        yield from _container("resources" if named else f"{path}.resources", resources)


def _container(path: str, resources: Mapping[str, Any]) -> Iterator[Problem]:
    amounts: dict[str, Amounts] = {"requests": {}, "limits": {}}
    found: dict[str, Problem] = {}
    for part, read in amounts.items():
        for name, value in resources.get(part, {}).items():
            problem = _problem(path, part, name, value)
            if problem is None:
                read[name] = quantity.parse(value)
            else:
                found.setdefault(name, problem)
    yield from found.values()
    yield from _between(path, amounts["requests"], amounts["limits"])


def _problem(path: str, part: str, name: str, value: Any) -> Problem | None:
    at = f"{path}.{part}.{name}"
    if not _is_known(name):
        wrong = names.problem_with_qualified_name(name) if "/" in name else f"{name!r} is not a resource"
        return Problem(at, wrong or "", _REMEDIES.get(name, "Use cpu, memory, ephemeral-storage or <domain>/<name>"))
    try:
        amount = quantity.parse(value)
    except (ValueError, TypeError):
        return Problem(at, f"{value!r} is not a quantity", "Write a number such as 2, 500m or 4Gi")
    if amount < 0:
        return Problem(at, f"{value!r} is negative", "Give 0 or more")
    if is_extended(name) and amount != amount.to_integral_value():
        return Problem(at, f"{value!r} is not whole, and a device cannot be divided", "Give a whole number")
    return None


def _between(path: str, requests: Amounts, limits: Amounts) -> Iterator[Problem]:
    for name, requested in requests.items():
        limit = limits.get(name)
        if limit is None and is_extended(name):
            yield Problem(f"{path}.limits.{name}", "is missing, and a device needs it", f"Set it to {requested}")
        elif limit is not None and is_extended(name) and requested != limit:
            yield Problem(f"{path}.requests.{name}", f"{requested} is not the limit {limit}", "Make them equal")
        elif limit is not None and requested > limit:
            yield Problem(f"{path}.requests.{name}", f"{requested} is above the limit {limit}", "Raise the limit")


def is_extended(name: str) -> bool:
    """Return whether a resource is extended, such as a device, which is never divided or overcommitted."""
    return "/" in name and not name.startswith(_NATIVE_DOMAIN)


def _is_known(name: str) -> bool:
    if "/" in name:
        return names.problem_with_qualified_name(name) is None
    return name in _STANDARD or name.startswith(_HUGEPAGES)


def check_volumes(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that every mounted volume exists once, and that each path is mounted once."""
    volumes = [volume.get("name") for volume in parsed.pod.get("volumes", [])]
    for name, count in Counter(map(str, volumes)).items():
        if count > 1:
            yield Problem(f"{TEMPLATE}.spec.volumes", f"has {name!r} {count} times", "Keep one")
    if parsed.spec.mounts_files:
        yield from check_volume_of_provider(parsed, FILES_VOLUME, keys.FILES_PATH, "the files")
    for path, container in parsed.containers():
        for mount in container.get("volumeMounts", []):
            name, mounted = mount.get("name"), mount.get("mountPath")
            if not isinstance(mounted, str) or not mounted:
                yield Problem(f"{path}.volumeMounts", f"has no mountPath for {name!r}", "Give a mountPath")
            if name not in volumes:
                what = f"mounts {name!r}, and no volume has this name"
                yield Problem(f"{path}.volumeMounts", what, "Add it to volumes, or correct the name")
        for mounted, count in Counter(_mount_paths(container)).items():
            if count > 1:
                yield Problem(f"{path}.volumeMounts", f"has {mounted} {count} times", "Mount each path once")


def check_volume_of_provider(parsed: ParsedSpec, volume: str, folder: str, what: str) -> Iterator[Problem]:
    """Check that the user has no volume of this name, and mounts none at this folder.

    :param what: What the volume holds, for the message.
    """
    if any(one.get("name") == volume for one in parsed.pod.get("volumes", [])):
        yield Problem(f"{TEMPLATE}.spec.volumes", f"has {volume!r}, which holds {what}", "Rename it")
    for path, container in parsed.containers():
        if folder in _mount_paths(container):
            yield Problem(f"{path}.volumeMounts", f"has {folder}, where {what} are", "Mount the volume elsewhere")


def _mount_paths(container: Mapping[str, Any]) -> list[str]:
    return [str(mount.get("mountPath")).rstrip("/") for mount in container.get("volumeMounts", [])]


def check_files(parsed: ParsedSpec) -> Iterator[Problem]:
    yield from problems_with_files(files_of(parsed.spec))
    for index, content_id in enumerate(parsed.spec.uploads):
        if not is_content_id(content_id):
            yield Problem(
                f"uploads[{index}]", f"is {content_id!r:.80}, which is not a content id", "Give what `upload` returned"
            )
    if len(parsed.spec.uploads) > UPLOADS_MAX:
        yield Problem("uploads", f"are {len(parsed.spec.uploads)}, {UPLOADS_MAX} are allowed", "Upload files together")
    elif len(set(parsed.spec.uploads)) < len(parsed.spec.uploads):
        yield Problem("uploads", "name the same content twice", "Keep one")


def problems_with_files(files: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of files: their names, the types of their contents, and their size."""
    size = 0
    for name, content in files.items():
        path = f"files.{name}"
        if wrong := names.problem_with_config_map_key(name):
            yield Problem(path, wrong, f"{keys.FILES_PATH} has no subdirectories")
        if not isinstance(content, (str, bytes)):
            yield Problem(path, f"is {type(content).__name__}, not text or bytes", "Give its content")
        elif isinstance(content, str) and not is_utf8(content):
            yield Problem(path, "has half of a surrogate pair, which UTF-8 cannot hold", "Give its bytes")
        else:
            size += len(name.encode()) + len(content.encode() if isinstance(content, str) else content)
    if size > FILES_BYTES_MAX:
        yield Problem("files", f"have {size} bytes in all, {FILES_BYTES_MAX} are allowed", "Put them into a volume")


_SET_BY_THE_PROVIDER: Final = frozenset(
    {
        *(keys.ENV_RESULT_PATH, keys.ENV_FILES, keys.ENV_ATTEMPT, keys.ENV_SIZE, keys.ENV_INSTALLATION),
        *(keys.ENV_ROLE, keys.ENV_ROLE_RANK, keys.ENV_ROLE_SIZE, keys.ENV_RANK_OFFSET),
    }
)
_FIELDS: Final = frozenset({"name", "value", "valueFrom", "$patch"})


def check_env(parsed: ParsedSpec) -> Iterator[Problem]:
    env = parsed.spec.env
    if isinstance(env, Mapping):
        for name, value in env.items():
            yield from _name(parsed, f"env.{name}", name)
            yield from _value_of_mapping(parsed, f"env.{name}", value)
    elif env is not None:
        yield from _list(parsed, "env", env)
    for path, container in parsed.user_containers():
        yield from _list(parsed, f"{path}.env", container.get("env") or ())
    for path, container in parsed.user_containers():
        for field in ("command", "args"):
            for index, item in enumerate(container.get(field) or ()):
                if not isinstance(item, str):
                    yield parsed.user_manifest.not_text_problem(f"{path}.{field}[{index}]", item)


def _value_of_mapping(parsed: ParsedSpec, path: str, value: Any) -> Iterator[Problem]:
    if isinstance(value, Mapping):
        if set(value) != {"valueFrom"} or not isinstance(value["valueFrom"], Mapping):
            yield Problem(path, f"is a dict of {', '.join(map(str, value)) or 'nothing'}", _VALUE_REMEDY)
    elif value is None:
        yield Problem(path, "is None", 'Leave it out, or write "" for an empty text')
    elif not isinstance(value, str):
        yield parsed.user_manifest.not_text_problem(path, value)


_VALUE_REMEDY: Final = 'Give text, or {"valueFrom": {"secretKeyRef": ...}} or another source'


def _list(parsed: ParsedSpec, path: str, env: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    seen: set[Any] = set()
    for index, item in enumerate(env):
        at = f"{path}[{index}]"
        name = item.get("name")
        if name is None:
            yield Problem(f"{at}.name", "is missing", "Name the variable")
            continue
        if not isinstance(name, str):
            yield parsed.user_manifest.not_text_problem(f"{at}.name", name)
            continue
        if name in seen:
            yield Problem(at, f"defines {name} a second time", "Keep one of the two")
        seen.add(name)
        yield from _name(parsed, at, name)
        value = item.get("value")
        if value is not None and not isinstance(value, str):
            yield parsed.user_manifest.not_text_problem(f"{at}.value", value)
        if value is not None and "valueFrom" in item:
            yield Problem(at, f"gives {name} both a value and a source", "Keep value or valueFrom")
        if unknown := sorted(set(item) - _FIELDS):
            yield Problem(
                at, f"has {', '.join(unknown)}, which is not a field of an environment variable", _VALUE_REMEDY
            )


def _name(parsed: ParsedSpec, path: str, name: Any) -> Iterator[Problem]:
    if wrong := names.problem_with_env_name(name):
        yield Problem(path, wrong, "Rename the variable")
    elif name in _SET_BY_THE_PROVIDER or (parsed.spec.is_supervised and name in SUPERVISOR_ENV | CHECKPOINT_ENV):
        yield Problem(path, f"{name} is set by the provider for every rank", "Remove it")
    elif name in RENDEZVOUS_ENV and rendezvous_of(parsed.spec, parsed.shape):
        remedy = "Remove it" if parsed.pod.get("subdomain") else "Remove it, or set rendezvous=False"
        what = f"{name} is set by the rendezvous"
        if name == "WORLD_SIZE":
            what += f", to the number of ranks, which are pods ({parsed.shape.size})"
            remedy += '. If the program starts several processes in a pod, launch="torchrun" sets it for each process'
        yield Problem(path, what, remedy)


_ADDRESSES: Final = "${MASTER_ADDR} for the host of rank 0, and ${MASTER_ADDR%-0.*}-N.${MASTER_ADDR#*.} for rank N"


def check_host_names(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that no program waits for a host name of the manifest's own Job and Service.

    The pods of an attempt have other host names, because each attempt is a Job with a name of its own.
    """
    pod, has_service = parsed.pod, rendezvous_of(parsed.spec, parsed.shape) is not None
    subdomain = pod.get("subdomain")
    if pod.get("setHostnameAsFQDN") and (subdomain or has_service):
        what = "makes a host name of more than the 64 characters that Linux allows, so no pod would start"
        yield Problem(f"{TEMPLATE}.spec.setHostnameAsFQDN", what, "Remove it")
    if not subdomain or not parsed.shape.indexed:
        return
    # Without a rendezvous the subdomain is kept, and its Service may select the pods by a label of the template.
    job = re.escape(str(parsed.manifest.get("metadata", {}).get("name", "")))
    host = r"[\w)}\]-]" if has_service else rf"(?<![\w-]){job}-[^\s.]{{1,64}}"
    pattern = re.compile(rf"{host}\.{re.escape(str(subdomain))}(?![\w-])")
    for path, text in _texts(parsed, RENDEZVOUS_ENV if has_service else ()):
        if isinstance(text, str) and pattern.search(text):
            what = f"has a host name of {subdomain}, and the pods of a gang have other names than those of the manifest"
            service = "subdomain" if has_service else "subdomain, set rendezvous=True"
            yield Problem(path, what, f"Remove {service}, and write {_ADDRESSES}")


def _texts(parsed: ParsedSpec, refused_env: Collection[str]) -> Iterator[tuple[str, Any]]:
    yield from iter_scalars(parsed.spec.files, "files")
    for path, container in parsed.containers():
        for field in ("command", "args"):
            yield from iter_scalars(container.get(field), f"{path}.{field}")
        for item in container.get("env") or ():
            if item.get("name") not in refused_env:
                yield f"{path}.env.{item.get('name')}", item.get("value")


RESTARTS_MAX: Final = 1000


def check_restarts(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check the parameters of restarts, and that each rank has a program that a supervisor can start again."""
    spec = parsed.spec
    if spec.restarts > RESTARTS_MAX:
        yield Problem("restarts", f"is {spec.restarts}", f"Give at most {RESTARTS_MAX}")
    codes: Sequence[Any] = spec.no_restart_on_exit_codes
    if not all(is_whole_number(code, 1, 255) for code in codes):
        what = f"is {list(codes)!r:.80}, which are not all numbers from 1 to 255"
        yield Problem("no_restart_on_exit_codes", what, "Give exit codes of a program that fails")
    elif codes and not spec.restarts:
        yield Problem("no_restart_on_exit_codes", "is given without restarts", "Give restarts, or leave it out")
    if spec.is_supervised:
        yield from _program(parsed)
        yield from _gang(parsed)
        yield from _names_of_the_supervisor(parsed)


def _program(parsed: ParsedSpec) -> Iterator[Problem]:
    reason = parameter_of(parsed.spec)
    if not (parsed.pod.get("containers") or [{}])[0].get("command"):
        path = "command" if parsed.spec.manifest is None else f"manifest.{TEMPLATE}.spec.containers[0].command"
        what = f"is missing with {reason}, and the provider does not know the entrypoint of the image"
        yield Problem(path, what, "Give the command of the program, which the supervisor of each rank starts")
    if parsed.pod.get("restartPolicy", "Never") != "Never":
        what = f"is {parsed.pod['restartPolicy']} with {reason}, and the kubelet would restart one rank alone"
        yield Problem(f"{TEMPLATE}.spec.restartPolicy", what, "Set it to Never")


def _gang(parsed: ParsedSpec) -> Iterator[Problem]:
    spec, shape, reason = parsed.spec, parsed.shape, parameter_of(parsed.spec)
    if not shape.indexed:
        yield Problem(reason, "needs ranks, and completionMode is NonIndexed", "Set completionMode: Indexed")
    if spec.min_workers is not None and spec.min_workers < shape.size:
        what = f"is {spec.min_workers} with {reason}, and all {shape.size} ranks restart together"
        yield Problem("min_workers", what, "Leave min_workers out")
    rendezvous = rendezvous_of(spec, shape)
    if rendezvous is not None and rendezvous.port == PORT:
        yield Problem("rendezvous.port", f"is {PORT}, where the supervisors listen", "Give another port")


def _names_of_the_supervisor(parsed: ParsedSpec) -> Iterator[Problem]:
    programs = supervisor_programs()
    for name in (*programs, KEY_FILE):
        if name in parsed.spec.files and parsed.spec.files[name] != programs.get(name):
            yield Problem(f"files.{name}", "is a file of the provider", "Choose another name")
    yield from check_volume_of_provider(parsed, RUN_VOLUME, RUN_PATH, "the files of the supervisor")


def parameter_of(spec: GangSpec) -> str:
    """Return the parameter of the operator because of which a gang has supervisors."""
    return (find_supervised(partial(getattr, spec)) or "restarts").removesuffix("_s")


LOST_WITH_THE_POD: Final = ("emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image")
"""Kinds of volumes that are read-only or do not outlive their pod."""


def check_checkpoints(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that the place exists, as far as the spec says, and outlives the pods."""
    spec = parsed.spec
    if spec.checkpoints is None:
        if not spec.keep_checkpoints:
            yield Problem("keep_checkpoints", "is False without checkpoints", "Give checkpoints, or leave it out")
        return
    try:
        place = place_of(spec.checkpoints)
    except ValueError as error:
        yield Problem("checkpoints", str(error), REMEDY)
        return
    yield from _place_of_checkpoints(parsed, place)
    is_alone = rendezvous_of(spec, parsed.shape) is None and parsed.shape.size > 1
    if not spec.keep_checkpoints and (spec.rendezvous is False or is_alone):
        what = "is False, and the ranks are independent: none of them knows when all have succeeded"
        yield Problem("keep_checkpoints", what, "Leave it out, and remove the folder of the run later")


def _place_of_checkpoints(parsed: ParsedSpec, place: CheckpointPlace) -> Iterator[Problem]:
    if place.claim and (wrong := problem_with_dns_subdomain(place.claim)):
        yield Problem("checkpoints", wrong, "Give the name of a PersistentVolumeClaim of the namespace")
    if place.folder and (wrong := folder_problem(parsed.pod, PurePosixPath(place.folder), "checkpoints")):
        yield Problem("checkpoints", f"{place.folder} {wrong}", REMEDY)
    if place.volume:
        volumes = {volume.get("name"): volume for volume in parsed.pod.get("volumes", [])}
        if place.volume not in volumes:
            yield Problem("checkpoints", f"names the volume {place.volume!r}, which the pods do not have", REMEDY)
        elif wrong := _loss(volumes[place.volume], "checkpoints"):
            yield Problem("checkpoints", f"is {wrong}", REMEDY)
    if place.claim or place.volume:
        yield from check_volume_of_provider(parsed, VOLUME, MOUNT_PATH, "the checkpoints")


def folder_problem(pod: Mapping[str, Any], folder: PurePosixPath, what: str) -> str:
    """Return why files in a folder of the main container would be lost or could not be written; empty if they stay.

    :param pod: The spec of the pod.
    :param what: What the files are, for the message.
    """
    mounts = [
        mount
        for mount in pod["containers"][0].get("volumeMounts", [])
        if isinstance(path := mount.get("mountPath"), str) and folder.is_relative_to(path)
    ]
    if not mounts:
        return f"is on no volume of the ranks, so the {what} would be lost with the pods"
    mount = max(mounts, key=lambda each: len(each["mountPath"]))
    if mount.get("readOnly"):
        return f"is on volume {mount['name']!r}, which is mounted read-only"
    volume: Mapping[str, Any] = next((v for v in pod.get("volumes", []) if v.get("name") == mount["name"]), {})
    loss = _loss(volume, what)
    return f"is on {loss}" if loss else ""


def _loss(volume: Mapping[str, Any], what: str) -> str:
    kind = next((kind for kind in LOST_WITH_THE_POD if kind in volume), None)
    return f"volume {volume.get('name')!r} of kind {kind}, which cannot keep {what}" if kind else ""

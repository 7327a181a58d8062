"""Volumes, mounts and files: each mount has a volume, each path has one mount, and files fit into a ConfigMap."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.labels import FILES_PATH
from airflow_provider_gangjobs.gang.render.files import FILES_BYTES_MAX, FILES_VOLUME, UPLOADS_MAX, is_content_id
from airflow_provider_gangjobs.gang.validation.parsed_spec import TEMPLATE, ParsedSpec
from airflow_provider_gangjobs.kube import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def check_volumes(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that every mounted volume exists once, and that each path is mounted once."""
    volumes = [volume.get("name") for volume in parsed.pod.get("volumes", [])]
    for name, count in Counter(map(str, volumes)).items():
        if count > 1:
            yield Problem(f"{TEMPLATE}.spec.volumes", f"has {name!r} {count} times", "Keep one")
    if parsed.spec.mounts_files and FILES_VOLUME in volumes:
        yield Problem(f"{TEMPLATE}.spec.volumes", f"has {FILES_VOLUME!r}, which holds the files", "Rename it")
    for path, container in parsed.containers():
        for mount in container.get("volumeMounts", []):
            yield from _mount(parsed, f"{path}.volumeMounts", mount, volumes)
        paths = Counter(str(mount.get("mountPath")).rstrip("/") for mount in container.get("volumeMounts", []))
        for mounted, count in paths.items():
            if count > 1:
                yield Problem(f"{path}.volumeMounts", f"has {mounted} {count} times", "Mount each path once")


def _mount(parsed: ParsedSpec, path: str, mount: dict[str, Any], volumes: list[Any]) -> Iterator[Problem]:
    name, mounted = mount.get("name"), mount.get("mountPath")
    if not isinstance(mounted, str) or not mounted:
        yield Problem(path, f"has no mountPath for {name!r}", "Give a mountPath")
    elif parsed.spec.mounts_files and mounted.rstrip("/") == FILES_PATH:
        yield Problem(path, f"mounts {name!r} at {FILES_PATH}, where the files are", "Mount it elsewhere")
    if name not in volumes:
        yield Problem(path, f"mounts {name!r}, and no volume has this name", "Add it to volumes, or correct the name")


def check_files(parsed: ParsedSpec) -> Iterator[Problem]:
    """Check that files fit into a ConfigMap, and that uploads are unique content ids."""
    yield from problems_with_files(parsed.spec.files)
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
    """Yield the problems of files: names that are not keys of a ConfigMap, contents of a wrong type, and too much
    data."""
    size = 0
    for name, content in files.items():
        path = f"files.{name}"
        if wrong := names.problem_with_config_map_key(name):
            yield Problem(path, wrong, f"{FILES_PATH} has no subdirectories")
        if not isinstance(content, (str, bytes)):
            yield Problem(path, f"is {type(content).__name__}, not text or bytes", "Give its content")
        else:
            encoded = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
            size += len(name.encode()) + len(encoded)
    if size > FILES_BYTES_MAX:
        yield Problem("files", f"have {size} bytes in all, {FILES_BYTES_MAX} are allowed", "Put them into a volume")

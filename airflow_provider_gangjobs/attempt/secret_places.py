"""The worker writes on the Job where the objects of its gang have secrets, by which others mask what a worker masks.

Only the worker has rendered the templates of a task, so only the masker of Airflow in the worker knows the values of
its variables and connections. They are in the pod templates and the files of the gang, and the masker shows where. The
objects do not change after their creation where a rank can read a secret. A trigger reads the values there, and adds
them to the masker of its process; `jobs.gang_secrets` masks them on pages and in terminals.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from airflow.sdk._shared.secrets_masker import mask_secret
from msgspec import to_builtins

from airflow_provider_gangjobs.airflow_api.task_log import find_secrets, mask
from airflow_provider_gangjobs.cluster.client import patch_uid
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.jobs.gang_secrets import FORMS, read_mask, read_texts, stored_places, texts_of
from airflow_provider_gangjobs.jobs.requests import list_jobs
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_SECRETS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.spec import GangSpec

PLACES_MAX: Final = 256
"""Some 20 KB of the 256 KiB of annotations. Each secret has one place, wherever else it occurs."""


def has_secrets(spec: GangSpec) -> bool:
    """Return whether Airflow's masker knows a secret in the parameters of a gang."""
    texts = [text for _, text in texts_of(to_builtins(spec, builtin_types=(bytes,), enc_hook=str))]
    return any(mask(read(text)) != read(text) for text in texts for read in FORMS.values())


async def write_places(client: Client, ref: GangRef) -> bool | None:
    """Write on the Job where its gang has secrets, unless the Job says it already. Safe to repeat.

    Returns whether the gang has secrets; `None` if that is unknown, or if the Job could not be changed.
    """
    try:
        jobs = await list_jobs(client, ref.namespace, [gang_selector(ref.name)])
        if stored_places(ref, jobs) is not None:
            return True
        places = _find_places(await read_texts(client, ref, jobs))
        if places is not None and not places:
            return False
        body = {"metadata": {"annotations": {ANNOTATION_SECRETS: json.dumps(places, separators=(",", ":"))}}}
        return await patch_uid(client, JOBS, ref.name, ref.namespace, ref.uid, body) or None
    except (ClusterError, LookupError):
        return None


def _find_places(texts: Mapping[str, str]) -> Sequence[Sequence[str | int]] | None:
    """Return where texts have secrets that Airflow's masker knows; `None` if that cannot be said."""
    places: dict[str, list[str | int]] = {}
    try:
        for path, text in texts.items():
            for form, read in FORMS.items():
                for start, end in find_secrets(shown := read(text)):
                    places.setdefault(shown[start:end], [path, form, start, end])
    except ValueError:
        return None
    has_secret_path = any(mask(str(path)) != path for path, *_ in places.values())
    return None if has_secret_path or len(places) > PLACES_MAX else tuple(places.values())


async def learn_secrets(client: Client, ref: GangRef, has_secrets: bool | None) -> bool:
    """Let Airflow mask the secrets of a gang, from now on, in this process. Return whether all are known.

    :param has_secrets: `TriggerArgs.secrets`.

    Raises:
        ClusterError: the objects could not be read, and may be read later.
    """
    if not has_secrets:
        return has_secrets is not None
    mask = await read_mask(client, ref)
    for secret in mask.secrets or ():
        mask_secret(secret)  # Airflow leaves out the ones that are too short
    return bool(mask.secrets)

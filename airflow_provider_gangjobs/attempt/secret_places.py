"""The places of secrets in the objects of a gang, by which a triggerer masks what a worker masks.

Only the worker has rendered the templates of a task, so only the masker of Airflow in the worker knows the values of
its variables and connections. They are in the pod templates and the files of the gang, and the masker shows where. The
arguments of a trigger have these places and never a value: the trigger reads the values from the cluster, and adds them
to the masker of its process. A place has the length of a secret. Airflow encrypts the arguments of triggers, and a
masker that does not know a secret would show all of it.

The objects do not change after their creation where a rank can read a secret. If a place cannot be read, the secrets of
the gang are unknown there.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from airflow.sdk._shared.secrets_masker import mask_secret
from msgspec import to_builtins

from airflow_provider_gangjobs.airflow_api.task_log import find_secrets, mask
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.cluster.resources import CONFIGMAPS, JOBS
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.gang.render.files import config_map_name, files_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.spec import GangSpec

PLACES_MAX: Final = 256
"""Some 20 KB of the arguments of a trigger. Each secret has one place, wherever else it occurs."""


def _texts_of(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in JSON values with its path. Bytes are read as UTF-8."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, bytes):
        yield path, value.decode(errors="replace")
    elif isinstance(value, (dict, list, tuple)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts_of(each, f"{path}/{key}")


def _json_texts(text: str) -> str:
    """Return the texts in a JSON document without their escapes, in order; an empty text if it is no JSON."""
    with suppress(ValueError, RecursionError):
        if text.lstrip().startswith(("{", "[", '"')):
            return "\n".join(each for _, each in _texts_of(json.loads(text)))
    return ""


_FORMS: Final[Mapping[str, Callable[[str], str]]] = {"text": str, "url": unquote, "json": _json_texts}
"""How a program may read a text. A secret is quoted in a URI and in JSON, and a program writes it without quotes."""


def has_secrets(spec: GangSpec) -> bool:
    """Return whether Airflow's masker knows a secret in the parameters of a gang."""
    texts = [text for _, text in _texts_of(to_builtins(spec, builtin_types=(bytes,), enc_hook=str))]
    return any(mask(read(text)) != read(text) for text in texts for read in _FORMS.values())


async def find_places(client: Client, ref: GangRef) -> Sequence[Sequence[str | int]] | None:
    """Return where the objects of a gang have secrets that Airflow's masker knows; `None` if that is not known."""
    places: dict[str, list[str | int]] = {}
    try:
        for path, text in (await _read_texts(client, ref)).items():
            for form, read in _FORMS.items():
                for start, end in find_secrets(shown := read(text)):
                    places.setdefault(shown[start:end], [path, form, start, end])
    except (ClusterError, ValueError, LookupError):
        return None
    has_secret_path = any(mask(str(path)) != path for path, *_ in places.values())
    return None if has_secret_path or len(places) > PLACES_MAX else tuple(places.values())


async def learn_secrets(client: Client, ref: GangRef, places: Sequence[Sequence[Any]] | None) -> bool:
    """Let Airflow mask the secrets at these places, from now on, in this process. Return whether all are known.

    Raises:
        ClusterError: the objects could not be read, and may be read later.
    """
    if not places:
        return places is not None
    try:
        texts = await _read_texts(client, ref)
        read = cache(lambda path, form: _FORMS[form](texts[path]))
        secrets = [read(path, form)[start:end] for path, form, start, end in places]
    except ClusterError as error:
        if error.transient:
            raise
        return False
    except LookupError:
        return False
    for secret in secrets:
        mask_secret(secret)  # Airflow leaves out the ones that are too short
    return all(map(len, secrets))


async def _read_texts(client: Client, ref: GangRef) -> dict[str, str]:
    """Return the texts that the ranks of a gang get, by their paths.

    Raises:
        LookupError: the Job does not exist any more.
        ClusterError: the objects could not be read.
    """
    jobs = await client.list(JOBS, ref.namespace, label_selector=gang_selector(ref.name))
    if ref.uid not in {job["metadata"]["uid"] for job in jobs}:
        raise LookupError(f"Job {ref.name} has another uid")
    objects = {job["metadata"]["name"]: job["spec"]["template"] for job in jobs}
    with suppress(NotFound):
        name = config_map_name(ref.name)
        objects[f"files of {name}"] = files_in(await client.get(CONFIGMAPS, name, ref.namespace))
    return dict(_texts_of(objects))

"""The secrets of a gang, and the mask by which everybody who shows texts of its programs hides them.

Only the worker has rendered the templates of a task, so only the masker of Airflow in the worker knows the values of
its variables and connections. The worker writes on the Job where the pod templates and the files of the gang have them.
These objects do not change after their creation where a rank can read a secret. A trigger reads the values there, and
adds them to the masker of its process; pages and terminals mask them with `SecretMask`.

The annotation has these places and never a value: who may read the Job, or the files of the gang, may read the values
there. A place that cannot be read makes the secrets unknown. Then no text of the programs is shown.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from airflow_provider_gangjobs.cluster.client import patch_uid
from airflow_provider_gangjobs.cluster.errors import ClusterError, NotFound
from airflow_provider_gangjobs.gang.identity import gang_selector
from airflow_provider_gangjobs.gang.render.files import config_map_name, files_in
from airflow_provider_gangjobs.jobs.requests import list_jobs
from airflow_provider_gangjobs.kube.resources import CONFIGMAPS, JOBS
from airflow_provider_gangjobs.kube.views import Condition
from airflow_provider_gangjobs.kube.well_known import ANNOTATION_SECRETS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.spec import GangSpec

    FindSecrets = Callable[[str], Sequence[tuple[int, int]]]

T = TypeVar("T")

HIDDEN: Final = "(This text is not shown, because this process does not know the secrets of the gang)"
SECRET_CHARACTERS_MIN: Final = 5
"""Airflow's masker leaves out shorter ones, too: they occur in ordinary words."""
SECRET_LINE_CHARACTERS_MIN: Final = 16
"""A line of a secret that is so long is a secret of its own. Shorter ones occur in ordinary texts."""
PLACES_MAX: Final = 256
"""Some 20 KB of the 256 KiB of annotations. Each secret has one place, wherever else it occurs."""
_MESSAGES: Final = frozenset({"message", "status_message"})
_JSON: Final = (json.dumps, partial(json.dumps, ensure_ascii=False))
_FILES: Final = "/files of "
"""The begin of the paths of files. No Job has such a name."""


def hide(text: str) -> str:
    """Return what is shown in place of a text that may have secrets which this process does not know."""
    return HIDDEN if text else text


class SecretMask(Struct, frozen=True, dict=True):
    """Replaces the secrets of one gang by `***`."""

    secrets: Sequence[str] | None = ()
    """`None` if they are unknown."""

    def __call__(self, text: str) -> str:
        if self.secrets is None:
            return hide(text)
        return self._masked(text.encode(errors="surrogatepass")).decode(errors="surrogatepass")

    @cached_property
    def _forms(self) -> Sequence[bytes]:
        """The secrets, and how they are written in JSON, the longest first."""
        known = [secret for secret in self.secrets or () if len(secret) >= SECRET_CHARACTERS_MIN]
        forms = {form for secret in known for form in (secret, *(write(secret)[1:-1] for write in _JSON))}
        return sorted((form.encode(errors="surrogatepass") for form in forms), key=len, reverse=True)

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        return re.compile(b"|".join(map(re.escape, self._forms)) or b"(?!)")

    def _masked(self, text: bytes) -> bytes:
        return self._pattern.sub(b"***", text)

    def messages(self, value: T) -> T:
        """Return views and outcomes with masked messages. Conditions have no text of a program."""
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.messages, value))
        if not isinstance(value, Struct) or isinstance(value, Condition):
            return value
        fields = [(name, getattr(value, name)) for name in value.__struct_fields__]
        return replace(value, **{name: self(v) if name in _MESSAGES else self.messages(v) for name, v in fields})

    async def chunks(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the masked chunks of a log. The end of a chunk is held while a secret may have begun in it."""
        if self.secrets is None:
            yield f"{HIDDEN}\n".encode()
            return
        held = b""
        async for chunk in chunks:
            text = held + chunk
            ready = self._ready(text)
            held = text[ready:]
            yield self._masked(text[:ready])
        yield self._masked(held)

    def _ready(self, text: bytes) -> int:
        """Return how much of a text is masked in the same way, whatever follows it."""
        longest = len(self._forms[0]) if self._forms else 0
        ends = range(max(len(text) - longest, 0), len(text))
        ready = next((at for at in ends if self._begins_secret(text[at:])), len(text))
        found = self._pattern.finditer(text)
        return next((match.start() for match in found if match.start() < ready < match.end()), ready)

    def _begins_secret(self, end: bytes) -> bool:
        return any(form.startswith(end) for form in self._forms)


NO_SECRETS: Final = SecretMask()


async def read_mask(client: Client, ref: GangRef, jobs: Sequence[Mapping[str, Any]] | None = None) -> SecretMask:
    """Return the mask of a gang, by the places that its Job names; `NO_SECRETS` if the Job names none.

    :param jobs: The Jobs of the gang, and maybe others, if they were just read.

    Raises:
        ClusterError: the objects could not be read, and may be read later.
    """
    try:
        jobs = await list_jobs(client, ref.namespace, [gang_selector(ref.name)]) if jobs is None else jobs
        if (stored := stored_places(ref, jobs)) is None:
            return NO_SECRETS
        places = json.loads(stored)
        texts = await read_texts(client, ref, jobs, with_files=any(place[0].startswith(_FILES) for place in places))
        secrets = [FORMS[form](texts[path])[start:end] for path, form, start, end in places]
    except ClusterError as error:
        if error.transient:
            raise
        return SecretMask(None)
    except (LookupError, TypeError, ValueError, AttributeError):
        return SecretMask(None)
    return SecretMask([*secrets, *_long_lines(secrets)] if all(secrets) else None)


def _long_lines(secrets: Sequence[str]) -> Iterator[str]:
    """Yield the long lines of secrets. A program may write a key line by line, and the end of a log may begin in it."""
    for secret in secrets:
        if len(lines := secret.splitlines()) > 1:
            yield from (line for line in map(str.strip, lines) if len(line) >= SECRET_LINE_CHARACTERS_MIN)


def has_secrets(spec: GangSpec, mask: Callable[[str], str]) -> bool:
    """Return whether a masker knows a secret in the parameters of a gang."""
    texts = [text for _, text in texts_of(to_builtins(spec, builtin_types=(bytes,), enc_hook=str))]
    return any(mask(read(text)) != read(text) for text in texts for read in FORMS.values())


async def write_places(client: Client, ref: GangRef, find: FindSecrets) -> bool | None:
    """Write on the Job where its gang has secrets, unless the Job says it already. Safe to repeat.

    Returns whether the gang has secrets; `None` if that is unknown, or if the Job could not be changed.

    :param find: `airflow_api.task_log.find_secrets`.
    """
    try:
        jobs = await list_jobs(client, ref.namespace, [gang_selector(ref.name)])
        if stored_places(ref, jobs) is not None:
            return True
        places = _find_places(await read_texts(client, ref, jobs), find)
        if places is not None and not places:
            return False
        body = {"metadata": {"annotations": {ANNOTATION_SECRETS: json.dumps(places, separators=(",", ":"))}}}
        return await patch_uid(client, JOBS, ref.name, ref.namespace, ref.uid, body) or None
    except (ClusterError, LookupError):
        return None


def _find_places(texts: Mapping[str, str], find: FindSecrets) -> Sequence[Sequence[str | int]] | None:
    """Return where texts have secrets; `None` if that cannot be said."""
    places: dict[str, list[str | int]] = {}
    try:
        for path, text in texts.items():
            for form, read in FORMS.items():
                for start, end in find(shown := read(text)):
                    places.setdefault(shown[start:end], [path, form, start, end])
        has_secret_path = any(find(str(path)) for path, *_ in places.values())
    except ValueError:
        return None
    return None if has_secret_path or len(places) > PLACES_MAX else tuple(places.values())


def stored_places(ref: GangRef, jobs: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the annotation of the Job; `None` if its gang has no secrets.

    Raises:
        LookupError: the Job does not exist any more.
    """
    for job in jobs:
        if job["metadata"]["uid"] == ref.uid:
            annotation: str | None = job["metadata"].get("annotations", {}).get(ANNOTATION_SECRETS)
            return annotation
    raise LookupError(f"Job {ref} does not exist any more")


async def read_texts(
    client: Client, ref: GangRef, jobs: Sequence[Mapping[str, Any]], *, with_files: bool = True
) -> dict[str, str]:
    """Return the texts that the ranks of a gang get from these Jobs and from its files, by their paths.

    Raises:
        ClusterError: the files could not be read.
    """
    objects: dict[str, Any] = {job["metadata"]["name"]: job["spec"]["template"] for job in jobs}
    if with_files:
        with suppress(NotFound):
            name = config_map_name(ref.name)
            objects[f"{_FILES[1:]}{name}"] = files_in(await client.get(CONFIGMAPS, name, ref.namespace))
    return dict(texts_of(objects))


def texts_of(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in JSON values with its path. Bytes are read as UTF-8."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, bytes):
        yield path, value.decode(errors="replace")
    elif isinstance(value, (dict, list, tuple)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from texts_of(each, f"{path}/{key}")


def _json_texts(text: str) -> str:
    """Return the texts in a JSON document without their escapes, in order; an empty text if it is no JSON."""
    with suppress(ValueError, RecursionError):
        if text.lstrip().startswith(("{", "[", '"')):
            return "\n".join(each for _, each in texts_of(json.loads(text)))
    return ""


FORMS: Final[Mapping[str, Callable[[str], str]]] = {"text": str, "url": unquote, "json": _json_texts}
"""How a program may read a text. A secret is quoted in a URI and in JSON, and a program writes it without quotes."""

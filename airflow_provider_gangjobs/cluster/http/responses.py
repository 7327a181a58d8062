"""Answers of an API server, decoded just as far as they are read: nobody looks at the pod that a patch sends back."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, TypeVar, cast

import msgspec

from airflow_provider_gangjobs.cluster.errors import UnexpectedReply
from airflow_provider_gangjobs.cluster.http.options import Answer

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.http.transport import Exchange

Json = dict[str, Any]
T = TypeVar("T")


class _Metadata(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    resourceVersion: str
    labels: dict[str, str]
    deletionTimestamp: str


class _Partial(TypedDict):
    metadata: _Metadata


class _ListMeta(msgspec.Struct, frozen=True, gc=False):
    continue_: str | None = msgspec.field(name="continue", default=None)


class Page(msgspec.Struct, Generic[T]):
    """One page of a list."""

    metadata: _ListMeta = _ListMeta()
    items: list[T] | None = None


_OF_ONE: Final[dict[Answer, msgspec.json.Decoder[Any]]] = {
    Answer.OBJECT: msgspec.json.Decoder(dict[str, Any]),
    Answer.METADATA: msgspec.json.Decoder(_Partial),
}


@lru_cache(maxsize=16)
def _of_pages(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(Page[kind])


def read_object(exchange: Exchange, body: bytes, answer: Answer = Answer.OBJECT) -> Json:
    """
    Raises:
        UnexpectedReply: it is not what a Kubernetes API server answers.
    """
    found: Json = _read(exchange, body, _OF_ONE[answer])
    return found


def read_page(exchange: Exchange, body: bytes, kind: type[T]) -> Page[T]:
    """A page whose objects are read as `kind`: a view of objects.views, or a dict.

    Raises:
        UnexpectedReply: it is no list of these.
    """
    decoder: msgspec.json.Decoder[Page[T]] = _of_pages(cast("Any", kind))
    return _read(exchange, body, decoder)


def _read(exchange: Exchange, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as exc:
        raise UnexpectedReply(
            200, request=str(exchange), message=f"the answer is not what was asked for: {exc}"
        ) from exc

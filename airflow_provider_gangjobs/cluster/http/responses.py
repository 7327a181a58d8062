"""Decodes responses of an API server as far as callers read them: no caller reads the pod that a patch returns."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, TypeVar, cast

import msgspec

from airflow_provider_gangjobs.cluster.errors import UnexpectedReply
from airflow_provider_gangjobs.cluster.http.options import ResponseFormat

if TYPE_CHECKING:
    from airflow_provider_gangjobs.cluster.http.request import Request

Json = dict[str, Any]
T = TypeVar("T")


class _Metadata(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    resourceVersion: str
    labels: dict[str, str]
    deletionTimestamp: str


class _PartialObject(TypedDict):
    metadata: _Metadata


class _ListMeta(msgspec.Struct, frozen=True, gc=False):
    continue_: str | None = msgspec.field(name="continue", default=None)


class ListResponse(msgspec.Struct, Generic[T]):
    """One page of a list."""

    metadata: _ListMeta = _ListMeta()
    items: list[T] | None = None


_OBJECT_DECODERS: Final[dict[ResponseFormat, msgspec.json.Decoder[Any]]] = {
    ResponseFormat.OBJECT: msgspec.json.Decoder(dict[str, Any]),
    ResponseFormat.METADATA: msgspec.json.Decoder(_PartialObject),
}


@lru_cache(maxsize=16)
def _list_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(ListResponse[kind])


def decode_object(request: Request, body: bytes, response_format: ResponseFormat = ResponseFormat.OBJECT) -> Json:
    """Return the object in the response to `request`.

    Raises:
        UnexpectedReply: the body is not an object of an API server.
    """
    decoded: Json = _decode(request, body, _OBJECT_DECODERS[response_format])
    return decoded


def decode_list(request: Request, body: bytes, kind: type[T]) -> ListResponse[T]:
    """Return one page of a list. Each item is decoded into `kind`: a view of `kube.views`, or a dict.

    Raises:
        UnexpectedReply: the body is not a list of such objects.
    """
    decoder: msgspec.json.Decoder[ListResponse[T]] = _list_decoder(cast("Any", kind))
    return _decode(request, body, decoder)


def _decode(request: Request, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as exc:
        message = f"the response does not have the requested type: {exc}"
        raise UnexpectedReply(200, request=str(request), message=message) from exc

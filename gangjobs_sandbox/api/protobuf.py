"""Decodes request bodies in Kubernetes' protobuf encoding, which `kubectl create secret` and similar commands send.

A body is four magic bytes and a message `runtime.Unknown`, which contains the kind and the encoded object. The table
(`protobuf.json`, made by `scripts/make_protobuf.py`) has the number, name and type of each field. Responses are JSON.
"""

from __future__ import annotations

import base64
import json
import struct
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gangjobs_sandbox.store import Object

__all__ = ["MEDIA_TYPE", "decode"]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_GROUPS = {"": "core", "meta.k8s.io": ""}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_STRING = 1
"""The value of `IntOrString.type` for a text."""
Value = int | bytes


def decode(body: bytes) -> Object:
    """Return the object in the body, as JSON would have it.

    Raises:
        ValueError: the body is not valid, or its kind is not in the table.
    """
    if not body.startswith(_MAGIC):
        raise ValueError("the body does not begin with the magic bytes of the protobuf encoding")
    try:
        return _decode(body)
    except (OverflowError, struct.error) as exc:
        raise ValueError(str(exc)) from exc


def _decode(body: bytes) -> Object:
    unknown = dict(_fields(body[len(_MAGIC) :]))
    type_meta = dict(_fields(_bytes(unknown.get(1, b""))))
    api_version, kind = (_text(type_meta.get(number, b"")) for number in (1, 2))
    name = _type_name(api_version, kind)
    if name not in _table():
        raise ValueError(f"the protobuf encoding of {kind} in version {api_version} is not known")
    return {"apiVersion": api_version, "kind": kind} | _message(_bytes(unknown.get(2, b"")), name)


def _type_name(api_version: str, kind: str) -> str:
    """Return the name of the type in the table, such as `batch.v1.Job`. `DeleteOptions` is the same in all groups."""
    if kind == "DeleteOptions":
        return kind
    group, _, version = api_version.rpartition("/")
    return f"{_GROUPS.get(group, group.partition('.')[0])}.{version}.{kind}"


@cache
def _table() -> Mapping[str, Mapping[str, list[str]]]:
    table: Mapping[str, Mapping[str, list[str]]] = json.loads(
        resources.files(__package__).joinpath("protobuf.json").read_text()
    )
    return table


def _message(data: bytes, name: str) -> Object:
    decoded: Object = {}
    fields = _table()[name]
    for number, value in _fields(data):
        if str(number) not in fields:
            continue
        field, kind = fields[str(number)]
        if kind.startswith(">"):  # the fields of an embedded type are fields of this object
            decoded |= _message(_bytes(value), kind[1:])
        elif kind.startswith("[]"):
            decoded.setdefault(field, []).append(_value(value, kind[2:]))
        elif kind.startswith("{}"):
            entry = dict(_fields(_bytes(value)))
            decoded.setdefault(field, {})[_text(entry.get(1, b""))] = _value(entry.get(2, b""), kind[2:])
        elif not _is_unset(one := _value(value, kind), name):
            decoded[field] = one
    return decoded


def _is_unset(value: Any, owner: str) -> bool:
    """Return whether the value is the zero value of a field that is always encoded. JSON omits such fields."""
    return value is None or value == "" or (owner == "ObjectMeta" and value == 0)


def _value(value: Value, kind: str) -> Any:
    return _SCALARS[kind](value) if kind in _SCALARS else _message(_bytes(value), kind)


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the number and the undecoded value of each field of a message."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == _BYTES:
            length, position = _varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} is not known")
        if position + length > len(data):
            raise ValueError("the body is truncated")
        yield number, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("the body is truncated")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number has more than 64 bits")


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where a message or text belongs")
    return value


def _text(value: Value) -> str:
    return _bytes(value).decode()


def _integer(value: Value) -> int:
    number = value if isinstance(value, int) else int.from_bytes(value, "little")
    return number - 2**64 if number >= 2**63 else number


def _quantity(value: Value) -> str:
    return _text(dict(_fields(_bytes(value))).get(1, b""))


def _int_or_string(value: Value) -> int | str:
    fields = dict(_fields(_bytes(value)))
    return _text(fields.get(3, b"")) if fields.get(1) == _STRING else _integer(fields.get(2, 0))


def _time(value: Value) -> str | None:
    fields = dict(_fields(_bytes(value)))
    if not fields:
        return None
    since = timedelta(seconds=_integer(fields.get(1, 0)), microseconds=_integer(fields.get(2, 0)) // 1000)
    return (datetime(1970, 1, 1, tzinfo=UTC) + since).isoformat().replace("+00:00", "Z")


_SCALARS: dict[str, Callable[[Value], Any]] = {
    "any": lambda value: json.loads(_bytes(dict(_fields(_bytes(value))).get(1, b"null"))),
    "bool": lambda value: bool(_integer(value)),
    "bytes": lambda value: base64.b64encode(_bytes(value)).decode(),
    "double": lambda value: struct.unpack("<d", _bytes(value))[0],
    "int32": _integer,
    "int64": _integer,
    "intOrString": _int_or_string,
    "microTime": _time,
    "quantity": _quantity,
    "string": _text,
    "time": _time,
}

"""Reads objects in Kubernetes' protobuf form, which kubectl sends when it makes an object itself.

Only reads: answers are JSON, which every client takes. The messages it knows are in `messages.json`, made by
`scripts/make_messages.py`. A field that Go leaves empty is on the wire all the same, so an empty text is absence.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.clock import micro_time, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gangjobs_sandbox.store import Object

__all__ = ["MEDIA_TYPE", "decode_message"]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Value = int | bytes
Fields = dict[int, tuple[str, str]]


@cache
def _messages() -> dict[str, Fields]:
    """Field name and type by number, of each message."""
    table = json.loads(resources.files(__package__).joinpath("messages.json").read_text())
    return {
        message: {int(number): (row.partition(":")[0], row.partition(":")[2]) for number, row in rows.items()}
        for message, rows in table.items()
    }


def decode_message(body: bytes) -> Object:
    """The object in an envelope, as it would be in JSON.

    Raises:
        ValueError: it is no envelope, is broken, or has a kind of object that nobody sends this way.
    """
    if not body.startswith(_MAGIC):
        raise ValueError("it does not begin as a Kubernetes protobuf message does")
    envelope = dict(_wire(body[len(_MAGIC) :]))
    meta = dict(_wire(_expect_bytes(envelope.get(1, b""))))
    api_version, kind = (_expect_bytes(meta.get(number, b"")).decode() for number in (1, 2))
    group, _, version = api_version.rpartition("/")
    names = (f"{group.partition('.')[0] or 'core'}.{version}.{kind}", kind)
    known = next((name for name in names if name in _messages()), None)
    if known is None:
        raise ValueError(f"{api_version} {kind} is not read in this form: send it as JSON")
    raw = _expect_bytes(envelope.get(2, b""))
    return {"apiVersion": api_version, "kind": kind, **_message(raw, known)}


def _message(data: bytes, name: str) -> Object:
    fields = _messages()[name]
    obj: Object = {}
    for number, value in _wire(data):
        if number not in fields:
            continue
        field, kind = fields[number]
        if field.startswith("*"):
            obj |= _message(_expect_bytes(value), kind)
        elif kind.startswith("[]"):
            obj.setdefault(field, []).append(_value(value, kind[2:]))
        elif kind.startswith("{}"):
            entry = dict(_wire(_expect_bytes(value)))
            key = _expect_bytes(entry.get(1, b"")).decode()
            obj.setdefault(field, {})[key] = _value(entry.get(2, b""), kind[2:])
        elif (decoded := _value(value, kind)) is not None and decoded != "":
            obj[field] = decoded
    return obj


def _value(value: Value, kind: str) -> Any:
    return _SCALARS[kind](value) if kind in _SCALARS else _message(_expect_bytes(value), kind)


def _expect_bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number stands where a text or message should")
    return value


def _wire(data: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field, in the order of the wire."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, position = _varint(data, position)
        elif wire_type in {_FIXED64, _FIXED32}:
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type} is not known")
        if position + size > len(data):
            raise ValueError("it ends too early")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("it ends too early")


def _text(value: Value) -> str:
    return _expect_bytes(value).decode()


def _integer(value: Value) -> int:
    if isinstance(value, bytes):
        raise ValueError("a text stands where a number should")
    return value - 2**64 if value >= 2**63 else value


def _boolean(value: Value) -> bool:
    return bool(_integer(value))


def _base64(value: Value) -> str:
    return base64.b64encode(_expect_bytes(value)).decode()


def _quantity(value: Value) -> str:
    return _text(dict(_wire(_expect_bytes(value))).get(1, b""))


def _moment(value: Value) -> datetime | None:
    parts = dict(_wire(_expect_bytes(value)))
    if not parts:
        return None
    return _EPOCH + timedelta(seconds=_integer(parts.get(1, 0)), microseconds=_integer(parts.get(2, 0)) // 1000)


def _time(value: Value) -> str | None:
    moment = _moment(value)
    return timestamp(moment) if moment else None


def _micro_time(value: Value) -> str | None:
    moment = _moment(value)
    return micro_time(moment) if moment else None


def _int_or_string(value: Value) -> int | str:
    parts = dict(_wire(_expect_bytes(value)))
    return _text(parts.get(3, b"")) if parts.get(1, 0) else _integer(parts.get(2, 0))


def _nothing(value: Value) -> None:
    return None


_SCALARS: dict[str, Callable[[Value], Any]] = {
    "any": _nothing,
    "bool": _boolean,
    "bytes": _base64,
    "int32": _integer,
    "int64": _integer,
    "intOrString": _int_or_string,
    "microTime": _micro_time,
    "quantity": _quantity,
    "string": _text,
    "time": _time,
}

"""The fields of each kind in each release, and the decoding of request bodies.

The table (`fields.json`, made by `scripts/make_fields.py`) contains only names and types. Decoding does what the
decoder of the API server does: it rejects a value of the wrong type, drops and reports an unknown field, and treats
null as absence.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.apimachinery.quantity import canonical
from gangjobs_sandbox.clock import parse_time
from gangjobs_sandbox.store import objects_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gangjobs_sandbox.resources import Resource
    from gangjobs_sandbox.store import Object

__all__ = ["DecodingError", "Schema", "schema_of"]

_GROUPS = {"": "core", "batch": "batch", "policy": "policy"}
_QUANTITY_RULE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_INDEX = re.compile(r"\[[^\]]*\]")


class DecodingError(ValueError):
    """A value has the wrong type. The text is the one of Go's decoder."""


@cache
def schema_of(release: str) -> Schema:
    """Return the schema of a minor release, such as `1.36`."""
    tables = json.loads(resources.files(__package__).joinpath("fields.json").read_text())
    newest = max(tables, key=lambda name: [int(part) for part in name.split(".")])
    return Schema(tables[newest] | tables[release])


class Schema:
    """The types of one release by name. `fields.json` describes the notation."""

    def __init__(self, types: Mapping[str, Mapping[str, str]]) -> None:
        self._types = types

    def root(self, resource: Resource, version: str, group: str | None = None) -> str | None:
        """Return the type name of a resource's objects in one version, or None if the table does not have it."""
        group = resource.group if group is None else group
        name = f"{_GROUPS.get(group, group.partition('.')[0])}.{version}.{resource.kind}"
        return name if name in self._types else None

    def fields(self, name: str) -> Mapping[str, str]:
        """Return the fields of a type with their types. The result is empty for an unknown type."""
        return self._types.get(name, {})

    def decode(self, root: str, obj: Object, unknown: list[str]) -> Object:
        """Return a copy of the object with its known fields, and add the paths of all others to `unknown`.

        Raises:
            DecodingError: a value has the wrong type.
        """
        decoded: Object = self._struct(obj, root, "", unknown)
        return decoded

    def _value(self, value: Any, kind: str, path: str, owner: str, unknown: list[str]) -> Any:
        if value is None:
            return None
        if kind[0] == "[":
            item = kind[kind.index("]") + 1 :]
            _require(value, list, f"[]{_go_name(item)}", path, owner)
            return [self._value(part, item, f"{path}[{i}]", owner, unknown) for i, part in enumerate(value)]
        if kind.startswith("{}"):
            item = kind[2:]
            _require(value, dict, f"map[string]{_go_name(item)}", path, owner)
            return {key: self._value(part, item, path, owner, unknown) for key, part in value.items()}
        if kind in _SCALARS:
            return _SCALARS[kind](value, path, owner)
        _require(value, dict, _go_name(kind), path, owner)
        return self._struct(value, kind, path, unknown)

    def _struct(self, obj: Object, name: str, path: str, unknown: list[str]) -> Object:
        fields = self._types[name]
        decoded = {}
        for field, value in obj.items():
            at = f"{path}.{field}" if path else field
            kind = fields.get(field)
            if kind is None:
                unknown.append(at)
            elif value is not None:
                decoded[field] = self._value(value, kind, at, name, unknown)
        return decoded


def _go_name(kind: str) -> str:
    """Return the Go type that error messages name."""
    if kind in _SCALARS:
        return {"bool": "bool", "quantity": "resource.Quantity", "bytes": "[]uint8"}.get(kind, kind)
    group, _, name = kind.rpartition(".")
    return f"{group.rpartition('.')[2] or 'v1'}.{name}"


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "number"
    if isinstance(value, float):
        return f"number {value}"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _mismatch(value: Any, wanted: str, path: str, owner: str) -> DecodingError:
    where = f"Go struct field {owner.rpartition('.')[2]}.{_INDEX.sub('', path)}"
    return DecodingError(f"json: cannot unmarshal {_json_type(value)} into {where} of type {wanted}")


def _require(value: Any, kind: type, wanted: str, path: str, owner: str) -> None:
    if not isinstance(value, kind):
        raise _mismatch(value, wanted, path, owner)


def _string(value: Any, path: str, owner: str) -> Any:
    _require(value, str, "string", path, owner)
    return value


def _bool(value: Any, path: str, owner: str) -> Any:
    _require(value, bool, "bool", path, owner)
    return value


def _integer(bits: int) -> Callable[[Any, str, str], Any]:
    def check(value: Any, path: str, owner: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _mismatch(value, f"int{bits}", path, owner)
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            where = f"Go struct field {owner.rpartition('.')[2]}.{_INDEX.sub('', path)}"
            raise DecodingError(f"json: cannot unmarshal number {value} into {where} of type int{bits}")
        return value

    return check


def _float(value: Any, path: str, owner: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _mismatch(value, "float64", path, owner)
    return value


def _quantity(value: Any, path: str, owner: str) -> str:
    """Accept numbers too, and convert all quantities to the canonical form."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise DecodingError(_QUANTITY_RULE)
    try:
        return canonical(value)
    except ValueError as exc:
        raise DecodingError(_QUANTITY_RULE) from exc


def _int_or_string(value: Any, path: str, owner: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _mismatch(value, "intstr.IntOrString", path, owner)
    return value


def _time(value: Any, path: str, owner: str) -> Any:
    _require(value, str, "string", path, owner)
    try:
        parse_time(value)
    except ValueError as exc:
        layout = "2006-01-02T15:04:05Z07:00"
        raise DecodingError(f'parsing time "{value}" as "{layout}": cannot parse "{value}" as "2006"') from exc
    return value


def _any(value: Any, path: str, owner: str) -> Any:
    return objects_copy(value)


_SCALARS: dict[str, Callable[[Any, str, str], Any]] = {
    "any": _any,
    "bool": _bool,
    "bytes": _string,
    "float64": _float,
    "int32": _integer(32),
    "int64": _integer(64),
    "intOrString": _int_or_string,
    "microTime": _time,
    "quantity": _quantity,
    "string": _string,
    "time": _time,
}

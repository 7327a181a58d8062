"""Validates names as `k8s.io/apimachinery/pkg/util/validation` does, with the same messages, which users search for.

Each function returns the errors. An empty list means that the text is valid.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = [
    "dns_label",
    "dns_subdomain",
    "is_config_map_key",
    "is_env_name",
    "label_value",
    "qualified_name",
]

_LABEL_MAX: Final = 63
_SUBDOMAIN_MAX: Final = 253
_CONFIG_MAP_KEY_MAX: Final = 253
_CACHED_MAX = 4096
"""The number of cached results. Every write checks labels and finalizers, of which there are few different ones."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*", re.ASCII)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_ENV_NAME = re.compile(r"[ -<>-~]+", re.ASCII)
_CONFIG_MAP_KEY = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)

_NOT_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_NOT_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_NOT_QUALIFIED = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_TWO_SLASHES = (
    "a {what} must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' "
    "(e.g. 'example.com/MyName')"
)
_NOT_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def _too_long(text: str, limit: int, unit: str = "characters") -> list[str]:
    return [f"must be no more than {limit} {unit}"] if len(text) > limit else []


def dns_subdomain(text: str) -> list[str]:
    """Return the errors by the rule for the names of most objects."""
    too_long = _too_long(text, _SUBDOMAIN_MAX)
    short = text[:_SUBDOMAIN_MAX].rstrip("-.") if too_long else text
    return too_long + ([] if _SUBDOMAIN.fullmatch(short) else [_NOT_SUBDOMAIN])


def dns_label(text: str) -> list[str]:
    """Return the errors by the rule for the names of containers, volumes and namespaces."""
    too_long = _too_long(text, _LABEL_MAX)
    short = text[:_LABEL_MAX].rstrip("-") if too_long else text
    if _LABEL.fullmatch(short):
        return too_long
    return [*too_long, "must not contain dots" if _SUBDOMAIN.fullmatch(short) else _NOT_LABEL]


@lru_cache(_CACHED_MAX)
def label_value(text: str) -> list[str]:
    """Return the errors by the rule for the values of labels."""
    too_long = _too_long(text, _LABEL_MAX, "bytes")
    short = text[:_LABEL_MAX].rstrip("-_.") if too_long else text
    return too_long + ([] if not short or _QUALIFIED.fullmatch(short) else [_NOT_LABEL_VALUE])


@lru_cache(_CACHED_MAX)
def qualified_name(text: str, what: str = "qualified name") -> list[str]:
    """Return the errors by the rule for label keys, annotation keys, finalizers, and names of extended resources."""
    prefix, slash, name = text.rpartition("/")
    if prefix.count("/"):
        return [_TWO_SLASHES.format(what=what)]
    found = []
    if slash and not prefix:
        found.append("prefix part must be non-empty")
    elif slash:
        found.extend(f"prefix part {complaint}" for complaint in dns_subdomain(prefix))
    too_long = _too_long(name, _LABEL_MAX, "bytes") if name else ["must be non-empty"]
    found.extend(f"name part {complaint}" for complaint in too_long)
    short = name[:_LABEL_MAX].rstrip("-_.") if len(name) > _LABEL_MAX else name
    if not _QUALIFIED.fullmatch(short):
        found.append(_NOT_QUALIFIED)
    return found


def is_env_name(text: str) -> bool:
    """Return whether the text may name an environment variable: printable ASCII without `=`."""
    return _ENV_NAME.fullmatch(text) is not None


def is_config_map_key(text: str) -> bool:
    """Return whether the text may be the key of a ConfigMap or Secret, and so the name of a mounted file."""
    is_file_name = text != "." and not text.startswith("..")
    return is_file_name and len(text) <= _CONFIG_MAP_KEY_MAX and _CONFIG_MAP_KEY.fullmatch(text) is not None

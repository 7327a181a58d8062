"""Validates names in the same way as the API server, with the same messages.

The rules are those of `objects.names`. The messages are those of `k8s.io/apimachinery/pkg/util/validation`, because
users search for them. Each function returns the errors in one text. An empty result means that the text is valid.
"""

from __future__ import annotations

from functools import lru_cache

from airflow_provider_gangjobs.kube import names

__all__ = ["dns_label", "dns_label_1035", "dns_subdomain", "label_value", "qualified_name"]

_CACHED_MAX = 4096
"""The number of cached results. Every write checks labels and finalizers, of which there are few different ones."""

_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_LABEL_1035 = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED = (
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
_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def _too_long(text: str, limit: int, unit: str = "characters") -> list[str]:
    return [f"must be no more than {limit} {unit}"] if len(text) > limit else []


def dns_subdomain(text: str) -> list[str]:
    """Return the errors by the rule for the names of most objects."""
    too_long = _too_long(text, names.SUBDOMAIN_MAX)
    short = text[: names.SUBDOMAIN_MAX].rstrip("-.") if too_long else text
    return too_long + ([_SUBDOMAIN] if names.problem_with_dns_subdomain(short) else [])


def dns_label(text: str) -> list[str]:
    """Return the errors by the rule for the names of containers, volumes and namespaces."""
    too_long = _too_long(text, names.LABEL_MAX)
    short = text[: names.LABEL_MAX].rstrip("-") if too_long else text
    if not names.problem_with_dns_label(short):
        return too_long
    return [*too_long, _LABEL if names.problem_with_dns_subdomain(short) else "must not contain dots"]


def dns_label_1035(text: str) -> list[str]:
    """Return the errors by the rule for the names of Services."""
    too_long = _too_long(text, names.LABEL_MAX)
    short = text[: names.LABEL_MAX].rstrip("-") if too_long else text
    return too_long + ([_LABEL_1035] if names.problem_with_dns_label_1035(short) else [])


@lru_cache(_CACHED_MAX)
def label_value(text: str) -> list[str]:
    """Return the errors by the rule for the values of labels."""
    too_long = _too_long(text, names.LABEL_VALUE_MAX, "bytes")
    short = text[: names.LABEL_VALUE_MAX].rstrip("-_.") if too_long else text
    return too_long + ([_LABEL_VALUE] if names.problem_with_label_value(short) else [])


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
    if not name:
        found.append("name part must be non-empty")
    else:
        found.extend(f"name part {complaint}" for complaint in _too_long(name, names.LABEL_MAX, "bytes"))
    if names.problem_with_qualified_name(name[: names.LABEL_MAX].rstrip("-_.")):
        found.append(_QUALIFIED)
    return found

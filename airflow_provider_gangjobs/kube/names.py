"""Names: which ones Kubernetes accepts, and the JSON pointers of fields.

The rules and limits are those of `k8s.io/apimachinery/pkg/util/validation` and `ValidateObjectMeta`. Each
`problem_with_...` function returns the problem as a phrase, or None if the text is valid.

A pointer (RFC 6901) names a value of an object in a JSON patch.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LABEL_MAX: Final = 63
SUBDOMAIN_MAX: Final = 253
LABEL_VALUE_MAX: Final = 63
ANNOTATIONS_BYTES_MAX: Final = 256 * 1024
CONFIG_MAP_KEY_MAX: Final = 253
ENV_NAME_MAX: Final = 4096
"""Kubernetes has no limit. A longer name is a mistake."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_ENV = re.compile(r"[ -<>-~]+", re.ASCII)
_CONFIG_MAP_KEY = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)

_SELECTOR_SYMBOLS: Final = frozenset({"", "=", "==", "!=", "!", "<", ">", "(", ")", ","})
_STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})


def _problem(text: Any, pattern: re.Pattern[str], limit: int, rule: str) -> str | None:
    if not isinstance(text, str):
        return f"is {text!r}, which is not text"
    if not text:
        return "is empty"
    if len(text) > limit:
        return f"{text[:limit]!r}... has {len(text)} characters, {limit} are allowed"
    return None if pattern.fullmatch(text) else f"{text!r} may only have {rule}"


def problem_with_dns_label(text: Any) -> str | None:
    """RFC 1123 label: names of pods, containers, volumes, and namespaces."""
    return _problem(
        text, _LABEL, LABEL_MAX, "lower-case letters, digits and '-', and must start and end with a letter or digit"
    )


def problem_with_dns_label_1035(text: Any) -> str | None:
    """RFC 1035 label: names of Services. The name starts with a letter."""
    return _problem(
        text,
        _LABEL_1035,
        LABEL_MAX,
        "lower-case letters, digits and '-', must start with a letter and end with a letter or digit",
    )


def problem_with_dns_subdomain(text: Any) -> str | None:
    """RFC 1123 subdomain: names of most objects. The name consists of labels joined by dots."""
    return _problem(
        text,
        _SUBDOMAIN,
        SUBDOMAIN_MAX,
        "lower-case letters, digits, '-' and '.', and each part must start and end with a letter or digit",
    )


_NO_LABEL_VALUE: Final = re.compile(r"^[^a-z0-9A-Z]*|[^a-zA-Z0-9_\-.]|[^a-z0-9A-Z]*$")
_LABEL_DIGEST_CHARACTERS: Final = 9


def to_label_value(text: str) -> str:
    """Return the text if it is a valid label value, or else its valid characters with a digest.

    The value is the one that KubernetesPodOperator gives to a pod. Only where that value would begin with a hyphen,
    which Kubernetes refuses, the hyphen is left out.
    """
    safe = _NO_LABEL_VALUE.sub("", text)
    if safe == text and len(safe) <= LABEL_VALUE_MAX:
        return text
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:_LABEL_DIGEST_CHARACTERS]
    return f"{safe[: LABEL_VALUE_MAX - len(digest) - 1]}-{digest}".lstrip("-")


def problem_with_label_value(text: Any) -> str | None:
    if text == "":
        return None
    return _problem(
        text,
        _QUALIFIED,
        LABEL_VALUE_MAX,
        "letters, digits, '-', '_' and '.', and must start and end with a letter or digit",
    )


def problem_with_qualified_name(text: Any) -> str | None:
    """`[<dns subdomain>/]<name>`: keys of labels and annotations, and names of extended resources."""
    if not isinstance(text, str):
        return f"is {text!r}, which is not text"
    prefix, slash, name = text.rpartition("/")
    if slash and (wrong := problem_with_dns_subdomain(prefix)):
        return f"{text!r} has a wrong prefix: {wrong}"
    wrong = _problem(
        name, _QUALIFIED, LABEL_MAX, "letters, digits, '-', '_' and '.', and must start and end with a letter or digit"
    )
    if slash and not name:
        return f"{text!r} has no name after its prefix"
    return f"{text!r} has a wrong name after its prefix: {wrong}" if slash and wrong else wrong


def problem_with_finalizer(text: Any) -> str | None:
    """Name of a finalizer. The server checks the finalizers of a pod template only when a pod is created from it."""
    if wrong := problem_with_qualified_name(text):
        return wrong
    if "/" in text or text in _STANDARD_FINALIZERS:
        return None
    return f"{text!r} has no domain: write it as <domain>/{text}"


def problem_with_env_name(text: Any) -> str | None:
    """Name of an environment variable: printable ASCII without `=`."""
    return _problem(text, _ENV, ENV_NAME_MAX, "printable ASCII characters other than '='")


def problem_with_config_map_key(text: Any) -> str | None:
    """Key of a ConfigMap, which is also the name of a file mounted from it."""
    wrong = _problem(text, _CONFIG_MAP_KEY, CONFIG_MAP_KEY_MAX, "letters, digits, '-', '_' and '.'")
    if text == ".":
        return "'.' is the name of a folder"
    if wrong is None and text.startswith(".."):
        return f"{text!r} may not start with '..'"
    return wrong


def problem_with_label_selector(text: str) -> str | None:
    """Label selector as in a URL, such as `a=b,c in (x,y),!d`."""
    try:
        _SelectorSyntax(text).check()
    except ValueError as error:
        return str(error)
    return None


class _SelectorSyntax:
    """The grammar of `k8s.io/apimachinery/pkg/labels`: each method takes its part of the text, or raises ValueError."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = re.findall(r"==|!=|[=!<>(),]|[^\s=!<>(),]+", text)

    def check(self) -> None:
        if self._tokens:
            self._requirement()
        while self._tokens:
            self._take_one_of([","], "','")
            self._requirement()

    def _requirement(self) -> None:
        if self._next == "!":
            self._tokens.pop(0)
            self._key()
            return
        key = self._key()
        if self._next in {"", ","}:
            return
        operator = self._take_one_of(["in", "notin", "=", "==", "!=", ">", "<"], "in, notin, =, ==, !=, gt, lt")
        values = self._set() if operator in {"in", "notin"} else [self._value(empty_before={"", ","})]
        for position, value in enumerate(values):
            if problem := problem_with_label_value(value):
                where = f"values[{position}][{key}]: Invalid value: {json.dumps(value)}"
                raise ValueError(f"unable to parse requirement: {where}: {problem}")

    def _key(self) -> str:
        key = self._word()
        if problem := problem_with_qualified_name(key):
            raise ValueError(f"unable to parse requirement: <nil>: Invalid value: {json.dumps(key)}: {problem}")
        return key

    def _set(self) -> list[str]:
        self._take_one_of(["("], "'('")
        values = [self._value(empty_before={",", ")"})]
        while self._take_one_of([",", ")"], "',' or ')'") == ",":
            values.append(self._value(empty_before={",", ")"}))
        return values

    def _value(self, *, empty_before: set[str]) -> str:
        return "" if self._next in empty_before else self._word()

    def _word(self) -> str:
        is_symbol = self._next in _SELECTOR_SYMBOLS
        return self._take_one_of([] if is_symbol else [self._next], "identifier")

    @property
    def _next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _take_one_of(self, accepted: Sequence[str], expected: str) -> str:
        found = self._next
        if found not in accepted:
            raise ValueError(f"unable to parse requirement: found '{found}', expected: {expected}")
        return self._tokens.pop(0)


def is_dns_label(text: Any) -> bool:
    return problem_with_dns_label(text) is None


def is_dns_subdomain(text: Any) -> bool:
    return problem_with_dns_subdomain(text) is None


def annotation_pointer(name: str) -> str:
    return f"/metadata/annotations/{_escape(name)}"


def pointers_of(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the pointer and the value of each leaf of nested mappings. Lists are leaves.

    :param path: The pointer of `values` itself.
    """
    for key, value in values.items():
        pointer = f"{path}/{_escape(key)}"
        if isinstance(value, dict):
            yield from pointers_of(value, pointer)
        else:
            yield pointer, value


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")

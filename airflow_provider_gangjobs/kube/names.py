"""Names: which ones Kubernetes accepts, and the JSON pointers of fields.

The rules and limits are those of `k8s.io/apimachinery/pkg/util/validation` and `ValidateObjectMeta`. Each
`problem_with_...` function returns the problem as a phrase, or None if the text is valid.

A pointer (RFC 6901) names a value of an object in a JSON patch.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LABEL_MAX: Final = 63
SUBDOMAIN_MAX: Final = 253
LABEL_VALUE_MAX: Final = 63
ANNOTATIONS_BYTES_MAX: Final = 256 * 1024
CONFIG_MAP_KEY_MAX: Final = 253
ENV_NAME_MAX: Final = 4096
"""Kubernetes has no limit. A longer name is a mistake."""

_STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})


def _rule(pattern: str, characters_max: int, allowed: str) -> Callable[[Any], str | None]:
    """Return the function that returns the problem with a text.

    :param allowed: What the pattern allows, as a phrase after "may only have".
    """
    compiled = re.compile(pattern, re.ASCII)

    def problem_with(text: Any) -> str | None:
        if not isinstance(text, str):
            return f"is {text!r}, which is not text"
        if not text:
            return "is empty"
        if len(text) > characters_max:
            return f"{text[:characters_max]!r}... has {len(text)} characters, {characters_max} are allowed"
        return None if compiled.fullmatch(text) else f"{text!r} may only have {allowed}"

    return problem_with


problem_with_dns_label: Final = _rule(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?",
    LABEL_MAX,
    "lower-case letters, digits and '-', and must start and end with a letter or digit",
)
"""An RFC 1123 label, such as the name of a pod, a container, a volume, or a namespace."""
problem_with_dns_label_1035: Final = _rule(
    r"[a-z]([-a-z0-9]*[a-z0-9])?",
    LABEL_MAX,
    "lower-case letters, digits and '-', must start with a letter and end with a letter or digit",
)
"""An RFC 1035 label, which starts with a letter, such as the name of a Service."""
problem_with_dns_subdomain: Final = _rule(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
    SUBDOMAIN_MAX,
    "lower-case letters, digits, '-' and '.', and each part must start and end with a letter or digit",
)
"""An RFC 1123 subdomain, which is labels joined by dots, such as the names of most objects."""
problem_with_env_name: Final = _rule(r"[ -<>-~]+", ENV_NAME_MAX, "printable ASCII characters other than '='")
"""The name of an environment variable, which is printable ASCII without `=`."""
_problem_with_key: Final = _rule(r"[-._a-zA-Z0-9]+", CONFIG_MAP_KEY_MAX, "letters, digits, '-', '_' and '.'")
_problem_with_qualified: Final = _rule(
    r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]",
    LABEL_MAX,
    "letters, digits, '-', '_' and '.', and must start and end with a letter or digit",
)


_NO_LABEL_VALUE: Final = re.compile(r"^[^a-z0-9A-Z]+|(?<=[a-zA-Z0-9])[^a-z0-9A-Z]+$|[^a-zA-Z0-9_\-.]")
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
    return None if text == "" else _problem_with_qualified(text)


def problem_with_qualified_name(text: Any) -> str | None:
    """`[<dns subdomain>/]<name>`: keys of labels and annotations, and names of extended resources."""
    if not isinstance(text, str):
        return f"is {text!r}, which is not text"
    prefix, slash, name = text.rpartition("/")
    if slash and (wrong := problem_with_dns_subdomain(prefix)):
        return f"{text!r} has a wrong prefix: {wrong}"
    wrong = _problem_with_qualified(name)
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


def problem_with_config_map_key(text: Any) -> str | None:
    """Key of a ConfigMap, which is also the name of a file mounted from it."""
    wrong = _problem_with_key(text)
    if text == ".":
        return "'.' is the name of a folder"
    if wrong is None and text.startswith(".."):
        return f"{text!r} may not start with '..'"
    return wrong


_REQUIREMENT: Final = re.compile(
    r"""
    (?: !\s*+(?P<absent>WORD)
      | (?P<key>WORD) (?: \s*+(?:==?|!=|<|>)\s*+(?P<value>WORD)?+ | \s++(?:in|notin)\s*+\((?P<values>[^()]*+)\) )?+
    )
    \s*+(?:,\s*+(?=\S)|\Z)  # the next requirement, or the end
    """.replace("WORD", r"[^\s=!<>(),]++"),
    re.VERBOSE,
)
"""A requirement of a label selector, by the grammar of `k8s.io/apimachinery/pkg/labels`. It never backtracks, so the
time is proportional to the length."""


def problem_with_label_selector(text: str) -> str | None:
    """Label selector as in a URL, such as `a=b,c in (x,y),!d`."""
    text, at = text.strip(), 0
    while at < len(text):
        found = _REQUIREMENT.match(text, at)
        if found is None:
            return f"unable to parse requirement: {text[at:]!r:.80} begins with none such as a=b, a in (b,c) or !a"
        values = (found["value"] or found["values"] or "").split(",")
        problems = [problem_with_qualified_name(found["absent"] or found["key"])]
        problems += [problem_with_label_value(value.strip()) for value in values]
        if wrong := next(filter(None, problems), None):
            return f"unable to parse requirement: {wrong}"
        at = found.end()
    return None


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

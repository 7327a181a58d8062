"""Label and field selectors, as text in a URL and as objects in a spec.

A selector is a tuple of requirements that must all hold. A selector without requirements matches everything. Syntax
and semantics follow `k8s.io/apimachinery/pkg/labels` and `.../fields`: a missing label satisfies `!=` and `notin`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.apimachinery import validation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "FieldSelector",
    "Operator",
    "Requirement",
    "Selector",
    "from_labels",
    "from_object",
    "parse",
    "parse_fields",
]


class Operator(StrEnum):
    """The operator of a requirement. The values are those of `matchExpressions`."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GREATER = "Gt"
    LESS = "Lt"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels of an object satisfy the condition."""
        return _MATCHERS[self.operator](labels.get(self.key), self.values)


def _compare(value: str | None, values: frozenset[str], sign: int) -> bool:
    try:
        return value is not None and (int(value) - int(next(iter(values)))) * sign > 0
    except ValueError:
        return False


_MATCHERS: dict[Operator, Callable[[str | None, frozenset[str]], bool]] = {
    Operator.IN: lambda value, values: value is not None and value in values,
    Operator.NOT_IN: lambda value, values: value is None or value not in values,
    Operator.EXISTS: lambda value, values: value is not None,
    Operator.DOES_NOT_EXIST: lambda value, values: value is None,
    Operator.GREATER: lambda value, values: _compare(value, values, 1),
    Operator.LESS: lambda value, values: _compare(value, values, -1),
}


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements that must all hold."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        """Return whether the labels satisfy every requirement. `None` is an object without labels."""
        present = labels or {}
        return all(requirement.matches(present) for requirement in self.requirements)

    @property
    def exact(self) -> dict[str, str]:
        """The labels that must have one given value, for a lookup in an index."""
        return {
            r.key: next(iter(r.values)) for r in self.requirements if r.operator is Operator.IN and len(r.values) == 1
        }


def from_labels(labels: Mapping[str, str] | None) -> Selector:
    """Return a selector for exactly these label values."""
    return Selector(tuple(Requirement(key, Operator.IN, frozenset({value})) for key, value in (labels or {}).items()))


def from_object(selector: Mapping[str, Any] | None) -> Selector:
    """Return the selector of a `LabelSelector` object with `matchLabels` and `matchExpressions`.

    Raises:
        ValueError: an expression has an unknown operator.
    """
    selector = selector or {}
    requirements = from_labels(selector.get("matchLabels")).requirements
    for expression in selector.get("matchExpressions") or ():
        operator = Operator(expression["operator"])
        requirements += (Requirement(expression["key"], operator, frozenset(expression.get("values") or ())),)
    return Selector(requirements)


_TOKEN = re.compile(r"\s*(?:(?P<symbol>==|!=|=|!|<|>|\(|\)|,)|(?P<word>[^\s=!<>(),]+))")


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    stripped = text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise ValueError(f"unable to parse requirement: unexpected {stripped[position:]!r} in selector {text!r}")
        tokens.append(match["symbol"] or match["word"])
        position = match.end()
    return tokens


_SYMBOLS = frozenset({"==", "!=", "=", "!", "<", ">", "(", ")", ","})
_COMPARISONS = {"=": Operator.IN, "==": Operator.IN, "!=": Operator.NOT_IN, ">": Operator.GREATER, "<": Operator.LESS}
_SETS = {"in": Operator.IN, "notin": Operator.NOT_IN}


class _Parser:
    """A recursive descent parser for a label selector."""

    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.position = 0

    def peek(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self) -> str | None:
        part = self.peek()
        self.position += 1
        return part

    def fail(self, expected: str, found: str | None) -> ValueError:
        return ValueError(f"unable to parse requirement: found '{found or ''}', expected: {expected}")

    def word(self) -> str:
        part = self.take()
        if part is None or part in _SYMBOLS:
            raise self.fail("identifier", part)
        return part

    def key(self) -> str:
        key = self.word()
        if found := validation.qualified_name(key):
            problem = "; ".join(found)
            raise ValueError(f"unable to parse requirement: <nil>: Invalid value: {json.dumps(key)}: {problem}")
        return key

    def requirement(self) -> Requirement:
        if self.peek() == "!":
            self.take()
            return Requirement(self.key(), Operator.DOES_NOT_EXIST)
        key = self.key()
        operator = self.peek()
        if operator is None or operator == ",":
            return Requirement(key, Operator.EXISTS)
        self.take()
        if operator in _COMPARISONS:
            return self.checked(key, _COMPARISONS[operator], [self.value()])
        if operator in _SETS:
            return self.checked(key, _SETS[operator], self.values())
        raise self.fail("in, notin, =, ==, !=, gt, lt", operator)

    def checked(self, key: str, operator: Operator, values: list[str]) -> Requirement:
        for position, value in enumerate(values):
            if found := validation.label_value(value):
                where = f"values[{position}][{key}]: Invalid value: {json.dumps(value)}"
                raise ValueError(f"unable to parse requirement: {where}: {'; '.join(found)}")
        return Requirement(key, operator, frozenset(values))

    def value(self) -> str:
        """Return a value, which may be empty: `a=` selects the empty string."""
        part = self.peek()
        return "" if part is None or part == "," else self.word()

    def values(self) -> list[str]:
        if (part := self.take()) != "(":
            raise self.fail("'('", part)
        values: list[str] = []
        while True:
            part = self.peek()
            values.append("" if part in {",", ")"} else self.word())
            part = self.take()
            if part == ")":
                return values
            if part != ",":
                raise self.fail("',' or ')'", part)

    def parse(self) -> Selector:
        if not self.tokens:
            return Selector()
        requirements = [self.requirement()]
        while (part := self.take()) is not None:
            if part != ",":
                raise self.fail("','", part)
            requirements.append(self.requirement())
        return Selector(tuple(requirements))


def parse(text: str | None) -> Selector:
    """Parse a label selector, such as `a=b,c in (x,y),!d`.

    Raises:
        ValueError: the text is not a selector.
    """
    return _Parser(text or "").parse()


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Terms `(field, value, is_equal)` over the fields that a resource supports."""

    terms: tuple[tuple[str, str, bool], ...] = ()

    def matches(self, value_of: Callable[[str], str]) -> bool:
        """Return whether every term holds. `value_of` returns the text of a field, or "" if the field is not set."""
        return all((value_of(field) == value) is is_equal for field, value, is_equal in self.terms)

    @property
    def fields(self) -> Sequence[str]:
        """The fields of the terms, such as `status.phase`."""
        return [field for field, _, _ in self.terms]


_FIELD_TERM = re.compile(r"^(?P<field>[^=!]+?)(?P<operator>!=|==|=)(?P<value>.*)$", re.DOTALL)


def parse_fields(text: str | None) -> FieldSelector:
    r"""Parse a field selector, such as `spec.nodeName=a,status.phase!=Running` (`\,` `\=` `\\` are escapes).

    Raises:
        ValueError: the text is not a field selector.
    """
    terms = []
    for part in re.split(r"(?<!\\),", text or ""):
        if not part:
            continue
        match = _FIELD_TERM.match(part)
        if match is None:
            raise ValueError(f"invalid selector: {text!r}; can't understand {part!r}")
        value = re.sub(r"\\([,=\\])", r"\1", match["value"])
        terms.append((match["field"], value, match["operator"] != "!="))
    return FieldSelector(tuple(terms))

"""Selectors: what a text means, and what it matches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangjobs_sandbox.apimachinery.selectors import (
    FieldSelector,
    Operator,
    Requirement,
    from_labels,
    from_object,
    parse,
    parse_fields,
)

LABELS = {"app": "web", "size": "10", "tier": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app == web", True),
        ("app=db", False),
        ("app!=db", True),
        ("none!=x", True),
        ("app", True),
        ("none", False),
        ("!none", True),
        ("! app", False),
        ("app in (web, db)", True),
        ("app in (db)", False),
        ("app notin (db)", True),
        ("none notin (x)", True),
        ("none in (x)", False),
        ("tier=", True),
        ("tier in (,x)", True),
        ("size>9", True),
        ("size>10", False),
        ("size<11", True),
        ("app>1", False),
        ("app=web,size=10", True),
        ("app=web,size=11", False),
        ("example.org/x!=y", True),
    ],
)
def test_text_selects_labels(text: str, matches: bool) -> None:
    assert parse(text).matches(LABELS) is matches


@pytest.mark.parametrize("text", ["a in (b", "a in b", "a b", "=x", "a=b,", "a=b,,c", "a in (b)c", "a=-b-", ")", "!"])
def test_text_that_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="parse"):
        parse(text)


def test_selector_object_means_all_of_it() -> None:
    selector = from_object(
        {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}
    )
    assert selector.matches(LABELS)
    assert not selector.matches(LABELS | {"none": ""})


def test_unknown_operator_is_refused() -> None:
    with pytest.raises(ValueError, match="Like"):
        from_object({"matchExpressions": [{"key": "a", "operator": "Like"}]})


def test_exact_labels_are_those_with_one_value() -> None:
    assert parse("a=1,b in (2),c in (3,4),d!=5,e").exact == {"a": "1", "b": "2"}


NAMES = st.from_regex(r"[a-z]([a-z0-9]{0,5})", fullmatch=True).filter(lambda name: name not in {"in", "notin"})


@given(st.dictionaries(NAMES, NAMES, max_size=4))
def test_labels_and_their_text_select_the_same(labels: dict[str, str]) -> None:
    assert set(parse(",".join(f"{key}={value}" for key, value in labels.items())).requirements) == set(
        from_labels(labels).requirements
    )


@given(NAMES, st.frozensets(NAMES, min_size=1, max_size=3), st.dictionaries(NAMES, NAMES, max_size=3))
def test_in_and_notin_are_opposites(key: str, values: frozenset[str], labels: dict[str, str]) -> None:
    inside, outside = Requirement(key, Operator.IN, values), Requirement(key, Operator.NOT_IN, values)
    assert inside.matches(labels) is not outside.matches(labels)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ()),
        ("spec.nodeName=a", (("spec.nodeName", "a", True),)),
        ("a==b,c!=d", (("a", "b", True), ("c", "d", False))),
        ("a=", (("a", "", True),)),
        (r"a=b\,c\=d", (("a", "b,c=d", True),)),
    ],
)
def test_field_selector_terms(text: str, terms: tuple[tuple[str, str, bool], ...]) -> None:
    assert parse_fields(text) == FieldSelector(terms)


def test_text_that_is_no_field_selector_is_refused() -> None:
    with pytest.raises(ValueError, match="can't understand 'garbage'"):
        parse_fields("a=b,garbage")

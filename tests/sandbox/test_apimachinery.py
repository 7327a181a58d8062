"""Rules of the API server's library: selectors, strategic merge and JSON merge."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangjobs_sandbox.apimachinery import strategic_merge
from gangjobs_sandbox.apimachinery.selectors import (
    FieldSelector,
    Operator,
    Requirement,
    from_labels,
    from_object,
    parse,
    parse_fields,
)
from gangjobs_sandbox.apimachinery.strategic_merge import ListRule, apply, json_merge
from gangjobs_sandbox.registry.schema import Schema, schema_of
from gangjobs_sandbox.resources import JOBS, NAMESPACES, NODES, PODGROUPS, PODS, SERVICEACCOUNTS, SERVICES

# -- Selectors: what a text means, and what it matches ---------------------------------------------------------------

LABELS = {"app": "web", "size": "10", "tier": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("app == web", True),
        ("! app", False),
        ("app in (web, db)", True),
        ("app in (db)", False),
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


# -- Strategic merge and JSON merge, by the rules of the API server --------------------------------------------------


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


def names(merged: dict[str, Any]) -> list[str]:
    return [container["name"] for container in merged["spec"]["containers"]]


A, B, C = ({"name": name, "image": f"{name}:1"} for name in "abc")


def test_nested_lists_merge_by_their_own_keys() -> None:
    original = pod({"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]})
    merged = apply(original, pod({"name": "a", "env": [{"name": "Y", "value": "3"}]}), "Pod")
    assert {e["name"]: e["value"] for e in merged["spec"]["containers"][0]["env"]} == {"X": "1", "Y": "3"}


def test_new_items_come_first() -> None:
    assert names(apply(pod(A), pod(B), "Pod")) == ["b", "a"]


def test_job_reaches_its_template() -> None:
    original = {"spec": {"template": pod(A)}}
    merged = apply(original, {"spec": {"template": pod({"name": "a", "image": "a:2"})}}, "Job")
    assert merged["spec"]["template"] == pod({"name": "a", "image": "a:2"})


def test_item_is_deleted_by_directive() -> None:
    assert names(apply(pod(A, B), pod({"name": "a", "$patch": "delete"}), "Pod")) == ["b"]


def test_list_is_replaced_by_directive() -> None:
    assert names(apply(pod(A, B), pod({"$patch": "replace"}, C), "Pod")) == ["c"]


def test_object_is_replaced_by_directive() -> None:
    original = {"metadata": {"labels": {"a": "1", "b": "2"}}}
    patch = {"metadata": {"labels": {"$patch": "replace", "c": "3"}}}
    assert apply(original, patch, "Pod") == {"metadata": {"labels": {"c": "3"}}}


def test_object_is_deleted_by_directive() -> None:
    original = {"metadata": {"labels": {"a": "1"}, "name": "x"}}
    assert apply(original, {"metadata": {"labels": {"$patch": "delete"}}}, "Pod") == {"metadata": {"name": "x"}}


def test_taking_away_from_nothing_changes_nothing() -> None:
    assert apply({"metadata": {}}, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"]}}, "Pod") == {
        "metadata": {}
    }


def test_order_is_set_by_directive() -> None:
    order = [{"name": "c"}, {"name": "a"}]
    patch = {"spec": {"$setElementOrder/containers": order, "containers": [{"name": "a"}]}}
    assert names(apply(pod(A, B, C), patch, "Pod")) == ["b", "c", "a"]


def test_retain_keys_removes_the_other_keys_of_a_volume() -> None:
    original = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    patch = {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}]}}
    merged = apply(original, patch, "Pod")
    assert merged == {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}}


def test_new_item_carries_no_directives() -> None:
    patch = pod({"name": "a", "$setElementOrder/env": [{"name": "X"}], "env": [{"name": "X"}]})
    assert apply({}, patch, "Pod") == pod({"name": "a", "env": [{"name": "X"}]})


def test_unknown_kind_merges_its_metadata() -> None:
    original = {"metadata": {"finalizers": ["a"]}, "items": [1]}
    merged = apply(original, {"metadata": {"finalizers": ["b"]}, "items": [2]}, "Thing")
    assert merged == {"metadata": {"finalizers": ["b", "a"]}, "items": [2]}


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param({"spec": {"containers": [{"image": "x"}]}}, id="item without its key"),
        pytest.param({"spec": {"$patch": "explode"}}, id="unknown directive"),
        pytest.param({"metadata": {"$deleteFromPrimitiveList/finalizers": "a"}}, id="no list to take away"),
        pytest.param({"spec": {"$setElementOrder/nodeName": ["a"]}}, id="order of what is no list"),
    ],
)
def test_malformed_patch_is_refused(patch: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"merge key|\$patch|list"):
        apply(pod(A), patch, "Pod")


def test_neither_argument_is_changed() -> None:
    original, patch = pod(A, B), pod({"name": "b", "$patch": "delete"}, C)
    before = copy.deepcopy((original, patch))
    apply(original, patch, "Pod")
    assert (original, patch) == before


@pytest.mark.parametrize(
    ("original", "patch", "merged"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_json_merge_cases_of_rfc_7386(original: Any, patch: Any, merged: Any) -> None:
    assert json_merge(original, patch) == merged


JSON = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda children: st.dictionaries(st.text(max_size=3), children, max_size=3) | st.lists(children, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_json_merge_applied_twice_is_applied_once(original: Any, patch: Any) -> None:
    once = json_merge(original, patch)
    assert json_merge(once, patch) == once


KEYED = st.lists(st.sampled_from("abcdef"), unique=True, max_size=4)


@given(KEYED, KEYED)
def test_merged_list_has_each_key_once(original: list[str], patch: list[str]) -> None:
    merged = apply(pod(*({"name": n} for n in original)), pod(*({"name": n} for n in patch)), "Pod")
    assert sorted(names(merged)) == sorted({*original, *patch})


def _published(schema: Schema, name: str, seen: set[str]) -> dict[str, dict[str, str | None]]:
    """Merge keys of a type and of all that it reaches, from the published schema."""
    found: dict[str, dict[str, str | None]] = {}
    if name in seen:
        return found
    seen.add(name)
    for field, kind in schema.fields(name).items():
        if match := re.match(r"\[(.+)\]", kind):
            found.setdefault(name, {})[field] = None if match[1] == "=" else match[1]
        target = re.sub(r"^(\[.*?\]|\{\})", "", kind)
        found |= _published(schema, target, seen)
    return found


KNOWN_GAPS = {
    "core.v1.ContainerStatus": {"allocatedResourcesStatus", "volumeMounts"},
    "core.v1.NodeAllocatableResourceClaimStatus": {"mapping", "overhead"},
    "core.v1.PodSpec": {"evictionResponders"},
    "core.v1.PodStatus": {"nodeAllocatableResourceClaimStatuses"},
    "core.v1.PodVolumeHealth": {"healthConditions"},
}
"""Lists of fields that the sandbox does not write; they are replaced."""

SHORT = {"EphemeralContainer": "Container", "JobStatus": "ConditionsStatus", "ServiceStatus": "ConditionsStatus"} | {
    "NamespaceStatus": "ConditionsStatus"
}


@pytest.mark.parametrize(
    "resource", [PODS, JOBS, SERVICES, NODES, NAMESPACES, SERVICEACCOUNTS, PODGROUPS], ids=lambda r: r.kind
)
def test_merge_keys_are_the_published_ones(resource: Any) -> None:
    schema = schema_of("1.37")
    root = schema.root(resource, "v1beta1" if resource is PODGROUPS else "v1")
    assert root
    for name, keys in _published(schema, root, set()).items():
        short = name.rpartition(".")[2]
        rules = strategic_merge._FIELDS.get(SHORT.get(short, short), {})
        ours = {field: rule.key for field, rule in rules.items() if isinstance(rule, ListRule)}
        for field in keys.keys() - KNOWN_GAPS.get(name, set()):
            assert ours.get(field, "missing") == keys[field], f"{name}.{field}"

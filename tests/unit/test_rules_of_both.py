"""The rules of Kubernetes objects that both distributions have: the provider and the sandbox answer alike.

Neither distribution requires the other, so each has its own names, quantities, selectors, and strategic merges, as
small as it needs. The answers are compared on the same examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_gangjobs.attempt import messages
from airflow_provider_gangjobs.gang.render import pod_template
from airflow_provider_gangjobs.kube import names, quantity
from gangjobs_sandbox.api import app
from gangjobs_sandbox.apimachinery import quantity as sandbox_quantity
from gangjobs_sandbox.apimachinery import selectors, validation
from gangjobs_sandbox.apimachinery import strategic_merge as sandbox_merge
from gangjobs_sandbox.registry import metadata

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = [62, 63, 64, 252, 253, 254]
PARTS = st.text("aZ09-._/= é\n", max_size=8) | st.sampled_from([letter * count for letter in "a-" for count in LIMITS])
TEXTS = st.lists(PARTS, max_size=4).map("".join)

NAMES: dict[str, tuple[Callable[[Any], str | None], Callable[[str], bool]]] = {
    "label": (names.problem_with_dns_label, lambda text: not validation.dns_label(text)),
    "subdomain": (names.problem_with_dns_subdomain, lambda text: not validation.dns_subdomain(text)),
    "value of a label": (names.problem_with_label_value, lambda text: not validation.label_value(text)),
    "qualified name": (names.problem_with_qualified_name, lambda text: not validation.qualified_name(text)),
    "finalizer": (names.problem_with_finalizer, lambda text: not list(metadata._finalizer_causes([text]))),
    "variable": (names.problem_with_env_name, validation.is_env_name),
    "key of a ConfigMap": (names.problem_with_config_map_key, validation.is_config_map_key),
}


@pytest.mark.parametrize(("problem_with", "is_valid"), NAMES.values(), ids=NAMES)
@given(text=TEXTS)
@example(text="example.org/a_B.c")
@example(text="a/b/c")
@example(text="/a")
@example(text="a/")
@example(text="a-")
@example(text="..")
@example(text="orphan")
def test_names_are_valid_for_both(
    problem_with: Callable[[Any], str | None], is_valid: Callable[[str], bool], text: str
) -> None:
    assert (problem_with(text) is None) is is_valid(text)


def test_annotations_have_the_same_limit() -> None:
    assert names.ANNOTATIONS_BYTES_MAX == metadata._ANNOTATIONS_BYTES_MAX


def test_provider_recognizes_the_sandbox_by_the_header_that_it_sends() -> None:
    assert messages.SANDBOX_SERVER == app.SERVER


QUANTITIES = (
    st.from_regex(r"\A[+-]?[0-9]{0,4}\.?[0-9]{0,3}([eE][+-]?[0-9]{1,4}|[numkMGTPE]i?)?\Z")
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.text(max_size=4)
)


def answer(ask: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, or the message of the ValueError that it raises."""
    try:
        return ask(*arguments)
    except ValueError as error:
        return f"refused: {error}"


@given(QUANTITIES)
def test_quantities_are_read_alike(text: Any) -> None:
    assert answer(quantity.parse, text) == answer(sandbox_quantity.parse, text)


@given(st.decimals(0, 10**15, places=6))
def test_quantities_are_written_alike(amount: Any) -> None:
    assert quantity.format_cpu(amount) == sandbox_quantity.format_cpu(amount)
    assert quantity.format_bytes(amount) == sandbox_quantity.format_bytes(amount)


RESOURCES = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.sampled_from(["1", "500m", "2Gi", "1e3", 3, "lots"])
)
SIZED = st.fixed_dictionaries(
    {}, optional={"resources": st.fixed_dictionaries({"requests": RESOURCES, "limits": RESOURCES})}
)
INITIAL = st.builds(lambda sized, policy: sized | policy, SIZED, st.sampled_from([{}, {"restartPolicy": "Always"}]))
POD_SPECS = st.builds(
    lambda containers, initial, overhead, sized: {
        "containers": containers,
        "initContainers": initial,
        "overhead": overhead,
        **sized,
    },
    st.lists(SIZED, max_size=3),
    st.lists(INITIAL, max_size=3),
    RESOURCES,
    SIZED,
)


@given(POD_SPECS)
def test_requests_of_a_pod_are_added_alike(spec: Any) -> None:
    assert answer(quantity.requests_of, spec) == answer(sandbox_quantity.requests_of, spec)


SELECTORS = st.lists(
    st.sampled_from(["a", "b.org/c", "-", "in", "notin", " ", ",", "(", ")", "=", "==", "!=", "!", "<", ">", "1"]),
    max_size=9,
).map("".join)


@given(SELECTORS | st.from_regex(r"\A!?[a-z]{1,2}( in \((a|b|-|)(,[a-z]?)*\)|!?=[a-z]?|[<>][0-9])?\Z"))
@example("a in (b")
@example("a-")
@example("a=b,,c")
@example("a=b, c in (x,,y) ,!d")
def test_selectors_are_valid_for_both(text: str) -> None:
    problem = names.problem_with_label_selector(text)
    refusal = answer(selectors.parse, text)
    assert (problem is None) is isinstance(refusal, selectors.Selector)
    assert problem is None or problem.startswith("unable to parse requirement: ")


NAMED = st.sampled_from("abc")
VALUES = st.none() | st.integers(0, 2) | NAMED
DIRECTIVES = st.sampled_from([{}, {}, {}, {"$patch": "delete"}, {"$patch": "replace"}, {"$patch": "unknown"}])


def with_directives(fields: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda values, directives: values | directives, fields, DIRECTIVES)


def lists_of(key: str, fields: dict[str, Any] | None = None) -> st.SearchStrategy[list[Any]]:
    item = st.fixed_dictionaries({}, optional={key: NAMED, "value": VALUES, "list": st.lists(VALUES), **(fields or {})})
    return st.lists(with_directives(item), max_size=3)


def orders_of(fields: dict[str, Any]) -> dict[str, Any]:
    """The directives that order the lists, or that take items away."""
    orders = {f"$setElementOrder/{name}": value for name, value in fields.items()}
    taken = {f"$deleteFromPrimitiveList/{name}": st.lists(NAMED) | NAMED for name in fields}
    return orders | taken | {"$retainKeys": st.lists(st.sampled_from(list(fields)))}


CONTAINER = {
    "env": lists_of("name"),
    "ports": lists_of("containerPort"),
    "volumeMounts": lists_of("mountPath"),
    "volumeDevices": lists_of("devicePath"),
    "args": st.lists(NAMED),
}
CONTAINERS = lists_of("name", CONTAINER)
POD = {
    "containers": CONTAINERS,
    "initContainers": CONTAINERS,
    "ephemeralContainers": CONTAINERS,
    "volumes": lists_of("name"),
    "imagePullSecrets": lists_of("name"),
    "hostAliases": lists_of("ip"),
    "schedulingGates": lists_of("name"),
    "resourceClaims": lists_of("name"),
    "topologySpreadConstraints": lists_of("topologyKey"),
    "tolerations": lists_of("key"),
    "affinity": st.dictionaries(NAMED, st.dictionaries(NAMED, VALUES, max_size=2), max_size=2),
    "nodeName": VALUES,
}
METADATA = {
    "labels": st.dictionaries(NAMED, VALUES, max_size=3),
    "finalizers": st.lists(NAMED, max_size=3),
    "ownerReferences": lists_of("uid"),
}


def templates(pod: dict[str, Any], metadata_fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    parts = {"spec": pod, "metadata": metadata_fields}
    return st.fixed_dictionaries(
        {}, optional={k: with_directives(st.fixed_dictionaries({}, optional=v)) for k, v in parts.items()}
    )


@given(templates(POD, METADATA), templates(POD | orders_of(POD), METADATA | orders_of(METADATA)))
def test_pod_templates_are_merged_alike(template: Any, patch: Any) -> None:
    ours = answer(pod_template.merge_pod_template, template, patch)
    assert ours == answer(sandbox_merge.apply, template, patch, "PodTemplateSpec")

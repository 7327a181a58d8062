"""The names and quantities that Kubernetes accepts, and that the provider and the sandbox have the same rules."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import airflow_provider_gangjobs.kube.quantity
import gangjobs_sandbox.apimachinery.quantity
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


# -- The names that Kubernetes accepts -------------------------------------------------------------------------------

LONG_LABEL = "a" * 63


OTHER_LABELS = ["", "-a", "a-", "A", "a.b", "a_b", "a\n", LONG_LABEL + "a", None, 4, "ä"]
OTHER_KEYS = ["", "/a", "a/", "A.org/x", "a/b/c", "a b", "x" * 64, "example.org/" + "x" * 64, 1]
RULES: dict[str, tuple[Callable[[Any], str | None], list[Any], list[Any]]] = {
    "DNS label": (names.problem_with_dns_label, ["a", "0a", "a-b", LONG_LABEL], OTHER_LABELS),
    "subdomain": (names.problem_with_dns_subdomain, ["a.b-c.0"], ["a..b", "a.-b", "a" * 254]),
    "name of a Service": (names.problem_with_dns_label_1035, ["a0"], ["0a"]),
    "label value": (names.problem_with_label_value, ["", "a", "A_b.c-1"], ["-a", "a b", "a/b", "a" * 64, True, 1]),
    "key": (names.problem_with_qualified_name, ["a", "example.org/a_B.c", "nvidia.com/gpu"], OTHER_KEYS),
    "finalizer": (names.problem_with_finalizer, ["example.org/harvest", "foregroundDeletion"], ["harvest", "a b/c"]),
    "variable": (names.problem_with_env_name, ["A"], ["A=B", "", "Ä"]),
    "file": (names.problem_with_config_map_key, ["train.py", ".env"], ["..", "a/b", "..a"]),
}


@pytest.mark.parametrize("rule", RULES)
def test_names_are_accepted_or_refused_as_by_kubernetes(rule: str) -> None:
    problem_with, accepted, refused = RULES[rule]
    assert [text for text in accepted if problem_with(text)] == []
    assert [text for text in refused if not problem_with(text)] == []


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("a b", "'a b' may only have letters"),
        ("", "is empty"),
        ("a/", "'a/' has no name after its prefix"),
        ("a/b c", "'a/b c' has a wrong name after its prefix: 'b c' may only have letters"),
    ],
)
def test_problem_of_a_qualified_name_says_which_part_is_wrong(key, problem):
    assert (names.problem_with_qualified_name(key) or "").startswith(problem)


def test_file_that_is_named_as_a_folder_is_refused_for_that_reason():
    assert names.problem_with_config_map_key(".") == "'.' is the name of a folder"
    assert names.problem_with_config_map_key("..") == "'..' may not start with '..'"


def test_problem_quotes_the_text_and_its_length():
    assert names.problem_with_dns_label("a" * 70) == f"'{LONG_LABEL}'... has 70 characters, 63 are allowed"


# -- The rules of Kubernetes objects that both distributions have: the provider and the sandbox answer alike ---------

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


def without_order(value: Any) -> Any:
    """The value with its lists sorted: the provider appends new items, and `kubectl patch` puts them first."""
    if isinstance(value, dict):
        return {name: without_order(item) for name, item in value.items()}
    return sorted(map(without_order, value), key=repr) if isinstance(value, list) else value


@given(templates(POD, METADATA), templates(POD, METADATA))
def test_pod_templates_are_merged_alike(template: Any, patch: Any) -> None:
    ours = answer(pod_template.merge_pod_template, template, patch)
    theirs = answer(sandbox_merge.apply, template, patch, "PodTemplateSpec")
    are_refused = [isinstance(one, str) for one in (ours, theirs)]
    assert are_refused == [True, True] or without_order(ours) == without_order(theirs)


@pytest.mark.parametrize("directive", ["$setElementOrder/volumes", "$deleteFromPrimitiveList/args", "$retainKeys"])
def test_other_directives_of_a_patch_are_refused(directive: str) -> None:
    with pytest.raises(ValueError, match=r"use \$patch with delete, merge or replace"):
        pod_template.merge_pod_template({}, {"spec": {directive: []}})


# -- Quantities of Kubernetes: how they are read, written, added up and compared -------------------------------------

SANDBOX = gangjobs_sandbox.apimachinery.quantity


@pytest.fixture(scope="module", params=[airflow_provider_gangjobs.kube.quantity, SANDBOX], ids=["provider", "sandbox"])
def either_quantity(request):
    """The module of each distribution."""
    return request.param


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", "0.5"),
        ("2", "2"),
        (2, "2"),
        (0.25, "0.25"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("2E", "2e18"),
        ("1Ki", "1024"),
        ("4Gi", str(4 * 1024**3)),
        ("1M", "1000000"),
        ("100n", "1e-7"),
        ("-1", "-1"),
    ],
    ids=str,
)
def test_quantity_has_its_exact_value(either_quantity, text, value):
    assert either_quantity.parse(text) == Decimal(value)


@pytest.mark.parametrize(
    "text", ["", "Gi", "1 Gi", "1gi", "1Mib", "NaN", "inf", "1e", "1e99999", "ten", True, "１", "5\n"], ids=repr
)
def test_what_is_no_quantity_is_refused(either_quantity, text):
    with pytest.raises(ValueError, match="is not a quantity"):
        either_quantity.parse(text)


@pytest.mark.parametrize("text", ["1" * 101, "1" * 10**6 + "x", "1" * 10**6 + "e1"], ids=["valid", "unit", "exponent"])
def test_quantity_of_many_digits_is_refused_at_once(text):
    with pytest.raises(ValueError, match=r"^'1{79} is not a quantity"):
        airflow_provider_gangjobs.kube.quantity.parse(text)


def test_list_error_names_the_resource(either_quantity):
    with pytest.raises(ValueError, match="memory: 'lots' is not a quantity"):
        either_quantity.requests_of({"overhead": {"cpu": "1", "memory": "lots"}})


@pytest.mark.parametrize(("cores", "text"), [("2", "2"), ("0.5", "500m"), ("0.0001", "1m"), ("0", "0")], ids=str)
def test_cpu_is_written_in_cores_or_millicores(either_quantity, cores, text):
    assert either_quantity.format_cpu(Decimal(cores)) == text


@pytest.mark.parametrize(("amount", "text"), [(1024, "1Ki"), (1536, "1536"), (8 * 1024**3, "8Gi"), (0, "0")], ids=str)
def test_bytes_take_the_largest_exact_suffix(either_quantity, amount, text):
    assert either_quantity.format_bytes(Decimal(amount)) == text


@given(st.integers(0, 2**70))
def test_written_bytes_read_back_equal(either_quantity, amount):
    assert either_quantity.parse(either_quantity.format_bytes(Decimal(amount))) == amount


@given(st.integers(0, 10**9))
def test_written_millicores_read_back_equal(either_quantity, millicores):
    cores = Decimal(millicores) / 1000
    assert either_quantity.parse(either_quantity.format_cpu(cores)) == cores


def container(restart_policy=None, **requests):
    return {"resources": {"requests": requests}} | ({"restartPolicy": restart_policy} if restart_policy else {})


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container(cpu="1"), container(cpu="500m")]}, "1.5"),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="3")]}, "3"),
        (
            {"containers": [container(cpu="1")], "initContainers": [container("Always", cpu="2"), container(cpu="2")]},
            "4",
        ),
        ({"containers": [container(cpu="1")], "initContainers": [container("Always", cpu="2")]}, "3"),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, "2"),
        ({"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, "1.25"),
        ({"containers": [container(cpu="1")], "resources": {"requests": {"cpu": "5"}}}, "5"),
    ],
    ids=[
        "containers add up",
        "init is a maximum",
        "init beside sidecar",
        "sidecar stays",
        "limit",
        "overhead",
        "pod level",
    ],
)
def test_pod_request_is_counted_as_the_scheduler_does(either_quantity, spec, cpu):
    assert either_quantity.requests_of(spec)["cpu"] == Decimal(cpu)


def test_lacking_resources_are_named_in_order():
    free = SANDBOX.parse_list({"cpu": "1", "memory": "1Gi"})
    request = SANDBOX.parse_list({"nvidia.com/gpu": 1, "cpu": 2, "memory": "1Gi", "example.com/nic": 0})
    assert SANDBOX.fits(request, free) == ("cpu", "nvidia.com/gpu")


def test_subtraction_undoes_addition():
    left, right = SANDBOX.parse_list({"cpu": "2"}), SANDBOX.parse_list({"cpu": "500m"})
    assert SANDBOX.subtract(SANDBOX.add(left, right), right) == left

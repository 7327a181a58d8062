"""Quantities of Kubernetes: how they are read, written, added up and compared."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import airflow_provider_gangjobs.kube.quantity
import gangjobs_sandbox.apimachinery.quantity

SANDBOX = gangjobs_sandbox.apimachinery.quantity


@pytest.fixture(scope="module", params=[airflow_provider_gangjobs.kube.quantity, SANDBOX], ids=["provider", "sandbox"])
def quantity(request):
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
def test_quantity_has_its_exact_value(quantity, text, value):
    assert quantity.parse(text) == Decimal(value)


@pytest.mark.parametrize(
    "text", ["", "Gi", "1 Gi", "1gi", "1Mib", "NaN", "inf", "1e", "1e99999", "ten", True, "１", "5\n"], ids=repr
)
def test_what_is_no_quantity_is_refused(quantity, text):
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.parse(text)


@pytest.mark.parametrize("text", ["1" * 101, "1" * 10**6 + "x", "1" * 10**6 + "e1"], ids=["valid", "unit", "exponent"])
def test_quantity_of_many_digits_is_refused_at_once(text):
    with pytest.raises(ValueError, match=r"^'1{79} is not a quantity"):
        airflow_provider_gangjobs.kube.quantity.parse(text)


def test_list_error_names_the_resource(quantity):
    with pytest.raises(ValueError, match="memory: 'lots' is not a quantity"):
        quantity.requests_of({"overhead": {"cpu": "1", "memory": "lots"}})


@pytest.mark.parametrize(("cores", "text"), [("2", "2"), ("0.5", "500m"), ("0.0001", "1m"), ("0", "0")], ids=str)
def test_cpu_is_written_in_cores_or_millicores(quantity, cores, text):
    assert quantity.format_cpu(Decimal(cores)) == text


@pytest.mark.parametrize(("amount", "text"), [(1024, "1Ki"), (1536, "1536"), (8 * 1024**3, "8Gi"), (0, "0")], ids=str)
def test_bytes_take_the_largest_exact_suffix(quantity, amount, text):
    assert quantity.format_bytes(Decimal(amount)) == text


@given(st.integers(0, 2**70))
def test_written_bytes_read_back_equal(quantity, amount):
    assert quantity.parse(quantity.format_bytes(Decimal(amount))) == amount


@given(st.integers(0, 10**9))
def test_written_millicores_read_back_equal(quantity, millicores):
    cores = Decimal(millicores) / 1000
    assert quantity.parse(quantity.format_cpu(cores)) == cores


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
def test_pod_request_is_counted_as_the_scheduler_does(quantity, spec, cpu):
    assert quantity.requests_of(spec)["cpu"] == Decimal(cpu)


def test_lacking_resources_are_named_in_order():
    free = SANDBOX.parse_list({"cpu": "1", "memory": "1Gi"})
    request = SANDBOX.parse_list({"nvidia.com/gpu": 1, "cpu": 2, "memory": "1Gi", "example.com/nic": 0})
    assert SANDBOX.fits(request, free) == ("cpu", "nvidia.com/gpu")


def test_subtraction_undoes_addition():
    left, right = SANDBOX.parse_list({"cpu": "2"}), SANDBOX.parse_list({"cpu": "500m"})
    assert SANDBOX.subtract(SANDBOX.add(left, right), right) == left

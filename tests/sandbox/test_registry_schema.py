"""Field tables: decoding, and what the releases have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangjobs_sandbox.apimachinery import quantity
from gangjobs_sandbox.apimachinery.quantity import canonical
from gangjobs_sandbox.registry.schema import DecodingError, schema_of
from gangjobs_sandbox.resources import JOBS, PODGROUPS, PODS, WORKLOADS

POD = "core.v1.Pod"


def decoded(obj: dict[str, Any], release: str = "1.37") -> tuple[dict[str, Any], list[str]]:
    unknown: list[str] = []
    return schema_of(release).decode(POD, obj, unknown), unknown


def test_known_fields_pass_through() -> None:
    obj = {"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"containers": [{"name": "m", "args": ["1"]}]}}
    assert decoded(obj) == (obj, [])


def test_unknown_fields_are_dropped_and_named() -> None:
    obj = {"spec": {"odd": 1, "containers": [{"name": "m", "wrong": {"deep": 1}}]}}
    kept, unknown = decoded(obj)
    assert kept == {"spec": {"containers": [{"name": "m"}]}}
    assert unknown == ["spec.odd", "spec.containers[0].wrong"]


def test_null_is_dropped_silently() -> None:
    assert decoded({"metadata": {"creationTimestamp": None}, "spec": None}) == ({"metadata": {}}, [])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"containers": {}},
            "cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            {"containers": ["x"]},
            "cannot unmarshal string into Go struct field PodSpec.spec.containers of type v1.Container",
        ),
        ({"hostNetwork": 1}, "cannot unmarshal number into Go struct field PodSpec.spec.hostNetwork of type bool"),
        ({"priority": 1.5}, "cannot unmarshal number 1.5 into Go struct field PodSpec.spec.priority of type int32"),
        ({"priority": True}, "cannot unmarshal bool into Go struct field PodSpec.spec.priority of type int32"),
        (
            {"nodeSelector": []},
            "cannot unmarshal array into Go struct field PodSpec.spec.nodeSelector of type map[string]string",
        ),
        ({"nodeName": {}}, "cannot unmarshal object into Go struct field PodSpec.spec.nodeName of type string"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_type_has_the_message_of_go(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodingError) as caught:
        decoded({"spec": spec})
    assert str(caught.value) == f"json: {message}"


def test_time_must_be_a_timestamp() -> None:
    with pytest.raises(DecodingError, match='parsing time "yesterday"'):
        decoded({"metadata": {"creationTimestamp": "yesterday"}})


@pytest.mark.parametrize(("release", "has"), [("1.36", False), ("1.37", True)])
def test_job_scheduling_is_new_in_1_37(release: str, has: bool) -> None:
    assert ("scheduling" in schema_of(release).fields("batch.v1.JobSpec")) is has


@pytest.mark.parametrize(("release", "version"), [("1.36", "v1alpha2"), ("1.37", "v1beta1"), ("1.37", "v1alpha3")])
def test_workload_api_of_each_release(release: str, version: str) -> None:
    schema = schema_of(release)
    assert schema.root(WORKLOADS, version)
    assert schema.root(PODGROUPS, version)


def test_kind_without_a_table_has_no_root() -> None:
    assert schema_of("1.37").root(JOBS, "v2") is None
    assert schema_of("1.37").root(PODS, "v1") == POD


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("1024", "1024"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        ("100m", "100m"),
        ("1000m", "1"),
        ("0", "0"),
        ("0Mi", "0"),
        ("1024Mi", "1Gi"),
        ("1536Mi", "1536Mi"),
        ("0.5Gi", "512Mi"),
        ("512Ki", "512Ki"),
        ("0.5Ki", "512"),
        ("1e3", "1e3"),
        ("12E2", "1200"),
        ("5e-1", "500e-3"),
        ("-1.5", "-1500m"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        (2, "2"),
        (0.25, "250m"),
    ],
)
def test_canonical_quantity(sent: Any, kept: str) -> None:
    assert canonical(sent) == kept


SUFFIXES = st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3"])


@given(st.integers(-9999, 9999), SUFFIXES)
def test_canonical_form_keeps_the_value_and_itself(number: int, suffix: str) -> None:
    once = canonical(f"{number}{suffix}")
    assert quantity.parse(once) == quantity.parse(f"{number}{suffix}")
    assert canonical(once) == once

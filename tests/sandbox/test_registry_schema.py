"""Field tables: decoding, and what the releases have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangjobs_sandbox.apimachinery import quantity
from gangjobs_sandbox.apimachinery.quantity import canonical
from gangjobs_sandbox.registry.schema import DecodingError, schema_of

POD = "core.v1.Pod"


def decoded(obj: dict[str, Any], release: str = "1.37") -> tuple[dict[str, Any], list[str]]:
    unknown: list[str] = []
    return schema_of(release).decode(POD, obj, unknown), unknown


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

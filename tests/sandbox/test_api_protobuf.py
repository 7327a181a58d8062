"""Objects in protobuf form: read as if they were JSON, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gangjobs_sandbox.api.protobuf import decode_message


def varint(number: int) -> bytes:
    number %= 2**64
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def field(number: int, value: Any) -> bytes:
    """One field: a number as varint, a text or message with its length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def message(*fields: tuple[int, Any]) -> bytes:
    return b"".join(field(number, value) for number, value in fields)


def enveloped(api_version: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\x00" + message((1, message((1, api_version), (2, kind))), (2, raw))


def config_map(*fields: tuple[int, Any], name: str = "a") -> bytes:
    return enveloped("v1", "ConfigMap", message((1, message((1, name))), *fields))


def test_kind_and_version_come_from_the_envelope() -> None:
    assert decode_message(config_map()) == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}


def test_maps_keep_empty_texts() -> None:
    data = [(2, message((1, key), (2, value))) for key, value in (("a", "1"), ("b", ""))]
    assert decode_message(config_map(*data))["data"] == {"a": "1", "b": ""}


def test_bytes_become_base64() -> None:
    assert decode_message(config_map((3, message((1, "k"), (2, b"\xff\x00")))))["binaryData"] == {"k": "/wA="}


def test_empty_text_is_absence() -> None:
    raw = message((1, message((1, "a"), (3, ""), (8, b""))))
    assert decode_message(enveloped("v1", "ConfigMap", raw))["metadata"] == {"name": "a"}


def test_unknown_fields_are_skipped() -> None:
    assert "metadata" in decode_message(config_map((99, "later"), (98, 5)))


def test_numbers_may_be_negative() -> None:
    raw = message((1, message((1, "p"))), (2, -5))
    assert decode_message(enveloped("scheduling.k8s.io/v1", "PriorityClass", raw))["value"] == -5


def test_time_and_embedded_structs_of_a_pod() -> None:
    created = message((1, 1_767_225_600))
    volume = message((1, "v"), (2, message((2, b""))))
    container = message((1, "c"), (8, message((1, message((1, "cpu"), (2, message((1, "500m"))))))))
    pod = message((1, message((1, "p"), (8, created))), (2, message((1, volume), (2, container))))
    assert decode_message(enveloped("v1", "Pod", pod)) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "500m"}}}],
        },
    }


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{}", "does not begin"),
        (enveloped("v1", "Gizmo", b""), "send it as JSON"),
        (config_map()[:-1], "ends too early"),
        (enveloped("v1", "ConfigMap", field(1, 7)), "a number stands where"),
        (enveloped("v1", "ConfigMap", field(4, "x")), "a text stands where"),
    ],
    ids=["no message", "unknown kind", "torn", "number for a message", "text for a number"],
)
def test_what_cannot_be_read_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        decode_message(body)


@given(st.binary(max_size=60))
@example(b"\x0b")
@example(b"\xff" * 12)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        decode_message(enveloped("v1", "Pod", raw))
    except ValueError:
        return

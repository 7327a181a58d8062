"""Fields: unknown ones and wrong types, as `fieldValidation` says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.api_server import ApiServer, refused
from tests.conformance.builders import config_map, job, pod
from tests.replies import accepted


async def test_strict_refuses_unknown_fields(server: ApiServer) -> None:
    obj = job(wrong=1, pod_spec={"odd": True})
    response = await server.http.post(server.jobs(), json=obj, params={"fieldValidation": "Strict"})
    message = refused(response, 400, "BadRequest")["message"]
    assert message.startswith('Job in version "v1" cannot be handled as a Job: strict decoding error: ')
    assert 'unknown field "spec.wrong"' in message
    assert 'unknown field "spec.template.spec.odd"' in message


async def test_unknown_field_in_a_list_is_named_with_its_index(server: ApiServer) -> None:
    obj = pod(container={"wrong": 1})
    response = await server.http.post(server.core("pods"), json=obj, params={"fieldValidation": "Strict"})
    assert 'unknown field "spec.containers[0].wrong"' in refused(response, 400, "BadRequest")["message"]


@pytest.mark.parametrize("query", [{}, {"fieldValidation": "Warn"}], ids=["by default", "asked for"])
async def test_unknown_field_is_dropped_with_a_warning(server: ApiServer, query: dict[str, str]) -> None:
    response = await server.http.post(server.jobs(), json=job(wrong=1), params=query)
    assert "wrong" not in accepted(response)["spec"]
    assert response.headers.get_list("Warning") == ['299 - "unknown field \\"spec.wrong\\""']


async def test_unknown_field_is_dropped_silently_if_ignored(server: ApiServer) -> None:
    response = await server.http.post(server.jobs(), json=job(wrong=1), params={"fieldValidation": "Ignore"})
    assert "wrong" not in accepted(response)["spec"]
    assert "Warning" not in response.headers


async def test_unknown_mode_is_refused(server: ApiServer) -> None:
    response = await server.http.post(server.jobs(), json=job(), params={"fieldValidation": "Maybe"})
    refused(response, 422, "Invalid")


WRONG_TYPES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "number in env": (
        pod(container={"env": [{"name": "A", "value": 1}]}),
        "number",
        "EnvVar.spec.containers.env.value",
        "string",
    ),
    "boolean in env": (
        pod(container={"env": [{"name": "A", "value": True}]}),
        "bool",
        "EnvVar.spec.containers.env.value",
        "string",
    ),
    "text for a list": (pod(container={"command": "a"}), "string", "Container.spec.containers.command", "[]string"),
    "number in labels": (pod(labels={"a": 1}), "number", "ObjectMeta.metadata.labels", "string"),  # type: ignore[dict-item]
    "text for a number": (pod(activeDeadlineSeconds="5"), "string", "PodSpec.spec.activeDeadlineSeconds", "int64"),
    "number too large": (pod(priority=3_000_000_000), "number 3000000000", "PodSpec.spec.priority", "int32"),
}


@pytest.mark.parametrize(("obj", "given", "field", "type_"), WRONG_TYPES.values(), ids=WRONG_TYPES)
async def test_wrong_type_is_a_bad_request(
    server: ApiServer, obj: dict[str, Any], given: str, field: str, type_: str
) -> None:
    response = await server.http.post(server.core("pods"), json=obj)
    complaint = f"cannot unmarshal {given} into Go struct field {field} of type {type_}"
    assert complaint in refused(response, 400, "BadRequest")["message"]


async def test_quantity_that_is_no_number_is_a_bad_request(server: ApiServer) -> None:
    response = await server.http.post(
        server.core("pods"), json=pod(container={"resources": {"limits": {"cpu": "much"}}})
    )
    assert "quantities must match the regular expression" in refused(response, 400, "BadRequest")["message"]


async def test_wrong_type_is_refused_in_every_mode(server: ApiServer) -> None:
    obj = config_map(k=1)  # type: ignore[arg-type]
    response = await server.http.post(server.core("configmaps"), json=obj, params={"fieldValidation": "Ignore"})
    refused(response, 400, "BadRequest")


async def test_null_field_is_the_same_as_a_missing_field(server: ApiServer) -> None:
    obj = config_map(k="v")
    obj["metadata"]["labels"] = None
    created = await server.create(server.core("configmaps"), obj)
    assert "labels" not in created["metadata"]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("1024Mi", "1Gi"),
        ("1.5", "1500m"),
        ("0.5Gi", "512Mi"),
        (2, "2"),
        ("1000", "1k"),
        ("100m", "100m"),
        ("1e3", "1e3"),
    ],
    ids=str,
)
async def test_quantities_are_kept_in_canonical_form(server: ApiServer, sent: Any, kept: str) -> None:
    obj = pod(
        container={
            "resources": {"requests": {"example.org/thing": "1", "memory": sent}, "limits": {"example.org/thing": "1"}}
        }
    )
    created = await server.create(server.core("pods"), obj)
    assert created["spec"]["containers"][0]["resources"]["requests"]["memory"] == kept

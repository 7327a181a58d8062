"""The errors that responses are translated to, and what a caller may conclude from each."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from airflow_provider_gangjobs.cluster import errors
from airflow_provider_gangjobs.cluster.errors import (
    RETRY_AFTER_MAX_S,
    error_from_reply,
    error_from_watch_event,
    is_of_another_uid,
    parse_retry_after,
)


def body(reason: str = "", message: str = "no", **more: object) -> bytes:
    return json.dumps({"kind": "Status", "reason": reason, "message": message, **more}).encode()


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", errors.BadRequest),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (405, "MethodNotAllowed", errors.MethodNotAllowed),
        (409, "AlreadyExists", errors.AlreadyExists),
        (409, "Conflict", errors.Conflict),
        (410, "Expired", errors.Gone),
        (410, "Gone", errors.Gone),
        (413, "RequestEntityTooLarge", errors.TooLarge),
        (415, "UnsupportedMediaType", errors.ApiError),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (504, "Timeout", errors.ServerError),
    ],
)
def test_status_becomes_its_own_class(code: int, reason: str, expected: type) -> None:
    error = error_from_reply(code, body(reason), request="GET /x")
    assert type(error) is expected
    assert (error.status, error.reason, error.message) == (code, reason, "no")


@pytest.mark.parametrize(
    ("code", "expected"),
    [(302, errors.UnexpectedReply), (418, errors.UnexpectedReply), (403, errors.Forbidden), (502, errors.ServerError)],
)
def test_response_without_status_has_its_class_by_code(code: int, expected: type) -> None:
    error = error_from_reply(code, b"<html>token=abc</html>", request="GET /x")
    assert type(error) is expected
    is_foreign = expected is errors.UnexpectedReply
    assert str(error) == f"GET /x: {code}{': the response is not from an API server' * is_foreign}"


JOB, KUEUE = "GET /apis/batch/v1/namespaces/ml/jobs/a", "GET /apis/kueue.x-k8s.io/v1beta2/namespaces/ml/workloads"
GO, PATHS = b"404 page not found\n", b'{\n  "paths": [\n'


@pytest.mark.parametrize(
    ("request_line", "text", "expected"),
    [
        (JOB, body("NotFound"), errors.NotFound),
        (KUEUE, GO, errors.NotFound),
        (KUEUE, PATHS, errors.NotFound),
        (JOB, GO, errors.UnexpectedReply),
        (JOB, b"<html>404 Not Found</html>", errors.UnexpectedReply),
        (KUEUE, b"", errors.UnexpectedReply),
        (KUEUE, b'{"message":"no Route matched"}', errors.UnexpectedReply),
    ],
)
def test_404_of_a_proxy_does_not_say_that_an_object_is_gone(request_line: str, text: bytes, expected: type) -> None:
    assert type(error_from_reply(404, text, request=request_line)) is expected


@pytest.mark.parametrize(
    "garbage", [b"", b"null", b"[]", b"\xff\xfe", b'{"kind":"Pod"}', b'{"kind":"Status","code":"x"}']
)
def test_body_that_is_no_status_is_ignored(garbage: bytes) -> None:
    assert error_from_reply(500, garbage, request="GET /x").message == ""


def test_long_message_is_cut() -> None:
    assert len(error_from_reply(422, body("Invalid", "x" * 5000), request="GET /x").message) == 256


@pytest.mark.parametrize(
    ("error", "transient", "may_have_applied"),
    [
        (error_from_reply(409, body("Conflict"), request=""), False, False),
        (error_from_reply(429, body(), request=""), True, False),
        (error_from_reply(500, body(), request=""), True, True),
        (error_from_reply(503, body(), request=""), True, True),
        (error_from_reply(503, body(), request="", retry_after="1"), True, False),
        (error_from_reply(504, body(), request="", retry_after="1"), True, True),
        (errors.Unreachable("", ""), True, False),
        (errors.TlsFailed("", ""), False, False),
        (errors.ReplyLost("", ""), True, True),
        (errors.CredentialsFailed("", ""), True, False),
        (errors.InvalidConnection("", "", ""), False, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_say_whether_the_request_may_have_been_applied(
    error: errors.ClusterError, transient: bool, may_have_applied: bool
) -> None:
    assert (error.transient, error.may_have_applied) == (transient, may_have_applied)


NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("-7", None),
        ("soon", None),
        ("nan", None),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0.0),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, now=NOW) == seconds


def test_retry_after_has_a_maximum() -> None:
    assert error_from_reply(503, b"", request="", retry_after="86400").retry_after_s == RETRY_AFTER_MAX_S
    assert error_from_reply(429, body(details={"retryAfterSeconds": 86400}), request="").retry_after_s == 60.0


def test_retry_after_is_read_from_the_body() -> None:
    error = error_from_reply(429, body(details={"retryAfterSeconds": 3}), request="")
    assert error.retry_after_s == 3.0


def test_causes_are_read_from_the_details() -> None:
    error = error_from_reply(
        504, body("Timeout", details={"causes": [{"reason": "ResourceVersionTooLarge"}]}), request=""
    )
    assert error.causes() == ("ResourceVersionTooLarge",)


def test_event_of_type_error_carries_its_own_code() -> None:
    assert type(error_from_watch_event(body("Expired", code=410), request="watch")) is errors.Gone


def test_event_with_unreadable_error_is_a_server_error() -> None:
    assert type(error_from_watch_event(b"{}", request="watch")) is errors.ServerError


UID_MISMATCH = [{"reason": "FieldValueInvalid", "field": "metadata.uid"}]
OTHER_FIELD = [{"reason": "FieldValueInvalid", "field": "spec.template"}]
DELETED_WITH_UID = "the UID in the precondition (a) does not match the UID in record (b)."
REPLACED_WITH_UID = "Precondition failed: UID in precondition: a, UID in object meta: b"
DELETED_WITH_VERSION = "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (2)."
REFUSED_WRITES: dict[str, tuple[int, bytes, bool]] = {
    "a patch of another uid": (422, body("Invalid", details={"causes": UID_MISMATCH}), True),
    "a patch of a field that is wrong": (422, body("Invalid", details={"causes": OTHER_FIELD}), False),
    "a patch whose causes are not objects": (422, body("Invalid", details={"causes": ["metadata.uid"]}), False),
    "a patch whose causes are a number": (422, body("Invalid", details={"causes": 1}), False),
    "a delete of another uid": (409, body("Conflict", message=DELETED_WITH_UID), True),
    "a replacement of another uid": (409, body("Conflict", message=REPLACED_WITH_UID), True),
    "a delete of another resourceVersion": (409, body("Conflict", message=DELETED_WITH_VERSION), False),
    "a patch of another resourceVersion": (409, body("Conflict", message="the object has been modified"), False),
    "a create of what exists": (409, body("AlreadyExists", message="jobs.batch a already exists"), False),
    "a conflict without a word": (409, b"", False),
    "an object that is gone": (404, body("NotFound"), False),
}


@pytest.mark.parametrize(("status", "answer", "is_another"), REFUSED_WRITES.values(), ids=REFUSED_WRITES)
def test_only_a_conflict_of_the_uid_means_that_an_object_was_replaced(
    status: int, answer: bytes, is_another: bool
) -> None:
    assert is_of_another_uid(error_from_reply(status, answer, request="")) is is_another


@pytest.mark.parametrize("causes", [["Invalid"], 1, {"reason": "Invalid"}], ids=["texts", "a number", "an object"])
def test_causes_of_another_form_are_left_out(causes: Any) -> None:
    assert error_from_reply(422, body("Invalid", details={"causes": causes}), request="").causes() == ()

"""The requests, lists and watches of the client on a scripted server, and the errors that responses become."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, get_args

import pytest

from airflow_provider_gangjobs.cluster import errors
from airflow_provider_gangjobs.cluster.client import PAGE_OBJECTS, Client, LogQuery, PatchType
from airflow_provider_gangjobs.cluster.errors import (
    RETRY_AFTER_MAX_S,
    AlreadyExists,
    Conflict,
    Gone,
    InvalidConnection,
    NotFound,
    ReplyLost,
    ServerError,
    TooManyRequests,
    Unauthorized,
    UnexpectedReply,
    Unreachable,
    error_from_reply,
    error_from_watch_event,
    is_of_another_uid,
    parse_retry_after,
)
from airflow_provider_gangjobs.cluster.http.transport import WatchLimits, decode_list, decode_object
from airflow_provider_gangjobs.kube.resources import JOBS, NODES, PODS, Resource, podgroups
from tests.provider.virtual_time import in_virtual_time
from tests.timeouts import TIMEOUT_S
from tests.unit.fault_server import (
    SECRET,
    Connection,
    FaultServer,
    ModelApi,
    Request,
    bad_gateway,
    close_at_once,
    config_for,
    echo,
    failing_first,
    half_open,
    internal_error,
    login_page,
    no_head,
    refusing,
    reset_at_once,
    reset_mid_line,
    status,
    too_many_requests,
    unauthorized,
)

if TYPE_CHECKING:
    from tests.unit.virtual_sleep import VirtualSleep


# -- The requests, lists and watches of the client, against a server with scripted faults ----------------------------

# -- requests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "arguments", "path"),
    [
        (JOBS, ("team", "a"), "/apis/batch/v1/namespaces/team/jobs/a"),
        (JOBS, (None, None), "/apis/batch/v1/jobs"),
        (PODS, ("team", "a", "log"), "/api/v1/namespaces/team/pods/a/log"),
        (NODES, (None, "a"), "/api/v1/nodes/a"),
        (NODES, ("ignored", "a"), "/api/v1/nodes/a"),
        (podgroups("v1beta1"), ("team",), "/apis/scheduling.k8s.io/v1beta1/namespaces/team/podgroups"),
        (JOBS, ("team", "../../nodes"), "/apis/batch/v1/namespaces/team/jobs/..%2F..%2Fnodes"),
    ],
)
def test_paths_are_those_of_the_api(resource: Resource, arguments: tuple[str, ...], path: str) -> None:
    assert resource.path(*arguments) == path


@pytest.mark.parametrize("arguments", [(None, "a"), ("team", None, "log")])
def test_incomplete_paths_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="is needed"):
        PODS.path(*arguments)


async def test_create_is_strict_and_may_be_dry() -> None:
    async with FaultServer(echo) as server, Client(server.config) as client:
        sent = await client.create(JOBS, {"spec": {}}, "team", dry_run=True)
    assert sent == {
        "method": "POST",
        "path": "/apis/batch/v1/namespaces/team/jobs",
        "query": {"fieldValidation": "Strict", "dryRun": "All"},
        "body": {"spec": {}},
        "type": "application/json",
    }


@pytest.mark.parametrize("patch_type", get_args(PatchType))
async def test_patch_type_is_the_content_type(patch_type: PatchType) -> None:
    async with FaultServer(echo) as server, Client(server.config) as client:
        sent = await client.patch(JOBS, "a", "team", {"spec": {}}, patch_type=patch_type, subresource="status")
    assert (sent["method"], sent["path"], sent["type"]) == (
        "PATCH",
        "/apis/batch/v1/namespaces/team/jobs/a/status",
        f"application/{patch_type}-patch+json",
    )


async def test_delete_carries_uid_propagation_and_grace() -> None:
    async with FaultServer(echo) as server, Client(server.config) as client:
        await client.delete(JOBS, "a", "team", uid="u", grace_period_s=0)
    assert json.loads(server.requests[0].body) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": {"uid": "u"},
        "gracePeriodSeconds": 0,
    }


async def test_server_below_a_path_is_reached() -> None:
    async with FaultServer(echo) as server, Client(config_for(f"{server.url}/k8s/clusters/c-1/")) as client:
        assert (await client.version())["path"] == "/k8s/clusters/c-1/version"


async def test_watch_query_has_booleans_in_lower_case() -> None:
    api = ModelApi(every_watch=close_at_once)
    async with FaultServer(api.handle) as server, Client(server.config) as client:
        events = client.watch(
            JOBS, "team", resource_version="7", label_selector="a=b,c in (d, e)", limits=WatchLimits(299.7)
        )
        assert [line async for line in events] == []
    assert server.requests[0].query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "labelSelector": "a=b,c in (d, e)",
        "timeoutSeconds": "300",
    }


async def test_log_is_text_whatever_its_bytes() -> None:
    async def handle(_: Request, connection: Connection) -> None:
        await connection.reply(200, b"caf\xe9\n")

    async with FaultServer(handle) as server, Client(server.config) as client:
        tail = await client.log_tail("a", "team", container="main", tail_lines=5, bytes_max=100)
    assert tail.text == "caf�\n"
    assert server.requests[0].query == {"container": "main", "tailLines": "5"}


async def test_broken_log_is_read_again() -> None:
    async def handle(request: Request, connection: Connection) -> None:
        connection.begin_stream()
        await connection.chunk(b"one\n")
        if len(server.requests) == 1:
            connection.reset()
            return
        await connection.chunk(b"two\n")
        await connection.end_stream()

    async with FaultServer(handle) as server, Client(server.config) as client:
        assert (await client.log_tail("a", "team", tail_lines=5, bytes_max=100)).text == "one\ntwo\n"


async def test_log_is_read_as_it_arrives() -> None:
    async def handle(_: Request, connection: Connection) -> None:
        connection.begin_stream()
        await connection.chunk(b"one\ntw")
        await connection.chunk(b"o\nthree")
        await connection.end_stream()

    query = LogQuery("main", follow=True, since_s=0, timestamps=True)
    async with (
        FaultServer(handle) as server,
        Client(server.config) as client,
        client.open_log("a", "team", query) as chunks,
    ):
        assert b"".join([chunk async for chunk in chunks]) == b"one\ntwo\nthree"
    assert server.requests[0].query == {
        "container": "main",
        "follow": "true",
        "sinceTime": "1970-01-01T00:00:00Z",
        "timestamps": "true",
    }


# -- collections -----------------------------------------------------------------------------------------------


async def test_list_reads_all_pages() -> None:
    api, names = ModelApi(), [f"job-{number:04}" for number in range(2 * PAGE_OBJECTS + 1)]
    for name in names:
        api.put(name)
    async with FaultServer(api.handle) as server, Client(server.config) as client:
        found = await client.list(JOBS, "team")
    assert [item["metadata"]["name"] for item in found] == names
    tokens = [None, f"{PAGE_OBJECTS}", f"{2 * PAGE_OBJECTS}"]
    assert [request.query.get("continue") for request in server.requests] == tokens


async def test_expired_list_is_restarted(virtual_sleep: VirtualSleep) -> None:
    api, names = ModelApi(), [f"job-{number:04}" for number in range(PAGE_OBJECTS + 1)]
    for name in names:
        api.put(name)
    pages = 0

    async def expire_once(request: Request, connection: Connection) -> None:
        nonlocal pages
        pages += 1
        if pages == 2:
            await connection.reply(410, status(410, "Expired"))
        else:
            await api.serve_list(request, connection)

    async with FaultServer(expire_once) as server, Client(server.config, clock=virtual_sleep.clock) as client:
        assert len(await client.list(JOBS, "team")) == len(names)
    tokens = [None, f"{PAGE_OBJECTS}"]
    assert [request.query.get("continue") for request in server.requests] == [*tokens, *tokens]


@pytest.mark.parametrize("ahead", [False, True], ids=["in turn", "ahead"])
async def test_expired_list_continues_if_the_server_allows(ahead: bool) -> None:
    async def handle(request: Request, connection: Connection) -> None:
        match request.query.get("continue"):
            case None:
                metadata = {"resourceVersion": "1", "continue": "old"}
                await connection.reply(200, {"metadata": metadata, "items": [{"metadata": {"name": "a"}}]})
            case "old":
                await connection.reply(410, status(410, "Expired", metadata={"continue": "new"}))
            case "new":
                await connection.reply(200, {"metadata": {}, "items": [{"metadata": {"name": "b"}}]})

    async with FaultServer(handle) as server, Client(server.config) as client:
        pages = [page async for page in client.list_views(dict, JOBS, ahead=ahead)]
        assert [one["metadata"]["name"] for page in pages for one in page] == ["a", "b"]


async def test_page_is_requested_ahead_while_the_page_before_is_used() -> None:
    api = ModelApi()
    for name in "abcde":
        api.put(name)
    is_second_requested = asyncio.Event()

    async def handle(request: Request, connection: Connection) -> None:
        if request.query.get("continue"):
            is_second_requested.set()
        await api.handle(request, connection)

    async with FaultServer(handle) as server, Client(server.config) as client:
        pages = client.list_views(dict, JOBS, "team", limit=2, ahead=True)
        assert len(await anext(pages)) == 2
        await is_second_requested.wait()
        await pages.aclose()  # leaves no task behind, also if the answer comes now
    assert [request.query.get("continue") for request in server.requests] == [None, "2"]


async def test_list_that_always_expires_fails(virtual_sleep: VirtualSleep) -> None:
    async with (
        FaultServer(failing_first(*[refusing(410, "Expired")] * 9)) as server,
        Client(server.config, clock=virtual_sleep.clock) as client,
    ):
        with pytest.raises(Gone):
            await client.list(JOBS)
    assert len(server.requests) == 4


# -- watch -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [reset_mid_line, half_open], ids=["reset", "silence"])
@in_virtual_time
async def test_broken_watch_raises(fault: Any) -> None:
    api = ModelApi(every_watch=fault)
    async with FaultServer(api.handle) as server, Client(server.config) as client:
        with pytest.raises(ReplyLost):
            [
                line
                async for line in client.watch(JOBS, resource_version="1", limits=WatchLimits(0.02, idle_margin_s=0.03))
            ]


@in_virtual_time
async def test_watch_without_response_times_out() -> None:
    async with FaultServer(ModelApi(every_watch=no_head).handle) as server, Client(server.config) as client:
        with pytest.raises(ReplyLost):
            [line async for line in client.watch(JOBS, resource_version="1")]


async def test_watch_line_without_end_is_refused() -> None:
    async def endless(_: Request, connection: Connection) -> None:
        connection.begin_stream()
        while True:
            await connection.chunk(b"x" * 8)
            await asyncio.sleep(0)

    async with FaultServer(endless) as server, Client(server.config) as client:
        with pytest.raises(UnexpectedReply, match="more than 10 bytes"):
            [line async for line in client.watch(JOBS, resource_version="1", limits=WatchLimits(line_bytes_max=10))]


async def test_abandoned_watch_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def handle(_: Request, connection: Connection) -> None:
        connection.begin_stream()
        await connection.line({"type": "BOOKMARK"})
        await connection.silence()
        closed.set()

    async with FaultServer(handle) as server, Client(server.config) as client:
        events = client.watch(JOBS, resource_version="1")
        await anext(events)
        await events.aclose()
        async with asyncio.timeout(TIMEOUT_S):
            await closed.wait()


# -- secrets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [unauthorized, internal_error, login_page, reset_at_once, bad_gateway])
async def test_no_secret_in_errors_or_logs(
    fault: Any, virtual_sleep: VirtualSleep, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body = {"data": {"password": "hunter2hunter2"}}
    async with (
        FaultServer(failing_first(*[fault] * 999)) as server,
        Client(server.config, clock=virtual_sleep.clock) as client,
    ):
        with pytest.raises((ServerError, ReplyLost, UnexpectedReply, Unauthorized)) as written:
            await client.create(JOBS, body, "team")
        with pytest.raises((ServerError, ReplyLost, UnexpectedReply, Unauthorized)) as read:
            await client.get(JOBS, "a", "team")
        shown = f"{written.value!r} {read.value!r} {client.config!r} {vars(client)!r} {caplog.text}"
    assert SECRET not in shown
    assert "hunter2" not in shown
    assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"


async def test_invalid_connection_raises_before_a_request() -> None:
    async with Client(config_for("http://here", cluster_context="elsewhere")) as client:
        with pytest.raises(InvalidConnection, match="elsewhere"):
            await client.version()


# -- Which requests the client sends again, when it gives up, and whether a failed request may have been applied -----

TRANSIENT = [internal_error, bad_gateway, reset_at_once, too_many_requests("1"), refusing(503, "ServiceUnavailable")]


@pytest.mark.parametrize("fault", TRANSIENT, ids=["500", "502", "reset", "429", "503"])
async def test_read_is_retried_after_a_transient_fault(fault: Any, virtual_sleep: VirtualSleep) -> None:
    async with FaultServer(failing_first(fault)) as server, Client(server.config, clock=virtual_sleep.clock) as client:
        assert await client.get(JOBS, "a", "team") == {"metadata": {"name": "a"}}
        assert client.statistics().requests == {"get": 2}
        assert client.statistics().retries == 1


async def test_read_is_retried_until_its_deadline(virtual_sleep: VirtualSleep) -> None:
    async with (
        FaultServer(failing_first(*[internal_error] * 999)) as server,
        Client(server.config, clock=virtual_sleep.clock, retry_for_s=60) as client,
    ):
        with pytest.raises(ServerError):
            await client.get(JOBS, "a", "team")
    assert 30 < virtual_sleep.now <= 60
    assert len(server.requests) < 40


async def test_retry_after_is_honoured(virtual_sleep: VirtualSleep) -> None:
    fault = too_many_requests("7")
    async with FaultServer(failing_first(fault)) as server, Client(server.config, clock=virtual_sleep.clock) as client:
        await client.get(JOBS, "a", "team")
    assert virtual_sleep.slept == [7.0]


async def test_retry_after_beyond_the_deadline_is_not_waited_for(virtual_sleep: VirtualSleep) -> None:
    fault, clock = too_many_requests("3600"), virtual_sleep.clock
    async with (
        FaultServer(failing_first(fault)) as server,
        Client(server.config, clock=clock, retry_for_s=30) as client,
    ):
        with pytest.raises(TooManyRequests) as caught:
            await client.get(JOBS, "a", "team")
    assert (virtual_sleep.slept, caught.value.retry_after_s) == ([], RETRY_AFTER_MAX_S)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (internal_error, ServerError),
        (bad_gateway, ServerError),
        (refusing(503, "ServiceUnavailable"), ServerError),
        (reset_at_once, ReplyLost),
        (refusing(409, "AlreadyExists"), AlreadyExists),
        (refusing(409, "Conflict"), Conflict),
        (refusing(404, "NotFound"), NotFound),
        (login_page, UnexpectedReply),
    ],
    ids=["500", "502", "503", "reset", "exists", "conflict", "not found", "login page"],
)
async def test_write_with_unknown_outcome_is_not_retried(
    fault: Any, error: type[Exception], virtual_sleep: VirtualSleep
) -> None:
    async with FaultServer(failing_first(fault)) as server, Client(server.config, clock=virtual_sleep.clock) as client:
        with pytest.raises(error):
            await client.create(JOBS, {}, "team")
    assert len(server.requests) == 1


NOT_PROCESSED = [
    too_many_requests("1"),
    refusing(429, "TooManyRequests"),
    refusing(503, "X", details={"retryAfterSeconds": 1}),
]


@pytest.mark.parametrize("fault", NOT_PROCESSED, ids=["429 with Retry-After", "429", "503 with Retry-After"])
async def test_write_that_was_not_processed_is_retried(fault: Any, virtual_sleep: VirtualSleep) -> None:
    async with FaultServer(failing_first(fault)) as server, Client(server.config, clock=virtual_sleep.clock) as client:
        await client.create(JOBS, {}, "team")
    assert len(server.requests) == 2


# -- requests that may have been applied -----------------------------------------------------------------------


async def test_refused_connection_was_never_sent(virtual_sleep: VirtualSleep) -> None:
    async with FaultServer(echo) as server:
        config = server.config
    async with Client(config, clock=virtual_sleep.clock) as client:
        with pytest.raises(Unreachable) as caught:
            await client.create(JOBS, {}, "team")
    assert not caught.value.may_have_applied


async def test_unknown_host_was_never_sent(virtual_sleep: VirtualSleep) -> None:
    async with Client(config_for("http://nowhere.invalid:1"), clock=virtual_sleep.clock) as client:
        with pytest.raises(Unreachable):
            await client.create(JOBS, {}, "team")


@in_virtual_time
async def test_list_fails_when_no_response_begins_in_time() -> None:
    """The time of the list itself is 60 s, which a person who waits at a terminal does not know."""
    limits = {"retry_for_s": 0.0, "answer_within_s": 15.0}
    async with FaultServer(failing_first(no_head)) as server, Client(server.config, **limits) as client:
        began = asyncio.get_running_loop().time()
        with pytest.raises(ReplyLost):
            await client.list(JOBS, "team")
        assert 15 <= asyncio.get_running_loop().time() - began < 16


# -- The errors that responses are translated to, and what a caller may conclude from each ---------------------------


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


ODD_FIELDS: dict[str, dict[str, Any]] = {
    "a continue token that is null": {"metadata": {"continue": None}},
    "metadata of another type": {"metadata": []},
    "details of another type": {"details": []},
    "a code that is text": {"code": "404"},
    "a number that JSON does not have": {"details": {"x": float("nan")}},
    "half a character": {"details": {"x": "\ud800"}},
}


@pytest.mark.parametrize("odd", ODD_FIELDS.values(), ids=ODD_FIELDS)
def test_status_with_an_odd_field_keeps_its_others(odd: dict[str, Any]) -> None:
    text = json.dumps({"kind": "Status", "reason": "NotFound", "message": "no", **odd}).encode()
    error = error_from_reply(404, text, request=JOB)
    assert (type(error), error.reason, error.message) == (NotFound, "NotFound", "no")
    assert type(error_from_watch_event(text, request="watch")) is (NotFound if "code" in odd else ServerError)


def test_status_with_a_broken_character_keeps_the_rest() -> None:
    error = error_from_reply(404, b'{"kind":"Status","reason":"NotFound","message":"no \xff"}', request=JOB)
    assert (type(error), error.message) == (NotFound, "no \ufffd")


DEEP = b'{"a":' * 999_999 + b"1" + b"}" * 999_999  # Python 3.14 reads ten thousand levels
UNREADABLE_REPLIES = {
    "no UTF-8": b'{"metadata":{"name":"\xff"},"items":[{"a":"\xff"}]}',
    "nested too deep": b'{"items":[' + DEEP + b'],"other":' + DEEP + b"}",
    "no JSON": b"<html>",
}


@pytest.mark.parametrize("text", UNREADABLE_REPLIES.values(), ids=UNREADABLE_REPLIES)
def test_reply_that_cannot_be_decoded_is_unexpected(text: bytes) -> None:
    with pytest.raises(UnexpectedReply):
        decode_object("GET /x", text)
    with pytest.raises(UnexpectedReply):
        decode_list("GET /x", text, dict)
    status = b'{"kind":"Status","x":' + text + b"}"
    assert type(error_from_reply(500, status, request="GET /x")) is ServerError


def test_path_that_no_url_can_contain_is_not_sent() -> None:
    async def get() -> None:
        async with Client(config_for("http://127.0.0.1:1"), retry_for_s=0) as client:
            await client.list(JOBS, "team", label_selector="\ud800")

    with pytest.raises(Unreachable, match="HTTP does not allow the path"):
        asyncio.run(get())


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
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999", None),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0.0),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, now=NOW) == seconds


def test_retry_after_has_a_maximum() -> None:
    assert error_from_reply(503, b"", request="", retry_after="86400").retry_after_s == RETRY_AFTER_MAX_S
    for seconds in (86400, 10**400):
        assert error_from_reply(429, body(details={"retryAfterSeconds": seconds}), request="").retry_after_s == 60.0


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

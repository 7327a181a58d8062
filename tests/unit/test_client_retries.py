"""Which requests the client sends again, when it gives up, and whether a failed request may have been applied."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_gangjobs.cluster.errors import (
    RETRY_AFTER_MAX_S,
    AlreadyExists,
    Conflict,
    NotFound,
    ReplyLost,
    ServerError,
    TooManyRequests,
    UnexpectedReply,
    Unreachable,
)
from airflow_provider_gangjobs.cluster.resources import JOBS
from tests.provider.virtual_time import in_virtual_time
from tests.unit.fault_server import (
    FaultServer,
    bad_gateway,
    config_for,
    echo,
    failing_first,
    internal_error,
    login_page,
    no_head,
    refusing,
    reset_at_once,
    too_many_requests,
)

if TYPE_CHECKING:
    from tests.unit.conftest import Connect
    from tests.unit.virtual_sleep import VirtualSleep

TRANSIENT = [internal_error, bad_gateway, reset_at_once, too_many_requests("1"), refusing(503, "ServiceUnavailable")]


@pytest.mark.parametrize("fault", TRANSIENT, ids=["500", "502", "reset", "429", "503"])
async def test_read_is_retried_after_a_transient_fault(
    connect: Connect, fault: Any, virtual_sleep: VirtualSleep
) -> None:
    async with FaultServer(failing_first(fault)) as server, connect(server.config, clock=virtual_sleep.clock) as client:
        assert await client.get(JOBS, "a", "team") == {"metadata": {"name": "a"}}
        assert client.statistics().requests == {"get": 2}
        assert client.statistics().retries == 1


async def test_read_is_retried_until_its_deadline(connect: Connect, virtual_sleep: VirtualSleep) -> None:
    async with (
        FaultServer(failing_first(*[internal_error] * 999)) as server,
        connect(server.config, clock=virtual_sleep.clock, retry_for_s=60) as client,
    ):
        with pytest.raises(ServerError):
            await client.get(JOBS, "a", "team")
    assert 30 < virtual_sleep.now <= 60
    assert len(server.requests) < 40


async def test_retry_after_is_honoured(connect: Connect, virtual_sleep: VirtualSleep) -> None:
    fault = too_many_requests("7")
    async with FaultServer(failing_first(fault)) as server, connect(server.config, clock=virtual_sleep.clock) as client:
        await client.get(JOBS, "a", "team")
    assert virtual_sleep.slept == [7.0]


async def test_retry_after_beyond_the_deadline_is_not_waited_for(connect: Connect, virtual_sleep: VirtualSleep) -> None:
    fault, clock = too_many_requests("3600"), virtual_sleep.clock
    async with (
        FaultServer(failing_first(fault)) as server,
        connect(server.config, clock=clock, retry_for_s=30) as client,
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
    connect: Connect, fault: Any, error: type[Exception], virtual_sleep: VirtualSleep
) -> None:
    async with FaultServer(failing_first(fault)) as server, connect(server.config, clock=virtual_sleep.clock) as client:
        with pytest.raises(error):
            await client.create(JOBS, {}, "team")
    assert len(server.requests) == 1


NOT_PROCESSED = [
    too_many_requests("1"),
    refusing(429, "TooManyRequests"),
    refusing(503, "X", details={"retryAfterSeconds": 1}),
]


@pytest.mark.parametrize("fault", NOT_PROCESSED, ids=["429 with Retry-After", "429", "503 with Retry-After"])
async def test_write_that_was_not_processed_is_retried(
    connect: Connect, fault: Any, virtual_sleep: VirtualSleep
) -> None:
    async with FaultServer(failing_first(fault)) as server, connect(server.config, clock=virtual_sleep.clock) as client:
        await client.create(JOBS, {}, "team")
    assert len(server.requests) == 2


# -- requests that may have been applied -----------------------------------------------------------------------


async def test_refused_connection_was_never_sent(connect: Connect, virtual_sleep: VirtualSleep) -> None:
    async with FaultServer(echo) as server:
        config = server.config
    async with connect(config, clock=virtual_sleep.clock) as client:
        with pytest.raises(Unreachable) as caught:
            await client.create(JOBS, {}, "team")
    assert not caught.value.may_have_applied


async def test_unknown_host_was_never_sent(connect: Connect, virtual_sleep: VirtualSleep) -> None:
    async with connect(config_for("http://nowhere.invalid:1"), clock=virtual_sleep.clock) as client:
        with pytest.raises(Unreachable):
            await client.create(JOBS, {}, "team")


@in_virtual_time
async def test_list_fails_when_no_response_begins_in_time(connect: Connect) -> None:
    """The time of the list itself is 60 s, which a person who waits at a terminal does not know."""
    limits = {"retry_for_s": 0.0, "answer_within_s": 15.0}
    async with FaultServer(failing_first(no_head)) as server, connect(server.config, **limits) as client:
        began = asyncio.get_running_loop().time()
        with pytest.raises(ReplyLost):
            await client.list(JOBS, "team")
        assert 15 <= asyncio.get_running_loop().time() - began < 16

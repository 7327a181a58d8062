"""The `pods/log` subresource: selects the container and the part of its log, and streams the log from a `LogSource`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import Response, StreamingResponse

from gangjobs_sandbox import errors
from gangjobs_sandbox.api.bodies import flag, integer, options_error
from gangjobs_sandbox.clock import Clock, parse_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from datetime import datetime

    from gangjobs_sandbox.store import Object

__all__ = ["LogSource", "log_response"]


class LogSource(Protocol):
    """A source of container logs, such as a node or the nodes of a cluster."""

    def open(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        tail_lines: int | None,
        since: datetime | None,
        timestamps: bool,
        limit_bytes: int | None,
        previous: bool,
    ) -> AsyncIterator[bytes]:
        """Yield the requested part of the log. With `follow`, continue until the container ends.

        :param since: Yield only records that the container wrote at this time or later.

        Raises:
            LookupError: there is no such log.
        """
        ...


async def log_response(source: LogSource | None, pod: Object, query: Mapping[str, str], clock: Clock) -> Response:
    """Answer `GET .../pods/<name>/log`.

    Raises:
        StatusError: 400, the container is not named, unknown, or has not started; 422, a bad parameter.
    """
    container = _container(pod, query.get("container"))
    options = _options(query, clock)
    if source is None or not pod["spec"].get("nodeName"):
        return Response(status_code=204)
    _require_started(pod, container, previous=options["previous"])
    metadata = pod["metadata"]
    stream = source.open(metadata["namespace"], metadata["name"], container, **options)
    try:
        first = await anext(stream, b"")
    except LookupError as exc:
        why = f'failed to get logs of container "{container}" in pod "{metadata["name"]}": {exc}'
        raise errors.bad_request(why) from exc
    return StreamingResponse(_with_first(first, stream), media_type="text/plain")


async def _with_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in rest:
        yield chunk


def _container(pod: Object, wanted: str | None) -> str:
    spec, name = pod["spec"], pod["metadata"]["name"]
    regular: list[str] = [container["name"] for container in spec.get("containers") or ()]
    initial = [container["name"] for container in spec.get("initContainers") or ()]
    if wanted:
        if wanted not in regular + initial:
            raise errors.bad_request(f"container {wanted} is not valid for pod {name}")
        return wanted
    default = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    if default in regular:
        return str(default)
    if len(regular) == 1 and not initial:
        return regular[0]
    if len(regular) == 1:
        listed = f"[{' '.join(regular)}] or one of the init containers: [{' '.join(initial)}]"
    else:
        listed = f"[{' '.join(regular)}]"
    raise errors.bad_request(f"a container name must be specified for pod {name}, choose one of: {listed}")


def _require_started(pod: Object, container: str, *, previous: bool) -> None:
    """Raise 400 if the container has not run yet or, with `previous`, has not run before."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    states = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    found = next((state for state in states if state["name"] == container), None)
    if previous and not (found and (found.get("lastState") or {}).get("terminated")):
        raise errors.bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
    state = (found or {}).get("state") or {}
    if status.get("phase") in {"Succeeded", "Failed"} or "running" in state or "terminated" in state:
        return
    if (found or {}).get("lastState"):
        return
    reason = (state.get("waiting") or {}).get("reason") or "ContainerCreating"
    raise errors.bad_request(f'container "{container}" in pod "{name}" is waiting to start: {reason}')


def _options(query: Mapping[str, str], clock: Clock) -> dict[str, Any]:
    tail, limit, seconds = (integer(query, name) for name in ("tailLines", "limitBytes", "sinceSeconds"))
    if tail is not None and tail < 0:
        raise options_error("PodLogOptions", errors.invalid_value("tailLines", tail, "must be non-negative"))
    if limit is not None and limit < 1:
        raise options_error("PodLogOptions", errors.invalid_value("limitBytes", limit, "must be greater than 0"))
    if seconds is not None and query.get("sinceTime"):
        what = errors.forbidden_field("sinceSeconds", "at most one of `sinceTime` or `sinceSeconds` may be specified")
        raise options_error("PodLogOptions", what)
    if seconds is not None and seconds < 1:
        raise options_error("PodLogOptions", errors.invalid_value("sinceSeconds", seconds, "must be greater than 0"))
    since = clock.now() - timedelta(seconds=seconds) if seconds is not None else None
    if query.get("sinceTime"):
        # The API server passes whole seconds to the kubelet (`LogLocation` in pkg/registry/core/pod).
        since = _moment(query["sinceTime"]).replace(microsecond=0)
    return {
        "follow": flag(query, "follow"),
        "tail_lines": tail,
        "since": since,
        "timestamps": flag(query, "timestamps"),
        "limit_bytes": limit,
        "previous": flag(query, "previous"),
    }


def _moment(text: str) -> datetime:
    try:
        return parse_time(text)
    except ValueError as exc:
        raise errors.bad_request(f"sinceTime {text!r} is not an RFC 3339 timestamp") from exc

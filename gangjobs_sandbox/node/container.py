"""Runs one container of a pod: starts it, watches and probes it, restarts it by its restart policy, and stops it.

The runner is the only writer of its `ContainerState`. The runner detects what an earlier node has left of the
container, and continues from there.

Restarts follow the rules of the kubelet. The first one is immediate. Later ones wait for 10 s, doubled each time up to
five minutes. The delay is reset after a run of ten minutes. Of the probes, only readiness probes are run.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import httpx

from gangjobs_sandbox.node.container_config import MESSAGE_FILE, NoCommandError, build_spec
from gangjobs_sandbox.node.environment import Rewriter
from gangjobs_sandbox.node.logs import last_text
from gangjobs_sandbox.node.pod_state import ContainerState, Kind, Terminated, Waiting
from gangjobs_sandbox.node.process import SPEC_FILE, ContainerProcess
from gangjobs_sandbox.node.recorder import NORMAL, WARNING
from gangjobs_sandbox.node.shim.spec import LOG_FILE, REASON_START, Exit, read_spec
from gangjobs_sandbox.node.sources import SourceMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from gangjobs_sandbox.node.container_config import ContainerContext
    from gangjobs_sandbox.node.sources import Sources

__all__ = [
    "Actions",
    "Backoff",
    "ContainerRunner",
    "Pod",
    "StopRequest",
    "cancel_and_wait",
    "is_restarted",
    "wait_first",
    "watch_readiness",
]


_DELAY_MAX_FACTOR = 30
"""A maximum of five minutes with the default first delay of ten seconds."""
_RESET_FACTOR = 60
"""Ten minutes with the default first delay."""
_HTTP_OK = range(200, 400)
_MESSAGE_BYTES_MAX = 4096
_FALLBACK_LINES_MAX, _FALLBACK_BYTES_MAX = 80, 2048
_HOOK_TIMEOUT_S = 30.0


async def wait_first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until the first of the coroutines returns, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(*tasks)


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the unfinished tasks and wait until they have ended. Their exceptions are discarded."""
    for task in tasks:
        # A second cancellation would interrupt the cleanup after the first one.
        if not task.done() and not task.cancelling():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def is_restarted(kind: Kind, restart_policy: str, exit_code: int) -> bool:
    """Return whether a container of this kind restarts after this exit code."""
    if kind is Kind.SIDECAR:
        return True
    if kind is Kind.INIT:
        return exit_code != 0 and restart_policy != "Never"
    return {"Always": True, "OnFailure": exit_code != 0, "Never": False}[restart_policy]


class Backoff:
    """The delays before the restarts of one container, in seconds."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._next_s = 0.0

    def delay_s(self, *, ran_s: float) -> float:
        """Return the delay after a run of `ran_s` seconds."""
        if ran_s >= self._first_s * _RESET_FACTOR:
            self._next_s = 0.0
        delay, doubled = self._next_s, self._next_s * 2
        self._next_s = min(doubled or self._first_s, self._first_s * _DELAY_MAX_FACTOR)
        return delay


class Actions:
    """Runs the actions of a spec against one running container."""

    def __init__(self, process: ContainerProcess, container: Mapping[str, Any], pod_ip: str) -> None:
        self._process = process
        self._ports = {port.get("name"): port["containerPort"] for port in container.get("ports") or ()}
        self._pod_ip = pod_ip
        self._numbers = itertools.count()

    async def succeeds(self, action: Mapping[str, Any], *, timeout_s: float) -> bool:
        """Return whether the action succeeds within the timeout. The action leaves no process behind."""
        try:
            async with asyncio.timeout(timeout_s):
                if action.get("exec"):
                    return await self._exec(action["exec"]["command"])
                if action.get("httpGet"):
                    return await self._http_get(action["httpGet"])
                if action.get("tcpSocket"):
                    return await self._connect(action["tcpSocket"])
                if action.get("sleep"):
                    await asyncio.sleep(action["sleep"]["seconds"])
                return True
        except TimeoutError:
            return False

    async def _exec(self, command: list[str]) -> bool:
        """Run a command inside the container's isolation."""
        spec = read_spec(str(Path(self._process.directory, SPEC_FILE)))
        directory = str(Path(self._process.directory, f"exec-{next(self._numbers)}"))
        join_pid = self._process.pid if spec.mounts is not None else 0
        paths = Rewriter(spec.folders or {})
        argv = [paths.text(text) for text in command]
        inside = spec._replace(argv=argv, directory=directory, mounts=None, join_pid=join_pid, outlives_node=False)
        process = await ContainerProcess.start(inside)
        try:
            return (await process.wait()).code == 0
        finally:
            await process.end()

    async def _http_get(self, target: Mapping[str, Any]) -> bool:
        host = target.get("host") or self._pod_ip
        url = f"{target.get('scheme', 'HTTP').lower()}://{host}:{self._port(target)}{target.get('path') or '/'}"
        headers = {item["name"]: item["value"] for item in target.get("httpHeaders") or ()}
        try:
            async with httpx.AsyncClient(verify=False, trust_env=False) as http:  # noqa: S501 - as a kubelet's probes
                return (await http.get(url, headers=headers)).status_code in _HTTP_OK
        except httpx.TransportError:
            return False

    async def _connect(self, target: Mapping[str, Any]) -> bool:
        try:
            _, writer = await asyncio.open_connection(target.get("host") or self._pod_ip, self._port(target))
        except OSError:
            return False
        writer.close()
        return True

    def _port(self, target: Mapping[str, Any]) -> int:
        port = target["port"]
        return int(self._ports.get(port, port))


async def watch_readiness(actions: Actions, probe: Mapping[str, Any], report: Callable[[bool], None]) -> None:
    """Run a readiness probe until cancelled, and report each change."""
    ready, streak = False, 0
    thresholds = {True: probe.get("successThreshold", 1), False: probe.get("failureThreshold", 3)}
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    while True:
        result = await actions.succeeds(probe, timeout_s=probe.get("timeoutSeconds", 1))
        streak = streak + 1 if result != ready else 0
        if result != ready and streak >= thresholds[result]:
            ready, streak = result, 0
            report(ready)
        await asyncio.sleep(probe.get("periodSeconds", 10))


class StopRequest:
    """A request to stop the pod. A later request can shorten the grace period."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.grace_s = float("inf")

    def request(self, grace_s: float) -> bool:
        """Request the stop. Returns whether this request is more urgent than the earlier ones."""
        sooner = grace_s < self.grace_s
        self.grace_s = min(self.grace_s, grace_s)
        self._event.set()
        return sooner

    def is_requested(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    async def wait_for(self, seconds: float) -> bool:
        """Wait until the stop is requested, for at most `seconds`. Returns whether the stop is requested."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return self._event.is_set()


class Pod(Protocol):
    """The part of a pod worker that a container runner uses."""

    context: ContainerContext
    stop: StopRequest
    restart_policy: str
    retry_s: float
    crash_backoff_s: float
    start_slots: asyncio.Semaphore

    async def container_sources(self, container: Mapping[str, Any]) -> Sources: ...
    def publish_state(self) -> None: ...
    def event(self, kind: str, reason: str, message: str, container: str = "") -> None: ...


class ContainerRunner:
    """Runs one container until it ends for good or its pod is stopped."""

    def __init__(self, pod: Pod, container: Mapping[str, Any], state: ContainerState) -> None:
        self._pod = pod
        self._container = container
        self.state = state
        self._backoff = Backoff(pod.crash_backoff_s)
        self._process: ContainerProcess | None = None
        self._own_stop = pod.stop
        self.startup_done = asyncio.Event()
        """Set when the container has started for the first time, or will never start."""

    def stop_on(self, stop: StopRequest) -> None:
        """Stop the container on this request instead of the request of the pod.

        Sidecars have a request of their own, because they end after the other containers.
        """
        self._own_stop = stop

    async def run(self) -> None:
        """Run the container to its end. The result is in `state`."""
        try:
            number = self._pod.context.folder.latest_run(self.state.name) or 0
            while not self.state.ended or self._restarts_again():
                if self.state.ended:
                    number += 1
                    if await self._back_off():
                        return
                await self._run_once(number)
                if not self.state.ended:
                    return
        finally:
            self.startup_done.set()

    def shorten_grace_period(self, grace_s: float) -> None:
        """Shorten the grace period of a process that is being stopped."""
        if self._process is not None:
            self._process.stop(grace_s)

    async def kill(self) -> None:
        """Kill the process and wait until it is gone."""
        if self._process is not None:
            await self._process.end()

    def _restarts_again(self) -> bool:
        ended = self.state.ended
        assert ended is not None
        return not self._own_stop.is_requested() and is_restarted(
            self.state.kind, self._pod.restart_policy, ended.exit_code
        )

    async def _back_off(self) -> bool:
        """Wait before the next run. Returns whether the pod was stopped during the wait."""
        ended = self.state.ended
        assert ended is not None
        ran_s = (ended.finished - ended.started).total_seconds() if ended.started else 0.0
        delay = self._backoff.delay_s(ran_s=ran_s)
        if delay:
            metadata = self._pod.context.facts.metadata
            where = f"pod={metadata['name']}_{metadata['namespace']}({metadata['uid']})"
            message = f"back-off {delay:g}s restarting failed container={self.state.name} {where}"
            self.state.wait(Waiting("CrashLoopBackOff", message))
            self._pod.event(WARNING, "BackOff", f"Back-off restarting failed {where}", self.state.name)
            self._pod.publish_state()
        stopped = await self._own_stop.wait_for(delay) if delay else self._own_stop.is_requested()
        if stopped and self.state.last:
            self.state.end(self.state.last)
        return stopped

    async def _run_once(self, number: int) -> None:
        run = self._pod.context.folder.run(self.state.name, number)
        process = await self._adopt_or_start(run)
        if process is None:
            return
        self._process = process
        container_id = f"process://{hashlib.sha256(str(run).encode()).hexdigest()}"
        if process.running:
            probed = bool(self._container.get("readinessProbe"))
            self.state.run(_from_timestamp(process.started), container_id, number=number, ready=not probed)
            self.startup_done.set()
            self._pod.publish_state()
        exit_record = await self._watch(process)
        self.state.end(self._terminated_state(exit_record, run, container_id), number=number)
        if exit_record.reason == REASON_START:
            self._pod.event(WARNING, "Failed", f"Error: {exit_record.message}", self.state.name)
        self._process = None
        self._pod.publish_state()

    async def _adopt_or_start(self, run: Path) -> ContainerProcess | None:
        """Adopt or start the process. Returns None if the pod was stopped before the start."""
        if (run / SPEC_FILE).exists():
            return ContainerProcess.adopt(str(run))
        while not self._own_stop.is_requested():
            try:
                sources = await self._pod.container_sources(self._container)
                spec = build_spec(self._container, self._pod.context, sources, run)
            except (SourceMissingError, NoCommandError, OSError, ValueError) as error:
                reason = (
                    "CreateContainerConfigError" if isinstance(error, SourceMissingError) else "CreateContainerError"
                )
                self.state.wait(Waiting(reason, str(error)))
                self._pod.event(WARNING, "Failed", f"Error: {error}", self.state.name)
                self._pod.publish_state()
                await self._own_stop.wait_for(self._pod.retry_s)
                continue
            async with self._pod.start_slots:
                if self._own_stop.is_requested():
                    return None
                self._pod.event(NORMAL, "Created", f"Created container: {self.state.name}", self.state.name)
                process = await ContainerProcess.start(spec)
            if process.running:
                self._pod.event(NORMAL, "Started", f"Started container {self.state.name}", self.state.name)
            return process
        return None

    async def _watch(self, process: ContainerProcess) -> Exit:
        """Wait for the end of the process. Run hooks and probes concurrently, and stop the process on request."""
        waiting = asyncio.create_task(process.wait(), name=f"end of {self.state.name}")
        hooks = asyncio.create_task(self._run_hook_and_probe(process), name=f"hooks of {self.state.name}")
        stopping = asyncio.create_task(self._own_stop.wait(), name=f"stop of {self.state.name}")
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                await cancel_and_wait(hooks)
                await self._terminate(process)
            return await waiting
        finally:
            await cancel_and_wait(waiting, hooks, stopping)

    async def _run_hook_and_probe(self, process: ContainerProcess) -> None:
        actions = Actions(process, self._container, self._pod.context.facts.pod_ip)
        hook = (self._container.get("lifecycle") or {}).get("postStart")
        if hook and process.running and not await actions.succeeds(hook, timeout_s=_HOOK_TIMEOUT_S):
            self._pod.event(WARNING, "FailedPostStartHook", "PostStartHook failed", self.state.name)
            process.kill()
        if probe := self._container.get("readinessProbe"):
            await watch_readiness(actions, probe, self._set_ready)

    def _set_ready(self, ready: bool) -> None:
        self.state.ready = ready
        self._pod.publish_state()

    async def _terminate(self, process: ContainerProcess) -> None:
        """Run the preStop hook, send SIGTERM, and send SIGKILL after the grace period."""
        self._pod.event(NORMAL, "Killing", f"Stopping container {self.state.name}", self.state.name)
        started = asyncio.get_running_loop().time()
        hook = (self._container.get("lifecycle") or {}).get("preStop")
        if hook and process.running and self._own_stop.grace_s > 0:
            actions = Actions(process, self._container, self._pod.context.facts.pod_ip)
            await actions.succeeds(hook, timeout_s=self._own_stop.grace_s)
        spent = asyncio.get_running_loop().time() - started
        process.stop(max(0.0, self._own_stop.grace_s - spent))

    def _terminated_state(self, exit_record: Exit, run: Path, container_id: str) -> Terminated:
        return Terminated(
            exit_code=exit_record.code,
            reason=exit_record.reason or ("Error" if exit_record.code else "Completed"),
            finished=_from_timestamp(exit_record.finished),
            started=_from_timestamp(exit_record.started) if exit_record.started else None,
            message=exit_record.message or self._termination_message(run, failed=exit_record.code != 0),
            container_id=container_id,
        )

    def _termination_message(self, run: Path, *, failed: bool) -> str:
        """Return the termination message, or the end of the log if the container failed and asks for this fallback."""
        raw = _read_tail(run / MESSAGE_FILE)
        if not raw and failed and self._container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            return last_text(str(run / LOG_FILE), lines_max=_FALLBACK_LINES_MAX, bytes_max=_FALLBACK_BYTES_MAX)
        return raw.decode(errors="replace")


def _read_tail(path: Path) -> bytes:
    """Return the end of a file. The container may have written a file of any size, or removed it."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MESSAGE_BYTES_MAX))
            return file.read(_MESSAGE_BYTES_MAX)
    except OSError:
        return b""


def _from_timestamp(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

"""One container of a pod: started, watched, started again as its policy says, and stopped.

The runner is the only writer of its `ContainerState`. It finds out by itself what an earlier node has
left of its container, and goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from .container_config import MESSAGE_FILE, NoCommandError, assemble
from .logs import last_text
from .pod_state import ContainerState, Terminated, Waiting
from .probes import Actions, watch_readiness
from .process import SPEC_FILE, ContainerProcess
from .recorder import NORMAL, WARNING
from .restart import Backoff, is_restarted
from .shim.spec import LOG_FILE, REASON_START, Exit
from .sources import SourceMissingError
from .waiting import end_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .container_config import ContainerContext
    from .sources import Sources

__all__ = ["ContainerRunner", "Pod", "Stop"]

_MESSAGE_BYTES_MAX = 4096
_FALLBACK_LINES_MAX, _FALLBACK_BYTES_MAX = 80, 2048
_HOOK_TIMEOUT_S = 30.0


class Stop:
    """A wish that the pod ends, which may become more urgent."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.grace_s = float("inf")

    def request(self, grace_s: float) -> bool:
        """Returns whether this is sooner than what was asked before."""
        sooner = grace_s < self.grace_s
        self.grace_s = min(self.grace_s, grace_s)
        self._event.set()
        return sooner

    def is_requested(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    async def wait_for(self, seconds: float) -> bool:
        """Wait so long, or until the stop; returns whether it was the stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return self._event.is_set()


class Pod(Protocol):
    """What a container needs of its pod."""

    around: ContainerContext
    stop: Stop
    restart_policy: str
    retry_s: float
    crash_backoff_s: float
    start_slots: asyncio.Semaphore

    async def sources_of(self, container: Mapping[str, Any]) -> Sources: ...
    def changed(self) -> None: ...
    def event(self, kind: str, reason: str, message: str, container: str = "") -> None: ...


class ContainerRunner:
    """Runs one container until it is done or its pod is stopped."""

    def __init__(self, pod: Pod, container: Mapping[str, Any], state: ContainerState) -> None:
        self._pod = pod
        self._container = container
        self.state = state
        self._backoff = Backoff(pod.crash_backoff_s)
        self._process: ContainerProcess | None = None
        self._own_stop = pod.stop
        self.begun = asyncio.Event()
        """Set when the container has run for the first time, or will not."""

    def stop_on(self, stop: Stop) -> None:
        """Follow another stop than the pod's; for sidecars, which end after the others."""
        self._own_stop = stop

    async def run(self) -> None:
        """Run to the end; the state says how."""
        try:
            number = self._pod.around.folder.latest_run(self.state.name) or 0
            while not self.state.ended or self._restarts():
                if self.state.ended:
                    number += 1
                    if await self._back_off():
                        return
                await self._run_once(number)
                if not self.state.ended:
                    return
        finally:
            self.begun.set()

    def shorten_grace_period(self, grace_s: float) -> None:
        """Shorten the time that a stop leaves to the process."""
        if self._process is not None:
            self._process.stop(grace_s)

    async def kill(self) -> None:
        """End the process at once, and wait until it is gone."""
        if self._process is not None:
            await self._process.end()

    def _restarts(self) -> bool:
        ended = self.state.ended
        assert ended is not None
        return not self._own_stop.is_requested() and is_restarted(
            self.state.kind, self._pod.restart_policy, ended.exit_code
        )

    async def _back_off(self) -> bool:
        """Wait before the next run; returns whether the pod was stopped meanwhile."""
        ended = self.state.ended
        assert ended is not None
        ran_s = (ended.finished - ended.started).total_seconds() if ended.started else 0.0
        delay = self._backoff.delay_s(ran_s=ran_s)
        if delay:
            metadata = self._pod.around.facts.metadata
            where = f"pod={metadata['name']}_{metadata['namespace']}({metadata['uid']})"
            message = f"back-off {delay:g}s restarting failed container={self.state.name} {where}"
            self.state.wait(Waiting("CrashLoopBackOff", message))
            self._pod.event(WARNING, "BackOff", f"Back-off restarting failed {where}", self.state.name)
            self._pod.changed()
        stopped = await self._own_stop.wait_for(delay) if delay else self._own_stop.is_requested()
        if stopped and self.state.last:
            self.state.end(self.state.last)
        return stopped

    async def _run_once(self, number: int) -> None:
        run = self._pod.around.folder.run(self.state.name, number)
        self.state.restarts = number
        process = await self._process_of(run)
        if process is None:
            return
        self._process = process
        container_id = f"process://{hashlib.sha256(str(run).encode()).hexdigest()}"
        if process.running:
            probed = bool(self._container.get("readinessProbe"))
            self.state.run(_moment(process.started), container_id, ready=not probed)
            self.begun.set()
            self._pod.changed()
        ending = await self._watch(process)
        self.state.end(self._ended(ending, run, container_id))
        if ending.reason == REASON_START:
            self._pod.event(WARNING, "Failed", f"Error: {ending.message}", self.state.name)
        self._process = None
        self._pod.changed()

    async def _process_of(self, run: Path) -> ContainerProcess | None:
        """Found or started; None if the pod was stopped before that was possible."""
        if (run / SPEC_FILE).exists():
            return ContainerProcess.adopt(str(run))
        while not self._own_stop.is_requested():
            try:
                sources = await self._pod.sources_of(self._container)
                spec = assemble(self._container, self._pod.around, sources, run)
            except (SourceMissingError, NoCommandError, OSError, ValueError) as error:
                reason = (
                    "CreateContainerConfigError" if isinstance(error, SourceMissingError) else "CreateContainerError"
                )
                self.state.wait(Waiting(reason, str(error)))
                self._pod.event(WARNING, "Failed", f"Error: {error}", self.state.name)
                self._pod.changed()
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
        """Wait for the end, which a stop brings about, while hooks and probes go on beside."""
        waiting = asyncio.create_task(process.wait(), name=f"end of {self.state.name}")
        beside = asyncio.create_task(self._beside(process), name=f"hooks of {self.state.name}")
        stopping = asyncio.create_task(self._own_stop.wait(), name=f"stop of {self.state.name}")
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                await end_tasks(beside)
                await self._terminate(process)
            return await waiting
        finally:
            await end_tasks(waiting, beside, stopping)

    async def _beside(self, process: ContainerProcess) -> None:
        actions = Actions(process, self._container, self._pod.around.facts.pod_ip)
        hook = (self._container.get("lifecycle") or {}).get("postStart")
        if hook and process.running and not await actions.succeeds(hook, timeout_s=_HOOK_TIMEOUT_S):
            self._pod.event(WARNING, "FailedPostStartHook", "PostStartHook failed", self.state.name)
            process.kill()
        if probe := self._container.get("readinessProbe"):
            await watch_readiness(actions, probe, self._set_ready)

    def _set_ready(self, ready: bool) -> None:
        self.state.ready = ready
        self._pod.changed()

    async def _terminate(self, process: ContainerProcess) -> None:
        """Hook, TERM, and after the grace period KILL."""
        self._pod.event(NORMAL, "Killing", f"Stopping container {self.state.name}", self.state.name)
        started = asyncio.get_running_loop().time()
        hook = (self._container.get("lifecycle") or {}).get("preStop")
        if hook and process.running and self._own_stop.grace_s > 0:
            actions = Actions(process, self._container, self._pod.around.facts.pod_ip)
            await actions.succeeds(hook, timeout_s=self._own_stop.grace_s)
        spent = asyncio.get_running_loop().time() - started
        process.stop(max(0.0, self._own_stop.grace_s - spent))

    def _ended(self, ending: Exit, run: Path, container_id: str) -> Terminated:
        return Terminated(
            exit_code=ending.code,
            reason=ending.reason or ("Error" if ending.code else "Completed"),
            finished=_moment(ending.finished),
            started=_moment(ending.started) if ending.started else None,
            message=ending.message or self._message(run, failed=ending.code != 0),
            container_id=container_id,
        )

    def _message(self, run: Path, *, failed: bool) -> str:
        """What the container wrote about its end, else, if asked for and it failed, the end of its log."""
        raw = _tail(run / MESSAGE_FILE)
        if not raw and failed and self._container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            return last_text(str(run / LOG_FILE), lines_max=_FALLBACK_LINES_MAX, bytes_max=_FALLBACK_BYTES_MAX)
        return raw.decode(errors="replace")


def _tail(path: Path) -> bytes:
    """The end of a file that the container may have made as large as it liked, or taken away."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MESSAGE_BYTES_MAX))
            return file.read(_MESSAGE_BYTES_MAX)
    except OSError:
        return b""


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

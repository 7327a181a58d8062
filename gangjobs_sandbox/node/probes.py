"""Runs the probes and lifecycle hooks of a running container: exec, httpGet and tcpSocket.

The node runs readiness probes and lifecycle hooks. It does not run liveness and startup probes.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from gangjobs_sandbox.node.path_rewriting import Rewriter
from gangjobs_sandbox.node.process import SPEC_FILE, ContainerProcess
from gangjobs_sandbox.node.shim.spec import read_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Actions", "watch_readiness"]

_HTTP_OK = range(200, 400)


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

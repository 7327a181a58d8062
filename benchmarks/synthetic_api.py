"""An API server with the pods of one very large gang or of many gangs, to measure their client.

The server makes the JSON of a pod when a client requests the pod, and stores only whether the pod has ended and was
released. `python -m benchmarks.synthetic_api PODS HELD_EVERY GANGS [tls]` prints the address, and serves the requests
of a follower. After `POST /end` with a number of seconds, all pods end within that time, and each Job after its last
pod. The server stores the ledgers, and counts requests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from airflow_provider_gangjobs.gang.labels import LABEL_GANG
from benchmarks.harness import ROOT, with_bytecode
from benchmarks.population import NAMESPACE, Population, gang_of_name, index_of, uid_of
from gangjobs_sandbox import tls

if TYPE_CHECKING:
    from collections.abc import Iterator

PODS_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBS_PATH = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
MAPS_PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
BURST_S = 0.05
BOOKMARK_S = 30.0


class Api:
    """The gangs, their ledgers, and the open watches."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.version = 1000
        self.ended = bytearray(population.pods)
        self.released = bytearray(population.pods)
        self.completed = bytearray(population.gangs)
        self.maps: dict[str, dict[str, Any]] = {}
        self.watchers: dict[str, list[asyncio.Queue[bytes]]] = {"pods": [], "jobs": []}
        self.requests: Counter[str] = Counter()
        self.tasks: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._count], client_max_size=64 * 2**20)
        app.add_routes(
            [
                web.get("/version", self._version),
                web.get(PODS_PATH, self._pods),
                web.patch(PODS_PATH + "/{name}", self._release),
                web.get(JOBS_PATH, self._jobs),
                web.get(JOBS_PATH + "/{name}", self._job),
                web.get(MAPS_PATH, self._list_maps),
                web.post(MAPS_PATH, self._create_map),
                web.get(MAPS_PATH + "/{name}", self._map),
                web.patch(MAPS_PATH + "/{name}", self._patch_map),
                web.post("/end", self._end),
                web.get("/figures", self._figures),
                web.route("*", "/{rest:.*}", self._missing),
            ]
        )
        return app

    @web.middleware
    async def _count(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests["watch" if "watch" in request.query else request.method] += 1
        answer: web.StreamResponse = await handler(request)
        return answer

    # -- pods ------------------------------------------------------------------------------------------------

    def _pod(self, index: int) -> bytes:
        if not self.ended[index]:
            return self.population.running(index, 1 + index)
        held = self.population.is_held(index) and not self.released[index]
        return self.population.ended(index, 1 + index + (2 if held else 3) * self.population.pods, held=held)

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request, "pods")
        selected = self._selected(request)
        first = int(request.query.get("continue", selected.start))
        after = min(first + int(request.query.get("limit") or len(selected)), selected.stop)
        meta = {"resourceVersion": str(self.version)} | ({"continue": str(after)} if after < selected.stop else {})
        items = b",".join(self._pod(index) for index in range(first, after))
        return _json(b'{"kind":"PodList","metadata":' + json.dumps(meta).encode() + b',"items":[' + items + b"]}")

    def _selected(self, request: web.Request) -> range:
        """Return the numbers of the pods that the label selector selects: the pods of one gang, or all."""
        gang = _gang_in_selector(request)
        if gang is None:
            return range(self.population.pods)
        first = gang_of_name(gang) * self.population.size
        return range(first, first + self.population.size)

    async def _release(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        index = index_of(request.match_info["name"])
        self.released[index] = 1
        self._send_event("pods", self._pod(index))
        meta = {
            "name": self.population.name_of(index),
            "namespace": NAMESPACE,
            "uid": uid_of(index),
            "resourceVersion": "1",
        }
        return _json({"kind": "PartialObjectMetadata", "metadata": meta})

    # -- Jobs ------------------------------------------------------------------------------------------------

    def _job_now(self, gang: int) -> dict[str, Any]:
        return self.population.job(gang, self.version, complete=bool(self.completed[gang]))

    async def _job(self, request: web.Request) -> web.StreamResponse:
        gang = gang_of_name(request.match_info["name"])
        return _json(self._job_now(gang)) if gang < self.population.gangs else await self._missing(request)

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request, "jobs")
        items = [self._job_now(gang) for gang in range(self.population.gangs)]
        return _json({"metadata": {"resourceVersion": str(self.version)}, "items": items})

    async def _end(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.create_task(self._end_pods(float((await request.json())["seconds"])))
        self.tasks.add(task)
        return _json({})

    async def _end_pods(self, seconds: float) -> None:
        """End all pods, evenly over this time, and each Job after its last pod."""
        loop = asyncio.get_running_loop()
        began, pods, done = loop.time(), self.population.pods, 0
        while done < pods:
            due = min(pods, int(pods * (loop.time() - began) / seconds))
            for index in range(done, due):
                self.ended[index] = 1
                self._send_event("pods", self._pod(index))
                if (index + 1) % self.population.size == 0:
                    self._complete(index // self.population.size)
                if index % 100 == 0:
                    await asyncio.sleep(0)
            done = due
            await asyncio.sleep(BURST_S)

    def _complete(self, gang: int) -> None:
        self.completed[gang] = 1
        self._send_event("jobs", json.dumps(self._job_now(gang)).encode())

    # -- the ledger ------------------------------------------------------------------------------------------

    async def _list_maps(self, request: web.Request) -> web.StreamResponse:
        gang = _gang_in_selector(request)
        items = [one for one in self.maps.values() if gang is None or one["metadata"]["labels"][LABEL_GANG] == gang]
        return _json({"metadata": {"resourceVersion": str(self.version)}, "items": items})

    async def _create_map(self, request: web.Request) -> web.StreamResponse:
        created = await request.json()
        created["metadata"] |= {"uid": f"uid-{created['metadata']['name']}", "resourceVersion": "1"}
        self.maps[created["metadata"]["name"]] = created
        return _json(self._shown(request, created))

    async def _map(self, request: web.Request) -> web.StreamResponse:
        found = self.maps.get(request.match_info["name"])
        return _json(found) if found else await self._missing(request)

    async def _patch_map(self, request: web.Request) -> web.StreamResponse:
        patch, stored = await request.json(), self.maps[request.match_info["name"]]
        stored.setdefault("data", {}).update(patch["data"])
        return _json(self._shown(request, stored))

    @staticmethod
    def _shown(request: web.Request, stored: dict[str, Any]) -> dict[str, Any]:
        """Return the object, or only its metadata if the client requests that."""
        wants_metadata = "PartialObjectMetadata" in request.headers.get("Accept", "")
        return {"metadata": stored["metadata"]} if wants_metadata else stored

    # -- watches, and the rest -------------------------------------------------------------------------------

    def _send_event(self, kind: str, obj: bytes) -> None:
        self.version += 1
        for queue in self.watchers[kind]:
            queue.put_nowait(b'{"type":"MODIFIED","object":' + obj + b"}\n")

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.watchers[kind].append(queue)
        try:
            while True:
                try:
                    lines = [await asyncio.wait_for(queue.get(), BOOKMARK_S)]
                except TimeoutError:
                    meta = {"metadata": {"resourceVersion": str(self.version)}}
                    lines = [json.dumps({"type": "BOOKMARK", "object": meta}).encode() + b"\n"]
                while not queue.empty() and len(lines) < 16:
                    lines.append(queue.get_nowait())
                # A real API server also writes each event by itself, so that each is a TLS record, or several.
                for line in lines:
                    await response.write(line)
        except (ConnectionError, asyncio.CancelledError):
            return response
        finally:
            self.watchers[kind].remove(queue)

    async def _version(self, _: web.Request) -> web.StreamResponse:
        return _json({"major": "1", "minor": "36", "gitVersion": "v1.36.0"})

    async def _figures(self, _: web.Request) -> web.StreamResponse:
        entries = sum(len(one.get("data", {})) for one in self.maps.values())
        return _json({"requests": dict(self.requests), "recorded": entries, "released": sum(self.released)})

    async def _missing(self, _: web.Request) -> web.StreamResponse:
        return _json({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}, status=404)


def _gang_in_selector(request: web.Request) -> str | None:
    """Return the gang that the label selector names, if any."""
    terms = (term.partition("=") for term in request.query.get("labelSelector", "").split(","))
    return next((value for label, _, value in terms if label == LABEL_GANG and value), None)


def _json(body: Any, *, status: int = 200) -> web.Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return web.Response(body=raw, status=status, content_type="application/json")


async def main(population: Population, *, secure: bool) -> None:
    runner = web.AppRunner(Api(population).app(), access_log=None)
    await runner.setup()
    certificate = tls.issue() if secure else None
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate.server_context() if certificate else None)
    await site.start()
    host, port = runner.addresses[0][:2]
    authority = certificate.certificate.decode() if certificate else None
    url = f"{'https' if secure else 'http'}://{host}:{port}"
    print(json.dumps({"url": url, "authority": authority}), flush=True)
    await asyncio.get_running_loop().run_in_executor(
        None, sys.stdin.read
    )  # The pipe closes when the process that started this one ends.
    await runner.cleanup()


@dataclass(frozen=True)
class SyntheticApi:
    """A running server, as a client sees it."""

    url: str
    authority: str | None
    """The certificate of the server as PEM; `None` for a server without TLS."""

    def kubeconfig(self) -> dict[str, Any]:
        cluster = {"server": self.url}
        if self.authority is not None:
            cluster["certificate-authority-data"] = base64.b64encode(self.authority.encode()).decode()
        return {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "this", "user": "me"}}],
            "clusters": [{"name": "this", "cluster": cluster}],
            "users": [{"name": "me", "user": {}}],
        }

    def control(self) -> aiohttp.ClientSession:
        """Return a client for `/end` and `/figures`."""
        trust = ssl.create_default_context(cadata=self.authority) if self.authority else True
        return aiohttp.ClientSession(self.url, connector=aiohttp.TCPConnector(ssl=trust))


@contextmanager
def serving(population: Population, *, secure: bool = False) -> Iterator[SyntheticApi]:
    """Run a server in a process of its own during the block."""
    numbers = [str(number) for number in (population.pods, population.held_every, population.gangs)]
    command = [sys.executable, "-m", "benchmarks.synthetic_api", *numbers, *(["tls"] if secure else [])]
    with subprocess.Popen(
        command, cwd=ROOT, env=with_bytecode(os.environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        try:
            assert server.stdout is not None
            yield SyntheticApi(**json.loads(server.stdout.readline()))
        finally:
            server.kill()


if __name__ == "__main__":
    pods, held_every, gangs = (int(number) for number in sys.argv[1:4])
    asyncio.run(main(Population(pods, held_every, gangs), secure="tls" in sys.argv))

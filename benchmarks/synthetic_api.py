"""An API server of one very large gang, for measuring its client: it makes each pod's JSON anew and keeps two bits.

`python -m benchmarks.synthetic_api PODS HELD_EVERY` prints its address, and serves what a follower asks for.
`POST /end` with seconds has all pods end within that time, and then the Job. It stores the ledger, and counts requests.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

from aiohttp import web

from benchmarks.population import GANG, JOB_UID, NAMESPACE, Population, index_of, name_of, uid_of

PODS_PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBS_PATH = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
MAPS_PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
BURST_S = 0.05
BOOKMARK_S = 30.0


class Api:
    """The gang, its ledger and who watches."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.version = 1000
        self.ended = bytearray(population.pods)
        self.released = bytearray(population.pods)
        self.is_complete = False
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
        first, limit = int(request.query.get("continue", 0)), int(request.query.get("limit") or self.population.pods)
        after = min(first + limit, self.population.pods)
        meta = {"resourceVersion": str(self.version)} | ({"continue": str(after)} if after < len(self.ended) else {})
        items = b",".join(self._pod(index) for index in range(first, after))
        return _json(b'{"kind":"PodList","metadata":' + json.dumps(meta).encode() + b',"items":[' + items + b"]}")

    async def _release(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        index = index_of(request.match_info["name"])
        self.released[index] = 1
        self._send_event("pods", self._pod(index))
        meta = {"name": name_of(index), "namespace": NAMESPACE, "uid": uid_of(index), "resourceVersion": "1"}
        return _json({"kind": "PartialObjectMetadata", "metadata": meta})

    # -- the Job ---------------------------------------------------------------------------------------------

    def _job_now(self) -> dict[str, Any]:
        return self.population.job(self.version, complete=self.is_complete)

    async def _job(self, request: web.Request) -> web.StreamResponse:
        return _json(self._job_now()) if request.match_info["name"] == GANG else await self._missing(request)

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request, "jobs")
        return _json({"metadata": {"resourceVersion": str(self.version)}, "items": [self._job_now()]})

    async def _end(self, request: web.Request) -> web.StreamResponse:
        task = asyncio.create_task(self._run_out(float((await request.json())["seconds"])))
        self.tasks.add(task)
        return _json({})

    async def _run_out(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        began, pods, done = loop.time(), self.population.pods, 0
        while done < pods:
            due = min(pods, int(pods * (loop.time() - began) / seconds))
            for index in range(done, due):
                self.ended[index] = 1
                self._send_event("pods", self._pod(index))
                if index % 100 == 0:
                    await asyncio.sleep(0)
            done = due
            await asyncio.sleep(BURST_S)
        self.is_complete = True
        self._send_event("jobs", json.dumps(self._job_now()).encode())

    # -- the ledger ------------------------------------------------------------------------------------------

    async def _list_maps(self, request: web.Request) -> web.StreamResponse:
        return _json({"metadata": {"resourceVersion": str(self.version)}, "items": list(self.maps.values())})

    async def _create_map(self, request: web.Request) -> web.StreamResponse:
        made = await request.json()
        made["metadata"] |= {"uid": f"uid-{made['metadata']['name']}", "resourceVersion": "1"}
        self.maps[made["metadata"]["name"]] = made
        return _json(self._shown(request, made))

    async def _map(self, request: web.Request) -> web.StreamResponse:
        found = self.maps.get(request.match_info["name"])
        return _json(found) if found else await self._missing(request)

    async def _patch_map(self, request: web.Request) -> web.StreamResponse:
        patch, there = await request.json(), self.maps[request.match_info["name"]]
        there.setdefault("data", {}).update(patch["data"])
        return _json(self._shown(request, there))

    @staticmethod
    def _shown(request: web.Request, made: dict[str, Any]) -> dict[str, Any]:
        wants_metadata = "PartialObjectMetadata" in request.headers.get("Accept", "")
        return {"metadata": made["metadata"]} if wants_metadata else made

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
                await response.write(b"".join(lines))
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


def _json(body: Any, *, status: int = 200) -> web.Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return web.Response(body=raw, status=status, content_type="application/json")


async def main(pods: int, held_every: int) -> None:
    runner = web.AppRunner(Api(Population(pods, held_every)).app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = runner.addresses[0]
    print(json.dumps({"url": f"http://{address[0]}:{address[1]}", "job_uid": JOB_UID}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until whoever started this is gone
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))

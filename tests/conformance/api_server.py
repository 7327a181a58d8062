"""A client of the API server under test: an embedded server, or the cluster of a kubeconfig."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import yaml

from gangjobs_sandbox import tls
from gangjobs_sandbox.api import create_app, serving
from gangjobs_sandbox.cluster import write_kubeconfig
from gangjobs_sandbox.registry import Registry
from gangjobs_sandbox.releases import RELEASES, Release
from tests.replies import accepted
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
TOKEN = "conformance-token"

Obj = dict[str, Any]


@dataclass
class ApiServer:
    """An API server with an empty namespace for the test. Its methods assert that the server accepts the request."""

    http: httpx.AsyncClient
    release: Release
    kubeconfig: Path
    namespace: str = ""
    is_embedded: bool = False

    def core(self, plural: str, name: str = "", subresource: str = "") -> str:
        return self._path("/api/v1", plural, name, subresource)

    def jobs(self, name: str = "", subresource: str = "") -> str:
        return self._path("/apis/batch/v1", "jobs", name, subresource)

    def scheduling(self, plural: str, name: str = "", subresource: str = "", *, version: str | None = None) -> str:
        version = version or self.release.scheduling_version
        return self._path(f"/apis/scheduling.k8s.io/{version}", plural, name, subresource)

    def _path(self, root: str, plural: str, name: str, subresource: str) -> str:
        return "/".join(part for part in (root, "namespaces", self.namespace, plural, name, subresource) if part)

    async def create(self, path: str, obj: Obj, **parameters: str) -> Obj:
        return accepted(await self.http.post(path, json=obj, params=parameters))

    async def get(self, path: str, **parameters: str) -> Obj:
        return accepted(await self.http.get(path, params=parameters))

    async def send_patch(self, path: str, patch: Any, kind: str = MERGE, **parameters: str) -> httpx.Response:
        headers = {"Content-Type": kind}
        return await self.http.patch(path, content=json.dumps(patch), headers=headers, params=parameters)

    async def patch(self, path: str, patch: Any, kind: str = MERGE, **parameters: str) -> Obj:
        return accepted(await self.send_patch(path, patch, kind, **parameters))

    async def send_delete(self, path: str, **options: Any) -> httpx.Response:
        return await self.http.request("DELETE", path, json=options or None)

    async def delete(self, path: str, **options: Any) -> Obj:
        return accepted(await self.send_delete(path, **options))

    async def exists(self, path: str) -> bool:
        response = await self.http.get(path)
        assert response.status_code in {200, 404}, response.text
        return response.status_code == 200

    async def wait_gone(self, path: str) -> None:
        """Wait until the object does not exist."""
        async with asyncio.timeout(TIMEOUT_S):
            while await self.exists(path):  # noqa: ASYNC110 - no event of this process reports the deletion
                await asyncio.sleep(0.05)

    @asynccontextmanager
    async def watching(self, path: str, **parameters: str) -> AsyncIterator[AsyncIterator[Obj]]:
        """Yield the decoded events of a watch for at most `TIMEOUT_S`."""
        query = {"watch": "1", "timeoutSeconds": str(int(TIMEOUT_S)), **parameters}
        async with self.http.stream("GET", path, params=query, timeout=TIMEOUT_S + 5) as response:
            assert response.status_code == 200, await response.aread()
            yield (json.loads(line) async for line in response.aiter_lines())


def refused(response: httpx.Response, code: int, reason: str) -> Obj:
    """Check that the response is this error, and return its `Status`."""
    assert response.status_code == code, response.text
    status: Obj = response.json()
    assert (status["kind"], status["status"], status["code"], status["reason"]) == ("Status", "Failure", code, reason)
    return status


def invalid_fields(response: httpx.Response) -> list[str]:
    """Return the fields that a 422 names, without the repetitions of releases before 1.37."""
    return list(dict.fromkeys(cause["field"] for cause in refused(response, 422, "Invalid")["details"]["causes"]))


@asynccontextmanager
async def embedded(release: str) -> AsyncIterator[ApiServer]:
    """Run an embedded API server of this release with TLS, as for users."""
    certificate = tls.issue()
    app = create_app(Registry(release=release), token=TOKEN)
    with tempfile.TemporaryDirectory() as folder:
        async with serving(app, certificate=certificate) as address:
            path = Path(folder) / "kubeconfig"
            write_kubeconfig(path, address.url, TOKEN, authority=certificate.certificate)
            async with _client(path) as http:
                yield ApiServer(http, RELEASES[release], path, is_embedded=True)


@asynccontextmanager
async def existing(kubeconfig: Path) -> AsyncIterator[ApiServer]:
    """Connect to the cluster of a kubeconfig with a token."""
    async with _client(kubeconfig) as http:
        yield ApiServer(http, await _release_of(http), kubeconfig)


def _client(kubeconfig: Path) -> httpx.AsyncClient:
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = cluster.get("certificate-authority-data")
    trust = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"), cadata=authority and base64.b64decode(authority).decode()
    )
    headers = {"Authorization": f"Bearer {user['token']}"}
    return httpx.AsyncClient(
        base_url=cluster["server"], headers=headers, verify=trust, timeout=TIMEOUT_S, trust_env=False
    )


async def _release_of(http: httpx.AsyncClient) -> Release:
    """Return the release by the API versions that the cluster serves."""
    group = await http.get("/apis/scheduling.k8s.io")
    versions = {version["version"] for version in group.json()["versions"]}
    for release in RELEASES.values():
        if release.scheduling_versions and set(release.scheduling_versions) <= versions:
            return release
    return RELEASES["none"]


async def fresh_namespace(server: ApiServer) -> None:
    """Create a namespace, and let the server object use this namespace."""
    name = f"conformance-{os.urandom(4).hex()}"
    await server.create("/api/v1/namespaces", {"metadata": {"name": name}})
    server.namespace = name

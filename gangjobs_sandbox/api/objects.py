"""The verbs on objects: what each HTTP method does to a collection, an object or a subresource."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse

from gangjobs_sandbox import errors
from gangjobs_sandbox.api import bodies
from gangjobs_sandbox.api.listing import page_of
from gangjobs_sandbox.api.logs import LogSource, log_response
from gangjobs_sandbox.api.negotiation import Form, form_of
from gangjobs_sandbox.api.responses import json_response, success
from gangjobs_sandbox.api.watching import Watch, WatchHub
from gangjobs_sandbox.cooperative import TimeSlice
from gangjobs_sandbox.registry import Propagation, Registry
from gangjobs_sandbox.registry.deletion import DeleteOptions
from gangjobs_sandbox.registry.schema import schema_of
from gangjobs_sandbox.resources import JOBS
from gangjobs_sandbox.store import Object, Stored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping

    from starlette.requests import Request

    from gangjobs_sandbox.api.listing import Page
    from gangjobs_sandbox.api.routing import Target

__all__ = ["ObjectsApi"]


OBJECTS_PER_STEP_MAX = 100
"""The number of objects that are encoded in one step, which takes about a millisecond."""
PART_BYTES = 64 * 1024

_ORPHANS = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them "
    "or set propagationPolicy=Orphan to suppress this warning"
)


class ObjectsApi:
    """Answers the requests about objects of one registry."""

    def __init__(self, registry: Registry, hub: WatchHub, logs: LogSource | None, *, bookmark_s: float) -> None:
        self._registry = registry
        self._hub = hub
        self._logs = logs
        self._bookmark_s = bookmark_s
        self._schema = schema_of(registry.release.schema)

    async def handle(self, request: Request, target: Target) -> Response:
        """Answer one request.

        Raises:
            StatusError: the request is refused.
        """
        method = "GET" if request.method == "HEAD" else request.method
        if target.name is None:
            actions = {"GET": self._list, "POST": self._create, "DELETE": self._delete_collection}
        elif target.subresource in {"log", "binding", "eviction"}:
            actions = {
                "log": {"GET": self._log},
                "binding": {"POST": self._bind},
                "eviction": {"POST": self._evict},
            }[target.subresource]
        elif target.subresource is not None:
            actions = {"GET": self._get, "PUT": self._update, "PATCH": self._patch}
        else:
            actions = {"GET": self._get, "PUT": self._update, "PATCH": self._patch, "DELETE": self._delete}
        action = actions.get(method)
        if action is None:
            raise errors.method_not_allowed()
        return await action(request, target)

    def _form(self, request: Request, target: Target) -> Form:
        return form_of(request.headers.get("accept", ""), target, request.query_params, self._registry.clock)

    def _reply(
        self, request: Request, target: Target, obj: Object, *, code: int = 200, warnings: list[str] | None = None
    ) -> Response:
        """Respond with an object. The JSON of a stored object is encoded only once."""
        kept = self._stored(target, obj["metadata"]["name"])
        stored = kept if kept is not None and kept.obj is obj else Stored(obj, self._registry.store.revision)
        return json_response(self._form(request, target).one(stored), code, warnings=warnings or ())

    def _stored(self, target: Target, name: str) -> Stored | None:
        return self._registry.store.get(target.resource, target.namespace or "", name)

    async def _list(self, request: Request, target: Target) -> Response:
        query = request.query_params
        form = self._form(request, target)
        if not bodies.flag(query, "watch"):
            return _list_response(form, await TimeSlice().run(page_of(self._registry.store, target, query)))
        watch = Watch(self._hub, target, query, bookmark_s=self._bookmark_s)
        return StreamingResponse(watch.stream(form.one), media_type="application/json")

    async def _get(self, request: Request, target: Target) -> Response:
        if target.name and bodies.flag(request.query_params, "watch"):
            watch = Watch(self._hub, target, request.query_params, bookmark_s=self._bookmark_s)
            return StreamingResponse(watch.stream(self._form(request, target).one), media_type="application/json")
        obj = self._registry.get(target.resource, target.name or "", target.namespace)
        return self._reply(request, target, obj)

    async def _create(self, request: Request, target: Target) -> Response:
        if target.resource.namespaced and target.namespace is None:
            raise errors.method_not_allowed()
        obj = await bodies.read_object(request, target.resource.kind)
        dry_run = bodies.is_dry_run(request.query_params, "CreateOptions")
        warnings: list[str] = []
        created = self._registry.create(
            target.resource,
            obj,
            target.namespace,
            dry_run=dry_run,
            decode=bodies.decoder(self._schema, target, request.query_params, warnings),
            warnings=warnings,
        )
        return self._reply(request, target, created, code=201, warnings=warnings)

    async def _update(self, request: Request, target: Target) -> Response:
        obj = await bodies.read_object(request, target.resource.kind)
        dry_run = bodies.is_dry_run(request.query_params, "UpdateOptions")
        metadata = obj.get("metadata") or {}
        if not metadata.get("name"):
            undeterminable = f"the name of the object ({target.name} based on URL) was undeterminable"
            raise errors.bad_request(f"{undeterminable}: name must be provided")
        if metadata["name"] != target.name:
            message = (
                f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({target.name})"
            )
            raise errors.bad_request(message)
        warnings: list[str] = []
        updated = self._registry.update(
            target.resource,
            obj,
            subresource=target.subresource,
            namespace=target.namespace,
            dry_run=dry_run,
            decode=bodies.decoder(self._schema, target, request.query_params, warnings),
        )
        return self._reply(request, target, updated, warnings=warnings)

    async def _patch(self, request: Request, target: Target) -> Response:
        kind, patch = await bodies.read_patch(request)
        dry_run = bodies.is_dry_run(request.query_params, "PatchOptions")
        warnings: list[str] = []
        patched = self._registry.patch(
            target.resource,
            target.name or "",
            target.namespace,
            patch,
            kind,
            subresource=target.subresource,
            dry_run=dry_run,
            decode=bodies.decoder(self._schema, target, request.query_params, warnings, is_patch=True),
        )
        return self._reply(request, target, patched, warnings=warnings)

    async def _delete(self, request: Request, target: Target) -> Response:
        options, dry_run = await self._delete_options(request)
        warnings = [_ORPHANS] if target.resource is JOBS and options.propagation is None else []
        name = target.name or ""
        last, is_gone = self._registry.delete_with_result(
            target.resource, name, target.namespace, options, dry_run=dry_run
        )
        if is_gone and not self._registry.returns_deleted(target.resource):
            details = {"name": name, "group": target.group, "kind": target.resource.plural}
            details["uid"] = last["metadata"]["uid"]
            body = success(details={key: value for key, value in details.items() if value})
            return json_response(body, warnings=warnings)
        return self._reply(request, target, last, warnings=warnings)

    async def _delete_collection(self, request: Request, target: Target) -> Response:
        if target.resource.namespaced and target.namespace is None:
            raise errors.method_not_allowed()
        options, dry_run = await self._delete_options(request)
        time_slice = TimeSlice()
        page = await time_slice.run(page_of(self._registry.store, target, request.query_params))
        for stored in page.items:
            with _ignore_not_found():
                name = stored.obj["metadata"]["name"]
                self._registry.delete_with_result(target.resource, name, target.namespace, options, dry_run=dry_run)
            await time_slice.yield_if_expired()
        return _list_response(self._form(request, target), page)

    async def _delete_options(self, request: Request) -> tuple[DeleteOptions, bool]:
        """Return the DeleteOptions from the body, or else from the parameters, and whether the request is a dry run."""
        body = await bodies.read_object(request, "DeleteOptions", optional=True)
        query = request.query_params
        preconditions = body.get("preconditions") or {}
        grace_s = body.get("gracePeriodSeconds")
        options = DeleteOptions(
            propagation=_propagation(body, query),
            grace_period_s=bodies.integer(query, "gracePeriodSeconds") if grace_s is None else grace_s,
            uid=preconditions.get("uid"),
            resource_version=preconditions.get("resourceVersion"),
        )
        return options, bool(body.get("dryRun")) or bodies.is_dry_run(query, "DeleteOptions")

    async def _log(self, request: Request, target: Target) -> Response:
        pod = self._registry.get(target.resource, target.name or "", target.namespace)
        return await log_response(self._logs, pod, request.query_params, self._registry.clock)

    async def _bind(self, request: Request, target: Target) -> Response:
        binding = await bodies.read_object(request, "Binding")
        metadata = binding.get("metadata") or {}
        if metadata.get("name") != target.name:
            raise errors.bad_request("name in URL does not match name in Binding object")
        node = (binding.get("target") or {}).get("name")
        if not node:
            cause = errors.required("target.name")
            details = {"name": target.name, "kind": "Binding", "causes": [cause.to_dict()]}
            raise errors.StatusError(422, "Invalid", f'Binding "{target.name}" is invalid: {cause}', details)
        annotations = metadata.get("annotations")
        self._registry.bind(target.name or "", target.namespace or "", node, annotations=annotations)
        return json_response(success(201), 201)

    async def _evict(self, request: Request, target: Target) -> Response:
        eviction = await bodies.read_object(request, "Eviction")
        options = eviction.get("deleteOptions") or {}
        dry_run = bool(options.get("dryRun")) or bodies.is_dry_run(request.query_params, "CreateOptions")
        self._registry.evict(
            target.name or "",
            target.namespace or "",
            uid=(options.get("preconditions") or {}).get("uid"),
            grace_period_s=options.get("gracePeriodSeconds"),
            dry_run=dry_run,
        )
        return json_response(success(201), 201)


def _list_response(form: Form, page: Page) -> Response:
    """Send a short list in one piece, and stream a long list."""
    if len(page.items) <= OBJECTS_PER_STEP_MAX:
        return json_response(b"".join(form.pieces(page)))
    headers = {"Cache-Control": "no-cache, private"}
    return StreamingResponse(_in_chunks(form.pieces(page)), headers=headers, media_type="application/json")


async def _in_chunks(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Join the pieces into chunks."""
    time_slice, part = TimeSlice(), bytearray()
    for piece in pieces:
        part += piece
        if len(part) >= PART_BYTES:
            yield bytes(part)
            part.clear()
        await time_slice.yield_if_expired()
    yield bytes(part)


@contextmanager
def _ignore_not_found() -> Iterator[None]:
    """Ignore 404: an object that is to be deleted may already be gone."""
    try:
        yield
    except errors.StatusError as exc:
        if exc.code != 404:
            raise


def _propagation(body: Object, query: Mapping[str, str]) -> Propagation | None:
    wanted = body.get("propagationPolicy") or query.get("propagationPolicy")
    orphan = body.get("orphanDependents")
    if orphan is not None and wanted:
        detail = "orphanDependents and deletionPropagation cannot be both set"
        raise bodies.options_error("DeleteOptions", errors.invalid_value("propagationPolicy", wanted, detail))
    if orphan is not None:
        return Propagation.ORPHAN if orphan else Propagation.BACKGROUND
    if wanted and wanted not in {policy.value for policy in Propagation}:
        supported = ("Foreground", "Background", "Orphan", "nil")
        cause = errors.not_supported("propagationPolicy", wanted, supported)
        raise bodies.options_error("DeleteOptions", cause)
    return Propagation(wanted) if wanted else None

"""The API server without HTTP: every rule about objects, over one store.

The registry is synchronous: a change is decided and written between two awaits of the event loop that owns it, so no
other task sees a partial change. The store and all callers share the objects that the registry returns. Copy an object
with `objects_copy` before you change it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gangjobs_sandbox import errors
from gangjobs_sandbox.apimachinery import selectors
from gangjobs_sandbox.clock import Clock, SystemClock, timestamp
from gangjobs_sandbox.registry import deletion, field_selectors, metadata, pods
from gangjobs_sandbox.registry.core import terminating
from gangjobs_sandbox.registry.deletion import DeleteOptions, Outcome, Propagation
from gangjobs_sandbox.registry.kinds import STRATEGIES, first_objects
from gangjobs_sandbox.registry.patching import PatchKind, patched
from gangjobs_sandbox.registry.recorder import Recorder
from gangjobs_sandbox.registry.strategies import Context, Strategy
from gangjobs_sandbox.releases import RELEASES, Release
from gangjobs_sandbox.resources import NAMESPACES, PODS, Resource, by_key
from gangjobs_sandbox.store import Object, Observer, Store, objects_copy

if TYPE_CHECKING:
    from gangjobs_sandbox.apimachinery.selectors import FieldSelector, Selector

__all__ = ["Registry"]

Objects = list[Object]
Warnings = list[str]
Decode = Callable[[Object], Object]
"""Checks an object against the schema, and copies it without unknown fields. May raise StatusError."""

_NO_CONTENT = frozenset({"metadata", "status"})
_OPTIMISTIC_LOCK = "the object has been modified; please apply your changes to the latest version and try again"


class Registry:
    """The operations on the objects of one embedded cluster."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        clock: Clock | None = None,
        release: Release | str = "1.37",
        rng: random.Random | None = None,
    ) -> None:
        self.store = store or Store()
        self.clock: Clock = clock or SystemClock()
        self.release = RELEASES[release] if isinstance(release, str) else release
        self._rng = rng or random.SystemRandom()
        self._recorder = Recorder(self)
        self._bootstrap()

    # Reading

    def find(self, resource: str | Resource, namespace: str | None, name: str) -> Object | None:
        """Return the object, or None if it does not exist."""
        kind = by_key(resource)
        stored = self.store.get(kind, (namespace or "") if kind.namespaced else "", name)
        return stored.obj if stored else None

    def get(self, resource: str | Resource, name: str, namespace: str | None = None) -> Object:
        """Return the object.

        Raises:
            StatusError: 404, the object does not exist.
        """
        kind = by_key(resource)
        found = self.find(kind, namespace, name)
        if found is None:
            raise errors.not_found(kind, name)
        return found

    def list(
        self,
        resource: str | Resource,
        namespace: str | None = None,
        label_selector: str | Selector | None = None,
        field_selector: str | FieldSelector | None = None,
    ) -> Objects:
        """Return the matching objects of a namespace (None means all), ordered by namespace and name."""
        kind = by_key(resource)
        labels = selectors.parse(label_selector) if isinstance(label_selector, str) else label_selector
        fields = selectors.parse_fields(field_selector) if isinstance(field_selector, str) else field_selector
        field_selectors.check_fields(kind, fields.fields if fields else ())
        found = [stored.obj for stored in self.store.list(kind, namespace, labels)]
        return [obj for obj in found if field_selectors.matches_fields(obj, fields)] if fields else found

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call the observer with an `Event` after each change. Returns a function that removes the observer."""
        return self.store.observe(observer)

    # Writing

    def create(
        self,
        resource: str | Resource,
        obj: Object,
        namespace: str | None = None,
        *,
        dry_run: bool = False,
        decode: Decode | None = None,
        warnings: Warnings | None = None,
    ) -> Object:
        """Create an object. `namespace` is that of the request (None means the object's own, or `default`).

        Raises:
            StatusError: 409 the object exists, 404 the namespace does not exist, 403 the namespace is being deleted,
                422 or 400 the object is not valid.
        """
        kind, strategy, context = self._open(resource)
        new: Object = decode(obj) if decode else objects_copy(obj)
        self._identify(kind, new)
        place = namespace or (new.get("metadata") or {}).get("namespace") or "default"
        meta = metadata.complete(new, kind, place, now=context.now, rng=self._rng)
        if kind.namespaced:
            self._require_namespace(kind, meta)
        strategy.default(new, context)
        strategy.prepare_create(new, context)
        causes = _metadata_causes(meta, strategy, context)
        causes = [*causes, *strategy.validate_create(new, context), *strategy.validate(new, context)]
        self._refuse(kind, new, causes)
        strategy.canonicalize(new)
        if self.find(kind, meta.get("namespace"), meta["name"]) is not None:
            raise errors.already_exists(kind, meta["name"])
        if warnings is not None:
            warnings.extend(strategy.warnings(new))
        return new if dry_run else self.store.put(kind, new).obj

    def update(
        self,
        resource: str | Resource,
        obj: Object,
        *,
        subresource: str | None = None,
        namespace: str | None = None,
        dry_run: bool = False,
        decode: Decode | None = None,
    ) -> Object:
        """Replace an object (its spec and metadata), or with `subresource` its status.

        A resourceVersion or uid in the object must be the current one.

        Raises:
            StatusError: 404 the object does not exist, 409 the resourceVersion or the uid is not the current one,
                422 or 400 the new object is not valid.
        """
        kind, _, _ = self._open(resource)
        new: Object = decode(obj) if decode else objects_copy(obj)
        self._identify(kind, new)
        sent = new.get("metadata") or {}
        old = self.get(kind, sent.get("name") or "", namespace or sent.get("namespace"))
        if (uid := sent.get("uid")) and uid != old["metadata"]["uid"]:
            raise errors.conflict(kind, sent["name"], _uid_mismatch(kind, old, uid))
        return self._replace(kind, old, new, subresource=subresource, dry_run=dry_run)

    def patch(
        self,
        resource: str | Resource,
        name: str,
        namespace: str | None,
        patch: Any,
        kind: PatchKind | str = PatchKind.MERGE,
        *,
        subresource: str | None = None,
        dry_run: bool = False,
        decode: Decode | None = None,
    ) -> Object:
        """Patch an object. The patch may contain a resourceVersion as a precondition.

        Raises:
            StatusError: 404 the object does not exist, 409 the resourceVersion is not the current one, 422 the patched
                object is not valid or has another uid, 400 the patch is malformed or changes the name.
        """
        which, _, _ = self._open(resource)
        old = self.get(which, name, namespace)
        new = patched(which, old, patch, PatchKind(kind))
        if (new.get("metadata") or {}).get("name") != name:
            raise errors.bad_request(
                f"the name of the object ({(new.get('metadata') or {}).get('name')}) "
                f"does not match the name on the URL ({name})"
            )
        new = _copy_changed(new, old, decode or objects_copy)
        return self._replace(which, old, new, subresource=subresource, dry_run=dry_run)

    def delete(
        self,
        resource: str | Resource,
        name: str,
        namespace: str | None = None,
        *,
        propagation: Propagation | str | None = None,
        uid: str | None = None,
        grace_period_s: int | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Delete an object, or mark it for deletion if a grace period, finalizers or dependents delay the deletion.

        Returns the last version of the object.

        Raises:
            StatusError: 404 the object does not exist, 409 a precondition does not hold.
        """
        options = DeleteOptions(
            propagation=Propagation(propagation) if propagation else None,
            grace_period_s=grace_period_s,
            uid=uid,
        )
        return self.delete_with_result(resource, name, namespace, options, dry_run=dry_run)[0]

    def delete_with_result(
        self,
        resource: str | Resource,
        name: str,
        namespace: str | None,
        options: DeleteOptions,
        *,
        dry_run: bool = False,
    ) -> tuple[Object, bool]:
        """Delete an object as `delete` does.

        Returns the object, and whether it is removed (with `dry_run`: would be).
        """
        kind, strategy, context = self._open(resource)
        old = self.get(kind, name, namespace)
        deletion.check_preconditions(kind, old, options)
        outcome = deletion.plan(
            old,
            options,
            default=strategy.propagation,
            grace_s=strategy.grace_period_s(old, options),
            now=context.now,
        )
        if kind is NAMESPACES:
            outcome = terminating(outcome, timestamp(context.now))
        return self._apply_outcome(kind, outcome, dry_run=dry_run), outcome.is_removed

    def bind(self, name: str, namespace: str, node: str, *, annotations: dict[str, str] | None = None) -> Object:
        """Bind a pod to a node, as `pods/binding` does.

        Raises:
            StatusError: 404 the pod does not exist, 409 the pod has a node or scheduling gates, or is being deleted.
        """
        pod = self.get(PODS, name, namespace)
        return self.store.put(PODS, pods.bound(pod, node, timestamp(self.clock.now()), annotations)).obj

    def evict(
        self,
        name: str,
        namespace: str,
        *,
        uid: str | None = None,
        grace_period_s: int | None = None,
        dry_run: bool = False,
    ) -> Object:
        """Evict a pod, as `pods/eviction` does: add the condition DisruptionTarget, also if the pod has ended, and
        delete the pod.

        Raises:
            StatusError: 404 the object does not exist, 409 a precondition does not hold.
        """
        pod = self.get(PODS, name, namespace)
        deletion.check_preconditions(PODS, pod, DeleteOptions(uid=uid))
        if not dry_run:
            self.store.put(PODS, pods.disrupted(pod, timestamp(self.clock.now())))
        return self.delete(PODS, name, namespace, uid=uid, grace_period_s=grace_period_s, dry_run=dry_run)

    def returns_deleted(self, resource: str | Resource) -> bool:
        """Return whether the response to a DELETE contains the removed object."""
        return STRATEGIES[by_key(resource)].returns_deleted

    def record_event(
        self,
        involved: Object,
        type: str,  # noqa: A002 - the field's name
        reason: str,
        message: str,
        component: str,
    ) -> None:
        """Record a Kubernetes Event about an object. See `Recorder.record`."""
        self._recorder.record(involved, type, reason, message, component)

    def random_suffix(self) -> str:
        """Return eight random hexadecimal digits for a generated name."""
        return f"{self._rng.getrandbits(32):08x}"

    # Shared steps

    def _open(self, resource: str | Resource) -> tuple[Resource, Strategy, Context]:
        kind = by_key(resource)
        return kind, STRATEGIES[kind], Context(self.release, self.clock.now(), self._find, self.list)

    def _find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return self.find(resource, namespace, name)

    def _identify(self, kind: Resource, obj: Object) -> None:
        """Set the apiVersion under which objects are stored, and the kind."""
        versions = kind.versions or self.release.scheduling_versions or ("v1beta1",)
        obj["apiVersion"], obj["kind"] = kind.api_version(versions[0]), kind.kind

    def _require_namespace(self, kind: Resource, meta: dict[str, Any]) -> None:
        name = meta["namespace"]
        namespace = self.find(NAMESPACES, None, name)
        if namespace is None:
            raise errors.not_found(NAMESPACES, name)
        if "deletionTimestamp" in namespace["metadata"]:
            why = f"unable to create new content in namespace {name} because it is being terminated"
            cause = errors.Cause("NamespaceTerminating", "metadata.namespace", f"namespace {name} is being terminated")
            raise errors.forbidden(kind, meta.get("name", ""), why, [cause])

    def _replace(self, kind: Resource, old: Object, new: Object, *, subresource: str | None, dry_run: bool) -> Object:
        """Check and write a new version of `old`. Unchanged content is not written."""
        _, strategy, context = self._open(kind)
        self._identify(kind, new)
        self._check_version(kind, strategy, new.get("metadata") or {}, old["metadata"])
        meta = metadata.keep_server_fields(new, old, kind)
        is_status = subresource == "status"
        if subresource == "finalize":
            finalizers = (new.get("spec") or {}).get("finalizers") or []
            new = {**old, "metadata": meta, "spec": {**old["spec"], "finalizers": finalizers}}
        elif is_status:
            strategy.prepare_status(new, old, context)
        else:
            if not strategy.defaults_spec_only or new.get("spec") is not old.get("spec"):
                strategy.default(new, context)
            strategy.prepare_update(new, old, context)
        self._refuse(kind, new, self._update_causes(strategy, new, old, context, is_status=is_status))
        if deletion.ends_with_update(new["metadata"], old["metadata"]) and strategy.may_remove(new):
            return self._apply_outcome(
                kind, Outcome(old, is_changed=False, is_removed=True), dry_run=dry_run, reply=new
            )
        if new == old:
            return old
        return new if dry_run else self.store.put(kind, new).obj

    def _check_version(self, kind: Resource, strategy: Strategy, sent: dict[str, Any], stored: dict[str, Any]) -> None:
        version = sent.get("resourceVersion")
        if not version and not strategy.unconditional_update:
            cause = errors.invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise errors.invalid(kind, stored["name"], [cause], as_resource=True)
        if version and version != stored["resourceVersion"]:
            raise errors.conflict(kind, stored["name"], _OPTIMISTIC_LOCK)

    def _update_causes(
        self, strategy: Strategy, new: Object, old: Object, context: Context, *, is_status: bool
    ) -> Sequence[errors.Cause]:
        causes = metadata.validate_update(new["metadata"], old["metadata"])
        if new["metadata"] != old["metadata"]:
            causes = [*_metadata_causes(new["metadata"], strategy, context), *causes]
        if is_status:
            return [*causes, *strategy.validate_status(new, old, context)]
        if _content(new) == _content(old):
            return causes
        return [*causes, *strategy.validate(new, context), *strategy.validate_update(new, old, context)]

    def _refuse(self, kind: Resource, obj: Object, causes: Sequence[errors.Cause]) -> None:
        if causes:
            raise errors.invalid(kind, obj["metadata"].get("name", ""), causes)

    def _apply_outcome(
        self, kind: Resource, outcome: Outcome, *, dry_run: bool = False, reply: Object | None = None
    ) -> Object:
        obj = outcome.obj
        if dry_run:
            return reply or obj
        if outcome.is_changed:
            obj = self.store.put(kind, obj).obj
        if outcome.is_removed:
            meta = obj["metadata"]
            obj = self.store.remove(kind, meta.get("namespace") or "", meta["name"]).obj
        return reply or obj

    def _bootstrap(self) -> None:
        """Create the objects that every cluster contains, except for those that were read from disk."""
        for kind, obj in first_objects():
            if self.find(kind, None, obj["metadata"]["name"]) is None:
                self.create(kind, obj)


def _copy_changed(new: Object, old: Object, private: Decode) -> Object:
    """Return a copy of the new object. An unchanged spec, which is most of a pod, is shared with the old object."""
    spec = new.get("spec")
    if spec is None or spec is not old.get("spec"):
        return private(new)
    rest = private({name: value for name, value in new.items() if name != "spec"})
    return {name: spec if name == "spec" else rest[name] for name in new if name == "spec" or name in rest}


def _metadata_causes(meta: dict[str, Any], strategy: Strategy, context: Context) -> list[errors.Cause]:
    return metadata.validate(meta, lambda name: strategy.problems_with_name(name, context))


def _content(obj: Object) -> Object:
    return {name: value for name, value in obj.items() if name not in _NO_CONTENT}


def _uid_mismatch(kind: Resource, old: Object, uid: str) -> str:
    meta = old["metadata"]
    path = "/".join(filter(None, ("/registry", kind.plural, meta.get("namespace"), meta["name"])))
    return (
        f"StorageError: invalid object, Code: 4, Key: {path}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta['uid']}"
    )

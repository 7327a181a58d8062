"""The API server without HTTP: `Registry`, and the rules of each resource."""

from gangjobs_sandbox.registry.deletion import Propagation
from gangjobs_sandbox.registry.patching import PatchKind
from gangjobs_sandbox.registry.registry import Registry
from gangjobs_sandbox.store import Event, EventType, objects_copy

__all__ = ["Event", "EventType", "PatchKind", "Propagation", "Registry", "objects_copy"]

"""What the API server does with objects, without HTTP: `Registry` and the rules of each resource."""

from airflow_provider_gangjobs.sandbox.registry.deletion import Propagation
from airflow_provider_gangjobs.sandbox.registry.patching import PatchKind
from airflow_provider_gangjobs.sandbox.registry.registry import Registry
from airflow_provider_gangjobs.sandbox.store import Event, EventType, objects_copy

__all__ = ["Event", "EventType", "PatchKind", "Propagation", "Registry", "objects_copy"]

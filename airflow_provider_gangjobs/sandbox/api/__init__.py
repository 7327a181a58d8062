"""The REST API of the embedded cluster: `create_app` makes it, `serving` serves it."""

from airflow_provider_gangjobs.sandbox.api.app import create_app
from airflow_provider_gangjobs.sandbox.api.faults import Fault, FaultKind, Faults
from airflow_provider_gangjobs.sandbox.api.logs import LogSource
from airflow_provider_gangjobs.sandbox.api.server import Address, serving

__all__ = ["Address", "Fault", "FaultKind", "Faults", "LogSource", "create_app", "serving"]

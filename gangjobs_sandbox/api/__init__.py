"""The REST API of the embedded cluster. `create_app` builds the application, and `serving` serves it."""

from gangjobs_sandbox.api.app import create_app
from gangjobs_sandbox.api.faults import Fault, FaultKind, Faults
from gangjobs_sandbox.api.logs import LogSource
from gangjobs_sandbox.api.server import Address, serving

__all__ = ["Address", "Fault", "FaultKind", "Faults", "LogSource", "create_app", "serving"]

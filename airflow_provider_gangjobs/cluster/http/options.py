"""Options of a request that callers choose, and the counters of a client."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping


class PatchType(StrEnum):
    """The type of a patch, as its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


class ResponseFormat(Enum):
    """How much of the written object the server returns. A large object costs both sides more than the write itself.

    The value is the Accept header.
    """

    OBJECT = "application/json"
    METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
    """Only the fields of `metadata` that `http.responses` decodes."""


class PropagationPolicy(StrEnum):
    """How the garbage collector treats the dependents of a deleted object."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class ClientStatistics(Struct, frozen=True):
    """Counters of a client since it was created."""

    requests: Mapping[str, int]
    """Requests by verb: get, list, watch, create, patch, delete, log. Each retry counts as a request."""
    retries: int
    renewals: int
    """How often the client has loaded its credentials again."""

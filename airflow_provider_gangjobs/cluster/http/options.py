"""Options of a request that callers choose, and the counters of a client."""

from __future__ import annotations

from datetime import UTC, datetime
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


class LogQuery(Struct, frozen=True):
    """Which part of a container's log the server returns (`PodLogOptions`)."""

    container: str | None = None
    follow: bool = False
    """Whether the response lasts until the container ends."""
    since_s: int | None = None
    """Unix time in whole seconds. The server leaves out what the container wrote before."""
    timestamps: bool = False
    """Whether each line begins with the time at which the container runtime received it."""
    previous: bool = False
    """Whether to return the log of the container before its last restart."""

    def parameters(self) -> dict[str, str | bool | None]:
        """Return the parameters of the request."""
        since = None
        if self.since_s is not None:
            since = datetime.fromtimestamp(self.since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "container": self.container,
            "follow": self.follow or None,
            "sinceTime": since,
            "timestamps": self.timestamps or None,
            "previous": self.previous or None,
        }


class ClientStatistics(Struct, frozen=True):
    """Counters of a client since it was created."""

    requests: Mapping[str, int]
    """Requests by verb: get, list, watch, create, patch, delete, log. Each retry counts as a request."""
    retries: int
    renewals: int
    """How often the client has loaded its credentials again."""

"""The words of a request that callers choose, and what a client counts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Patch(StrEnum):
    """How a patch is applied, as its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


class Answer(Enum):
    """How much of the written object is sent back. A large one costs both sides more than the write itself."""

    OBJECT = "application/json"
    METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
    """`metadata` alone, and of that what `replies` names."""


class Propagation(StrEnum):
    """What becomes of the objects that are owned by a deleted one."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True)
class ClientStatistics:
    """What a client has done so far."""

    requests: Mapping[str, int]
    """Requests by verb: get, list, watch, create, patch, delete, log. Retries are counted again."""
    retries: int
    renewals: int
    """How often credentials were loaded again."""

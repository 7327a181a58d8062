"""The manifest of a gang that the submission leaves suspended. The other parameters of the gang are given beside it."""

from __future__ import annotations

from typing import Final

SUSPENDED_MANIFEST: Final = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": True}}

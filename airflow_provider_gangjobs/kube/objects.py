"""The form in which an API server sends and takes objects."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
"""One Kubernetes object as decoded JSON: the name of each field and its value."""

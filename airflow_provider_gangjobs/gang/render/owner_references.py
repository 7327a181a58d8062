"""Owner references: nothing of ours exists without its Job, so deleting the Job cleans up everything.

`blockOwnerDeletion` stays false: setting it needs a right on the owner's finalizers on some clusters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def owned_by_job(name: str, uid: str) -> dict[str, Any]:
    """Reference to the Job as the controller of an object."""
    return _reference("batch/v1", "Job", name, uid, controller=True)


def owned_by(api_version: str, kind: str, name: str, uid: str) -> dict[str, Any]:
    """Reference to a further owner, which does not control the object."""
    return _reference(api_version, kind, name, uid, controller=False)


def is_owned_by(metadata: Mapping[str, Any], uid: str) -> bool:
    """Whether an object's `metadata` refers to the owner of this uid."""
    return any(owner["uid"] == uid for owner in metadata.get("ownerReferences") or ())


def _reference(api_version: str, kind: str, name: str, uid: str, *, controller: bool) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": controller,
        "blockOwnerDeletion": False,
    }

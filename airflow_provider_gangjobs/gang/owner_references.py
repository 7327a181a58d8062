"""Owner references: the Job owns all objects of its gang, so the deletion of the Job deletes them all.

`blockOwnerDeletion` is false, because some clusters require a permission on the owner's finalizers to set it. Only the
Jobs of further roles and the JobSet of the roles set it: the main Job must not be gone before their pods are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def owned_by_job(name: str, uid: str) -> dict[str, Any]:
    """Return a reference to the Job as the controller of an object."""
    return _reference("batch/v1", "Job", name, uid, controller=True)


def owned_by(api_version: str, kind: str, name: str, uid: str) -> dict[str, Any]:
    """Return a reference to another owner, which does not control the object."""
    return _reference(api_version, kind, name, uid, controller=False)


def owned_by_first_role_job(name: str, uid: str) -> dict[str, Any]:
    """Return a reference to the Job of the first role as the owner of the Job of another role.

    Its deletion in the foreground waits until the other Job and the pods of this Job are gone.
    """
    return {**owned_by_job(name, uid), "blockOwnerDeletion": True}


def owned_by_main_job(name: str, uid: str) -> dict[str, Any]:
    """Return a reference to the main Job of a gang as the owner of the JobSet of its roles.

    The main Job is no controller of the JobSet: Kueue would leave a JobSet alone that a Job controls. The deletion of
    the main Job in the foreground waits until the JobSet, its Jobs and their pods are gone.
    """
    return {**owned_by("batch/v1", "Job", name, uid), "blockOwnerDeletion": True}


def is_owned_by(metadata: Mapping[str, Any], uid: str) -> bool:
    """Return whether an object's `metadata` has a reference to the owner with this UID."""
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

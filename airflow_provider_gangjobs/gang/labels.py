"""Names that leave the process: labels, annotations, finalizer, paths and environment variables.

All of them are a contract with what is already in clusters: they are added to, never renamed.
The prefix is our own. `airflow kubernetes cleanup-pods` deletes pods that carry Airflow's usual
labels (dag_id, task_id, ...), so none of those is ever used.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from airflow_provider_gangjobs.kube import metadata_keys

PREFIX: Final = metadata_keys.PREFIX

LABEL_GANG: Final = metadata_keys.LABEL_GANG
"""Name of the Job. On the Job, its pods, Service, ConfigMaps, Workload and PodGroup."""
LABEL_TASK: Final = metadata_keys.LABEL_TASK
"""Digest of the task key, or of a submission id that a client chose. On the Job and its pods; one list by it
finds every attempt."""
LABEL_ATTEMPT: Final = metadata_keys.LABEL_ATTEMPT
"""Number of the attempt, from 0. On the Job and its pods."""
LABEL_ROLE: Final = f"{PREFIX}/role"
"""What an object is for, one of `Role`. Not on the Job and its pods."""
LABEL_DROPPED: Final = metadata_keys.LABEL_DROPPED
"""With the value `true`: the submission was deleted and its Job kept, which is nobody's any more. On the Job."""

LABEL_JOB_UID: Final = f"{PREFIX}/job-uid"
"""UID of the Job. On ledger ConfigMaps, whose owner reference is lost if the Job is deleted with Orphan."""

ANNOTATION_TRIGGER_ID: Final = metadata_keys.ANNOTATION_TRIGGER_ID
"""The submission's id, chosen by the client. On the Job."""
ANNOTATION_SPEC_HASH: Final = metadata_keys.ANNOTATION_SPEC_HASH
"""Hash of everything that shapes the Job. On the Job."""
ANNOTATION_SPEC_FIELDS: Final = metadata_keys.ANNOTATION_SPEC_FIELDS
"""JSON of parameter -> short digest, so that a conflict can name what differs. On the Job."""
ANNOTATION_CLAIM: Final = metadata_keys.ANNOTATION_CLAIM
"""Id of the task instance that answers for the gang now. On the Job."""
ANNOTATION_DELIVERED: Final = metadata_keys.ANNOTATION_DELIVERED
"""Time at which the outcome was handed to Airflow. On the Job."""
ANNOTATION_DISRUPTIONS: Final = metadata_keys.ANNOTATION_DISRUPTIONS
"""How many attempts in a row were lost to disruptions before this one. On the Job, from its creation; not if none."""
ANNOTATION_HALTED: Final = metadata_keys.ANNOTATION_HALTED
"""Why the gang was suspended for good. On the Job."""
ANNOTATION_TASK: Final = metadata_keys.ANNOTATION_TASK
"""The task key as JSON (dag_id, run_id, task_id, map_index), for people. On the Job."""
ANNOTATION_GANG: Final = metadata_keys.ANNOTATION_GANG
"""How the pods are placed: `gang:<dialect>`, `basic:<reason>`, `brought` or `off`. On the Job."""

ANNOTATION_DEFAULT_CONTAINER: Final = metadata_keys.ANNOTATION_DEFAULT_CONTAINER
"""Name of the container whose exit and message are the rank's. On the pods."""
ANNOTATION_COMPLETION_INDEX: Final = metadata_keys.ANNOTATION_COMPLETION_INDEX
"""The rank. Set by the Job controller on every pod of an Indexed Job."""
LABEL_KUEUE_QUEUE: Final = metadata_keys.LABEL_KUEUE_QUEUE
"""With this label on the Job, Kueue owns `spec.suspend`."""

FINALIZER_HARVEST: Final = f"{PREFIX}/harvest"
"""Holds a pod until its outcome is in the ledger. In the pod template."""

ENV_RESULT_PATH: Final = "GANG_RESULT_PATH"
RESULT_PATH: Final = "/dev/termination-log"
RESULT_BYTES_MAX: Final = 4096
"""The kubelet keeps 4096 bytes of a container's termination message."""

ENV_ATTEMPT: Final = "GANG_ATTEMPT"
"""Number of the attempt, from 0."""
ENV_SIZE: Final = "GANG_SIZE"
"""Number of ranks, also without a rendezvous."""
ENV_FILES: Final = "GANG_FILES"
FILES_PATH: Final = "/gang/files"

MAIN_CONTAINER: Final = "main"
"""Name of the container when no manifest names it."""


class Role(StrEnum):
    """Values of `LABEL_ROLE`."""

    FILES = "files"
    LEDGER = "ledger"
    UPLOAD = "upload"
    RENDEZVOUS = "rendezvous"
    WORKLOAD = "workload"
    PODGROUP = "podgroup"

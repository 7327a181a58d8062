"""Names that leave the process: labels, annotations, finalizer, paths and environment variables.

Objects with these names exist in clusters, so names are never renamed. They have the provider's own prefix, apart from
the labels that name the task in the form of KubernetesPodOperator, by which dashboards and cost reports find pods.
`airflow kubernetes cleanup-pods` deletes pods that have all of dag_id, task_id, try_number and airflow_version. The
provider therefore never writes airflow_version. It finds its own gangs by labels of its own prefix only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

PREFIX: Final = "gangjobs.airflow"

LABEL_GANG: Final = f"{PREFIX}/gang"
"""Name of the Job. On the Job, its pods, Service, ConfigMaps, Workload and PodGroup."""
LABEL_TASK: Final = f"{PREFIX}/task"
"""Digest of the task key, or of a submission id that a client chose. On the Jobs and pods of all attempts."""
LABEL_ATTEMPT: Final = f"{PREFIX}/attempt"
"""Number of the attempt, from 0. On the Job and its pods."""
LABEL_INSTALLATION: Final = f"{PREFIX}/installation"
"""Id of the Airflow installation that made the gang. On the Job and its pods, if the installation has an id."""
LABEL_PURPOSE: Final = f"{PREFIX}/role"
"""Purpose of an object, one of `ObjectPurpose`. Not on the Job and its pods."""
LABEL_DROPPED: Final = f"{PREFIX}/dropped"
"""`true` if the submission was deleted and its Job was kept, which lists of submissions leave out. On the Job."""

LABEL_DAG_ID: Final = "dag_id"
LABEL_TASK_ID: Final = "task_id"
TASK_LABELS: Final = (LABEL_DAG_ID, LABEL_TASK_ID, "run_id", "try_number", "map_index")
"""The task that submitted the gang, and its try, as the pods of KubernetesPodOperator have them. On the Jobs and pods,
from their creation, unless `[gangjobs] task_labels` is off. A try that adopts the gang does not change them."""

LABEL_JOB_UID: Final = f"{PREFIX}/job-uid"
"""UID of the Job of the gang. On ledger ConfigMaps, on the pods of a role other than the first one, and on the Jobs and
pods of a JobSet."""
LABEL_GANG_ROLE: Final = f"{PREFIX}/gang-role"
"""Name of a role of the gang. On its Jobs and pods. Such a Job without `LABEL_TASK` is not the main Job."""

LABEL_RANK_OFFSET: Final = f"{PREFIX}/rank-offset"
"""Rank in the gang of the first rank of a role. On the pods of a gang with roles."""

# The record is written with the Job. Each other annotation is a mark, which is written later.
ANNOTATION_RECORD: Final = f"{PREFIX}/record"
"""What the gang is, as JSON that is never changed (`gang.record`). On the main Job, from its creation."""
ANNOTATION_CLAIM: Final = f"{PREFIX}/claim"
"""Which task instance is responsible for the gang, and what it wants of the gang (`gang.record.StoredClaim`). On the
main Job, from its creation. A try that adopts the gang changes it."""
ANNOTATION_SUBMITTED: Final = f"{PREFIX}/submitted"
"""What the last step of a submission has found (`gang.record.Submitted`). On the main Job, if it has found anything."""
ANNOTATION_ASSEMBLY_BASELINE: Final = f"{PREFIX}/assembly-baseline"
"""`gang.record.AssemblyBaseline`. On the Job of a gang that Kueue stopped before for another reason.
Followers write it."""
ANNOTATION_PROGRESS: Final = f"{PREFIX}/progress"
"""The restarts and the progress of the gang, and how far its logs were streamed
(`gang.outcome.restarts.Progressed`). On the main Job, if logs are streamed. The trigger of the task writes it."""
ANNOTATION_SECRETS: Final = f"{PREFIX}/secrets"
"""Where the objects of the gang have secrets that Airflow masks, as JSON (`jobs.gang_secrets`); `null` if they
cannot be found. On the main Job, after its submission, if the gang of a task has secrets. The worker writes it."""
ANNOTATION_DELIVERED: Final = f"{PREFIX}/delivered"
"""Time at which the outcome was handed to Airflow. On the main Job."""
ANNOTATION_DELETED_BY: Final = f"{PREFIX}/deleted-by"
"""Who is about to delete the gang on purpose, such as a task of a `GangJobDeleteOperator`. On the main Job."""
ANNOTATION_STOPPED: Final = f"{PREFIX}/stopped"
"""Who has stopped the gang, and why, as JSON (`gang.state.stopped.Stopped`). On a Job of the gang."""

DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
"""Annotation with the name of the container whose exit code and termination message are those of the rank. On the
pods."""
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""Annotation with the rank. Set by the Job controller on every pod of an Indexed Job."""
LABEL_KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Name of a Kueue LocalQueue. On the Job or the JobSet, as the last step of a submission: Kueue owns `spec.suspend`
then."""
LABEL_KUEUE_PRIORITY: Final = "kueue.x-k8s.io/priority-class"
"""Name of a Kueue WorkloadPriorityClass. On the Job."""
LABEL_KUEUE_JOB_UID: Final = "kueue.x-k8s.io/job-uid"
"""UID of the Job. Set by Kueue on the Workload that it creates for a Job."""

LABEL_CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
"""UID of the Job. Set by the Job controller on pods."""

FINALIZER_HARVEST: Final = f"{PREFIX}/harvest"
"""Keeps a pod until its outcome is in the ledger. In the pod template."""

FINALIZER_JOB_TRACKING: Final = "batch.kubernetes.io/job-tracking"
"""Of the Job controller. Keeps a pod until the Job controller has counted it, or has seen the deletion of its Job."""

ENV_RESULT_PATH: Final = "GANG_RESULT_PATH"
RESULT_PATH: Final = "/dev/termination-log"
TERMINATION_MESSAGE_BYTES_MAX: Final = 4096
"""The kubelet keeps 4096 bytes of a container's termination message."""

ENV_ATTEMPT: Final = "GANG_ATTEMPT"
"""Number of the attempt, from 0."""
ENV_SIZE: Final = "GANG_SIZE"
"""Number of ranks. The variable is also set without a rendezvous."""
ENV_ROLE: Final = "GANG_ROLE"
"""Name of the role. This variable and the next three are set in a gang with roles."""
ENV_ROLE_RANK: Final = "GANG_ROLE_RANK"
"""Rank in the role, from 0."""
ENV_ROLE_SIZE: Final = "GANG_ROLE_SIZE"
"""Number of ranks of the role."""
ENV_RANK_OFFSET: Final = "GANG_RANK_OFFSET"
"""Rank in the gang of the first rank of the role. The rank in the gang is this number plus the rank in the role."""
ENV_INSTALLATION: Final = "GANG_INSTALLATION"
"""Id of the Airflow installation. Set for ranks that store large results, if the installation has an id."""
ENV_LINEAGE_PARENT: Final = "OPENLINEAGE_PARENT_ID"
TASK_ENV: Final = (ENV_LINEAGE_PARENT, "TRACEPARENT", "TRACESTATE")
"""Variables about the try that created the gang, where Airflow uses OpenLineage or tracing. Those of the user win."""
ENV_FILES: Final = "GANG_FILES"
FILES_PATH: Final = "/gang/files"

MAIN_CONTAINER: Final = "main"
"""Name of the container if no manifest gives a name."""


class ObjectPurpose(StrEnum):
    """Values of `LABEL_PURPOSE`."""

    FILES = "files"
    LEDGER = "ledger"
    UPLOAD = "upload"
    RENDEZVOUS = "rendezvous"
    WORKLOAD = "workload"
    PODGROUP = "podgroup"

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

ANNOTATION_SUBMISSION_ID: Final = f"{PREFIX}/trigger-id"
"""The submission's id, chosen by the client. On the Job."""
ANNOTATION_SPEC_HASH: Final = f"{PREFIX}/spec-hash"
"""Hash of everything that shapes the Job. On the Job."""
ANNOTATION_SPEC_FIELDS: Final = f"{PREFIX}/spec-fields"
"""JSON of parameter -> short digest, so that a conflict can name the parameters that differ. On the Job."""
ANNOTATION_CLAIM: Final = f"{PREFIX}/claim"
"""Id of the task instance that is responsible for the gang now. On the Job."""
ANNOTATION_MAX_TRIES: Final = f"{PREFIX}/max-tries"
"""`max_tries` of the task instance that is responsible for the gang, which a clear of the task changes. On the Job."""
ANNOTATION_DELIVERED: Final = f"{PREFIX}/delivered"
"""Time at which the outcome was handed to Airflow. On the Job."""
ANNOTATION_DISRUPTIONS: Final = f"{PREFIX}/disruptions"
"""Number of consecutive attempts before this one that ended by a disruption. On the Job, from its creation, if not
0."""
ANNOTATION_DELETED_BY: Final = f"{PREFIX}/deleted-by"
"""Who is about to delete the gang on purpose, such as a task of a `GangJobDeleteOperator`. On the Job."""
ANNOTATION_STOPPED: Final = f"{PREFIX}/stopped"
"""Who has stopped the gang, and why, as JSON (`gang.state.stopped.Stopped`). On the Job."""
ANNOTATION_TIME_LIMIT: Final = f"{PREFIX}/time-limit"
"""The parameters of the task from which activeDeadlineSeconds was computed. On the Job, if it was computed."""
ANNOTATION_TASK: Final = f"{PREFIX}/task"
"""The task key as JSON (dag_id, run_id, task_id, map_index), for people. On the Job."""
ANNOTATION_ON_KILL: Final = f"{PREFIX}/on-kill"
"""What happens to the live gang of a task that has ended, one of `gang.spec.OnKill`. On the Job."""
ANNOTATION_ON_FINISH: Final = f"{PREFIX}/on-finish"
"""What happens to the Job after its outcome was delivered, one of `gang.spec.OnFinish`. On the Job."""
ANNOTATION_WAIT_UNTIL: Final = f"{PREFIX}/wait-until"
"""`submitted` or `running`: the gang runs on after its task has succeeded. On the Job."""
ANNOTATION_STREAMED: Final = f"{PREFIX}/streamed"
"""How far logs were streamed into the log of a task, as JSON (`tracking.logs.limits`). On the Job."""
ANNOTATION_RESTARTS: Final = f"{PREFIX}/restarts"
"""How often the programs of the ranks may be restarted in their pods: `together:<number>` if all restart when one has
failed, and `alone:<number>` for each rank otherwise. On the Job, if its ranks have supervisors."""
ANNOTATION_PROGRESS: Final = f"{PREFIX}/progress"
"""The restarts and the progress of the gang, as JSON (`gang.outcome.restarts`). On the Job, if its log is streamed."""
ANNOTATION_GANG: Final = f"{PREFIX}/gang"
"""How the pods are placed: `gang:<dialect>`, `basic:<reason>`, `brought` or `off`. On the Job."""
ANNOTATION_REQUESTS: Final = f"{PREFIX}/requests"
"""What all ranks request together, as JSON (resource -> quantity). On the Job, from its creation, if not nothing."""

ANNOTATION_SECRETS: Final = f"{PREFIX}/secrets"
"""Where the objects of the gang have secrets that Airflow masks, as JSON (`jobs.gang_secrets`); `null` if they
cannot be found. On the main Job, after its submission, if the gang of a task has secrets."""

ANNOTATION_QUEUE: Final = f"{PREFIX}/queue"
"""Name of the Kueue LocalQueue that the submission asks for. On the Job, from its creation."""
ANNOTATION_QUEUED: Final = f"{PREFIX}/queued"
"""`true` if the submission is complete and the Job belongs to a queue. On the Job."""

ANNOTATION_ASSEMBLY_BASELINE: Final = f"{PREFIX}/assembly-baseline"
"""`gang.state.job_annotations.AssemblyBaseline`. On the Job of a gang that Kueue stopped before for another reason."""
ANNOTATION_ROLES: Final = f"{PREFIX}/roles"
"""The roles of the gang and their numbers of ranks (`gang.roles.format_roles`). On the main Job."""
ANNOTATION_ROLE_JOBS: Final = f"{PREFIX}/role-jobs"
"""The UIDs of the Jobs of a JobSet by role (`gang.roles.format_role_jobs`). On the main Job, when the submission is
complete."""
ANNOTATION_TTL: Final = f"{PREFIX}/ttl-after-finished"
"""`ttlSecondsAfterFinished` that the main Job of a gang with roles gets at the end. On this Job."""
ANNOTATION_RANK_OFFSET: Final = f"{PREFIX}/rank-offset"
"""Rank in the gang of the first rank of a role. On the pods of a gang with roles."""

ANNOTATION_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
"""Name of the container whose exit code and termination message are those of the rank. On the pods."""
ANNOTATION_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""The rank. Set by the Job controller on every pod of an Indexed Job."""
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

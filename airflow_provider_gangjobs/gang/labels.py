"""Names that leave the process: labels, annotations, finalizer, paths and environment variables.

Objects with these names exist in clusters, so names are added and never renamed. They have the provider's own prefix,
apart from the labels that name the task in the form of KubernetesPodOperator, by which dashboards and cost reports find
pods. `airflow kubernetes cleanup-pods` deletes pods that have all of dag_id, task_id, try_number and airflow_version.
The provider therefore never writes airflow_version. It finds its own gangs by labels of its own prefix only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from airflow_provider_gangjobs.kube import names

PREFIX: Final = names.PREFIX

LABEL_GANG: Final = names.LABEL_GANG
"""Name of the Job. On the Job, its pods, Service, ConfigMaps, Workload and PodGroup."""
LABEL_TASK: Final = names.LABEL_TASK
"""Digest of the task key, or of a submission id that a client chose. On the Job and its pods. A list by this label
returns every attempt."""
LABEL_ATTEMPT: Final = names.LABEL_ATTEMPT
"""Number of the attempt, from 0. On the Job and its pods."""
LABEL_INSTALLATION: Final = names.LABEL_INSTALLATION
"""Id of the Airflow installation that made the gang. On the Job and its pods. Absent if the installation has no id, and
on gangs that were made before this label."""
LABEL_PURPOSE: Final = f"{PREFIX}/role"
"""Purpose of an object, one of `ObjectPurpose`. Not on the Job and its pods."""
LABEL_DROPPED: Final = names.LABEL_DROPPED
"""`true` if the submission was deleted and its Job was kept. No task is responsible for the Job any more. On the
Job."""

TASK_LABELS: Final = (
    names.LABEL_DAG_ID,
    names.LABEL_TASK_ID,
    names.LABEL_RUN_ID,
    names.LABEL_TRY_NUMBER,
    names.LABEL_MAP_INDEX,
)
"""The task that submitted the gang, and its try, in the form of KubernetesPodOperator. On the Jobs and the pods, from
their creation, unless `[gangjobs] task_labels` is off. A try that adopts the gang does not change them. A label of the
user with the same name is kept."""

LABEL_JOB_UID: Final = names.LABEL_JOB_UID
"""UID of the Job of the gang. On ledger ConfigMaps, whose owner reference is lost if the Job is deleted with Orphan.
Also on the pods of a role other than the first one, whose owner is the Job of their role, and on the Jobs and pods of a
JobSet."""
LABEL_GANG_ROLE: Final = names.LABEL_GANG_ROLE
"""Name of a role of the gang. On the Jobs and pods of a gang with roles. A Job with this label and without `LABEL_TASK`
belongs to a gang whose main Job is another Job."""

ANNOTATION_SUBMISSION_ID: Final = names.ANNOTATION_SUBMISSION_ID
"""The submission's id, chosen by the client. On the Job."""
ANNOTATION_SPEC_HASH: Final = names.ANNOTATION_SPEC_HASH
"""Hash of everything that shapes the Job. On the Job."""
ANNOTATION_SPEC_FIELDS: Final = names.ANNOTATION_SPEC_FIELDS
"""JSON of parameter -> short digest, so that a conflict can name the parameters that differ. On the Job."""
ANNOTATION_CLAIM: Final = names.ANNOTATION_CLAIM
"""Id of the task instance that is responsible for the gang now. On the Job."""
ANNOTATION_MAX_TRIES: Final = names.ANNOTATION_MAX_TRIES
"""`max_tries` of the task instance that is responsible for the gang. Airflow changes it only when a user clears the
task. On the Job of an operator's task."""
ANNOTATION_DELIVERED: Final = names.ANNOTATION_DELIVERED
"""Time at which the outcome was handed to Airflow. On the Job."""
ANNOTATION_DISRUPTIONS: Final = names.ANNOTATION_DISRUPTIONS
"""Number of consecutive attempts before this one that ended by a disruption. On the Job, from its creation. Absent if
the number is 0."""
ANNOTATION_DELETED_BY: Final = names.ANNOTATION_DELETED_BY
"""Who is about to delete the gang on purpose, such as a task of a `GangJobDeleteOperator`. On the Job, written before
the deletion, so that whoever follows the gang can tell the deletion from one that nobody intended."""
ANNOTATION_HALTED: Final = names.ANNOTATION_HALTED
"""Why the gang was halted. On the Job."""
ANNOTATION_MAIN_CONTAINERS: Final = names.ANNOTATION_MAIN_CONTAINERS
"""How the ranks of the Job have ended by their main containers, one of
`gang.state.main_containers.MainContainersEnd`. On a Job that the provider has ended because other containers kept its
pods running."""
ANNOTATION_TIME_LIMIT: Final = names.ANNOTATION_TIME_LIMIT
"""The parameters of the task from which activeDeadlineSeconds was computed. On the Job. Absent if the user set
activeDeadlineSeconds, or if the task has no time limits."""
ANNOTATION_TASK: Final = names.ANNOTATION_TASK
"""The task key as JSON (dag_id, run_id, task_id, map_index), for people. On the Job."""
ANNOTATION_ON_KILL: Final = names.ANNOTATION_ON_KILL
"""What happens to the live gang of a task that has ended, one of `gang.spec.OnKill`. On the Job of an operator's
task."""
ANNOTATION_ON_FINISH: Final = names.ANNOTATION_ON_FINISH
"""What happens to the Job after its outcome was delivered, one of `gang.spec.OnFinish`. On the Job of an operator's
task."""
ANNOTATION_WAIT_UNTIL: Final = names.ANNOTATION_WAIT_UNTIL
"""The state of the gang at which its task ends, `submitted` or `running`: the gang runs on after its task has
succeeded. On the Job of an operator's task. Absent if the task waits for the end of the gang."""
ANNOTATION_STREAMED: Final = names.ANNOTATION_STREAMED
"""How far logs were streamed into the log of a task, as JSON (`tracking.logs.limits`). On the Job."""
ANNOTATION_GANG: Final = names.ANNOTATION_GANG
"""How the pods are placed: `gang:<dialect>`, `basic:<reason>`, `brought` or `off`. On the Job."""
ANNOTATION_REQUESTS: Final = names.ANNOTATION_REQUESTS
"""What all ranks request together, as JSON (resource -> quantity). On the Job, from its creation."""

ANNOTATION_QUEUE: Final = names.ANNOTATION_QUEUE
"""Name of the Kueue LocalQueue that the submission asks for. On the Job, from its creation. Absent without a queue."""
ANNOTATION_QUEUED: Final = names.ANNOTATION_QUEUED
"""`true` if the submission is complete and the Job belongs to a queue. On the Job. Absent without a queue."""

ANNOTATION_REQUEUES: Final = names.ANNOTATION_REQUEUES
"""How often the gang was returned to its queue because not all ranks ran in time, in the format of
`gang.state.job.Requeues`. On the Job of a gang with `gang="preferred"`."""
ANNOTATION_ASSEMBLY_BASELINE: Final = names.ANNOTATION_ASSEMBLY_BASELINE
"""From which of Kueue's counts on `assemble_timeout` adds up the runs that Kueue has stopped, in the format of
`gang.state.job.AssemblyBaseline`. On the Job of a gang that Kueue has stopped for another reason before."""
ANNOTATION_ROLES: Final = names.ANNOTATION_ROLES
"""The roles of the gang and their numbers of ranks, in the format of `gang.roles.format_roles`. On the main Job of the
gang. Absent if the gang has one Job only."""
ANNOTATION_ROLE_JOBS: Final = names.ANNOTATION_ROLE_JOBS
"""The UIDs of the Jobs of a JobSet by role, in the format of `gang.roles.format_role_jobs`. On the main Job of a gang
whose roles are a JobSet, when the submission is complete."""
ANNOTATION_TTL: Final = names.ANNOTATION_TTL
"""`ttlSecondsAfterFinished` that the main Job of a gang with roles gets when the gang has ended. On this Job."""
ANNOTATION_RANK_OFFSET: Final = names.ANNOTATION_RANK_OFFSET
"""Rank in the gang of the first rank of a role. On the pods of a gang with roles."""

ANNOTATION_FOLLOWS: Final = f"{PREFIX}/follows"
"""The gangs that a process follows, in the format of `ending.sweep.leases`. On a Lease."""

ANNOTATION_DEFAULT_CONTAINER: Final = names.ANNOTATION_DEFAULT_CONTAINER
"""Name of the container whose exit code and termination message are those of the rank. On the pods."""
ANNOTATION_COMPLETION_INDEX: Final = names.ANNOTATION_COMPLETION_INDEX
"""The rank. Set by the Job controller on every pod of an Indexed Job."""
LABEL_KUEUE_QUEUE: Final = names.LABEL_KUEUE_QUEUE
"""Name of a Kueue LocalQueue. On the Job, or on the JobSet of a gang with roles. Kueue owns `spec.suspend` of an object
that has this label, so it is the last step of a submission."""
LABEL_KUEUE_PRIORITY: Final = names.LABEL_KUEUE_PRIORITY
"""Name of a Kueue WorkloadPriorityClass. On the Job."""
LABEL_KUEUE_JOB_UID: Final = names.LABEL_KUEUE_JOB_UID
"""UID of the Job. Set by Kueue on the Workload that it creates for a Job."""

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
    FOLLOWER = "follower"
    """A Lease in which a process names the gangs that it follows."""
    WORKLOAD = "workload"
    PODGROUP = "podgroup"

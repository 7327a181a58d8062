"""Keys of the labels and annotations that views read. `gang.labels` documents them, together with all other keys."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "gangjobs.airflow"

LABEL_GANG: Final = f"{PREFIX}/gang"
LABEL_TASK: Final = f"{PREFIX}/task"
LABEL_ATTEMPT: Final = f"{PREFIX}/attempt"
LABEL_DROPPED: Final = f"{PREFIX}/dropped"
LABEL_INSTALLATION: Final = f"{PREFIX}/installation"
LABEL_CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
LABEL_CONTROLLER_UID_BEFORE_1_27: Final = "controller-uid"
LABEL_KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
LABEL_KUEUE_PRIORITY: Final = "kueue.x-k8s.io/priority-class"
LABEL_KUEUE_JOB_UID: Final = "kueue.x-k8s.io/job-uid"

ANNOTATION_TRIGGER_ID: Final = f"{PREFIX}/trigger-id"
ANNOTATION_SPEC_HASH: Final = f"{PREFIX}/spec-hash"
ANNOTATION_SPEC_FIELDS: Final = f"{PREFIX}/spec-fields"
ANNOTATION_CLAIM: Final = f"{PREFIX}/claim"
ANNOTATION_DELIVERED: Final = f"{PREFIX}/delivered"
ANNOTATION_DISRUPTIONS: Final = f"{PREFIX}/disruptions"
ANNOTATION_HALTED: Final = f"{PREFIX}/halted"
ANNOTATION_TIME_LIMIT: Final = f"{PREFIX}/time-limit"
ANNOTATION_TASK: Final = f"{PREFIX}/task"
ANNOTATION_GANG: Final = f"{PREFIX}/gang"
ANNOTATION_ON_KILL: Final = f"{PREFIX}/on-kill"
ANNOTATION_ON_FINISH: Final = f"{PREFIX}/on-finish"
ANNOTATION_QUEUE: Final = f"{PREFIX}/queue"
ANNOTATION_QUEUED: Final = f"{PREFIX}/queued"
ANNOTATION_REQUEUES: Final = f"{PREFIX}/requeues"
ANNOTATION_WAIT_UNTIL: Final = f"{PREFIX}/wait-until"
ANNOTATION_STREAMED: Final = f"{PREFIX}/streamed"
ANNOTATION_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
ANNOTATION_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"

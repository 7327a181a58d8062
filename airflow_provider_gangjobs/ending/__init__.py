"""Everything that ends, deletes, or releases a gang. Each act judges the gang first, and may be repeated.

| act | when | who calls it |
|---|---|---|
| `kill.stop` | somebody wants the gang to stop and its Job to stay | the hook |
| `kill.stop_job` | the submission of an id (`keeps_failed`) cannot be completed | `submission/` |
| `kill.stop_live` | `execution_timeout` has passed while the task was deferred | the trigger |
| `kill.begin_kill`, `finish_kill` | a user has ended or cleared a deferred task | `attempt/triggerer/endings.py` |
| `kill.end_live_gangs` | a worker is stopped, or its task fails while the gang runs | `attempt/task_gangs.py` |
| `delete_gang.deliver` | the task has its results; `on_finish` says what follows | `attempt/completion.py` |
| `delete_gang.discard` | `on_finish` deletes a failed gang, or an attempt was replaced | `attempt/`, the service |
| `delete_gang.delete` | a deletion on purpose | `GangJobDeleteOperator`, the hook |
| `delete_gang.delete_job_if` | a new attempt supersedes an earlier one | `submission/`, all deletions here |
| `release.release_all` | the outcomes of pods are recorded | the harvest in `tracking/` |
| `release.drain_pods` | a gang was just deleted or stopped | the acts above, and a sweep |
| `release.release_and_count_running` | the next attempt waits for the pods of the last one | its trigger |
| `release.release_pods` | nobody follows the gang; the provider is uninstalled | `deliver`, `gangjobs release` |
| `delete_submission` | a client frees the id of a submission | the hook |
| `clean_up_half_submitted` | the submission of a gang stopped half-way | `gangjobs tidy`, the hook |
| `sweep` | nobody is responsible for a gang any more | the triggerer, `gangjobs tidy` |

| act | judges by | never |
|---|---|---|
| `stop` | the uid; the claim, if one is given | deletes the Job |
| `stop_live`, a kill, `end_live_gangs` | the claim, and whether the gang is live | ends a gang that was adopted |
| `deliver`, `discard` | the claim | marks or deletes a gang that the next try has adopted |
| `delete` | the uid | asks who is responsible |
| `delete_job_if` | the rule of its caller | deletes a version of the Job that was not judged |
| a release | the uid of the pod, and its finalizer | records an outcome |
| `delete_submission` | the id | frees the id while a pod runs; deletes a Job that was started again |
| `clean_up_half_submitted` | the age of a Job that was never started | changes a gang that a submitter continues |
| `sweep` | the rules of `gang.state.ownership` | ends a live gang whose task may still want it |

A release loses the outcomes that its caller has not recorded.

Words. To *stop* is to end the pods of a gang and to keep its Job, which fails. To *delete* it is a DELETE. To *kill*
is to delete a live gang because its task was ended. To *end* a gang is to stop or to delete it while it is live. To
*release* a pod is to remove the provider's finalizer from it; to *drain* a gang is to release its pods until no other
pod is to be expected. A gang *has ended* when its Jobs have the condition `Complete` or `Failed`, and it *is over* also
if it was stopped or is being deleted. To *complete* a submission is to take the steps that are left.
To *record* an outcome is to write it into the ledger; the *record* of a submission is what its Job says about it.

Elsewhere. The rules that need no request are in `gang/state/`: `stop`, `phase`, `ownership`. A follower stops its
gang itself after a deadline, and ends the Jobs of other roles (`JobRequests`). What a state of Airflow means for a
gang is decided in `airflow_api.task_state`, before one of these acts is called.
"""

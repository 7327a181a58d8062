"""The three ends of a gang, the release of its pods, and what ends the gangs that nobody wants any more.

* `stop.stop`: the pods end, and the Job stays as evidence, and fails.
* `delete.delete`: the Job goes, with all that it owns. `finish_deletion` releases the pods.
* `deliver.deliver`: the outcome is in Airflow, so the gang counts as done. Its Job stays, or is deleted.

Each of them judges the gang first, and acts only on the version that it has judged, or compares the claim. Each may be
repeated. The callers only choose the end and the condition, by the state of the gang. `-` is no change:

| who | live | half-submitted | stopped | succeeded | delivered | of others |
|---|---|---|---|---|---|---|
| a task that a user has ended | delete | delete | - | - | - | - |
| a task that fails, with `on_finish="delete"`, or whose worker is stopped | delete | delete | - | - | - | - |
| a task that fails, with another `on_finish` | stop | stop | - | - | - | - |
| the `execution_timeout` of a deferred task | stop | stop | - | - | - | - |
| a task whose gang has failed, with `on_finish="delete"` | delete | delete | delete | delete | delete | - |
| a task that has succeeded | deliver | deliver | deliver | deliver | - | - |
| a new attempt of a task | delete | delete | - | - | - | delete |
| `hook.stop`, `gangjobs cancel` | stop | stop | - | - | - | stop |
| `hook.delete`, `gangjobs delete`, `GangJobDeleteOperator` | delete | delete | delete | delete | delete | delete |
| `hook.delete_submission` with `job=True`, DELETE of REST | delete | delete | delete | delete | delete | delete |
| `hook.delete_submission` | stop, deliver | stop, deliver | deliver | deliver | deliver | stop, deliver |
| a sweep, if Airflow says twice that the task has ended | delete | delete | - | - | delete | - |
| a sweep, if Airflow has accepted the success of the task | delete | delete | - | deliver | delete | - |
| `gangjobs tidy` | - | delete | - | - | delete | - |

The gangs *of others* are live. Their claim is that of another try; for a sweep they belong to another installation. A
sweep deletes only what `on_kill` and `on_finish` of the task say. A follower stops its gang after a deadline, and a
submission deletes or stops the Job that it has begun and can never complete.

Whoever ends a gang that has not ended releases its pods, which loses the outcomes that nobody has recorded. A follower
records the outcomes of a gang that was stopped.

Words. To *kill* is to delete a live gang because its task was ended. To *end* a gang is to stop or to delete it while
it is live. To *release* a pod is to remove the provider's finalizer from it; to *drain* a gang is to release its pods
until no other pod is to be expected. A gang *has ended* when its Jobs have the condition `Complete` or `Failed`, and it
*is over* also if it was stopped or is being deleted. To *complete* a submission is to take the steps that are left.
To *record* an outcome is to write it into the ledger; the *record* of a submission is what its Job says about it.

Elsewhere. The rules that need no request are in `gang/state/`: `stored_gang`, `phase`, `ownership`. What a state of
Airflow means for a gang is decided in `airflow_api.task_state`, before one of these functions is called.
"""

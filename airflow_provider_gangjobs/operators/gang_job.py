"""GangJobOperator: one Airflow task whose pods run together or not at all.

The operator submits the gang that its parameters describe (`task_parameters`), waits for the end of the gang, and
translates the end into a result or an error. Between `execute` and `execute_complete` the operator needs no process:
`execute_complete` reads everything from the cluster and from the event. Parsing a DAG file imports no client library.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from msgspec.structs import asdict
from msgspec.structs import replace as replace_struct

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowTaskTimeout, TaskDeferralError, TaskDeferralTimeout
from airflow_provider_gangjobs.airflow_api.task_state import is_of_earlier_try, is_running_try
from airflow_provider_gangjobs.attempt import task_gangs
from airflow_provider_gangjobs.attempt.deferral import execution_timeout_error, with_deadline, worker_wait_limit_s
from airflow_provider_gangjobs.attempt.delivery import StoringTask
from airflow_provider_gangjobs.attempt.messages import submission_messages
from airflow_provider_gangjobs.attempt.retries import (
    has_retries_left,
    skip_on_exit_codes,
    skip_retries_of_permanent_errors,
)
from airflow_provider_gangjobs.attempt.start_guard import StartGuard
from airflow_provider_gangjobs.attempt.trigger_args import args_of_submission, trigger_args
from airflow_provider_gangjobs.attempt.wait_until import HandOver, is_handed_over, submitted_event
from airflow_provider_gangjobs.exceptions import PreviousAttemptRunning
from airflow_provider_gangjobs.gang.identity import Claim, TaskKey
from airflow_provider_gangjobs.gang.spec import GangSpec, OnKill, Reattach, WaitUntil
from airflow_provider_gangjobs.parameters.callbacks import require_importable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_provider_gangjobs.attempt.completion import Completion
    from airflow_provider_gangjobs.attempt.task_gangs import TaskGangs
    from airflow_provider_gangjobs.attempt.trigger_args import TriggerArgs
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent
    from airflow_provider_gangjobs.submission.adopt_or_submit import AdoptionRule
    from airflow_provider_gangjobs.submission.record import Submission
    from airflow_provider_gangjobs.submission.request import PreviousGangs

WORKER_READS_CONNECTION_FOR_S: Final = 60.0
"""How long a resumed worker retries the reading of its connection, which existed when the gang was submitted."""
XCOM_GANG: Final = "gang"
"""XCom key of the gang's namespace, name and uid. The XCom exists from the submission on."""
XCOM_END: Final = "gang_end"
"""XCom key of the payload of the gang's event, which describes the end also after the Job is deleted."""


class GangJobOperator(StoringTask):
    """Run a gang of pods on Kubernetes, and return its results.

    The pods start together or, with `gang="required"`, not at all. The gang runs once however often workers,
    triggerers and the scheduler are restarted: a retry adopts the gang of an earlier try (`reattach`).

    A duration is a `timedelta` or a number of seconds. A parameter that is `None` leaves the value of the manifest
    in place or, without a manifest, the default of Kubernetes.

    :param image: Image of every rank. (templated)
    :param command: Entrypoint of the container, as a list of words. Defaults to the entrypoint of the image.
        (templated)
    :param args: Arguments of the entrypoint, as a list of words. (templated)
    :param env: Environment variables: name -> text, name -> `{"valueFrom": ...}`, or the `env` list of Kubernetes.
        (templated)
    :param env_from: Sources of further environment variables: the `envFrom` list of Kubernetes. (templated)
    :param resources: Resources of each rank, as both requests and limits:
        `{"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 1}`; or `{"requests": ..., "limits": ...}`. (templated)
    :param workers: Number of ranks. Defaults to the `completions` of the manifest or, without a manifest, to 1.
        (templated)
    :param min_workers: Number of ranks that must be placed together, if the gang may start with fewer than all ranks.
        Defaults to `workers`. (templated)
    :param manifest: A whole `batch/v1` Job: a dict, a `V1Job`, YAML text, or the path of a .yaml, .yml or .json
        template file; or the pod of each rank, as a `V1Pod` or `V1PodTemplateSpec`. The other parameters override the
        manifest. (templated)
    :param pod_overrides: Fields of a PodTemplateSpec. They are merged into the pod template last, by a strategic merge
        as in `kubectl patch`. (templated)
    :param files: Files for the ranks: name -> path relative to the folder of the DAG, or the content itself, as text
        with a line end or as bytes. They are submitted with the gang and mounted read-only at /gang/files, and may have
        900 KiB in total. (templated)
    :param uploads: Content ids of files that were uploaded before. They are mounted in the same folder. (templated)
    :param roles: Roles of a gang whose pods are not all alike, such as a leader and its workers: name -> the parameters
        of the role, of `image`, `command`, `args`, `env`, `env_from`, `resources`, `workers`, `pod_overrides`,
        `service_account`, `node_selector`, `affinity`, `tolerations`, `volumes`, `volume_mounts`, `image_pull_policy`,
        `security_context` and `working_dir`. These parameters are then not given beside `roles`. Each role is a Job of
        its own; the pods of all roles start together. The order of the roles counts: rank 0 is in the first one.
        (templated)
    :param name: First part of the Job's name. Defaults to a name made from the DAG id and the task id. (templated)
    :param namespace: Namespace of the gang. Defaults to the namespace of the connection. (templated)
    :param labels: Labels of the Job and its pods. (templated)
    :param annotations: Annotations of the Job and its pods. (templated)
    :param kubernetes_conn_id: Id of an Airflow connection of type `kubernetes`. Defaults to `kubernetes_default`.
        (templated)
    :param gang: What to do if the cluster cannot schedule a gang: `required` (the default) refuses the task,
        `preferred` runs plain pods and logs the reason, and `off` always runs plain pods.
    :param gang_scheduler: What places the gang: `native` (the Workload API of Kubernetes), `kueue` (the Topology of its
        queue), `volcano`, `coscheduling` or `yunikorn`. Defaults to `auto`: the scheduler to which `scheduler_name`
        belongs, else the scheduler that the extra `gang_scheduler` of the connection names, else `kueue` in a queue
        that keeps gangs together, else `native`.
    :param dialect: Version of the Workload API: `v1alpha1`, `v1alpha2`, `v1alpha3`, `v1beta1`, or `native`
        (`Job.spec.scheduling`). Defaults to the best version that the cluster serves.
    :param rendezvous: Whether the gang gets a headless Service and MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE and
        further variables: a bool, or `Rendezvous(port=...)`. Defaults to on if there are several ranks. The default
        port is 29500.
    :param queue_name: Name of the Kueue LocalQueue that decides when the gang may run. Defaults to the label of the
        manifest, else to the extra `queue_name` of the connection, else to no queue. (templated)
    :param queue_priority: Name of the Kueue WorkloadPriorityClass that orders the gangs of a queue. Defaults to the
        priority of the pods. (templated)
    :param topology: `required:LABEL` or `preferred:LABEL`: Kueue places all pods on nodes with the same value of this
        node label, which must be a level of the Topology of the queue. Defaults to any nodes. (templated)
    :param priority_class: Name of the PriorityClass of the pods. (templated)
    :param service_account: Name of the ServiceAccount of the pods. (templated)
    :param node_selector: Labels that a node must have: name -> value. (templated)
    :param affinity: Affinity of the pods, as in a PodSpec. (templated)
    :param tolerations: Tolerations of the pods, as in a PodSpec. (templated)
    :param volumes: Volumes of the pods, as in a PodSpec. (templated)
    :param volume_mounts: Volume mounts of the ranks' container, as in a Container. (templated)
    :param image_pull_secrets: Names of the Secrets with which the image is pulled. (templated)
    :param image_pull_policy: `Always`, `IfNotPresent` or `Never`.
    :param security_context: Security context of the pods, as in a PodSpec.
    :param working_dir: Working directory of the container. Defaults to the working directory of the image. (templated)
    :param scheduler_name: Name of the scheduler that places the pods. Defaults to the default scheduler.
    :param termination_grace: How long a rank may take to end after SIGTERM: a `timedelta`, or whole seconds.
    :param ttl_after_finished: How long Kubernetes keeps a Job that has finished, even if its results were not read:
        a `timedelta`, or whole seconds. Defaults to the value of the manifest, or else to one week.
    :param keep_suspended: Whether to leave the Job suspended, so that somebody else starts it. Defaults to false.
    :param results: What the task returns: `rank0` (the default), `all` (a list of results, by rank; with `roles`, a
        mapping of each role to its list) or `none`. The result of a rank is what the rank writes to the file that
        `GANG_RESULT_PATH` names, as JSON or text.
    :param results_limit: How many bytes the results of all ranks may have together with `results="all"`. With more the
        task fails, and the gang is kept with its results. Defaults to 1048576 (1 MiB).
    :param result_storage: An `ObjectStoragePath` or its URL: a folder into which the ranks write results of more than
        4095 bytes, through the file `gangjobs_result.py` that they find in `GANG_FILES`. The result is then a dict with
        the address, which `hooks.results.read_result` reads. A folder with the protocol `file` is on a volume that the
        ranks mount. Defaults to none. (templated)
    :param logs: The ranks whose logs are copied into the log of the task: `rank0+failed` (the default), `all` or
        `none`.
    :param log_containers: Names of init containers and sidecars whose logs are copied too, or `all`. By default only
        the log of each rank's main container is copied.
    :param log_limit: How many bytes of logs are copied into the log of the task at most, over all ranks. Of a log that
        is too long the beginning and the end are copied, and the log says how much is missing between them. Defaults
        to 33554432 (32 MiB).
    :param stream_logs: The ranks whose logs appear in the log of the task while the gang runs: true (the default) for
        rank 0, false, a rank, or a list of at most eight ranks. Only the logs of main containers are streamed. At most
        half of `log_limit` is streamed, and nothing if `logs` is `none`.
    :param log_storage: An `ObjectStoragePath` or its URL: a folder into which the whole logs of all ranks are written
        at the end of the gang, one object for each rank. The task fails before it submits the gang if the folder cannot
        be written. Defaults to none. (templated)
    :param queue_timeout: How long a queue may hold the gang. `None` (the default) means no limit.
    :param assemble_timeout: How long it may take until all ranks run, from the end of the queue. `None` (the default)
        means no limit.
    :param run_timeout: How long all ranks may run. `None` (the default) means no limit.
    :param max_disruptions: How often in a row a gang that was lost to a disruption (preempted, evicted, or its node
        lost) is submitted again within the same try, without spending a retry. From 0 (the default) to 100. Each
        timeout starts again with each attempt.
    :param reattach: Which gang of an earlier try a retry adopts: `never` none, `running` a gang that runs, and
        `running_or_succeeded` (the default) also a gang that succeeded and was not delivered.
    :param durable: False has the effect of `reattach="never"`, under the name that other operators use. Defaults
        to true, which leaves the choice to `reattach`.
    :param on_finish: Which Jobs are deleted at the end: `keep` none, `delete` all, and `delete_succeeded` (the
        default) the ones that succeeded.
    :param on_kill: What happens to the gang if the task is killed: `delete` (the default) or `keep`.
    :param wait_until: When the task ends: `ended` (the default) with the gang, or earlier, when the gang is `submitted`
        or `running`. The gang then runs on without its task, and the task returns its `namespace`, `name` and `uid`.
    :param callbacks: A subclass of `triggers.callbacks.GangJobCallback` or its dotted path, or a list of them. They are
        called when the phase of the gang changes, in the triggerer or in the worker that waits, and change nothing.
    :param launch: How the program is started: `plain` (the default) runs the command. `torchrun` runs it by torchrun,
        with one process for each GPU. `shards` gives each rank SHARD_INDEX and SHARD_COUNT, and no rendezvous. `mpi`
        runs the command, such as `mpirun`, on rank 0, with a host file of all ranks. The other ranks run sshd.
    :param ssh_secret: Name of the Secret of the namespace whose item `ssh-privatekey` is the key by which the ranks
        reach each other with `launch="mpi"`. (templated)
    :param slots_per_worker: Number of MPI processes of a rank with `launch="mpi"`. Defaults to 1. (templated)
    :param pod_template_file: Path of a YAML file with a Pod, in place of a manifest. (templated)
    :param configmaps: Names of ConfigMaps whose items become environment variables. (templated)
    :param secrets: Names of Secrets whose items become environment variables, or `Secret` objects of the
        cncf.kubernetes provider. (templated)
    :param skip_on_exit_code: An exit code, or several. If every rank that failed has one of them, the task is skipped.
    :param deferrable: Whether the task waits in the triggerer, without a worker. Defaults to Airflow's
        `[operators] default_deferrable` if that option was set, else to true.
    :param kwargs: Parameters of `BaseOperator`. `execution_timeout` also applies while the task is deferred.
    """

    __supports_durable_execution: ClassVar[bool] = True  # read by the Airflow Registry (apache/airflow#70291)
    _began_at = 0.0
    """When the current part of the try began, by `time.monotonic`."""
    _start_guard: StartGuard | None = None

    def execute(self, context: Context) -> Any:
        """Submit the gang, or adopt the gang of an earlier try. Then wait for its end, in the triggerer if possible."""
        from airflow_provider_gangjobs.gang.state.submission_state import SubmissionState

        with self._session(context) as gangs:
            require_importable(self.callbacks)
            self._check_storages()
            submission = self._submit(context, gangs)
            if submission.state is SubmissionState.FAILED:
                # An earlier try ended before it handled this failure. Its outcomes are recorded, then the task goes on.
                event = self._wait_here(context, args_of_submission(self, gangs, submission))
                submission = self._submit_next(gangs, event)
            return self._complete(context, self._wait(context, gangs, submission))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Complete the task with the event of the trigger. Everything else is read from the cluster.

        A try that Airflow resumes with the event of an earlier try begins with `execute` (`hooks.event_of_try`).
        """
        if is_of_earlier_try(event, context["ti"]):
            self.log.warning("The task was cleared while a worker completed it, so this try begins anew")
            return self.execute(context)
        from airflow_provider_gangjobs.gang.outcome.event import GangEvent

        with self._session(context, retry_for_s=WORKER_READS_CONNECTION_FOR_S):
            return self._complete(context, self._recover_untracked(context, GangEvent.from_payload(event)))

    def execute_after_previous(self, context: Context, event: dict[str, Any]) -> Any:
        """Submit the gang after the wait for the pods of an earlier attempt.

        Raises:
            DeadlineExceeded: a time limit of the task has passed meanwhile.
        """
        from airflow_provider_gangjobs.attempt.triggerer.previous_attempt_wait import WaitEnd

        if event.get("status") == WaitEnd.TIMEOUT and not is_of_earlier_try(event, context["ti"]):
            raise task_gangs.deadline_error(event)
        return self.execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the task, also if Airflow has ended the deferral: after its time limit, or after a failed trigger."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as late:
            from airflow_provider_gangjobs.attempt.triggerer.gang_wait import EXECUTION_TIMEOUT

            # Airflow ends a deferral some time after the trigger should have ended it with the same error.
            gangs = self._open_gangs(context, retry_for_s=WORKER_READS_CONNECTION_FOR_S)
            gangs.end(self.on_finish, why=EXECUTION_TIMEOUT)
            raise execution_timeout_error(gangs.key, self.execution_timeout) from late
        except TaskDeferralError:
            # The trigger could not run, so the state of the gang is unknown.
            with self._session(context, retry_for_s=WORKER_READS_CONNECTION_FOR_S) as gangs:
                live = gangs.live()
                if live is None or len(live) != 1:
                    raise
                gang = live[0]
                self.log.warning("The trigger failed. This worker waits for gang %s", gang.ref)
                args = trigger_args(self, gangs, gang.ref, attempt=gang.attempt, disruptions=gang.disruptions)
                return self._complete(context, self._wait_here(context, args))

    def on_kill(self) -> None:
        """Delete the live gang of this try, unless `on_kill` is `keep`. Airflow allows five seconds.

        A gang that has ended is kept with its results, and so is a gang that another try has adopted.
        """
        if self._gangs is not None and self.kill_policy is OnKill.DELETE:
            self._gangs.kill(why="the task was killed")

    def _submit(self, context: Context, gangs: TaskGangs) -> Submission:
        """Submit the gang, or adopt the one that is there. While pods of an earlier attempt run, the task waits."""
        from airflow_provider_gangjobs.submission.adopt_or_submit import TaskRule
        from airflow_provider_gangjobs.submission.request import PreviousGangs

        rule = TaskRule(Reattach(self.reattach), return_failed=self.max_disruptions > 0)
        previous = PreviousGangs(gangs.wait_for_previous_s, is_retry=context["ti"].try_number > 1)
        while True:
            try:
                return self._submit_by(gangs, rule, previous)
            except PreviousAttemptRunning as running:
                self.log.warning("%s", running)
                self._wait_for_previous(context, gangs, running)

    def _wait_for_previous(self, context: Context, gangs: TaskGangs, running: PreviousAttemptRunning) -> None:
        """Defer the task until the pods of an earlier attempt have ended.

        If the task is not deferrable, the next submission waits, and this method only checks `assemble_timeout`.

        Raises:
            DeadlineExceeded: the task has waited for longer than `assemble_timeout`.
        """
        ref = task_gangs.ref_of(running)
        if self.deferrable:
            args = replace(trigger_args(self, gangs, ref), claim="")
            self._defer(args, context["ti"].start_date, for_previous=True)
        waited_s = time.monotonic() - self._began_at
        if self.assemble_timeout_s is not None and waited_s >= self.assemble_timeout_s:
            what = {"gang": ref, "reason": "assemble_timeout", "waited_s": round(waited_s), "pods": running.pods}
            raise task_gangs.deadline_error(what)

    def _submit_by(self, gangs: TaskGangs, rule: AdoptionRule, previous: PreviousGangs | None = None) -> Submission:
        from airflow_provider_gangjobs.submission.request import SubmissionRequest

        with skip_retries_of_permanent_errors():
            spec = self._spec()
            request = SubmissionRequest(
                key=gangs.key,
                claim=Claim(gangs.claim, self._policies, gangs.max_tries),
                rule=rule,
                confirm=self._opened_start_guard.confirm,
                previous=previous,
            )
            submission = self._opened_start_guard.submit(
                gangs,
                lambda service: service.submit(spec, request),
                delete=self.kill_policy is OnKill.DELETE,
                log=self.log,
            )
        for line in submission_messages(submission, server_software=gangs.server_software):
            self.log.info("%s", line)
        self._warn_of_large_results(submission)
        return submission

    def _wait(self, context: Context, gangs: TaskGangs, submission: Submission) -> GangEvent:
        """Defer the task, or wait in this worker and return the event of the gang's end."""
        self._push_xcom(context, XCOM_GANG, asdict(submission.ref))
        if self.wait_until is WaitUntil.SUBMITTED:
            return submitted_event(submission.ref)
        if self.deferrable:
            self._defer(args_of_submission(self, gangs, submission), context["ti"].start_date)
        return self._wait_here(context, args_of_submission(self, gangs, submission))

    def _wait_here(self, context: Context, args: TriggerArgs) -> GangEvent:
        from airflow_provider_gangjobs.attempt.triggerer.gang_wait import wait_for_event_in_worker

        started, config = context["ti"].start_date, self._opened_gangs.config
        limit_s = worker_wait_limit_s(self.execution_timeout, started, time.monotonic() - self._began_at)
        args, _ = with_deadline(args, self.execution_timeout, started)
        return wait_for_event_in_worker(args, self.log, config=config, limit_s=limit_s, until=self._until)

    def _recover_untracked(self, context: Context, event: GangEvent) -> GangEvent:
        """Return the event or, if the trigger could not follow the gang, act as `recovery_action` says.

        The method either defers the task again, or follows the gang in this worker, or returns the event as it is.
        """
        from airflow_provider_gangjobs.attempt.retries import RecoveryAction, recovery_action
        from airflow_provider_gangjobs.gang.outcome.event import Status

        gangs = self._opened_gangs
        if event.status is not Status.ERROR:
            return event
        errors = event.tracking_errors
        will_be_retried = has_retries_left(context["ti"])
        action = recovery_action(live=gangs.is_live(event.ref), errors=errors, has_retries_left=will_be_retried)
        why = f"Gang {event.ref} could not be followed ({event.reason}: {event.message})"
        args = trigger_args(self, gangs, event.ref, attempt=event.attempt, disruptions=event.disruptions)
        if action is RecoveryAction.DEFER:
            self.log.warning("%s. The task is deferred again", why)
            self._defer(replace(args, tracking_errors=errors + 1), context["ti"].start_date)
        if action is RecoveryAction.FOLLOW_IN_WORKER:
            self.log.warning("%s. This worker follows the gang", why)
            return self._wait_here(context, args)
        return event

    @contextmanager
    def _session(self, context: Context, *, retry_for_s: float = 0.0) -> Iterator[TaskGangs]:
        """Open one client for all requests of this part of the try. `AirflowTaskTimeout` ends the gang.

        Airflow raises `AirflowTaskTimeout` when `execution_timeout` has passed in a worker. The gang then ends as after
        a deadline of the trigger. Airflow itself would call `on_kill`, which is for tasks that a user ends.
        """
        self._began_at = time.monotonic()
        self._start_guard = self._new_start_guard(context["ti"])
        try:
            gangs = self._open_gangs(context, retry_for_s=retry_for_s)
            with gangs.session():
                yield gangs
        except AirflowTaskTimeout as alarm:
            if self._gangs is None or self.execution_timeout is None:
                raise
            from airflow_provider_gangjobs.attempt.triggerer.gang_wait import EXECUTION_TIMEOUT

            self._gangs.end(self.on_finish, why=EXECUTION_TIMEOUT)
            raise execution_timeout_error(self._gangs.key, self.execution_timeout) from alarm

    @property
    def _opened_start_guard(self) -> StartGuard:
        assert self._start_guard is not None, "`_session` is entered first"
        return self._start_guard

    def _new_start_guard(self, ti: Any) -> StartGuard:
        # The submission runs on an event loop, which must stay open to a kill while Airflow is asked.
        return StartGuard(partial(asyncio.to_thread, is_running_try, ti, self.log), started=ti.start_date)

    def _read_completion(self, gangs: TaskGangs, event: GangEvent) -> Completion:
        from airflow_provider_gangjobs.airflow_api.masking import mask_event
        from airflow_provider_gangjobs.attempt.completion import Completion

        completion = Completion(
            gangs, mask_event(event), self.on_finish, self.max_disruptions, self.log, self._result_folders()
        )
        completion.read(self.log_options, self._log_storage())
        return completion

    def _submit_next(self, gangs: TaskGangs, event: GangEvent) -> Submission:
        """Submit the attempt after the one that failed with this event, and log how that one failed."""
        from airflow_provider_gangjobs.submission.adopt_or_submit import NextAttemptRule

        # Airflow empties the log of a trigger when the same triggerer gets another trigger of the same try. The logs
        # are therefore copied from their beginning, and not from the place where the stream ended.
        failed = self._read_completion(
            gangs, replace_struct(event, streamed={}, whole_logs=()) if self.deferrable else event
        )
        failed.log_failure()
        rule = NextAttemptRule.after(event, max_disruptions=self.max_disruptions)
        submission = self._submit_by(gangs, rule)
        failed.discard()  # last, because its Job shows how many attempts in a row were lost
        return submission

    def _complete(self, context: Context, event: GangEvent) -> Any:
        """Return the results or raise the error, after further attempts for the disruptions that the task allows."""
        from airflow_provider_gangjobs.gang.outcome.disruption import disruption_of

        gangs = self._opened_gangs
        while (lost := disruption_of(event, allowed=self.max_disruptions)) is not None and lost.is_allowed:
            event = self._wait(context, gangs, self._submit_next(gangs, event))
        if self.wait_until is not WaitUntil.ENDED and is_handed_over(event):
            self._to_deliver = HandOver(gangs, event.ref, self.log)
            return asdict(event.ref)
        completion = self._read_completion(gangs, event)
        self._push_xcom(context, XCOM_END, completion.event.to_payload())
        with skip_retries_of_permanent_errors():
            with skip_on_exit_codes(self.skip_on_exit_codes, completion.outcomes):
                completion.require_success()
            value = completion.results(self.results, limit=self.results_limit)
        self._to_deliver = completion
        return value

    def _open_gangs(self, context: Context, *, retry_for_s: float = 0.0) -> TaskGangs:
        from airflow_provider_gangjobs.airflow_api.configuration import installation_id
        from airflow_provider_gangjobs.attempt.task_gangs import TaskGangs
        from airflow_provider_gangjobs.gang.render.user_manifest import requested_namespace

        self._read_files_of_mapped_task(context)
        ti = context["ti"]
        self._gangs = TaskGangs.of(
            self.kubernetes_conn_id,
            TaskKey(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index, installation_id()),
            claim=str(ti.id),
            max_tries=ti.max_tries,
            namespace=requested_namespace(GangSpec(namespace=self.namespace, manifest=self.manifest)),
            log=self.log,
            retry_for_s=retry_for_s,
        )
        return self._gangs

    def _defer(self, args: TriggerArgs, started: datetime | None, *, for_previous: bool = False) -> NoReturn:
        """Defer until the gang has ended or, with `for_previous`, until no pod of an earlier attempt runs."""
        from airflow_provider_gangjobs.triggers import gang_job

        ahead_s = self._gangs.server_ahead_s if self._gangs else 0.0
        args, backstop = with_deadline(args, self.execution_timeout, started, server_ahead_s=ahead_s)
        kind = gang_job.GangSubmissionTrigger if self._until == "running" else gang_job.GangJobTrigger
        trigger = (gang_job.PreviousGangTrigger if for_previous else kind)(**args.to_kwargs())
        method_name = "execute_after_previous" if for_previous else "execute_complete"
        self.defer(trigger=trigger, method_name=method_name, timeout=backstop)


__all__ = ["GangJobOperator"]

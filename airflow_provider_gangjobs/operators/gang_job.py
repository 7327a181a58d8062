"""GangJobOperator: one Airflow task whose pods run together or not at all.

Between `execute` and `execute_complete` the operator needs no process: `execute_complete` reads everything from the
cluster and from the event. What a try does is in `attempt.task_try`. Parsing a DAG file imports no client library.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Self

from airflow_provider_gangjobs.airflow_api.configuration import (
    default_deferrable,
    ends_from_trigger,
    starts_from_trigger,
)
from airflow_provider_gangjobs.airflow_api.exceptions import TaskDeferralError, TaskDeferralTimeout
from airflow_provider_gangjobs.airflow_api.task_end import EndFacts, replaced_methods
from airflow_provider_gangjobs.airflow_api.task_state import (
    has_reported,
    is_of_earlier_try,
    is_running_try,
    reason_to_start_in_worker,
)
from airflow_provider_gangjobs.gang.spec import (
    LOG_LIMIT_BYTES,
    RESULTS_LIMIT_BYTES,
    GangPolicy,
    GangSpec,
    Logs,
    OnFinish,
    OnKill,
    Rendezvous,
    Results,
    WaitUntil,
)
from airflow_provider_gangjobs.parameters import checks, shorthands
from airflow_provider_gangjobs.parameters.checks import callback_paths
from airflow_provider_gangjobs.parameters.storage import to_url
from airflow_provider_gangjobs.parameters.task_parameters import (
    ForScheduler,
    GangParameters,
    TaskParameters,
    answers_to_unknown,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from airflow.sdk import Context, ObjectStoragePath
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_provider_gangjobs.attempt.deferral import TriggerArgs
    from airflow_provider_gangjobs.attempt.task_gangs import StartGuard, TaskGangs
    from airflow_provider_gangjobs.attempt.task_try import TaskTry
    from airflow_provider_gangjobs.parameters.triggerer_start import TriggererStart
    from airflow_provider_gangjobs.triggers.callbacks import GangJobCallback

COMPLETING_METHODS: Final = ("execute_complete", "resume_execution", "post_execute", "deliver")
"""The methods that only a worker calls at the end of the gang."""
NOT_DEFERRED: Final = "the task is mapped over values that only a worker resolves, or runs in dag.test()"
RESUMED_READS_CONNECTION_FOR_S: Final = 60.0
"""How long a resumed worker retries the reading of its connection, which existed when the gang was submitted."""


class GangJobOperator(GangParameters):
    """Run a gang of pods on Kubernetes, and return its results.

    The pods start together or, with `gang="required"`, not at all. The gang runs once however often workers,
    triggerers and the scheduler are restarted: a retry adopts the gang of an earlier try (`durable`).

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
        template file; or the pod of each rank, as a Pod in each of these forms or a `V1PodTemplateSpec`. The other
        parameters override the manifest. (templated)
    :param pod_overrides: Fields of a PodTemplateSpec. They are merged into the pod template last, by a strategic merge
        as in `kubectl patch`. (templated)
    :param files: Files for the ranks: name -> path relative to the folder of the DAG, or the content itself, as text
        with a line end or as bytes. They are submitted with the gang and mounted read-only at /gang/files, and may have
        900 KiB in total. (templated)
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
    :param gang_scheduler: What places the gang: `native` (the Workload API of Kubernetes), `job-scheduling` (its field
        `Job.spec.scheduling`), `kueue` (the Topology of its queue), `volcano`, `coscheduling` or `yunikorn`. Defaults
        to `auto`: the scheduler to which `scheduler_name` belongs, else the scheduler that the extra `gang_scheduler`
        of the connection names, else `kueue` in a queue that keeps gangs together, else `native`.
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
    :param queue_timeout: How long a queue may hold the gang. `None` (the default) means no limit.
    :param assemble_timeout: How long it may take until all ranks run, from the end of the queue. `None` (the default)
        means no limit.
    :param run_timeout: How long all ranks may run. `None` (the default) means no limit.
    :param progress_timeout: How long a rank that has begun to report progress may be silent. Then it counts as failed,
        and Python programs write the stack of every thread. Defaults to no limit.
    :param restarts: How often the programs of all ranks are stopped and started again in the same pods, after the
        program of one rank has failed. With `launch="shards"` each rank restarts alone, and has as many restarts. From
        0 (the default) to 1000. Needs `command`, and Python 3.8 or later in the image. Not for a lost pod or node,
        which `max_disruptions` answers.
    :param checkpoints: Where the ranks keep their checkpoints: a PersistentVolumeClaim as `pvc://CLAIM/PATH` or
        `{"claim": ..., "path": ...}`, a volume of the pods as `volume://NAME/PATH` or `{"volume": ..., "path": ...}`,
        an absolute path on a volume that the ranks mount, or an `ObjectStoragePath` or its URL. The task has a folder
        there in each run, which `GANG_CHECKPOINT_DIR` or, in an object store, `GANG_CHECKPOINT_URL` names. It is the
        same for restarts, retries and a task that was cleared. Defaults to none. (templated)
    :param keep_checkpoints: Whether the folder stays after success. False lets rank 0 remove it when the programs of
        all ranks have succeeded. Defaults to true.
    :param no_restart_on_exit_codes: An exit code, or several, after which the gang fails without a further restart.
    :param max_disruptions: How often in a row a gang that was lost to a disruption (preempted, evicted, or its node
        lost) is submitted again within the same try, without spending a retry. From 0 (the default) to 100. Each
        timeout starts again with each attempt.
    :param durable: Whether a retry adopts the gang of an earlier try that runs, or that succeeded and was not
        delivered. Defaults to true; false submits a new gang.
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
    :param secrets: Names of Secrets whose items become environment variables, or `Secret` objects of the
        cncf.kubernetes provider. (templated)
    :param skip_on_exit_code: An exit code, or several. If every rank that failed has one of them, the task is skipped.
    :param deferrable: Whether the task waits in the triggerer, without a worker. Defaults to Airflow's
        `[operators] default_deferrable` if that option was set, else to true.
    :param start_from_trigger: Whether the triggerer also starts the gang, so that the task needs no worker before the
        gang has ended, and no slot. Only with Airflow 3.3, and only the first try. A task that only a worker can start
        starts in a worker, and its log says why. Defaults to `[gangjobs] start_from_trigger`, which is false.
    :param end_from_trigger: Whether the success of the gang ends the task in the triggerer, without a worker. Needs
        Airflow 3.3. Refused for a task with `outlets`, `post_execute`, `on_success_callback`, `multiple_outputs`, extra
        links, or another `wait_until`. A failure, an XCom backend of your own, a listener such as that of
        OpenLineage, or logs of more than 256 KiB at the end take a worker, and the log of the task says why. Defaults
        to `[gangjobs] end_from_trigger`, which is false; with true there, a task that needs a worker has one.
    :param kwargs: Parameters of `BaseOperator`. `execution_timeout` also applies while the task is deferred.
    """

    start_from_trigger: Any = ForScheduler(False, lambda task: task.triggerer_start.arguments is not None)
    start_trigger_args: Any = ForScheduler(None, lambda task: task.triggerer_start.arguments)
    wants_triggerer: bool = False
    __supports_durable_execution: ClassVar[bool] = True  # read by the Airflow Registry (apache/airflow#70291)
    _reason_for_worker: str | None = None
    """Why the trigger has left the start of the gang to this worker."""
    may_defer_for_previous: bool = True
    _try: TaskTry | None = None

    def __init__(
        self,
        *,
        image: str | None = None,
        command: Sequence[str] | None = None,
        args: Sequence[str] | None = None,
        env: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        env_from: Sequence[Mapping[str, Any]] | None = None,
        resources: Mapping[str, Any] | None = None,
        workers: int | str | None = None,
        min_workers: int | str | None = None,
        manifest: Mapping[str, Any] | str | None = None,
        pod_overrides: Mapping[str, Any] | None = None,
        files: Mapping[str, str | bytes | os.PathLike[str]] | None = None,
        roles: Mapping[str, Mapping[str, Any]] | None = None,
        name: str | None = None,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        kubernetes_conn_id: str = "kubernetes_default",
        gang: GangPolicy | str = GangPolicy.REQUIRED,
        gang_scheduler: str | None = None,
        rendezvous: bool | Rendezvous | None = None,
        queue_name: str | None = None,
        queue_priority: str | None = None,
        topology: str | None = None,
        priority_class: str | None = None,
        service_account: str | None = None,
        node_selector: Mapping[str, str] | None = None,
        affinity: Mapping[str, Any] | None = None,
        tolerations: Sequence[Mapping[str, Any]] | None = None,
        volumes: Sequence[Mapping[str, Any]] | None = None,
        volume_mounts: Sequence[Mapping[str, Any]] | None = None,
        image_pull_secrets: Sequence[str] | None = None,
        image_pull_policy: str | None = None,
        security_context: Mapping[str, Any] | None = None,
        working_dir: str | None = None,
        scheduler_name: str | None = None,
        termination_grace: timedelta | int | None = None,
        ttl_after_finished: timedelta | int | None = None,
        results: Results | str = Results.RANK0,
        results_limit: int = RESULTS_LIMIT_BYTES,
        result_storage: str | os.PathLike[str] | ObjectStoragePath | None = None,
        logs: Logs | str = Logs.RANK0_AND_FAILED,
        log_containers: Sequence[str] | str = (),
        log_limit: int = LOG_LIMIT_BYTES,
        stream_logs: bool | int | Sequence[int] = True,
        queue_timeout: timedelta | float | None = None,
        assemble_timeout: timedelta | float | None = None,
        run_timeout: timedelta | float | None = None,
        progress_timeout: timedelta | float | None = None,
        restarts: int = 0,
        checkpoints: str | Mapping[str, str] | os.PathLike[str] | ObjectStoragePath | None = None,
        keep_checkpoints: bool = True,
        no_restart_on_exit_codes: int | Sequence[int] | None = None,
        max_disruptions: int = 0,
        durable: bool = True,
        on_finish: OnFinish | str = OnFinish.DELETE_SUCCEEDED,
        on_kill: OnKill | str = OnKill.DELETE,
        wait_until: WaitUntil | str = WaitUntil.ENDED,
        callbacks: type[GangJobCallback] | str | Sequence[type[GangJobCallback] | str] | None = None,
        launch: str = "plain",
        ssh_secret: str | None = None,
        slots_per_worker: int | str | None = None,
        secrets: Sequence[Any] | None = None,
        skip_on_exit_code: int | Sequence[int] | None = None,
        deferrable: bool | None = None,
        start_from_trigger: bool | None = None,
        end_from_trigger: bool | None = None,
        **kwargs: Any,
    ) -> None:
        with answers_to_unknown(type(self), kwargs):
            # With `resources` in default_args, Airflow would take them for its own.
            super().__init__(**kwargs, resources=None)
        self.image = image
        self.command = command
        self.args = args
        self.env = env
        self.env_from = env_from
        self.rank_resources = resources
        self.workers = workers
        self.min_workers = min_workers
        self.manifest = manifest
        self.pod_overrides = pod_overrides
        self.files = files
        self.roles = roles
        self.name = name
        self.namespace = namespace
        self.labels = labels
        self.annotations = annotations
        self.kubernetes_conn_id = kubernetes_conn_id
        self.gang = gang
        self.gang_scheduler = gang_scheduler
        self.rendezvous = rendezvous
        self.queue_name = queue_name
        self.queue_priority = queue_priority
        self.topology = topology
        self.priority_class = priority_class
        self.service_account = service_account
        self.node_selector = node_selector
        self.affinity = affinity
        self.tolerations = tolerations
        self.volumes = volumes
        self.volume_mounts = volume_mounts
        self.image_pull_secrets = image_pull_secrets
        self.image_pull_policy = image_pull_policy
        self.security_context = security_context
        self.working_dir = working_dir
        self.scheduler_name = scheduler_name
        self.termination_grace_s = checks.to_whole_seconds(termination_grace)
        self.ttl_after_finished_s = checks.to_whole_seconds(ttl_after_finished)
        self.queue_timeout_s = checks.to_seconds(queue_timeout)
        self.assemble_timeout_s = checks.to_seconds(assemble_timeout)
        self.run_timeout_s = checks.to_seconds(run_timeout)
        self.progress_timeout_s = checks.to_seconds(progress_timeout)
        self.restarts = restarts
        self.checkpoints = to_url(checkpoints)
        self.keep_checkpoints = keep_checkpoints
        self.no_restart_on_exit_codes = shorthands.to_exit_codes(no_restart_on_exit_codes)
        self.max_disruptions = max_disruptions
        self.callbacks = callback_paths(callbacks)
        self.launch = launch
        self.ssh_secret = ssh_secret
        self.slots_per_worker = slots_per_worker
        self.secrets = secrets
        self.skip_on_exit_codes = shorthands.to_exit_codes(skip_on_exit_code)
        self.results_limit = results_limit
        self.result_storage = to_url(result_storage)
        self._convert_models()
        self.results = results
        self.logs = logs
        self.log_containers = log_containers
        self.log_limit = log_limit
        self.stream_logs = stream_logs
        self.durable = durable
        self.on_finish = on_finish
        self.kill_policy = on_kill
        self.wait_until = wait_until
        self.deferrable = default_deferrable() if deferrable is None else deferrable
        self.wants_trigger_end = ends_from_trigger() if end_from_trigger is None else end_from_trigger
        self._check_parameters(must_end_from_trigger=bool(end_from_trigger))
        self.log_containers = (log_containers,) if isinstance(log_containers, str) else tuple(log_containers)
        self.wants_triggerer = starts_from_trigger() if start_from_trigger is None else bool(start_from_trigger)

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Return what `.expand()` makes mapped tasks of, as Airflow does."""
        with answers_to_unknown(cls, kwargs):
            made = super().partial(**kwargs)
        given = kwargs.get("start_from_trigger")
        if not (starts_from_trigger() if given is None else given):
            return made
        from airflow_provider_gangjobs.parameters.triggerer_start import gang_partial

        return gang_partial(made)

    @classmethod
    def for_trigger(cls, parameters: Mapping[str, Any], source: Mapping[str, Any] | None, **common: Any) -> Self:
        """Return the operator of a task whose trigger starts the gang.

        :param parameters: The parameters that `triggerer_start` has given to the trigger.
        :param source: The function of a decorated task.
        :param common: Parameters of `BaseOperator`.
        """
        return cls(**parameters, **common)

    @property
    def triggerer_start(self) -> TriggererStart:
        """Whether the triggerer can start the gang, and with which arguments. Known when the whole DAG is known."""
        from airflow_provider_gangjobs.parameters.triggerer_start import start_of

        return start_of(self)

    def execute(self, context: Context) -> Any:
        """Submit the gang, or adopt the gang of an earlier try. Then wait for its end, in the triggerer if possible."""
        self._log_start_in_worker()
        with self._opened_try(context) as this_try:
            return this_try.run()

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Complete the task with the event of the trigger. Everything else is read from the cluster.

        A try that Airflow resumes with the event of an earlier try begins with `execute` (`airflow_api.task_state`).
        """
        if is_of_earlier_try(event, context["ti"]):
            self.log.warning("The task was cleared while a worker completed it, so this try begins anew")
            return self.execute(context)
        if (reason := reason_to_start_in_worker(event)) is not None:
            self._reason_for_worker = reason
            return self.execute(context)
        from airflow_provider_gangjobs.gang.outcome.event import GangEvent

        with self._opened_try(context, retry_for_s=RESUMED_READS_CONNECTION_FOR_S) as this_try:
            return this_try.resume(GangEvent.from_payload(event))

    def execute_after_previous(self, context: Context, event: dict[str, Any]) -> Any:
        """Submit the gang after the wait for the pods of an earlier attempt.

        Raises:
            DeadlineExceeded: a time limit of the task has passed meanwhile.
        """
        from airflow_provider_gangjobs.attempt.task_gangs import deadline_error
        from airflow_provider_gangjobs.attempt.triggerer.previous_attempt_wait import WaitEnd

        if event.get("status") == WaitEnd.TIMEOUT and not is_of_earlier_try(event, context["ti"]):
            raise deadline_error(event)
        self.may_defer_for_previous = event.get("status") != WaitEnd.ERROR
        return self.execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the task, also if Airflow has ended the deferral: after its time limit, or after a failed trigger."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout as late:
            # Airflow ends a deferral some time after the trigger should have ended it with the same error.
            raise self._new_try(context, retry_for_s=RESUMED_READS_CONNECTION_FOR_S).end_late_gang() from late
        except TaskDeferralError:
            # The trigger could not run, so the state of the gang is unknown.
            with self._opened_try(context, retry_for_s=RESUMED_READS_CONNECTION_FOR_S) as this_try:
                gang = this_try.only_live_gang()
                if gang is None:
                    raise
                return this_try.follow(gang)

    def dry_run(self) -> None:
        """Print the objects that the task would create, as YAML, without a cluster and without Airflow's secrets.

        The hash in the names differs from run to run, and a cluster may serve another version of the Workload API.
        """
        from airflow_provider_gangjobs.airflow_api.task_log import mask
        from airflow_provider_gangjobs.gang.identity import TaskKey
        from airflow_provider_gangjobs.gang.preview import preview, to_yaml
        from airflow_provider_gangjobs.gang.render.user_manifest import changes_of

        spec = self.gang_spec()
        objects = preview(spec, TaskKey(self.dag_id, "dry-run", self.task_id))
        print(mask(to_yaml(objects, changes_of(spec, objects[0]))))  # noqa: T201 - as the operators of cncf.kubernetes do

    def on_kill(self) -> None:
        """Delete the live gang of this try, unless `on_kill` is `keep`. Airflow allows five seconds.

        A gang that has ended is kept with its results, and so is a gang that another try has adopted, and the gang of a
        try whose end or deferral Airflow knows already (`has_reported`).
        """
        if self._try is not None and self.kill_policy is OnKill.DELETE and not has_reported(self._try.ti):
            self._try.gangs.kill(why="the task was killed")

    @property
    def on_success_callback(self) -> list[Callable[[Context], Any]]:
        """The callback that delivers the gang, followed by the callbacks of the user.

        Airflow calls them after it has reported the success of the task. The gang may be delivered only after the API
        server has accepted the report. Until then, a fault of the process, of `post_execute`, of an XCom backend or of
        the API server can still fail the task, and the next try must find the gang.
        """
        return [_deliver, *self._on_success]

    @on_success_callback.setter
    def on_success_callback(self, given: Callable[[Context], Any] | Iterable[Callable[[Context], Any]] | None) -> None:
        callbacks = () if given is None else (given,) if callable(given) else given
        self._on_success = [callback for callback in callbacks if callback is not _deliver]

    @property
    def end_facts(self) -> EndFacts:
        """What decides whether the success of the gang may end the task in the triggerer."""
        return EndFacts(
            waits_in_worker=not self.deferrable,
            ends_before_gang=self.wait_until != WaitUntil.ENDED,
            outlets=bool(self.outlets),
            post_execute=self._post_execute_hook is not None,
            on_success_callback=bool(self._on_success),
            multiple_outputs=bool(self.multiple_outputs),
            extra_links=bool(self.operator_extra_links),
            replaced_methods=replaced_methods(self, GangJobOperator, COMPLETING_METHODS),
        )

    def deliver(self, ti: Any) -> None:
        """Mark the gang as delivered, and apply `on_finish`, if Airflow has stored the success of the task.

        Does nothing before the gang has succeeded.

        :param ti: The task instance of the context.
        """
        if self._try is not None:
            self._try.deliver(ti)

    def defer_for(self, args: TriggerArgs, timeout: timedelta | None, *, for_previous: bool) -> NoReturn:
        """Defer until the gang has ended or, with `for_previous`, until no pod of an earlier attempt runs."""
        from airflow_provider_gangjobs.triggers import gang_job

        if for_previous:
            trigger, method_name = gang_job.PreviousGangTrigger(**args.to_kwargs()), "execute_after_previous"
            self.defer(trigger=trigger, method_name=method_name, timeout=timeout)
        kind = gang_job.GangSubmissionTrigger if self.wait_until is WaitUntil.RUNNING else gang_job.GangJobTrigger
        self.defer(trigger=kind(**args.to_kwargs()), method_name="execute_complete", timeout=timeout)

    def _log_start_in_worker(self) -> None:
        """Log why this worker starts the gang, if the task wants that the triggerer does."""
        if self.wants_triggerer or self._reason_for_worker:
            reason = self._reason_for_worker or self.triggerer_start.reason or NOT_DEFERRED
            self.log.info("This worker starts the gang, and not the triggerer: %s", reason)

    @contextmanager
    def _opened_try(self, context: Context, *, retry_for_s: float = 0.0) -> Iterator[TaskTry]:
        this_try = self._new_try(context, retry_for_s=retry_for_s)
        with this_try.session():
            yield this_try

    def _new_try(self, context: Context, *, retry_for_s: float) -> TaskTry:
        """Return this try of the task. `on_kill` and the success callback find it."""
        from airflow_provider_gangjobs.attempt.task_try import TaskTry

        began_at, ti = time.monotonic(), context["ti"]
        guard = self._new_start_guard(ti)
        gangs = self._open_gangs(context, retry_for_s=retry_for_s)
        self._try = TaskTry(self, TaskParameters.of(self), ti, gangs, guard, began_at)
        return self._try

    def _open_gangs(self, context: Context, *, retry_for_s: float = 0.0) -> TaskGangs:
        from airflow_provider_gangjobs.attempt.task_gangs import TaskGangs
        from airflow_provider_gangjobs.gang.render.user_manifest import requested_namespace

        self._read_files_of_mapped_task(context)
        namespace = requested_namespace(GangSpec(namespace=self.namespace, manifest=self.manifest))
        return TaskGangs.of(self.kubernetes_conn_id, context["ti"], namespace, self.log, retry_for_s=retry_for_s)

    def _new_start_guard(self, ti: Any) -> StartGuard:
        from airflow_provider_gangjobs.attempt.task_gangs import StartGuard

        # The submission runs on an event loop, which must stay open to a kill while Airflow is asked.
        return StartGuard(partial(asyncio.to_thread, is_running_try, ti, self.log), started=ti.start_date)


def _deliver(context: Context) -> None:
    task = context["task"]
    assert isinstance(task, GangJobOperator)
    task.deliver(context["ti"])


__all__ = ["GangJobOperator"]

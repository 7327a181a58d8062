"""The parameters of a task that runs a gang, the templates among them, and the `GangSpec` that they describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import get_parsing_context

from airflow_provider_gangjobs.airflow_api.configuration import default_deferrable
from airflow_provider_gangjobs.airflow_api.error_log import ShortErrors
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.client_models import MODELS, convert_parameter
from airflow_provider_gangjobs.gang.spec import (
    LOG_LIMIT_BYTES,
    RESULTS_LIMIT_BYTES,
    GangPolicy,
    GangSpec,
    LogOptions,
    Logs,
    OnFinish,
    OnKill,
    Reattach,
    Rendezvous,
    Results,
    WaitUntil,
    log_problems,
)
from airflow_provider_gangjobs.parameters import callbacks as callback_paths
from airflow_provider_gangjobs.parameters import checks, shorthands
from airflow_provider_gangjobs.parameters.checks import limit_problems, renamed_parameters, storage_problems, to_url
from airflow_provider_gangjobs.parameters.mpi import mpi_problems
from airflow_provider_gangjobs.parameters.shorthands import role_problems

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from airflow.sdk import Context, ObjectStoragePath
    from jinja2 import Environment

    from airflow_provider_gangjobs.parameters.callbacks import GangJobCallback

# The attribute of the operator by field of GangSpec. `resources` of BaseOperator means something else.
_SPEC_PARAMETERS: Final = {
    name: "rank_resources" if name == "resources" else name for name in GangSpec.__struct_fields__
}

_DURATIONS: Final = ("queue_timeout", "assemble_timeout", "run_timeout")


class GangTaskParameters(ShortErrors):
    """The base class of `GangJobOperator`, which documents the parameters.

    Each parameter is an attribute of the same name, except that `resources` is `rank_resources`, `on_kill` is
    `kill_policy`, and a duration is a number of seconds with the suffix `_s`.
    """

    template_fields: Sequence[str] = (
        "image",
        "command",
        "args",
        "env",
        "env_from",
        "rank_resources",
        "workers",
        "min_workers",
        "manifest",
        "pod_overrides",
        "files",
        "uploads",
        "roles",
        "name",
        "namespace",
        "labels",
        "annotations",
        "kubernetes_conn_id",
        "queue_name",
        "queue_priority",
        "topology",
        "priority_class",
        "service_account",
        "node_selector",
        "affinity",
        "tolerations",
        "volumes",
        "volume_mounts",
        "image_pull_secrets",
        "working_dir",
        "pod_template_file",
        "configmaps",
        "secrets",
        "ssh_secret",
        "slots_per_worker",
        "result_storage",
        "log_storage",
    )
    # Only the manifest may be a template file. `resolve_template_files` reads it: with the mechanism of Airflow, an
    # argument such as "config.yaml" would also be read as a template file.
    template_ext: Sequence[str] = ()
    template_fields_renderers = {  # noqa: RUF012 - Airflow's name and form
        "command": "bash",
        "args": "bash",
        "env": "json",
        "rank_resources": "json",
        "manifest": "yaml",
        "pod_overrides": "yaml",
        "files": "py",
        "roles": "json",
        "labels": "json",
        "annotations": "json",
        "volumes": "json",
        "volume_mounts": "json",
        "tolerations": "json",
    }
    ui_color = "#d7e6f4"

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
        uploads: Sequence[str] | None = None,
        roles: Mapping[str, Mapping[str, Any]] | None = None,
        name: str | None = None,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        kubernetes_conn_id: str = "kubernetes_default",
        gang: GangPolicy | str = GangPolicy.REQUIRED,
        gang_scheduler: str | None = None,
        dialect: str | None = None,
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
        keep_suspended: bool = False,
        results: Results | str = Results.RANK0,
        results_limit: int = RESULTS_LIMIT_BYTES,
        result_storage: str | os.PathLike[str] | ObjectStoragePath | None = None,
        logs: Logs | str = Logs.RANK0_AND_FAILED,
        log_containers: Sequence[str] | str = (),
        log_limit: int = LOG_LIMIT_BYTES,
        stream_logs: bool | int | Sequence[int] = True,
        log_storage: str | os.PathLike[str] | ObjectStoragePath | None = None,
        queue_timeout: timedelta | float | None = None,
        assemble_timeout: timedelta | float | None = None,
        run_timeout: timedelta | float | None = None,
        max_disruptions: int = 0,
        reattach: Reattach | str = Reattach.RUNNING_OR_SUCCEEDED,
        durable: bool = True,
        on_finish: OnFinish | str = OnFinish.DELETE_SUCCEEDED,
        on_kill: OnKill | str = OnKill.DELETE,
        wait_until: WaitUntil | str = WaitUntil.ENDED,
        callbacks: type[GangJobCallback] | str | Sequence[type[GangJobCallback] | str] | None = None,
        launch: str = "plain",
        ssh_secret: str | None = None,
        slots_per_worker: int | str | None = None,
        pod_template_file: str | None = None,
        configmaps: Sequence[str] | None = None,
        secrets: Sequence[Any] | None = None,
        skip_on_exit_code: int | Sequence[int] | None = None,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if renamed := tuple(renamed_parameters(kwargs)):
            raise InvalidGangSpec(renamed)
        super().__init__(**kwargs)
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
        self.uploads = uploads
        self.roles = roles
        self.name = name
        self.namespace = namespace
        self.labels = labels
        self.annotations = annotations
        self.kubernetes_conn_id = kubernetes_conn_id
        self.gang = gang
        self.gang_scheduler = gang_scheduler
        self.dialect = dialect
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
        self.keep_suspended = keep_suspended
        self.queue_timeout_s = checks.to_seconds(queue_timeout)
        self.assemble_timeout_s = checks.to_seconds(assemble_timeout)
        self.run_timeout_s = checks.to_seconds(run_timeout)
        self.max_disruptions = max_disruptions
        self.callbacks = callback_paths.to_paths(callbacks)
        self.launch = launch
        self.ssh_secret = ssh_secret
        self.slots_per_worker = slots_per_worker
        self.pod_template_file = pod_template_file
        self.configmaps = configmaps
        self.secrets = secrets
        self.skip_on_exit_codes = shorthands.to_exit_codes(skip_on_exit_code)
        self.results_limit = results_limit
        self.result_storage = to_url(result_storage)
        self.log_storage = to_url(log_storage)
        self._convert_models()
        self._check_logs(log_limit=log_limit, log_containers=log_containers, stream_logs=stream_logs, workers=workers)
        reattach = shorthands.reattach_of(durable, reattach)
        self._check(
            results=results, logs=logs, reattach=reattach, on_finish=on_finish, on_kill=on_kill, wait_until=wait_until
        )
        self.results = Results(results)
        self.logs = Logs(logs)
        self.log_containers = (log_containers,) if isinstance(log_containers, str) else tuple(log_containers)
        self.log_limit = log_limit
        self.stream_logs = stream_logs
        self.reattach = Reattach(reattach)
        self.durable = durable
        self.on_finish = OnFinish(on_finish)
        self.kill_policy = OnKill(on_kill)
        self.wait_until = WaitUntil(wait_until)
        self.deferrable = default_deferrable() if deferrable is None else deferrable

    def _convert_models(self) -> None:
        """Replace models of the official Python client by dicts, so that Airflow renders the templates in them."""
        for name in MODELS:
            attribute = _SPEC_PARAMETERS[name]
            setattr(self, attribute, convert_parameter(name, getattr(self, attribute)))

    def resolve_template_files(self) -> None:
        """Read the manifest if it is a path, so that Airflow renders its text as a template."""
        if checks.is_manifest_file(self.manifest):
            self.manifest = self._read(str(self.manifest)).decode()
        if checks.is_manifest_file(self.pod_template_file):
            self.pod_template_file = self._read(str(self.pod_template_file)).decode()
        self.prepare_template()

    def _read_files_of_mapped_task(self, context: Context) -> None:
        """Read and render the template files. For a mapped task, Airflow renders only their paths."""
        names = ("manifest", "pod_template_file")
        paths = [name for name in names if checks.is_manifest_file(getattr(self, name))]
        if paths:
            self.resolve_template_files()
        for name in paths:
            setattr(self, name, self.render_template(getattr(self, name), context))

    def render_template(
        self, content: Any, context: Context, jinja_env: Environment | None = None, seen_oids: set[int] | None = None
    ) -> Any:
        """Render as Airflow does, but keep the line end at the end of a text, which Jinja removes by default.

        The content of a file keeps its last line end, and a file of a single line is not taken for a path.
        """
        environment = jinja_env or self.get_template_env()
        environment.keep_trailing_newline = True
        return super().render_template(content, context, environment, seen_oids)

    def _do_render_template_fields(self, parent: Any, *args: Any, **kwargs: Any) -> None:
        """Render as Airflow does. Then the template fields that have no value are no longer template fields.

        Airflow prepares each template field of a task that runs for the UI, which takes 0.5 to 1 ms of CPU for each
        field, also if the field has no value, and most of the fields have none.
        """
        super()._do_render_template_fields(parent, *args, **kwargs)
        if parent is self:
            self.template_fields = tuple(name for name in self.template_fields if getattr(self, name, None) is not None)

    @property
    def execution_timeout_s(self) -> float | None:
        """`execution_timeout` of the task in seconds, if the end of the task is the end of the gang."""
        if self.wait_until is not WaitUntil.ENDED:
            return None
        timeout = self.execution_timeout
        return timeout.total_seconds() if timeout and timeout.total_seconds() > 0 else None

    @property
    def log_options(self) -> LogOptions:
        """Which logs are copied into the log of the task, and how much of them."""
        return LogOptions(self.logs, self.log_containers, self.log_limit)

    def _spec(self) -> GangSpec:
        """Return the spec that the rendered parameters describe."""
        return checks.build_spec(self._spec_parameters(), self._read)

    def _spec_parameters(self) -> dict[str, Any]:
        given = {name: getattr(self, attribute, None) for name, attribute in _SPEC_PARAMETERS.items()}
        if checks.is_manifest_file(self.pod_template_file):  # the file is read when the task runs
            return given | {"manifest": self.pod_template_file}
        return shorthands.expand(
            given,
            configmaps=self.configmaps,
            secrets=self.secrets,
            pod_template=self.pod_template_file,
            launch=self.launch,
            ssh_secret=self.ssh_secret,
            slots_per_worker=self.slots_per_worker,
        )

    def _read(self, path: str) -> bytes:
        dag = self.dag
        return checks.read_file(path, checks.search_folders(dag.folder, dag.template_searchpath))

    def _is_in_task_process(self) -> bool:
        """Return whether the process of a task creates the operator: from its DAG file, or from a mapped task."""
        # Airflow sets this private attribute before `__init__` runs, and has no public name for it.
        is_unmapped = bool(getattr(self, "_BaseOperator__from_mapped", False))
        return is_unmapped or get_parsing_context().task_id is not None

    def _check(self, **choices: Any) -> None:
        """Check the parameters when the DAG file is parsed, as far as their templates allow.

        In the process of a task, the submission checks the parameters that describe the gang, after their templates
        are rendered. Loading the rules earlier would cost CPU time in the process that resumes the task, too.

        Raises:
            InvalidGangSpec: a parameter is invalid. The error lists all problems.
        """
        if template := shorthands.template_problems(self.pod_template_file, self.manifest):
            raise InvalidGangSpec(template)
        problems = checks.find_problems(
            None if self._is_in_task_process() else self._spec_parameters(),
            choices=choices,
            durations={name: getattr(self, f"{name}_s") for name in _DURATIONS},
            max_disruptions=self.max_disruptions,
        )
        problems += shorthands.choice_problems(self.launch, self.skip_on_exit_codes)
        problems += mpi_problems(self.launch, self.ssh_secret, self.slots_per_worker)
        problems += callback_paths.path_problems(self.callbacks)
        problems += shorthands.result_problems(self.results_limit)
        problems += tuple(storage_problems("result_storage", self.result_storage))
        problems += tuple(storage_problems("log_storage", self.log_storage))
        problems += limit_problems(self, choices["wait_until"])
        problems += role_problems(self.roles, choices["wait_until"], self.launch)
        if problems:
            raise InvalidGangSpec(problems)

    def _check_logs(self, **given: Any) -> None:
        problems = tuple(log_problems(**given))
        if problems:
            raise InvalidGangSpec(problems)


__all__ = ["GangTaskParameters"]

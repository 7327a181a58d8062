"""The supervisor of each rank, which starts the program of the rank again in its pod: command, variables and files.

A gang with `restarts`, `progress_timeout` or `checkpoints` has one. It is the program `gangjobs_supervisor.py`, which
the provider mounts with the files of the gang, so the image needs only Python. The supervisors of a gang authenticate
each other by a key that is made once, with the ConfigMap of the files. Without a rendezvous the ranks are independent
of each other, and each supervisor restarts its own rank alone.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.gang.spec import PROGRESS_HELPER_FILE, SUPERVISOR_FILE
from airflow_provider_gangjobs.kube.well_known import FILES_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_gangjobs.gang.spec import GangSpec
    from airflow_provider_gangjobs.kube.views import Object

KEY_FILE: Final = "gangjobs.key"
KEY_BYTES: Final = 32
_PROGRAMS: Final = {SUPERVISOR_FILE: "gangjobs_supervisor.py", PROGRESS_HELPER_FILE: PROGRESS_HELPER_FILE}
"""The file in the package `parameters` by its name in the pod."""
SUPERVISOR_FILES: Final = (*_PROGRAMS, KEY_FILE)
"""Names in `files` that the provider uses itself."""
PORT: Final = 29501
PORT_NAME: Final = "supervisor"
RUN_VOLUME: Final = "gang-run"
RUN_PATH: Final = "/gang/run"
LOST_CONTACT_S: Final = 60
"""After this time without the supervisor of rank 0, a rank stops its program, so that two restarts never overlap."""
STOP_GRACE_S: Final = 30
"""Default of Kubernetes for `terminationGracePeriodSeconds`."""
SUPERVISOR_ENV: Final = frozenset(
    {
        "GANG_RESTARTS_MAX",
        "GANG_NO_RESTART_ON_EXIT_CODES",
        "GANG_PROGRESS_TIMEOUT_S",
        "GANG_PROGRESS_PATH",
        "GANG_SUPERVISOR_ADDRESS",
        "GANG_SUPERVISOR_LISTEN",
        "GANG_SUPERVISOR_PORT",
        "GANG_SUPERVISOR_KEY_FILE",
        "GANG_STOP_GRACE_S",
        "GANG_LOST_CONTACT_S",
        "GANG_RESTART",
    }
)
"""Variables of the supervisor and the program. The supervisor sets the last one."""

LISTEN: Final = {
    "name": "GANG_SUPERVISOR_LISTEN",
    "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
}
"""The address on which rank 0 listens, because another pod may listen on the same port of a shared network."""

# Kubernetes replaces `$(NAME)` and `$$` in a command, so the script has neither.
SCRIPT: Final = f"""\
for python in python3 python; do
  if "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
    if [ -n "$GANG_CHECKPOINT_DIR$GANG_CHECKPOINT_URL" ]; then
      "$python" -I {FILES_PATH}/{PROGRESS_HELPER_FILE} prepare || exit 1
    fi
    exec "$python" {FILES_PATH}/{SUPERVISOR_FILE} "$@"
  fi
done
why="The image has no Python 3.8 or later, which restarts, progress_timeout and checkpoints need"
echo "$why" >&2
echo "{{\\"error\\": \\"$why\\"}}" >"$GANG_RESULT_PATH"
exit 127
"""
"""What the main container runs, in place of the command of the rank, which are the arguments."""


def files_of(spec: GangSpec) -> dict[str, str | bytes]:
    """Return the files of a gang, with those of the provider."""
    if not spec.is_supervised:
        return dict(spec.files)
    return {**spec.files, **{name: _read(source) for name, source in _PROGRAMS.items()}}


def with_supervisor(spec: GangSpec, pod: Object, address: str) -> Object:
    """Return the spec of a pod whose main container, the first one, runs its command by the supervisor.

    :param address: The host name of rank 0; empty if each rank restarts alone.
    """
    main, *others = pod["containers"]
    words = [*main.get("command", []), *main.get("args", [])]
    variables = _variables(spec, address, pod.get("terminationGracePeriodSeconds", STOP_GRACE_S))
    supervised = {
        **{name: value for name, value in main.items() if name != "args"},
        "command": ["/bin/sh", "-c", SCRIPT, "gangjobs", *words],
        "env": [*({"name": name, "value": value} for name, value in variables.items()), LISTEN, *main["env"]],
        "volumeMounts": [*main.get("volumeMounts", []), {"name": RUN_VOLUME, "mountPath": RUN_PATH}],
    }
    volumes = [*pod.get("volumes", []), {"name": RUN_VOLUME, "emptyDir": {}}]
    return {**pod, "volumes": volumes, "containers": [supervised, *others]}


def service_ports(spec: GangSpec) -> list[Object]:
    """Return the port of the supervisor as a port of the gang's Service; none without a supervisor."""
    return [{"name": PORT_NAME, "port": PORT}] if spec.is_supervised else []


def _variables(spec: GangSpec, address: str, stop_grace_s: Any) -> Mapping[str, str]:
    return {
        "GANG_RESTARTS_MAX": str(spec.restarts),
        "GANG_NO_RESTART_ON_EXIT_CODES": _join(spec.no_restart_on_exit_codes),
        "GANG_PROGRESS_TIMEOUT_S": "" if spec.progress_timeout_s is None else f"{spec.progress_timeout_s:.12g}",
        "GANG_PROGRESS_PATH": f"{RUN_PATH}/progress",
        "GANG_SUPERVISOR_ADDRESS": address,
        "GANG_SUPERVISOR_PORT": str(PORT),
        "GANG_SUPERVISOR_KEY_FILE": f"{FILES_PATH}/{KEY_FILE}",
        "GANG_STOP_GRACE_S": str(stop_grace_s),
        "GANG_LOST_CONTACT_S": str(LOST_CONTACT_S),
    }


def _join(codes: Sequence[int]) -> str:
    return ",".join(map(str, codes))


def _read(source: str) -> str:
    content = pkgutil.get_data("airflow_provider_gangjobs.parameters", source)
    assert content is not None, "the package has its files"
    return content.decode()

"""Files of ranks: files of one submission, uploads that many submissions share, and the supervisor of each rank.

Files and uploads are stored in immutable ConfigMaps, which the kubelet does not watch, and are mounted read-only in
every container. The Job owns the files of its submission. The name of an upload is the digest of its content, and it
stays until it is deleted.

A supervisor starts the program of its rank again in its pod. A gang with `restarts`, `progress_timeout` or
`checkpoints` has supervisors. It is the program `gangjobs_supervisor.py`, which the provider mounts with the files of
the gang, so the image needs only Python. The supervisors of a gang authenticate each other by a key that is made once,
with the ConfigMap of the files. Without a rendezvous the ranks are independent of each other, and each supervisor
restarts its own rank alone.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.container_programs import PROGRAMS
from airflow_provider_gangjobs.gang.identity import DIGEST_LENGTH
from airflow_provider_gangjobs.gang.spec import PROGRESS_HELPER_FILE, RESULT_HELPER_FILE, SUPERVISOR_FILE, GangSpec
from airflow_provider_gangjobs.kube.well_known import ENV_FILES, FILES_PATH, LABEL_GANG, LABEL_PURPOSE, ObjectPurpose

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_gangjobs.kube.views import Object


FILES_VOLUME: Final = "gang-files"
FILES_MODE: Final = 0o555
"""Files are readable and executable."""
FILES_BYTES_MAX: Final = 900 * 1024
"""A ConfigMap holds 1 MiB, which includes names and metadata."""
UPLOADS_MAX: Final = 16
"""Uploads of one gang. Each upload costs one request before the submission, and every node reads every upload."""
FILES_ENV: Final = [{"name": ENV_FILES, "value": FILES_PATH}]
_CONTENT_ID: Final = re.compile(rf"gang-upload-[a-z2-7]{{{DIGEST_LENGTH}}}")


def content_id_of(files: Mapping[str, str | bytes]) -> str:
    """Return the name of the ConfigMap that holds exactly these files. Texts are hashed as UTF-8."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        for part in (name.encode(), content.encode() if isinstance(content, str) else content):
            digest.update(len(part).to_bytes(8))
            digest.update(part)
    return "gang-upload-" + base64.b32encode(digest.digest()).decode().lower()[:DIGEST_LENGTH]


def is_content_id(text: str) -> bool:
    return _CONTENT_ID.fullmatch(text) is not None


def config_map_name(job: str) -> str:
    return f"{job}-files"


def config_map_of(
    files: Mapping[str, str | bytes], *, job: str, namespace: str, owner: dict[str, Any]
) -> dict[str, Any]:
    """Render the ConfigMap of a submission's files, owned by the Job."""
    labels = {LABEL_GANG: job, LABEL_PURPOSE: ObjectPurpose.FILES.value}
    metadata = {"name": config_map_name(job), "namespace": namespace, "labels": labels, "ownerReferences": [owner]}
    return _config_map(metadata, files)


def upload_of(files: Mapping[str, str | bytes], *, namespace: str) -> dict[str, Any]:
    """Render the ConfigMap of an upload, which has no owner."""
    labels = {LABEL_PURPOSE: ObjectPurpose.UPLOAD.value}
    return _config_map({"name": content_id_of(files), "namespace": namespace, "labels": labels}, files)


def files_in(config_map: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files in a ConfigMap: name -> content."""
    texts = {name: text.encode() for name, text in (config_map.get("data") or {}).items()}
    return texts | {name: base64.b64decode(text) for name, text in (config_map.get("binaryData") or {}).items()}


def _config_map(metadata: dict[str, Any], files: Mapping[str, str | bytes]) -> dict[str, Any]:
    texts = {name: content for name, content in files.items() if isinstance(content, str)}
    binary = {name: base64.b64encode(c).decode() for name, c in files.items() if isinstance(c, bytes)}
    contents = {"data": texts} if not binary else {"data": texts, "binaryData": binary}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, **contents}


def volume_of(uploads: Sequence[str], *, job: str, has_own: bool) -> dict[str, Any]:
    """Render the pods' volume. The submission's own files come last, so they win over uploads of the same name.

    :param has_own: Whether the submission has files of its own.
    """
    names = [*uploads, *([config_map_name(job)] if has_own else [])]
    if not uploads:
        return {"name": FILES_VOLUME, "configMap": {"name": names[0], "defaultMode": FILES_MODE}}
    sources = [{"configMap": {"name": name}} for name in names]
    return {"name": FILES_VOLUME, "projected": {"sources": sources, "defaultMode": FILES_MODE}}


FILES_MOUNT: Final = {"name": FILES_VOLUME, "mountPath": FILES_PATH, "readOnly": True}
KEY_FILE: Final = "gangjobs.key"
KEY_BYTES: Final = 32
_PROGRAMS: Final = {
    SUPERVISOR_FILE: "gangjobs_supervisor.py",
    PROGRESS_HELPER_FILE: PROGRESS_HELPER_FILE,
    RESULT_HELPER_FILE: RESULT_HELPER_FILE,
}
"""The file in `container_programs` by its name in the pod."""
PORT: Final = 29501
PORT_NAME: Final = "supervisor"
RUN_VOLUME: Final = "gang-run"
RUN_PATH: Final = "/gang/run"
LOST_CONTACT_S: Final = 60
"""After this time without the supervisor of rank 0, a rank stops its program, so that two restarts never overlap."""
STOP_GRACE_S: Final = 30
"""Default of Kubernetes for `terminationGracePeriodSeconds`."""
LISTEN: Final = {
    "name": "GANG_SUPERVISOR_LISTEN",
    "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
}
"""The address on which rank 0 listens, because another pod may listen on the same port of a shared network."""

# Kubernetes replaces `$(NAME)` and `$$` in a command, so the script has neither. Shells such as dash drop variables
# whose names they cannot use, such as those with dots. So Python copies the environment of the shell before it is used.
SCRIPT: Final = f"""\
for python in python3 python; do
  if "$python" -I -S -c '
import os, sys
if sys.version_info < (3, 8): sys.exit(1)
os.umask(0o77)
try:
    with open("/proc/{{}}/environ".format(os.getppid()), "rb") as given, open(sys.argv[1] + ".part", "wb") as copy:
        copy.write(given.read())
    os.rename(sys.argv[1] + ".part", sys.argv[1])
except OSError: pass
' "${{GANG_PROGRESS_PATH%/*}}/environ" 2>/dev/null; then
    if [ -n "$GANG_CHECKPOINT_DIR$GANG_CHECKPOINT_URL" ]; then
      "$python" {FILES_PATH}/{PROGRESS_HELPER_FILE} prepare || exit 1
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
    return {**spec.files, **supervisor_programs()}


def supervisor_programs() -> dict[str, str]:
    """Return the files of the provider that a gang with supervisors has: name in the pods -> content."""
    return {name: (PROGRAMS / source).read_text("utf-8") for name, source in _PROGRAMS.items()}


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


def _variables(spec: GangSpec, address: str, stop_grace_s: Any) -> Mapping[str, str]:
    return {
        "GANG_RESTARTS_MAX": str(spec.restarts),
        "GANG_NO_RESTART_ON_EXIT_CODES": ",".join(map(str, spec.no_restart_on_exit_codes)),
        "GANG_PROGRESS_TIMEOUT_S": "" if spec.progress_timeout_s is None else f"{spec.progress_timeout_s:.12g}",
        "GANG_PROGRESS_PATH": f"{RUN_PATH}/progress",
        "GANG_SUPERVISOR_ADDRESS": address,
        "GANG_SUPERVISOR_PORT": str(PORT),
        "GANG_SUPERVISOR_KEY_FILE": f"{FILES_PATH}/{KEY_FILE}",
        "GANG_KEEP_CHECKPOINTS": str(int(spec.keep_checkpoints)),
        "GANG_STOP_GRACE_S": str(stop_grace_s),
        "GANG_LOST_CONTACT_S": str(LOST_CONTACT_S),
    }


SUPERVISOR_ENV: Final = frozenset({*_variables(GangSpec(), "", STOP_GRACE_S), LISTEN["name"], "GANG_RESTART"})
"""Variables of the supervisor and the program. The supervisor sets the last one."""
